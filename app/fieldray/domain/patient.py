"""Which images are of one patient, and which of a patient's images in a run are of today: those of the newest study.

A desk thinks in the patients who are there. A patient stands where the most urgent answer on their newest study puts
them; images of earlier days lie below and lift nobody. The work list, exports and archives all go by this module.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import ImageHeader, ImageRef, day_of, known_person

NO_DAY = 0
# same: one person by all that both images name; other: another person; unknown: an image does not say whose it is
PatientMatch = Literal["same", "other", "unknown"]


def match_patients(one: ImageHeader, other: ImageHeader) -> PatientMatch:
    """Whether two images are of one person: the same Patient ID, and no contrary birth date or sex."""
    births = [day_of(header.patient_birth_date) for header in (one, other)]
    differs = births[0] and births[1] and births[0] != births[1]
    if differs or {one.patient_sex, other.patient_sex} == {"M", "F"}:
        return "other"
    numbers = [known_person(header.patient_id) for header in (one, other)]
    if not all(numbers):
        return "unknown"
    return "same" if numbers[0] == numbers[1] else "other"


def person_key(ref: ImageRef) -> str:
    """A text that is alike for images of one person, by all that `match_patients` goes by, and for no others of a run.

    An image that does not say whose it is has one of its own.
    """
    header, number = ref.header, known_person(ref.header.patient_id)
    if not number:
        return f"\n{ref.key}"
    sex = header.patient_sex if header.patient_sex in ("M", "F") else ""
    return f"{number}\n{day_of(header.patient_birth_date) or ''}\n{sex}"


@functools.lru_cache(maxsize=4096)
def day_number(dicom_date: str) -> int:
    """A study date as a number that grows by one a day; 0 where the file has no date, or one that there is not."""
    day = day_of(dicom_date)
    return day.toordinal() if day else NO_DAY


def earlier_images(people: NDArray[np.int64], days: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of a run's images are of an earlier day than the newest image of the same patient.

    Parameters
    ----------
    people
        (n,) A number for each image, alike for images of one patient alone (`person_key`).
    days
        (n,) The `day_number` of each image. Without a date an image is never earlier, and makes no other one so.

    Returns
    -------
    (n,)
    """
    _, patient = np.unique(people, return_inverse=True)
    newest = np.zeros(patient.max(initial=-1) + 1, np.int64)
    np.maximum.at(newest, patient, days)
    is_earlier: NDArray[np.bool_] = (days != NO_DAY) & (days < newest[patient])
    return is_earlier


def todays_first(is_earlier: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The positions (n,) of images in the order of a list, with those of earlier days behind all others."""
    positions: NDArray[np.int64] = np.argsort(is_earlier, kind="stable")
    return positions

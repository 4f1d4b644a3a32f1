"""Matching of images to patients, and the newest study day of each patient in a run.

Work lists are ordered by patient. The position of a patient is decided by the most urgent result of the patient's
newest study day. Images of earlier days do not count for the position, and come at the end of the list.
Work list, exports and archives use this module.
"""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import ImageHeader, ImageRef, parse_dicom_date, patient_id_if_usable

UNKNOWN_DAY = 0
# same: one person; other: two persons; unknown: an image has no usable Patient ID
PatientMatch = Literal["same", "other", "unknown"]


def match_patients(one: ImageHeader, other: ImageHeader) -> PatientMatch:
    """Return whether two images are of one person.

    Result     condition
    "other"    birth dates differ, sexes are male and female, or Patient IDs differ
    "unknown"  an image has no usable Patient ID
    "same"     Patient IDs are equal, and birth date and sex do not contradict
    """
    births = [parse_dicom_date(header.patient_birth_date) for header in (one, other)]
    differs = births[0] and births[1] and births[0] != births[1]
    if differs or {one.patient_sex, other.patient_sex} == {"M", "F"}:
        return "other"
    numbers = [patient_id_if_usable(header.patient_id) for header in (one, other)]
    if not all(numbers):
        return "unknown"
    return "same" if numbers[0] == numbers[1] else "other"


def patient_key(ref: ImageRef) -> str:
    """Return a key that is equal for images of one person within a run.

    The key is made from Patient ID, birth date and sex. An image without a usable Patient ID has a key that no other
    image has.
    """
    header, number = ref.header, patient_id_if_usable(ref.header.patient_id)
    if not number:
        return f"\n{ref.key}"
    sex = header.patient_sex if header.patient_sex in ("M", "F") else ""
    return f"{number}\n{parse_dicom_date(header.patient_birth_date) or ''}\n{sex}"


@functools.lru_cache(maxsize=4096)
def day_number(dicom_date: str) -> int:
    """Return the day number of a study date: one more for each later day, 0 for a missing or invalid date."""
    day = parse_dicom_date(dicom_date)
    return day.toordinal() if day else UNKNOWN_DAY


def earlier_image_mask(people: NDArray[np.int64], days: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which images of a run are of an earlier day than the newest image of their patient.

    Parameters
    ----------
    people
        (n,) A number for each image, equal for all images of one patient (`patient_key`).
    days
        (n,) The `day_number` of each image. An image without a date is never earlier, and makes no other image earlier.

    Returns
    -------
    (n,) True for images of an earlier day.
    """
    _, patient = np.unique(people, return_inverse=True)
    newest = np.zeros(patient.max(initial=-1) + 1, np.int64)
    np.maximum.at(newest, patient, days)
    is_earlier: NDArray[np.bool_] = (days != UNKNOWN_DAY) & (days < newest[patient])
    return is_earlier


def positions_with_earlier_last(is_earlier: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the positions of images (n,), reordered so that images of earlier days come after all others.

    is_earlier  (n,) whether each image is of an earlier day, as `earlier_image_mask` returns it
    """
    positions: NDArray[np.int64] = np.argsort(is_earlier, kind="stable")
    return positions

"""Which images of a run are of today: those of the newest study of each patient.

A desk thinks in the patients who are there. A patient stands where the most urgent answer on their newest study puts
them; images of earlier days lie below and lift nobody. The work list, exports and archives all go by this module.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import day_of

NO_DAY = 0


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
        (n,) A number for each image, alike for images of one patient alone (`domain.prior.person_key`).
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

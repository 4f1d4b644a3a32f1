"""The images of today: the newest study of each patient in a run.

A clinic works by patient. A patient's position in the work list is that of the most urgent answer of the newest study.
Images of earlier days follow below and do not raise the patient's position. Work list, exports and archives use this
module.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import day_of

NO_DAY = 0


@functools.lru_cache(maxsize=4096)
def day_number(dicom_date: str) -> int:
    """Convert a study date to a number that grows by one a day; 0 for a missing or invalid date."""
    day = day_of(dicom_date)
    return day.toordinal() if day else NO_DAY


def earlier_images(people: NDArray[np.int64], days: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which images of a run are of an earlier day than the newest image of their patient.

    Parameters
    ----------
    people
        (n,) A number for each image, equal for all images of one patient (`domain.prior.person_key`).
    days
        (n,) The `day_number` of each image. An image without a date is never earlier, and makes no other image earlier.

    Returns
    -------
    (n,) True for images of an earlier day.
    """
    _, patient = np.unique(people, return_inverse=True)
    newest = np.zeros(patient.max(initial=-1) + 1, np.int64)
    np.maximum.at(newest, patient, days)
    earlier: NDArray[np.bool_] = (days != NO_DAY) & (days < newest[patient])
    return earlier


def todays_first(is_earlier: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the positions (n,) of images with those of earlier days moved behind all others, otherwise in order."""
    positions: NDArray[np.int64] = np.argsort(is_earlier, kind="stable")
    return positions

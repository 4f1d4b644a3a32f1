"""Recognise one patient behind several patient numbers: similar numbers, and numbers that share an image file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fieldray.plain_text import find_look_alike_patient_numbers
from fieldray.reasons import Reason, reason


def patient_sha256(patient: str) -> str:
    """Return the SHA-256 of a patient number as hexadecimal text.

    The digest does not make data anonymous: a person who guesses the number can compute the digest.
    """
    return hashlib.sha256(patient.encode()).hexdigest()


NO_PATIENT_SHA256: Final = patient_sha256("")
"""The SHA-256 of the empty patient number, of images without a patient number. No table may have this digest."""


def patient_hash_fraction(patient: str, *, seed: int) -> float:
    """Return a number in 0..1 that depends only on the patient number and `seed`.

    The numbers of many patients are uniformly distributed.
    """
    return int.from_bytes(hashlib.sha256(f"{seed} {patient}".encode()).digest()[:8], "big") / 2**64


def find_similar_patient_numbers(origins: Mapping[str, str]) -> Iterator[Reason]:
    """Yield a reason (data_patients_alike) for each pair of patient numbers that a person could confuse.

    `origins` has a location for each patient number, such as a file and line, for the message.
    """
    for first, second in find_look_alike_patient_numbers(origins):
        yield reason("data_patients_alike", patient=first, other=second, first=origins[first], second=origins[second])


def merge_patients_sharing_files(images: Sequence[tuple[str, str]]) -> list[str]:
    """Return a patient number for each image, so that patients who share an identical file count as one patient.

    Patients who share a file all get the number of one of these patients.

    Parameters
    ----------
    images
        For each image: the patient number, and the SHA-256 of the file ("" if unknown).
    """
    leader: dict[str, str] = {}
    first: dict[str, str] = {}

    def found(person: str) -> str:
        while (above := leader.get(person, person)) != person:
            person = above
        return person

    for person, content in images:
        if content:
            ends = sorted((found(person), found(first.setdefault(content, person))))
            leader[ends[1]] = ends[0]
    return [found(person) for person, _ in images]

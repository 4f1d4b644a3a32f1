"""Identity of patients before a split: similar patient numbers, and patients who share a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fieldray.plain_text import look_alikes
from fieldray.reasons import Reason, reason


def patient_sha256(patient: str) -> str:
    """SHA-256 of a patient's name in the data, as hexadecimal text. Whoever can guess the name can find it again."""
    return hashlib.sha256(patient.encode()).hexdigest()


NOBODY: Final = patient_sha256("")
"""An image without a patient is nobody that a table could name."""


def share_of(patient: str, *, seed: int) -> float:
    """A number in 0..1 that depends on patient and seed alone, uniformly distributed over patients."""
    return int.from_bytes(hashlib.sha256(f"{seed} {patient}".encode()).digest()[:8], "big") / 2**64


def alike_numbers(origins: Mapping[str, str]) -> Iterator[Reason]:
    """A data_patients_alike for each two numbers of patients that a person takes for one; `origins` by number."""
    for first, second in look_alikes(origins):
        yield reason("data_patients_alike", patient=first, other=second, first=origins[first], second=origins[second])


def one_name_each(images: Sequence[tuple[str, str]]) -> list[str]:
    """One name for each image; patients who share a file share a name.

    Parameters
    ----------
    images
        The patient and the SHA-256 of the file, "" where it is not known.
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

"""Training, validation and test images. No patient is in two parts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.layouts import Row
from fieldray.adaptation.recipe_data import LabelRule, Source, Split
from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason

PARTS: Final = ("training", "validation", "test")


def targets_of(rows: Sequence[Row], labels: Sequence[LabelRule]) -> NDArray[np.float32]:
    """(rows, labels): 1, 0, or nan where a row says nothing about a label."""
    return np.array([[_target(row, label) for label in labels] for row in rows], np.float32).reshape(-1, len(labels))


def _target(row: Row, label: LabelRule) -> float:
    if label.above_years is not None:
        return float("nan") if row.age_years is None else float(row.age_years > label.above_years)
    positive, negative = set(label.positive), set(label.negative)
    cells = {"view": row.view, "sex": row.sex}
    values = row.classes if label.column == "classes" else {cells[label.column]} - {""}
    if values & positive:
        return 1.0
    if row.unknown & positive or not values:
        return float("nan")
    return 0.0 if not negative or values & negative else float("nan")


def split_rows(rows: Sequence[Row], split: Split, sources: Sequence[Source]) -> list[str]:
    """The part of each row: "training", "validation", "test", or "none" for what is left out.

    Images of a source that is not evaluated are left out where they are not for training.

    Raises UsageProblem: data_leak when a patient would be on two sides, data_split for values without a meaning.
    """
    parts = parts_of(rows, split, sources)
    refuse_leak(rows, parts)
    return evaluated_parts(rows, parts, sources)


def evaluated_parts(rows: Sequence[Row], parts: Sequence[str], sources: Sequence[Source]) -> list[str]:
    """The parts without images for validation and test from sources that are for training only."""
    training_only = {source.name for source in sources if not source.evaluated}
    return [
        "none" if row.source in training_only and part != "training" else part
        for row, part in zip(rows, parts, strict=True)
    ]


def parts_of(rows: Sequence[Row], split: Split, sources: Sequence[Source]) -> list[str]:
    """The part of each row before anybody looks for patients in two parts. Raises UsageProblem (data_split)."""
    if split.by == "random":
        return _by_random(rows, split)
    return _by_column(rows, sources) if split.by == "column" else _by_fold(rows, split)


def check_classes(parts: Sequence[str], targets: NDArray[np.float32], labels: Sequence[LabelRule]) -> None:
    """Raises UsageProblem, the first of what `empty_classes` finds."""
    for found in empty_classes(parts, targets, labels):
        raise UsageProblem(found)


def empty_classes(parts: Sequence[str], targets: NDArray[np.float32], labels: Sequence[LabelRule]) -> Iterator[Reason]:
    """A data_class_empty for each label that has no positive or no negative image in a part.

    An auxiliary label is needed in training only.
    """
    for part in PARTS:
        members = targets[[name == part for name in parts]]
        for column, label in enumerate(labels):
            if label.auxiliary and part != "training":
                continue
            for value, words in ((1, "positive"), (0, "negative")):
                if not (members[:, column] == value).any():
                    yield reason("data_class_empty", label=label.code, kind=words, part=part)


def _by_column(rows: Sequence[Row], sources: Sequence[Source]) -> list[str]:
    meanings: Mapping[str, Mapping[str, str]] = {source.name: source.splits for source in sources}
    parts = [meanings[row.source].get(row.split, "none") for row in rows]
    if "training" not in parts:
        values = ", ".join(sorted({row.split or "(empty)" for row in rows})[:8])
        raise UsageProblem(reason("data_split", values=values))
    return parts


def _by_fold(rows: Sequence[Row], split: Split) -> list[str]:
    def part(row: Row) -> str:
        if not row.fold:
            return "training"
        if row.fold in map(str, split.test_folds):
            return "test"
        return "validation" if row.fold in map(str, split.validation_folds) else "training"

    return [part(row) for row in rows]


def _by_random(rows: Sequence[Row], split: Split) -> list[str]:
    """Each patient by a number of their own: adding or removing one moves nobody else."""

    def part(row: Row) -> str:
        share = _share_of(row.person, seed=split.seed)
        if share < split.test_share:
            return "test"
        return "validation" if share < split.test_share + split.validation_share else "training"

    return [part(row) for row in rows]


def _share_of(patient: str, *, seed: int) -> float:
    """A number in 0..1 that depends on patient and seed alone, uniformly distributed over patients."""
    return int.from_bytes(hashlib.sha256(f"{seed} {patient}".encode()).digest()[:8], "big") / 2**64


def refuse_leak(rows: Sequence[Row], parts: Sequence[str]) -> None:
    """Raises UsageProblem, the first of what `leaks` finds."""
    for found in leaks(rows, parts):
        raise UsageProblem(found)


def leaks(rows: Sequence[Row], parts: Sequence[str]) -> Iterator[Reason]:
    """A data_leak for each patient with images in two parts ("none" is no part)."""
    told = set[str]()
    seen: dict[str, tuple[str, Row]] = {}
    for row, part in zip(rows, parts, strict=True):
        if part == "none" or not row.patient:
            continue
        other, first = seen.setdefault(row.patient, (part, row))
        if other != part and row.patient not in told:
            told.add(row.patient)
            sides = {"first": f"{first.origin} ({other})", "second": f"{row.origin} ({part})"}
            yield reason("data_leak", patient=row.patient, **sides)


def counts(parts: Sequence[str], targets: NDArray[np.float32], column: int) -> dict[str, dict[str, int]]:
    """Numbers of positive, negative and unknown images of a label in each part."""
    names = {1.0: "positive", 0.0: "negative"}
    found = Counter((part, names.get(float(t), "unknown")) for part, t in zip(parts, targets[:, column], strict=True))
    return {part: {kind: found[part, kind] for kind in ("positive", "negative", "unknown")} for part in PARTS}

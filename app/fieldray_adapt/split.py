"""Which patients are trained on, and which are for validation and test. No patient is in two parts.

A split at random is a hash's, so that nobody moves when others are added; a table may settle the part of some patients.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.files import content_digest
from fieldray_adapt.layouts import Row, table_rows
from fieldray_adapt.recipe_data import Source, Split

PARTS: Final = ("training", "validation", "test")
_DIGEST: Final = re.compile("[0-9a-f]{64}")


def split_rows(rows: Sequence[Row], split: Split, sources: Sequence[Source]) -> list[str]:
    """The part of each row: "training", "validation", "test", or "none" for what is left out.

    Images of a source that is not evaluated are left out where they are not for training.

    Raises UsageProblem: data_leak when a patient would be on two sides, data_split for values without a meaning,
    data_split_nobody for a table of other patients.
    """
    refuse_foreign_table(rows, split)
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


def table_digest(split: Split) -> str:
    """Of the content of the table of patients who are not drawn, "" without one."""
    return content_digest(split.table) if split.table else ""


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
    """As the split's table says, every other patient by a number: adding or removing one moves nobody else."""
    settled = _settled(split.table)

    def part(row: Row) -> str:
        if known := settled.get(patient_sha256(row.patient)):
            return known
        share = _share_of(row.person, seed=split.seed)
        if share < split.test_share:
            return "test"
        return "validation" if share < split.test_share + split.validation_share else "training"

    return [part(row) for row in rows]


def _settled(path: Path | None) -> dict[str, str]:
    """The part by digest of each patient whom a table names, in the open or by digest; nobody without a table.

    Raises UsageProblem (data_split_table, data_column, data_row, data_unreadable).
    """
    found: dict[str, str] = {}
    if path is None:
        return found
    for line, cells in table_rows(Source(path=path), _refuse, ("part",)):
        if not cells.keys() & {"patient", "patient_sha256"}:
            raise UsageProblem(reason("data_column", path=path, column="patient", known=", ".join(cells)))
        known, part = _named_by(cells), cells["part"]
        if known is None or part not in (*PARTS, "none") or found.setdefault(known, part) != part:
            raise UsageProblem(reason("data_split_table", path=path, row=line, parts=", ".join(PARTS)))
    return found


def _named_by(cells: Mapping[str, str]) -> str | None:
    """The digest of the one patient whom a row names; None where it names none, or two, or no digest is one."""
    name, digest = cells.get("patient", ""), cells.get("patient_sha256", "").lower()
    if not (name or digest) or (name and name != name.strip()):
        return None
    known = patient_sha256(name) if name else digest
    is_one = _DIGEST.fullmatch(known) is not None and known == (digest or known)
    return known if is_one and known != _NOBODY else None


def refuse_foreign_table(rows: Sequence[Row], split: Split) -> None:
    """Raises UsageProblem where the split's table names none of the patients (data_split_nobody) or cannot be used."""
    if split.table and not table_counts(rows, split)["patients_of_table_in_data"]:
        raise UsageProblem(reason("data_split_nobody", path=split.table))


def table_counts(rows: Sequence[Row], split: Split) -> dict[str, int]:
    """How many patients the split's table names, and how many of them are in the data; nothing without a table."""
    if split.table is None:
        return {}
    named = set(_settled(split.table))
    found = named & {patient_sha256(row.patient) for row in rows}
    return {"patients_of_table": len(named), "patients_of_table_in_data": len(found)}


def refuse_settled(rows: Sequence[Row], split: Split) -> None:
    """Raises UsageProblem (data_leak) where the split's table names a patient of another hospital."""
    settled = _settled(split.table)
    for row in rows:
        if part := settled.get(patient_sha256(row.patient)):
            sides = {"first": f"{split.table} ({part})", "second": f"{row.origin} (elsewhere)"}
            raise UsageProblem(reason("data_leak", patient=row.patient, **sides))


def _refuse(wrong: Reason) -> NoReturn:
    raise UsageProblem(wrong)


def patient_sha256(patient: str) -> str:
    """SHA-256 of a patient's name in the data, as hexadecimal text. Whoever can guess the name can find it again."""
    return hashlib.sha256(patient.encode()).hexdigest()


_NOBODY: Final = patient_sha256("")  # an image without a patient is nobody that a table could name


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

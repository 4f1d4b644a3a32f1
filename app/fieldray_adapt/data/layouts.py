"""The images of a source as rows of a table, and the part of each patient.

Published layouts of labelled images are read into common rows: class folders, CSV, CheXpert, NIH, and our index.
Patients are divided into training, validation and test; no patient is in two parts. A random split uses a hash of the
patient, so that new patients move nobody; a table may fix the part of some patients.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn, Protocol

from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.files import content_digest
from fieldray_adapt.patients import NOBODY, alike_numbers, one_name_each, patient_sha256, share_of
from fieldray_adapt.recipes.shared import Source, Split


class Table(Protocol):
    """A CSV file with a filter: a row counts if every column in `where` has one of the values given for the column."""

    @property
    def path(self) -> Path:
        """Return the path of the file."""

    @property
    def where(self) -> Mapping[str, tuple[str, ...]]:
        """The accepted values, by column."""


Wrong = Callable[[Reason], None]
"""Hears of everything that is wrong with a source."""

_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".dcm", ".dicom", ""})
_CHEXPERT_FIRST_CLASS: Final = 5
_CHEXPERT_PATIENT: Final = re.compile(r"(patient\d+)")
_CHEXPERT_VALUES: Final = {"": 0, "0.0": 0, "0": 0, "1.0": 1, "1": 1, "-1.0": -1, "-1": -1}
_YEARS: Final = re.compile(r"(\d{1,3}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One labelled image before it is read.

    Attributes
    ----------
    classes
        Classes known to be present. `unknown`: classes that may or may not be present.
    origin
        File and line, for messages.
    sha256
        Of the file's content, in hexadecimal; "" until it is computed, and where the file cannot be read.
    """

    path: Path
    source: str
    classes: frozenset[str]
    patient: str
    origin: str
    unknown: frozenset[str] = frozenset()
    split: str = ""
    fold: str = ""
    view: str = ""
    age_years: float | None = None
    sex: str = ""
    sha256: str = ""

    @property
    def person(self) -> str:
        """The patient. The same number means the same person in all sources; an image without one is its own person.

        Such an image is identified by its content, because its line number changes when lines are added above it.
        """
        return self.patient or self.sha256 or self.origin


def read_source(source: Source) -> list[Row]:
    """Read the rows of one source in the file's order, without those that `where` and `drop` exclude.

    Raises UsageProblem with the first problem of `find_rows`.
    """
    rows, wrong = find_rows(source)
    if wrong:
        raise UsageProblem(wrong[0])
    return rows


def find_rows(source: Source) -> tuple[list[Row], list[Reason]]:
    """Return the rows of one source, and all problems of the source.

    The problems are data_unreadable, data_column (naming the existing columns), data_row, data_patient,
    data_named_twice, data_empty.
    """
    wrong: list[Reason] = []
    every = _LAYOUT_READERS[source.layout](source, wrong.append)
    rows = list(_each_once((row for row in every if not row.classes & set(source.drop)), wrong.append))
    if not rows and not wrong:
        wrong.append(reason("data_empty", name=source.name, path=source.path))
    return rows, wrong


def _each_once(rows: Iterable[Row], wrong: Wrong) -> Iterator[Row]:
    """Yield rows without exact repetitions for a file; a contradicting repetition is a problem."""
    first: dict[str, Row] = {}
    for row in rows:
        known = first.setdefault(os.path.normpath(row.path), row)
        if known is row:
            yield row
        elif replace(row, path=known.path, origin=known.origin) != known:
            wrong(reason("data_named_twice", path=row.path, first=known.origin, second=row.origin))


_COLUMNS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "csv": (("path", "path"), ("classes", "label"), ("patient", "patient")),
    "index": (
        *(("path", "path"), ("classes", "label"), ("patient", "patient_id"), ("findings", "finding")),
        *((name, name) for name in ("view", "age", "sex", "fold", "split")),
    ),
    # NIH ChestX-ray14, Data_Entry_2017*.csv
    "nih": (
        *(("path", "Image Index"), ("classes", "Finding Labels"), ("patient", "Patient ID")),
        *(("view", "View Position"), ("age", "Patient Age"), ("sex", "Patient Sex"), ("sex", "Patient Gender")),
    ),
}
"""For each layout that is one table, what its columns hold. The first three are needed, and those of the recipe."""
_NEEDED: Final = 3


def _read_table(source: Source, wrong: Wrong) -> Iterator[Row]:
    """Read a CSV file with the layout's or the recipe's columns; several classes are joined by |."""
    known = _COLUMNS[source.layout]
    columns = [*(pair for pair in known if pair[0] not in source.columns), *source.columns.items()]
    names = {*(name for name, _ in known[:_NEEDED]), *source.columns}
    for line, row in table_rows(source, wrong, tuple(column for name, column in columns if name in names)):
        cells = {name: row[column] for name, column in columns if column in row}
        yield Row(
            path=_images(source) / cells["path"],
            source=source.name,
            classes=_names(cells["classes"]) | _names(cells.get("findings", "")),
            patient=cells["patient"],
            origin=_origin(source, line),
            split=cells.get("split", ""),
            fold=cells.get("fold", ""),
            view=cells.get("view", ""),
            age_years=_age(cells.get("age", "")),
            sex=cells.get("sex", ""),
        )


def _read_chexpert(source: Source, wrong: Wrong) -> Iterator[Row]:
    """Read CheXpert's train.csv: 1 is positive, 0 and blank are negative, -1 follows the recipe's `uncertain`."""
    for line, row in table_rows(source, wrong, ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA")):
        if row["Frontal/Lateral"] == "Lateral":
            continue
        names = list(row)[_CHEXPERT_FIRST_CLASS:]
        values = {name: _CHEXPERT_VALUES.get(row[name]) for name in names}
        uncertain = frozenset(name for name, value in values.items() if value == -1)
        if uncertain and source.uncertain == "drop":
            continue
        present = frozenset(name for name, value in values.items() if value == 1)
        patient = _CHEXPERT_PATIENT.search(row["Path"])
        if patient is None:
            wrong(_bad_row(source, line, f"no patient in the path {row['Path']}"))
        for name in (name for name, value in values.items() if value is None):
            wrong(_bad_row(source, line, f"{name} is {row[name]}, not 1, 0, -1 or blank"))
        if patient is None or None in values.values():
            continue
        yield Row(
            path=_images(source) / row["Path"],
            source=source.name,
            classes=present | (uncertain if source.uncertain == "positive" else frozenset()) or frozenset({"none"}),
            unknown=uncertain if source.uncertain == "unknown" else frozenset(),
            patient=patient[1],
            origin=_origin(source, line),
            view=row["AP/PA"],
            age_years=_age(row["Age"]),
            sex=row["Sex"][:1],
        )


def _read_folders(source: Source, wrong: Wrong) -> Iterator[Row]:
    """Read a folder per class, subfolders included."""
    if not source.path.is_dir():
        wrong(reason("data_unreadable", path=source.path, detail="the folder does not exist"))
        return
    for path in sorted(source.path.rglob("*")):
        inside = path.relative_to(source.path)
        if path.is_file() and len(inside.parts) > 1 and path.suffix.lower() in _SUFFIXES:
            patient = _patient_in(path.name, source)
            if patient is None:
                wrong(reason("data_patient", name=path.name, pattern=source.patient))
                continue
            yield Row(
                path=path,
                source=source.name,
                classes=frozenset({inside.parts[0]}),
                patient=patient,
                origin=str(inside),
            )


def _patient_in(name: str, source: Source) -> str | None:
    if not source.patient:
        return name
    found = re.search(source.patient, name)
    return found[1].strip() if found else None


def table_rows(source: Table, wrong: Wrong, needed: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the line number and stripped cells of each row that `where` accepts."""
    if source.path.exists() and not source.path.is_file():  # a pipe would be read for ever
        wrong(reason("data_unreadable", path=source.path, detail="the path is not a file"))
        return
    try:
        with source.path.open(encoding="utf-8-sig", newline="") as stream:
            decoder = csv.DictReader(stream)
            known = decoder.fieldnames or []
            if twice := [name for name in known if known.count(name) > 1]:
                wrong(reason("data_unreadable", path=source.path, detail=f"it has two columns named {twice[0]}"))
                return
            missing = [column for column in dict.fromkeys((*needed, *source.where)) if column not in known]
            for column in missing:
                wrong(reason("data_column", path=source.path, column=column, known=", ".join(known) or "-"))
            for row in () if missing else decoder:
                if any(value is None for value in row.values()) or None in row:
                    wrong(_bad_row(source, decoder.line_num, "it has another number of cells than the header"))
                    continue
                cells = {column: value.strip() for column, value in row.items()}
                if all(cells[column] in values for column, values in source.where.items()):
                    yield decoder.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        wrong(reason("data_unreadable", path=source.path, detail=error))


def _images(source: Source) -> Path:
    return source.images or source.path.parent


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split("|") if name.strip())


def _origin(source: Source, line: int) -> str:
    return f"{source.path.name}, line {line}"


def _age(text: str) -> float | None:
    """Parse an age in years, also "060Y" (NIH's older files); above 120 counts as a typing error."""
    found = _YEARS.match(text.strip())
    years = float(found[1]) if found else None
    return years if years is not None and years <= 120 else None


def _bad_row(source: Table, line: int, detail: str) -> Reason:
    return reason("data_row", path=source.path, line=line, detail=detail)


_LAYOUT_READERS: Final[Mapping[str, Callable[[Source, Wrong], Iterator[Row]]]] = {
    **dict.fromkeys(_COLUMNS, _read_table),
    "folders": _read_folders,
    "chexpert": _read_chexpert,
}


PARTS: Final = ("training", "validation", "test")
_DIGEST: Final = re.compile("[0-9a-f]{64}")


def split_rows(rows: Sequence[Row], split: Split, sources: Sequence[Source]) -> list[str]:
    """The part of each row: "training", "validation", "test", or "none" for what is left out.

    Images of a source that is not evaluated are left out where they are not for training, those of one that is never
    drawn where they are.

    Raises UsageProblem: data_patients_alike for numbers that a person takes for one, data_leak and data_copies when a
    patient would be on two sides, data_split for values without a meaning, data_split_nobody for a table of other
    patients.
    """
    for found in alike_patients(rows, split):
        raise UsageProblem(found)
    refuse_foreign_table(rows, split)
    parts = parts_of(rows, split, sources)
    refuse_leak(rows, parts)
    return evaluated_parts(rows, parts, sources)


def evaluated_parts(rows: Sequence[Row], parts: Sequence[str], sources: Sequence[Source]) -> list[str]:
    """The parts without images for validation and test from sources that are for training only, and the reverse."""
    training_only = {source.name for source in sources if not source.evaluated}
    never_drawn = {source.name for source in sources if not source.share}
    return [
        "none" if row.source in (never_drawn if part == "training" else training_only) else part
        for row, part in zip(rows, parts, strict=True)
    ]


def parts_of(rows: Sequence[Row], split: Split, sources: Sequence[Source]) -> list[str]:
    """Return the part of each row, before checking for patients in two parts. Raises UsageProblem (data_split)."""
    if split.by == "random":
        return _by_random(rows, split)
    return _by_column(rows, sources) if split.by == "column" else _by_fold(rows, split)


def table_digest(split: Split) -> str:
    """The digest of the table of patients whose part is fixed, "" without one."""
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
    """Return the part of each row from the split's table, else from a hash of the patient, so that a new patient
    moves nobody.

    Patients who share a file get one part.
    """
    settled, persons = _settled(split.table), one_name_each([(row.person, row.sha256) for row in rows])
    known: dict[str, str] = {}
    for row, person in zip(rows, persons, strict=True):
        if said := settled.get(patient_sha256(row.patient)):
            known.setdefault(person, said)

    def part(row: Row, person: str) -> str:
        if found := settled.get(patient_sha256(row.patient)) or known.get(person):
            return found
        share = share_of(person, seed=split.seed)
        if share < split.test_share:
            return "test"
        return "validation" if share < split.test_share + split.validation_share else "training"

    return [part(row, person) for row, person in zip(rows, persons, strict=True)]


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
    """Return the digest of the one patient that a row names; None for no patient, two patients, or an invalid
    digest.
    """
    name, digest = cells.get("patient", ""), cells.get("patient_sha256", "").lower()
    if not (name or digest):
        return None
    known = patient_sha256(name) if name else digest
    is_one = _DIGEST.fullmatch(known) is not None and known == (digest or known)
    return known if is_one and known != NOBODY else None


def alike_patients(rows: Sequence[Row], split: Split) -> Iterator[Reason]:
    """A data_patients_alike for each two numbers of patients, of the data or the split's table, that look alike."""
    names = dict[str, str]()
    for row in rows:
        if row.patient != row.path.name:  # where a recipe gives no pattern: `1.png` is not `01.png`
            names.setdefault(row.patient, row.origin)
    if split.table:
        for line, cells in table_rows(Source(path=split.table), _refuse, ()):
            names.setdefault(cells.get("patient", ""), f"{split.table.name}, line {line}")
    yield from alike_numbers(names)


def refuse_foreign_table(rows: Sequence[Row], split: Split) -> None:
    """Refuse a split's table that names none of the patients. Raises UsageProblem (data_split_nobody and others)."""
    if split.table and not table_counts(rows, split)["patients_of_table_in_data"]:
        raise UsageProblem(reason("data_split_nobody", path=split.table))


def table_counts(rows: Sequence[Row], split: Split) -> dict[str, int]:
    """The numbers of patients that the split's table names, and of those in the data. Empty without a table."""
    if split.table is None:
        return {}
    named = set(_settled(split.table))
    found = named & {patient_sha256(row.patient) for row in rows}
    return {"patients_of_table": len(named), "patients_of_table_in_data": len(found)}


def refuse_settled(rows: Sequence[Row], split: Split) -> None:
    """Refuse rows of another hospital with a patient of the split's table. Raises UsageProblem (data_leak)."""
    settled = _settled(split.table)
    for row in rows:
        if part := settled.get(patient_sha256(row.patient)):
            sides = {"first": f"{split.table} ({part})", "second": f"{row.origin} (elsewhere)"}
            raise UsageProblem(reason("data_leak", patient=row.patient, **sides))


def _refuse(wrong: Reason) -> NoReturn:
    raise UsageProblem(wrong)


def refuse_leak(rows: Sequence[Row], parts: Sequence[str]) -> None:
    """Raises UsageProblem, the first of what `leaks` finds."""
    for found in leaks(rows, parts):
        raise UsageProblem(found)


def leaks(rows: Sequence[Row], parts: Sequence[str]) -> Iterator[Reason]:
    """A data_leak for each patient with images in two parts ("none" is no part), a data_copies where it is the same
    file that makes one of two patients.
    """
    reported = set[str]()
    seen: dict[str, tuple[str, Row]] = {}
    for row, part, person in zip(rows, parts, one_name_each([(row.person, row.sha256) for row in rows]), strict=True):
        if part == "none" or not row.patient:
            continue
        other, first = seen.setdefault(person, (part, row))
        if other != part and person not in reported:
            reported.add(person)
            sides = {"first": f"{first.origin} ({other})", "second": f"{row.origin} ({part})"}
            if first.patient == row.patient:
                yield reason("data_leak", patient=row.patient, **sides)
            else:
                yield reason("data_copies", patient=first.patient, other=row.patient, **sides)

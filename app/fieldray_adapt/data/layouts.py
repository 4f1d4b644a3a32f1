"""Read tables and folders of labelled images as rows, and divide the patients into training, validation and test.

Class folders, CSV tables, and tables in the layouts index, CheXpert and NIH ChestX-ray14 become rows of the same form.
No patient is in two parts. A random split uses a hash of the patient number. So patients keep their part when further
patients are added. A table may fix the part of some patients.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.files import file_sha256
from fieldray_adapt.patients import (
    NO_PATIENT_SHA256,
    find_similar_patient_numbers,
    merge_patients_sharing_files,
    patient_hash_fraction,
    patient_sha256,
)
from fieldray_adapt.recipes.shared import Source, Split


class Table(Protocol):
    """A CSV table of labelled images, and the rule that selects the rows to read.

    A row is read if, for each column in `where`, the cell is one of the values that `where` lists for the column.
    """

    @property
    def path(self) -> Path:
        """The path of the table's file."""

    @property
    def where(self) -> Mapping[str, tuple[str, ...]]:
        """The allowed values of each column; rows with other values are not read."""


ProblemCallback = Callable[[Reason], None]
"""A function that is called with each problem that is found in a source of images."""

_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".dcm", ".dicom", ""})
_CHEXPERT_FIRST_CLASS: Final = 5
_CHEXPERT_PATIENT: Final = re.compile(r"(patient\d+)")
_CHEXPERT_VALUES: Final = {"": 0, "0.0": 0, "0": 0, "1.0": 1, "1": 1, "-1.0": -1, "-1": -1}
_YEARS: Final = re.compile(r"(\d{1,3}(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A labelled image whose file is not read yet.

    Attributes
    ----------
    classes, unknown
        Classes that the image has, and classes that the image perhaps has.
    source, origin
        Name of the source in the recipe, and position of the row (table and line) for messages.
    split, fold, view, sex
        Cells of the table in the columns of these names; "" if the table lacks the column.
    age_years
        Age of the patient in years; None if unknown.
    sha256
        SHA-256 of the file's content as hexadecimal text; "" until computed, or if the file cannot be read.
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
    def person_id(self) -> str:
        """A text that identifies the patient: the patient number. Equal numbers in two sources mean the same person.

        Each image without a patient number counts as a separate person, identified by the SHA-256 of the file. If the
        file cannot be read, the origin of the row identifies the person.
        """
        return self.patient or self.sha256 or self.origin


def read_source(source: Source) -> list[Row]:
    """Read the rows of one source of labelled images, in the order of the file.

    Rows that the source's keys `where` and `drop` exclude are left out. Raises UsageProblem with the first problem that
    `find_rows` finds.
    """
    rows, wrong = find_rows(source)
    if wrong:
        raise UsageProblem(wrong[0])
    return rows


def find_rows(source: Source) -> tuple[list[Row], list[Reason]]:
    """Read the rows of one source of labelled images. Returns the rows, and all problems of the source.

    The problems are data_unreadable, data_column, data_row, data_patient, data_named_twice and data_empty.
    """
    wrong: list[Reason] = []
    every = _LAYOUT_READERS[source.layout](source, wrong.append)
    rows = list(_each_once((row for row in every if not row.classes & set(source.drop)), wrong.append))
    if not rows and not wrong:
        wrong.append(reason("data_empty", name=source.name, path=source.path))
    return rows, wrong


def _each_once(rows: Iterable[Row], wrong: ProblemCallback) -> Iterator[Row]:
    """Yield one row for each file. A second row of a file with other cells is reported (data_named_twice)."""
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
"""The columns of each table layout, as pairs (field of `Row`, name of the column).

A table must have the first three columns, and each column that the recipe names.
"""
_NEEDED: Final = 3
"""Number of columns of a layout in `_COLUMNS` that a table must have, counted from the first."""


def _read_table(source: Source, wrong: ProblemCallback) -> Iterator[Row]:
    """Read a CSV file with the columns of the layout or the recipe. A `|` separates several classes in a cell."""
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


def _read_chexpert(source: Source, wrong: ProblemCallback) -> Iterator[Row]:
    """Read the file train.csv of CheXpert: 1 positive, 0 or blank negative, -1 as the recipe's key `uncertain` says."""
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


def _read_folders(source: Source, wrong: ProblemCallback) -> Iterator[Row]:
    """Read a folder that has a subfolder with the images of each class. Yields a row for each image."""
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


def table_rows(
    source: Table, on_problem: ProblemCallback, required_columns: tuple[str, ...]
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the line number and the stripped cells, by column, of each table row that `source.where` accepts.

    `on_problem` is called with each problem: an unreadable file, a missing column, a wrong number of cells.
    """
    if source.path.exists() and not source.path.is_file():  # reading a named pipe would never end
        on_problem(reason("data_unreadable", path=source.path, detail="the path is not a file"))
        return
    try:
        with source.path.open(encoding="utf-8-sig", newline="") as stream:
            decoder = csv.DictReader(stream)
            known = decoder.fieldnames or []
            if twice := [name for name in known if known.count(name) > 1]:
                on_problem(reason("data_unreadable", path=source.path, detail=f"it has two columns named {twice[0]}"))
                return
            missing = [column for column in dict.fromkeys((*required_columns, *source.where)) if column not in known]
            for column in missing:
                on_problem(reason("data_column", path=source.path, column=column, known=", ".join(known) or "-"))
            for row in () if missing else decoder:
                if any(value is None for value in row.values()) or None in row:
                    on_problem(_bad_row(source, decoder.line_num, "it has another number of cells than the header"))
                    continue
                cells = {column: value.strip() for column, value in row.items()}
                if all(cells[column] in values for column, values in source.where.items()):
                    yield decoder.line_num, cells
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        on_problem(reason("data_unreadable", path=source.path, detail=error))


def _images(source: Source) -> Path:
    return source.images or source.path.parent


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split("|") if name.strip())


def _origin(source: Source, line: int) -> str:
    return f"{source.path.name}, line {line}"


def _age(text: str) -> float | None:
    """Return an age in years from text such as "60" or "060Y" (older NIH files); None without an age of up to 120."""
    found = _YEARS.match(text.strip())
    years = float(found[1]) if found else None
    return years if years is not None and years <= 120 else None


def _bad_row(source: Table, line: int, detail: str) -> Reason:
    return reason("data_row", path=source.path, line=line, detail=detail)


_LAYOUT_READERS: Final[Mapping[str, Callable[[Source, ProblemCallback], Iterator[Row]]]] = {
    **dict.fromkeys(_COLUMNS, _read_table),
    "folders": _read_folders,
    "chexpert": _read_chexpert,
}


DATA_PARTS: Final = ("training", "validation", "test")
_DIGEST: Final = re.compile("[0-9a-f]{64}")


def assign_leak_free_parts(rows: Sequence[Row], split: Split, sources: Sequence[Source]) -> list[str]:
    """Return the part of each row: "training", "validation", "test" or "none".

    "none" is the part of images that are not used: training images of a source with a share of 0, and validation and
    test images of a source that is not evaluated.

    Raises UsageProblem: data_patients_alike for two patient numbers that look alike, data_leak or data_copies for a
    patient in two parts, data_split if the split column puts no row in training, data_split_nobody if the split's table
    names no patient of the rows.
    """
    for found in find_confusable_patient_numbers(rows, split):
        raise UsageProblem(found)
    require_patient_in_split_table(rows, split)
    parts = assign_parts(rows, split, sources)
    require_no_leak(rows, parts)
    return leave_out_unevaluated_rows(rows, parts, sources)


def leave_out_unevaluated_rows(rows: Sequence[Row], parts: Sequence[str], sources: Sequence[Source]) -> list[str]:
    """Return `parts` with "none" for each row whose source must not have images in that part.

    A source that is not evaluated has only training images. A source with a share of 0 has no training images.
    """
    training_only = {source.name for source in sources if not source.evaluated}
    never_drawn = {source.name for source in sources if not source.share}
    return [
        "none" if row.source in (never_drawn if part == "training" else training_only) else part
        for row, part in zip(rows, parts, strict=True)
    ]


def leave_out_unlabelled_images(parts: Sequence[str], targets: NDArray[np.float32]) -> list[str]:
    """Return `parts` with "none" in place of "training" for each image all of whose targets are unknown.

    Such an image would teach nothing, and balanced drawing would draw it in place of useful images. `targets` are
    (images, labels), nan if unknown.
    """
    return [
        "none" if part == "training" and np.isnan(row).all() else part for part, row in zip(parts, targets, strict=True)
    ]


def assign_parts(rows: Sequence[Row], split: Split, sources: Sequence[Source]) -> list[str]:
    """Return the part of each row, as `split` decides: "training", "validation", "test" or "none".

    Does not check whether a patient is in two parts (see `require_no_leak`). Raises UsageProblem if the table of the
    split is invalid, or (data_split) if a split by column puts no row in training.
    """
    if split.by == "random":
        return _by_random(rows, split)
    return _by_column(rows, sources) if split.by == "column" else _by_fold(rows, split)


def split_table_digest(split: Split) -> str:
    """Return the SHA-256 of the table that fixes the part of some patients; "" without a table."""
    return file_sha256(split.table) if split.table else ""


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
    """Return the part of each row: from the split's table, or else from a hash of the patient number.

    If images with two patient numbers have an identical file, both patients get the same part. New patients do not
    change the part of other patients.
    """
    settled = _settled(split.table)
    persons = merge_patients_sharing_files([(row.person_id, row.sha256) for row in rows])
    known: dict[str, str] = {}
    for row, person in zip(rows, persons, strict=True):
        if said := settled.get(patient_sha256(row.patient)):
            known.setdefault(person, said)

    def part(row: Row, person: str) -> str:
        if found := settled.get(patient_sha256(row.patient)) or known.get(person):
            return found
        share = patient_hash_fraction(person, seed=split.seed)
        if share < split.test_share:
            return "test"
        return "validation" if share < split.test_share + split.validation_share else "training"

    return [part(row, person) for row, person in zip(rows, persons, strict=True)]


def _settled(path: Path | None) -> dict[str, str]:
    """Return the parts that the table at `path` fixes, by the SHA-256 of the patient number; empty if `path` is None.

    The table has patient numbers or their SHA-256. Raises UsageProblem (data_split_table, data_column, data_row,
    data_unreadable).
    """
    found: dict[str, str] = {}
    if path is None:
        return found
    for line, cells in table_rows(Source(path=path), _refuse, ("part",)):
        if not cells.keys() & {"patient", "patient_sha256"}:
            raise UsageProblem(reason("data_column", path=path, column="patient", known=", ".join(cells)))
        known, part = _named_by(cells), cells["part"]
        if known is None or part not in (*DATA_PARTS, "none") or found.setdefault(known, part) != part:
            raise UsageProblem(reason("data_split_table", path=path, row=line, parts=", ".join(DATA_PARTS)))
    return found


def _named_by(cells: Mapping[str, str]) -> str | None:
    """Return the SHA-256 of the patient number in a row of the split's table, whose cells are given by column.

    None if the row has no patient, two different patients, or an invalid digest.
    """
    name, digest = cells.get("patient", ""), cells.get("patient_sha256", "").lower()
    if not (name or digest):
        return None
    known = patient_sha256(name) if name else digest
    is_one = _DIGEST.fullmatch(known) is not None and known == (digest or known)
    return known if is_one and known != NO_PATIENT_SHA256 else None


def find_confusable_patient_numbers(rows: Sequence[Row], split: Split) -> Iterator[Reason]:
    """Yield a reason (data_patients_alike) for each pair of patient numbers that a person could confuse.

    The patient numbers of the rows and of the split's table are compared.
    """
    names = dict[str, str]()
    for row in rows:
        if row.patient != row.path.name:  # else the file name stands for the patient
            names.setdefault(row.patient, row.origin)
    if split.table:
        for line, cells in table_rows(Source(path=split.table), _refuse, ()):
            names.setdefault(cells.get("patient", ""), f"{split.table.name}, line {line}")
    yield from find_similar_patient_numbers(names)


def require_patient_in_split_table(rows: Sequence[Row], split: Split) -> None:
    """Raise UsageProblem (data_split_nobody) if the split has a table, but the table names no patient of the rows.

    An invalid table raises UsageProblem, too.
    """
    if split.table and not count_split_table_patients(rows, split)["patients_of_table_in_data"]:
        raise UsageProblem(reason("data_split_nobody", path=split.table))


def count_split_table_patients(rows: Sequence[Row], split: Split) -> dict[str, int]:
    """Count the patients in the split's table, and how many of these patients have rows; {} without a table."""
    if split.table is None:
        return {}
    named = set(_settled(split.table))
    found = named & {patient_sha256(row.patient) for row in rows}
    return {"patients_of_table": len(named), "patients_of_table_in_data": len(found)}


def require_no_patient_in_split_table(rows: Sequence[Row], split: Split) -> None:
    """Raise UsageProblem (data_leak) if a row of another hospital has a patient of the split's table."""
    settled = _settled(split.table)
    for row in rows:
        if part := settled.get(patient_sha256(row.patient)):
            sides = {"first": f"{split.table} ({part})", "second": f"{row.origin} (elsewhere)"}
            raise UsageProblem(reason("data_leak", patient=row.patient, **sides))


def _refuse(wrong: Reason) -> NoReturn:
    raise UsageProblem(wrong)


def require_no_leak(rows: Sequence[Row], parts: Sequence[str]) -> None:
    """Raise UsageProblem (data_leak, data_copies) if a patient has images in two parts (see `find_leaks`)."""
    for found in find_leaks(rows, parts):
        raise UsageProblem(found)


def find_leaks(rows: Sequence[Row], parts: Sequence[str]) -> Iterator[Reason]:
    """Yield a reason for each patient with images in two of the parts training, validation and test.

    The reason is data_leak if both images have the same patient number. The reason is data_copies if two patient
    numbers share a file and so are probably one patient.
    """
    reported = set[str]()
    seen: dict[str, tuple[str, Row]] = {}
    for row, part, person in zip(
        rows, parts, merge_patients_sharing_files([(row.person_id, row.sha256) for row in rows]), strict=True
    ):
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

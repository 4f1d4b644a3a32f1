"""Functions that read label tables in the layouts of published data sets.

From each row the image, the classes, the patient and the human reader are taken.

layout                      columns
NIH ChestX-ray14            one cell contains several classes, joined by `|`
CheXpert, VinDr-CXR images  a column for each class, with 1, 0, -1 (uncertain) or nothing in the cell
VinDr-CXR boxes             a row for each finding and reader
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fieldray.errors import UsageProblem
from fieldray.reasons import reason

NO_FINDING: Final = "no finding"
_PATIENT_IN_PATH: Final = re.compile(r"(patient\d+)")
_CHEXPERT: Final = ("path", "sex", "age", "frontal/lateral", "ap/pa")
_VINDR_IMAGES: Final = ("image_id", "rad_id")
_VINDR_BOXES: Final = ("image_id", "class_name", "rad_id")
_VALUES: Final = {"": 0, "0": 0, "0.0": 0, "1": 1, "1.0": 1, "-1": -1, "-1.0": -1}

CellsByColumnName = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRow:
    """One row of a table of labels, in a form that is common to all layouts.

    label_text         the label as written, for messages
    classes            the classes that are present, in lower case
    uncertain_classes  the classes that the table marks as uncertain
    reader             the person who read the image; empty if the table does not name readers
    """

    line_number: int
    image: str
    label_text: str
    classes: frozenset[str]
    uncertain_classes: frozenset[str] = frozenset()
    patient: str = ""
    exam: str = ""
    reader: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelLayout:
    """The layout of a table of labels, with the function that reads a row.

    read_row              takes a line number and the cells of the row by column name. Returns None for a row without a
                          frontal image. Raises ValueError for a cell with unknown content
    has_several_classes   whether an image may have several classes. Every class except *no finding* then counts as a
                          finding
    merges_rows_of_image  whether an image may have several rows by one reader, such as one row for each box that the
                          reader drew. The classes of these rows are then merged
    """

    read_row: Callable[[int, CellsByColumnName], LabelRow | None]
    has_several_classes: bool = False
    merges_rows_of_image: bool = False


def published_layout(header: Sequence[str]) -> LabelLayout | None:
    """Return the layout of a CheXpert or VinDr-CXR table, recognised by its column names; None for other tables.

    header  the column names in lower case
    """
    has_class_columns = NO_FINDING in header
    if has_class_columns and set(_CHEXPERT) <= set(header):
        return LabelLayout(read_row=_chexpert, has_several_classes=True)
    if has_class_columns and set(_VINDR_IMAGES) <= set(header):
        return LabelLayout(read_row=_vindr_image, has_several_classes=True)
    if set(_VINDR_BOXES) <= set(header):
        return LabelLayout(read_row=_vindr_box, has_several_classes=True, merges_rows_of_image=True)
    return None


def layout_of_columns(names: Mapping[str, str], *, has_several_classes: bool) -> LabelLayout:
    """Return the layout of a table in which each column has a role, such as image or label.

    names                column name by role. The roles are "image" and "label", and optionally "patient", "exam" and
                         "reader"
    has_several_classes  whether a cell may contain several labels, joined by `|`
    """

    def read(line: int, cells: CellsByColumnName) -> LabelRow:
        image, label, *others = (
            cells.get(names.get(role, ""), "") for role in ("image", "label", "patient", "exam", "reader")
        )
        patient, exam, reader = others
        classes = split_classes(label)
        return LabelRow(
            line_number=line, image=image, label_text=label, classes=classes, patient=patient, exam=exam, reader=reader
        )

    return LabelLayout(read_row=read, has_several_classes=has_several_classes)


def split_classes(cell: str) -> frozenset[str]:
    """Split the cell of a label table at `|` into class names in lower case."""
    return frozenset(name.strip().casefold() for name in cell.split("|") if name.strip())


def _chexpert(line: int, cells: CellsByColumnName) -> LabelRow | None:
    if cells["frontal/lateral"].casefold() == "lateral":
        return None
    patient = _PATIENT_IN_PATH.search(cells["path"])
    return _by_columns(line, cells, image="path", others=_CHEXPERT, patient=patient[1] if patient else "")


def _vindr_image(line: int, cells: CellsByColumnName) -> LabelRow:
    return _by_columns(line, cells, image="image_id", others=_VINDR_IMAGES, reader=cells["rad_id"])


def _vindr_box(line: int, cells: CellsByColumnName) -> LabelRow:
    label = cells["class_name"]
    reader = cells["rad_id"]
    return LabelRow(
        line_number=line, image=cells["image_id"], label_text=label, classes=split_classes(label), reader=reader
    )


def _by_columns(
    line: int, cells: CellsByColumnName, *, image: str, others: Sequence[str], patient: str = "", reader: str = ""
) -> LabelRow:
    values = {name: _VALUES.get(value) for name, value in cells.items() if name not in others}
    if wrong := [name for name, value in values.items() if value is None]:
        raise ValueError(f"{wrong[0]}: {cells[wrong[0]]}")
    classes, uncertain = (frozenset(name for name, value in values.items() if value == own) for own in (1, -1))
    text = "|".join(sorted(classes)) or "-"
    return LabelRow(
        line_number=line,
        image=cells[image],
        label_text=text,
        classes=classes,
        uncertain_classes=uncertain,
        patient=patient,
        reader=reader,
    )


def row_truth_function(
    rows: Sequence[LabelRow], positive: Sequence[str], *, negatives: frozenset[str]
) -> Callable[[LabelRow], bool | None]:
    """Return a function that says whether the row of a label table has the finding: True, False, or None if uncertain.

    rows       all rows of the table
    positive   the classes that count as the finding; if empty, every class outside `negatives` is a finding
    negatives  the classes that mean *no finding*; only used if `positive` is empty

    Raises UsageProblem if the table lacks a class of `positive`, if all rows have the finding, or if no row has it.
    """
    names = frozenset[str]().union(*(row.classes | row.uncertain_classes for row in rows))
    wanted, known = {name.strip().casefold() for name in positive}, ", ".join(sorted(names))
    if missing := wanted - names:
        raise UsageProblem(reason("audit_no_class", missing=", ".join(sorted(missing)), known=known))
    wanted = wanted or {*names - negatives}

    def truth(row: LabelRow) -> bool | None:
        if not positive and row.classes & negatives:
            return False
        return True if row.classes & wanted else None if row.uncertain_classes & wanted else False

    if len({truth(row) for row in rows} - {None}) < 2:
        raise UsageProblem(reason("audit_one_class", known=known))
    return truth

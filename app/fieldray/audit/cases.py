"""The reference labels of an audit's images.

Labels come from the names of the images' folders, from a table (CSV), or from readers' verdicts. An unusable table is
reported before anything is measured, with all problems and their line numbers.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fieldray.audit.layouts import (
    NO_FINDING,
    LabelLayout,
    LabelRow,
    layout_of_columns,
    published_layout,
    row_truth_function,
)
from fieldray.domain.finding import ScreenedOutcome, leading_finding
from fieldray.domain.image import ImageRef
from fieldray.domain.run import StoredResult
from fieldray.errors import UsageProblem
from fieldray.plain_text import find_look_alike_patient_numbers
from fieldray.reasons import Reason, reason

POSITIVE_CLASS_NAMES: Final = frozenset(
    {"abnormal", "positive", "pathological", "1", "1.0", "true", "yes", "disease", "pathology"}
)
NEGATIVE_CLASS_NAMES: Final = frozenset(
    {"normal", "negative", "healthy", "0", "0.0", "false", "no", NO_FINDING, "clear"}
)
UNCERTAIN_LABELS: Final = frozenset({"-1", "-1.0", "uncertain"})  # the spellings of CheXpert and MIMIC-CXR
LABEL_TABLE_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "image": (
        *("path", "image", "file", "filename", "file_name", "name", "film", "sop_instance_uid"),
        "image index",  # NIH ChestX-ray14; so are "finding labels" and "patient id" below
    ),
    "label": ("label", "class", "truth", "target", "diagnosis", "finding", "reference", "finding labels"),
    "patient": ("patient_id", "patient", "person", "subject", "patient id"),
    "exam": ("study_instance_uid", "exam", "examination"),
    "reader": ("reader", "reader_id", "rad_id", "radiologist"),
}
_NEEDED: Final = ("image", "label")

_LARGEST_BYTES: Final = 64 << 20
_SEPARATORS: Final = ",;\t|"
_FILE_SUFFIX: Final = re.compile(r"\.[a-z][a-z0-9]{1,4}$", re.IGNORECASE)  # not the last number of a UID
# A first line such as "sep=;" tells Excel the separator of the table. The line is neither header nor row.
_SEPARATOR_LINE: Final = re.compile(
    rf'"?sep=([{re.escape(_SEPARATORS)}])"?[{re.escape(_SEPARATORS)}]*\r?\n', re.IGNORECASE
)
_MIN_NAME_SIMILARITY: Final = 0.8


@dataclass(frozen=True, slots=True)
class ClassNames:
    """Names of the positive class and names of the negative class, in lower case."""

    positive: frozenset[str] = POSITIVE_CLASS_NAMES
    negative: frozenset[str] = NEGATIVE_CLASS_NAMES


ENGLISH_CLASS_NAMES: Final = ClassNames()  # English names


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLabels:
    """The reference labels of images, by image key (`ImageRef.key`).

    truth_by_image                   whether the finding is present. With several readers the majority decides; a tie
                                     gives no label
    patient_by_image, exam_by_image  the patient and the examination of an image, if the table names them
    reader_labels                    by reader and image key, whether the reader found the finding
    rows_without_image_by_truth      number of table rows whose image was not screened: key True counts rows with the
                                     finding, key False rows without
    notes                            messages about table rows and images that were left out, and about unusual class
                                     names
    """

    truth_by_image: Mapping[str, bool]
    patient_by_image: Mapping[str, str] = field(default_factory=dict)
    exam_by_image: Mapping[str, str] = field(default_factory=dict)
    reader_labels: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    rows_without_image_by_truth: Mapping[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    notes: tuple[Reason, ...] = ()


def labels_from_folders(
    refs: Iterable[ImageRef], *, positive: Sequence[str] = (), known_names: ClassNames = ENGLISH_CLASS_NAMES
) -> ReferenceLabels:
    """Label each image by the name of the folder that contains the image file.

    For a file inside a zip file, the folder is the folder inside the zip file.

    positive     names of the folders of positive images, in any letter case; without such names, `known_names` decides
    known_names  class names that are recognised without `positive`

    Raises UsageProblem unless there are positive and negative images, or if it is unknown which class is positive.
    """
    classes = {ref.key: _folder(ref) for ref in refs}
    is_positive = truth_by_class(set(classes.values()), positive=positive, known_names=known_names)
    return ReferenceLabels(
        truth_by_image={key: is_positive[name] for key, name in classes.items()},
        notes=_counted(is_positive, known_names),
    )


def _folder(ref: ImageRef) -> str:
    parts = (ref.zip_member or "").split("/")
    return parts[-2] if len(parts) > 1 else ref.path.parent.name


def truth_by_class(
    names: set[str], *, positive: Sequence[str], known_names: ClassNames = ENGLISH_CLASS_NAMES
) -> dict[str, bool]:
    """Return for each class name whether the class is positive.

    With `positive`, every class that `positive` does not name is negative. Without `positive`, each name must be in
    `known_names`. If there are exactly two names, one name in `known_names` is enough: with "normal" and
    "tuberculosis", "tuberculosis" is positive.

    Raises UsageProblem if the positive class stays unknown, or if all class names are positive, or all are negative.
    """
    spelt = {name: name.strip().casefold() for name in names}
    positives, negatives = known_names.positive, known_names.negative
    listed = ", ".join(sorted(names))
    if wanted := {name.strip().casefold() for name in positive}:
        if missing := wanted - set(spelt.values()):
            raise UsageProblem(reason("audit_no_class", missing=", ".join(sorted(missing)), known=listed))
        found = {name: text in wanted for name, text in spelt.items()}
    else:
        found = {name: text in positives for name, text in spelt.items()}
        unknown = [name for name, text in spelt.items() if text not in positives | negatives]
        if len(set(spelt.values())) == 2 and len({spelt[name] for name in unknown}) == 1:
            # "normal" and "tuberculosis": the unusual name is the other class. "normall" may be a misspelling.
            if difflib.get_close_matches(spelt[unknown[0]], positives | negatives, n=1, cutoff=_MIN_NAME_SIMILARITY):
                raise UsageProblem(reason("audit_which_positive", known=listed, command_option="--positive"))
            found |= dict.fromkeys(unknown, not any(found.values()))
        elif unknown:
            raise UsageProblem(reason("audit_which_positive", known=listed, command_option="--positive"))
    if len(set(found.values())) < 2:
        raise UsageProblem(reason("audit_one_class", known=listed))
    return found


def _counted(is_positive: Mapping[str, bool], usual: ClassNames) -> tuple[Reason, ...]:
    """Return notes that list the class names counted as positive and the class names counted as negative.

    No note is made for a class whose only name is in `known_names`.
    """
    notes = []
    for side, known, code in (
        (True, usual.positive, "audit_counted_positive"),
        (False, usual.negative, "audit_counted_negative"),
    ):
        names = sorted(name for name, own in is_positive.items() if own == side)
        if len({name.strip().casefold() for name in names}) != 1 or names[0].strip().casefold() not in known:
            notes.append(reason(code, names=", ".join(names)))
    return tuple(notes)


def labels_from_table(
    table: Path,
    refs: Iterable[ImageRef],
    *,
    positive: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    known_names: ClassNames = ENGLISH_CLASS_NAMES,
) -> ReferenceLabels:
    """Read labels from a CSV file with a header line: one row per image, or one row per image and reader.

    A row names an image in one of three ways:

    path           an absolute path, a path relative to the table, or the last parts of a path if only one image ends in
                   them. The file suffix may be missing if only one image has that name
    `path!member`  an image in a zip file
    UID            the SOP Instance UID

    The separators `,` `;` tab and `|` are recognised. A first line `sep=;` is allowed. The encoding may be UTF-8,
    UTF-16 with a byte order mark, or Windows-1251. The column layouts of NIH ChestX-ray14, CheXpert and VinDr-CXR are
    recognised as well.

    refs         the images screened or to be screened
    positive     the labels that mean “with the condition”; see `truth_by_class`
    columns      names of the columns "image", "label", "patient", "exam" and "reader", if unusual
    known_names  class names that are recognised without `positive`

    Raises UsageProblem, with every problem and its line number, if the table cannot be read, lacks a column, gives one
    image two labels, or has two patient numbers that a person would read as one. UsageProblem is also raised if no row
    names a screened image, or unless there are positive and negative labels.
    """
    rows, layout = _laid_out(table, columns or {})
    found = _LabelTableMatcher(table, refs, layout, known_names)
    for line, row in rows:
        found.add(line, row)
    return found.reference(positive)


def check_label_table(
    table: Path,
    *,
    positive: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    known_names: ClassNames = ENGLISH_CLASS_NAMES,
) -> None:
    """Raise UsageProblem for an unusable label table, before any image is searched for.

    Only problems that do not depend on the images are found.

    positive     the labels that mean “with the condition”; see `truth_by_class`
    columns      names of the columns "image", "label", "patient", "exam" and "reader", if unusual
    known_names  class names that are recognised without `positive`
    """
    rows, layout = _laid_out(table, columns or {})
    found = _LabelTableMatcher(table, (), layout, known_names)
    for line, row in rows:
        found.add(line, row)
    found.check_rows()
    labels = _certain({one.label_text for one in found.read}, positive)
    if not layout.has_several_classes and (positive or len({label.casefold() for label in labels}) < 2):
        truth_by_class(labels, positive=positive, known_names=known_names)
    if layout.has_several_classes:
        row_truth_function(found.read, positive, negatives=known_names.negative)


def _laid_out(table: Path, columns: Mapping[str, str]) -> tuple[list[tuple[int, dict[str, str]]], LabelLayout]:
    rows = _read_rows(table)
    header = list(rows[0][1])
    layout = None if columns.keys() & set(_NEEDED) else published_layout(header)
    if layout is None:
        names = _columns(table, header, columns)
        has_several_classes = any("|" in row[names["label"]].strip("|") for _, row in rows)
        layout = layout_of_columns(names, has_several_classes=has_several_classes)
    return rows, layout


def _certain(labels: set[str], positive: Sequence[str]) -> set[str]:
    """Return `labels` without the labels that mean *uncertain*.

    A label such as "-1" stays if `positive` contains that label.
    """
    asked = {name.strip().casefold() for name in positive}
    return {label for label in labels if label.casefold() not in UNCERTAIN_LABELS - asked}


def _problems(table: Path, wrong: Mapping[str, Sequence[str]]) -> UsageProblem:
    kinds = ("gaps", "values", "several", "two_labels", "numbers")
    problems = {kind: "; ".join(wrong.get(kind, ())) or "–" for kind in kinds}
    return UsageProblem(reason("audit_table_problems", path=table, count=sum(map(len, wrong.values())), **problems))


def _read_rows(table: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        if not table.is_file() and table.exists():  # a pipe or a device: reading it may never end
            raise UsageProblem(reason("audit_table_no_text", path=table))
        if table.stat().st_size > _LARGEST_BYTES:
            raise UsageProblem(reason("audit_table_large", path=table, limit_mb=_LARGEST_BYTES >> 20))
        text = _decoded(table.read_bytes())
    except OSError as error:
        raise UsageProblem(reason("audit_table_unreadable", path=table, detail=error.strerror or error)) from error
    if "\0" in text:
        raise UsageProblem(reason("audit_table_no_text", path=table))
    said = _SEPARATOR_LINE.match(text)
    text = text[said.end() :] if said else text
    separator = said[1] if said else max(_SEPARATORS, key=text.partition("\n")[0].count)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
        _refuse_doubled(table, reader.fieldnames or ())
        lines = (
            (
                reader.line_num + bool(said),
                {key.strip().casefold(): (value or "").strip() for key, value in row.items() if key},
            )
            for row in reader
        )
        rows = [(line, row) for line, row in lines if any(row.values())]  # spreadsheets leave empty rows at the end
    except csv.Error as error:
        why = reason("audit_table_unreadable", path=table, detail="a field is too long, or a quotation mark is missing")
        raise UsageProblem(why) from error
    if not rows:
        raise UsageProblem(reason("audit_table_empty", path=table))
    return rows


def _refuse_doubled(table: Path, header: Sequence[str]) -> None:
    """Raise UsageProblem for a table in which two columns have the same name.

    Letter case and surrounding blanks are ignored.
    """
    times = Counter(name.strip().casefold() for name in header if name and name.strip())
    if doubled := [name for name, number in times.items() if number > 1]:
        raise UsageProblem(reason("audit_table_doubled", path=table, columns=", ".join(doubled)))


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1251", errors="replace")


def _columns(table: Path, header: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for role, names in LABEL_TABLE_COLUMNS.items():
        wanted = (given[role].strip().casefold(),) if role in given else names
        column = next((name for name in wanted if name in header), None)
        if column is not None:
            found[role] = column
        elif role in given or role in _NEEDED:
            known, option = ", ".join(header) or "-", f"--{role}-column"
            why = reason("audit_table_column", path=table, column=wanted[0], known=known, command_option=option)
            raise UsageProblem(why)
    return found


class _LabelTableMatcher:
    """Matches the rows of a label table with images, and collects all problems of the table.

    If no images are given, every row counts as matched.
    """

    def __init__(self, table: Path, refs: Iterable[ImageRef], layout: LabelLayout, usual: ClassNames) -> None:
        self._table, self._layout, self._usual = table, layout, usual
        self._images = defaultdict[str, set[str]](set)
        self._images_by_stem = defaultdict[str, set[str]](set)
        for ref in refs:
            for name in _names(ref):
                self._images[name].add(ref.key)
                self._images_by_stem[_FILE_SUFFIX.sub("", name)].add(ref.key)
        self._rows: dict[tuple[str, str], LabelRow] = {}  # by image key and reader
        self._unknown: list[LabelRow] = []
        self._wrong = defaultdict[str, list[str]](list)  # by the fields of audit_table_problems
        self._patients: dict[str, int] = {}
        self._doubled = 0

    @property
    def read(self) -> list[LabelRow]:
        """The rows whose image was found. Several rows of one image by one reader appear as a single row."""
        return list(self._rows.values())

    def add(self, line: int, cells: Mapping[str, str]) -> None:
        """Match one row of the table with an image, or record the row's problem."""
        try:
            row = self._layout.read_row(line, cells)
        except ValueError as problem:
            self._wrong["values"].append(f"{line} ({problem})")
            return
        if row is None:
            return
        if not (row.image and row.label_text):
            self._wrong["gaps"].append(str(line))
            return
        self._patients.setdefault(row.patient, line)
        keys = self._find(row.image) if self._images else {row.image}
        if len(keys) == 1:
            self._keep(next(iter(keys)), row)
        elif keys:
            self._wrong["several"].append(f"{line} ({row.image}{self._like(row.image)})")
        else:
            self._unknown.append(row)

    def _keep(self, key: str, row: LabelRow) -> None:
        before = self._rows.get((key, row.reader))
        if before is None:
            self._rows[key, row.reader] = row
        elif self._layout.merges_rows_of_image:
            classes = (before.classes | row.classes) - (
                NEGATIVE_CLASS_NAMES if row.classes != before.classes else set()
            )
            self._rows[key, row.reader] = replace(before, classes=classes)
        else:
            if (before.classes, before.uncertain_classes) != (row.classes, row.uncertain_classes):
                said = f"{before.line_number}, {row.line_number} ({row.image}: {before.label_text}, {row.label_text})"
                self._wrong["two_labels"].append(said)
            self._doubled += 1

    def _find(self, image: str) -> set[str]:
        # A leading apostrophe keeps a spreadsheet from reading a name as a formula. It is no part of the name.
        for name in (image, image.removeprefix("'")):
            normal = name.replace("\\", "/")
            candidates = normal, (self._table.parent.absolute() / normal).as_posix()
            for images in (self._images, self._images_by_stem):
                if found := next((images[candidate] for candidate in candidates if candidate in images), None):
                    return found
        return set()

    def _like(self, image: str) -> str:
        """Return " ≠ " and the key of a screened image with this file name in another folder; empty if there is none.

        The text is only for error messages. The image in the other folder never gets the row's label.
        """
        name = image.replace("\\", "/").rpartition("/")[2]
        keys = self._images.get(name) or self._images_by_stem.get(name) or set()
        return f" ≠ {min(keys)}" if keys and name != image else ""

    def check_rows(self) -> None:
        """Raise UsageProblem if rows have problems, which the error lists, or if no row names an image."""
        for first, second in find_look_alike_patient_numbers(self._patients):
            self._wrong["numbers"].append(f"{self._patients[first]}, {self._patients[second]} ({first}, {second})")
        if self._wrong:
            raise _problems(self._table, self._wrong)
        if not self._rows:
            rows = self._listed()
            raise UsageProblem(reason("audit_table_no_match", path=self._table, rows=rows))

    def reference(self, positive: Sequence[str]) -> ReferenceLabels:
        """Return the labels of all matched images. Raises UsageProblem, which lists all problems of the table."""
        self.check_rows()
        counted: tuple[Reason, ...] = ()
        if self._layout.has_several_classes:
            truth = row_truth_function(self.read, positive, negatives=self._usual.negative)
        else:
            certain = _certain({row.label_text for row in self.read}, positive)
            is_positive = truth_by_class(certain, positive=positive, known_names=self._usual)
            counted = _counted(is_positive, self._usual)

            def truth(row: LabelRow) -> bool | None:
                return is_positive.get(row.label_text)

        readers = defaultdict[str, dict[str, bool]](dict)
        votes = defaultdict[str, list[bool]](list)
        for (key, reader), row in self._rows.items():
            if (said := truth(row)) is not None:
                readers[reader][key] = said
                votes[key].append(said)
        truths = {key: 2 * sum(own) > len(own) for key, own in votes.items() if 2 * sum(own) != len(own)}
        uncertain = sum(truth(row) is None for row in self.read)
        missing = Counter(map(truth, self._unknown))
        return ReferenceLabels(
            truth_by_image=truths,
            patient_by_image={key: row.patient for (key, _), row in self._rows.items() if row.patient},
            exam_by_image={key: row.exam for (key, _), row in self._rows.items() if row.exam},
            reader_labels={name: own for name, own in readers.items() if name},
            rows_without_image_by_truth={side: missing[side] for side in (True, False)},
            notes=(
                *self._notes(),
                *([reason("audit_rows_uncertain", count=uncertain)] if uncertain else []),
                *([reason("audit_readers_split", count=len(votes) - len(truths))] if len(truths) < len(votes) else []),
                *counted,
            ),
        )

    def _listed(self) -> str:
        return "; ".join(f"{row.line_number} ({row.image}{self._like(row.image)})" for row in self._unknown)

    def _notes(self) -> Iterator[Reason]:
        labelled = {key for key, _ in self._rows}
        if unlabelled := len(set().union(*self._images.values()) - labelled):
            yield reason("audit_images_unlabelled", count=unlabelled)
        if self._unknown:
            yield reason("audit_rows_unknown", count=len(self._unknown), rows=self._listed())
        if self._doubled:
            yield reason("audit_rows_doubled", count=self._doubled)


def _names(ref: ImageRef) -> set[str]:
    """Return all names by which a table may mean an image.

    The names are the image's key, every ending of the path (`test/a.png`, `a.png`), the name in a zip file, and the SOP
    Instance UID. A name with a folder never means an image of another folder: `test/a.png` is not `train/a.png`.
    """
    path, ends = ref.path.absolute().as_posix(), set[str]()
    if ref.zip_member is not None:
        path = f"{path}!{ref.zip_member}"
        ends = {ref.zip_member, ref.zip_member.rpartition("/")[2]}
    parts = path.split("/")
    ends |= {"/".join(parts[start:]) for start in range(len(parts))}
    return {name for name in {ref.key.replace("\\", "/"), ref.header.sop_instance_uid, *ends} if name}


def truths_from_verdicts(results: Iterable[StoredResult], *, label: str) -> dict[str, bool]:
    """Return, by image key, whether an image has the finding `label`, as readers' verdicts on the results say.

    A reader agrees or disagrees with a result. Only the results *abnormal* and *normal* can give a label. An image that
    was uncertain, not suitable or failed gives no label. The verdict *unsure* gives no label either.

    With a pack of several labels, the verdict on an *abnormal* image is about the leading label only. The verdict
    *disagree* on a *normal* image then gives no label, because the reader did not say which finding is present.

    Readers saw the result before their verdict (automation bias). Figures from verdicts therefore overestimate the
    pack.
    """
    truths = {}
    for result in results:
        outcome, confirms = result.outcome, result.verdict.kind.confirms_result if result.verdict else None
        leading = leading_finding(outcome)
        if leading is None or confirms is None or not isinstance(outcome, ScreenedOutcome):
            continue
        has_one = leading.is_decided_by_larger_output or len(outcome.findings) == 1
        is_known = {"abnormal": leading.label == label, "normal": confirms or has_one}
        if is_known.get(outcome.category):
            truths[outcome.ref.key] = (outcome.category == "abnormal") == confirms
    return truths

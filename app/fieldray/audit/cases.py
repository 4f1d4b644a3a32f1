"""What an audit looks at: each image's result beside what is known to be true of it.

That is known from the folders the images lie in, from a table (CSV), or from a person's verdicts. Everything that is
wrong with a table is said at once, with its lines, before anything is measured.
"""

from __future__ import annotations

import csv
import difflib
import functools
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fieldray.domain.finding import Category, Outcome, Screened, asked_for, leading_finding
from fieldray.domain.image import ImageHeader, ImageRef, known_person
from fieldray.domain.run import StoredAnswer
from fieldray.errors import UsageProblem
from fieldray.paths import catalogues
from fieldray.reasons import Reason, reason
from fieldray.translation import Translator

POSITIVE_NAMES: Final = frozenset(
    {"abnormal", "positive", "pathological", "1", "1.0", "true", "yes", "disease", "pathology"}
)
NEGATIVE_NAMES: Final = frozenset({"normal", "negative", "healthy", "0", "0.0", "false", "no", "no finding", "clear"})
UNCERTAIN_NAMES: Final = frozenset({"-1", "-1.0", "uncertain"})  # as CheXpert and MIMIC-CXR write it
IMAGE_COLUMNS: Final = ("path", "image", "file", "filename", "file_name", "name", "film", "sop_instance_uid")
LABEL_COLUMNS: Final = ("label", "class", "truth", "target", "diagnosis", "finding", "reference")
PATIENT_COLUMNS: Final = ("patient_id", "patient", "person", "subject")

_LARGEST_BYTES: Final = 64 << 20
_SEPARATORS: Final = ",;\t|"
_FILE_SUFFIX: Final = re.compile(r"\.[a-z][a-z0-9]{1,4}$", re.IGNORECASE)  # not the last number of a UID
# By which Excel knows the separator of a table; it is no row of it.
_SEPARATOR_LINE: Final = re.compile(
    rf'"?sep=([{re.escape(_SEPARATORS)}])"?[{re.escape(_SEPARATORS)}]*\r?\n', re.IGNORECASE
)
_ALIKE: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Labels by image key, and what a person should know about how they were matched.

    truths    whether the finding is present
    patients  the patient of an image, where the table names one
    notes     what was left out
    """

    truths: Mapping[str, bool]
    patients: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[Reason, ...] = ()


@functools.cache
def usual_names() -> tuple[frozenset[str], frozenset[str]]:
    """Names of the positive and of the negative class in English and in the languages of the program, folded."""
    positive, negative = set(POSITIVE_NAMES), set(NEGATIVE_NAMES)
    for translator in map(Translator, catalogues()):
        # Translators: TRUE and FALSE as a spreadsheet in your language writes them into its cells.
        yes = translator.in_context("cell of a table", "TRUE"), translator.in_context("cell of a table", "yes")
        no = translator.in_context("cell of a table", "FALSE"), translator.in_context("cell of a table", "no")
        positive |= {name.casefold() for name in (*yes, translator.text("Abnormal"))}
        negative |= {name.casefold() for name in (*no, translator.text("Normal"))}
    return frozenset(positive), frozenset(negative)


def folder_labels(refs: Iterable[ImageRef], *, positive: Sequence[str] = ()) -> Reference:
    """Labels from the name of the folder each image lies in (for a member of a zip: its folder there).

    positive  the folders whose images are positive, in any case; without it they are recognised by `POSITIVE_NAMES`

    Raises UsageProblem if the folders are not of two classes, or which of them is positive cannot be told.
    """
    classes = {ref.key: _folder(ref) for ref in refs}
    is_positive = positive_classes(set(classes.values()), positive=positive)
    return Reference(truths={key: is_positive[name] for key, name in classes.items()}, notes=_counted(is_positive))


def _folder(ref: ImageRef) -> str:
    parts = (ref.member or "").split("/")
    return parts[-2] if len(parts) > 1 else ref.path.parent.name


def positive_classes(names: set[str], *, positive: Sequence[str]) -> dict[str, bool]:
    """For each class name whether it is positive.

    With `positive` every other name is negative; without it each name must be a usual one of either kind, or the one
    that is not beside a usual one. Raises UsageProblem.
    """
    spelt, (positives, negatives) = {name: name.strip().casefold() for name in names}, usual_names()
    listed = ", ".join(sorted(names))
    if wanted := {name.strip().casefold() for name in positive}:
        if missing := wanted - set(spelt.values()):
            raise UsageProblem(reason("audit_no_class", missing=", ".join(sorted(missing)), known=listed))
        found = {name: text in wanted for name, text in spelt.items()}
    else:
        found = {name: text in positives for name, text in spelt.items()}
        unknown = [name for name, text in spelt.items() if text not in positives | negatives]
        if len(set(spelt.values())) == 2 and len({spelt[name] for name in unknown}) == 1:
            # "normal" and "tuberculosis": what is not the usual name of one class is the other, but "normall" is asked.
            if difflib.get_close_matches(spelt[unknown[0]], positives | negatives, n=1, cutoff=_ALIKE):
                raise UsageProblem(reason("audit_which_positive", known=listed, command_option="--positive"))
            found |= dict.fromkeys(unknown, not any(found.values()))
        elif unknown:
            raise UsageProblem(reason("audit_which_positive", known=listed, command_option="--positive"))
    if len(set(found.values())) < 2:
        raise UsageProblem(reason("audit_one_class", known=listed))
    return found


def _counted(is_positive: Mapping[str, bool]) -> tuple[Reason, ...]:
    """What was counted as positive and as negative, where that is not one of the usual names alone."""
    sides = zip((True, False), usual_names(), ("audit_counted_positive", "audit_counted_negative"), strict=True)
    notes = []
    for side, usual, code in sides:
        names = sorted(name for name, own in is_positive.items() if own == side)
        if len({name.strip().casefold() for name in names}) != 1 or names[0].strip().casefold() not in usual:
            notes.append(reason(code, names=", ".join(names)))
    return tuple(notes)


def table_labels(
    table: Path,
    refs: Iterable[ImageRef],
    *,
    positive: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> Reference:
    """Labels from a CSV file with a header line: one row per image.

    An image is named by its path (absolute, relative to the table, or the end of it where that is unique among the
    images; without the file's suffix where only one image is meant), by `path!member`, or by its SOP Instance UID.
    Separators `,` `;` tab and `|`, a first line `sep=;`, UTF-8, UTF-16 with its mark and Windows-1251 are recognised.

    refs      the images that were screened
    positive  the labels that mean positive; see `positive_classes`
    columns   names of the columns "image", "label" and "patient", where they are not usual ones

    Raises UsageProblem if it cannot be read, lacks a column, gives one image two labels, names no image that was
    screened, or its labels are not of two classes; everything found is named with its lines.
    """
    rows = _read_rows(table)
    names = _columns(table, list(rows[0][1]) if rows else [], columns or {})
    found = _Matching(table, refs)
    for line, row in rows:
        found.add(line, row, names)
    return found.reference(positive)


def require_table(table: Path, *, positive: Sequence[str] = (), columns: Mapping[str, str] | None = None) -> None:
    """Refuse, before any image is screened, a table that `table_labels` would refuse whatever the images are.

    Raises UsageProblem as `table_labels` does.
    """
    rows = _read_rows(table)
    names = _columns(table, list(rows[0][1]), columns or {})
    if gaps := [str(line) for line, row in rows if _has_gap(row, names)]:
        raise _problems(table, {"gaps": gaps})
    labels = _certain({row[names["label"]] for _, row in rows}, positive)
    if positive or len({label.casefold() for label in labels}) < 2:
        positive_classes(labels, positive=positive)


def _certain(labels: set[str], positive: Sequence[str]) -> set[str]:
    """Without those that say that nobody is certain, unless a person says what they mean."""
    asked = {name.strip().casefold() for name in positive}
    return {label for label in labels if label.casefold() not in UNCERTAIN_NAMES - asked}


def _has_gap(row: Mapping[str, str], names: Mapping[str, str]) -> bool:
    return not all(row.get(names[role]) for role in ("image", "label"))


def _problems(table: Path, wrong: Mapping[str, Sequence[str]]) -> UsageProblem:
    problems = {kind: "; ".join(wrong.get(kind, ())) or "–" for kind in ("gaps", "several", "two_labels")}
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
        rows = [(line, row) for line, row in lines if any(row.values())]  # spreadsheets leave empty ones at the end
    except csv.Error as error:
        why = reason("audit_table_unreadable", path=table, detail="a field is too long, or a quotation mark is missing")
        raise UsageProblem(why) from error
    if not rows:
        raise UsageProblem(reason("audit_table_empty", path=table))
    return rows


def _refuse_doubled(table: Path, header: Sequence[str]) -> None:
    """Nobody can tell which of two columns of one name is meant, whatever their case and the blanks around them."""
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
    usual = {"image": IMAGE_COLUMNS, "label": LABEL_COLUMNS, "patient": PATIENT_COLUMNS}
    found = {}
    for role, names in usual.items():
        wanted = (given[role].strip().casefold(),) if role in given else names
        column = next((name for name in wanted if name in header), None)
        if column is not None:
            found[role] = column
        elif role in given or role != "patient":
            known, option = ", ".join(header) or "-", f"--{role}-column"
            why = reason("audit_table_column", path=table, column=wanted[0], known=known, command_option=option)
            raise UsageProblem(why)
    return found


class _Matching:
    """Rows of a table against the images, and all that is wrong with it."""

    def __init__(self, table: Path, refs: Iterable[ImageRef]) -> None:
        self._table = table
        self._images = defaultdict[str, set[str]](set)
        self._images_by_stem = defaultdict[str, set[str]](set)
        for ref in refs:
            for name in _names(ref):
                self._images[name].add(ref.key)
                self._images_by_stem[_FILE_SUFFIX.sub("", name)].add(ref.key)
        self._rows: dict[str, tuple[int, str, str]] = {}
        self._unknown: list[str] = []
        self._wrong = defaultdict[str, list[str]](list)  # by the fields of audit_table_problems
        self._doubled = 0

    def add(self, line: int, row: Mapping[str, str], names: Mapping[str, str]) -> None:
        """One row of the table."""
        if _has_gap(row, names):
            self._wrong["gaps"].append(str(line))
            return
        image, label = row[names["image"]], row[names["label"]]
        keys = self._find(image)
        if len(keys) != 1:
            (self._wrong["several"] if keys else self._unknown).append(f"{line} ({image}{self._like(image)})")
            return
        (key,) = keys
        patient = row.get(names.get("patient", ""), "")
        if key in self._rows:
            before, other, _ = self._rows[key]
            if other.casefold() != label.casefold():
                self._wrong["two_labels"].append(f"{before}, {line} ({image}: {other}, {label})")
            self._doubled += 1
        else:
            self._rows[key] = (line, label, patient)

    def _find(self, image: str) -> set[str]:
        # A leading apostrophe is what keeps a spreadsheet from reading a name as a formula.
        for name in (image, image.removeprefix("'")):
            normal = name.replace("\\", "/")
            candidates = normal, (self._table.parent.absolute() / normal).as_posix()
            for images in (self._images, self._images_by_stem):
                if found := next((images[candidate] for candidate in candidates if candidate in images), None):
                    return found
        return set()

    def _like(self, image: str) -> str:
        """An image whose file is called so but lies elsewhere: a path that differs in a folder is never guessed."""
        name = image.replace("\\", "/").rpartition("/")[2]
        keys = self._images.get(name) or self._images_by_stem.get(name) or set()
        return f" ≠ {min(keys)}" if keys and name != image else ""

    def reference(self, positive: Sequence[str]) -> Reference:
        """All labels. Raises UsageProblem with everything that is wrong."""
        if self._wrong:
            raise _problems(self._table, self._wrong)
        if not self._rows:
            raise UsageProblem(reason("audit_table_no_match", path=self._table, rows="; ".join(self._unknown)))
        certain = _certain({label for _, label, _ in self._rows.values()}, positive)
        is_positive = positive_classes(certain, positive=positive)
        uncertain = sum(label not in certain for _, label, _ in self._rows.values())
        return Reference(
            truths={key: is_positive[label] for key, (_, label, _) in self._rows.items() if label in certain},
            patients={key: patient for key, (_, _, patient) in self._rows.items() if patient},
            notes=(
                *self._notes(),
                *([reason("audit_rows_uncertain", count=uncertain)] if uncertain else []),
                *_counted(is_positive),
            ),
        )

    def _notes(self) -> Iterator[Reason]:
        if unlabelled := len(set().union(*self._images.values()) - set(self._rows)):
            yield reason("audit_images_unlabelled", count=unlabelled)
        if self._unknown:
            yield reason("audit_rows_unknown", count=len(self._unknown), rows="; ".join(self._unknown))
        if self._doubled:
            yield reason("audit_rows_doubled", count=self._doubled)


def _names(ref: ImageRef) -> set[str]:
    """All that may name an image: its key, its path or the end of it from any folder on, its member, its UID.

    A path that differs in a folder names another image: `test/a.png` is never taken for `train/a.png`.
    """
    path, ends = ref.path.absolute().as_posix(), set[str]()
    if ref.member is not None:
        path = f"{path}!{ref.member}"
        ends = {ref.member, ref.member.rpartition("/")[2]}
    parts = path.split("/")
    ends |= {"/".join(parts[start:]) for start in range(len(parts))}
    return {name for name in {ref.key.replace("\\", "/"), ref.header.sop_instance_uid, *ends} if name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One image with its reference label.

    image     the key of the image (`ImageRef.key`)
    row_id    in the store
    patient   images with the same text are of one patient
    truth     whether the finding that is looked for is present, by the reference
    score     calibrated, 0..1; None if the image was refused or failed
    category  what the program said of the label that is judged
    is_asked  whether because a person had it turned, or screened although it was refused
    identity  of its bytes (`StoredAnswer.identity`)
    """

    image: str
    row_id: int
    patient: str
    truth: bool
    score: float | None
    category: Category
    header: ImageHeader
    is_asked: bool = False
    identity: tuple[str, int] = ("", 0)


def said_of(outcome: Outcome, label: str) -> tuple[float | None, Category]:
    """The calibrated score of one label, 0..1, None where the image has none; and the image's class by it alone."""
    if not isinstance(outcome, Screened):
        return None, outcome.category
    own = tuple(finding for finding in outcome.findings if finding.label == label)
    return own[0].score if own else None, replace(outcome, findings=own).category


def make_cases(
    results: Iterable[StoredAnswer], truths: Mapping[str, bool], *, label: str, patients: Mapping[str, str]
) -> Iterator[Case]:
    """The images of one run that have a reference label.

    truths    by image key; images without one are left out
    label     of the pack, that is judged
    patients  by image key, where the reference names them; else the ID, if it names somebody, else study, else image
    """
    for result in results:
        ref = result.outcome.ref
        if ref.key in truths:
            score, category = said_of(result.outcome, label)
            yield Case(
                image=ref.key,
                row_id=result.row_id,
                patient=patients.get(ref.key) or known_person(ref.header.patient_id) or ref.study_key,
                truth=truths[ref.key],
                score=score,
                category=category,
                header=ref.header,
                is_asked=bool(asked_for(result.outcome)),
                identity=result.identity,
            )


def verdict_truths(results: Iterable[StoredAnswer], *, label: str) -> dict[str, bool]:
    """Reference labels from a reader's verdicts: `agree` confirms the program's answer, `disagree` turns it round.

    Only an answer can be confirmed: what the program was not sure of, refused or failed gives no label, nor does a
    reader who was not sure. Readers who saw the answer first lean towards it, so figures from verdicts flatter.
    Of several labels an abnormal answer is about the leading one, and who disagrees with a normal one names none.
    """
    truths = {}
    for result in results:
        outcome, choice = result.outcome, result.verdict.choice if result.verdict else "unsure"
        leading = leading_finding(outcome)
        if leading is None or choice == "unsure" or not isinstance(outcome, Screened):
            continue
        has_one = leading.is_by_larger or len(outcome.findings) == 1
        is_known = {"abnormal": leading.label == label, "normal": choice == "agree" or has_one}
        if is_known.get(outcome.category):
            truths[outcome.ref.key] = (outcome.category == "abnormal") == (choice == "agree")
    return truths

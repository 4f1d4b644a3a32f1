"""The data step of a classifier's recipe, which reads the images and divides them into parts.

The parts are training, validation and test. No patient is in two parts. The division is stored for all later steps.
Duplicate images are found and reported: identical files, and images so similar that they show the same exposure.
`find_data_problems` checks the data of a recipe before reading and training, which take hours.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.errors import UsageProblem
from fieldray.packs.naming import MANIFEST_NAME
from fieldray.reasons import Reason, reason
from fieldray_adapt.data.image_set import ImageSet, read_images, read_rows, rows_digest
from fieldray_adapt.data.layouts import (
    DATA_PARTS,
    Row,
    assign_leak_free_parts,
    assign_parts,
    count_split_table_patients,
    find_confusable_patient_numbers,
    find_leaks,
    find_rows,
    leave_out_unevaluated_rows,
    leave_out_unlabelled_images,
    require_patient_in_split_table,
    split_table_digest,
)
from fieldray_adapt.evaluation.figures import DataDigests, DataFigures, DuplicateFigures, LabelCounts
from fieldray_adapt.files import digest, file_sha256, to_builtins, write_atomically
from fieldray_adapt.recipes.classifier import NO_STARTING_WEIGHTS, ClassifierRecipe
from fieldray_adapt.recipes.shared import LabelRule, Source
from fieldray_adapt.recipes.tables import Problem, ValueLocation
from fieldray_adapt.run import SPLIT_FILE_NAME, Run, Step, StepFacts
from fieldray_adapt.training.classifier import Samples
from fieldray_adapt.training.engine_interface import section_mean_matrix

_THUMBNAIL_SIDE: Final = 32
_MIN_COPY_CORRELATION: Final = 0.998
_COMPARED_PER_STEP: Final = 1024
_JUDGED: Final = ("validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """Duplicate images. A pair is the indices of two images, with the smaller index first.

    Attributes
    ----------
    exact_pairs, near_pairs
        Pairs of identical files, and pairs of nearly equal images.
    across_parts_count
        The number of pairs whose two images are in different parts, such as training and test.
    training_copy_indices
        Indices of training images that are also validation or test images.
    """

    exact_pairs: tuple[tuple[int, int], ...]
    near_pairs: tuple[tuple[int, int], ...]
    across_parts_count: int
    training_copy_indices: frozenset[int]

    def figures(self, origins: Sequence[str], *, max_examples: int) -> DuplicateFigures:
        """Return the numbers of duplicates, and the names of at most `max_examples` pairs of each kind.

        `origins` are the names of all images, in the order of the indices.
        """

        def named(pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[str, str], ...]:
            return tuple((origins[first], origins[second]) for first, second in pairs[:max_examples])

        return DuplicateFigures(
            exact=len(self.exact_pairs),
            near=len(self.near_pairs),
            across_parts=self.across_parts_count,
            training_copies_left_out=len(self.training_copy_indices),
            exact_examples=named(self.exact_pairs),
            near_examples=named(self.near_pairs),
        )


def find_duplicates(
    images: NDArray[np.uint8], digests: Sequence[str], parts: Sequence[str], files: Sequence[Path]
) -> Duplicates:
    """Find duplicate images.

    Two images are nearly equal if their 32 x 32 thumbnails correlate above 0.998. A file that two sources name is
    reported only if its two entries are in different parts, such as training and test.

    Parameters
    ----------
    images
        (n, height, width, channels) uint8.
    digests, parts, files
        SHA-256, part ("training", "validation", "test" or "none") and path of each image.
    """
    same = frozenset(_exact(digests))
    exact, near = (
        tuple(pair for pair in pairs if files[pair[0]] != files[pair[1]] or _is_across(pair, parts))
        for pairs in (sorted(same), (pair for pair in _nearly_equal_pairs(images) if pair not in same))
    )
    pairs = exact + near
    across = [pair for pair in pairs if _is_across(pair, parts)]
    copies = frozenset(
        index
        for pair in across
        for index in pair
        if parts[index] == "training" and any(parts[other] in _JUDGED for other in pair)
    )
    return Duplicates(exact_pairs=exact, near_pairs=near, across_parts_count=len(across), training_copy_indices=copies)


def _is_across(pair: tuple[int, int], parts: Sequence[str]) -> bool:
    """Return whether the two images of a pair are in different parts. False if an image is in no part ("none")."""
    own = {parts[index] for index in pair}
    return "none" not in own and len(own) > 1


def _exact(digests: Sequence[str]) -> tuple[tuple[int, int], ...]:
    first: dict[str, int] = {}
    pairs = []
    for index, content in enumerate(digests):
        other = first.setdefault(content, index)
        if other != index:
            pairs.append((other, index))
    return tuple(pairs)


def _nearly_equal_pairs(images: NDArray[np.uint8]) -> tuple[tuple[int, int], ...]:
    small = thumbnails(images, side=min(_THUMBNAIL_SIDE, *images.shape[1:3])).astype(np.float32)
    small -= small.mean(axis=1, keepdims=True)
    small /= np.maximum(np.linalg.norm(small, axis=1, keepdims=True), 1e-6)
    pairs = []
    for start in range(0, len(small), _COMPARED_PER_STEP):
        alike = small[start : start + _COMPARED_PER_STEP] @ small[start:].T
        firsts, seconds = np.nonzero(np.triu(alike, 1) > _MIN_COPY_CORRELATION)
        pairs += [(start + int(first), start + int(second)) for first, second in zip(firsts, seconds, strict=True)]
    return tuple(pairs)


def thumbnails(images: NDArray[np.uint8], *, side: int) -> NDArray[np.float64]:
    """Return side x side mean values of the first channel of images (n, rows, columns, channels), as (n, side²)."""
    rows = section_mean_matrix(images.shape[1], side)
    columns = section_mean_matrix(images.shape[2], side)
    small = [rows @ image[:, :, 0] @ columns.T for image in images]
    flat: NDArray[np.float64] = np.stack(small).reshape(len(images), -1)
    return flat


def label_targets(rows: Sequence[Row], labels: Sequence[LabelRule]) -> NDArray[np.float32]:
    """Return the training targets (rows, labels) float32 of table rows: 1 with the label, 0 without, nan if unknown."""
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


def require_all_classes(parts: Sequence[str], targets: NDArray[np.float32], labels: Sequence[LabelRule]) -> None:
    """Raise UsageProblem (data_class_empty) if a part has no positive or no negative image of a label."""
    for found in missing_classes(parts, targets, labels):
        raise UsageProblem(found)


def missing_classes(
    parts: Sequence[str], targets: NDArray[np.float32], labels: Sequence[LabelRule]
) -> Iterator[Reason]:
    """Yield a reason (data_class_empty) for each part in which a label has no positive or no negative images.

    For an auxiliary label, only the training part is checked. `targets` are (n, labels), nan if unknown.
    """
    for part in DATA_PARTS:
        members = targets[[name == part for name in parts]]
        for column, label in enumerate(labels):
            if label.auxiliary and part != "training":
                continue
            for value, pieces in ((1, "positive"), (0, "negative")):
                if not (members[:, column] == value).any():
                    yield reason("data_class_empty", label=label.code, kind=pieces, part=part)


def label_counts_by_part(parts: Sequence[str], targets: NDArray[np.float32], column: int) -> dict[str, LabelCounts]:
    """Count the images of each part: with a label, without the label, and with an unknown label.

    `column` is the label's column in `targets` (n, labels).
    """
    names = {1.0: "positive", 0.0: "negative"}
    found = Counter((part, names.get(float(t), "unknown")) for part, t in zip(parts, targets[:, column], strict=True))
    kinds = ("positive", "negative", "unknown")
    return {part: LabelCounts(**{kind: found[part, kind] for kind in kinds}) for part in DATA_PARTS}


_COLUMNS: Final = ("source", "path", "sha256", "patient", "fold", "part")
_REPORTED: Final = 20
_SAID: Final = 5


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Dataset:
    """Images with their training targets, and the part of each image: "training", "validation", "test" or "none".

    Attributes
    ----------
    targets
        (n, labels) float32: 1 with the label, 0 without, nan if unknown.
    parts
        The part of each image.
    figures
        Counts, duplicates, images left out, and the digests of the data and of the parts.
    """

    image_set: ImageSet
    targets: NDArray[np.float32]
    parts: tuple[str, ...]
    figures: DataFigures

    def indices(self, part: str) -> NDArray[np.int64]:
        """Return the indices (n,) of the images in a part, such as "training"."""
        return np.flatnonzero(np.array(self.parts) == part)

    def rows(self, part: str) -> list[Row]:
        """Return the table rows of the images in a part, such as "training"."""
        return [self.image_set.rows[index] for index in self.indices(part)]

    def samples(self, part: str) -> Samples:
        """Return the images of a part ("training", "validation" or "test") as training samples."""
        return self.samples_at(self.indices(part))

    def samples_at(self, indices: NDArray[np.int64]) -> Samples:
        """Return the images with the indices `indices` as training samples."""
        rows = [self.image_set.rows[index] for index in indices]
        return Samples(
            images=self.image_set.images[indices],
            targets=self.targets[indices],
            sources=tuple(row.source for row in rows),
            patients=tuple(row.person_id for row in rows),
            lungs=None if self.image_set.lung_share_grids is None else self.image_set.lung_share_grids[indices],
        )


def data_step(run: Run) -> StepFacts:
    """Read the images of a recipe, divide the images into parts, and search for duplicates.

    Writes split.csv and facts.json. Training images that are also validation or test images are left out. Raises
    StorageProblem, and the exceptions of `layouts.read_source`, `layouts.assign_leak_free_parts` and
    `image_set.read_images`.
    """
    recipe = run.recipe
    rows = _rows(run)
    assign_leak_free_parts(
        rows, recipe.split, recipe.data
    )  # reports a wrong split before images are read, which may take an hour
    image_set = read_network_inputs(run, rows)
    parts = assign_leak_free_parts(image_set.rows, recipe.split, recipe.data)
    files = [row.path.resolve() for row in image_set.rows]
    found = find_duplicates(image_set.images, [row.sha256 for row in image_set.rows], parts, files)
    parts = ["none" if index in found.training_copy_indices else part for index, part in enumerate(parts)]
    parts = _judged_once(image_set.rows, parts)
    targets = label_targets(image_set.rows, recipe.labels)
    parts = leave_out_unlabelled_images(parts, targets)
    require_all_classes(parts, targets, recipe.labels)
    write_atomically(run.step_folder("data") / SPLIT_FILE_NAME, _split_file(image_set.rows, parts))
    split = _read_split(run.step_folder("data") / SPLIT_FILE_NAME)
    known, digests = count_split_table_patients(rows, recipe.split), _digests(rows, split)
    people = [row.person_id for row in image_set.rows]
    facts = DataFigures(
        images={part: parts.count(part) for part in (*DATA_PARTS, "none")},
        patients={
            part: len({who for who, own in zip(people, parts, strict=True) if own == part}) for part in DATA_PARTS
        },
        without_patient=sum(
            part != "none" and row.patient in ("", row.path.name)
            for row, part in zip(image_set.rows, parts, strict=True)
        ),
        left_out=len(image_set.left_out_reasons),
        left_out_examples=image_set.left_out_reasons[:_REPORTED],
        duplicates=found.figures([row.origin for row in image_set.rows], max_examples=_REPORTED),
        labels={label.code: label_counts_by_part(parts, targets, column) for column, label in enumerate(recipe.labels)},
        patients_of_table=known.get("patients_of_table"),
        patients_of_table_in_data=known.get("patients_of_table_in_data"),
        data_sha256=digests.data_sha256,
        split_sha256=digests.split_sha256,
    )
    run.write_step_json("data", "facts.json", facts)
    return {**facts.images, **known, **to_builtins(digests)}


def _judged_once(rows: Sequence[Row], parts: Sequence[str]) -> list[str]:
    """Return the part of each row, so that a file is only once in validation or test.

    The first row of a file keeps its part. Later rows with that file get the part "none".
    """
    judged = set[str]()

    def part(row: Row, own: str) -> str:
        is_again = own in _JUDGED and row.sha256 in judged
        judged.update({row.sha256} if own in _JUDGED else ())
        return "none" if is_again else own

    return [part(row, own) for row, own in zip(rows, parts, strict=True)]


def describe_left_out_images(folder: Path) -> list[str]:
    """Return lines for the user about images that the data step left out: the first few with reasons, then a count.

    `folder` is the run folder. Returns an empty list if no data step has run.
    """
    try:
        facts = json.loads((folder / DATA_STEP.name / "facts.json").read_bytes())
    except (OSError, ValueError):
        return []
    if "left_out" not in facts:  # the data step of lung fields leaves no image out
        return []
    shown = facts["left_out_examples"][:_SAID]
    more = facts["left_out"] - len(shown)
    lines = [f"Left out: {origin}: {why}" for origin, why in shown]
    return [*lines, f"Left out: {more} images more; the first {_REPORTED} are in the report"] if more else lines


def load_dataset(run: Run) -> Dataset:
    """Return the images of a recipe, with the parts that the data step stored.

    Raises UsageProblem: step_missing if the data step did not run, data_changed if tables, images or the stored parts
    have changed since the data step.
    """
    folder = run.step_folder("data")
    try:
        facts = run.read_step_json("data", "facts.json", DataFigures)
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step="data")) from problem
    rows, split = _rows(run), _read_split(folder / SPLIT_FILE_NAME)
    if _digests(rows, split) != DataDigests(data_sha256=facts.data_sha256, split_sha256=facts.split_sha256):
        raise UsageProblem(reason("data_changed", path=folder / SPLIT_FILE_NAME))
    image_set, parts = read_network_inputs(run, rows), [line["part"] for line in split]
    targets = label_targets(image_set.rows, run.recipe.labels)
    return Dataset(image_set=image_set, targets=targets, parts=tuple(parts), figures=facts)


def _rows(run: Run) -> list[Row]:
    return read_rows(run.recipe.data, folder=run.step_folder("data"))


def read_network_inputs(run: Run, rows: Sequence[Row], *, cache_name: str = "images") -> ImageSet:
    """Read the images of table rows, as inputs of the recipe's network.

    The images are also stored in the run folder, in the file `cache_name`.npz. A later call loads the file.
    """
    cache, recipe = run.step_folder("data") / f"{cache_name}.npz", run.recipe
    return read_images(
        rows,
        recipe.input,
        cache=cache,
        progress=run.progress,
        lung_pack=recipe.lungs,
        header_rules=recipe.pack.accepted_headers,
    )


def _outside(run: Run) -> str:
    """Return a digest of all files that the data step reads: tables, images, lung-field pack, table of patients."""
    lungs = run.recipe.lungs
    finder = file_sha256(lungs / "manifest.json") if lungs else ""
    return digest(rows_digest(_rows(run)), finder, split_table_digest(run.recipe.split))


def _digests(rows: Sequence[Row], split: Sequence[Mapping[str, str]]) -> DataDigests:
    """Return the digests of the rows and of the lines of split.csv. The digests do not depend on the files' folder."""
    parts = [{name: line[name] for name in _COLUMNS if name != "path"} for line in split]
    return DataDigests(data_sha256=rows_digest(rows), split_sha256=digest(parts))


def _split_file(rows: Sequence[Row], parts: Sequence[str]) -> bytes:
    """Return the content of split.csv: for each image, a line with source, path, SHA-256, patient, fold and part."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row, part in zip(rows, parts, strict=True):
        writer.writerow([row.source, row.path, row.sha256, row.patient, row.fold, part])
    return stream.getvalue().encode()


def _read_split(path: Path) -> list[dict[str, str]]:
    """Read the lines of split.csv as cells by column. Raises UsageProblem (step_missing) if the file does not exist."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step=path.parent.name)) from problem


DATA_STEP: Final = Step(
    name="data",
    perform=data_step,
    recipe_keys=("input", "labels", "data", "split", "lungs"),
    outside_inputs_digest=_outside,
    outputs=(SPLIT_FILE_NAME, "facts.json"),
)


_MAX_PROBLEMS: Final = 20
_MAX_SHOWN_ALIKE: Final = 3
_VARIES: Final = re.compile(r"\S*[\d./\\]\S*")
_MIN_WORD_LETTERS: Final = 4


def find_data_problems(recipe: ClassifierRecipe, *, every_image: bool) -> list[Problem]:
    """Return the problems of the files and tables that a recipe names. The paths in the recipe must be absolute.

    Each problem has the location of its key in the recipe. Similar problems of a source are combined into one problem.

    Parameters
    ----------
    every_image
        Whether a missing image is a problem. False for a run, which leaves missing images out.
    """
    problems: list[Problem] = []
    rows: list[Row] = []
    for number, source in enumerate(recipe.data):
        found, wrong = _source_problems(source, ("data", number), every_image)
        rows += found
        problems += wrong
        problems += _single_class(recipe.pack_labels, source, found, ("data", number))
        problems += _grouped_problems(list(_misspelt(recipe, source, found)), ("data", number))
    for key in ("ood_images", "elsewhere"):
        source = getattr(recipe.evaluation, key)
        problems += _source_problems(source, ("evaluation", key), every_image)[1] if source else []
    weights, teacher = Path(recipe.network.weights), recipe.training.teacher
    if recipe.network.weights != NO_STARTING_WEIGHTS and not weights.exists():
        problems.append(Problem(("network", "weights"), f"names {weights}, which does not exist"))
    if teacher and not teacher.is_file():
        problems.append(Problem(("training", "teacher"), f"names {teacher}, which does not exist"))
    if recipe.lungs is not None and not (recipe.lungs / MANIFEST_NAME).is_file():
        problems.append(Problem(("lungs",), f"names {recipe.lungs}, which is not a pack"))
    # The checks below would report the consequences of an unreadable table as further problems.
    return problems or [
        *_class_problems(recipe.labels, rows),
        *_single_class_groups(recipe, rows),
        *_split_problems(recipe, rows),
    ]


def _single_class_groups(recipe: ClassifierRecipe, rows: Sequence[Row]) -> Iterator[Problem]:
    """Yield a problem for each group of sources whose images are all positive, or all negative, for a label.

    A recipe that averages the training over sources learns nothing from such a group. Other recipes have no problem.
    """
    for group, shares in recipe.source_shares_by_group.items() if recipe.training.average_sources else ():
        targets = label_targets([row for row in rows if row.source in shares], recipe.pack_labels)
        for column, label in enumerate(recipe.pack_labels):
            if len({value for value in targets[:, column] if value in (0, 1)}) < 2:
                text = f"has only positive or only negative images of the label {label.code} in the group {group}"
                yield Problem(("data",), text)


def _source_problems(source: Source, at: ValueLocation, every_image: bool) -> tuple[list[Row], list[Problem]]:
    rows, wrong = find_rows(source)
    details = [found.text for found in wrong]
    missing = [row for row in rows if every_image and not row.path.is_file()]
    files = [f"names an image that does not exist: {row.path} ({row.origin})" for row in missing]
    return rows, [*_grouped_problems(details, at, lead="cannot be used: "), *_grouped_problems(files, at)]


def _grouped_problems(details: Sequence[str], at: ValueLocation, *, lead: str = "") -> Iterator[Problem]:
    """Yield a problem for each of `details`. The text of each problem starts with `lead`.

    Details that differ only in file names and numbers become one problem with a count. Otherwise one wrong pattern
    would give thousands of problems.
    """
    groups: dict[str, list[str]] = {}
    for detail in details:
        groups.setdefault(_VARIES.sub("", detail), []).append(detail.removesuffix("."))  # further words may follow
    for alike in list(groups.values())[:_MAX_PROBLEMS]:
        shown = alike if len(alike) <= _MAX_SHOWN_ALIKE else alike[:1]
        more = f" (and {len(alike) - 1} more like it)" if len(alike) > len(shown) else ""
        yield from (Problem(at, lead + detail + more) for detail in shown)
    if len(groups) > _MAX_PROBLEMS:
        yield Problem(at, f"has {sum(map(len, list(groups.values())[_MAX_PROBLEMS:]))} more problems of this kind")


def _single_class(
    labels: Sequence[LabelRule], source: Source, rows: Sequence[Row], at: ValueLocation
) -> Iterator[Problem]:
    """Yield a problem for a source whose images are all positive, or all negative, for every label.

    A network would learn to recognise the source and not the finding.
    """
    if not source.evaluated or not rows:
        return
    targets = label_targets(rows, labels)
    known = [{value for value in column if value in (0, 1)} for column in targets.T]
    if all(len(values) < 2 for values in known):
        named = {name for label in labels for name in (*label.positive, *label.negative)}
        found = set().union(*(row.classes for row in rows))
        classes = ", ".join(sorted(found & named or found)[:8])
        span = f"first row: {rows[0].origin}, classes: {classes}"
        only = f"the table has only the class {classes}, " if len(found) == 1 else ""
        found_only = "has, for each label, only positive or only negative images"
        yield Problem(at, f"{found_only} ({only}{span}). Set evaluated = false")


def _misspelt(recipe: ClassifierRecipe, source: Source, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a text about each row whose class or split value is probably misspelt.

    A value is probably misspelt if one typing error turns a name in the recipe into the value. Without this check, a
    misspelt row would silently have no label or no part.
    """
    labels = [label for label in recipe.labels if label.column == "classes"]
    classes = {name for label in labels for name in (*label.positive, *label.negative)}
    splits = set(source.splits) if recipe.split.by == "column" else set()
    for row in rows:
        said = (("class", row.classes - set(source.drop), classes), ("split", {row.split} - {""}, splits))
        for what, values, named in said:
            for value in sorted(values - named):
                if near := [name for name in sorted(named) if _one_keystroke_apart(value, name)]:
                    yield f"has a row with the {what} {value} ({row.origin}); is {near[0]} meant?"


def _one_keystroke_apart(first: str, second: str) -> bool:
    """Return whether two words differ only in case, or by one letter added, changed or swapped with its neighbour.

    Words with fewer than four letters may differ only in case.
    """
    one, other = sorted((first.casefold(), second.casefold()), key=len)
    if one == other or len(one) < _MIN_WORD_LETTERS:
        return one == other
    start = next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    rest, other_rest = one[start:], other[start:]
    if len(one) < len(other):
        return rest == other_rest[1:]
    return rest[1:] == other_rest[1:] or (rest[1::-1] == other_rest[:2] and rest[2:] == other_rest[2:])


def _class_problems(labels: Sequence[LabelRule], rows: Sequence[Row]) -> Iterator[Problem]:
    """Yield a problem for each class in the recipe's labels that no image has."""
    for number, label in enumerate(labels):
        if label.column == "age":
            continue
        known = {cell for row in rows for cell in _cells(row, label.column)} - {""}
        for key in ("positive", "negative"):
            for value in sorted(set(getattr(label, key)) - known):
                some = ", ".join(sorted(known)[:12])
                yield Problem(("labels", number, key), f"names {value}, which no image has. Known: {some or 'none'}")


def _cells(row: Row, column: str) -> frozenset[str]:
    return {"view": frozenset({row.view}), "sex": frozenset({row.sex}), "classes": row.classes}[column]


def _split_problems(recipe: ClassifierRecipe, rows: Sequence[Row]) -> Iterator[Problem]:
    rows = _with_copies_known(rows)
    alike = [found.text for found in find_confusable_patient_numbers(rows, recipe.split)]
    yield from _grouped_problems(alike, ("split",), lead="puts a patient into several parts: ")
    try:
        require_patient_in_split_table(rows, recipe.split)
        parts = assign_parts(rows, recipe.split, recipe.data)
    except UsageProblem as problem:
        yield Problem(("split",), f"cannot be made: {problem.reason.text.removesuffix('.')}")
        return
    leaks = [found.text for found in find_leaks(rows, parts)]
    yield from _grouped_problems(leaks, ("split",), lead="puts a patient into several parts: ")
    used = leave_out_unevaluated_rows(rows, parts, recipe.data)
    empty = [found.text for found in missing_classes(used, label_targets(rows, recipe.labels), recipe.labels)]
    yield from _grouped_problems(empty, ("split",), lead="leaves a part without a class: ")


def _with_copies_known(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with the SHA-256 of each file that may be a copy of another file or has no patient number.

    The split by patients needs these digests. Two files of different size cannot be copies. So a file that has a
    patient number, and a size that no other file has, is not read.
    """
    sizes = [row.path.stat().st_size if row.path.is_file() else 0 for row in rows]
    times = Counter(sizes)
    return [
        row if row.patient and times[size] == 1 else replace(row, sha256=file_sha256(row.path))
        for row, size in zip(rows, sizes, strict=True)
    ]

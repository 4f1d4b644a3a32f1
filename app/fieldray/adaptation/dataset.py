"""The first step of a recipe: its images and their split, frozen in one file that all later steps take it from."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.digest import digest
from fieldray.adaptation.duplicates import Duplicates, find_duplicates
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.image_set import ImageSet, content_digest, read_images, read_rows, rows_digest
from fieldray.adaptation.layouts import Row
from fieldray.adaptation.run import Run, Step
from fieldray.adaptation.split import PARTS, check_classes, counts, refuse_leak, split_rows, targets_of
from fieldray.adaptation.train import Samples
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

SPLIT: Final = "split.csv"
_COLUMNS: Final = ("source", "path", "sha256", "patient", "fold", "part")
_REPORTED: Final = 20


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Dataset:
    """Images with what is known of each label (n, labels) and the part each belongs to.

    Attributes
    ----------
    facts
        Counts, duplicates, what was left out, and the digests of data and split: ready for JSON.
    """

    image_set: ImageSet
    targets: NDArray[np.float32]
    parts: tuple[str, ...]
    facts: Mapping[str, Any]

    def indices(self, part: str) -> NDArray[np.int64]:
        """Which images are in a part."""
        return np.flatnonzero(np.array(self.parts) == part)

    def rows(self, part: str) -> list[Row]:
        """The rows of a part."""
        return [self.image_set.rows[index] for index in self.indices(part)]

    def samples(self, part: str) -> Samples:
        """The training samples of a part."""
        return self.samples_of(self.indices(part))

    def samples_of(self, chosen: NDArray[np.int64]) -> Samples:
        """The training samples of some images, by their numbers."""
        rows = [self.image_set.rows[index] for index in chosen]
        return Samples(
            images=self.image_set.images[chosen],
            targets=self.targets[chosen],
            sources=tuple(row.source for row in rows),
            patients=tuple(row.person for row in rows),
            lungs=None if self.image_set.lungs is None else self.image_set.lungs[chosen],
        )


def data_step(run: Run) -> Mapping[str, Any]:
    """Read the images, split them, look for duplicates; split.csv and facts.json.

    Training images that are also validation or test images are left out. Raises UsageProblem (see
    `layouts.read_source`, `split`, `image_set.read_images`), StorageProblem.
    """
    recipe = run.recipe
    rows = _rows(run)
    split_rows(rows, recipe.split, recipe.data)  # reports a wrong split before reading for an hour
    image_set = _images_of(run, rows)
    parts = split_rows(image_set.rows, recipe.split, recipe.data)
    found = find_duplicates(image_set.images, [row.sha256 for row in image_set.rows], parts)
    parts = ["none" if index in found.training_copies else part for index, part in enumerate(parts)]
    targets = targets_of(image_set.rows, recipe.labels)
    check_classes(parts, targets, recipe.labels)
    write_atomically(run.folder("data") / SPLIT, _split_file(image_set.rows, parts))
    split = _read_split(run.folder("data") / SPLIT)
    labels = {label.code: counts(parts, targets, column) for column, label in enumerate(recipe.labels)}
    facts = _facts(image_set, parts, found) | {"labels": labels, **_digests(rows, split)}
    run.write("data", "facts.json", facts)
    return {**facts["images"], **_digests(rows, split)}


def dataset_of(run: Run) -> Dataset:
    """The recipe's images in the parts that the data step froze.

    Raises UsageProblem: step_missing where there is no such split, data_changed where rows, files or split are no
    longer what it was made of.
    """
    folder = run.folder("data")
    try:
        facts = run.read("data", "facts.json")
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step="data")) from problem
    rows, split = _rows(run), _read_split(folder / SPLIT)
    if any(facts[name] != found for name, found in _digests(rows, split).items()):
        raise UsageProblem(reason("data_changed", path=folder / SPLIT))
    image_set, parts = _images_of(run, rows), [line["part"] for line in split]
    targets = targets_of(image_set.rows, run.recipe.labels)
    return Dataset(image_set=image_set, targets=targets, parts=tuple(parts), facts=facts)


def keep_split(run: Run, step: str) -> None:
    """Keep a copy of the split beside what a step has trained. Raises StorageProblem."""
    write_atomically(run.folder(step) / SPLIT, (run.folder("data") / SPLIT).read_bytes())


def refuse_seen(run: Run, data: Dataset, *, step: str) -> None:
    """Raises UsageProblem `data_leak` where a test image, or its patient, was in another part when `step` trained.

    The splits are the same as long as the steps were performed in order: this checks that they were.
    """
    then = _read_split(run.folder(step) / SPLIT)
    trained_on = [line for line in then if line["part"] == "training"]
    for name, lines in (("patient", then), ("sha256", trained_on)):
        before = [_row_of(line, known_by=line[name]) for line in lines]
        now = [replace(row, patient=getattr(row, name)) for row in data.rows("test")]
        refuse_leak([*before, *now], [line["part"] for line in lines] + ["test"] * len(now))


def _row_of(line: Mapping[str, str], *, known_by: str) -> Row:
    path = Path(line["path"])
    return Row(path=path, source=line["source"], classes=frozenset(), patient=known_by, origin=str(path))


def _rows(run: Run) -> list[Row]:
    return read_rows(run.recipe.data, folder=run.folder("data"))


def _images_of(run: Run, rows: Sequence[Row]) -> ImageSet:
    cache = run.folder("data") / "images.npz"
    return read_images(rows, run.recipe.input, cache=cache, progress=run.progress, finder=run.recipe.lungs)


def _finder_digest(run: Run) -> str:
    """Of the pack that finds the lungs, "" without one."""
    return content_digest(run.recipe.lungs / "manifest.json") if run.recipe.lungs else ""


def _digests(rows: Sequence[Row], split: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Digests of the content of tables and files, and of the parts. Where files are stored does not count."""
    parts = [{name: line[name] for name in _COLUMNS if name != "path"} for line in split]
    return {"data_sha256": rows_digest(rows), "split_sha256": digest(parts)}


def _facts(image_set: ImageSet, parts: Sequence[str], found: Duplicates) -> dict[str, Any]:
    return {
        "images": {part: parts.count(part) for part in (*PARTS, "none")},
        "patients": {
            part: len({row.person for row, own in zip(image_set.rows, parts, strict=True) if own == part})
            for part in PARTS
        },
        "left_out": len(image_set.left_out),
        "left_out_examples": image_set.left_out[:_REPORTED],
        "duplicates": found.facts([row.origin for row in image_set.rows], most=_REPORTED),
    }


def _split_file(rows: Sequence[Row], parts: Sequence[str]) -> bytes:
    """One line per image: its path, digest, patient and part."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row, part in zip(rows, parts, strict=True):
        writer.writerow([row.source, row.path, row.sha256, row.patient, row.fold, part])
    return stream.getvalue().encode()


def _read_split(path: Path) -> list[dict[str, str]]:
    """The lines of a split file. Raises UsageProblem (step_missing)."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step=path.parent.name)) from problem


DATA: Final = Step(
    name="data",
    perform=data_step,
    reads=("input", "labels", "data", "split", "lungs"),
    outside=lambda run: digest(rows_digest(_rows(run)), _finder_digest(run)),
    leaves=(SPLIT, "facts.json"),
)

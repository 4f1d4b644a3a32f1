"""The data step of a matcher: pairs of images of one patient, read once, split by patient, laid over each other.

What is kept of a pair is two images. How the one had to be moved to lie over the other is not kept.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.files import arrays_in, content_digest, digest, write_atomically
from fieldray_adapt.image_set import read_images, rows_digest
from fieldray_adapt.layouts import Row, Wrong, table_rows
from fieldray_adapt.matcher.recipe import MatcherRecipe, PairSource, recipe_of
from fieldray_adapt.matcher.rough_alignment import roughly_aligned
from fieldray_adapt.run import Run, Step
from fieldray_adapt.split import parts_of
from fieldray_adapt.tables import Problem

_ARRAYS: Final = "pairs.npz"
_REPORTED: Final = 20
_PARTS: Final = ("training", "validation", "test")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MatcherData:
    """Every pair, at the size of the input.

    Attributes
    ----------
    priors, currents
        (n, side, side) uint8; a prior is roughly laid over its current.
    parts, patients, sources
        Of each pair; the part is training, validation or test.
    is_far
        Whether the recipe calls their gap in time far.
    likeness
        How well the small images correlate when laid over each other, -1..1.
    """

    priors: NDArray[np.uint8]
    currents: NDArray[np.uint8]
    parts: NDArray[np.str_]
    patients: NDArray[np.str_]
    sources: NDArray[np.str_]
    is_far: NDArray[np.bool_]
    likeness: NDArray[np.float32]

    def of(self, part: str) -> NDArray[np.int64]:
        """Which pairs are in a part."""
        return np.flatnonzero(self.parts == part)


@dataclass(frozen=True, slots=True)
class ImagePair:
    """Two images of one patient, before they are read."""

    prior: Row
    current: Row
    is_far: bool = False

    def problem(self) -> Reason | None:
        """What is wrong with it."""
        for row in (self.prior, self.current):
            if not row.path.is_file():
                return reason("data_unreadable", path=row.path, detail=f"it is not there ({row.origin})")
        return None


def find_pairs(source: PairSource, wrong: Wrong) -> list[ImagePair]:
    """The pairs of one source; `wrong` gets everything that is wrong with its table."""
    pairs = []
    needed = ("prior", "current", "patient_id", *(("gap",) if source.far_from is not None else ()))
    for line, cells in table_rows(source, wrong, needed):
        if detail := _fault(cells, source):
            wrong(reason("data_row", path=source.path, line=line, detail=detail))
            continue
        prior, current = (
            Row(
                path=source.path.parent / cells[name],
                source=source.name,
                classes=frozenset(),
                patient=cells["patient_id"],
                origin=f"{source.path.name}, line {line}",
            )
            for name in ("prior", "current")
        )
        is_far = source.far_from is not None and float(cells["gap"]) >= source.far_from
        pairs.append(ImagePair(prior, current, is_far=is_far))
    return pairs


def _fault(cells: Mapping[str, str], source: PairSource) -> str:
    if not cells["patient_id"]:
        return "it names no patient"
    if source.far_from is not None and not _is_number(cells["gap"]):
        return f"the gap {cells['gap']!r} is no number"
    return ""


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def matcher_problems(recipe: MatcherRecipe) -> list[Problem]:
    """What is wrong with the files that a recipe names, each problem at the recipe's key that it is about."""
    problems: list[Problem] = []
    pairs: list[ImagePair] = []
    for number, source in enumerate(recipe.pairs):
        wrong: list[Reason] = []
        found = find_pairs(source, wrong.append)
        wrong += [why for pair in found if (why := pair.problem())]
        if not found and not wrong:
            wrong.append(reason("data_empty", name=source.name, path=source.path))
        problems += [Problem(("pairs", number), f"cannot be used: {why.text}") for why in wrong[:_REPORTED]]
        pairs += found
    if not problems:
        people = _people(recipe, pairs)
        empty = [part for part in _PARTS if not people[part]]
        problems += [Problem(("split",), f"leaves no pair for {', '.join(empty)}")] if empty else []
        if not empty and len(people["training"]) < recipe.training.pairs_per_step:
            problems.append(Problem(("training", "pairs_per_step"), "must not be above the patients to train on"))
    return problems


def _people(recipe: MatcherRecipe, pairs: Sequence[ImagePair]) -> dict[str, set[str]]:
    parts = parts_of([pair.prior for pair in pairs], recipe.split, ())
    return {
        part: {pair.prior.patient for pair, own in zip(pairs, parts, strict=True) if own == part} for part in _PARTS
    }


def data_step(run: Run) -> Mapping[str, Any]:
    """Read the images, lay each prior over its current, split by patient; pairs.npz and facts.json.

    Raises UsageProblem for an image that cannot be read, StorageProblem.
    """
    recipe = recipe_of(run)
    pairs = _pairs(recipe)
    images = _images(run, pairs)
    priors, likeness = [], []
    for number, pair in enumerate(pairs):
        moved, score = roughly_aligned(images[pair.prior.path], images[pair.current.path])
        priors.append(moved)
        likeness.append(score)
        run.progress("pairs", number + 1, len(pairs))
    arrays = {
        "priors": np.stack(priors),
        "currents": np.stack([images[pair.current.path] for pair in pairs]),
        "parts": np.array(parts_of([pair.prior for pair in pairs], recipe.split, ())),
        "patients": np.array([pair.prior.patient for pair in pairs]),
        "sources": np.array([pair.prior.source for pair in pairs]),
        "is_far": np.array([pair.is_far for pair in pairs]),
        "likeness": np.array(likeness, np.float32),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomically(run.folder("data") / _ARRAYS, buffer.getvalue())
    facts = _facts(arrays)
    run.write(
        "data", "facts.json", facts | {"data_sha256": _outside(run), "split_sha256": digest(list(arrays["parts"]))}
    )
    return dict(facts["pairs"])


def data_of(run: Run) -> MatcherData:
    """What the data step left. Raises UsageProblem `step_missing`."""
    path = run.folder("data") / _ARRAYS
    if not path.is_file():
        raise UsageProblem(reason("step_missing", step="data"))
    with arrays_in(path) as arrays:
        return MatcherData(**arrays)


def _pairs(recipe: MatcherRecipe) -> list[ImagePair]:
    wrong: list[Reason] = []
    pairs = [pair for source in recipe.pairs for pair in find_pairs(source, wrong.append)]
    for why in wrong:
        raise UsageProblem(why)
    return pairs


def _rows(pairs: Sequence[ImagePair]) -> Iterator[Row]:
    """Each image once, though it may be in two pairs."""
    yield from {row.path: row for pair in pairs for row in (pair.prior, pair.current)}.values()


def _images(run: Run, pairs: Sequence[ImagePair]) -> dict[Path, NDArray[np.uint8]]:
    rows = [_with_digest(row) for row in _rows(pairs)]
    found = read_images(rows, run.recipe.input, cache=run.folder("data") / "images.npz", progress=run.progress)
    if found.left_out:
        origin, sentence = found.left_out[0]
        raise UsageProblem(reason("data_unreadable", path=origin, detail=sentence))
    return {row.path: image[..., 0] for row, image in zip(found.rows, found.images, strict=True)}


def _with_digest(row: Row) -> Row:
    return replace(row, sha256=content_digest(row.path))


def _facts(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    parts, patients, sources = (arrays[name] for name in ("parts", "patients", "sources"))
    return {
        "pairs": {part: int((parts == part).sum()) for part in _PARTS},
        "patients": {part: len(set(patients[parts == part])) for part in _PARTS},
        "sources": {str(name): int((sources == name).sum()) for name in sorted(set(sources))},
    }


def _outside(run: Run) -> str:
    """Of everything that the step reads: images and tables."""
    pairs = _pairs(recipe_of(run))
    couples = [[str(row.path.name) for row in (pair.prior, pair.current)] for pair in pairs]
    return digest(rows_digest([_with_digest(row) for row in _rows(pairs)]), couples)


MATCHER_DATA: Final = Step(
    name="data",
    perform=data_step,
    reads=("input", "pairs", "split"),
    outside=_outside,
    leaves=(_ARRAYS, "facts.json"),
)

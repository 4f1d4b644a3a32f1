"""The films of a recipe, read once with the program's own reading and preprocessing, kept in the run folder."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.duplicates import find_duplicates
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.layouts import Row, read_source
from fieldray.adaptation.recipe import Recipe
from fieldray.adaptation.split import check_classes, counts, split_rows, targets_of
from fieldray.adaptation.train import Samples
from fieldray.domain.image import Image
from fieldray.domain.model import InputSpec
from fieldray.domain.study import ImageRef
from fieldray.errors import FieldrayError, UsageProblem
from fieldray.imaging.decode import decode
from fieldray.imaging.preprocess import to_tensor
from fieldray.imaging.quality import check_pixels
from fieldray.imaging.source import read_bytes
from fieldray.reasons import Reason, reason

Progress = Callable[[str, int, int], None]
_REPORTED: Final = 20


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Films:
    """Films that could be read.

    images      (n, height, width, channels) uint8 as the network sees them; digests: SHA-256 of the files
    left_out    origin and sentence of each film that could not be read or is refused
    """

    rows: tuple[Row, ...]
    images: NDArray[np.uint8]
    digests: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Dataset:
    """Films with what is known of each label (n, labels) and the part each belongs to."""

    films: Films
    targets: NDArray[np.float32]
    parts: tuple[str, ...]
    facts: Mapping[str, Any]

    def indices(self, part: str) -> NDArray[np.int64]:
        """Which films are in a part."""
        return np.flatnonzero(np.array(self.parts) == part)

    def rows(self, part: str) -> list[Row]:
        """The rows of a part."""
        return [self.films.rows[index] for index in self.indices(part)]

    def samples(self, part: str) -> Samples:
        """What a part is for training."""
        return self.samples_of(self.indices(part))

    def samples_of(self, chosen: NDArray[np.int64]) -> Samples:
        """What some films, by number, are for training."""
        rows = [self.films.rows[index] for index in chosen]
        return Samples(
            images=self.films.images[chosen],
            targets=self.targets[chosen],
            sources=tuple(row.source for row in rows),
            patients=tuple(row.patient for row in rows),
        )


def read_dataset(recipe: Recipe, *, folder: Path, progress: Progress) -> Dataset:
    """Rows, split, films and duplicates of a recipe; the films come from `folder` if they were read before.

    Training films that are, byte for byte, also validation or test films are left out. Raises UsageProblem (see
    `layouts.read_source`, `split`), data_none_readable, StorageProblem.
    """
    rows = [row for source in recipe.data for row in read_source(source)]
    split_rows(rows, recipe.split, recipe.data)
    films = read_films(rows, recipe.input, cache=folder / "films.npz", progress=progress)
    parts = split_rows(films.rows, recipe.split, recipe.data)
    found = find_duplicates(films.images, films.digests, parts)
    parts = ["none" if index in found.training_copies else part for index, part in enumerate(parts)]
    targets = targets_of(films.rows, recipe.labels)
    check_classes(parts, targets, recipe.labels)
    labels = {label.code: counts(parts, targets, column) for column, label in enumerate(recipe.labels)}
    facts = {
        "films": {part: parts.count(part) for part in ("training", "validation", "test", "none")},
        "patients": {
            part: len({row.patient for row, own in zip(films.rows, parts, strict=True) if own == part})
            for part in ("training", "validation", "test")
        },
        "labels": labels,
        "left_out": len(films.left_out),
        "left_out_examples": films.left_out[:_REPORTED],
        "duplicates": found.facts([row.origin for row in films.rows], most=_REPORTED),
    }
    return Dataset(films=films, targets=targets, parts=tuple(parts), facts=facts)


def read_films(rows: Sequence[Row], spec: InputSpec, *, cache: Path, progress: Progress, shrink_to: int = 0) -> Films:
    """Read and prepare each row's film, or take them from `cache` if nothing changed since.

    shrink_to    first shrink each film to a square of this side (0: not), to compare it with what is that small
    Raises UsageProblem data_none_readable when not one film could be read, StorageProblem.
    """
    key = _key(rows, spec, shrink_to)
    stored = _load(cache, key)
    if stored is None:
        stored = _read_all(rows, spec, shrink_to, progress)
        _store(cache, key, stored)
    images, digests, problems = stored
    kept = [index for index in range(len(rows)) if str(index) not in problems]
    if not kept:
        raise UsageProblem(reason("data_none_readable", path=rows[0].path, detail=problems["0"]))
    return Films(
        rows=tuple(rows[index] for index in kept),
        images=images[kept] if len(kept) < len(rows) else images,
        digests=tuple(digests[index] for index in kept),
        left_out=tuple((rows[int(index)].origin, sentence) for index, sentence in problems.items()),
    )


_Stored = tuple[NDArray[np.uint8], list[str], dict[str, str]]


def _read_all(rows: Sequence[Row], spec: InputSpec, shrink_to: int, progress: Progress) -> _Stored:
    images = np.zeros((len(rows), spec.height, spec.width, spec.channels), np.uint8)
    digests, problems = [""] * len(rows), {}
    for index, row in enumerate(rows):
        found = _read_one(row, spec, shrink_to)
        if isinstance(found, Reason):
            problems[str(index)] = found.text
        else:
            images[index], digests[index] = found
        progress("films", index + 1, len(rows))
    return images, digests, problems


def _read_one(row: Row, spec: InputSpec, shrink_to: int) -> tuple[NDArray[np.uint8], str] | Reason:
    ref = ImageRef(path=row.path)
    try:
        data = read_bytes(ref)
        image: Image = decode(data, ref)
    except FieldrayError as problem:
        return problem.reason
    refused = check_pixels(image)
    if shrink_to:
        image = _shrunk(image, shrink_to)
    return refused or (to_tensor(image, spec).values[0], hashlib.sha256(data).hexdigest())


def _shrunk(image: Image, side: int) -> Image:
    small = to_tensor(image, InputSpec(height=side, width=side, intensity="as_displayed"))
    return Image(pixels=small.values[0, :, :, 0])


def _key(rows: Sequence[Row], spec: InputSpec, shrink_to: int) -> str:
    """Changes when a file, the list of files or the input does."""
    digest = hashlib.sha256(f"{spec} {shrink_to}".encode())
    for row in rows:
        try:
            facts = row.path.stat()
            digest.update(f"{row.path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{row.path}\0missing\n".encode())
    return digest.hexdigest()


def _store(path: Path, key: str, stored: _Stored) -> None:
    images, digests, problems = stored
    facts = json.dumps({"key": key, "digests": digests, "problems": problems})
    buffer = io.BytesIO()
    np.savez(buffer, images=images, facts=np.frombuffer(facts.encode(), np.uint8))
    write_atomically(path, buffer.getvalue())


def _load(path: Path, key: str) -> _Stored | None:
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        if facts["key"] != key:
            return None
        return arrays["images"], facts["digests"], facts["problems"]

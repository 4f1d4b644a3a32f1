"""The images of a data set: read once, with the program's own reader and preprocessing, and stored in the run folder.

Each file is identified by the SHA-256 of its content, computed once for each state of the file. If a recipe asks for
lungs, the lung-field pack used for screening finds them, with equal rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import Image, ImageHeader, ImageRef, PixelMap
from fieldray.domain.lungs import LungFields
from fieldray.domain.mask import edges, overlaps
from fieldray.domain.model import HeaderRules, InputSpec
from fieldray.domain.purpose import says_frontal_chest
from fieldray.errors import Unreadable, Unusable, UsageProblem
from fieldray.imaging.preprocess import to_tensor
from fieldray.imaging.quality import check_pixels
from fieldray.imaging.reading import ImageFile
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray.packs.verified import read_pack
from fieldray.reasons import Reason, reason
from fieldray_adapt.data.layouts import Row, read_source
from fieldray_adapt.files import arrays_in, content_digest, digest, reading, save_arrays, write_atomically
from fieldray_adapt.recipes.shared import Source
from fieldray_adapt.run import Progress

CELLS: Final = 64
"""Rows and columns of the share of lung that is kept of an image as the network sees it."""


class LungFinder:
    """A lung-field pack in an interpreter of its own.

    Raises PackProblem where the pack cannot be read, UsageProblem `recipe_key` where it is no lung-field pack.
    """

    def __init__(self, folder: Path) -> None:
        self._model = model = read_pack(folder).model
        if model.manifest.lung_rules is None:
            raise UsageProblem(reason("recipe_key", key="lungs", detail="names a pack of another kind"))
        spec = NetworkSpec.of(model.manifest)
        self._network = Network(model.files["litert"], spec, runtime=load_runtime(), threads=1)

    def find(self, image: Image, *, says_chest: bool = False) -> LungFields:
        """The lungs of one image, in pixels of its file. Raises BackendProblem."""
        from fieldray.workers.image_worker import lungs_in  # which loads the runtime

        return lungs_in(image, self._model, self._network.run, says_chest=says_chest)


def lung_shares(lungs: LungFields, pixel_map: PixelMap, *, of: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the share of lung region, 0..255, in the cells of the network's input: uint8 (CELLS, CELLS).

    Parameters
    ----------
    pixel_map
        Maps pixels of the tensor to the image.
    of
        Height and width of the tensor.
    """
    cells = pixel_map.for_cells((CELLS, CELLS), of=of)
    down, across = edges(cells, (CELLS, CELLS))
    mask = lungs.whole_mask
    lung_down, lung_across = edges(lungs.pixel_map, mask.shape)
    inside = overlaps(down, lung_down) @ mask.astype(np.float64) @ overlaps(across, lung_across).T
    shares = np.rint(255 * inside / (cells.row_scale * cells.column_scale)).clip(0, 255)
    return np.asarray(shares, np.uint8)


CACHE: Final = "digests.json"


def read_rows(sources: Iterable[Source], *, folder: Path) -> list[Row]:
    """The rows of all sources, each with the SHA-256 of its file ("" where that cannot be read).

    Raises what `layouts.read_source` raises, StorageProblem.

    Parameters
    ----------
    folder
        Keeps the digests, each for as long as the file's size, times and number are what they were.
    """
    rows, path = [row for source in sources for row in read_source(source)], folder / CACHE
    before: dict[str, list[Any]] = {}
    if path.is_file():
        with reading(path):
            before = dict(json.loads(path.read_text(encoding="utf-8")))
    known = dict(before)
    digests = [_digest_of(row.path, known) for row in rows]
    if known != before:
        write_atomically(path, json.dumps(known).encode())
    return [replace(row, sha256=found) for row, found in zip(rows, digests, strict=True)]


def rows_digest(rows: Sequence[Row]) -> str:
    """A digest of rows and their files' contents, in order. The place of the files does not count."""
    return digest([replace(row, path=Path(), origin="") for row in rows])


def _digest_of(path: Path, known: dict[str, list[Any]]) -> str:
    """Return the file's digest from `known`, or compute and add it."""
    try:
        facts = path.stat()
    except OSError:
        return ""
    state = [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]
    kept = known.get(str(path))
    if kept is not None and kept[:-1] == state:
        return str(kept[-1])
    if found := content_digest(path):
        known[str(path)] = [*state, found]
    return found


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ImageSet:
    """Images that could be read.

    Attributes
    ----------
    images
        (n, height, width, channels) uint8 as the network sees them.
    left_out
        Origin and sentence of each image that could not be read or is refused.
    lungs
        (n, CELLS, CELLS) uint8, the share of lung in each cell of what the network sees; None without a finder.
    """

    rows: tuple[Row, ...]
    images: NDArray[np.uint8]
    left_out: tuple[tuple[str, str], ...]
    lungs: NDArray[np.uint8] | None = None


def read_images(
    rows: Sequence[Row],
    spec: InputSpec,
    *,
    cache: Path,
    progress: Progress,
    shrink_to: int = 0,
    finder: Path | None = None,
    accepted: HeaderRules | None = None,
) -> ImageSet:
    """Read and prepare each row's image, or take them from `cache` if the content of every file is as it was.

    Parameters
    ----------
    rows
        With their SHA-256, see `read_rows`.
    shrink_to
        First shrink each image to a square of this side (0: not), to compare it with what is that small.
    finder
        The pack that finds the lungs, where the input is cropped to them or they are asked for.
    accepted
        What headers of the pack's images say: lungs are looked for as in a chest X-ray where one says so. None where
        nobody asks.

    Raises
    ------
    UsageProblem
        data_none_readable when not one image could be read, data_changed when a file is no longer what its row says.
    PackProblem
    StorageProblem
    """
    key = digest(_key(rows, spec, shrink_to, finder), accepted, _READING)
    stored = _load(cache, key)
    if stored is None:
        stored = _read_all(rows, _Reading(spec, shrink_to, LungFinder(finder) if finder else None, accepted), progress)
        _store(cache, key, stored)
    images, lungs, problems = stored
    kept = [index for index in range(len(rows)) if str(index) not in problems]
    if not kept:
        raise UsageProblem(reason("data_none_readable", path=rows[0].path, detail=problems["0"]))
    return ImageSet(
        rows=tuple(rows[index] for index in kept),
        images=images[kept] if len(kept) < len(rows) else images,
        left_out=tuple((rows[int(index)].origin, sentence) for index, sentence in problems.items()),
        lungs=lungs[kept] if finder else None,
    )


def with_digests(rows: Iterable[Row]) -> list[Row]:
    """The rows, each with the SHA-256 of its file as it is now ("" where that cannot be read)."""
    return [replace(row, sha256=content_digest(row.path)) for row in rows]


def read_every_image(
    rows: Sequence[Row], spec: InputSpec, *, cache: Path, progress: Progress
) -> tuple[tuple[Row, ...], NDArray[np.uint8]]:
    """The rows, which have digests, and their grey images (n, height, width), where none may be left out.

    Raises as `read_images`, and UsageProblem (data_unreadable) naming the first image that cannot be read.
    """
    found = read_images(rows, spec, cache=cache, progress=progress)
    for origin, sentence in found.left_out:
        raise UsageProblem(reason("data_unreadable", path=origin, detail=sentence))
    return found.rows, found.images[..., 0]


_Stored = tuple[NDArray[np.uint8], NDArray[np.uint8], dict[str, str]]
"""Images, shares of lung (none without a finder), and what is wrong with which image."""
_Prepared = tuple[NDArray[np.uint8], NDArray[np.uint8]]
_READING: Final = 7  # another number reads all images again


@dataclass(frozen=True, eq=False, slots=True)
class _Reading:
    """The settings by which each image is read."""

    spec: InputSpec
    shrink_to: int
    finder: LungFinder | None
    accepted: HeaderRules | None

    def prepared(self, image: Image, header: ImageHeader) -> _Prepared:
        """Return the network's input for an image, and the share of lung in its cells."""
        if self.shrink_to:
            image = _shrunk(image, self.shrink_to)
        none = np.zeros((CELLS, CELLS), np.uint8)
        if self.finder is None:
            return to_tensor(image, self.spec).values[0], none
        says_chest = self.accepted is not None and says_frontal_chest(header, self.accepted)
        lungs, (rows, columns) = self.finder.find(image, says_chest=says_chest), image.size
        place = partial(lungs.box, rows=rows, columns=columns, margin=self.spec.crop_margin)
        box = place(crop=self.spec.crop) if self.spec.crop != "none" else None
        tensor = to_tensor(image, self.spec, box=box)
        shares = lung_shares(lungs, tensor.pixel_map, of=(self.spec.height, self.spec.width))
        return tensor.values[0], shares


def _read_all(rows: Sequence[Row], reading: _Reading, progress: Progress) -> _Stored:
    spec, count = reading.spec, len(rows)
    images = np.zeros((count, spec.height, spec.width, spec.channels), np.uint8)
    lungs = np.zeros((count if reading.finder else 0, CELLS, CELLS), np.uint8)
    problems = dict[str, str]()
    for index, row in enumerate(rows):
        found = _read_one(row, reading)
        if isinstance(found, Reason):
            problems[str(index)] = found.text
        else:
            images[index], shares = found
            lungs[index : index + 1] = shares
        progress("images", index + 1, count)
    return images, lungs, problems


def _read_one(row: Row, reading: _Reading) -> _Prepared | Reason:
    ref = ImageRef(path=row.path)
    try:
        file = ImageFile(ref)
        if file.content_sha256 != row.sha256:
            raise UsageProblem(reason("data_changed", path=row.path))
        image = file.image()
    except (Unreadable, Unusable) as problem:
        return problem.reason
    with suppress(Unreadable, Unusable):  # of several images it says nothing
        ref = file.identified()
    return check_pixels(image) or reading.prepared(image, ref.header)


def _shrunk(image: Image, side: int) -> Image:
    small = to_tensor(image, InputSpec(height=side, width=side, intensity="as_displayed"))
    return Image(pixels=small.values[0, :, :, 0])


def _key(rows: Sequence[Row], spec: InputSpec, shrink_to: int, finder: Path | None) -> str:
    """Return a key that changes with a file's content, the list of files, the input or the lung-field pack."""
    return digest(
        spec, shrink_to, [row.sha256 for row in rows], content_digest(finder / "manifest.json") if finder else ""
    )


def _store(path: Path, key: str, stored: _Stored) -> None:
    images, lungs, problems = stored
    facts = json.dumps({"key": key, "problems": problems})
    save_arrays(path, {"images": images, "lungs": lungs, "facts": np.frombuffer(facts.encode(), np.uint8)})


def _load(path: Path, key: str) -> _Stored | None:
    if not path.is_file():
        return None
    with arrays_in(path) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        if facts["key"] != key:
            return None
        return arrays["images"], arrays["lungs"], facts["problems"]

"""The images of a data set, read once by the decoder and preprocessing of screening, and stored in the run folder.

A file is identified by the SHA-256 of its content, which is computed again only if the file has changed. If the recipe
names a lung-field pack, the lungs are found by the code that screening uses.
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

from fieldray.domain.image import CoordinateMap, Image, ImageHeader, ImageRef
from fieldray.domain.intended_use import header_says_frontal_chest
from fieldray.domain.lungs import LungFields
from fieldray.domain.mask import cell_edges, interval_overlaps
from fieldray.domain.model import HeaderRules, InputSpec
from fieldray.errors import Unreadable, UnsuitableImage, UsageProblem
from fieldray.imaging.preprocess import to_network_input
from fieldray.imaging.quality import check_pixels
from fieldray.imaging.reading import ImageFile
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray.packs.verified import read_pack
from fieldray.reasons import Reason, reason
from fieldray_adapt.data.layouts import Row, read_source
from fieldray_adapt.files import digest, file_sha256, open_arrays, raise_if_damaged, save_arrays, write_atomically
from fieldray_adapt.recipes.shared import Source
from fieldray_adapt.run import Progress

LUNG_GRID_SIDE: Final = 64
"""The number of rows, and of columns, of the grid that stores for each image which share of a cell is lung."""


class LungFinder:
    """Finds the lungs in images, with the lung-field pack in `folder`.

    Raises PackProblem if the pack cannot be read, and UsageProblem (`recipe_key`) if the pack is no lung-field pack.
    """

    def __init__(self, folder: Path) -> None:
        self._model = model = read_pack(folder).model
        if model.manifest.lung_rules is None:
            raise UsageProblem(reason("recipe_key", key="lungs", detail="must name a pack that finds the lungs"))
        spec = NetworkSpec.from_manifest(model.manifest)
        self._network = Network(model.files["litert"], spec, runtime=load_runtime(), threads=1)

    def find(self, image: Image, *, header_says_chest: bool = False) -> LungFields:
        """Return the lungs of an image, in pixels of the image file. Raises BackendProblem.

        `header_says_chest` is whether the header of the file describes a frontal chest X-ray.
        """
        from fieldray.workers.image_worker import find_lungs_in_image  # loads the runtime of the networks

        return find_lungs_in_image(image, self._model, self._network.run, header_says_chest=header_says_chest)


def lung_share_grid(lungs: LungFields, pixel_map: CoordinateMap, *, input_size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the share of lung in each cell of a grid over the network's input.

    The shares are (LUNG_GRID_SIDE, LUNG_GRID_SIDE) uint8: 0 for no lung, 255 for a cell that is all lung.

    Parameters
    ----------
    lungs
        The lungs that were found in the image.
    pixel_map
        Maps pixels of the network's input to the image.
    input_size
        Height and width of the network's input, in pixels.
    """
    cells = pixel_map.for_cells((LUNG_GRID_SIDE, LUNG_GRID_SIDE), input_size=input_size)
    down, across = cell_edges(cells, (LUNG_GRID_SIDE, LUNG_GRID_SIDE))
    mask = lungs.mask_with_lung_region
    lung_down, lung_across = cell_edges(lungs.cells_to_image, mask.shape)
    inside = interval_overlaps(down, lung_down) @ mask.astype(np.float64) @ interval_overlaps(across, lung_across).T
    shares = np.rint(255 * inside / (cells.row_scale * cells.column_scale)).clip(0, 255)
    return np.asarray(shares, np.uint8)


IMAGE_DIGESTS_FILE_NAME: Final = "digests.json"
"""The name of the file that stores the SHA-256 of each image file."""


def read_rows(sources: Iterable[Source], *, folder: Path) -> list[Row]:
    """Read the rows of all sources, each with the SHA-256 of its file ("" if the file cannot be read).

    Parameters
    ----------
    folder
        The folder that stores the digests. A stored digest is used while size, times and inode of the file are
        unchanged.

    Raises StorageProblem, and the exceptions of `layouts.read_source`.
    """
    rows, path = [row for source in sources for row in read_source(source)], folder / IMAGE_DIGESTS_FILE_NAME
    before: dict[str, list[Any]] = {}
    if path.is_file():
        with raise_if_damaged(path):
            before = dict(json.loads(path.read_text(encoding="utf-8")))
    known = dict(before)
    digests = [_digest_of(row.path, known) for row in rows]
    if known != before:
        write_atomically(path, json.dumps(known).encode())
    return [replace(row, sha256=found) for row, found in zip(rows, digests, strict=True)]


def rows_digest(rows: Sequence[Row]) -> str:
    """Return a digest of the rows, in order, and of the contents of their files. Paths do not change the digest."""
    return digest([replace(row, path=Path(), origin="") for row in rows])


def _digest_of(path: Path, cached: dict[str, list[Any]]) -> str:
    """Return the SHA-256 of a file, from `cached` if the file has not changed; "" if the file cannot be read.

    A new digest is added to `cached`.
    """
    try:
        facts = path.stat()
    except OSError:
        return ""
    state = [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]
    kept = cached.get(str(path))
    if kept is not None and kept[:-1] == state:
        return str(kept[-1])
    if found := file_sha256(path):
        cached[str(path)] = [*state, found]
    return found


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ImageSet:
    """The images of a data set that could be read, with their table rows.

    Attributes
    ----------
    rows
        The table row of each image.
    images
        The inputs of the network, (n, height, width, channels) uint8.
    left_out_reasons
        Origin and reason of each image that could not be read or is not suitable.
    lung_share_grids
        The share of lung in each cell of the input, (n, LUNG_GRID_SIDE, LUNG_GRID_SIDE) uint8, 255 for all lung. None
        without a lung-field pack.
    """

    rows: tuple[Row, ...]
    images: NDArray[np.uint8]
    left_out_reasons: tuple[tuple[str, str], ...]
    lung_share_grids: NDArray[np.uint8] | None = None


def read_images(
    rows: Sequence[Row],
    spec: InputSpec,
    *,
    cache: Path,
    progress: Progress,
    shrink_to: int = 0,
    lung_pack: Path | None = None,
    header_rules: HeaderRules | None = None,
) -> ImageSet:
    """Read and preprocess the image of each row, or load all images from the file `cache` if no image has changed.

    Parameters
    ----------
    rows
        Table rows with the SHA-256 of their files, as `read_rows` returns them.
    spec
        The size and format of the network's input.
    shrink_to
        Each image is first shrunk to a square of this side in pixels. 0: no image is shrunk.
    lung_pack
        The folder of the lung-field pack. Needed to crop images to the lungs, and to measure the share of lung.
    header_rules
        The header rules of the pack. An image whose header fulfils the rules counts as a chest X-ray in the search for
        the lungs.

    Raises
    ------
    UsageProblem
        data_none_readable if no image could be read, data_changed if a file does not have the SHA-256 of its row.
    PackProblem, StorageProblem
    """
    key = digest(_key(rows, spec, shrink_to, lung_pack), header_rules, _READING)
    stored = _load(cache, key)
    if stored is None:
        stored = _read_all(
            rows, _Reading(spec, shrink_to, LungFinder(lung_pack) if lung_pack else None, header_rules), progress
        )
        _store(cache, key, stored)
    images, lungs, problems = stored
    kept = [index for index in range(len(rows)) if str(index) not in problems]
    if not kept:
        raise UsageProblem(reason("data_none_readable", path=rows[0].path, detail=problems["0"]))
    return ImageSet(
        rows=tuple(rows[index] for index in kept),
        images=images[kept] if len(kept) < len(rows) else images,
        left_out_reasons=tuple((rows[int(index)].origin, sentence) for index, sentence in problems.items()),
        lung_share_grids=lungs[kept] if lung_pack else None,
    )


def add_digests(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with the current SHA-256 of their files ("" if a file cannot be read)."""
    return [replace(row, sha256=file_sha256(row.path)) for row in rows]


def read_images_or_fail(
    rows: Sequence[Row], spec: InputSpec, *, cache: Path, progress: Progress
) -> tuple[tuple[Row, ...], NDArray[np.uint8]]:
    """Read grey images, of which none may be unreadable. Returns the rows and the images (n, height, width) uint8.

    The parameters are those of `read_images`. Raises UsageProblem (data_unreadable) for the first unreadable image, and
    the exceptions of `read_images`.
    """
    found = read_images(rows, spec, cache=cache, progress=progress)
    for origin, sentence in found.left_out_reasons:
        raise UsageProblem(reason("data_unreadable", path=origin, detail=sentence))
    return found.rows, found.images[..., 0]


_Stored = tuple[NDArray[np.uint8], NDArray[np.uint8], dict[str, str]]
"""The content of a stored image set: images, shares of lung, and the problem of each unreadable image by its index.

Without a lung-field pack, the array of the shares of lung is empty.
"""
_Prepared = tuple[NDArray[np.uint8], NDArray[np.uint8]]
_READING: Final = 7
"""Version of the code that reads images. A new number makes every run read its images again."""


@dataclass(frozen=True, eq=False, slots=True)
class _Reading:
    """The settings for reading images: input format, square to shrink to, lung finder and header rules."""

    spec: InputSpec
    shrink_to: int
    finder: LungFinder | None
    accepted: HeaderRules | None

    def prepared(self, image: Image, header: ImageHeader) -> _Prepared:
        """Return the network's input for an image, and the share of lung in each cell of the input."""
        if self.shrink_to:
            image = _shrunk(image, self.shrink_to)
        none = np.zeros((LUNG_GRID_SIDE, LUNG_GRID_SIDE), np.uint8)
        if self.finder is None:
            return to_network_input(image, self.spec).values[0], none
        header_says_chest = self.accepted is not None and header_says_frontal_chest(header, self.accepted)
        lungs, (rows, columns) = self.finder.find(image, header_says_chest=header_says_chest), image.size
        place = partial(lungs.crop_box, rows=rows, columns=columns, margin=self.spec.crop_margin)
        box = place(crop=self.spec.crop) if self.spec.crop != "none" else None
        tensor = to_network_input(image, self.spec, box=box)
        shares = lung_share_grid(lungs, tensor.input_to_image, input_size=(self.spec.height, self.spec.width))
        return tensor.values[0], shares


def _read_all(rows: Sequence[Row], reading: _Reading, progress: Progress) -> _Stored:
    spec, count = reading.spec, len(rows)
    images = np.zeros((count, spec.height, spec.width, spec.channels), np.uint8)
    lungs = np.zeros((count if reading.finder else 0, LUNG_GRID_SIDE, LUNG_GRID_SIDE), np.uint8)
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
        image = file.decode_image()
    except (Unreadable, UnsuitableImage) as problem:
        return problem.reason
    with suppress(Unreadable, UnsuitableImage):  # a file with several images keeps the empty header
        ref = file.identified_ref()
    return check_pixels(image) or reading.prepared(image, ref.header)


def _shrunk(image: Image, side: int) -> Image:
    small = to_network_input(image, InputSpec(height=side, width=side, intensity="as_displayed"))
    return Image(pixels=small.values[0, :, :, 0])


def _key(rows: Sequence[Row], spec: InputSpec, shrink_to: int, finder: Path | None) -> str:
    """Return a digest of everything that decides how images are read, to recognise a stored image set.

    The digest covers the contents of all image files, the format of the network's input, and the lung-field pack.
    """
    return digest(
        spec, shrink_to, [row.sha256 for row in rows], file_sha256(finder / "manifest.json") if finder else ""
    )


def _store(path: Path, key: str, stored: _Stored) -> None:
    images, lungs, problems = stored
    facts = json.dumps({"key": key, "problems": problems})
    save_arrays(path, {"images": images, "lungs": lungs, "facts": np.frombuffer(facts.encode(), np.uint8)})


def _load(path: Path, key: str) -> _Stored | None:
    if not path.is_file():
        return None
    with open_arrays(path) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        if facts["key"] != key:
            return None
        return arrays["images"], arrays["lungs"], facts["problems"]

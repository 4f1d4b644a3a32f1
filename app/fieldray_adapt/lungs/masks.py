"""List image files with their lung masks, and find all problems in these files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.data.layouts import ProblemCallback, Row, table_rows
from fieldray_adapt.files import file_sha256
from fieldray_adapt.lungs.recipe import MaskSource

_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".dcm", ".dicom"})
_NEAR_AN_END: Final = 0.16
"""How far a mask pixel may be from black or white, as a share of the brightest value. JPEG files blur masks."""
_MAX_GREY_SHARE: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMaskPair:
    """The file of an image and the file of the image's lung mask.

    Attributes
    ----------
    table_path, line
        The table that names the two files, and the line in the table. `line` is 0 without a table.
    is_only_evaluated
        Whether the mask is used only to evaluate networks, and not to train them.
    """

    row: Row
    mask_path: Path
    table_path: Path
    line: int
    is_only_evaluated: bool = False

    def problem(self, detail: str) -> Reason:
        """Return a reason that names the table, the line and a problem of this image and mask.

        `detail` is the problem in words.
        """
        if self.line:
            return reason("data_row", path=self.table_path, line=self.line, detail=detail)
        return reason("data_unreadable", path=self.row.path, detail=detail)


def find_pairs(source: MaskSource) -> tuple[list[ImageMaskPair], list[Reason]]:
    """Return the images of one source with their masks, and all problems of the source.

    Problems are an unreadable table, a missing file, an image named twice, and an unusable mask. An unusable mask is
    empty, grey (such as an X-ray in place of a mask), white in all corners, or not of the size of the image.
    """
    wrong: list[Reason] = []
    pairs = list_pairs(source, wrong.append)
    if not pairs and not wrong:
        wrong.append(reason("data_empty", name=source.name, path=source.path))
    wrong += [found for pair in pairs if (found := _problem_of(pair))]
    return pairs, wrong


def list_pairs(source: MaskSource, on_problem: ProblemCallback = lambda _: None) -> list[ImageMaskPair]:
    """List the images of one source with their masks. Reads the source's table or folder, but no image.

    `on_problem` is called with each problem of the table or folder.
    """
    read = _of_table if source.layout == "table" else _of_folders
    return list(read(source, on_problem))


def find_repeated_images(pairs: Sequence[ImageMaskPair]) -> Iterator[Reason]:
    """Yield a reason for each image that is listed twice, with an equal path or in a file with equal content.

    An image that is listed twice could be in training and in test.
    """
    seen: dict[str, ImageMaskPair] = {}
    for pair in pairs:
        digest = file_sha256(pair.row.path) or str(pair.row.path)
        first = seen.setdefault(digest, pair)
        if first is pair:
            continue
        if first.row.person_id != pair.row.person_id or first.is_only_evaluated != pair.is_only_evaluated:
            detail = f"the image {pair.row.path.name} is listed twice, first as {first.row.origin} of the patient "
            yield pair.problem(f"{detail}{first.row.patient}, so it would be in two parts of the split")
        else:
            yield pair.problem(f"the image {pair.row.path.name} is listed twice, first as {first.row.origin}")


def read_mask(path: Path) -> NDArray[np.bool_]:
    """Read a lung mask from an image file. Returns (rows, columns) bool, True for lung (white).

    Raises OSError or ValueError if the file cannot be read.
    """
    values = _values(path)
    mask: NDArray[np.bool_] = values > values.max() // 2
    return mask


def mask_share_grid(mask: NDArray[np.bool_], side: int) -> NDArray[np.uint8]:
    """Return the share of lung in each cell of a grid over a mask: (side, side) uint8, 0 for none and 255 for all."""
    return np.asarray(Image.fromarray(np.uint8(255) * mask).resize((side, side), Image.Resampling.BOX))


def _values(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as drawn:
        return np.asarray(drawn.convert("L"))


def _of_table(source: MaskSource, wrong: ProblemCallback) -> Iterator[ImageMaskPair]:
    for line, cells in table_rows(source, wrong, ("film", "mask", "patient_id")):
        row = Row(
            path=source.path.parent / cells["film"],
            source=source.name,
            classes=frozenset(),
            patient=cells["patient_id"],
            origin=f"{source.path.name}, line {line}",
        )
        mask = source.path.parent / cells["mask"]
        yield ImageMaskPair(
            row=row, mask_path=mask, table_path=source.path, line=line, is_only_evaluated=source.evaluate_only
        )


def _of_folders(source: MaskSource, wrong: ProblemCallback) -> Iterator[ImageMaskPair]:
    assert source.masks is not None  # required by the rules of the recipe
    for folder in (source.path, source.masks):
        if not folder.is_dir():
            wrong(reason("data_unreadable", path=folder, detail="the folder does not exist"))
            return
    masks = {path.stem: path for path in sorted(source.masks.iterdir())}
    for path in sorted(source.path.iterdir()):
        if path.suffix.lower() not in _SUFFIXES:
            continue
        row = Row(path=path, source=source.name, classes=frozenset(), patient=path.stem, origin=path.name)
        mask = masks.get(path.stem, source.masks / f"{path.stem}.png")
        yield ImageMaskPair(
            row=row, mask_path=mask, table_path=source.path, line=0, is_only_evaluated=source.evaluate_only
        )


def _problem_of(pair: ImageMaskPair) -> Reason | None:
    for path, what in ((pair.row.path, "the image"), (pair.mask_path, "the mask")):
        if not path.is_file():
            return pair.problem(f"{what} {path.name} does not exist")
    try:
        values, size = _values(pair.mask_path), _size(pair.row.path)
    except (OSError, ValueError) as error:
        return pair.problem(f"the mask {pair.mask_path.name} cannot be read ({error})")
    if detail := _fault(values, size):
        return pair.problem(f"the mask {pair.mask_path.name} {detail}")
    return None


def _size(path: Path) -> tuple[int, int] | None:
    """Return rows and columns of a PNG or JPEG image; None for other files, such as DICOM, which are read later."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        return None
    with Image.open(path) as drawn:
        return drawn.height, drawn.width


def _fault(values: NDArray[np.uint8], size: tuple[int, int] | None) -> str:
    """Return the fault in the pixels of a mask, as the end of a sentence; "" for a usable mask.

    `size` is the rows and columns of the image; None if unknown.
    """
    rows, columns = values.shape
    if size is not None and size != (rows, columns):
        return f"has {columns} x {rows} pixels, but the image has {size[1]} x {size[0]}"
    highest = int(values.max())
    if not highest:
        return "is empty (it shows no lung)"
    between = (values > highest * _NEAR_AN_END) & (values < highest * (1 - _NEAR_AN_END))
    if between.mean() > _MAX_GREY_SHARE:
        return "is not black and white; perhaps image and mask are exchanged"
    if values[:: max(1, rows - 1), :: max(1, columns - 1)].min() > highest * (1 - _NEAR_AN_END):
        return "is white in all four corners; perhaps the mask is inverted"
    return ""


def raise_first_problem(problems: Sequence[Reason]) -> None:
    """Raise UsageProblem with the first of `problems`; do nothing if `problems` is empty."""
    if problems:
        raise UsageProblem(problems[0])

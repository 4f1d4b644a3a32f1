"""What `--maps` writes for each image: the lungs, the class map, and both laid over the image.

    NAME.lungs.png    the mask of the lungs: one bit per pixel, of the image's size
    NAME.map.npy      the class map of the deciding label: float32 logits (rows, columns)
    NAME.map.json     where in the image it lies, and at which logit the finding begins
    NAME.overlay.png  the image, its longer side at most 1024 pixels, with heat map and outline

NAME is the file's name with its suffix. Folders are those of the images, and a zip file becomes a folder, so that two
images of one name do not meet.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngInfo

from fieldray.domain.finding import Outcome, Screened, lungs_of
from fieldray.domain.heat_map import shown_map
from fieldray.domain.image import ShownImage
from fieldray.domain.model import InputSpec, Manifest
from fieldray.domain.study import ImageRef
from fieldray.reports.content import NOTICE, exact_score, place
from fieldray.reports.outputs import NPY_START, require_inside, write_own
from fieldray.reports.picture import picture_of

_LONGEST_SIDE: Final = 1024
# What Windows allows in no name, and what a zip file may hold all the same.
_NOT_IN_NAMES: Final = re.compile('[\\x00-\\x1f\\x7f<>:"/\\\\|?*]')
_DEVICES: Final = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
_LONGEST_NAME: Final = 200  # bytes: of the 255 that systems allow, some are for the suffix and for a number


class MapNames:
    """Where the maps of each image of a run go. One name for one image: what would meet gets a number.

    Parameters
    ----------
    folder
        Of the outputs.
    paths
        What was screened: folders are kept from the one that all of it lies in.
    """

    def __init__(self, folder: Path, paths: Sequence[Path]) -> None:
        self._folder = folder
        self._top = _common_path(paths)
        self._taken: set[str] = set()

    def stem(self, ref: ImageRef) -> Path:
        """Folder and NAME for an image, each time another one. Raises StorageProblem where a link leads elsewhere."""
        parts = [*_parts_below(ref.path, self._top), *(re.split(r"[/\\]", ref.member) if ref.member else [])]
        names = [_file_name(part) for part in parts if part not in ("", ".", "..")] or ["image"]
        if ref.header.number_of_frames > 1:
            names[-1] += f"#{ref.frame}"
        free, number = self._folder.joinpath(*names), 1
        while str(free).casefold() in self._taken:
            number += 1
            free = self._folder.joinpath(*names[:-1], f"{names[-1]}~{number}")
        self._taken.add(str(free).casefold())
        require_inside(free.parent, self._folder)
        return free


def _common_path(paths: Sequence[Path]) -> Path | None:
    """The path that all paths begin with, which is a file if there is no other; None on several drives."""
    try:
        return Path(os.path.commonpath(paths))
    except ValueError:
        return None


def _parts_below(path: Path, top: Path | None) -> Sequence[str]:
    if path == top:
        return (path.name,)
    if top is not None and path.is_relative_to(top):
        return path.relative_to(top).parts
    return path.parts


def _file_name(part: str) -> str:
    """A name that every system takes, like the one that it stands for."""
    name = _NOT_IN_NAMES.sub("_", part)
    if len(data := name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
        name = data[:_LONGEST_NAME].decode("utf-8", "ignore")
    name = name.rstrip(" .") or "_"
    return f"_{name}" if _DEVICES.match(name) else name


# ---- what is written


def overlay_spec(rows: int, columns: int) -> InputSpec:
    """How an image of this size is read for its overlay."""
    share = min(1.0, _LONGEST_SIDE / max(rows, columns))
    height, width = (max(8, round(side * share)) for side in (rows, columns))
    return InputSpec(height=height, width=width, intensity="as_displayed")


def write_lungs(stem: Path, outcome: Outcome, *, inputs: Sequence[Path]) -> bool:
    """Write the mask of the lungs, where there is one. Raises UsageProblem, StorageProblem."""
    lungs, facts = lungs_of(outcome), outcome.facts
    if lungs is None or not lungs.mask.any():
        return False
    mask = lungs.mask_of_image(rows=facts.rows, columns=facts.columns)
    write_own(_beside(stem, ".lungs.png"), "png", png_bytes(PIL.Image.fromarray(mask)), inputs=inputs)
    return True


def write_class_map(
    stem: Path, outcome: Screened, manifest: Manifest, *, inputs: Sequence[Path], lungs_pack: str = ""
) -> None:
    """Write the class map of the deciding label and what it means, where there is one. Raises as `write_lungs`."""
    shown = shown_map(outcome, manifest)
    if shown is None:
        return
    finding, logits, facts = shown.finding, shown.logits, outcome.facts
    about = {
        "report": "class map",
        "notice": NOTICE,
        "path": place(outcome.ref),
        "pack": outcome.pack_name,
        "model_sha256": outcome.model_sha256,
        "lungs_pack": lungs_pack or None,
        "label": finding.label,
        "score": exact_score(finding),
        "operating_point": finding.point.name if finding.point else None,
        "threshold": finding.point.threshold if finding.point else None,
        "scale": {
            "unit": "logit",
            "none": shown.zero,
            "strongest": shown.zero + shown.span,
        },
        "box": dict(zip(("left", "top", "width", "height"), shown.region, strict=True)),
        "rows": logits.shape[0],
        "columns": logits.shape[1],
        "image_rows": facts.rows,
        "image_columns": facts.columns,
    }
    text = json.dumps(about, indent=1) + "\n"
    write_own(_beside(stem, ".map.json"), "json", text.encode(), inputs=inputs)
    write_own(_beside(stem, ".map.npy"), "map", npy_bytes(logits), inputs=inputs)


def write_overlay(
    stem: Path, outcome: Screened, manifest: Manifest, *, grey: NDArray[np.uint8], inputs: Sequence[Path]
) -> None:
    """Write the image with heat map and outline; `grey` is the image at `overlay_spec`. Raises as `write_lungs`."""
    shown = ShownImage(pixels=grey, rows=outcome.facts.rows, columns=outcome.facts.columns)
    picture = picture_of(outcome, shown, manifest)
    write_own(_beside(stem, ".overlay.png"), "png", png_bytes(picture), inputs=inputs)


def png_bytes(picture: PIL.Image.Image, *, comment: str = "") -> bytes:
    """With the program's name in it, by which it is known again, and perhaps a sentence about it."""
    words, stream = PngInfo(), io.BytesIO()
    words.add_text("Software", "fieldray")
    if comment:
        words.add_text("Comment", comment)
    picture.save(stream, format="PNG", pnginfo=words)
    return stream.getvalue()


def npy_bytes(numbers: NDArray[np.float32]) -> bytes:
    """As `numpy.save` writes it, but for the length of the header."""
    values: NDArray[Any] = np.ascontiguousarray(numbers, "<f4")
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {values.shape}, }}".encode()
    return NPY_START[:10] + header.ljust(512 - 11) + b"\n" + values.tobytes()


def _beside(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)

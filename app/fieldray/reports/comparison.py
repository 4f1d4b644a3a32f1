"""What `fieldray compare` writes: the prior as warped, the overlay, the displacement, and one JSON object.

Nothing is written of a pair that is not comparable, and what an earlier comparison left in the folder is removed: it
would be taken for this one's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fieldray.domain.comparison import (
    CHANGE_SHOWN,
    DENSER,
    FRAME_SIDE,
    LESS_DENSE,
    Aligned,
    FramedImage,
    PairComparison,
    change_colours,
    comparison_json,
)
from fieldray.persistence import storage_problem
from fieldray.reasons import Reason, reason
from fieldray.reports.content import NOTICE
from fieldray.reports.maps import npy_bytes, png_bytes
from fieldray.reports.outputs import Kind, require_own, write_own

WARPED_PRIOR: Final = "warped_prior.png"
OVERLAY: Final = "overlay.png"
DISPLACEMENT: Final = "displacement.npy"
_FILES: Final[Mapping[str, Kind]] = {WARPED_PRIOR: "png", OVERLAY: "png", DISPLACEMENT: "map"}
_OPACITY: Final = 0.75
_STRIP_PX: Final = 56
_SWATCH_PX: Final = 12


def notice() -> str:
    """What stands in every output."""
    return f"{NOTICE} {reason('compare_notice').text}"


def write_comparison(folder: Path, comparison: PairComparison, *, inputs: Sequence[Path]) -> tuple[Path, ...]:
    """Write what there is to show into a folder, which is made if absent; the files.

    Raises UsageProblem, StorageProblem.
    """
    if comparison.aligned is None or comparison.current is None:
        _remove_earlier(folder, inputs=inputs)
        return ()
    aligned, comment = comparison.aligned, notice()
    contents = {
        WARPED_PRIOR: png_bytes(Image.fromarray(aligned.warped_prior), comment=comment),
        OVERLAY: png_bytes(overlay(comparison.current, aligned), comment=comment),
        DISPLACEMENT: npy_bytes(aligned.alignment.displacement),
    }
    for name, data in contents.items():
        write_own(folder / name, _FILES[name], data, inputs=inputs)
    return tuple(folder / name for name in contents)


def require_files(folder: Path, *, inputs: Sequence[Path]) -> None:
    """Refuse a folder in which a file of another origin has the name of an output. Raises UsageProblem."""
    for name, kind in _FILES.items():
        require_own(folder / name, kind, inputs=inputs)


def _remove_earlier(folder: Path, *, inputs: Sequence[Path]) -> None:
    require_files(folder, inputs=inputs)
    for name in _FILES:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise storage_problem(error, folder / name) from error


def json_text(comparison: PairComparison, *, doubts: Sequence[Reason] = ()) -> str:
    """The JSON object, as `--json` writes it. `doubts`: what a person must know of the pair."""
    said = [{"code": doubt.code, "text": doubt.text} for doubt in doubts]
    values: Mapping[str, Any] = {**comparison_json(comparison), "doubts": said, "notice": notice()}
    return json.dumps(values, indent=1) + "\n"


def overlay(current: FramedImage, aligned: Aligned) -> Image.Image:
    """The current image with the difference in colours and boxes around its regions; below it what they mean."""
    picture = Image.new("RGB", (FRAME_SIDE, FRAME_SIDE + _STRIP_PX))
    picture.paste(Image.fromarray(current.pixels).convert("RGB"))
    colours = change_colours(aligned.shown_change)
    shares = np.rint(colours[:, :, 3] * _OPACITY).astype(np.uint8)
    picture.paste(Image.fromarray(np.ascontiguousarray(colours[:, :, :3])), (0, 0), Image.fromarray(shares))
    draw = ImageDraw.Draw(picture)
    for region in aligned.regions:
        box = region.box
        edges = (box.left - 2, box.top - 2, box.left + box.columns + 1, box.top + box.rows + 1)
        draw.rectangle(edges, outline=DENSER if region.is_denser else LESS_DENSE)
    _add_legend(draw)
    return picture


def _add_legend(draw: ImageDraw.ImageDraw) -> None:
    font, top = ImageFont.load_default(11), FRAME_SIDE + 5
    texts = ((DENSER, "denser (whiter) than in the prior"), (LESS_DENSE, "less dense than in the prior"))
    for place, (colour, text) in enumerate(texts):
        left = 6 + place * 220
        draw.rectangle((left, top, left + _SWATCH_PX, top + _SWATCH_PX), fill=colour)
        draw.text((left + _SWATCH_PX + 6, top - 1), text, font=font, fill=(230, 230, 230))
    words = (f"From {CHANGE_SHOWN:g} times the noise on. {NOTICE}", reason("compare_notice").text)
    for line, text in enumerate(words):
        draw.text((6, top + 18 + 15 * line), text, font=font, fill=(230, 230, 230))

"""An image as the person saw it: grey levels, the heat map over them, the lungs' outline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fieldray.domain import heat_map
from fieldray.domain.finding import Outcome, lungs_of
from fieldray.domain.heat_map import OUTLINE, ShownMap, shown_map
from fieldray.domain.image import ShownImage
from fieldray.domain.model import Manifest

Colours = NDArray[np.uint8]
Outlines = Sequence[Sequence[tuple[float, float]]]

OPACITY: Final = 0.45  # as the window shows a heat map where nobody has changed it
_OUTLINE_SHARE: Final = 1 / 400  # of the longer side
_STEPS: Final = 256  # of strength: more than the eye tells apart


def picture_of(outcome: Outcome, shown: ShownImage, manifest: Manifest | None) -> Image.Image:
    """The image in colours (RGB), at the size of `shown`."""
    picture = Image.fromarray(shown.pixels).convert("RGB")
    found = _map(outcome, manifest)
    if found is not None:
        _lay_over(picture, found, shown)
    lungs = lungs_of(outcome)
    if lungs is not None:
        _draw_outlines(picture, lungs.outlines(), shown)
    return picture


@lru_cache(maxsize=4)
def legend(width: int, height: int) -> Image.Image:
    """The colours of the heat map from weak to strong, over a middle grey; for reading only, as all get the same."""
    ramp = heat_map.colours(np.linspace(0, 1, width, dtype=np.float32)[None, :].repeat(height, axis=0))
    under = Image.new("RGB", (width, height), (96, 96, 96))
    under.paste(Image.fromarray(np.ascontiguousarray(ramp[:, :, :3])), mask=Image.fromarray(_alpha(ramp, 1.0)))
    return under


def has_map(outcome: Outcome, manifest: Manifest | None) -> bool:
    """Whether a heat map is laid over the image."""
    return _map(outcome, manifest) is not None


def _map(outcome: Outcome, manifest: Manifest | None) -> ShownMap | None:
    """The heat map; None where there is none, or nothing of it speaks for the finding."""
    found = shown_map(outcome, manifest) if manifest else None
    return found if found is not None and found.strength.any() else None


def _lay_over(picture: Image.Image, found: ShownMap, shown: ShownImage) -> None:
    """Blend the colours into the region that they cover; what of it lies outside the image is left out.

    The strength is enlarged and then coloured, and only where there is some: far less work than to enlarge colours.
    """
    across, down = picture.width / shown.columns, picture.height / shown.rows
    left, top, width, height = found.region
    size = max(1, round(width * across)), max(1, round(height * down))
    strength = np.rint(heat_map.smooth(found.strength) * np.float32(_STEPS - 1)).astype(np.uint8)
    (first, last), (above, below) = _painted(strength.any(axis=0), size[0]), _painted(strength.any(axis=1), size[1])
    rows, columns = strength.shape
    cut = (first * columns / size[0], above * rows / size[1], last * columns / size[0], below * rows / size[1])
    steps = Image.fromarray(strength).resize((last - first, below - above), Image.Resampling.BILINEAR, box=cut)
    palette, opacities = _palette()
    mask = steps.point(opacities)
    steps.putpalette(palette)
    picture.paste(steps.convert("RGB"), (round(left * across) + first, round(top * down) + above), mask)


def _painted(has_strength: NDArray[np.bool_], pixels: int) -> tuple[int, int]:
    """From which to which pixel (exclusive) anything is seen of a row or column of cells, enlarged to `pixels`."""
    places, share = np.flatnonzero(has_strength), pixels / len(has_strength)
    if not len(places):
        return 0, 1
    reach = 1 + math.ceil(1 / share)  # a pixel has something of the cells around it, of more if it is wide
    first, last = int(places[0]) - reach, int(places[-1]) + 1 + reach
    return max(0, math.floor(first * share)), min(pixels, math.ceil(last * share))


@lru_cache(maxsize=1)
def _palette() -> tuple[bytes, list[int]]:
    """Of every step of strength: its colour (RGB), and its opacity over an image."""
    painted = heat_map.colours(np.linspace(0, 1, _STEPS, dtype=np.float32)[None, :])
    return painted[0, :, :3].tobytes(), _alpha(painted, OPACITY)[0].tolist()


def _alpha(colours: Colours, opacity: float) -> Colours:
    shares: Colours = np.rint(colours[:, :, 3] * np.float32(opacity)).astype(np.uint8)
    return shares


def _draw_outlines(
    picture: Image.Image, outlines: tuple[tuple[tuple[float, float], ...], ...], shown: ShownImage
) -> None:
    across, down = picture.width / shown.columns, picture.height / shown.rows
    width = max(1, round(max(picture.size) * _OUTLINE_SHARE))
    draw = ImageDraw.Draw(picture)
    for outline in outlines:
        points = [(x * across, y * down) for x, y in outline]
        draw.line([*points, points[0]], fill=OUTLINE, width=width, joint="curve")

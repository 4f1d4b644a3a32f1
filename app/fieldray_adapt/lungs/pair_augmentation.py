"""Random changes of an image and its mask together: what moves the image moves the mask, what recolours it does not.

Shift, zoom, stretch, rotation and the elastic part are one mesh of quadrilaterals, so that each pixel is interpolated
once. The elastic part follows Ronneberger 2015 (arXiv:1505.04597), section 3.1: random displacements on a coarse grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from fieldray_adapt.augmentation import (
    Augmentation,
    Blur,
    Brightness,
    Coarsen,
    Contrast,
    Gamma,
    Noise,
    Rotation,
    Scale,
    Shading,
    Shift,
    Stretch,
    augment,
)
from fieldray_adapt.tables import Key, require_ranges

Grey = NDArray[np.uint8]
_CELLS: Final = 8
_MARKS: Final = "LRAP"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairAugmentation:
    """How much at most, each drawn evenly from -x..x (or 0..x); all zeros change nothing."""

    shift: Shift = 0.0
    scale: Scale = 0.0
    stretch: Stretch = 0.0
    rotation_degrees: Rotation = 0.0
    elastic: Annotated[
        float, Key(doc="Standard deviation of the displacement of each knot of an 8 x 8 grid, as a share.", low=0)
    ] = 0.0
    gamma: Gamma = 0.0
    contrast: Contrast = 0.0
    brightness: Brightness = 0.0
    shading: Shading = 0.0
    blur_pixels: Blur = 0.0
    noise: Noise = 0.0
    coarsen: Coarsen = 0.0
    inversion: Annotated[float, Key(doc="Probability of the negative image.", low=0, high=1)] = 0.0
    opacities: Annotated[
        float,
        Key(doc="Probability of one to three soft light patches, as of infiltrates.", low=0, high=1),
    ] = 0.0
    letters: Annotated[float, Key(doc="Probability of letters near the border.", low=0, high=1)] = 0.0
    collimation: Annotated[float, Key(doc="Probability of black or white borders.", low=0, high=1)] = 0.0

    def __post_init__(self) -> None:
        require_ranges(self)

    @property
    def of_tone(self) -> Augmentation:
        """The part that leaves every pixel where it is, as a classifier's training has it."""
        names = ("gamma", "contrast", "brightness", "shading", "blur_pixels", "noise", "coarsen")
        return Augmentation(**{name: getattr(self, name) for name in names})


def augment_pair(
    image: Grey, mask: Grey, settings: PairAugmentation, *, generator: np.random.Generator
) -> tuple[Grey, Grey]:
    """A changed image (rows, columns) uint8 with its mask (rows, columns) uint8 of 0..255, moved alike."""
    mesh = _mesh(image.shape, settings, generator)
    return recolour(_moved(image, mesh), settings, generator=generator), _moved(mask, mesh)


def recolour(image: Grey, settings: PairAugmentation, *, generator: np.random.Generator) -> Grey:
    """A copy whose grey levels, sharpness, borders and letters differ; nothing moves."""
    image = augment(image, settings.of_tone, generator=generator)
    if settings.opacities and generator.random() < settings.opacities:
        image = _opacified(image, generator)
    if generator.random() < settings.letters:
        image = _lettered(image, generator)
    if generator.random() < settings.collimation:
        image = _collimated(image, generator)
    if generator.random() < settings.inversion:
        image = np.invert(image)
    return image


_Mesh = list[tuple[tuple[int, int, int, int], tuple[float, ...]]]


def _mesh(shape: tuple[int, ...], settings: PairAugmentation, generator: np.random.Generator) -> _Mesh:
    """Target boxes and the quadrilaterals of the source that fill them, as Pillow takes them."""
    rows, columns = shape
    angle = math.radians(generator.uniform(-1, 1) * settings.rotation_degrees)
    zoom, stretch = generator.uniform(-1, 1) * settings.scale, generator.uniform(-1, 1) * settings.stretch / 2
    shift = generator.uniform(-1, 1, 2) * settings.shift
    knots = np.stack(np.meshgrid(*[np.linspace(0, 1, _CELLS + 1)] * 2), axis=-1)  # (y, x) -> x, y in 0..1
    middle = knots - 0.5
    cosine, sine = math.cos(angle), math.sin(angle)
    turned = middle @ np.array([[cosine, sine], [-sine, cosine]]) * np.exp([zoom + stretch, zoom - stretch])
    elastic = generator.normal(0, 1, knots.shape) * settings.elastic
    source = (turned + 0.5 + shift + elastic) * (columns, rows)
    across, down = (np.linspace(0, side, _CELLS + 1).round().astype(int) for side in (columns, rows))
    return [
        (
            (int(across[x]), int(down[y]), int(across[x + 1]), int(down[y + 1])),
            (*source[y, x], *source[y + 1, x], *source[y + 1, x + 1], *source[y, x + 1]),
        )
        for y in range(_CELLS)
        for x in range(_CELLS)
    ]


def _moved(plane: Grey, mesh: _Mesh) -> Grey:
    picture = Image.fromarray(plane)
    return np.asarray(picture.transform(picture.size, Image.Transform.MESH, mesh, resample=Image.Resampling.BILINEAR))


def _opacified(image: Grey, generator: np.random.Generator) -> Grey:
    """One to three soft ellipses in the middle of the image, up to seven tenths of the way to white.

    The lungs stay where they were: a mask that follows only what is dark loses the part that is ill.
    """
    rows, columns = image.shape
    y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
    kept = np.ones(image.shape, np.float32)
    for _ in range(int(generator.integers(1, 4))):
        middle = generator.uniform((0.15, 0.1), (0.9, 0.9))
        reach = generator.uniform(0.04, 0.2, 2)
        distance = ((y / rows - middle[0]) / reach[0]) ** 2 + ((x / columns - middle[1]) / reach[1]) ** 2
        kept *= 1 - np.float32(generator.uniform(0.15, 0.7)) * np.exp(-(distance ** generator.uniform(1, 2.5)))
    return np.asarray(255 - (255 - image.astype(np.float32)) * kept, np.uint8)


def _lettered(image: Grey, generator: np.random.Generator) -> Grey:
    """A side mark or a line of digits, light or dark, within the outer fifth."""
    picture = Image.fromarray(image)
    rows, columns = image.shape
    text = "".join(generator.choice(list(_MARKS + "0123456789"), int(generator.integers(1, 7))))
    size = generator.uniform(0.04, 0.12) * rows
    place = [generator.uniform(0, 0.12), generator.uniform(0.78, 0.92)]
    left, top = columns * float(generator.choice(place)), rows * float(generator.uniform(0, 0.92))
    if generator.random() < 0.5:
        left, top = columns * float(generator.uniform(0, 0.9)), rows * float(generator.choice(place))
    grey = int(generator.choice([255, 230, 0]))
    ImageDraw.Draw(picture).text((left, top), text, fill=grey, font_size=size)
    return np.asarray(picture)


def _collimated(image: Grey, generator: np.random.Generator) -> Grey:
    """One to four borders of up to an eighth of the side, even in grey."""
    framed = image.copy()
    rows, columns = image.shape
    grey = int(generator.choice([0, 0, 0, 20, 255]))
    top, bottom, left, right = generator.uniform(0, 0.12, 4) * (generator.random(4) < 0.6)
    framed[: int(top * rows)] = grey
    framed[rows - int(bottom * rows) :] = grey
    framed[:, : int(left * columns)] = grey
    framed[:, columns - int(right * columns) :] = grey
    return framed

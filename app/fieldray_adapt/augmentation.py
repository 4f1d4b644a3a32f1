"""Random changes of training images that a radiograph may undergo without its meaning changing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from fieldray_adapt.tables import Key, require_ranges

Grey = NDArray[np.uint8]
_SHADING_KNOTS: Final = 4
_LEVELS: Final = np.linspace(0, 1, 256)


# Keys that the augmentation of images with masks (`lungs.pair_augmentation`) has as well.
Shift = Annotated[float, Key(doc="Shift, as a share of the side.", low=0, high=1)]
Scale = Annotated[float, Key(doc="Zoom, in powers of e.", low=0, high=1)]
Stretch = Annotated[float, Key(doc="Share by which height and width change against each other.", low=0, high=1)]
Rotation = Annotated[float, Key(doc="Rotation.", unit="degrees", low=0, high=45)]
Gamma = Annotated[float, Key(doc="Gamma, in powers of e.", low=0, high=2)]
Contrast = Annotated[float, Key(doc="Contrast, in powers of e.", low=0, high=2)]
Brightness = Annotated[float, Key(doc="Brightness, as a share of the range.", low=0, high=1)]
Shading = Annotated[
    float,
    Key(
        doc="A smooth field is added, up to this share of the range. Broad differences of grey, which often come "
        "from the archive and not from the lungs, then say little.",
        low=0,
        high=1,
    ),
]
Blur = Annotated[float, Key(doc="Standard deviation of a Gaussian blur, for half of the images.", unit="pixels", low=0)]
Noise = Annotated[float, Key(doc="Standard deviation of noise, as a share of the range.", low=0, high=1)]
Coarsen = Annotated[
    float, Key(doc="Probability of shrinking to between 48 pixels and the full side, and back.", low=0, high=1)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """How much at most, each drawn evenly from -x..x (or 0..x); all zeros change nothing."""

    shift: Shift = 0.0
    scale: Scale = 0.0
    stretch: Stretch = 0.0
    rotation_degrees: Rotation = 0.0
    flip: Annotated[
        float, Key(doc="Probability of a mirror image. The heart changes sides: keep it small.", low=0, high=1)
    ] = 0.0
    gamma: Gamma = 0.0
    contrast: Contrast = 0.0
    brightness: Brightness = 0.0
    shading: Shading = 0.0
    blur_pixels: Blur = 0.0
    noise: Noise = 0.0
    coarsen: Coarsen = 0.0
    cutout: Annotated[float, Key(doc="Largest side of one erased square, as a share.", low=0, high=1)] = 0.0

    def __post_init__(self) -> None:
        require_ranges(self)


Motion = tuple[float, float, float, float, float, float]
"""Angle in radians, zoom across and down, shift across and down as a share of the side, and 1 or, mirrored, -1."""


def augment(
    image: Grey, settings: Augmentation, *, generator: np.random.Generator, motion: Motion | None = None
) -> Grey:
    """One changed copy of a grey image (rows, columns) uint8, moved as `motion` says or by chance."""
    shifted = moved(image, motion or draw_motion(settings, generator))
    recoloured = np.take(_tone_table(settings, generator), shifted)
    return _spoiled(_shaded(recoloured, settings, generator), settings, generator)


def draw_motion(settings: Augmentation, generator: np.random.Generator) -> Motion:
    """How an image is moved, so that whatever belongs to it can be moved alike."""
    if not any((settings.shift, settings.scale, settings.stretch, settings.rotation_degrees, settings.flip)):
        return _STILL
    angle = math.radians(generator.uniform(-1, 1) * settings.rotation_degrees)
    zoom, stretch = (generator.uniform(-1, 1) * most for most in (settings.scale, settings.stretch / 2))
    shift_x, shift_y = generator.uniform(-1, 1, 2) * settings.shift
    mirror = -1.0 if generator.random() < settings.flip else 1.0
    return angle, math.exp(zoom + stretch), math.exp(zoom - stretch), float(shift_x), float(shift_y), mirror


_STILL: Final[Motion] = (0.0, 1.0, 1.0, 0.0, 0.0, 1.0)


def moved(image: Grey, motion: Motion) -> Grey:
    """An image (rows, columns) uint8, of whatever resolution, after a motion."""
    if motion == _STILL:
        return image
    rows, columns = image.shape
    angle, zoom_x, zoom_y, shift_x, shift_y, mirror = motion
    cosine, sine = math.cos(angle), math.sin(angle)
    matrix = (mirror * cosine * zoom_x, sine * zoom_y, -mirror * sine * zoom_x, cosine * zoom_y)
    middle_x, middle_y = columns / 2, rows / 2
    offset_x = middle_x + shift_x * columns - matrix[0] * middle_x - matrix[1] * middle_y
    offset_y = middle_y + shift_y * rows - matrix[2] * middle_x - matrix[3] * middle_y
    data = (matrix[0], matrix[1], offset_x, matrix[2], matrix[3], offset_y)
    picture = Image.fromarray(image)
    return np.asarray(picture.transform(picture.size, Image.Transform.AFFINE, data, resample=Image.Resampling.BILINEAR))


def _tone_table(settings: Augmentation, generator: np.random.Generator) -> Grey:
    gamma = math.exp(generator.uniform(-1, 1) * settings.gamma)
    contrast = math.exp(generator.uniform(-1, 1) * settings.contrast)
    brightness = generator.uniform(-1, 1) * settings.brightness
    levels = (_LEVELS**gamma - 0.5) * contrast + 0.5 + brightness
    table: Grey = np.rint(levels.clip(0, 1) * 255).astype(np.uint8)
    return table


def _shaded(image: Grey, settings: Augmentation, generator: np.random.Generator) -> Grey:
    if not settings.shading:
        return image
    strength = generator.uniform(0, settings.shading) * 255
    knots = generator.uniform(-1, 1, (_SHADING_KNOTS, _SHADING_KNOTS)).astype(np.float32) * np.float32(strength)
    size = (image.shape[1], image.shape[0])
    field = np.asarray(Image.fromarray(knots).resize(size, Image.Resampling.BICUBIC))
    shaded: Grey = (image + field).clip(0, 255).astype(np.uint8)
    return shaded


def _spoiled(image: Grey, settings: Augmentation, generator: np.random.Generator) -> Grey:
    """Blurred, coarse, noisy and with a hole: what a poorer detector or a different archive does."""
    picture = Image.fromarray(image)
    if settings.blur_pixels and generator.random() < 0.5:
        picture = picture.filter(ImageFilter.GaussianBlur(generator.uniform(0, settings.blur_pixels)))
    if settings.coarsen and generator.random() < settings.coarsen:
        share = generator.uniform(min(1.0, 48 / min(image.shape)), 1.0)
        side = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
        small = picture.resize(side, Image.Resampling.BOX)
        picture = small.resize(picture.size, Image.Resampling.BILINEAR)
    spoiled = np.array(picture)
    if settings.noise:
        sigma = generator.uniform(0, settings.noise) * 255
        noisy = spoiled + generator.standard_normal(spoiled.shape, np.float32) * np.float32(sigma)
        spoiled = noisy.clip(0, 255).astype(np.uint8)
    if settings.cutout:
        height, width = generator.uniform(0, settings.cutout, 2) * spoiled.shape
        top, left = generator.uniform(0, 1, 2) * (spoiled.shape[0] - height, spoiled.shape[1] - width)
        spoiled[int(top) : int(top + height), int(left) : int(left + width)] = int(generator.integers(256))
    return spoiled

"""Random changes of training images, alone or together with a mask.

Random changes of training images that a radiograph may undergo without its meaning changing.

Random changes of an image and its mask together: what moves the image moves the mask, what recolours it does not.

Shift, zoom, stretch, rotation and the elastic part are one mesh of quadrilaterals, so that each pixel is interpolated
once. The elastic part follows Ronneberger 2015 (arXiv:1505.04597), section 3.1: random displacements on a coarse grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

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

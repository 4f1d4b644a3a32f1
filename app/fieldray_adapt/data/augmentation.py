"""Random changes of training images that a radiograph may undergo without its meaning changing, alone or with a mask.

What moves the image moves the mask, what recolours it does not.

Shift, zoom, stretch, rotation and the elastic part are one mesh of quadrilaterals, so that each pixel is interpolated
once. The elastic part follows Ronneberger 2015 (arXiv:1505.04597), section 3.1: random displacements on a coarse grid.

Images for the checks: chests turned, inverted and mirrored on the fly, and out-of-distribution images.

What was done to a chest image is known, so that its targets need no labels: each source of chest images teaches all
checks alike. Of an out-of-distribution image only one thing is known: it is no frontal chest image.

Out-of-distribution images are drawn by the program: textures, gradients, shapes, writing, scenes of objects before a
background, and parts of a chest: the abdomen, a corner, one half. All are as sharp, as noisy and as grey as chest
images are after augmentation, so that none of that tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter
from scipy import ndimage
from scipy.spatial import ConvexHull

from fieldray.domain.model import LUNG_CHECKS
from fieldray_adapt.recipes.tables import key, table

Grey = NDArray[np.uint8]
_SHADING_KNOTS: Final = 4
_LEVELS: Final = np.linspace(0, 1, 256)


@table
class Changes:
    """The augmentations that images of every training may undergo."""

    shift: float = key("Shift, as a share of the side.", default=0.0, low=0, high=1)
    scale: float = key("Zoom, in powers of e.", default=0.0, low=0, high=1)
    stretch: float = key("Change of the ratio of height to width, as a share.", default=0.0, low=0, high=1)
    rotation_degrees: float = key("Rotation of the image.", default=0.0, unit="degrees", low=0, high=45)
    gamma: float = key("Gamma, in powers of e.", default=0.0, low=0, high=2)
    contrast: float = key("Contrast, in powers of e.", default=0.0, low=0, high=2)
    brightness: float = key("Brightness, as a share of the range.", default=0.0, low=0, high=1)
    shading: float = key(
        "Strength of an added smooth field, as a share of the range. The network then ignores broad "
        "differences of grey, which often come from the archive and not from the lungs.",
        default=0.0,
        low=0,
        high=1,
    )
    blur_pixels: float = key(
        "Standard deviation of a Gaussian blur, for half of the images.", default=0.0, unit="pixels", low=0
    )
    noise: float = key("Standard deviation of noise, as a share of the range.", default=0.0, low=0, high=1)
    coarsen: float = key(
        "Probability of shrinking the image to between 48 pixels and the full side, and enlarging it again.",
        default=0.0,
        low=0,
        high=1,
    )


@table
class Augmentation(Changes):
    """Largest strength x of each augmentation; each strength is drawn evenly from -x..x (or 0..x). All zeros change
    nothing.
    """

    flip: float = key(
        "Probability of mirroring. Keep this small, because the heart changes sides.", default=0.0, low=0, high=1
    )
    cutout: float = key("Largest side of one erased square, as a share.", default=0.0, low=0, high=1)


Motion = tuple[float, float, float, float, float, float]
"""Angle in radians, zoom across and down, shift across and down as a share of the side, and 1 or, mirrored, -1."""


def augment(
    image: Grey, settings: Augmentation, *, generator: np.random.Generator, motion: Motion | None = None
) -> Grey:
    """One augmented copy of a grey image (rows, columns) uint8, moved by `motion` or at random."""
    shifted = moved(image, motion or draw_motion(settings, generator))
    recoloured = np.take(_tone_table(settings, generator), shifted)
    return _spoiled(_shaded(recoloured, settings, generator), settings, generator)


def draw_motion(settings: Augmentation, generator: np.random.Generator) -> Motion:
    """Draw a random motion of an image, so that its masks can be moved in the same way."""
    if not any((settings.shift, settings.scale, settings.stretch, settings.rotation_degrees, settings.flip)):
        return _STILL
    angle = math.radians(generator.uniform(-1, 1) * settings.rotation_degrees)
    zoom, stretch = (generator.uniform(-1, 1) * most for most in (settings.scale, settings.stretch / 2))
    shift_x, shift_y = generator.uniform(-1, 1, 2) * settings.shift
    mirror = -1.0 if generator.random() < settings.flip else 1.0
    return angle, math.exp(zoom + stretch), math.exp(zoom - stretch), float(shift_x), float(shift_y), mirror


_STILL: Final[Motion] = (0.0, 1.0, 1.0, 0.0, 0.0, 1.0)


def moved(image: Grey, motion: Motion) -> Grey:
    """Apply a motion to an image (rows, columns) uint8 of any resolution."""
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
    drawn = Image.fromarray(image)
    return np.asarray(drawn.transform(drawn.size, Image.Transform.AFFINE, data, resample=Image.Resampling.BILINEAR))


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
    """Blur, coarsen and add noise and a hole, like a poorer detector or a different archive."""
    drawn = Image.fromarray(image)
    if settings.blur_pixels and generator.random() < 0.5:
        drawn = drawn.filter(ImageFilter.GaussianBlur(generator.uniform(0, settings.blur_pixels)))
    if settings.coarsen and generator.random() < settings.coarsen:
        share = generator.uniform(min(1.0, 48 / min(image.shape)), 1.0)
        side = (max(1, round(drawn.width * share)), max(1, round(drawn.height * share)))
        small = drawn.resize(side, Image.Resampling.BOX)
        drawn = small.resize(drawn.size, Image.Resampling.BILINEAR)
    spoiled = np.array(drawn)
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


@table
class PairAugmentation(Changes):
    """Largest strength x of each augmentation of an image and its mask; each strength is drawn evenly from -x..x (or
    0..x). All zeros change nothing.
    """

    elastic: float = key(
        "Standard deviation of the displacement of each knot of an 8 x 8 grid, as a share.", default=0.0, low=0
    )
    inversion: float = key("Probability of the negative image.", default=0.0, low=0, high=1)
    opacities: float = key(
        "Probability of one to three soft bright patches, like infiltrates.", default=0.0, low=0, high=1
    )
    whitening: float = key(
        "Probability that a lung, or part of a lung, is painted white and so made invisible.",
        default=0.0,
        low=0,
        high=1,
    )
    letters: float = key("Probability of letters near the border.", default=0.0, low=0, high=1)
    collimation: float = key("Probability of black or white borders.", default=0.0, low=0, high=1)

    @property
    def of_tone(self) -> Augmentation:
        """Return the grey-level part, which moves no pixel, as the augmentation of a classifier."""
        names = ("gamma", "contrast", "brightness", "shading", "blur_pixels", "noise", "coarsen")
        return Augmentation(**{name: getattr(self, name) for name in names})


def augment_pair(
    image: Grey, mask: Grey, settings: PairAugmentation, *, generator: np.random.Generator
) -> tuple[Grey, Grey]:
    """A changed image (rows, columns) uint8 with its mask, or masks (rows, columns, n), of 0..255, moved alike."""
    mesh = _mesh(image.shape, settings, generator)
    changed = recolour(_moved(image, mesh), settings, generator=generator)
    if mask.ndim == 2:
        return changed, _moved(mask, mesh)
    return changed, np.stack([_moved(plane, mesh) for plane in mask.transpose(2, 0, 1)], axis=-1)


def recolour(image: Grey, settings: PairAugmentation, *, generator: np.random.Generator) -> Grey:
    """An augmented copy with other grey levels, sharpness, borders and letters, without motion."""
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
    """Return target boxes and the source quadrilaterals that fill them, in Pillow's form."""
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
    drawn = Image.fromarray(plane)
    return np.asarray(drawn.transform(drawn.size, Image.Transform.MESH, mesh, resample=Image.Resampling.BILINEAR))


def _opacified(image: Grey, generator: np.random.Generator) -> Grey:
    """Add one to three soft ellipses in the middle of the image, up to seven tenths of the way to white.

    The mask is unchanged: a network that follows only dark areas would lose the diseased part of a lung.
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


WHITE_PARTS: Final = ("whole", "upper", "lower", "effusion")
_BOTH_WHITE: Final = 0.2
_HULL_MARGIN: Final = 3 / 256


def whitened(image: Grey, mask: Grey, generator: np.random.Generator) -> tuple[Grey, Grey]:
    """Paint a lung, or a part of it, white as in pneumonia or an effusion.

    Returns the image, and its mask without that part.

    Sometimes both lungs are painted. An image whose mask has no two lungs is unchanged.
    """
    hulls = lung_hulls(mask > 127)
    for here in generator.permutation(len(hulls))[: 1 + (generator.random() < _BOTH_WHITE)] if len(hulls) > 1 else ():
        area = white_part(hulls[here], str(generator.choice(WHITE_PARTS)), generator, is_left=here == 0)
        image, mask = painted_white(image, area, generator), np.where(area, np.uint8(0), mask)
    return image, mask


def lung_hulls(mask: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Return the slightly enlarged hulls of the two largest parts of a mask, from the left: (rows, columns) each."""
    parts, number = ndimage.label(mask)
    sizes = np.bincount(parts.reshape(-1), minlength=number + 1)[1:]
    hulls = []
    for part in np.argsort(-sizes)[:2] + 1:
        points = np.argwhere(parts == part)[:, ::-1]
        if min(np.ptp(points, axis=0)) < 2:
            continue  # a speck or a line
        drawn = Image.new("1", mask.shape[::-1])
        corners = [(float(x), float(y)) for x, y in points[ConvexHull(points).vertices]]
        ImageDraw.Draw(drawn).polygon(corners, fill=1)
        hulls.append(ndimage.binary_dilation(np.asarray(drawn), iterations=max(1, round(_HULL_MARGIN * len(mask)))))
    return sorted(hulls, key=lambda hull: float(np.argwhere(hull)[:, 1].mean()))


def white_part(area: NDArray[np.bool_], kind: str, generator: Generator, *, is_left: bool) -> NDArray[np.bool_]:
    """The part of a lung's area to paint white, by a kind of `WHITE_PARTS`; `is_left` as seen in the image."""
    down, across = np.nonzero(area)
    y, x = np.mgrid[0 : area.shape[0], 0 : area.shape[1]]
    height, inwards = np.ptp(down), (x - across.min()) / max(1, np.ptp(across))
    outwards = 1 - inwards if is_left else inwards
    level = {
        "whole": np.full(area.shape, -np.inf),
        "upper": down.min() + height * generator.uniform(0.3, 0.75) + 0 * x,
        "lower": down.min() + height * generator.uniform(0.25, 0.7) + 0 * x,
        "effusion": down.min() + height * (generator.uniform(0.25, 0.65) - 0.22 * outwards**3 + 0.05 * inwards),
    }[kind]
    return np.asarray(area & ((y < level) if kind == "upper" else (y >= level)), bool)


def painted_white(grey: Grey, area: NDArray[np.bool_], generator: np.random.Generator) -> Grey:
    """Paint an area white with noise and a feathered edge, between the grey around the lungs and the brightest grey."""
    pixels, side = grey.astype(np.float32), len(grey)
    low, high = np.percentile(pixels, [50, 97])
    broad, fine = (ndimage.gaussian_filter(generator.normal(size=grey.shape), sigma) for sigma in (side / 20, 1))
    around = ndimage.gaussian_filter(pixels, side / 8)
    white = generator.uniform(low + 0.55 * (high - low), high) + 6 * broad / broad.std()
    white += generator.uniform(2, 5) * fine / fine.std() + 0.15 * (around - around.mean())
    feather = generator.uniform(1.5, 4) * side / 256
    soft = ndimage.gaussian_filter(area.astype(np.float32), feather) * generator.uniform(0.9, 1)
    return np.asarray(np.clip(pixels * (1 - soft) + white * soft, 0, 255), np.uint8)


def _lettered(image: Grey, generator: np.random.Generator) -> Grey:
    """A side mark or a line of digits, light or dark, within the outer fifth."""
    drawn = Image.fromarray(image)
    rows, columns = image.shape
    text = "".join(generator.choice(list(_MARKS + "0123456789"), int(generator.integers(1, 7))))
    size = generator.uniform(0.04, 0.12) * rows
    edges = [generator.uniform(0, 0.12), generator.uniform(0.78, 0.92)]
    left, top = columns * float(generator.choice(edges)), rows * float(generator.uniform(0, 0.92))
    if generator.random() < 0.5:
        left, top = columns * float(generator.uniform(0, 0.9)), rows * float(generator.choice(edges))
    grey = int(generator.choice([255, 230, 0]))
    ImageDraw.Draw(drawn).text((left, top), text, fill=grey, font_size=size)
    return np.asarray(drawn)


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


Generator = np.random.Generator
_LETTERS: Final = list("abcdefghijk lmnopqrstuvwxyz 0123456789 ")


def fractal(side: int, generator: Generator) -> Grey:
    """A texture whose power falls with frequency, as in natural scenes."""
    down, across = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None]
    frequency = np.hypot(down * generator.uniform(0.5, 2), across * generator.uniform(0.5, 2))
    frequency[0, 0] = 1
    phases = generator.normal(size=(2, *frequency.shape))
    spectrum = (phases[0] + 1j * phases[1]) * frequency ** -generator.uniform(0.3, 2.2)
    return _stretched(np.fft.irfft2(spectrum, (side, side)))


def gradient(side: int, generator: Generator) -> Grey:
    """A ramp, a ring, a wave or a chequered field."""
    y, x = np.mgrid[0:side, 0:side] / side
    first, second = generator.uniform(-12, 12, 2)
    fields = (
        x * first + y * second,
        np.hypot(x - generator.random(), y - generator.random()),
        np.sin(2 * np.pi * (x * first + y * second)),
        np.sign(np.sin(2 * np.pi * x * first) * np.sin(2 * np.pi * y * second)),
    )
    field = fields[int(generator.integers(len(fields)))]
    return _stretched(field + generator.normal(size=field.shape) * generator.choice([0, 0.05, 0.3]))


def shapes(side: int, generator: Generator) -> Grey:
    """Ellipses, boxes, polygons and lines, as technical phantoms have them."""
    drawn = Image.new("L", (side, side), int(generator.integers(256)))
    draw = ImageDraw.Draw(drawn)
    for _ in range(int(generator.integers(1, 14))):
        middle, reach, grey = generator.uniform(-0.1, 1.1, 2), generator.uniform(0.02, 0.5, 2), generator.integers(256)
        box = [float(value) * side for value in (*(middle - reach), *(middle + reach))]
        match int(generator.integers(4)):
            case 0:
                draw.ellipse(box, fill=int(grey))
            case 1:
                draw.rectangle(box, fill=int(grey))
            case 2:
                corners = generator.uniform(0, side, (int(generator.integers(3, 7)), 2))
                draw.polygon([(float(x), float(y)) for x, y in corners], fill=int(grey))
            case _:
                draw.line(box, fill=int(grey), width=int(generator.integers(1, 14)))
    if generator.random() < 0.6:
        drawn = drawn.filter(ImageFilter.GaussianBlur(generator.uniform(0, side / 32)))
    texture = (fractal(side, generator).astype(np.float32) - 128) * generator.choice([0, 0.2, 0.6])
    return _stretched(np.asarray(drawn) + texture)


def writing(side: int, generator: Generator) -> Grey:
    """Lines of letters and digits, dark on light or light on dark."""
    ground, height, top = int(generator.choice([255, 240, 0])), generator.uniform(0.03, 0.16) * side, 0.0
    drawn = Image.new("L", (side, side), ground)
    draw = ImageDraw.Draw(drawn)
    while top < side:
        text = "".join(generator.choice(_LETTERS, int(generator.integers(3, 40))))
        draw.text((generator.uniform(0, side / 8), top), text, fill=255 - ground, font_size=height)
        top += height * generator.uniform(1.1, 2)
    return np.asarray(drawn)


def scene(side: int, generator: Generator) -> Grey:
    """Textured objects with hard edges before a textured ground, as in a photograph."""
    drawn = fractal(side, generator).astype(np.float32)
    for _ in range(int(generator.integers(2, 7))):
        texture = fractal(side, generator) * generator.uniform(0.2, 0.8) + generator.uniform(0, 120)
        drawn = np.where(_object(side, generator), texture, drawn).astype(np.float32)
    return _stretched(drawn)


def _object(side: int, generator: Generator) -> NDArray[np.bool_]:
    drawn = Image.new("1", (side, side))
    middle, count = generator.uniform(0, side, 2), int(generator.integers(5, 14))
    angles, reach = np.sort(generator.uniform(0, 2 * math.pi, count)), generator.uniform(0.1, 0.5, count) * side
    corners = np.stack([middle[0] + reach * np.cos(angles), middle[1] + reach * np.sin(angles)], axis=1)
    ImageDraw.Draw(drawn).polygon([(float(x), float(y)) for x, y in corners], fill=1)
    return np.asarray(drawn)


def abdomen(chest: Grey, generator: Generator) -> Grey:
    """The part of a chest image below the lungs, at full size."""
    side = len(chest)
    left, right = int(side * generator.uniform(0, 0.3)), int(side * generator.uniform(0.7, 1))
    return _filled(chest[int(side * generator.uniform(0.6, 0.72)) :, left:right], side)


def corner(chest: Grey, generator: Generator) -> Grey:
    """A shoulder, a flank, or any small part."""
    side = len(chest)
    part = int(side * generator.uniform(0.2, 0.42))
    top, left = (int(start) for start in generator.choice([0, side - part], 2))
    if generator.random() < 0.3:
        top, left = (int(start) for start in generator.uniform(0, side - part, 2))
    return _filled(chest[top : top + part, left : left + part], side)


def half(chest: Grey, generator: Generator) -> Grey:
    """One side of a chest image, wide or narrow: with one lung, like a lateral view."""
    side = len(chest)
    cut = int(side * generator.uniform(0.42, 0.52))
    part = chest[:, :cut] if generator.random() < 0.5 else chest[:, side - cut :]
    if generator.random() < 0.5:
        before, after = (int(side * generator.uniform(0, 0.3)) for _ in range(2))
        part = np.pad(part, ((0, 0), (before, after)))
    return _filled(part, side)


DRAWN: Final[Mapping[str, Callable[[int, Generator], Grey]]] = {
    "fractal": fractal,
    "gradient": gradient,
    "shapes": shapes,
    "writing": writing,
    "scene": scene,
}
PARTS: Final[Mapping[str, Callable[[Grey, Generator], Grey]]] = {"abdomen": abdomen, "corner": corner, "half": half}
WEIGHTS: Final[Mapping[str, float]] = {
    "fractal": 1.0,
    "gradient": 0.7,
    "shapes": 1.2,
    "writing": 0.7,
    "scene": 1.2,
    "abdomen": 1.5,
    "corner": 2.0,
    "half": 2.5,
}
"""How often each kind is drawn; an image of the recipe's `ood_images` counts `OF_FILES`."""
OF_FILES: Final = 5.5


def _filled(part: Grey, side: int) -> Grey:
    return np.asarray(Image.fromarray(np.ascontiguousarray(part)).resize((side, side), Image.Resampling.BILINEAR))


def _stretched(field: NDArray[Any]) -> Grey:
    """Map a field's 1st to 99th percentile to 0..255."""
    low, high = np.percentile(field, [1, 99])
    grey: Grey = ((field - low) / max(high - low, 1e-3) * 255).clip(0, 255).astype(np.uint8)
    return grey


Targets = NDArray[np.float32]
UNKNOWN: Final = -1.0
_UPRIGHT: Final = 0.55
_INVERTED: Final = 0.2
_MIRRORED: Final = 0.3
_AUGMENTED: Final = 0.5


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CheckImages:
    """Images to draw from.

    Attributes
    ----------
    chests
        By source, (n, side, side) uint8 with how often the source is drawn.
    ood_images
        (n, side, side) uint8, perhaps none: others are drawn by the program.
    """

    chests: Mapping[str, tuple[NDArray[np.uint8], float]]
    ood_images: NDArray[np.uint8]

    @property
    def side(self) -> int:
        """The side of the images, in pixels."""
        images, _ = next(iter(self.chests.values()))
        return int(images.shape[1])

    def chest(self, generator: np.random.Generator) -> Grey:
        """Draw one chest image, without changes."""
        names = list(self.chests)
        weights = np.array([self.chests[name][1] for name in names])
        images = self.chests[names[int(generator.choice(len(names), p=weights / weights.sum()))]][0]
        image: Grey = images[int(generator.integers(len(images)))]
        return image

    def draw(
        self, settings: PairAugmentation, *, ood_share: float, generator: np.random.Generator
    ) -> tuple[Grey, Targets]:
        """One image with its targets (checks,): 1, 0, or `UNKNOWN`."""
        if generator.random() < ood_share:
            return self.ood_image(settings, generator=generator), ood_image_targets()
        return turned(self.chest(generator), settings, generator=generator)

    def ood_image(self, settings: PairAugmentation, *, generator: np.random.Generator, kind: str = "") -> Grey:
        """An image that is no frontal chest X-ray, of a kind of `WEIGHTS` or of the files ("files")."""
        kind = kind or self._kind(generator)
        if kind == "files":
            image = self.ood_images[int(generator.integers(len(self.ood_images)))]
            image = np.ascontiguousarray(np.rot90(image, int(generator.integers(4))))
            image = augment_pair(image, image, settings, generator=generator)[0]
            return np.invert(image) if generator.random() < _INVERTED else image
        if kind in PARTS:
            image = PARTS[kind](self.chest(generator), generator)
            return recolour(image, settings, generator=generator)
        image = DRAWN[kind](self.side, generator)
        return recolour(image, settings, generator=generator) if generator.random() < _AUGMENTED else image

    def _kind(self, generator: np.random.Generator) -> str:
        weights = dict(WEIGHTS) | ({"files": OF_FILES} if len(self.ood_images) else {})
        shares = np.array(list(weights.values()))
        return list(weights)[int(generator.choice(len(shares), p=shares / shares.sum()))]


def ood_image_targets() -> Targets:
    """Return the targets of an image that is no chest: all other checks are unknown."""
    targets = np.full(len(LUNG_CHECKS), UNKNOWN, np.float32)
    targets[0] = 0
    return targets


def turned(image: Grey, settings: PairAugmentation, *, generator: np.random.Generator) -> tuple[Grey, Targets]:
    """A chest image mirrored, rotated and inverted by chance, with its targets."""
    turns = int(generator.choice(4, p=[_UPRIGHT, *[(1 - _UPRIGHT) / 3] * 3]))
    is_mirrored, is_inverted = generator.random() < _MIRRORED, generator.random() < _INVERTED
    changed = augment_pair(image, image, settings, generator=generator)[0]
    return apply(changed, turns=turns, is_mirrored=is_mirrored, is_inverted=is_inverted)


def apply(image: Grey, *, turns: int = 0, is_mirrored: bool = False, is_inverted: bool = False) -> tuple[Grey, Targets]:
    """A frontal chest image mirrored, then turned clockwise by `turns` quarters, then inverted; with its targets."""
    targets = np.zeros(len(LUNG_CHECKS), np.float32)
    targets[0], targets[4], targets[5] = 1, is_inverted, is_mirrored
    if turns:
        targets[turns] = 1
    moved = np.rot90(image[:, ::-1] if is_mirrored else image, -turns)
    return np.ascontiguousarray(np.invert(moved) if is_inverted else moved), targets

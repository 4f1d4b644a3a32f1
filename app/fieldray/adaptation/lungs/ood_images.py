"""Images that are no frontal chest X-ray, drawn by the program, for the checks to learn what to refuse.

Textures, gradients, shapes, writing, scenes of objects before a background, and parts of a chest: the abdomen, a
corner, one half. All are as sharp, as noisy and as grey as chest images are after augmentation, so that none of that
tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Grey = NDArray[np.uint8]
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
    picture = Image.new("L", (side, side), int(generator.integers(256)))
    draw = ImageDraw.Draw(picture)
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
        picture = picture.filter(ImageFilter.GaussianBlur(generator.uniform(0, side / 32)))
    texture = (fractal(side, generator).astype(np.float32) - 128) * generator.choice([0, 0.2, 0.6])
    return _stretched(np.asarray(picture) + texture)


def writing(side: int, generator: Generator) -> Grey:
    """Lines of letters and digits, dark on light or light on dark."""
    ground, height, top = int(generator.choice([255, 240, 0])), generator.uniform(0.03, 0.16) * side, 0.0
    picture = Image.new("L", (side, side), ground)
    draw = ImageDraw.Draw(picture)
    while top < side:
        text = "".join(generator.choice(_LETTERS, int(generator.integers(3, 40))))
        draw.text((generator.uniform(0, side / 8), top), text, fill=255 - ground, font_size=height)
        top += height * generator.uniform(1.1, 2)
    return np.asarray(picture)


def scene(side: int, generator: Generator) -> Grey:
    """Textured objects with hard edges before a textured ground, as in a photograph."""
    drawn = fractal(side, generator).astype(np.float32)
    for _ in range(int(generator.integers(2, 7))):
        texture = fractal(side, generator) * generator.uniform(0.2, 0.8) + generator.uniform(0, 120)
        drawn = np.where(_object(side, generator), texture, drawn).astype(np.float32)
    return _stretched(drawn)


def _object(side: int, generator: Generator) -> NDArray[np.bool_]:
    picture = Image.new("1", (side, side))
    middle, count = generator.uniform(0, side, 2), int(generator.integers(5, 14))
    angles, reach = np.sort(generator.uniform(0, 2 * math.pi, count)), generator.uniform(0.1, 0.5, count) * side
    corners = np.stack([middle[0] + reach * np.cos(angles), middle[1] + reach * np.sin(angles)], axis=1)
    ImageDraw.Draw(picture).polygon([(float(x), float(y)) for x, y in corners], fill=1)
    return np.asarray(picture)


def abdomen(chest: Grey, generator: Generator) -> Grey:
    """What lies below the lungs."""
    side = len(chest)
    left, right = int(side * generator.uniform(0, 0.3)), int(side * generator.uniform(0.7, 1))
    return _filled(chest[int(side * generator.uniform(0.6, 0.72)) :, left:right], side)


def corner(chest: Grey, generator: Generator) -> Grey:
    """A shoulder, a flank, or any small part."""
    side = len(chest)
    part = int(side * generator.uniform(0.2, 0.42))
    top, left = (int(place) for place in generator.choice([0, side - part], 2))
    if generator.random() < 0.3:
        top, left = (int(place) for place in generator.uniform(0, side - part, 2))
    return _filled(chest[top : top + part, left : left + part], side)


def half(chest: Grey, generator: Generator) -> Grey:
    """One side of the chest, wide or narrow: a view with one lung, as from the side."""
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
    """Its 1st to 99th percentile as 0..255."""
    low, high = np.percentile(field, [1, 99])
    grey: Grey = ((field - low) / max(high - low, 1e-3) * 255).clip(0, 255).astype(np.uint8)
    return grey

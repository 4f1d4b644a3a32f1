"""Images for the checks: chests turned, inverted and mirrored on the fly, and out-of-distribution images.

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

from fieldray.domain.model import LUNG_CHECKS
from fieldray_adapt.augmentation import PairAugmentation, augment_pair, recolour

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
        """Of the images, in pixels."""
        images, _ = next(iter(self.chests.values()))
        return int(images.shape[1])

    def chest(self, generator: np.random.Generator) -> Grey:
        """One chest image as it is."""
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
    """Of an image that is no chest: nothing else is known of it."""
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

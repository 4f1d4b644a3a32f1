"""Training images for the image checks of a lung-field pack: is an image a frontal chest, rotated, inverted, mirrored?

Chest images are rotated, inverted and mirrored at random, so that the right answers are known without labels. Images
that are no frontal chest X-rays are synthetic (textures, shapes, writing), or cut from chest images (abdomen, corner,
one half). Both kinds get equal noise, blur and grey levels, so that a network cannot recognise a kind by these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from fieldray.domain.model import LUNG_NETWORK_CHECKS
from fieldray_adapt.data.augmentation import GreyImage, ImageMaskAugmentation, augment_appearance, augment_with_mask

Generator = np.random.Generator
_LETTERS: Final = list("abcdefghijk lmnopqrstuvwxyz 0123456789 ")


def draw_fractal(side: int, generator: Generator) -> GreyImage:
    """Draw a square random texture of `side` pixels whose power falls with frequency, as in natural scenes."""
    down, across = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None]
    frequency = np.hypot(down * generator.uniform(0.5, 2), across * generator.uniform(0.5, 2))
    frequency[0, 0] = 1
    phases = generator.normal(size=(2, *frequency.shape))
    spectrum = (phases[0] + 1j * phases[1]) * frequency ** -generator.uniform(0.3, 2.2)
    return _stretched(np.fft.irfft2(spectrum, (side, side)))


def draw_gradient(side: int, generator: Generator) -> GreyImage:
    """Draw a square image of `side` pixels with a random pattern: a ramp, rings, waves or a chequered field."""
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


def draw_shapes(side: int, generator: Generator) -> GreyImage:
    """Draw a square image of `side` pixels with ellipses, boxes, polygons and lines, like a technical phantom."""
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
    texture = (draw_fractal(side, generator).astype(np.float32) - 128) * generator.choice([0, 0.2, 0.6])
    return _stretched(np.asarray(drawn) + texture)


def draw_writing(side: int, generator: Generator) -> GreyImage:
    """Draw a square image of `side` pixels with lines of letters and digits, dark on light or light on dark."""
    ground, height, top = int(generator.choice([255, 240, 0])), generator.uniform(0.03, 0.16) * side, 0.0
    drawn = Image.new("L", (side, side), ground)
    draw = ImageDraw.Draw(drawn)
    while top < side:
        text = "".join(generator.choice(_LETTERS, int(generator.integers(3, 40))))
        draw.text((generator.uniform(0, side / 8), top), text, fill=255 - ground, font_size=height)
        top += height * generator.uniform(1.1, 2)
    return np.asarray(drawn)


def draw_scene(side: int, generator: Generator) -> GreyImage:
    """Draw a square image of `side` pixels with textured objects before a textured background, as in a photograph."""
    drawn = draw_fractal(side, generator).astype(np.float32)
    for _ in range(int(generator.integers(2, 7))):
        texture = draw_fractal(side, generator) * generator.uniform(0.2, 0.8) + generator.uniform(0, 120)
        drawn = np.where(_object(side, generator), texture, drawn).astype(np.float32)
    return _stretched(drawn)


def _object(side: int, generator: Generator) -> NDArray[np.bool_]:
    drawn = Image.new("1", (side, side))
    middle, count = generator.uniform(0, side, 2), int(generator.integers(5, 14))
    angles, reach = np.sort(generator.uniform(0, 2 * math.pi, count)), generator.uniform(0.1, 0.5, count) * side
    corners = np.stack([middle[0] + reach * np.cos(angles), middle[1] + reach * np.sin(angles)], axis=1)
    ImageDraw.Draw(drawn).polygon([(float(x), float(y)) for x, y in corners], fill=1)
    return np.asarray(drawn)


def crop_abdomen(chest: GreyImage, generator: Generator) -> GreyImage:
    """Return the part of a chest image below the lungs, enlarged to the full size."""
    side = len(chest)
    left, right = int(side * generator.uniform(0, 0.3)), int(side * generator.uniform(0.7, 1))
    return _filled(chest[int(side * generator.uniform(0.6, 0.72)) :, left:right], side)


def crop_corner(chest: GreyImage, generator: Generator) -> GreyImage:
    """Return a random small part of a chest image, such as a shoulder or a flank, enlarged to the full size."""
    side = len(chest)
    part = int(side * generator.uniform(0.2, 0.42))
    top, left = (int(start) for start in generator.choice([0, side - part], 2))
    if generator.random() < 0.3:
        top, left = (int(start) for start in generator.uniform(0, side - part, 2))
    return _filled(chest[top : top + part, left : left + part], side)


def crop_half(chest: GreyImage, generator: Generator) -> GreyImage:
    """Return the left or the right part of a chest image, with one lung, enlarged to the full size."""
    side = len(chest)
    cut = int(side * generator.uniform(0.42, 0.52))
    part = chest[:, :cut] if generator.random() < 0.5 else chest[:, side - cut :]
    if generator.random() < 0.5:
        before, after = (int(side * generator.uniform(0, 0.3)) for _ in range(2))
        part = np.pad(part, ((0, 0), (before, after)))
    return _filled(part, side)


SYNTHETIC_OOD_DRAW_FUNCTIONS: Final[Mapping[str, Callable[[int, Generator], GreyImage]]] = {
    "fractal": draw_fractal,
    "gradient": draw_gradient,
    "shapes": draw_shapes,
    "writing": draw_writing,
    "scene": draw_scene,
}
"""The functions that draw synthetic out-of-distribution images, by kind of image."""
OOD_CHEST_CROP_FUNCTIONS: Final[Mapping[str, Callable[[GreyImage, Generator], GreyImage]]] = {
    "abdomen": crop_abdomen,
    "corner": crop_corner,
    "half": crop_half,
}
"""The functions that cut an out-of-distribution image from a chest image, by kind of image."""
OOD_KIND_WEIGHTS: Final[Mapping[str, float]] = {
    "fractal": 1.0,
    "gradient": 0.7,
    "shapes": 1.2,
    "writing": 0.7,
    "scene": 1.2,
    "abdomen": 1.5,
    "corner": 2.0,
    "half": 2.5,
}
"""Relative frequency of each kind of out-of-distribution image."""
OOD_FILES_WEIGHT: Final = 5.5
"""Relative frequency of the out-of-distribution images in the files that the recipe's key `ood_images` names."""


def _filled(part: GreyImage, side: int) -> GreyImage:
    return np.asarray(Image.fromarray(np.ascontiguousarray(part)).resize((side, side), Image.Resampling.BILINEAR))


def _stretched(field: NDArray[Any]) -> GreyImage:
    """Return an array as a grey image: the 1st percentile of the values becomes 0, the 99th percentile 255."""
    low, high = np.percentile(field, [1, 99])
    grey: GreyImage = ((field - low) / max(high - low, 1e-3) * 255).clip(0, 255).astype(np.uint8)
    return grey


ImageCheckTargets = NDArray[np.float32]
UNKNOWN_TARGET: Final = -1.0
"""The training target for an image check (such as "is the image inverted?") whose right answer is not known."""
_UPRIGHT: Final = 0.55
_INVERTED: Final = 0.2
_MIRRORED: Final = 0.3
_AUGMENTED: Final = 0.5


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ImagesForImageChecks:
    """Images from which training images are drawn for the image checks of a lung-field network.

    The checks are whether an image is a frontal chest, and whether the image is rotated, inverted or mirrored.

    Attributes
    ----------
    chests_and_frequency_by_source
        For each source: chest images (n, side, side) uint8, and their relative frequency.
    ood_images
        Out-of-distribution images (n, side, side) uint8. May be empty: the program also draws synthetic images.
    """

    chests_and_frequency_by_source: Mapping[str, tuple[NDArray[np.uint8], float]]
    ood_images: NDArray[np.uint8]

    @property
    def side(self) -> int:
        """The side of the images, in pixels."""
        images, _ = next(iter(self.chests_and_frequency_by_source.values()))
        return int(images.shape[1])

    def pick_chest_image(self, generator: np.random.Generator) -> GreyImage:
        """Return a random chest image of a random source, unchanged."""
        names = list(self.chests_and_frequency_by_source)
        weights = np.array([self.chests_and_frequency_by_source[name][1] for name in names])
        images = self.chests_and_frequency_by_source[
            names[int(generator.choice(len(names), p=weights / weights.sum()))]
        ][0]
        image: GreyImage = images[int(generator.integers(len(images)))]
        return image

    def draw_training_image(
        self, settings: ImageMaskAugmentation, *, ood_share: float, generator: np.random.Generator
    ) -> tuple[GreyImage, ImageCheckTargets]:
        """Draw an augmented training image, and the right answer of each image check.

        Returns the image (side, side) uint8, and the targets (n,) in the order of `LUNG_NETWORK_CHECKS`: 1 for yes, 0
        for no, or `UNKNOWN_TARGET`. `ood_share` is the probability of an out-of-distribution image.
        """
        if generator.random() < ood_share:
            return self.draw_ood_image(settings, generator=generator), ood_image_targets()
        return reorient_randomly(self.pick_chest_image(generator), settings, generator=generator)

    def draw_ood_image(
        self, settings: ImageMaskAugmentation, *, generator: np.random.Generator, kind: str = ""
    ) -> GreyImage:
        """Draw an augmented out-of-distribution image.

        `kind` is a key of `OOD_KIND_WEIGHTS`, or "files" for an image of `ood_images`; "" to draw a random kind.
        """
        kind = kind or self._kind(generator)
        if kind == "files":
            image = self.ood_images[int(generator.integers(len(self.ood_images)))]
            image = np.ascontiguousarray(np.rot90(image, int(generator.integers(4))))
            image = augment_with_mask(image, image, settings, generator=generator)[0]
            return np.invert(image) if generator.random() < _INVERTED else image
        if kind in OOD_CHEST_CROP_FUNCTIONS:
            image = OOD_CHEST_CROP_FUNCTIONS[kind](self.pick_chest_image(generator), generator)
            return augment_appearance(image, settings, generator=generator)
        image = SYNTHETIC_OOD_DRAW_FUNCTIONS[kind](self.side, generator)
        return augment_appearance(image, settings, generator=generator) if generator.random() < _AUGMENTED else image

    def _kind(self, generator: np.random.Generator) -> str:
        weights = dict(OOD_KIND_WEIGHTS) | ({"files": OOD_FILES_WEIGHT} if len(self.ood_images) else {})
        shares = np.array(list(weights.values()))
        return list(weights)[int(generator.choice(len(shares), p=shares / shares.sum()))]


def ood_image_targets() -> ImageCheckTargets:
    """Return the training targets of an out-of-distribution image, one number for each check of `LUNG_NETWORK_CHECKS`.

    The target is 0 for "frontal chest", and `UNKNOWN_TARGET` for all other checks.
    """
    targets = np.full(len(LUNG_NETWORK_CHECKS), UNKNOWN_TARGET, np.float32)
    targets[0] = 0
    return targets


def reorient_randomly(
    image: GreyImage, settings: ImageMaskAugmentation, *, generator: np.random.Generator
) -> tuple[GreyImage, ImageCheckTargets]:
    """Return an augmented copy of a chest image, mirrored, rotated and inverted at random, and its training targets.

    The targets are one number for each check of `LUNG_NETWORK_CHECKS`, such as 1 for "inverted" if the copy is
    inverted.
    """
    turns = int(generator.choice(4, p=[_UPRIGHT, *[(1 - _UPRIGHT) / 3] * 3]))
    is_mirrored, is_inverted = generator.random() < _MIRRORED, generator.random() < _INVERTED
    changed = augment_with_mask(image, image, settings, generator=generator)[0]
    return reorient(changed, turns=turns, is_mirrored=is_mirrored, is_inverted=is_inverted)


def reorient(
    image: GreyImage, *, turns: int = 0, is_mirrored: bool = False, is_inverted: bool = False
) -> tuple[GreyImage, ImageCheckTargets]:
    """Return a changed copy of a frontal chest image, and its training target for each check of `LUNG_NETWORK_CHECKS`.

    The copy is mirrored if `is_mirrored`, then rotated clockwise by `turns` quarter turns, then inverted (black and
    white swapped) if `is_inverted`.
    """
    targets = np.zeros(len(LUNG_NETWORK_CHECKS), np.float32)
    targets[0], targets[4], targets[5] = 1, is_inverted, is_mirrored
    if turns:
        targets[turns] = 1
    moved = np.rot90(image[:, ::-1] if is_mirrored else image, -turns)
    return np.ascontiguousarray(np.invert(moved) if is_inverted else moved), targets

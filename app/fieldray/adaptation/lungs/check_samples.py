"""Images for the checks: chests turned, inverted and mirrored on the fly, and out-of-distribution images.

What was done to a chest image is known, so that its targets need no labels: each source of chest images teaches all
checks alike. Of an out-of-distribution image only one thing is known: it is no frontal chest image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.lungs import ood_images
from fieldray.adaptation.lungs.pair_augmentation import PairAugmentation, augment_pair, recolour
from fieldray.domain.model import LUNG_CHECKS

Grey = NDArray[np.uint8]
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
        """An image that is no frontal chest X-ray, of a kind of `ood_images.WEIGHTS` or of the files ("files")."""
        kind = kind or self._kind(generator)
        if kind == "files":
            image = self.ood_images[int(generator.integers(len(self.ood_images)))]
            image = np.ascontiguousarray(np.rot90(image, int(generator.integers(4))))
            image = augment_pair(image, image, settings, generator=generator)[0]
            return np.invert(image) if generator.random() < _INVERTED else image
        if kind in ood_images.PARTS:
            image = ood_images.PARTS[kind](self.chest(generator), generator)
            return recolour(image, settings, generator=generator)
        image = ood_images.DRAWN[kind](self.side, generator)
        return recolour(image, settings, generator=generator) if generator.random() < _AUGMENTED else image

    def _kind(self, generator: np.random.Generator) -> str:
        weights = dict(ood_images.WEIGHTS) | ({"files": ood_images.OF_FILES} if len(self.ood_images) else {})
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

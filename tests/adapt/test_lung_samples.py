"""Images and masks changed together, and images for the checks."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray.domain.model import LUNG_CHECKS
from fieldray_adapt.augmentation import (
    DRAWN,
    PARTS,
    UNKNOWN,
    WEIGHTS,
    CheckImages,
    PairAugmentation,
    apply,
    augment_pair,
    whitened,
)

pytestmark = pytest.mark.adapt
_MOVES = PairAugmentation(shift=0.1, scale=0.2, stretch=0.2, rotation_degrees=20, elastic=0.02)


def _pair(side: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """A dark image with a bright box, and the box as its mask."""
    mask = np.zeros((side, side), np.uint8)
    mask[20:44, 16:32] = 255
    return mask // 2, mask


def test_a_mask_moves_with_its_image() -> None:
    image, mask = _pair()
    for seed in range(5):
        moved, follows = augment_pair(image, mask, _MOVES, generator=np.random.default_rng(seed))
        assert not np.array_equal(moved, image)
        assert np.abs(moved.astype(int) - follows // 2).max() <= 1  # still the same box


def test_grey_levels_letters_and_borders_leave_the_mask_alone() -> None:
    image, mask = _pair()
    settings = PairAugmentation(gamma=0.5, contrast=0.5, noise=0.1, letters=1, collimation=1, inversion=1)
    changed, follows = augment_pair(image, mask, settings, generator=np.random.default_rng(0))
    assert np.array_equal(follows, mask) and not np.array_equal(changed, image)


def test_all_masks_of_an_image_move_alike() -> None:
    image, mask = _pair()
    _, follows = augment_pair(image, mask, _MOVES, generator=np.random.default_rng(1))
    _, both = augment_pair(image, np.stack([mask, 255 - mask], axis=-1), _MOVES, generator=np.random.default_rng(1))
    assert np.array_equal(both[..., 0], follows) and not np.array_equal(both[..., 1], follows)


def test_a_white_lung_is_cut_out_of_its_mask_and_nothing_else_is() -> None:
    mask = np.zeros((64, 64), np.uint8)
    mask[10:50, 8:26] = mask[10:50, 38:56] = 255
    image = np.where(mask > 0, np.uint8(40), np.uint8(160))
    shares = []
    for seed in range(8):
        changed, seen = whitened(image, mask, np.random.default_rng(seed))
        gone = (mask > 0) & (seen == 0)
        assert gone.any() and (seen <= mask).all()
        assert changed[gone].mean() > 110 and changed[seen > 0].mean() < 70
        shares.append([gone[:, half].sum() / (mask[:, half] > 0).sum() for half in (slice(0, 32), slice(32, 64))])
    assert any(max(one) == 1 for one in shares) and any(0 < max(one) < 1 for one in shares)
    one_lung = np.where(np.arange(64) < 32, mask, np.uint8(0))
    same, seen = whitened(image, one_lung, np.random.default_rng(0))
    assert np.array_equal(same, image) and np.array_equal(seen, one_lung)


def test_all_zeros_change_nothing() -> None:
    image, mask = _pair()
    same, follows = augment_pair(image, mask, PairAugmentation(), generator=np.random.default_rng(0))
    assert np.array_equal(same, image) and np.array_equal(follows, mask)


def test_a_turned_image_has_the_targets_of_what_was_done_to_it() -> None:
    image = np.arange(16, dtype=np.uint8).reshape(4, 4)
    same, targets = apply(image)
    assert np.array_equal(same, image) and targets.tolist() == [1, 0, 0, 0, 0, 0]
    clockwise, targets = apply(image, turns=1)
    assert clockwise[0].tolist() == [12, 8, 4, 0]  # the left column, from below, is now on top
    assert dict(zip(LUNG_CHECKS, targets, strict=True))["rotated_90"] == 1 and targets.sum() == 2
    both, targets = apply(image, turns=3, is_mirrored=True, is_inverted=True)
    assert targets.tolist() == [1, 0, 0, 1, 1, 1]
    assert np.array_equal(both, 255 - np.rot90(image[:, ::-1]))


@pytest.mark.parametrize("kind", [*WEIGHTS, "files"])
def test_every_kind_of_ood_image_is_an_image_of_its_own(kind: str) -> None:
    chests = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
    images = CheckImages(chests={"a": (chests, 1.0)}, ood_images=chests[:2])
    first, again, other = (
        images.ood_image(PairAugmentation(noise=0.05), generator=np.random.default_rng(seed), kind=kind)
        for seed in (0, 0, 1)
    )
    assert first.shape == (64, 64) and first.dtype == np.uint8 and first.std() > 1
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_of_a_ood_image_nothing_is_known_but_that_it_is_one() -> None:
    chests = np.zeros((1, 64, 64), np.uint8)
    images = CheckImages(chests={"a": (chests, 1.0)}, ood_images=np.zeros((0, 64, 64), np.uint8))
    generator = np.random.default_rng(0)
    _, targets = images.draw(PairAugmentation(), ood_share=1.0, generator=generator)
    assert targets.tolist() == [0] + [UNKNOWN] * 5
    _, targets = images.draw(PairAugmentation(), ood_share=0.0, generator=generator)
    assert targets[0] == 1 and UNKNOWN not in targets
    assert set(WEIGHTS) == {*DRAWN, *PARTS}


def test_sources_are_drawn_by_their_weights() -> None:
    dark, light = np.zeros((1, 64, 64), np.uint8), np.full((1, 64, 64), 255, np.uint8)
    images = CheckImages(chests={"dark": (dark, 3.0), "light": (light, 1.0)}, ood_images=dark)
    generator = np.random.default_rng(0)
    drawn = [images.chest(generator)[0, 0] for _ in range(400)]
    assert 0.68 < np.mean(np.array(drawn) == 0) < 0.82  # three of four

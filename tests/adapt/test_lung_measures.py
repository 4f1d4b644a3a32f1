"""How well a mask fits, and what the network is trained by, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fieldray_adapt.augmentation import UNKNOWN
from fieldray_adapt.lungs.dataset import dice, fit_of, jaccard, surface_distances
from fieldray_adapt.lungs.train import checks_loss, dice_loss, mask_loss, mask_targets

pytestmark = pytest.mark.adapt


def _square(top: int, left: int, *, side: int = 8, size: int = 32) -> np.ndarray:
    mask = np.zeros((size, size), np.bool_)
    mask[top : top + side, left : left + side] = True
    return mask


def test_dice_and_jaccard_of_perfect_disjoint_half_and_empty_masks() -> None:
    one, shifted, away, none = _square(0, 0), _square(0, 4), _square(16, 16), np.zeros((32, 32), np.bool_)
    assert (dice(one, one), jaccard(one, one)) == (1.0, 1.0)
    assert (dice(one, away), jaccard(one, away)) == (0.0, 0.0)
    # 8 x 8 cells each, 8 x 4 of them shared: 2 * 32 / 128 and 32 / 96
    assert (dice(one, shifted), jaccard(one, shifted)) == (0.5, 1 / 3)
    assert (dice(none, none), jaccard(none, none)) == (1.0, 1.0)
    assert (dice(one, none), jaccard(one, none)) == (0.0, 0.0)


def test_distances_are_told_in_pixels_of_512() -> None:
    # one row of cells against the next, 32 cells a side: one cell is 512 / 32 = 16 pixels
    upper, lower = np.zeros((32, 32), np.bool_), np.zeros((32, 32), np.bool_)
    upper[10], lower[11] = True, True
    assert np.unique(surface_distances(upper, lower)).tolist() == [16.0]
    fit = fit_of(upper, lower)
    assert (fit.average_distance, fit.distance_95, fit.dice) == (16.0, 16.0, 0.0)
    none = np.zeros((32, 32), np.bool_)
    assert surface_distances(none, none).tolist() == [0.0]
    assert surface_distances(upper, none) == pytest.approx([512 * np.sqrt(2)])  # as far as can be
    with pytest.raises(ValueError, match="cannot be compared"):
        fit_of(upper, np.zeros((16, 16), np.bool_))


def test_one_minus_dice_of_perfect_disjoint_and_empty_masks() -> None:
    one, away, none = (
        mask[None, ..., None].astype(np.float32) for mask in (_square(0, 0), _square(16, 16), _square(40, 0))
    )
    assert float(dice_loss(one, one)[0, 0]) == 0
    # nothing shared: 1 - (0 + 1) / (64 + 64 + 1)
    assert float(dice_loss(one, away)[0, 0]) == pytest.approx(1 - 1 / 129)
    assert float(dice_loss(none, none)[0, 0]) == 0
    # all cells at one half: 1 - (2 * 32 + 1) / (64 + 512 + 1)
    assert float(dice_loss(one, np.full_like(one, 0.5))[0, 0]) == pytest.approx(1 - 65 / 577)


def test_the_loss_of_masks_adds_the_cross_entropy() -> None:
    truth = _square(0, 0)[None, ..., None].astype(np.float32)
    logits = np.zeros_like(truth)  # one half everywhere: the cross-entropy is ln 2
    assert float(mask_loss(truth, logits)[0]) == pytest.approx(1 - 65 / 577 + np.log(2))
    sure = np.where(truth > 0, 30, -30).astype(np.float32)
    assert float(mask_loss(truth, sure)[0]) < 1e-3


def test_what_is_unknown_of_a_mask_teaches_nothing() -> None:
    truth = _square(0, 0)[None, ..., None].astype(np.float32)
    logits = np.where(truth > 0, 30, -30).astype(np.float32)
    both, wrong = np.concatenate([truth, np.full_like(truth, UNKNOWN)], axis=-1), np.full_like(logits, 30)
    assert float(mask_loss(both, np.concatenate([logits, wrong], axis=-1))[0]) < 1e-3
    both[0, : len(truth[0]) // 2, :, 1] = 0  # known to hold nothing: the cross-entropy of those cells alone
    half = np.concatenate([logits, np.zeros_like(logits)], axis=-1)
    assert float(mask_loss(both, half)[0]) == pytest.approx(np.log(2) / 2, abs=1e-3)


def test_a_mask_says_of_the_other_only_what_follows() -> None:
    seen, whole = (np.zeros((8, 8), np.uint8) for _ in range(2))
    whole[1:7, 1:3] = whole[1:7, 5:7] = seen[1:7, 1:3] = 255  # the right one was painted white
    masks = np.stack([seen, whole])
    visible, region = mask_targets(masks, shows_region=False).transpose(2, 0, 1)
    assert np.array_equal(visible, seen / 255)
    assert (region[whole > 0] == 1).all() and (region[1:7, 3:5] == UNKNOWN).all()
    assert (region[0] == 0).all() and (region[7] == 0).all() and (region[:, 0] == 0).all() and (region[:, 7] == 0).all()
    visible, region = mask_targets(masks, shows_region=True).transpose(2, 0, 1)
    assert np.array_equal(region, whole / 255)
    assert (visible[seen > 0] == UNKNOWN).all() and (visible[seen == 0] == 0).all()
    assert np.array_equal(mask_targets(masks[:1], shows_region=False)[..., 0], seen / 255)


def test_unknown_checks_count_for_nothing() -> None:
    logits = np.zeros((2, 3), np.float32)
    targets = np.array([[1, 0, 0], [0, -1, -1]], np.float32)
    # four known targets at ln 2 each: the mean over images is (3 + 1) ln 2 / mean(3, 1) / 2 = ln 2
    assert float(np.mean(checks_loss(targets, logits))) == pytest.approx(np.log(2))
    logits[1, 1:] = 50  # where nothing is known, nothing changes
    assert float(np.mean(checks_loss(targets, logits))) == pytest.approx(np.log(2))

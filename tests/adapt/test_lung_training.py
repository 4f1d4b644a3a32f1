"""Lung-field networks: the published and the shipped network, losses and targets, measures of masks, resuming."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from fieldray.domain.model import LUNG_NETWORK_CHECKS, InputSpec
from fieldray_adapt.data.augmentation import ImageMaskAugmentation, augment_with_mask, whiten_lung
from fieldray_adapt.data.images_for_checks import (
    OOD_CHEST_CROP_FUNCTIONS,
    OOD_KIND_WEIGHTS,
    SYNTHETIC_OOD_DRAW_FUNCTIONS,
    UNKNOWN_TARGET,
    ImagesForImageChecks,
    reorient,
)
from fieldray_adapt.lungs import train as training
from fieldray_adapt.lungs.dataset import LungData
from fieldray_adapt.lungs.engine import GRADIENT_NORM_LIMIT, MaskEngine, dice_loss, image_check_loss, mask_loss
from fieldray_adapt.lungs.mask_fit import dice_coefficient, jaccard_index, measure_fit, surface_distances
from fieldray_adapt.lungs.networks import compact_unet, published_mask_side, published_unet
from fieldray_adapt.lungs.recipe import LungNetwork, LungRecipe, LungTraining, MaskSource, TrainingStage
from fieldray_adapt.lungs.train import mask_targets
from fieldray_adapt.networks.specification import (
    channel_set_by_layer,
    initial_weights,
    layer_shapes,
    multiply_add_count,
)
from fieldray_adapt.recipes.classifier import PackTexts
from fieldray_adapt.recipes.shared import Source
from fieldray_adapt.training.keras_engine import build_network, get_weights, set_weights
from fieldray_adapt.training.loop import EpochFigures
from fieldray_cluster.training.shard import Shard, ShardState, UpdateRule, WeightLayout
from tiny_recipe import Killed

pytestmark = pytest.mark.adapt
SIDE = 64


def _data(chests: int = 6) -> LungData:
    generator = np.random.default_rng(3)
    images = generator.integers(0, 256, (6, SIDE, SIDE), dtype=np.uint8)
    masks = np.zeros_like(images)
    masks[:, 16:48, 8:28] = masks[:, 16:48, 36:56] = 255
    names = np.array([f"image {number}" for number in range(len(images))])
    return LungData(
        images=images,
        masks=masks,
        image_parts=np.array(["training"] * 5 + ["validation"]),
        image_patients=names,
        image_sources=np.array(["drawn"] * len(images)),
        image_paths=names,
        mask_paths=names,
        chests=generator.integers(0, 256, (chests, SIDE, SIDE), dtype=np.uint8),
        chest_parts=np.array(["training"] * chests),
        chest_patients=np.array([f"chest {number}" for number in range(chests)]),
        chest_sources=np.array(["one", "two"] * (chests // 2)),
        ood_images=np.zeros((0, SIDE, SIDE), np.uint8),
        ood_image_parts=np.zeros(0, np.str_),
    )


def _recipe(tmp_path: Path, *stages: TrainingStage) -> LungRecipe:
    return LungRecipe(
        kind="lung-fields",
        pack=PackTexts(id="lungs"),
        input=InputSpec(height=SIDE, width=SIDE, fit="stretch"),
        network=LungNetwork(channels=(4, 8, 8, 8, 8)),
        masks=(MaskSource(name="drawn", path=tmp_path),),
        chests=(Source(name="one", path=tmp_path, layout="folders"),),
        training=LungTraining(stages=stages, steps_per_epoch=3, masks_per_step=2, checks_per_step=2, panel_images=0),
    )


class _Engine:
    """A fake engine: each step moves a kernel by an amount that depends on its inputs."""

    has_checks = True

    def __init__(self, network: LungNetwork, side: int, settings: LungTraining) -> None:
        self.side, self.mask_side = side, side // 2
        self._weights = {"conv/kernel": np.zeros((3, 3, 1, 1), np.float32)}
        self._momentum = np.zeros(1, np.float32)

    def step(self, images: np.ndarray, masks: np.ndarray, targets: np.ndarray, *, learning_rate: float) -> float:
        assert images.shape[1:] == (self.side, self.side) and masks.shape[1:] == (self.mask_side, self.mask_side, 1)
        shown = np.float32(images.mean() / 255 + masks.mean() / 2 + targets.mean())
        self._momentum = np.float32(0.9) * self._momentum + shown
        self._weights["conv/kernel"] = self._weights["conv/kernel"] - np.float32(learning_rate) * self._momentum
        return float(shown)

    def predict_masks_and_checks(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lung = 1 / (1 + np.exp(-self._weights["conv/kernel"].mean() * images[:, ::2, ::2].astype(np.float32) / 255))
        return lung[:, : self.mask_side, : self.mask_side, None].astype(np.float32), np.ones(
            (len(images), 6), np.float32
        )

    def weights(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self._weights.items()}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        self._weights = {name: np.array(array) for name, array in weights.items()}

    def optimiser_state(self) -> dict[str, np.ndarray]:
        return {"0": self._momentum}

    def set_optimiser_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._momentum = state["0"]


def test_a_training_killed_in_a_later_stage_goes_on_there_and_ends_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MaskEngine", _Engine)
    recipe = _recipe(tmp_path, TrainingStage(side=32, epochs=1), TrainingStage(side=SIDE, epochs=2))
    whole, _ = training.train(recipe, _data(), folder=tmp_path / "whole")

    def kill(row: EpochFigures) -> None:
        if row.epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        training.train(recipe, _data(), folder=tmp_path / "killed", progress=kill)
    done = list[int]()
    resumed, history = training.train(
        recipe, _data(), folder=tmp_path / "killed", progress=lambda row: done.append(row.epoch)
    )
    assert done == [3] and [row.epoch for row in history] == [1, 2, 3]
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


def _convolutions(model: object) -> list[object]:
    return [layer for layer in model.layers if type(layer).__name__ == "Conv2D"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("momentum", [0.0, 0.99])
def test_a_parameter_server_updates_a_lung_network_as_one_process_does(momentum: float) -> None:
    settings = LungTraining(stages=(TrainingStage(side=SIDE, epochs=1),), momentum=momentum)
    engine = MaskEngine(LungNetwork(channels=(4, 8, 8, 8, 8)), SIDE, settings)
    layout = WeightLayout.from_weights(engine.weights())
    rule = UpdateRule(weight_decay=settings.weight_decay, momentum=momentum, clip_norm=GRADIENT_NORM_LIMIT)
    start = ShardState.initial(layout.to_vector(engine.weights()))
    server = Shard(start, layout=layout, ranges=((0, layout.element_count),), rule=rule)
    masks = np.zeros((4, SIDE // 2, SIDE // 2, LungNetwork().mask_count), np.float32)
    masks[:, 8:24, 4:14] = 1
    batch = _data().images[:4], masks, np.zeros((0, len(LUNG_NETWORK_CHECKS)), np.float32)
    for rate in (0.01, 0.02, 0.03):
        gradient, loss = engine.gradient(*batch)
        server.update(layout.to_vector(gradient), learning_rate=rate)
        assert engine.step(*batch, learning_rate=rate) == pytest.approx(loss, rel=1e-4)
    one_process, moved = layout.to_vector(engine.weights()), server.state.weights
    assert np.abs(one_process - start.weights).max() > 0.01
    np.testing.assert_allclose(moved, one_process, atol=2e-5)


def test_the_published_network_takes_572_and_gives_388_by_23_convolutions() -> None:
    model = published_unet(side=572)
    assert model.input_shape == (None, 572, 572, 1) and model.output_shape == (None, 388, 388, 1)
    found = _convolutions(model)
    assert len(found) == 23
    assert [layer.filters for layer in found[:10]] == [64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024]  # type: ignore[attr-defined]
    last = found[-1]
    assert last.kernel_size == (1, 1) and last.kernel.shape == (1, 1, 64, 1)  # type: ignore[attr-defined]
    assert {layer.padding for layer in found if layer.kernel_size == (3, 3)} == {"valid"}  # type: ignore[attr-defined]


def test_only_input_sizes_that_halve_evenly_are_accepted() -> None:
    assert [published_mask_side(side) for side in (572, 188, 220)] == [388, 4, 36]
    with pytest.raises(ValueError, match="572"):
        published_mask_side(570)


def test_the_published_network_sees_the_image_mirrored_beyond_its_border() -> None:
    training = LungTraining(stages=(TrainingStage(side=220, epochs=1),), checks_per_step=0)
    engine = MaskEngine(LungNetwork(kind="published", root_channels=2), 220, training)
    image = np.arange(36 * 36, dtype=np.int64).reshape(1, 36, 36).astype(np.uint8)
    seen = engine.prepare(image)
    assert seen.shape == (1, 220, 220, 1)
    assert np.array_equal(seen[0, 92:128, 92:128, 0], image[0].astype(np.float32) / 255)
    assert np.array_equal(seen[0, 91, 92:128, 0], image[0, 0].astype(np.float32) / 255)  # its mirror image
    masks, checks = engine.predict_masks_and_checks(image)
    assert masks.shape == (1, 36, 36, 1) and checks.shape == (1, 0)


def test_the_compact_network_is_small_and_its_mask_half_the_side() -> None:
    network = compact_unet(height=256, width=256)
    sizes = layer_shapes(network)
    assert sizes["mask"] == (128, 128, 1) and sizes["scores"] == (len(LUNG_NETWORK_CHECKS),)
    assert 20e6 < multiply_add_count(network) < 60e6
    with_region = compact_unet(height=256, width=256, mask_count=2)
    assert layer_shapes(with_region)["mask"] == (128, 128, 2)
    assert multiply_add_count(with_region) < 1.05 * multiply_add_count(network)
    sets = channel_set_by_layer(network)
    assert all(sets[f"enlarge{step}"] == sets[f"step{step}"] for step in range(4))  # summed outputs share a set
    with pytest.raises(ValueError, match="multiples of 32"):
        compact_unet(height=250, width=256)


def test_every_size_of_the_compact_network_has_the_same_weights() -> None:
    channels = (8, 8, 8, 8, 8)
    small, large = (compact_unet(height=side, width=side, channels=channels) for side in (32, 64))
    weights = initial_weights(small, seed=1)
    model = build_network(large, outputs=["mask", "scores"])
    set_weights(model, weights)
    assert get_weights(model).keys() == weights.keys()
    mask, scores = model.predict_on_batch(np.zeros((1, 64, 64, 1), np.float32))
    assert mask.shape == (1, 32, 32, 1) and scores.shape == (1, 6)


def test_an_enlarged_layer_interpolates_between_the_middles_of_cells() -> None:
    network = compact_unet(height=32, width=32, channels=(8, 8, 8, 8, 8))
    model = build_network(network, outputs=["narrow0", "enlarge0"])
    set_weights(model, initial_weights(network, seed=2))
    small, large = model.predict_on_batch(np.random.default_rng(0).random((1, 32, 32, 1), np.float32))
    # a large cell a quarter of the way between two small ones: 3/4 of the near value and 1/4 of the far one
    across = 0.75 * small[0, :, 3] + 0.25 * small[0, :, 4]
    assert large[0, 7, 7] == pytest.approx(0.75 * across[3] + 0.25 * across[4], abs=1e-5)


def _square(top: int, left: int, *, side: int = 8, size: int = 32) -> np.ndarray:
    mask = np.zeros((size, size), np.bool_)
    mask[top : top + side, left : left + side] = True
    return mask


def test_dice_and_jaccard_of_perfect_disjoint_half_and_empty_masks() -> None:
    one, shifted, away, none = _square(0, 0), _square(0, 4), _square(16, 16), np.zeros((32, 32), np.bool_)
    assert (dice_coefficient(one, one), jaccard_index(one, one)) == (1.0, 1.0)
    assert (dice_coefficient(one, away), jaccard_index(one, away)) == (0.0, 0.0)
    # 8 x 8 cells each, 8 x 4 of them shared: 2 * 32 / 128 and 32 / 96
    assert (dice_coefficient(one, shifted), jaccard_index(one, shifted)) == (0.5, 1 / 3)
    assert (dice_coefficient(none, none), jaccard_index(none, none)) == (1.0, 1.0)
    assert (dice_coefficient(one, none), jaccard_index(one, none)) == (0.0, 0.0)


def test_distances_are_in_pixels_of_a_512_pixel_image() -> None:
    # one row of cells against the next, 32 cells a side: one cell is 512 / 32 = 16 pixels
    upper, lower = np.zeros((32, 32), np.bool_), np.zeros((32, 32), np.bool_)
    upper[10], lower[11] = True, True
    assert np.unique(surface_distances(upper, lower)).tolist() == [16.0]
    fit = measure_fit(upper, lower)
    assert (fit.average_distance, fit.distance_95, fit.dice) == (16.0, 16.0, 0.0)
    none = np.zeros((32, 32), np.bool_)
    assert surface_distances(none, none).tolist() == [0.0]
    assert surface_distances(upper, none) == pytest.approx([512 * np.sqrt(2)])  # the largest possible distance
    with pytest.raises(ValueError, match="cannot be compared"):
        measure_fit(upper, np.zeros((16, 16), np.bool_))


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


def test_unknown_parts_of_a_mask_do_not_add_to_the_loss() -> None:
    truth = _square(0, 0)[None, ..., None].astype(np.float32)
    logits = np.where(truth > 0, 30, -30).astype(np.float32)
    both, wrong = np.concatenate([truth, np.full_like(truth, UNKNOWN_TARGET)], axis=-1), np.full_like(logits, 30)
    assert float(mask_loss(both, np.concatenate([logits, wrong], axis=-1))[0]) < 1e-3
    both[0, : len(truth[0]) // 2, :, 1] = 0  # a mask known to be empty adds only the cross-entropy of its cells
    half = np.concatenate([logits, np.zeros_like(logits)], axis=-1)
    assert float(mask_loss(both, half)[0]) == pytest.approx(np.log(2) / 2, abs=1e-3)


def test_the_target_of_a_missing_mask_is_derived_from_the_other_where_possible() -> None:
    seen, whole = (np.zeros((8, 8), np.uint8) for _ in range(2))
    whole[1:7, 1:3] = whole[1:7, 5:7] = seen[1:7, 1:3] = 255  # the right one was painted white
    masks = np.stack([seen, whole])
    visible, region = mask_targets(masks, shows_region=False).transpose(2, 0, 1)
    assert np.array_equal(visible, seen / 255)
    assert (region[whole > 0] == 1).all() and (region[1:7, 3:5] == UNKNOWN_TARGET).all()
    assert (region[0] == 0).all() and (region[7] == 0).all() and (region[:, 0] == 0).all() and (region[:, 7] == 0).all()
    visible, region = mask_targets(masks, shows_region=True).transpose(2, 0, 1)
    assert np.array_equal(region, whole / 255)
    assert (visible[seen > 0] == UNKNOWN_TARGET).all() and (visible[seen == 0] == 0).all()
    assert np.array_equal(mask_targets(masks[:1], shows_region=False)[..., 0], seen / 255)


def test_unknown_checks_do_not_add_to_the_loss() -> None:
    logits = np.zeros((2, 3), np.float32)
    targets = np.array([[1, 0, 0], [0, -1, -1]], np.float32)
    # four known targets at ln 2 each: the mean over images is (3 + 1) ln 2 / mean(3, 1) / 2 = ln 2
    assert float(np.mean(image_check_loss(targets, logits))) == pytest.approx(np.log(2))
    logits[1, 1:] = 50  # an unknown mask changes nothing
    assert float(np.mean(image_check_loss(targets, logits))) == pytest.approx(np.log(2))


_MOVES = ImageMaskAugmentation(shift=0.1, scale=0.2, stretch=0.2, rotation_degrees=20, elastic=0.02)


def _pair(side: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Return a dark image with a bright box, and the box as its mask."""
    mask = np.zeros((side, side), np.uint8)
    mask[20:44, 16:32] = 255
    return mask // 2, mask


def test_a_mask_moves_with_its_image() -> None:
    image, mask = _pair()
    for seed in range(5):
        moved, follows = augment_with_mask(image, mask, _MOVES, generator=np.random.default_rng(seed))
        assert not np.array_equal(moved, image)
        assert np.abs(moved.astype(int) - follows // 2).max() <= 1  # the box still has its size


def test_grey_levels_letters_and_borders_leave_the_mask_alone() -> None:
    image, mask = _pair()
    settings = ImageMaskAugmentation(gamma=0.5, contrast=0.5, noise=0.1, letters=1, collimation=1, inversion=1)
    changed, follows = augment_with_mask(image, mask, settings, generator=np.random.default_rng(0))
    assert np.array_equal(follows, mask) and not np.array_equal(changed, image)


def test_all_masks_of_an_image_move_alike() -> None:
    image, mask = _pair()
    _, follows = augment_with_mask(image, mask, _MOVES, generator=np.random.default_rng(1))
    _, both = augment_with_mask(
        image, np.stack([mask, 255 - mask], axis=-1), _MOVES, generator=np.random.default_rng(1)
    )
    assert np.array_equal(both[..., 0], follows) and not np.array_equal(both[..., 1], follows)


def test_a_white_lung_is_cut_out_of_its_mask_and_nothing_else_is() -> None:
    mask = np.zeros((64, 64), np.uint8)
    mask[10:50, 8:26] = mask[10:50, 38:56] = 255
    image = np.where(mask > 0, np.uint8(40), np.uint8(160))
    shares = []
    for seed in range(8):
        changed, seen = whiten_lung(image, mask, np.random.default_rng(seed))
        gone = (mask > 0) & (seen == 0)
        assert gone.any() and (seen <= mask).all()
        assert changed[gone].mean() > 110 and changed[seen > 0].mean() < 70
        shares.append([gone[:, half].sum() / (mask[:, half] > 0).sum() for half in (slice(0, 32), slice(32, 64))])
    assert any(max(one) == 1 for one in shares) and any(0 < max(one) < 1 for one in shares)
    one_lung = np.where(np.arange(64) < 32, mask, np.uint8(0))
    same, seen = whiten_lung(image, one_lung, np.random.default_rng(0))
    assert np.array_equal(same, image) and np.array_equal(seen, one_lung)


def test_augmentation_with_all_settings_zero_changes_nothing() -> None:
    image, mask = _pair()
    same, follows = augment_with_mask(image, mask, ImageMaskAugmentation(), generator=np.random.default_rng(0))
    assert np.array_equal(same, image) and np.array_equal(follows, mask)


def test_a_turned_image_has_the_targets_of_its_orientation() -> None:
    image = np.arange(16, dtype=np.uint8).reshape(4, 4)
    same, targets = reorient(image)
    assert np.array_equal(same, image) and targets.tolist() == [1, 0, 0, 0, 0, 0]
    clockwise, targets = reorient(image, turns=1)
    assert clockwise[0].tolist() == [12, 8, 4, 0]  # the left column, from below, is now on top
    assert dict(zip(LUNG_NETWORK_CHECKS, targets, strict=True))["rotated_90"] == 1 and targets.sum() == 2
    both, targets = reorient(image, turns=3, is_mirrored=True, is_inverted=True)
    assert targets.tolist() == [1, 0, 0, 1, 1, 1]
    assert np.array_equal(both, 255 - np.rot90(image[:, ::-1]))


@pytest.mark.parametrize("kind", [*OOD_KIND_WEIGHTS, "files"])
def test_every_kind_of_ood_image_is_an_image_of_its_own(kind: str) -> None:
    chests = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
    images = ImagesForImageChecks(chests_and_frequency_by_source={"a": (chests, 1.0)}, ood_images=chests[:2])
    first, again, other = (
        images.draw_ood_image(ImageMaskAugmentation(noise=0.05), generator=np.random.default_rng(seed), kind=kind)
        for seed in (0, 0, 1)
    )
    assert first.shape == (64, 64) and first.dtype == np.uint8 and first.std() > 1
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_an_ood_image_has_only_the_target_of_its_check() -> None:
    chests = np.zeros((1, 64, 64), np.uint8)
    images = ImagesForImageChecks(
        chests_and_frequency_by_source={"a": (chests, 1.0)}, ood_images=np.zeros((0, 64, 64), np.uint8)
    )
    generator = np.random.default_rng(0)
    _, targets = images.draw_training_image(ImageMaskAugmentation(), ood_share=1.0, generator=generator)
    assert targets.tolist() == [0] + [UNKNOWN_TARGET] * 5
    _, targets = images.draw_training_image(ImageMaskAugmentation(), ood_share=0.0, generator=generator)
    assert targets[0] == 1 and UNKNOWN_TARGET not in targets
    assert set(OOD_KIND_WEIGHTS) == {*SYNTHETIC_OOD_DRAW_FUNCTIONS, *OOD_CHEST_CROP_FUNCTIONS}


def test_sources_are_drawn_by_their_weights() -> None:
    dark, light = np.zeros((1, 64, 64), np.uint8), np.full((1, 64, 64), 255, np.uint8)
    images = ImagesForImageChecks(
        chests_and_frequency_by_source={"dark": (dark, 3.0), "light": (light, 1.0)}, ood_images=dark
    )
    generator = np.random.default_rng(0)
    drawn = [images.pick_chest_image(generator)[0, 0] for _ in range(400)]
    assert 0.68 < np.mean(np.array(drawn) == 0) < 0.82  # three of four

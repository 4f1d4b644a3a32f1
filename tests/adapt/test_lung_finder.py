"""Lung fields in the training of a classifier: finding them by a pack, cropping, caching, and the pack's requirement.

Also networks averaged over groups of sources, frozen layers, and the penalty of evidence outside the lungs.
"""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from fieldray.domain.image import Image
from fieldray.domain.model import InputSpec, PackRequirement
from fieldray.errors import UsageProblem
from fieldray.packs.verified import read_pack
from fieldray_adapt.data.augmentation import Augmentation, apply_geometric_change, draw_geometric_change
from fieldray_adapt.data.image_set import LungFinder, read_images, read_rows
from fieldray_adapt.evaluation.evaluate import evidence_figures, evidence_shares, heat_map_logit_range
from fieldray_adapt.networks.architectures import resnet50
from fieldray_adapt.networks.specification import Weights, initial_weights
from fieldray_adapt.recipe_actions import check_recipe, run_recipe
from fieldray_adapt.recipes.classifier import ClassifierRecipe
from fieldray_adapt.recipes.shared import Source
from fieldray_adapt.run import Run
from fieldray_adapt.training.classifier import Samples, Schedule, TrainingOptions, train
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_adapt.training.steps import recipe_specification, train_recipe
from shipped_packs import CHILDREN
from tiny_lungs import write_tiny_lungs
from tiny_recipe import RECIPE, bright_or_dark, read_recipe


def _chest(*, abnormal: bool, number: int) -> np.ndarray:
    """Two dark lungs, rows 16..48, columns 8..24 and 40..56 of 64; abnormal: a grey spot in each. No two are alike."""
    generator = np.random.default_rng(number)
    pixels = 180 + generator.integers(0, 30, (8, 8), np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    for left in (8, 40):
        pixels[16:48, left : left + 16] = (
            generator.integers(0, 40, (4, 2), np.uint8).repeat(8, axis=0).repeat(8, axis=1)
        )
        if abnormal:
            pixels[24:36, left + 4 : left + 12] = 90
    pixels[:2] = 255
    return pixels.astype(np.uint8)


def _draw(folder: Path, *, images: int) -> Path:
    with (folder / "images.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["path", "label", "patient", "fold"])
        for number in range(images):
            Picture.fromarray(_chest(abnormal=number % 2 == 1, number=number)).save(folder / f"{number}.png")
            writer.writerow([f"{number}.png", number % 2, f"p{number}", number // 2 % 3])
    return folder / "images.csv"


def test_the_lungs_of_an_image_are_found_by_the_rules_of_screening(tmp_path: Path) -> None:
    finder = LungFinder(write_tiny_lungs(tmp_path))
    found = finder.find(Image(pixels=_chest(abnormal=False, number=0)))
    assert found.is_frontal_chest and found.has_lungs
    box = found.crop_box(rows=64, columns=64, margin=0.0)
    # the tiny network sees blocks of 16 pixels
    assert (box.top, box.height) == pytest.approx((16, 32), abs=2) and box.left <= 8 and box.left + box.width >= 56


def test_hidden_lung_regions_are_found_and_a_pack_may_be_cropped_to_them(tmp_path: Path) -> None:
    chest = _chest(abnormal=False, number=0)
    chest[48:56, 8:56] = 150  # less than half dark: the network sees no lung
    finder = LungFinder(write_tiny_lungs(tmp_path, masks=2))
    found = finder.find(Image(pixels=chest))
    seen, whole = (found.crop_box(rows=64, columns=64, margin=0.0, crop=crop) for crop in ("lungs", "lung_region"))
    assert seen.top == pytest.approx(whole.top, abs=2) and whole.height > seen.height + 4


def test_a_pack_that_is_not_a_lung_field_pack_is_refused() -> None:
    with pytest.raises(UsageProblem, match="lungs must name a pack that finds the lungs"):
        LungFinder(CHILDREN)


def test_cropped_images_keep_their_lung_masks(tmp_path: Path) -> None:
    table, finder = _draw(tmp_path, images=4), write_tiny_lungs(tmp_path)
    source = Source(path=table, layout="csv", name="drawn")
    rows = read_rows([source], folder=tmp_path)
    spec = InputSpec(height=32, width=32, crop="lungs", intensity="as_displayed")
    whole = InputSpec(height=32, width=32, intensity="as_displayed")

    def read(wanted: InputSpec, pack: Path | None):
        return read_images(rows, wanted, cache=tmp_path / "images.npz", progress=lambda *_: None, lung_pack=pack)

    cropped, plain = read(spec, finder), read(whole, None)
    assert (
        plain.lung_share_grids is None
        and cropped.lung_share_grids is not None
        and cropped.lung_share_grids.shape == (4, 64, 64)
    )
    # all rows from the top to the bottom of the lungs; much more of the picture is dark
    assert (cropped.images < 100).mean() > 1.5 * (plain.images < 100).mean()
    dark = cropped.images[0, ::, ::, 0] < 100
    share = cropped.lung_share_grids[0].reshape(32, 2, 32, 2).mean((1, 3)) / 255
    assert share[dark].mean() > 0.7
    # the lungs belong to the whole image, not to the crop; the second time they come from the cache
    found = read(whole, finder)
    assert found.lung_share_grids is not None
    assert np.array_equal(read(whole, finder).images, plain.images)


@pytest.mark.adapt
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pack_that_was_trained_on_lungs_requires_the_pack_that_finds_them(tmp_path: Path) -> None:
    _draw(tmp_path, images=48)
    write_tiny_lungs(tmp_path)
    text = RECIPE[: RECIPE.index("[prune]")] + RECIPE[RECIPE.index("[evaluation]") : RECIPE.index("[[data]]")]
    text = text.replace('run = "run"', 'run = "run"\nlungs = "test-lungs-1.0.0"')
    text = text.replace("width = 32", 'width = 32\ncrop = "lungs"\ncrop_margin = 0.05')
    text = text.replace("blocks = [1]", 'blocks = [1]\nfrozen = ["conv"]')
    text = text.replace("epochs = 4", "epochs = 4\nevidence_outside = 0.1\naverage_sources = true")
    text += '[[data]]\nname = "drawn"\nlayout = "csv"\npath = "images.csv"\ncolumns = { fold = "fold" }\n'
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(text, encoding="utf-8")
    check_recipe(recipe)
    run_recipe("run", recipe, say=lambda _: None, progress=lambda *_: None)
    folder = tmp_path / "packs" / "quick-0.1.0"
    model = read_pack(folder).model
    (required,) = model.manifest.requires
    assert required.key is not None
    assert required == PackRequirement(kind="lung-fields", id="test-lungs", minimum_version="1.0.0", key=required.key)
    assert model.manifest.input.crop == "lungs" and model.manifest.input.crop_margin == 0.05
    inside = model.manifest.metrics["evidence_inside"]
    assert isinstance(inside, dict) and 0 < inside["chance"] < 1
    assert "cropped to the lungs with 5% of their extent around them" in model.card
    shutil.rmtree(tmp_path / "test-lungs-1.0.0")
    with pytest.raises(UsageProblem, match="which is not a pack"):
        check_recipe(recipe)
    assert read_recipe(recipe).lungs == tmp_path / "test-lungs-1.0.0"


NETWORK = resnet50(height=32, width=32, labels=1, blocks=(1, 1)).with_scaled_channels(0.125)


def test_three_stages_and_a_last_stride_of_one_make_finer_class_maps() -> None:
    from fieldray_adapt.networks.specification import layer_shapes

    sides = {(2, (3, 4, 6, 3)): 8, (1, (3, 4, 6, 3)): 16, (2, (3, 4, 6)): 16}
    for (stride, blocks), side in sides.items():
        network = resnet50(height=256, width=256, labels=1, blocks=blocks, last_stride=stride)
        assert layer_shapes(network)["class_maps"][:2] == (side, side)


def test_an_image_and_its_lungs_move_alike() -> None:
    settings = Augmentation(shift=0.1, scale=0.1, rotation_degrees=10, flip=0.5)
    large, small = np.zeros((64, 64), np.uint8), np.zeros((32, 32), np.uint8)
    large[16:40, 8:32] = small[8:20, 4:16] = 255
    for seed in range(10):
        motion = draw_geometric_change(settings, np.random.default_rng(seed))
        shrunk = apply_geometric_change(large, motion).reshape(32, 2, 32, 2).mean((1, 3))
        assert np.abs(shrunk - apply_geometric_change(small, motion)).mean() < 8  # of 255 levels; only the edges differ


@pytest.mark.adapt
def test_evidence_outside_the_lungs_adds_to_the_loss(tmp_path: Path) -> None:
    samples = bright_or_dark(48, lungs=True)
    schedule = Schedule(epochs=6, batch_size=16, learning_rate=3e-3, average_epochs=0.5, seed=5)
    outside = {}
    for weight in (0.0, 4.0):
        settings = EngineSettings(outside_weights=(weight,), threads=1)
        weights, _ = train(
            NETWORK,
            initial_weights(NETWORK, seed=1),
            training=samples,
            validation=samples,
            options=TrainingOptions(schedule=schedule, augmentation=Augmentation(), engine_settings=settings),
            folder=tmp_path / str(weight),
        )
        maps = _class_maps(weights, samples)
        positive = maps[samples.targets[:, 0] == 1].clip(0, None)
        outside[weight] = positive[:, :, 2:].sum() / max(positive.sum(), 1e-6)
    assert outside[4.0] < 0.7 * outside[0.0]


def _class_maps(weights, samples: Samples):
    from fieldray_adapt.training.keras_engine import build_network, set_weights

    model = build_network(NETWORK, outputs=["class_maps"])
    set_weights(model, weights)
    return np.asarray(model.predict_on_batch(samples.images.astype(np.float32) / 255))[..., 0]


def _recipe(folder: Path, **training: object):
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    recipe = read_recipe(folder / "recipe.toml")
    frozen = replace(recipe.network, frozen=("conv",))
    return replace(recipe, network=frozen, training=replace(recipe.training, epochs=2, **training))


def _two_sources() -> Samples:
    clean, other = bright_or_dark(20, source="clean"), bright_or_dark(12, source="confounded")
    return Samples(
        images=np.concatenate([clean.images, other.images]),
        targets=np.concatenate([clean.targets, other.targets]),
        sources=clean.sources + other.sources,
        patients=clean.patients + other.patients,
    )


def _trained(recipe: ClassifierRecipe, training: Samples, folder: Path) -> Weights:
    run = Run(recipe=recipe, progress=lambda *_: None)
    return train_recipe(run, training=training, validation=_two_sources(), folder=folder)[0]


@pytest.mark.adapt
def test_heads_of_single_sources_are_averaged_in_their_shares(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, average_sources=True)
    both = _two_sources()
    clean, other = (both.select_sources([name]) for name in ("clean", "confounded"))
    heavier = replace(recipe.data[0], share=3.0)
    averaged = _trained(replace(recipe, data=(heavier, recipe.data[1])), both, tmp_path / "both")
    alone = [_trained(recipe, samples, tmp_path / samples.sources[0]) for samples in (clean, other)]
    expected = 0.75 * alone[0]["class_maps/kernel"] + 0.25 * alone[1]["class_maps/kernel"]
    np.testing.assert_allclose(averaged["class_maps/kernel"], expected, atol=1e-5)
    start = initial_weights(recipe_specification(recipe), seed=0)
    assert all(np.array_equal(averaged[key], start[key]) for key in start if not key.startswith("class_maps"))


@pytest.mark.adapt
def test_networks_of_single_groups_are_averaged_and_their_statistics_recomputed(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, average_sources=True)
    heavier = replace(recipe.data[0], share=3.0)
    recipe = replace(recipe, network=replace(recipe.network, frozen=()), data=(heavier, recipe.data[1]))
    both = _two_sources()
    averaged = _trained(recipe, both, tmp_path / "both")
    alone = [_trained(recipe, both.select_sources([name]), tmp_path / name) for name in ("clean", "confounded")]
    for key in averaged:
        expected = 0.75 * alone[0][key] + 0.25 * alone[1][key]
        if key.endswith(("/mean", "/variance")):
            assert not np.allclose(averaged[key], expected, rtol=1e-4, atol=1e-6), key
        else:
            np.testing.assert_allclose(averaged[key], expected, atol=1e-5, err_msg=key)


@pytest.mark.adapt
def test_sources_of_one_group_train_one_network(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, average_sources=True)
    together = replace(recipe, data=tuple(replace(source, group="one") for source in recipe.data))
    plain = replace(together, training=replace(together.training, average_sources=False))
    averaged = _trained(together, _two_sources(), tmp_path / "together")
    for key, array in _trained(plain, _two_sources(), tmp_path / "plain").items():
        np.testing.assert_allclose(averaged[key], array, atol=1e-6, err_msg=key)


def test_settings_that_need_a_lung_field_pack_are_refused_without_one(tmp_path: Path) -> None:
    text = RECIPE.replace("epochs = 4", "epochs = 4\nevidence_outside = 1.0")
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageProblem, match="lungs is needed"):
        read_recipe(tmp_path / "recipe.toml")


def test_evidence_counts_above_the_operating_point_and_inside_the_lungs() -> None:
    lungs = np.zeros((3, 64, 64), np.uint8)
    lungs[:, :, :32] = 255
    maps = np.full((3, 4, 4), -1.0, np.float32)
    maps[0, 0, 0], maps[0, 0, 3] = 3.0, 1.0  # 2 inside and 0 outside above the threshold of 1
    maps[1, 1, 1], maps[1, 1, 2] = 2.0, 4.0  # 1 inside, 3 outside
    shares = evidence_shares(maps, lungs, evidence_threshold=1.0)
    np.testing.assert_allclose(shares[:2], [1.0, 0.25])
    assert np.isnan(shares[2])
    found = evidence_figures(maps, lungs, evidence_threshold=1.0)
    assert (found.images, found.mean, found.chance) == (2, 0.625, 0.5) and found.limit == pytest.approx(0.2875)


def test_the_strongest_colour_is_reached_by_half_of_the_abnormal_images() -> None:
    maps = np.full((4, 2, 2), -3.0, np.float32)
    maps[:, 0, 1] = [99.0, 3.0, 5.0, 11.0]
    scores = np.array([0.49, 0.5, 0.9, 0.99])  # the first image is below the threshold, and does not count
    assert heat_map_logit_range(maps, scores, threshold=0.5, evidence_threshold=1.0) == 4.0
    assert heat_map_logit_range(maps, scores, threshold=0.5, evidence_threshold=20.0) is None
    assert heat_map_logit_range(maps, scores, threshold=1.0, evidence_threshold=1.0) is None

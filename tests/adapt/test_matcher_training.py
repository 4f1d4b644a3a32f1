"""The encoder, what it is trained on, and the known warps that it is measured by."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from fieldray.domain.model import InputSpec
from fieldray.imaging.synthetic import chest_phantom
from fieldray_adapt.augmentation import PairAugmentation
from fieldray_adapt.matcher import engine, train
from fieldray_adapt.matcher.matches import (
    TruePair,
    band_pass,
    consensus,
    draw_places,
    draw_warp,
    expose_mildly,
    expose_strongly,
    find_matches,
    followed_by,
    jacobian,
    raw,
    warp,
)
from fieldray_adapt.matcher.recipe import (
    FEATURES,
    MatcherNetwork,
    MatcherRecipe,
    MatcherTraining,
    PairSource,
    locally_normalised,
    passing_weights,
    residual_unet,
)
from fieldray_adapt.matcher.train import MatcherData, roughly_aligned
from fieldray_adapt.recipe import PackTexts
from fieldray_adapt.specification import shapes

pytestmark = pytest.mark.adapt
_NETWORK = MatcherNetwork(channels=(4, 8), features=2, local_radius=4)
_TRAINING = MatcherTraining(
    epochs=2,
    steps_per_epoch=4,
    pairs_per_step=2,
    templates_per_pair=4,
    crop_side=48,
    templates=(12,),
    reach=8,
    distance=3,
)


def _chest(seed: int, side: int = 64) -> np.ndarray:
    return (chest_phantom(side, side, seed, abnormal=False) / 17).astype(np.uint8)


def _data(patients: int = 6, side: int = 64) -> MatcherData:
    priors = np.stack([_chest(number, side) for number in range(patients)])
    return MatcherData(
        priors=priors,
        currents=np.roll(priors, 2, axis=1),
        parts=np.array(["training", "training", "training", "validation", "validation", "test"]),
        patients=np.array([f"person{number}" for number in range(patients)]),
        sources=np.array(["drawn"] * patients),
        is_far=np.zeros(patients, np.bool_),
        likeness=np.ones(patients, np.float32),
    )


def _recipe(**changes: object) -> MatcherRecipe:
    return MatcherRecipe(
        kind="matcher",
        pack=PackTexts(id="mine"),
        input=InputSpec(height=256, width=256),
        network=_NETWORK,
        pairs=(PairSource(path=Path("pairs.csv")),),
        augmentation=PairAugmentation(shift=0.02, noise=0.02),
        training=replace(_TRAINING, **changes),
    )


def test_the_encoder_keeps_the_size_and_has_the_published_levels() -> None:
    whole = residual_unet(side=512)
    sizes = shapes(whole)
    assert [sizes[f"down{level}_3"] for level in range(4)] == [
        (512, 512, 8),
        (256, 256, 16),
        (128, 128, 32),
        (64, 64, 64),
    ]
    assert sizes[FEATURES] == (512, 512, 2)
    # Where a level comes back up, its skip is added: both have the level's own channels.
    assert all(whole.layer(f"join{level}").inputs == (f"narrow{level}", f"down{level}_3") for level in range(3))
    assert whole.layer(FEATURES).activation == "tanh"
    with pytest.raises(ValueError, match="halve evenly"):
        residual_unet(side=500)


def test_at_first_the_features_are_the_image() -> None:
    from fieldray_adapt.keras_engine import build_network, set_weights

    specification = residual_unet(side=32, channels=(4, 8), features=2)
    model = build_network(specification, outputs=[FEATURES])
    set_weights(model, passing_weights(specification, seed=1))
    image = np.random.default_rng(1).random((1, 32, 32, 1), np.float32)
    found = model.predict_on_batch(image)[0, 2:-2, 2:-2, 0]
    assert np.corrcoef(found.ravel(), np.tanh(3 * image - 1.5)[0, 2:-2, 2:-2, 0].ravel())[0, 1] > 0.95


def test_both_images_pass_through_the_same_weights() -> None:
    """Exchanging prior and current of every pair exchanges nothing but their roles: features depend on the image."""
    made = engine.MatcherEngine(_NETWORK, _TRAINING)
    step = train.Sampler(_recipe(), _data(), "training").step(np.random.default_rng(1), 0)
    same = replace(step, currents=step.priors)
    # One image twice: every template correlates with its own place by 1, which only equal weights can do.
    import tensorflow as tf

    from fieldray_adapt.matcher.engine import correlate

    features = made.model(tf.constant(np.concatenate([same.priors, same.currents])[..., None] / np.float32(255)))
    half = len(same.priors)
    assert np.array_equal(features[:half], features[half:])
    own = engine.cut(features[:half], tf.constant(same.owners), tf.constant(same.corners), side=12)
    wide = engine.cut(features[half:], tf.constant(same.owners), tf.constant(same.corners - 8), side=28)
    values = np.asarray(correlate(wide, own))
    assert values[:, 8, 8] == pytest.approx(1, abs=1e-4)
    # There is one set of weights, whatever the number of images.
    assert len(made.weights()) == 2 * sum(layer.has_weights for layer in residual_unet(side=48, channels=(4, 8)).layers)


def test_nothing_that_learns_is_given_a_displacement() -> None:
    assert [field.name for field in fields(engine.Step)] == ["priors", "currents", "owners", "corners", "template"]
    for module in (engine, train):
        source = inspect.getsource(module)
        assert "warps" not in source and "truth" not in source and "consensus" not in source
    assert {field.name for field in fields(MatcherData)}.isdisjoint({"displacements", "matrices", "truth"})


def test_a_step_draws_different_patients_and_templates_with_their_reach() -> None:
    sampler = train.Sampler(_recipe(same_image=0.5), _data(), "training")
    for number in range(6):
        step = sampler.step(np.random.default_rng(number), number)
        assert step.priors.shape == step.currents.shape == (2, 48, 48)
        assert not np.array_equal(step.priors[0], step.priors[1])
        assert step.corners.min() >= 8 and step.corners.max() + 12 + 8 <= 48
    again = sampler.step(np.random.default_rng(5), 5)
    assert np.array_equal(again.priors, step.priors) and np.array_equal(again.corners, step.corners)


def test_training_widens_the_gap_and_resumes(tmp_path: Path) -> None:
    recipe, data, rows = _recipe(epochs=3, learning_rate=5e-4, same_image=1.0), _data(), []
    weights, history = train.train(recipe, data, folder=tmp_path, progress=rows.append)
    assert [row["epoch"] for row in rows] == [1, 2, 3] and np.isfinite([row["loss"] for row in history]).all()
    assert history[-1]["validation_gap"] > 0
    again, same = train.train(recipe, data, folder=tmp_path)  # all epochs are in the checkpoint
    assert same == history and all(np.array_equal(again[name], weights[name]) for name in weights)


def test_a_warp_is_as_long_as_asked_and_does_not_fold() -> None:
    field = draw_warp(64, largest_px=5, generator=np.random.default_rng(1))
    assert field.shape == (64, 64, 2) and np.hypot(field[..., 0], field[..., 1]).max() <= 5.001
    assert jacobian(field).min() >= 0.5
    assert jacobian(draw_warp(64, largest_px=60, generator=np.random.default_rng(2))).min() >= 0.5


def test_a_warped_image_shows_what_lies_at_the_displaced_place() -> None:
    ramp = np.arange(64, dtype=np.uint8)[:, None].repeat(64, axis=1)
    moved = warp(ramp, np.stack([np.full((64, 64), 3, np.float32), np.zeros((64, 64), np.float32)], axis=-1))
    assert (moved[:60, 5] == np.arange(3, 63)).all()  # row 10 shows row 13


def test_exposures_keep_the_place_and_differ() -> None:
    image, generator = _chest(3), np.random.default_rng(1)
    for expose, least in ((expose_mildly, 0.9), (expose_strongly, 0.2)):
        changed = expose(image, generator)
        assert changed.dtype == np.uint8 and not np.array_equal(changed, image)
        assert np.corrcoef(changed.ravel(), image.ravel())[0, 1] > least


def test_rough_alignment_brings_a_moved_image_back() -> None:
    image = _chest(5, 128)
    moved = np.roll(image, (9, -6), axis=(0, 1))
    back, score = roughly_aligned(moved, image)
    inner = (slice(20, -20), slice(20, -20))
    before, after = (np.corrcoef(one[inner].ravel(), image[inner].ravel())[0, 1] for one in (moved, back))
    assert score > 0.9 and after > before and after > 0.95


def test_every_description_is_asked_for_the_same_templates() -> None:
    image = _chest(6, 128)
    field = draw_warp(128, largest_px=5, generator=np.random.default_rng(3))
    pair = TruePair(prior=warp(image, field), current=image, truth=field, group="near", patient="one", tolerance_px=3)
    asked = {"reach": 16, "count": 6}
    places = draw_places(pair, template=24, generator=np.random.default_rng(1), **asked)
    assert len(places) == 6 and places.min() >= 16 and places.max() <= 128 - 24 - 16
    found = find_matches(
        [pair], {"raw": raw, "black": lambda images: np.zeros((*images.shape, 1), np.float32)},
        templates=(24,), distance=4, seed=1, **asked,
    )  # fmt: skip
    assert not found["raw"].is_false.any() and found["raw"].first.min() > 0.8
    assert not found["black"].first.any() and len(found["black"].error_px) == len(found["raw"].error_px) == 6
    # Without a peak the first place wins, which lies 16 pixels up and to the left.
    assert found["black"].is_false.all()


def test_two_images_agree_on_a_shift_and_dissimilar_ones_on_nothing() -> None:
    image = _chest(7, 256)
    judges = [raw, lambda images: band_pass(images, fine_px=1, coarse_px=4)]
    agreed, share = consensus(np.roll(image, (-4, 6), axis=(0, 1)), image, judges)
    assert agreed is not None and share > 0.8
    known = np.isfinite(agreed[..., 0])
    assert np.median(agreed[known], axis=0) == pytest.approx((4, -6), abs=1)
    nothing, _ = consensus(np.random.default_rng(1).integers(0, 255, (256, 256), np.uint8), image, judges)
    assert nothing is None
    composed = followed_by(np.full((256, 256, 2), 2, np.float32), agreed)
    assert np.nanmedian(composed[..., 0]) == pytest.approx(6, abs=1)


def test_local_normalisation_forgets_exposure() -> None:
    image = _chest(8, 96).astype(np.float32)
    plain = locally_normalised(image, radius_px=8)
    darker = locally_normalised(image * 0.5 + 20, radius_px=8)
    assert plain.dtype == np.uint8 and plain.shape == (96, 96)
    assert np.corrcoef(plain.ravel(), darker.ravel())[0, 1] > 0.98
    assert (locally_normalised(np.full((20, 30), 200, np.uint8), radius_px=4) == 128).all()
    with pytest.raises(ValueError, match="rows and columns"):
        locally_normalised(image[..., None], radius_px=4)

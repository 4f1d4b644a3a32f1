"""Conversion to TensorFlow Lite and int8: equalised channel ranges, corrected means, and a head fitted again."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fieldray.domain.model import InputSpec
from fieldray_adapt.networks.architectures import NETWORKS, resnet50, vgg16_dense
from fieldray_adapt.networks.quantise import (
    HEAD_RIDGE_PENALTY_PER_IMAGE,
    NetworkOutputs,
    correct_rounding,
    equalise_channels,
    quantise,
    refit_head,
    run_network,
    to_float_file,
)
from fieldray_adapt.networks.specification import Specification, Weights, initial_weights, weight_shapes
from fieldray_adapt.training.keras_engine import build_network, set_weights

pytestmark = pytest.mark.adapt
SPEC = InputSpec(height=32, width=48)
NETWORK = resnet50(height=32, width=48, labels=2, blocks=(1, 1)).with_scaled_channels(0.25)


def _weights() -> dict[str, np.ndarray]:
    weights = initial_weights(NETWORK, seed=2)
    weights["class_maps/kernel"] *= 30
    for key in weights:
        if key.endswith("/gamma"):
            weights[key][:] = 1
    return weights


def test_int8_and_float_files_give_equal_scores() -> None:
    weights, images = _weights(), np.random.default_rng(1).integers(0, 256, (12, 32, 48, 1), np.uint8)
    images[::2] //= 3
    model = build_network(NETWORK, outputs=["scores", "class_maps", "features"])
    set_weights(model, weights)
    scores, maps, features = (np.asarray(tensor) for tensor in model(images.astype(np.float32) / 255))
    assert np.ptp(scores) > 0.1
    files = (to_float_file(NETWORK, weights), quantise(NETWORK, weights, representative=images))
    for file, tolerance in zip(files, (1e-4, 0.03), strict=True):
        found = run_network(file.data, images, spec=SPEC, outputs=file.output_roles(NETWORK), labels=2)
        np.testing.assert_allclose(found.scores, scores, atol=tolerance)
        np.testing.assert_allclose(found.class_maps, maps.transpose(0, 3, 1, 2), atol=tolerance * 10 * np.ptp(maps))
        np.testing.assert_allclose(found.features, features, atol=tolerance * 5 * features.max())
    assert len(files[1].data) < 0.5 * len(files[0].data)
    with pytest.raises(ValueError, match="representative"):
        quantise(NETWORK, weights, representative=images[:0])


def test_rounding_no_longer_moves_the_means() -> None:
    """The first kernel takes differences of bright values, so that rounding moves the mean."""
    weights, images = _weights(), np.random.default_rng(5).integers(200, 256, (32, 32, 48, 1), np.uint8)
    kernel = weights["conv1/kernel"]
    kernel -= kernel.mean((0, 1, 2))
    weights["conv1/gamma"] *= 12  # magnified, because after training differences are small
    corrected = correct_rounding(NETWORK, weights, representative=images)
    rounded = ({key: _rounded(key, chosen) for key in chosen} for chosen in (weights, corrected))
    means = []
    for chosen in (weights, *rounded):
        file = to_float_file(NETWORK, chosen)
        found = run_network(file.data, images, spec=SPEC, outputs=file.output_roles(NETWORK), labels=2)
        means.append(found.features.mean(0))
    before, after = (np.abs(own - means[0]).mean() for own in means[1:])
    assert after < 0.3 * before


def _rounded(key: str, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Return weights rounded as in int8 with a scale for each output channel, without normalisation."""
    array = weights[key]
    if not key.endswith("/kernel"):
        return array
    scale = np.abs(array).max((0, 1, 2)) / 127
    return (np.rint(array / scale) * scale).astype(np.float32)


MADE = {**NETWORKS, "vgg16_dense": vgg16_dense}


def _network(kind: str) -> tuple[Specification, Weights, NDArray[np.uint8]]:
    """Return a small network whose channel ranges differ by up to a factor of a thousand, and images for it."""
    whole = MADE[kind](height=32, width=32, labels=2, input_channels=1)
    specification, generator = whole.with_scaled_channels(0.125), np.random.default_rng(3)
    weights = initial_weights(specification, seed=0)
    for key, shape in weight_shapes(specification).items():
        part = key.rpartition("/")[2]
        if part == "gamma":
            weights[key] = (weights[key] * 10 ** generator.uniform(-3, 0, shape)).astype(np.float32)
        elif part in ("beta", "mean", "bias"):
            weights[key] = generator.normal(0, 0.01, shape).astype(np.float32)
    return specification, weights, generator.integers(0, 256, (6, 32, 32, 1), np.uint8)


def _outputs(
    specification: Specification, weights: Weights, images: NDArray[np.uint8], name: str
) -> NDArray[np.float32]:
    model = build_network(specification, outputs=[name])
    set_weights(model, weights)
    return np.asarray(model.predict_on_batch(images.astype(np.float32) / 255), np.float32)


@pytest.mark.parametrize("kind", sorted(MADE))
def test_equalised_channels_do_not_change_outputs(kind: str) -> None:
    specification, weights, images = _network(kind)
    levelled = equalise_channels(specification, weights, representative=images)
    before, after = (_outputs(specification, own, images, "logits") for own in (weights, levelled))
    assert before.std() > 0 and np.abs(before - after).max() < 1e-3 * np.abs(before).max()


def test_channel_ranges_become_more_equal_where_they_are_rectified_or_added() -> None:
    specification, weights, images = _network("resnet50")
    levelled = equalise_channels(specification, weights, representative=images)
    for name in ("conv2_block1_1", "conv3_block1_out"):
        spreads = []
        for own in (weights, levelled):
            largest = np.abs(_outputs(specification, own, images, name)).max((0, 1, 2))
            spreads.append(np.median(largest) / largest.max())
        assert spreads[1] > 1.5 * spreads[0]


def test_channels_without_a_rectifier_are_not_rescaled() -> None:
    specification, weights, images = _network("mobilenet")
    levelled = equalise_channels(specification, weights, representative=images)
    assert all(np.array_equal(weights[key], levelled[key]) for key in weights if not key.startswith("class_maps"))


RNG = np.random.default_rng(0)
FEATURES = RNG.random((400, 6)).astype(np.float32)
KERNEL = np.array([1.0, -2.0, 0.5, 0.0, 3.0, -1.0], np.float32)
WEIGHTS = Weights({"class_maps/kernel": KERNEL.reshape(1, 1, 6, 1), "class_maps/bias": np.array([0.25], np.float32)})


def _answers(features: NDArray[np.float32], logits: NDArray[np.float32]) -> NetworkOutputs:
    return NetworkOutputs(scores=logits[:, None], features=features, class_maps=logits[:, None, None, None])


def _logits(weights: Weights, features: NDArray[np.float32]) -> NDArray[np.float32]:
    return (features @ weights["class_maps/kernel"].reshape(-1) + weights["class_maps/bias"]).astype(np.float32)


def test_a_constant_shift_of_the_features_is_taken_back() -> None:
    whole = _answers(FEATURES, _logits(WEIGHTS, FEATURES))
    shifted = FEATURES + np.array([0.1, 0, -0.2, 0, 0.05, 0.3], np.float32)
    refitted = refit_head(WEIGHTS, float_outputs=whole, int8_outputs=_answers(shifted, _logits(WEIGHTS, shifted)))
    np.testing.assert_allclose(_logits(refitted, shifted), _logits(WEIGHTS, FEATURES), atol=1e-4)


def test_noise_in_one_feature_moves_weight_to_the_others() -> None:
    # the last two features are equal, but the first of them arrives as noise
    twins = FEATURES.copy()
    twins[:, 5] = twins[:, 4]
    noisy = twins.copy()
    noisy[:, 4] = RNG.random(400)
    target = _logits(WEIGHTS, twins)
    before = np.abs(_logits(WEIGHTS, noisy) - target).mean()
    refitted = refit_head(WEIGHTS, float_outputs=_answers(twins, target), int8_outputs=_answers(noisy, target))
    # a feature has the variance 1/12, so the penalty removes 0.083 / (0.083 + 0.3) = 22 % of the useless weight
    share = (1 / 12) / (1 / 12 + HEAD_RIDGE_PENALTY_PER_IMAGE)
    assert np.abs(_logits(refitted, noisy) - target).mean() < before * (1 - share / 2)

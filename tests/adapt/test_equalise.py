"""Channels of like range: the network computes the same, and its integers tell more of it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fieldray_adapt.keras_engine import build_network, set_weights
from fieldray_adapt.networks import NETWORKS, vgg16_dense
from fieldray_adapt.quantise import equalise
from fieldray_adapt.specification import Specification, Weights, initial_weights, weight_shapes

pytestmark = pytest.mark.adapt
MADE = {**NETWORKS, "vgg16_dense": vgg16_dense}


def _network(kind: str) -> tuple[Specification, Weights, NDArray[np.uint8]]:
    """A small network whose channels differ in range by up to a thousand times, and images for it."""
    whole = MADE[kind](height=32, width=32, labels=2, input_channels=1)
    specification, generator = whole.scaled(0.125), np.random.default_rng(3)
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
def test_the_network_computes_the_same(kind: str) -> None:
    specification, weights, images = _network(kind)
    levelled = equalise(specification, weights, representative=images)
    before, after = (_outputs(specification, own, images, "logits") for own in (weights, levelled))
    assert before.std() > 0 and np.abs(before - after).max() < 1e-3 * np.abs(before).max()


def test_channels_come_closer_where_they_are_rectified_or_added() -> None:
    specification, weights, images = _network("resnet50")
    levelled = equalise(specification, weights, representative=images)
    for name in ("conv2_block1_1", "conv3_block1_out"):
        spreads = []
        for own in (weights, levelled):
            largest = np.abs(_outputs(specification, own, images, name)).max((0, 1, 2))
            spreads.append(np.median(largest) / largest.max())
        assert spreads[1] > 1.5 * spreads[0]


def test_what_is_not_rectified_stays_as_it_is() -> None:
    specification, weights, images = _network("mobilenet")
    levelled = equalise(specification, weights, representative=images)
    assert all(np.array_equal(weights[key], levelled[key]) for key in weights if not key.startswith("class_maps"))

"""Which channels go: by level, by deviation, within minimum, share and multiple."""

from __future__ import annotations

import numpy as np

from fieldray_adapt.networks import resnet50, vgg16_dense
from fieldray_adapt.prune.selection import Cut, one_shot, rectified_layers, select, weight_sizes
from fieldray_adapt.specification import initial_weights, keep_channels

ZEROS = {"a": np.array([0.9, 0.1, 0.5, 0.1, 0.4])}


def kept(cut: Cut) -> list[int]:
    return [int(index) for index in select(ZEROS, cut=cut)["a"]]


def test_by_level_what_is_zero_more_often_goes() -> None:
    assert kept(Cut(kind="level", value=0.45)) == [1, 3, 4]


def test_by_deviation_the_limit_follows_the_layer() -> None:
    # mean 0.4, standard deviation sqrt((0.25 + 0.09 + 0.01 + 0.09 + 0) / 5) = 0.297: limits 0.4 and 0.697
    assert kept(Cut(kind="deviation", value=0.0)) == [1, 3, 4]
    assert kept(Cut(kind="deviation", value=1.0)) == [1, 2, 3, 4]


def test_minimum_share_and_multiple_hold_channels_back() -> None:
    assert kept(Cut(kind="level", value=0.0, minimum_channels=2)) == [1, 3]
    assert kept(Cut(kind="level", value=0.0, largest_share=0.2)) == [1, 2, 3, 4]
    assert kept(Cut(kind="level", value=0.3, multiple=4)) == [1, 2, 3, 4]


def test_a_set_smaller_than_the_minimum_stays() -> None:
    assert kept(Cut(kind="level", value=0.0, minimum_channels=50)) == [0, 1, 2, 3, 4]


def test_equal_channels_all_stay_at_their_own_mean() -> None:
    assert len(select({"a": np.full(7, 0.1 + 0.2)}, cut=Cut(kind="deviation", value=0.0))["a"]) == 7


def test_a_residual_stage_is_judged_by_its_sums_and_labels_never() -> None:
    layers = rectified_layers(resnet50(height=32, width=32, labels=1))
    assert layers["conv2"] == ("conv2_block1_out", "conv2_block2_out", "conv2_block3_out")
    assert layers["conv1"] == ("conv1",)
    assert "labels" not in layers
    assert len(layers) == 1 + 4 + 2 * 16


def test_magnitude_keeps_the_heaviest_and_random_its_seed() -> None:
    network = vgg16_dense(dense_units=32).scaled(0.125)
    weights = initial_weights(network, seed=1)
    weights["fc1/kernel"][:, 5] *= 100
    keep = one_shot(network, weights, kind="magnitude", share=0.1)
    assert [int(index) for index in one_shot(network, weights, kind="magnitude", share=1e-9)["fc1"]] == [5]
    assert 5 in keep["fc1"]
    assert weight_sizes(network, weights)["fc1"].argmax() == 5
    first, again = (one_shot(network, weights, kind="random", share=0.5, seed=3) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    smaller, _ = keep_channels(network, weights, keep=first)
    assert smaller.channels["block5_conv3"] == 32 and smaller.channels["labels"] == 10

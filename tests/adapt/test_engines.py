"""The two training engines: equal outputs and updates from equal weights, and measuring the time of an iteration."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from fieldray_adapt.networks.architectures import NETWORKS, mobilenet, resnet50, squeezenet, vgg16_dense
from fieldray_adapt.networks.specification import Specification, initial_weights
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_adapt.training.engine_interface import Engine, EngineSettings, section_mean_matrix
from fieldray_adapt.training.loop import seed_dropout
from fieldray_adapt.training.profile import ProfileRow, profile_network, propose_batch_size, time_iterations
from tiny_recipe import RECIPE, adapted

pytestmark = pytest.mark.adapt

ENGINES = ["tensorflow"] + (["torch"] if importlib.util.find_spec("torch") else [])
SMALL = resnet50(height=32, width=32, labels=2, blocks=(1, 1)).with_scaled_channels(0.125)


def _open(name: str, network: Specification = SMALL, settings: EngineSettings | None = None) -> Engine:
    return open_engine(network, initial_weights(network, seed=1), settings=settings or EngineSettings(), name=name)


def _batch(network: Specification = SMALL) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    images = generator.random((8, network.height, network.width, 1), np.float32)
    targets = np.tile(np.array([[0, 1], [1, 0]], np.float32), (4, 1))
    images[1::2] *= 0.2
    return images, targets


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs PyTorch")
@pytest.mark.parametrize(
    "network",
    [
        resnet50(height=40, width=57, labels=2, blocks=(1, 2)).with_scaled_channels(0.125),
        mobilenet(height=48, width=31, labels=2).with_scaled_channels(0.25),
        vgg16_dense(height=45, width=33, dense_units=16, labels=2).with_scaled_channels(0.125),
        squeezenet(height=45, width=33, labels=2).with_scaled_channels(0.25),
    ],
    ids=lambda network: network.name,
)
def test_both_engines_give_the_same_logits(network: Specification) -> None:
    images, _ = _batch(network)
    first, second = (_open(name, network).logits(images) for name in ENGINES)
    # a new head has small weights and small logits, so the tolerance is relative to the largest logit
    assert np.std(first) > 1e-7
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-3 * np.abs(first).max())


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_learns_and_ignores_unknown_targets(name: str) -> None:
    engine = _open(name)
    images, targets = _batch()
    targets[:, 1] = np.nan
    before = engine.weights()["class_maps/bias"]
    losses = [engine.step(images, targets, learning_rate=3e-3) for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]
    after = engine.weights()["class_maps/bias"]
    assert after[0] != before[0] and after[1] == before[1]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", ["vgg16", "vgg19", "squeezenet", "googlenet", "resnet34"])
def test_every_network_learns(name: str, kind: str) -> None:
    network = NETWORKS[kind](height=32, width=32, labels=2).with_scaled_channels(0.125)
    seed_dropout(0, name=name)
    engine = _open(name, network)
    rate = 1e-3 if kind == "vgg19" else 3e-3  # the deepest network needs smaller steps
    losses = [engine.step(*_batch(network), learning_rate=rate) for _ in range(12)]
    assert losses[0] == pytest.approx(math.log(2), rel=0.05) and losses[-1] < 0.9 * losses[0]


@pytest.mark.skipif(len(ENGINES) < 2, reason="needs PyTorch")
def test_one_step_of_both_engines_is_the_same() -> None:
    stepped = []
    for name in ENGINES:
        engine = _open(name)
        engine.step(*_batch(), learning_rate=1e-3)
        stepped.append(engine.weights())
    # Adam's first step is the sign of the gradient times the rate, so compare only gradients well above rounding.
    key = "class_maps/bias"
    np.testing.assert_allclose(stepped[0][key], stepped[1][key], atol=1e-6)
    for key in ("conv1/mean", "conv1/variance"):
        np.testing.assert_allclose(stepped[0][key], stepped[1][key], rtol=0.05, atol=1e-4)


@pytest.mark.parametrize("name", ENGINES)
def test_the_loss_is_weighted_by_label(name: str) -> None:
    engine = _open(name, settings=EngineSettings(label_weights=(3.0, 1.0)))
    weights = engine.weights()
    weights["class_maps/kernel"] = np.zeros_like(weights["class_maps/kernel"])
    weights["class_maps/bias"] = np.array([2.0, -1.0], np.float32)
    engine.set_weights(weights)
    images, targets = _batch()
    targets[:] = [0.0, 1.0]
    # log(1 + e^2) = 2.126928 for the first label, log(1 + e^1) = 1.313262 for the second
    assert engine.step(images, targets, learning_rate=1e-9) == pytest.approx((3 * 2.126928 + 1.313262) / 4, rel=1e-4)
    targets[:, 0] = np.nan
    assert engine.step(images, targets, learning_rate=1e-9) == pytest.approx(1.313262, rel=1e-4)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("side", [8, 10])
def test_evidence_outside_lungs_is_penalised_for_masks_of_any_size(name: str, side: int) -> None:
    engines = [_open(name, settings=EngineSettings(outside_weights=weights)) for weights in ((), (0.5, 1.0))]
    images, targets = _batch()
    lungs = np.zeros((len(images), side, side), np.float32)
    lungs[:, : side // 2] = 1
    for engine in engines:
        weights = engine.weights()
        weights["class_maps/kernel"] = np.zeros_like(weights["class_maps/kernel"])
        weights["class_maps/bias"] = np.array([3.0, -1.0], np.float32)
        engine.set_weights(weights)
    without, with_outside = (engine.step(images, targets, learning_rate=1e-9, lungs=lungs) for engine in engines)
    assert with_outside - without == pytest.approx(0.5 * 3.0 / 2, rel=1e-4)  # half of the map is outside the lungs


def test_averages_of_sections_are_exact_for_any_two_sizes() -> None:
    expected = [[0.4, 0.4, 0.2, 0, 0], [0, 0, 0.2, 0.4, 0.4]]
    np.testing.assert_allclose(section_mean_matrix(5, 2), expected, atol=1e-7)
    np.testing.assert_array_equal(section_mean_matrix(2, 4), [[1, 0], [1, 0], [0, 1], [0, 1]])


@pytest.mark.parametrize("name", ENGINES)
def test_frozen_layers_do_not_change(name: str) -> None:
    frozen = frozenset(layer.name for layer in SMALL.layers) - {"class_maps"}
    engine = _open(name, settings=EngineSettings(frozen=frozen))
    before = engine.weights()
    engine.step(*_batch(), learning_rate=1e-2)
    changed = {key for key, array in engine.weights().items() if not np.array_equal(array, before[key])}
    assert changed == {"class_maps/kernel", "class_maps/bias"}


@pytest.mark.parametrize("name", ENGINES)
def test_a_restored_engine_continues_to_the_same_weights(name: str) -> None:
    images, targets = _batch()
    first = _open(name)
    for _ in range(2):
        first.step(images, targets, learning_rate=1e-3)
    second = _open(name)
    second.set_weights(first.weights())
    second.set_optimiser_state(first.optimiser_state())
    before = first.weights()
    for engine in (first, second):
        engine.step(images, targets, learning_rate=1e-3)
    # Adam enlarges the rounding of near-zero gradients, so the tolerance is relative to the length of the step.
    after, resumed = first.weights(), second.weights()
    moved, apart = (sum(float(((after[key] - other[key]) ** 2).sum()) for key in after) for other in (before, resumed))
    assert apart < 0.02 * moved


def test_the_first_iterations_are_timed_separately() -> None:
    # the clock is read before and after each run: runs of 9, 4, 1, 3 and 2 seconds
    ticks = itertools.accumulate([0, 9, 0, 4, 0, 1, 0, 3, 0, 2])
    times = time_iterations(lambda: None, iterations=5, clock=lambda: next(ticks))
    assert times == (9000, 4000, 2000)


def test_the_smallest_batch_near_the_fastest_is_proposed() -> None:
    per_image = {16: 2.0, 32: 1.05, 64: 1.0, 128: 1.2}
    rows = [
        ProfileRow(
            mode="training", side=32, batch_size=size, first_ms=0, second_ms=0, later_ms=0, later_ms_per_image=ms
        )
        for size, ms in per_image.items()
    ]
    assert propose_batch_size(rows) == 32
    assert propose_batch_size(rows[2:]) == 64


def test_a_network_is_profiled_at_each_size() -> None:
    network = resnet50(height=32, width=32, labels=2, blocks=(1,)).with_scaled_channels(0.125)
    rows = profile_network(
        network,
        initial_weights(network, seed=0),
        batch_sizes=(2, 4),
        sides=(32, 48),
        settings=EngineSettings(loss="categorical", threads=1),
        iterations=3,
    )
    assert [(row.side, row.batch_size, row.mode) for row in rows] == [
        (side, size, mode) for side in (32, 48) for size in (2, 4) for mode in ("training", "inference")
    ]
    assert all(row.later_ms_per_image > 0 for row in rows)


@pytest.mark.parametrize("name", ENGINES)
def test_a_batch_of_one_image_with_one_value_in_each_channel_is_trained_on(name: str) -> None:
    engine = _open(name, resnet50(height=16, width=16, labels=2, blocks=(1, 1, 1)).with_scaled_channels(0.125))
    loss = engine.step(np.ones((1, 16, 16, 1), np.float32), np.ones((1, 2), np.float32), learning_rate=0.1)
    assert math.isfinite(loss) and all(np.isfinite(array).all() for array in engine.weights().values())


@pytest.mark.skipif(len(ENGINES) > 1, reason="PyTorch is installed")
def test_a_profile_needs_the_library_that_the_recipe_names(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("[training]", '[training]\nengine = "torch"'), encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="torch"):
        adapted("profile", recipe)

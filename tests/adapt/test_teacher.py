"""The teacher: its weights from a file of PyTorch's layout, and what a label becomes that other patients contradict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray_adapt.specification import Weights, channel_sets, initial_weights, parameters, shapes
from fieldray_adapt.teacher import efficientnet_lite0, read_weights, teacher_targets
from fieldray_adapt.train import Samples

_PARTS = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}
# What the layer's name ends in here: a block whose sum is added to is named by the sum.
_STEPS = {
    "_expand_conv": (("_expand",), "_bn0"),
    "_depthwise_conv": (("_depthwise",), "_bn1"),
    "_project_conv": (("", "_project"), "_bn2"),
}


def _in_the_layout_of_the_file(weights: Weights) -> dict[str, np.ndarray]:
    """As PyTorch has them: (out, in, rows, columns), each normalisation beside its convolution under its own name."""
    found = {}

    def take(layer: str, kernel: str, norm: str) -> None:
        array = weights[f"{layer}/kernel"]
        found[f"{kernel}.weight"] = array.transpose((2, 3, 0, 1) if "depthwise" in layer else (3, 2, 0, 1))
        found.update({f"{norm}.{name}": weights[f"{layer}/{part}"] for name, part in _PARTS.items()})

    take("stem", "_conv_stem", "_bn0")
    take("head", "_conv_head", "_bn1")
    for block in range(16):
        for step, (endings, norm) in _STEPS.items():
            for layer in (f"block{block}{ending}" for ending in endings):
                if f"{layer}/kernel" in weights:
                    take(layer, f"_blocks.{block}.{step}", f"_blocks.{block}.{norm}")
    return found


@pytest.fixture(scope="module")
def weights() -> Weights:
    return initial_weights(efficientnet_lite0(), seed=1)


@pytest.fixture(scope="module")
def file(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "lite0.npz"
    np.savez(path, **_in_the_layout_of_the_file(weights))
    return path


def test_the_network_is_that_of_the_paper() -> None:
    """EfficientNet-Lite0 has 4,652,008 weights, 1,281,000 of them the classifier's; each of 49 layers keeps 2 more."""
    specification = efficientnet_lite0()
    sets = channel_sets(specification)
    kept = sum(2 * specification.channels[sets[layer.name]] for layer in specification.layers if layer.batch_norm)
    assert parameters(specification) - kept == 4_652_008 - 1_281_000
    assert shapes(specification)["head"] == (7, 7, 1280)


def test_the_weights_are_read_from_the_layout_of_the_file(weights: Weights, file: Path) -> None:
    found = read_weights(file)
    assert found.keys() == weights.keys()
    assert all(np.array_equal(found[name], array) for name, array in weights.items())


def test_other_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(UsageProblem, match=r"other.npz does not have the weights of an EfficientNet-Lite0"):
        read_weights(path)
    with pytest.raises(UsageProblem) as problem:
        read_weights(tmp_path / "none.npz")
    assert problem.value.reason.code == "data_unreadable"


def test_a_label_that_other_patients_contradict_counts_for_less(file: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    truth = np.arange(40) % 2 == 0
    images = generator.integers(0, 90, (40, 32, 32, 1), np.uint8)
    images[truth, 8:24, 8:24] += 150
    targets = truth[:, None].astype(np.float32)
    targets[[0, 1]] = 1 - targets[[0, 1]]  # wrong
    targets[2] = np.nan
    samples = Samples(images=images, targets=targets, sources=("a",) * 40, patients=tuple(f"p{n}" for n in range(40)))
    rows: list[tuple[str, int, int]] = []
    cache = tmp_path / "seen.npz"
    found = teacher_targets(samples, file, cache=cache, progress=lambda *row: rows.append(row)).targets[:, 0]
    assert np.isnan(found[2])
    right = np.array([0, 1, *range(3, 40)])
    doubt = np.abs(found[right] - targets[right, 0])
    assert doubt[:2].min() > 2 * doubt[2:].max()
    assert ((found[right] > 0.5) == (targets[right, 0] > 0.5)).all()
    assert rows[-1] == ("teacher", 40, 40)
    again = teacher_targets(samples, file, cache=cache, progress=lambda *row: pytest.fail(str(row))).targets[:, 0]
    assert np.array_equal(again, found, equal_nan=True)

"""Drawing, augmentation, and a training that is killed and goes on."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fieldray.errors import UsageProblem
from fieldray_adapt.augmentation import Augmentation, augment
from fieldray_adapt.engine import CHECKPOINT, Batch, EngineSettings
from fieldray_adapt.networks import resnet50, squeezenet
from fieldray_adapt.specification import Specification, Weights, initial_weights
from fieldray_adapt.train import Samples, Schedule, balanced_draw, train
from tiny_recipe import Killed, bright_or_dark

ENGINE = "torch" if importlib.util.find_spec("torch") else "tensorflow"
NETWORK = resnet50(height=32, width=32, labels=1, blocks=(1,)).scaled(0.125)


def test_classes_are_drawn_equally_within_each_source() -> None:
    sources = ["a"] * 90 + ["b"] * 20
    classes = ["0"] * 80 + ["1"] * 10 + ["0"] * 5 + ["1"] * 15
    drawn = balanced_draw(sources, classes, count=400, shares={"a": 3.0}, generator=np.random.default_rng(0))
    found = Counter((sources[i], classes[i]) for i in drawn)
    # shares 3 : 1 of 400, halved between the classes
    assert found == {("a", "0"): 150, ("a", "1"): 150, ("b", "0"): 50, ("b", "1"): 50}
    # 150 draws from 80: each once or twice, none left out
    assert set(Counter(i for i in drawn if i < 80).values()) == {1, 2}


def test_no_augmentation_changes_nothing_and_all_of_it_stays_an_image() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 30), np.uint8)
    assert np.array_equal(augment(image, Augmentation(), generator=np.random.default_rng(1)), image)
    strong = Augmentation(
        shift=0.1, scale=0.2, rotation_degrees=15, flip=0.5, gamma=0.5, contrast=0.5, brightness=0.1,
        stretch=0.2, shading=0.2, blur_pixels=2, noise=0.1, coarsen=1, cutout=0.5,
    )  # fmt: skip
    for seed in range(20):
        changed = augment(image, strong, generator=np.random.default_rng(seed))
        assert changed.shape == image.shape and changed.dtype == np.uint8 and not np.array_equal(changed, image)


def test_a_mirror_image_is_exact() -> None:
    image = np.arange(48, dtype=np.uint8).reshape(6, 8)
    mirrored = augment(image, Augmentation(flip=1.0), generator=np.random.default_rng(0))
    np.testing.assert_array_equal(mirrored, image[:, ::-1])


SCHEDULE = Schedule(epochs=4, batch_size=16, learning_rate=3e-3, average_epochs=0.5, seed=5)


def _train(folder, *, stop_after: int = 99, seen: list[int] | None = None, **changed: object):
    def progress(row) -> None:
        if seen is not None:
            seen.append(row["epoch"])
        if row["epoch"] == stop_after:
            raise Killed

    options = {
        "weights": initial_weights(NETWORK, seed=1),
        "training": bright_or_dark(64),
        "validation": bright_or_dark(20),
        "schedule": SCHEDULE,
        "augmentation": Augmentation(shift=0.05, gamma=0.2),
        "settings": EngineSettings(threads=1),
        "engine": ENGINE,
    }
    return train(NETWORK, **{**options, **changed}, folder=folder, progress=progress)


@pytest.mark.adapt
def test_a_killed_training_goes_on_as_if_nothing_happened(tmp_path) -> None:
    whole, history = _train(tmp_path / "whole")
    assert history[-1]["auc"] == [1.0] and len(history) == 4
    with pytest.raises(Killed):
        _train(tmp_path / "killed", stop_after=2)
    resumed, again = _train(tmp_path / "killed")
    assert [row["loss"] for row in again] == pytest.approx([row["loss"] for row in history], rel=5e-3)
    # Rounding differs with where arrays lie in memory and Adam enlarges it: compare with how far training moved.
    start = initial_weights(NETWORK, seed=1)
    moved, apart = (sum(float(((whole[key] - other[key]) ** 2).sum()) for key in whole) for other in (start, resumed))
    assert apart < 0.01 * moved


def _one_image_other(samples: Samples) -> Samples:
    images = samples.images.copy()
    images[7, 0, 0, 0] ^= 1
    return replace(samples, images=images)


def _one_label_other(samples: Samples) -> Samples:
    targets = samples.targets.copy()
    targets[7] = np.nan
    return replace(samples, targets=targets)


class _Idle:
    """An engine that learns nothing, in no time."""

    def __init__(self, specification: Specification, weights: Weights, **_: object) -> None:
        self._weights = dict(weights)

    def step(self, images: Batch, targets: Batch, **_: object) -> float:
        return 1.0

    def logits(self, images: Batch) -> Batch:
        return np.zeros((len(images), 1), np.float32)

    def weights(self) -> Weights:
        return self._weights

    def set_weights(self, weights: Weights) -> None:
        self._weights = dict(weights)

    def optimiser_state(self) -> dict[str, np.ndarray]:
        return {}

    def set_optimiser_state(self, state: dict[str, np.ndarray]) -> None:
        assert state == {}


def test_a_training_that_differs_in_anything_does_not_resume_another(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldray_adapt.train.open_engine", _Idle)
    samples = bright_or_dark(64)
    changes: dict[str, dict[str, object]] = {
        "seed": {"schedule": replace(SCHEDULE, seed=6)},
        "rate": {"schedule": replace(SCHEDULE, learning_rate=1e-3)},
        "an image replaced": {"training": _one_image_other(samples)},
        "a label": {"training": _one_label_other(samples)},
        "a patient added": {"training": bright_or_dark(66)},
        "split": {"validation": bright_or_dark(22)},
        "augmentation": {"augmentation": Augmentation(shift=0.05, gamma=0.3)},
        "weights": {"weights": initial_weights(NETWORK, seed=2)},
        "weight decay": {"settings": EngineSettings(threads=1, weight_decay=0.01)},
    }
    with pytest.raises(Killed):
        _train(tmp_path / "killed", stop_after=1)
    for name, changed in changes.items():
        folder, seen = tmp_path / name, list[int]()
        folder.mkdir()
        shutil.copy(tmp_path / "killed" / CHECKPOINT, folder)
        with pytest.raises(Killed):
            _train(folder, stop_after=1, seen=seen, **changed)
        assert seen == [1], name  # from its first epoch
    seen = []
    with pytest.raises(Killed):
        _train(tmp_path / "killed", stop_after=2, seen=seen)
    assert seen == [2]


@pytest.mark.adapt
def test_a_loss_that_is_no_number_stops_with_a_sentence(tmp_path) -> None:
    with pytest.raises(UsageProblem, match="Lower learning_rate"):
        _train(tmp_path, schedule=replace(SCHEDULE, learning_rate=1e30))
    assert not (tmp_path / CHECKPOINT).exists()


@pytest.mark.adapt
def test_a_dropout_draws_by_the_seed(tmp_path) -> None:
    network, found = squeezenet(height=32, width=32, labels=1).scaled(0.125), list[Weights]()
    for number in range(2):
        weights, _ = train(
            network,
            initial_weights(network, seed=1),
            training=bright_or_dark(16),
            validation=bright_or_dark(4),
            schedule=Schedule(epochs=1, batch_size=8, learning_rate=1e-2, warm_up_epochs=0, seed=5),
            augmentation=Augmentation(),
            settings=EngineSettings(threads=1),
            folder=tmp_path / str(number),
            engine=ENGINE,
        )
        found.append(weights)
    assert all(np.allclose(array, found[1][key], atol=1e-5) for key, array in found[0].items())

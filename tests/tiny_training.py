"""Small trainings on drawn images, without batch normalisation or dropout, so that a batch can be divided anywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fieldray_adapt.data.augmentation import Augmentation
from fieldray_adapt.networks.specification import INPUT_NAME, Layer, Specification, Weights, initial_weights
from fieldray_adapt.training.classifier import Samples, Schedule
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_cluster.training.tasks import DividedClassifierTraining, write_arrays

SIDE = 16


def network() -> Specification:
    """Return a network of two convolutions and a head with two labels: 6 tensors, 246 weights and biases."""
    layers = (
        Layer(name="first", kind="conv", inputs=(INPUT_NAME,), channels="a", kernel=3, activation="relu"),
        Layer(name="second", kind="conv", inputs=("first",), channels="b", kernel=3, stride=2, activation="relu"),
        Layer(name="class_maps", kind="conv", inputs=("second",), channels="labels"),
        Layer(name="logits", kind="average_all", inputs=("class_maps",)),
        Layer(name="scores", kind="activation", inputs=("logits",), activation="sigmoid"),
    )  # fmt: skip
    return Specification(
        name="tiny",
        height=SIDE,
        width=SIDE,
        input_channels=1,
        layers=layers,
        channels={"a": 4, "b": 5, "labels": 2},
        outputs={"logits": "logits", "scores": "scores", "class_maps": "class_maps"},
    )


def weights() -> Weights:
    """Return the initial weights of every training here."""
    return initial_weights(network(), seed=3)


def samples(count: int = 48) -> Samples:
    """Return images whose upper or lower half is bright. Every seventh has one unknown target."""
    generator = np.random.default_rng(1)
    images = generator.integers(0, 90, (count, SIDE, SIDE, 1), dtype=np.uint8)
    targets = np.zeros((count, 2), np.float32)
    for number in range(count):
        images[number, : SIDE // 2] += np.uint8(120 * (number % 2))
        images[number, SIDE // 2 :] += np.uint8(120 * (number // 2 % 2))
        targets[number] = number % 2, number // 2 % 2
    targets[::7, 1] = np.nan
    names = tuple(f"p{number}" for number in range(count))
    return Samples(images=images, targets=targets, sources=("drawn",) * count, patients=names)


def schedule(*, epochs: int = 2) -> Schedule:
    """Return a schedule with six batches in an epoch."""
    return Schedule(epochs=epochs, batch_size=8, learning_rate=3e-3, warm_up_epochs=0.5)


AUGMENTATION = Augmentation(flip=True, shift=0.1)
SETTINGS = EngineSettings(threads=1)


def task_in(folder: Path) -> DividedClassifierTraining:
    """Return the training as a task for workers. Its arrays are in the folder."""
    sha256 = write_arrays(folder / "arrays.npz", samples())
    return DividedClassifierTraining(
        specification=network(),
        schedule=schedule(),
        augmentation=AUGMENTATION,
        settings=SETTINGS,
        engine="tensorflow",
        sample_count=len(samples()),
        arrays_path=folder / "arrays.npz",
        arrays_sha256=sha256,
    )

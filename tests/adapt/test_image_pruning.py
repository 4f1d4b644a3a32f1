"""The prune, placement and compile steps over images: what each leaves for the next."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fieldray_adapt.augmentation import Augmentation
from fieldray_adapt.engine import Effort, EngineSettings
from fieldray_adapt.networks import resnet50
from fieldray_adapt.prune.loop import Constant, PruneRecipe, RunFolder, Stop, prune
from fieldray_adapt.prune.tasks import ImageTask
from fieldray_adapt.specification import Specification, Weights, initial_weights
from fieldray_adapt.train import Schedule
from tiny_recipe import bright_or_dark

pytestmark = pytest.mark.adapt


def _task(folder: Path) -> ImageTask:
    """Of the last image to validate with the label is not known."""
    validation = bright_or_dark(12)
    targets = validation.targets.copy()
    targets[-1] = np.nan
    return ImageTask(
        training=bright_or_dark(24),
        validation=replace(validation, targets=targets),
        schedule=Schedule(epochs=3, batch_size=8, images_per_epoch=16, average_epochs=0.5),
        augmentation=Augmentation(),
        settings=EngineSettings(threads=1),
        engine="auto",
        folder=folder,
        calibration=8,
    )


def _network() -> tuple[Specification, Weights]:
    network = resnet50(height=32, width=32, labels=1, blocks=(1, 1, 1, 1)).scaled(0.125)
    return network, initial_weights(network, seed=0)


def test_a_residual_network_is_pruned_on_images(tmp_path: Path) -> None:
    plan = PruneRecipe(
        batch_size=Constant(start=8),
        epochs=Constant(start=1.5),
        learning_rate=Constant(start=1e-3),
        cut_off=Constant(start=0.0),
        minimum_channels=Constant(start=4),
        stop=Stop(iterations=1),
        multiple=4,
    )
    folder = RunFolder(tmp_path, fingerprint="")
    assert prune(_task(tmp_path), plan, folder=folder, original=_network) == "iterations"
    first, second = folder.iterations()
    assert second.parameters < first.parameters and second.multiply_adds < first.multiply_adds
    assert 0 <= second.quality <= 1 and second.loss > 0
    smaller, _ = folder.network(1)
    assert all(count % 4 == 0 for name, count in smaller.channels.items() if name != "labels")
    # one and a half epochs of 16 images are two of 12
    assert (tmp_path / "retraining-1" / "checkpoint.npz").is_file()


def test_quality_is_the_auc_where_the_label_is_known(tmp_path: Path) -> None:
    network, weights = _network()
    weights["class_maps/kernel"][:] = 0
    weights["class_maps/bias"][:] = 0
    # equal logits of 0 for all: AUC one half, cross-entropy log 2
    quality, loss = _task(tmp_path).quality(network, weights)
    assert quality == 0.5
    assert loss == pytest.approx(np.log(2))


def test_effort_may_be_less_than_an_epoch(tmp_path: Path) -> None:
    network, weights = _network()
    effort = Effort(batch_size=8, epochs=0.5, learning_rate=1e-3)
    trained = _task(tmp_path).retrain(network, weights, effort=effort, seed=4)
    assert trained.keys() == weights.keys()
    assert any(not np.array_equal(trained[key], weights[key]) for key in weights)

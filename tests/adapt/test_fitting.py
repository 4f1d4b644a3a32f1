"""Training on arrays: what a killed training goes on from, and targets from a teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fieldray_adapt.engine import (
    Checkpoint,
    Effort,
    EngineSettings,
    Kept,
    Labelled,
    distillation_targets,
    fit,
    open_engine,
)
from fieldray_adapt.networks import vgg16
from fieldray_adapt.specification import initial_weights

pytestmark = pytest.mark.adapt
SETTINGS = EngineSettings(weight_decay=0.0, loss="categorical", threads=1)
NETWORK = vgg16(height=8, width=8, labels=2, dense_units=16, dropout=0.0).scaled(0.125)
EFFORT = Effort(batch_size=8, epochs=2.0, learning_rate=1e-3)
DATA = Labelled(np.random.default_rng(2).random((16, 8, 8, 1), np.float32), np.eye(2, dtype=np.float32)[[0, 1] * 8])


class Killed(BaseException):
    """The process ends here."""


def _die_at(wanted: int, step: int) -> None:
    if step == wanted:
        raise Killed


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    weights = initial_weights(NETWORK, seed=0)
    whole, _ = fit(NETWORK, weights, data=DATA, effort=EFFORT, seed=5, settings=SETTINGS)
    kept, steps = Checkpoint(tmp_path / "checkpoint.npz", every_s=0), list[int]()
    with pytest.raises(Killed):
        fit(
            NETWORK,
            weights,
            data=DATA,
            effort=EFFORT,
            seed=5,
            settings=SETTINGS,
            progress=lambda step, of, loss: _die_at(3, step),
            checkpoint=kept,
        )
    resumed, _ = fit(
        NETWORK,
        weights,
        data=DATA,
        effort=EFFORT,
        seed=5,
        settings=SETTINGS,
        progress=lambda step, of, loss: steps.append(step),
        checkpoint=kept,
    )
    # two epochs of 16 images in eights are four steps, of which three were done
    assert steps == [4]
    assert all(np.array_equal(whole[key], resumed[key]) for key in whole)
    assert kept.path.exists()  # until what came of it is kept
    kept.remove()
    assert not kept.path.exists()


def test_another_training_does_not_go_on_from_it(tmp_path: Path) -> None:
    engine = open_engine(NETWORK, initial_weights(NETWORK, seed=0), settings=SETTINGS)
    kept = Checkpoint(tmp_path / "checkpoint.npz", every_s=0)
    engine.step(DATA.images[:8], DATA.targets[:8], learning_rate=1e-3)
    kept.save_if_due(engine, Kept(facts={"losses": [0.5]}, arrays={"mean": np.ones(2)}), key="a")
    found = kept.restore(engine, key="a")
    assert found is not None and found.facts == {"losses": [0.5]} and found.arrays["mean"].tolist() == [1, 1]
    assert kept.restore(engine, key="b") is None


def test_other_data_are_not_fitted_from_it(tmp_path: Path) -> None:
    weights, kept = initial_weights(NETWORK, seed=0), Checkpoint(tmp_path / "checkpoint.npz", every_s=0)
    told = {"effort": EFFORT, "seed": 5, "settings": SETTINGS, "checkpoint": kept}
    other = Labelled(1 - DATA.images, DATA.targets)
    fit(NETWORK, weights, data=DATA, **told)  # type: ignore[arg-type]
    steps = list[int]()
    fit(NETWORK, weights, data=other, progress=lambda step, of, loss: steps.append(step), **told)  # type: ignore[arg-type]
    assert steps == [1, 2, 3, 4]


def test_the_state_is_written_only_when_time_has_passed(tmp_path: Path) -> None:
    engine = open_engine(NETWORK, initial_weights(NETWORK, seed=0), settings=SETTINGS)
    times = iter([0.0, 59.0, 60.0, 60.0])
    kept = Checkpoint(tmp_path / "checkpoint.npz", every_s=60, clock=lambda: next(times))
    kept.save_if_due(engine, Kept(facts={}, arrays={}), key="a")
    assert not kept.path.exists()
    kept.save_if_due(engine, Kept(facts={}, arrays={}), key="a")
    assert kept.path.exists()


def test_a_teacher_gives_part_of_the_targets() -> None:
    weights = initial_weights(NETWORK, seed=0)
    weights = {key: array if "logits" not in key else np.zeros_like(array) for key, array in weights.items()}
    weights["logits/bias"] = np.array([np.log(9.0), 0.0], np.float32)
    # Logits (log 9, 0) at temperature 1 are 0.9 and 0.1; at temperature 2 they are 3 and 1 parts of 4.
    for temperature, sure in ((1.0, 0.9), (2.0, 0.75)):
        found = distillation_targets(DATA, NETWORK, weights, share=0.5, temperature=temperature, settings=SETTINGS)
        assert found.targets[0] == pytest.approx([0.5 + 0.5 * sure, 0.5 * (1 - sure)], abs=1e-6)
        assert found.images is DATA.images
    alone = distillation_targets(
        DATA, NETWORK, weights, share=0.0, temperature=2.0, settings=replace(SETTINGS, threads=1)
    )
    assert np.array_equal(alone.targets, DATA.targets)

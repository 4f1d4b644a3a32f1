"""Training on arrays: what a killed training goes on from, and targets from a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldray_adapt.engine import CHECKPOINT, Effort, EngineSettings, Labelled, distillation_targets, fit
from fieldray_adapt.networks import vgg16_dense
from fieldray_adapt.specification import initial_weights
from tiny_recipe import Killed

pytestmark = pytest.mark.adapt
SETTINGS = EngineSettings(weight_decay=0.0, loss="categorical", threads=1)
NETWORK = vgg16_dense(height=8, width=8, labels=2, dense_units=16, dropout=0.0).scaled(0.125)
EFFORT = Effort(batch_size=8, epochs=2.0, learning_rate=1e-3)
DATA = Labelled(np.random.default_rng(2).random((16, 8, 8, 1), np.float32), np.eye(2, dtype=np.float32)[[0, 1] * 8])


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    weights, args = initial_weights(NETWORK, seed=0), {"effort": EFFORT, "seed": 5, "settings": SETTINGS}
    whole = fit(NETWORK, weights, data=DATA, folder=tmp_path / "whole", **args)  # type: ignore[arg-type]

    def die(row: Mapping[str, Any]) -> None:
        if row["epoch"] == 3:
            raise Killed

    done = list[int]()
    with pytest.raises(Killed):
        fit(NETWORK, weights, data=DATA, folder=tmp_path, progress=die, **args)  # type: ignore[arg-type]
    resumed = fit(NETWORK, weights, data=DATA, folder=tmp_path, progress=lambda row: done.append(row["epoch"]), **args)  # type: ignore[arg-type]
    # two epochs of 16 images in eights are four steps, and so four parts, of which three were done
    assert done == [4]
    assert all(np.array_equal(whole[key], resumed[key]) for key in whole)
    assert (tmp_path / CHECKPOINT).exists()  # until what came of it is kept
    done.clear()
    other = Labelled(1 - DATA.images, DATA.targets)
    fit(NETWORK, weights, data=other, folder=tmp_path, progress=lambda row: done.append(row["epoch"]), **args)  # type: ignore[arg-type]
    assert done == [1, 2, 3, 4]  # other data are not fitted from it


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

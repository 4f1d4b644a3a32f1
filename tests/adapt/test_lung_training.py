"""Training of a lung-field network: what resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fieldray.domain.model import InputSpec
from fieldray_adapt.lungs import train as training
from fieldray_adapt.lungs.dataset import LungData
from fieldray_adapt.lungs.recipe import LungEvaluation, LungNetwork, LungRecipe, LungTraining, MaskSource, Stage
from fieldray_adapt.recipe import PackTexts
from fieldray_adapt.recipe_data import Source

pytestmark = pytest.mark.adapt
SIDE = 64


def _data(chests: int = 6) -> LungData:
    generator = np.random.default_rng(3)
    images = generator.integers(0, 256, (6, SIDE, SIDE), dtype=np.uint8)
    masks = np.zeros_like(images)
    masks[:, 16:48, 8:28] = masks[:, 16:48, 36:56] = 255
    names = np.array([f"image {number}" for number in range(len(images))])
    return LungData(
        images=images,
        masks=masks,
        image_parts=np.array(["training"] * 5 + ["validation"]),
        image_patients=names,
        image_sources=np.array(["drawn"] * len(images)),
        image_paths=names,
        mask_paths=names,
        chests=generator.integers(0, 256, (chests, SIDE, SIDE), dtype=np.uint8),
        chest_parts=np.array(["training"] * chests),
        chest_patients=np.array([f"chest {number}" for number in range(chests)]),
        chest_sources=np.array(["one", "two"] * (chests // 2)),
        ood_images=np.zeros((0, SIDE, SIDE), np.uint8),
        ood_image_parts=np.zeros(0, np.str_),
    )


def _recipe(tmp_path: Path, *stages: Stage) -> LungRecipe:
    return LungRecipe(
        kind="lung-fields",
        pack=PackTexts(id="lungs"),
        input=InputSpec(height=SIDE, width=SIDE, fit="stretch"),
        network=LungNetwork(channels=(4, 8, 8, 8, 8)),
        masks=(MaskSource(name="drawn", path=tmp_path),),
        chests=(Source(name="one", path=tmp_path, layout="folders"),),
        training=LungTraining(stages=stages, steps_per_epoch=3, masks_per_step=2, checks_per_step=2),
        evaluation=LungEvaluation(panel_images=0),
    )


class _Killed(Exception):
    pass


class _Engine:
    """Learns without a framework: each step moves a kernel by what it was shown."""

    has_checks = True

    def __init__(self, network: LungNetwork, side: int, settings: LungTraining) -> None:
        self.side, self.mask_side = side, side // 2
        self._weights = {"conv/kernel": np.zeros((3, 3, 1, 1), np.float32)}
        self._momentum = np.zeros(1, np.float32)

    def step(self, images: np.ndarray, masks: np.ndarray, targets: np.ndarray, *, learning_rate: float) -> float:
        assert images.shape[1:] == (self.side, self.side) and masks.shape[1:] == (self.mask_side, self.mask_side, 1)
        shown = np.float32(images.mean() / 255 + masks.mean() / 2 + targets.mean())
        self._momentum = np.float32(0.9) * self._momentum + shown
        self._weights["conv/kernel"] = self._weights["conv/kernel"] - np.float32(learning_rate) * self._momentum
        return float(shown)

    def predict(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lung = 1 / (1 + np.exp(-self._weights["conv/kernel"].mean() * images[:, ::2, ::2].astype(np.float32) / 255))
        return lung[:, : self.mask_side, : self.mask_side, None].astype(np.float32), np.ones(
            (len(images), 6), np.float32
        )

    def weights(self) -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in self._weights.items()}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        self._weights = {name: np.array(array) for name, array in weights.items()}

    def optimiser_state(self) -> dict[str, np.ndarray]:
        return {"0": self._momentum}

    def set_optimiser_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._momentum = state["0"]


@pytest.fixture(autouse=True)
def quick_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MaskEngine", _Engine)


def test_a_training_killed_in_a_later_stage_goes_on_there_and_ends_alike(tmp_path: Path) -> None:
    recipe = _recipe(tmp_path, Stage(side=32, epochs=1), Stage(side=SIDE, epochs=2))
    whole, _ = training.train(recipe, _data(), folder=tmp_path / "whole")

    def kill(row: Mapping[str, Any]) -> None:
        if row["epoch"] == 2:
            raise _Killed

    with pytest.raises(_Killed):
        training.train(recipe, _data(), folder=tmp_path / "killed", progress=kill)
    done = list[int]()
    resumed, history = training.train(
        recipe, _data(), folder=tmp_path / "killed", progress=lambda row: done.append(row["epoch"])
    )
    assert done == [3] and [row["epoch"] for row in history] == [1, 2, 3]
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)

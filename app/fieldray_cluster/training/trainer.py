"""Trains a recipe's network by a plan, in place of `train.train` and `lungs.train.train` of `fieldray_adapt`.

After each epoch the driver looks at the validation images with the averaged weights, as local training does, and keeps
a checkpoint; a training that was stopped resumes from it. The file of the arrays that workers learn from is in the run
folder, which every computer of the cluster has to see, as for workflows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from distributed import Client
from numpy.typing import NDArray

from fieldray.reasons import reason
from fieldray_adapt.augmentation import Augmentation
from fieldray_adapt.engine import CHECKPOINT, Checkpoint, EngineName, EngineSettings, Kept, open_engine
from fieldray_adapt.files import digest
from fieldray_adapt.lungs.dataset import LungData
from fieldray_adapt.lungs.recipe import LungRecipe, compact_unet
from fieldray_adapt.lungs.train import MaskEngine, StageSamples, first_weights
from fieldray_adapt.specification import Layer, Specification, Weights
from fieldray_adapt.train import Samples, Schedule, validate
from fieldray_cluster.training.session import epochs
from fieldray_cluster.training.shard import Layout, ShardState
from fieldray_cluster.training.tasks import DividedClassifier, DividedLungs, DividedTask, Plan, arrays_kept

Say = Callable[[str], None]
Progress = Callable[[Mapping[str, Any]], None]
ARRAYS: Final = "arrays.npz"


@dataclass(slots=True)
class _Divided:
    """The state of a divided training, as a checkpoint takes it."""

    layout: Layout
    state: ShardState

    def weights(self) -> Weights:
        return self.layout.weights(self.state.values)

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.state = replace(self.state, values=self.layout.vector(weights))

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        state = self.state
        return {
            "average": state.average, "first": state.first, "second": state.second, "steps": np.array(state.steps)
        }  # fmt: skip

    def set_optimiser_state(self, found: Mapping[str, NDArray[Any]]) -> None:
        parts = {name: found[name] for name in ("average", "first", "second")}
        self.state = replace(self.state, steps=int(found["steps"]), **parts)


class DividedTrainer:
    """A `Trainer` by a plan; `open_cluster` opens the cluster when there is something to train."""

    def __init__(
        self,
        plan: Plan,
        *,
        open_cluster: Callable[[], AbstractContextManager[Client]],
        say: Say = lambda _line: None,
    ) -> None:
        self._plan, self._open, self._say = plan, open_cluster, say

    def facts(self) -> Mapping[str, Any]:
        """How the status names it."""
        return {"workers": self._plan.workers, "mode": self._plan.mode, "server": self._plan.server}

    def classifier(
        self,
        specification: Specification,
        weights: Weights,
        *,
        training: Samples,
        validation: Samples,
        schedule: Schedule,
        augmentation: Augmentation,
        settings: EngineSettings,
        folder: Path,
        engine: EngineName = "auto",
        progress: Progress = lambda _: None,
    ) -> tuple[Weights, list[dict[str, Any]]]:
        """Train a classifier, or resume it; the averaged weights, and figures by epoch. See `train.train`."""
        key = digest(specification, weights, training, validation, schedule, augmentation, settings, self._key())
        own = open_engine(specification, weights, settings=settings, name=engine)
        self._note(specification.layers)

        def look(average: Weights, _epoch: int) -> dict[str, Any]:
            return validate(own, average, validation)

        checkpoint = Checkpoint(folder / CHECKPOINT, every_s=0)
        with arrays_kept(folder / ARRAYS, training) as sha256, self._open() as client:
            task = DividedClassifier(
                specification=specification,
                schedule=schedule,
                augmentation=augmentation,
                settings=settings,
                engine=engine,
                samples=len(training),
                arrays=folder / ARRAYS,
                arrays_sha256=sha256,
            )
            course = _Course(client, self._plan, checkpoint, self._say)
            average = course.train(task, weights, key=key, total=schedule.epochs, validated=look, progress=progress)
        return average, course.history

    def lung_fields(
        self, recipe: LungRecipe, data: LungData, *, folder: Path, progress: Progress = lambda _: None
    ) -> tuple[Weights, list[dict[str, Any]]]:
        """Train a lung-field network, or resume it; the averaged weights, and figures by epoch. See `lungs.train`."""
        key = digest(asdict(recipe.network), asdict(recipe.training), asdict(recipe.augmentation), data.images)
        key = digest(key, asdict(recipe.checks_augmentation), data.masks, data.image_parts, data.chests, self._key())
        key = digest(key, data.chest_parts, bool(data.masks_are_chests))
        stages = recipe.training.stages
        if recipe.network.kind == "compact":
            side = stages[-1].side
            self._note(compact_unet(height=side, width=side, channels=recipe.network.channels).layers)
        total, first, average = sum(stage.epochs for stage in stages), 0, Weights()
        checkpoint = Checkpoint(folder / CHECKPOINT, every_s=0)
        kinds = range(len(stages))
        resumed = next((n for n in reversed(kinds) if checkpoint.holds(_Divided, key=digest(key, n))), 0)
        with arrays_kept(folder / ARRAYS, data) as sha256, self._open() as client:
            course = _Course(client, self._plan, checkpoint, self._say)
            for number, stage in enumerate(stages):
                if number >= resumed:
                    own = MaskEngine(recipe.network, stage.side, recipe.training)
                    average = average or first_weights(own, recipe.training.seed)
                    look = StageSamples(recipe, data, own)
                    arrays = folder / ARRAYS
                    task = DividedLungs(
                        recipe=recipe, stage=number, arrays=arrays, arrays_sha256=sha256, first_epoch=first
                    )

                    def validated(
                        found: Weights, epoch: int, samples: StageSamples = look, side: int = stage.side
                    ) -> dict[str, Any]:
                        fit = samples.validate(found, folder / "panels" / f"epoch-{epoch:03d}.png")
                        return {"side": side, **fit}

                    own_key = digest(key, number)
                    average = course.train(
                        task, average, key=own_key, total=total, first=first, validated=validated, progress=progress
                    )
                first += stage.epochs
        return average, course.history

    def _note(self, layers: Sequence[Layer]) -> None:
        """Say where the workers' parts do not make up what one process would come to."""
        if any(layer.batch_norm for layer in layers):
            self._say(reason("training_batch_norm").text)
        if any(layer.kind == "dropout" for layer in layers):
            self._say(reason("training_dropout").text)

    def _key(self) -> str:
        """What of the plan decides the result; not where the cluster is."""
        return digest(replace(self._plan, address=None, certificates=None))


class _Course:
    """The epochs of one training, with checkpoints."""

    def __init__(self, client: Client, plan: Plan, checkpoint: Checkpoint, say: Say) -> None:
        self._client, self._plan, self._checkpoint, self._say = client, plan, checkpoint, say
        self.history: list[dict[str, Any]] = []
        self._trained_s = 0.0

    def train(
        self,
        task: DividedTask,
        weights: Weights,
        *,
        key: str,
        total: int,
        validated: Callable[[Weights, int], dict[str, Any]],
        progress: Progress,
        first: int = 0,
    ) -> Weights:
        """Train a task whose first epoch is number `first` of the whole training, from 0; the averaged weights."""
        layout = Layout.of(weights)
        divided = _Divided(layout, ShardState.new(layout.vector(weights)))
        if kept := self._checkpoint.restore(divided, key=key):
            self.history = list(kept.facts["history"])
            self._trained_s = float(self.history[-1].get("time_s", 0.0)) if self.history else 0.0
        began = time.time()
        began_s: float | None = None
        done = max(0, len(self.history) - first)
        made = epochs(
            self._client,
            plan=self._plan,
            task=task,
            layout=layout,
            state=divided.state,
            first_epoch=done,
            say=self._say,
        )
        for epoch in made if done < task.epochs else ():
            divided.state = epoch.state
            row: dict[str, Any] = {"epoch": first + epoch.number, "epochs": total, "loss": epoch.loss}
            row |= validated(layout.weights(epoch.state.average), first + epoch.number)
            late = sorted(epoch.staleness.elements())
            row |= {"staleness_mean": round(float(np.mean(late)), 2), "staleness_most": late[-1]} if late else {}
            row["seconds"] = round(epoch.ended - began, 2)
            # Of the first epoch from its first gradient, as the start of processes is no training.
            took_s = epoch.ended - (epoch.began if began_s is None else began_s)
            row["time_s"] = round(self._trained_s + took_s, 3)
            self._trained_s, began_s = row["time_s"], epoch.ended
            began = epoch.ended
            self.history.append(row)
            facts = {"history": self.history}
            self._checkpoint.save_if_due(divided, Kept(facts=facts, arrays={}), key=key)
            progress(row)
        return layout.weights(divided.state.average)

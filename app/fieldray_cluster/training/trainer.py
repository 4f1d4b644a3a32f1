"""Train a recipe's network on a cluster, in place of the function `train` of `fieldray_adapt`.

After each epoch, this process evaluates the averaged weights on the validation images, and writes a checkpoint, from
which a stopped training resumes. The file of the training images is in the run folder, which every computer of the
cluster must be able to read.

`measure_cluster` measures the times that decide whether several workers are worth it: the time of a gradient in this
process, and the times of transfers over the cluster's network.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from distributed import Client
from msgspec import structs
from numpy.typing import NDArray

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.data.dataset import load_dataset
from fieldray_adapt.files import digest
from fieldray_adapt.lungs.dataset import LungData, load_lung_data
from fieldray_adapt.lungs.engine import MaskEngine, set_thread_count
from fieldray_adapt.lungs.networks import compact_unet
from fieldray_adapt.lungs.recipe import LungRecipe
from fieldray_adapt.lungs.train import StageSamples, draw_first_weights
from fieldray_adapt.networks.specification import Layer, Specification, Weights
from fieldray_adapt.recipe_actions import recipe_kind_of, run_recipe_document
from fieldray_adapt.recipes.classifier import ClassifierRecipe, with_absolute_paths
from fieldray_adapt.recipes.tables import RecipeDocument
from fieldray_adapt.run import Run, StepFacts, lock_run_folder
from fieldray_adapt.training.classifier import Samples, TrainingOptions, validation_aucs
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_adapt.training.loop import (
    CHECKPOINT_FILE_NAME,
    Checkpoint,
    CheckpointContent,
    EpochFigures,
    Progress,
    TrainingProgress,
)
from fieldray_adapt.training.steps import engine_settings, make_schedule, recipe_specification
from fieldray_cluster.connection import client_tls_context, host_of
from fieldray_cluster.node import worker_core_count
from fieldray_cluster.training.channel import open_channels, time_round_trips
from fieldray_cluster.training.session import (
    LineHandler,
    choose_process_addresses,
    open_plan_client,
    open_registry,
    train_epochs_on_cluster,
)
from fieldray_cluster.training.shard import Shard, ShardState, WeightLayout, clip_gradient
from fieldray_cluster.training.tasks import (
    DividedClassifierTraining,
    DividedLungTraining,
    DividedTask,
    TrainingPlan,
    temporary_arrays,
)
from fieldray_cluster.training.worker import start_echo_server, stop_parameter_servers
from fieldray_cluster.worker_registry import CONNECTION_ERRORS, WorkerLost, wait_for_result

ARRAYS_FILE_NAME: Final = "arrays.npz"
"""The name of the file of the training images, in the folder of the training."""


@dataclass(slots=True)
class _DividedState:
    """The state of a training with several workers, in the form that a checkpoint stores."""

    layout: WeightLayout
    state: ShardState

    def weights(self) -> Weights:
        return self.layout.to_weights(self.state.weights)

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self.state = replace(self.state, weights=self.layout.to_vector(weights))

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        state = self.state
        named = {
            "average": state.averaged_weights,
            "first": state.first_moment,
            "second": state.second_moment,
            "steps": state.update_count,
        }
        return {name: np.asarray(value) for name, value in named.items()}

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        moments = {"first_moment": state["first"], "second_moment": state["second"]}
        self.state = replace(self.state, averaged_weights=state["average"], update_count=int(state["steps"]), **moments)


class DividedTrainer:
    """A `Trainer` that trains on a cluster, with the division of the training plan `plan`.

    `open_cluster` is called when a training starts, and opens a client of the cluster. `say` is called with lines of
    text for the user.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        *,
        open_cluster: Callable[[], AbstractContextManager[Client]],
        say: LineHandler = lambda _line: None,
    ) -> None:
        self._plan, self._open, self._say = plan, open_cluster, say

    def facts(self) -> StepFacts:
        """Return the values of the training plan, such as the number of workers, for status.json."""
        return {"workers": self._plan.workers, "mode": self._plan.mode, "server": self._plan.server}

    def train_classifier(
        self,
        specification: Specification,
        weights: Weights,
        *,
        training: Samples,
        validation: Samples,
        options: TrainingOptions,
        folder: Path,
        progress: Progress = lambda _: None,
    ) -> tuple[Weights, list[EpochFigures]]:
        """Train a classifier on the cluster, or resume the training from the checkpoint in `folder`.

        Parameters and results as `fieldray_adapt.training.classifier.train`.
        """
        schedule, augmentation, settings = options.schedule, options.augmentation, options.engine_settings
        key = digest(specification, weights, training, validation, schedule, augmentation, settings, self._key())
        own = open_engine(specification, weights, settings=settings, name=options.engine_name)
        self._note(specification.layers)

        def look(average: Weights, ended: EpochFigures) -> EpochFigures:
            return structs.replace(ended, auc=validation_aucs(own, average, validation))

        checkpoint = Checkpoint(folder / CHECKPOINT_FILE_NAME)
        with temporary_arrays(folder / ARRAYS_FILE_NAME, training) as sha256, self._open() as client:
            task = DividedClassifierTraining(
                specification=specification,
                schedule=schedule,
                augmentation=augmentation,
                settings=settings,
                engine=options.engine_name,
                sample_count=len(training),
                arrays_path=folder / ARRAYS_FILE_NAME,
                arrays_sha256=sha256,
            )
            course = _ClusterTraining(client, self._plan, checkpoint, self._say)
            average = course.train(task, weights, key=key, total=schedule.epochs, validated=look, progress=progress)
        return average, course.history

    def train_lung_fields(
        self, recipe: LungRecipe, data: LungData, *, folder: Path, progress: Progress = lambda _: None
    ) -> tuple[Weights, list[EpochFigures]]:
        """Train a lung-field network on the cluster, or resume the training from the checkpoint in `folder`.

        Parameters and results as `fieldray_adapt.lungs.train.train`.
        """
        key = digest(asdict(recipe.network), asdict(recipe.training), asdict(recipe.augmentation), data.images)
        key = digest(key, asdict(recipe.checks_augmentation), data.masks, data.image_parts, data.chests, self._key())
        key = digest(key, data.chest_parts, bool(data.masks_are_chests))
        stages = recipe.training.stages
        if recipe.network.kind == "compact":
            side = stages[-1].side
            network = recipe.network
            made = compact_unet(height=side, width=side, channels=network.channels, mask_count=network.mask_count)
            self._note(made.layers)
        total, first, average = sum(stage.epochs for stage in stages), 0, Weights()
        checkpoint = Checkpoint(folder / CHECKPOINT_FILE_NAME)
        kinds = range(len(stages))
        resumed = next(
            (n for n in reversed(kinds) if checkpoint.has_training_state(_DividedState, fingerprint=digest(key, n))), 0
        )
        with temporary_arrays(folder / ARRAYS_FILE_NAME, data) as sha256, self._open() as client:
            course = _ClusterTraining(client, self._plan, checkpoint, self._say)
            for number, stage in enumerate(stages):
                if number >= resumed:
                    own = MaskEngine(recipe.network, stage.side, recipe.training)
                    average = average or draw_first_weights(own, recipe.training.seed)
                    look = StageSamples(recipe, data, own)
                    arrays = folder / ARRAYS_FILE_NAME
                    task = DividedLungTraining(
                        recipe=recipe, stage_index=number, arrays_path=arrays, arrays_sha256=sha256, first_epoch=first
                    )

                    def validated(
                        found: Weights, ended: EpochFigures, samples: StageSamples = look, side: int = stage.side
                    ) -> EpochFigures:
                        return samples.validate(found, structs.replace(ended, side=side), folder / "panels")

                    own_key = digest(key, number)
                    average = course.train(
                        task, average, key=own_key, total=total, first=first, validated=validated, progress=progress
                    )
                first += stage.epochs
        return average, course.history

    def _note(self, layers: Sequence[Layer]) -> None:
        """Tell the user which kinds of `layers` make the result differ from a training in one process."""
        if any(layer.batch_norm for layer in layers):
            self._say(reason("training_batch_norm").text)
        if any(layer.kind == "dropout" for layer in layers):
            self._say(reason("training_dropout").text)

    def _key(self) -> str:
        """Return a digest of all values of the training plan that decide the result, without the cluster's address."""
        return digest(replace(self._plan, address=None, certificates=None, takes_turns=False))


class _ClusterTraining:
    """One training on a cluster: trains the epochs, evaluates each epoch, and writes checkpoints."""

    def __init__(self, client: Client, plan: TrainingPlan, checkpoint: Checkpoint, say: LineHandler) -> None:
        self._client, self._plan, self._checkpoint, self._say = client, plan, checkpoint, say
        self.history: list[EpochFigures] = []
        self._trained_s = 0.0

    def train(
        self,
        task: DividedTask,
        weights: Weights,
        *,
        key: str,
        total: int,
        validated: Callable[[Weights, EpochFigures], EpochFigures],
        progress: Progress,
        first: int = 0,
    ) -> Weights:
        """Train a task from `weights`, or resume from the checkpoint. Returns the averaged weights.

        `key` is the digest of all inputs. The whole training has `total` epochs, of which `first` come before the task.
        `validated` adds the figures on validation images to an epoch's figures. `progress` is called after each epoch.
        """
        layout = WeightLayout.from_weights(weights)
        divided = _DividedState(layout, ShardState.initial(layout.to_vector(weights)))
        if kept := self._checkpoint.restore(divided, fingerprint=key):
            self.history = list(kept.progress.history)
            self._trained_s = (self.history[-1].time_s or 0.0) if self.history else 0.0
        began = time.time()
        began_s: float | None = None
        done = max(0, len(self.history) - first)
        made = train_epochs_on_cluster(
            self._client, plan=self._plan, task=task, layout=layout, state=divided.state, first_epoch=done,
            say=self._say,
        )  # fmt: skip
        for epoch in made if done < task.epochs else ():
            divided.state = epoch.state
            ended = EpochFigures(epoch=first + epoch.number, epochs=total, loss=epoch.loss)
            ended = validated(layout.to_weights(epoch.state.averaged_weights), ended)
            late = sorted(epoch.gradient_counts_by_staleness.elements())
            # The first epoch counts from its first update, because starting processes is no training.
            took_s = epoch.ended_s - (epoch.began_s if began_s is None else began_s)
            self._trained_s = round(self._trained_s + took_s, 3)
            row = structs.replace(
                ended,
                staleness_mean=round(float(np.mean(late)), 2) if late else None,
                staleness_most=late[-1] if late else None,
                seconds=round(epoch.ended_s - began, 2),
                time_s=self._trained_s,
            )
            began = began_s = epoch.ended_s
            self.history.append(row)
            course = TrainingProgress(history=tuple(self.history))
            self._checkpoint.save(divided, CheckpointContent(progress=course, averaged_weights={}), fingerprint=key)
            progress(row)
        return layout.to_weights(divided.state.averaged_weights)


# ---- measurement of a cluster


_MEASURED_ARRAYS: Final = "measured_arrays.npz"
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTimes:
    """Measured times that decide whether training with several workers is worth it, as medians in seconds.

    Attributes
    ----------
    gradient_s
        Time to compute the gradient of a batch.
    update_s
        Time to update all weights by a gradient.
    send_s, return_s
        Time to send all weights to another process, and time to get all weights back.
    latency_s
        Time to send a short message.
    weight_count
        Number of weights of the network. A weight has 4 bytes.
    batch_count
        Number of batches in an epoch.
    """

    gradient_s: float
    update_s: float
    send_s: float
    return_s: float
    latency_s: float
    weight_count: int
    batch_count: int

    @property
    def transfer_s(self) -> float:
        """Seconds to transfer all weights in one direction: the mean of both directions."""
        return (self.send_s + self.return_s) / 2

    def text_lines(self) -> Iterator[str]:
        """Yield lines of text about the measured times, for the user."""
        rate = 32e-6 * self.weight_count / max(self.transfer_s - self.latency_s, 1e-9)
        yield f"Gradient of a batch (t_grad): {self.gradient_s:.4g} s"
        yield f"Update of all weights (t_update): {self.update_s:.4g} s"
        yield (
            f"Transfer of all weights, {4e-6 * self.weight_count:.2f} MB (t_comm): {self.transfer_s:.4g} s one way, "
            f"{self.send_s:.4g} s there, {self.return_s:.4g} s back"
        )
        yield f"Latency {1000 * self.latency_s:.2f} ms, bandwidth {rate:.0f} Mbit/s"


def measure_cluster(path: Path, plan: TrainingPlan, *, repeats: int) -> ClusterTimes:
    """Measure the times of a gradient, of an update, and of transfers in a training on a cluster.

    Parameters
    ----------
    path
        The recipe whose network is measured. If necessary, the recipe's data step is performed first.
    plan
        The training plan, which names the cluster to measure.
    repeats
        Number of measurements of each time, for the median.

    Raises UsageProblem, EnvironmentProblem.
    """
    with open_training_task(path) as task:
        replica = task.open_replica()
    layout = WeightLayout.from_weights(replica.weights())
    gradient_s = _median_s(lambda batch: replica.gradient(0, batch, TrainingPlan(), 0), task, repeats)
    values = layout.to_vector(replica.weights())
    (runs,) = layout.shard_ranges(1, evenly=True)
    shard = Shard(ShardState.initial(values), layout=layout, ranges=runs, rule=task.update_rule)
    update_s = _median_s(lambda _: shard.update(values, learning_rate=1e-3), task, repeats)
    times_s = {"gradient_s": gradient_s, "update_s": update_s, **_transfers_s(layout.element_count, plan, repeats)}
    return ClusterTimes(**times_s, weight_count=layout.element_count, batch_count=task.batch_count)


def measure_step_s(task: DividedTask, repeats: int) -> float:
    """Return the median time of a worker's step without transfers, in seconds.

    A step sets the weights, computes the gradient of a whole batch, and joins the gradient to one vector. The function
    can run in a process of a cluster.
    """
    set_thread_count(worker_core_count())
    replica = task.open_replica()
    layout = WeightLayout.from_weights(replica.weights())
    values = layout.to_vector(replica.weights())

    def whole_step(batch: int) -> None:
        replica.set_weights(layout.to_weights(values))
        taken = replica.gradient(0, batch, TrainingPlan(), 0)
        clip_gradient(layout.to_vector(taken.gradient), layout, task.update_rule.clip_norm)

    return _median_s(whole_step, task, repeats)


def _median_s(work: Callable[[int], object], task: DividedTask, repeats: int) -> float:
    """Return the median duration of `work`, called with the indices of consecutive batches, in seconds.

    The first call does not count, because the library compiles the network in the first call.
    """
    times = []
    for step in range(repeats + 1):
        began_s = time.perf_counter()
        work(step % task.batch_count)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times[1:])


def _transfers_s(elements: int, plan: TrainingPlan, repeats: int) -> dict[str, float]:
    """Return the median times of transfers of `elements` numbers to another process and back, and of a short message.

    The times are in seconds, by field names of `ClusterTimes`. Raises EnvironmentProblem if the process is lost.
    """
    token = secrets.token_hex(16)
    with open_plan_client(plan) as client:
        registry = open_registry(client)
        worker_address = choose_process_addresses(registry, plan)[0]

        def require_both() -> None:
            registry.refresh()
            if worker_address not in registry.workers:
                raise EnvironmentProblem(reason("training_measured_lost", host=host_of(worker_address)))

        try:
            task = client.submit(start_echo_server, elements, token, workers=[worker_address], pure=False)
            target = (host_of(worker_address), int(wait_for_result(task, timeout_s=_PATIENCE_S)[1]))
            encryption = client_tls_context(client)
            with open_channels([target], token=token, role="", max_values=[elements], encryption=encryption) as (
                channel,
            ):
                empty = time_round_trips(channel, values=0, repeats=repeats, meanwhile=require_both)
                whole = time_round_trips(channel, values=elements, repeats=repeats, meanwhile=require_both)
            client.submit(stop_parameter_servers, token, workers=[worker_address], pure=False).result(
                timeout=_PATIENCE_S
            )
        except (WorkerLost, *CONNECTION_ERRORS) as error:
            raise EnvironmentProblem(reason("training_measured_lost", host=host_of(worker_address))) from error
    latency = statistics.median(one for pair in empty for one in pair) / 2
    there, back = (statistics.median(pair[way] for pair in whole) - latency for way in range(2))
    return {"send_s": there, "return_s": back, "latency_s": latency}


@contextlib.contextmanager
def open_training_task(path: Path) -> Iterator[DividedTask]:
    """Lock the run folder of a recipe during the block, and yield the recipe's training task.

    If necessary, the recipe's data step is performed first. Raises UsageProblem.
    """
    document = RecipeDocument.read(path)
    schema = recipe_kind_of(document).recipe_class
    if schema not in (ClassifierRecipe, LungRecipe):
        raise UsageProblem(reason("training_not_divided", kind=str(document.tables.get("kind"))))
    run_recipe_document("data", document, say=lambda _line: None, progress=lambda *_: None)
    recipe = with_absolute_paths(cast(Any, document.parse_as(schema)), document.path)
    run, arrays = Run(recipe=recipe, progress=lambda *_: None), recipe.run / _MEASURED_ARRAYS
    data: Any = load_lung_data(run) if schema is LungRecipe else load_dataset(run).samples("training")
    with lock_run_folder(recipe.run), temporary_arrays(arrays, data) as sha256:
        if schema is LungRecipe:
            stage = len(recipe.training.stages) - 1
            yield DividedLungTraining(recipe=recipe, stage_index=stage, arrays_path=arrays, arrays_sha256=sha256)
            return
        yield DividedClassifierTraining(
            specification=recipe_specification(recipe),
            schedule=make_schedule(recipe),
            augmentation=recipe.augmentation,
            settings=engine_settings(recipe),
            engine=recipe.training.engine,
            sample_count=len(data),
            arrays_path=arrays,
            arrays_sha256=sha256,
        )

"""What decides whether several workers are worth it, measured on the recipe's own network and the cluster's own links.

The time of a gradient is taken in this process; that of a transfer between this process and one of the cluster, through
the channel that training uses, both ways. Both go to the estimator.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from distributed import KilledWorker

from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.command import kind_of, perform
from fieldray_adapt.dataset import dataset_of
from fieldray_adapt.lungs.dataset import data_of
from fieldray_adapt.lungs.recipe import LungRecipe
from fieldray_adapt.lungs.train import use_threads
from fieldray_adapt.recipe import Recipe, rooted
from fieldray_adapt.run import Run, locked
from fieldray_adapt.steps import schedule_of, settings_of, specification_of
from fieldray_adapt.tables import Document
from fieldray_cluster.connection import host_of
from fieldray_cluster.node import cores_of_worker
from fieldray_cluster.training.channel import Listener, echo, open_channels, round_trips
from fieldray_cluster.training.session import encryption_of, members, opened, places_of, require_connected
from fieldray_cluster.training.shard import Layout, clipped
from fieldray_cluster.training.tasks import DividedClassifier, DividedLungs, DividedTask, Plan, arrays_kept
from fieldray_cluster.training.worker import encryption_here, host_here

_ARRAYS: Final = "measured_arrays.npz"
_PATIENCE_S: Final = 60.0
_ECHOES: Final[dict[str, Listener]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Medians in seconds: a batch's gradient, a transfer of all weights there and back, and of next to nothing.

    `elements` are the network's numbers (4 bytes each), `batches` those of an epoch.
    """

    gradient_s: float
    there_s: float
    back_s: float
    latency_s: float
    elements: int
    batches: int

    @property
    def transfer_s(self) -> float:
        """One way, the mean of both."""
        return (self.there_s + self.back_s) / 2

    def lines(self) -> Iterator[str]:
        """What was measured, for a person."""
        rate = 32e-6 * self.elements / max(self.transfer_s - self.latency_s, 1e-9)
        yield f"Gradient of a batch (t_grad): {self.gradient_s:.4g} s"
        yield (
            f"Transfer of all weights, {4e-6 * self.elements:.2f} MB (t_comm): {self.transfer_s:.4g} s one way, "
            f"{self.there_s:.4g} s there, {self.back_s:.4g} s back"
        )
        yield f"Latency {1000 * self.latency_s:.2f} ms, bandwidth {rate:.0f} Mbit/s"


def measure_costs(path: Path, *, address: str | None, certificates: Path | None, repeats: int) -> Costs:
    """Measure for a recipe, whose data step is done first. Raises UsageProblem, EnvironmentProblem."""
    with task_of(path) as task:
        replica = task.open()
    layout = Layout.of(replica.weights())
    found_s = _median_s(lambda batch: replica.gradient(0, batch, Plan(), 0), task, repeats)
    there, back, latency = _transfers(layout.size, address=address, certificates=certificates, repeats=repeats)
    return Costs(
        gradient_s=found_s,
        there_s=there,
        back_s=back,
        latency_s=latency,
        elements=layout.size,
        batches=task.batches,
    )


def step_s(task: DividedTask, repeats: int) -> float:
    """A task: the median time of what a worker does for a gradient beside transfers, in seconds.

    It sets the weights, computes the gradient of a whole batch, and puts it in one row to be sent.
    """
    use_threads(cores_of_worker())
    replica = task.open()
    layout = Layout.of(replica.weights())
    values = layout.vector(replica.weights())

    def whole_step(batch: int) -> None:
        replica.set_weights(layout.weights(values))
        taken = replica.gradient(0, batch, Plan(), 0)
        clipped(layout.vector(taken.gradient), layout, task.rule.clip)

    return _median_s(whole_step, task, repeats)


def _median_s(work: Callable[[int], object], task: DividedTask, repeats: int) -> float:
    """Of work on one batch after another; the first time, which makes the network's graph, does not count."""
    times = []
    for step in range(repeats + 1):
        began_s = time.perf_counter()
        work(step % task.batches)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times[1:])


def _transfers(
    elements: int, *, address: str | None, certificates: Path | None, repeats: int
) -> tuple[float, float, float]:
    """Medians there, back, and of a short message. Raises EnvironmentProblem where the other side is lost."""
    plan, token = Plan(address=address, certificates=certificates), secrets.token_hex(16)
    with opened(plan) as client:
        place = places_of(client, plan)[0]

        def require_both() -> None:
            require_connected(client)
            if place not in members(client):
                raise EnvironmentProblem(reason("training_measured_lost", host=host_of(place)))

        try:
            task = client.submit(start_echo, elements, token, workers=[place], pure=False)
            target = (host_of(place), int(task.result(timeout=_PATIENCE_S)[1]))
            encryption = encryption_of(client)
            with open_channels([target], token=token, role="", largest=[elements], encryption=encryption) as (channel,):
                empty = round_trips(channel, values=0, repeats=repeats, meanwhile=require_both)
                whole = round_trips(channel, values=elements, repeats=repeats, meanwhile=require_both)
            client.submit(stop_echo, token, workers=[place], pure=False).result(timeout=_PATIENCE_S)
        except (KilledWorker, CancelledError, TimeoutError, OSError) as error:
            raise EnvironmentProblem(reason("training_measured_lost", host=host_of(place))) from error
    latency = statistics.median(one for pair in empty for one in pair) / 2
    there, back = (statistics.median(pair[way] for pair in whole) - latency for way in range(2))
    return there, back, latency


def start_echo(elements: int, token: str) -> tuple[str, int]:
    """A task: begin to answer `round_trips` in this process; where."""
    _ECHOES[token] = Listener(host_here(), token=token, largest=elements, serve=echo, encryption=encryption_here())
    return _ECHOES[token].address


def stop_echo(token: str) -> None:
    """A task: end it."""
    if listener := _ECHOES.pop(token, None):
        listener.close()


@contextlib.contextmanager
def task_of(path: Path) -> Iterator[DividedTask]:
    """What a recipe trains, while its run folder is held; its data step is performed. Raises UsageProblem."""
    document = Document.read(path)
    schema = kind_of(document).schema
    if schema not in (Recipe, LungRecipe):
        raise UsageProblem(reason("training_not_divided", kind=str(document.tables.get("kind"))))
    perform("data", document, say=lambda _line: None, progress=lambda *_: None)
    parsed = document.parsed(schema)
    if schema is LungRecipe:
        lungs = rooted(cast("LungRecipe", parsed), document.path)
        data, arrays = data_of(Run(recipe=cast(Any, lungs), progress=lambda *_: None)), lungs.run / _ARRAYS
        with locked(lungs.run), arrays_kept(arrays, data) as sha256:
            yield DividedLungs(recipe=lungs, stage=len(lungs.training.stages) - 1, arrays=arrays, arrays_sha256=sha256)
        return
    recipe = rooted(cast("Recipe", parsed), document.path)
    arrays, training = (
        recipe.run / _ARRAYS,
        dataset_of(Run(recipe=recipe, progress=lambda *_: None)).samples("training"),
    )
    with locked(recipe.run), arrays_kept(arrays, training) as sha256:
        yield DividedClassifier(
            specification=specification_of(recipe),
            schedule=schedule_of(recipe),
            augmentation=recipe.augmentation,
            settings=settings_of(recipe),
            engine=recipe.training.engine,
            samples=len(training),
            arrays=arrays,
            arrays_sha256=sha256,
        )

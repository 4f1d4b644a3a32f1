"""A machine of the benchmark `shaped_links`: a process that follows orders, of which each is a line of JSON.

The process runs this program's parameter servers and workers. Before the order "learn", a gradient is a timed wait, and
all values are 0.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fieldray.offline import allow_networks, stay_offline

if TYPE_CHECKING:
    from fieldray_cluster.training.tasks import TrainingPlan


def main() -> int:
    """Follow orders from standard input until standard input ends. Returns the exit code."""
    stay_offline(joins_cluster=True)
    from benchmarks.namespaces import SUBNET  # imported after the offline guard

    allow_networks((f"{SUBNET}.0/24", sys.argv[1]))
    machine = _Machine(sys.argv[1])
    try:
        for line in sys.stdin:
            order = json.loads(line)
            answer = machine.orders[order.pop("do")](**order)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        machine.stop()
    return 0


class _Machine:
    def __init__(self, host: str) -> None:
        self._host, self._open = host, list[Any]()
        self._learner: Any = None
        self.orders: Mapping[str, Callable[..., Any]] = {
            "learn": self.learn,
            "gradients": self.gradients,
            "update": self.update,
            "serve": self.serve,
            "work": self.work,
            "echo": self.echo,
            "transfer": self.transfer,
            "stop": self.stop,
        }

    def learn(self, **network: Any) -> Any:
        """Set the network for the next gradients, from the arguments of `_Learner`. Returns the number of weights."""
        self._learner = _Learner(**network)
        return self._learner.layout.element_count

    def gradients(self, repeats: int) -> Any:
        """Measure the time of a gradient, of a step without transfers, and the CPU time of a gradient, `repeats` times.

        Returns the three medians in seconds.
        """
        from fieldray_cluster.training.tasks import TrainingPlan

        replica, layout = self._learner.open_replica(), self._learner.layout
        values, times = layout.to_vector(replica.weights()), list[tuple[float, float, float]]()
        for step in range(repeats):
            began_s = time.perf_counter()
            replica.set_weights(layout.to_weights(values))
            set_s, used_s = time.perf_counter(), time.process_time()
            taken = replica.gradient(0, step % self._learner.batch_count, TrainingPlan(), 0)
            taken_s, used_s = time.perf_counter(), time.process_time() - used_s
            layout.to_vector(taken.gradient)
            times.append((taken_s - set_s, time.perf_counter() - began_s, used_s))
        return [statistics.median(column) for column in zip(*times, strict=True)]

    def update(self, repeats: int) -> Any:
        """Return median seconds of an update of all weights by one gradient. The first update is not counted."""
        from fieldray_cluster.training.shard import Shard, ShardState

        layout = self._learner.layout
        values = layout.to_vector(self._learner.first_weights())
        shard = Shard(
            ShardState.initial(values),
            layout=layout,
            ranges=layout.shard_ranges(1, evenly=True)[0],
            rule=self._learner.update_rule,
        )
        times = list[float]()
        for _ in range(repeats + 1):
            began_s = time.perf_counter()
            shard.update(values, learning_rate=1e-3)
            times.append(time.perf_counter() - began_s)
        return statistics.median(times[1:])

    def serve(self, plan: dict[str, Any], elements: int, batches: int, share: int, token: str) -> Any:
        from fieldray_cluster.training.server import ParameterServerSettings, ShardServer
        from fieldray_cluster.training.shard import ShardState

        made, task = _plan(plan), self._learner or _StandIn(0.0, batches, elements)
        layout = task.layout
        runs = layout.shard_ranges(made.server_count, evenly=True)[share]
        service = ParameterServerSettings(
            layout=layout,
            shard_ranges=runs,
            rule=task.update_rule,
            plan=made,
            updates_per_epoch=made.updates_per_epoch(batches),
        )
        state = ShardState.initial(layout.to_vector(task.first_weights())).part(runs)
        served = ShardServer(service, state, host=self._host, token=token)
        self._open.append(served)
        return served.address

    def work(
        self,
        *,
        plan: dict[str, Any],
        elements: int,
        batches: int,
        worker: int,
        token: str,
        gradient_s: float,
        servers: list[tuple[str, int]],
        at: float,
    ) -> Any:
        from fieldray_cluster.training.worker import WorkerSpec, compute_gradients

        made, task = _plan(plan), self._learner or cast(Any, _StandIn(gradient_s, batches, elements))
        placed = task.layout.shard_ranges(made.server_count, evenly=True)
        spec = WorkerSpec(
            task=task,
            plan=made,
            layout=task.layout,
            worker_index=worker,
            token=token,
            servers=tuple(((host, port), runs) for (host, port), runs in zip(servers, placed, strict=True)),
        )
        time.sleep(max(0.0, at - time.monotonic()))
        outcome = compute_gradients(spec)
        return {"began": at, "ended": time.monotonic(), "lost": outcome.was_lost}

    def echo(self, elements: int, token: str) -> Any:
        from fieldray_cluster.training.channel import Listener, serve_echo

        listener = Listener(self._host, token=token, largest=elements, serve=serve_echo)
        self._open.append(listener)
        return listener.address

    def transfer(self, elements: int, token: str, address: tuple[str, int], repeats: int) -> Any:
        from fieldray_cluster.training.channel import connect, time_round_trips

        channel = connect((address[0], address[1]), token=token, role="", max_values=elements)
        times = {
            "nothing": time_round_trips(channel, values=0, repeats=repeats),
            "weights": time_round_trips(channel, values=elements, repeats=repeats),
        }
        channel.close()
        return times

    def stop(self) -> Any:
        for one in self._open:
            one.close()
        self._open.clear()
        gc.collect()  # a closed server with its weights is part of a reference cycle
        return {}


@dataclass(frozen=True, slots=True)
class _StandIn:
    """A training task without a network: a gradient takes `gradient_s` seconds, and all of its values are 0."""

    gradient_s: float
    batch_count: int
    elements: int
    epochs: int = 1
    images_per_batch: tuple[int, ...] = (64,)

    @property
    def arrays_path(self) -> Path:
        raise FileNotFoundError("nothing is learnt from")

    @property
    def update_rule(self) -> Any:
        from fieldray_cluster.training.shard import UpdateRule

        return UpdateRule(weight_decay=0.0, updates_per_averaging=2**30)

    @property
    def layout(self) -> Any:
        from fieldray_cluster.training.shard import WeightLayout

        return WeightLayout(("weights/kernel",), ((self.elements,),))

    def learning_rate(self, _epoch: int, _share: float) -> float:
        return 1e-3

    def open_replica(self) -> Any:
        return self

    def first_weights(self) -> dict[str, Any]:
        return {}

    weights = first_weights

    def set_weights(self, _weights: Any) -> None:
        """Do nothing, because this task has no network."""

    def gradient(self, _epoch: int, _step: int, part: Any, _worker: int) -> Any:
        from fieldray_cluster.training.tasks import GradientResult

        time.sleep(self.gradient_s / (part.workers if part.mode == "sync-split" else 1))
        return GradientResult({}, 0.0, 1.0)


class _Learner:
    """The training task of a network on synthetic images. The network is built when the first gradient is needed."""

    def __init__(
        self, *, kind: str, side: int, width: float, batches: int, batch_size: int, arrays: str, sha256: str
    ) -> None:
        from fieldray_adapt.data.augmentation import Augmentation
        from fieldray_adapt.networks.architectures import NETWORKS
        from fieldray_adapt.networks.specification import initial_weights
        from fieldray_adapt.training.classifier import Schedule
        from fieldray_adapt.training.engine_interface import EngineSettings
        from fieldray_cluster.training.shard import WeightLayout
        from fieldray_cluster.training.tasks import DividedClassifierTraining

        whole = NETWORKS[kind](height=side, width=side, labels=1)
        made = whole.with_scaled_channels(width) if width != 1 else whole
        self._task = DividedClassifierTraining(
            specification=made,
            schedule=Schedule(epochs=1, batch_size=batch_size, images_per_epoch=batches * batch_size),
            augmentation=Augmentation(),
            settings=EngineSettings(threads=1),
            engine="auto",
            sample_count=batch_size,
            arrays_path=Path(arrays),
            arrays_sha256=sha256,
        )
        self.layout = WeightLayout.from_weights(initial_weights(made, seed=0))
        self._replica: Any = None

    def first_weights(self) -> Any:
        from fieldray_adapt.networks.specification import initial_weights

        return initial_weights(self._task.specification, seed=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def open_replica(self) -> Any:
        self._replica = self._replica or self._task.open_replica()
        return self._replica


def _plan(order: dict[str, Any]) -> TrainingPlan:
    from fieldray_cluster.training.tasks import TrainingPlan

    return TrainingPlan(**order)


if __name__ == "__main__":
    sys.exit(main())

"""One machine of `shaped_links`: a process that serves, works or echoes as it is told, a line of JSON after another.

It runs the program's own parameter servers and workers. Only the gradient is none: a worker waits as long as one would
take, and gives zeros.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldray.offline import reach, stay_offline


def main() -> int:
    """Follow orders until the input ends."""
    stay_offline(joins_cluster=True)
    from benchmarks.namespaces import NETWORK  # only now: nothing is imported that the guard has not seen

    reach((f"{NETWORK}.0/24",))
    machine = _Machine(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        answer = machine.orders[order.pop("do")](**order)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    machine.stop()
    return 0


class _Machine:
    def __init__(self, host: str) -> None:
        self._host, self._open = host, list[Any]()
        self.orders: Mapping[str, Callable[..., Any]] = {
            "serve": self.serve,
            "work": self.work,
            "echo": self.echo,
            "transfer": self.transfer,
            "stop": self.stop,
        }

    def serve(self, plan: dict[str, Any], elements: int, batches: int, share: int, token: str) -> Any:
        import numpy as np

        from fieldray_cluster.training.server import ServedShard, Service
        from fieldray_cluster.training.shard import ShardState

        made, layout = _plan(plan), _layout(elements)
        runs = layout.place(made.servers, evenly=True)[share]
        service = Service(
            layout=layout,
            runs=runs,
            rule=_StandIn(0.0, batches).rule,
            workers=made.workers,
            waits=made.waits,
            updates_per_epoch=made.updates(batches),
        )
        state = ShardState.new(np.zeros(elements, np.float32)).part(runs)
        served = ServedShard(service, state, host=self._host, token=token)
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
        from fieldray_cluster.training.worker import WorkerSpec, perform

        made, layout = _plan(plan), _layout(elements)
        placed = layout.place(made.servers, evenly=True)
        spec = WorkerSpec(
            task=_StandIn(gradient_s, batches),
            plan=made,
            layout=layout,
            worker=worker,
            token=token,
            servers=tuple(((host, port), runs) for (host, port), runs in zip(servers, placed, strict=True)),
        )
        time.sleep(max(0.0, at - time.monotonic()))
        outcome = perform(spec)
        return {"began": at, "ended": time.monotonic(), "lost": outcome.was_lost}

    def echo(self, elements: int, token: str) -> Any:
        from fieldray_cluster.training.channel import Listener, echo

        listener = Listener(self._host, token=token, largest=elements, serve=echo)
        self._open.append(listener)
        return listener.address

    def transfer(self, elements: int, token: str, address: tuple[str, int], repeats: int) -> Any:
        from fieldray_cluster.training.channel import connect, round_trips

        channel = connect((address[0], address[1]), token=token, role="", largest=elements)
        times = {
            "nothing": round_trips(channel, values=0, repeats=repeats),
            "weights": round_trips(channel, values=elements, repeats=repeats),
        }
        channel.close()
        return times

    def stop(self) -> Any:
        for one in self._open:
            one.close()
        self._open.clear()
        return {}


@dataclass(frozen=True, slots=True)
class _StandIn:
    """A task whose gradients take a time and are zeros."""

    gradient_s: float
    batches: int
    epochs: int = 1
    sizes: tuple[int, ...] = (64,)

    @property
    def arrays(self) -> Path:
        raise FileNotFoundError("nothing is learnt from")

    @property
    def rule(self) -> Any:
        from fieldray_cluster.training.shard import Rule

        return Rule(weight_decay=0.0, average_every=2**30)

    def rate(self, _epoch: int, _share: float) -> float:
        return 1e-3

    def open(self) -> Any:
        return self

    def weights(self) -> dict[str, Any]:
        return {}

    def set_weights(self, _weights: Any) -> None:
        """Nothing is computed with them."""

    def gradient(self, _epoch: int, _step: int, part: Any, _worker: int) -> Any:
        from fieldray_cluster.training.tasks import GradientResult

        time.sleep(self.gradient_s / (part.workers if part.mode == "sync-split" else 1))
        return GradientResult({}, 0.0, 1.0)


def _plan(told: dict[str, Any]) -> Any:
    from fieldray_cluster.training.tasks import Plan

    return Plan(**told)


def _layout(elements: int) -> Any:
    from fieldray_cluster.training.shard import Layout

    return Layout(("weights/kernel",), ((elements,),))


if __name__ == "__main__":
    sys.exit(main())

"""A parallel load made for a study, and the load that the system really counted.

A load is a number of child processes, each of which keeps one core busy for a share of the time until its input closes
(`handle` is the child's side).
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import psutil

from fieldray.processes.child import Child
from fieldray.processes.wire import Message

_PERIOD_S: Final = 0.1
_BURSTS_S: Final = (0.1, 1.0)  # programs in use work in bursts of many lengths
_ELEMENTS: Final = 65_536  # half a megabyte, so that the load takes its share of the caches


def bursts(share: float, *, is_irregular: bool, seed: int) -> Iterator[tuple[float, float]]:
    """Endless (length, busy part) of bursts in seconds; busy for `share` on average (0..1, irregular at most 0.5)."""
    if not is_irregular:
        yield from itertools.repeat((_PERIOD_S, _PERIOD_S * share))
    fortune = random.Random(seed)
    while True:
        length_s = fortune.uniform(*_BURSTS_S)
        yield length_s, length_s * fortune.uniform(0, 2 * share)


def handle(message: Message) -> Message:
    """Start the load in a thread of its own, and answer at once."""
    body = message.body
    plan = bursts(body["share"], is_irregular=body["is_irregular"], seed=body["seed"])
    threading.Thread(target=_work, args=(plan,), name="burner", daemon=True).start()
    return Message({})


def _work(plan: Iterator[tuple[float, float]]) -> None:
    values = np.ones(_ELEMENTS)
    for length_s, busy_s in plan:
        began_s, ran_s = time.perf_counter(), time.thread_time()
        # CPU time, not wall time: the demand stays the same when others want the core, too
        while time.thread_time() - ran_s < busy_s and time.perf_counter() - began_s < length_s:
            np.sqrt(values, out=values)
        time.sleep(max(0.0, length_s - (time.perf_counter() - began_s)))


_SERVICE: Final = "fieldray.bench.parallel_load:handle"
_START_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """`share` of every core (0..1) that the load demands; `is_irregular`: in bursts, as programs in use do."""

    name: str
    share: float
    is_irregular: bool = False


NO_LOAD: Final = Level(name="no load", share=0.0)
LEVELS: Final = (
    NO_LOAD,
    Level(name="a user, 40 %", share=0.4, is_irregular=True),
    Level(name="60 %", share=0.6),
    Level(name="100 %", share=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """Shares of all cores, 0..1: `made` by the load's own processes, `machine` by all programs, as psutil counts."""

    made: float
    machine: float


@contextlib.contextmanager
def parallel_load(level: Level, *, cores: int) -> Iterator[tuple[psutil.Process, ...]]:
    """A busy process for each core while the block runs; none for no load. Raises OSError, ChildDied."""
    with contextlib.ExitStack() as ends:
        children = []
        for seed in range(cores if level.share else 0):
            child = Child(_SERVICE)
            child.start()
            ends.callback(child.kill)
            order = {"share": level.share, "is_irregular": level.is_irregular, "seed": seed}
            child.call(Message(order), timeout_s=_START_S)
            children.append(child)
        yield tuple(psutil.Process(child.pid) for child in children)


class LoadMeter:
    """Measures the load from its creation to `read`."""

    def __init__(self, processes: Sequence[psutil.Process], *, cores: int) -> None:
        self._processes = processes
        self._cores = cores
        self._began_s = time.perf_counter()
        self._before_s = self._processor_s()
        self._machine = psutil.cpu_times()

    def read(self) -> MeasuredLoad:
        """The load since creation."""
        elapsed_s = time.perf_counter() - self._began_s
        made = (self._processor_s() - self._before_s) / (elapsed_s * self._cores)
        return MeasuredLoad(made=made, machine=busy_share(self._machine, psutil.cpu_times()))

    def _processor_s(self) -> float:
        return sum(times.user + times.system for times in (process.cpu_times() for process in self._processes))


def busy_share(before: object, after: object) -> float:
    """The share of CPU time between two `psutil.cpu_times` that was not idle, 0..1."""
    names = [name for name in getattr(after, "_fields", ()) if name not in ("guest", "guest_nice")]
    spent = {name: getattr(after, name) - getattr(before, name) for name in names}
    total = sum(spent.values())
    idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
    return (total - idle) / total if total > 0 else 0.0

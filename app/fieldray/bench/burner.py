"""The child's side of a parallel load: keeps one core busy for a share of the time until its input closes."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

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

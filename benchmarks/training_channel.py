"""What a round trip of weights costs: through a Dask actor, and through a channel of raw numbers, on one computer.

Actors were to be taken unless they cost more than a tenth more than a plain connection.
"""

from __future__ import annotations

import secrets
import statistics
import time
from typing import Any, Final

import numpy as np
from distributed import Client

from benchmarks.reports import Mark
from fieldray.bench.report import Points, Report, Table
from fieldray_cluster.connection import ConnectionSettings, open_client

_ELEMENTS: Final = (1_000, 100_000, 1_000_000, 10_000_000)
_MOST: Final = 0.1
_TICK_S: Final = 0.1


def channel_report(*, repeats: int) -> Report:
    """Measure both for several sizes of weights."""
    with open_client(ConnectionSettings(workers=2)) as client:
        by_actor = {count: _by_actor(client, count, repeats) for count in _ELEMENTS}
        by_channel = {count: _by_channel(client, count, repeats) for count in _ELEMENTS}
    more = {count: by_actor[count] / by_channel[count] - 1 for count in _ELEMENTS}
    rows = tuple(
        (
            f"{4 * count / 1e6:g} MB",
            f"{1000 * by_actor[count]:.2f}",
            f"{1000 * by_channel[count]:.2f}",
            f"{by_actor[count] / by_channel[count]:.2f}",
        )
        for count in _ELEMENTS
    )
    mark = Mark(
        name="What an actor costs more than a channel, of weights up to 4 MB, at least",
        measured=100 * min(more[count] for count in _ELEMENTS if count <= 1_000_000),
        goal=100 * _MOST, is_most=True, unit="%",
    )  # fmt: skip
    told = (
        f"A round trip: a gradient there, weights back, both of that size; the median of {repeats}, two processes on "
        "this computer, connections not encrypted.",
    )
    table = Table("Milliseconds of a round trip", ("weights", "actor", "channel", "actor / channel"), rows)
    return Report(
        kind="training-channel",
        title="Weights by a Dask actor and by a channel",
        blocks=(Points("What was asked for", (mark.sentence,)), table, Points("How it was measured", told)),
        data={"actor_s": by_actor, "channel_s": by_channel},
    )


def _by_actor(client: Client, count: int, repeats: int) -> float:
    """Between two workers, as a worker would ask an actor for weights."""

    class Echo:
        """Gives numbers for those it gets."""

        def __init__(self, size: int) -> None:
            self.values = np.zeros(size, np.float32)

        def exchange(self, _gradient: Any) -> Any:
            return self.values

    def measured(actor: Any, size: int, times: int) -> list[float]:
        import time

        import numpy

        gradient, found = numpy.ones(size, numpy.float32), []
        for _ in range(times + 1):  # the first one opens connections
            began_s = time.perf_counter()
            actor.exchange(gradient).result()
            found.append(time.perf_counter() - began_s)
        return found[1:]

    server, worker = _places(client)
    actor = client.submit(Echo, count, actor=True, pure=False, workers=[server])
    task = client.submit(measured, actor, count, repeats, pure=False, workers=[worker])
    return float(statistics.median(task.result()))


def _by_channel(client: Client, count: int, repeats: int) -> float:
    """The same between the same processes."""
    token = secrets.token_hex(8)

    def listen(size: int) -> tuple[str, int]:
        import numpy

        from fieldray_cluster.training.channel import Listener

        values = numpy.zeros(size, numpy.float32)

        def serve(channel: Any, _role: str) -> None:
            while True:
                channel.receive()
                channel.send({}, values)

        return Listener("127.0.0.1", token=token, largest=size, serve=serve).address

    def measured(address: tuple[str, int], size: int, times: int) -> list[float]:
        import time

        import numpy

        from fieldray_cluster.training.channel import connect

        channel = connect((address[0], address[1]), token=token, role="", largest=size)
        gradient, found = numpy.ones(size, numpy.float32), []
        for _ in range(times + 1):
            began_s = time.perf_counter()
            channel.send({}, gradient)
            channel.receive()
            found.append(time.perf_counter() - began_s)
        channel.close()
        return found[1:]

    server, worker = _places(client)
    address = client.submit(listen, count, pure=False, workers=[server]).result()
    task = client.submit(measured, address, count, repeats, pure=False, workers=[worker])
    return float(statistics.median(task.result()))


def _places(client: Client) -> tuple[str, str]:
    while len(found := sorted(client.scheduler_info(n_workers=-1)["workers"])) < 2:
        time.sleep(_TICK_S)
    return found[0], found[1]

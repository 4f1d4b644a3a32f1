"""A parameter server with its network: replaced connections, noticed ends, and rejected messages."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fieldray_cluster.training.channel import Channel, connect
from fieldray_cluster.training.server import (
    DRIVER_ROLE,
    ConnectionReplaced,
    FifoLock,
    ParameterServerSettings,
    ShardServer,
)
from fieldray_cluster.training.shard import ShardState, UpdateRule, WeightLayout
from fieldray_cluster.training.tasks import TrainingPlan
from fieldray_cluster.training.worker import WorkerResult, WorkerSpec, compute_gradients
from waiting import wait_for

TOKEN = "a" * 32
LAYOUT = WeightLayout(("a/kernel",), ((4,),))
TWO = TrainingPlan(workers=2, mode="sync-join")


@contextlib.contextmanager
def _served(plan: TrainingPlan = TWO, **more: Any) -> Iterator[ShardServer]:
    service = ParameterServerSettings(
        layout=LAYOUT, shard_ranges=((0, 4),), rule=UpdateRule(weight_decay=0.0), plan=plan, updates_per_epoch=100
    )
    state = ShardState.initial(np.zeros(4, np.float32))
    served = ShardServer(service, state, host="127.0.0.1", token=TOKEN, **more)
    try:
        yield served
    finally:
        served.close()


def _worker(served: ShardServer, number: int) -> Channel:
    return connect(served.address, token=TOKEN, role=str(number), max_values=16)


def _answer(channel: Channel) -> Mapping[str, Any]:
    """Return the server's answer. Fails if none comes within 20 s."""
    until_s = time.monotonic() + 20

    def require_time() -> None:
        assert time.monotonic() < until_s

    return channel.receive(meanwhile=require_time).header


def _pull(channel: Channel) -> tuple[int, int]:
    channel.send({})
    header = _answer(channel)
    return header["version"], header["done"]


def _push(channel: Channel, *, worker: int, number: int, version: int, count: int = 4) -> None:
    header = {
        "worker_index": worker,
        "gradient_index": number,
        "version": version,
        "averaging_weight": 1.0,
        "learning_rate": 0.1,
    }
    channel.send({"gradient": header}, np.ones(count, np.float32))


def _is_ended(channel: Channel) -> bool:
    try:
        return "version" not in _answer(channel)
    except OSError:
        return True


def test_a_worker_killed_while_its_gradient_waits_does_not_block_others_at_the_smallest_bound() -> None:
    with _served(TrainingPlan(workers=2, mode="async", staleness=1)) as served:
        lost, other = _worker(served, 0), _worker(served, 1)
        assert _pull(lost) == _pull(other) == (0, 0)
        _push(lost, worker=0, number=0, version=0)
        _answer(lost)
        _push(lost, worker=0, number=1, version=1)  # waits for the other worker's gradient
        lost.close()
        replaced = _worker(served, 0)
        assert _pull(replaced) == (1, 1)
        _push(replaced, worker=0, number=1, version=1)
        _push(other, worker=1, number=0, version=0)
        assert {_answer(replaced)["version"], _answer(other)["version"]} == {2, 3}
        for channel in (replaced, other):
            channel.close()


def test_the_newest_connection_of_a_worker_ends_the_older_one() -> None:
    with _served() as served:
        older = _worker(served, 0)
        _pull(older)
        newer = _worker(served, 0)
        _pull(newer)
        assert _is_ended(older)
        assert _pull(newer) == (0, 0)
        newer.close()
        older.close()


def test_with_its_driver_s_connection_a_session_ends_also_in_the_middle_of_an_epoch() -> None:
    with _served() as served:
        driver = connect(served.address, token=TOKEN, role=DRIVER_ROLE, max_values=16)
        driver.send({"epoch": 1})
        worker = _worker(served, 0)
        _pull(worker)
        _push(worker, worker=0, number=0, version=0)  # waits for worker 1, which never connects
        driver.close()
        assert _is_ended(worker)
        worker.close()


def test_a_server_whose_driver_never_comes_ends() -> None:
    ended = threading.Event()
    with _served(patience_s=0.05, ended=ended.set):
        assert ended.wait(10)


@pytest.mark.parametrize(
    "header",
    [
        {"worker": 0, "count": 1},
        {"worker": 0, "count": 5},
        {"worker": 1, "count": 4},
        {"worker": -1, "count": 4},
    ],
)
def test_an_invalid_gradient_ends_the_connection_and_changes_no_weights(header: dict[str, int]) -> None:
    with _served(TrainingPlan(mode="sync-join")) as served:
        wrong = _worker(served, 0)
        _pull(wrong)
        _push(wrong, number=0, version=0, **header)
        assert _is_ended(wrong)
        right = _worker(served, 0)
        assert _pull(right) == (0, 0)
        _push(right, worker=0, number=0, version=0)
        assert _answer(right)["version"] == 1
        for channel in (wrong, right):
            channel.close()


@pytest.mark.parametrize("role", ["2", "-1", "nobody"])
def test_a_connection_with_an_unknown_role_is_ended(role: str) -> None:
    with _served() as served:
        channel = connect(served.address, token=TOKEN, role=role, max_values=16)
        assert _is_ended(channel)
        channel.close()


@pytest.mark.parametrize("header", [{"values": 4}, {"token": TOKEN, "values": 4}, {"token": "\u00e9"}])
def test_an_invalid_hello_ends_the_connection_without_waiting_for_its_array(header: dict[str, Any]) -> None:
    data = json.dumps(header).encode()
    with _served() as served, socket.create_connection(served.address, timeout=10) as unknown:
        unknown.sendall(struct.pack("!I", len(data)) + data)  # its array is never sent or awaited
        with contextlib.suppress(ConnectionError):
            assert unknown.recv(1) == b""


def test_the_number_of_connections_without_a_hello_is_limited() -> None:
    with _served() as served, contextlib.ExitStack() as ends:
        ungreeted = [ends.enter_context(socket.create_connection(served.address, timeout=10)) for _ in range(80)]

        for one in ungreeted:
            one.setblocking(False)

        def ended(one: socket.socket) -> bool:
            try:
                return one.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        wait_for(lambda: sum(map(ended, ungreeted)) == 80 - 64)
        for one in ungreeted:
            one.close()
        wait_for(lambda: _accepts_worker(served))


def _accepts_worker(served: ShardServer) -> bool:
    """Return whether the server accepts a worker. Slots of closed connections are free only some time later."""
    channel = _worker(served, 0)
    try:
        return _pull(channel) == (0, 0)
    except OSError:
        return False
    finally:
        channel.close()


def test_turns_come_in_the_order_of_requests_and_skip_ended_workers() -> None:
    turns, began, threads = FifoLock(), list[int](), list[threading.Thread]()
    asked, gone = [threading.Event() for _ in range(4)], threading.Event()

    def has_ended(number: int) -> bool:  # called while a thread waits
        asked[number].set()
        return number == 1 and gone.is_set()

    def take(number: int) -> None:
        with contextlib.suppress(ConnectionReplaced), turns.acquire(lambda: has_ended(number)):
            began.append(number)

    with turns.acquire(lambda: False):
        for number in range(4):
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            assert asked[number].wait(20)
        assert began == []
        gone.set()
        threads[1].join(20)
    for thread in threads:
        thread.join(20)
    assert began == [0, 2, 3]


def test_a_worker_that_ends_during_its_turn_does_not_block_others() -> None:
    with _served(TrainingPlan(workers=2, mode="async", takes_turns=True)) as served:
        lost, other = _worker(served, 0), _worker(served, 1)
        assert _pull(lost) == (0, 0)  # the worker never confirms the weights
        other.send({})
        lost.close()
        assert _answer(other)["version"] == 0
        other.send({})  # confirms the weights
        lost = _worker(served, 0)
        assert _pull(lost) == (0, 0)
        lost.send({})
        _push(lost, worker=0, number=0, version=0, count=0)
        assert _answer(lost)["go"]  # never sends its array
        _push(other, worker=1, number=0, version=0, count=0)
        lost.close()
        assert _answer(other)["go"]
        other.send({}, np.ones(4, np.float32))
        assert _answer(other)["version"] == 1
        other.close()


class _Nothing:
    """A task without epochs: its worker fetches the weights and ends."""

    batch_count, epochs = 1, 0

    def open_replica(self) -> None:
        """Return nothing, because no network is trained."""


def test_a_worker_waiting_for_a_turn_at_one_server_gives_up_its_turn_at_the_other() -> None:
    plan, runs = TrainingPlan(workers=2, mode="async", server="distributed", takes_turns=True), ((0, 4),)
    with _served(plan) as first, _served(plan) as second, ThreadPoolExecutor(1) as threads:
        other = [_worker(served, 1) for served in (first, second)]
        assert _pull(other[0]) == (0, 0)  # the turn lasts until the worker confirms the weights
        servers = ((first.address, runs), (second.address, runs))
        spec = WorkerSpec(task=_Nothing(), plan=plan, layout=LAYOUT, worker_index=0, token=TOKEN, servers=servers)  # type: ignore[arg-type]
        waiting = threads.submit(compute_gradients, spec)
        wait_for(lambda: 0 in second._server._fetched)
        assert _pull(other[1]) == (0, 0)
        for channel in other:
            channel.send({})
        assert waiting.result(20) == WorkerResult()
        for channel in other:
            channel.close()

"""A parameter server without network: waiting workers, staleness of gradients, and replaced workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldray_cluster.training.server import (
    ConnectionReplaced,
    GradientUpdate,
    ParameterServer,
    ParameterServerEnded,
    ParameterServerSettings,
    WorkerConnection,
)
from fieldray_cluster.training.shard import Shard, ShardState, UpdateRule, WeightLayout, clip_gradient
from fieldray_cluster.training.tasks import TrainingMode, TrainingPlan
from waiting import wait_for

LAYOUT = WeightLayout(("one/kernel", "two/bias", "two/mean"), ((2, 3), (4,), (2,)))
RULE = UpdateRule(weight_decay=0.1, minimum_averaging_factor=0.25)


def _server(*, mode: TrainingMode = "sync-join", updates: int = 4, **plan: Any) -> ParameterServer:
    plan = {"workers": 2, "mode": mode, **plan}
    service = ParameterServerSettings(
        layout=LAYOUT,
        shard_ranges=((0, LAYOUT.element_count),),
        rule=RULE,
        plan=TrainingPlan(**plan),
        updates_per_epoch=updates,
    )
    return ParameterServer(service, ShardState.initial(np.ones(LAYOUT.element_count, np.float32)))


def _push(worker: int, version: int, *, number: int = -1, weight: float = 1.0) -> GradientUpdate:
    return GradientUpdate(
        worker_index=worker,
        version=version,
        gradient_index=version if number < 0 else number,
        averaging_weight=weight,
        learning_rate=0.01,
        loss=1.0,
    )


class _Worker:
    """A worker with its own thread and connection, as in a real server."""

    def __init__(self, server: ParameterServer, number: int) -> None:
        self._server, self._number, self._thread = server, number, ThreadPoolExecutor(1)
        self.has_ended = threading.Event()
        self._connection = WorkerConnection(worker_index=number, has_ended=self.has_ended.is_set)
        server.attach(self._connection)

    def pull(self, **more: Any) -> Any:
        return self._do(lambda: self._server.pull_weights(self._connection, **more)).result(5)

    def push(self, version: int, *, value: float = 1.0, **more: Any) -> Future[Any]:
        push = _push(self._number, version, **more)
        return self._do(
            lambda: self._server.push_gradient(self._connection, push, np.full(LAYOUT.element_count, value, np.float32))
        )

    def end(self) -> None:
        self._do(lambda: self._server.detach(self._connection)).result(5)
        self._thread.shutdown()

    def _do(self, what: Callable[[], Any]) -> Future[Any]:
        return self._thread.submit(what)


def test_an_update_waits_for_all_workers_and_uses_their_weighted_mean() -> None:
    server, workers = _server(), []
    workers = [_Worker(server, number) for number in range(2)]
    first = workers[0].push(0, value=1.0, weight=3.0)
    assert not first.done()
    second = workers[1].push(0, value=5.0, weight=1.0)
    expected = Shard(
        ShardState.initial(np.ones(LAYOUT.element_count, np.float32)),
        layout=LAYOUT,
        ranges=((0, LAYOUT.element_count),),
        rule=RULE,
    )
    expected.update(np.full(LAYOUT.element_count, 2.0, np.float32), learning_rate=0.01)  # (3 * 1 + 1 * 5) / 4
    for version, values in (first.result(5), second.result(5)):
        assert version == 1
        np.testing.assert_allclose(values, expected.state.weights, rtol=1e-6)
    for worker in workers:
        worker.end()


def test_a_replaced_worker_continues_at_the_waiting_update() -> None:
    server = _server()
    other, lost = _Worker(server, 0), _Worker(server, 1)
    early = other.push(0)
    lost.end()
    replaced = _Worker(server, 1)
    assert replaced.pull()[:2] == (0, 0)
    assert replaced.push(0).result(5)[0] == early.result(5)[0] == 1
    # A repeated gradient, whose answer was lost, is answered with the weights and not counted twice.
    assert replaced.push(0).result(5)[0] == 1
    assert replaced.pull(version=0)[0] == 0  # when another server has fewer updates
    for worker in (other, replaced):
        worker.end()


def test_staleness_is_counted() -> None:
    server = _server(mode="async")
    slow, fast = _Worker(server, 0), _Worker(server, 1)
    slow.pull(), fast.pull()
    for number in range(3):
        assert fast.push(number, number=number).result(5)[0] == number + 1
    assert slow.push(0).result(5)[0] == 4
    facts, state = server.snapshot(1)
    assert facts["staleness"] == {"0": 3, "3": 1} and state.update_count == 4
    assert facts["losses"] == [1.0] * 4
    for worker in (slow, fast):
        worker.end()


def test_the_bound_of_staleness_makes_a_fast_worker_wait_for_a_slow_one() -> None:
    server = _server(mode="async", staleness=2)
    slow, fast = _Worker(server, 0), _Worker(server, 1)
    slow.pull(), fast.pull()
    for number in range(2):
        fast.push(number, number=number).result(5)
    held = fast.push(2, number=2)
    assert not held.done()
    assert slow.push(0).result(5)[0] == 3
    assert held.result(5)[0] == 4
    assert server.snapshot(1)[0]["staleness"] == {"0": 2, "1": 1, "2": 1}
    for worker in (slow, fast):
        worker.end()


def test_no_worker_waits_for_one_that_has_ended() -> None:
    server = _server(mode="async", staleness=1)
    gone, fast = _Worker(server, 0), _Worker(server, 1)
    gone.pull(), fast.pull()
    fast.push(0).result(5)
    held = fast.push(1)
    gone.end()
    assert held.result(5)[0] == 2
    fast.end()


@given(data=st.data(), workers=st.integers(1, 5), more=st.integers(0, 3))
def test_a_bound_of_at_least_workers_minus_one_is_kept_without_deadlock(
    data: st.DataObject, workers: int, more: int
) -> None:
    """A simulation without threads: a drawn worker updates as soon as the server allows."""
    bound, version, fetched = workers - 1 + more, 0, [0] * workers
    waiting: set[int] = set()
    for _ in range(40):
        waiting.add(data.draw(st.sampled_from(range(workers))))
        able = [one for one in sorted(waiting) if _may(one, version, fetched, bound)]
        for one in able[:1]:
            assert version - fetched[one] <= bound
            version += 1
            fetched[one] = version
            waiting.discard(one)
        assert able or len(waiting) < workers  # if all workers wait, one may always update


def _may(worker: int, version: int, fetched: list[int], bound: int) -> bool:
    server = _server(workers=len(fetched), mode="async", staleness=bound)
    server._version, server._fetched = version, dict(enumerate(fetched))
    return server._may_update(worker)


def test_a_replaced_worker_s_gradient_is_counted_once_and_the_next_is_not_dropped() -> None:
    """The gradient of the killed process still waits when its replacement sends it again."""
    server = _server(workers=3, mode="async", staleness=2)
    lost, slow, other = (_Worker(server, number) for number in range(3))
    for worker in (lost, slow, other):
        worker.pull()
    lost.push(0).result(5)
    held = lost.push(1, number=1)  # waits for the gradients of the two others
    replaced = _Worker(server, 0)
    assert replaced.pull()[:2] == (1, 1)
    repeated = replaced.push(1, number=1)
    with pytest.raises(ConnectionReplaced):
        held.result(5)
    for worker in (slow, other):
        assert worker.push(0, number=0).result(5)
    assert repeated.result(5)[0] == 4
    assert replaced.pull()[:2] == (4, 2)
    for worker in (lost, replaced, slow, other):
        worker.end()


def test_a_server_stops_waiting_for_an_epoch_when_the_driver_is_gone() -> None:
    with pytest.raises(ConnectionReplaced):
        _server().snapshot(1, has_ended=lambda: True)


@pytest.mark.parametrize(("value", "is_finite"), [(1.0, True), (float("nan"), False), (float("inf"), False)])
def test_a_snapshot_says_whether_its_weights_are_finite(value: float, is_finite: bool) -> None:
    server, connection = _server(workers=1, mode="async", updates=1), WorkerConnection(worker_index=0)
    server.attach(connection)
    server.push_gradient(connection, _push(0, 0), np.full(LAYOUT.element_count, value, np.float32))
    assert server.snapshot(1)[0]["is_finite"] is is_finite


def test_the_end_of_a_session_ends_every_wait() -> None:
    server = _server()
    worker = _Worker(server, 0)
    waiting = worker.push(0)
    wait_for(lambda: threading.active_count() > 1)
    server.end()
    with pytest.raises(ParameterServerEnded):
        waiting.result(5)
    worker.end()


def test_a_layout_is_cut_and_joined_without_loss() -> None:
    vector = np.arange(LAYOUT.element_count, dtype=np.float32)
    np.testing.assert_array_equal(LAYOUT.to_vector(LAYOUT.to_weights(vector)), vector)
    for evenly in (True, False):
        held = LAYOUT.shard_ranges(3, evenly=evenly)
        places = sorted(place for runs in held for start, stop in runs for place in range(start, stop))
        assert places == list(range(LAYOUT.element_count))


def test_clipping_shortens_gradients_but_not_statistics() -> None:
    gradient = np.full(LAYOUT.element_count, 3.0, np.float32)  # 10 trained elements: the norm is sqrt(90)
    short = clip_gradient(gradient, LAYOUT, 1.5)
    assert np.linalg.norm(short[:10]) == pytest.approx(1.5) and short[10:].tolist() == [3, 3]
    assert clip_gradient(gradient, LAYOUT, 10.0) is gradient

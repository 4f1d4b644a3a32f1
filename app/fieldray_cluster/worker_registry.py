"""The workers of a cluster: which may get work, how their loss is noticed, and whether an image or a computer is at
fault.

Dask carries the messages and knows which workers are alive. Each kind of work distributes itself: an archive gives one
piece to one worker, a workflow lets Dask choose among fitting workers, a training has a worker for each part. All of
them use this module to admit workers, set them aside, notice their loss and reconnect to a lost scheduler.

A joining worker reports its versions and settings. At the start, a worker that does not fit ends the run with a
problem. Later it is set aside with a message, and the others continue. A node that cannot work at all is set aside by
name, including any worker of it that joins later.

An image that crashes every process must not stop an archive. A computer whose processes crash repeatedly (out of
memory, say) must not fail one image after another. An image is at fault if processes of two computers crashed over it,
or if its computer has since screened another image. A computer is at fault if its processes crashed many times in a
row.

Every result that a later start may take over (tasks of workflows, trials of sweeps, archives) has a key that contains
everything that decides the result, including the program's version. Files count by content, not by path: a corrected
label is another input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from distributed import Client, Future, KilledWorker, wait

from fieldray.errors import EnvironmentProblem, StorageProblem
from fieldray.paths import VERSION
from fieldray.reasons import Reason, reason
from fieldray.typed_json import decoded
from fieldray_adapt.files import digest
from fieldray_cluster.connection import (
    ANSWER_TIMEOUT_S,
    AnswerFuture,
    ConnectionSettings,
    ForbiddenPickle,
    clock_note,
    is_connected,
    list_workers,
    node_name,
    open_client,
    wait_for_answer,
)
from fieldray_cluster.node import all_versions

CONNECTION_ERRORS: Final = (OSError, TimeoutError, CancelledError, KilledWorker)
"""What Dask raises where the other side is gone."""
DEATHS_BEFORE_BLAME: Final = 3
"""How often a process has to end over one image before the image may be blamed."""
AWAITS_SERVER: Final = "awaits_server"
"""What a worker tells with its signs of life while the server of its objects is gone."""
_CONNECTIONS: Final = 5  # without any progress, before the work is given up
_SILENT_S: Final = 120.0  # of all workers, before the work is given up
_LONGEST_PAUSE_S: Final = 60.0
_FAULTS_OF_NODE: Final = 6  # for each of its workers: all of them end together where the computer is switched off
_LOOK_EVERY_S: Final = 0.5
_FIRST_LOOKS_EVERY_S: Final = 0.05
_WAIT_S: Final = 0.2
_LOOKS_BETWEEN_OUTAGES: Final = 10  # threads of a worker do not all see at once that a server is back

NodeMessageCallback = Callable[[str, Reason], None]
"""Receives the name of a node and what there is to say of it."""
WorkerCheck = Callable[[], Reason | None]
"""What a worker asks itself: why it cannot work, None if it can. It has to be importable there."""


class ConnectionLost(EnvironmentProblem):
    """The connection to the cluster's scheduler was lost. The state of running tasks is unknown."""

    def __init__(self) -> None:
        super().__init__(reason("cluster_lost"))


class IncompatibleNodes(EnvironmentProblem):
    """A worker does not fit at the start, or no fitting worker is left."""


class WorkerLost(Exception):
    """The process that ran a task has ended."""


@contextlib.contextmanager
def converting_connection_errors() -> Iterator[None]:
    """Convert errors of a lost or invalid connection within the block to ConnectionLost."""
    try:
        yield
    except (*CONNECTION_ERRORS, ForbiddenPickle) as error:
        raise ConnectionLost from error


def run_with_reconnects(
    connection: ConnectionSettings,
    work: Callable[[Client], None],
    *,
    done: Callable[[], int],
    note: Callable[[EnvironmentProblem], None] = lambda _problem: None,
) -> None:
    """Call `work` with a client of the cluster, and again with a new client after the cluster was lost.

    done   returns the amount of work done by this start; progress resets the count of losses
    note   receives each problem that did not end the work

    Raises the exceptions of `work`, EnvironmentProblem if no cluster can be reached.
    """
    attempts = 0
    while True:
        before = done()
        try:
            with open_client(connection) as client, client.as_current():
                return work(client)
        except (IncompatibleNodes, StorageProblem):
            raise
        except EnvironmentProblem as problem:
            attempts = 1 if done() > before else attempts + 1
            # An address that never answered is wrong; the driver's own scheduler may have been killed.
            is_wrong = bool(connection.address) and not done() and not isinstance(problem, ConnectionLost)
            if is_wrong or attempts >= _CONNECTIONS:
                raise
            note(problem)


def wait_for_any(client: Client, futures: Sequence[Future[Any]], timeout_s: float = _WAIT_S) -> None:
    """Wait until one future is done, or the time is over. Raises ConnectionLost."""
    if not futures:
        time.sleep(min(max(timeout_s, 0.0), _WAIT_S))
        return
    with client.as_current(), contextlib.suppress(OSError, CancelledError):  # a future that was cancelled is done, too
        wait(futures, timeout=max(timeout_s, 0.0), return_when="FIRST_COMPLETED")
    if not is_connected(client):
        raise ConnectionLost


def wait_for_result(future: Future[Any], *, timeout_s: float | None = None) -> Any:
    """Wait for the result of a task. Raises WorkerLost, ConnectionLost, TimeoutError, and what the task raised."""
    try:
        return future.result(timeout=timeout_s)
    except KilledWorker as error:
        raise WorkerLost from error
    except (OSError, CancelledError) as error:
        if isinstance(error, TimeoutError) and timeout_s is not None:
            raise
        raise ConnectionLost from error


# ---- who may be given work


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A worker's report: its versions, its clock (seconds since 1970), and the reason if it cannot work."""

    versions: str
    now_s: float
    problem: Reason | None = None


def required_versions() -> str:
    """The versions that must be equal on all computers."""
    return f"{all_versions()}, Python {sys.version_info[0]}.{sys.version_info[1]}"


def node_report_text(ask: WorkerCheck | None) -> str:
    """Make the report of a joining worker, as JSON. Runs in the worker."""
    report = NodeReport(versions=required_versions(), now_s=time.time(), problem=ask() if ask else None)
    return json.dumps(dataclasses.asdict(report))


def incompatibility_reason(answer: object, note: Callable[[Reason], None]) -> Reason | None:
    """Return the reason to give no work to a worker with this answer, or None.

    note  receives further remarks about the worker
    """
    try:
        report = decoded(answer if isinstance(answer, str) else "", NodeReport)
    except (ValueError, KeyError):  # KeyError: a sentence that is not known here
        return reason("cluster_other_answer")
    if report.versions != required_versions():
        return reason("cluster_other_version", there=report.versions, here=required_versions())
    if why := clock_note(report.now_s):
        note(why)
    return report.problem


@dataclass(slots=True)
class _Question:
    """The state of a question to a joining worker: its node, time of the first and last attempt, and number of
    attempts.
    """

    node: str
    answer: AnswerFuture
    first_s: float
    last_s: float
    times: int = 1


class WorkerRegistry:
    """The workers of one client, checked repeatedly. Nobody waits for a worker that does not answer.

    Parameters
    ----------
    ask
        An additional check that each worker runs on itself.
    note
        Receives the messages about a node, and why it is set aside.
    nodes_aside
        Names of nodes that get no work; the caller keeps them from one client to the next.

    Raises NodesUnfit if a present worker does not fit, ConnectionLost.
    """

    def __init__(
        self,
        client: Client,
        ask: WorkerCheck | None = None,
        *,
        note: NodeMessageCallback,
        nodes_aside: dict[str, Reason] | None = None,
    ) -> None:
        self._client, self._ask, self._note = client, ask, note
        self._nodes_aside = {} if nodes_aside is None else nodes_aside
        self.workers: dict[str, Mapping[str, Any]] = {}
        """Workers that may be given work, as the scheduler describes them, by address."""
        self._aside: dict[str, Reason] = {}
        self._asked: dict[str, _Question] = {}
        self._noted: set[tuple[str, Reason]] = set()
        self._looks, self._awaiting = 0, dict[str, int]()  # by node: the last look at which it awaited its server
        self._looked_s, is_last = 0.0, False
        self.refresh(is_first=True)
        until_s = time.monotonic() + ANSWER_TIMEOUT_S
        while self._asked and not (self.workers and is_last):
            time.sleep(_FIRST_LOOKS_EVERY_S)
            is_last = time.monotonic() > until_s  # known before the look, which then notes who has not answered
            self.refresh(is_first=True)

    def node(self, address: str) -> str:
        """The name of a worker's node."""
        return node_name(str(self.workers[address]["name"]))

    def idle_first(self) -> list[str]:
        """Addresses of the workers that may be given work, idle ones first, then by name. Raises ConnectionLost."""
        with converting_connection_errors():
            busy = {address for address, tasks in self._client.processing().items() if tasks}
        return sorted(self.workers, key=lambda address: (address in busy, str(self.workers[address]["name"]), address))

    def refresh(self, *, is_first: bool = False, at_once: bool = False) -> list[str]:
        """Look for new workers, if the last look is some time ago. Returns the addresses of workers that are gone.

        Raises ConnectionLost, NodesUnfit, EnvironmentProblem.
        """
        if not is_connected(self._client):
            raise ConnectionLost
        if not (is_first or at_once) and time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return []
        with converting_connection_errors():
            present = list_workers(self._client)
            self._looked_s, self._looks = time.monotonic(), self._looks + 1
        for address, worker in present.items():
            if address not in (*self.workers, *self._aside, *self._asked):
                node, now_s = node_name(str(worker["name"])), time.monotonic()
                self._asked[address] = _Question(node, self._question(address), now_s, now_s)
        for address in [address for address in self._asked if address in present]:
            self._hear(address, present[address], is_first=is_first)
        known = (self.workers, self._aside, self._asked)
        gone = [address for each in known for address in each if address not in present]
        for address in gone:
            for each in known:
                each.pop(address, None)
        for address in self.workers:
            metrics = present[address].get("metrics")
            if isinstance(metrics, dict) and metrics.get(AWAITS_SERVER) is True:
                node = self.node(address)
                if self._looks - self._awaiting.get(node, -math.inf) > _LOOKS_BETWEEN_OUTAGES:
                    self._note(node, reason("archive_server_awaited"))
                self._awaiting[node] = self._looks
        waits = [each for each in self._asked.values() if time.monotonic() - each.first_s < _SILENT_S]
        if not (self.workers or waits):
            silent = reason("cluster_no_reply")
            unfit = [(node_name(str(present[address]["name"])), why) for address, why in self._aside.items()]
            for node, why in (*unfit, *((each.node, silent) for each in self._asked.values())):
                raise _unfit(node, why)
        return gone

    def _question(self, address: str) -> AnswerFuture:
        future: AnswerFuture = self._client.ask(address, node_report_text, self._ask)
        return future

    def _hear(self, address: str, worker: Mapping[str, Any], *, is_first: bool) -> None:
        """Handle a worker's answer; an unreachable worker is asked again at growing intervals."""
        question, now_s = self._asked[address], time.monotonic()
        if question.answer.done():
            with converting_connection_errors():
                answer = wait_for_answer(self._client, question.answer)
            if not isinstance(answer, CONNECTION_ERRORS):
                del self._asked[address]
                self._admit(address, worker, answer, is_first=is_first)
                return
            if now_s - question.last_s > min(2**question.times, _LONGEST_PAUSE_S):
                question.answer, question.last_s, question.times = self._question(address), now_s, question.times + 1
        if now_s - question.first_s > ANSWER_TIMEOUT_S:
            self._note_once(question.node, reason("cluster_no_reply"))

    def exclude_worker(self, address: str, why: Reason) -> None:
        """Give a worker no more work. A worker that replaces it is checked anew."""
        if worker := self.workers.pop(address, None):
            self._aside[address] = why
            self._note_once(node_name(str(worker["name"])), why)

    def exclude_node(self, node: str, why: Reason) -> None:
        """Give a node no more work, including any worker of it that joins later."""
        for address in [address for address in self.workers if self.node(address) == node]:
            self._aside[address] = why
            del self.workers[address]
        if self._nodes_aside.setdefault(node, why) is why:
            self._note_once(node, why)

    def _admit(self, address: str, worker: Mapping[str, Any], answer: object, *, is_first: bool) -> None:
        node = node_name(str(worker["name"]))
        if why := self._nodes_aside.get(node):
            self._aside[address] = why
            return
        why = incompatibility_reason(answer, lambda why: self._note_once(node, why))
        if why and is_first:
            raise _unfit(node, why)
        self.workers[address] = worker
        if why:
            self.exclude_worker(address, why)

    def _note_once(self, node: str, why: Reason) -> None:
        if (node, why) not in self._noted:
            self._noted.add((node, why))
            self._note(node, why)


def _unfit(node: str, why: Reason) -> IncompatibleNodes:
    return IncompatibleNodes(reason("cluster_node_problem", node=node, detail=why.text))


# ---- who is to blame


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """A range of a list, `stop` not included, and how often a worker died while it had the range.

    nodes   nodes where a worker died, with the number of images that the node had screened at its first death
    """

    start: int
    stop: int
    deaths: int = 0
    nodes: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        """The number of images."""
        return self.stop - self.start

    def halves(self) -> tuple[Piece, Piece]:
        """Split the piece into two (bisection). Each half counts one death, as either may be the cause."""
        middle = (self.start + self.stop) // 2
        return Piece(self.start, middle, 1, self.nodes), Piece(middle, self.stop, 1, self.nodes)


class FaultCounts:
    """Counts by node name: the work done, and how often in a row the node's processes ended or failed."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self._in_a_row: dict[str, int] = {}
        self._most_workers: dict[str, int] = {}

    def set_worker_count(self, node: str, *, workers: int) -> None:
        """Record that `workers` processes of a node are available."""
        self._most_workers[node] = max(self._most_workers.get(node, 0), workers)

    def add_done(self, node: str, images: int) -> None:
        """Record that a node has screened images."""
        self.done[node] = self.done.get(node, 0) + images
        self._in_a_row.pop(node, None)

    def add_failure(self, piece: Piece, node: str) -> Piece:
        """Record that a process of a node ended over a piece. Returns the piece with one more death."""
        self._in_a_row[node] = self._in_a_row.get(node, 0) + 1
        account = dict(piece.nodes)
        account.setdefault(node, self.done.get(node, 0))
        return Piece(piece.start, piece.stop, piece.deaths + 1, tuple(sorted(account.items())))

    def failures_in_a_row(self, node: str) -> int:
        """The number of times in a row that a node's processes ended or failed."""
        return self._in_a_row.get(node, 0)

    def is_node_to_blame(self, node: str) -> bool:
        """Whether a node should get no more work."""
        return self.failures_in_a_row(node) >= _FAULTS_OF_NODE * self._most_workers.get(node, 1)

    def is_image_to_blame(self, piece: Piece, nodes: Collection[str], *, is_last: bool) -> bool:
        """Whether a piece of one image is at fault.

        nodes     nodes that can work now
        is_last   whether no other piece is left with which its node could prove that it works
        """
        if piece.deaths < DEATHS_BEFORE_BLAME:
            return False
        has_worked_since = any(self.done.get(node, 0) > before for node, before in piece.nodes)
        # Where there is one node alone, nothing can be learnt from another: that it has worked at all has to do.
        is_alone = set(nodes) <= {node for node, _ in piece.nodes}
        has_worked = any(self.done.get(node, 0) for node, _ in piece.nodes)
        return len(piece.nodes) > 1 or has_worked_since or (is_alone and (has_worked or is_last))


# ---- what is known of earlier starts


def result_key(*parts: object, version: str = VERSION) -> str:
    """Return the digest of the parts that decide a result (see `digest`), and of the program's version."""
    return digest(version, *parts)


def path_state(path: Path) -> tuple[str, ...]:
    """The state of a file (digest of its content) or of a folder (names, sizes and times of change of its files).

    Raises FileNotFoundError, OSError.
    """
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file())
        facts = ((file, file.stat()) for file in found)
        return (
            "folder",
            *(f"{file.relative_to(path).as_posix()} {one.st_size} {one.st_mtime_ns}" for file, one in facts),
        )
    with path.open("rb") as stream:
        return ("file", hashlib.file_digest(stream, "sha256").hexdigest())

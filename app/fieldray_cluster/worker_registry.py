"""Decide which workers of a cluster get work, notice lost workers, and find the cause of crashes.

Dask carries the messages and reports which workers are alive. Archives, workflows and trainings distribute their work
in different ways. All use this module to admit and exclude workers, to notice lost workers, and to reconnect to a lost
scheduler.

A joining worker reports its versions and settings. At the start, an unusable worker ends the command with an error.
Later, an unusable worker is excluded with a message, and the other workers continue. A node (computer) that cannot work
is excluded by name, with all workers that join later from this node.

An image that crashes every process must not stop an archive. A computer whose processes crash repeatedly, for example
because of too little memory, must not make one image after another fail. So an image is the cause of crashes if
processes of two computers crashed while screening this image, or if the computer on which the
processes crashed has screened another image afterwards. A
computer is the cause if its processes crashed many times in a row.

Every result that a later start may reuse (of workflows, sweeps and archives) has a key. The key is a digest of all
inputs of the result, including the program's version. Files count by content, not by path.
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
from fieldray.typed_json import parse_json
from fieldray_adapt.files import digest
from fieldray_cluster.connection import (
    ANSWER_TIMEOUT_S,
    AnswerFuture,
    ConnectionSettings,
    ForbiddenPickle,
    clock_difference_note,
    is_connected,
    list_workers,
    node_name,
    open_client,
    wait_for_answer,
)
from fieldray_cluster.node import program_and_dask_versions

CONNECTION_ERRORS: Final = (OSError, TimeoutError, CancelledError, KilledWorker)
"""The exceptions that Dask raises if the other side of a connection is lost."""
WORKER_DEATHS_BEFORE_IMAGE_FAULT: Final = 3
"""How many processes must have crashed while screening an image before the image may count as the cause."""
AWAITS_IMAGE_SERVER_METRIC: Final = "awaits_server"
"""Name of the metric by which a worker reports that it waits for the server from which it downloads images."""
_CONNECTIONS: Final = 5  # number of connections without progress after which the work ends
_SILENT_S: Final = 120.0  # the work ends if no worker answers for this time
_LONGEST_PAUSE_S: Final = 60.0
# A node is at fault after this number of crashes in a row for each of its workers. The limit is per worker, because all
# workers end together if the computer is switched off.
_FAULTS_OF_NODE: Final = 6
_LOOK_EVERY_S: Final = 0.5
_FIRST_LOOKS_EVERY_S: Final = 0.05
_WAIT_S: Final = 0.2
# A server is reported again only after this number of refreshes in which no worker of a node waited for it, because the
# threads of a worker notice the return of the server at different times.
_LOOKS_BETWEEN_OUTAGES: Final = 10

NodeMessageCallback = Callable[[str, Reason], None]
"""A function that is called with the name of a node (computer) and a message about this node."""
WorkerCheck = Callable[[], Reason | None]
"""A function that runs in a worker, and returns the reason why the worker cannot work; None if it can.

Workers must be able to import the function.
"""


class ConnectionLost(EnvironmentProblem):
    """The error if the connection to the cluster's scheduler is lost. The state of running tasks is unknown."""

    def __init__(self) -> None:
        super().__init__(reason("cluster_lost"))


class IncompatibleNodes(EnvironmentProblem):
    """The error if a worker is incompatible at the start, or if no compatible worker is left."""


class WorkerLost(Exception):
    """The error if the worker process that ran a task has ended."""


@contextlib.contextmanager
def converting_connection_errors() -> Iterator[None]:
    """Run a block, and raise ConnectionLost if a connection is lost or invalid in the block."""
    try:
        yield
    except (*CONNECTION_ERRORS, ForbiddenPickle) as error:
        raise ConnectionLost from error


def run_with_reconnects(
    connection: ConnectionSettings,
    work: Callable[[Client], None],
    *,
    count_done: Callable[[], int],
    on_problem: Callable[[EnvironmentProblem], None] = lambda _problem: None,
) -> None:
    """Call `work` with a client of a cluster. If the cluster is lost, call `work` again with a new client.

    Parameters
    ----------
    count_done
        A function that returns how much work was done since the start. After several losses of the cluster without
        work done in between, the last problem is raised.
    on_problem
        A function that is called with each problem after which `work` is called again.

    Raises the exceptions of `work`, and EnvironmentProblem if the cluster is lost too often or cannot be reached.
    """
    attempts = 0
    while True:
        before = count_done()
        try:
            with open_client(connection) as client, client.as_current():
                return work(client)
        except (IncompatibleNodes, StorageProblem):
            raise
        except EnvironmentProblem as problem:
            attempts = 1 if count_done() > before else attempts + 1
            # An address that never answered is wrong. A scheduler on this computer may have been killed.
            is_wrong = bool(connection.address) and not count_done() and not isinstance(problem, ConnectionLost)
            if is_wrong or attempts >= _CONNECTIONS:
                raise
            on_problem(problem)


def wait_for_any(client: Client, futures: Sequence[Future[Any]], timeout_s: float = _WAIT_S) -> None:
    """Wait at most `timeout_s` seconds until at least one of the futures is done. Raises ConnectionLost."""
    if not futures:
        time.sleep(min(max(timeout_s, 0.0), _WAIT_S))
        return
    with client.as_current(), contextlib.suppress(OSError, CancelledError):  # a cancelled future is done, too
        wait(futures, timeout=max(timeout_s, 0.0), return_when="FIRST_COMPLETED")
    if not is_connected(client):
        raise ConnectionLost


def wait_for_result(future: Future[Any], *, timeout_s: float | None = None) -> Any:
    """Wait for a task on a cluster, and return its result. `timeout_s` None waits without limit.

    Raises WorkerLost, ConnectionLost, TimeoutError, and the exceptions of the task.
    """
    try:
        return future.result(timeout=timeout_s)
    except KilledWorker as error:
        raise WorkerLost from error
    except (OSError, CancelledError) as error:
        if isinstance(error, TimeoutError) and timeout_s is not None:
            raise
        raise ConnectionLost from error


# ---- admission of workers


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A worker's report about itself: its versions, its clock, and why it cannot work.

    `clock_s` is the clock in seconds since 1970. `problem` is None if the worker can work.
    """

    versions: str
    clock_s: float
    problem: Reason | None = None


def required_versions() -> str:
    """Return a text with the versions of program, Dask and Python, which must be equal on all computers."""
    return f"{program_and_dask_versions()}, Python {sys.version_info[0]}.{sys.version_info[1]}"


def node_report_text(check: WorkerCheck | None) -> str:
    """Return the report of this worker process as JSON of `NodeReport`.

    `check` returns the reason why the worker cannot work; a `check` of None reports no reason.
    """
    report = NodeReport(versions=required_versions(), clock_s=time.time(), problem=check() if check else None)
    return json.dumps(dataclasses.asdict(report))


def incompatibility_reason(answer: object, on_message: Callable[[Reason], None]) -> Reason | None:
    """Return the reason why a worker gets no work; None if the worker gets work.

    `answer` is the worker's report. `on_message` is called with further messages about the worker.
    """
    try:
        report = parse_json(answer if isinstance(answer, str) else "", NodeReport)
    except (ValueError, KeyError):  # KeyError: an unknown code of a reason
        return reason("cluster_other_answer")
    if report.versions != required_versions():
        return reason("cluster_other_version", there=report.versions, here=required_versions())
    if why := clock_difference_note(report.clock_s):
        on_message(why)
    return report.problem


@dataclass(slots=True)
class _Question:
    """A question to a joining worker, which the worker has not answered yet.

    `first_s` and `last_s` are the times of the first and the last attempt, by the monotonic clock. `times` is the
    number of attempts.
    """

    node: str
    answer: AnswerFuture
    first_s: float
    last_s: float
    times: int = 1


class WorkerRegistry:
    """The workers of a cluster that may get work. `refresh` checks repeatedly for new and lost workers.

    A worker that does not answer does not delay other workers.

    Parameters
    ----------
    check
        A further check that each worker runs; None for no further check.
    on_message
        A function that is called with the name of a node and a message, for example why the node is excluded.
    excluded_nodes
        The excluded nodes by name, with the reason. The registry adds entries. Pass the mapping on to the next
        registry.

    Raises IncompatibleNodes if a worker is unusable at the start, and ConnectionLost.
    """

    def __init__(
        self,
        client: Client,
        check: WorkerCheck | None = None,
        *,
        on_message: NodeMessageCallback,
        excluded_nodes: dict[str, Reason] | None = None,
    ) -> None:
        self._client, self._ask, self._note = client, check, on_message
        self._nodes_aside = {} if excluded_nodes is None else excluded_nodes
        self.workers: dict[str, Mapping[str, Any]] = {}
        """The scheduler's description of each worker that may get work, by address of the worker."""
        self._aside: dict[str, Reason] = {}
        self._asked: dict[str, _Question] = {}
        self._noted: set[tuple[str, Reason]] = set()
        self._looks, self._awaiting = 0, dict[str, int]()  # by node: last refresh at which the node awaited its server
        self._looked_s, is_last = 0.0, False
        self.refresh(is_first=True)
        until_s = time.monotonic() + ANSWER_TIMEOUT_S
        while self._asked and not (self.workers and is_last):
            time.sleep(_FIRST_LOOKS_EVERY_S)
            is_last = time.monotonic() > until_s  # the last refresh notes the workers without an answer
            self.refresh(is_first=True)

    def node_name(self, address: str) -> str:
        """Return the name of the node (computer) on which the worker with the address `address` runs."""
        return node_name(str(self.workers[address]["name"]))

    def workers_idle_first(self) -> list[str]:
        """Return the addresses of the workers that may get work: first idle workers, then busy workers, each by name.

        Raises ConnectionLost.
        """
        with converting_connection_errors():
            busy = {address for address, tasks in self._client.processing().items() if tasks}
        return sorted(self.workers, key=lambda address: (address in busy, str(self.workers[address]["name"]), address))

    def refresh(self, *, is_first: bool = False, at_once: bool = False) -> list[str]:
        """Check for new workers, lost workers, and answers of new workers. Returns the addresses of lost workers.

        If the last check was less than half a second ago, nothing is checked, unless `is_first` or `at_once` is True.

        Raises ConnectionLost, EnvironmentProblem, and IncompatibleNodes if no worker is left. With `is_first`, an
        unusable worker also raises IncompatibleNodes. Otherwise it is excluded with a message.
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
            if isinstance(metrics, dict) and metrics.get(AWAITS_IMAGE_SERVER_METRIC) is True:
                node = self.node_name(address)
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
        """Handle the answer of a new worker, if it has come. An unreachable worker is asked again after a while."""
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
        """Exclude the worker with the address `address` from further work, for the reason `why`.

        Other workers of the node, and workers that join later, are not excluded.
        """
        if worker := self.workers.pop(address, None):
            self._aside[address] = why
            self._note_once(node_name(str(worker["name"])), why)

    def exclude_node(self, node: str, why: Reason) -> None:
        """Exclude all workers of a node from further work, for the reason `why`.

        Workers of this node that join later are excluded, too.
        """
        for address in [address for address in self.workers if self.node_name(address) == node]:
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


# ---- faults of images and of computers


@dataclass(frozen=True, slots=True, order=True)
class ArchivePiece:
    """A piece of an archive: the images with the indices from `start` to `stop` - 1.

    `worker_death_count` is the number of workers that died while screening the piece. `image_counts_before_death` has
    each node of these workers, with the number of images that the node had screened before its first worker died on
    this piece.
    """

    start: int
    stop: int
    worker_death_count: int = 0
    image_counts_before_death: tuple[tuple[str, int], ...] = ()

    @property
    def image_count(self) -> int:
        """The number of images in the piece."""
        return self.stop - self.start

    def halves(self) -> tuple[ArchivePiece, ArchivePiece]:
        """Return the two halves of the piece. Each half gets one death, because it may have caused the crashes."""
        middle = (self.start + self.stop) // 2
        return ArchivePiece(self.start, middle, 1, self.image_counts_before_death), ArchivePiece(
            middle, self.stop, 1, self.image_counts_before_death
        )


class FaultCounts:
    """Counts crashes and screened images of each node, to decide whether a node or an image causes crashes.

    `screened_image_counts` is the number of images that each node has screened, by name of the node.
    """

    def __init__(self) -> None:
        self.screened_image_counts: dict[str, int] = {}
        self._in_a_row: dict[str, int] = {}
        self._max_workers: dict[str, int] = {}

    def set_worker_count(self, node: str, *, worker_count: int) -> None:
        """Store the number of workers of a node. Of all stored numbers, the largest counts."""
        self._max_workers[node] = max(self._max_workers.get(node, 0), worker_count)

    def add_screened_images(self, node: str, image_count: int) -> None:
        """Count `image_count` further screened images of a node. The node's count of failures in a row becomes 0."""
        self.screened_image_counts[node] = self.screened_image_counts.get(node, 0) + image_count
        self._in_a_row.pop(node, None)

    def add_failure(self, piece: ArchivePiece, node: str) -> ArchivePiece:
        """Count a failure of a node: a process of the node ended while screening a piece.

        Returns a copy of the piece with one more death.
        """
        self._in_a_row[node] = self._in_a_row.get(node, 0) + 1
        account = dict(piece.image_counts_before_death)
        account.setdefault(node, self.screened_image_counts.get(node, 0))
        return ArchivePiece(piece.start, piece.stop, piece.worker_death_count + 1, tuple(sorted(account.items())))

    def failures_in_a_row(self, node: str) -> int:
        """Return how many times in a row processes of a node have failed, without a screened image in between."""
        return self._in_a_row.get(node, 0)

    def is_node_at_fault(self, node: str) -> bool:
        """Return whether a node has failed so often in a row that the node should get no more work.

        The limit is proportional to the node's number of workers, because all workers end together if the computer is
        switched off.
        """
        return self.failures_in_a_row(node) >= _FAULTS_OF_NODE * self._max_workers.get(node, 1)

    def is_image_at_fault(self, piece: ArchivePiece, nodes: Collection[str], *, is_last: bool) -> bool:
        """Return whether an image, and not the node, is the cause of crashes.

        Parameters
        ----------
        piece
            A piece of one image, with the nodes whose processes ended while screening this image.
        nodes
            Names of the nodes that can work now.
        is_last
            Whether this is the last piece. If True, no other piece can show whether the node works.
        """
        if piece.worker_death_count < WORKER_DEATHS_BEFORE_IMAGE_FAULT:
            return False
        has_worked_since = any(
            self.screened_image_counts.get(node, 0) > before for node, before in piece.image_counts_before_death
        )
        # A single node cannot be compared with other nodes. One screened image must be enough.
        is_alone = set(nodes) <= {node for node, _ in piece.image_counts_before_death}
        has_worked = any(self.screened_image_counts.get(node, 0) for node, _ in piece.image_counts_before_death)
        return len(piece.image_counts_before_death) > 1 or has_worked_since or (is_alone and (has_worked or is_last))


# ---- keys of results


def result_key(*parts: object, version: str = VERSION) -> str:
    """Return a digest of all inputs of a result: the values `parts`, and the program's version."""
    return digest(version, *parts)


def path_fingerprint(path: Path) -> tuple[str, ...]:
    """Return values that change when a file or a folder changes.

    For a file this is the SHA-256 of the content. For a folder these are names, sizes and modification times of all
    files. Raises FileNotFoundError, OSError.
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

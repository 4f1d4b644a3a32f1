"""Screening an archive: pieces of the list go to workers, one at a time to each, and results come back to the driver.

Dask carries the messages and knows which workers live; which piece goes to whom is decided here, so that a dead worker
accuses exactly the piece that it had. A piece whose worker died twice is halved, until one image is left that has ended
three workers: that image is *failed*, by name, unless it is its computer that fails (`archive_suspects`). Only the
driver writes: the results of a piece into the output folder, whole or not at all, then into the store of this computer,
where an image that is there already keeps its row. So it does not matter when a worker, the scheduler or the driver
ends: nothing is lost and nothing is there twice.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, Final, cast

import distributed
from distributed import Client, Future, KilledWorker

from fieldray.cluster.archive_chunk import ChunkAnswer, ChunkOrder, packed, screen_chunk, unpacked
from fieldray.cluster.archive_files import contents_of
from fieldray.cluster.archive_folder import ArchiveFolder, ImageList, Piece
from fieldray.cluster.archive_progress import ArchiveProgress, Tally
from fieldray.cluster.archive_request import (
    ArchiveRequest,
    NodeReport,
    clock_note,
    misfit,
    report_of_node,
)
from fieldray.cluster.archive_suspects import Suspects
from fieldray.cluster.connection import ConnectionSettings, is_connected, open_client
from fieldray.domain.finding import Failed, Outcome
from fieldray.errors import EnvironmentProblem
from fieldray.reasons import Reason, reason
from fieldray.store.refs import ref_of

log = logging.getLogger(__name__)

CHUNK_IMAGES: Final = 256
_MOST_SENT_BYTES: Final = 2**27
_DEATHS_OF_SEVERAL: Final = 2
_LOOK_EVERY_S: Final = 0.5
_WAIT_S: Final = 0.2
_PATIENCE_S: Final = (5.0, 10.0, 20.0, 40.0, 80.0)  # for an answer that is on its way
_LOST: Final = (OSError, TimeoutError, CancelledError, KilledWorker)
_CONNECTIONS: Final = 5  # tries in a row that bring no result

Judge = Callable[[ChunkOrder], ChunkAnswer]
Inspect = Callable[..., NodeReport]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Reporting:
    """Whom an archive tells what.

    Attributes
    ----------
    save
        Receives the outcomes of every piece once, and whether they are from an earlier start.
    progress
        Receives how far it is, often.
    note
        Receives the name of a node and what there is to say of it.
    """

    save: Callable[[Sequence[Outcome], bool], None]
    progress: Callable[[ArchiveProgress], None] = lambda _progress: None
    note: Callable[[str, Reason], None] = lambda _name, _why: None


@dataclass(eq=False, slots=True)
class _Task:
    future: Future
    piece: Piece
    node: str


class _ClientLost(Exception):
    """The scheduler is gone: what was given out is not known."""


class Archive:
    """One start of the driver on an output folder.

    Parameters
    ----------
    judge, inspect
        What workers run on a piece, and what they say of themselves; both have to be importable there.
    sends_files
        Whether the driver reads the files and sends them with each piece.
    """

    def __init__(
        self,
        folder: ArchiveFolder,
        request: ArchiveRequest,
        images: ImageList,
        reporting: Reporting,
        *,
        chunk_images: int = CHUNK_IMAGES,
        sends_files: bool = False,
        judge: Judge = screen_chunk,
        inspect: Inspect = report_of_node,
    ) -> None:
        self._folder, self._request, self._images, self._reporting = folder, request, images, reporting
        self._judge, self._inspect, self._sends_files = judge, inspect, sends_files
        self._chunk_images = chunk_images
        self._left: deque[Piece] = deque()
        self._tasks: dict[str, _Task] = {}  # by the worker's address
        self._workers: dict[str, str] = {}  # the nodes of workers that may be given work, by their addresses
        self._unfit: dict[str, Reason] = {}
        self._nodes_aside: dict[str, Reason] = {}
        self._suspects = Suspects()
        self._tally = Tally()
        self._looked_s = 0.0

    def run(self, connection: ConnectionSettings) -> None:
        """Screen what has no results yet. An interruption (Ctrl-C) leaves what is done in the folder.

        Raises EnvironmentProblem where there is no cluster or no node that fits, StorageProblem.
        """
        self._take_over()
        self._tally.begin()
        attempts = 0
        while self._left:
            done = self._tally.done
            try:
                with open_client(connection) as client, client.as_current():
                    self._work(client)
            except (_ClientLost, EnvironmentProblem) as problem:
                attempts = 1 if self._tally.done > done else attempts + 1
                # An address that never answered is wrong; the driver's own scheduler may have been killed.
                is_first = bool(connection.address) and not self._tally.done and not isinstance(problem, _ClientLost)
                if is_first or self._is_final(problem) or attempts >= _CONNECTIONS:
                    raise self._told(problem) from problem
            finally:
                self._put_back()

    @staticmethod
    def _is_final(problem: Exception) -> bool:
        return isinstance(problem, EnvironmentProblem) and problem.reason.code == "cluster_node_problem"

    @staticmethod
    def _told(problem: Exception) -> EnvironmentProblem:
        return problem if isinstance(problem, EnvironmentProblem) else EnvironmentProblem(reason("cluster_lost"))

    def _take_over(self) -> None:
        """Hand on what earlier starts left. What cannot be read is screened again."""
        for piece in self._folder.done(len(self._images)):
            try:
                outcomes = unpacked(self._folder.results(piece), self._request)
                if len(outcomes) != piece.size:
                    raise ValueError("another number of images")
            except ValueError:
                log.warning("results of %d images cannot be read and are made again", piece.size)
                self._folder.forget(piece)
                continue
            self._reporting.save(outcomes, True)
            self._tally.resumed += piece.size
        self._left.extend(self._folder.left(len(self._images), size=self._chunk_images))

    # ---- with a client

    def _work(self, client: Client) -> None:
        self._workers.clear()
        self._unfit.clear()
        self._looked_s = 0.0
        self._look(client)
        while self._left or self._tasks:
            self._look(client)
            for address in [each for each in self._workers if each not in self._tasks]:
                self._give(client, address)
            self._wait()
            for address in [address for address, task in self._tasks.items() if task.future.done()]:
                self._take(client, address)
            self._reporting.progress(self._tally.progress(len(self._images)))

    def _look(self, client: Client) -> None:
        """Who is there? New workers are asked what they are; the pieces of those that are gone are free again."""
        if not is_connected(client):
            raise _ClientLost
        if time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return
        is_first = not self._looked_s
        self._looked_s = time.monotonic()
        with _losses():
            present = {address: str(each["name"]) for address, each in _workers_of(client).items()}
            new = [address for address in present if address not in self._workers and address not in self._unfit]
            if new:
                self._admit(client, {address: present[address] for address in new}, is_first=is_first)
        for address in [each for each in (*self._workers, *self._unfit) if each not in present]:
            self._workers.pop(address, None)
            self._unfit.pop(address, None)
            if task := self._tasks.pop(address, None):
                task.future.cancel()
                self._blame(task.piece, task.node)
        if self._unfit and not self._workers:
            address, why = next(iter(self._unfit.items()))
            name = _node(present[address])
            raise EnvironmentProblem(reason("cluster_node_problem", node=name, detail=why.text))

    def _admit(self, client: Client, names: dict[str, str], *, is_first: bool) -> None:
        """Ask workers what they are. At the start, one that does not fit ends it: a person should know.

        Raises EnvironmentProblem (cluster_node_problem).
        """
        options = {"needs_paths": not self._sends_files}
        reports = client.run(self._inspect, self._request, workers=list(names), on_error="return", **options)
        for address, report in reports.items():
            node = _node(names[address])
            if not isinstance(report, NodeReport):
                continue  # it has just gone, and is asked again when it is back
            if why := self._nodes_aside.get(node) or misfit(report, self._request):
                if is_first and node not in self._nodes_aside:
                    raise EnvironmentProblem(reason("cluster_node_problem", node=node, detail=why.text))
                self._set_aside(address, node, why)
                continue
            if note := clock_note(report):
                self._reporting.note(node, note)
            self._workers[address] = node
            self._suspects.works(node, workers=list(self._workers.values()).count(node))

    def _set_node_aside(self, node: str, why: Reason) -> None:
        """Give a node nothing any more, whatever of it joins again."""
        self._nodes_aside[node] = why
        for address in [address for address, name in self._workers.items() if name == node]:
            self._unfit[address] = why
            del self._workers[address]
        self._reporting.note(node, why)

    def _set_aside(self, address: str, node: str, why: Reason) -> None:
        self._unfit[address] = why
        self._workers.pop(address, None)
        self._reporting.note(node, why)

    def _give(self, client: Client, address: str) -> None:
        if not self._left or address in self._tasks:
            return
        piece = self._next_piece(self._workers[address])
        files: dict[str, bytes | Reason] | None = None
        if self._sends_files:
            piece, files = self._with_files(piece)
        order = ChunkOrder(request=self._request, refs=self._images.refs(piece), files=files)
        key = f"chunk-{piece.start}-{piece.stop}-{uuid.uuid4().hex}"
        future = client.submit(self._judge, order, key=key, workers=[address], pure=False)
        self._tally.begin_node(self._workers[address])
        self._tasks[address] = _Task(future, piece, self._workers[address])

    def _next_piece(self, node: str) -> Piece:
        """The first one that has not failed on this node, or else the first: another can tell whose fault it is."""
        others = (piece for piece in self._left if node not in dict(piece.nodes))
        piece = next(others, self._left[0])
        self._left.remove(piece)
        return piece

    def _with_files(self, piece: Piece) -> tuple[Piece, dict[str, bytes | Reason]]:
        """As much of a piece as may be sent at once, with the files; the rest is put back."""
        files: dict[str, bytes | Reason] = {}
        total, count = 0, 0
        for path in self._images.files(piece):
            if str(path) not in files:
                data = contents_of(path)
                size = len(data) if isinstance(data, bytes) else 0
                if count and total + size > _MOST_SENT_BYTES:
                    self._left.appendleft(Piece(piece.start + count, piece.stop, piece.deaths, piece.nodes))
                    break
                files[str(path)], total = data, total + size
            count += 1
        return Piece(piece.start, piece.start + count, piece.deaths, piece.nodes), files

    def _wait(self) -> None:
        futures = [task.future for task in self._tasks.values()]
        if not futures:
            time.sleep(_WAIT_S)
            return
        with contextlib.suppress(TimeoutError, CancelledError):
            distributed.wait(futures, timeout=_WAIT_S, return_when="FIRST_COMPLETED")

    def _take(self, client: Client, address: str) -> None:
        """What came of a piece; the worker has the next one before its results are written.

        But not before they are here: a worker that ends over the next piece would take them with it.
        """
        task = self._tasks.pop(address)
        if task.future.status != "finished":
            self._failed(task)
            return
        answer = self._answer(client, task, address)
        if answer is None:
            self._left.appendleft(task.piece)
            return
        if answer.problem:
            self._left.appendleft(task.piece)
            if address in self._workers:
                self._set_aside(address, task.node, answer.problem)
            return
        if address in self._workers:
            self._give(client, address)
        self._keep(task.piece, answer.results)
        self._suspects.has_done(task.node, task.piece.size)
        self._tally.add(task.node, task.piece.size)

    def _answer(self, client: Client, task: _Task, address: str) -> ChunkAnswer | None:
        """The answer of a piece that is done; None where the worker went with it, or the scheduler did."""
        for patience_s in _PATIENCE_S:
            try:
                return cast("ChunkAnswer", task.future.result(timeout=patience_s))
            except TimeoutError:  # a slow line, or nobody at its other end
                with contextlib.suppress(*_LOST):
                    if is_connected(client) and address in _workers_of(client):
                        continue
                return None
            except _LOST:
                return None
        return None

    def _failed(self, task: _Task) -> None:
        """A worker that died, a scheduler that is gone, or a fault of the program.

        An error that follows an image is the image's, one that meets a node piece after piece is the node's.
        """
        if task.future.status in ("cancelled", "lost"):
            self._left.appendleft(task.piece)
            return
        error = task.future.exception()
        is_death = isinstance(error, KilledWorker)
        why = None if is_death else reason("internal", detail=type(error).__name__)
        self._blame(task.piece, task.node, why)

    def _blame(self, piece: Piece, node: str, why: Reason | None = None) -> None:
        """A worker died with this piece, or `why` it failed: try again, halve it, or name the image or the node."""
        piece = self._suspects.failed(piece, node)
        is_last = not self._left and not self._tasks
        nodes = set(self._workers.values()) | {node}
        if piece.size > 1 and piece.deaths >= _DEATHS_OF_SEVERAL:
            self._suspect(*piece.halves())
        elif piece.size == 1 and self._suspects.is_image_to_blame(piece, nodes, is_last=is_last):
            ref = ref_of(self._images.refs(piece)[0])
            told = why or reason("archive_worker_ended", times=piece.deaths)
            self._keep(piece, packed([Failed(ref=ref, stage="decode", reason=told)], self._request))
        else:
            self._suspect(piece)
        if node and node not in self._nodes_aside and self._suspects.is_node_to_blame(node):
            self._set_node_aside(node, why or reason("cluster_node_deaths", times=self._suspects.times(node)))

    def _suspect(self, *pieces: Piece) -> None:
        """Try these again, each behind another piece: between two of them a node can show that it works."""
        for number, piece in enumerate(pieces):
            self._left.insert(2 * number + 1, piece)

    def _keep(self, piece: Piece, results: bytes) -> None:
        outcomes = unpacked(results, self._request)
        if len(outcomes) != piece.size:
            raise ValueError(f"{len(outcomes)} results for {piece.size} images")
        self._folder.keep(piece, results)
        self._reporting.save(outcomes, False)
        self._tally.done += piece.size

    def _put_back(self) -> None:
        """What was given out and has not come back is to be done."""
        for task in self._tasks.values():
            self._left.appendleft(task.piece)
        self._tasks.clear()


def _workers_of(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    return found


def _node(worker: str) -> str:
    """The node of a worker: its name without the number."""
    return worker.rpartition("/")[0] or worker


@contextlib.contextmanager
def _losses() -> Iterator[None]:
    """What Dask raises when the other side is gone."""
    try:
        yield
    except _LOST as error:
        raise _ClientLost from error

"""Screen an archive: a driver process sends pieces of the image list to worker processes, and collects the results.

Dask carries the messages and reports which workers are alive. A worker has one piece at a time, so that the piece of a
dead worker is known exactly. A piece whose workers died twice is halved, down to a single image. An image with which
three workers died is *failed*, unless the computer is at fault (see `worker_registry`).

Only the driver writes results: first to the output folder, whole or not at all, then to the results database of this
computer. An image that is stored already keeps its row. So worker, scheduler and driver may end at any time. No result
is lost, and no result is stored twice.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from distributed import Client, Future, KilledWorker

from fieldray.domain.finding import FailedOutcome, Outcome
from fieldray.domain.image import ImageRef
from fieldray.reasons import Reason, reason
from fieldray.store.rows import ref_of
from fieldray_cluster.archive_folder import ArchiveFolder, ImageList
from fieldray_cluster.archive_worker import (
    ArchiveRequest,
    PieceSpec,
    check_node,
    max_answer_bytes,
    outcomes_to_parquet,
    parse_problem,
    parse_results,
    read_contents,
    replace_result_rows,
    screen_piece,
    screen_piece_as_bytes,
)
from fieldray_cluster.connection import ConnectionSettings, is_connected, list_workers
from fieldray_cluster.object_server import is_object_address
from fieldray_cluster.worker_registry import (
    CONNECTION_ERRORS,
    ArchivePiece,
    FaultCounts,
    NodeMessageCallback,
    WorkerRegistry,
    run_with_reconnects,
    wait_for_any,
)

log = logging.getLogger(__name__)

IMAGES_PER_PIECE: Final = 256
_DEATHS_OF_SEVERAL: Final = 2
_LATE_S: Final = 1.0  # wait for Dask's message that a worker died while it had a piece
_PATIENCE_S: Final = (5.0, 10.0, 20.0, 40.0, 80.0)  # time limits of the attempts to fetch an answer
_START_S, _IMAGE_S = 900.0, 60.0  # time limit of a worker: for a piece, plus for each image

ScreenPiece = Callable[[PieceSpec], Sequence[Outcome]]
"""A function that a worker calls to screen a piece of an archive. Returns the outcome of each image."""
CheckNode = Callable[..., Reason | None]
"""A function that a worker calls. Returns the reason why the worker cannot screen the archive; None if it can."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Task:
    """A piece of an archive that a worker is screening now.

    Attributes
    ----------
    refs
        The images of the piece.
    hashes
        SHA-256 of each file that was sent with the piece, by path.
    until_s
        The time at which the worker must have answered, in seconds of the monotonic clock.
    """

    future: Future
    piece: ArchivePiece
    node: str
    refs: tuple[ImageRef, ...]
    hashes: Mapping[Path, str]
    until_s: float


def piece_time_limit_s(image_count: int) -> float:
    """Return how many seconds a worker may take to screen a number of images: over ten times the usual time."""
    return _START_S + _IMAGE_S * image_count


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProgress:
    """The progress of a node (computer): the number of screened images, and the speed in images per second."""

    name: str
    screened_image_count: int
    images_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveProgress:
    """The progress of screening an archive: numbers of images, speed and remaining time.

    `earlier_screened_image_count` is the number of images that had results from an earlier start of the command.
    """

    screened_image_count: int
    image_count: int
    earlier_screened_image_count: int
    images_per_s: float
    remaining_s: float | None
    nodes: tuple[NodeProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceOptions:
    """The size of the pieces of an archive, and the functions that workers run.

    Attributes
    ----------
    images_per_piece
        Number of images in a piece.
    sends_files
        Whether the driver reads the files and sends them with each piece.
    screen
        A function that workers can import, and that screens a piece.
    check_node
        A function that workers can import, and that checks a worker before the first piece.
    time_limit_s
        A function that returns how many seconds a worker may take to screen a number of images.
    """

    images_per_piece: int = IMAGES_PER_PIECE
    sends_files: bool = False
    screen: ScreenPiece = screen_piece
    check_node: CheckNode = check_node
    time_limit_s: Callable[[int], float] = piece_time_limit_s


class ArchiveDriver:
    """Screens an archive into an output folder: sends pieces of the image list to workers, and collects the results.

    Parameters
    ----------
    save
        A function that is called once for each piece, with the outcomes, and True if they are from an earlier start.
    progress
        A function that is called often, with the progress.
    on_message
        A function that is called with the name of a node and a message about the node.
    """

    def __init__(
        self,
        folder: ArchiveFolder,
        request: ArchiveRequest,
        images: ImageList,
        *,
        save: Callable[[Sequence[Outcome], bool], None],
        progress: Callable[[ArchiveProgress], None],
        on_message: NodeMessageCallback,
        options: PieceOptions = PieceOptions(),
    ) -> None:
        self._folder, self._request, self._images = folder, request, images
        self._save, self._show, self._note = save, progress, on_message
        self._screen, self._inspect, self._sends_files = options.screen, options.check_node, options.sends_files
        self._chunk_images, self._waits_s = options.images_per_piece, options.time_limit_s
        self._left: deque[ArchivePiece] = deque()
        self._failed_in: dict[
            int, ArchivePiece
        ] = {}  # the stored piece of each failed image, by the index of the image
        self._tasks: dict[str, _Task] = {}  # tasks by address of the worker
        self._nodes_aside: dict[str, Reason] = {}
        self._faults = FaultCounts()
        self._resumed = self._done = 0  # numbers of images with earlier results, and of images screened since
        self._began_s = time.monotonic()
        self._nodes_began_s: dict[str, float] = {}

    def run(self, connection: ConnectionSettings) -> ArchiveProgress:
        """Screen all images that have no results. Returns the progress at the end.

        After an interruption (Ctrl-C), all results are kept. Raises EnvironmentProblem if there is no cluster or no
        usable node, and StorageProblem.
        """
        self._take_over()
        self._began_s = time.monotonic()
        if self._left:
            run_with_reconnects(connection, self._work, count_done=lambda: self._done)
        return self._progress()

    def _take_over(self) -> None:
        """Read the results that earlier starts stored, and queue the remaining images.

        Invalid results are deleted, and their images are screened again. Failed images are screened again, too, because
        the cause of the failure may be gone.
        """
        again: list[ArchivePiece] = []
        for piece in self._folder.finished_pieces(len(self._images)):
            try:
                refs = tuple(map(ref_of, self._images.ref_texts(piece)))
                outcomes = parse_results(refs, self._folder.read_results(piece), self._request)
            except ValueError as error:
                log.warning("results of %d images are made again: %s", piece.image_count, error)
                self._folder.delete_results(piece)
                continue
            good = [outcome for outcome in outcomes if not isinstance(outcome, FailedOutcome)]
            self._save(good, True)
            self._resumed += len(good)
            for number, outcome in enumerate(outcomes, piece.start):
                if isinstance(outcome, FailedOutcome):
                    self._failed_in[number] = piece
                    is_next = self._failed_in.get(number - 1) is piece and again[-1].image_count < self._chunk_images
                    begin = again.pop().start if is_next else number
                    again.append(ArchivePiece(begin, number + 1))
        self._left.extend(
            (*self._folder.remaining_pieces(len(self._images), images_per_piece=self._chunk_images), *again)
        )

    # ---- distribution of pieces

    def _work(self, client: Client) -> None:
        ask = functools.partial(self._inspect, self._request, needs_paths=not self._sends_files)
        pool = WorkerRegistry(client, ask, on_message=self._note, excluded_nodes=self._nodes_aside)
        try:
            while self._left or self._tasks:
                self._step(client, pool)
        finally:  # pieces without an answer are queued again
            for task in self._tasks.values():
                self._left.appendleft(task.piece)
            self._tasks.clear()

    def _step(self, client: Client, pool: WorkerRegistry) -> None:
        """Handle, once, all workers that were lost, are idle, have answered, or have exceeded their time limit."""
        for address in pool.refresh():
            if task := self._tasks.pop(address, None):
                self._lose(pool, task)
        for address in [each for each in pool.workers if each not in self._tasks]:
            self._give(client, pool, address)
        wait_for_any(client, [task.future for task in self._tasks.values()])
        for address in [address for address, task in self._tasks.items() if task.future.done()]:
            self._take_answer(client, pool, address)
        now_s = time.monotonic()
        for address in [address for address, task in self._tasks.items() if now_s > task.until_s]:
            self._give_up(pool, address)
        self._show(self._progress())

    def _give(self, client: Client, pool: WorkerRegistry, address: str) -> None:
        """Send the next piece in the queue to the worker at `address`, if this worker is idle."""
        if not self._left or address in self._tasks:
            return
        node = pool.node_name(address)
        self._faults.set_worker_count(node, worker_count=sum(pool.node_name(other) == node for other in pool.workers))
        piece = self._next_piece(node)
        files: dict[str, bytes | Reason] | None = None
        if self._sends_files:
            count, files = read_contents(self._images.image_files(piece))
            if count < piece.image_count:
                self._left.appendleft(
                    ArchivePiece(
                        piece.start + count, piece.stop, piece.worker_death_count, piece.image_counts_before_death
                    )
                )
                piece = ArchivePiece(
                    piece.start, piece.start + count, piece.worker_death_count, piece.image_counts_before_death
                )
        sent = {Path(name): data for name, data in (files or {}).items() if isinstance(data, bytes)}
        refs = self._images.ref_texts(piece)
        states = self._images.server_object_states(piece) if is_object_address(self._request.paths[0]) else None
        spec = PieceSpec(request=self._request, refs=refs, file_contents=files, server_object_states=states)
        key = f"chunk-{piece.start}-{piece.stop}-{uuid.uuid4().hex}"
        future = client.submit(screen_piece_as_bytes, self._screen, spec, key=key, workers=[address], pure=False)
        self._nodes_began_s.setdefault(node, time.monotonic())
        self._tasks[address] = _Task(
            future=future,
            piece=piece,
            node=node,
            refs=tuple(map(ref_of, refs)),
            hashes={path: hashlib.sha256(data).hexdigest() for path, data in sent.items()},
            until_s=time.monotonic() + self._waits_s(piece.image_count),
        )

    def _next_piece(self, node: str) -> ArchivePiece:
        """Remove the next piece for a node from the queue, and return the piece.

        Pieces that have not failed on this node come first. So a failed piece is tried on another node, which shows
        whether the node or the piece is at fault.
        """
        others = (piece for piece in self._left if node not in dict(piece.image_counts_before_death))
        piece = next(others, self._left[0])
        self._left.remove(piece)
        return piece

    def _take_answer(self, client: Client, pool: WorkerRegistry, address: str) -> None:
        """Fetch a worker's answer about a piece, then send the worker the next piece, then store the results.

        The answer is fetched first, because it would be lost if the worker died while screening the next piece.
        """
        task = self._tasks.pop(address)
        if task.future.status in ("cancelled", "lost"):  # the scheduler was lost
            self._left.appendleft(task.piece)
            return
        if task.future.status == "error":  # the worker died, or could not start the piece
            error = task.future.exception()
            why = None if isinstance(error, KilledWorker) else reason("internal", detail=type(error).__name__)
            if why is None:
                pool.workers.pop(address, None)  # otherwise a lost worker would get the next piece
            self._blame(pool, task.piece, task.node, why)
            return
        try:
            answer = self._answer(client, task, address)
            if answer is None:
                self._left.appendleft(task.piece)
                return
            problem, is_fault = parse_problem(answer)
            outcomes = () if problem else parse_results(task.refs, answer, self._request, hashes=task.hashes)
        except ValueError as error:
            log.warning("%s: %s", task.node, error)
            self._left.appendleft(task.piece)
            pool.exclude_node(task.node, reason("cluster_other_answer"))
            return
        if problem and is_fault:  # an image or the node may cause the fault
            self._blame(pool, task.piece, task.node, problem)
            return
        if problem:
            self._left.appendleft(task.piece)
            pool.exclude_worker(address, problem)
            return
        if address in pool.workers:
            self._give(client, pool, address)
        self._keep(task.piece, answer, outcomes)
        self._faults.add_screened_images(task.node, task.piece.image_count)

    def _answer(self, client: Client, task: _Task, address: str) -> bytes | None:
        """Fetch a worker's answer about a finished piece; None if the worker or the scheduler was lost.

        Raises ValueError if the answer is missing, invalid, or too long. An answer that is too long is not fetched.
        """
        for patience_s in _PATIENCE_S:
            try:
                size = client.nbytes([task.future.key], summary=False).get(task.future.key, 0)
                if size > max_answer_bytes(task.piece.image_count):
                    raise ValueError(f"an answer of {size} bytes")
                found: object = task.future.result(timeout=patience_s)
            except TimeoutError:  # a slow connection, or a lost worker
                with contextlib.suppress(*CONNECTION_ERRORS):
                    if is_connected(client) and address in list_workers(client):
                        continue
                return None
            except Exception as error:  # Dask raises any exception for invalid bytes
                is_lost = isinstance(error, CONNECTION_ERRORS)
                if is_lost or task.future.status == "cancelled":  # a new scheduler does not know the future
                    return None
                raise ValueError(f"an answer that is none: {type(error).__name__}") from error
            if not isinstance(found, bytes):
                raise ValueError(f"{type(found).__name__} is no answer")
            return found
        raise ValueError("an answer that does not come")

    def _give_up(self, pool: WorkerRegistry, address: str) -> None:
        """Exclude a worker that exceeded its time limit from further work, and queue its piece for another worker."""
        task = self._tasks.pop(address)
        task.future.cancel()
        self._suspect(self._faults.add_failure(task.piece, task.node))
        pool.exclude_worker(
            address, reason("cluster_silent", minutes=round(self._waits_s(task.piece.image_count) / 60))
        )

    def _lose(self, pool: WorkerRegistry, task: _Task) -> None:
        """Queue the piece of a lost worker again. If the worker died while screening, the death is counted."""
        try:
            has_begun = isinstance(task.future.exception(timeout=_LATE_S), KilledWorker)
        except CONNECTION_ERRORS:
            has_begun = False
        task.future.cancel()
        if has_begun:
            self._blame(pool, task.piece, task.node)
        else:
            self._left.appendleft(task.piece)

    def _blame(self, pool: WorkerRegistry, piece: ArchivePiece, node: str, why: Reason | None = None) -> None:
        """Handle a piece whose worker died (`why` is None), or that failed for the reason `why`.

        The piece is queued again, or halved. A single image may be stored as failed. The node may be excluded.
        """
        piece = self._faults.add_failure(piece, node)
        is_last = not self._left and not self._tasks
        nodes = {node, *map(pool.node_name, pool.workers)}
        if piece.image_count > 1 and piece.worker_death_count >= _DEATHS_OF_SEVERAL:
            self._suspect(*piece.halves())
        elif piece.image_count == 1 and self._faults.is_image_at_fault(piece, nodes, is_last=is_last):
            ref = ref_of(self._images.ref_texts(piece)[0])
            cause = why or reason("archive_worker_ended", times=piece.worker_death_count)
            failed = (FailedOutcome(ref=ref, stage="decode", reason=cause),)
            self._keep(piece, outcomes_to_parquet(failed, self._request), failed)
        else:
            self._suspect(piece)
        if self._faults.is_node_at_fault(node):
            pool.exclude_node(node, why or reason("cluster_node_deaths", times=self._faults.failures_in_a_row(node)))

    def _suspect(self, *pieces: ArchivePiece) -> None:
        """Put pieces that may have crashed a worker near the start of the queue, each behind another piece.

        The other pieces show whether the node works.
        """
        for number, piece in enumerate(pieces):
            self._left.insert(2 * number + 1, piece)

    def _keep(self, piece: ArchivePiece, results: bytes, outcomes: Sequence[Outcome]) -> None:
        """Store the results of a piece in the output folder, and pass on the outcomes.

        Results of images that failed in an earlier start replace these images' rows in the stored piece.
        """
        if whole := self._failed_in.get(piece.start):
            first, previous = piece.start - whole.start, self._folder.read_results(whole)
            self._folder.write_results(
                whole, replace_result_rows(previous, results, first=first, request=self._request)
            )
        else:
            self._folder.write_results(piece, results)
        self._save(outcomes, False)
        self._done += piece.image_count

    def _progress(self) -> ArchiveProgress:
        now_s, total = time.monotonic(), len(self._images)
        rate, done = self._done / max(now_s - self._began_s, 1e-3), self._resumed + self._done
        nodes = (
            NodeProgress(
                name=name, screened_image_count=count, images_per_s=count / max(now_s - self._nodes_began_s[name], 1e-3)
            )
            for name, count in sorted(self._faults.screened_image_counts.items())
        )
        return ArchiveProgress(
            screened_image_count=done,
            image_count=total,
            earlier_screened_image_count=self._resumed,
            images_per_s=rate,
            remaining_s=(total - done) / rate if rate else None,
            nodes=tuple(nodes),
        )

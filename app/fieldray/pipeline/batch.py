"""A run over many images, which threads find, screen and save.

    discovery thread --refs--> screening threads --outcomes--> batch thread (the only writer of the database)

Only a few images at a time wait between discovery and saving, however many files there are. Outcomes that arrive at
nearly the same time are committed together, because a commit takes as long as writing some rows. An outcome is
committed before it is published. So every published result survives a kill of the program.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fieldray.domain.finding import FailedOutcome, Outcome, copy_missing_facts
from fieldray.domain.image import ImageRef
from fieldray.domain.pack_setup import PackSetup
from fieldray.domain.run import PackOfRun, Progress, Publish, RunChanged, RunSpec, RunState
from fieldray.errors import Cancelled, FieldrayError, StorageProblem, reason_of_unexpected_error
from fieldray.imaging.discover import count_files, discover
from fieldray.imaging.source import FileStamper
from fieldray.inference.engine import Engine
from fieldray.pipeline.batch_ports import BatchOptions, BatchPack, BatchPorts, run_spec
from fieldray.pipeline.run_recorder import ResultsByContent, ResultsByFileStamp, RunRecorder, image_events, open_store
from fieldray.pipeline.screen import screen_with_packs
from fieldray.pipeline.statistics import InferenceStatistics, RateLimiter, RunSpeed
from fieldray.reasons import Reason, reason
from fieldray.reports.outputs import is_own_report
from fieldray.store.bookkeeping import ReusedResults
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.workers.pool import PoolClosed, WorkerPool

if TYPE_CHECKING:
    from fieldray.pipeline.watching import FolderWatch

log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
_PROGRESS_EVERY_S: Final = 0.2
_SPEED_EVERY_S: Final = 0.5
_UNDER_WAY: Final = 6  # images in progress for each thread: waiting, being screened, or waiting to be saved
_TOGETHER: Final = 3  # maximum number of images saved together, for each thread
_MAX_WAIT_S: Final = 0.05  # maximum time that an outcome waits for others, to be saved together


@dataclass(frozen=True, eq=False, slots=True)
class _ScreenedImage:
    """The outcomes of one image, in the order of the packs.

    resumed  positions of the packs whose outcome comes from an earlier run
    """

    outcomes: Sequence[Outcome]
    resumed: frozenset[int]

    @property
    def decisive(self) -> Outcome:
        """The first failed outcome; if none failed, the first outcome."""
        return next((outcome for outcome in self.outcomes if isinstance(outcome, FailedOutcome)), self.outcomes[0])

    @property
    def is_new(self) -> bool:
        """Whether at least one pack screened the image in this run; False if all outcomes come from earlier runs."""
        return len(self.resumed) < len(self.outcomes)


class Batch:
    """A run in progress, with its threads.

    `pause`, `resume` and `cancel` return at once and may be called from any thread.

    state   the last published state of the run
    reason  the reason why the run failed, or None
    """

    def __init__(
        self,
        ports: BatchPorts,
        *,
        database: Path,
        publish: Publish,
        threads: int,
        as_new_run: bool = False,
        statistics: InferenceStatistics | None = None,
    ) -> None:
        self._ports = ports
        self._database = database
        self._publish = publish
        self._threads = threads
        self._as_new_run = as_new_run
        self._statistics = statistics or InferenceStatistics()
        self._room = threading.Semaphore(_UNDER_WAY * threads)
        self._outcomes: queue.SimpleQueue[_ScreenedImage | ReusedResults | None] = (
            queue.SimpleQueue()
        )  # None: the last outcome has arrived
        self._going = threading.Event()
        self._going.set()
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.reason: Reason | None = None
        self._notes: tuple[Reason, ...] = ()
        self._pack_notes: tuple[tuple[Reason, ...], ...] = ()
        self._found = self._arrived = 0
        self._is_complete = False
        self._estimate = 0
        self._is_found = False
        self._by_content: ResultsByContent | None = None
        self._recorder: RunRecorder | None = None
        self.state: RunState = "running"
        self._thread = threading.Thread(target=self._run, name="batch")

    @property
    def spec(self) -> RunSpec:
        """The request of the run: its paths and packs."""
        return self._ports.spec

    @property
    def run_id(self) -> int:
        """The id of the run in the results database; 0 until the batch thread has opened the run."""
        return self._recorder.run_id if self._recorder else 0

    @property
    def is_over(self) -> bool:
        """Whether the run has ended and its last event was published."""
        return self.state not in ("running", "paused")

    @property
    def is_cancelled(self) -> bool:
        """Whether a person or a problem has cancelled the run. Its threads may still be ending."""
        return self._cancelled.is_set()

    def start(self) -> None:
        """Start the run in a thread of its own, and return at once."""
        self._thread.start()

    def pause(self) -> None:
        """Pause the run. Images that are being screened are finished. No further image is begun."""
        with self._lock:
            if not self.is_cancelled:
                self._going.clear()

    def resume(self) -> None:
        """Resume the run after a pause."""
        self._going.set()

    def cancel(self) -> None:
        """Cancel the run.

        Stored results are kept. A later run of an equal request screens only the remaining images.
        """
        with self._lock:
            self._cancelled.set()
            self._going.set()
        self._room.release()  # wakes the threads that wait
        self._outcomes.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of all threads of the run.

        timeout_s  maximum time to wait in seconds; None for no limit

        Returns False if the threads did not end in this time.
        """
        # Waits for an event, because Thread.join with a time-out must not be interrupted: before Python 3.13, Ctrl-C
        # inside Thread.join makes a running thread count as ended (python/cpython issue 90882).
        if not self._ended.wait(timeout_s):
            return False
        self._thread.join()
        return True

    # ---- the batch thread

    def _run(self) -> None:
        try:
            self._screen_all()
        finally:
            self._ended.set()

    def _screen_all(self) -> None:
        try:
            with open_store(self._database, self._publish) as store:
                self._screen_into(store)
            self._add_pack_warnings()
        except FieldrayError as problem:
            self._break_off(problem.reason)
        except Exception as error:
            log.exception("batch thread")
            self._break_off(reason_of_unexpected_error(error))
        finally:
            self._ports.end_processes()
        self._enter(self._end_state, *self._notes)

    def _add_pack_warnings(self) -> None:
        """Add warnings about drift and shared identifiers to the pack notes of a finished run."""
        if self._end_state != "finished":
            return
        try:
            self._pack_notes = tuple(
                (*notes, *pack.find_warnings(PackOfRun(self.run_id, position)))
                for position, (pack, notes) in enumerate(zip(self._ports.packs, self._pack_notes, strict=True))
            )
        except Exception:
            log.warning("the warnings about the pack's results could not be computed", exc_info=True)

    @property
    def _end_state(self) -> RunState:
        if self.reason:
            return "failed"
        return "cancelled" if self.is_cancelled and not self._is_complete else "finished"

    def _screen_into(self, store: ResultStore) -> None:
        last_row, last_answer, watches = (
            store.last_image_row_id(),
            store.last_result_id(),
            self._ports.watch is not None,
        )
        has_results = (
            store.has_results(one.spec, settings_hashes=one.reusable_settings_hashes) for one in self._ports.packs
        )
        takes_over = not self._as_new_run and (watches or any(has_results))
        run_id = store.open_run(self.spec, as_new_run=self._as_new_run)
        keeps = self._ports.keeps_previews
        self._recorder = RunRecorder(self.spec, run_id, last_row=last_row, keeps_previews=keeps, watches=watches)
        self._stamps = FileStamper(store.file_stamp_key())
        self._ports.set_stamper(self._stamps)
        with ResultQuery(self._database) as query:
            known = ResultsByContent(ports=self._ports, last_result_id=last_answer, query=query)
            self._by_content = known if takes_over else None
            self._with_threads(partial(self._collect, store, self._recorder))
        self._recorder.require_all_stored(store)
        self._end(store, self._recorder)

    def _break_off(self, why: Reason) -> None:
        """End the run because of a problem of the database or the batch thread, and store the reason if possible."""
        self._fail(why)
        if why.code in ("store_gone", "results_lost"):
            self._recorder = None  # this run id may now belong to another run
        if self._recorder:
            try:
                with ResultStore(self._database) as store:
                    self._end(store, self._recorder)
            except StorageProblem as problem:
                log.error("the end of the run could not be stored: %s", problem.reason.code)

    def _with_threads(self, collect: Callable[[], None]) -> None:
        """Run `collect` in this thread while other threads search for images and screen them.

        Returns when all have ended.
        """
        with ThreadPoolExecutor(2, thread_name_prefix="searching") as threads:
            try:
                threads.submit(self._count)
                threads.submit(self._discover)
                collect()
            except BaseException:
                self.cancel()
                raise
            finally:
                if self.is_cancelled:
                    self._ports.end_processes()

    def _collect(self, store: ResultStore, recorder: RunRecorder) -> None:
        """Save and publish every image as soon as its outcomes arrive."""
        packs = self.spec.packs
        points = {pack.pack_name: ", ".join({point.name: 0 for point in pack.operating_points}) for pack in packs}
        said = ", ".join(f"{pack}: {names or '–'}" for pack, names in points.items())
        notes = [reason("points_differ", packs=said)] if len(set(points.values())) > 1 else []
        self._enter(
            "running",
            *([reason("run_elsewhere", process=store.process_holding_run)] if store.process_holding_run else []),
            *notes,
        )
        done, pace, watch = 0, RunSpeed(clock=time.monotonic), self._ports.watch
        pace.restart(0)
        progress, speed = RateLimiter(_PROGRESS_EVERY_S), RateLimiter(_SPEED_EVERY_S)
        for arrived in self._arrivals():
            if isinstance(arrived, ReusedResults):
                taken = recorder.reuse_results(store, arrived)
                for event in image_events(store, taken) if self._ports.resume_options.reports_each_image else [taken]:
                    self._publish(event)
                done += len(arrived.image_row_ids)
            elif kept := [one for one in arrived if watch is None or watch.is_final(one.decisive, is_new=one.is_new)]:
                for event in recorder.save(store, [(one.outcomes, one.resumed) for one in kept]):
                    self._publish(event)
                done += len(kept)
            self._follow_pause(store, recorder, pace, done)
            if progress.is_due():
                pace.record_progress(done)
                self._publish(self._progress(done, pace))
                if watch and (news := watch.folder_access_message()):
                    self._enter(self.state, news)
            if speed.is_due():
                self._publish(self._statistics.speed())
        pace.record_progress(done)
        self._publish(self._progress(done, pace))
        self._publish(self._statistics.speed())

    def _arrivals(self) -> Iterator[Sequence[_ScreenedImage] | ReusedResults]:
        """Yield outcomes as they arrive, in groups that are saved together.

        A group is empty if no outcome arrived for a while.

        An outcome is yielded at once if it is the first of the run, or if no other image is being screened. The
        iterator ends after the last outcome. In a cancelled run it ends after the outcomes that have arrived.
        """
        together: list[_ScreenedImage] = []
        is_first, until_s = True, 0.0
        while not self.is_cancelled:
            try:
                item = self._outcomes.get(timeout=max(0.0, until_s - time.monotonic()) if together else _TICK_S)
            except queue.Empty:
                yield self._leaving(together)
                together = []
                continue
            if item is None:
                break
            if isinstance(item, ReusedResults):
                yield self._leaving(together)
                together = []
                self._arrived += len(item.image_row_ids)
                self._room.release()
                yield item
                continue
            self._arrived += 1
            until_s = until_s if together else time.monotonic() + _MAX_WAIT_S
            together.append(item)
            if is_first or len(together) >= _TOGETHER * self._threads or self._arrived >= self._found:
                yield self._leaving(together)
                together, is_first = [], False
        yield self._leaving(together)

    def _leaving(self, together: Sequence[_ScreenedImage]) -> Sequence[_ScreenedImage]:
        """Return these outcomes, and let discovery add the same number of further images."""
        if together:
            self._room.release(len(together))
        return together

    def _follow_pause(self, store: ResultStore, recorder: RunRecorder, pace: RunSpeed, done: int) -> None:
        wanted: RunState = "running" if self._going.is_set() else "paused"
        if wanted != self.state:
            store.set_run_state(recorder.run_id, wanted)
            pace.restart(done)
            self._enter(wanted)

    def _progress(self, done: int, pace: RunSpeed) -> Progress:
        total = self._found if self._is_found else max(self._found, self._estimate)
        total = done + self._ports.watch.waiting_file_count if self._ports.watch else total
        return Progress(
            done=done,
            total=total,
            total_is_final=self._is_found,
            images_per_s=pace.images_per_s(),
            remaining_s=pace.remaining_s(max(0, total - done)),
        )

    def _end(self, store: ResultStore, recorder: RunRecorder) -> None:
        with self._lock:
            self._is_complete = self._end_state == "finished"  # a later cancel has no effect
        notes, self._pack_notes = recorder.end_run(store, self._end_state, self.reason)
        if self._is_complete:
            self._notes = (*self._ports.search_problems(), *notes)
        elif self._ports.watch:
            self._notes = (self._ports.watch.closing_message(),)

    def _enter(self, state: RunState, *notes: Reason) -> None:
        self.state = state
        changed = RunChanged(run_id=self.run_id, state=state, reason=self.reason, notes=notes)
        self._publish(replace(changed, pack_notes=self._pack_notes))

    def _fail(self, why: Reason) -> None:
        """Cancel the run as failed, with a reason. The first reason of a run is kept."""
        with self._lock:
            self.reason = self.reason or why
        self.cancel()

    # ---- the other threads

    def _guard(self, body: Callable[..., None], *values: object) -> None:
        """Run the function of a thread. An error in the function ends the run with a reason."""
        try:
            body(*values)
        except Cancelled:
            pass
        except PoolClosed as problem:
            if not self.is_cancelled:
                self._fail(problem.reason)
        except FieldrayError as problem:
            self._fail(problem.reason)
        except Exception as error:
            if self.is_cancelled:  # the cancellation closed what this thread uses
                log.debug("a thread of a cancelled run failed", exc_info=True)
                return
            log.exception("thread of the batch")
            self._fail(reason_of_unexpected_error(error))

    def _count(self) -> None:
        """Estimate the number of images for the progress bar. An error only leaves the bar without a total."""
        try:
            self._estimate = self._ports.estimate_count(lambda: self.is_cancelled or self._is_found)
        except Exception:
            log.warning("the images could not be counted in advance", exc_info=True)

    def _discover(self) -> None:
        """Find the images and pass each one to a screening thread. Returns when all screening threads have ended."""
        try:
            with ThreadPoolExecutor(self._threads, thread_name_prefix="screening") as threads:
                self._guard(self._search, threads)
        finally:
            self._outcomes.put(None)

    def _search(self, threads: ThreadPoolExecutor) -> None:
        with ResultQuery(self._database) as query:
            unchanged = self._by_stamp(query)
            for ref in self._ports.discover(unchanged.is_unchanged if unchanged else lambda _path, _stream: False):
                if unchanged:
                    unchanged.flush()  # results found so far are not delayed
                if ref:
                    self._wait_for_room()
                    self._found += 1
                    threads.submit(self._guard, self._screen, ref)
            if unchanged:
                unchanged.flush()
        self._is_found = True

    def _wait_for_room(self) -> None:
        self._room.acquire()
        if self.is_cancelled:
            raise Cancelled

    def _by_stamp(self, query: ResultQuery) -> ResultsByFileStamp | None:
        """Return an object that recognises unchanged files; None if the run reuses no results by stamp."""
        if self._ports.resume_options.verifies_content or not self._by_content:
            return None
        return ResultsByFileStamp(query, self.run_id, self._ports.packs, stamps=self._stamps, hand_over=self._hand_over)

    def _hand_over(self, reused: ReusedResults) -> None:
        self._going.wait()
        self._wait_for_room()
        self._found += len(reused.image_row_ids)
        self._outcomes.put(reused)

    def _screen(self, ref: ImageRef) -> None:
        self._going.wait()
        if self.is_cancelled:
            raise Cancelled
        known = self._by_content.outcomes(ref) if self._by_content else [None] * len(self._ports.packs)
        done = self._screened(ref, known)
        if len({outcome.facts.content_sha256 for outcome in done.outcomes} - {""}) > 1:  # the file changed
            done = self._screened(ref, [None] * len(known))
        self._outcomes.put(done)

    def _screened(self, ref: ImageRef, known: Sequence[Outcome | None]) -> _ScreenedImage:
        """Screen an image with the packs whose outcome is not known, and add the known outcomes.

        known  for each pack, the outcome of an earlier run, or None
        """
        wanted = [position for position, outcome in enumerate(known) if outcome is None]
        screened = iter(self._ports.screen(ref, wanted) if wanted else ())
        outcomes = copy_missing_facts([outcome or next(screened) for outcome in known])
        return _ScreenedImage(outcomes, frozenset(range(len(known))).difference(wanted))


# ---- assembly of a run


_AHEAD: Final = 1  # additional threads, so that the next image is ready when a worker is free


def _watch_of(paths: Sequence[Path]) -> FolderWatch:
    from fieldray.pipeline.watching import FolderWatch  # imported only for watched folders

    return FolderWatch(paths)


def make_batch(
    paths: Sequence[Path],
    setups: Sequence[PackSetup],
    *,
    engine: Engine,
    workers: WorkerPool,
    database: Path,
    publish: Publish,
    options: BatchOptions = BatchOptions(),  # noqa: B008 - it is frozen
) -> Batch:
    """Make the batch of a run over these absolute paths. The batch's method `start` begins the run.

    `setups` has one setup for each pack, whose model must be open in `engine`. The end of the run aborts all calls of
    `workers`. A run with the option `watches` ends when cancelled. Raises UsageProblem (watch_no_folder).
    """
    watch = _watch_of(paths) if options.watches_folders else None
    statistics, cancelled, noticed = InferenceStatistics(), threading.Event(), list[Reason]()
    screen = partial(
        screen_with_packs, workers=workers, engine=engine, observe=statistics.add, is_cancelled=cancelled.is_set
    )

    def release() -> None:
        cancelled.set()
        workers.abort_calls()

    search = partial(discover, list_members=workers.zip_members, is_own_report=is_own_report)
    ports = BatchPorts(
        spec=run_spec(paths, setups),
        packs=[BatchPack.from_setup(setup, database) for setup in setups],
        discover=partial(watch.new_images, search, wait=cancelled.wait)
        if watch
        else lambda is_known: search(paths, has_results_of_file=is_known, notify=noticed.append),
        search_problems=lambda: noticed,
        estimate_count=lambda is_cancelled: count_files(paths, is_cancelled=is_cancelled),
        hash_file=workers.hash_file,
        set_stamper=workers.set_stamper,
        screen=lambda ref, wanted: screen(ref, [setups[number] for number in wanted]),
        end_processes=release,
        keeps_previews=options.keeps_previews,
        resume_options=options.resume_options,
        watch=watch,
    )
    return Batch(
        ports,
        database=database,
        publish=publish,
        threads=workers.size + _AHEAD,
        as_new_run=options.as_new_run,
        statistics=statistics,
    )

"""Many images: found, screened and saved by threads.

    discovery thread --refs--> screening threads --outcomes--> batch thread (the only writer of the database)

At most a few images are under way, from being found to being saved, however many files there are. An outcome is
committed before it is published, so whatever was told to a person survives the program being killed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from fieldray.domain.finding import Failed, Outcome
from fieldray.domain.image import ImageRef
from fieldray.domain.run import Progress, Publish, Resuming, RunChanged, RunSpec, RunState
from fieldray.errors import Cancelled, FieldrayError, StorageProblem, unexpected
from fieldray.imaging.discover import IsKnown, count_files, discover
from fieldray.imaging.source import Stamps
from fieldray.pipeline.keeping import Bundle, Earlier, KeptRun, PackWork, Unchanged, open_store, outcomes_ready
from fieldray.pipeline.screen import Lane, screen_by_each
from fieldray.pipeline.statistics import Every, Pace, Statistics
from fieldray.pipeline.watching import Watch
from fieldray.reasons import Reason, reason
from fieldray.reports.outputs import is_own_report
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.workers.pool import PoolClosed, Workers

log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
_PROGRESS_EVERY_S: Final = 0.2
_SPEED_EVERY_S: Final = 0.5
_UNDER_WAY: Final = 6  # images for each thread: that wait for it, that it screens, that wait to be saved


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Work:
    """What a batch is told to do, as functions: it knows neither decoders nor engine.

    packs           those that go over the images, each with a run of its own in the store
    discover        gives every image once, lazily, but those in files that are known; None where there is no more for
                    the moment
    noticed         what the search met that concerns no single image; asked once it is over
    count           a quick estimate of how many images there are; gives up when the function passed returns True
    content_hash    SHA-256 (hex) of an image's bytes, and the stamp of its file; raises OSError or FieldrayError
    stamp_with      has the files stamped that are read from then on
    screen          an image's outcomes, of the packs with these numbers; raises Cancelled, or a FieldrayError that ends
                    the run
    keeps_previews  whether the store gets small previews of the images
    resuming        how results of earlier runs are taken over
    watch           what is known of watched folders: `discover` has no end of its own then
    release         ends what `screen` uses, at once, also while it is used; may be called twice
    """

    packs: Sequence[PackWork]
    discover: Callable[[IsKnown], Iterator[ImageRef | None]]
    count: Callable[[Callable[[], bool]], int]
    content_hash: Callable[[ImageRef], tuple[str, bytes]]
    stamp_with: Callable[[Stamps], None]
    screen: Callable[[ImageRef, Sequence[int]], Sequence[Outcome]]
    release: Callable[[], None]
    noticed: Callable[[], Sequence[Reason]] = tuple
    keeps_previews: bool = True
    resuming: Resuming = field(default_factory=Resuming)
    watch: Watch | None = None


@dataclass(frozen=True, eq=False, slots=True)
class _Done:
    """An image's outcomes by pack, and which of them were known."""

    outcomes: Sequence[Outcome]
    are_resumed: Sequence[bool]

    @property
    def doubtful(self) -> Outcome:
        """One that failed, if any did."""
        return next((outcome for outcome in self.outcomes if isinstance(outcome, Failed)), self.outcomes[0])


class Batch:
    """One run. `pause`, `resume` and `cancel` return at once and may be called from any thread.

    state   the one last published
    reason  why the run failed, if it did
    """

    def __init__(
        self,
        work: Work,
        *,
        database: Path,
        publish: Publish,
        threads: int,
        fresh: bool = False,
        statistics: Statistics | None = None,
    ) -> None:
        self._work = work
        self._database = database
        self._publish = publish
        self._threads = threads
        self._fresh = fresh
        self._statistics = statistics or Statistics()
        self._room = threading.Semaphore(_UNDER_WAY * threads)
        self._outcomes: queue.SimpleQueue[_Done | Bundle | None] = queue.SimpleQueue()  # None: no more will come
        self._going = threading.Event()
        self._going.set()
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.reason: Reason | None = None
        self._notes: list[tuple[Reason, ...]] = [() for _ in work.packs]
        self._found = 0
        self._is_complete = False
        self._estimate = 0
        self._is_found = False
        self._earlier: Earlier | None = None
        self._runs: tuple[KeptRun, ...] = ()
        self.state: RunState = "running"
        self._thread = threading.Thread(target=self._run, name="batch")

    @property
    def spec(self) -> RunSpec:
        """What the run was asked for, of the first pack."""
        return self.specs[0]

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """The same of all packs."""
        return tuple(pack.spec for pack in self._work.packs)

    @property
    def run_id(self) -> int:
        """The run's id in the store, 0 until the batch thread has opened it, and where the store is gone."""
        return self.run_ids[0] if self.run_ids else 0

    @property
    def run_ids(self) -> tuple[int, ...]:
        """Those of all packs."""
        return tuple(run.run_id for run in self._runs)

    @property
    def is_over(self) -> bool:
        """Whether its last event was published."""
        return self.state not in ("running", "paused")

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is being cancelled, by a person or by a problem."""
        return self._cancelled.is_set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def pause(self) -> None:
        """Finish the images under way and begin no other."""
        with self._lock:
            if not self.is_cancelled:
                self._going.clear()

    def resume(self) -> None:
        """Resume after a pause."""
        self._going.set()

    def cancel(self) -> None:
        """Stop now. What is committed stays; a later run of the same request resumes from there."""
        with self._lock:
            self._cancelled.set()
            self._going.set()
        self._room.release()  # whoever waits there or for outcomes is to notice
        self._outcomes.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of all threads; whether it came in time."""
        # Thread.join with a time-out must not be interrupted: before Python 3.13 a Ctrl-C inside it makes the thread
        # pass for ended (python/cpython issue 90882). An event has no such fault.
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
            self._note_doubts()
        except FieldrayError as problem:
            self._break_off(problem.reason)
        except Exception as error:
            log.exception("batch thread")
            self._break_off(unexpected(error))
        finally:
            self._work.release()
        ended = RunChanged(run_id=self.run_id, state=self._end_state, reason=self.reason)
        for run in self._runs[1:]:
            self._publish(replace(ended, run_id=run.run_id, notes=self._notes[run.number], pack=run.number))
        self._enter(self._end_state, *self._notes[0])

    def _note_doubts(self) -> None:
        """What the results say against the packs; the run is noted as finished by now, and stays so without it."""
        try:
            for run in self._runs if self._end_state == "finished" else ():
                self._notes[run.number] += tuple(run.pack.doubts(run.run_id))
        except Exception:
            log.warning("what the results say against the pack is not known", exc_info=True)

    @property
    def _end_state(self) -> RunState:
        if self.reason:
            return "failed"
        return "cancelled" if self.is_cancelled and not self._is_complete else "finished"

    def _screen_into(self, store: ResultStore) -> None:
        last_row, watches = store.last_row_id(), self._work.watch is not None
        takes_over = not self._fresh and (watches or any(map(store.has_results, self.specs)))
        run_ids = [store.open_run(spec, fresh=self._fresh) for spec in self.specs]
        keeps = self._work.keeps_previews
        self._runs = tuple(
            KeptRun(pack, run_id, number=number, last_row=last_row, keeps_previews=keeps, watches=watches)
            for number, (pack, run_id) in enumerate(zip(self._work.packs, run_ids, strict=True))
        )
        store.link(run_ids)
        self._stamps = Stamps(store.stamp_key())
        self._work.stamp_with(self._stamps)
        with ResultQuery(self._database) as query:
            self._earlier = Earlier(work=self._work, last_row=last_row, query=query) if takes_over else None
            self._with_threads(lambda: self._collect(store))
        for run in self._runs:
            run.require_kept(store)
        self._end(store)

    def _break_off(self, why: Reason) -> None:
        """End the run for a reason that came from the store or this thread, and note it where that can be done."""
        self._fail(why)
        if why.code in ("store_gone", "results_lost"):
            self._runs = ()  # what has this number in the store now is another run
        if self._runs:
            try:
                with ResultStore(self._database) as store:
                    self._end(store)
            except StorageProblem as problem:
                log.error("the end of the run is not noted: %s", problem.reason.code)

    def _with_threads(self, collect: Callable[[], None]) -> None:
        """Run `collect` while the other threads work; all of them have ended afterwards."""
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
                    self._work.release()

    def _collect(self, store: ResultStore) -> None:
        """Save and publish every outcome as it comes."""
        points = {spec.pack_name: ", ".join({point.name: 0 for point in spec.operating_points}) for spec in self.specs}
        said = ", ".join(f"{pack}: {names or '–'}" for pack, names in points.items())
        notes = [reason("points_differ", packs=said)] if len(set(points.values())) > 1 else []
        self._enter("running", *([reason("run_elsewhere", process=store.rival)] if store.rival else []), *notes)
        done, pace, watch = 0, Pace(clock=time.monotonic), self._work.watch
        pace.restart(0)
        progress, speed = Every(_PROGRESS_EVERY_S), Every(_SPEED_EVERY_S)
        for item in self._arrivals():
            if isinstance(item, _Done):
                if watch is None or watch.keeps(item.doubtful, is_new=not all(item.are_resumed)):
                    saved = list(zip(self._runs, item.outcomes, item.are_resumed, strict=True))
                    # The first pack's last: where it is listed, what the others say is there.
                    events = [run.save(store, outcome, is_resumed=known) for run, outcome, known in reversed(saved)]
                    for event in reversed(events):
                        self._publish(event)
                    done += 1
            elif item:
                self._take_over(store, item)
                done += len(item[0])
            self._follow_pause(store, pace, done)
            if progress.is_due():
                pace.note(done)
                self._publish(self._progress(done, pace))
                if watch and (news := watch.news()):
                    self._enter(self.state, news)
            if speed.is_due():
                self._publish(self._statistics.speed())
        pace.note(done)
        self._publish(self._progress(done, pace))
        self._publish(self._statistics.speed())

    def _arrivals(self) -> Iterator[_Done | Bundle | None]:
        """What is to be saved, as it comes; None where nothing came for a moment. Ends with the last one."""
        while not self.is_cancelled:
            try:
                item = self._outcomes.get(timeout=_TICK_S)
            except queue.Empty:
                yield None
                continue
            if item is None:
                return
            self._room.release()
            yield item

    def _take_over(self, store: ResultStore, bundle: Bundle) -> None:
        for run, rows in reversed(list(zip(self._runs, bundle, strict=True))):
            taken = run.take_over(store, rows)
            events = outcomes_ready(store, taken) if self._work.resuming.reports_each else [taken]
            for event in events:
                self._publish(event)

    def _follow_pause(self, store: ResultStore, pace: Pace, done: int) -> None:
        wanted: RunState = "running" if self._going.is_set() else "paused"
        if wanted != self.state:
            for run in self._runs:
                store.set_state(run.run_id, wanted)
            pace.restart(done)
            self._enter(wanted)

    def _progress(self, done: int, pace: Pace) -> Progress:
        total = self._found if self._is_found else max(self._found, self._estimate)
        total = done + self._work.watch.waiting if self._work.watch else total
        return Progress(
            done=done,
            total=total,
            total_is_final=self._is_found,
            images_per_s=pace.images_per_s(),
            remaining_s=pace.remaining_s(max(0, total - done)),
        )

    def _end(self, store: ResultStore) -> None:
        with self._lock:
            self._is_complete = self._end_state == "finished"  # a cancel that comes now finds nothing to stop
        if self._is_complete:
            self._notes[0] = tuple(self._work.noticed())
        elif self._work.watch:
            self._notes[0] = (self._work.watch.ended(),)
        for run in self._runs:
            self._notes[run.number] += run.end(store, self._end_state, self.reason)

    def _enter(self, state: RunState, *notes: Reason) -> None:
        self.state, beside = state, self.run_ids[1:]
        self._publish(RunChanged(run_id=self.run_id, state=state, reason=self.reason, notes=notes, beside=beside))

    def _fail(self, why: Reason) -> None:
        """End the run for a reason; the first one counts."""
        with self._lock:
            self.reason = self.reason or why
        self.cancel()

    # ---- the other threads

    def _guard(self, body: Callable[..., None], *values: object) -> None:
        """An error in a thread ends the run cleanly, never silently."""
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
            if self.is_cancelled:  # what it was using was closed
                log.debug("thread of a run that was cancelled", exc_info=True)
                return
            log.exception("thread of the batch")
            self._fail(unexpected(error))

    def _count(self) -> None:
        """An estimate for the progress bar alone: the run does without one."""
        try:
            self._estimate = self._work.count(lambda: self.is_cancelled or self._is_found)
        except Exception:
            log.warning("the images could not be counted in advance", exc_info=True)

    def _discover(self) -> None:
        """Find the images, and have each one screened; the threads that do it have ended afterwards."""
        try:
            with ThreadPoolExecutor(self._threads, thread_name_prefix="screening") as threads:
                self._guard(self._search, threads)
        finally:
            self._outcomes.put(None)

    def _search(self, threads: ThreadPoolExecutor) -> None:
        with ResultQuery(self._database) as earlier:
            unchanged = self._unchanged(earlier)
            for ref in self._work.discover(unchanged.has if unchanged else lambda _path, _stream: False):
                if unchanged:
                    unchanged.flush()  # they wait for nothing
                if ref:
                    self._wait_for_room()
                    threads.submit(self._guard, self._screen, ref)
                    self._found += 1
            if unchanged:
                unchanged.flush()
        self._is_found = True

    def _wait_for_room(self) -> None:
        self._room.acquire()
        if self.is_cancelled:
            raise Cancelled

    def _unchanged(self, earlier: ResultQuery) -> Unchanged | None:
        """What tells files that have not changed; None where none is taken over by that."""
        if self._work.resuming.verifies or not self._earlier:
            return None
        runs = [(run.run_id, run.pack.spec) for run in self._runs]
        return Unchanged(earlier, runs, stamps=self._stamps, hand_over=self._hand_over)

    def _hand_over(self, bundle: Bundle) -> None:
        self._going.wait()
        self._wait_for_room()
        self._found += len(bundle[0])
        self._outcomes.put(bundle)

    def _screen(self, ref: ImageRef) -> None:
        self._going.wait()
        if self.is_cancelled:
            raise Cancelled
        known = self._earlier.outcomes(ref) if self._earlier else [None] * len(self._work.packs)
        wanted = [number for number, outcome in enumerate(known) if outcome is None]
        screened = iter(self._work.screen(ref, wanted) if wanted else ())
        outcomes = [outcome or next(screened) for outcome in known]
        self._outcomes.put(_Done(outcomes, [outcome is not None for outcome in known]))


# ---- a run put together: what is found, read, run and judged


_AHEAD: Final = 1  # so many more images are under way than are looked at: the next one waits at the door


def assemble(
    paths: Sequence[Path],
    lanes: Sequence[Lane],
    *,
    workers: Workers,
    database: Path,
    publish: Publish,
    fresh: bool,
    keeps_previews: bool = True,
    resuming: Resuming = Resuming(),  # noqa: B008 - it is frozen
    watches: bool = False,
) -> Batch:
    """The batch, not started; at its end it gives up what `workers` still do. `paths` are absolute.

    lanes  of the packs that go over the images together, one most often

    One that `watches` ends when it is cancelled; raises UsageProblem (watch_no_folder).
    """
    watch = Watch(paths) if watches else None
    statistics, cancelled, noticed = Statistics(), threading.Event(), list[Reason]()
    screen = partial(screen_by_each, workers=workers, observe=statistics.add, is_cancelled=cancelled.is_set)

    def release() -> None:
        cancelled.set()
        workers.give_up()

    search = partial(discover, members=workers.members, is_own_report=is_own_report)
    work = Work(
        packs=[PackWork.of(paths, lane.assessment, database) for lane in lanes],
        discover=partial(watch.arrivals, search, rest=cancelled.wait)
        if watch
        else lambda is_known: search(paths, is_known=is_known, notify=noticed.append),
        noticed=lambda: noticed,
        count=lambda gives_up: count_files(paths, gives_up=gives_up),
        content_hash=workers.content_hash,
        stamp_with=workers.stamp_with,
        screen=lambda ref, wanted: screen(ref, [lanes[number] for number in wanted]),
        release=release,
        keeps_previews=keeps_previews,
        resuming=resuming,
        watch=watch,
    )
    return Batch(
        work, database=database, publish=publish, threads=workers.size + _AHEAD, fresh=fresh, statistics=statistics
    )

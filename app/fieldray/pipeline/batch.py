"""Many images: found, screened and saved by threads with bounded queues between them.

    discovery thread --refs--> worker threads --outcomes--> batch thread (the only writer of the database)

At most a few images are under way however many files there are. An outcome is committed before it is published, so
whatever was told to a person survives the program being killed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fieldray.domain.events import OutcomeReady, Progress, Publish, ResultsTakenOver, RunChanged, RunState
from fieldray.domain.finding import ASKED_FOR, Outcome, ResultKind, notes_of, without_preview
from fieldray.domain.run import Resuming, RunSpec
from fieldray.domain.study import ImageHeader, ImageRef
from fieldray.errors import Cancelled, FieldrayError, StorageProblem, unexpected
from fieldray.imaging.discover import IsKnown
from fieldray.imaging.source import Stamps
from fieldray.pipeline.channel import Channel, ChannelEnded
from fieldray.pipeline.keeping import open_store, require_kept
from fieldray.pipeline.resuming import Bundle, Earlier, Unchanged
from fieldray.pipeline.statistics import Every, Pace, Statistics
from fieldray.pipeline.watching import Watch
from fieldray.reasons import Reason, reason
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.workers.pool import PoolClosed

log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
_PROGRESS_EVERY_S: Final = 0.2
_SPEED_EVERY_S: Final = 0.5
_UNLIKE: Final = "unlike_measured"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Work:
    """What a batch is told to do, as functions: it knows neither decoders nor engine.

    Attributes
    ----------
    discover
        Gives every image once, lazily, but those in files that are known; None where there is no more for the moment.
    noticed
        What the search met that concerns no single image; asked once it is over.
    doubts
        What the results of a run with this number, all of them stored, say against its pack.
    count
        A quick estimate of how many images there are; gives up when the function passed returns True.
    content_hash
        SHA-256 (hex) of an image's bytes, and the stamp of its file; raises OSError or FieldrayError.
    stamp_with
        Has the files stamped that are read from then on.
    check_header
        Why an image with this header is refused, None if it is not.
    screen
        An image's outcome; raises Cancelled, or a FieldrayError that ends the run.
    keeps_previews
        Whether the store gets small previews of the images.
    resuming
        How results of earlier runs are taken over.
    watch
        What is known of watched folders: `discover` has no end of its own then.
    release
        Ends what `screen` uses, at once, also while it is used; may be called twice.
    """

    spec: RunSpec
    discover: Callable[[IsKnown], Iterator[ImageRef | None]]
    count: Callable[[Callable[[], bool]], int]
    content_hash: Callable[[ImageRef], tuple[str, bytes]]
    stamp_with: Callable[[Stamps], None]
    check_header: Callable[[ImageHeader], Reason | None]
    screen: Callable[[ImageRef], Outcome]
    release: Callable[[], None]
    noticed: Callable[[], Sequence[Reason]] = tuple
    doubts: Callable[[int], Sequence[Reason]] = lambda _run_id: ()
    keeps_previews: bool = True
    resuming: Resuming = field(default_factory=Resuming)
    watch: Watch | None = None


@dataclass(frozen=True, eq=False, slots=True)
class _Done:
    outcome: Outcome
    is_resumed: bool


class Batch:
    """One run. `pause`, `resume` and `cancel` return at once and may be called from any thread."""

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
        self._refs: Channel[ImageRef] = Channel(4 * threads)
        self._outcomes: Channel[_Done | Bundle] = Channel(2 * threads, writers=threads + 1)
        self._going = threading.Event()
        self._going.set()
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._problem: Reason | None = None
        self._notes: tuple[Reason, ...] = ()
        self._found = 0
        self._is_complete = False
        self._estimate = 0
        self._is_found = False
        self._earlier: Earlier | None = None
        self._last_row = 0
        self._saved = 0
        self._unlike = 0
        self._asked_for = 0
        self._by_sample = 0
        self._by_content = 0
        self._run_id = 0
        self._state: RunState = "running"
        self._thread = threading.Thread(target=self._run, name="batch")

    @property
    def spec(self) -> RunSpec:
        """What the run was asked for."""
        return self._work.spec

    @property
    def run_id(self) -> int:
        """The run's id in the store, 0 until the batch thread has opened it, and where the store is gone."""
        return self._run_id

    @property
    def state(self) -> RunState:
        """The state last published."""
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether its last event was published."""
        return self._state not in ("running", "paused")

    @property
    def reason(self) -> Reason | None:
        """Why the run failed, if it did."""
        return self._problem

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
        self._refs.cancel()
        self._outcomes.cancel()

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
            if self._end_state == "finished":
                self._notes += tuple(self._work.doubts(self._run_id))
        except FieldrayError as problem:
            self._break_off(problem.reason)
        except Exception as error:
            log.exception("batch thread")
            self._break_off(unexpected(error))
        finally:
            self._work.release()
        self._enter(self._end_state, *self._notes)

    @property
    def _end_state(self) -> RunState:
        if self._problem:
            return "failed"
        return "cancelled" if self.is_cancelled and not self._is_complete else "finished"

    def _screen_into(self, store: ResultStore) -> None:
        self._last_row = store.last_row_id()
        if not self._fresh and (self._work.watch or store.has_results(self._work.spec)):
            self._earlier = Earlier(work=self._work, last_row=self._last_row)
        self._run_id = store.open_run(self._work.spec, fresh=self._fresh)
        self._stamps = Stamps(store.stamp_key())
        self._work.stamp_with(self._stamps)
        self._with_threads(lambda: self._collect(store))
        require_kept(store, self._run_id, saved=self._saved)
        self._end(store)

    def _break_off(self, why: Reason) -> None:
        """End the run for a reason that came from the store or this thread, and note it where that can be done."""
        self._fail(why)
        if why.code in ("store_gone", "results_lost"):
            self._run_id = 0  # what has this number in the store now is another run
        if self._run_id:
            try:
                with ResultStore(self._database) as store:
                    self._end(store)
            except StorageProblem as problem:
                log.error("the end of the run is not noted: %s", problem.reason.code)

    def _with_threads(self, collect: Callable[[], None]) -> None:
        """Run `collect` while the other threads work; all of them have ended afterwards."""
        guarded = [(self._discover, "discovery"), (self._count, "counting")]
        guarded += [(self._work_off, f"screening-{number}") for number in range(self._threads)]
        threads = [threading.Thread(target=self._guard, args=(body,), name=name) for body, name in guarded]
        started: list[threading.Thread] = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            collect()
        except BaseException:
            self.cancel()
            raise
        finally:
            if self.is_cancelled:
                self._work.release()
            for thread in started:
                thread.join()

    def _collect(self, store: ResultStore) -> None:
        """Save and publish every outcome as it comes."""
        self._enter("running", *([reason("run_elsewhere", process=store.rival)] if store.rival else []))
        done, pace, watch = 0, Pace(clock=time.monotonic), self._work.watch
        pace.restart(0)
        progress, speed = Every(_PROGRESS_EVERY_S), Every(_SPEED_EVERY_S)
        while True:
            try:
                item = self._outcomes.get(timeout_s=_TICK_S)
            except ChannelEnded:
                break
            if isinstance(item, Bundle):
                self._take_over(store, item)
                done += len(item)
            elif item and (watch is None or watch.keeps(item.outcome, is_new=not item.is_resumed)):
                self._save(store, item)
                done += 1
            self._follow_pause(store, pace, done)
            if progress.is_due():
                pace.note(done)
                self._publish(self._progress(done, pace))
                if watch and (news := watch.news()):
                    self._enter(self._state, news)
            if speed.is_due():
                self._publish(self._statistics.speed())
        pace.note(done)
        self._publish(self._progress(done, pace))
        self._publish(self._statistics.speed())

    def _save(self, store: ResultStore, item: _Done) -> None:
        row_id = store.save(
            self._run_id,
            item.outcome,
            spec=self._work.spec,
            is_resumed=item.is_resumed,
            keeps_preview=self._work.keeps_previews,
        )
        if self._work.watch and item.is_resumed:
            store.leave_moved(self._run_id, row_id)
        outcome = without_preview(item.outcome)
        codes = tuple(note.code for note in notes_of(outcome))
        self._note([row_id], [ResultKind(category=outcome.category, codes=codes, number=1)])
        self._by_content += item.is_resumed
        self._publish(OutcomeReady(run_id=self._run_id, row_id=row_id, outcome=outcome, is_resumed=item.is_resumed))

    def _take_over(self, store: ResultStore, bundle: Bundle) -> None:
        rows = store.take_over(self._run_id, own=bundle.own, others=bundle.others)
        kinds = store.kinds(rows)
        self._note(rows, kinds)
        self._by_sample += len(rows)
        if not self._work.resuming.tells_each:
            self._publish(ResultsTakenOver(run_id=self._run_id, row_ids=rows, kinds=kinds))
            return
        for found in store.results(rows, looks_inside=False):
            ready = OutcomeReady(run_id=self._run_id, row_id=found.row_id, outcome=found.outcome)
            self._publish(replace(ready, is_resumed=True, is_sampled=True))

    def _note(self, rows: Sequence[int], kinds: Iterable[ResultKind]) -> None:
        new = [row for row in rows if row > self._last_row]  # one that was there before keeps its number
        self._last_row, self._saved = max(new, default=self._last_row), self._saved + len(new)
        for kind in kinds:
            self._unlike += kind.number * (_UNLIKE in kind.codes)
            self._asked_for += kind.number * (not ASKED_FOR.isdisjoint(kind.codes))

    def _follow_pause(self, store: ResultStore, pace: Pace, done: int) -> None:
        wanted: RunState = "running" if self._going.is_set() else "paused"
        if wanted != self._state:
            store.set_state(self._run_id, wanted)
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
        if not self._is_complete:
            self._notes = (self._work.watch.ended(),) if self._work.watch else ()
            store.set_state(self._run_id, self._end_state, reason=self._problem)
            return
        self._notes = tuple(self._work.noticed())
        if count := store.finish(self._run_id):
            self._notes += (reason("not_present", count=count),)
        if count := self._by_sample + self._by_content:
            self._notes += (reason("taken_over", count=count, sampled=self._by_sample, whole=self._by_content),)
        if self._unlike:
            self._notes += (reason("unlike_images", count=self._unlike),)
        if self._asked_for:
            self._notes += (reason("asked_for_images", count=self._asked_for),)

    def _enter(self, state: RunState, *notes: Reason) -> None:
        self._state = state
        self._publish(RunChanged(run_id=self._run_id, state=state, reason=self._problem, notes=notes))

    def _fail(self, why: Reason) -> None:
        """End the run for a reason; the first one counts."""
        with self._lock:
            self._problem = self._problem or why
        self.cancel()

    # ---- the other threads

    def _guard(self, body: Callable[[], None]) -> None:
        """An error in a thread ends the run cleanly, never silently."""
        try:
            body()
        except (Cancelled, ChannelEnded):
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
        with ResultQuery(self._database) as earlier:
            unchanged = self._unchanged(earlier)
            for ref in self._work.discover(unchanged.has if unchanged else lambda _path, _stream: False):
                if unchanged:
                    unchanged.flush()  # they wait for nothing
                if ref:
                    self._refs.put(ref)
                    self._found += 1
            if unchanged:
                unchanged.flush()
        self._is_found = True
        self._outcomes.finish()
        self._refs.finish()

    def _unchanged(self, earlier: ResultQuery) -> Unchanged | None:
        """What tells files that have not changed; None where none is taken over by that."""
        if self._work.resuming.verifies or not self._earlier:
            return None
        return Unchanged(earlier, self._run_id, self._work.spec, stamps=self._stamps, hand_over=self._hand_over)

    def _hand_over(self, bundle: Bundle) -> None:
        self._going.wait()
        self._found += len(bundle)
        self._outcomes.put(bundle)

    def _work_off(self) -> None:
        with ResultQuery(self._database) as earlier:
            try:
                while ref := self._refs.get():
                    self._going.wait()
                    if self.is_cancelled:
                        raise Cancelled
                    self._outcomes.put(self._outcome(ref, earlier))
            except ChannelEnded:
                self._outcomes.finish()

    def _outcome(self, ref: ImageRef, earlier: ResultQuery) -> _Done:
        known = self._earlier.outcome(ref, earlier) if self._earlier else None
        return _Done(known, True) if known else _Done(self._work.screen(ref), False)

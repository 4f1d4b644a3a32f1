"""Batches of real size with one accident after another, and what came of it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from faults.fault_events import Accidents
from faults.world import Clinic
from fieldray.domain.run import Publish
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.session import Session
from waiting import left_behind, running

_WARM_UP_RUNS: Final = 3
BACK_LIMIT_S: Final = 0.3
PLUG_LIMIT_S: Final = 2.0
GROWTH_LIMIT_MB: Final = 16.0

Say = Callable[[str], None]


class Silence:
    """A front end that hears and shows nothing; a window stands in its place (window.py)."""

    def __init__(self, run: FaultRun) -> None:
        self._run = run
        self._session = run.open(lambda event: None)

    def begin(self, session: Session, paths: Sequence[Path]) -> Batch:
        """Begin a fresh run."""
        return session.start(paths, fresh=True)

    def drive_changed(self, drive: Path, *, is_in: bool) -> None:
        """The model drive was pulled out, or put back: use its pack."""
        if is_in:
            self._session.use_pack(self._run.clinic.load_pack())


class FaultRun:
    """`events` fault_events over batches of `images` images: `open` a session, `go`, read `figures`."""

    def __init__(
        self,
        folder: Path,
        library: Path,
        *,
        events: int,
        images: int,
        seed: int,
        say: Say = lambda text: None,
        is_short: bool = False,
    ) -> None:
        self._is_short = is_short
        self._events = events
        self._seed = seed
        self._say = say
        self._before = running()
        self.clinic = Clinic(folder, library, images=images, seed=seed)
        self._session: Session | None = None
        self._memory_mb: list[float] = []
        self.figures: dict[str, Any] = {}

    def open(self, publish: Publish) -> Session:
        """The session that all goes through."""
        self._session = self.clinic.session(publish)
        return self._session

    def go(self, front_end: Silence) -> dict[str, Any]:
        """Run it to the end and return the figures."""
        assert self._session
        began_s, session = time.monotonic(), self._session
        options = {"drive_changed": front_end.drive_changed, "is_short": self._is_short}
        fault_events = Accidents(self.clinic, session, seed=self._seed, **options)
        try:
            front_end.drive_changed(self.clinic.drive, is_in=True)
            self._run_batch(front_end, fault_events)  # without fault_events: the reference
            self._with_accidents(front_end, fault_events)
            fault_events.mend()
            self._run_batch(front_end, fault_events)
        finally:
            session.close()
            self.clinic.close()
        self.figures = self._summary(fault_events, time.monotonic() - began_s)
        return self.figures

    def _with_accidents(self, front_end: Silence, fault_events: Accidents) -> None:
        over = threading.Event()

        def let_them_happen() -> None:
            try:
                for number in range(self._events):
                    fault_events.happen()
                    if number % 20 == 19:
                        self._say(f"{number + 1} fault_events, {self.clinic.verdicts.images} images")
            except Exception as error:
                fault_events.problems.append(f"{type(error).__name__}: {error}")
                raise
            finally:
                over.set()

        thread = threading.Thread(target=let_them_happen, name="fault_events")
        thread.start()
        while not over.is_set():
            self._run_batch(front_end, fault_events)
            over.wait(0.05)
        thread.join()

    def _run_batch(self, front_end: Silence, fault_events: Accidents) -> None:
        assert self._session
        with fault_events.between_runs:
            batch = front_end.begin(self._session, [self.clinic.images[0].parent])
            batch.join()
            self.clinic.judge(self._session, batch)
        self._memory_mb.append(psutil.Process().memory_info().rss / 2**20)

    def _summary(self, fault_events: Accidents, duration_s: float) -> dict[str, Any]:
        verdicts = self.clinic.verdicts
        return {
            "seed": self._seed,
            "duration_s": round(duration_s, 1),
            "events": sum(fault_events.counts.values()),
            "events_by_kind": dict(fault_events.counts.most_common()),
            **vars(verdicts),
            "remarks": verdicts.remarks[:20],
            "problems": fault_events.problems[:20],
            "second_instances": dict(fault_events.second_instances),
            **{name: spread(times_s) for name, times_s in fault_events.times_s.items()},
            "memory_mb": memory(self._memory_mb),
            "left_behind": left_behind({*self._before, threading.current_thread()}),
        }


def spread(times_s: Sequence[float]) -> dict[str, float]:
    """Number, median, 95th percentile and largest."""
    if not times_s:
        return {"n": 0}
    ordered = sorted(times_s)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    values = {"p50": statistics.median(ordered), "p95": p95, "max": ordered[-1]}
    return {"n": len(ordered), **{name: round(value, 4) for name, value in values.items()}}


def memory(after_runs_mb: Sequence[float]) -> dict[str, float]:
    """Of this process after each batch: medians of the first and last third once warm, and the growth between them."""
    warm = after_runs_mb[_WARM_UP_RUNS:]
    third = max(1, len(warm) // 3)
    if len(warm) < 2:
        return {"runs": len(after_runs_mb)}
    first, last = statistics.median(warm[:third]), statistics.median(warm[-third:])
    return {
        "runs": len(after_runs_mb),
        "first": round(first, 1),
        "last": round(last, 1),
        "growth": round(last - first, 1),
    }


def faults(figures: dict[str, Any]) -> list[str]:
    """What must not be on any machine; empty when all is well."""
    zero = ("images_lost", "images_done_twice", "images_not_screened", "wrong_backends", "wrong_scores")
    found = [f"{name}: {figures[name]}" for name in (*zero, "runs_not_finished") if figures[name]]
    return found + [f"{name}: {figures[name]}" for name in ("problems", "left_behind") if figures[name]]


def shortcomings(figures: dict[str, Any]) -> list[str]:
    """The faults, and what is slower or larger than promised."""
    found = faults(figures)
    limits = (
        ("unplug_to_cpu_beyond_deadline_s", "max", BACK_LIMIT_S),
        ("plug_to_edgetpu_s", "p95", PLUG_LIMIT_S),
        ("memory_mb", "growth", GROWTH_LIMIT_MB),
    )
    for name, key, limit in limits:
        if figures[name].get(key, 0) > limit:
            found.append(f"{name}: {figures[name]}")
    return found

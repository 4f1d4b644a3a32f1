"""The fault run: batches of real size during random accidents, and figures about lost or wrong results.

Accidents are unplugging an Edge TPU or a drive, device errors, and killed processes. Each has a method.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

from faults.world import EDGETPU_TIMEOUT_S, Clinic
from fieldray.domain.run import Publish
from fieldray.errors import PackProblem
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.session import Session
from waiting import left_behind, running

_WARM_UP_RUNS: Final = 100  # caches of the window and the libraries are full only after a few dozen batches
BACK_LIMIT_S: Final = 0.3
PLUG_LIMIT_S: Final = 2.0
GROWTH_LIMIT_MB: Final = 16.0

Say = Callable[[str], None]
_OPEN_MS: Final = 1000
_PATIENCE_S: Final = 6.0

Choice = TypeVar("Choice")


class Accidents:
    """Causes random accidents in its own thread, while another thread runs batches.

    The other thread holds the lock `between_runs` during a batch.

    drive_changed  called with the model drive and `is_in` when it is pulled out or put back
    is_short       leave out accidents that take seconds

    `times_s` has the measured times: from unplugging to the next result of the CPU, minus the deadline of an Edge TPU
    that hung; and from plugging to the first result of an Edge TPU that takes a second to open.
    """

    def __init__(
        self,
        clinic: Clinic,
        session: Session,
        *,
        seed: int,
        drive_changed: Callable[..., None],
        is_short: bool = False,
    ) -> None:
        self._drive_changed = drive_changed
        self._is_short = is_short
        self._clinic = clinic
        self._edgetpu = clinic.edgetpu
        self._session = session
        self._random = random.Random(seed)
        self.between_runs: Final = threading.Lock()
        self._is_in = False
        self._is_drive_in = True
        self._policy = "accelerator"
        self.counts: Final[Counter[str]] = Counter()
        self.second_instances: Final[Counter[str]] = Counter()
        self.times_s: Final[dict[str, list[float]]] = {"unplug_to_cpu_beyond_deadline_s": [], "plug_to_edgetpu_s": []}
        self.problems: Final[list[str]] = []
        self._kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "plug": (10, self._plug),
            "plug an Edge TPU without firmware": (4, self._plug_uninitialised),
            "plug an Edge TPU that takes a second": (6, self._plug_measured),
            "unplug while idle": (5, self._unplug_idle),
            "unplug while opening": (8, self._unplug_opening),
            "unplug in the middle of an image": (16, self._unplug_in_image),
            "unplug while switching": (8, self._unplug_switching),
            "the Edge TPU reports an error": (7, lambda: self._misbehave("fail", 0.3)),
            "the Edge TPU hangs": (4, lambda: self._misbehave("hang", EDGETPU_TIMEOUT_S + 0.3)),
            "the Edge TPU's library aborts": (7, lambda: self._misbehave("abort", 0.3)),
            "the Edge TPU opens slowly": (4, self._open_slowly),
            "drive pulled out and put back": (6, self._pull_drive),
            "Edge TPU and drive at once": (4, self._pull_both),
            "worker killed": (8, self._kill_worker),
            "second instance started": (1, self._start_second),
            "devices switched by hand": (4, self._switch_devices),
        }
        if is_short:
            for slow in (
                "plug an Edge TPU that takes a second",
                "second instance started",
                "the Edge TPU opens slowly",
            ):
                del self._kinds[slow]
        # A short run begins with each kind once. A long run has every kind by chance.
        self._first: Final = self._random.sample(list(self._kinds), len(self._kinds)) if is_short else []

    def happen(self) -> None:
        """Cause one accident and wait. A short run has each kind once first; then kinds are drawn by their weights."""
        names = self._first or self._random.choices(list(self._kinds), [weight for weight, _ in self._kinds.values()])
        name = names.pop()
        self.counts[name] += 1
        self._kinds[name][1]()
        self._rest(0.05, 0.2 if self._is_short else 0.5)

    def mend(self) -> None:
        """Undo all accidents."""
        self._put_drive_back()
        self._choose("auto", "accelerator")
        self._edgetpu.heal()
        self._take_out()

    # ---- the Edge TPU

    def _plug(self) -> None:
        self._take_out()
        self._put_in()

    def _plug_uninitialised(self) -> None:
        self._take_out()
        self._edgetpu.order(firmware_ms=300)
        self._put_in("uninitialised")
        self._rest(0.2, 0.5)
        self._edgetpu.plug("ready")  # with its firmware loaded, the same Edge TPU has another USB identity

    def _plug_measured(self) -> None:
        self._take_out()
        self._choose("auto", "accelerator")
        time.sleep(4.0)  # else earlier changes of the USB tree delay the program's watch
        self._edgetpu.order(open_ms=_OPEN_MS)
        is_flowing = self._clinic.record.is_flowing()
        began_s, run = time.monotonic(), self._clinic.record.run
        self._put_in()
        first = self._clinic.record.next_of("edgetpu", after_s=began_s, timeout_s=_PATIENCE_S)
        self._edgetpu.order(open_ms=0)
        if first and is_flowing and run == self._clinic.record.run:  # between two batches no device is in use
            self.times_s["plug_to_edgetpu_s"].append(first - began_s)

    def _unplug_idle(self) -> None:
        self._be_in_use()
        with self.between_runs:
            self._take_out()

    def _unplug_opening(self) -> None:
        self._take_out()
        self._edgetpu.order(open_ms=500, pull=self._one_of("abort", "fail"))
        self._put_in()
        self._rest(0.1, 1.0)
        self._take_out()
        self._edgetpu.heal()

    def _unplug_in_image(self) -> None:
        how = self._one_of("abort", "abort", "fail", "hang")
        self._edgetpu.order(invoke_ms=self._one_of(5, 20, 60), pull=how)
        was_in_use = self._be_in_use()
        self._rest(0.0, 0.2)
        began_s, run = time.monotonic(), self._clinic.record.run
        # no worker may be left after a kill, or at the end of a run
        is_comparable = self._clinic.backends.get("cpu") == "ready" and self._clinic.record.is_flowing()
        self._take_out()
        if was_in_use and is_comparable and self._policy == "accelerator":
            answer = self._clinic.record.next_of("cpu", after_s=began_s, timeout_s=_PATIENCE_S)
            deadline_s = EDGETPU_TIMEOUT_S if how == "hang" else 0.0
            if answer and run == self._clinic.record.run:
                back_s = max(0.0, answer - began_s - deadline_s)
                self.times_s["unplug_to_cpu_beyond_deadline_s"].append(back_s)
        self._edgetpu.heal()

    def _unplug_switching(self) -> None:
        self._take_out()
        began_s = time.monotonic()
        self._put_in()
        self._clinic.record.next_of("edgetpu", after_s=began_s, timeout_s=2.0)
        self._take_out()

    def _misbehave(self, fate: str, how_long_s: float) -> None:
        self._be_in_use()
        self._edgetpu.order(invoke=fate)
        time.sleep(how_long_s)
        self._edgetpu.heal()

    def _open_slowly(self) -> None:
        self._take_out()
        self._edgetpu.order(open_ms=self._one_of(300, 900, 1500))
        self._put_in()
        self._rest(0.3, 1.5)
        self._edgetpu.heal()

    # ---- the rest

    def _pull_drive(self) -> None:
        self._take_drive()
        self._rest(0.1, 0.5)
        self._put_drive_back()

    def _pull_both(self) -> None:
        self._be_in_use()
        self._take_drive()
        self._take_out()
        self._rest(0.1, 0.4)
        self._put_drive_back()
        self._put_in()

    def _kill_worker(self) -> None:
        pids = self._clinic.worker_pids()
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(pids), signal.SIGKILL)

    def _start_second(self) -> None:
        done = self._clinic.second_instance()
        if done.code != 0:
            self.problems.append(f"second instance: {done.code} {done.out[-300:]} {done.err[-300:]}")
        backends = {word for word in ("cpu", "edgetpu") if f'"backend": "{word}"' in done.out}
        self.second_instances["+".join(sorted(backends)) or "none"] += 1

    def _switch_devices(self) -> None:
        policy = self._one_of("both", "fastest", "accelerator")
        self._choose(self._one_of("cpu", "auto"), policy)
        self._rest(0.2, 1.0)
        self._choose("auto", self._one_of(policy, "accelerator"))

    # ---- hands

    def _put_in(self, state: str = "ready") -> None:
        self._edgetpu.plug(state)
        self._is_in = True

    def _take_out(self) -> None:
        if self._is_in:
            self._edgetpu.unplug()
            self._is_in = False

    def _be_in_use(self) -> bool:
        """Return whether the Edge TPU gives results, after a wait if needed."""
        began_s = time.monotonic()
        if not self._is_in:
            self._put_in()
        return self._clinic.record.next_of("edgetpu", after_s=began_s, timeout_s=2.5) is not None

    def _take_drive(self) -> None:
        if self._is_drive_in:
            self._clinic.drive.rename(self._clinic.drive.with_name("pulled"))
            self._is_drive_in = False
            self._drive_changed(self._clinic.drive, is_in=False)
            try:
                self._clinic.load_pack()
                self.problems.append("a pack was loaded from a drive that is out")
            except PackProblem:
                pass

    def _put_drive_back(self) -> None:
        if not self._is_drive_in:
            self._clinic.drive.with_name("pulled").rename(self._clinic.drive)
            self._is_drive_in = True
            self._drive_changed(self._clinic.drive, is_in=True)

    def _choose(self, device: str, policy: str) -> None:
        self._clinic.settings.set("device", device)
        self._clinic.settings.set("policy", policy)
        self._policy = policy
        self._session.choose_devices()

    def _rest(self, min_duration_s: float, most_s: float) -> None:
        time.sleep(self._random.uniform(min_duration_s, most_s))

    def _one_of(self, *choices: Choice) -> Choice:
        return self._random.choice(choices)


# ---- the run


class SilentFrontEnd:
    """A front end that shows nothing. With --window, `WindowFrontEnd` of window.py takes its place."""

    def __init__(self, run: FaultRun) -> None:
        self._run = run
        self._session = run.open(lambda event: None)

    def begin(self, session: Session, paths: Sequence[Path]) -> Batch:
        """Begin a fresh run."""
        return session.start(paths, as_new_run=True)

    def drive_changed(self, drive: Path, *, is_in: bool) -> None:
        """React to the model drive: use its pack once it is back."""
        if is_in:
            self._session.use_packs(self._run.clinic.load_pack())


class FaultRun:
    """A run with `events` accidents during batches of `images` images: `open` a session, `go`, read `figures`."""

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
        """Open the session that runs all batches."""
        self._session = self.clinic.session(publish)
        return self._session

    def go(self, front_end: SilentFrontEnd) -> dict[str, Any]:
        """Perform the whole run and return the figures."""
        assert self._session
        began_s, session = time.monotonic(), self._session
        options = {"drive_changed": front_end.drive_changed, "is_short": self._is_short}
        accidents = Accidents(self.clinic, session, seed=self._seed, **options)
        try:
            front_end.drive_changed(self.clinic.drive, is_in=True)
            self._run_batch(front_end, accidents)  # without accidents: the reference
            self._with_accidents(front_end, accidents)
            accidents.mend()
            self._run_batch(front_end, accidents)
        finally:
            session.close()
            self.clinic.close()
        self.figures = self._summary(accidents, time.monotonic() - began_s)
        return self.figures

    def _with_accidents(self, front_end: SilentFrontEnd, accidents: Accidents) -> None:
        over = threading.Event()

        def let_them_happen() -> None:
            try:
                for number in range(self._events):
                    accidents.happen()
                    if number % 20 == 19:
                        self._say(f"{number + 1} accidents, {self.clinic.verdicts.images} images")
            except Exception as error:
                accidents.problems.append(f"{type(error).__name__}: {error}")
                raise
            finally:
                over.set()

        thread = threading.Thread(target=let_them_happen, name="accidents")
        thread.start()
        while not over.is_set():
            self._run_batch(front_end, accidents)
            over.wait(0.05)
        thread.join()

    def _run_batch(self, front_end: SilentFrontEnd, accidents: Accidents) -> None:
        assert self._session
        with accidents.between_runs:
            batch = front_end.begin(self._session, [self.clinic.images[0].parent])
            batch.join()
            self.clinic.judge(self._session, batch)
        self._memory_mb.append(psutil.Process().memory_info().rss / 2**20)

    def _summary(self, accidents: Accidents, duration_s: float) -> dict[str, Any]:
        verdicts = self.clinic.verdicts
        return {
            "seed": self._seed,
            "duration_s": round(duration_s, 1),
            "events": sum(accidents.counts.values()),
            "events_by_kind": dict(accidents.counts.most_common()),
            **vars(verdicts),
            "remarks": verdicts.remarks[:20],
            "problems": accidents.problems[:20],
            "second_instances": dict(accidents.second_instances),
            **{name: spread(times_s) for name, times_s in accidents.times_s.items()},
            "memory_mb": memory(self._memory_mb),
            "left_behind": left_behind({*self._before, threading.current_thread()}),
        }


def spread(times_s: Sequence[float]) -> dict[str, float]:
    """Return number, median, 95th percentile and maximum of times."""
    if not times_s:
        return {"n": 0}
    ordered = sorted(times_s)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    values = {"p50": statistics.median(ordered), "p95": p95, "max": ordered[-1]}
    return {"n": len(ordered), **{name: round(value, 4) for name, value in values.items()}}


def memory(after_runs_mb: Sequence[float]) -> dict[str, float]:
    """Return the growth of this process's memory: median of the last third of the batches minus that of the first."""
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
    """Return the faults: figures that must be zero on every machine."""
    zero = ("images_lost", "images_done_twice", "images_not_screened", "wrong_backends", "wrong_scores")
    found = [f"{name}: {figures[name]}" for name in (*zero, "runs_not_finished") if figures[name]]
    return found + [f"{name}: {figures[name]}" for name in ("problems", "left_behind") if figures[name]]


def shortcomings(figures: dict[str, Any]) -> list[str]:
    """Return the faults, and the times and memory above their limits."""
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

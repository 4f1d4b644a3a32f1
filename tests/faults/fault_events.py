"""What can happen to an Edge TPU, a drive and a process while people work; one method an accident."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from faults.world import EDGETPU_TIMEOUT_S, Clinic
from fieldray.errors import PackProblem
from fieldray.pipeline.session import Session

_OPEN_MS: Final = 1000
_PATIENCE_S: Final = 6.0

Choice = TypeVar("Choice")


class Accidents:
    """Draws fault_events and lets them happen. Used by one thread beside the one that runs batches.

    between_runs is held by that thread while a batch runs.

    drive_changed  is told of the model drive, and whether it `is_in`
    is_short       leave out what takes seconds

    `times_s` has an entry for each measured accident: from the unplugging to the next answer of the CPU, less the Edge
    TPU's deadline where it hung, and from the plugging to the first answer of an Edge TPU that takes a second to open.
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
        # A short run is to have each kind at least once; a long one has by itself.
        self._first: Final = self._random.sample(list(self._kinds), len(self._kinds)) if is_short else []

    def happen(self) -> None:
        """One accident and a rest: in a short run each kind once, in random order; then drawn by their weights."""
        names = self._first or self._random.choices(list(self._kinds), [weight for weight, _ in self._kinds.values()])
        name = names.pop()
        self.counts[name] += 1
        self._kinds[name][1]()
        self._rest(0.05, 0.2 if self._is_short else 0.5)

    def mend(self) -> None:
        """Everything back in its place and in order."""
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
        self._edgetpu.plug("ready")  # its firmware is in: the same Edge TPU under its other name

    def _plug_measured(self) -> None:
        self._take_out()
        self._choose("auto", "accelerator")
        time.sleep(4.0)  # else the changes before make the watch wait for calm
        self._edgetpu.order(open_ms=_OPEN_MS)
        is_flowing = self._clinic.record.is_flowing()
        began_s, run = time.monotonic(), self._clinic.record.run
        self._put_in()
        first = self._clinic.record.next_of("edgetpu", after_s=began_s, timeout_s=_PATIENCE_S)
        self._edgetpu.order(open_ms=0)
        if first and is_flowing and run == self._clinic.record.run:  # between two batches nothing is asked of anybody
            self.times_s["plug_to_edgetpu_s"].append(first.at_s - began_s)

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
        # it may have been killed a moment ago, or a run may be at its end
        is_comparable = self._clinic.backends.get("cpu") == "ready" and self._clinic.record.is_flowing()
        self._take_out()
        if was_in_use and is_comparable and self._policy == "accelerator":
            answer = self._clinic.record.next_of("cpu", after_s=began_s, timeout_s=_PATIENCE_S)
            deadline_s = EDGETPU_TIMEOUT_S if how == "hang" else 0.0
            if answer and run == self._clinic.record.run:
                back_s = max(0.0, answer.at_s - began_s - deadline_s)
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
        """Whether the Edge TPU answers, after a wait if need be."""
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

    def _rest(self, least_s: float, most_s: float) -> None:
        time.sleep(self._random.uniform(least_s, most_s))

    def _one_of(self, *choices: Choice) -> Choice:
        return self._random.choice(choices)

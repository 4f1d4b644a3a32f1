"""The Coral USB Accelerator as a backend: the pack's compiled file in a child process that may die of it; and its plug.

That it was plugged in or pulled out is noticed whatever the engine is doing. `DeviceWatch` looks at the system's list
of USB devices a few times a second, which costs next to nothing, and asks the Edge TPU runtime only some time after a
change. What it says is a hint: whether the Edge TPU works is found out by opening it.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal, cast

from fieldray.backends import EDGE_TPU
from fieldray.domain.model import Model
from fieldray.domain.run import DeviceChanged, Publish
from fieldray.errors import BackendProblem
from fieldray.inference.backend import BackendKind, BackendOptions, file_for
from fieldray.inference.coral import status
from fieldray.inference.coral.compiled import read_compiled
from fieldray.inference.coral.status import FindDevices, UsbDevice, find_usb_devices
from fieldray.inference.worker import DelegateSpec, WorkerBackend
from fieldray.paths import user_data
from fieldray.processes.child import ChildDied, ChildTimeout
from fieldray.reasons import Reason, reason
from fieldray.surroundings import Priority

Clock = Literal["std", "max"]

# The library built for "max" runs at its highest clock unless told else; the one built for "std" never does.
_PERFORMANCE: Final = {"std": "High", "max": "Max"}
_ACCESS_VIOLATION: Final = 0xC0000005  # exit code of a Windows process that touched memory it must not
_LOCK_NAME: Final = "edgetpu-{index}.lock"  # one per Edge TPU, shared by all processes of this user
_OPENER: Final = "fieldray.inference.coral.status:OpenDelegate"
_NOT_HERE: Final = "edgetpu_not_here"
_PERMANENT: Final = frozenset(
    {
        _NOT_HERE,
        "coral_not_compiled",
        "coral_no_library",
        "coral_no_libusb",
        "coral_bad_library",
        "coral_wrong_abi",
        "coral_runtime_old",
    }
)


def edgetpu_kind(
    *,
    libraries: Sequence[str] = (),
    clock: Clock = "std",
    find: FindDevices = find_usb_devices,
    publish: Publish | None = None,
    start_timeout_s: float = 20.0,
    run_timeout_s: float = 3.0,
    priority: Priority = "normal",
) -> BackendKind:
    """Runs the pack's Edge TPU file on the first Edge TPU that no other process uses.

    Parameters
    ----------
    libraries
        Names of the Edge TPU runtime to try; this system's usual ones if empty.
    clock
        "max" makes the Edge TPU hot enough to burn the skin: only for those who ask for it.
    find
        What the system knows about USB; where it shows no Edge TPU, the runtime's own list is asked.
    publish
        Receives what becomes of the Edge TPU; without it, the device is not watched.
    """

    ask = partial(status.ask_library, libraries)

    def open_one() -> WorkerBackend:
        options = {
            "libraries": list(libraries),
            "options": {"Performance": _PERFORMANCE[clock]},
            "lock": str(user_data() / _LOCK_NAME),
        }
        return WorkerBackend(
            EDGE_TPU,
            threads=1,
            delegate=DelegateSpec(opener=_OPENER, options=options, failure="coral_run_failed"),
            explain=partial(_explain, find),
            start_timeout_s=start_timeout_s,
            run_timeout_s=run_timeout_s,
            priority=priority,
        )

    return BackendKind(
        entry=EDGE_TPU,
        open=open_one,
        probe=lambda model: _device_problem(find, ask) or _file_problem(model),
        watch=partial(DeviceWatch, publish, find=find, ask=ask, clock=clock) if publish else None,
        permanent=_PERMANENT,
        absent=frozenset({_NOT_HERE}),
    )


def system_kind(options: BackendOptions) -> BackendKind:
    """As the program runs it."""
    clock = cast("Clock", options.settings["edgetpu_clock"])
    return edgetpu_kind(clock=clock, publish=options.publish, priority=options.priority)


def _file_problem(model: Model) -> Reason | None:
    """Why the pack cannot run on any Edge TPU. A runtime would not say: it would run a plain file on the CPU."""
    try:
        if read_compiled(file_for(EDGE_TPU, model)).on_edgetpu:
            return None
    except BackendProblem:
        pass  # it has none
    except ValueError as error:
        return reason("bad_model", detail=str(error))
    return reason("coral_not_compiled", pack=model.pack_name)


def _device_problem(find: FindDevices, ask: status.AskLibrary) -> Reason | None:
    """Why there is no use in starting a process for the Edge TPU; one on USB is best found out about by opening it."""
    devices = find()
    if devices:
        return reason("coral_no_permission") if devices[0].is_writable is False else None
    return status.look(ask=ask, find=find).reason


def _explain(find: FindDevices, error: ChildDied | ChildTimeout, *, is_open: bool, timeout_s: float) -> Reason:
    if is_open and not find():
        return reason("coral_unplugged")
    return explain_end(error, is_open=is_open, timeout_s=timeout_s)


def explain_end(error: ChildDied | ChildTimeout, *, is_open: bool, timeout_s: float) -> Reason:
    """Why the Edge TPU's process ended, from how and when it did."""
    if isinstance(error, ChildTimeout):
        return reason("coral_no_answer", seconds=f"{timeout_s:g}")
    if error.exit_code in (_ACCESS_VIOLATION, -signal.SIGSEGV) and not is_open:
        return reason("coral_wrong_abi")
    return reason("coral_stopped")


log = logging.getLogger(__name__)

Change = Literal["plugged", "unplugged", "flapping"]

FLAPS: Final = 6  # so many changes within the window are more than hands can do
_FLAP_WINDOW_S: Final = 3.0
_CALM_S: Final = 3.0  # an Edge TPU that flapped counts again after so long without a change
_FIRMWARE_GRACE_S: Final = 5.0  # an Edge TPU that is given its firmware vanishes for a moment


class Debouncer:
    """Turns what is seen at each look into changes that count.

    The first change counts at once, for quick hands; an Edge TPU that flaps counts as absent until it is calm; one that
    vanishes while its firmware is loaded still counts as there for a while.
    """

    def __init__(self) -> None:
        self._is_seen = False
        self._was_uninitialised = False
        self._counts = False
        self._is_flapping = False
        self._changes: deque[float] = deque(maxlen=FLAPS)

    def look(self, devices: tuple[UsbDevice, ...], now_s: float) -> Change | None:
        """Take note of what is there at `now_s` (monotonic); what has changed, if anything."""
        if bool(devices) != self._is_seen:
            self._is_seen = bool(devices)
            self._changes.append(now_s)
        if devices:
            self._was_uninitialised = devices[0].state == "uninitialised"
        if self._is_flapping:
            if now_s - self._changes[-1] < _CALM_S:
                return None
            self._is_flapping, self._counts = False, self._is_seen
            self._changes.clear()
            return "plugged" if self._is_seen else "unplugged"
        if len(self._changes) == FLAPS and now_s - self._changes[0] < _FLAP_WINDOW_S:
            self._is_flapping, self._counts = True, False
            return "flapping"
        return self._settle(now_s)

    def _settle(self, now_s: float) -> Change | None:
        if self._is_seen == self._counts:
            return None
        if not self._is_seen and self._was_uninitialised and now_s - self._changes[-1] < _FIRMWARE_GRACE_S:
            return None
        self._counts = self._is_seen
        return "plugged" if self._is_seen else "unplugged"


class DeviceWatch:
    """A thread that looks; the callbacks are called from it.

    plugged    an Edge TPU is there: try it
    unplugged  it is gone, and why
    ask        asks the Edge TPU runtime; may take its time
    clock      the Edge TPU's: of the highest a person is told whenever it is there
    """

    def __init__(
        self,
        publish: Publish,
        plugged: Callable[[], None],
        unplugged: Callable[[Reason], None],
        *,
        find: FindDevices = find_usb_devices,
        ask: status.AskLibrary = status.ask_library,
        clock: Clock = "std",
        interval_s: float = status.LOOK_INTERVAL_S,
        ask_after_s: float = 3.0,
    ) -> None:
        self._publish = publish
        self._plugged = plugged
        self._unplugged = unplugged
        self._find = find
        self._ask = ask
        self._notes = (reason("coral_max_clock"),) if clock == "max" else ()
        self._interval_s = interval_s
        self._ask_after_s = ask_after_s
        self._steady = Debouncer()
        self._devices: tuple[UsbDevice, ...] = ()
        self._ask_at_s: float | None = time.monotonic() + ask_after_s / 3
        self._published: DeviceChanged | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="edgetpu-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End; waits for the thread."""
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ends.is_set():
            try:
                self._look()
            except Exception:
                log.exception("looking for the Edge TPU failed; the next look may not")
            self._ends.wait(self._interval_s)

    def _look(self) -> None:
        devices, now_s = self._find(), time.monotonic()
        change = self._steady.look(devices, now_s)
        if change:
            self._report(devices, change)
        if change == "flapping":
            self._ask_at_s = None
        elif change or (devices and devices != self._devices):
            self._ask_at_s = now_s + self._ask_after_s
        self._devices = devices
        if self._ask_at_s is not None and now_s >= self._ask_at_s:
            self._ask_at_s = None
            self._publish_event(status.look(ask=self._ask, find=self._find).event)

    def _report(self, devices: tuple[UsbDevice, ...], change: Change) -> None:
        log.info("the Edge TPU: %s", change)
        if change == "plugged":
            self._plugged()
            found = status.CoralStatus(usb=devices, answer=None, reason=None, notes=status.notes_on(devices))
        else:
            why = reason("coral_flapping" if change == "flapping" else "coral_unplugged")
            self._unplugged(why)
            found = status.CoralStatus(usb=(), answer=None, reason=why)
        self._publish_event(found.event)

    def _publish_event(self, event: DeviceChanged) -> None:
        if event.state != "absent":
            event = replace(event, notes=event.notes + self._notes)
        if event != self._published:
            self._published = event
            self._publish(event)

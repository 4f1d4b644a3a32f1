"""Notices that an Edge TPU was plugged in or pulled out, whatever the engine is doing.

Looks at the system's list of USB devices a few times a second, which costs next to nothing, and asks the Edge TPU
runtime only some time after a change. What it says is a hint: whether the Edge TPU works is found out by opening it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

from fieldray.domain.events import DeviceChanged, Publish
from fieldray.inference.coral import status
from fieldray.inference.coral.usb import FindDevices, UsbDevice, find_usb_devices
from fieldray.reasons import Reason, reason

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
            return self._calm_down(now_s)
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

    def _calm_down(self, now_s: float) -> Change | None:
        if now_s - self._changes[-1] < _CALM_S:
            return None
        self._is_flapping, self._counts = False, self._is_seen
        self._changes.clear()
        return "plugged" if self._is_seen else "unplugged"


class DeviceWatch:
    """A thread that looks; the callbacks are called from it.

    Parameters
    ----------
    plugged
        An Edge TPU is there: try it.
    unplugged
        It is gone, and why.
    ask
        Asks the Edge TPU runtime; may take its time.
    notes
        To be told whenever an Edge TPU is there.
    """

    def __init__(
        self,
        publish: Publish,
        *,
        plugged: Callable[[], None],
        unplugged: Callable[[Reason], None],
        find: FindDevices = find_usb_devices,
        ask: status.AskLibrary = status.ask_library,
        notes: tuple[Reason, ...] = (),
        interval_s: float = status.LOOK_INTERVAL_S,
        ask_after_s: float = 3.0,
    ) -> None:
        self._publish = publish
        self._plugged = plugged
        self._unplugged = unplugged
        self._find = find
        self._ask = ask
        self._notes = notes
        self._interval_s = interval_s
        self._ask_after_s = ask_after_s
        self._steady = Debouncer()
        self._devices: tuple[UsbDevice, ...] = ()
        self._ask_at_s: float | None = time.monotonic() + ask_after_s / 3
        self._told: DeviceChanged | None = None
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
            self._tell(devices, change)
        if change == "flapping":
            self._ask_at_s = None
        elif change or (devices and devices != self._devices):
            self._ask_at_s = now_s + self._ask_after_s
        self._devices = devices
        if self._ask_at_s is not None and now_s >= self._ask_at_s:
            self._ask_at_s = None
            self._publish_event(status.look(ask=self._ask, find=self._find).event)

    def _tell(self, devices: tuple[UsbDevice, ...], change: Change) -> None:
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
        if event != self._told:
            self._told = event
            self._publish(event)

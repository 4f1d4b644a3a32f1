"""Is an Edge TPU there, can it be used, and if not, what has to be done?

The Edge TPU runtime's own list decides whether there is an Edge TPU. It is asked in a child process, because a library
that does not fit, or an Edge TPU that is pulled out meanwhile, ends the process that asks. What the system knows about
USB is added where there is any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fieldray.backends import EDGE_TPU
from fieldray.domain.events import DeviceChanged, DeviceState
from fieldray.errors import BackendProblem, FieldrayError
from fieldray.inference.coral.library import Device
from fieldray.inference.coral.usb import USB3_MBIT, FindDevices, UsbDevice, find_usb_devices
from fieldray.inference.runtime import MEMORY_LIMIT_MB
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.wire import Message
from fieldray.reasons import Reason, reason
from fieldray.typed_json import converted

_SERVICE: Final = "fieldray.inference.coral.library:handle"
_TIMEOUT_S: Final = 5.0

# How often to look at the system's list of USB devices; macOS needs a process for each look
LOOK_INTERVAL_S: Final = 2.0 if sys.platform == "darwin" else 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryAnswer:
    """What the Edge TPU runtime said: its name, version (None if it does not say) and the devices it sees."""

    library: str
    runtime_version: int | None
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoralStatus:
    """All that is known.

    reason           why no Edge TPU can be used, None if one can
    notes            what makes the Edge TPU slow or unreliable
    library_problem  why the Edge TPU runtime cannot be asked, also where there is no Edge TPU to ask for
    """

    usb: tuple[UsbDevice, ...]
    answer: LibraryAnswer | None
    reason: Reason | None
    notes: tuple[Reason, ...] = ()
    library_problem: Reason | None = None

    @property
    def state(self) -> DeviceState:
        """Of the first Edge TPU."""
        if self.usb:
            return self.usb[0].state
        return "ready" if self.answer and self.answer.devices else "absent"

    @property
    def event(self) -> DeviceChanged:
        """As the front ends hear it."""
        return DeviceChanged(
            backend=EDGE_TPU.name,
            state=self.state,
            port_mbit=self.usb[0].port_mbit if self.usb else None,
            runtime_version=self.answer.runtime_version if self.answer else None,
            reason=self.reason,
            notes=self.notes,
        )


AskLibrary = Callable[[], LibraryAnswer]


def ask_library(libraries: Sequence[str] = (), *, timeout_s: float = _TIMEOUT_S) -> LibraryAnswer:
    """Ask the Edge TPU runtime, in a child process of its own. Raises BackendProblem."""
    child = Child(_SERVICE, memory_limit_mb=MEMORY_LIMIT_MB)
    try:
        child.start()
        return child.ask(Message({"libraries": list(libraries)}), _library_answer, timeout_s=timeout_s)
    except ChildTimeout as error:
        raise BackendProblem(reason("coral_library_slow", seconds=f"{timeout_s:g}")) from error
    except ChildDied as error:
        raise BackendProblem(reason("coral_library_failed")) from error
    except OSError as error:
        raise BackendProblem(reason("start_failed", detail=error.strerror or str(error))) from error
    except BackendProblem:
        raise
    except FieldrayError as error:
        raise BackendProblem(error.reason) from error
    finally:
        child.close()


def _library_answer(answer: Message) -> LibraryAnswer:
    devices = tuple(Device(str(kind), str(path)) for kind, path in answer.body["devices"])
    return converted({**answer.body, "devices": devices}, LibraryAnswer)


def look(*, ask: AskLibrary = ask_library, find: FindDevices = find_usb_devices) -> CoralStatus:
    """Look once. Takes as long as a child process takes to start."""
    usb = find()
    try:
        answer = ask()
    except BackendProblem as problem:
        # who has no Edge TPU needs no runtime either
        why = problem.reason if usb else reason("edgetpu_not_here")
        return CoralStatus(usb=usb, answer=None, reason=why, notes=notes_on(usb), library_problem=problem.reason)
    not_listed = None if answer.devices else _not_listed_reason(usb)
    return CoralStatus(usb=usb, answer=answer, reason=not_listed, notes=notes_on(usb))


def notes_on(usb: Sequence[UsbDevice]) -> tuple[Reason, ...]:
    """What makes the first Edge TPU slow or unreliable where it is plugged in."""
    if not usb:
        return ()
    edgetpu, notes = usb[0], []
    if edgetpu.port_mbit is not None and edgetpu.port_mbit < USB3_MBIT:
        notes.append(reason("coral_usb2"))
    if edgetpu.is_on_weak_hub:
        notes.append(reason("coral_weak_hub"))
    return tuple(notes)


def _not_listed_reason(usb: Sequence[UsbDevice]) -> Reason:
    if not usb:
        return reason("edgetpu_not_here")
    return reason("coral_no_permission" if usb[0].is_writable is False else "coral_not_listed")

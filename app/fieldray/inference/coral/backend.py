"""The Coral USB Accelerator as a backend: the pack's compiled file in a child process that may die of it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, cast

from fieldray.backends import EDGE_TPU
from fieldray.domain.events import Publish
from fieldray.domain.model import Model
from fieldray.errors import BackendProblem
from fieldray.inference.backend import BackendKind, BackendOptions, WatchDevice, file_for
from fieldray.inference.calls import DelegateSpec
from fieldray.inference.coral import status
from fieldray.inference.coral.compiled import read_compiled
from fieldray.inference.coral.usb import FindDevices, find_usb_devices
from fieldray.inference.coral.watch import DeviceWatch
from fieldray.inference.worker import WorkerBackend
from fieldray.paths import user_data
from fieldray.processes.child import ChildDied, ChildTimeout
from fieldray.processes.priority import Priority
from fieldray.reasons import Reason, reason

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

    def open_one() -> WorkerBackend:
        return WorkerBackend(
            EDGE_TPU,
            threads=1,
            delegate=_delegate(libraries, clock),
            explain=partial(_explain, find),
            start_timeout_s=start_timeout_s,
            run_timeout_s=run_timeout_s,
            priority=priority,
        )

    return BackendKind(
        entry=EDGE_TPU,
        open=open_one,
        probe=lambda model: _device_problem(find, libraries) or _file_problem(model),
        watch=_watch(publish, find, libraries, clock) if publish else None,
        permanent=_PERMANENT,
        absent=frozenset({_NOT_HERE}),
    )


def _delegate(libraries: Sequence[str], clock: Clock) -> DelegateSpec:
    options = {
        "libraries": list(libraries),
        "options": {"Performance": _PERFORMANCE[clock]},
        "lock": str(user_data() / _LOCK_NAME),
    }
    return DelegateSpec(opener=_OPENER, options=options, failure="coral_run_failed")


def _watch(publish: Publish, find: FindDevices, libraries: Sequence[str], clock: Clock) -> WatchDevice:
    def watch(plugged: Callable[[], None], unplugged: Callable[[Reason], None]) -> DeviceWatch:
        return DeviceWatch(
            publish,
            plugged=plugged,
            unplugged=unplugged,
            find=find,
            ask=lambda: status.ask_library(libraries),
            notes=(reason("coral_max_clock"),) if clock == "max" else (),
        )

    return watch


def system_kind(options: BackendOptions) -> BackendKind:
    """As the program runs it."""
    clock = cast("Clock", options.settings["edgetpu_clock"])
    return edgetpu_kind(
        clock=clock,
        publish=options.publish,
        priority=options.priority,
    )


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


def _device_problem(find: FindDevices, libraries: Sequence[str]) -> Reason | None:
    """Why there is no use in starting a process for the Edge TPU; one on USB is best found out about by opening it."""
    devices = find()
    if devices:
        return reason("coral_no_permission") if devices[0].is_writable is False else None
    return status.look(ask=lambda: status.ask_library(libraries), find=find).reason


def _explain(find: FindDevices, error: ChildDied | ChildTimeout, *, is_open: bool, timeout_s: float) -> Reason:
    if is_open and not find():
        return reason("coral_unplugged")
    return explain_end(error, is_open=is_open, timeout_s=timeout_s)


def explain_end(error: ChildDied | ChildTimeout, *, is_open: bool, timeout_s: float) -> Reason:
    """Why the Edge TPU's process ended, from how and when it did."""
    if isinstance(error, ChildTimeout):
        return reason("coral_no_answer", seconds=f"{timeout_s:g}")
    if _broke_memory(error.exit_code) and not is_open:
        return reason("coral_wrong_abi")
    return reason("coral_stopped")


def _broke_memory(exit_code: int | None) -> bool:
    segment = getattr(signal, "SIGSEGV", None)
    return exit_code is not None and (exit_code == _ACCESS_VIOLATION or (segment is not None and exit_code == -segment))

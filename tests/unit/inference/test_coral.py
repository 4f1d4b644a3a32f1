"""The Edge TPU: USB listings, its library, reasons not to use it, and changes that its watch reports."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fake_compilers import edgetpu_model
from fieldray.domain.model import Model
from fieldray.domain.run import DeviceChanged
from fieldray.errors import BackendProblem
from fieldray.inference.coral import EdgeTpuLibrary, edgetpu_kind, explain_exit, library_load_problem
from fieldray.inference.coral_status import (
    ClockSpeed,
    ConnectionChange,
    Debouncer,
    EdgeTpuWatcher,
    RuntimeReport,
    UsbDevice,
    WatchPace,
    find_usb_devices,
    find_usb_devices_on_linux,
    has_edgetpu_board_on_linux,
    may_have_edgetpu_board,
    parse_windows_instance_ids,
    split_multi_string,
)
from fieldray.processes.child import ChildDied, ChildTimeout
from fieldray.reasons import Reason, reason
from tiny_models import tiny_model

# ---- USB listings of Linux and Windows: a tree of files, and instance ids

LISTED = {"idVendor": "18d1", "idProduct": "9302", "speed": "5000", "busnum": "2", "devnum": "4"}
UNINITIALISED = LISTED | {"idVendor": "1a6e", "idProduct": "089a"}


def add_device(sysfs: Path, name: str, facts: dict[str, str]) -> None:
    (sysfs / name).mkdir(parents=True)
    for key, value in facts.items():
        (sysfs / name / key).write_text(value + "\n")


def linux_devices(tmp_path: Path) -> tuple[UsbDevice, ...]:
    return find_usb_devices_on_linux(sysfs=tmp_path / "sys", nodes=tmp_path / "dev")


def test_an_edgetpu_is_found_with_and_without_its_firmware(tmp_path: Path) -> None:
    add_device(tmp_path / "sys", "2-1", LISTED)
    add_device(tmp_path / "sys", "1-4", UNINITIALISED | {"speed": "480"})
    add_device(tmp_path / "sys", "1-2", {"idVendor": "046d", "idProduct": "c31c", "speed": "1.5"})
    add_device(tmp_path / "sys", "2-1:1.0", LISTED)  # an interface
    add_device(tmp_path / "sys", "usb2", {"idVendor": "1d6b", "idProduct": "0003"})
    assert linux_devices(tmp_path) == (
        UsbDevice(port="1-4", state="uninitialised", port_mbit=480, is_on_unpowered_hub=False),
        UsbDevice(port="2-1", state="ready", port_mbit=5000, is_on_unpowered_hub=False),
    )


@pytest.mark.parametrize(("attributes", "is_weak"), [("e0", False), ("a0", True), (None, None)])
def test_a_hub_without_power_of_its_own_is_found(tmp_path: Path, attributes: str | None, is_weak: bool | None) -> None:
    add_device(tmp_path / "sys", "2-1", {"bmAttributes": attributes} if attributes else {})
    add_device(tmp_path / "sys", "2-1.4", LISTED)
    assert [edgetpu.is_on_unpowered_hub for edgetpu in linux_devices(tmp_path)] == [is_weak]


def test_a_missing_or_incomplete_sysfs_tree_gives_no_edgetpu(tmp_path: Path) -> None:
    assert linux_devices(tmp_path) == ()
    add_device(tmp_path / "sys", "2-1", {"idVendor": "18d1"})
    add_device(tmp_path / "sys", "2-2", {"idVendor": "zz", "idProduct": "9302"})
    add_device(tmp_path / "sys", "2-3", {"idVendor": "18d1", "idProduct": "9302", "speed": "unknown"})
    assert linux_devices(tmp_path) == (UsbDevice(port="2-3", state="ready", is_on_unpowered_hub=False),)


def test_the_node_of_the_device_is_where_bus_and_device_number_say(tmp_path: Path) -> None:
    add_device(tmp_path / "sys", "2-1", LISTED)
    node = tmp_path / "dev" / "002" / "004"
    node.parent.mkdir(parents=True)
    node.touch()
    assert [edgetpu.is_writable for edgetpu in linux_devices(tmp_path)] == [True]


def test_windows_instance_ids_are_read() -> None:
    instances = split_multi_string(
        "USB\\ROOT_HUB30\\4&1A2B3C4D&0&0\0"
        "USB\\VID_046D&PID_C52B&MI_00\\7&2F1B9E&0&0000\0"
        "USB\\VID_18D1&PID_9302\\5&2d3a1f2c&0&7\0"
        "USB\\VID_18D1&PID_9302&MI_00\\6&1&0&0000\0"
        "usb\\vid_1a6e&pid_089a\\5&2d3a1f2c&0&8\0\0"
    )
    assert len(instances) == 5
    assert parse_windows_instance_ids(instances) == (
        UsbDevice(port="5&2d3a1f2c&0&7", state="ready"),
        UsbDevice(port="5&2d3a1f2c&0&8", state="uninitialised"),
    )


def test_the_usb_devices_of_this_computer_can_be_listed() -> None:
    assert isinstance(find_usb_devices(), tuple)


# ---- its library


class WindowsError(OSError):
    def __init__(self, winerror: int, text: str) -> None:
        super().__init__(text)
        self.winerror = winerror


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError("libedgetpu.so.1: cannot open shared object file: No such file or directory"), "coral_no_library"),
        (OSError("libusb-1.0.so.0: cannot open shared object file: No such file or directory"), "coral_no_libusb"),
        (OSError("/usr/lib/libedgetpu.so.1: invalid ELF header"), "coral_bad_library"),
        (OSError("/usr/lib/libedgetpu.so.1: file too short"), "coral_bad_library"),
        (OSError("libedgetpu.so.1: wrong ELF class: ELFCLASS32"), "coral_bad_library"),
        (OSError("dlopen(libedgetpu.1.dylib, 6): no such file"), "coral_no_library"),
        (OSError("dlopen(/usr/local/lib/libedgetpu.1.dylib): incompatible architecture"), "coral_bad_library"),
        (WindowsError(193, "[WinError 193] %1 is not a valid Win32 application"), "coral_bad_library"),
        (WindowsError(126, "Could not find module 'edgetpu.dll' (or one of its dependencies)"), "coral_no_library"),
    ],
)
def test_loader_errors_become_reasons(error: OSError, code: str) -> None:
    assert library_load_problem(error, "libedgetpu.so.1").code == code


def test_a_loader_error_of_the_installed_program_is_read_from_its_cause() -> None:
    wrapped = OSError("Failed to load dynlib/dll 'libedgetpu.so.1'. Most likely this dynlib/dll was not found")
    wrapped.__cause__ = OSError("/usr/lib/libedgetpu.so.1: invalid ELF header")
    assert library_load_problem(wrapped, "libedgetpu.so.1").code == "coral_bad_library"


def test_a_missing_library_is_reported_by_its_first_name() -> None:
    with pytest.raises(BackendProblem) as caught:
        EdgeTpuLibrary(("libfieldray-none.so.1", "/nowhere/libfieldray-none.so.1"))
    assert caught.value.reason == reason("coral_no_library", name="libfieldray-none.so.1")


# ---- reasons not to use it, and reasons why its process ended

EDGETPU = UsbDevice(port="2-1", state="ready", is_writable=True)
COMPILED = edgetpu_model()


@pytest.mark.parametrize(
    ("edgetpu", "model", "code"),
    [
        (EDGETPU, COMPILED, None),
        (replace(EDGETPU, is_writable=None), COMPILED, None),
        (replace(EDGETPU, is_writable=False), COMPILED, "coral_no_permission"),
        (EDGETPU, tiny_model(), "coral_not_compiled"),
        (EDGETPU, replace(COMPILED, files={"edgetpu": COMPILED.files["litert"]}), "coral_not_compiled"),
        (EDGETPU, replace(COMPILED, files={"edgetpu": b"TFL3"}), "bad_model"),
    ],
)
def test_reasons_not_to_use_a_connected_edgetpu(edgetpu: UsbDevice, model: Model, code: str | None) -> None:
    why = edgetpu_kind(find_devices=lambda: (edgetpu,)).unavailable_reason(model)
    assert (why.code if why else None) == code


@pytest.mark.parametrize("has_board", [False, True])
def test_without_an_edgetpu_and_a_library_there_is_no_edgetpu(has_board: bool) -> None:
    """With `has_board` the library is searched for, since there may be an Edge TPU on a board."""
    libraries = ("libfieldray-none.so.1",)
    why = edgetpu_kind(find_devices=lambda: (), has_board=lambda: has_board, libraries=libraries).unavailable_reason(
        COMPILED
    )
    assert why is not None and why.code == "edgetpu_not_here"


def test_a_board_is_found_by_its_driver(tmp_path: Path) -> None:
    assert not has_edgetpu_board_on_linux(devices=tmp_path)
    (tmp_path / "apex_0").touch()
    assert has_edgetpu_board_on_linux(devices=tmp_path)
    assert isinstance(may_have_edgetpu_board(), bool)


@pytest.mark.parametrize(
    ("error", "is_model_loaded", "code"),
    [
        (ChildTimeout("late"), True, "coral_no_answer"),
        (ChildDied(-signal.SIGABRT, ""), True, "coral_stopped"),
        (ChildDied(-signal.SIGABRT, ""), False, "coral_stopped"),
        (ChildDied(-signal.SIGSEGV, ""), False, "coral_wrong_abi"),
        (ChildDied(-signal.SIGSEGV, ""), True, "coral_stopped"),
        (ChildDied(0xC0000005, ""), False, "coral_wrong_abi"),
        (ChildDied(None, ""), False, "coral_stopped"),
    ],
)
def test_exits_of_the_edgetpu_process_become_reasons(
    error: ChildDied | ChildTimeout, is_model_loaded: bool, code: str
) -> None:
    assert explain_exit(lambda: (EDGETPU,), error, is_model_loaded=is_model_loaded, timeout_s=3.0).code == code


# ---- connecting and disconnecting, with a fake clock

READY = (UsbDevice(port="2-1", state="ready", port_mbit=480),)
BARE = (UsbDevice(port="2-1", state="uninitialised"),)
NONE: tuple[UsbDevice, ...] = ()
WAIT_S = 10.0


def changes(looks: Sequence[tuple[float, tuple[UsbDevice, ...]]]) -> list[tuple[float, ConnectionChange]]:
    steady = Debouncer()
    return [(now_s, change) for now_s, devices in looks if (change := steady.observe(devices, now_s))]


@pytest.mark.parametrize(
    ("looks", "counts"),
    [
        # at once, also if it was connected from the start
        ([(0, NONE), (1, READY), (2, READY), (30, NONE), (31, NONE)], [(1, "plugged"), (30, "unplugged")]),
        ([(0, READY), (0.2, READY)], [(0, "plugged")]),
        # except a gap of up to five seconds, during which firmware is loaded
        ([(0, BARE), (1, NONE), (2, NONE), (3, READY), (60, READY), (90, NONE)], [(0, "plugged"), (90, "unplugged")]),
        ([(0, BARE), (1, NONE), (5.9, NONE), (6, NONE), (7, NONE)], [(0, "plugged"), (6, "unplugged")]),
    ],
)
def test_connection_changes_are_reported_without_firmware_gaps(
    looks: list[tuple[float, tuple[UsbDevice, ...]]], counts: list[tuple[float, ConnectionChange]]
) -> None:
    assert changes(looks) == counts


@pytest.mark.parametrize(("last", "expected"), [(READY, "plugged"), (NONE, "unplugged")])
def test_rapid_connection_changes_are_reported_as_flapping_until_they_stop(
    last: tuple[UsbDevice, ...], expected: ConnectionChange
) -> None:
    flaps = [(number / 10, READY if number % 2 else NONE) for number in range(60)]
    # the sixth change comes at 0.6 s; the last rapid one at 5.9 s, unless it equals `last`
    calm = [(6.0, last), (8.5, last), (9.1, last), (9.2, last)]
    said = changes(flaps + calm)
    hands = ["plugged", "unplugged", "plugged", "unplugged", "plugged"]
    assert [change for _, change in said] == [*hands, "flapping", expected]
    assert said[-1][0] == 9.1


class World:
    """The devices that the watch finds, and the events that it reports."""

    def __init__(self) -> None:
        self.devices: tuple[UsbDevice, ...] = NONE
        self.answer: RuntimeReport | Reason = reason("coral_no_library", name="libedgetpu.so.1")
        self.events: list[DeviceChanged] = []
        self.calls: list[str] = []
        self.asked = 0
        self.has_board = False
        self.happened = threading.Condition()

    def watch(self, *, clock: ClockSpeed = "std") -> EdgeTpuWatcher:
        return EdgeTpuWatcher(
            self.hear,
            plugged=lambda: self.note("plugged"),
            unplugged=lambda why: self.note(why.code),
            find_devices=lambda: self.devices,
            ask=self.ask,
            has_board=lambda: self.has_board,
            clock=clock,
            pace=WatchPace(interval_s=0.005, query_delay_s=0.03),
        )

    def ask(self) -> RuntimeReport:
        self.asked += 1
        if isinstance(self.answer, Reason):
            raise BackendProblem(self.answer)
        return self.answer

    def hear(self, event: DeviceChanged) -> None:
        with self.happened:
            self.events.append(event)
            self.happened.notify_all()

    def note(self, call: str) -> None:
        self.calls.append(call)

    def wait_for(self, count: int) -> DeviceChanged:
        with self.happened:
            assert self.happened.wait_for(lambda: len(self.events) >= count, WAIT_S), self.events
            return self.events[count - 1]


def test_the_watch_reports_at_once_and_queries_the_runtime_later() -> None:
    world = World()
    world.answer = RuntimeReport(library="x", runtime_version=14, devices=())
    watch = world.watch(clock="max")
    world.devices = READY
    watch.start()
    first, second = world.wait_for(1), world.wait_for(2)
    world.devices = NONE
    third = world.wait_for(3)
    watch.close()
    assert (first.state, first.port_mbit, first.reason) == ("ready", 480, None)
    assert [note.code for note in first.notes] == ["coral_usb2", "coral_max_clock"]
    assert second.reason == reason("coral_not_listed")
    assert third.reason == reason("coral_unplugged")
    assert world.calls == ["plugged", "coral_unplugged"]


@pytest.mark.parametrize("has_board", [False, True])
def test_without_a_usb_edgetpu_the_runtime_is_queried_only_for_a_board(has_board: bool) -> None:
    """Without a board, no process is started for the query."""
    world = World()
    world.has_board = has_board
    watch = world.watch()
    watch.start()
    event = world.wait_for(1)
    watch.close()
    assert (event.state, event.reason) == ("absent", reason("edgetpu_not_here"))
    assert world.asked == has_board


def test_a_failing_usb_listing_does_not_end_the_watch() -> None:
    world = World()
    world.watch().close()  # closing a watch that was never started
    problems = [OSError("gone while read")]

    def find() -> tuple[UsbDevice, ...]:
        if problems:
            raise problems.pop()
        return READY

    watch = EdgeTpuWatcher(
        world.hear,
        plugged=lambda: None,
        unplugged=lambda why: None,
        find_devices=find,
        pace=WatchPace(interval_s=0.001),
    )
    watch.start()
    assert world.wait_for(1).state == "ready"
    watch.close()

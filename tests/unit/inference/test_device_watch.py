"""What counts as plugged in and pulled out, with a clock made of numbers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from fieldray.domain.events import DeviceChanged
from fieldray.errors import BackendProblem
from fieldray.inference.coral.backend import Change, Clock, Debouncer, DeviceWatch
from fieldray.inference.coral.status import Device, LibraryAnswer, UsbDevice
from fieldray.reasons import Reason, reason

READY = (UsbDevice(port="2-1", state="ready", port_mbit=480),)
BARE = (UsbDevice(port="2-1", state="uninitialised"),)
NONE: tuple[UsbDevice, ...] = ()
WAIT_S = 10.0


def changes(looks: Sequence[tuple[float, tuple[UsbDevice, ...]]]) -> list[tuple[float, Change]]:
    steady = Debouncer()
    return [(now_s, change) for now_s, devices in looks if (change := steady.look(devices, now_s))]


@pytest.mark.parametrize(
    ("looks", "counts"),
    [
        # at once, also where it is there from the start
        ([(0, NONE), (1, READY), (2, READY), (30, NONE), (31, NONE)], [(1, "plugged"), (30, "unplugged")]),
        ([(0, READY), (0.2, READY)], [(0, "plugged")]),
        # but for the moment without one while its firmware is loaded, if that is no longer than five seconds
        ([(0, BARE), (1, NONE), (2, NONE), (3, READY), (60, READY), (90, NONE)], [(0, "plugged"), (90, "unplugged")]),
        ([(0, BARE), (1, NONE), (5.9, NONE), (6, NONE), (7, NONE)], [(0, "plugged"), (6, "unplugged")]),
    ],
)
def test_what_counts(looks: list[tuple[float, tuple[UsbDevice, ...]]], counts: list[tuple[float, Change]]) -> None:
    assert changes(looks) == counts


@pytest.mark.parametrize(("last", "expected"), [(READY, "plugged"), (NONE, "unplugged")])
def test_ten_changes_a_second_are_said_once_and_then_waited_out(last: tuple[UsbDevice, ...], expected: Change) -> None:
    flaps = [(number / 10, READY if number % 2 else NONE) for number in range(60)]
    # the sixth change comes at 0.6 s; the last one of the row at 5.9 s, if the row does not end in `last`
    calm = [(6.0, last), (8.5, last), (9.1, last), (9.2, last)]
    said = changes(flaps + calm)
    hands = ["plugged", "unplugged", "plugged", "unplugged", "plugged"]
    assert [change for _, change in said] == [*hands, "flapping", expected]
    assert said[-1][0] == 9.1


class World:
    """What the watch sees and what it says."""

    def __init__(self) -> None:
        self.devices: tuple[UsbDevice, ...] = NONE
        self.answer: LibraryAnswer | Reason = reason("coral_no_library", name="libedgetpu.so.1")
        self.events: list[DeviceChanged] = []
        self.calls: list[str] = []
        self.happened = threading.Condition()

    def watch(self, *, clock: Clock = "std") -> DeviceWatch:
        return DeviceWatch(
            self.hear,
            plugged=lambda: self.note("plugged"),
            unplugged=lambda why: self.note(why.code),
            find=lambda: self.devices,
            ask=self.ask,
            clock=clock,
            interval_s=0.005,
            ask_after_s=0.03,
        )

    def ask(self) -> LibraryAnswer:
        if isinstance(self.answer, Reason):
            raise BackendProblem(self.answer)
        return self.answer

    def hear(self, event: object) -> None:
        assert isinstance(event, DeviceChanged)
        with self.happened:
            self.events.append(event)
            self.happened.notify_all()

    def note(self, call: str) -> None:
        self.calls.append(call)

    def wait_for(self, count: int) -> DeviceChanged:
        with self.happened:
            assert self.happened.wait_for(lambda: len(self.events) >= count, WAIT_S), self.events
            return self.events[count - 1]


def test_the_watch_tells_at_once_and_asks_the_runtime_later() -> None:
    world = World()
    world.answer = LibraryAnswer(library="x", runtime_version=14, devices=(Device("usb", "/sys/2-1"),))
    watch = world.watch(clock="max")
    world.devices = READY
    watch.start()
    first, second = world.wait_for(1), world.wait_for(2)
    world.devices = NONE
    third = world.wait_for(3)
    watch.close()
    assert (first.state, first.port_mbit, first.runtime_version, first.reason) == ("ready", 480, None, None)
    assert [note.code for note in first.notes] == ["coral_usb2", "coral_max_clock"]
    assert second.runtime_version == 14
    assert third.reason == reason("coral_unplugged")
    assert world.calls == ["plugged", "coral_unplugged"]


def test_without_an_edgetpu_and_a_runtime_there_is_no_edgetpu() -> None:
    world = World()
    watch = world.watch()
    watch.start()
    event = world.wait_for(1)
    watch.close()
    assert (event.state, event.reason) == ("absent", reason("edgetpu_not_here"))


def test_a_failing_look_does_not_end_the_watch() -> None:
    world = World()
    problems = [OSError("gone while read")]

    def find() -> tuple[UsbDevice, ...]:
        if problems:
            raise problems.pop()
        return READY

    watch = DeviceWatch(world.hear, plugged=lambda: None, unplugged=lambda why: None, find=find, interval_s=0.001)
    watch.start()
    assert world.wait_for(1).state == "ready"
    watch.close()


def test_closing_one_that_was_never_started_is_nothing() -> None:
    World().watch().close()

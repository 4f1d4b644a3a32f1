"""Detection of an Edge TPU, by the test double. Each kind of failure has its own reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fake_compilers import fake_compile
from faults.double import DoubleEdgeTpu
from fieldray.errors import BackendProblem
from fieldray.inference.coral import is_compiled_for_edgetpu, minimum_runtime_version
from fieldray.inference.coral_status import CoralStatus, RuntimeReport, find_coral_status, query_runtime
from fieldray.reasons import reason
from tiny_models import TinyType, tiny_model_bytes


def status(edgetpu: DoubleEdgeTpu) -> CoralStatus:
    return find_coral_status(ask=lambda: query_runtime([str(edgetpu.library)]), find_devices=edgetpu.find)


def test_an_edgetpu_is_found_with_runtime_and_port(edgetpu: DoubleEdgeTpu) -> None:
    edgetpu.plug()
    found = status(edgetpu)
    assert found.runtime == RuntimeReport(library=str(edgetpu.library), runtime_version=14, devices=("usb",))
    assert (found.state, found.device_changed_event.port_mbit, found.reason, found.notes) == ("ready", 5000, None, ())
    edgetpu.order(edgetpu="absent")  # the runtime does not list the device
    found = status(edgetpu)
    assert found.reason is not None and found.reason.code == "coral_not_listed"


def test_an_edgetpu_before_its_firmware_is_there(edgetpu: DoubleEdgeTpu) -> None:
    found = status(edgetpu)
    assert (found.state, found.reason) == ("absent", reason("edgetpu_not_here"))
    edgetpu.plug("uninitialised", speed_mbit=480)
    found = status(edgetpu)
    assert (found.state, found.reason, found.notes) == ("uninitialised", None, (reason("coral_usb2"),))


def test_a_library_that_is_absent_or_text(edgetpu: DoubleEdgeTpu, tmp_path: Path) -> None:
    text = tmp_path / "libedgetpu.so.1"
    text.write_text("not a library\n" * 100)
    for library, code in ((tmp_path / "none.so", "coral_no_library"), (text, "coral_bad_library")):
        edgetpu.unplug()
        without = find_coral_status(ask=lambda name=str(library): query_runtime([name]), find_devices=edgetpu.find)
        assert without.reason is not None and without.reason.code == "edgetpu_not_here"
        assert without.library_problem is not None and without.library_problem.code == code
        edgetpu.plug()
        found = find_coral_status(ask=lambda name=str(library): query_runtime([name]), find_devices=edgetpu.find)
        assert found.reason == found.library_problem == without.library_problem


def test_looking_for_an_edgetpu_ends_when_the_library_hangs(tmp_path: Path) -> None:
    silent = tmp_path / "libedgetpu.so.1"
    os.mkfifo(silent)  # opening a FIFO waits for a writer
    with pytest.raises(BackendProblem) as caught:
        query_runtime([str(silent)], timeout_s=0.1)
    assert caught.value.reason.code == "coral_library_slow"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_compiled_file_says_what_it_is(dtype: TinyType) -> None:
    file = tiny_model_bytes(dtype)
    compiled = fake_compile(file, oldest_runtime=13)
    assert (is_compiled_for_edgetpu(compiled), minimum_runtime_version(compiled)) == (True, 13)
    assert minimum_runtime_version(compiled + b"DWN1" + compiled[8:400]) == 13  # weights may contain the mark by chance
    assert (is_compiled_for_edgetpu(file), minimum_runtime_version(file)) == (False, None)
    with pytest.raises(ValueError, match="TensorFlow Lite"):
        is_compiled_for_edgetpu(file[:7])

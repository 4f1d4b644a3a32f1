"""Why the Edge TPU is not tried at all, and why its process ended."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from faults.edgetpu_models import edgetpu_model
from fieldray.domain.model import Model
from fieldray.inference.coral.backend import edgetpu_kind, explain_end
from fieldray.inference.coral.status import UsbDevice
from fieldray.processes.child import ChildDied, ChildTimeout
from tiny_models import tiny_model

EDGETPU = UsbDevice(port="2-1", state="ready", is_writable=True)
COMPILED = edgetpu_model()


@pytest.mark.parametrize(
    ("edgetpu", "model", "code"),
    [
        (EDGETPU, COMPILED, None),
        (replace(EDGETPU, is_writable=None), COMPILED, None),
        (replace(EDGETPU, is_writable=False), COMPILED, "coral_no_permission"),
        (EDGETPU, tiny_model(), "coral_not_compiled"),
        (
            EDGETPU,
            replace(COMPILED, files={**COMPILED.files, "edgetpu": COMPILED.files["litert"]}),
            "coral_not_compiled",
        ),
        (EDGETPU, replace(COMPILED, files={**COMPILED.files, "edgetpu": b"TFL3"}), "bad_model"),
    ],
)
def test_why_an_edgetpu_that_is_plugged_in_is_not_tried(edgetpu: UsbDevice, model: Model, code: str | None) -> None:
    why = edgetpu_kind(find=lambda: (edgetpu,)).unavailable_reason(model)
    assert (why.code if why else None) == code


def test_without_an_edgetpu_and_a_library_there_is_no_edgetpu() -> None:
    why = edgetpu_kind(find=lambda: (), libraries=("libfieldray-none.so.1",)).unavailable_reason(COMPILED)
    assert why is not None and why.code == "edgetpu_not_here"


@pytest.mark.parametrize(
    ("error", "is_open", "code"),
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
def test_how_a_process_ended_says_why(error: ChildDied | ChildTimeout, is_open: bool, code: str) -> None:
    assert explain_end(error, is_open=is_open, timeout_s=3.0).code == code

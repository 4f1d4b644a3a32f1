"""The findings of `fieldray doctor`, for made-up computers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fieldray.bench.host import (
    ComputerPart,
    HostFinding,
    ScreeningTrial,
    can_screen,
    findings_by_severity,
    host_report,
    inspect_edgetpu,
    inspect_machine_facts,
    inspect_software,
)
from fieldray.bench.machine import MachineFacts
from fieldray.inference.coral_status import CoralStatus, RuntimeReport, UsbDevice
from fieldray.inference.litert import RUNTIME_PACKAGE
from fieldray.reasons import Reason, reason
from fieldray.reports.document import console_lines

MACHINE = MachineFacts(
    system="Linux",
    processor="A processor",
    vector_instructions=("AVX2", "VNNI"),
    cpu_governor="performance",
    power_plan="",
    saves_power=False,
    cores=4,
    threads=8,
    usable_threads=8,
    clock_mhz=3000,
    highest_clock_mhz=4200,
    is_on_battery=False,
    memory_mb=16_000,
    free_memory_mb=9_000,
    cpu_load=0.02,
)
VERSIONS = dict.fromkeys(
    ("numpy", "PIL", "pydicom", "imagecodecs", "psutil", "cryptography", "PySide6", RUNTIME_PACKAGE), "1"
)
TRIAL = ScreeningTrial(pack_name="chest-1.0.0", duration_s=0.84, has_edgetpu_file=True)
EDGETPU = UsbDevice(port="2-1", state="ready", port_mbit=5000, is_writable=True)


def codes(part: ComputerPart, *weights: str) -> list[str]:
    return [one.reason.code for one in part.findings if one.severity in weights]


@pytest.mark.parametrize(
    ("lacking", "found"),
    [(RUNTIME_PACKAGE, ["no_runtime"]), ("imagecodecs", ["host_library_missing"]), ("PySide6", []), ("", [])],
)
def test_missing_parts_of_the_program_are_found(lacking: str, found: list[str]) -> None:
    part = inspect_software({name: version * (name != lacking) for name, version in VERSIONS.items()})
    assert codes(part, "stop") == found
    assert can_screen(part.findings) is not bool(found)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"vector_instructions": ()}, ["host_no_vectors"]),
        ({"cpu_governor": "powersave", "saves_power": True}, ["host_governor"]),
        ({"cpu_governor": "", "power_plan": "power saver", "saves_power": True}, ["host_power_plan"]),
        ({"is_on_battery": True}, ["host_battery"]),
        ({"free_memory_mb": 900}, ["host_memory"]),
        ({"cpu_load": 0.7}, ["host_busy"]),
        ({"usable_threads": 2}, ["host_few_threads"]),
        (
            {"processor": "", "vector_instructions": None, "cpu_governor": "", "clock_mhz": 0, "highest_clock_mhz": 0},
            [],
        ),
    ],
)
def test_causes_of_a_slow_computer_are_found(changes: dict[str, Any], found: list[str]) -> None:
    assert codes(inspect_machine_facts(replace(MACHINE, **changes)), "stop", "change") == found


NO_LIBRARY = reason("coral_no_library", name="libedgetpu.so.1")
BAD_LIBRARY = reason("coral_bad_library", name="libedgetpu.so.1")
ABSENT = CoralStatus(usb_devices=(), runtime=None, reason=reason("edgetpu_not_here"), library_problem=NO_LIBRARY)
ANSWER = RuntimeReport(library="libedgetpu.so.1", runtime_version=14, devices=("usb",))
THERE = CoralStatus(usb_devices=(EDGETPU,), runtime=ANSWER, reason=None)
SLOW = replace(THERE, usb_devices=(replace(EDGETPU, port_mbit=480),), notes=(reason("coral_usb2"),))
BARRED = CoralStatus(usb_devices=(EDGETPU,), runtime=None, reason=reason("coral_no_permission"))
UNEQUIPPED = CoralStatus(usb_devices=(EDGETPU,), runtime=None, reason=NO_LIBRARY, library_problem=NO_LIBRARY)
NO_FILE = replace(TRIAL, has_edgetpu_file=False)


@pytest.mark.parametrize(
    ("edgetpu", "trial", "change", "well"),
    [
        (SLOW, TRIAL, ["coral_usb2"], ["host_edgetpu_well"]),
        (BARRED, TRIAL, ["coral_no_permission"], []),
        (THERE, TRIAL, [], ["host_edgetpu_well"]),
        (THERE, NO_FILE, ["coral_not_compiled"], ["host_edgetpu_well"]),
        (UNEQUIPPED, TRIAL, ["coral_no_library"], []),
        (ABSENT, NO_FILE, [], ["host_no_edgetpu"]),
    ],
)
def test_findings_about_an_edgetpu(
    edgetpu: CoralStatus, trial: ScreeningTrial, change: list[str], well: list[str]
) -> None:
    part = inspect_edgetpu(edgetpu, trial)
    assert (codes(part, "change"), codes(part, "well")) == (change, well)
    assert can_screen(part.findings)


def test_without_an_edgetpu_only_a_broken_runtime_is_reported() -> None:
    def fact(problem: Reason) -> str:
        return inspect_edgetpu(replace(ABSENT, library_problem=problem), TRIAL).facts["Edge TPU"]

    assert "packs of the program run on the CPU" in reason("host_no_edgetpu").text
    assert fact(NO_LIBRARY) == "none, no runtime"
    assert BAD_LIBRARY.text in fact(BAD_LIBRARY)


STOP, CHANGE = HostFinding("stop", reason("no_pack")), HostFinding("change", reason("host_battery"))
WELL = HostFinding("well", reason("host_edgetpu_well"))


def test_findings_are_sorted_by_severity() -> None:
    found = findings_by_severity([ComputerPart([WELL, CHANGE], {}), ComputerPart([STOP], {})])
    assert found == (STOP, CHANGE, WELL)
    assert can_screen(found[1:])


def test_the_report_is_json_and_text_with_the_verdict_first() -> None:
    report = host_report([inspect_machine_facts(MACHINE), ComputerPart([STOP], {})])
    data = json.loads(json.dumps(report.json_values))
    assert data["can_screen"] is False
    assert data["findings"] == [{"weight": "stop", "code": "no_pack", "text": reason("no_pack").text}]
    text = list(console_lines(report.blocks))
    assert text[1:3] == ["Verdict", "  - This computer cannot screen yet."]
    assert "  - Vector instructions: AVX2, VNNI" in text
    assert any("performance" in line for line in text)

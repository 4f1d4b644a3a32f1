"""The doctor's sentences, on computers that are not there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fieldray.bench.benchmark_case import lines
from fieldray.bench.host import (
    Finding,
    HostFacts,
    PackFacts,
    SoftwareFacts,
    StorageFacts,
    TrialFacts,
    can_screen,
    findings,
    host_report,
    verdict,
)
from fieldray.bench.machine import MachineFacts, PowerFacts, ProcessorFacts
from fieldray.inference.coral.status import CoralStatus, Device, LibraryAnswer
from fieldray.inference.coral.usb import UsbDevice
from fieldray.inference.litert import RUNTIME
from fieldray.reasons import reason

MACHINE = MachineFacts(
    system="Linux",
    processor=ProcessorFacts(name="A processor", vectors=("AVX2", "VNNI")),
    power=PowerFacts(governor="performance"),
    cores=4,
    threads=8,
    usable_threads=8,
    clock_mhz=3000,
    highest_clock_mhz=4200,
    is_on_battery=False,
    memory_mb=16_000,
    free_memory_mb=9_000,
    busy=0.02,
)
SOFTWARE = SoftwareFacts(
    program="1.0.0",
    python="3.11.7",
    versions=dict.fromkeys(("numpy", "PIL", "pydicom", "imagecodecs", "psutil", "cryptography", RUNTIME), "1"),
)
PLACES = StorageFacts(
    results="/home/user/fieldray",
    free_mb=50_000,
    problem=None,
    trusted_keys=1,
    trust_problem=None,
    packs=(PackFacts(name="chest-1.0.0", origin="builtin", problem=None),),
)
NO_EDGETPU = CoralStatus(usb=(), answer=None, reason=reason("coral_no_library", name="libedgetpu.so.1"))
TRIAL = TrialFacts(pack_name="chest-1.0.0", backend="cpu", seconds=0.84, has_edgetpu_file=True)
EDGETPU = UsbDevice(port="2-1", state="ready", port_mbit=5000, is_writable=True)
ANSWER = LibraryAnswer(library="libedgetpu.so.1", runtime_version=14, devices=(Device("usb", "/sys/2-1"),))


def facts(**changes: Any) -> HostFacts:
    well = HostFacts(machine=MACHINE, software=SOFTWARE, storage=PLACES, edgetpu=NO_EDGETPU, trial=TRIAL)
    return replace(well, **changes)


def told(*weights: str, **changes: Any) -> list[str]:
    return [one.reason.code for one in findings(facts(**changes)) if one.weight in weights]


def test_a_good_computer_has_nothing_to_change() -> None:
    found = findings(facts())
    assert can_screen(found) and verdict(found) == "This computer can screen."
    assert told("stop", "change") == []
    assert told("well") == ["host_no_edgetpu", "host_trial_well"]
    assert "chest-1.0.0 on cpu within 0.8 s" in found[-1].reason.text


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"software": replace(SOFTWARE, versions={**SOFTWARE.versions, RUNTIME: ""})}, "no_runtime"),
        ({"software": replace(SOFTWARE, versions={**SOFTWARE.versions, "imagecodecs": ""})}, "host_library_missing"),
        ({"storage": replace(PLACES, problem=reason("not_writable", path="/x", detail="read-only"))}, "not_writable"),
        ({"storage": replace(PLACES, trust_problem=reason("trust_damaged", path="/x", detail="y"))}, "trust_damaged"),
        ({"trial": TrialFacts(problem=reason("no_pack"))}, "no_pack"),
        ({"trial": TrialFacts(problem=reason("bad_model", detail="z"))}, "bad_model"),
    ],
)
def test_what_stops_it(changes: dict[str, Any], code: str) -> None:
    assert told("stop", **changes) == [code]
    assert not can_screen(findings(facts(**changes)))


def test_a_missing_runtime_is_said_once() -> None:
    lacking = replace(SOFTWARE, versions={**SOFTWARE.versions, RUNTIME: ""})
    changes = {"software": lacking, "trial": TrialFacts(problem=reason("no_runtime"))}
    assert told("stop", **changes) == ["no_runtime"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"processor": ProcessorFacts(name="old", vectors=())}, "host_no_vectors"),
        ({"power": PowerFacts(governor="powersave", is_saving=True)}, "host_governor"),
        ({"power": PowerFacts(plan="power saver", is_saving=True)}, "host_power_plan"),
        ({"is_on_battery": True}, "host_battery"),
        ({"free_memory_mb": 900}, "host_memory"),
        ({"busy": 0.7}, "host_busy"),
        ({"usable_threads": 2}, "host_few_threads"),
    ],
)
def test_what_to_change_on_the_machine(changes: dict[str, Any], code: str) -> None:
    assert told("change", machine=replace(MACHINE, **changes)) == [code]
    assert can_screen(findings(facts(machine=replace(MACHINE, **changes))))


def test_what_the_system_does_not_tell_is_no_fault() -> None:
    silent = replace(MACHINE, processor=ProcessorFacts(), power=PowerFacts(), clock_mhz=0, highest_clock_mhz=0)
    assert told("stop", "change", machine=silent) == []


def test_a_full_disk() -> None:
    assert told("change", storage=replace(PLACES, free_mb=200)) == ["host_disk"]


def test_a_pack_that_would_not_load_is_named() -> None:
    untrusted = PackFacts(name="other-2.0.0", origin="drive", problem=reason("pack_unsigned"))
    storage = replace(PLACES, packs=(*PLACES.packs, untrusted))
    (text,) = [one.reason.text for one in findings(facts(storage=storage)) if one.weight == "change"]
    assert "other-2.0.0" in text and "no signature" in text


def test_a_pack_that_helps_others_is_no_fault() -> None:
    lungs = PackFacts(name="lungs-1.0.0", origin="builtin", problem=reason("pack_not_classifier", kind="lung-fields"))
    assert told("stop", "change", storage=replace(PLACES, packs=(*PLACES.packs, lungs))) == []


def test_an_edgetpu_in_a_slow_port() -> None:
    slow = CoralStatus(
        usb=(replace(EDGETPU, port_mbit=480),), answer=ANSWER, reason=None, notes=(reason("coral_usb2"),)
    )
    assert told("change", edgetpu=slow) == ["coral_usb2"]
    assert "host_edgetpu_well" in told("well", edgetpu=slow)


def test_an_edgetpu_that_may_not_be_used() -> None:
    barred = CoralStatus(usb=(EDGETPU,), answer=None, reason=reason("coral_no_permission"))
    assert told("change", edgetpu=barred) == ["coral_no_permission"]
    assert can_screen(findings(facts(edgetpu=barred)))


def test_an_edgetpu_for_which_the_pack_has_no_file() -> None:
    there, trial = CoralStatus(usb=(EDGETPU,), answer=ANSWER, reason=None), replace(TRIAL, has_edgetpu_file=False)
    assert told("change", edgetpu=there) == []
    assert told("change", edgetpu=there, trial=trial) == ["coral_not_compiled"]
    assert told("change", trial=trial) == []
    assert "packs that come with the program run on the CPU" in reason("host_no_edgetpu").text


def test_the_serious_comes_first() -> None:
    found = findings(facts(trial=TrialFacts(problem=reason("no_pack")), machine=replace(MACHINE, is_on_battery=True)))
    assert [one.weight for one in found] == ["stop", "change", "well"]


def test_the_report_is_json_and_reads_from_the_top() -> None:
    found = (Finding("stop", reason("no_pack")),)
    report = host_report(facts(), found, kind="doctor")
    data = json.loads(json.dumps(report.data))
    assert data["can_screen"] is False
    assert data["findings"] == [{"weight": "stop", "code": "no_pack", "text": reason("no_pack").text}]
    text = list(lines(report))
    assert text[1:3] == ["Verdict", "  - This computer cannot screen yet."]
    assert "  - Vector instructions: AVX2, VNNI" in text
    assert any("performance" in line for line in text)


def test_without_an_edgetpu_nobody_is_told_to_install_its_runtime() -> None:
    problem = reason("coral_no_library", name="libedgetpu.so.1")
    none = CoralStatus(usb=(), answer=None, reason=reason("edgetpu_not_here"), library_problem=problem)
    text = "\n".join(lines(host_report(facts(edgetpu=none), findings(facts(edgetpu=none)), kind="doctor")))
    assert "Nothing needs to be done" in text and "Edge TPU: none, no runtime" in text
    assert "nstall" not in text


def test_a_runtime_that_cannot_be_used_is_named_also_without_an_edgetpu() -> None:
    problem = reason("coral_bad_library", name="libedgetpu.so.1")
    none = CoralStatus(usb=(), answer=None, reason=reason("edgetpu_not_here"), library_problem=problem)
    text = "\n".join(lines(host_report(facts(edgetpu=none), findings(facts(edgetpu=none)), kind="doctor")))
    assert problem.text in text


def test_with_an_edgetpu_and_no_runtime_it_is_a_thing_to_change() -> None:
    problem = reason("coral_no_library", name="libedgetpu.so.1")
    there = CoralStatus(usb=(EDGETPU,), answer=None, reason=problem, library_problem=problem)
    assert told("change", edgetpu=there) == ["coral_no_library"]
    assert "Nothing needs to be done" not in "\n".join(
        lines(host_report(facts(edgetpu=there), findings(facts(edgetpu=there)), kind="doctor"))
    )

"""The doctor's sentences, on computers that are not there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

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
from fieldray.inference.coral_status import CoralStatus, Device, LibraryAnswer, UsbDevice
from fieldray.inference.litert import RUNTIME
from fieldray.reasons import reason
from fieldray.reports.document import lines

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


def facts(**changes: Any) -> HostFacts:
    well = HostFacts(machine=MACHINE, software=SOFTWARE, storage=PLACES, edgetpu=NO_EDGETPU, trial=TRIAL)
    return replace(well, **changes)


def machine(**changes: Any) -> dict[str, Any]:
    return {"machine": replace(MACHINE, **changes)}


def codes_of(*weights: str, **changes: Any) -> list[str]:
    return [one.reason.code for one in findings(facts(**changes)) if one.weight in weights]


def test_a_good_computer_has_nothing_to_change() -> None:
    found = findings(facts())
    assert can_screen(found) and verdict(found) == "This computer can screen."
    assert codes_of("stop", "change") == []
    assert codes_of("well") == ["host_no_edgetpu", "host_trial_well"]
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
    assert codes_of("stop", **changes) == [code]
    assert not can_screen(findings(facts(**changes)))


def test_a_missing_runtime_is_said_once() -> None:
    lacking = replace(SOFTWARE, versions={**SOFTWARE.versions, RUNTIME: ""})
    changes = {"software": lacking, "trial": TrialFacts(problem=reason("no_runtime"))}
    assert codes_of("stop", **changes) == ["no_runtime"]


ANSWER = LibraryAnswer(library="libedgetpu.so.1", runtime_version=14, devices=(Device("usb", "/sys/2-1"),))
THERE = CoralStatus(usb=(EDGETPU,), answer=ANSWER, reason=None)
SLOW = replace(THERE, usb=(replace(EDGETPU, port_mbit=480),), notes=(reason("coral_usb2"),))
BARRED = CoralStatus(usb=(EDGETPU,), answer=None, reason=reason("coral_no_permission"))
LUNGS = PackFacts(name="lungs-1.0.0", origin="builtin", problem=reason("pack_not_classifier", kind="lung-fields"))
NO_FILE = replace(TRIAL, has_edgetpu_file=False)


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        (machine(processor=ProcessorFacts(name="old", vectors=())), ["host_no_vectors"]),
        (machine(power=PowerFacts(governor="powersave", is_saving=True)), ["host_governor"]),
        (machine(power=PowerFacts(plan="power saver", is_saving=True)), ["host_power_plan"]),
        (machine(is_on_battery=True), ["host_battery"]),
        (machine(free_memory_mb=900), ["host_memory"]),
        (machine(busy=0.7), ["host_busy"]),
        (machine(usable_threads=2), ["host_few_threads"]),
        (machine(processor=ProcessorFacts(), power=PowerFacts(), clock_mhz=0, highest_clock_mhz=0), []),
        ({"storage": replace(PLACES, free_mb=200)}, ["host_disk"]),
        ({"storage": replace(PLACES, packs=(*PLACES.packs, LUNGS))}, []),  # it helps others
        ({"edgetpu": SLOW}, ["coral_usb2"]),
        ({"edgetpu": BARRED}, ["coral_no_permission"]),
        ({"edgetpu": THERE}, []),
        ({"edgetpu": THERE, "trial": NO_FILE}, ["coral_not_compiled"]),
        ({"trial": NO_FILE}, []),
    ],
)
def test_what_to_change(changes: dict[str, Any], codes: list[str]) -> None:
    assert codes_of("change", **changes) == codes
    assert can_screen(findings(facts(**changes)))


def test_what_is_well_of_an_edgetpu_and_without_one() -> None:
    assert "host_edgetpu_well" in codes_of("well", edgetpu=SLOW)
    assert "packs that come with the program run on the CPU" in reason("host_no_edgetpu").text


def test_a_pack_that_would_not_load_is_named() -> None:
    untrusted = PackFacts(name="other-2.0.0", origin="drive", problem=reason("pack_unsigned"))
    storage = replace(PLACES, packs=(*PLACES.packs, untrusted))
    (text,) = [one.reason.text for one in findings(facts(storage=storage)) if one.weight == "change"]
    assert "other-2.0.0" in text and "no signature" in text


def test_the_serious_comes_first() -> None:
    found = findings(facts(trial=TrialFacts(problem=reason("no_pack")), machine=replace(MACHINE, is_on_battery=True)))
    assert [one.weight for one in found] == ["stop", "change", "well"]


def test_the_report_is_json_and_reads_from_the_top() -> None:
    found = (Finding("stop", reason("no_pack")),)
    report = host_report(facts(), found, kind="doctor")
    data = json.loads(json.dumps(report.data))
    assert data["can_screen"] is False
    assert data["findings"] == [{"weight": "stop", "code": "no_pack", "text": reason("no_pack").text}]
    text = list(lines(report.blocks))
    assert text[1:3] == ["Verdict", "  - This computer cannot screen yet."]
    assert "  - Vector instructions: AVX2, VNNI" in text
    assert any("performance" in line for line in text)


NO_LIBRARY = reason("coral_no_library", name="libedgetpu.so.1")


def told(edgetpu: CoralStatus) -> str:
    """The report on a good computer with this Edge TPU."""
    well = facts(edgetpu=edgetpu)
    return "\n".join(lines(host_report(well, findings(well), kind="doctor").blocks))


def test_without_an_edgetpu_nobody_is_told_to_install_its_runtime() -> None:
    text = told(CoralStatus(usb=(), answer=None, reason=reason("edgetpu_not_here"), library_problem=NO_LIBRARY))
    assert "Nothing needs to be done" in text and "Edge TPU: none, no runtime" in text
    assert "nstall" not in text


def test_a_runtime_that_cannot_be_used_is_named_also_without_an_edgetpu() -> None:
    problem = reason("coral_bad_library", name="libedgetpu.so.1")
    none = CoralStatus(usb=(), answer=None, reason=reason("edgetpu_not_here"), library_problem=problem)
    assert problem.text in told(none)


def test_with_an_edgetpu_and_no_runtime_it_is_a_thing_to_change() -> None:
    there = CoralStatus(usb=(EDGETPU,), answer=None, reason=NO_LIBRARY, library_problem=NO_LIBRARY)
    assert codes_of("change", edgetpu=there) == ["coral_no_library"]
    assert "Nothing needs to be done" not in told(there)

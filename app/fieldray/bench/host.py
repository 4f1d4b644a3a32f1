"""Inspection of a computer part by part: whether the computer can screen, and which changes would help.

The advice is a list of changes. It follows method 3 of V. Taran's dissertation (adapt the host: system, USB, clock).
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from fieldray.backends import CPU, EDGE_TPU
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, find_images, open_one_worker
from fieldray.bench.machine import MachineFacts, collect_machine_facts
from fieldray.domain.model import Model
from fieldray.domain.run import DeviceState
from fieldray.errors import FieldrayError, StorageProblem
from fieldray.inference.coral_status import CoralStatus, find_coral_status
from fieldray.inference.litert import RUNTIME_PACKAGE
from fieldray.packs.library import PackLibrary
from fieldray.packs.naming import PackCandidate
from fieldray.packs.signing import TrustStore
from fieldray.paths import VERSION
from fieldray.reasons import Reason, reason
from fieldray.workers.calls import AnalysisRequest

Severity = Literal["stop", "change", "well"]

MIN_MEMORY_MB: Final = 2048
MIN_DISK_MB: Final = 1024
_BUSY: Final = 0.3
_HELPS_OTHERS: Final = "pack_not_classifier"  # no fault: classifiers use such a pack
_FAST: Final = frozenset({"AVX2", "NEON"})
_TITLES: Final[Mapping[Severity, str]] = {"stop": "Has to be fixed", "change": "What to change", "well": "In order"}
_EDGETPU_STATES: Final[Mapping[DeviceState, str]] = {"absent": "none", "uninitialised": "plugged in", "ready": "ready"}
# import name: package name
_LIBRARIES: Final = {
    "numpy": "numpy",
    "PIL": "pillow",
    "pydicom": "pydicom",
    "imagecodecs": "imagecodecs",
    "psutil": "psutil",
    "cryptography": "cryptography",
    "PySide6": "PySide6-Essentials",
    "ai_edge_litert": "ai-edge-litert",
}
_OPTIONAL: Final = frozenset({"PySide6", RUNTIME_PACKAGE})  # a missing runtime has a message of its own


@dataclass(frozen=True, slots=True)
class HostFinding:
    """One finding about a computer: a sentence for a person, and how serious the finding is.

    severity  "stop": screening is impossible until the problem is fixed; "change": a change would help; "well": no
              change is needed
    """

    severity: Severity
    reason: Reason


@dataclass(frozen=True, slots=True)
class ComputerPart:
    """One part of a computer, such as the storage: findings for a person, and facts by name."""

    findings: Sequence[HostFinding]
    facts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreeningTrial:
    """The outcome of screening one image as a trial.

    problem           the reason why the trial failed, or None
    duration_s        time from loading the pack to the image's result
    has_edgetpu_file  whether the pack has a file for the Edge TPU
    """

    pack_name: str = ""
    problem: Reason | None = None
    duration_s: float = 0.0
    has_edgetpu_file: bool = False


def inspect_computer(home: Path, library: PackLibrary, *, load_pack: Callable[[], Model]) -> tuple[ComputerPart, ...]:
    """Inspect the whole computer, and screen one image as a trial. The inspection takes a few seconds.

    home       the user's data folder
    library    the packs on this computer
    load_pack  returns the pack for the trial
    """
    machine, edgetpu, trial = collect_machine_facts(), find_coral_status(), try_screening(load_pack)
    free_mb, packs = shutil.disk_usage(home).free // 2**20, library.available()
    return (
        inspect_machine_facts(machine),
        inspect_edgetpu(edgetpu, trial),
        inspect_software({name: _version(name, installed_as) for name, installed_as in _LIBRARIES.items()}),
        inspect_storage(home, free_mb=free_mb, keys=library.trust_store, packs=packs, trial=trial),
        ComputerPart([_of_trial(trial)], {}),
    )


def findings_by_severity(parts: Iterable[ComputerPart]) -> tuple[HostFinding, ...]:
    """Return the findings about all parts of a computer, the most serious first, without duplicates."""
    found = dict.fromkeys(finding for part in parts for finding in part.findings)
    return tuple(sorted(found, key=lambda finding: tuple(_TITLES).index(finding.severity)))


def can_screen(found: Iterable[HostFinding]) -> bool:
    """Return whether the computer can screen: no finding in `found` has the severity "stop"."""
    return all(finding.severity != "stop" for finding in found)


# ---- the trial


def try_screening(load_pack: Callable[[], Model]) -> ScreeningTrial:
    """Screen one synthetic image, from file to result, with the pack that `load_pack` returns.

    The function never raises. If the trial fails, `ScreeningTrial.problem` is the reason.
    """
    pack_name = ""
    try:
        model = load_pack()
        pack_name = model.pack_name
        with tempfile.TemporaryDirectory() as folder:
            (ref,) = find_images(None, count=1, synthetic_folder=Path(folder))
            began_s = time.perf_counter()
            with open_one_worker() as readers:
                seen = readers.analyse(AnalysisRequest(ref=ref, classifier_location="here"), model=model)
                if seen.network_output is None:
                    raise FieldrayError(seen.problem or reason("wrong_answer"))
                seconds = time.perf_counter() - began_s
    except FieldrayError as problem:
        return ScreeningTrial(pack_name=pack_name, problem=problem.reason)
    except OSError as error:
        return ScreeningTrial(pack_name=pack_name, problem=reason("host_trial_stopped", detail=error))
    has_file = not model.files.keys().isdisjoint(EDGE_TPU.file_roles)
    return ScreeningTrial(pack_name=pack_name, duration_s=seconds, has_edgetpu_file=has_file)


def _of_trial(trial: ScreeningTrial) -> HostFinding:
    if trial.problem:
        return HostFinding("stop", trial.problem)
    seconds = f"{trial.duration_s:.1f}"
    return HostFinding("well", reason("host_trial_well", pack=trial.pack_name, backend=CPU.title, seconds=seconds))


# ---- the parts


def inspect_software(versions: Mapping[str, str]) -> ComputerPart:
    """Describe the program and the Python packages that the program uses.

    versions  version by import name; empty text for a package that is not installed
    """
    found = [] if versions[RUNTIME_PACKAGE] else [HostFinding("stop", reason("no_runtime"))]
    missing = [_LIBRARIES[name] for name in _LIBRARIES if name not in _OPTIONAL and not versions[name]]
    if missing:
        found.append(HostFinding("stop", reason("host_library_missing", names=", ".join(missing))))
    listed = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return ComputerPart(
        found, {"Program": f"fieldray {VERSION}, Python {platform.python_version()}", "Libraries": listed}
    )


def _version(name: str, installed_as: str) -> str:
    """Return the version of an installed package without importing the package.

    Returns an empty text for a package that is not installed, and "?" for a package without installed metadata.
    """
    if importlib.util.find_spec(name) is None:
        return ""
    try:
        return metadata.version(installed_as)
    except metadata.PackageNotFoundError:  # installed without metadata, as in the installed program
        return "?"


def inspect_storage(
    home: Path, *, free_mb: int, keys: TrustStore, packs: Sequence[PackCandidate], trial: ScreeningTrial
) -> ComputerPart:
    """Describe the results folder, the trusted keys and the available packs.

    home     the user's data folder, tested for write permission
    free_mb  free space in MB on the disk of `home`
    keys     the trusted keys
    packs    the packs found on this computer
    trial    the outcome of screening one image
    """
    found, trusted = [], 0
    try:
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"fieldray")
    except OSError as error:
        found.append(HostFinding("stop", reason("not_writable", path=home, detail=error.strerror or error)))
    try:
        trusted = len(keys.trusted_key_dates())
    except StorageProblem as problem:
        found.append(HostFinding("stop", problem.reason))
    if free_mb < MIN_DISK_MB:
        found.append(HostFinding("change", reason("host_disk", free_mb=free_mb, path=home)))
    for pack in packs:
        if (why := pack.problem) and why != trial.problem and why.code != _HELPS_OTHERS:
            found.append(HostFinding("change", reason("host_other_pack", name=pack.pack_name, detail=why.text)))
    facts = {
        "Results": f"{home}, {free_mb} MB free",
        "Trusted keys": str(trusted),
        "Packs": ", ".join(f"{pack.pack_name} ({pack.origin})" for pack in packs) or "none",
    }
    return ComputerPart(found, facts)


def _slow(machine: MachineFacts) -> Iterator[Reason]:
    """Yield each reason why this computer is slower than it could be."""
    if machine.vector_instructions is not None and not _FAST & set(machine.vector_instructions):
        yield reason("host_no_vectors")
    if machine.saves_power and machine.cpu_governor:
        yield reason("host_governor", governor=machine.cpu_governor)
    elif machine.saves_power:
        yield reason("host_power_plan", plan=machine.power_plan)
    if machine.is_on_battery:
        yield reason("host_battery")
    if machine.free_memory_mb < MIN_MEMORY_MB:
        yield reason("host_memory", free_mb=machine.free_memory_mb, needed_mb=MIN_MEMORY_MB)
    if machine.cpu_load > _BUSY:
        yield reason("host_busy", percent=f"{machine.cpu_load * 100:.0f}")
    if machine.usable_threads < machine.threads:
        yield reason("host_few_threads", usable=machine.usable_threads, threads=machine.threads)


def inspect_machine_facts(machine: MachineFacts) -> ComputerPart:
    """Describe operating system, CPU, power and memory."""
    vectors = (
        ", ".join(machine.vector_instructions)
        if machine.vector_instructions is not None
        else "not reported by the system"
    )
    clock = f"{machine.clock_mhz:.0f} MHz" if machine.clock_mhz else "not reported by the system"
    highest = f", at most {machine.highest_clock_mhz:.0f} MHz" if machine.highest_clock_mhz else ""
    plan = machine.cpu_governor or machine.power_plan or "not reported by the system"
    cores = f"{machine.cores} cores, {machine.threads} threads, {machine.usable_threads} for this program"
    facts = {
        "System": machine.system,
        "CPU": f"{machine.processor}, {cores}",
        "Vector instructions": vectors or "none",
        "Clock": f"{clock}{highest}; power plan: {plan}{', on battery' if machine.is_on_battery else ''}",
        "Memory": f"{machine.memory_mb} MB, {machine.free_memory_mb} MB free",
        "Busy with other programs": f"{machine.cpu_load:.0%}",
    }
    return ComputerPart([HostFinding("change", why) for why in _slow(machine)], facts)


def inspect_edgetpu(edgetpu: CoralStatus, trial: ScreeningTrial) -> ComputerPart:
    """Describe the Edge TPU and its runtime library.

    A missing runtime is reported only on a computer with an Edge TPU.
    """
    facts = {"Edge TPU": _edgetpu_fact(edgetpu)}
    if edgetpu.state == "absent":
        return ComputerPart([HostFinding("well", reason("host_no_edgetpu"))], facts)
    found = [
        HostFinding("change", edgetpu.reason) if edgetpu.reason else HostFinding("well", reason("host_edgetpu_well"))
    ]
    if trial.problem is None and not trial.has_edgetpu_file:
        found.append(HostFinding("change", reason("coral_not_compiled", pack=trial.pack_name)))
    return ComputerPart(found + [HostFinding("change", note) for note in edgetpu.notes], facts)


def _edgetpu_fact(edgetpu: CoralStatus) -> str:
    """Return the line about the Edge TPU for the report: its state, USB ports and runtime.

    For an Edge TPU that cannot be used, the line names the problem. A computer without an Edge TPU gets no advice to
    install a runtime.
    """
    parts = [_EDGETPU_STATES[edgetpu.state]]
    parts += [f"{usb.port}: {usb.port_mbit or '?'} Mbit/s" for usb in edgetpu.usb_devices]
    if edgetpu.runtime:
        parts.append(f"runtime {edgetpu.runtime.runtime_version or '?'} ({edgetpu.runtime.library})")
    elif edgetpu.library_problem:
        is_missing = edgetpu.library_problem.code == "coral_no_library"
        parts.append("no runtime" if is_missing else edgetpu.library_problem.text)
    return ", ".join(parts)


# ---- the report


def host_report(parts: Sequence[ComputerPart], *, measured: BenchmarkReport | None = None) -> BenchmarkReport:
    """Make the report on this computer: whether it can screen, findings by severity, measurements and facts.

    measured  the report of `bench host`; None for the report of `fieldray doctor`
    """
    found = findings_by_severity(parts)
    verdict = "This computer can screen." if can_screen(found) else "This computer cannot screen yet."
    facts = {name: value for part in parts for name, value in part.facts.items()}
    listed = BulletList("Facts", tuple(f"{name}: {value}" for name, value in facts.items()))
    return BenchmarkReport(
        file_stem="bench-host" if measured else "doctor",
        title="Fieldray: this computer",
        blocks=(
            BulletList("Verdict", (verdict,)),
            *_lists(found),
            *(measured.blocks if measured else ()),
            listed,
        ),
        json_values={
            "can_screen": can_screen(found),
            "findings": [{"weight": one.severity, "code": one.reason.code, "text": one.reason.text} for one in found],
            "facts": facts,
            **(measured.json_values if measured else {}),
        },
    )


def _lists(found: Sequence[HostFinding]) -> Iterator[BulletList]:
    for weight, title in _TITLES.items():
        sentences = tuple(one.reason.text for one in found if one.severity == weight)
        if sentences:
            yield BulletList(title, sentences)

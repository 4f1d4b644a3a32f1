"""Everything known about a computer, as values; what follows from it: whether it can screen, and what would help.

The advice is method 3 of the dissertation (adapt the host: system, USB, clock) as a list of things to change.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from fieldray.backends import CPU, EDGE_TPU
from fieldray.bench.benchmark_case import Block, Points, Report, find_images, one_worker
from fieldray.bench.machine import MachineFacts, machine_facts
from fieldray.domain.model import Model
from fieldray.domain.run import DeviceState
from fieldray.errors import FieldrayError, StorageProblem
from fieldray.inference.coral_status import CoralStatus, look
from fieldray.inference.litert import RUNTIME
from fieldray.packs.library import PackLibrary
from fieldray.paths import VERSION
from fieldray.reasons import Reason, reason
from fieldray.workers.calls import Look

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
_OPTIONAL: Final = frozenset({"PySide6", RUNTIME})


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFacts:
    """`versions` by import name, empty where a package is missing."""

    program: str
    python: str
    versions: Mapping[str, str]

    @property
    def missing(self) -> tuple[str, ...]:
        """Required packages that are missing; runtime and window are reported separately."""
        return tuple(_LIBRARIES[name] for name in _LIBRARIES if name not in _OPTIONAL and not self.versions[name])


def software_facts() -> SoftwareFacts:
    """Ask the packages' own records; nothing is imported."""
    return SoftwareFacts(
        program=VERSION,
        python=platform.python_version(),
        versions={name: _version(name, installed_as) for name, installed_as in _LIBRARIES.items()},
    )


def _version(name: str, installed_as: str) -> str:
    if importlib.util.find_spec(name) is None:
        return ""
    try:
        return metadata.version(installed_as)
    except metadata.PackageNotFoundError:  # installed without its record, as in the installed program
        return "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFacts:
    """A pack within reach, and why it cannot be loaded (None if it can)."""

    name: str
    origin: str
    problem: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """`results` is the folder of results; `problem` and `trust_problem` say what is wrong with it and with the keys."""

    results: str
    free_mb: int
    problem: Reason | None
    trusted_keys: int
    trust_problem: Reason | None
    packs: tuple[PackFacts, ...]


def check_storage(home: Path, library: PackLibrary, *, drives: Iterable[Path]) -> StorageFacts:
    """Check room, permission, trusted keys and packs; `home` is the user's data folder."""
    keys, trust_problem = 0, None
    try:
        keys = len(library.keys.trusted())
    except StorageProblem as problem:
        trust_problem = problem.reason
    found = library.available(drives)
    return StorageFacts(
        results=str(home),
        free_mb=shutil.disk_usage(home).free // 2**20,
        problem=_write_problem(home),
        trusted_keys=keys,
        trust_problem=trust_problem,
        packs=tuple(PackFacts(name=one.pack_name, origin=one.origin, problem=one.problem) for one in found),
    )


def _write_problem(folder: Path) -> Reason | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"fieldray")
    except OSError as error:
        return reason("not_writable", path=folder, detail=error.strerror or error)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFacts:
    """Why the trial failed (`problem`); or which backend ran the image, and the seconds from pack to result.

    has_edgetpu_file  whether the pack has a file for the Edge TPU
    """

    pack_name: str = ""
    problem: Reason | None = None
    backend: str = ""
    seconds: float = 0.0
    has_edgetpu_file: bool = False


def try_screening(load: Callable[[], Model]) -> TrialFacts:
    """Prove that this computer can screen: draw, write, read and run one image with the pack that `load` gives."""
    pack_name = ""
    try:
        model = load()
        pack_name = model.pack_name
        seconds = _screen(model)
    except FieldrayError as problem:
        return TrialFacts(pack_name=pack_name, problem=problem.reason)
    except OSError as error:
        return TrialFacts(pack_name=pack_name, problem=reason("host_trial_stopped", detail=error))
    has_file = not model.files.keys().isdisjoint(EDGE_TPU.roles)
    return TrialFacts(pack_name=pack_name, backend=CPU.name, seconds=seconds, has_edgetpu_file=has_file)


def _screen(model: Model) -> float:
    """Seconds from the pack to the result. Raises FieldrayError, OSError."""
    with tempfile.TemporaryDirectory() as folder:
        (ref,) = find_images(None, count=1, drawn_in=Path(folder))
        began_s = time.perf_counter()
        with one_worker() as readers:
            seen = readers.look(Look(ref=ref, runs=True), model=model)
            if seen.answer is None:
                raise FieldrayError(seen.problem or reason("wrong_answer"))
            return time.perf_counter() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """One inspection of a computer."""

    machine: MachineFacts
    software: SoftwareFacts
    storage: StorageFacts
    edgetpu: CoralStatus
    trial: TrialFacts


def inspect(home: Path, library: PackLibrary, *, drives: Iterable[Path], load: Callable[[], Model]) -> HostFacts:
    """Inspect everything and screen one image with the pack that `load` gives; takes a few seconds."""
    return HostFacts(
        machine=machine_facts(),
        software=software_facts(),
        storage=check_storage(home, library, drives=drives),
        edgetpu=look(),
        trial=try_screening(load),
    )


Weight = Literal["stop", "change", "well"]

LEAST_MEMORY_MB: Final = 2048
LEAST_DISK_MB: Final = 1024
_BUSY: Final = 0.3
_HELPS_OTHERS: Final = "pack_not_classifier"  # such a pack is used by those that screen
_FAST: Final = frozenset({"AVX2", "NEON"})
_TITLES: Final[Mapping[Weight, str]] = {"stop": "Has to be fixed", "change": "What to change", "well": "In order"}
_EDGETPU_STATES: Final[Mapping[DeviceState, str]] = {"absent": "none", "uninitialised": "plugged in", "ready": "ready"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence. "stop": nothing can be screened before this is fixed; "change": it would help; "well": good."""

    weight: Weight
    reason: Reason


def findings(facts: HostFacts) -> tuple[Finding, ...]:
    """The most serious ones first."""
    found = [*_stops(facts), *_machine(facts.machine), *_storage(facts), *_edgetpu(facts)]
    if facts.trial.problem is None:
        trial = facts.trial
        line = reason("host_trial_well", pack=trial.pack_name, backend=trial.backend, seconds=f"{trial.seconds:.1f}")
        found.append(Finding("well", line))
    return tuple(sorted(found, key=lambda finding: ("stop", "change", "well").index(finding.weight)))


def can_screen(found: tuple[Finding, ...]) -> bool:
    """Whether nothing stops it."""
    return all(finding.weight != "stop" for finding in found)


def _stops(facts: HostFacts) -> Iterator[Finding]:
    if not facts.software.versions[RUNTIME]:
        yield Finding("stop", reason("no_runtime"))
    if facts.software.missing:
        yield Finding("stop", reason("host_library_missing", names=", ".join(facts.software.missing)))
    for problem in (facts.storage.problem, facts.storage.trust_problem):
        if problem:
            yield Finding("stop", problem)
    # without a runtime the trial would only repeat that
    if facts.trial.problem and facts.trial.problem.code != "no_runtime":
        yield Finding("stop", facts.trial.problem)


def _machine(machine: MachineFacts) -> Iterator[Finding]:
    vectors = machine.processor.vectors
    if vectors is not None and not _FAST & set(vectors):
        yield Finding("change", reason("host_no_vectors"))
    if machine.power.is_saving and machine.power.governor:
        yield Finding("change", reason("host_governor", governor=machine.power.governor))
    elif machine.power.is_saving:
        yield Finding("change", reason("host_power_plan", plan=machine.power.plan))
    if machine.is_on_battery:
        yield Finding("change", reason("host_battery"))
    if machine.free_memory_mb < LEAST_MEMORY_MB:
        line = reason("host_memory", free_mb=machine.free_memory_mb, needed_mb=LEAST_MEMORY_MB)
        yield Finding("change", line)
    if machine.busy > _BUSY:
        yield Finding("change", reason("host_busy", percent=f"{machine.busy * 100:.0f}"))
    if machine.usable_threads < machine.threads:
        yield Finding("change", reason("host_few_threads", usable=machine.usable_threads, threads=machine.threads))


def _storage(facts: HostFacts) -> Iterator[Finding]:
    storage = facts.storage
    if storage.free_mb < LEAST_DISK_MB:
        yield Finding("change", reason("host_disk", free_mb=storage.free_mb, path=storage.results))
    for pack in storage.packs:
        if pack.problem and pack.problem != facts.trial.problem and pack.problem.code != _HELPS_OTHERS:
            yield Finding("change", reason("host_other_pack", name=pack.name, detail=pack.problem.text))


def _edgetpu(facts: HostFacts) -> Iterator[Finding]:
    edgetpu, trial = facts.edgetpu, facts.trial
    if edgetpu.state == "absent":
        # a missing Edge TPU runtime is no fault of a computer that has no Edge TPU
        yield Finding("well", reason("host_no_edgetpu"))
        return
    yield Finding("change", edgetpu.reason) if edgetpu.reason else Finding("well", reason("host_edgetpu_well"))
    if trial.problem is None and not trial.has_edgetpu_file:
        yield Finding("change", reason("coral_not_compiled", pack=trial.pack_name))
    for note in edgetpu.notes:
        yield Finding("change", note)


def verdict(found: tuple[Finding, ...]) -> str:
    """Whether this computer can screen, as one sentence."""
    return "This computer can screen." if can_screen(found) else "This computer cannot screen yet."


def host_report(
    facts: HostFacts,
    found: tuple[Finding, ...],
    *,
    kind: str,
    measured: Sequence[Block] = (),
    variants: Sequence[Mapping[str, Any]] = (),
) -> Report:
    """The verdict, the findings by weight, what was measured, and the facts."""
    return Report(
        kind=kind,
        title="Fieldray: this computer",
        blocks=(Points("Verdict", (verdict(found),)), *_lists(found), *measured, _facts(facts)),
        data={
            "can_screen": can_screen(found),
            "findings": [{"weight": one.weight, "code": one.reason.code, "text": one.reason.text} for one in found],
            "facts": asdict(facts),
            "variants": list(variants),
        },
    )


def _lists(found: Sequence[Finding]) -> Iterator[Points]:
    for weight, title in _TITLES.items():
        sentences = tuple(one.reason.text for one in found if one.weight == weight)
        if sentences:
            yield Points(title, sentences)


def _facts(facts: HostFacts) -> Points:
    software, storage = facts.software, facts.storage
    versions = ", ".join(f"{name} {version}" for name, version in software.versions.items() if version)
    packs = ", ".join(f"{pack.name} ({pack.origin})" for pack in storage.packs) or "none"
    rows = (
        *_machine_rows(facts.machine),
        ("Edge TPU", _edgetpu_row(facts.edgetpu)),
        ("Program", f"fieldray {software.program}, Python {software.python}"),
        ("Libraries", versions),
        ("Results", f"{storage.results}, {storage.free_mb} MB free"),
        ("Trusted keys", str(storage.trusted_keys)),
        ("Packs", packs),
    )
    return Points("Facts", tuple(f"{name}: {value}" for name, value in rows))


def _machine_rows(machine: MachineFacts) -> tuple[tuple[str, str], ...]:
    power, processor = machine.power, machine.processor
    vectors = ", ".join(processor.vectors) if processor.vectors is not None else "not reported by the system"
    clock = f"{machine.clock_mhz:.0f} MHz" if machine.clock_mhz else "not reported by the system"
    highest = f", at most {machine.highest_clock_mhz:.0f} MHz" if machine.highest_clock_mhz else ""
    plan = power.governor or power.plan or "not reported by the system"
    cores = f"{machine.cores} cores, {machine.threads} threads, {machine.usable_threads} for this program"
    return (
        ("System", machine.system),
        ("CPU", f"{processor.name}, {cores}"),
        ("Vector instructions", vectors or "none"),
        ("Clock", f"{clock}{highest}; power plan: {plan}{', on battery' if machine.is_on_battery else ''}"),
        ("Memory", f"{machine.memory_mb} MB, {machine.free_memory_mb} MB free"),
        ("Busy with other programs", f"{machine.busy:.0%}"),
    )


def _edgetpu_row(edgetpu: CoralStatus) -> str:
    """Facts only: without an Edge TPU nobody is told to install a runtime, but one that cannot be used is named."""
    parts = [_EDGETPU_STATES[edgetpu.state]]
    parts += [f"{usb.port}: {usb.port_mbit or '?'} Mbit/s" for usb in edgetpu.usb]
    if edgetpu.answer:
        parts.append(f"runtime {edgetpu.answer.runtime_version or '?'} ({edgetpu.answer.library})")
    elif edgetpu.library_problem:
        is_missing = edgetpu.library_problem.code == "coral_no_library"
        parts.append("no runtime" if is_missing else edgetpu.library_problem.text)
    return ", ".join(parts)

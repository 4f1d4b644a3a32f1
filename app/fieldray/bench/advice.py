"""What follows from the facts about a computer: whether it can screen, and what would make it better.

This is method 3 of the dissertation (adapt the host: system, USB, clock) as a list of things to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from fieldray.bench.host import HostFacts
from fieldray.bench.machine import MachineFacts
from fieldray.bench.report import Block, Points, Report
from fieldray.domain.events import DeviceState
from fieldray.inference.coral.status import CoralStatus
from fieldray.reasons import Reason, reason

Weight = Literal["stop", "change", "well"]

LEAST_MEMORY_MB: Final = 2048
LEAST_DISK_MB: Final = 1024
_BUSY: Final = 0.3
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
    found = [*_stops(facts), *_machine(facts.machine), *_software(facts), *_storage(facts), *_edgetpu(facts.edgetpu)]
    if facts.trial.problem is None:
        trial = facts.trial
        words = reason("host_trial_well", pack=trial.pack_name, backend=trial.backend, seconds=f"{trial.seconds:.1f}")
        found.append(Finding("well", words))
    return tuple(sorted(found, key=lambda finding: ("stop", "change", "well").index(finding.weight)))


def can_screen(found: tuple[Finding, ...]) -> bool:
    """Whether nothing stops it."""
    return all(finding.weight != "stop" for finding in found)


def _stops(facts: HostFacts) -> Iterator[Finding]:
    if not facts.software.runtimes:
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
        words = reason("host_memory", free_mb=machine.free_memory_mb, needed_mb=LEAST_MEMORY_MB)
        yield Finding("change", words)
    if machine.busy > _BUSY:
        yield Finding("change", reason("host_busy", percent=f"{machine.busy * 100:.0f}"))
    if machine.usable_threads < machine.threads:
        yield Finding("change", reason("host_few_threads", usable=machine.usable_threads, threads=machine.threads))


def _software(facts: HostFacts) -> Iterator[Finding]:
    if facts.software.runtimes[:1] == ("tflite_runtime",):
        yield Finding("change", reason("host_slow_runtime"))


def _storage(facts: HostFacts) -> Iterator[Finding]:
    storage = facts.storage
    if storage.free_mb < LEAST_DISK_MB:
        yield Finding("change", reason("host_disk", free_mb=storage.free_mb, path=storage.results))
    for pack in storage.packs:
        if pack.problem and pack.problem != facts.trial.problem:
            yield Finding("change", reason("host_other_pack", name=pack.name, detail=pack.problem.text))


def _edgetpu(edgetpu: CoralStatus) -> Iterator[Finding]:
    if edgetpu.state == "absent":
        # a missing Edge TPU runtime is no fault of a computer that has no Edge TPU
        yield Finding("well", reason("host_no_edgetpu"))
        return
    yield Finding("change", edgetpu.reason) if edgetpu.reason else Finding("well", reason("host_edgetpu_well"))
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

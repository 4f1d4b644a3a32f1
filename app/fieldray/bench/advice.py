"""What to make of the facts: whether this computer can screen, and what would make it better.

This is method 3 of the dissertation (adapt the host: system, USB, clock) as a list of things to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from fieldray.bench.facts import HostFacts
from fieldray.bench.machine import MachineFacts
from fieldray.inference.coral.status import CoralStatus
from fieldray.reasons import Reason, reason

Weight = Literal["stop", "change", "well"]

LEAST_MEMORY_MB: Final = 2048
LEAST_DISK_MB: Final = 1024
_BUSY: Final = 0.3
_FAST: Final = frozenset({"AVX2", "NEON"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence. "stop": images cannot be screened before this is fixed; "change": it would be better; "well"."""

    weight: Weight
    reason: Reason


def findings(facts: HostFacts) -> tuple[Finding, ...]:
    """The most serious ones first."""
    found = [*_stops(facts), *_machine(facts.machine), *_software(facts), *_places(facts), *_edgetpu(facts.edgetpu)]
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
    for problem in (facts.places.problem, facts.places.trust_problem):
        if problem:
            yield Finding("stop", problem)
    # without a runtime the trial only says the same once more
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


def _places(facts: HostFacts) -> Iterator[Finding]:
    places = facts.places
    if places.free_mb < LEAST_DISK_MB:
        yield Finding("change", reason("host_disk", free_mb=places.free_mb, path=places.results))
    for pack in places.packs:
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

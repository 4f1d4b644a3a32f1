"""What `doctor` and `bench host` say about a computer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from fieldray.bench.advice import Finding, can_screen
from fieldray.bench.facts import HostFacts
from fieldray.bench.machine import MachineFacts
from fieldray.bench.report import Block, Points, Report

_TITLES: Final = {"stop": "Has to be fixed", "change": "What to change", "well": "In order"}


def verdict(found: tuple[Finding, ...]) -> str:
    """The one sentence that matters."""
    return "This computer can screen." if can_screen(found) else "This computer cannot screen yet."


def host_report(
    facts: HostFacts,
    found: tuple[Finding, ...],
    *,
    kind: str,
    measured: Sequence[Block] = (),
    factors: Sequence[Mapping[str, Any]] = (),
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
            "factors": list(factors),
        },
    )


def _lists(found: Sequence[Finding]) -> Iterator[Points]:
    for weight, title in _TITLES.items():
        sentences = tuple(one.reason.text for one in found if one.weight == weight)
        if sentences:
            yield Points(title, sentences)


def _facts(facts: HostFacts) -> Points:
    software, places = facts.software, facts.places
    versions = ", ".join(f"{name} {version}" for name, version in software.versions.items() if version)
    packs = ", ".join(f"{pack.name} ({pack.origin})" for pack in places.packs) or "none"
    rows = (
        *_machine_rows(facts.machine),
        ("Edge TPU Edge TPU", _edgetpu(facts)),
        ("Program", f"fieldray {software.program}, Python {software.python}"),
        ("Libraries", versions),
        ("Results", f"{places.results}, {places.free_mb} MB free"),
        ("Trusted keys", str(places.trusted_keys)),
        ("Packs", packs),
    )
    return Points("Facts", tuple(f"{name}: {value}" for name, value in rows))


def _machine_rows(machine: MachineFacts) -> tuple[tuple[str, str], ...]:
    power, processor = machine.power, machine.processor
    vectors = ", ".join(processor.vectors) if processor.vectors is not None else "not told by the system"
    clock = f"{machine.clock_mhz:.0f} MHz" if machine.clock_mhz else "not told by the system"
    highest = f", at most {machine.highest_clock_mhz:.0f} MHz" if machine.highest_clock_mhz else ""
    plan = power.governor or power.plan or "not told by the system"
    cores = f"{machine.cores} cores, {machine.threads} threads, {machine.usable_threads} for this program"
    return (
        ("System", machine.system),
        ("CPU", f"{processor.name}, {cores}"),
        ("Vector instructions", vectors or "none"),
        ("Clock", f"{clock}{highest}; power plan: {plan}{', on battery' if machine.is_on_battery else ''}"),
        ("Memory", f"{machine.memory_mb} MB, {machine.free_memory_mb} MB free"),
        ("Busy with other programs", f"{machine.busy:.0%}"),
    )


def _edgetpu(facts: HostFacts) -> str:
    edgetpu = facts.edgetpu
    parts = [{"absent": "none", "bare": "plugged in", "ready": "ready"}[edgetpu.state]]
    parts += [f"{usb.port}: {usb.port_mbit or '?'} Mbit/s" for usb in edgetpu.usb]
    if edgetpu.answer:
        parts.append(f"Edge TPU runtime {edgetpu.answer.runtime_version or '?'} ({edgetpu.answer.library})")
    return ", ".join(parts) + (f". {edgetpu.library_problem.text}" if edgetpu.library_problem else "")

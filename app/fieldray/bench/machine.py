"""The computer: system, processor with the instructions that matter to a network, clock, power, memory."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass

import psutil

from fieldray.bench import machine_linux, machine_macos, machine_windows
from fieldray.inference.cores import usable_cores

_BUSY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorFacts:
    """What the system tells of the processor. `vectors`: instruction sets that speed up networks, None if not told."""

    name: str = ""
    vectors: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerFacts:
    """`governor` as on Linux, `plan` as on Windows and macOS; empty where there is none or it is not told.

    is_saving   the system holds the processor back to save power
    """

    governor: str = ""
    plan: str = ""
    is_saving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Clocks in MHz (0: not told), memory in MB; `busy` is the share of all cores other programs use now, 0..1."""

    system: str
    processor: ProcessorFacts
    power: PowerFacts
    cores: int
    threads: int
    usable_threads: int
    clock_mhz: float
    highest_clock_mhz: float
    is_on_battery: bool
    memory_mb: int
    free_memory_mb: int
    busy: float


def machine_facts() -> MachineFacts:
    """Ask the system; takes half a second, most of it to see how busy the processor is."""
    memory, battery, clock = psutil.virtual_memory(), psutil.sensors_battery(), _clock()
    return MachineFacts(
        system=platform.platform(),
        processor=_processor(),
        power=_power(),
        cores=psutil.cpu_count(logical=False) or 0,
        threads=os.cpu_count() or 1,
        usable_threads=usable_cores(),
        clock_mhz=clock[0],
        highest_clock_mhz=clock[1],
        is_on_battery=bool(battery and battery.power_plugged is False),
        memory_mb=memory.total // 2**20,
        free_memory_mb=memory.available // 2**20,
        busy=psutil.cpu_percent(_BUSY_S) / 100,
    )


def _processor() -> ProcessorFacts:
    if sys.platform == "win32":
        return ProcessorFacts(name=platform.processor(), vectors=machine_windows.vectors())
    if sys.platform == "darwin":
        name, vectors = machine_macos.processor()
    else:
        name, vectors = machine_linux.processor()
    return ProcessorFacts(name=name or platform.processor(), vectors=vectors)


def _power() -> PowerFacts:
    if sys.platform == "win32":
        plan, is_saving = machine_windows.power_plan()
        return PowerFacts(plan=plan, is_saving=is_saving)
    if sys.platform == "darwin":
        plan, is_saving = machine_macos.power_mode()
        return PowerFacts(plan=plan, is_saving=is_saving)
    governor = machine_linux.governor()
    return PowerFacts(governor=governor, is_saving=governor == "powersave" and not machine_linux.scales_itself())


def _clock() -> tuple[float, float]:
    """(now, highest) in MHz."""
    try:
        clock = psutil.cpu_freq()
    except (NotImplementedError, OSError):  # some virtual machines and ARM boards do not tell
        return 0.0, 0.0
    return (clock.current, clock.max) if clock else (0.0, 0.0)

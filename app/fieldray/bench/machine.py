"""The facts of a computer that affect inference: system, processor, vector instructions, clock, power, memory, load.

The module also makes load for `bench load`. Each child process keeps one core busy for a share of the time, until the
parent closes the child's input. In the child, `handle` makes the load. The load that the operating system counted is
measured separately.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import platform
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from fieldray.process_environment import usable_cores
from fieldray.processes.child import Child
from fieldray.processes.wire import Message

_BUSY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts of a computer. Clocks are in MHz (0 if unknown), memory is in MB.

    vector_instructions  instruction sets that speed up networks; None if unknown
    cpu_governor         name of the clock control on Linux; empty if the name is unknown or there is no clock control
    power_plan           name of the power plan on Windows; empty if unknown
    saves_power          whether the system slows the processor down to save power
    threads              number of hardware threads of the processor
    usable_threads       number of hardware threads that this process may use
    cpu_load             share of the CPU that other programs use, 0..1
    """

    system: str
    processor: str
    vector_instructions: tuple[str, ...] | None
    cpu_governor: str
    power_plan: str
    saves_power: bool
    cores: int
    threads: int
    usable_threads: int
    clock_mhz: float
    highest_clock_mhz: float
    is_on_battery: bool
    memory_mb: int
    free_memory_mb: int
    cpu_load: float


def collect_machine_facts() -> MachineFacts:
    """Collect the facts of this computer. The CPU load is measured for half a second."""
    memory, battery, clock = psutil.virtual_memory(), psutil.sensors_battery(), _clock()
    (processor, vectors), (governor, plan, is_saving) = _processor(), _power()
    return MachineFacts(
        system=platform.platform(),
        processor=processor or platform.processor(),
        vector_instructions=vectors,
        cpu_governor=governor,
        power_plan=plan,
        saves_power=is_saving,
        cores=psutil.cpu_count(logical=False) or 0,
        threads=os.cpu_count() or 1,
        usable_threads=usable_cores(),
        clock_mhz=clock[0],
        highest_clock_mhz=clock[1],
        is_on_battery=bool(battery and battery.power_plugged is False),
        memory_mb=memory.total // 2**20,
        free_memory_mb=memory.available // 2**20,
        cpu_load=psutil.cpu_percent(_BUSY_S) / 100,
    )


def _processor() -> tuple[str, tuple[str, ...] | None]:
    if sys.platform == "win32":
        has = ctypes.windll.kernel32.IsProcessorFeaturePresent
        return "", tuple(name for number, name in _WINDOWS_FEATURES.items() if has(number))
    return linux_processor()


def _power() -> tuple[str, str, bool]:
    if sys.platform == "win32":
        return "", *windows_power_plan()
    governor = linux_cpu_governor()
    return governor, "", governor == "powersave" and not linux_scales_clock_in_powersave()


def _clock() -> tuple[float, float]:
    """Return the processor's current and highest clock in MHz; 0 if unknown."""
    try:
        clock = psutil.cpu_freq()
    except (NotImplementedError, OSError):  # some virtual machines and ARM boards do not report it
        return 0.0, 0.0
    return (clock.current, clock.max) if clock else (0.0, 0.0)


CPUINFO_FILE: Final = Path("/proc/cpuinfo")
CPUFREQ_FOLDER: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq")
# flags of /proc/cpuinfo on x86 and ARM, and their usual names
_LINUX_FLAGS: Final = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx_vnni": "VNNI",
    "avx512_vnni": "VNNI",
    "amx_int8": "AMX",
    "asimd": "NEON",
    "asimddp": "dot product",
    "i8mm": "int8 matrix",
    "sve": "SVE",
}
# drivers that choose the clock by themselves: their "powersave" still runs at full clock under load
_OWN_CHOICE: Final = frozenset({"intel_pstate", "amd-pstate-epp"})


def linux_processor(*, cpuinfo: Path = CPUINFO_FILE) -> tuple[str, tuple[str, ...] | None]:
    """Read the processor's name and vector instructions from `cpuinfo`.

    Returns "" for an unknown name, and None for unknown instructions.
    """
    lines = [line.partition(":") for line in _file_text(cpuinfo).splitlines()]
    fields = {key.strip().lower(): value.strip() for key, _, value in reversed(lines)}
    flags = fields.get("flags") or fields.get("features")
    if flags is None:
        return fields.get("model name", ""), None
    known = dict.fromkeys(_LINUX_FLAGS[flag] for flag in _LINUX_FLAGS if flag in flags.split())
    return fields.get("model name", ""), tuple(known)


def linux_cpu_governor(*, cpufreq: Path = CPUFREQ_FOLDER) -> str:
    """Read the name of the clock control, for example "performance"; empty for a fixed clock (virtual machines)."""
    return _file_text(cpufreq / "scaling_governor").strip()


def linux_scales_clock_in_powersave(*, cpufreq: Path = CPUFREQ_FOLDER) -> bool:
    """Return whether Linux's clock driver raises the CPU's clock under load, even with the governor "powersave"."""
    return _file_text(cpufreq / "scaling_driver").strip() in _OWN_CHOICE


def _file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_TIMEOUT_S: Final = 10

# processthreadsapi.h, IsProcessorFeaturePresent
_WINDOWS_FEATURES: Final = {40: "AVX2", 41: "AVX-512", 19: "NEON", 43: "dot product"}
# plans that come with Windows, by GUID, because their names are translated
_PLANS: Final = {
    "a1841308-3541-4fab-bc81-f71556f20b4a": ("power saver", True),
    "381b4222-f694-41f0-9685-ff5bb260df2e": ("balanced", False),
    "8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c": ("high performance", False),
    "e9a42b02-d5df-448d-aa00-03f14749eb61": ("ultimate performance", False),
}
_GUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def windows_power_plan() -> tuple[str, bool]:
    """Return the active Windows power plan's name, and whether the plan saves power.

    The name is empty if the plan is unknown.
    """
    try:
        # the full path, because Windows also searches the current directory for a bare name
        command = [str(Path(os.environ["SYSTEMROOT"]) / "System32" / "powercfg.exe"), "/getactivescheme"]
        answer = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S)
    except (KeyError, OSError, subprocess.SubprocessError):
        return "", False
    return parse_power_plan(answer.stdout.decode(errors="replace"))


def parse_power_plan(text: str) -> tuple[str, bool]:
    """Parse the output of `powercfg /getactivescheme`: a GUID, then a name in brackets in the user's language.

    Returns (name, whether the plan saves power).
    """
    guid = _GUID.search(text)
    if not guid:
        return "", False
    name = re.search(r"\((.*)\)", text)
    return _PLANS.get(guid[0].lower(), (name[1] if name else guid[0], False))


_PERIOD_S: Final = 0.1
_BURSTS_S: Final = (0.1, 1.0)  # programs in use work in bursts of many lengths
_ELEMENTS: Final = 65_536  # half a megabyte, so that the load takes its share of the caches


def cpu_load_bursts(share: float, *, is_irregular: bool, seed: int) -> Iterator[tuple[float, float]]:
    """Yield bursts of work without end, each as (length in seconds, busy seconds within the length).

    share         average share of the time that is busy: 0..1, or at most 0.5 for irregular bursts
    is_irregular  whether lengths and busy parts vary at random, as in interactive use
    seed          seed of the random numbers
    """
    if not is_irregular:
        yield from itertools.repeat((_PERIOD_S, _PERIOD_S * share))
    fortune = random.Random(seed)
    while True:
        length_s = fortune.uniform(*_BURSTS_S)
        yield length_s, length_s * fortune.uniform(0, 2 * share)


def handle(message: Message) -> Message:
    """Start a thread in this child process that makes the load described by the message, and answer at once.

    The message contains the arguments of `cpu_load_bursts`.
    """
    body = message.body
    plan = cpu_load_bursts(body["share"], is_irregular=body["is_irregular"], seed=body["seed"])
    threading.Thread(target=_work, args=(plan,), name="burner", daemon=True).start()
    return Message({})


def _work(plan: Iterator[tuple[float, float]]) -> None:
    values = np.ones(_ELEMENTS)
    for length_s, busy_s in plan:
        began_s, ran_s = time.perf_counter(), time.thread_time()
        # CPU time, not wall time: the demand does not change when other programs want the core, too
        while time.thread_time() - ran_s < busy_s and time.perf_counter() - began_s < length_s:
            np.sqrt(values, out=values)
        time.sleep(max(0.0, length_s - (time.perf_counter() - began_s)))


_SERVICE: Final = "fieldray.bench.machine:handle"
_START_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLevel:
    """A level of CPU load under which networks are timed.

    share         share of every core that the load keeps busy, 0..1
    is_irregular  whether the load comes in bursts, as from programs in interactive use
    """

    name: str
    share: float
    is_irregular: bool = False


NO_LOAD: Final = LoadLevel(name="no load", share=0.0)
LOAD_LEVELS: Final = (
    NO_LOAD,
    LoadLevel(name="a user, 40 %", share=0.4, is_irregular=True),
    LoadLevel(name="60 %", share=0.6),
    LoadLevel(name="100 %", share=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """A measured CPU load, as shares of all cores, 0..1.

    made     load by the processes that make load for a benchmark
    machine  load by all programs together, as psutil counts
    """

    made: float
    machine: float


@contextlib.contextmanager
def running_cpu_load(level: LoadLevel, *, cores: int) -> Iterator[tuple[psutil.Process, ...]]:
    """Run one busy process for each core during the block, and yield the processes.

    level  how busy the processes are; with the share 0 no process is started

    Raises OSError if a process cannot start, ChildDied if a process ends too early or does not answer.
    """
    with contextlib.ExitStack() as ends:
        children = []
        for seed in range(cores if level.share else 0):
            child = Child(_SERVICE)
            child.start()
            ends.callback(child.kill)
            order = {"share": level.share, "is_irregular": level.is_irregular, "seed": seed}
            child.call(Message(order), timeout_s=_START_S)
            children.append(child)
        yield tuple(psutil.Process(child.pid) for child in children)


def measure_cpu_load(processes: Sequence[psutil.Process], *, cores: int, duration_s: float) -> MeasuredLoad:
    """Return the CPU load during the next `duration_s` seconds. The call takes as long.

    processes  the processes that make the load; if empty, `MeasuredLoad.made` is 0
    cores      number of cores
    """
    began_s, before_s, machine = time.perf_counter(), _processor_s(processes), psutil.cpu_times()
    time.sleep(duration_s)
    made = (_processor_s(processes) - before_s) / ((time.perf_counter() - began_s) * cores)
    return MeasuredLoad(made=made, machine=busy_share(machine, psutil.cpu_times()))


def _processor_s(processes: Sequence[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def busy_share(before: object, after: object) -> float:
    """Return the share (0..1) of CPU time that was busy between two values of `psutil.cpu_times`."""
    names = [name for name in getattr(after, "_fields", ()) if name not in ("guest", "guest_nice")]
    spent = {name: getattr(after, name) - getattr(before, name) for name in names}
    total = sum(spent.values())
    idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
    return (total - idle) / total if total > 0 else 0.0

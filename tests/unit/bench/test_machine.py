"""Processors and power plans, read from texts as the operating systems print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.bench import machine
from fieldray.bench.machine import collect_machine_facts

XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8481C
flags\t\t: fpu sse2 avx avx2 avx512f avx512_vnni amx_int8

processor\t: 1
model name\t: Intel(R) Xeon(R) Platinum 8481C
flags\t\t: fpu sse2 avx avx2 avx512f avx512_vnni amx_int8
"""
OLD = "model name : Intel(R) Core(TM)2 Duo\nflags : fpu sse2 ssse3\n"
BOARD = "processor : 0\nFeatures : fp asimd asimddp\nCPU implementer : 0x41\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (XEON, ("Intel(R) Xeon(R) Platinum 8481C", ("AVX2", "AVX-512", "VNNI", "AMX"))),
        (OLD, ("Intel(R) Core(TM)2 Duo", ())),
        (BOARD, ("", ("NEON", "dot product"))),
        ("", ("", None)),
    ],
)
def test_linux_processors(tmp_path: Path, text: str, expected: object) -> None:
    path = tmp_path / "cpuinfo"
    assert machine.linux_processor(cpuinfo=path) == ("", None)
    path.write_text(text)
    assert machine.linux_processor(cpuinfo=path) == expected


def test_linux_governor(tmp_path: Path) -> None:
    assert machine.linux_cpu_governor(cpufreq=tmp_path) == ""
    (tmp_path / "scaling_governor").write_text("powersave\n")
    (tmp_path / "scaling_driver").write_text("intel_pstate\n")
    assert machine.linux_cpu_governor(cpufreq=tmp_path) == "powersave"
    # this driver's "powersave" runs at full clock under load
    assert machine.linux_scales_clock_in_powersave(cpufreq=tmp_path)
    (tmp_path / "scaling_driver").write_text("acpi-cpufreq\n")
    assert not machine.linux_scales_clock_in_powersave(cpufreq=tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Power Scheme GUID: a1841308-3541-4fab-bc81-f71556f20b4a  (Energiesparmodus)\r\n",
            ("power saver", True),
        ),
        ("GUID: 381B4222-F694-41F0-9685-FF5BB260DF2E  (Balanced)\r\n", ("balanced", False)),
        ("GUID: 00000000-1111-2222-3333-444444444444  (Maker's own)\r\n", ("Maker's own", False)),
        ("Access is denied.", ("", False)),
    ],
)
def test_windows_plans(text: str, expected: tuple[str, bool]) -> None:
    assert machine.parse_power_plan(text) == expected


def test_this_machine_tells_something() -> None:
    facts = collect_machine_facts()
    assert facts.threads >= facts.usable_threads >= 1
    assert facts.memory_mb > facts.free_memory_mb > 0
    assert 0 <= facts.cpu_load <= 1

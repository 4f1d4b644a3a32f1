"""The processor as Linux tells it (/proc/cpuinfo; kernel documentation, admin-guide/pm/cpufreq)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
CPUFREQ: Final = Path("/sys/devices/system/cpu/cpu0/cpufreq")
# flags of /proc/cpuinfo on x86 and ARM, and what people call them
_VECTORS: Final = {
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


def processor(*, cpuinfo: Path = CPUINFO) -> tuple[str, tuple[str, ...] | None]:
    """(name, vector instructions); empty and None if the system does not tell."""
    lines = [line.partition(":") for line in _text(cpuinfo).splitlines()]
    fields = {key.strip().lower(): value.strip() for key, _, value in reversed(lines)}
    flags = fields.get("flags") or fields.get("features")
    if flags is None:
        return fields.get("model name", ""), None
    known = dict.fromkeys(_VECTORS[flag] for flag in _VECTORS if flag in flags.split())
    return fields.get("model name", ""), tuple(known)


def governor(*, cpufreq: Path = CPUFREQ) -> str:
    """Who chooses the clock, for example "performance"; empty where the clock cannot be chosen (virtual machines)."""
    return _text(cpufreq / "scaling_governor").strip()


def scales_itself(*, cpufreq: Path = CPUFREQ) -> bool:
    """Whether the driver raises the clock under load whatever the governor is called."""
    return _text(cpufreq / "scaling_driver").strip() in _OWN_CHOICE


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

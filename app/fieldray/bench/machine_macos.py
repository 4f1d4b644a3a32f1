"""The processor and the power mode as macOS tells them (sysctl, pmset)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Final

_VECTORS: Final = {
    "hw.optional.avx2_0": "AVX2",
    "hw.optional.avx512f": "AVX-512",
    "hw.optional.neon": "NEON",
    "hw.optional.arm.FEAT_DotProd": "dot product",
    "hw.optional.arm.FEAT_I8MM": "int8 matrix",
}
_TIMEOUT_S: Final = 10


def processor() -> tuple[str, tuple[str, ...] | None]:
    """(name, vector instructions); empty and None if the system does not tell."""
    values = parse_sysctl(_output("sysctl", "machdep.cpu.brand_string", *_VECTORS))
    known = tuple(name for key, name in _VECTORS.items() if values.get(key) == "1")
    return values.get("machdep.cpu.brand_string", ""), known if values else None


def power_mode() -> tuple[str, bool]:
    """("low power", True) while the system saves power, else an empty name and False."""
    return parse_power(_output("pmset", "-g"))


def parse_sysctl(text: str) -> Mapping[str, str]:
    """Of "key: value" lines; keys this processor does not know are left out by sysctl itself."""
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_power(text: str) -> tuple[str, bool]:
    """Of what `pmset -g` prints: a line "lowpowermode 1" while power is saved."""
    saves = any(line.split()[:2] == ["lowpowermode", "1"] for line in text.splitlines())
    return ("low power", True) if saves else ("", False)


def _output(*command: str) -> str:
    """What a command prints; sysctl prints what it knows and then fails for what it does not."""
    try:
        answer = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode(errors="replace")

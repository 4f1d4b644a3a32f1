"""The processor and the power plan as Windows tells them."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

# processthreadsapi.h, IsProcessorFeaturePresent
_VECTORS: Final = {40: "AVX2", 41: "AVX-512", 19: "NEON", 43: "dot product"}
# GUIDs of the plans that come with Windows: their names are translated, these are not
_PLANS: Final = {
    "a1841308-3541-4fab-bc81-f71556f20b4a": ("power saver", True),
    "381b4222-f694-41f0-9685-ff5bb260df2e": ("balanced", False),
    "8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c": ("high performance", False),
    "e9a42b02-d5df-448d-aa00-03f14749eb61": ("ultimate performance", False),
}
_GUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TIMEOUT_S: Final = 10


def vectors() -> tuple[str, ...] | None:
    """Vector instructions the processor has; None anywhere but on Windows."""
    if sys.platform != "win32":
        return None
    has = ctypes.windll.kernel32.IsProcessorFeaturePresent
    return tuple(name for number, name in _VECTORS.items() if has(number))


def power_plan() -> tuple[str, bool]:
    """(name, whether it saves power); an empty name if the system does not tell."""
    try:
        # by its full name: Windows looks for a bare one in the current directory, too
        command = [str(Path(os.environ["SYSTEMROOT"]) / "System32" / "powercfg.exe"), "/getactivescheme"]
        answer = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S)
    except (KeyError, OSError, subprocess.SubprocessError):
        return "", False
    return parse_plan(answer.stdout.decode(errors="replace"))


def parse_plan(text: str) -> tuple[str, bool]:
    """Of what `powercfg /getactivescheme` prints: a GUID, and a name in brackets in the user's language."""
    guid = _GUID.search(text)
    if not guid:
        return "", False
    name = re.search(r"\((.*)\)", text)
    return _PLANS.get(guid[0].lower(), (name[1] if name else guid[0], False))

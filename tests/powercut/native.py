"""The small C libraries of these tests, which are loaded into the program's processes with LD_PRELOAD."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent


def compiler() -> str | None:
    """The C compiler, None where there is none or where its libraries could not be loaded that way."""
    return (shutil.which("gcc") or shutil.which("cc")) if sys.platform.startswith("linux") else None


def build(name: str, folder: Path) -> Path:
    """Compile `<name>.c` into a folder. Raises subprocess.CalledProcessError."""
    path = folder / f"{name}.so"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
    command = [compiler() or "cc", *flags, "-o", str(path), str(_HERE / f"{name}.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return path

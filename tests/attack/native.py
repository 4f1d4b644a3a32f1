"""Small C libraries that are loaded into the program's processes with LD_PRELOAD."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from attack.case import NotPossible
from attack.world import World

_HERE: Final = Path(__file__).resolve().parent


def library(world: World, name: str) -> dict[str, str]:
    """Compile `<name>.c`; the environment that loads it. Raises NotPossible without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotPossible("there is no C compiler")
    made = world.folder / f"{name}.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(_HERE / f"{name}.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPossible(f"the C compiler failed: {done.stderr[-200:]}")
    return {"LD_PRELOAD": str(made)}

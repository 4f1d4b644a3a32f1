"""Small C libraries that are loaded into the program's processes with LD_PRELOAD, and what they are told to do."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

from attack.case import NotPossible
from attack.world import World

_HERE: Final = Path(__file__).resolve().parent


class OtherClock:
    """A calendar clock of the program's that says what it is set to, also while the program runs."""

    def __init__(self, world: World) -> None:
        self._file = world.folder / "clock"
        self.environment = {**library(world, "other_clock"), "FIELDRAY_ATTACK_CLOCK": str(self._file)}
        self.set_to(time.time())

    def set_to(self, seconds: float) -> None:
        """From now on it counts from here; seconds since 1970."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:  # the same file: it is mapped
            file.write(struct.pack("@l", int(seconds - time.time())))


def library(world: World, name: str, *, folder: Path = _HERE) -> dict[str, str]:
    """Compile `<name>.c`; the environment that loads it. Raises NotPossible without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotPossible("there is no C compiler")
    made = world.folder / f"{name}.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(folder / f"{name}.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPossible(f"the C compiler failed: {done.stderr[-200:]}")
    return {"LD_PRELOAD": str(made)}

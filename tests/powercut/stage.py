"""A stage with a watched disk: acts are performed on it, what they change is written down, and changes can be let fail.

An act is performed by a process of its own (see performer.py) that has `watched_disk.c` loaded. The stage has one
folder, the place; only what lies below it is watched.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from harness.machine import build
from powercut.acts import ACTS
from powercut.disk import Change, read_changes
from powercut.place import Place

How = Literal["once", "from then on", "disk full"]
_HOW: Final[Mapping[How, int]] = {"once": 1, "from then on": 2, "disk full": 3}
_ORDERS: Final = struct.Struct("@6l")
_TESTS: Final = Path(__file__).resolve().parents[1]
_LIMIT_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Changes begin to fail at the change with this number, counted from 1.

    error  the number of the system's error
    room   bytes that a full disk has left then; it gets more where something is removed
    """

    first: int
    how: How
    error: int
    room: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """How an act ended.

    problem  the code and the sentence of the FieldrayError that ended it, None where none did
    crash    the traceback of anything else
    changes  how many there were
    """

    problem: tuple[str, str] | None
    crash: str
    changes: int


class Stage:
    """Made in a folder of its own; a context that ends its process."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder / "place")
        self._log, self._page = folder / "log", folder / "orders"
        self._log.touch()
        self._page.write_bytes(bytes(_ORDERS.size))
        with self._page.open("r+b") as page:
            self._orders = mmap.mmap(page.fileno(), _ORDERS.size)
        source = Path(__file__).with_name("watched_disk.c")
        self._library = build(source, folder / "watched_disk.so", "-fvisibility=hidden")
        self._performer: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._performer:
            self._performer.kill()
            self._performer.communicate()
        self._orders.close()

    def perform(self, name: str, *, fault: Fault | None = None) -> Performed:
        """Perform an act (see acts.py) on the place as it is, and wait for it."""
        if command := ACTS[name].command:
            return self.run(command(self.place), fault=fault)
        self._order(fault, is_watched=False)  # the process begins to watch when it performs
        process = self.start()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({"act": name, "limit_s": _LIMIT_S}) + "\n")
        process.stdin.flush()
        said = json.loads(process.stdout.readline())
        problem = tuple(said["problem"]) if said["problem"] else None
        return Performed(problem=problem, crash=said["crash"], changes=self._changes)

    def run(self, command: Sequence[str], *, fault: Fault | None = None) -> Performed:
        """Run a program on the place, all of its processes watched; what it says on its output is told there."""
        self._order(fault, is_watched=True)
        with self.place.log_path.open("ab") as log:
            done = subprocess.run(
                command,
                env={**os.environ, **self._environment()},
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        _ORDERS.pack_into(self._orders, 0, 0, *_ORDERS.unpack_from(self._orders)[1:])
        crash = done.stderr if "Traceback" in done.stderr or "unexpected" in done.stderr else ""
        problem = None if done.returncode in (0, 1) else (f"exit code {done.returncode}", done.stderr)
        return Performed(problem=problem, crash=crash, changes=self._changes)

    def _order(self, fault: Fault | None, *, is_watched: bool) -> None:
        os.truncate(self._log, 0)
        values = (fault.first, _HOW[fault.how], fault.error, 0, fault.room) if fault else (0, 0, 0, 0, 0)
        _ORDERS.pack_into(self._orders, 0, int(is_watched), *values)

    @property
    def changes(self) -> list[Change]:
        """What the last performance changed, in order."""
        return read_changes(self._log.read_bytes(), self.place.root)

    @property
    def _changes(self) -> int:
        """How many the last performance tried."""
        return int(_ORDERS.unpack_from(self._orders)[4])

    def _environment(self) -> dict[str, str]:
        return {
            "FIELDRAY_HOME": str(self.place.home),
            "LD_PRELOAD": str(self._library),
            "FIELDRAY_WATCHED_FOLDER": str(self.place.root),
            "FIELDRAY_WATCHED_LOG": str(self._log),
            "FIELDRAY_WATCHED_ORDERS": str(self._page),
            "OPENBLAS_NUM_THREADS": "1",  # a process with threads of a library is not to be forked
        }

    def start(self) -> subprocess.Popen[str]:
        """The process that performs acts, started if it was not."""
        self._performer = self._performer or subprocess.Popen(
            [sys.executable, str(_TESTS / "powercut" / "performer.py"), str(self.place.root), str(self._page)],
            env={**os.environ, **self._environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._performer

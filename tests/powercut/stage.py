"""The stage on which acts are performed: every change of its disk is recorded, and chosen changes can be made to fail.

A separate process (performer.py) with the library `watched_disk.c` performs the acts. Only changes below one folder,
the place, are recorded.
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
    """A disk failure that begins at change number `first`, counted from 1.

    error  the errno of the failing calls
    room   bytes that are free on a full disk at that moment; removing files frees more
    """

    first: int
    how: How
    error: int
    room: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """How an act ended.

    problem  code and text of the FieldrayError that ended the act, None if there was none
    crash    the traceback of any other error
    changes  number of changes
    """

    problem: tuple[str, str] | None
    crash: str
    changes: int


class Stage:
    """See the module's docstring. A context manager that ends its process."""

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
        """Perform an act (see acts.py) on the current content of the place, and wait for its end."""
        if command := ACTS[name].command:
            return self.run(command(self.place), fault=fault)
        self._order(fault, is_watched=False)  # the process starts recording at the begin of the act
        process = self.start()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps({"act": name, "limit_s": _LIMIT_S}) + "\n")
        process.stdin.flush()
        said = json.loads(process.stdout.readline())
        problem = tuple(said["problem"]) if said["problem"] else None
        return Performed(problem=problem, crash=said["crash"], changes=self._changes)

    def run(self, command: Sequence[str], *, fault: Fault | None = None) -> Performed:
        """Run a program whose processes are all recorded. Its output counts as reports to the user."""
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
        """The changes that the last act made, in order."""
        return read_changes(self._log.read_bytes(), self.place.root)

    @property
    def _changes(self) -> int:
        """The number of changes that the last act tried."""
        return int(_ORDERS.unpack_from(self._orders)[4])

    def _environment(self) -> dict[str, str]:
        return {
            "FIELDRAY_HOME": str(self.place.home),
            "LD_PRELOAD": str(self._library),
            "FIELDRAY_WATCHED_FOLDER": str(self.place.root),
            "FIELDRAY_WATCHED_LOG": str(self._log),
            "FIELDRAY_WATCHED_ORDERS": str(self._page),
            "OPENBLAS_NUM_THREADS": "1",  # a process must not be forked while a library has threads
        }

    def start(self) -> subprocess.Popen[str]:
        """Return the process that performs acts. Starts it the first time."""
        self._performer = self._performer or subprocess.Popen(
            [sys.executable, str(_TESTS / "powercut" / "performer.py"), str(self.place.root), str(self._page)],
            env={**os.environ, **self._environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._performer

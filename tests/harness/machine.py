"""What a harness asks of the machine: processes and their memory, and C libraries that are loaded into them."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_LOOK_S: Final = 0.02
_CHILDREN_EVERY: Final = 5
_PEAK: Final = re.compile(r"VmHWM:\s+(\d+) kB")


class MemoryWatch:
    """Watches a process until `stop`. `parent_mb` is its own peak, `child_mb` the highest of any process below it.

    VmHWM is the highest resident size since the program was started (proc_pid_status(5)), so looking often enough to
    see a process once before it ends is enough for the peak up to that look.
    """

    def __init__(self, process_id: int) -> None:
        self.parent_mb = 0.0
        self.child_mb = 0.0
        self._process_id = process_id
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch; the peaks stay."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        looks = 0
        while True:
            self.parent_mb = max(self.parent_mb, peak_mb(self._process_id))
            if looks % _CHILDREN_EVERY == 0:
                self.child_mb = max([self.child_mb, *map(peak_mb, descendants(self._process_id))])
            if self._is_over.wait(_LOOK_S):
                return
            looks += 1


def peak_mb(process_id: int) -> float:
    """The peak resident memory of a process, 0 when it is gone."""
    try:
        found = _PEAK.search(Path(f"/proc/{process_id}/status").read_text(encoding="ascii", errors="replace"))
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def descendants(process_id: int) -> list[int]:
    """All processes below this one, as far as they can be seen at this moment."""
    found: list[int] = []
    waiting = [process_id]
    while waiting:
        parent = waiting.pop()
        try:
            tasks = [path / "children" for path in Path(f"/proc/{parent}/task").iterdir()]
            children = [int(number) for path in tasks for number in path.read_text(encoding="ascii").split()]
        except OSError:
            continue
        found += children
        waiting += children
    return found


def command_line(process_id: int) -> bytes:
    """Of a process, empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    return b""


def send(process_ids: Iterable[int], number: signal.Signals) -> None:
    """A signal to processes that may be gone."""
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, number)


class Forked:
    """A process that is forked here, to do something at the same time as others or with an end of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._said, theirs = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.write(theirs, json.dumps(work()).encode())
            os._exit(0)
        os.close(theirs)

    def result(self, until_s: float) -> Any:
        """What `work` gave, as JSON has it; None for a process that ended otherwise, or is killed now, at `until_s`."""
        said = b""
        while select.select([self._said], [], [], max(0.0, until_s - time.monotonic()))[0]:
            part = os.read(self._said, 2**16)
            said += part
            if not part:
                break
        else:
            send([self._process], signal.SIGKILL)
            said = b""
        os.close(self._said)
        os.waitpid(self._process, 0)
        return json.loads(said) if said else None


# ---- C


def compiler() -> str | None:
    """The C compiler, None where there is none or where its libraries could not be loaded into the program."""
    return (shutil.which("gcc") or shutil.which("cc")) if sys.platform.startswith("linux") else None


def build(source: Path, made: Path, *flags: str) -> Path:
    """Compile a library of one file. Raises subprocess.CalledProcessError."""
    every = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    command = [compiler() or "cc", *every, *flags, "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return made

"""Access to the machine for test harnesses: processes, their memory, and C libraries to load into them."""

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
    """Measures peak memory until `stop`. `parent_mb` is the process's own peak, `child_mb` the highest of a descendant.

    VmHWM is the highest resident size since the program was started (proc_pid_status(5)). So a single look shortly
    before a process ends finds its peak so far.
    """

    def __init__(self, process_id: int) -> None:
        self.parent_mb = 0.0
        self.child_mb = 0.0
        self._process_id = process_id
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop measuring. The peaks stay readable."""
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
    """Return the peak resident memory of a process, 0 if the process has ended."""
    try:
        found = _PEAK.search(Path(f"/proc/{process_id}/status").read_text(encoding="ascii", errors="replace"))
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def descendants(process_id: int) -> list[int]:
    """Return all descendants of a process that can be seen at this moment."""
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
    """Return the command line of a process, empty if the process has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    return b""


def send(process_ids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes. Those that have ended are skipped."""
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, number)


class Forked:
    """A forked process that performs `work` beside other processes, or ends without ending this one."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._said, theirs = os.pipe()
        self._process = os.fork()
        if not self._process:
            os.write(theirs, json.dumps(work()).encode())
            os._exit(0)
        os.close(theirs)

    def result(self, until_s: float) -> Any:
        """Return what `work` returned, read from JSON. None if the process crashed or had to be killed at `until_s`."""
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
    """Return the C compiler. None if it is missing, or if the program could not load libraries built by it."""
    return (shutil.which("gcc") or shutil.which("cc")) if sys.platform.startswith("linux") else None


def build(source: Path, made: Path, *flags: str) -> Path:
    """Compile a C file to the library `made`, and return its path. Raises subprocess.CalledProcessError."""
    every = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    command = [compiler() or "cc", *every, *flags, "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return made

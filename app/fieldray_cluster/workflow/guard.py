"""Run a command in a guard process: `guard ORDER`. If the worker closes a pipe or dies, the guard ends the command.

ORDER is the command, its working folder and its output file as JSON. The standard input of the guard is a pipe of the
worker. When the pipe closes, the guard asks the command to end, and five seconds later kills the command's processes.
Otherwise the command would still run while another worker repeats it. The guard writes the result to standard output
as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any, Final

COMMAND_GRACE_S: Final = 5.0
"""Seconds that a command has to end when asked, before the guard kills the command."""
_IS_WINDOWS: Final = sys.platform == "win32"


def main(arguments: list[str] | None = None) -> int:
    """Run the command of an order (JSON), and print the result as JSON. Always returns 0."""
    order = json.loads((sys.argv[1:] if arguments is None else arguments)[0])
    sys.stdout.write(json.dumps(_guarded(order)))
    sys.stdout.flush()
    return 0


def _guarded(order: dict[str, Any]) -> dict[str, Any]:
    """Run the command of an order. Returns exit code, CPU time and memory, or the problem that prevented the start."""
    try:
        with open(order["output"], "ab") as output:  # noqa: PTH123 - as little as possible is imported here
            process = subprocess.Popen(
                order["command"],
                cwd=order["folder"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=not _IS_WINDOWS,
            )
    except (OSError, ValueError) as error:
        name = getattr(error, "filename", None) or order["command"][0]
        return {"problem": f"{name}: {getattr(error, 'strerror', None) or error}"}
    over = threading.Event()
    threading.Thread(target=_end_with_input, args=(process, over), daemon=True).start()
    code = process.wait()
    over.set()
    _signal(process, "SIGKILL")  # ends processes that the command left running
    return {"exit_code": code, **_usage()}


def _end_with_input(process: subprocess.Popen[bytes], over: threading.Event) -> None:
    """Wait until standard input closes, then end the command, unless `over` is set because the command has ended."""
    while os.read(0, 4096):
        pass
    if not over.is_set():
        _signal(process, "SIGTERM")
        if not over.wait(COMMAND_GRACE_S):
            _signal(process, "SIGKILL")


def _signal(process: subprocess.Popen[bytes], name: str) -> None:
    """Send the signal with the name `name` to all processes of the command's process group."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, getattr(signal, name))


def _usage() -> dict[str, float]:
    """Return the CPU time of the command and its child processes in seconds, and the largest memory in MB."""
    if sys.platform == "win32":
        return {}
    import resource

    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    units = 1 << 20 if sys.platform == "darwin" else 1 << 10  # macOS reports bytes, other systems KiB
    return {
        "cpu_seconds": round(found.ru_utime + found.ru_stime, 3),
        "memory_mb": round(found.ru_maxrss / units, 1),
    }


if __name__ == "__main__":
    sys.exit(main())

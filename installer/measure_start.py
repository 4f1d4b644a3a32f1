"""How long the installed program takes to start, warm and cold.

    sudo PYTHONPATH=app python installer/measure_start.py build/frozen/fieldray [--repeats 5]

For each of: `fieldray screen --help` to its end; a worker from its start to its first answer; the window from its
start to its first painted page (under Xvfb). Cold means that the system's cache of files was emptied before, which
needs root; what the disk and the machine below it keep in memory cannot be emptied from here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import screen_picture
from fieldray.processes.child import Child
from fieldray.processes.wire import Message

_DISPLAY: Final = ":96"
_LIMIT_S: Final = 60.0
_CACHES: Final = Path("/proc/sys/vm/drop_caches")


def main() -> int:
    """Measure and print a table; 0 when everything started."""
    parser = argparse.ArgumentParser(description="Time the start of the frozen program.")
    parser.add_argument("frozen", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    frozen = options.frozen.resolve()
    server = subprocess.Popen(["Xvfb", _DISPLAY, "-screen", "0", "1366x768x24", "-nolisten", "tcp", "-noreset"])
    try:
        with tempfile.TemporaryDirectory() as home:
            os.environ.update(FIELDRAY_HOME=home, DISPLAY=_DISPLAY, QT_QPA_PLATFORM="xcb", LANG="C.UTF-8")
            time.sleep(1.0)
            for name, measure in _SUBJECTS.items():
                for kind in ("warm", "cold"):
                    times = [_timed(frozen, measure, is_cold=kind == "cold") for _ in range(options.repeats)]
                    middle, worst = statistics.median(times), max(times)
                    sys.stdout.write(f"{name:<28} {kind}: median {middle:.2f} s, worst of {len(times)} {worst:.2f} s\n")
                    sys.stdout.flush()
    finally:
        server.terminate()
        server.wait()
    return 0


def help_s(frozen: Path) -> float:
    """Until the help of a command was printed."""
    began_s = time.perf_counter()
    subprocess.run([frozen / "fieldray", "screen", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began_s


def worker_s(frozen: Path) -> float:
    """Until a worker has answered that it has loaded the runtime."""
    began_s = time.perf_counter()
    child = Child(
        "fieldray.inference.service:handle", command=lambda service: [str(frozen / "fieldray-worker"), service]
    )
    child.start()
    child.call(Message({"operation": "warm", "runtimes": ["ai_edge_litert"]}), timeout_s=_LIMIT_S)
    taken_s = time.perf_counter() - began_s
    child.close()
    return taken_s


def window_s(frozen: Path) -> float:
    """Until the window's first page is on the screen."""
    began_s = time.perf_counter()
    process = subprocess.Popen([frozen / "fieldray-window"])
    try:
        while len(set(screen_picture.take(_DISPLAY).rows)) < 50:
            if process.poll() is not None or time.perf_counter() - began_s > _LIMIT_S:
                raise TimeoutError("the window did not come")
        return time.perf_counter() - began_s
    finally:
        process.terminate()
        process.wait()


_SUBJECTS: Final[dict[str, Callable[[Path], float]]] = {
    "fieldray screen --help": help_s,
    "a worker's first answer": worker_s,
    "the window's first page": window_s,
}


def _timed(frozen: Path, measure: Callable[[Path], float], *, is_cold: bool) -> float:
    if is_cold:
        subprocess.run(["sync"], check=True)
        _CACHES.write_text("3")
    else:
        measure(frozen)
    return measure(frozen)


if __name__ == "__main__":
    sys.exit(main())

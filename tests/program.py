"""Starting of the program, or of a Python process, for tests, and reading of their output."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from harness.record import Record

Fieldray = Callable[..., Record]


def command(*arguments: object) -> list[str]:
    """Return the command line of `fieldray` with these arguments. Its warnings are errors."""
    return [sys.executable, "-W", "error", "-m", "fieldray", *map(str, arguments)]


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start `fieldray` with its output in pipes."""
    return subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def python(
    code: str, *arguments: object, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a new Python process to its end, in this process's environment or in the given one only."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


def runner(home: Path, *, start: Sequence[str] = ()) -> Fieldray:
    """Return a function that runs `fieldray` to its end with a home. `environment` is added to this process's.

    `start` begins another command line than that of `command`.
    """

    def run(*arguments: object, environment: Mapping[str, str] | None = None) -> Record:
        done = subprocess.run(
            [*start, *map(str, arguments)] if start else command(*arguments),
            env={**os.environ, "FIELDRAY_HOME": str(home), "PYTHONIOENCODING": "utf-8", **(environment or {})},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=100,
            check=False,
        )
        return Record(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


def free_port() -> int:
    """Return a free port of this computer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for_end(processes: list[psutil.Process]) -> None:
    """Wait until the children of a killed program have ended by themselves."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive


def write_images(folder: Path, count: int, *, side: int = 256) -> list[Path]:
    """Write `count` PNG images, each with bytes of its own."""
    from fieldray.imaging.synthetic import chest_phantom  # not earlier: importing pydicom asks for a socket

    folder.mkdir(parents=True, exist_ok=True)
    image = (chest_phantom(side, side, 7, abnormal=False) >> 4).astype(np.uint8)
    paths = []
    for number in range(count):
        image[0, 0], image[0, 1] = number % 256, number // 256
        path = folder / f"image-{number:03}.png"
        Image.fromarray(image).save(path, compress_level=1)
        paths.append(path)
    return paths

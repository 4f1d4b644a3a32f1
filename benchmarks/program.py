"""The program started as a person starts it: how long until the first result, and a network made by its other half."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fieldray.domain.model import InputSpec
from fieldray.paths import program_command

_MAKING_S: Final = 600.0


def time_first_result(arguments: Sequence[str], folder: Path) -> float | None:
    """Seconds from starting the program with `arguments` and the folder to its first line; None if it gives none.

    The program keeps nothing: its user data are in a folder that is removed.
    """
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as home:
        began_s = time.perf_counter()
        with subprocess.Popen(
            program_command(*arguments, str(folder)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "FIELDRAY_HOME": home},
        ) as process:
            assert process.stdout
            line = process.stdout.readline()
            seconds = time.perf_counter() - began_s
            process.stdout.read()
    return seconds if line else None


def make_float_file(spec: InputSpec) -> bytes | str:
    """A ResNet50 of full width in float32, with drawn weights, or why it could not be made. TensorFlow makes it."""
    size = f"{spec.height}x{spec.width}x{spec.channels}"
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as folder:
        arguments = program_command("adapt", "full-width", folder, "--size", size)
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=_MAKING_S, check=False)
        except subprocess.TimeoutExpired:
            return "making a float32 network took too long"
        if done.returncode:
            return (
                "a float32 network could not be made: " + (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            )
        return (Path(folder) / "resnet50-float.tflite").read_bytes()

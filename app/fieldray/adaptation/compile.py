"""Compile an int8 file for the Edge TPU, where Google's `edgetpu_compiler` is installed, and check what it says.

The compiler is a program for x86-64 Linux only. A pack without a compiled file is a whole pack for the CPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.adaptation.placement import MIB, Placement, place
from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.reasons import reason

PROGRAM: Final = "edgetpu_compiler"
_UNITS: Final = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB}
_SIZE: Final = r"([\d.]+)\s*([KMG]?i?B)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerLog:
    """What the compiler reports: bytes of weights on and off the chip, subgraphs, operators in all and on the CPU."""

    cached_bytes: int
    streamed_bytes: int
    subgraphs: int
    operators: int
    left_on_cpu: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compiled:
    """The compiled file, the compiler's report, and the report read from the file itself."""

    data: bytes
    log: CompilerLog
    placement: Placement


def find_compiler() -> Path:
    """Raises EnvironmentProblem (no_compiler) saying what is missing."""
    found = shutil.which(PROGRAM)
    if found is None:
        raise EnvironmentProblem(reason("no_compiler"))
    return Path(found)


def compile_for_edgetpu(
    data: bytes, *, compiler: Path | None = None, least_runtime: int = 13, timeout_s: float = 600
) -> Compiled:
    """Compile an int8 file's bytes.

    compiler        None looks for it on PATH
    least_runtime   smallest runtime version of the clinics' Edge TPUs
    Raises EnvironmentProblem (no_compiler, compiler_failed) or UsageProblem (compiled_partly: some of it stays on the
    CPU or in several subgraphs, which the whole method is there to avoid).
    """
    program = find_compiler() if compiler is None else compiler
    with tempfile.TemporaryDirectory(prefix="fieldray-") as folder:
        source = Path(folder) / "model.tflite"
        source.write_bytes(data)
        command = [str(program), "--min_runtime_version", str(least_runtime), "--show_operations"]
        text = _run([*command, "--out_dir", folder, str(source)], timeout_s=timeout_s)
        made = source.with_name("model_edgetpu.tflite")
        if not made.is_file():
            raise EnvironmentProblem(reason("compiler_failed", detail=_last_line(text)))
        result = Compiled(data=made.read_bytes(), log=read_log(text), placement=place(made.read_bytes()))
    if result.log.left_on_cpu or result.log.subgraphs != 1:
        raise UsageProblem(reason("compiled_partly", subgraphs=result.log.subgraphs, operators=result.log.left_on_cpu))
    return result


def _run(command: list[str], *, timeout_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except FileNotFoundError as problem:
        raise EnvironmentProblem(reason("no_compiler")) from problem
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EnvironmentProblem(reason("compiler_failed", detail=problem)) from problem
    if done.returncode:
        raise EnvironmentProblem(reason("compiler_failed", detail=_last_line(done.stderr or done.stdout)))
    return done.stdout + done.stderr


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def read_log(text: str) -> CompilerLog:
    """Read the compiler's words. Raises EnvironmentProblem (compiler_failed) if they are not as known."""
    return CompilerLog(
        cached_bytes=_bytes(text, r"On-chip memory used for caching model parameters"),
        streamed_bytes=_bytes(text, r"Off-chip memory used for streaming uncached model parameters"),
        subgraphs=_count(text, r"Number of Edge TPU subgraphs"),
        operators=_count(text, r"Total number of operations"),
        left_on_cpu=_count(text, r"Number of operations that will run on CPU", otherwise=0),
    )


def _bytes(text: str, label: str) -> int:
    found = re.search(rf"{label}:\s*{_SIZE}", text)
    if found is None or found[2] not in _UNITS:
        raise EnvironmentProblem(reason("compiler_failed", detail=f"its log lacks: {label}"))
    return round(float(found[1]) * _UNITS[found[2]])


def _count(text: str, label: str, *, otherwise: int | None = None) -> int:
    found = re.search(rf"{label}:\s*(\d+)", text)
    if found is None:
        if otherwise is None:
            raise EnvironmentProblem(reason("compiler_failed", detail=f"its log lacks: {label}"))
        return otherwise
    return int(found[1])

"""The Edge TPU: forecast where the int8 file's operators run, and compile it where `edgetpu_compiler` is installed.

The compiler is a program for x86-64 Linux only. A pack without a compiled file is a complete pack for the CPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.placement import MIB, Placement, describe, place
from fieldray.adaptation.quantise_step import converted
from fieldray.adaptation.run import Run, Step
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

    Parameters
    ----------
    compiler
        None looks for it on PATH.
    least_runtime
        Smallest runtime version of the clinics' Edge TPUs.

    Raises
    ------
    EnvironmentProblem
        (no_compiler, compiler_failed).
    UsageProblem
        (compiled_partly: some of it stays on the CPU or in several subgraphs, which the whole method is there to
        avoid).
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


COMPILED_NAME: Final = "edgetpu.tflite"


def placement_step(run: Run) -> Mapping[str, Any]:
    """Report where the int8 file's operators would run; placement.json and placement.txt."""
    return _report(run, "placement", place(converted(run, "int8").data))


def compile_step(run: Run, *, compiler: Path | None = None) -> Mapping[str, Any]:
    """Compile the int8 file, or say what is missing: the pack is then for the CPU alone.

    A file that an earlier run left is removed first, so that a pack never carries one that does not belong to it.
    Raises UsageProblem (compiled_partly).
    """
    path = run.folder("compile") / COMPILED_NAME
    path.unlink(missing_ok=True)
    try:
        compiled = compile_for_edgetpu(converted(run, "int8").data, compiler=compiler)
    except EnvironmentProblem as problem:
        return {"compiled": False, "why": problem.reason.text}
    write_atomically(path, compiled.data)
    run.write("compile", "log.json", asdict(compiled.log))
    return {"compiled": True, **_report(run, "compile", compiled.placement)}


def edgetpu_file(run: Run) -> dict[str, bytes]:
    """What the compile step made, as a file of a pack; empty if it made nothing."""
    path = run.folder("compile") / COMPILED_NAME
    return {"edgetpu": path.read_bytes()} if path.is_file() else {}


def _report(run: Run, step: str, placement: Placement) -> Mapping[str, Any]:
    run.write(step, "placement.json", asdict(placement) | {"left_on_cpu": dict(placement.left_on_cpu)})
    write_atomically(run.folder(step) / "placement.txt", (describe(placement) + "\n").encode())
    return {
        "operators": len(placement.operators),
        "mapped": placement.mapped,
        "subgraphs": placement.subgraphs,
        "cached_mib": round(placement.cached_bytes / MIB, 2),
        "streamed_mib": round(placement.streamed_bytes / MIB, 2),
        "estimate_ms": None if placement.estimate_ms is None else round(placement.estimate_ms, 1),
    }


PLACEMENT: Final = Step(name="placement", perform=placement_step, reads=())
COMPILE: Final = Step(name="compile", perform=compile_step, reads=())

"""The steps for the Edge TPU: the placement report of the int8 file, and compiling it where the compiler is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from fieldray.adaptation.compile import compile_for_edgetpu
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.placement import MIB, Placement, describe, place
from fieldray.adaptation.quantise_step import converted
from fieldray.adaptation.run import Run, Step
from fieldray.errors import EnvironmentProblem

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

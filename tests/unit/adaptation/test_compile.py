"""Compiling, with a program that behaves as edgetpu_compiler does."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_model_bytes

from fieldray.adaptation.compile import CompilerLog, compile_for_edgetpu, read_log
from fieldray.adaptation.placement import MIB
from fieldray.errors import EnvironmentProblem, UsageProblem

# As version 16.0 prints it.
LOG = """Edge TPU Compiler version 16.0.384591198
Started a compilation timeout timer of 180 seconds.

Model compiled successfully in 1200 ms.

Input model: model.tflite
Input size: 5.90MiB
Output model: model_edgetpu.tflite
Output size: 6.10MiB
On-chip memory used for caching model parameters: 6.86MiB
On-chip memory remaining for caching model parameters: 1.50KiB
Off-chip memory used for streaming uncached model parameters: 1.22MiB
Number of Edge TPU subgraphs: 1
Total number of operations: 77
Operation log: model_edgetpu.log

Operator                       Count      Status

CONV_2D                        54         Mapped to Edge TPU
Compilation child process completed within timeout period.
"""
PARTLY = LOG.replace(
    "Operation log",
    "Model successfully compiled but not all operations are supported by the Edge TPU.\n"
    "Number of operations that will run on Edge TPU: 70\nNumber of operations that will run on CPU: 7\nOperation log",
)


def fake_compiler(folder: Path, log: str, *, status: int = 0, writes: bool = True) -> Path:
    """A program that takes edgetpu_compiler's arguments, prints `log` and copies the file."""
    program = folder / "edgetpu_compiler"
    program.write_text(
        f"#!{sys.executable}\n"
        "import shutil, sys\n"
        "from pathlib import Path\n"
        "out = Path(sys.argv[sys.argv.index('--out_dir') + 1])\n"
        f"if {writes}: shutil.copy(sys.argv[-1], out / 'model_edgetpu.tflite')\n"
        f"print({log!r})\n"
        f"sys.exit({status})\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_the_log_is_read() -> None:
    assert read_log(LOG) == CompilerLog(
        cached_bytes=round(6.86 * MIB), streamed_bytes=round(1.22 * MIB), subgraphs=1, operators=77, left_on_cpu=0
    )
    assert read_log(PARTLY).left_on_cpu == 7
    assert read_log(LOG.replace("1.22MiB", "0.00B")).streamed_bytes == 0


def test_a_log_of_another_kind_is_not_believed() -> None:
    with pytest.raises(EnvironmentProblem, match="Number of Edge TPU subgraphs"):
        read_log(LOG.replace("Number of Edge TPU subgraphs: 1", ""))


def test_what_compiles_whole_comes_back(tmp_path: Path) -> None:
    result = compile_for_edgetpu(tiny_model_bytes(), compiler=fake_compiler(tmp_path, LOG))
    assert result.data == tiny_model_bytes()
    assert result.log.operators == 77
    # the stand-in only copies, and the report on the file says that it was not compiled
    assert not result.placement.compiled


def test_what_compiles_partly_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="7 operators on the CPU"):
        compile_for_edgetpu(tiny_model_bytes(), compiler=fake_compiler(tmp_path, PARTLY))


@pytest.mark.parametrize(("status", "writes"), [(1, True), (0, False)])
def test_a_failure_repeats_the_last_words(tmp_path: Path, status: int, writes: bool) -> None:
    program = fake_compiler(tmp_path, "Invalid model: x\nCould not preprocess model", status=status, writes=writes)
    with pytest.raises(EnvironmentProblem, match="Could not preprocess model"):
        compile_for_edgetpu(tiny_model_bytes(), compiler=program)


def test_a_missing_compiler_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="not installed"):
        compile_for_edgetpu(tiny_model_bytes(), compiler=tmp_path / "edgetpu_compiler")

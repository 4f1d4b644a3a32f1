"""Compiling, with a program that behaves as edgetpu_compiler does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_compilers import LOG, PARTLY, fake_compiler
from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray_adapt.edgetpu import MIB, CompilerLog, compile_for_edgetpu, read_log
from tiny_models import tiny_model_bytes


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

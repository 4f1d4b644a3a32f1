"""The runner of cases: a failure is printed, counted and gives exit code 1. No process or folder is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from harness.case import Attempt, Case, NotPossible
from harness.record import check_fate, check_rows
from harness.runner import result_of, try_all, try_case
from harness.table import ATTACKS, POWERCUTS
from harness.world import World

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

SCRIPT = Path(__file__).parents[1] / "attack" / "run_attack.py"


def case(attempt: Attempt, *, name: str = "tests/made", limit_s: float = 20.0) -> Case:
    return Case(name=name, tried="something", attempt=attempt, limit_s=limit_s)


def shell(text: str) -> list[str]:
    """Return the command of a program that runs this shell script."""
    return ["sh", "-c", text, "sh"]


def nothing(world: World) -> None:
    """A case that succeeds."""


def wrong(world: World) -> None:
    """A case that fails."""
    raise AssertionError("it did not hold")


def impossible(world: World) -> None:
    """A case that cannot be tried on this machine."""
    raise NotPossible("no compiler here")


def test_a_failing_case_is_printed_and_fails_the_run() -> None:
    said: list[str] = []
    results = try_all([case(nothing, name="tests/a"), case(wrong, name="tests/b")], ["true"], say=said.append)
    assert [result.verdict for result in results] == ["ok", "FAILED"]
    (line,) = [line for line in said if line.startswith("FAILED")]
    assert "tests/b" in line and "it did not hold" in line
    assert [result_of(some, ["true"]).holds for some in (results, results[:1], [])] == [False, True, False]


def test_a_case_that_cannot_be_tried_is_skipped_with_its_reason() -> None:
    results = [try_case(case(impossible), ["true"])]
    assert (results[0].verdict, results[0].why) == ("skipped", "no compiler here")
    assert result_of(results, ["true"]).holds


def test_a_process_that_hangs_is_killed_when_time_is_up_and_its_folder_removed() -> None:
    seen: list[World] = []

    def hang(world: World) -> None:
        seen.append(world)
        world.run()

    result = try_case(case(hang, limit_s=0.5), shell("sleep 600 & sleep 600"))
    assert result.verdict == "FAILED"
    assert "TimeIsUp" in result.why
    assert seen[0].processes() == []
    assert not seen[0].folder.exists()


def test_processes_that_a_program_leaves_running_are_found_and_killed() -> None:
    with World(shell("sleep 600 >/dev/null 2>&1 &"), limit_s=30) as world:
        running = world.start()
        running.process.wait()
        assert len(world.processes()) == 1
    assert world.processes() == []


def test_a_traceback_fails_the_check_of_the_exit_code() -> None:
    with World(shell("echo Traceback >&2"), limit_s=30) as world, pytest.raises(AssertionError, match="Traceback"):
        world.run().ends_with(0)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.png"], "lost"),
        (["a.png", "b.png", "b.png"], "doubled"),
        (["a.png", "b.png", "c.png"], "not expected"),
    ],
)
def test_lost_doubled_and_unexpected_rows_are_errors(names: list[str], words: str) -> None:
    with World(["true"], limit_s=30) as world:
        lines = [row(world.images / name) for name in names]
        with pytest.raises(AssertionError, match=words):
            check_rows(lines, {"a.png": "screened", "b.png": "screened"}, images=world.images)


def test_a_score_for_a_hostile_image_is_an_error() -> None:
    check_fate(row(Path("a.png")), "screened")
    for fate in ("refused", "failed", "unscored"):
        with pytest.raises(AssertionError, match="screened"):
            check_fate(row(Path("a.png")), fate)  # type: ignore[arg-type]


def row(path: Path) -> dict[str, object]:
    return {"path": str(path), "image": path.name, "status": "screened", "score": 0.5, "reason_code": None}


def test_every_case_has_a_name_of_its_own_and_says_what_is_tried() -> None:
    cases = (*ATTACKS, *POWERCUTS)
    assert [name for name, number in Counter(made.name for made in cases).items() if number > 1] == []
    assert all(made.tried and "\n" not in made.tried for made in cases)
    assert 10 <= sum(made.is_quick for made in cases) <= 45


def test_the_script_prints_a_line_a_case_and_writes_the_figures(tmp_path: Path) -> None:
    """The tested program always fails. So the case fails, its line says so, and the exit code is 1."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    out = tmp_path / "attack.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--only", "files/empty", "--program", program, "--out", out],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[0].startswith("FAILED")
    assert "files/empty" in done.stdout.splitlines()[0]
    facts = json.loads(out.read_text())
    assert facts["counts"] == {"ok": 0, "failed": 1, "skipped": 0}
    assert facts["program"] == str(program)

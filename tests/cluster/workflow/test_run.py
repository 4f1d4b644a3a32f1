"""Workflow runs on a local cluster, with killed workers and drivers."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from fieldray.errors import UsageProblem
from fieldray_cluster.workflow.report import last_output_lines, write_report
from fieldray_cluster.workflow.run import TaskState, cancel_run, is_running, read_task_states, run_workflow
from program import Fieldray, start
from waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The script behind the commands of these tests: `note FILE WORDS...` adds a line to a file, and so on.
SCRIPT = """
import os, signal, sys, time
what, *words = sys.argv[1:]
def note(path, text):
    with open(path, "a") as stream:
        stream.write(text + "\\n")
def worker():
    return int(os.popen(f"ps -o ppid= -p {os.getppid()}").read())
if what == "note":
    note(words[0], " ".join(map(repr, words[1:])))
elif what == "fail":
    print("it went wrong", file=sys.stderr)
    note(words[0], "tried")
    sys.exit(3)
elif what == "kill":  # its worker, the first few times
    note(words[0], "killed")
    if sum(1 for _ in open(words[0])) <= int(words[1]):
        print("about to kill", flush=True)
        os.kill(worker(), signal.SIGKILL)
        time.sleep(60)
elif what == "wait":  # until a file is there
    note(words[0], str(os.getpid()))
    while not os.path.exists(words[1]):
        time.sleep(0.02)
"""


def recipe(folder: Path, text: str, *, cluster: str = "") -> Path:
    (folder / "act.py").write_text(SCRIPT, encoding="utf-8")
    act = f"{shlex.quote(sys.executable)} act.py"
    path = folder / "workflow.toml"
    path.write_text(f"[cluster]\nworkers = 2\n{cluster}\n{text.replace('ACT', act)}", encoding="utf-8")
    return path


def by_name(path: Path) -> dict[str, TaskState]:
    return {state.task.name: state for state in read_task_states(path)}


def wait_for_pids(folder: Path) -> Path:
    """Wait for the file that a waiting command writes, and return it."""
    pids = folder / "run" / "pids.txt"
    wait_for(lambda: pids.is_file() and pids.read_text().endswith("\n"), limit_s=60)
    return pids


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # an ended orphan stays a zombie here
    except psutil.NoSuchProcess:
        return False


def test_a_graph_runs_in_order_and_a_rerun_does_nothing(tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        """
[experiments.last]
command = "ACT note {{run}}/log.txt last {{x}} {{hostile}}"
depends_on = ["first"]
parameters = { x = [1, 2], hostile = "a b; touch /tmp/never $(exit)" }
[experiments.first]
command = "ACT note {{run}}/log.txt first {{index}}"
samples = 3
inputs = ["data.txt"]
[experiments.program]
command = "fieldray --version"
""",
    )
    (tmp_path / "data.txt").write_text("1")
    said = list[str]()
    assert run_workflow(path, say=said.append) == {"done": 6}
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert sorted(log[:3]) == ["'first' '1'", "'first' '2'", "'first' '3'"]
    assert sorted(log[3:]) == [f"'last' '{x}' 'a b; touch /tmp/never $(exit)'" for x in (1, 2)]
    state = by_name(path)["program-0001"]
    assert last_output_lines(state).startswith("fieldray ") and state.outcome.node.startswith("local/")
    assert state.outcome.seconds > 0 and (state.outcome.cpu_seconds or 0) > 0 and (state.outcome.memory_mb or 0) > 1

    again = list[str]()
    assert run_workflow(path, say=again.append) == {"done": 6}
    assert again == ["Everything was done before."]
    (tmp_path / "data.txt").write_text("2")
    assert run_workflow(path, say=again.append) == {"done": 6}
    assert len((tmp_path / "run" / "log.txt").read_text().splitlines()) == 10  # the first and the last task again
    page = write_report(path).read_text(encoding="utf-8")
    assert "program-0001" in page and "<script" not in page and "6 tasks: 6 done" in page
    path.write_text(path.read_text().replace("x = [1, 2]", "x = [7, 8]"))  # these have no outcome yet
    assert {state.task.parameter_values.get("x") for state in read_task_states(path)} == {None, 1, 2}
    assert write_report(path).read_text(encoding="utf-8") == page


def test_a_task_that_kills_its_workers_fails_with_its_output_and_does_not_block_others(tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        """
[experiments.killer]
command = "ACT kill {{run}}/kills.txt 100"
retries = 1
[experiments.wrong]
command = "ACT fail {{run}}/tries.txt"
retries = 2
[experiments.absent]
command = "no-such-program-here"
[experiments.good]
command = "ACT note {{run}}/good.txt {{index}}"
samples = 4
[experiments.child]
command = "ACT note {{run}}/child.txt"
depends_on = ["wrong"]
[experiments.grandchild]
command = "ACT note {{run}}/child.txt"
depends_on = ["child", "good"]
""",
    )
    assert run_workflow(path, say=lambda _: None) == {"done": 4, "failed": 3, "blocked": 2}
    states = by_name(path)
    assert (tmp_path / "run" / "tries.txt").read_text().count("tried") == 3  # one attempt and two retries
    assert last_output_lines(states["wrong-0001"]) == "it went wrong" and states["wrong-0001"].outcome.exit_code == 3
    assert (tmp_path / "run" / "kills.txt").read_text().count("killed") == 2
    killer = states["killer-0001"]
    assert killer.event is not None and killer.event.lost == 2 and last_output_lines(killer) == "about to kill"
    absent = states["absent-0001"].outcome
    assert f"could not be started on {absent.node}: no-such-program-here: No such file" in absent.problem
    assert states["child-0001"].outcome.problem.startswith("This task was not started, because the task wrong-0001 ")
    assert states["grandchild-0001"].outcome.problem.startswith(
        "This task was not started, because the task wrong-0001 "
    )
    assert not (tmp_path / "run" / "child.txt").exists()
    assert "it went wrong" in write_report(path).read_text(encoding="utf-8")


def test_with_preemptible_workers_a_lost_worker_does_not_count_as_an_attempt(tmp_path: Path) -> None:
    text = """
[experiments.a]
command = "ACT kill {{run}}/kills.txt 3"
[experiments.b]
command = "ACT kill {{run}}/others.txt 100"
lost_workers = 2
"""
    path = recipe(tmp_path, text, cluster="preemptible = true")
    assert run_workflow(path, say=lambda _: None) == {"done": 1, "failed": 1}
    states = by_name(path)
    first, second = states["a-0001"].event, states["b-0001"].event
    # or more: a task may be sent to a worker that is just ending
    assert first is not None and first.lost >= 3 and first.status == "done"
    assert second is not None and second.lost == 2
    assert second.outcome.problem == "The processes of this task crashed 2 times."


def test_a_killed_driver_leaves_nothing_running_and_the_run_resumes(tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        """
[experiments.quick]
command = "ACT note {{run}}/quick.txt done"
[experiments.slow]
command = "ACT wait {{run}}/pids.txt {{run}}/go"
depends_on = ["quick"]
""",
    )
    driver, pids = start("workflow", "run", path), wait_for_pids(tmp_path)
    children = psutil.Process(driver.pid).children(recursive=True)
    slow = by_name(path)["slow-0001"]
    assert is_running(tmp_path / "run") and slow.status == "running"
    assert slow.outcome.node in ("local/1", "local/2") and slow.outcome.seconds > 0  # the name of any free worker
    with pytest.raises(UsageProblem, match="Another run is using"):
        run_workflow(path, say=lambda _: None)
    with driver:
        driver.kill()
    wait_for(lambda: not any(map(is_alive, children)))
    assert by_name(path)["slow-0001"].status == "stopped"

    (tmp_path / "run" / "go").touch()
    assert run_workflow(path, say=lambda _: None) == {"done": 2}
    assert (tmp_path / "run" / "quick.txt").read_text().count("done") == 1
    assert len(pids.read_text().splitlines()) == 2


def test_a_run_is_cancelled_from_another_window(tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        """
[experiments.slow]
command = "ACT wait {{run}}/pids.txt {{run}}/never"
[experiments.later]
command = "ACT note {{run}}/later.txt"
depends_on = ["slow"]
""",
    )
    with pytest.raises(UsageProblem, match="No workflow is running"):
        cancel_run(path)
    counts = list[dict[str, int]]()
    thread = threading.Thread(target=lambda: counts.append(dict(run_workflow(path, say=lambda _: None))))
    thread.start()
    pids = wait_for_pids(tmp_path)
    cancel_run(path)
    thread.join()
    assert counts == [{"stopped": 1, "waiting": 1}]
    assert not psutil.pid_exists(int(pids.read_text()))


def test_the_workflow_command_runs_reports_and_returns_an_exit_code(tmp_path: Path, fieldray: Fieldray) -> None:
    path = recipe(tmp_path, "[experiments.wrong]\ncommand = 'ACT fail {{run}}/tries.txt'")
    fieldray("workflow", "status", path).complains("There is no run of this recipe yet")
    fieldray("workflow", "run", path).ends_with(1).prints("wrong-0001: failed", "Report: ")
    (row,) = fieldray("workflow", "status", path, "--json", "-").lines
    assert row["status"] == "failed" and row["exit_code"] == 3 and row["problem"].endswith("exit code 3.")
    fieldray("workflow", "status", path, "--task", "wrong-0001").prints("it went wrong")
    fieldray("workflow", "status", path, "--task", "none").ends_with(2)
    fieldray("workflow", "cancel", path).complains("No workflow is running")
    fieldray("workflow", "sweep", path).complains("has no table [sweep]")


def test_ctrl_c_stops_a_workflow_in_order(tmp_path: Path) -> None:
    path = recipe(tmp_path, "[experiments.slow]\ncommand = 'ACT wait {{run}}/pids.txt {{run}}/never'")
    with start("workflow", "run", path) as driver:
        pids = wait_for_pids(tmp_path)
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert by_name(path)["slow-0001"].status == "stopped" and not psutil.pid_exists(int(pids.read_text()))

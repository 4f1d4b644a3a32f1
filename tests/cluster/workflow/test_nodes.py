"""Nodes of a workflow: checks before work, failures during a task, and the journal of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from distributed import Client, get_worker

from archives import cluster_of_nodes, worker
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_cluster.connection import ConnectionSettings, open_client
from fieldray_cluster.worker_registry import IncompatibleNodes
from fieldray_cluster.workflow.recipe import Experiment
from fieldray_cluster.workflow.runner import TaskRunner
from fieldray_cluster.workflow.tasks import (
    JOURNAL_FILE_NAME,
    Event,
    Journal,
    Outcome,
    TaskResult,
    TaskSpec,
    path_of_folder_check_file,
    perform_task,
    read_events,
)
from program import python
from waiting import wait_for


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a cluster with one worker, for all tests of this module."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FIELDRAY_HOME", str(tmp_path_factory.mktemp("cluster-home")))
        with open_client(ConnectionSettings()) as client:
            yield client


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of a workflow run that has begun."""
    with begun(tmp_path):
        yield tmp_path


@contextlib.contextmanager
def begun(folder: Path) -> Iterator[Journal]:
    """Make the files of a run that its driver keeps. `spec_in` makes its tasks."""
    folder.mkdir(exist_ok=True)
    with Journal(folder) as journal:
        path_of_folder_check_file(folder / "stop").touch()
        yield journal


def test_a_node_that_does_not_see_the_run_is_named_before_any_work(client: Client, run: Path, tmp_path: Path) -> None:
    (tmp_path / "lost-share").mkdir()  # a share that is not mounted leaves an empty folder
    for folder, expected in ((run, contextlib.nullcontext()), (tmp_path / "lost-share", unfit())):
        with tempfile.TemporaryDirectory() as own, Journal(Path(own)) as journal, expected:
            TaskRunner(client, journal, run=folder, preemptible=False, say=pytest.fail)


def unfit() -> contextlib.AbstractContextManager[object]:
    return pytest.raises(IncompatibleNodes, match=r"local gets no work: .* cannot read")


def spec_in(folder: Path, number: int = 1, *, ends: str = "0") -> TaskSpec:
    return TaskSpec(
        task_name="a-0001",
        key="k",
        attempt_number=number,
        command=(sys.executable, "-c", f"print('begun'); raise SystemExit({ends})"),
        folder=folder / "a-0001",
        working_folder=folder,
        run_folder=folder,
        stop_file=folder / "stop",
    )


def test_a_full_disk_on_a_node_ends_the_attempt_and_names_the_node(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(small)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with begun(small):
            answer = perform_task(spec_in(small))
        outcome = answer.outcome
        assert answer.node_problem and not outcome.is_done and outcome.node and outcome.exit_code is None
        assert outcome.problem.startswith(f"The node {outcome.node} could not run the task: ")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_finished_attempt_is_not_repeated_when_its_answer_was_lost(run: Path) -> None:
    for _ in range(2):  # the second time the recorded outcome is returned
        assert perform_task(spec_in(run, ends="3")).outcome.exit_code == 3
    assert (run / "a-0001" / "output-1.txt").read_text().count("begun") == 1
    assert perform_task(spec_in(run, 2, ends="3")).outcome.exit_code == 3  # another attempt has no recorded outcome
    assert (run / "a-0001" / "output-2.txt").exists()


@pytest.mark.parametrize("lost", ["journal.jsonl", "stop.driver"])
def test_a_worker_that_does_not_see_the_run_says_so_and_makes_no_folder(run: Path, lost: str) -> None:
    (run / lost).unlink()
    answer = perform_task(spec_in(run))
    assert answer.node_problem and "cannot read" in answer.outcome.problem
    away = run / "not-mounted" / "run"
    answer = perform_task(spec_in(away))
    assert answer.node_problem and "cannot read" in answer.outcome.problem
    assert not away.parent.exists() and not (run / "a-0001").exists()


def test_a_run_s_folder_that_is_deleted_during_a_task_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with begun(folder):
        spec = spec_in(folder, ends=f"__import__('shutil').rmtree({str(folder)!r})")
        answer = perform_task(spec)
    assert answer.node_problem and not folder.exists()


KILLED = """
import json, sys
from pathlib import Path
from fieldray_cluster.workflow.tasks import TaskSpec, perform_task
told = json.loads(sys.argv[1])
places = {name: Path(told.pop(name)) for name in ("folder", "working_folder", "run_folder", "stop_file")}
perform_task(TaskSpec(**told, **places, command=(sys.executable, "-c", told_command)))
""".replace(
    "told_command",
    '\'import os, signal; open("begun", "w").close(); \''
    "'os.kill(int(os.popen(f\"ps -o ppid= -p {os.getppid()}\").read()), signal.SIGKILL)'",
)


@pytest.mark.skipif(os.name != "posix", reason="a command ends its worker by a signal")
def test_an_outcome_no_longer_counts_after_an_attempt_with_other_settings(run: Path) -> None:
    assert perform_task(spec_in(run)).outcome.is_done
    spec = {
        "task_name": "a-0001",
        "key": "other",
        "attempt_number": 2,
        "folder": str(run / "a-0001"),
        "working_folder": str(run),
    }
    spec |= {"run_folder": str(run), "stop_file": str(run / "stop")}
    done = python(KILLED, json.dumps(spec))
    assert done.returncode == -signal.SIGKILL and (run / "begun").exists()
    assert perform_task(spec_in(run, 3)).outcome.is_done
    assert (run / "a-0001" / "output-3.txt").read_text().count("begun") == 1  # the task ran again


def performers() -> dict[str, Callable[[TaskSpec], TaskResult]]:
    """Return functions that workers run in place of `perform_task`."""

    def name_the_folder(spec: TaskSpec) -> TaskResult:
        time.sleep(0.3)  # the scheduler has both tasks before the first is done
        return TaskResult(spec=spec, outcome=Outcome(exit_code=0, problem=str(spec.folder)))

    def answer_another(spec: TaskSpec) -> TaskResult:
        return TaskResult(spec=dataclasses.replace(spec, folder=spec.folder / "b"), outcome=Outcome(exit_code=0))

    def fail_on_bad_node(spec: TaskSpec) -> TaskResult:
        name = str(get_worker().name)
        is_bad = name.startswith("bad/")
        if not is_bad:
            spec.folder.mkdir(exist_ok=True)
        why = reason("disk_full", path="scratch")
        return TaskResult(spec=spec, outcome=Outcome(exit_code=0, node=name), node_problem=why if is_bad else None)

    def end(spec: TaskSpec) -> TaskResult:
        """Report a stopped task the first time, like a worker that is ending."""
        outcome = Outcome(node="local/1", was_stopped=True) if spec.attempt_number == 1 else Outcome(exit_code=0)
        return TaskResult(spec=spec, outcome=outcome)

    return {name: function for name, function in locals().items() if callable(function)}


PERFORMERS = performers()
ONCE = Experiment(command="none", retries=0)


def wait_for_events(runner: TaskRunner, count: int = 1) -> list[Event]:
    """Wait for the end of `count` tasks. Returns their events."""
    found = list[Event]()
    wait_for(lambda: found.extend(event for _, event in runner.wait_for_finished_tasks(0.2)) or len(found) >= count)
    return found


def run_one_task(client: Client, run: Path, *, work: str, preemptible: bool = False) -> Event:
    """Run one task by the function `work` of `performers`. Returns its event."""
    with Journal(run) as journal:
        runner = TaskRunner(client, journal, run=run, preemptible=preemptible, say=print, perform=PERFORMERS[work])
        runner.submit(spec_in(run), ONCE)
        (event,) = wait_for_events(runner)
    return event


def test_two_drivers_on_one_cluster_get_their_own_answers(client: Client, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    with begun(mine) as one, begun(other) as two:
        runners = [
            TaskRunner(client, journal, run=folder, preemptible=False, say=print, perform=PERFORMERS["name_the_folder"])
            for journal, folder in ((one, mine), (two, other))
        ]
        for runner, folder in zip(runners, (mine, other), strict=True):
            runner.submit(spec_in(folder), ONCE)
        problems = [wait_for_events(runner)[0].outcome.problem for runner in runners]
    assert problems == [str(mine / "a-0001"), str(other / "a-0001")]


def test_the_answer_of_another_task_is_refused(client: Client, run: Path) -> None:
    event = run_one_task(client, run, work="answer_another")
    assert event.status == "failed" and event.outcome.problem.startswith(
        "The cluster returned the result of another task"
    )


def test_a_task_stopped_by_an_ending_worker_is_tried_again(client: Client, run: Path) -> None:
    event = run_one_task(client, run, work="end", preemptible=True)
    assert event.status == "done" and event.number == 2


def test_a_failing_node_is_set_aside_by_name_without_costing_a_task_an_attempt(tmp_path: Path) -> None:
    said = list[str]()
    with (
        cluster_of_nodes(tmp_path, "bad/1", patience_s=30.0) as (nodes, scheduler, connection),
        begun(tmp_path) as journal,
        open_client(connection) as client,
    ):
        work = PERFORMERS["fail_on_bad_node"]
        runner = TaskRunner(client, journal, run=tmp_path, preemptible=False, say=said.append, perform=work)
        nodes.add(worker("good/1", scheduler.wait_for_address(), tmp_path / "scratch")).wait_for_address()
        first = dataclasses.replace(spec_in(tmp_path), task_name="a-0000", folder=tmp_path / "a-0000")
        runner.submit(first, ONCE)
        for number in range(1, 3):
            runner.submit(dataclasses.replace(spec_in(tmp_path), task_name=f"a-{number:04d}"), ONCE)
        events = wait_for_events(runner, 3)
    assert [event.status for event in events] == ["done"] * 3
    assert {event.outcome.node for event in events} == {"good/1"}
    assert [line for line in said if line.startswith("bad: The disk")] == said


def test_a_task_whose_only_worker_is_gone_before_it_began_goes_to_the_next_one(tmp_path: Path) -> None:
    with cluster_of_nodes(tmp_path, patience_s=30.0) as (nodes, scheduler, connection), begun(tmp_path) as journal:
        first = nodes.add(able := worker("able/1", scheduler.wait_for_address(), tmp_path / "scratch"))
        first.wait_for_address()
        with open_client(connection) as client:
            runner = TaskRunner(client, journal, run=tmp_path, preemptible=False, say=print)
            first.close()
            runner.submit(spec_in(tmp_path), ONCE)
            nodes.add(msgspec.structs.replace(able, name="able/2")).wait_for_address()
            (event,) = wait_for_events(runner)
    assert event.status == "done" and event.outcome.node == "able/2"


def test_the_run_ends_with_the_node_s_problem_where_no_other_is_left(client: Client, run: Path) -> None:
    with Journal(run) as journal:
        runner = TaskRunner(client, journal, run=run, preemptible=False, say=print)
        (run / "stop.driver").unlink()
        runner.submit(spec_in(run), ONCE)
        with unfit():
            wait_for_events(runner)
        runner.stop(run / "stop")
        assert journal.latest["a-0001"].status == "stopped"


def test_events_of_a_journal_are_read_again(tmp_path: Path) -> None:
    done = Event(task="a-0001", key="k", status="done", number=2, outcome=Outcome(exit_code=0, node="n", seconds=1.5))
    with Journal(tmp_path) as journal:
        journal.add(Event(task="a-0001", key="k", status="running", number=1))
        assert not journal.is_done("a-0001", "k") and journal.next_attempt_number("a-0001") == 2
        journal.add(done)
    with Journal(tmp_path) as journal:
        assert journal.latest == {"a-0001": done} and journal.next_attempt_number("a-0001") == 3
        assert journal.is_done("a-0001", "k") and not journal.is_done("a-0001", "other")
    assert [event.status for event in read_events(tmp_path)] == ["running", "done"]


def test_a_truncated_line_of_a_journal_is_ignored(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add(Event(task="a", key="k", status="done", number=1))
    path = tmp_path / JOURNAL_FILE_NAME
    path.write_bytes(path.read_bytes() + b'{"task": "b", "key"')
    with Journal(tmp_path) as journal:
        journal.add(Event(task="c", key="k", status="done", number=1))
    assert [event.task for event in read_events(tmp_path)] == ["a", "c"]


def test_a_damaged_line_of_a_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE_NAME).write_text('{"task": 1}\n')
    with pytest.raises(UsageProblem, match="damaged in line 1"):
        list(read_events(tmp_path))

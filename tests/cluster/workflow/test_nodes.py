"""What is looked at of the nodes of a workflow, and a node that fails in the middle of a task."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client

from fieldray.cluster.connection import ConnectionSettings, open_client
from fieldray.cluster.workflow.crew import require_nodes
from fieldray.cluster.workflow.perform import Node, Order, look, perform
from fieldray.cluster.workflow.state import Journal
from fieldray.errors import UsageProblem


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One worker for the tests of this module."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FIELDRAY_HOME", str(tmp_path_factory.mktemp("cluster-home")))
        with open_client(ConnectionSettings()) as client:
            yield client


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run that was begun."""
    with Journal(tmp_path):
        yield tmp_path


def stand_ins() -> dict[str, Callable[[Path], Node]]:
    """What workers say instead. Only functions inside a function travel to a process that has no tests."""

    def other_version(folder: Path) -> Node:
        return Node(version="Fieldray 0.0.1", sees_folder=True, clock=look(folder).clock)

    def other_clock(folder: Path) -> Node:
        node = look(folder)
        return Node(version=node.version, sees_folder=True, clock=node.clock - 1000)

    return {"other_version": other_version, "other_clock": other_clock}


STAND_INS = stand_ins()


def test_a_node_of_another_version_is_named_before_any_work(client: Client, run: Path) -> None:
    with pytest.raises(UsageProblem, match=r"local/1 has Fieldray 0\.0\.1, and this computer has Fieldray"):
        require_nodes(client, run=run, efforts={}, say=lambda _: None, ask=STAND_INS["other_version"])


def test_a_node_that_does_not_see_the_run_is_named_before_any_work(client: Client, run: Path, tmp_path: Path) -> None:
    require_nodes(client, run=run, efforts={}, say=lambda _: None)
    (tmp_path / "lost-share").mkdir()  # a share that is not mounted leaves an empty folder
    with pytest.raises(UsageProblem, match="local/1 cannot see"):
        require_nodes(client, run=tmp_path / "lost-share", efforts={}, say=lambda _: None)


def test_a_clock_that_is_far_off_is_said(client: Client, run: Path) -> None:
    said = list[str]()
    require_nodes(client, run=run, efforts={}, say=said.append, ask=STAND_INS["other_clock"])
    assert len(said) == 1 and said[0].startswith("The clock of local/1 differs from this computer's by 1000 s.")


def order_in(folder: Path, number: int = 1, *, ends: str = "0") -> Order:
    return Order(
        task="a-0001",
        key="k",
        number=number,
        command=(sys.executable, "-c", f"print('begun'); raise SystemExit({ends})"),
        folder=folder / "a-0001",
        here=folder,
        stop=folder / "stop",
    )


def test_a_full_disk_on_a_node_is_the_task_s_end_and_names_the_node(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(small)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        outcome = perform(order_in(small))
        assert not outcome.is_done and outcome.node and outcome.exit_code is None
        assert outcome.problem.startswith(f"{outcome.node} could not work on it: ")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_how_a_performance_ended_is_known_when_its_answer_was_lost(tmp_path: Path) -> None:
    for _ in range(2):  # the second time it is only told again
        assert perform(order_in(tmp_path, ends="3")).exit_code == 3
    assert (tmp_path / "a-0001" / "output-1.txt").read_text().count("begun") == 1
    assert perform(order_in(tmp_path, 2, ends="3")).exit_code == 3  # another performance is none that was done
    assert (tmp_path / "a-0001" / "output-2.txt").exists()

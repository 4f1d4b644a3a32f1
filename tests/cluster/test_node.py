"""Processes of a cluster: their end, their web pages, and their versions."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from fieldray.errors import EnvironmentProblem
from fieldray.paths import python_command
from fieldray_cluster.connection import ConnectionSettings, open_client, require_same_version
from fieldray_cluster.node import NodeGroup, NodeSettings, all_versions
from waiting import wait_for

needs_addresses = pytest.mark.skipif(os.name != "posix", reason="other systems have 127.0.0.1 alone")


@contextlib.contextmanager
def node(settings: NodeSettings) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of a cluster that nobody starts again, and its address."""
    words = python_command("fieldray_cluster.node_main", msgspec.json.encode(settings).decode())
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            yield process, process.stdout.readline().strip()
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.kill()


def test_a_worker_with_a_task_ends_by_itself_when_it_is_told_to(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def endless(path: Path) -> None:
        path.touch()
        time.sleep(1000)

    with NodeGroup() as nodes:
        scheduler = nodes.add(NodeSettings(role="scheduler", unencrypted=True)).address()
        with (
            node(NodeSettings(role="worker", unencrypted=True, scheduler=scheduler, scratch=str(tmp_path))) as (
                worker,
                _,
            ),
            open_client(ConnectionSettings(address=scheduler)) as client,
        ):
            future = client.submit(endless, begun)
            wait_for(begun.exists)
            assert worker.stdin
            worker.stdin.close()
            assert worker.wait(25) == 0  # Dask alone would wait half a minute for the task
            future.cancel()


def test_who_hears_of_a_process_that_is_started_again_hears_how_it_ended() -> None:
    heard = list[str]()
    with NodeGroup() as nodes:
        scheduler = nodes.add(NodeSettings(role="scheduler", unencrypted=True), warn=heard.append)
        address, first = scheduler.address(), scheduler.pid
        psutil.Process(first).kill()
        wait_for(lambda: bool(heard) and scheduler.pid != first)
        assert scheduler.address() == address  # found again at the same place
    assert heard == [
        f"scheduler has ended unexpectedly (exit code {-9 if os.name == 'posix' else 15}) and is started again."
    ]


def test_a_scheduler_of_another_version_is_named() -> None:
    require_same_version("tcp://10.0.0.1:8786", all_versions())
    with pytest.raises(EnvironmentProblem, match=r"at tcp://10.0.0.1:8786 has Fieldray 0.0.1, but here it is Fieldray"):
        require_same_version("tcp://10.0.0.1:8786", "Fieldray 0.0.1")

"""Process priorities are relative to the present one; lowering is always permitted."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from fieldray.inference.worker import cpu_kind
from fieldray.process_environment import Priority, set_priority
from tiny_models import tiny_model


@pytest.mark.skipif(not psutil.LINUX, reason="each thread has a niceness of its own on Linux only")
def test_a_backend_gives_its_process_the_priority_once_the_network_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = cpu_kind(threads=2, priority="lowered").open()
    opened: list[str] = []

    def given(pid: int | None, priority: Priority) -> bool:
        opened.append(backend.detail)  # "" before the network is open
        return set_priority(pid, priority)

    monkeypatch.setattr("fieldray.inference.worker.set_priority", given)
    try:
        backend.start(tiny_model())
        assert backend.pid
        assert opened == [backend.detail] != [""]
        nice = {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in psutil.Process(backend.pid).threads()}
        assert nice == {min(os.getpriority(os.PRIO_PROCESS, 0) + 5, 19)}
    finally:
        backend.close()


def test_the_priority_of_an_ended_process_is_ignored() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert set_priority(child.pid, "lowered")


def test_a_backend_without_a_process_needs_no_priority() -> None:
    assert set_priority(None, "raised")


@pytest.mark.skipif(not psutil.LINUX, reason="the priorities of Windows are classes")
def test_a_lowered_priority_is_never_raised() -> None:
    code = (
        "import os; os.nice(5)\n"
        "from fieldray.process_environment import set_priority\n"
        "print(set_priority(os.getpid(), 'raised'), os.getpriority(os.PRIO_PROCESS, 0))"
    )
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", str(min(mine + 5, 19))]

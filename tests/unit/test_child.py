"""The child process and its handle in the parent, with children that misbehave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from fieldray.errors import FieldrayError, Unreadable
from fieldray.paths import child_process_command
from fieldray.processes.child import Child, ChildDied, ChildTimeout
from fieldray.processes.serving import PARENT_PID_VARIABLE
from fieldray.processes.wire import Message
from fieldray.reasons import reason
from strange_services import command, strange


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child(strange("act"), memory_limit_mb=700, command=command)
    child.start()
    yield child
    child.kill()


def test_a_child_answers_with_arrays() -> None:
    child = Child(strange("echo"), command=command)
    child.start()
    # more than a pipe buffers, in both directions
    pixels = np.random.default_rng(1).integers(0, 65535, (1500, 1000)).astype(np.uint16)
    for number in range(3):
        answer = child.call(Message({"n": number}, {"pixels": pixels}), timeout_s=20)
        assert answer.body == {"n": number}
        np.testing.assert_array_equal(answer.arrays["pixels"], pixels)
    child.close()
    assert not child.is_running


def test_a_crash_is_reported_with_its_exit_code_and_the_child_can_restart(child: Child) -> None:
    first = child.pid
    with pytest.raises(ChildDied) as caught:
        child.call(Message({"what": "crash"}), timeout_s=20)
    assert caught.value.exit_code == -signal.SIGABRT
    assert not child.is_running
    child.start()
    assert child.call(Message({"what": "answer"}), timeout_s=20).body["pid"] == child.pid != first


def test_reasons_are_raised_in_the_parent_and_bugs_become_internal(child: Child) -> None:
    with pytest.raises(Unreadable) as caught:
        child.call(Message({"what": "refuse"}), timeout_s=20)
    assert caught.value.reason.code == "truncated"
    with pytest.raises(FieldrayError) as bug:
        child.call(Message({"what": "bug"}), timeout_s=20)
    assert bug.value.reason.code == "internal"
    assert "KeyError" in bug.value.reason.text


def test_a_child_cannot_open_a_network_connection(child: Child) -> None:
    with pytest.raises(FieldrayError) as refused:
        child.call(Message({"what": "call home"}), timeout_s=20)
    assert "Fieldray connects to nothing" in refused.value.reason.text


def test_a_child_does_not_inherit_cloud_credentials(monkeypatch: pytest.MonkeyPatch, child: Child) -> None:
    child.kill()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("FIELDRAY_OWN", "1")
    child.start()
    answer = child.call(Message({"what": "print"}), timeout_s=20)  # earlier it may have no environment
    names = psutil.Process(answer.body["pid"]).environ()
    assert "FIELDRAY_OWN" in names and not any(name.startswith("AWS_") for name in names)


def test_output_printed_by_a_child_does_not_disturb_messages(child: Child) -> None:
    for _ in range(3):
        assert child.call(Message({"what": "print"}), timeout_s=20).body["pid"] == child.pid


@pytest.mark.parametrize(
    ("service", "body"), [("nonsense", {"code": "truncated"}), ("nonsense", {"code": "no such reason"}), ("babble", {})]
)
def test_an_invalid_answer_or_garbage_ends_the_child(service: str, body: dict[str, str]) -> None:
    child = Child(strange(service), command=command)
    child.start()
    with pytest.raises(ChildDied):
        child.call(Message(body), timeout_s=20)
    assert not child.is_running


def test_an_answer_that_cannot_be_decoded_ends_the_child(child: Child) -> None:
    assert (
        child.call_and_convert(Message({"what": "answer"}), lambda answer: answer.body["pid"], timeout_s=20)
        == child.pid
    )
    with pytest.raises(ChildDied, match="makes no sense"):
        child.call_and_convert(Message({"what": "answer"}), lambda answer: answer.body["pid"]["x"], timeout_s=20)
    assert not child.is_running


def test_a_child_may_send_a_question_during_a_call(child: Child) -> None:
    asked = list[object]()

    def reply(question: Message) -> Message:
        asked.append(question.body)
        if "why" in question.body:
            raise Unreadable(reason("truncated"))
        return Message({"n": 2})

    question = Message({"what": "ask", "question": {"n": 1}})
    assert child.call(question, timeout_s=20, answer_question=reply).body["said"] == {"n": 2}
    refused = child.call(Message({"what": "ask", "question": {"why": True}}), timeout_s=20, answer_question=reply)
    assert refused.body["said"]["raised"]["code"] == "truncated"
    assert asked == [{"n": 1}, {"why": True}] and refused.body["pid"] == child.pid


def test_the_deadline_is_paused_while_a_childs_question_is_answered(child: Child) -> None:
    assert child.call(Message({"what": "answer"}), timeout_s=20).body  # its imports are done

    def slow(question: Message) -> Message:
        threading.Event().wait(1.5)  # longer than the deadline of the call
        return question

    assert (
        child.call(Message({"what": "ask", "question": {}}), timeout_s=1, answer_question=slow).body["pid"] == child.pid
    )


@pytest.mark.parametrize("what", ["ask", "ask without end"])
@pytest.mark.parametrize("is_answered", [False, True])
def test_an_invalid_unexpected_or_endless_question_ends_the_child(child: Child, what: str, is_answered: bool) -> None:
    """With `is_answered` false, the caller takes no questions at all."""

    def reply(question: Message) -> Message:
        return question if "end" in what else Message({}, {"x": question.arrays["x"]})

    with pytest.raises(ChildDied):
        child.call(
            Message({"what": what, "question": {}}), timeout_s=20, answer_question=reply if is_answered else None
        )
    assert not child.is_running


def test_a_call_before_the_start_or_after_the_end_raises_child_died() -> None:
    child = Child(strange("act"), command=command)
    with pytest.raises(ChildDied):
        child.call(Message({}), timeout_s=1)
    child.close()
    child.start()
    child.close()
    with pytest.raises(ChildDied):
        child.call(Message({}), timeout_s=1)


def test_kill_from_another_thread_ends_a_call(child: Child) -> None:
    child.call(Message({"what": "answer"}), timeout_s=20)
    threading.Timer(0.2, child.kill).start()
    with pytest.raises(ChildDied):
        child.call(Message({"what": "hang"}), timeout_s=20)


def test_a_late_kill_of_a_dead_child_does_not_affect_its_successor(
    monkeypatch: pytest.MonkeyPatch, child: Child
) -> None:
    """One thread stops a run while another notices the child's death and starts a new process."""
    has_ended, may_go_on, wait = threading.Event(), threading.Event(), subprocess.Popen.wait

    def late(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        code = wait(process, timeout)
        if threading.current_thread() is stopping:
            has_ended.set()
            may_go_on.wait(20)
        return code

    monkeypatch.setattr(subprocess.Popen, "wait", late)
    stopping = threading.Thread(target=child.kill)
    stopping.start()
    assert has_ended.wait(20)
    child.kill()
    child.start()
    may_go_on.set()
    stopping.join(20)
    assert not stopping.is_alive()
    child.call(Message({"what": "answer"}), timeout_s=20)
    with pytest.raises(ChildTimeout):  # the new process has kept its deadline
        child.call(Message({"what": "hang"}), timeout_s=0.3)


def test_only_services_of_this_program_are_served() -> None:
    child = Child("os:abort")
    child.start()
    with pytest.raises(ChildDied) as caught:
        child.call(Message({}), timeout_s=20)
    assert caught.value.exit_code == 2


# ---- limits and parents of a child

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death is Linux's")
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="limits and signals of POSIX")
LEARNS = """
from fieldray.processes.child import Child
from fieldray.processes.wire import Message
from strange_services import command, strange
"""


def own_process(script: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", LEARNS + script], stdout=subprocess.PIPE, env=environment)


@pytest.mark.parametrize("state", ["busy", pytest.param("stopped", marks=on_linux)])
def test_a_child_ends_when_its_parent_is_killed(state: str) -> None:
    """Also a suspended child, which can run no code of its own then."""
    parent = own_process(
        "import threading\n"
        "child = Child(strange('act'), command=command)\n"
        "child.start()\n"
        "child.call(Message({'what': 'answer'}), timeout_s=60)\n"
        "threading.Thread(target=child.call, args=(Message({'what': 'hang'}),), kwargs={'timeout_s': 60}).start()\n"
        "print(child.pid, flush=True)\n"
    )
    assert parent.stdout is not None
    orphan = psutil.Process(int(parent.stdout.readline()))
    if state == "stopped":
        orphan.suspend()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    orphan.wait(30)
    assert not orphan.is_running()


def test_a_child_outlives_the_thread_that_started_it() -> None:
    """The kernel signals a child when the thread that forked it ends, so the caller's thread must not fork."""
    child = Child(strange("act"), command=command)
    starter = threading.Thread(target=child.start)
    starter.start()
    starter.join()
    asked: list[int] = []
    asker = threading.Thread(
        target=lambda: asked.append(child.call(Message({"what": "answer"}), timeout_s=60).body["pid"])
    )
    asker.start()
    asker.join()
    assert child.call(Message({"what": "answer"}), timeout_s=60).body["pid"] == child.pid == asked[0]
    child.close()


@posix_only
def test_a_child_whose_parent_is_already_dead_does_not_start() -> None:
    environment = {**os.environ, PARENT_PID_VARIABLE: "1"}
    command = child_process_command("fieldray.bench.machine:handle")
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    with process:
        assert process.stdout.read() == b""  # not even the message that it is ready
        assert process.wait() == 1


@posix_only
@pytest.mark.parametrize("limits", ["(2**30, 2**30)", "(2**30, resource.RLIM_INFINITY)"])
def test_an_inherited_memory_limit_is_never_raised(limits: str) -> None:
    parent = own_process(
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_AS, {limits})\n"
        "child = Child(strange('act'), memory_limit_mb=3000, command=command)\n"
        "child.start()\n"
        "try: child.call(Message({'what': 'balloon', 'megabytes': 1500}), timeout_s=60)\n"
        "except Exception as error: print(error.reason.code, dict(error.reason.parameters), flush=True)\n"
        "child.close()\n"
    )
    said, _ = parent.communicate(timeout=100)
    assert said.decode() == "memory {'limit_mb': '1024'}\n"

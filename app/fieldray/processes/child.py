"""The parent's side of a child process: start the process, send messages, get answers, end the process.

Decoders and networks run in child processes. So native code that crashes, hangs or takes all memory costs one image,
never the program. A child process is started as `fieldray.processes.child_main MODULE:FUNCTION`. The function takes a
`Message` and returns the answer as a `Message`; `make_message_handler` makes such a function. `serving` contains the
code of the child process.

A child process ends when its standard input closes or its parent ends. Before the first message a child process reports
that it is ready. If it ends before this report, the computer is the cause, not an image or a model.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, NamedTuple, TypeVar, cast, get_args, get_origin

import msgspec

from fieldray import errors
from fieldray.errors import FieldrayError, reason_of_unexpected_error, resource_problem
from fieldray.paths import child_process_command
from fieldray.processes.serving import (
    MEMORY_LIMIT_VARIABLE,
    PARENT_PID_VARIABLE,
    QUESTION_KEY,
    READY_MESSAGE,
    STAGE_KEY,
    Handler,
    ask_parent,
    encode_error,
)
from fieldray.processes.wire import INVALID_MESSAGE_ERRORS, Message, read_message, write_message
from fieldray.reasons import Reason, reason
from fieldray.typed_json import to_type

if TYPE_CHECKING:
    from fieldray.domain.run import ProgressHandler
    from fieldray.processes.wire import Array

log = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

_MAX_STAGES: Final = 64  # maximum number of stages and questions in one call; more mean an endless loop
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# By default glibc returns every block above 128 KB to the system. Fresh pages then cost up to a quarter of the time to
# read an image. With these settings blocks below 32 MB (glibc's maximum) are kept, up to 128 MB in all.
_KEPT_MEMORY: Final = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**27)}


class Deadline:
    """A time limit for an operation: the function `expire` is called if `end` is not called in time after `begin`.

    `expire` is called at most once for each `begin`, from the thread of this object. After `end` has returned, `expire`
    is not called for that operation. The thread starts with the first `begin` and ends with `close`.
    """

    def __init__(self, expire: Callable[[], None], *, name: str) -> None:
        self._expire = expire
        self._changed = threading.Condition()  # reentrant, because `expire` may call `close`
        self._due_s = self._wakes_s = math.inf
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def begin(self, timeout_s: float) -> None:
        """Start the time limit: `expire` is called unless `end` is called within `timeout_s` seconds."""
        with self._changed:
            self._due_s = time.monotonic() + timeout_s
            if self._due_s < self._wakes_s:  # otherwise the thread wakes early enough by itself
                self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """Cancel the time limit, because the operation ended in time."""
        with self._changed:
            self._due_s = math.inf

    def close(self) -> None:
        """End the thread that watches the time limit.

        Waits for the end of the thread, except when called from that thread.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_closed:
                self._wakes_s = self._due_s
                left_s = self._due_s - time.monotonic()
                if left_s <= 0:
                    self._due_s = math.inf
                    self._expire()
                else:
                    self._changed.wait(None if left_s == math.inf else left_s)


class ChildLost(Exception):
    """Raised if a child process ended without an answer.

    was_ready  whether the child process had reported that it is ready. If False, the message did not cause the end
    """

    was_ready: bool


class ChildDied(ChildLost):
    """Raised if a child process ended during a call for any reason but a time-out, or gave an invalid answer.

    exit_code    exit code as from `subprocess` (negative: the number of a signal); None if unknown
    last_stderr  the last lines that the child process wrote to standard error
    """

    def __init__(self, exit_code: int | None, last_stderr: str, *, was_ready: bool = True) -> None:
        last = last_stderr.strip().splitlines()[-1:]
        super().__init__(": ".join([f"child process ended with {exit_code}", *last]))
        self.exit_code = exit_code
        self.last_stderr = last_stderr
        self.was_ready = was_ready


class ChildTimeout(ChildLost):
    """Raised if a child process gave no answer in time and was killed."""

    def __init__(self, text: str, *, was_ready: bool = True) -> None:
        super().__init__(text)
        self.was_ready = was_ready


class _RunningProcess(NamedTuple):
    """A running child process with its time limit and the thread that started the process.

    Each process has an object of its own, so that a thread that ends late never affects the next process.
    """

    process: subprocess.Popen[bytes]
    deadline: Deadline
    starter_thread: threading.Thread

    def reap(self) -> None:
        self.process.wait()
        self.deadline.close()
        self.starter_thread.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                cast("BinaryIO", stream).close()


class Child:
    """A handle to one child process: start the process, call it, and end it.

    Only one thread at a time may use a handle. The exception is `kill`, which any thread may call.
    """

    def __init__(
        self,
        service: str,
        *,
        memory_limit_mb: int | None = None,
        command: Callable[[str], list[str]] = child_process_command,
    ) -> None:
        self._service = service
        self._command = command
        self._memory_limit_mb = memory_limit_mb
        self._life: _RunningProcess | None = None
        self._last_stderr: deque[str] = deque(maxlen=20)
        self._timed_out = False
        self._is_ready = False
        self.stage = ""  # the latest stage that the child announced during the latest call

    @property
    def is_running(self) -> bool:
        """Whether the child process is running."""
        return self._life is not None and self._life.process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id of the child process; None before `start`."""
        return self._life.process.pid if self._life else None

    def start(self) -> None:
        """Start the child process.

        Returns before the process is ready; the first call waits until the process is ready. Raises OSError.
        """
        if self._life and not self.is_running:
            self._life.reap()  # clean up after a process that ended by itself
        self._timed_out = self._is_ready = False
        self._last_stderr.clear()
        born: SimpleQueue[subprocess.Popen[bytes] | Exception] = SimpleQueue()
        keeper = threading.Thread(target=self._keep, args=(born,), name="child-keeper", daemon=True)
        try:
            keeper.start()
        except RuntimeError as error:  # the system cannot start another thread
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        process = born.get()
        if isinstance(process, Exception):
            keeper.join()
            raise process
        self._life = _RunningProcess(process, Deadline(partial(self._expire, process), name="child-deadline"), keeper)

    def call(self, message: Message, *, timeout_s: float, answer_question: Handler | None = None) -> Message:
        """Send a message to the child process and return the answer.

        timeout_s        time limit in seconds, for each stage that the child process announces
        answer_question  function that answers questions of the child process during the call. Without this function, a
                         question raises ChildDied

        Raises ChildTimeout, ChildDied, or the `FieldrayError` that the child process raised.
        """
        if (life := self._life) is None:
            raise ChildDied(None, "not started")
        self.stage = ""
        life.deadline.begin(timeout_s)
        try:
            answer = self._exchange(life, message, timeout_s, answer_question)
        except (OSError, ValueError) as error:
            log.debug("child %s: %s", self._service, error)
            answer = None
        finally:
            life.deadline.end()
        if answer is None:
            self.kill()
            if self._timed_out:
                raise ChildTimeout(f"no answer in {timeout_s:g} s", was_ready=self._is_ready)
            raise ChildDied(life.process.returncode, "\n".join(self._last_stderr), was_ready=self._is_ready)
        self._understood(_raise_remote, answer)
        return answer

    def call_and_convert(
        self,
        message: Message,
        read: Callable[[Message], T],
        *,
        timeout_s: float,
        answer_question: Handler | None = None,
    ) -> T:
        """Send a message to the child process, convert the answer with `read`, and return the result. Raises as `call`.

        If `read` cannot convert the answer, the child process is killed and ChildDied is raised. A hostile file may
        have corrupted the process, which then answers no further message.
        """
        return self._understood(read, self.call(message, timeout_s=timeout_s, answer_question=answer_question))

    def _understood(self, read: Callable[[Message], T], answer: Message) -> T:
        try:
            return read(answer)
        except INVALID_MESSAGE_ERRORS as error:
            self.kill()
            raise ChildDied(None, "an answer that makes no sense") from error

    def _exchange(
        self, life: _RunningProcess, message: Message, timeout_s: float, reply: Handler | None
    ) -> Message | None:
        """Send a message to the child process and return the answer; None if the process ended.

        Before the first message, the method waits until the child process is ready. The time limit starts again at each
        stage that the child process announces. While a question of the child process is answered, the time limit is
        suspended.

        life  the running process
        """
        requests, answers = cast("BinaryIO", life.process.stdin), cast("BinaryIO", life.process.stdout)
        if not self._is_ready:
            self._is_ready = (hello := read_message(answers)) is not None and hello.body == READY_MESSAGE.body
        if not self._is_ready:
            return None
        write_message(requests, message)
        for _ in range(_MAX_STAGES):
            answer = read_message(answers)
            if answer is None or not ({STAGE_KEY, QUESTION_KEY} & answer.body.keys()):
                return answer
            if STAGE_KEY in answer.body:
                self.stage = str(answer.body[STAGE_KEY])
            elif reply is None:
                return None
            else:
                life.deadline.end()
                write_message(requests, _replied(reply, Message(answer.body[QUESTION_KEY], answer.arrays)))
            life.deadline.begin(timeout_s)
        return None

    def close(self, *, grace_s: float = 2.0) -> None:
        """End the child process in an orderly way, by closing its standard input.

        grace_s  seconds to wait for the end of the process, which is then killed
        """
        if (life := self._life) is None:
            return
        with contextlib.suppress(OSError):
            cast("BinaryIO", life.process.stdin).close()
        try:
            life.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            life.process.kill()
        life.reap()

    def kill(self, *, waits: bool = True) -> None:
        """Kill the child process at once. Any thread may call this method.

        waits  whether to wait for the end of the process. If False, the thread with a running call waits instead
        """
        if life := self._life:
            life.process.kill()
            if waits:
                life.reap()

    def _expire(self, process: subprocess.Popen[bytes]) -> None:
        self._timed_out = True
        process.kill()

    def _keep(self, born: SimpleQueue[subprocess.Popen[bytes] | Exception]) -> None:
        """Start the child process, put it into the queue `born`, and wait until the process has ended.

        This method runs in a thread of its own. On Linux a child process is killed when the thread that started it ends
        (see `serving`). The thread that calls `start` may end long before the child process.
        """
        try:
            process = self._born()
        except Exception as error:
            born.put(error)
            return
        born.put(process)
        for line in cast("BinaryIO", process.stderr):
            self._last_stderr.append(line.decode(errors="replace").rstrip()[:500])
        process.wait()

    def _born(self) -> subprocess.Popen[bytes]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}  # cloud storage keys
        environment = {**own, **_ONE_THREAD, **_KEPT_MEMORY, PARENT_PID_VARIABLE: str(os.getpid())}
        environment.pop(MEMORY_LIMIT_VARIABLE, None)
        if self._memory_limit_mb:
            environment[MEMORY_LIMIT_VARIABLE] = str(self._memory_limit_mb)
        return subprocess.Popen(
            self._command(self._service),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )


def _replied(reply: Handler, question: Message) -> Message:
    """Return the reply to a question of a child process.

    reply  function that makes the reply

    Raises ValueError for an invalid question, which a hostile file may have caused.
    """
    try:
        return reply(question)
    except FieldrayError as error:
        return encode_error(error)
    except INVALID_MESSAGE_ERRORS as error:
        raise ValueError("a question that makes no sense") from error


def _raise_remote(answer: Message) -> None:
    error = answer.body.get("raised")
    if error is None:
        return
    why = Reason(error["code"], tuple((key, value) for key, value in error["parameters"]))
    kind = getattr(errors, error["kind"], FieldrayError)
    if not (isinstance(kind, type) and issubclass(kind, FieldrayError)) or kind is errors.PackNotTrusted:
        kind = FieldrayError
    raise kind(why)


# ---- Calls: questions and answers as frozen dataclasses.
#
# Parent and child process share one description of a call. Arrays are sent after the JSON, paths as text. A hostile
# file may have shaped an answer. So every answer is decoded to its declared type, or raises one of
# `wire.INVALID_MESSAGE_ERRORS`.

_CALL: Final = "call"
_VALUE: Final = "value"
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ChildFunction(Generic[Q, A]):
    """The description of a function that a child process offers. Parent and child process both use this object.

    name           name of the function
    request_type   type of the function's argument, usually a frozen dataclass
    response_type  type of the function's result, usually a frozen dataclass
    """

    name: str
    request_type: type[Q]
    response_type: type[A]

    def ask(self, child: Child, question: Q, *, timeout_s: float, reply: Handler | None = None) -> A:
        """Call this function with an argument in a running child process, and return the result.

        timeout_s  time limit in seconds, for each stage that the child process announces
        reply      as in `Child.call`

        Raises as `Child.call_and_convert`.
        """
        return child.call_and_convert(
            encode_message(question, call=self.name), self.decode_answer, timeout_s=timeout_s, answer_question=reply
        )

    def ask_parent(self, question: Q) -> A:
        """Call this function in the parent process, and return the result.

        Only a child process that answers a call may do this.

        Raises FieldrayError, and the exceptions of `serving.ask_parent`.
        """
        answer = ask_parent(encode_message(question, call=self.name))
        _raise_remote(answer)
        return self.decode_answer(answer)

    def run_in_child(self, child: Child, question: Q, *, progress: ProgressHandler, timeout_s: float) -> A:
        """Start a child process, call this function in the child process, and return the result.

        progress   function called with (done, total) for each stage that the child process announces as
                   `announce_stage("3/12")`. An exception raised in this function cancels the call, and the child
                   process is killed
        timeout_s  time limit in seconds, for each stage

        Raises EnvironmentProblem if no child process can be started, FieldrayError if the child process ended without
        an answer, and the errors that the child process raised.
        """
        try:
            child.start()
            with ThreadPoolExecutor(1, thread_name_prefix=self.name) as asking:
                answer = asking.submit(self.ask, child, question, timeout_s=timeout_s)
                try:
                    while not wait([answer], timeout=_LOOK_S).done:
                        done, _, total = child.stage.partition("/")
                        progress(int(done or 0), int(total or 0))
                except BaseException:
                    child.kill()
                    raise
                return answer.result()
        except OSError as error:
            raise resource_problem(error) or FieldrayError(reason_of_unexpected_error(error)) from error
        except ChildLost as error:
            raise FieldrayError(reason("internal", detail=str(error))) from error
        finally:
            child.close()

    def decode_answer(self, message: Message) -> A:
        """Decode the answer in a message.

        Raises `wire.INVALID_MESSAGE_ERRORS` if the message is not a valid answer of this function.
        """
        return decode_message(message, self.response_type)


def make_message_handler(*calls: tuple[ChildFunction[Any, Any], Callable[[Any], Any]]) -> Handler:
    """Return a function that answers the messages of another process by calling one of several functions.

    calls  pairs of a call and the function that computes the answer to the call's question
    """
    table: Mapping[str, tuple[ChildFunction[Any, Any], Callable[[Any], Any]]] = {
        call.name: (call, do) for call, do in calls
    }

    def handle(message: Message) -> Message:
        call, do = table[message.body[_CALL]]
        return encode_message(do(decode_message(message, call.request_type)))

    return handle


def encode_message(value: Any, *, call: str = "") -> Message:
    """Encode a value as a message.

    value  a dataclass of plain values, arrays, paths and further dataclasses
    call   name of the function to be called with the value; "" if the value is an answer

    Raises TypeError for a value of any other type.
    """
    arrays: dict[str, Array] = {}

    def replaced(part: Any) -> Any:
        if isinstance(part, Path):
            return str(part)
        import numpy as np

        if not isinstance(part, np.ndarray):
            raise TypeError(f"{type(part).__name__} does not travel")
        name = str(len(arrays))
        arrays[name] = part
        return name

    return Message({_CALL: call, _VALUE: msgspec.to_builtins(value, enc_hook=replaced)}, arrays)


def decode_message(message: Message, kind: type[A]) -> A:
    """Decode a value of type `kind` from a message.

    Raises ValueError or LookupError if the message does not contain a value of this type.
    """
    arrays = message.arrays

    def found(of: Any, part: Any) -> Any:
        if of is object:
            return part
        if of is Path:
            return Path(part)
        array = arrays[part]
        wanted = get_args(get_args(of)[1])[0] if get_origin(of) else Any
        if wanted is not Any and array.dtype != wanted:
            raise ValueError(f"an array of {array.dtype}")
        return array

    return to_type(message.body[_VALUE], kind, found)

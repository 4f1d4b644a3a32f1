"""A child process that answers one message at a time, the parent's handle on it, and the calls that both sides use.

Decoders and inference run in children: native code that crashes, hangs or takes all memory costs one image, never
the program. It is `fieldray.processes.child_main MODULE:FUNCTION`; the function takes a `Message` and returns one. A
child ends when its standard input closes or its parent has ended. Its side is `serving`, its function made by `served`.
Before it is asked anything it reports that it is ready: what ends it sooner is a problem of this computer, not of an
image or a model.
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
from fieldray.errors import FieldrayError, shortage, unexpected
from fieldray.paths import child_command
from fieldray.processes.serving import (
    MEMORY_VARIABLE,
    PARENT_VARIABLE,
    QUESTION,
    READY,
    STAGE,
    Handler,
    ask_parent,
    raised,
)
from fieldray.processes.wire import NONSENSE, Message, read_message, write_message
from fieldray.reasons import Reason, reason
from fieldray.typed_json import converted

if TYPE_CHECKING:
    from fieldray.domain.run import Count
    from fieldray.processes.wire import Array

log = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

_MOST_STAGES: Final = 64  # and questions of one answer: more are none, but a child that never ends
_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# glibc hands every block above 128 KB back to the system, and each image pays for fresh pages: up to a quarter of
# the time to read one. Below 32 MB (its own upper limit) blocks are kept, up to 128 MB in all.
_KEPT_MEMORY: Final = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**27)}


class Deadline:
    """Calls `expire` once, from its thread, if `end` comes later than `begin` allowed.

    After `end` has returned, `expire` is not called for what `begin` began. The thread starts with the first `begin`
    and ends with `close`.
    """

    def __init__(self, expire: Callable[[], None], *, name: str) -> None:
        self._expire = expire
        self._changed = threading.Condition()  # an RLock: `expire` may end things that call `close`
        self._due_s = self._wakes_s = math.inf
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def begin(self, timeout_s: float) -> None:
        """Start the time limit of a call."""
        with self._changed:
            self._due_s = time.monotonic() + timeout_s
            if self._due_s < self._wakes_s:  # else it will look in time: it is not woken for every call
                self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        """Cancel the deadline."""
        with self._changed:
            self._due_s = math.inf

    def close(self) -> None:
        """End the thread and wait for it. Called from the thread itself, does not wait."""
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
    """The child ended without an answer. If it never `was_ready`, the question is not the cause."""

    was_ready: bool


class ChildDied(ChildLost):
    """The child ended during a call. `exit_code` is as from `subprocess` (negative: a signal)."""

    def __init__(self, exit_code: int | None, last_stderr: str, *, was_ready: bool = True) -> None:
        last = last_stderr.strip().splitlines()[-1:]
        super().__init__(": ".join([f"child process ended with {exit_code}", *last]))
        self.exit_code = exit_code
        self.last_stderr = last_stderr
        self.was_ready = was_ready


class ChildTimeout(ChildLost):
    """The child gave no answer in time and was killed."""

    def __init__(self, text: str, *, was_ready: bool = True) -> None:
        super().__init__(text)
        self.was_ready = was_ready


class _Life(NamedTuple):
    """A process and the objects that end with it, so that a late thread never affects the next process."""

    process: subprocess.Popen[bytes]
    deadline: Deadline
    keeper: threading.Thread

    def reap(self) -> None:
        self.process.wait()
        self.deadline.close()
        self.keeper.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                cast("BinaryIO", stream).close()


class Child:
    """The parent's handle. Not for use by two threads at once, except `kill`, which any thread may call."""

    def __init__(
        self, service: str, *, memory_limit_mb: int | None = None, command: Callable[[str], list[str]] = child_command
    ) -> None:
        self._service = service
        self._command = command
        self._memory_limit_mb = memory_limit_mb
        self._life: _Life | None = None
        self._last_stderr: deque[str] = deque(maxlen=20)
        self._timed_out = False
        self._is_ready = False
        self.stage = ""  # the one that it announced last of what it was asked last

    @property
    def is_running(self) -> bool:
        """Whether the child process is running."""
        return self._life is not None and self._life.process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id, None before `start`."""
        return self._life.process.pid if self._life else None

    def start(self) -> None:
        """Start the process. It answers the first call when its imports are done. Raises OSError."""
        if self._life and not self.is_running:
            self._life.reap()  # it ended by itself
        self._timed_out = self._is_ready = False
        self._last_stderr.clear()
        born: SimpleQueue[subprocess.Popen[bytes] | Exception] = SimpleQueue()
        keeper = threading.Thread(target=self._keep, args=(born,), name="child-keeper", daemon=True)
        try:
            keeper.start()
        except RuntimeError as error:  # no thread is to be had
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
        process = born.get()
        if isinstance(process, Exception):
            keeper.join()
            raise process
        self._life = _Life(process, Deadline(partial(self._expire, process), name="child-deadline"), keeper)

    def call(self, message: Message, *, timeout_s: float, reply: Handler | None = None) -> Message:
        """Ask and wait. Raises ChildTimeout, ChildDied, or the `FieldrayError` the service raised.

        reply  answers what the child asks in the middle of the call; a child that asks although nobody replies has died
        """
        if (life := self._life) is None:
            raise ChildDied(None, "not started")
        self.stage = ""
        life.deadline.begin(timeout_s)
        try:
            answer = self._exchange(life, message, timeout_s, reply)
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

    def ask(
        self, message: Message, read: Callable[[Message], T], *, timeout_s: float, reply: Handler | None = None
    ) -> T:
        """Ask the child, and return its answer as converted by `read`. Raises as `call`.

        A child whose answer `read` cannot convert is killed and counts as dead (ChildDied): a file that corrupted the
        child harms nothing else.
        """
        return self._understood(read, self.call(message, timeout_s=timeout_s, reply=reply))

    def _understood(self, read: Callable[[Message], T], answer: Message) -> T:
        try:
            return read(answer)
        except NONSENSE as error:
            self.kill()
            raise ChildDied(None, "an answer that makes no sense") from error

    def _exchange(self, life: _Life, message: Message, timeout_s: float, reply: Handler | None) -> Message | None:
        """Exchange a message with the child. Returns the answer, None if the child ended.

        Before the first answer, the child reports that it is ready. Each stage that it announces restarts the time
        limit; the limit is suspended while a question of the child is answered.
        """
        requests, answers = cast("BinaryIO", life.process.stdin), cast("BinaryIO", life.process.stdout)
        if not self._is_ready:
            self._is_ready = (hello := read_message(answers)) is not None and hello.body == READY.body
        if not self._is_ready:
            return None
        write_message(requests, message)
        for _ in range(_MOST_STAGES):
            answer = read_message(answers)
            if answer is None or not ({STAGE, QUESTION} & answer.body.keys()):
                return answer
            if STAGE in answer.body:
                self.stage = str(answer.body[STAGE])
            elif reply is None:
                return None
            else:
                life.deadline.end()
                write_message(requests, _replied(reply, Message(answer.body[QUESTION], answer.arrays)))
            life.deadline.begin(timeout_s)
        return None

    def close(self, *, grace_s: float = 2.0) -> None:
        """Close its input, wait for an orderly end, kill it if that takes longer."""
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
        """Kill the child at once. Without `waits`, the thread with a call under way waits for the child's end."""
        if life := self._life:
            life.process.kill()
            if waits:
                life.reap()

    def _expire(self, process: subprocess.Popen[bytes]) -> None:
        self._timed_out = True
        process.kill()

    def _keep(self, born: SimpleQueue[subprocess.Popen[bytes] | Exception]) -> None:
        """Start the process and stay until it has ended.

        It has a thread of its own for this: on Linux a child is killed when the thread that started it ends
        (`serving`), and those who call `start` may end long before it.
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
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}  # keys of a bucket
        environment = {**own, **_ONE_THREAD, **_KEPT_MEMORY, PARENT_VARIABLE: str(os.getpid())}
        environment.pop(MEMORY_VARIABLE, None)
        if self._memory_limit_mb:
            environment[MEMORY_VARIABLE] = str(self._memory_limit_mb)
        return subprocess.Popen(
            self._command(self._service),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )


def _replied(reply: Handler, question: Message) -> Message:
    """Raises ValueError for a question that makes no sense: whoever asks it may be a hostile file."""
    try:
        return reply(question)
    except FieldrayError as error:
        return raised(error)
    except NONSENSE as error:
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


# ---- Calls: what is asked and what comes back, as frozen dataclasses.
#
# A call is described once, and both sides use the description. Arrays travel beside the JSON, paths as text. What comes
# back may have been shaped by a hostile file: it is taken for what its type says, and raises `wire.NONSENSE` where it
# is anything else.

_CALL: Final = "call"
_VALUE: Final = "value"
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, A]):
    """A function that a child offers: its name, and the types of the question and of the answer."""

    name: str
    question: type[Q]
    answer: type[A]

    def ask(self, child: Child, question: Q, *, timeout_s: float, reply: Handler | None = None) -> A:
        """Ask a child, and return its answer. `reply` is as in `Child.call`. Raises as `Child.ask`."""
        return child.ask(sent(question, call=self.name), self.answered, timeout_s=timeout_s, reply=reply)

    def ask_parent(self, question: Q) -> A:
        """Ask the parent, from a child in the middle of a call. Raises FieldrayError, and as `ask_parent`."""
        answer = ask_parent(sent(question, call=self.name))
        _raise_remote(answer)
        return self.answered(answer)

    def apart(self, child: Child, question: Q, *, progress: Count, timeout_s: float) -> A:
        """Ask a child started for this call alone. `progress` receives the child's stages (`announce("3/12")`).

        To cancel, raise an exception in `progress`: the process is killed. Raises EnvironmentProblem where none can
        be started, FieldrayError where it was lost, and what it raised itself.
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
            raise shortage(error) or FieldrayError(unexpected(error)) from error
        except ChildLost as error:
            raise FieldrayError(reason("internal", detail=str(error))) from error
        finally:
            child.close()

    def answered(self, message: Message) -> A:
        """The answer in a message. Raises `wire.NONSENSE`."""
        return received(message, self.answer)


def served(*calls: tuple[Call[Any, Any], Callable[[Any], Any]]) -> Handler:
    """Return the handler of a process that serves these calls, each by a function from question to answer."""
    table: Mapping[str, tuple[Call[Any, Any], Callable[[Any], Any]]] = {call.name: (call, do) for call, do in calls}

    def handle(message: Message) -> Message:
        call, do = table[message.body[_CALL]]
        return sent(do(received(message, call.question)))

    return handle


def sent(value: Any, *, call: str = "") -> Message:
    """Encode a value as a message: a dataclass of plain values, arrays and paths, or of further dataclasses."""
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


def received(message: Message, kind: type[A]) -> A:
    """Decode the value of a message. Raises ValueError and LookupError for other types."""
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

    return converted(message.body[_VALUE], kind, found)

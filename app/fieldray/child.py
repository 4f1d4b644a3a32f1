"""A child process that answers one message at a time, and the parent's handle on it.

Decoders and inference run in children: native code that crashes, hangs or takes all memory costs one image, never
the program. The child is `fieldray.child_main MODULE:FUNCTION`; the function takes a `Message` and returns one. A
child ends when its standard input closes or its parent is gone. Its side is `serving`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO, Final, cast

from fieldray import errors
from fieldray.deadline import Deadline
from fieldray.errors import FieldrayError
from fieldray.paths import child_command
from fieldray.reasons import Reason
from fieldray.serving import MEMORY_VARIABLE
from fieldray.wire import Message, read_message, write_message

log = logging.getLogger(__name__)

_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# glibc hands every block above 128 KB back to the system, and film after film pays for fresh pages: up to a quarter of
# the time to read one. Below 32 MB (its own upper limit) blocks are kept, up to 128 MB in all.
_KEPT_MEMORY: Final = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**27)}


class ChildDied(Exception):
    """The child ended while it was asked something; `exit_code` as from `subprocess` (negative: a signal)."""

    def __init__(self, exit_code: int | None, last_words: str) -> None:
        super().__init__(f"child process ended with {exit_code}")
        self.exit_code = exit_code
        self.last_words = last_words


class ChildTimeout(Exception):
    """The child gave no answer in time and was killed."""


class Child:
    """The parent's handle. Not for use by two threads at once, except `kill`, which any thread may call."""

    def __init__(
        self, service: str, *, memory_limit_mb: int | None = None, command: Callable[[str], list[str]] = child_command
    ) -> None:
        self._service = service
        self._command = command
        self._memory_limit_mb = memory_limit_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._last_words: deque[str] = deque(maxlen=20)
        self._drain: threading.Thread | None = None
        self._deadline: Deadline | None = None
        self._timed_out = False

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id, None before `start`."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process; it answers its first call once its imports are done. Raises OSError."""
        environment = {**os.environ, **_ONE_THREAD, **_KEPT_MEMORY}
        if self._memory_limit_mb:
            environment[MEMORY_VARIABLE] = str(self._memory_limit_mb)
        flags = getattr(subprocess, "CREATE_NO_WINDOW", 0)
        self._process = subprocess.Popen(
            self._command(self._service),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            creationflags=flags,
        )
        self._timed_out = False
        self._last_words.clear()
        self._drain = threading.Thread(target=self._keep_last_words, name="child-stderr", daemon=True)
        self._drain.start()
        if self._deadline:
            self._deadline.close()  # of a process that ended by itself
        self._deadline = Deadline(self._expire, name="child-deadline")

    def call(self, message: Message, *, timeout_s: float) -> Message:
        """Ask and wait. Raises ChildTimeout, ChildDied, or the `FieldrayError` the service raised."""
        process, deadline = self._process, self._deadline
        if process is None or deadline is None:
            raise ChildDied(None, "not started")
        deadline.begin(timeout_s)
        try:
            write_message(cast("BinaryIO", process.stdin), message)
            answer = read_message(cast("BinaryIO", process.stdout))
        except (OSError, ValueError) as error:
            log.debug("child %s: %s", self._service, error)
            answer = None
        finally:
            deadline.end()
        if answer is None:
            self.kill()
            if self._timed_out:
                raise ChildTimeout(f"no answer in {timeout_s:g} s")
            raise ChildDied(process.returncode, "\n".join(self._last_words))
        try:
            _raise_remote(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.kill()
            raise ChildDied(None, "an answer that makes no sense") from error
        return answer

    def close(self, *, grace_s: float = 2.0) -> None:
        """Close its input, wait for an orderly end, kill it if that takes longer."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError):
            cast("BinaryIO", process.stdin).close()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
        self._reap(process)

    def kill(self) -> None:
        """End it at once."""
        process = self._process
        if process is not None:
            process.kill()
            self._reap(process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if self._deadline:
            self._deadline.close()
        if self._drain and self._drain is not threading.current_thread():
            self._drain.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                cast("BinaryIO", stream).close()

    def _expire(self) -> None:
        self._timed_out = True
        if self._process:
            self._process.kill()

    def _keep_last_words(self) -> None:
        process = self._process
        assert process and process.stderr
        for line in process.stderr:
            self._last_words.append(line.decode(errors="replace").rstrip()[:500])


def _raise_remote(answer: Message) -> None:
    raised = answer.body.get("raised")
    if raised is None:
        return
    why = Reason(raised["code"], tuple((key, value) for key, value in raised["parameters"]))
    kind = getattr(errors, raised["kind"], FieldrayError)
    if not (isinstance(kind, type) and issubclass(kind, FieldrayError)) or kind is errors.PackNotTrusted:
        kind = FieldrayError
    raise kind(why)

"""A few child processes that read files: a codec that crashes, hangs or balloons costs one file."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fieldray.errors import FieldrayError, ReaderProblem, Unreadable, Unusable
from fieldray.paths import child_command
from fieldray.processes.child import Child, ChildLost, ChildTimeout
from fieldray.reasons import Reason, reason

# Everything else is imported where it is used: the children are started first, and import their own meanwhile.
if TYPE_CHECKING:
    from fieldray.domain.image import Detail, Image
    from fieldray.domain.model import HeaderRules, InputSpec
    from fieldray.domain.study import ImageRef
    from fieldray.imaging.answers import ReadResult
    from fieldray.processes.wire import Message

log = logging.getLogger(__name__)

_SERVICE: Final = "fieldray.imaging.service:handle"
_HEAD_START_S: Final = 0.5
_TRIES: Final = 2


class PoolClosed(Exception):
    """The pool was closed while, or before, it was asked."""


class DecoderPool:
    """`size` children; calls from any number of threads wait for a free one. Close it, or use it as a context.

    The first child starts at once, the others when it has read its first file, or is at it for a while: while a
    program starts, cores are scarce, and the first result is what a person waits for.

    timeout_s           for one file; a child that takes longer is killed
    memory_limit_mb     address space of one child
    command             starts a child that serves what it is given
    """

    def __init__(
        self,
        size: int,
        *,
        timeout_s: float,
        memory_limit_mb: int,
        command: Callable[[str], list[str]] = child_command,
    ) -> None:
        self._timeout_s = timeout_s
        self._children = [
            Child(_SERVICE, memory_limit_mb=memory_limit_mb, command=command) for _ in range(max(1, size))
        ]
        self._idle = self._children[:1]
        self._held_back = self._children[1:]
        self._condition = threading.Condition()
        self._is_closed = False
        with contextlib.suppress(OSError):  # whoever needs it tries again, and says why
            self._children[0].start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the children that run."""
        return tuple(child.pid for child in self._children if child.is_running and child.pid is not None)

    def read(
        self, ref: ImageRef, spec: InputSpec, *, rules: HeaderRules | None = None, detail: Detail = "needed"
    ) -> ReadResult:
        """Read, check and prepare one image, in such detail. Never raises for a bad file.

        With `rules` the header is read again from the bytes that are hashed and decoded, and held against them.
        Raises PoolClosed, and ReaderProblem when no child can be started: no file has any part in that.
        """
        from fieldray.imaging.answers import no_tensor, read_request, read_result

        try:
            return read_result(self._ask(read_request(ref, spec, rules=rules, detail=detail)), ref)
        except (Unreadable, Unusable) as error:
            return no_tensor(error, content_sha256=self._hash_if_readable(ref))

    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image:
        """The image at full resolution, with a hash only of the file with that content.

        Raises Unreadable (`changed` for another content), Unusable, ReaderProblem, PoolClosed.
        """
        from fieldray.imaging.answers import image_of, image_request

        return image_of(self._ask(image_request(ref, content_sha256=content_sha256)))

    def members(self, ref: ImageRef) -> Iterator[ImageRef]:
        """References to what is in a zip file, passed on while a child still looks at others.

        Raises Unreadable, Unusable for the whole zip, PoolClosed.
        """
        from fieldray.imaging.zip_members import references

        return references(ref, self._ask)

    def content_hash(self, ref: ImageRef) -> str:
        """SHA-256 (hex) of the file's bytes, taken in this process unless it has to be unpacked.

        Raises Unreadable, PoolClosed.
        """
        if ref.member is None:
            from fieldray.imaging.source import content_hash

            return content_hash(ref)
        from fieldray.imaging.answers import hash_of, hash_request

        return hash_of(self._ask(hash_request(ref)))

    def close(self) -> None:
        """Kill the children; calls that wait or are under way raise PoolClosed."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        for child in self._children:
            child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _hash_if_readable(self, ref: ImageRef) -> str:
        with contextlib.suppress(FieldrayError):
            return self.content_hash(ref)
        return ""

    def _ask(self, question: Message) -> Message:
        """One answer; a child that died or hung is replaced and the question asked once more.

        What happens to a child before it is asked anything is not the file's doing, and counts apart.
        """
        losses: list[ChildLost] = []
        failed_starts: list[OSError | ChildLost] = []
        while len(losses) < _TRIES and len(failed_starts) < _TRIES:
            try:
                with self._free_child() as child:
                    return child.call(question, timeout_s=self._timeout_s)
            except (OSError, ChildLost) as error:
                if self._is_closed:
                    raise PoolClosed from error
                log.warning("reader: %s", error)
                if isinstance(error, ChildLost) and error.was_ready:
                    losses.append(error)
                else:
                    failed_starts.append(error)
        if len(failed_starts) == _TRIES:
            raise ReaderProblem(_not_started(failed_starts[-1]))
        if isinstance(losses[-1], ChildTimeout):
            raise Unreadable(reason("decoder_timeout", seconds=f"{self._timeout_s:g}"))
        raise Unreadable(reason("decoder_crashed"))

    @contextlib.contextmanager
    def _free_child(self) -> Iterator[Child]:
        """The child used last, which has its codecs loaded; started again if it is gone. Raises OSError, PoolClosed."""
        with self._condition:
            if self._held_back and not self._condition.wait_for(self._can_go_on, _HEAD_START_S):
                self._hold_none_back()
            self._condition.wait_for(self._can_go_on)
            if self._is_closed:
                raise PoolClosed
            child = self._idle.pop()
        try:
            self._start_if_gone(child)
            yield child
        finally:
            with self._condition:
                self._hold_none_back()
                self._idle.append(child)
                self._condition.notify_all()

    def _start_if_gone(self, child: Child) -> None:
        with self._condition:
            if self._is_closed:
                raise PoolClosed
            if not child.is_running:
                child.start()

    def _can_go_on(self) -> bool:
        return self._is_closed or bool(self._idle)

    def _hold_none_back(self) -> None:
        self._idle += self._held_back
        self._held_back = []


def _not_started(error: OSError | ChildLost) -> Reason:
    detail = error.strerror if isinstance(error, OSError) else None
    return reason("readers_not_started", detail=detail or error)

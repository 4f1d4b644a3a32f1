"""A few child processes that read files, so that a codec that crashes, hangs or takes all memory costs one file."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from fieldray.errors import FieldrayError, InputProblem, ReaderProblem, Unreadable, Unusable
from fieldray.paths import child_command
from fieldray.processes.child import Child, ChildDied, ChildLost, ChildTimeout
from fieldray.reasons import Reason, reason

# Everything else is imported where it is used: the children start first, and import what they need meanwhile.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fieldray.domain.image import Detail, Image, ShownImage
    from fieldray.domain.model import HeaderRules, InputSpec
    from fieldray.domain.study import ImageRef
    from fieldray.imaging.answers import ReadResult
    from fieldray.imaging.stamp import Stamps
    from fieldray.processes.wire import Message

log = logging.getLogger(__name__)

T = TypeVar("T")

_SERVICE: Final = "fieldray.imaging.service:handle"
_HEAD_START_S: Final = 0.5
_TRIES: Final = 2
_KILLED: Final = -9  # SIGKILL: nobody here waits for a process that was sent it, so it was the system, short of memory


class PoolClosed(Exception):
    """The pool was closed before or during a call."""


class DecoderPool:
    """`size` children; calls from any number of threads wait for a free one. Close it, or use it as a context.

    The first child starts at once. The others start once it has read its first file or has been at it for a while:
    cores are scarce while a program starts, and a person waits for the first result.

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
        self._stamps: Stamps | None = None
        with contextlib.suppress(OSError):  # the first call tries again and reports why
            self._children[0].start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the running children."""
        return tuple(child.pid for child in self._children if child.is_running and child.pid is not None)

    def stamp_with(self, stamps: Stamps) -> None:
        """Stamp the files that are read from now on."""
        self._stamps = stamps

    def read(
        self,
        ref: ImageRef,
        spec: InputSpec,
        *,
        rules: HeaderRules | None = None,
        detail: Detail = "needed",
        lungs: InputSpec | None = None,
        waives: Sequence[str] = (),
    ) -> ReadResult:
        """Read, check and prepare one image at this level of detail. Never raises for a bad file.

        With `lungs`, the input of the network that finds the lungs is prepared as well.

        With `rules`, the header is read again from the bytes that are hashed and decoded, and checked against them.
        What it `waives`, codes of reasons that a person overruled, is not asked of the header.
        Raises PoolClosed, and ReaderProblem if no child can be started, which is not the fault of any file.
        """
        from fieldray.imaging.answers import no_tensor, read_request, read_result

        key = self._stamps.key if self._stamps else b""
        request = read_request(ref, spec, rules=rules, detail=detail, lungs=lungs, stamp_key=key, waives=waives)
        try:
            return self._ask(request, lambda answer: read_result(answer, ref))
        except (Unreadable, Unusable) as error:
            return no_tensor(error, content_sha256=self._hash_if_readable(ref, error))

    def read_image(self, ref: ImageRef, *, content_sha256: str = "") -> Image:
        """The image at full resolution. With a hash, the file must still have that content.

        Raises Unreadable (`changed` for other content), Unusable, ReaderProblem, PoolClosed.
        """
        from fieldray.imaging.answers import image_of, image_request

        return self._ask(image_request(ref, content_sha256=content_sha256), image_of)

    def read_shown(self, ref: ImageRef, *, side: int, content_sha256: str = "") -> ShownImage:
        """The image as shown by default, its longer side `side` pixels or less. Raises as `read_image`."""
        from fieldray.imaging.answers import shown_of, shown_request

        return self._ask(shown_request(ref, content_sha256=content_sha256, side=side), shown_of)

    def read_preview(self, preview: bytes) -> NDArray[np.uint8]:
        """The grey levels (h, w) of a stored preview. Raises Unreadable, ReaderProblem, PoolClosed."""
        from fieldray.imaging.answers import preview_of, preview_request

        return self._ask(preview_request(preview), preview_of)

    def members(self, ref: ImageRef) -> Iterator[ImageRef]:
        """References to what is in a zip file, while a child is still searching it.

        Raises Unreadable, Unusable for the whole zip, PoolClosed.
        """
        from fieldray.imaging.answers import references

        return references(ref, self._ask)

    def content_hash(self, ref: ImageRef) -> tuple[str, bytes]:
        """SHA-256 (hex) of the file's bytes, computed in this process unless the file is in a zip, and its stamp.

        The stamp is empty where nobody asked for any, and where it could not vouch for the file. Raises Unreadable,
        PoolClosed.
        """
        if ref.member is not None:
            from fieldray.imaging.answers import hash_of, hash_request

            return self._ask(hash_request(ref), hash_of), b""
        if self._stamps:
            return self._stamps.hashed(ref)
        from fieldray.imaging.source import content_hash

        return content_hash(ref), b""

    def close(self) -> None:
        """Kill the children; waiting and running calls raise PoolClosed."""
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

    def _hash_if_readable(self, ref: ImageRef, error: InputProblem) -> str:
        """After a time-out by a child, with its time limit: the drive may be one that does not answer."""
        from fieldray.imaging.answers import hash_of, hash_request

        with contextlib.suppress(FieldrayError):
            if error.reason.code == "decoder_timeout":
                return self._ask(hash_request(ref), hash_of, tries=1)
            return self.content_hash(ref)[0]
        return ""

    def _ask(self, question: Message, read: Callable[[Message], T], *, tries: int = _TRIES) -> T:
        """What `read` makes of one answer. A child that dies, hangs or talks nonsense is replaced and asked once more.

        What happens to a child before it is asked anything is not the fault of the file and is counted separately.
        """
        losses: list[ChildLost] = []
        failed_starts: list[OSError | ChildLost] = []
        while len(losses) < tries and len(failed_starts) < _TRIES:
            try:
                with self._free_child() as child:
                    return child.ask(question, read, timeout_s=self._timeout_s)
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
        if isinstance(losses[-1], ChildDied) and losses[-1].exit_code == _KILLED:
            raise Unreadable(reason("reader_killed"))
        raise Unreadable(reason("decoder_crashed"))

    @contextlib.contextmanager
    def _free_child(self) -> Iterator[Child]:
        """The child used last, which has its codecs loaded; restarted if it died. Raises OSError, PoolClosed."""
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
                self._condition.notify()

    def _start_if_gone(self, child: Child) -> None:
        with self._condition:
            if self._is_closed:
                raise PoolClosed
            if not child.is_running:
                child.start()

    def _can_go_on(self) -> bool:
        return self._is_closed or bool(self._idle)

    def _hold_none_back(self) -> None:
        if self._held_back:
            self._idle += self._held_back
            self._held_back = []
            self._condition.notify_all()


def _not_started(error: OSError | ChildLost) -> Reason:
    detail = error.strerror if isinstance(error, OSError) else None
    return reason("readers_not_started", detail=detail or error)

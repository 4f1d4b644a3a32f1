"""A few child processes that read files: a codec that crashes, hangs or balloons costs one file."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Self

from fieldray.child import Child, ChildDied, ChildTimeout
from fieldray.domain.finding import ReadFacts
from fieldray.domain.image import Image, PixelMap, Tensor, Window
from fieldray.domain.model import InputSpec
from fieldray.domain.study import ImageRef
from fieldray.errors import FieldrayError, Unreadable, Unusable
from fieldray.imaging import source
from fieldray.paths import child_command
from fieldray.reasons import Reason, reason
from fieldray.wire import Message

log = logging.getLogger(__name__)

_SERVICE: Final = "fieldray.imaging.service:handle"


class PoolClosed(Exception):
    """The pool was closed while, or before, it was asked."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ReadResult:
    """What reading gave: a tensor, or the reason why there is none; `facts` hold what is known either way."""

    tensor: Tensor | None
    facts: ReadFacts
    view: str = ""
    problem: Reason | None = None
    problem_is_refusal: bool = False


class ReaderPool:
    """`size` children; calls from any number of threads wait for a free one. Close it, or use it as a context.

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
        self._idle = list(self._children)
        self._condition = threading.Condition()
        self._is_closed = False
        for child in self._children:
            child.start()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the children that run."""
        return tuple(child.pid for child in self._children if child.is_running and child.pid is not None)

    def read(self, ref: ImageRef, spec: InputSpec, *, in_full: bool = False) -> ReadResult:
        """Read, check and prepare one image. Never raises for a bad file; raises PoolClosed.

        in_full  at the file's own resolution, to compare with: otherwise only what `spec` needs is read
        """
        try:
            return _read_result(self._ask(ref, spec, in_full=in_full))
        except (Unreadable, Unusable) as error:
            is_refusal = isinstance(error, Unusable)
            facts = ReadFacts(content_sha256=_hash_if_readable(ref))
            return ReadResult(tensor=None, facts=facts, problem=error.reason, problem_is_refusal=is_refusal)

    def read_image(self, ref: ImageRef) -> Image:
        """The image at full resolution. Raises Unreadable, Unusable, PoolClosed."""
        return _image(self._ask(ref, None))

    def content_hash(self, ref: ImageRef) -> str:
        """SHA-256 (hex) of the file's bytes, taken in this process. Raises Unreadable."""
        return source.content_hash(ref)

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

    def _ask(self, ref: ImageRef, spec: InputSpec | None, *, in_full: bool = False) -> Message:
        """One answer; a child that died or hung is replaced and the file tried once more."""
        why = reason("decoder_crashed")
        for _ in range(2):
            with self._free_child() as child:
                try:
                    return child.call(_request(ref, spec, in_full), timeout_s=self._timeout_s)
                except ChildTimeout:
                    why = reason("decoder_timeout", seconds=f"{self._timeout_s:g}")
                except ChildDied as error:
                    why = reason("decoder_crashed")
                    if not self._is_closed:
                        log.warning("reader ended with %s", error.exit_code)
        if self._is_closed:
            raise PoolClosed
        raise Unreadable(why)

    @contextlib.contextmanager
    def _free_child(self) -> Iterator[Child]:
        """The child used last, which has its codecs loaded; started anew if it is gone."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_closed or self._idle)
            if self._is_closed:
                raise PoolClosed
            child = self._idle.pop()
            if not child.is_running:
                child.start()
        try:
            yield child
        finally:
            with self._condition:
                self._idle.append(child)
                self._condition.notify()


def _request(ref: ImageRef, spec: InputSpec | None, in_full: bool) -> Message:
    """What `imaging.service.handle` is asked; without a spec it gives the image at full resolution."""
    body: dict[str, Any] = {"path": str(ref.path), "member": ref.member, "frame": ref.frame}
    if spec is None:
        return Message({"ask": "image", **body})
    return Message({"ask": "read", "spec": asdict(spec), "in_full": in_full, **body})


def _hash_if_readable(ref: ImageRef) -> str:
    with contextlib.suppress(FieldrayError):
        return source.content_hash(ref)
    return ""


def _read_result(answer: Message) -> ReadResult:
    body = answer.body
    problem = body["problem"]
    values = answer.arrays.get("tensor")
    pixel_map = PixelMap(**body["pixel_map"]) if "pixel_map" in body else None
    facts = ReadFacts(
        content_sha256=body.get("content_sha256", ""),
        rows=body.get("rows", 0),
        columns=body.get("columns", 0),
        thumbnail=answer.arrays.get("thumbnail"),
        pixel_map=pixel_map,
        decode_ms=body["decode_ms"],
        notes=tuple(body.get("notes", ())),
    )
    tensor = Tensor(values=values, pixel_map=pixel_map) if values is not None and pixel_map is not None else None
    return ReadResult(
        tensor=None if problem else tensor,
        facts=facts,
        view=body.get("view", ""),
        problem=Reason(problem[0], tuple((key, value) for key, value in problem[1])) if problem else None,
        problem_is_refusal=body["problem_is_refusal"],
    )


def _image(answer: Message) -> Image:
    fields: Mapping[str, Any] = answer.body
    window, spacing = fields["window"], fields["spacing_mm"]
    return Image(
        pixels=answer.arrays["pixels"],
        voi_lut=answer.arrays.get("voi_lut"),
        window=Window(**window) if window else None,
        spacing_mm=(spacing[0], spacing[1]) if spacing else None,
        notes=tuple(fields["notes"]),
        **{name: value for name, value in fields.items() if name not in ("window", "spacing_mm", "notes")},
    )

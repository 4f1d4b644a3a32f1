"""The messages between the program and a child process that reads files: this is the program's side.

The child's side is `service`. It is a module of its own because it imports every decoder, which the program itself
never needs. What a child answers may have been shaped by a hostile file: it is taken for what its type says, and raises
`wire.NONSENSE` where it is anything else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, Protocol, TypeVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fieldray.domain.finding import PREVIEW_SIDE, THUMBNAIL_SIDE, ReadFacts
from fieldray.domain.image import Box, Detail, Image, PixelMap, ShownImage, SpacingPlane, Tensor, Window
from fieldray.domain.model import HeaderRules, InputSpec
from fieldray.domain.study import FileKind, ImageHeader, ImageRef, is_name
from fieldray.errors import FieldrayError, Unusable
from fieldray.imaging.limits import MAX_FRAMES
from fieldray.imaging.preprocess import to_tensor
from fieldray.processes.wire import Message
from fieldray.reasons import Reason, reason
from fieldray.typed_json import converted

T = TypeVar("T")

_LARGEST_PREVIEW: Final = 2**16
_Count = Annotated[int, Meta(ge=0, lt=2**31)]
_Why = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ReadResult:
    """The outcome of reading: a tensor, or the reason why there is none. `facts` hold what is known either way.

    tensor          for the classifier; None where its input is cropped: `cropped` makes it once the lungs are known
    lungs           for the network that finds the lungs, where one was asked for
    image           what the crop is made from
    ref             with the kind and the header of the bytes that were read; None if none were read, or nobody asked
    is_approximate  whether the file in full would give a slightly different tensor
    step            how many pixels of the file each way one that was read stands for
    """

    tensor: Tensor | None
    facts: ReadFacts
    ref: ImageRef | None = None
    view: str = ""
    is_approximate: bool = False
    step: int = 1
    problem: Reason | None = None
    problem_is_refusal: bool = False
    lungs: Tensor | None = None
    image: Image | None = None

    def cropped(self, spec: InputSpec, box: Box) -> Tensor:
        """The classifier's tensor of a region of the image, for an input that is cropped. Raises ValueError."""
        if self.image is None:
            raise ValueError("this image was not read to be cropped")
        return to_tensor(self.image, spec, box=box)

    def whole(self, spec: InputSpec) -> Tensor | None:
        """The classifier's tensor, of the whole image where its input is cropped: as good as any to measure times with.

        None where the image could not be read.
        """
        if self.tensor is not None or self.image is None:
            return self.tensor
        rows, columns = (side * self.image.step for side in self.image.extent)
        return self.cropped(spec, Box(top=0, left=0, rows=rows, columns=columns))


def image_request(ref: ImageRef, *, content_sha256: str) -> Message:
    """Ask `imaging.service.handle` for an image at full resolution."""
    return Message({"ask": "image", "content_sha256": content_sha256, **_place(ref)})


def shown_request(ref: ImageRef, *, content_sha256: str, side: int) -> Message:
    """Ask it for an image as shown by default, its longer side `side` pixels or less."""
    return Message({"ask": "shown", "content_sha256": content_sha256, "side": side, **_place(ref)})


def shown_of(answer: Message) -> ShownImage:
    """Its answer to that."""
    size = converted(answer.body, dict[str, _Count])
    return ShownImage(pixels=answer.arrays["pixels"], rows=size["rows"], columns=size["columns"])


def preview_request(preview: bytes) -> Message:
    """Ask it for the pixels of a stored preview."""
    return Message({"ask": "preview"}, {"preview": np.frombuffer(preview, np.uint8)})


def preview_of(answer: Message) -> NDArray[np.uint8]:
    """Its answer to that: (h, w)."""
    return _grey(answer.arrays["pixels"], longest=PREVIEW_SIDE)


def read_request(
    ref: ImageRef,
    spec: InputSpec,
    *,
    rules: HeaderRules | None,
    detail: Detail,
    lungs: InputSpec | None,
    stamp_key: bytes = b"",
    waives: Sequence[str] = (),
) -> Message:
    """Ask it to read, check and prepare an image, and to stamp its file with a key (see `imaging.stamp`)."""
    body = {"spec": _values(spec), "detail": detail, "frames": ref.header.number_of_frames, **_place(ref)}
    body |= {"stamp_key": stamp_key.hex(), "waives": list(waives)}
    body["lungs"] = _values(lungs) if lungs else None
    return Message({"ask": "read", "rules": _values(rules) if rules else None, **body})


def _place(ref: ImageRef) -> dict[str, Any]:
    turn = [ref.turn.degrees, ref.turn.swaps_grey]
    return {"path": str(ref.path), "member": ref.member, "frame": ref.frame, "turn": turn}


def hash_request(ref: ImageRef) -> Message:
    """Ask it for the hash of a file's bytes."""
    return Message({"ask": "hash", "path": str(ref.path), "member": ref.member, "frame": ref.frame})


def hash_of(answer: Message) -> str:
    """Its answer to that: SHA-256, hex."""
    return converted(answer.body, dict[str, str])["content_sha256"]


def _values(of: InputSpec | HeaderRules) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in fields(of)}


def no_tensor(error: FieldrayError, *, content_sha256: str) -> ReadResult:
    """The result if no child answered, or the child answered that it could not."""
    facts = ReadFacts(content_sha256=content_sha256)
    return ReadResult(tensor=None, facts=facts, problem=error.reason, problem_is_refusal=isinstance(error, Unusable))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The body of the answer to a read; see `service`."""

    decode_ms: float
    problem: _Why | None
    problem_is_refusal: bool
    content_sha256: str = ""
    stamp: str = ""
    header: ImageHeader | None = None
    kind: FileKind = "unknown"
    rows: _Count = 0
    columns: _Count = 0
    notes: tuple[str, ...] = ()
    view: str = ""
    is_approximate: bool = False
    step: _Count = 1
    image: dict[str, Any] | None = None
    tensor_map: PixelMap | None = None
    lungs_map: PixelMap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """The body of the answer to a request for an image: what its arrays are to be read with."""

    padding: _Count | None
    value_scale: float
    value_offset: float
    view: str
    spacing_plane: SpacingPlane
    step: _Count
    is_approximate: bool
    full_rows: _Count
    full_columns: _Count
    window: Window | None
    spacing_mm: tuple[float, float] | None
    notes: tuple[str, ...]


def read_result(answer: Message, ref: ImageRef) -> ReadResult:
    """The child's answer to a read of `ref`. Raises `wire.NONSENSE` for one that makes no sense."""
    body = converted(answer.body, _Read)
    problem = Reason(*body.problem) if body.problem else None
    tensor, lungs = (_tensor(answer, *each) for each in (("tensor", body.tensor_map), ("lungs", body.lungs_map)))
    facts = ReadFacts(
        content_sha256=body.content_sha256,
        rows=body.rows,
        columns=body.columns,
        thumbnail=_thumbnail(answer),
        preview=_preview(answer),
        pixel_map=tensor.pixel_map if tensor else None,
        decode_ms=body.decode_ms,
        notes=body.notes,
        stamp=bytes.fromhex(body.stamp),
    )
    return ReadResult(
        tensor=None if problem else tensor,
        lungs=None if problem else lungs,
        image=image_of(Message(body.image, answer.arrays)) if body.image and not problem else None,
        facts=facts,
        ref=replace(ref, kind=body.kind, header=body.header) if body.header else None,
        view=body.view,
        is_approximate=body.is_approximate,
        step=body.step,
        problem=problem,
        problem_is_refusal=body.problem_is_refusal,
    )


def _thumbnail(answer: Message) -> NDArray[np.uint8] | None:
    pixels = answer.arrays.get("thumbnail")
    return None if pixels is None else _grey(pixels, longest=THUMBNAIL_SIDE)


def _preview(answer: Message) -> bytes:
    preview = answer.arrays.get("preview")
    return b"" if preview is None or preview.nbytes > _LARGEST_PREVIEW else preview.tobytes()


def _grey(pixels: NDArray[Any], *, longest: int) -> NDArray[np.uint8]:
    """Grey levels (h, w). Raises ValueError for anything else."""
    if pixels.ndim != 2 or pixels.dtype != np.uint8 or not 0 < max(pixels.shape) <= longest:
        raise ValueError(f"no grey levels: {pixels.shape} {pixels.dtype}")
    return pixels


def _tensor(answer: Message, name: str, pixel_map: PixelMap | None) -> Tensor | None:
    values = answer.arrays.get(name)
    return Tensor(values=values, pixel_map=pixel_map) if values is not None and pixel_map else None


def image_of(answer: Message) -> Image:
    """Its answer to the request for an image."""
    picture, table = converted(answer.body, _Picture), answer.arrays.get("voi_lut")
    if table is not None and (table.dtype != np.uint16 or table.shape not in ((2**8,), (2**16,))):
        raise ValueError(f"no table of grey levels: {table.shape} {table.dtype}")
    return Image(
        pixels=answer.arrays["pixels"],
        voi_lut=table,
        **{field.name: getattr(picture, field.name) for field in fields(picture)},
    )


# ---- the members of a zip file


class Ask(Protocol):
    """Asks the child, and gives what `read` makes of its answer."""

    def __call__(self, question: Message, read: Callable[[Message], T], /) -> T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """The images of one member, which differ only in the frame."""

    member: str
    frames: Annotated[int, Meta(ge=1, le=MAX_FRAMES)]
    kind: FileKind
    header: ImageHeader
    problem: _Why | None
    problem_is_refusal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """An answer: some members, where to continue (None: these were the last), and names that several files have."""

    members: tuple[_Entry, ...]
    after: str | None
    doubles: int
    double: str


def references(ref: ImageRef, ask: Ask) -> Iterator[ImageRef]:
    """A reference for every member that is a file, sorted by name, while the search is under way.

    Raises what `ask` raises, and so Unreadable or Unusable for the zip as a whole.
    """
    after: str | None = None
    while True:
        question = Message({"ask": "members", "path": str(ref.path), "after": after})
        refs, after = ask(question, functools.partial(_references, ref=ref, after=after))
        yield from refs
        if after is None:
            return


def _references(answer: Message, *, ref: ImageRef, after: str | None) -> tuple[Sequence[ImageRef], str | None]:
    """What an answer lists, and where to continue. Raises `wire.NONSENSE`, also for a list that goes back."""
    part = converted(answer.body, _Part)
    if part.after is not None and after is not None and part.after <= after:
        raise ValueError("a list of members that does not advance")
    refs = [one for entry in part.members for one in _images(entry, ref)]
    if part.doubles:
        refs.append(replace(ref, problem=reason("double_members", count=part.doubles, name=part.double)))
    return refs, part.after


def _images(entry: _Entry, ref: ImageRef) -> Iterator[ImageRef]:
    if not is_name(entry.member):
        raise ValueError("no member has this name")
    problem = Reason(*entry.problem) if entry.problem else None
    for frame in range(entry.frames):
        yield replace(
            ref,
            member=entry.member,
            frame=frame,
            kind=entry.kind,
            header=entry.header,
            problem=problem,
            problem_is_refusal=entry.problem_is_refusal,
        )

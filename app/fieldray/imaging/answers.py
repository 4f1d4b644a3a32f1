"""The messages between the program and a child process that reads files: this is the program's side.

The child's side is `service`. It is a module of its own because it imports every decoder, which the program itself
never needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import ReadFacts
from fieldray.domain.image import Box, Detail, Image, PixelMap, ShownImage, Tensor, Window
from fieldray.domain.model import HeaderRules, InputSpec
from fieldray.domain.study import ImageHeader, ImageRef
from fieldray.errors import FieldrayError, Unusable
from fieldray.imaging.preprocess import to_tensor
from fieldray.processes.wire import Message
from fieldray.reasons import Reason

_LARGEST_PREVIEW: Final = 2**16


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


def image_request(ref: ImageRef, *, content_sha256: str) -> Message:
    """Ask `imaging.service.handle` for an image at full resolution."""
    return Message({"ask": "image", "content_sha256": content_sha256, **_place(ref)})


def shown_request(ref: ImageRef, *, content_sha256: str, side: int) -> Message:
    """Ask it for an image as shown by default, its longer side `side` pixels or less."""
    return Message({"ask": "shown", "content_sha256": content_sha256, "side": side, **_place(ref)})


def shown_of(answer: Message) -> ShownImage:
    """Its answer to that."""
    return ShownImage(pixels=answer.arrays["pixels"], rows=answer.body["rows"], columns=answer.body["columns"])


def preview_request(preview: bytes) -> Message:
    """Ask it for the pixels of a stored preview."""
    return Message({"ask": "preview"}, {"preview": np.frombuffer(preview, np.uint8)})


def preview_of(answer: Message) -> NDArray[np.uint8]:
    """Its answer to that: (h, w)."""
    return answer.arrays["pixels"]


def read_request(
    ref: ImageRef, spec: InputSpec, *, rules: HeaderRules | None, detail: Detail, lungs: InputSpec | None
) -> Message:
    """Ask it to read, check and prepare an image."""
    body = {"spec": _values(spec), "detail": detail, "frames": ref.header.number_of_frames, **_place(ref)}
    body["lungs"] = _values(lungs) if lungs else None
    return Message({"ask": "read", "rules": asdict(rules) if rules else None, **body})


def _place(ref: ImageRef) -> dict[str, Any]:
    return {"path": str(ref.path), "member": ref.member, "frame": ref.frame}


def hash_request(ref: ImageRef) -> Message:
    """Ask it for the hash of a file's bytes."""
    return Message({"ask": "hash", "path": str(ref.path), "member": ref.member, "frame": ref.frame})


def hash_of(answer: Message) -> str:
    """Its answer to that: SHA-256, hex."""
    return str(answer.body["content_sha256"])


def _values(spec: InputSpec) -> dict[str, Any]:
    return {field.name: getattr(spec, field.name) for field in fields(spec)}


def no_tensor(error: FieldrayError, *, content_sha256: str) -> ReadResult:
    """The result if no child answered, or the child answered that it could not."""
    facts = ReadFacts(content_sha256=content_sha256)
    return ReadResult(tensor=None, facts=facts, problem=error.reason, problem_is_refusal=isinstance(error, Unusable))


def read_result(answer: Message, ref: ImageRef) -> ReadResult:
    """The child's answer to a read of `ref`."""
    body = answer.body
    header = ImageHeader(**body["header"]) if "header" in body else None
    problem = body["problem"]
    tensor, lungs = _tensor(answer, "tensor"), _tensor(answer, "lungs")
    facts = ReadFacts(
        content_sha256=body.get("content_sha256", ""),
        rows=body.get("rows", 0),
        columns=body.get("columns", 0),
        thumbnail=answer.arrays.get("thumbnail"),
        preview=_preview(answer),
        pixel_map=tensor.pixel_map if tensor else None,
        decode_ms=body["decode_ms"],
        notes=tuple(body.get("notes", ())),
    )
    return ReadResult(
        tensor=None if problem else tensor,
        lungs=None if problem else lungs,
        image=image_of(Message(body["image"], answer.arrays)) if body.get("image") and not problem else None,
        facts=facts,
        ref=replace(ref, kind=body["kind"], header=header) if header else None,
        view=body.get("view", ""),
        is_approximate=body.get("is_approximate", False),
        step=body.get("step", 1),
        problem=Reason(problem[0], tuple((key, value) for key, value in problem[1])) if problem else None,
        problem_is_refusal=body["problem_is_refusal"],
    )


def _preview(answer: Message) -> bytes:
    preview = answer.arrays.get("preview")
    return b"" if preview is None or preview.size > _LARGEST_PREVIEW else preview.tobytes()


def _tensor(answer: Message, name: str) -> Tensor | None:
    values = answer.arrays.get(name)
    pixel_map = answer.body.get(f"{name}_map")
    return Tensor(values=values, pixel_map=PixelMap(**pixel_map)) if values is not None and pixel_map else None


def image_of(answer: Message) -> Image:
    """Its answer to the request for an image."""
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

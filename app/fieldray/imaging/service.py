"""The child's side of reading: one request, one file, one answer. Only arrays and numbers leave the process."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldray.domain.finding import PREVIEW_SIDE, THUMBNAIL_SIDE
from fieldray.domain.image import UPRIGHT, Detail, Image, Turn
from fieldray.domain.model import HeaderRules, InputSpec
from fieldray.domain.study import FileKind, ImageHeader, ImageRef
from fieldray.errors import InputProblem, Unreadable, Unusable
from fieldray.imaging import zip_members
from fieldray.imaging.decode import decode
from fieldray.imaging.identify import identify_again
from fieldray.imaging.preprocess import shrunk, thumbnail, to_tensor, with_window
from fieldray.imaging.preview_file import packed, unpacked
from fieldray.imaging.quality import check_header, check_pixels
from fieldray.imaging.reduction import TargetSize, target_size_for
from fieldray.imaging.source import content_hash, read_bytes, read_with_state
from fieldray.imaging.stamp import Stamps
from fieldray.processes.priority import step_back
from fieldray.processes.wire import Message
from fieldray.reasons import Reason, reason

if TYPE_CHECKING:
    from fieldray.processes.wire import Array


def handle(message: Message) -> Message:
    """Answer {"ask": "read", "spec": ...}, {"ask": "image"}, {"ask": "shown", "side": ...} or {"ask": "hash"}.

    Each comes with "path", "member", "frame", and all but a hash with the "turn" that sets the image right.

    {"ask": "preview"} comes with the array "preview" of an earlier read instead, and is answered with its "pixels".

    {"ask": "members"} is answered as `zip_members.answer` says.

    A read is at the resolution that the spec needs, or as "detail" says (see `domain.image.Detail`), and "lungs", the
    input of the network that finds the lungs, where there is one. With "rules" the
    header is read from the same bytes as the pixels and checked against them, but for the codes that it "waives".
    "frames" is the number that discovery
    found. With a "stamp_key" the answer has the "stamp" of the file.

    A file that cannot be used still gets an answer to "read", with its hash and size. For "image", Unreadable or
    Unusable is raised.
    """
    body = message.body
    if body["ask"] == "members":
        return zip_members.answer(message)
    if body["ask"] == "preview":
        return Message({}, {"pixels": unpacked(message.arrays["preview"])})
    found = ImageHeader(number_of_frames=body.get("frames", 1))
    turn = Turn(*body.get("turn", ()))
    ref = ImageRef(path=Path(body["path"]), member=body["member"], frame=body["frame"], header=found, turn=turn)
    if body["ask"] == "hash":
        return Message({"content_sha256": content_hash(ref)})
    if body["ask"] == "image":
        return _image_message(_image(ref, body["content_sha256"]))
    if body["ask"] == "shown":
        return _shown_message(_image(ref, body["content_sha256"], side=body["side"]), side=body["side"])
    rules = _rules(body["rules"]) if body.get("rules") else None
    lungs = InputSpec(**body["lungs"]) if body.get("lungs") else None
    stamps = Stamps(bytes.fromhex(body["stamp_key"])) if body.get("stamp_key") else None
    spec, detail = InputSpec(**body["spec"]), body.get("detail", "needed")
    waives = body.get("waives", ())
    answer = _read(ref, spec, rules=rules, detail=detail, lungs=lungs, stamps=stamps, waives=waives)
    step_back()  # a run must not slow down the computer; its first result and images to be shown may
    return answer


def _image(ref: ImageRef, content_sha256: str, *, side: int | None = None) -> Image:
    """Only the pixels that were screened are shown: `content_sha256` is theirs. Raises Unreadable, Unusable.

    side  what the longer side will be shown with; all of the image without it
    """
    data = read_bytes(ref)
    if content_sha256 and hashlib.sha256(data).hexdigest() != content_sha256:
        raise Unreadable(reason("changed"))
    needed = TargetSize(side, side, of_longer=True) if side and ref.turn == UPRIGHT else None
    return decode(data, ref, needed=needed).turned(ref.turn)


def _rules(values: Mapping[str, Any]) -> HeaderRules:
    tuples: dict[str, Any] = {name: value and tuple(value) for name, value in values.items()}
    return HeaderRules(**tuples)


def _read(
    ref: ImageRef,
    spec: InputSpec,
    *,
    rules: HeaderRules | None,
    detail: Detail,
    lungs: InputSpec | None,
    stamps: Stamps | None,
    waives: Collection[str],
) -> Message:
    started = time.perf_counter()
    answer: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    problem: Reason | None = None
    is_refusal = True
    try:
        data, state = read_with_state(ref)
        answer["content_sha256"] = hashlib.sha256(data).hexdigest()
        if stamps and ref.header.number_of_frames == 1:
            answer["stamp"] = stamps.of_data(ref.path, data, state).hex()
        if rules is not None:
            answer |= _identity(ref.header, "unknown")  # nothing else is known if the bytes are no image any more
            again = identify_again(data, ref)
            answer |= _identity(again.header, again.kind)
            problem = check_header(again.header, rules, finds_lungs=lungs is not None, waives=waives)
        if problem is None:
            wanted = detail if ref.turn == UPRIGHT else "full"  # nothing is left over at the wrong end
            image = decode(data, ref, needed=target_size_for(spec, wanted, lungs=lungs))
            problem = check_pixels(image)
            image = with_window(image)
            preview = packed(shrunk(image, PREVIEW_SIDE))  # kept by content: as the file lies
            image = image.turned(ref.turn)
            answer |= _image_facts(image)
            small = {"thumbnail": shrunk(image, THUMBNAIL_SIDE), "preview": preview}
            arrays = {**small, **_add_inputs(answer, image, spec, lungs)}
    except InputProblem as error:
        problem, is_refusal = error.reason, isinstance(error, Unusable)
    answer["decode_ms"] = 1000 * (time.perf_counter() - started)
    answer["problem"] = [problem.code, [list(pair) for pair in problem.parameters]] if problem else None
    answer["problem_is_refusal"] = problem is not None and is_refusal
    return Message(answer, arrays)


def _identity(header: ImageHeader, kind: FileKind) -> Mapping[str, Any]:
    return {"header": asdict(header), "kind": kind}


def _add_inputs(answer: dict[str, Any], image: Image, spec: InputSpec, lungs: InputSpec | None) -> Mapping[str, Array]:
    """The inputs of the networks; instead of one that is cropped, the image that it will be cropped from."""
    arrays: dict[str, Array] = {}
    for name, wanted in (("tensor", spec), ("lungs", lungs)):
        if wanted is not None and wanted.crop == "none":
            tensor = to_tensor(image, wanted)
            answer[f"{name}_map"] = asdict(tensor.pixel_map)
            arrays[name] = tensor.values
    if spec.crop != "none":
        message = _image_message(image)
        answer["image"] = message.body
        arrays |= message.arrays
    return arrays


def _image_facts(image: Image) -> Mapping[str, Any]:
    return {
        "rows": image.full_rows,
        "columns": image.full_columns,
        "is_approximate": image.is_approximate,
        "step": image.step,
        "notes": list(image.notes),
        "view": image.view,
    }


_IMAGE_FIELDS = (
    "padding",
    "value_scale",
    "value_offset",
    "view",
    "spacing_plane",
    "step",
    "is_approximate",
    "full_rows",
    "full_columns",
)


def _image_message(image: Image) -> Message:
    body = {name: getattr(image, name) for name in _IMAGE_FIELDS}
    body["window"] = asdict(image.window) if image.window else None
    body["spacing_mm"] = list(image.spacing_mm) if image.spacing_mm else None
    body["notes"] = list(image.notes)
    arrays: dict[str, Array] = {"pixels": image.pixels}
    if image.voi_lut is not None:
        arrays["voi_lut"] = image.voi_lut
    return Message(body, arrays)


def _shown_message(image: Image, *, side: int) -> Message:
    """The image as shown by default, its longer side `side` or less."""
    longer = int(max(image.extent))
    step_back()
    body = {"rows": image.full_rows or image.pixels.shape[0], "columns": image.full_columns or image.pixels.shape[1]}
    return Message(body, {"pixels": thumbnail(image, min(side, longer))})

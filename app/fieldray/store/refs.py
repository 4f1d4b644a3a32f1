"""Where an image is and what its header says, as columns, as JSON, and as a key within its run."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any, Final

from fieldray.domain.study import ImageHeader, ImageRef, is_name
from fieldray.reasons import Reason, reason
from fieldray.store.json_columns import Ref, Why
from fieldray.typed_json import decoded

_HEADER: Final = {field.name: field.default for field in dataclasses.fields(ImageHeader)}


def compact(value: Any) -> str:
    """JSON in ASCII without blanks, whatever bytes a text stands for."""
    return json.dumps(value, separators=(",", ":"))


def image_key(ref: ImageRef) -> bytes:
    """Identifies an image within a run whatever its names are, since no file or member has a zero byte in its name.

    `ImageRef.key` is for people: a file may be called `a.zip!b.dcm` and lie beside a zip file with that member.
    """
    frame = str(ref.frame) if ref.header.number_of_frames > 1 else ""
    parts = [str(ref.path), ref.member or "", frame] if ref.member is not None or frame else [str(ref.path)]
    return b"\0".join(map(os.fsencode, parts))


def image_text(key: bytes) -> str:
    """An image's key for a person: `path`, `path!member`, `...#frame`."""
    path, member, frame = ([*os.fsdecode(key).split("\0"), "", ""])[:3]
    return path + (f"!{member}" if member else "") + (f"#{frame}" if frame else "")


def place_of(key: bytes) -> tuple[Path, str | None]:
    """The file, and the member if it is in a zip, that an image's key names."""
    path, *member = os.fsdecode(key).split("\0")[:2]
    return Path(path), member[0] if member and member[0] else None


def header_text(header: ImageHeader) -> str:
    """What a header says, as JSON; fields that say nothing are left out."""
    return compact({name: value for name in _HEADER if (value := getattr(header, name)) != _HEADER[name]})


@functools.lru_cache(maxsize=256)
def header_of(text: str) -> ImageHeader:
    """The header of such JSON. Raises ValueError."""
    return decoded(text, ImageHeader)


def ref_text(ref: ImageRef) -> str:
    """A reference as JSON in ASCII, whatever bytes its names have."""
    document = {
        "path": str(ref.path),
        "member": ref.member,
        "frame": ref.frame,
        "kind": ref.kind,
        "header": dataclasses.asdict(ref.header),
        "problem": reason_text(ref.problem) if ref.problem else None,
        "problem_is_refusal": ref.problem_is_refusal,
    }
    return json.dumps(document)


def ref_of(text: str) -> ImageRef:
    """The reference of such a text. Raises ValueError."""
    found = decoded(text, Ref)
    if not (is_name(found.path) and is_name(found.member or "")):
        raise ValueError("no file has this name")
    return ImageRef(
        path=Path(found.path),
        member=found.member,
        frame=found.frame,
        kind=found.kind,
        header=found.header,
        problem=reason_of(found.problem) if found.problem else None,
        problem_is_refusal=found.problem_is_refusal,
    )


def reason_text(why: Reason) -> str:
    """A reason as JSON."""
    return compact([why.code, why.parameters])


def reason_of(text: str) -> Reason:
    """The reason of such JSON. Raises ValueError."""
    return reason_made(decoded(text, Why))


@functools.lru_cache(maxsize=256)
def reasons_of(text: str) -> tuple[Reason, ...]:
    """The reasons of a list of such JSON. Raises ValueError."""
    return tuple(map(reason_made, decoded(text, tuple[Why, ...])))


def reason_made(why: Why) -> Reason:
    """The same, read already."""
    try:
        return Reason(why.code, why.parameters)
    except KeyError:  # written by a version that had other reasons
        return reason("internal", detail=why.code)

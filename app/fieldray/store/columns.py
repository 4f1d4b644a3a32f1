"""Single columns of a store: an image's key, headers and reasons as JSON, and the types of all columns with JSON.

Whatever else stands in such a column is damage, whoever wrote it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from fieldray.domain.finding import Decision
from fieldray.domain.image import PixelMap
from fieldray.domain.lungs import LungFields, LungSide, Quality, Side
from fieldray.domain.mask import KeptShares
from fieldray.domain.model import OperatingPoint
from fieldray.domain.study import FileKind, ImageHeader, ImageRef
from fieldray.reasons import Reason, reason
from fieldray.typed_json import decoded

OF_RUN: Final = 1  # in place of an operating point: that of the run for this label
_HEADER: Final = {field.name: field.default for field in dataclasses.fields(ImageHeader)}

MapValues = tuple[float, float, float, float]  # of a pixel map
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]  # SQLite and NumPy hold no number at will
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Why(msgspec.Struct, frozen=True, array_like=True):
    """A reason, by its code."""

    code: str
    parameters: tuple[tuple[str, str], ...]


class Details(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What else is known of a result; what says nothing is left out."""

    kind: FileKind
    rows: Count = 0
    columns: Count = 0
    notes: tuple[str, ...] = ()
    pixel_map: MapValues | None = None
    problem: Why | None = None
    is_refusal: bool = False
    maps: tuple[Count, Count, Count] | None = None
    extra: Mapping[str, float] = {}
    turn: tuple[int, bool] = (0, False)


class Found(msgspec.Struct, frozen=True, array_like=True):
    """A finding."""

    label: str
    score: Share
    decision: Decision
    point: OperatingPoint | Literal[1] | None


class Lungs(msgspec.Struct, frozen=True, array_like=True):
    """Lung fields, but for their shares."""

    rows: Count
    columns: Count
    threshold: int
    pixel_map: MapValues
    is_frontal_chest: bool
    found: bool
    left_share: float
    right_share: float
    cut_off: tuple[Side, ...]
    rotation_degrees: int
    is_inverted: bool
    is_mirrored: bool
    evidence_inside: float | None
    latency_ms: float
    unseen: tuple[LungSide, ...] = ()
    region: tuple[float, float, float, float] | None = None
    quality: tuple[Quality, ...] = ()

    def fields(self, shares: bytes) -> LungFields:
        """The lung fields with these shares, as `KeptShares.data`."""
        kept = KeptShares(self.rows, self.columns, self.threshold, shares)
        values = {name: getattr(self, name) for name in LUNG_VALUES}
        return LungFields(**values, kept=kept, pixel_map=PixelMap(*self.pixel_map))


_OF_CELLS: Final = ("rows", "columns", "threshold", "pixel_map")
# What is kept of lung fields behind that, in this order: all but the shares and where they lie.
LUNG_VALUES: Final = Lungs.__struct_fields__[len(_OF_CELLS) :]


def compact(value: Any) -> str:
    """JSON in ASCII without blanks, whatever bytes a text stands for; of a struct above, too."""
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def map_values(pixel_map: PixelMap) -> MapValues:
    """The values of a pixel map, in their order."""
    return (pixel_map.row_scale, pixel_map.row_offset, pixel_map.column_scale, pixel_map.column_offset)


# ---- where an image is


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


def path_of(key: bytes) -> tuple[Path, str | None]:
    """The file, and the member if it is in a zip, that an image's key names."""
    path, *member = os.fsdecode(key).split("\0")[:2]
    return Path(path), member[0] if member and member[0] else None


# ---- headers and reasons


def header_text(header: ImageHeader) -> str:
    """What a header says, as JSON; fields that say nothing are left out."""
    return compact({name: value for name in _HEADER if (value := getattr(header, name)) != _HEADER[name]})


@functools.lru_cache(maxsize=256)
def header_of(text: str) -> ImageHeader:
    """The header of such JSON. Raises ValueError."""
    return decoded(text, ImageHeader)


def why_of_reason(given: Reason) -> Why:
    """A reason as it is kept."""
    return Why(given.code, given.parameters)


def reason_text(given: Reason) -> str:
    """A reason as JSON."""
    return compact(why_of_reason(given))


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

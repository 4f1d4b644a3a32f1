"""Rows as versions of the program before `schema.COMPACT` wrote them."""

from __future__ import annotations

import math
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import (
    WORK_LIST_ORDER,
    Failed,
    Finding,
    Outcome,
    ReadFacts,
    Refused,
    Screened,
    Stage,
    Status,
)
from fieldray.domain.image import PixelMap
from fieldray.domain.lungs import LungFields
from fieldray.domain.mask import KeptShares
from fieldray.domain.model import OperatingPoint
from fieldray.store.database import NONSENSE
from fieldray.store.json_columns import LUNG_VALUES, Count, Lungs, Place
from fieldray.store.pictures import PictureRow
from fieldray.store.refs import reason_of, ref_of
from fieldray.store.rows import category_in, category_of, checked, literal, outcome_columns, spec_of
from fieldray.typed_json import converted, decoded

_MOST_CELLS: Final = 2**22
# What both versions call by the same name and keep in the same way.
_SAME: Final = ("id", "run_id", "image_key", "pass_number", "is_resumed", "saved_s", "absent_s", "category")


def columns_of(row: sqlite3.Row) -> dict[str, Any]:
    """The columns of `results` now, of an old row joined with its run. Raises ValueError and others."""
    checked({**dict(row), **dict.fromkeys(("content_sha256", "result_hash"), b"")})
    category_of(row["rank"])
    columns = outcome_columns(_outcome_of(row), points=_points_of(row["spec"]))
    same = {name: row[name] for name in _SAME}
    rank = WORK_LIST_ORDER.index(category_in(row))  # classes have come since
    return {**columns, **same, "rank": rank, "stamp": None, "result_hash": _hash_of(row["result_hash"])}


def picture_of(row: sqlite3.Row) -> PictureRow | None:
    """The pictures of an old row joined with its preview; None if there are none. Raises ValueError and others."""
    shape = decoded(row["details"], _Details).thumbnail_shape
    if not row["content_sha256"] or (row["thumbnail"] is None and row["jpeg"] is None):
        return None
    thumbnail = (row["thumbnail"], shape[1]) if row["thumbnail"] is not None and shape else (None, 0)
    return (bytes.fromhex(row["content_sha256"]), row["frame"], *thumbnail, row["jpeg"])


def verdict_of(row: sqlite3.Row) -> dict[str, Any]:
    """The columns of `verdicts` now, of an old row. Raises ValueError and others."""
    return {**dict(row), **{name: _hash_of(row[name]) for name in ("result_hash", "content_sha256")}}


def _hash_of(text: str) -> bytes:
    """A hash; what is none stays what it is, so that no verdict is lost."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return text.encode()


def _points_of(spec: str | None) -> Sequence[OperatingPoint]:
    """Those of a run; none where it is lost or makes no sense: then each result says its own."""
    try:
        return spec_of(spec).operating_points if spec else ()
    except NONSENSE:
        return ()


class _Details(msgspec.Struct, frozen=True, kw_only=True):
    rows: Count
    columns: Count
    notes: tuple[str, ...]
    pixel_map: Place | None
    thumbnail_shape: tuple[Count, Count] | None
    class_maps_shape: tuple[Count, Count, Count] | None = None
    extra: Mapping[str, float] = {}


class _Cells(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of lung fields; what else is said of these stands beside it, by the names of today."""

    threshold: int
    shape: tuple[Count, Count]
    pixel_map: Place


def _outcome_of(row: sqlite3.Row) -> Outcome:
    details = decoded(row["details"], _Details)
    ref, thumbnail = ref_of(row["ref"]), row["thumbnail"]
    facts = ReadFacts(
        content_sha256=row["content_sha256"],
        rows=details.rows,
        columns=details.columns,
        thumbnail=np.frombuffer(thumbnail, np.uint8).reshape(1, -1) if thumbnail else None,
        pixel_map=PixelMap(*details.pixel_map) if details.pixel_map else None,
        decode_ms=row["decode_ms"],
        notes=details.notes,
    )
    if row["status"] == "refused":
        return Refused(ref=ref, reason=reason_of(row["reason"]), facts=facts, lungs=_lungs_of(row))
    if row["status"] == "failed":
        stage = literal(row["stage"], Stage)
        return Failed(ref=ref, stage=stage, reason=reason_of(row["reason"]), facts=facts)
    literal(row["status"], Status)
    shape = details.class_maps_shape
    return Screened(
        ref=ref,
        facts=facts,
        findings=decoded(row["findings"], tuple[Finding, ...]),
        class_maps=np.frombuffer(row["class_maps"], np.float32).reshape(shape) if shape else None,
        pack_name=row["pack_name"],
        model_sha256=row["model_sha256"],
        backend=row["backend"],
        inference_ms=row["inference_ms"],
        extra=details.extra,
        lungs=_lungs_of(row),
        notes=tuple(map(reason_of, decoded(row["notes"], tuple[str, ...]))),
    )


def _lungs_of(row: sqlite3.Row) -> LungFields | None:
    if row["lungs"] is None:
        return None
    cells = decoded(row["lungs"], _Cells)
    said = {"evidence_inside": None, "latency_ms": 0.0, "unseen": (), **decoded(row["lungs"], dict[str, Any])}
    values = [said[name] for name in LUNG_VALUES]
    lungs = converted([*cells.shape, cells.threshold, cells.pixel_map, *values], Lungs)
    return lungs.fields(KeptShares.of(_shares(row["lung_shares"], cells.shape), cells.threshold).data)


def _shares(data: bytes, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Exactly so many cells, however many the data claim to hold. Raises ValueError."""
    if not 0 < (size := math.prod(shape)) <= _MOST_CELLS:
        raise ValueError(f"no mask has {size} cells")
    try:
        found = zlib.decompressobj().decompress(data, size)
    except zlib.error as error:
        raise ValueError("a mask that cannot be decompressed") from error
    return np.frombuffer(found, np.uint8).reshape(shape)

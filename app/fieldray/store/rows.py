"""Outcomes and run specifications as columns, and back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.events import RunState
from fieldray.domain.finding import (
    WORK_LIST_ORDER,
    Category,
    Failed,
    Finding,
    Outcome,
    ReadFacts,
    Refused,
    Screened,
    leading_of,
    lungs_of,
    notes_of,
)
from fieldray.domain.history import ResultBrief
from fieldray.domain.image import PixelMap
from fieldray.domain.lungs import LungFields
from fieldray.domain.model import Estimate, OperatingPoint
from fieldray.domain.run import EarlierVerdict, ImageGist, Run, RunSpec, Verdict, VerdictChoice
from fieldray.domain.study import ImageHeader, ImageRef
from fieldray.reasons import Reason, reason

AnyRow = TypeVar("AnyRow", bound="sqlite3.Row | Mapping[str, Any]")
_LAST_S: Final = 2.5e11  # in the year 9892
_MOST_CELLS: Final = 2**22  # the largest input that a network may have
_NONE: Final = type(None)
_TYPES: Final[Mapping[str, type[Any] | tuple[type[Any], ...]]] = {
    **dict.fromkeys(("content_sha256", "category", "findings", "pack_name", "ref", "spec", "state", "status"), str),
    **dict.fromkeys(("details", "model_sha256", "notes"), str),
    **dict.fromkeys(("backend", "choice", "lungs", "note", "reason", "stage"), (str, _NONE)),
    **dict.fromkeys(("frame", "id", "rank", "run_id"), int),
    **dict.fromkeys(("decode_ms", "given_s", "started_s"), (float, int)),
    **dict.fromkeys(("ended_s", "inference_ms", "score"), (float, int, _NONE)),
    **dict.fromkeys(("class_maps", "lung_shares", "thumbnail"), (bytes, _NONE)),
    "image_key": bytes,
}
_HEADER_FIELDS: Final = frozenset(field.name for field in dataclasses.fields(ImageHeader))


def outcome_columns(outcome: Outcome) -> dict[str, Any]:
    """The columns of `results` that hold the outcome; the caller adds those of the run."""
    facts = outcome.facts
    columns: dict[str, Any] = {
        "image_key": image_key(outcome.ref),
        "status": outcome.status,
        "category": outcome.category,
        "rank": WORK_LIST_ORDER.index(outcome.category),
        "score": None,
        "stage": outcome.stage if isinstance(outcome, Failed) else None,
        "reason": None if isinstance(outcome, Screened) else reason_text(outcome.reason),
        "ref": ref_text(outcome.ref),
        "content_sha256": facts.content_sha256,
        "result_hash": result_hash(outcome),
        "frame": outcome.ref.frame,
        "decode_ms": facts.decode_ms,
        "backend": None,
        "inference_ms": None,
        "findings": "[]",
        "thumbnail": None if facts.thumbnail is None else facts.thumbnail.tobytes(),
        "class_maps": None,
        "notes": json.dumps([reason_text(note) for note in notes_of(outcome)]),
        **_lung_columns(lungs_of(outcome)),
    }
    details: dict[str, Any] = {
        "rows": facts.rows,
        "columns": facts.columns,
        "notes": facts.notes,
        "thumbnail_shape": None if facts.thumbnail is None else facts.thumbnail.shape,
        "pixel_map": None if facts.pixel_map is None else list(_fields(facts.pixel_map).values()),
    }
    if isinstance(outcome, Screened):
        _add_screened(outcome, columns, details)
    return {**columns, "details": json.dumps(details)}


def _add_screened(outcome: Screened, columns: dict[str, Any], details: dict[str, Any]) -> None:
    maps = outcome.class_maps
    columns["backend"] = outcome.backend
    columns["inference_ms"] = outcome.inference_ms
    columns["score"] = max((finding.score for finding in outcome.findings), default=None)
    columns["findings"] = json.dumps(outcome.findings, default=_fields)
    columns["class_maps"] = None if maps is None else maps.astype(np.float32).tobytes()
    details["class_maps_shape"] = None if maps is None else maps.shape
    details["extra"] = dict(outcome.extra)


# All of `LungFields` but its arrays, by name.
_LUNG_VALUES: Final = tuple(
    field.name for field in dataclasses.fields(LungFields) if field.name not in ("shares", "pixel_map")
)


def _lung_columns(lungs: LungFields | None) -> dict[str, Any]:
    """A mask has few values beside 0 and 255: compressed it takes a twentieth of the room."""
    if lungs is None:
        return {"lungs": None, "lung_shares": None}
    values = {name: getattr(lungs, name) for name in _LUNG_VALUES}
    place = {"pixel_map": list(_fields(lungs.pixel_map).values()), "shape": lungs.shares.shape}
    return {"lungs": json.dumps(values | place), "lung_shares": zlib.compress(lungs.shares.tobytes())}


def _lungs_of(row: sqlite3.Row | Mapping[str, Any]) -> LungFields | None:
    if row["lungs"] is None:
        return None
    values = json.loads(row["lungs"])
    pixel_map, shape = PixelMap(*values.pop("pixel_map")), values.pop("shape")
    data = _decompressed(row["lung_shares"], math.prod(shape))
    shares = np.frombuffer(data, np.uint8).reshape(shape)
    return LungFields(**{**values, "cut_off": tuple(values["cut_off"])}, shares=shares, pixel_map=pixel_map)


def _decompressed(data: bytes, size: int) -> bytes:
    """Exactly so many bytes. Raises ValueError for anything else, however much it claims to hold."""
    if not 0 < size <= _MOST_CELLS:
        raise ValueError(f"no mask has {size} cells")
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, size)
    except zlib.error as error:
        raise ValueError("a mask that cannot be decompressed") from error
    if len(found) != size:
        raise ValueError(f"a mask of {len(found)} cells, not {size}")
    return found


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


def result_hash(outcome: Outcome) -> str:
    """SHA-256 (hex) of what a verdict is about: the content, the model, the decisions and the scores."""
    judged: list[Any] = [outcome.facts.content_sha256, outcome.ref.frame, outcome.status]
    if isinstance(outcome, Screened):
        points = [found.point.threshold if found.point else None for found in outcome.findings]
        scores = [[found.label, found.score, found.decision] for found in outcome.findings]
        judged += [outcome.model_sha256, scores, points]
    else:
        judged += [outcome.reason.code, outcome.reason.parameters]
    return hashlib.sha256(json.dumps(judged).encode()).hexdigest()


def verdict_columns(verdict: Verdict, judged: Outcome) -> dict[str, Any]:
    """The columns of `verdicts` that hold a verdict and what it is about."""
    about = outcome_columns(judged)
    kept = {name: about[name] for name in ("result_hash", "content_sha256", "category", "score")}
    return {**kept, "choice": verdict.choice, "note": verdict.note}


def outcome_of(row: sqlite3.Row | Mapping[str, Any]) -> Outcome:
    """The outcome of a row of `results`; a row read without its arrays has none. Raises ValueError and others."""
    checked(row)
    category_in(row)
    details = json.loads(row["details"])
    ref = ref_of(json.loads(row["ref"]))
    facts = ReadFacts(
        content_sha256=row["content_sha256"],
        rows=details["rows"],
        columns=details["columns"],
        thumbnail=_thumbnail(row["thumbnail"], details["thumbnail_shape"]),
        pixel_map=PixelMap(*details["pixel_map"]) if details["pixel_map"] else None,
        decode_ms=row["decode_ms"],
        notes=tuple(details["notes"]),
    )
    if row["status"] == "refused":
        return Refused(ref=ref, reason=_reason_of(row["reason"]), facts=facts, lungs=_lungs_of(row))
    if row["status"] == "failed":
        return Failed(ref=ref, stage=row["stage"], reason=_reason_of(row["reason"]), facts=facts)
    return Screened(
        ref=ref,
        facts=facts,
        findings=tuple(_finding_of(finding) for finding in json.loads(row["findings"])),
        class_maps=_array(row["class_maps"], details["class_maps_shape"], np.float32),
        pack_name=row["pack_name"],
        model_sha256=row["model_sha256"],
        backend=row["backend"],
        inference_ms=row["inference_ms"],
        extra=details["extra"],
        lungs=_lungs_of(row),
        notes=tuple(_reason_of(note) for note in json.loads(row["notes"])),
    )


def brief_of(row: sqlite3.Row) -> ResultBrief:
    """A result without what is large, of a row of `results` with its verdict. Raises ValueError and others."""
    checked(row)
    finding = leading_of(_finding_of(found) for found in json.loads(row["findings"]))
    return ResultBrief(
        row_id=row["id"],
        key=row["image_key"],
        image=image_text(row["image_key"]),
        content_sha256=row["content_sha256"],
        frame=row["frame"],
        category=category_in(row),
        label=finding.label if finding else "",
        score=finding.score if finding else None,
        threshold=finding.point.threshold if finding and finding.point else None,
        backend=row["backend"] or "",
        verdict=row["choice"],
        why=_reason_of(row["reason"]) if row["reason"] else None,
    )


def category_of(rank: int) -> Category:
    """The category with this place in the work list. Raises ValueError, TypeError."""
    if rank not in range(len(WORK_LIST_ORDER)):
        raise ValueError(f"no category is in place {rank}")
    return WORK_LIST_ORDER[rank]


def gist_of(row: sqlite3.Row) -> ImageGist:
    """What runs are compared by, of a row of `results`."""
    picture = row["thumbnail"]
    return ImageGist(
        category=row["category"],
        scores={finding["label"]: finding["score"] for finding in json.loads(row["findings"])},
        grey=float(np.median(np.frombuffer(picture, np.uint8))) if picture else None,
    )


def spec_text(spec: RunSpec) -> str:
    """A run's specification as JSON."""
    return json.dumps(dataclasses.asdict(spec))


def run_of(row: sqlite3.Row) -> Run:
    """The run of a row of `runs`. Raises ValueError and others for what this program cannot have written."""
    checked(row)
    if row["state"] not in get_args(RunState):
        raise ValueError("no state of a run")
    spec = json.loads(row["spec"])
    points = tuple(_point_of(point) for point in spec.pop("operating_points"))
    return Run(
        run_id=row["id"],
        spec=RunSpec(**{**spec, "paths": tuple(spec["paths"])}, operating_points=points),
        state=row["state"],
        reason=_reason_of(row["reason"]) if row["reason"] else None,
        started_s=moment_in(row, "started_s"),
        ended_s=None if row["ended_s"] is None else moment_in(row, "ended_s"),
    )


def verdict_of(row: sqlite3.Row) -> Verdict:
    """The verdict of a row that holds one. Raises ValueError, TypeError."""
    checked(row)
    if row["choice"] not in get_args(VerdictChoice):
        raise ValueError("no verdict")
    return Verdict(choice=row["choice"], note=row["note"])


def earlier_verdict_of(row: sqlite3.Row) -> EarlierVerdict:
    """The same with what it was given on. Raises ValueError, TypeError."""
    return EarlierVerdict(
        verdict=verdict_of(row),
        image=image_text(row["image_key"]),
        content_sha256=row["content_sha256"],
        category=category_in(row),
        score=row["score"],
        given_s=moment_in(row, "given_s"),
    )


def checked(row: AnyRow) -> AnyRow:
    """The row. SQLite keeps anything in any column: raises TypeError for a type that this program never writes."""
    for name in row.keys():  # noqa: SIM118 - a row is no mapping
        if not isinstance(row[name], _TYPES.get(name, object)):
            raise TypeError(f"{name} is {type(row[name]).__name__}")
    return row


def category_in(row: sqlite3.Row | Mapping[str, Any]) -> Category:
    """The category that a row names. Raises ValueError."""
    category: Category = row["category"]
    if category not in WORK_LIST_ORDER:
        raise ValueError("no category of a result")
    return category


def moment_in(row: sqlite3.Row, name: str) -> float:
    """The time in a column, which is a date as well. Raises TypeError, ValueError."""
    seconds: float = row[name]
    if not 0 <= seconds < _LAST_S:
        raise ValueError(f"no time is {seconds}")
    return seconds


def reason_text(why: Reason) -> str:
    """A reason as JSON."""
    return json.dumps([why.code, why.parameters])


def _reason_of(text: str) -> Reason:
    code, parameters = json.loads(text)
    try:
        return Reason(code, tuple((key, value) for key, value in parameters))
    except KeyError:  # written by a version that had other reasons
        return reason("internal", detail=code)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a data class, for JSON; `dataclasses.asdict` copies deeply and took a third of the time per row."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def ref_text(ref: ImageRef) -> str:
    """A reference as JSON in ASCII, whatever bytes its names have."""
    document = {
        "path": str(ref.path),
        "member": ref.member,
        "frame": ref.frame,
        "kind": ref.kind,
        "header": _fields(ref.header),
        "problem": reason_text(ref.problem) if ref.problem else None,
        "problem_is_refusal": ref.problem_is_refusal,
    }
    return json.dumps(document)


def ref_of(document: dict[str, Any]) -> ImageRef:
    """The reference of such JSON, once read. Raises KeyError, TypeError, ValueError."""
    header = {name: value for name, value in document["header"].items() if name in _HEADER_FIELDS}
    problem = document["problem"]
    document = {**document, "path": Path(document["path"]), "header": ImageHeader(**header)}
    return ImageRef(**{**document, "problem": _reason_of(problem) if problem else None})


def _finding_of(document: dict[str, Any]) -> Finding:
    point = document["point"]
    return Finding(**{**document, "point": _point_of(point) if point else None})


def _point_of(document: dict[str, Any]) -> OperatingPoint:
    measured = {name: Estimate(**document[name]) for name in ("sensitivity", "specificity")}
    return OperatingPoint(**{**document, **measured})


def _thumbnail(data: bytes | None, shape: list[int] | None) -> NDArray[Any] | None:
    """None where it is damaged: the result is worth more than its thumbnail."""
    try:
        return _array(data, shape, np.uint8)
    except ValueError:
        return None


def _array(data: bytes | None, shape: list[int] | None, dtype: type[Any]) -> NDArray[Any] | None:
    return None if data is None or shape is None else np.frombuffer(data, dtype=dtype).reshape(shape)

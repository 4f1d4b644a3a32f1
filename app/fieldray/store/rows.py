"""Outcomes and run specifications as columns, and back.

What all results of a run have in common is told by its specification and not said again in each row.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, get_args

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
    ResultKind,
    Screened,
    Stage,
    Status,
    leading_of,
    listed_score,
    lungs_of,
    notes_of,
    why_of,
)
from fieldray.domain.history import ResultBrief
from fieldray.domain.image import UPRIGHT, PixelMap, Turn
from fieldray.domain.lungs import LungFields
from fieldray.domain.model import OperatingPoint
from fieldray.domain.run import EarlierVerdict, ImageGist, Run, RunSpec, StoredResult, Verdict, VerdictChoice
from fieldray.domain.study import ImageRef
from fieldray.store.json_columns import LUNG_VALUES, OF_RUN, Details, Found, Lungs, Why
from fieldray.store.refs import (
    compact,
    header_of,
    header_text,
    image_key,
    image_text,
    place_of,
    reason_made,
    reason_of,
    reason_text,
    reasons_of,
)
from fieldray.store.stamps import SAMPLED
from fieldray.typed_json import decoded

Row = sqlite3.Row | Mapping[str, Any]
AnyRow = TypeVar("AnyRow", bound=Row)
_LAST_S: Final = 2.5e11  # in the year 9892
_NONE: Final = type(None)
_TYPES: Final[Mapping[str, type[Any] | tuple[type[Any], ...]]] = {
    **dict.fromkeys(("category", "details", "findings", "header", "notes", "spec", "state", "status"), str),
    **dict.fromkeys(("backend", "choice", "lungs", "note", "reason", "stage"), (str, _NONE)),
    **dict.fromkeys(("frame", "id", "is_resumed", "rank", "run_id"), int),
    **dict.fromkeys(("decode_ms", "given_s", "started_s"), (float, int)),
    **dict.fromkeys(("ended_s", "grey", "inference_ms", "score"), (float, int, _NONE)),
    **dict.fromkeys(("content_sha256", "image_key", "result_hash"), bytes),
    **dict.fromkeys(("class_maps", "lung_shares", "stamp"), (bytes, _NONE)),
}


class Judged(Protocol):
    """What the results of a run have in common (`RunSpec`)."""

    @property
    def pack_name(self) -> str: ...
    @property
    def model_sha256(self) -> str: ...
    @property
    def operating_points(self) -> Sequence[OperatingPoint]: ...


def outcome_columns(outcome: Outcome, *, points: Sequence[OperatingPoint] = ()) -> dict[str, Any]:
    """The columns of `results` that hold the outcome; the caller adds those of the run.

    points  of the run: they are not said again
    """
    facts, thumbnail = outcome.facts, outcome.facts.thumbnail
    columns: dict[str, Any] = {
        "image_key": image_key(outcome.ref),
        "status": outcome.status,
        "category": outcome.category,
        "rank": WORK_LIST_ORDER.index(outcome.category),
        "score": None,
        "stage": outcome.stage if isinstance(outcome, Failed) else None,
        "reason": None if isinstance(outcome, Screened) else reason_text(outcome.reason),
        "header": header_text(outcome.ref.header),
        "content_sha256": bytes.fromhex(facts.content_sha256),
        "result_hash": result_hash(outcome),
        "frame": outcome.ref.frame,
        "decode_ms": facts.decode_ms,
        "grey": None if thumbnail is None else float(np.median(thumbnail)),
        "backend": None,
        "inference_ms": None,
        "findings": "[]",
        "class_maps": None,
        "notes": compact([[note.code, note.parameters] for note in notes_of(outcome)]),
        **_lung_columns(lungs_of(outcome)),
    }
    details: dict[str, Any] = {"kind": outcome.ref.kind, "rows": facts.rows, "columns": facts.columns}
    details["notes"] = facts.notes
    details["turn"] = [ref.turn.degrees, ref.turn.swaps_grey] if (ref := outcome.ref).turn != UPRIGHT else None
    details["pixel_map"] = list(_fields(facts.pixel_map).values()) if facts.pixel_map else None
    if problem := outcome.ref.problem:
        details |= {"problem": [problem.code, problem.parameters], "is_refusal": outcome.ref.problem_is_refusal}
    if isinstance(outcome, Screened):
        _add_screened(outcome, columns, details, points)
    return {**columns, "details": compact({name: value for name, value in details.items() if value})}


def _add_screened(
    outcome: Screened, columns: dict[str, Any], details: dict[str, Any], points: Sequence[OperatingPoint]
) -> None:
    maps, of_run = outcome.class_maps, {point.label: point for point in points}
    columns["backend"] = outcome.backend
    columns["inference_ms"] = outcome.inference_ms
    columns["score"] = listed_score(outcome.findings)
    findings = []
    for found in outcome.findings:
        is_of_run = found.point is not None and found.point == of_run.get(found.label)
        findings.append([found.label, found.score, found.decision, OF_RUN if is_of_run else found.point])
    columns["findings"] = json.dumps(findings, default=_fields, separators=(",", ":"))
    columns["class_maps"] = None if maps is None else maps.astype(np.float32).tobytes()
    details["maps"] = None if maps is None else maps.shape
    details["extra"] = dict(outcome.extra)


def _lung_columns(lungs: LungFields | None) -> dict[str, Any]:
    if lungs is None:
        return {"lungs": None, "lung_shares": None}
    kept, place = lungs.kept, list(_fields(lungs.pixel_map).values())
    values = [getattr(lungs, name) for name in LUNG_VALUES]
    return {"lungs": compact([kept.rows, kept.columns, kept.threshold, place, *values]), "lung_shares": kept.data}


def _lungs_of(row: Row, *, looks_inside: bool) -> LungFields | None:
    if row["lungs"] is None:
        return None
    lungs = decoded(row["lungs"], Lungs).fields(bytes(memoryview(row["lung_shares"])))
    if looks_inside:
        _ = lungs.shares
    return lungs


def result_hash(outcome: Outcome) -> bytes:
    """SHA-256 of what a verdict is about: the content, the model, the decisions and the scores."""
    judged: list[Any] = [outcome.facts.content_sha256, outcome.ref.frame, outcome.status]
    if isinstance(outcome, Screened):
        points = [found.point.threshold if found.point else None for found in outcome.findings]
        scores = [[found.label, found.score, found.decision] for found in outcome.findings]
        judged += [outcome.model_sha256, scores, points, *([first.code] if (first := why_of(outcome)) else [])]
    else:
        judged += [outcome.reason.code, outcome.reason.parameters]
    return hashlib.sha256(json.dumps(judged).encode()).digest()


def verdict_columns(verdict: Verdict, judged: Outcome) -> dict[str, Any]:
    """The columns of `verdicts` that hold a verdict and what it is about."""
    about = outcome_columns(judged)
    kept = {name: about[name] for name in ("result_hash", "content_sha256", "category", "score")}
    return {**kept, "choice": verdict.choice, "note": verdict.note}


def outcome_of(
    row: Row,
    run: Judged | None,
    *,
    thumbnail: NDArray[np.uint8] | None = None,
    looks_inside: bool = True,
) -> Outcome:
    """The outcome of a row of `results`. Raises ValueError and others.

    run           that the row belongs to; None where it is lost
    thumbnail     that was kept of the image, as its file lies
    looks_inside  whether a mask that cannot be unpacked is noticed now and not when it is asked for
    """
    checked(row)
    category_in(row)
    details = decoded(row["details"], Details)
    facts = ReadFacts(
        content_sha256=row["content_sha256"].hex(),
        rows=details.rows,
        columns=details.columns,
        thumbnail=None if thumbnail is None else Turn(*details.turn).shown(thumbnail),
        pixel_map=PixelMap(*details.pixel_map) if details.pixel_map else None,
        decode_ms=row["decode_ms"],
        notes=details.notes,
    )
    ref, lungs = _ref_of(row, details), _lungs_of(row, looks_inside=looks_inside)
    if row["status"] == "refused":
        return Refused(ref=ref, reason=reason_of(row["reason"]), facts=facts, lungs=lungs)
    if row["status"] == "failed":
        return Failed(ref=ref, stage=literal(row["stage"], Stage), reason=reason_of(row["reason"]), facts=facts)
    literal(row["status"], Status)
    return Screened(
        ref=ref,
        facts=facts,
        findings=findings_of(row["findings"], run),
        class_maps=_maps_of(row["class_maps"], details.maps),
        pack_name=run.pack_name if run else "",
        model_sha256=run.model_sha256 if run else "",
        backend=row["backend"],
        inference_ms=row["inference_ms"],
        extra=details.extra,
        lungs=lungs,
        notes=reasons_of(row["notes"]),
    )


def _maps_of(data: bytes | None, shape: tuple[int, int, int] | None) -> NDArray[np.float32] | None:
    """Class maps (labels, rows, columns). Raises ValueError for any other shape, and for a map without it."""
    if data is None or shape is None:
        if data is not None or shape is not None:
            raise ValueError("class maps without their shape, or a shape without them")
        return None
    return np.frombuffer(data, np.float32).reshape(shape)


def _ref_of(row: Row, details: Details) -> ImageRef:
    path, member = place_of(row["image_key"])
    return ImageRef(
        path=path,
        member=member,
        frame=row["frame"],
        kind=details.kind,
        header=header_of(row["header"]),
        problem=reason_made(details.problem) if details.problem else None,
        problem_is_refusal=details.is_refusal,
        turn=Turn(*details.turn),
    )


def stored_of(
    row: sqlite3.Row, thumbnail: NDArray[np.uint8] | None = None, *, looks_inside: bool = True
) -> StoredResult:
    """The result that a row of `results`, joined with its run and its verdict, stands for."""
    return StoredResult(
        row_id=row["id"],
        run_id=row["run_id"],
        outcome=outcome_of(row, spec_of(row["spec"]), thumbnail=thumbnail, looks_inside=looks_inside),
        is_resumed=bool(row["is_resumed"]),
        is_sampled=row["is_resumed"] == SAMPLED,
        verdict=verdict_of(row) if row["choice"] else None,
    )


def findings_of(text: str, run: Judged | None) -> tuple[Finding, ...]:
    """The findings in a row of this run. Raises ValueError and others."""
    found = []
    for kept in decoded(text, tuple[Found, ...]):
        point = kept.point
        if point == OF_RUN:
            point = _point_of(kept.label, run) if run else None
        found.append(Finding(label=kept.label, score=kept.score, decision=kept.decision, point=point))
    return tuple(found)


def _point_of(label: str, run: Judged) -> OperatingPoint:
    (point,) = (point for point in run.operating_points if point.label == label)
    return point


def brief_of(row: sqlite3.Row) -> ResultBrief:
    """A result without what is large, of a row with its verdict and its run. Raises ValueError and others."""
    checked(row)
    finding = leading_of(findings_of(row["findings"], spec_of(row["spec"])))
    return ResultBrief(
        row_id=row["id"],
        key=row["image_key"],
        image=image_text(row["image_key"]),
        content_sha256=row["content_sha256"].hex(),
        frame=row["frame"],
        category=category_in(row),
        label=finding.label if finding else "",
        score=finding.score if finding else None,
        point=finding.point if finding else None,
        backend=row["backend"] or "",
        verdict=row["choice"],
        why=reason_of(row["reason"]) if row["reason"] else None,
        notes=reasons_of(row["notes"]),
    )


def category_of(rank: int) -> Category:
    """The category with this place in the work list. Raises ValueError, TypeError."""
    if rank not in range(len(WORK_LIST_ORDER)):
        raise ValueError(f"no category is in place {rank}")
    return WORK_LIST_ORDER[rank]


def kind_of(row: sqlite3.Row) -> ResultKind:
    """What is counted of rows of `results`. Raises ValueError and others."""
    checked(row)
    why = [decoded(row["reason"], Why)] if row["reason"] else []
    codes = tuple(each.code for each in (*why, *decoded(row["notes"], tuple[Why, ...])))
    return ResultKind(category=category_in(row), codes=codes, number=row["number"])


def gist_of(row: sqlite3.Row) -> ImageGist:
    """What runs are compared by, of a row of `results`."""
    scores = {found.label: found.score for found in decoded(row["findings"], tuple[Found, ...])}
    inside = decoded(row["lungs"], Lungs).evidence_inside if row["lungs"] and scores else None
    return ImageGist(category=category_in(row), scores=scores, grey=row["grey"], evidence_inside=inside)


def spec_text(spec: RunSpec) -> str:
    """A run's specification as JSON."""
    return json.dumps(dataclasses.asdict(spec))


@functools.lru_cache(maxsize=64)
def spec_of(text: str) -> RunSpec:
    """The specification of such JSON. Raises ValueError."""
    return decoded(text, RunSpec)


def run_of(row: sqlite3.Row) -> Run:
    """The run of a row of `runs`. Raises ValueError and others for what this program cannot have written."""
    checked(row)
    return Run(
        run_id=row["id"],
        spec=spec_of(row["spec"]),
        state=literal(row["state"], RunState),
        reason=reason_of(row["reason"]) if row["reason"] else None,
        started_s=moment_in(row, "started_s"),
        ended_s=None if row["ended_s"] is None else moment_in(row, "ended_s"),
    )


def verdict_of(row: sqlite3.Row) -> Verdict:
    """The verdict of a row that holds one. Raises ValueError, TypeError."""
    checked(row)
    return Verdict(choice=literal(row["choice"], VerdictChoice), note=row["note"])


def earlier_verdict_of(row: sqlite3.Row) -> EarlierVerdict:
    """The same with what it was given on. Raises ValueError, TypeError."""
    return EarlierVerdict(
        verdict=verdict_of(row),
        image=image_text(row["image_key"]),
        content_sha256=row["content_sha256"].hex(),
        category=category_in(row),
        score=row["score"],
        given_s=moment_in(row, "given_s"),
    )


def checked(row: AnyRow) -> AnyRow:
    """The row. SQLite keeps anything in any column: raises TypeError for a type that this program never writes."""
    for name, types in _types_of(tuple(row.keys())):
        if not isinstance(row[name], types):
            raise TypeError(f"{name} is {type(row[name]).__name__}")
    return row


@functools.lru_cache(maxsize=64)
def _types_of(names: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _TYPES[name]) for name in names if name in _TYPES)


def category_in(row: Row) -> Category:
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


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a data class, for JSON; `dataclasses.asdict` copies deeply and took a third of the time per row."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def literal(value: object, kind: Any) -> Any:
    """The value. Raises ValueError where it is none of those that a literal type lists."""
    if value not in get_args(kind):
        raise ValueError(f"nothing is called {value}")
    return value

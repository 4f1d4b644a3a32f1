"""Conversion of outcomes, references to images and run requests to columns of the results database, and back.

Facts that all results of a run share are stored once for the run, not in each row.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import (
    WORK_LIST_ORDER,
    Category,
    FailedOutcome,
    Finding,
    ImageFacts,
    Outcome,
    RefusedOutcome,
    ResultCount,
    ScreenedOutcome,
    Stage,
    Status,
    leading_finding_among,
    lungs_of,
    notes_of,
    score_for_sorting,
)
from fieldray.domain.history import ImageTally, ResultBrief
from fieldray.domain.image import CoordinateMap, Correction, ImageRef
from fieldray.domain.lungs import LungFields
from fieldray.domain.model import OperatingPoint
from fieldray.domain.run import (
    DriftSample,
    PackSpec,
    Run,
    RunSpec,
    RunState,
    StoredResult,
    SupersededVerdict,
    Verdict,
    VerdictChoice,
)
from fieldray.store.schema import (
    LUNG_FIELDS_ATTRIBUTE_NAMES,
    RUN_OPERATING_POINT_MARKER,
    StoredDetails,
    StoredFinding,
    StoredLungs,
    StoredReason,
    compact_json,
    header_of,
    header_text,
    image_key,
    image_key_text,
    path_and_member,
    pixel_map_values,
    reason_from_stored,
    reason_of,
    reason_text,
    reasons_of,
    stored_reason_of,
)
from fieldray.typed_json import parse_json, to_type

Row = sqlite3.Row | Mapping[str, Any]
AnyRow = TypeVar("AnyRow", bound=Row)
# Rows of runs, each with the JSON of its packs in order.
RUNS_WITH_PACKS: Final = """
    (SELECT runs.*, (SELECT json_group_array(json_object('position', position, 'spec', CAST(spec AS TEXT)))
                     FROM (SELECT position, spec FROM run_packs WHERE run_id = runs.id ORDER BY position)) AS packs
     FROM runs)
"""
REUSED_BY_FILE_STAMP: Final = 2  # value of `is_resumed` if the file was recognised by its stamp alone
_LAST_S: Final = 2.5e11  # in the year 9892
_NONE: Final = type(None)
_TYPES: Final[Mapping[str, type[Any] | tuple[type[Any], ...]]] = {
    **dict.fromkeys(("category", "details", "findings", "header", "notes", "packs", "spec", "state", "status"), str),
    **dict.fromkeys(("backend", "choice", "lungs", "note", "reason", "stage"), (str, _NONE)),
    **dict.fromkeys(("frame", "id", "image_id", "is_read", "is_resumed", "position", "rank", "run_id"), int),
    **dict.fromkeys(("decode_ms", "started_s"), (float, int)),
    **dict.fromkeys(("ended_s", "given_s", "grey", "inference_ms", "score"), (float, int, _NONE)),
    **dict.fromkeys(("content_sha256", "image_key", "result_hash"), bytes),
    **dict.fromkeys(("class_maps", "lung_shares", "stamp"), (bytes, _NONE)),
}


class PackOfResult(Protocol):
    """The facts that all results of one pack in a run share. `PackSpec` has these properties."""

    @property
    def pack_name(self) -> str: ...
    @property
    def model_sha256(self) -> str: ...
    @property
    def operating_points(self) -> Sequence[OperatingPoint]: ...


def outcome_columns(outcome: Outcome, *, points: Sequence[OperatingPoint] = ()) -> dict[str, Any]:
    """Return the columns of `images` and `answers` for an outcome, except those that identify run, image and pack.

    points  operating points of the pack in the run, which are stored with the run instead of each result
    """
    return {**image_columns(outcome), **result_columns(outcome, points=points)}


def image_columns(outcome: Outcome) -> dict[str, Any]:
    """Return the columns of `images` for an outcome. The columns are equal for the outcomes of all packs of a run."""
    facts = outcome.facts
    return {
        "image_key": image_key(outcome.ref),
        "header": header_text(outcome.ref.header),
        "content_sha256": bytes.fromhex(facts.content_sha256),
        "frame": outcome.ref.frame,
        "grey": None if facts.thumbnail is None else _median(facts.thumbnail),
    }


def _median(grey: NDArray[np.uint8]) -> float:
    """Return the median of grey levels 0..255, by counting. This is faster than `numpy.median`, which sorts."""
    up_to = np.bincount(grey.reshape(-1)).cumsum()
    lower, upper = np.searchsorted(up_to, ((grey.size - 1) // 2, grey.size // 2), side="right")
    return float(lower + upper) / 2


def result_columns(outcome: Outcome, *, points: Sequence[OperatingPoint] = ()) -> dict[str, Any]:
    """Return the columns of `answers` for an outcome.

    points  operating points of the pack in the run, which are stored with the run instead of each result
    """
    facts = outcome.facts
    screened = outcome if isinstance(outcome, ScreenedOutcome) else None
    maps = screened.class_maps if screened else None
    return {
        "status": outcome.status,
        "category": outcome.category,
        "rank": WORK_LIST_ORDER.index(outcome.category),
        "score": score_for_sorting(screened.findings) if screened else None,
        "stage": outcome.stage if isinstance(outcome, FailedOutcome) else None,
        "reason": None if isinstance(outcome, ScreenedOutcome) else reason_text(outcome.reason),
        "result_hash": result_hash(outcome),
        "decode_ms": facts.decode_ms,
        "backend": screened.backend if screened else None,
        "inference_ms": screened.inference_ms if screened else None,
        "findings": compact_json(_stored_findings(screened.findings, points) if screened else []),
        "class_maps": None if maps is None else maps.astype(np.float32).tobytes(),
        "notes": compact_json(list(map(stored_reason_of, notes_of(outcome)))),
        "details": compact_json(_details(outcome.ref, facts, screened)),
        **_lung_columns(lungs_of(outcome)),
    }


def _details(ref: ImageRef, facts: ImageFacts, screened: ScreenedOutcome | None) -> StoredDetails:
    maps = screened.class_maps if screened else None
    return StoredDetails(
        kind=ref.kind,
        rows=facts.rows,
        columns=facts.columns,
        notes=tuple(facts.notes),
        pixel_map=pixel_map_values(facts.input_to_image) if facts.input_to_image else None,
        problem=stored_reason_of(ref.problem) if ref.problem else None,
        is_refusal=ref.problem_is_refusal,
        maps=None if maps is None else (maps.shape[0], maps.shape[1], maps.shape[2]),
        extra=dict(screened.extra_figures) if screened else {},
        turn=(ref.correction.rotation_degrees, ref.correction.inverts_grey),
    )


def _stored_findings(findings: Sequence[Finding], points: Sequence[OperatingPoint]) -> list[StoredFinding]:
    of_run = {point.label: point for point in points}

    def point(finding: Finding) -> OperatingPoint | Literal[1] | None:
        is_of_run = finding.point is not None and finding.point == of_run.get(finding.label)
        return RUN_OPERATING_POINT_MARKER if is_of_run else finding.point

    return [StoredFinding(each.label, each.score, each.decision, point(each)) for each in findings]


def _lung_columns(lungs: LungFields | None) -> dict[str, Any]:
    if lungs is None:
        return {"lungs": None, "lung_shares": None}
    kept, values = lungs.compressed_shares, [getattr(lungs, name) for name in LUNG_FIELDS_ATTRIBUTE_NAMES]
    text = compact_json([kept.rows, kept.columns, kept.threshold, pixel_map_values(lungs.cells_to_image), *values])
    return {"lungs": text, "lung_shares": kept.data}


def _lungs_of(row: Row, *, looks_inside: bool) -> LungFields | None:
    if row["lungs"] is None:
        return None
    lungs = parse_json(row["lungs"], StoredLungs).to_lung_fields(bytes(memoryview(row["lung_shares"])))
    if looks_inside:
        _ = lungs.lung_shares
    return lungs


def result_hash(outcome: Outcome) -> bytes:
    """Return a SHA-256 that identifies a judged result. The hash covers file content, model, decisions and scores."""
    judged: list[Any] = [outcome.facts.content_sha256, outcome.ref.frame, outcome.status]
    if isinstance(outcome, ScreenedOutcome):
        points = [found.point.threshold if found.point else None for found in outcome.findings]
        scores = [[found.label, found.score, found.decision] for found in outcome.findings]
        sides = [outcome.lungs.unseen_lungs_code] if outcome.lungs and outcome.lungs.read_first_reason else []
        judged += [outcome.model_sha256, scores, points, *sides]
    else:
        judged += [outcome.reason.code, outcome.reason.parameters]
    return hashlib.sha256(json.dumps(judged).encode()).digest()


def verdict_columns(judged: Outcome, verdict: Verdict | None = None) -> dict[str, Any]:
    """Return the columns of `verdicts` for a judged outcome, and for its verdict if there is a verdict."""
    about = outcome_columns(judged)
    kept = {name: about[name] for name in ("result_hash", "content_sha256", "category", "score")}
    return {**kept, "choice": verdict.choice, "note": verdict.note} if verdict else kept


def outcome_of(
    row: Row,
    pack_in_run: PackOfResult,
    *,
    thumbnail: NDArray[np.uint8] | None = None,
    checks_lung_mask: bool = True,
) -> Outcome:
    """Read an outcome from a row of `answers` joined with its image. Raises one of `INVALID_ROW_ERRORS`.

    pack_in_run       the pack in the run to which the row belongs
    thumbnail         the image's stored thumbnail (height, width), in the orientation of the file; None without one
    checks_lung_mask  whether a damaged lung mask is detected now, and not only on first access
    """
    with_checked_types(row)
    category_of_row(row)
    details = parse_json(row["details"], StoredDetails)
    facts = ImageFacts(
        content_sha256=row["content_sha256"].hex(),
        rows=details.rows,
        columns=details.columns,
        thumbnail=None if thumbnail is None else Correction(*details.turn).apply_to_grey(thumbnail),
        input_to_image=CoordinateMap(*details.pixel_map) if details.pixel_map else None,
        decode_ms=row["decode_ms"],
        notes=details.notes,
    )
    ref, lungs = _ref_of(row, details), _lungs_of(row, looks_inside=checks_lung_mask)
    if row["status"] == "refused":
        return RefusedOutcome(ref=ref, reason=reason_of(row["reason"]), facts=facts, lungs=lungs)
    if row["status"] == "failed":
        return FailedOutcome(
            ref=ref, stage=require_literal(row["stage"], Stage), reason=reason_of(row["reason"]), facts=facts
        )
    require_literal(row["status"], Status)
    return ScreenedOutcome(
        ref=ref,
        facts=facts,
        findings=findings_of(row["findings"], pack_in_run),
        class_maps=_maps_of(row["class_maps"], details.maps),
        pack_name=pack_in_run.pack_name,
        model_sha256=pack_in_run.model_sha256,
        backend=row["backend"],
        inference_ms=row["inference_ms"],
        extra_figures=details.extra,
        lungs=lungs,
        notes=reasons_of(row["notes"]),
    )


def _maps_of(data: bytes | None, shape: tuple[int, int, int] | None) -> NDArray[np.float32] | None:
    """Read class maps (labels, rows, columns) from compressed bytes; None without data.

    Raises ValueError for maps of another shape than `shape`, or for data without a shape.
    """
    if data is None or shape is None:
        if data is not None or shape is not None:
            raise ValueError("class maps without their shape, or a shape without them")
        return None
    return np.frombuffer(data, np.float32).reshape(shape)


def _ref_of(row: Row, details: StoredDetails) -> ImageRef:
    path, member = path_and_member(row["image_key"])
    return ImageRef(
        path=path,
        zip_member=member,
        frame=row["frame"],
        kind=details.kind,
        header=header_of(row["header"]),
        problem=reason_from_stored(details.problem) if details.problem else None,
        problem_is_refusal=details.is_refusal,
        correction=Correction(*details.turn),
    )


def ref_text(ref: ImageRef) -> str:
    """Format a reference to an image as JSON in ASCII, with columns of the table `images` as keys, and `details`."""
    columns = {"image_key": os.fsdecode(image_key(ref)), "frame": ref.frame, "header": header_text(ref.header)}
    return compact_json({**columns, "details": compact_json(_details(ref, ImageFacts(), None))})


def ref_of(text: str) -> ImageRef:
    """Parse a reference to an image from the JSON of `ref_text`. Raises ValueError."""
    columns = parse_json(text, dict[str, Any])
    try:
        row = with_checked_types({**columns, "image_key": os.fsencode(str(columns["image_key"]))})
        return _ref_of(row, parse_json(row["details"], StoredDetails))
    except (TypeError, LookupError) as error:
        raise ValueError("no reference to an image") from error


def stored_result_of(
    row: sqlite3.Row, thumbnail: NDArray[np.uint8] | None = None, *, checks_lung_mask: bool = True
) -> StoredResult:
    """Read a stored result from a row of `answers` joined with its image, pack and verdict.

    Raises one of `INVALID_ROW_ERRORS`. The parameters `thumbnail` and `checks_lung_mask` are those of `outcome_of`.
    """
    return StoredResult(
        result_id=row["id"],
        row_id=row["image_id"],
        run_id=row["run_id"],
        pack_position=row["position"],
        outcome=outcome_of(row, pack_spec_of(row["spec"]), thumbnail=thumbnail, checks_lung_mask=checks_lung_mask),
        is_reused=bool(row["is_resumed"]),
        is_file_recognised_by_sample=row["is_resumed"] == REUSED_BY_FILE_STAMP,
        verdict=verdict_of(row) if row["choice"] else None,
        is_read=bool(row["is_read"]),
    )


def findings_of(text: str, pack_in_run: PackOfResult) -> tuple[Finding, ...]:
    """Read the findings of a result from JSON. Raises one of `INVALID_ROW_ERRORS`.

    pack_in_run  the pack in the run, whose operating points are not repeated in the JSON
    """
    found = []
    for kept in parse_json(text, tuple[StoredFinding, ...]):
        point = kept.point
        if point == RUN_OPERATING_POINT_MARKER:
            (point,) = (known for known in pack_in_run.operating_points if known.label == kept.label)
        found.append(Finding(label=kept.label, score=kept.score, decision=kept.decision, point=point))
    return tuple(found)


def result_brief_of(row: sqlite3.Row) -> ResultBrief:
    """Read a result without its large columns from a row joined with image, pack and verdict.

    Raises one of `INVALID_ROW_ERRORS`.
    """
    with_checked_types(row)
    finding = leading_finding_among(findings_of(row["findings"], pack_spec_of(row["spec"])))
    return ResultBrief(
        row_id=row["image_id"],
        run_id=row["run_id"],
        pack_position=row["position"],
        image_key=row["image_key"],
        image_name=image_key_text(row["image_key"]),
        content_sha256=row["content_sha256"].hex(),
        frame=row["frame"],
        category=category_of_row(row),
        label=finding.label if finding else "",
        score=finding.score if finding else None,
        point=finding.point if finding else None,
        backend=row["backend"] or "",
        verdict=row["choice"],
        reason=reason_of(row["reason"]) if row["reason"] else None,
        notes=reasons_of(row["notes"]),
    )


def image_tally_of(row: sqlite3.Row) -> ImageTally:
    """Read an `ImageTally` from a row that counts results. Raises one of `INVALID_ROW_ERRORS`."""
    return ImageTally(
        spec=pack_spec_of(row["spec"]),
        category=category_of_row(row),
        reason=reason_of(row["reason"]) if row["reason"] else None,
        verdict=row["choice"],
        image_count=row["number"],
    )


def category_of_rank(rank: int) -> Category:
    """Return the category at a position in the order of the work list, from 0. Raises ValueError, TypeError."""
    if rank not in range(len(WORK_LIST_ORDER)):
        raise ValueError(f"no category is in place {rank}")
    return WORK_LIST_ORDER[rank]


def result_count_of(row: sqlite3.Row) -> ResultCount:
    """Read a `ResultCount` from a row that counts results. Raises one of `INVALID_ROW_ERRORS`."""
    with_checked_types(row)
    why = [parse_json(row["reason"], StoredReason)] if row["reason"] else []
    codes = tuple(each.code for each in (*why, *parse_json(row["notes"], tuple[StoredReason, ...])))
    return ResultCount(category=category_of_row(row), reason_and_note_codes=codes, result_count=row["number"])


def drift_sample_of(row: sqlite3.Row) -> DriftSample:
    """Read the values by which drift is measured from a row of `answers` joined with its image.

    Raises one of `INVALID_ROW_ERRORS`.
    """
    scores = {found.label: found.score for found in parse_json(row["findings"], tuple[StoredFinding, ...])}
    inside = parse_json(row["lungs"], StoredLungs).evidence_inside if row["lungs"] and scores else None
    return DriftSample(category=category_of_row(row), scores=scores, median_grey=row["grey"], evidence_inside=inside)


def spec_text(spec: RunSpec) -> str:
    """Format the request of a run as JSON, without the packs of the run."""
    return json.dumps({name: value for name, value in dataclasses.asdict(spec).items() if name != "packs"})


def pack_spec_text(spec: PackSpec) -> str:
    """Format a run's pack, with its thresholds, as JSON."""
    return json.dumps(dataclasses.asdict(spec))


@functools.lru_cache(maxsize=64)
def pack_spec_of(text: str) -> PackSpec:
    """Parse a run's pack from the JSON that `pack_spec_text` makes. Raises ValueError."""
    return parse_json(text, PackSpec)


class _Position(msgspec.Struct, frozen=True):
    """A row of the table `run_packs`: the position of a pack in the run, and the pack as JSON."""

    position: int
    spec: str


def run_of(row: sqlite3.Row) -> Run:
    """Read a run from a row of the query `RUNS_WITH_PACKS`. Raises one of `INVALID_ROW_ERRORS`."""
    with_checked_types(row)
    packs = parse_json(row["packs"], tuple[_Position, ...])
    if [pack.position for pack in packs] != list(range(len(packs))) or not packs:
        raise ValueError("a run without one of its packs")
    asked = parse_json(row["spec"], dict[str, Any])
    return Run(
        run_id=row["id"],
        spec=to_type({**asked, "packs": [parse_json(pack.spec, dict[str, Any]) for pack in packs]}, RunSpec),
        state=require_literal(row["state"], RunState),
        reason=reason_of(row["reason"]) if row["reason"] else None,
        started_s=time_in_column_s(row, "started_s"),
        ended_s=None if row["ended_s"] is None else time_in_column_s(row, "ended_s"),
    )


def verdict_of(row: sqlite3.Row) -> Verdict:
    """Read a verdict from a row of `verdicts`. Raises ValueError, TypeError."""
    with_checked_types(row)
    return Verdict(
        choice=require_literal(row["choice"], VerdictChoice), note=row["note"], given_s=time_in_column_s(row, "given_s")
    )


def superseded_verdict_of(row: sqlite3.Row) -> SupersededVerdict:
    """Read a verdict on an earlier state of an image from a row of the query `SELECT_SUPERSEDED_VERDICTS`.

    Raises ValueError, TypeError.
    """
    return SupersededVerdict(
        verdict=verdict_of(row),
        image_key=image_key_text(row["image_key"]),
        content_sha256=row["content_sha256"].hex(),
        category=category_of_row(row),
        score=row["score"],
    )


def with_checked_types(row: AnyRow) -> AnyRow:
    """Return a database row unchanged if every column has a type that this program writes. Raises TypeError otherwise.

    The check is needed because a column of SQLite accepts values of any type.
    """
    for name, types in _types_of(tuple(row.keys())):
        if not isinstance(row[name], types):
            raise TypeError(f"{name} is {type(row[name]).__name__}")
    return row


@functools.lru_cache(maxsize=64)
def _types_of(names: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _TYPES[name]) for name in names if name in _TYPES)


def category_of_row(row: Row) -> Category:
    """Read the category from the column `category` of a row. Raises ValueError for an unknown category."""
    category: Category = row["category"]
    if category not in WORK_LIST_ORDER:
        raise ValueError("no category of a result")
    return category


def time_in_column_s(row: sqlite3.Row, name: str) -> float:
    """Return the time in the column `name` of a row, in seconds since 1970.

    Raises TypeError, ValueError for an invalid date.
    """
    seconds: float = row[name]
    if not 0 <= seconds < _LAST_S:
        raise ValueError(f"no time is {seconds}")
    return seconds


def require_literal(value: object, kind: Any) -> Any:
    """Return a value unchanged if it is one of the values of a `Literal` type. Raises ValueError otherwise.

    kind  the `Literal` type
    """
    if value not in get_args(kind):
        raise ValueError(f"nothing is called {value}")
    return value

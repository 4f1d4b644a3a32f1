"""Turns a store of today into one that an older version of the program left behind."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

from fieldray.domain.finding import Failed, Outcome, Screened, lungs_of, notes_of
from fieldray.domain.lungs import LungFields
from fieldray.store.pictures import pictures_path
from fieldray.store.refs import ref_text
from fieldray.store.rows import outcome_of, spec_of
from fieldray.store.schema import MIGRATIONS

_LAST = 5  # the last version with rows of the old form
_ORDER = ("abnormal", "unsure", "not_assessed", "normal", "refused", "failed")
_OLDER = {"read_first": "abnormal", "not_an_image": "refused"}
_UNDO = {
    4: (
        "DROP TABLE previews",
        "DROP INDEX results_by_rank",
        "CREATE INDEX results_by_rank ON results (run_id, rank, score)",
    ),
    3: tuple(f"ALTER TABLE results DROP COLUMN {column}" for column in ("lungs", "lung_shares", "notes")),
}


def step_back(connection: sqlite3.Connection, *, version: int) -> None:
    """Make schema and rows those of this version, 2 to 5, with the pictures that lie in another file today."""
    pictures = _pictures(connection)
    runs, verdicts = _rows(connection, "SELECT * FROM runs"), _rows(connection, "SELECT * FROM verdicts")
    results = _rows(connection, "SELECT results.*, spec FROM results JOIN runs ON runs.id = run_id")
    connection.execute("PRAGMA foreign_keys = OFF")
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if not table.startswith("sqlite_"):
            connection.execute(f"DROP TABLE {table}")
    for statements in MIGRATIONS[:_LAST]:
        for statement in statements:
            connection.execute(statement)
    for row in runs:
        _insert(connection, "runs", {name: row[name] for name in row if name not in ("model_sha256", "settings_hash")})
    for row in results:
        _insert(connection, "results", old_row(row, pictures.get((row["content_sha256"], row["frame"]))))
    for (content, frame), picture in pictures.items():
        if picture["preview"] is not None:
            kept = {"content_sha256": content.hex(), "frame": frame, "jpeg": picture["preview"]}
            _insert(connection, "previews", kept)
    for row in verdicts:
        hashes = {name: row[name].hex() for name in ("result_hash", "content_sha256")}
        _insert(connection, "verdicts", {**row, **hashes})
    for before, statements in _UNDO.items():
        for statement in statements if before >= version else ():
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {version}")


def _pictures(connection: sqlite3.Connection) -> dict[tuple[bytes, int], dict[str, Any]]:
    """Those of the file beside, which is removed."""
    path = pictures_path(Path(connection.execute("PRAGMA database_list").fetchone()[2]))
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as found:
        rows = _rows(found, "SELECT * FROM pictures")
    path.unlink()
    return {(row["content_sha256"], row["frame"]): row for row in rows}


def old_row(row: dict[str, Any], picture: dict[str, Any] | None) -> dict[str, Any]:
    """A row of `results` with the specification of its run, in the form of version 5."""
    spec = spec_of(row["spec"])
    outcome = outcome_of(row, spec)
    facts = outcome.facts
    category = _OLDER.get(row["category"], row["category"])
    same = ("id", "run_id", "image_key", "status", "score", "stage", "reason", "frame", "backend")
    times = ("decode_ms", "inference_ms", "is_resumed", "saved_s", "pass_number", "absent_s", "class_maps")
    details: dict[str, Any] = {
        "rows": facts.rows,
        "columns": facts.columns,
        "notes": facts.notes,
        "thumbnail_shape": _shape(picture),
        "pixel_map": list(dataclasses.astuple(facts.pixel_map)) if facts.pixel_map else None,
    }
    if isinstance(outcome, Screened):
        maps = outcome.class_maps
        details |= {"class_maps_shape": None if maps is None else maps.shape, "extra": dict(outcome.extra)}
    return {
        **{name: row[name] for name in (*same, *times)},
        "category": category,
        "rank": _ORDER.index(category),
        "thumbnail": picture["thumbnail"] if picture else None,
        "ref": ref_text(outcome.ref),
        "content_sha256": facts.content_sha256,
        "result_hash": row["result_hash"].hex(),
        "model_sha256": spec.model_sha256,
        "settings_hash": spec.settings_hash,
        "pack_name": spec.pack_name,
        "findings": json.dumps(_findings(outcome)),
        "details": json.dumps(details),
        "notes": json.dumps([json.dumps([note.code, note.parameters]) for note in notes_of(outcome)]),
        **_lungs(None if isinstance(outcome, Failed) else lungs_of(outcome)),
    }


def _shape(picture: dict[str, Any] | None) -> list[int] | None:
    if picture is None or picture["thumbnail"] is None:
        return None
    return [len(picture["thumbnail"]) // picture["thumbnail_columns"], picture["thumbnail_columns"]]


def _findings(outcome: Outcome) -> list[dict[str, Any]]:
    return [dataclasses.asdict(found) for found in outcome.findings] if isinstance(outcome, Screened) else []


def _lungs(lungs: LungFields | None) -> dict[str, Any]:
    if lungs is None:
        return {"lungs": None, "lung_shares": None}
    names = [field.name for field in dataclasses.fields(LungFields) if field.name not in ("kept", "pixel_map")]
    values = {name: getattr(lungs, name) for name in names} | {"threshold": lungs.threshold}
    place = {"pixel_map": list(dataclasses.astuple(lungs.pixel_map)), "shape": lungs.shares.shape}
    return {"lungs": json.dumps(values | place), "lung_shares": zlib.compress(lungs.shares.tobytes())}


def _rows(connection: sqlite3.Connection, query: str) -> list[dict[str, Any]]:
    found = connection.execute(query)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))

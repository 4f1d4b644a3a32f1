"""Data that the program writes and reads again, perhaps after a change: settings, records, database rows, results."""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from fieldray.audit.cases import labels_from_table
from fieldray.packs.signing import TrustStore
from fieldray.packs.site_choices import LOCAL_POINTS_FILE_NAME as POINTS
from fieldray.packs.site_choices import REMEMBERED_PACKS_FILE_NAME as FOLDERS
from fieldray.packs.site_choices import LocalPointFile, RememberedPacks
from fieldray.reports.outputs import is_own_report
from fieldray.settings import SETTING_ROWS, load_settings
from fieldray.store.rows import (
    drift_sample_of,
    outcome_columns,
    outcome_of,
    pack_spec_of,
    pack_spec_text,
    result_brief_of,
    result_count_of,
    run_of,
    spec_text,
    stored_result_of,
    superseded_verdict_of,
    verdict_of,
)
from fuzz.structures.dicom_files import PLACES
from fuzz.structures.target import Unforeseen, holds, refusals
from fuzz.structures.values import FLOATS, INTEGERS, TEXTS, broken, json_bytes
from lungs import lungs
from outcomes import failed, image_ref, pack_spec, refused, run_spec, screened
from packs_factory import site_point

_HASH: Final = "0123456789abcdef" * 4
OF_REQUEST: Final = {"model_sha256": _HASH, "settings_hash": _HASH}
_FINGERPRINT: Final = "-".join(["0123"] * 16)
_LUNGS: Final = replace(lungs(), cut_off_sides=("top",))


# ---- files of the user's folder


@dataclass(frozen=True, slots=True)
class _File:
    """A valid small file of the program, and the function that reads it from a folder."""

    name: str
    content: Any
    read: Callable[[Path], object]
    is_lines: bool = False


def _settings(folder: Path) -> None:
    """Read the settings. Settings that were read must survive being written and read again."""
    settings, _ = load_settings(folder / "settings.json")
    settings.save(folder / "settings.json")
    again, _ = load_settings(folder / "settings.json")
    holds(
        [again[row.key] for row in SETTING_ROWS] == [settings[row.key] for row in SETTING_ROWS],
        "settings that change by themselves",
    )


def _requests(folder: Path) -> object:
    from fieldray_cluster.archive_folder import ArchiveFolder

    with ArchiveFolder(folder) as archive:
        (folder / "chunks" / "some.parquet").touch()  # results: the request counts
        archive.store_request(_request())
        return archive.merged_run_id()


def _journal(folder: Path) -> list[object]:
    from fieldray_cluster.workflow.tasks import read_events

    return list(read_events(folder))


@functools.cache
def _files() -> Mapping[str, _File]:
    from fieldray_cluster.workflow.tasks import Event, Outcome

    point = json.loads(msgspec.json.encode(site_point(_HASH)))
    remembered = {_HASH: {"pack": "p", "operating_point": "x", "ages_confirmed": True}}
    trust = {"format": 1, "keys": {_FINGERPRINT: "2024-01-31"}, "seen": {_FINGERPRINT: {"test-chest": "1.2.3"}}}
    request = asdict(_request())
    event = asdict(Event(task="a", key="k", status="done", number=1, outcome=Outcome(exit_code=0, node="n")))
    files = (
        _File("settings.json", {row.key: row.default for row in SETTING_ROWS} | {"newer": [1]}, _settings),
        _File(FOLDERS, remembered, lambda folder: RememberedPacks(folder).find([folder])),
        _File("pack_trust.json", trust, lambda folder: TrustStore(folder).trusted_key_dates()),
        _File(POINTS, [point, point], lambda folder: LocalPointFile(folder).all_points()),
        _File("archive.json", request, _requests),
        _File("merged.json", {"run": 3}, _merged),
        _File("journal.jsonl", event, _journal, is_lines=True),
    )
    return {file.name: file for file in files}


def _merged(folder: Path) -> object:
    from fieldray_cluster.archive_folder import ArchiveFolder

    with ArchiveFolder(folder) as archive:
        return archive.merged_run_id()


def _request() -> Any:
    from archives import archive_request

    return archive_request("/scans", model_sha256=_HASH, settings_hash=_HASH)


def make_file(chance: random.Random) -> bytes:
    """Make an input for `read_file`: the name of a file on the first line, then its content."""
    file = chance.choice(tuple(_files().values()))
    document = broken(file.content, chance, places=chance.choice(PLACES))
    text = json_bytes(document, chance, places=chance.choice((0,) * 6 + (1, 2)))
    return file.name.encode("ascii") + b"\n" + text + b"\n" * file.is_lines


def read_file(data: bytes, folder: Path) -> None:
    """Read one of the program's own files, as the program does at its start or in a command."""
    name, _, content = data.partition(b"\n")
    file = _files().get(name.decode("latin-1"), _files()[FOLDERS])
    (folder / file.name).write_bytes(content)
    file.read(folder)


# ---- rows of a database


def of_run() -> dict[str, Any]:
    """Return the columns that a SQL statement joins to a result from its run and its verdict."""
    return {
        "id": 1,
        "run_id": 1,
        "image_id": 1,
        "position": 0,
        "spec": pack_spec_text(pack_spec()),
        "is_resumed": 0,
        "choice": None,
        "note": None,
        "is_read": 0,
        "number": 1,
    }


@functools.cache
def _rows() -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return valid rows with their kind: results, runs, a verdict."""
    results = (
        screened(),
        replace(screened(), lungs=_LUNGS),
        refused(),
        failed(image_ref("b", zip_member="x", frame=2)),
    )
    run = {
        "id": 1,
        "spec": spec_text(run_spec()),
        "packs": json.dumps([{"position": 0, "spec": pack_spec_text(pack_spec())}]),
        "state": "finished",
        "reason": None,
        "started_s": 1.0,
        "ended_s": None,
    }
    verdict = {
        "choice": "agree",
        "note": "x",
        "image_key": b"a",
        "content_sha256": b"c" * 32,
        "category": "normal",
        "score": 0.1,
    }
    verdict |= {"given_s": 1.0}
    why = json.dumps(["disk_full", [["path", "/x"]]])
    return (
        *(("result", {**outcome_columns(each, points=pack_spec().operating_points), **of_run()}) for each in results),
        ("run", run),
        ("run", {**run, "reason": why, "ended_s": 2.0}),
        ("verdict", verdict),
    )


_COLUMNS: Final = ("details", "header", "findings", "notes", "lungs", "packs", "spec", "reason")


def make_row(chance: random.Random) -> bytes:
    """Make an input for `read_row`, see `row_as_input`."""
    kind, whole = chance.choice(_rows())
    row = dict(whole)
    for _ in range(chance.choice(PLACES)):
        name = chance.choice(list(row))
        if name in _COLUMNS and isinstance(row[name], str) and chance.random() < 0.85:
            row[name] = _broken_column(row[name], chance)
        elif isinstance(row[name], bytes) and chance.random() < 0.7:
            row[name] = row[name][: chance.randrange(len(row[name]) + 1)] + chance.choice((b"", b"\0", b"\xff" * 9))
        else:
            row[name] = _value(chance)
    return row_as_input(kind, row)


def row_as_input(kind: str, row: Mapping[str, Any]) -> bytes:
    """Return the input for `read_row`: the kind on the first line, then the columns as JSON, bytes in hexadecimal."""
    kept = {name: {"bytes": value.hex()} if isinstance(value, bytes) else value for name, value in row.items()}
    return kind.encode("ascii") + b"\n" + json.dumps(kept).encode("ascii")


def _broken_column(text: str, chance: random.Random) -> str:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # the column is no longer JSON
        return text
    document = broken(document, chance, places=chance.choice((1, 1, 2)))
    return json_bytes(document, chance, places=chance.choice((0,) * 9 + (1,))).decode("utf-8", "replace")


def _value(chance: random.Random) -> Any:
    """Draw a value that SQLite may keep in any column."""
    number = chance.choice([number for number in INTEGERS if abs(number) < 2**63])
    return chance.choice((None, number, chance.choice(FLOATS), chance.choice(TEXTS), b"", b"\xff\xfe\0"))


def read_row(data: bytes, _folder: Path) -> str | None:
    """Read a database row as the store does. Only errors that `mark_damaged_on_invalid_row` handles may occur."""
    kind, _, text = data.partition(b"\n")
    columns = json.loads(text)
    row = {name: bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value for name, value in columns.items()}
    refused: list[str] = []
    for taken in _TAKEN.get(kind.decode("latin-1"), ()):
        with refusals(ValueError, TypeError, LookupError, AttributeError) as why:
            taken(row)
        refused += why
    return refused[0] if refused else None


def _shown(row: Any) -> object:
    """Read a result as the history shows it. It must survive being stored again."""
    brief = result_brief_of(row)
    spec = pack_spec_of(row["spec"])
    kept = outcome_of(row, spec)
    try:
        outcome_columns(kept, points=spec.operating_points)
    except Exception as error:
        raise Unforeseen(f"a result that cannot be kept again: {error!r}") from error
    return brief


_TAKEN: Final[Mapping[str, tuple[Callable[[Any], object], ...]]] = {
    "result": (stored_result_of, _shown, drift_sample_of, result_count_of),
    "run": (run_of,),
    "verdict": (verdict_of, superseded_verdict_of),
}


# ---- results of a worker


def make_chunk(chance: random.Random) -> bytes:
    """Make a Parquet file of a few results with wrong values, and sometimes with wrong bytes."""
    from fieldray_cluster.archive_worker import _SCHEMA

    of_request = {**OF_REQUEST, "thumbnail_columns": 0}
    outcomes = chance.choices(
        (screened(), replace(screened(), lungs=_LUNGS), refused(), failed()), k=chance.randrange(4)
    )
    rows = [{**outcome_columns(each), **of_request} for each in outcomes]
    for _ in range(chance.choice(PLACES)):
        if rows:
            _break_row(chance.choice(rows), chance, _SCHEMA)
    data = bytearray(chunk_of(rows, compression=chance.choice(("zstd", "none", "gzip"))))
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        at = chance.randrange(len(data)) if chance.random() < 0.5 else len(data) - 1 - chance.randrange(len(data) // 2)
        data[at : at + chance.choice((1, 1, 1, 4))] = chance.choice((b"\0", b"\xff", b"\x7f", b"", bytes(4)))
    return bytes(data)


def chunk_of(rows: list[dict[str, Any]], *, compression: str = "snappy") -> bytes:
    """Return rows as the Parquet file that a worker of an archive sends."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from fieldray_cluster.archive_worker import _SCHEMA

    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), stream, compression=compression)
    return stream.getvalue()


def _break_row(row: dict[str, Any], chance: random.Random, schema: Any) -> None:
    """Replace a value by another one of the column's type. The schema lets no other type pass."""
    name = chance.choice(schema.names)
    kind = str(schema.field(name).type)
    if kind == "string":
        known = row.get(name)
        is_document = name in _COLUMNS and isinstance(known, str)
        row[name] = _broken_column(known, chance) if is_document else chance.choice(TEXTS)
        row[name] = row[name].encode("utf-8", "replace").decode()
    elif kind == "binary":
        row[name] = chance.choice((None, b"", b"\xff" * 64, b"\0", b"a\0b\0c"))
    elif kind == "int64":
        row[name] = chance.choice([number for number in INTEGERS if abs(number) < 2**63])
    else:
        row[name] = chance.choice((None, *FLOATS))


def read_chunk(data: bytes, _folder: Path) -> None:
    """Read results as the driver of an archive reads them from a worker."""
    from fieldray_cluster.archive_worker import outcomes_from_parquet

    for one in outcomes_from_parquet(data, _request()):
        outcome_columns(one)


# ---- tables and files that may be reports


_CELLS: Final = ("image", "label", "patient", "a.dcm", "b.dcm", "1.2.a.dcm", "normal", "abnormal", "0", "1", "P1", "")
_HEADS: Final = (
    b'{"status": "screened", "path": "a", "image": "a"', b'{\n "report": "class map",\n "model_sha256": "',
    b"%PDF-1.7\n", b"<!DOCTYPE html>\n<style>\nbody { font: 15px/1.5", b"<svg xmlns",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDRtEXtSoftware\0fieldray", b"\x93NUMPY\1\0v\0{'descr': '<f4'",
    b"\xef\xbb\xbfrun,image,path", b"run_id;run_started;image", bytes(128) + b"DICM", b"[" * 20_000, b'"' * 9_000,
    b"a," * 9_000, b"\xff\xfe" * 40, b'{"a":' * 2_000, b"{\n" * 900, b"",
)  # fmt: skip


def make_table(chance: random.Random) -> bytes:
    """Make a table of labels, or the beginning of a file that may be a report of the program."""
    if chance.random() < 0.4:
        head = bytearray(chance.choice(_HEADS))
        for _ in range(chance.choice((0, 1, 2))):
            at = chance.randrange(len(head) + 1)
            head[at : at + chance.choice((0, 1))] = chance.choice(
                (b"\n", b"\r", b"\0", b'"', b",", b"\xff", b"9" * 5_000)
            )
        return b"\0" + bytes(head)
    separator = chance.choice(",;\t|")
    lines = [separator.join(("image", "label", "patient"))] if chance.random() < 0.9 else []
    lines += [
        separator.join(chance.choices(_CELLS, k=chance.choice((3, 3, 3, 1, 5)))) for _ in range(chance.randrange(12))
    ]
    text = chance.choice(("\n", "\r\n", "\r")).join(lines)
    for _ in range(chance.choice(PLACES)):
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice((*TEXTS, '"', '""', "\r", "\x85", separator, "x" * 140_000)) + text[at:]
    return b"\1" + text.encode(chance.choice(("utf-8", "utf-8", "utf-16", "utf-8-sig", "cp1251")), "replace")


def read_table(data: bytes, folder: Path) -> str | None:
    """Read labels as an audit does, or check whether a file is a report of the program, as discovery does."""
    if data[:1] == b"\0":
        return "own report" if is_own_report(data[1:]) else None
    (folder / "labels.csv").write_bytes(data[1:])
    labels_from_table(folder / "labels.csv", [image_ref(name) for name in ("a.dcm", "b.dcm")])
    return None

"""The tables of the results database and the picture database, and the test whether a file has exactly these tables.

`PRAGMA user_version` is the version of the tables in a file. `PRAGMA application_id` is the version of the program that
made the file. A file from elsewhere may have a trigger, a view or a computed column, which would run with the
statements of this program. So such a file is refused.

The classes below describe the JSON in columns. Any other content in such a column is damage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from fieldray.domain.finding import Decision
from fieldray.domain.image import CoordinateMap, FileKind, ImageHeader, ImageRef
from fieldray.domain.lungs import LungFields, LungMeasurement, LungSide, QualityNote, Side
from fieldray.domain.mask import CompressedShares
from fieldray.domain.model import OperatingPoint
from fieldray.reasons import Reason, reason
from fieldray.typed_json import format_json, parse_json

# Any change of the tables needs a new number, and a step in `migrations`.
SCHEMA_VERSION: Final = 12
FIRST_RELEASED_SCHEMA_VERSION: Final = 11  # version of program 0.2.0; lower versions were used before the first release
_PICTURES_VERSION: Final = 11
_VERSION_AT: Final = 60  # offset (sqlite.org/fileformat.html); the write-ahead log may hold a newer version

TableStatements = tuple[str, ...]

# A run is one pass over images by one or more packs (`run_packs`, by position). Each image of a run has one row in
# `images`, and one row in `answers` for each pack. Facts by which rows are sorted, filtered or found are columns; all
# others are JSON. No fact is in two columns of a row, or both in a row and its run. Texts that may hold file names
# are JSON in ASCII or bytes, because a name that is no valid Unicode must not stop a run. Hashes are bytes. `grey` is
# the median of the thumbnail, `images.rank` the rank of the most urgent result.
#
# A resumed run has several passes. An image that the last pass did not see is absent. `stamp` identifies the state of
# an image's file, and `is_resumed` is 2 if a result was reused because of the stamp alone. A verdict belongs to the
# result that the person saw (`result_hash`). The verdict is shown while its row in `answers` has that result, and is
# kept when the row has another result. A verdict without a `choice` records that a person read the image.
#
# The work list (see `bookkeeping`) is made again by a repair or a migration. The statements are short, so that the
# schema fits one page: a file that lost one of several pages would be lost as a whole.
RESULTS_TABLES: Final[TableStatements] = (
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        request_key TEXT NOT NULL,
        spec TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT,
        started_s REAL NOT NULL,
        ended_s REAL,
        pass_number INTEGER NOT NULL DEFAULT 1
    )""",
    "CREATE INDEX runs_by_request ON runs (request_key, id)",
    """CREATE TABLE run_packs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id INTEGER NOT NULL REFERENCES runs (id),
        position INTEGER NOT NULL,
        spec TEXT NOT NULL,
        model_sha256 TEXT NOT NULL,
        settings_hash TEXT NOT NULL,
        UNIQUE (run_id, position)
    )""",
    "CREATE INDEX run_packs_by_work ON run_packs (model_sha256, settings_hash)",
    "CREATE TABLE secrets (id INTEGER PRIMARY KEY, purpose TEXT NOT NULL UNIQUE, value BLOB NOT NULL)",
    """CREATE TABLE images (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id INTEGER NOT NULL REFERENCES runs (id),
        image_key BLOB NOT NULL,
        pass_number INTEGER NOT NULL,
        saved_s REAL NOT NULL,
        absent_s REAL,
        stamp BLOB,
        content_sha256 BLOB NOT NULL,
        frame INTEGER NOT NULL,
        rank INTEGER NOT NULL,
        grey REAL,
        header TEXT NOT NULL,
        UNIQUE (run_id, image_key)
    )""",
    "CREATE INDEX images_by_content ON images (content_sha256, frame)",
    "CREATE INDEX images_by_day ON images (saved_s, rank, absent_s)",
    "CREATE INDEX images_absent ON images (run_id) WHERE absent_s IS NOT NULL",
    """CREATE TABLE answers (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        image_id INTEGER NOT NULL REFERENCES images (id),
        run_id INTEGER NOT NULL,
        position INTEGER NOT NULL,
        is_resumed INTEGER NOT NULL,
        saved_s REAL NOT NULL,
        result_hash BLOB NOT NULL,
        status TEXT NOT NULL,
        category TEXT NOT NULL,
        rank INTEGER NOT NULL,
        score REAL,
        stage TEXT,
        reason TEXT,
        backend TEXT,
        decode_ms REAL NOT NULL,
        inference_ms REAL,
        findings TEXT NOT NULL,
        notes TEXT NOT NULL,
        details TEXT NOT NULL,
        lungs TEXT,
        class_maps BLOB,
        lung_shares BLOB,
        UNIQUE (image_id, position)
    )""",
    "CREATE INDEX answers_by_pack ON answers (run_id, position, rank, backend)",
    "CREATE INDEX answers_by_quality ON answers (saved_s, image_id, notes) WHERE instr(notes, '\"lungs_') > 0",
    """CREATE TABLE verdicts (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        answer_id INTEGER NOT NULL REFERENCES answers (id),
        result_hash BLOB NOT NULL,
        choice TEXT,
        note TEXT NOT NULL,
        given_s REAL NOT NULL,
        content_sha256 BLOB NOT NULL,
        category TEXT NOT NULL,
        score REAL,
        UNIQUE (answer_id, result_hash)
    )""",
    "CREATE TABLE work_list (run_id INTEGER, image_id INTEGER, rank INTEGER,"
    " score REAL, backend TEXT, patient BLOB, patient_id BLOB, study_date BLOB, file BLOB, view BLOB,"
    " inference_ms REAL, why TEXT, study INTEGER, person INTEGER, PRIMARY KEY (run_id, image_id)) WITHOUT ROWID",
    "CREATE INDEX work_list_by_class ON work_list (run_id, rank, score DESC, image_id, backend, person, study)",
    "CREATE INDEX work_list_by_patient ON work_list (run_id, patient, rank, score DESC, image_id, backend)",
    "CREATE INDEX work_list_by_patient_id ON work_list (patient_id, image_id) WHERE patient_id != x''",
)

# The picture database: small pictures, stored once for all results of one file content. The picture database may be
# deleted without losing results.
PICTURES_TABLES: Final[TableStatements] = (
    """CREATE TABLE pictures (
        id INTEGER PRIMARY KEY,
        content_sha256 BLOB NOT NULL,
        frame INTEGER NOT NULL,
        thumbnail BLOB,
        thumbnail_columns INTEGER NOT NULL,
        preview BLOB,
        UNIQUE (content_sha256, frame)
    )""",
)


# Tables that SQLite makes itself: highest row ids, and statistics of ANALYZE. Indexes made by SQLite have no statement.
_OF_SQLITE: Final = (
    "CREATE TABLE sqlite_sequence(name,seq)",
    "CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
)


def schema_version_in_file(path: Path) -> int:
    """Return the version of the tables from the first bytes of a database file; 0 for an empty file. Raises OSError."""
    with path.open("rb") as stream:
        stream.seek(_VERSION_AT)
        return int.from_bytes(stream.read(4), "big")


def supported_schema_version(tables: TableStatements) -> int:
    """Return the version of the tables that this program makes. `tables` is `RESULTS_TABLES` or `PICTURES_TABLES`."""
    return _PICTURES_VERSION if tables is PICTURES_TABLES else SCHEMA_VERSION


def schema_version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a database's tables; 0 for an empty database."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def program_version_number(version: str) -> int:
    """Return a program version as a number for `PRAGMA application_id`: 2000 for 0.2.0."""
    major, minor, patch = map(int, version.split("."))
    return (major * 1000 + minor) * 1000 + patch


def program_version_of(connection: sqlite3.Connection) -> str:
    """Return the version of the program that made a database; "" for version 0.2.0, which did not store its version."""
    (number,) = connection.execute("PRAGMA application_id").fetchone()
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}" if number > 0 else ""


def schema_of(connection: sqlite3.Connection) -> set[tuple[object, ...]]:
    """Return the schema of a database: (type, name, SQL statement) of each table, index, trigger and view.

    Objects that SQLite made itself are left out. Their SQL statements identify them. Their names would not be enough,
    because a hostile file can give any object such a name.
    """
    found = set(connection.execute("SELECT type, name, sql FROM sqlite_master"))
    return {
        (kind, name, sql) for kind, name, sql in found if not (sql in _OF_SQLITE or (sql is None and kind == "index"))
    }


@functools.cache
def expected_schema(tables: TableStatements) -> frozenset[tuple[object, ...]]:
    """Return the schema that results from executing the statements `tables` in an empty database (see `schema_of`)."""
    with contextlib.closing(sqlite3.connect(":memory:")) as made:
        for statement in tables:
            made.execute(statement)
        return frozenset(schema_of(made))


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Return whether a database has an ordinary table of this name.

    False for a view or a virtual table, whose rows may never end.
    """
    query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ? AND sql LIKE 'CREATE TABLE %'"
    return bool(connection.execute(query, (name,)).fetchone()[0])


RUN_OPERATING_POINT_MARKER: Final = 1  # in a stored finding: the run's operating point for the label
_HEADER: Final = {field.name: field.default for field in dataclasses.fields(ImageHeader)}

PixelMapValues = tuple[float, float, float, float]  # scale and offset of the rows, then of the columns
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]  # larger numbers do not fit the types of SQLite and NumPy
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class StoredReason(msgspec.Struct, frozen=True, array_like=True):
    """A `Reason` as stored in JSON columns: code and parameters."""

    code: str
    parameters: tuple[tuple[str, str], ...]


class StoredDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Additional facts of a result as stored in a JSON column. Fields that have their default value are left out.

    problem  problem found by the search for images; `is_refusal` tells whether the image is refused
    maps     shape of the class maps: labels, rows, columns
    extra    further figures of the result, by name
    turn     correction that a person asked for: degrees of rotation, and whether grey levels are inverted
    """

    kind: FileKind
    rows: Count = 0
    columns: Count = 0
    notes: tuple[str, ...] = ()
    pixel_map: PixelMapValues | None = None
    problem: StoredReason | None = None
    is_refusal: bool = False
    maps: tuple[Count, Count, Count] | None = None
    extra: Mapping[str, float] = {}
    turn: tuple[int, bool] = (0, False)


class StoredFinding(msgspec.Struct, frozen=True, array_like=True):
    """A `Finding` of a result as stored in JSON columns.

    point  the operating point; 1 if it is the run's operating point for this label; None without one
    """

    label: str
    score: Share
    decision: Decision
    point: OperatingPoint | Literal[1] | None


class StoredLungs(msgspec.Struct, frozen=True, array_like=True):
    """The `LungFields` of an image as stored in a JSON column.

    The compressed mask (`CompressedShares.data`) has a column of its own.
    """

    mask_rows: Count
    mask_columns: Count
    threshold: int
    pixel_map: PixelMapValues
    is_frontal_chest: bool
    has_lungs: bool
    left_lung_area_share: float
    right_lung_area_share: float
    cut_off_sides: tuple[Side, ...]
    rotation_degrees: int
    is_inverted: bool
    is_mirrored: bool
    evidence_inside: float | None
    latency_ms: float
    unseen_lungs: tuple[LungSide, ...] = ()
    region_bounds_px: tuple[float, float, float, float] | None = None
    quality: tuple[QualityNote, ...] = ()
    unseen_measurement: LungMeasurement | None = None

    def to_lung_fields(self, shares: bytes) -> LungFields:
        """Return the lung fields of the image.

        shares  the compressed mask of the lungs, as in `CompressedShares.data`
        """
        kept = CompressedShares(self.mask_rows, self.mask_columns, self.threshold, shares)
        values = {name: getattr(self, name) for name in LUNG_FIELDS_ATTRIBUTE_NAMES}
        return LungFields(**values, compressed_shares=kept, cells_to_image=CoordinateMap(*self.pixel_map))


_OF_CELLS: Final = ("mask_rows", "mask_columns", "threshold", "pixel_map")
# Fields that `StoredLungs` and `LungFields` have in common, in the order of `StoredLungs`: all but those of the mask.
LUNG_FIELDS_ATTRIBUTE_NAMES: Final = StoredLungs.__struct_fields__[len(_OF_CELLS) :]


def compact_json(value: Any) -> str:
    """Format a value, or a struct of this module, as JSON in ASCII without spaces."""
    return format_json(value).decode()


def pixel_map_values(pixel_map: CoordinateMap) -> PixelMapValues:
    """Return a pixel map as stored in JSON: scale and offset of the rows, then scale and offset of the columns."""
    return (pixel_map.row_scale, pixel_map.row_offset, pixel_map.column_scale, pixel_map.column_offset)


# ---- keys of images


def image_key(ref: ImageRef) -> bytes:
    """Return the bytes that identify an image within a run.

    The key contains path, zip member and frame, separated by zero bytes, which no file name contains. `ImageRef.key` is
    for display only, because this text is ambiguous: a file may be named `a.zip!b.dcm` next to a zip file with that
    member.
    """
    frame = str(ref.frame) if ref.header.number_of_frames > 1 else ""
    parts = [str(ref.path), ref.zip_member or "", frame] if ref.zip_member is not None or frame else [str(ref.path)]
    return b"\0".join(map(os.fsencode, parts))


def image_key_text(key: bytes) -> str:
    """Return an image's key as text for display: `path`, `path!member`, `...#frame`."""
    path, member, frame = ([*os.fsdecode(key).split("\0"), "", ""])[:3]
    return path + (f"!{member}" if member else "") + (f"#{frame}" if frame else "")


def path_and_member(key: bytes) -> tuple[Path, str | None]:
    """Return the file path in an image's key, and the name of the zip member, which is None outside a zip file."""
    path, *member = os.fsdecode(key).split("\0")[:2]
    return Path(path), member[0] if member and member[0] else None


# ---- headers and reasons


def header_text(header: ImageHeader) -> str:
    """Format the header of an image as JSON. Fields that have their default value are left out."""
    return compact_json({name: value for name in _HEADER if (value := getattr(header, name)) != _HEADER[name]})


@functools.lru_cache(maxsize=256)
def header_of(text: str) -> ImageHeader:
    """Parse the header of an image from the JSON that `header_text` makes. Raises ValueError."""
    return parse_json(text, ImageHeader)


def stored_reason_of(given: Reason) -> StoredReason:
    """Convert a `Reason` to the form in which it is stored."""
    return StoredReason(given.code, given.parameters)


def reason_text(given: Reason) -> str:
    """Format a `Reason` as JSON."""
    return compact_json(stored_reason_of(given))


def reason_of(text: str) -> Reason:
    """Parse a `Reason` from JSON. Raises ValueError."""
    return reason_from_stored(parse_json(text, StoredReason))


@functools.lru_cache(maxsize=256)
def reasons_of(text: str) -> tuple[Reason, ...]:
    """Parse a list of `Reason` objects from JSON. Raises ValueError."""
    return tuple(map(reason_from_stored, parse_json(text, tuple[StoredReason, ...])))


def reason_from_stored(why: StoredReason) -> Reason:
    """Convert a stored reason to a `Reason`. An unknown code becomes the code `internal`."""
    try:
        return Reason(why.code, why.parameters)
    except KeyError:  # written by a program version with other reasons
        return reason("internal", detail=why.code)

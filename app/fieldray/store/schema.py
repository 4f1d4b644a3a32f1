"""The tables of a store, version by version: `PRAGMA user_version` is the number of entries that were applied."""

from __future__ import annotations

from pathlib import Path
from typing import Final

Migration = tuple[str, ...]
_VERSION_AT: Final = 60  # of the file (sqlite.org/fileformat.html); what the log of changes holds may be newer

# Rows in another form: whoever brings a store up to here copies it, row by row, into a new file (see `upgrading`).
# Nothing is said twice in a row, and nothing that its run says. Hashes are bytes. Pictures lie in a file of their own
# (see `pictures`). `stamp` is what an image's file is known by (see `stamps`), and `is_resumed` is 2 where a result was
# taken over by that alone. `grey` is the median of the thumbnail.
COMPACT: Final[Migration] = (
    "ALTER TABLE runs ADD COLUMN model_sha256 TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN settings_hash TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX runs_by_work ON runs (model_sha256, settings_hash)",
    "CREATE TABLE secrets (id INTEGER PRIMARY KEY, purpose TEXT NOT NULL UNIQUE, value BLOB NOT NULL)",
    "DROP TABLE previews",
    "DROP TABLE verdicts",
    "DROP TABLE results",
    """CREATE TABLE results (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        run_id INTEGER NOT NULL REFERENCES runs (id),
        image_key BLOB NOT NULL,
        pass_number INTEGER NOT NULL,
        is_resumed INTEGER NOT NULL,
        saved_s REAL NOT NULL,
        absent_s REAL,
        stamp BLOB,
        content_sha256 BLOB NOT NULL,
        frame INTEGER NOT NULL,
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
        grey REAL,
        header TEXT NOT NULL,
        findings TEXT NOT NULL,
        notes TEXT NOT NULL,
        details TEXT NOT NULL,
        lungs TEXT,
        class_maps BLOB,
        lung_shares BLOB,
        UNIQUE (run_id, image_key)
    )""",
    "CREATE INDEX results_by_content ON results (content_sha256, frame)",
    "CREATE INDEX results_by_rank ON results (run_id, rank, score, absent_s, backend)",
    """CREATE TABLE verdicts (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        result_id INTEGER NOT NULL REFERENCES results (id),
        result_hash BLOB NOT NULL,
        choice TEXT NOT NULL,
        note TEXT NOT NULL,
        given_s REAL NOT NULL,
        content_sha256 BLOB NOT NULL,
        category TEXT NOT NULL,
        score REAL,
        UNIQUE (result_id, result_hash)
    )""",
)

# One result row per image and run. What is sorted, filtered or looked up is a column; the rest is JSON. Texts that may
# hold file names are JSON in ASCII or bytes: a name that is not valid Unicode must not stop a run.
MIGRATIONS: Final[tuple[Migration, ...]] = (
    (
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            request_key TEXT NOT NULL,
            spec TEXT NOT NULL,
            state TEXT NOT NULL,
            reason TEXT,
            started_s REAL NOT NULL,
            ended_s REAL
        )""",
        "CREATE INDEX runs_by_request ON runs (request_key, id)",
        """CREATE TABLE results (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id INTEGER NOT NULL REFERENCES runs (id),
            image_key BLOB NOT NULL,
            status TEXT NOT NULL,
            category TEXT NOT NULL,
            rank INTEGER NOT NULL,
            score REAL,
            stage TEXT,
            reason TEXT,
            ref TEXT NOT NULL,
            content_sha256 TEXT NOT NULL,
            frame INTEGER NOT NULL,
            model_sha256 TEXT NOT NULL,
            settings_hash TEXT NOT NULL,
            pack_name TEXT NOT NULL,
            backend TEXT,
            decode_ms REAL NOT NULL,
            inference_ms REAL,
            findings TEXT NOT NULL,
            details TEXT NOT NULL,
            thumbnail BLOB,
            class_maps BLOB,
            is_resumed INTEGER NOT NULL,
            saved_s REAL NOT NULL,
            UNIQUE (run_id, image_key)
        )""",
        "CREATE INDEX results_by_content ON results (content_sha256, frame, model_sha256, settings_hash)",
        "CREATE INDEX results_by_rank ON results (run_id, rank, score)",
        """CREATE TABLE verdicts (
            result_id INTEGER PRIMARY KEY REFERENCES results (id),
            choice TEXT NOT NULL,
            note TEXT NOT NULL,
            given_s REAL NOT NULL
        )""",
    ),
    # A run is gone through in passes: what the last one did not see is absent. A verdict is on what was seen when it
    # was given (`result_hash`): it is shown while its row holds that result, and kept when the row holds another one.
    (
        "ALTER TABLE runs ADD COLUMN pass_number INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE results ADD COLUMN pass_number INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE results ADD COLUMN absent_s REAL",
        "ALTER TABLE results ADD COLUMN result_hash TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE verdicts RENAME TO old_verdicts",
        """CREATE TABLE verdicts (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            result_id INTEGER NOT NULL REFERENCES results (id),
            result_hash TEXT NOT NULL,
            choice TEXT NOT NULL,
            note TEXT NOT NULL,
            given_s REAL NOT NULL,
            content_sha256 TEXT NOT NULL,
            category TEXT NOT NULL,
            score REAL,
            UNIQUE (result_id, result_hash)
        )""",
        """INSERT INTO verdicts (result_id, result_hash, choice, note, given_s, content_sha256, category, score)
           SELECT result_id, result_hash, choice, note, given_s, content_sha256, category, score
           FROM old_verdicts JOIN results ON results.id = result_id""",
        "DROP TABLE old_verdicts",
        "DROP INDEX results_by_content",
        "CREATE INDEX results_by_content ON results (model_sha256, settings_hash, content_sha256, frame)",
    ),
    # The category has one spelling for machines.
    (
        "UPDATE results SET category = 'unsure' WHERE category = 'not_sure'",
        "UPDATE verdicts SET category = 'unsure' WHERE category = 'not_sure'",
    ),
    # The lung fields, where a pack found them, and what a person should know of a result.
    (
        "ALTER TABLE results ADD COLUMN lungs TEXT",
        "ALTER TABLE results ADD COLUMN lung_shares BLOB",
        "ALTER TABLE results ADD COLUMN notes TEXT NOT NULL DEFAULT '[]'",
    ),
    # The history: what is shown of an image whose file is gone, once for all its results, and counts of all runs.
    (
        """CREATE TABLE previews (
            id INTEGER PRIMARY KEY,
            content_sha256 TEXT NOT NULL,
            frame INTEGER NOT NULL,
            jpeg BLOB NOT NULL,
            UNIQUE (content_sha256, frame)
        )""",
        "DROP INDEX results_by_rank",
        "CREATE INDEX results_by_rank ON results (run_id, rank, score, absent_s, backend)",
    ),
    COMPACT,
    # The work list and its counts by class (see `work_rows`). Tables without a rowid are not salvaged: both are made
    # again of the results, as they are for runs of an older version. Short, so that the schema still has one page: a
    # file that lost one of several is lost as a whole.
    (
        "CREATE TABLE work_list (run_id INTEGER REFERENCES runs ON DELETE CASCADE, result_id INTEGER, rank INTEGER,"
        " score REAL, backend TEXT, patient BLOB, patient_id BLOB, study_date BLOB, file BLOB, view BLOB,"
        " inference_ms REAL, why TEXT, study INTEGER, PRIMARY KEY (run_id, result_id)) WITHOUT ROWID",
        "CREATE INDEX work_list_by_class ON work_list (run_id, rank, score DESC, result_id, backend)",
        "CREATE INDEX work_list_by_patient ON work_list (run_id, patient, rank, score DESC, result_id, backend)",
        "CREATE INDEX work_list_by_patient_id ON work_list (patient_id, result_id) WHERE patient_id != x''",
        "CREATE TABLE work_counts (run_id INTEGER PRIMARY KEY REFERENCES runs ON DELETE CASCADE, is_whole INTEGER,"
        " read_first INTEGER DEFAULT 0, abnormal INTEGER DEFAULT 0, unsure INTEGER DEFAULT 0,"
        " not_assessed INTEGER DEFAULT 0, normal INTEGER DEFAULT 0, refused INTEGER DEFAULT 0,"
        " failed INTEGER DEFAULT 0) WITHOUT ROWID",
    ),
    # Files that are no images are counted apart from refused images.
    (
        "ALTER TABLE work_counts ADD COLUMN not_an_image INTEGER DEFAULT 0",
        """UPDATE results INDEXED BY results_by_rank SET category = 'not_an_image', rank = 7
           WHERE run_id IN (SELECT id FROM runs) AND rank = 5 AND reason LIKE '["not_an_image"%'""",
        "UPDATE work_list SET rank = 7 WHERE why = 'not_an_image'",
        """UPDATE work_counts SET not_an_image =
           (SELECT COUNT(*) FROM work_list WHERE run_id = work_counts.run_id AND rank = 7)""",
        "UPDATE work_counts SET refused = refused - not_an_image",
        """UPDATE verdicts SET category = 'not_an_image'
           WHERE category = 'refused' AND EXISTS
           (SELECT 1 FROM results WHERE id = result_id AND results.category = 'not_an_image')""",
    ),
)

# The other file: small pictures, once for all results of the same bytes. It may be deleted; no result is lost with it.
PICTURES: Final[tuple[Migration, ...]] = (
    (
        """CREATE TABLE pictures (
            id INTEGER PRIMARY KEY,
            content_sha256 BLOB NOT NULL,
            frame INTEGER NOT NULL,
            thumbnail BLOB,
            thumbnail_columns INTEGER NOT NULL,
            preview BLOB,
            UNIQUE (content_sha256, frame)
        )""",
    ),
)


def is_older(path: Path) -> bool:
    """Whether the results at `path` may be of an older version. Reads four bytes and takes no time."""
    try:
        return stated_version(path) < len(MIGRATIONS)
    except OSError:  # whoever opens them says so
        return False


def stated_version(path: Path) -> int:
    """The version that a file states, 0 for an empty one. Raises OSError."""
    with path.open("rb") as stream:
        stream.seek(_VERSION_AT)
        return int.from_bytes(stream.read(4), "big")

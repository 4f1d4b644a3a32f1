"""Results of runs: one row for each image, and one result for each pack of the run, committed together.

Only the batch thread writes results (`ResultStore`). Every other thread reads through its own `ResultQuery`. A reader's
verdict has its own row, so that writing a verdict never blocks a result.

An interrupted run is resumed with a further pass. Images that the last complete pass did not see are no longer present.
Their rows are kept and marked, and are left out of lists, counts and exports.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import secrets
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import WORK_LIST_ORDER, Category, Outcome, ResultCount, without_preview
from fieldray.domain.run import (
    PackSpec,
    Run,
    RunSpec,
    RunState,
    StoredImage,
    StoredResult,
    SupersededVerdict,
    Verdict,
)
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import Reason, reason
from fieldray.store import bookkeeping
from fieldray.store.bookkeeping import ReusedResults
from fieldray.store.database import (
    StoreConnection,
    convert_sqlite_errors,
    mark_damaged_on_invalid_row,
    synchronous_writes,
    transaction,
)
from fieldray.store.locks import RunLocks, with_live_state
from fieldray.store.opening import open_database
from fieldray.store.pictures import Pictures, picture_row
from fieldray.store.rows import (
    RUNS_WITH_PACKS,
    image_columns,
    pack_spec_text,
    result_columns,
    result_count_of,
    result_hash,
    run_of,
    spec_text,
    stored_result_of,
    superseded_verdict_of,
    verdict_of,
    with_checked_types,
)
from fieldray.store.schema import image_key, image_key_text, reason_text

T = TypeVar("T")
# Columns of `images` that are read with a result.
_OF_IMAGE = "image_key, images.content_sha256, frame, header, absent_s, pass_number"
_OF_VERDICT: Final = "choice, note, given_s"
_AMONG: Final = "IN (SELECT value FROM json_each(?))"
SELECT_RESULTS = f"""SELECT answers.*, {_OF_IMAGE}, run_packs.spec, {_OF_VERDICT}, verdicts.id IS NOT NULL AS is_read
             FROM answers JOIN images ON images.id = answers.image_id
             JOIN run_packs ON run_packs.run_id = answers.run_id AND run_packs.position = answers.position
             LEFT JOIN verdicts ON verdicts.answer_id = answers.id
                                AND verdicts.result_hash = answers.result_hash """
# Outcomes of a run's packs for an image, in the order of the packs, and the positions of those packs whose outcome
# comes from an earlier run.
OutcomesAndReusedPositions = tuple[Sequence[Outcome], Collection[int]]
_BATCH_ROWS = 256
# Time to wait for another program that holds the file (a backup, a virus scan). The time is long, because the result
# is already computed, and a run whose result cannot be saved ends.
WRITE_WAIT_S: Final = 120.0
_NO_ROW = 2**63  # SQLite has no number as large as this


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFileStamps:
    """The stamps stored for one image of a run. A stamp shows whether a file is unchanged.

    image_key        key of the image (`schema.image_key`)
    row_id           row of the image
    stamped_results  for each position of a pack: row of the result, and stamp of the file when the result was made; the
                     stamp is None if the result must be computed again
    """

    image_key: bytes
    row_id: int
    stamped_results: Mapping[int, tuple[int, bytes | None]]


class ResultQuery:
    """Reads results, from one thread only. All methods raise StorageProblem if the database cannot be read."""

    def __init__(self, path: Path, *, connect: Callable[[Path], StoreConnection] = open_database) -> None:
        self.path = path
        self._connect = connect
        self._opened: StoreConnection | None = None
        self._pictures = Pictures(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the database."""
        self._pictures.close()
        if self._opened:
            self._opened.close()

    @property
    def _connection(self) -> StoreConnection:
        """The connection to the database, which is opened on first use. Raises StorageProblem."""
        if self._opened is None:
            self._opened = self._connect(self.path)
            self._opened.row_factory = sqlite3.Row
        return self._opened

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Make all reads within a `with` block see the database as it is at one moment, without later writes.

        A nested block sees the state of the outer block.
        """
        if self._connection.in_transaction:
            yield
            return
        self._all("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._all("ROLLBACK")

    def runs(self) -> tuple[Run, ...]:
        """Return all runs in the database, the newest run first."""
        return self._convert(self._run_of, self._all(f"SELECT * FROM {RUNS_WITH_PACKS} ORDER BY id DESC"))

    def run(self, run_id: int) -> Run:
        """Return the run with this id. Raises UsageProblem (history_no_run) if the database has no such run."""
        rows = self._all(f"SELECT * FROM {RUNS_WITH_PACKS} WHERE id = ?", run_id) if abs(run_id) < _NO_ROW else []
        if not rows:
            raise UsageProblem(reason("history_no_run", run=run_id))
        return self._convert(self._run_of, rows)[0]

    def _run_of(self, row: sqlite3.Row) -> Run:
        return with_live_state(self.path, run_of(row))

    def results(self, run_id: int, *, pack_position: int | None = None) -> Iterator[StoredResult]:
        """Yield a run's results in the order of saving. `pack_position` selects one pack; None: all packs."""
        listed = "SELECT id FROM images WHERE run_id = ? AND absent_s IS NULL AND id > ? ORDER BY id LIMIT ?"
        query, after = f"{SELECT_RESULTS} WHERE image_id IN ({listed}) ORDER BY image_id, answers.position", 0
        while found := self._all(query, run_id, after, _BATCH_ROWS):
            yield from self._results([row for row in found if pack_position in (None, row["position"])])
            after = found[-1]["image_id"]

    def result(self, result_id: int) -> StoredResult:
        """Return the result with this id. Raises KeyError if there is no such result."""
        found = self._results(self._all(f"{SELECT_RESULTS} WHERE answers.id = ?", result_id))
        if not found:
            raise KeyError(result_id)
        return found[0]

    def image(self, row_id: int) -> StoredImage:
        """Return the image with this row id. Raises KeyError if there is no such image."""
        if not (found := self.images([row_id])):
            raise KeyError(row_id)
        return found[0]

    def images(self, row_ids: Sequence[int], *, checks_lung_mask: bool = True) -> tuple[StoredImage, ...]:
        """Return the images with these row ids, in this order, each with its results. Missing images are left out.

        checks_lung_mask  whether a damaged lung mask is detected now, and not only on first access
        """
        query = (
            f"{SELECT_RESULTS} WHERE image_id IN (SELECT value FROM json_each(?)) ORDER BY image_id, answers.position"
        )
        of_image = defaultdict[int, list[StoredResult]](list)
        for answer in self._results(self._all(query, json.dumps(row_ids)), looks_inside=checks_lung_mask):
            of_image[answer.row_id].append(answer)
        return tuple(_image(of_image[row_id]) for row_id in row_ids if row_id in of_image)

    def preview(self, content_sha256: str, *, frame: int) -> bytes | None:
        """Return the preview (JPEG) of an image; None if no valid preview is stored."""
        return self._pictures.preview(bytes.fromhex(content_sha256), frame)

    def count_results(self, row_ids: Sequence[int]) -> tuple[tuple[ResultCount, ...], ...]:
        """Count, for each pack by position, the results of these images by category, reason code and note codes."""
        return self._kinds(self._all(bookkeeping.COUNT_RESULTS_OF_IMAGES, rows=json.dumps(row_ids)))

    def count_results_of_run(self, run_id: int) -> tuple[tuple[ResultCount, ...], ...]:
        """Count, for each pack by position, the results of a run by category, reason code and note codes.

        Each image that the run's last pass saw is counted once.
        """
        return self._kinds(self._all(bookkeeping.COUNT_RESULTS_OF_LAST_RUN_PASS, run_id=run_id))

    def _kinds(self, rows: Sequence[sqlite3.Row]) -> tuple[tuple[ResultCount, ...], ...]:
        packs = range(1 + max((row["position"] for row in rows), default=-1))
        return tuple(self._convert(result_count_of, [row for row in rows if row["position"] == one]) for one in packs)

    def number_of_images(self, run_id: int) -> int:
        """Return the number of a run's images that have a result and that the run's last pass found."""
        query = """SELECT COUNT(*) AS number FROM images WHERE run_id = ? AND absent_s IS NULL
                   AND EXISTS (SELECT 1 FROM answers WHERE image_id = images.id)"""
        return int(self._all(query, run_id)[0]["number"])

    def category_counts(self, run_id: int, *, pack_position: int = 0) -> dict[Category, int]:
        """Return the number of present images of a run by category, as classified by the pack at `pack_position`."""
        query = """SELECT category, COUNT(*) AS number FROM images JOIN answers ON answers.image_id = images.id
                   WHERE images.run_id = ? AND position = ? AND absent_s IS NULL GROUP BY 1"""
        return {row["category"]: row["number"] for row in self._all(query, run_id, pack_position)}

    def absent_images(self, run_id: int) -> tuple[str, ...]:
        """Return the names of images that an earlier pass of a run found, but the last complete pass did not find."""
        query = "SELECT image_key FROM images WHERE run_id = ? AND absent_s IS NOT NULL ORDER BY id"
        return self._convert(lambda row: image_key_text(row["image_key"]), self._all(query, run_id))

    def verdict(self, result_id: int, outcome: Outcome) -> Verdict | None:
        """Return the verdict on this outcome, even if the result has a newer outcome now; None without a verdict."""
        query = f"SELECT {_OF_VERDICT} FROM verdicts WHERE answer_id = ? AND result_hash = ? AND choice IS NOT NULL"
        rows = self._all(query, result_id, result_hash(outcome))
        return self._convert(verdict_of, rows)[0] if rows else None

    def superseded_verdicts(self, run_id: int) -> tuple[SupersededVerdict, ...]:
        """Return verdicts on earlier content or earlier results of a run's images, from any run, the oldest first."""
        return self._convert(superseded_verdict_of, self._all(bookkeeping.SELECT_SUPERSEDED_VERDICTS, run_id=run_id))

    def last_image_row_id(self) -> int:
        """Return the highest row id of an image assigned so far; 0 in an empty database."""
        return int(self._all("SELECT COALESCE(MAX(id), 0) AS last FROM images")[0]["last"])

    def last_result_id(self) -> int:
        """Return the highest row id of a result assigned so far; 0 in an empty database."""
        return int(self._all("SELECT COALESCE(MAX(id), 0) AS last FROM answers")[0]["last"])

    def has_results(self, pack: PackSpec, *, settings_hashes: Sequence[str] = ()) -> bool:
        """Return whether a pack's model has results with one of these settings hashes; by default, that of `pack`."""
        query = f"""SELECT 1 FROM run_packs WHERE model_sha256 = ? AND settings_hash {_AMONG} AND EXISTS (
                       SELECT 1 FROM answers
                       WHERE (answers.run_id, answers.position) = (run_packs.run_id, run_packs.position)) LIMIT 1"""
        return bool(self._all(query, pack.model_sha256, json.dumps([*settings_hashes] or [pack.settings_hash])))

    def reusable_outcome(
        self,
        pack: PackSpec,
        *,
        content_sha256: str,
        frame: int,
        up_to_result_id: int,
        settings_hashes: Sequence[str] = (),
    ) -> Outcome | None:
        """Return the newest stored outcome for a file content, a frame and the model of `pack`; or None.

        up_to_result_id  highest row id of a result that is considered
        settings_hashes  settings hashes that count as equal; if empty, only the hash of `pack`
        """
        query = f"""{SELECT_RESULTS} WHERE images.content_sha256 = ? AND frame = ? AND model_sha256 = ?
                    AND settings_hash {_AMONG} AND NOT {bookkeeping.NEVER_REUSED_CONDITION} AND answers.id <= ?
                    ORDER BY answers.id DESC LIMIT 1"""
        equal = json.dumps([*settings_hashes] or [pack.settings_hash])
        rows = self._all(query, bytes.fromhex(content_sha256), frame, pack.model_sha256, equal, up_to_result_id)
        return self._results(rows)[0].outcome if rows else None

    def image_file_stamps(self, run_id: int, first_key: bytes, *, limit: int) -> tuple[ImageFileStamps, ...]:
        """Return the file stamps of up to `limit` images of a run, by image key, from the key `first_key` on."""
        rows = self._convert(with_checked_types, self._all(bookkeeping.SELECT_FILE_STAMPS, run_id, first_key, limit))
        images = [list(found) for _, found in itertools.groupby(rows, itemgetter("id"))]
        return tuple(
            ImageFileStamps(
                image_key=answers[0]["image_key"],
                row_id=answers[0]["id"],
                stamped_results={row["position"]: (row["answer_id"], row["stamp"]) for row in answers},
            )
            for answers in images
        )

    def _all(self, query: str, *values: object, **named: object) -> list[sqlite3.Row]:
        with convert_sqlite_errors(self.path):
            return self._connection.execute(query, named or values).fetchall()

    def _numbers(self, query: str, *values: object) -> NDArray[np.int64]:
        """Return a column of whole numbers (n,), in a twentieth of the memory of a list of Python numbers."""
        with convert_sqlite_errors(self.path):
            return np.fromiter(map(itemgetter(0), self._connection.execute(query, values)), np.int64)

    def _results(self, rows: Sequence[sqlite3.Row], *, looks_inside: bool = True) -> tuple[StoredResult, ...]:
        """Convert rows of `SELECT_RESULTS` to results with their thumbnails. `looks_inside` as in `images`."""
        kept = self._pictures.thumbnails((row["content_sha256"], row["frame"]) for row in rows)

        def made(row: sqlite3.Row) -> StoredResult:
            return stored_result_of(row, kept.get((row["content_sha256"], row["frame"])), checks_lung_mask=looks_inside)

        return self._convert(made, rows)

    def _convert(self, make: Callable[[sqlite3.Row], T], rows: Sequence[sqlite3.Row]) -> tuple[T, ...]:
        """Convert each row with `make`. An invalid row counts as damage of the file. Raises StorageProblem."""
        with mark_damaged_on_invalid_row(self.path):
            return tuple(map(make, rows))


class ResultStore(ResultQuery):
    """Reads and writes the results of runs. A program opens one store at a time. Methods raise StorageProblem."""

    def __init__(self, path: Path, *, connect: Callable[[Path], StoreConnection] = open_database) -> None:
        super().__init__(path, connect=connect)
        self._connection.execute(f"PRAGMA busy_timeout = {round(1000 * WRITE_WAIT_S)}")
        self._connection.create_function("is_another", 2, bookkeeping.is_different_existing_file)
        self._locks = RunLocks(path)
        self._verdicts = bookkeeping.VerdictCarryOver(self._all)

    @property
    def process_holding_run(self) -> str | None:
        """A description of the other process that held a run, so that `open_run` could not resume the run; or None."""
        return self._locks.process_holding_run

    def close(self) -> None:
        """Close the connection to the database, and let other programs resume the unfinished runs of this program."""
        super().close()
        self._locks.release_all()

    def open_run(self, spec: RunSpec, *, as_new_run: bool = False) -> int:
        """Begin a run, or resume the newest unfinished run of an equal request. Returns the id of the run.

        If another program works on that run, a new run with all images begins, and uses results of the other run. So
        neither program can damage the other's list, and a script does not fail because a window is open.

        as_new_run  whether a new run begins in any case
        """
        key = hashlib.sha256(json.dumps(spec.resume_key).encode()).hexdigest()
        with self._transaction():
            newest = self._all("SELECT id, state FROM runs WHERE request_key = ? ORDER BY id DESC LIMIT 1", key)
            is_open = newest and newest[0]["state"] != "finished" and not as_new_run
            if is_open and self._locks.hold(run_id := int(newest[0]["id"])):
                self._all("UPDATE runs SET pass_number = pass_number + 1 WHERE id = ?", run_id)
                self.set_run_state(run_id, "running")
                return run_id
            query = """INSERT INTO runs (request_key, spec, state, started_s)
                       VALUES (?, ?, 'running', ?) RETURNING id"""
            run_id = int(self._all(query, key, spec_text(spec), time.time())[0]["id"])
            query = """INSERT INTO run_packs (run_id, position, spec, model_sha256, settings_hash)
                       VALUES (?, ?, ?, ?, ?)"""
            for position, pack in enumerate(spec.packs):
                self._all(query, run_id, position, pack_spec_text(pack), pack.model_sha256, pack.settings_hash)
            self._locks.hold(run_id)
            return run_id

    def finish_run(self, run_id: int) -> int:
        """Finish a run that has seen all images. Returns the number of images that are no longer present.

        Images in an unreadable folder or zip file keep their state. If a path of the run now has no image, its drive is
        probably disconnected. Then its images keep their state, too, and the run can be resumed. If an image's file was
        moved during the run, the image is listed under the new path only, with its verdict.
        """
        with self._transaction():
            rows = self._all(bookkeeping.SELECT_SEEN_STATE_OF_IMAGES, run_id)
            empty = bookkeeping.paths_that_lost_all_images(rows, self.run(run_id).spec.paths)
            moved = bookkeeping.moved_image_ids(self._all(bookkeeping.SELECT_IMAGES_OF_EQUAL_CONTENT, run_id))
            gone = bookkeeping.absent_image_ids(rows, empty) | moved
            bookkeeping.mark_images_absent(self._all, run_id, gone)
            bookkeeping.copy_verdicts_of_swapped_files(self._all, run_id)
            self.set_run_state(run_id, "cancelled" if empty else "finished")
        if not empty:
            self._locks.release_finished_run(run_id)
        return len(gone)

    def mark_moved_images_absent(self, run_id: int, row_id: int) -> set[int]:
        """Mark images as no longer present if their file was moved to the path of another image. Returns their row ids.

        The image at the new path gets their verdict. If two files exchanged names, each verdict moves with its file.

        row_id  row id of the image at the new path
        """
        with self._transaction():
            moved = bookkeeping.image_ids_moved_to(self._all, row_id)
            bookkeeping.mark_images_absent(self._all, run_id, moved)
            bookkeeping.copy_verdicts_of_swapped_files(self._all, run_id, row_id)
        return moved

    def set_run_state(self, run_id: int, state: RunState, *, reason: Reason | None = None) -> None:
        """Store a run's state. For any state but "running" and "paused", the present time is stored as its end."""
        ended_s = None if state in ("running", "paused") else time.time()
        why = reason_text(reason) if reason else None
        self._all("UPDATE runs SET state = ?, reason = ?, ended_s = ? WHERE id = ?", state, why, ended_s, run_id)

    def save_image(
        self,
        run_id: int,
        *answers: Outcome,
        spec: RunSpec,
        reused_positions: Collection[int] = (),
        keeps_preview: bool = True,
    ) -> StoredImage:
        """Commit the outcomes of a run's packs for one image, all or none. Returns the stored image.

        `answers` are in the order of the packs. An image that the run already has is overwritten in its row.

        reused_positions  positions of the packs whose outcome comes from an earlier run
        keeps_preview     whether preview and thumbnail of the image are stored, too
        """
        (image,) = self.save_all(run_id, [(answers, reused_positions)], spec=spec, keeps_preview=keeps_preview)
        return image

    def replace_result(self, result_id: int, outcome: Outcome, *, run: Run, keeps_preview: bool = True) -> StoredImage:
        """Replace the outcome of one result in a run that no other program works on. Returns the stored image.

        A verdict on the replaced outcome is kept in the database.

        Raises UsageProblem (again_busy) if another program works on the run. Raises StorageProblem (store_gone) if the
        result belongs to another image or another run now.
        """
        if run.state != "finished" and not self._locks.hold(run.run_id):
            raise UsageProblem(reason("again_busy"))
        query = """SELECT image_key, position FROM answers JOIN images ON images.id = image_id
                   WHERE answers.id = ? AND images.run_id = ?"""
        rows = self._all(query, result_id, run.run_id)
        if [row["image_key"] for row in rows] != [image_key(outcome.ref)] or self.run(run.run_id).spec != run.spec:
            raise StorageProblem(reason("store_gone", path=self.path))
        self._keep_pictures([outcome] if keeps_preview else ())
        with self._transaction():
            return self._save(run.run_id, {rows[0]["position"]: outcome}, spec=run.spec)

    def save_all(
        self,
        run_id: int,
        images: Sequence[OutcomesAndReusedPositions],
        *,
        spec: RunSpec,
        keeps_preview: bool = True,
    ) -> tuple[StoredImage, ...]:
        """Commit the outcomes for several images, all or none, each as `save_image` does. Returns the stored images."""
        self._keep_pictures([answer for answers, _ in images if keeps_preview for answer in answers])
        with self._transaction():
            return tuple(
                self._save(run_id, dict(enumerate(answers)), spec=spec, resumed=resumed) for answers, resumed in images
            )

    def _keep_pictures(self, outcomes: Sequence[Outcome]) -> None:
        """Store the pictures of outcomes. Call this before storing results: a stored result always has pictures."""
        self._pictures.add([row for row in map(picture_row, outcomes) if row])

    def file_stamp_key(self) -> bytes:
        """Return the secret key from which this database's file stamps are made; the key is created on first use."""
        self._all(bookkeeping.INSERT_FILE_STAMP_KEY, secrets.token_bytes(bookkeeping.FILE_STAMP_KEY_BYTES))
        rows = self._all(bookkeeping.SELECT_FILE_STAMP_KEY)
        (key,) = self._convert(lambda row: bookkeeping.valid_file_stamp_key(row["value"]), rows)
        return key

    def reuse_results(self, run_id: int, reused: ReusedResults) -> tuple[int, ...]:
        """Copy results of earlier runs into this run in one transaction. Returns the row ids of the images in this run.

        Raises StorageProblem (results_lost) if a result no longer exists.
        """
        with self._transaction():
            answers = bookkeeping.reuse_results(self._connection, run_id, reused)
            if len(answers) < (wanted := sum(map(len, reused.result_row_ids))):
                raise StorageProblem(reason("results_lost", path=self.path, found=len(answers), saved=wanted))
            for row in answers:
                self._verdicts.copy_verdict(run_id, row["id"], row["result_hash"], row["image_key"])
            self._all(bookkeeping.COPY_WORK_LIST_ROWS, run_id, run_id, json.dumps(reused.image_row_ids))
            row_ids = tuple(dict.fromkeys(row["image_id"] for row in answers))
            unlisted = [row["id"] for row in self._all(bookkeeping.SELECT_UNLISTED_IMAGES, json.dumps(row_ids), run_id)]
            for image in self.images(unlisted, checks_lung_mask=False):
                self._list(run_id, image)
        return row_ids

    def _save(
        self, run_id: int, answers: Mapping[int, Outcome], *, spec: RunSpec, resumed: Collection[int] = ()
    ) -> StoredImage:
        """Write the outcomes of one image. Returns the image with all its stored results.

        answers  outcome by the position of the pack
        """
        outcomes, now_s = list(answers.values()), time.time()
        image = {
            "run_id": run_id,
            **image_columns(outcomes[0]),
            "rank": min(WORK_LIST_ORDER.index(outcome.category) for outcome in outcomes),
            "saved_s": now_s,
            "absent_s": None,
            "stamp": outcomes[0].facts.file_stamp or None,
            "pass_number": run_id,  # replaced by the pass of this run, see `_put_statement`
        }
        row_id = self._put("images", image, by="run_id, image_key")
        stored = []
        for position, outcome in answers.items():
            columns = {
                "image_id": row_id,
                "run_id": run_id,
                "position": position,
                **result_columns(outcome, points=spec.packs[position].operating_points),
                "is_resumed": int(position in resumed),
                "saved_s": now_s,
            }
            result_id = self._put("answers", columns, by="image_id, position")
            answer = StoredResult(
                result_id=result_id,
                row_id=row_id,
                run_id=run_id,
                pack_position=position,
                outcome=without_preview(outcome),
                is_reused=position in resumed,
            )
            if self._verdicts.copy_verdict(run_id, result_id, columns["result_hash"], image["image_key"]):
                answer = replace(answer, **self._judgement(result_id, columns["result_hash"]))
            stored.append(answer)
        saved = _image(stored)
        if len(stored) < len(spec.packs):  # the rank also depends on results of the other packs
            saved = self.image(row_id)
            self._all(bookkeeping.UPDATE_URGENCY_RANK, rows=json.dumps([row_id]))
        self._list(run_id, saved)
        return saved

    def _put(self, table: str, columns: Mapping[str, Any], *, by: str) -> int:
        """Write a row, or replace the row with equal values in the columns `by`. Returns the row id."""
        return int(self._all(_put_statement(table, tuple(columns), by), *columns.values())[0]["id"])

    def _judgement(self, result_id: int, judged: bytes) -> dict[str, Any]:
        """Return the reader's verdict on a result, and whether the result was read, as fields of `StoredResult`."""
        query = f"SELECT {_OF_VERDICT} FROM verdicts WHERE answer_id = ? AND result_hash = ?"
        rows = self._all(query, result_id, judged)
        (verdict,) = self._convert(lambda row: verdict_of(row) if row["choice"] else None, rows) or (None,)
        return {"is_read": bool(rows), "verdict": verdict}

    def _list(self, run_id: int, image: StoredImage) -> None:
        """Write an image's row in the work list, or replace the existing row."""
        row = bookkeeping.work_list_row_values(run_id, image.row_id, image.most_urgent_result.outcome)
        self._all(bookkeeping.INSERT_WORK_LIST_ROW, *row)

    def set_verdict(
        self,
        result_id: int,
        verdict: Verdict | None,
        *,
        judged: Outcome,
        replaceable: Collection[Verdict | None] = (None,),
    ) -> Verdict | None:
        """Store the reader's verdict on a result, or withdraw it (None). Returns the verdict that is then stored.

        As soon as this method returns, the verdict survives a power cut.

        judged       the outcome that the person saw; a verdict on an earlier outcome is stored, but not shown
        replaceable  verdicts that may be replaced (None: no verdict yet). Any other stored verdict is newer and is kept

        Raises StorageProblem (verdict_misplaced) if the result belongs to another image after a restored backup.
        """
        with convert_sqlite_errors(self.path), synchronous_writes(self._connection), self._judging(result_id, judged):
            found = self.verdict(result_id, judged)
            if found != verdict and found not in replaceable:
                return found
            bookkeeping.store_verdict(self._all, result_id, verdict, judged=judged, stored_verdict=found)
            return self.verdict(result_id, judged)

    def set_read_state(self, result_id: int, *, judged: Outcome, is_read: bool) -> None:
        """Record whether a person has read an outcome of a result. An outcome with a verdict always counts as read.

        Raises StorageProblem (verdict_misplaced) if the result belongs to another image after a restored backup.
        """
        with self._judging(result_id, judged):
            bookkeeping.store_read_state(self._all, result_id, judged=judged, is_read=is_read)

    @contextlib.contextmanager
    def _judging(self, result_id: int, judged: Outcome) -> Iterator[None]:
        """Run a `with` block in a transaction that changes the verdict on a result.

        Raises StorageProblem (verdict_misplaced) if the result belongs to another image than `judged`.
        """
        self._verdicts.clear_judged_hashes()
        with self._transaction():
            query = "SELECT image_key FROM answers JOIN images ON images.id = image_id WHERE answers.id = ?"
            rows = self._all(query, result_id)
            if not rows or rows[0]["image_key"] != image_key(judged.ref):
                raise StorageProblem(reason("verdict_misplaced", path=self.path))
            yield

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with convert_sqlite_errors(self.path), transaction(self._connection):
            yield


@functools.cache
def _put_statement(table: str, names: tuple[str, ...], by: str) -> str:
    """Return the SQL that writes a row with these columns, or replaces the row with equal values in `by`."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in by.split(", "))
    values = ("(SELECT pass_number FROM runs WHERE id = ?)" if name == "pass_number" else "?" for name in names)
    return f"""INSERT INTO {table} ({", ".join(names)}) VALUES ({", ".join(values)})
               ON CONFLICT ({by}) DO UPDATE SET {changes} RETURNING id"""


def _image(answers: Sequence[StoredResult]) -> StoredImage:
    return StoredImage(row_id=answers[0].row_id, run_id=answers[0].run_id, results=tuple(answers))

"""Queries of past runs with their counts, of a run's results without large columns, and of a run's work list.

A list of a million results is sorted, filtered and searched without reading a result, because each present image has a
short row (see `bookkeeping`). If the order is by class, by patient or by arrival, rows are read in the order of an
index. By any other column, SQLite sorts the rows. In the order by class, an image of an earlier day than its patient's
newest image is then moved behind all others (`domain.patient`). In a list by patient, all images of a patient follow
the patient's first image.
"""

from __future__ import annotations

import functools
import json
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import WORK_LIST_ORDER, Category
from fieldray.domain.history import (
    NEW_PATIENT,
    NEW_STUDY,
    SAME_STUDY,
    ImageTally,
    ResultBrief,
    ResultFilter,
    ResultOrder,
    RunSummary,
    WorkListColumnName,
    WorkListRows,
)
from fieldray.domain.image import ImageRef
from fieldray.domain.lungs import QUALITY_CODES
from fieldray.domain.patient import day_number, earlier_image_mask, positions_with_earlier_last
from fieldray.domain.run import (
    CONTRADICTING_VERDICT_CHOICES,
    DriftSample,
    PackOfRun,
    Run,
    StoredImage,
    VerdictChoice,
    origin_folder,
)
from fieldray.store.bookkeeping import sort_key
from fieldray.store.database import StoreConnection, convert_sqlite_errors, mark_damaged_on_invalid_row
from fieldray.store.results import ResultQuery
from fieldray.store.rows import category_of_rank, drift_sample_of, image_tally_of, result_brief_of, with_checked_types
from fieldray.store.schema import image_key, reasons_of

# The order by class, the most urgent first. Rows with equal values in the column to sort by have this order, too.
_BY_CLASS: Final = "rank, score DESC, image_id"
# For each order of the work list: the index that SQLite reads, and the order of rows in that index.
_READ: Final[dict[ResultOrder, tuple[str, str]]] = {
    ResultOrder(): ("INDEXED BY work_list_by_class", _BY_CLASS),
    ResultOrder("class", True): ("INDEXED BY work_list_by_class", "rank DESC, score, image_id DESC"),
    ResultOrder("image"): ("NOT INDEXED", "image_id"),
    ResultOrder("image", True): ("NOT INDEXED", "image_id DESC"),
    ResultOrder("patient"): ("INDEXED BY work_list_by_patient", f"patient, {_BY_CLASS}"),
    ResultOrder("patient", True): ("INDEXED BY work_list_by_patient", f"patient DESC, {_BY_CLASS}"),
}
# Columns by which SQLite sorts in memory: a million rows take two to three seconds and 50 MB.
_SORTED: Final[dict[WorkListColumnName, str]] = {
    "date": "study_date",
    "view": "view",
    "score": "score",
    "backend": "backend",
    "ms": "inference_ms",
    "status": "why",
}
_SEARCHED: Final = "CAST(patient || ' ' || patient_id || ' ' || study_date || ' ' || file AS BLOB)"
_HAS_ACCENTS: Final = f"CAST({_SEARCHED} AS TEXT) GLOB '*[^ -~]*'"
_UNDIVIDED: Final = str.maketrans(
    {"ґ": "г", "ł": "l", "ø": "o", "đ": "d", "ı": "i"} | dict.fromkeys("'`\u2018\u2019\u02bc\u02b9")
)
_MAX_WORDS: Final = 8
_YEAR_FIRST: Final = re.compile(r"([0-9]{4})[-./]([0-9]{2})(?:[-./]([0-9]{2}))?")
_DAY_FIRST: Final = re.compile(r"([0-9]{1,2})[./]([0-9]{1,2})[./]([0-9]{4})")
_OWNED: Final = np.dtype([("id", np.int64), ("person", np.int64), ("study", np.int64), ("day", np.int64)])
_COUNTED: Final = "SELECT rank, COUNT(*) FROM work_list WHERE run_id = ? GROUP BY rank"
SELECT_PATIENTS_AND_STUDIES: Final = (
    "SELECT image_id, person, study, study_date FROM work_list NOT INDEXED WHERE run_id = ? {only} ORDER BY image_id"
)
_ONLY_THESE: Final = "AND person IN (SELECT person FROM work_list WHERE run_id = ? AND image_id IN ({}))"
# CROSS JOIN makes SQLite begin with the verdicts, which are few.
_JUDGED: Final = """
    SELECT image_id FROM verdicts CROSS JOIN answers
    ON answers.id = verdicts.answer_id AND answers.result_hash = verdicts.result_hash WHERE answers.run_id = :run_id
"""
_WITH_VERDICT: Final = "AND choice IS NOT NULL"
_CONTRADICTED: Final = "AND choice IN ({})".format(", ".join(f"'{choice}'" for choice in CONTRADICTING_VERDICT_CHOICES))
_STUDY_ROWS: Final = (16, 256, 4096)  # rows read at a time; the next study is most often near
_MAX_IMAGES_OF_PATIENT: Final = 500
_OF_A_PATIENT: Final = """
    SELECT image_id FROM work_list INDEXED BY work_list_by_patient_id
    WHERE patient_id = :key AND patient_id != x'' AND (rank != :failed OR run_id IS :run_id)
    ORDER BY run_id IS NOT :run_id, image_id DESC LIMIT :most
"""


# ---- queries of runs

_COUNTS: Final = "SELECT run_id, rank, COUNT(*) AS number FROM work_list GROUP BY run_id, rank"
_BACKENDS: Final = "SELECT run_id, backend, COUNT(*) AS number FROM answers GROUP BY run_id, backend"
_BACKENDS_ABSENT: Final = """
    SELECT answers.run_id, backend, COUNT(*) AS number FROM images JOIN answers ON answers.image_id = images.id
    WHERE absent_s IS NOT NULL GROUP BY 1, 2
"""
_ABSENT: Final = "SELECT run_id, COUNT(*) AS number FROM images WHERE absent_s IS NOT NULL GROUP BY run_id"
# CROSS JOIN makes SQLite begin with the verdicts, which are few, instead of reading all answers.
_CHOICES: Final = """
    SELECT images.run_id, choice, COUNT(*) AS number
    FROM verdicts CROSS JOIN answers ON answers.id = answer_id AND answers.result_hash = verdicts.result_hash
    JOIN images ON images.id = image_id
    WHERE absent_s IS NULL AND choice IS NOT NULL GROUP BY images.run_id, choice
"""
# These queries use an index of all images, and an index of the few answers with notes on image quality.
_DAY: Final = "date({}saved_s, 'unixepoch', 'localtime') AS day"
_BY_DAY: Final = f"""
    SELECT {_DAY.format("")}, COUNT(*) AS number FROM images
    WHERE absent_s IS NULL AND saved_s >= ? AND rank != ? GROUP BY 1 ORDER BY 1 DESC
"""
_NOTES_BY_DAY: Final = f"""
    SELECT day, notes, COUNT(*) AS number
    FROM (SELECT {_DAY.format("answers.")}, notes, MIN(position)
          FROM answers JOIN images ON images.id = image_id
          WHERE answers.saved_s >= ? AND absent_s IS NULL AND instr(notes, '"lungs_') > 0 GROUP BY image_id)
    GROUP BY 1, 2
"""
_BRIEFS: Final = """
    SELECT answers.id, image_id, answers.run_id, answers.position, image_key, images.content_sha256, frame,
        answers.category, findings, backend, choice, reason, notes, spec
    FROM answers JOIN images ON images.id = image_id
    JOIN run_packs ON run_packs.run_id = answers.run_id AND run_packs.position = answers.position
    LEFT JOIN verdicts ON verdicts.answer_id = answers.id AND verdicts.result_hash = answers.result_hash
    WHERE image_id IN (SELECT value FROM json_each(?)) ORDER BY image_id, answers.position
"""

_IN_ORDER: Final = f"SELECT image_id FROM work_list INDEXED BY work_list_by_class WHERE run_id = ? ORDER BY {_BY_CLASS}"
_POSITIONS_PER_QUERY: Final = 256

# Identifies an image across runs: by the hash of its bytes, or by its path if the bytes were not read.
_IDENTITY = "CASE content_sha256 WHEN x'' THEN image_key ELSE CAST(hex(content_sha256) || '#' || frame AS BLOB) END"
_SAMPLES = """SELECT category, findings, grey, lungs FROM answers JOIN images ON images.id = image_id
            WHERE absent_s IS NULL AND category NOT IN ('failed', 'not_an_image') """


_MAX_SITES: Final = 100
_SEPARATOR: Final = os.fsencode(os.sep)
_AFTER_SEPARATOR: Final = bytes([_SEPARATOR[0] + 1])  # the keys of a folder's content are below: folder + this byte


# Counts of each model's newest results, by operating points. An image counts if the model's first result for the image
# falls in a period. A failed image is not counted if its file is gone, or was later screened without failure.
_OF_PACK: Final = "(run_packs.run_id, run_packs.position) = (answers.run_id, answers.position)"
_TALLIES: Final = f"""
    SELECT MAX(spec) AS spec, answers.category, answers.reason, choice, COUNT(*) AS number
    FROM (SELECT MAX(answers.id) AS newest FROM answers JOIN images ON images.id = image_id JOIN run_packs ON {_OF_PACK}
          WHERE ? = x'' OR image_key = ? OR (image_key >= ? AND image_key < ?)
          GROUP BY model_sha256, {_IDENTITY} HAVING MIN(answers.saved_s) >= ? AND MIN(answers.saved_s) < ?)
    JOIN answers ON answers.id = newest JOIN images ON images.id = image_id JOIN run_packs ON {_OF_PACK}
    LEFT JOIN verdicts ON verdicts.answer_id = answers.id AND verdicts.result_hash = answers.result_hash
    WHERE answers.category != 'failed' OR images.absent_s IS NULL AND NOT EXISTS (
        SELECT 1 FROM images AS place JOIN answers AS other ON other.image_id = place.id
        JOIN run_packs AS others ON (others.run_id, others.position) = (other.run_id, other.position)
        WHERE others.model_sha256 = run_packs.model_sha256 AND place.image_key = images.image_key
        AND other.category != 'failed' AND other.saved_s >= answers.saved_s)
    GROUP BY model_sha256, json_extract(spec, '$.operating_points'), answers.category, answers.reason, choice
    ORDER BY number DESC
"""


class HistoryQuery(ResultQuery):
    """Reads past runs and their work lists, from one thread only. Only `interrupt` may be called from another thread.

    Methods raise StorageProblem if the database cannot be read.
    """

    @property
    def _connection(self) -> StoreConnection:
        is_new = self._opened is None
        connection = super()._connection
        if is_new:
            connection.create_function("searched", 1, _searched, deterministic=True)
        return connection

    def interrupt(self) -> None:
        """Make the query that is running raise sqlite3.OperationalError. May be called from any thread."""
        if self._opened:
            self._opened.interrupt()

    def list_rows(
        self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None = None
    ) -> WorkListRows:
        """Return the rows of a run that match a filter, in the requested order, with the counts of the whole run.

        In the order by class, an image of an earlier day than its patient's newest image comes after all others.

        limit  maximum number of rows; None for all. In a list by patient, rows are grouped by patient after the limit
               was applied
        """
        with self.snapshot(), convert_sqlite_errors(self.path):
            counted = dict(self._tuples(_COUNTED, (run_id,)))
            row_ids = self._ordered(run_id, wanted, order, limit=limit)
            owned, is_earlier = self._owned(run_id, row_ids, is_all=limit is None)
        if order.column == "class":
            positions = positions_with_earlier_last(is_earlier)
            owned, is_earlier = owned[positions], is_earlier[positions]
        positions, begins = np.arange(len(owned)), np.empty(0, np.uint8)
        if order.is_grouped_by_patient:
            positions, begins = _by_patient(owned)
        counts = {category: counted.get(rank, 0) for rank, category in enumerate(WORK_LIST_ORDER)}
        return WorkListRows(
            row_ids=owned["id"][positions],
            group_start_kinds=begins,
            has_newer_image_of_patient=is_earlier[positions],
            counts=counts,
        )

    def _owned(
        self, run_id: int, row_ids: NDArray[np.int64], *, is_all: bool
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return patient, study and day of each image, and whether the run has an image of a later day of its patient.

        row_ids  (n,) row ids of the images
        is_all   whether to read all images of the run, which is faster for many images
        """
        only = "" if is_all else _ONLY_THESE.format(", ".join(map(str, row_ids.tolist())))
        found = self._tuples(SELECT_PATIENTS_AND_STUDIES.format(only=only), (run_id,) if is_all else (run_id, run_id))
        with mark_damaged_on_invalid_row(self.path):
            owned = np.fromiter(((*owner, _day_number(day)) for *owner, day in found), _OWNED)
        positions = np.searchsorted(owned["id"], row_ids)
        return owned[positions], earlier_image_mask(owned["person"], owned["day"])[positions]

    def _ordered(
        self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None
    ) -> NDArray[np.int64]:
        statement, values = work_list_statement(wanted, order)
        about = {**values, "run_id": run_id, "limit": -1 if limit is None else limit}
        return np.fromiter(map(itemgetter(0), self._tuples(statement, about)), np.int64)

    def _tuples(self, statement: str, values: Mapping[str, Any] | tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an SQL statement as tuples, which are faster than rows with column names."""
        found = self._connection.cursor()
        found.row_factory = None
        return found.execute(statement, values)

    def next_study(self, run_id: int, row_ids: NDArray[np.int64], position: int, step: int) -> int | None:
        """Return the row id of the first listed image of the next study; None if there is no further study.

        row_ids   (n,) row ids of the listed images
        position  position in the list from which to search, from 0
        step      1 to search downwards, -1 upwards
        """
        (here,) = self._studies(run_id, row_ids[position : position + 1])
        ahead, sizes = row_ids[position::step][1:], list(_STUDY_ROWS)
        while len(ahead):
            some, ahead = np.split(ahead, [sizes[0]])
            sizes = sizes[1:] or sizes
            for row_id, study in zip(some.tolist(), self._studies(run_id, some), strict=True):
                if study != here:
                    return int(row_id)
        return None

    def next_unread(self, run_id: int, row_ids: NDArray[np.int64], position: int) -> int | None:
        """Return the row id of the next listed image that nobody has read; None if no other image is unread.

        The search begins below `position` and continues from the top of the list.

        row_ids   (n,) row ids of the listed images
        position  position in the list, from 0
        """
        read = self._numbers(_JUDGED.replace(":run_id", "?"), run_id)
        unread = np.flatnonzero(~np.isin(row_ids, read))
        positions = np.concatenate([unread[unread > position], unread[unread < position]])
        return int(row_ids[positions[0]]) if len(positions) else None

    def images_of_patient(self, patient_id: str, *, run_id: int | None = None) -> tuple[StoredImage, ...]:
        """Return up to 500 images with a Patient ID, from all runs.

        If `run_id` is given, images of that run come first. Then come images of other runs, the newest first. Failed
        images of other runs are left out.
        """
        number = patient_id.strip()
        asked = {"key": sort_key(number), "run_id": run_id, "failed": WORK_LIST_ORDER.index("failed")}
        rows = self._all(_OF_A_PATIENT, most=_MAX_IMAGES_OF_PATIENT, **asked)
        found = self.images([row["image_id"] for row in rows])
        return tuple(image for image in found if image.ref.header.patient_id.strip() == number)

    def find_image(self, run_id: int, ref: ImageRef) -> StoredImage | None:
        """Return the image of a run with the reference `ref`; None if the image is not in the run, or is absent."""
        query = "SELECT id FROM images WHERE run_id = ? AND image_key = ? AND absent_s IS NULL"
        rows = self._all(query, run_id, image_key(ref))
        return self.image(rows[0]["id"]) if rows else None

    def _studies(self, run_id: int, row_ids: NDArray[np.int64]) -> list[int]:
        """Return the study of each row, as a number that identifies the study; 0 for a row that is no longer listed."""
        listed = ", ".join(map(str, row_ids.tolist()))
        query = f"SELECT image_id, study FROM work_list WHERE run_id = ? AND image_id IN ({listed})"
        known = {row["image_id"]: row["study"] for row in self._all(query, run_id)}
        return [known.get(row_id, 0) for row_id in row_ids.tolist()]

    # ---- the runs

    def run_summaries(self) -> tuple[RunSummary, ...]:
        """Return all runs with their counts, the newest run first. The query reads only indexes, no results."""
        counts: defaultdict[int, Counter[Category]] = defaultdict(Counter)
        backends: defaultdict[int, Counter[str]] = defaultdict(Counter)
        verdicts: defaultdict[int, Counter[VerdictChoice]] = defaultdict(Counter)
        for row in self._convert(with_checked_types, self._all(_COUNTS)):
            with mark_damaged_on_invalid_row(self.path):
                counts[row["run_id"]][category_of_rank(row["rank"])] += row["number"]
        for query, sign in ((_BACKENDS, 1), (_BACKENDS_ABSENT, -1)):
            for row in self._convert(with_checked_types, self._all(query)):
                backends[row["run_id"]][row["backend"] or ""] += sign * row["number"]
        for row in self._convert(with_checked_types, self._all(_CHOICES)):
            verdicts[row["run_id"]][row["choice"]] += row["number"]
        gone = {row["run_id"]: row["number"] for row in self._all(_ABSENT)}
        return tuple(
            RunSummary(
                run=run,
                counts=counts[run.run_id],
                counts_by_backend=+backends[run.run_id],
                counts_by_verdict=verdicts[run.run_id],
                absent_image_count=gone.get(run.run_id, 0),
            )
            for run in self.runs()
        )

    def image_quality_by_day(self, *, since_s: float) -> dict[str, Counter[str]]:
        """Return counts of each day with results, by date (ISO 8601, local time), the newest day first.

        A day's counter has the number of "images", and the number of images with each note on image quality, by the
        note's code.

        since_s  beginning of the period, seconds since 1970
        """
        counted = self._all(_BY_DAY, since_s, WORK_LIST_ORDER.index("not_an_image"))
        days = {str(row["day"]): Counter({"images": int(row["number"])}) for row in counted}
        for row in self._convert(dict, self._all(_NOTES_BY_DAY, since_s)):
            codes = {note.code for note in reasons_of(row["notes"])} & QUALITY_CODES
            days.setdefault(row["day"], Counter()).update(dict.fromkeys(codes, row["number"]))
        return days

    def result_briefs(self, run_id: int, *, pack_position: int | None = None) -> Iterator[ResultBrief]:
        """Yield the results of a run without large columns, in the order of the work list.

        Results of an image are adjacent.

        pack_position  position of the pack whose results are yielded; None for the results of all packs
        """
        for page in self._pages(run_id):
            of_image = defaultdict[int, list[ResultBrief]](list)
            for brief in self._convert(result_brief_of, self._all(_BRIEFS, json.dumps(list(page)))):
                if pack_position in (None, brief.pack_position):
                    of_image[brief.row_id].append(brief)
            for row_id in page:
                yield from of_image[row_id]

    def image_tallies(self, since_s: float, until_s: float, *, folder: Path | None = None) -> tuple[ImageTally, ...]:
        """Count images by pack, class, reason and verdict. Returns the counts, the largest count first.

        For each pack, an image counts if the pack's first result for the image falls in the period.

        since_s, until_s  beginning and end of the period, seconds since 1970
        folder            folder whose images count, with its subfolders; None for all images
        """
        inside = os.fsencode(folder) if folder else b""
        ends = inside, inside + _SEPARATOR, inside + _AFTER_SEPARATOR
        return self._convert(image_tally_of, self._all(_TALLIES, inside, *ends, since_s, until_s))

    def images_in_work_list_order(self, run_id: int) -> Iterator[StoredImage]:
        """Yield the images of a run in the order of its work list, the most urgent image first.

        An image of an earlier day than its patient's newest image comes last, and is marked as an earlier image.
        """
        for page in self._pages(run_id):
            for image in self.images(list(page)):
                yield image.marked_as_having_newer_image() if page[image.row_id] else image

    def _pages(self, run_id: int) -> Iterator[dict[int, bool]]:
        """Yield the row ids of a run in the order of the work list, some hundred at a time.

        The value of each row id is whether the image is of an earlier day than its patient's newest image.
        """
        with self.snapshot(), convert_sqlite_errors(self.path):
            row_ids = self._numbers(_IN_ORDER, run_id)
            _, is_earlier = self._owned(run_id, row_ids, is_all=True)
        positions = positions_with_earlier_last(is_earlier)
        for start in range(0, len(positions), _POSITIONS_PER_QUERY):
            some = positions[start : start + _POSITIONS_PER_QUERY]
            yield dict(zip(row_ids[some].tolist(), is_earlier[some].tolist(), strict=True))

    def count_duplicate_instance_uids(self, run_id: int, *, pack_position: int = 0) -> int:
        """Return how many files of a run share a SOP Instance UID with another file that has different pixels.

        Files with equal pixels in another compression are not counted. Pixels count as equal if median grey and score
        are nearly equal.

        pack_position  position of the pack whose scores are compared
        """
        uid = "json_extract(header, '$.sop_instance_uid')"
        named = f"SELECT id, {uid}, frame FROM images WHERE run_id = ? AND absent_s IS NULL AND {uid} IS NOT NULL"
        with convert_sqlite_errors(self.path):  # a million UIDs grouped by SQLite take 130 MB, their hashes 16
            found = ((row[0], hash(tuple(row[1:]))) for row in self._connection.execute(named, (run_id,)))
            table = np.fromiter(found, [("id", np.int64), ("key", np.int64)])
        keys = np.sort(table["key"])
        repeated: list[int] = table["id"][np.isin(table["key"], keys[1:][keys[1:] == keys[:-1]])].tolist()
        query = f"""SELECT total(files) AS files FROM (SELECT COUNT(DISTINCT content_sha256) AS files
                        FROM images JOIN answers ON answers.image_id = images.id AND position = ?
                        WHERE images.id IN (SELECT value FROM json_each(?)) GROUP BY {uid}, frame
                        HAVING max(grey) - min(grey) > 1 OR max(score) - min(score) > 0.02) WHERE files > 1"""
        return int(self._all(query, pack_position, json.dumps(repeated))[0]["files"])

    def drift_samples(self, pack_in_run: PackOfRun, *, limit: int) -> tuple[DriftSample, ...]:
        """Return the values by which drift is measured, from the results of one pack in a run.

        limit  maximum number of results, from the first images of the run. Failed images and files that are no images
               are left out
        """
        query = f"{_SAMPLES} AND answers.run_id = ? AND position = ? ORDER BY image_id LIMIT ?"
        return self._convert(drift_sample_of, self._all(query, *pack_in_run, limit))

    def earlier_drift_samples(self, run: Run, pack_position: int, *, limit: int) -> tuple[DriftSample, ...]:
        """Return the values by which drift is measured, from earlier runs over the folders of a run.

        Only earlier runs with an equal model and equal settings are used. Images that the run itself contains are left
        out. Folders are compared by `domain.run.origin_folder`.

        pack_position  position of the pack in the run
        limit          maximum number of images; the newest images are used
        """
        sites = [os.fsencode(site) for site in dict.fromkeys(map(origin_folder, run.spec.paths))][:_MAX_SITES]
        ends = [end for site in sites for end in (site, site + _SEPARATOR, site + _AFTER_SEPARATOR)]
        here = " OR ".join(["image_key = ? OR (image_key >= ? AND image_key < ?)"] * len(sites)) or "0"
        query = f"""{_SAMPLES} AND (answers.run_id, position) IN (
                        SELECT run_id, position FROM run_packs
                        WHERE model_sha256 = ? AND settings_hash = ? AND run_id < ?)
                    AND ({here}) AND {_IDENTITY} NOT IN (SELECT {_IDENTITY} FROM images WHERE run_id = ?)
                    GROUP BY {_IDENTITY} ORDER BY answers.id DESC LIMIT ?"""
        pack = run.spec.packs[pack_position]
        asked = pack.model_sha256, pack.settings_hash, run.run_id, *ends, run.run_id, limit
        return self._convert(drift_sample_of, self._all(query, *asked))


def work_list_statement(wanted: ResultFilter, order: ResultOrder) -> tuple[str, dict[str, Any]]:
    """Return the SQL statement that reads the row ids of a work list in order, and the values of its parameters.

    The caller adds the values `run_id`, and `limit`, the maximum number of rows (-1 for all).
    """
    where, values = ["run_id = :run_id"], dict[str, Any]()
    if wanted.category is not None:
        # The plus keeps SQLite from using another index and sorting rows that are already in order.
        where.append("rank = :rank" if order.column == "class" else "+rank = :rank")
        values["rank"] = WORK_LIST_ORDER.index(wanted.category)
    if wanted.backend:
        where.append("backend = :backend")
        values["backend"] = wanted.backend
    if wanted.verdict != "any":
        where.append(_verdict_condition(wanted))
    if words := searchable_text(wanted.text).split():
        condition, named = _search_condition(words)
        where.append(
            f"""image_id IN (SELECT image_id FROM work_list AS found NOT INDEXED
                WHERE run_id = :run_id AND {condition})"""
        )
        values |= named
    descending = " DESC" if order.is_descending else ""
    sorts = "NOT INDEXED", f"{_SORTED.get(order.column)}{descending}, {_BY_CLASS}"
    index, terms = _READ.get(replace(order, is_grouped_by_patient=False), sorts)
    return f"SELECT image_id FROM work_list {index} WHERE {' AND '.join(where)} ORDER BY {terms} LIMIT :limit", values


def searchable_text(text: str) -> str:
    """Return a text in the form in which texts are searched: case-folded, without accents and apostrophes."""
    letters = unicodedata.normalize("NFKD", text.casefold()).translate(_UNDIVIDED)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _searched(text: bytes) -> bytes:
    """Return `searchable_text` of bytes stored by `bookkeeping.sort_key`.

    SQL statements call this function as `searched`.
    """
    return searchable_text(text.decode("utf-8", "surrogatepass")).encode("utf-8", "surrogatepass")


def _search_condition(words: Sequence[str]) -> tuple[str, dict[str, bytes]]:
    """Return the SQL condition that a row contains all of these words, in any order, and the values of its parameters.

    A part of a word is enough. A date matches in any of its forms. A word is first compared with the stored text. If
    the stored text has accents, the word is compared with the text without accents as well.
    """
    terms, values = list[str](), dict[str, bytes]()
    for place, word in enumerate(words[:_MAX_WORDS]):
        forms = dict.fromkeys((word, *_dates_in(word)))
        names = {f"text_{place}_{number}": form for number, form in enumerate(forms)}
        values |= {name: form.encode("utf-8", "surrogatepass") for name, form in names.items()}
        is_plain = " OR ".join(f"instr({_SEARCHED}, :{name})" for name in names)
        is_made_plain = " OR ".join(f"instr(searched({_SEARCHED}), :{name})" for name in names)
        terms.append(f"({is_plain} OR {_HAS_ACCENTS} AND ({is_made_plain}))")
    return " AND ".join(terms), values


def _dates_in(word: str) -> Iterator[str]:
    """Yield a word as a DICOM date, if the word is a date or a year and month (PS3.5 6.2)."""
    if found := _YEAR_FIRST.fullmatch(word):
        yield "".join(part for part in found.groups() if part)
    if found := _DAY_FIRST.fullmatch(word):
        day, month, year = found.groups()
        yield f"{year}{month:0>2}{day:0>2}"


@functools.lru_cache(maxsize=4096)
def _day_number(study_date: bytes) -> int:
    """Return the day number of a DICOM study date (YYYYMMDD), by which days are compared."""
    return day_number(study_date.decode("utf-8", "surrogatepass"))


def _by_patient(owned: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the positions of rows grouped by patient and study, and for each row what begins there: patient or study.

    owned  (n,) patient and study of each row
    """
    person, study = _first_positions(owned["person"]), _first_positions(owned["study"])
    positions = np.lexsort((study, person))
    begins = np.full(len(positions), SAME_STUDY, np.uint8)
    begins[_changes(study[positions])] = NEW_STUDY
    begins[_changes(person[positions])] = NEW_PATIENT
    return positions, begins


def _first_positions(keys: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return for each key (n,) the position of the first key with an equal value."""
    order = np.argsort(keys, kind="stable")
    starts = _changes(keys[order])
    firsts = np.empty(len(keys), np.int32)
    firsts[order] = np.repeat(order[starts].astype(np.int32), np.diff(starts, append=len(keys)))
    return firsts


def _changes(keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return the positions at which a key differs from the previous key. The first position is always included."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


def _verdict_condition(wanted: ResultFilter) -> str:
    given = _CONTRADICTED if wanted.verdict == "disagreed" else _WITH_VERDICT
    judged = _JUDGED + (given if wanted.verdict != "unread" else "")
    kept_row_ids = ", ".join(map(str, sorted(wanted.always_shown_row_ids)))
    is_in = "NOT IN" if wanted.verdict in ("none", "unread") else "IN"
    return f"(image_id {is_in} ({judged}) OR image_id IN ({kept_row_ids}))"

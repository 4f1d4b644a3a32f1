"""Lists read: past runs with their counts, the results of one without what is large; and the work list of a run.

A list of a million results is sorted, filtered and searched without reading one of them: it has a narrow row for each
image that is present in a run (see `bookkeeping`). Rows by class, by patient and as they came are read in this order
from an index; by any other column SQLite sorts them. The images of a patient are then brought together to where the
first of them stands.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import WORK_LIST_ORDER, Category
from fieldray.domain.history import (
    NEW_PATIENT,
    NEW_STUDY,
    SAME_STUDY,
    ListColumn,
    Listed,
    ResultBrief,
    ResultFilter,
    ResultOrder,
    RunSummary,
    Tally,
)
from fieldray.domain.image import ImageRef
from fieldray.domain.lungs import QUALITY
from fieldray.domain.run import DriftSample, Run, StoredResult, VerdictChoice, site_of
from fieldray.store.bookkeeping import key_of
from fieldray.store.database import damage_noticed, storage_problems
from fieldray.store.results import ResultQuery
from fieldray.store.rows import brief_of, category_of, checked, sample_of, tally_of
from fieldray.store.schema import image_key, reasons_of

# By class, what needs eyes first on top; so are rows that are equal by any other column, whichever way it is sorted.
_BY_CLASS: Final = "rank, score DESC, result_id"
# An index, and the order in which rows are read from it.
_READ: Final[dict[ResultOrder, tuple[str, str]]] = {
    ResultOrder(): ("INDEXED BY work_list_by_class", _BY_CLASS),
    ResultOrder(by_patient=True): ("INDEXED BY work_list_by_class", _BY_CLASS),
    ResultOrder("class", True): ("INDEXED BY work_list_by_class", "rank DESC, score, result_id DESC"),
    ResultOrder("image"): ("NOT INDEXED", "result_id"),
    ResultOrder("image", True): ("NOT INDEXED", "result_id DESC"),
    ResultOrder("patient"): ("INDEXED BY work_list_by_patient", f"patient, {_BY_CLASS}"),
    ResultOrder("patient", True): ("INDEXED BY work_list_by_patient", f"patient DESC, {_BY_CLASS}"),
}
# By these SQLite sorts the rows of the run, in memory: a million take two to three seconds and 50 MB.
_SORTED: Final[dict[ListColumn, str]] = {
    "date": "study_date",
    "view": "view",
    "score": "score",
    "backend": "backend",
    "ms": "inference_ms",
    "status": "why",
}
_SEARCHED: Final = "CAST(patient || ' ' || patient_id || ' ' || study_date || ' ' || file AS BLOB)"
_OWNED: Final = np.dtype([("id", np.int64), ("person", np.int64), ("study", np.int64)])
_COUNTED: Final = "SELECT rank, COUNT(*) FROM work_list WHERE run_id = ? GROUP BY rank"
OWNER_STATEMENT: Final = (
    "SELECT result_id, person, study FROM work_list NOT INDEXED WHERE run_id = ? {only} ORDER BY result_id"
)
# CROSS: from the verdicts, which are few, to their results.
_JUDGED: Final = """
    SELECT verdicts.result_id FROM verdicts CROSS JOIN results
    ON results.id = verdicts.result_id AND results.result_hash = verdicts.result_hash WHERE results.run_id = :run_id
"""
_WITH_VERDICT: Final = "AND choice IS NOT NULL"
_BESIDE: Final = """
    SELECT other.id FROM results AS own CROSS JOIN results AS other
    ON other.run_id IN (SELECT value FROM json_each(:runs)) AND other.image_key = own.image_key
    WHERE own.id IN (SELECT value FROM json_each(:rows)) AND other.absent_s IS NULL
"""
_STUDY_ROWS: Final = (16, 256, 4096)  # the next study is near, most often
_MOST_OF_A_PATIENT: Final = 500
_OF_A_PATIENT: Final = """
    SELECT results.*, spec, NULL AS choice, NULL AS note, 0 AS is_read FROM results JOIN runs ON runs.id = run_id
    WHERE results.id IN (
        SELECT result_id FROM work_list INDEXED BY work_list_by_patient_id
        WHERE patient_id = :key AND patient_id != x'' AND (rank != :failed OR run_id IS :run_id)
        ORDER BY run_id IS NOT :run_id, result_id DESC LIMIT :most
    ) ORDER BY run_id IS NOT :run_id, results.id DESC
"""


# ---- of the runs

_COUNTS: Final = """
    SELECT run_id, rank, backend, absent_s IS NOT NULL AS is_gone, COUNT(*) AS number FROM results
    GROUP BY run_id, rank, backend, is_gone
"""
# CROSS: from the verdicts, which are few, to their results, never through all results.
_CHOICES: Final = """
    SELECT run_id, choice, COUNT(*) AS number
    FROM verdicts CROSS JOIN results ON results.id = result_id AND results.result_hash = verdicts.result_hash
    WHERE absent_s IS NULL AND choice IS NOT NULL GROUP BY run_id, choice
"""
# Through an index of all results, and one of the few with notes of how the image was taken.
_BY_DAY: Final = "FROM results WHERE absent_s IS NULL AND saved_s >= ? AND {} GROUP BY 1"
_DAY: Final = "SELECT date(saved_s, 'unixepoch', 'localtime') AS day, COUNT(*) AS number"
_BRIEFS: Final = """
    SELECT results.id, run_id, image_key, results.content_sha256, frame, results.category, findings, backend, choice,
        results.reason, notes, spec
    FROM results JOIN runs ON runs.id = run_id
    LEFT JOIN verdicts ON verdicts.result_id = results.id AND verdicts.result_hash = results.result_hash
"""

_IN_ORDER: Final = "SELECT id FROM results WHERE run_id = ? AND absent_s IS NULL ORDER BY rank, score DESC, id"
_TOGETHER: Final = """
    WITH present AS (SELECT results.id, wanted.key AS run, image_key, rank, score,
                            MIN(rank) OVER image AS first, MIN(results.id) OVER image AS least
                     FROM json_each(?) AS wanted CROSS JOIN results ON run_id = wanted.value WHERE absent_s IS NULL
                     WINDOW image AS (PARTITION BY image_key))
    SELECT id FROM present
    ORDER BY first, MAX(CASE rank WHEN first THEN score END) OVER (PARTITION BY image_key) DESC, least, run
"""
_AT_ONCE: Final = 256

# What runs are compared by. The same image in both says nothing; one whose bytes were not read is known by its path.
_IDENTITY = "CASE content_sha256 WHEN x'' THEN image_key ELSE CAST(hex(content_sha256) || '#' || frame AS BLOB) END"
_SAMPLES = """SELECT category, findings, grey, lungs FROM results
            WHERE absent_s IS NULL AND category NOT IN ('failed', 'not_an_image') """


_MOST_SITES: Final = 100
_SEPARATOR: Final = os.fsencode(os.sep)
_AFTER_SEPARATOR: Final = bytes([_SEPARATOR[0] + 1])  # keys of what a folder holds come before it


# The newest result by each model of what it first saw in a time, by the points it was made at. A failure does not count
# once its file is gone from the run, or was read by that model.
_TALLIES: Final = f"""
    SELECT MAX(spec) AS spec, results.category, results.reason, choice, COUNT(*) AS number
    FROM (SELECT MAX(results.id) AS newest FROM results JOIN runs ON runs.id = run_id
          GROUP BY model_sha256, {_IDENTITY} HAVING MIN(saved_s) >= ? AND MIN(saved_s) < ?)
    JOIN results ON results.id = newest JOIN runs ON runs.id = run_id
    LEFT JOIN verdicts ON verdicts.result_id = results.id AND verdicts.result_hash = results.result_hash
    WHERE results.category != 'failed' OR results.absent_s IS NULL AND NOT EXISTS (
        SELECT 1 FROM runs AS others CROSS JOIN results AS other ON other.run_id = others.id
        WHERE others.model_sha256 = runs.model_sha256 AND other.image_key = results.image_key
        AND other.category != 'failed' AND other.saved_s >= results.saved_s)
    GROUP BY model_sha256, json_extract(spec, '$.operating_points'), results.category, results.reason, choice
    ORDER BY number DESC
"""


class HistoryQuery(ResultQuery):
    """Reads the runs of the past, and the work list of each; for one thread, but for `interrupt`.

    Methods raise StorageProblem when the file cannot be read.
    """

    def interrupt(self) -> None:
        """Let what is being read raise sqlite3.OperationalError; from any thread."""
        if self._opened:
            self._opened.interrupt()

    def listed(self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None = None) -> Listed:
        """The rows that are wanted in that order, at most `limit` of them, and the counts of the whole run.

        By patient, with a limit, those are brought together that would be the first ones.
        """
        with self.at_one_moment(), storage_problems(self.path):
            counted = dict(self._tuples(_COUNTED, (run_id,)))
            if order.by_patient:
                row_ids, begins = self._by_patient(run_id, wanted, order, limit=limit)
            else:
                row_ids, begins = self._ordered(run_id, wanted, order, limit=limit), np.empty(0, np.uint8)
        counts = {category: counted.get(rank, 0) for rank, category in enumerate(WORK_LIST_ORDER)}
        return Listed(row_ids=row_ids, begins=begins, counts=counts)

    def _by_patient(
        self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """The rows with patients and studies brought together, and what begins in each."""
        if order in _READ:
            table = np.fromiter(self._rows(run_id, wanted, order, limit=limit), _OWNED)
        else:
            row_ids = self._ordered(run_id, wanted, replace(order, by_patient=False), limit=limit)
            only = "" if limit is None else f"AND result_id IN ({', '.join(map(str, row_ids.tolist()))})"
            table = np.fromiter(self._tuples(OWNER_STATEMENT.format(only=only), (run_id,)), _OWNED)
            table = table[np.searchsorted(table["id"], row_ids)]
        person, study = _first_positions(table["person"]), _first_positions(table["study"])
        positions = np.lexsort((study, person))
        begins = np.full(len(positions), SAME_STUDY, np.uint8)
        begins[_changes(study[positions])] = NEW_STUDY
        begins[_changes(person[positions])] = NEW_PATIENT
        return table["id"][positions], begins

    def _ordered(
        self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None
    ) -> NDArray[np.int64]:
        return np.fromiter(map(itemgetter(0), self._rows(run_id, wanted, order, limit=limit)), np.int64)

    def _rows(
        self, run_id: int, wanted: ResultFilter, order: ResultOrder, *, limit: int | None
    ) -> Iterator[tuple[Any, ...]]:
        statement, values = list_statement(wanted, order)
        return self._tuples(statement, {**values, "run_id": run_id, "limit": -1 if limit is None else limit})

    def _tuples(self, statement: str, values: Mapping[str, Any] | tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """What a statement finds, as plain tuples: they take less time than rows that know names."""
        found = self._connection.cursor()
        found.row_factory = None
        return found.execute(statement, values)

    def next_study(self, run_id: int, row_ids: NDArray[np.int64], position: int, step: int) -> int | None:
        """The row of the first result of another study, going from a position down (step 1) or up (-1) these rows."""
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
        """The row of the first result below a position that nobody has read, else of the first one above it."""
        read = self._numbers(_JUDGED.replace(":run_id", "?"), run_id)
        unread = np.flatnonzero(~np.isin(row_ids, read))
        positions = np.concatenate([unread[unread > position], unread[unread < position]])
        return int(row_ids[positions[0]]) if len(positions) else None

    def of_patient(self, patient_id: str, *, run_id: int | None = None) -> tuple[StoredResult, ...]:
        """Images that give this Patient ID, at most 500: of a run first, then those that did not fail, newest first."""
        number = patient_id.strip()
        asked = {"key": key_of(number), "run_id": run_id, "failed": WORK_LIST_ORDER.index("failed")}
        found = self._results(self._all(_OF_A_PATIENT, most=_MOST_OF_A_PATIENT, **asked))
        return tuple(result for result in found if result.outcome.ref.header.patient_id.strip() == number)

    def with_beside(self, row_ids: Sequence[int], run_ids: Sequence[int]) -> tuple[StoredResult, ...]:
        """Those of these results that are in the store, and after them what these runs say of the same images."""
        beside = self._all(_BESIDE, rows=json.dumps(row_ids), runs=json.dumps(run_ids)) if run_ids else ()
        return self.results([*row_ids, *(row["id"] for row in beside)])

    def find(self, run_id: int, ref: ImageRef) -> StoredResult | None:
        """The result of an image of a run; None where it has none, or where the image is not present."""
        query = "SELECT id FROM results WHERE run_id = ? AND image_key = ? AND absent_s IS NULL"
        rows = self._all(query, run_id, image_key(ref))
        return self.row(rows[0]["id"]) if rows else None

    def _studies(self, run_id: int, row_ids: NDArray[np.int64]) -> list[int]:
        """The studies of these rows, 0 for those that are not listed any more."""
        listed = ", ".join(map(str, row_ids.tolist()))
        query = f"SELECT result_id, study FROM work_list WHERE run_id = ? AND result_id IN ({listed})"
        known = {row["result_id"]: row["study"] for row in self._all(query, run_id)}
        return [known.get(row_id, 0) for row_id in row_ids.tolist()]

    # ---- the runs

    def summaries(self) -> tuple[RunSummary, ...]:
        """All runs with their counts, the newest first. Reads no result, only an index of them."""
        counts: defaultdict[int, Counter[Category]] = defaultdict(Counter)
        backends: defaultdict[int, Counter[str]] = defaultdict(Counter)
        verdicts: defaultdict[int, Counter[VerdictChoice]] = defaultdict(Counter)
        gone: Counter[int] = Counter()
        for row in self._made(checked, self._all(_COUNTS)):
            if row["is_gone"]:
                gone[row["run_id"]] += row["number"]
                continue
            with damage_noticed(self.path):
                counts[row["run_id"]][category_of(row["rank"])] += row["number"]
            backends[row["run_id"]][row["backend"] or ""] += row["number"]
        for row in self._made(checked, self._all(_CHOICES)):
            verdicts[row["run_id"]][row["choice"]] += row["number"]
        return tuple(
            RunSummary(
                run=run,
                counts=counts[run.run_id],
                backends=backends[run.run_id],
                verdicts=verdicts[run.run_id],
                not_present=gone[run.run_id],
            )
            for run in self.runs()
        )

    def quality(self, *, since_s: float) -> dict[str, Counter[str]]:
        """By day (ISO 8601, local time) since then, the newest first: how many "images", and how many with each note of
        how they were taken, by its code.
        """
        is_image = f"rank != {WORK_LIST_ORDER.index('not_an_image')}"
        counted = self._all(f"{_DAY} {_BY_DAY.format(is_image)} ORDER BY 1 DESC", since_s)
        days = {str(row["day"]): Counter({"images": int(row["number"])}) for row in counted}
        noted = _BY_DAY.format("instr(notes, '\"lungs_') > 0")
        for row in self._made(dict, self._all(f"{_DAY}, notes {noted}, notes", since_s)):
            codes = {note.code for note in reasons_of(row["notes"])} & QUALITY
            days.setdefault(row["day"], Counter()).update(dict.fromkeys(codes, row["number"]))
        return days

    def briefs(self, *run_ids: int) -> Iterator[ResultBrief]:
        """The results of a run in the order of the work list; those of several as `listed_together`."""
        for row_ids in self._pages(run_ids):
            found = self._stored(_BRIEFS, row_ids)
            yield from self._made(brief_of, [found[row_id] for row_id in row_ids if row_id in found])

    def tallies(self, since_s: float, until_s: float) -> tuple[Tally, ...]:
        """The images that each pack first saw in a time (seconds since 1970), the most of a kind first."""
        return self._made(tally_of, self._all(_TALLIES, since_s, until_s))

    def runs_together(self, run_id: int) -> tuple[Run, ...]:
        """A run, and those of the other packs over its images. Raises UsageProblem (history_no_run)."""
        run = self.run(run_id)
        beside = self._all("SELECT * FROM runs WHERE together_id = ? AND id != ? ORDER BY id", run.together_id, run_id)
        return run, *self._made(self._run_of, beside)

    def listed_together(self, run_ids: Sequence[int]) -> Iterator[StoredResult]:
        """The results of runs that went over the same images, those of an image together, in the order of the runs.

        An image is listed where its most urgent result puts it.
        """
        for row_ids in self._pages(run_ids):
            yield from self.results(row_ids)

    def _pages(self, run_ids: Sequence[int]) -> Iterator[list[int]]:
        is_one = len(run_ids) == 1  # which an index has in order
        row_ids = self._numbers(*((_IN_ORDER, run_ids[0]) if is_one else (_TOGETHER, json.dumps(run_ids))))
        yield from (row_ids[start : start + _AT_ONCE].tolist() for start in range(0, len(row_ids), _AT_ONCE))

    def shared_instances(self, run_id: int) -> int:
        """How many files of a run have the SOP Instance UID of another one whose pixels are others.

        The same pixels in another compression have the same median grey and score, but for what coarse reading changes.
        """
        uid = "json_extract(header, '$.sop_instance_uid')"
        named = f"SELECT id, {uid}, frame FROM results WHERE run_id = ? AND absent_s IS NULL AND {uid} IS NOT NULL"
        with storage_problems(self.path):  # a million UIDs grouped by SQLite take 130 MB, their hashes 16
            found = ((row[0], hash(tuple(row[1:]))) for row in self._connection.execute(named, (run_id,)))
            table = np.fromiter(found, [("id", np.int64), ("key", np.int64)])
        keys = np.sort(table["key"])
        repeated: list[int] = table["id"][np.isin(table["key"], keys[1:][keys[1:] == keys[:-1]])].tolist()
        query = f"""SELECT total(files) AS files FROM (SELECT COUNT(DISTINCT content_sha256) AS files FROM results
                        WHERE id IN (SELECT value FROM json_each(?)) GROUP BY {uid}, frame
                        HAVING max(grey) - min(grey) > 1 OR max(score) - min(score) > 0.02) WHERE files > 1"""
        return int(self._all(query, json.dumps(repeated))[0]["files"])

    def drift_samples(self, run_id: int, *, limit: int) -> tuple[DriftSample, ...]:
        """What a run is compared by, of the first `limit` images that did not fail."""
        return self._made(sample_of, self._all(_SAMPLES + "AND run_id = ? ORDER BY id LIMIT ?", run_id, limit))

    def earlier_samples(self, run: Run, *, limit: int) -> tuple[DriftSample, ...]:
        """The same of other images of the same folders in earlier runs with the same model and settings, the newest
        `limit` (see `domain.run.site_of`).
        """
        same_work = "SELECT id FROM runs WHERE model_sha256 = ? AND settings_hash = ? AND id < ?"
        sites = [os.fsencode(site) for site in dict.fromkeys(map(site_of, run.spec.paths))][:_MOST_SITES]
        ends = [end for site in sites for end in (site, site + _SEPARATOR, site + _AFTER_SEPARATOR)]
        here = " OR ".join(["image_key = ? OR (image_key >= ? AND image_key < ?)"] * len(sites)) or "0"
        query = f"""{_SAMPLES} AND run_id IN ({same_work}) AND ({here}) AND {_IDENTITY} NOT IN
                    (SELECT {_IDENTITY} FROM results WHERE run_id = ?) GROUP BY {_IDENTITY} ORDER BY id DESC LIMIT ?"""
        asked = run.spec.model_sha256, run.spec.settings_hash, run.run_id, *ends, run.run_id, limit
        return self._made(sample_of, self._all(query, *asked))


def list_statement(wanted: ResultFilter, order: ResultOrder) -> tuple[str, dict[str, Any]]:
    """The statement that reads rows in the order of an index, and its values but for `run_id` and `limit`."""
    where, values = ["run_id = :run_id"], dict[str, Any]()
    if wanted.category is not None:
        # Where it is not sought in the index, the plus keeps SQLite from sorting what the index has in order.
        where.append("rank = :rank" if order.column == "class" else "+rank = :rank")
        values["rank"] = WORK_LIST_ORDER.index(wanted.category)
    if wanted.backend:
        where.append("backend = :backend")
        values["backend"] = wanted.backend
    if wanted.verdict != "any":
        where.append(_verdict_condition(wanted))
    if wanted.text:
        where.append(
            f"""result_id IN (SELECT result_id FROM work_list AS found NOT INDEXED
                WHERE run_id = :run_id AND instr({_SEARCHED}, :text))"""
        )
        values["text"] = key_of(wanted.text)
    descending = " DESC" if order.is_descending else ""
    sorts = "NOT INDEXED", f"{_SORTED.get(order.column)}{descending}, {_BY_CLASS}"
    index, terms = _READ.get(order, sorts)
    columns = "result_id, person, study" if order.by_patient else "result_id"
    return f"SELECT {columns} FROM work_list {index} WHERE {' AND '.join(where)} ORDER BY {terms} LIMIT :limit", values


def _first_positions(keys: NDArray[np.int64]) -> NDArray[np.int32]:
    """For each of these keys (n,) the place where the same one stands first."""
    order = np.argsort(keys, kind="stable")
    starts = _changes(keys[order])
    firsts = np.empty(len(keys), np.int32)
    firsts[order] = np.repeat(order[starts].astype(np.int32), np.diff(starts, append=len(keys)))
    return firsts


def _changes(keys: NDArray[Any]) -> NDArray[np.int64]:
    """The places in which another key stands than before them, the first one included."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


def _verdict_condition(wanted: ResultFilter) -> str:
    given = "AND choice = 'disagree'" if wanted.verdict == "disagreed" else _WITH_VERDICT
    judged = _JUDGED + (given if wanted.verdict != "unread" else "")
    staying = ", ".join(map(str, sorted(wanted.staying)))
    is_in = "NOT IN" if wanted.verdict in ("none", "unread") else "IN"
    return f"(result_id {is_in} ({judged}) OR result_id IN ({staying}))"

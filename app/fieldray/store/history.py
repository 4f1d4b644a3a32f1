"""Reading the past: all runs with their counts, the results of one without what is large, and previews."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from fieldray.domain.finding import WORK_LIST_ORDER, Category
from fieldray.domain.history import ResultBrief, RunSummary, Tally
from fieldray.domain.lungs import QUALITY
from fieldray.domain.run import DriftSample, Run, StoredResult, TakenOver, VerdictChoice
from fieldray.store import bookkeeping
from fieldray.store.database import damage_noticed
from fieldray.store.results import ResultQuery
from fieldray.store.rows import brief_of, category_of, checked, sample_of, tally_of
from fieldray.store.schema import reasons_of

_COUNTS: Final = "SELECT run_id, rank, backend, COUNT(*) AS number FROM results {} GROUP BY run_id, rank, backend"
# CROSS: from the verdicts, which are few, to their results, never through all results.
_VERDICTS: Final = """
    FROM verdicts CROSS JOIN results ON results.id = result_id AND results.result_hash = verdicts.result_hash
    WHERE absent_s IS NULL AND choice IS NOT NULL
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

_TOGETHER: Final = """
    WITH present AS (SELECT id, run_id, image_key, rank, score,
                            MIN(rank) OVER image AS first, MIN(id) OVER image AS least
                     FROM results WHERE run_id IN (SELECT value FROM json_each(:runs)) AND absent_s IS NULL
                     WINDOW image AS (PARTITION BY image_key))
    SELECT id, run_id, image_key FROM present
    ORDER BY first, MAX(CASE rank WHEN first THEN score END) OVER (PARTITION BY image_key) DESC, least
"""
_AT_ONCE: Final = 256

# What runs are compared by. The same image in both says nothing; one whose bytes were not read is known by its path.
_IDENTITY = "CASE content_sha256 WHEN x'' THEN image_key ELSE CAST(hex(content_sha256) || '#' || frame AS BLOB) END"
_SAMPLES = """SELECT category, findings, grey, lungs FROM results
            WHERE absent_s IS NULL AND category NOT IN ('failed', 'not_an_image') """


# The newest result by each model of what it first saw in a time; a reason is kept as a list with its code first.
_TALLIES: Final = f"""
    SELECT MAX(spec) AS spec, results.category, MAX(results.reason) AS reason, choice, COUNT(*) AS number
    FROM (SELECT MAX(results.id) AS newest FROM results JOIN runs ON runs.id = run_id
          GROUP BY model_sha256, {_IDENTITY} HAVING MIN(saved_s) >= ? AND MIN(saved_s) < ?)
    JOIN results ON results.id = newest JOIN runs ON runs.id = run_id
    LEFT JOIN verdicts ON verdicts.result_id = results.id AND verdicts.result_hash = results.result_hash
    GROUP BY model_sha256, results.category, json_extract(results.reason, '$[0]'), choice ORDER BY number DESC
"""


class HistoryQuery(ResultQuery):
    """Reads runs of the past; for one thread. Methods raise StorageProblem when the file cannot be read."""

    def summaries(self) -> tuple[RunSummary, ...]:
        """All runs with their counts, the newest first. Reads no result, only an index of them."""
        counts: defaultdict[int, Counter[Category]] = defaultdict(Counter)
        backends: defaultdict[int, Counter[str]] = defaultdict(Counter)
        verdicts: defaultdict[int, Counter[VerdictChoice]] = defaultdict(Counter)
        gone: Counter[int] = Counter()
        for row in self._checked(_COUNTS.format("WHERE absent_s IS NULL")):
            with damage_noticed(self.path):
                counts[row["run_id"]][category_of(row["rank"])] += row["number"]
            backends[row["run_id"]][row["backend"] or ""] += row["number"]
        for row in self._checked(f"SELECT run_id, choice, COUNT(*) AS number {_VERDICTS} GROUP BY run_id, choice"):
            verdicts[row["run_id"]][row["choice"]] += row["number"]
        for row in self._all(_COUNTS.format("WHERE absent_s IS NOT NULL")):
            gone[row["run_id"]] += row["number"]
        return tuple(
            RunSummary(
                run=run,
                counts=counts[run.run_id],
                backends=backends[run.run_id],
                verdicts=verdicts[run.run_id],
                not_present=gone[run.run_id],
            )
            for run in self._made(self._run_of, self._all("SELECT * FROM runs ORDER BY id DESC"))
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
        """A run, and those of the other packs that went over its images with it. Raises KeyError if there is none."""
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
        if len(run_ids) == 1:
            yield from self._in_order(run_ids[0])
            return
        rows = self._all(_TOGETHER, runs=json.dumps(run_ids))
        page: list[int] = []
        for _, of_image in itertools.groupby(rows, itemgetter("image_key")):
            page += [row["id"] for row in sorted(of_image, key=lambda row: run_ids.index(row["run_id"]))]
            if len(page) >= _AT_ONCE:
                yield page
                page = []
        yield page

    def taken_over(self, run_id: int) -> TakenOver:
        """How many results of a run come from an earlier one, and by what their files were known."""
        (row,) = self._all(bookkeeping.TAKEN_OVER, run_id)
        return TakenOver(by_sample=row["sampled"], by_content=row["resumed"] - row["sampled"])

    def shared_instances(self, run_id: int) -> int:
        """How many files of a run have the SOP Instance UID of another one whose pixels are others.

        The same pixels in another compression have the same median grey level and score, but for what reading them
        coarsely changes.
        """
        query = """SELECT total(files) AS files FROM (
                       SELECT COUNT(DISTINCT content_sha256) AS files FROM results
                       WHERE run_id = ? AND absent_s IS NULL AND json_extract(header, '$.sop_instance_uid') IS NOT NULL
                       GROUP BY json_extract(header, '$.sop_instance_uid'), frame
                       HAVING max(grey) - min(grey) > 1 OR max(score) - min(score) > 0.02) WHERE files > 1"""
        (row,) = self._all(query, run_id)
        return int(row["files"])

    def drift_samples(self, run_id: int, *, limit: int) -> tuple[DriftSample, ...]:
        """What a run is compared by, of the first `limit` images that did not fail."""
        return self._made(sample_of, self._all(_SAMPLES + "AND run_id = ? ORDER BY id LIMIT ?", run_id, limit))

    def earlier_samples(self, run: Run, *, limit: int) -> tuple[DriftSample, ...]:
        """The same of other images in earlier runs with the same model and settings, the newest `limit`."""
        same_work = "SELECT id FROM runs WHERE model_sha256 = ? AND settings_hash = ? AND id < ?"
        query = f"""{_SAMPLES} AND run_id IN ({same_work}) AND {_IDENTITY} NOT IN
                    (SELECT {_IDENTITY} FROM results WHERE run_id = ?) GROUP BY {_IDENTITY} ORDER BY id DESC LIMIT ?"""
        spec = run.spec
        return self._made(
            sample_of, self._all(query, spec.model_sha256, spec.settings_hash, run.run_id, run.run_id, limit)
        )

    def preview(self, content_sha256: str, *, frame: int) -> bytes | None:
        """The preview (JPEG) of an image; None where none was kept, or what was kept cannot be one."""
        return self._pictures.preview(bytes.fromhex(content_sha256), frame)

    def _checked(self, query: str) -> tuple[sqlite3.Row, ...]:
        return self._made(checked, self._all(query))

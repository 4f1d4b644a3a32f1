"""Reading the past: all runs with their counts, the results of one without what is large, and previews."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

from fieldray.domain.finding import PREVIEW_SIDE, Category
from fieldray.domain.history import ResultBrief, RunSummary
from fieldray.domain.run import StoredResult, Verdict, VerdictChoice
from fieldray.store.database import damage_noticed
from fieldray.store.results import ResultQuery, stored_of
from fieldray.store.rows import brief_of, category_of, checked, run_of, verdict_of

_MOST_PREVIEW_BYTES: Final = PREVIEW_SIDE**2  # more than the JPEG of so many grey levels takes
_COUNTS: Final = "SELECT run_id, rank, backend, COUNT(*) AS number FROM results {} GROUP BY run_id, rank, backend"
# CROSS: from the verdicts, which are few, to their results, never through all results.
_VERDICTS: Final = """
    FROM verdicts CROSS JOIN results ON results.id = result_id AND results.result_hash = verdicts.result_hash
    WHERE absent_s IS NULL
"""
_MOST_OF_A_PATIENT: Final = 500
_OF_A_PATIENT: Final = """
    SELECT results.*, NULL AS choice, NULL AS note FROM results
    WHERE absent_s IS NULL AND status != 'failed' AND instr(ref, ?) ORDER BY id DESC LIMIT ?
"""
_BRIEFS: Final = """
    SELECT results.id, image_key, results.content_sha256, frame, results.category, findings, backend, choice,
        results.reason
    FROM results LEFT JOIN verdicts ON verdicts.result_id = results.id AND verdicts.result_hash = results.result_hash
    WHERE run_id = ? AND absent_s IS NULL ORDER BY rank, results.score DESC, results.id
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
            for run in self._made(run_of, self._all("SELECT * FROM runs ORDER BY id DESC"))
        )

    def briefs(self, run_id: int) -> tuple[ResultBrief, ...]:
        """The results of a run in the order of the work list."""
        return self._made(brief_of, self._all(_BRIEFS, run_id))

    def verdicts(self, run_id: int) -> Mapping[int, Verdict]:
        """The verdicts on the results of a run, by row."""
        rows = self._all(f"SELECT results.id AS row_id, choice, note {_VERDICTS} AND run_id = ?", run_id)
        return dict(self._made(lambda row: (row["row_id"], verdict_of(row)), rows))

    def of_patient(self, patient_id: str) -> tuple[StoredResult, ...]:
        """Images of all runs that give this Patient ID, but those that failed; the newest results first, at most 500.

        The ID is sought as the text it is within a reference: all rows are looked through, and none is taken apart
        that does not name it.
        """
        wanted = f'"patient_id": {json.dumps(patient_id)}'
        return self._made(stored_of, self._all(_OF_A_PATIENT, wanted, _MOST_OF_A_PATIENT))

    def preview(self, content_sha256: str, *, frame: int) -> bytes | None:
        """The preview (JPEG) of an image; None where none was kept, or what was kept cannot be one."""
        query = """SELECT jpeg FROM previews WHERE content_sha256 = ? AND frame = ?
                   AND typeof(jpeg) = 'blob' AND length(jpeg) <= ?"""
        rows = self._all(query, content_sha256, frame, _MOST_PREVIEW_BYTES)
        return rows[0]["jpeg"] if rows else None

    def _checked(self, query: str) -> tuple[sqlite3.Row, ...]:
        return self._made(checked, self._all(query))

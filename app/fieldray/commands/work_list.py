"""The work list as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fieldray.domain.finding import Screened, leading_finding, notes_of
from fieldray.domain.run import StoredResult
from fieldray.plain_text import as_cell
from fieldray.reasons import OF_MANY
from fieldray.reports.content import CATEGORY_TEXTS, place

_HEADER: Final = f"{'result':<13} {'score':>6} {'at':>6}  file"


def work_list_lines(results: Iterable[StoredResult]) -> Iterator[str]:
    """A header, then a line per image: result, score, threshold, file; below it the reason or the notes, if any."""
    is_first = True
    for result in results:
        if is_first:
            yield _HEADER
            is_first = False
        yield _line(result)
        if not isinstance(result.outcome, Screened):
            yield f"{'':<29}{result.outcome.reason.text}"
        for note in (note for note in notes_of(result.outcome) if note.code not in OF_MANY):
            yield f"{'':<29}{note.text}"


def _line(result: StoredResult) -> str:
    outcome = result.outcome
    finding = leading_finding(outcome)
    score = f"{finding.score:.3f}" if finding else "-"
    threshold = f"{finding.point.threshold:.3f}" if finding and finding.point else "-"
    name = CATEGORY_TEXTS[outcome.category]
    frame = f"#{outcome.ref.frame}" if outcome.ref.header.number_of_frames > 1 else ""
    shown = name.upper() if name == "abnormal" else name
    return f"{shown:<13} {score:>6} {threshold:>6}  {as_cell(place(outcome.ref))}{frame}"

"""One row of the work list: an outcome with what the list needs to sort, find and show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fieldray.desktop.words import file_name, leading_finding, person
from fieldray.domain.finding import Category, Failed, Finding, Outcome, Refused, Screened
from fieldray.domain.model import Manifest
from fieldray.domain.run import Verdict
from fieldray.domain.study import ImageHeader
from fieldray.reasons import Reason

# What needs eyes first comes first; normals are last of what was read, never hidden.
ORDER: Final[tuple[Category, ...]] = ("abnormal", "not_sure", "not_assessed", "normal", "refused", "failed")


@dataclass(eq=False, slots=True)
class WorkRow:
    """An image of the run. `manifest`: the pack's, whose texts and calibration belong to the result."""

    row_id: int
    outcome: Outcome
    manifest: Manifest | None = None
    verdict: Verdict | None = None

    @property
    def category(self) -> Category:
        return self.outcome.category

    @property
    def header(self) -> ImageHeader:
        return self.outcome.ref.header

    @property
    def finding(self) -> Finding | None:
        return leading_finding(self.outcome)

    @property
    def reason(self) -> Reason | None:
        """Why the film has no score."""
        return self.outcome.reason if isinstance(self.outcome, Refused | Failed) else None

    @property
    def score(self) -> float:
        """The deciding finding's score, -1 without one (sorts below all others)."""
        finding = self.finding
        return finding.score if finding else -1.0

    @property
    def backend(self) -> str:
        return self.outcome.backend if isinstance(self.outcome, Screened) else ""

    @property
    def inference_ms(self) -> float:
        """Time of the network alone, -1 if it did not run."""
        return self.outcome.inference_ms if isinstance(self.outcome, Screened) else -1.0

    @property
    def urgency(self) -> tuple[int, float, int]:
        """The default order, smallest first: class, then the higher score, then as they came."""
        return ORDER.index(self.category), -self.score, self.row_id

    @property
    def searched(self) -> str:
        """What the search box looks through, in lower case."""
        header = self.header
        parts = (person(header.patient_name), header.patient_id, header.study_date, file_name(self.outcome.ref))
        return " ".join(parts).casefold()

"""One row of the work list: an outcome with what the list needs to sort, find and show it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from fieldray.domain.finding import (
    Category,
    Finding,
    Outcome,
    Screened,
    leading_finding,
    why_of,
)
from fieldray.domain.model import Manifest
from fieldray.domain.run import Verdict
from fieldray.domain.study import ImageHeader
from fieldray.formatting import file_name, person
from fieldray.reasons import Reason
from fieldray.translation import Translator

_states = itertools.count()


@dataclass(eq=False, slots=True, weakref_slot=True)
class WorkRow:
    """An image of the run. `manifest`: the pack's, whose texts and calibration belong to the result.

    finding  the one that decides the class, None without a score
    state    a number that no other row has, nor this one once it took another outcome
    """

    row_id: int
    outcome: Outcome
    manifest: Manifest | None = None
    verdict: Verdict | None = None
    category: Category = field(init=False)
    finding: Finding | None = field(init=False)
    state: int = field(init=False)

    def __post_init__(self) -> None:
        self.state = next(_states)
        self.category = self.outcome.category
        self.finding = leading_finding(self.outcome)

    def take(self, newer: WorkRow) -> None:
        """The image was done again: the row stays, its outcome is the newer one, with no verdict of its own yet."""
        self.outcome, self.manifest, self.verdict = newer.outcome, newer.manifest, newer.verdict
        self.__post_init__()

    @property
    def header(self) -> ImageHeader:
        return self.outcome.ref.header

    @property
    def reason(self) -> Reason | None:
        """Why the image has no score, or must be read first."""
        return why_of(self.outcome)

    @property
    def score(self) -> float:
        """The deciding finding's score, -1 without one (sorts below all others)."""
        return self.finding.score if self.finding else -1.0

    @property
    def backend(self) -> str:
        return self.outcome.backend if isinstance(self.outcome, Screened) else ""

    @property
    def inference_ms(self) -> float:
        """Time of the network alone, -1 if it did not run."""
        return self.outcome.inference_ms if isinstance(self.outcome, Screened) else -1.0


def image_title(translator: Translator, row_id: int, outcome: Outcome, *, hides_patient: bool = False) -> str:
    """What an image is called in the list: the patient's name, else that of the file; its number if both are hidden."""
    if hides_patient:
        return translator.text("Image {number}", number=row_id)
    return person(outcome.ref.header.patient_name) or file_name(outcome.ref)

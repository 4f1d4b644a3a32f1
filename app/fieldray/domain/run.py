"""What a run was asked to do, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fieldray.domain.events import RunState
from fieldray.domain.finding import Category, Outcome, can_be_overruled, can_be_turned
from fieldray.domain.image import UPRIGHT, Turn
from fieldray.domain.model import OperatingPoint, Trust
from fieldray.reasons import Reason

VerdictChoice = Literal["agree", "disagree", "unsure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What was asked for. Two runs with the same `paths`, `model_sha256` and `settings_hash` do the same work.

    paths             absolute, as given
    settings_hash     of everything beside the model file that decides a result (see domain/assessment)
    operating_points  those in force, at most one a label
    lungs_pack        the lung-field pack that ran before it (see `Model.lungs_pack`), "" for none
    """

    paths: tuple[str, ...]
    pack_name: str
    trust: Trust
    fingerprint: str
    model_sha256: str
    settings_hash: str
    operating_points: tuple[OperatingPoint, ...] = ()
    program_version: str = ""
    lungs_pack: str = ""

    @property
    def work(self) -> tuple[object, ...]:
        """What makes two runs the same work, so that one resumes the other; the order of the paths does not matter."""
        return sorted(self.paths), self.pack_name, self.model_sha256, self.settings_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a person asked for beside the pack's own rules; each result that it changes says so.

    overrules  screen what is refused for what they can see to be wrong (`finding.can_be_overruled`)
    turns      turn images that lie on their side, upside down or inverted
    """

    overrules: bool = False
    turns: bool = False

    def will_turn(self, why: Reason, turn: Turn) -> bool:
        """Whether an image that is refused for this is set right and looked at again; `turn` is how it was turned."""
        return self.turns and can_be_turned(why) and turn == UPRIGHT

    def will_overrule(self, why: Reason, turn: Turn) -> bool:
        """Whether it is screened although it is refused for this. Turning comes first."""
        return self.overrules and can_be_overruled(why) and not self.will_turn(why, turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run in the store; times are seconds since 1970 (UTC), `ended_s` None while it is not over.

    state    "interrupted" where it did not end and nobody works on it: its program was killed, or the power went
    together_id  the same for the runs of several packs over the same images in one pass; None for a run of its own
    """

    run_id: int
    spec: RunSpec
    state: RunState | Literal["interrupted"]
    reason: Reason | None
    started_s: float
    ended_s: float | None
    together_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the reader thinks of a result: stored beside the program's own, never over it.

    It belongs to the content, the model and the score that were judged, and does not pass to another result.
    """

    choice: VerdictChoice
    note: str = ""

    def __post_init__(self) -> None:
        if self.choice not in ("agree", "disagree", "unsure"):
            raise ValueError(f"a verdict is agree, disagree or unsure, not {self.choice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierVerdict:
    """A verdict on something that its place in a run does not hold any more: other bytes, another score, or nothing.

    image           the key of the image (`ImageRef.key`)
    content_sha256  of the bytes that were judged, empty if they could not be read
    score           the highest one, None if there was none
    given_s         seconds since 1970 (UTC)
    """

    image: str
    content_sha256: str
    category: Category
    score: float | None
    verdict: Verdict
    given_s: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredResult:
    """One image's outcome as stored.

    is_resumed  taken over from an earlier start of the program
    is_sampled  and that without reading all of the file, which was known by its size, times and a part of its content
    is_read     whether a person has read the image, with or without a verdict
    """

    row_id: int
    run_id: int
    outcome: Outcome
    is_resumed: bool
    verdict: Verdict | None = None
    is_sampled: bool = False
    is_read: bool = False

    @property
    def identity(self) -> tuple[str, int]:
        """The same in every run for the same bytes; of a file that could not be read, its name is all there is."""
        return (self.outcome.facts.content_sha256 or self.outcome.ref.key, self.outcome.ref.frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resuming:
    """How results of earlier runs are taken over.

    verifies      for a file that is known by its whole content alone, not by a sample of it
    reports_each  each is reported with its outcome, or only how many of each kind (`events.ResultsTakenOver`)
    """

    verifies: bool = False
    reports_each: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftSample:
    """The little of a stored result that one run is compared with others by.

    scores           calibrated, by label
    grey             median of the thumbnail, 0 (black) to 255; None if the image was not read
    evidence_inside  share of the evidence that lies inside the lungs, 0..1; None where no lungs were looked for
    """

    category: Category
    scores: Mapping[str, float]
    grey: float | None
    evidence_inside: float | None = None

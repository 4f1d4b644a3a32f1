"""Lists of runs and of a run's results: what they show, what is wanted and in which order, and how two runs differ."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.finding import Category, image_count
from fieldray.domain.model import Manifest, OperatingPoint
from fieldray.domain.run import CONTRADICTING, PackOfRun, PackSpec, Run, VerdictChoice
from fieldray.reasons import Reason

VerdictFilter = Literal["any", "given", "none", "disagreed"]
ReadingFilter = VerdictFilter | Literal["unread"]


def has_verdict(choice: VerdictChoice | None, wanted: VerdictFilter) -> bool:
    """Whether a result with this verdict (None: no verdict) passes the filter `wanted`."""
    if wanted == "any":
        return True
    if wanted == "disagreed":
        return choice in CONTRADICTING
    return (choice is not None) == (wanted == "given")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RunSummary:
    """A run and what came out. All counts are of images that are present in it.

    counts       images by category: that of their most urgent answer
    backends     answers by what ran the model, "" for those that it did not run for
    verdicts     answers by the verdict that a person gave
    not_present  images that the run once saw and its last whole pass did not
    """

    run: Run
    counts: Mapping[Category, int] = field(default_factory=dict)
    backends: Mapping[str, int] = field(default_factory=dict)
    verdicts: Mapping[VerdictChoice, int] = field(default_factory=dict)
    not_present: int = 0

    @property
    def total(self) -> int:
        """The number of images."""
        return image_count(self.counts)

    @property
    def judged(self) -> int:
        """The number of answers that a person gave a verdict on."""
        return sum(self.verdicts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter of runs.

    text          part of a pack's name or of a path, whatever its case
    since, until  the first and the last day on which a run may have begun, by this computer's time zone
    verdict       any run, or runs with verdicts, with results that nobody judged, or with disagreements
    backend       runs in which this device ran; "" for all runs
    """

    text: str = ""
    since: datetime.date | None = None
    until: datetime.date | None = None
    verdict: VerdictFilter = "any"
    backend: str = ""

    def has(self, summary: RunSummary) -> bool:
        """Whether a run passes the filter."""
        spec = summary.run.spec
        searched = (*(pack.pack_name for pack in spec.packs), *spec.paths)
        if self.text and not any(self.text.casefold() in found.casefold() for found in searched):
            return False
        day = datetime.datetime.fromtimestamp(summary.run.started_s).date()
        if (self.since and day < self.since) or (self.until and day > self.until):
            return False
        if self.backend and not summary.backends.get(self.backend):
            return False
        return self._has_verdict(summary)

    def _has_verdict(self, summary: RunSummary) -> bool:
        if self.verdict == "disagreed":
            return any(summary.verdicts.get(choice) for choice in CONTRADICTING)
        if self.verdict == "none":
            return summary.judged < summary.total
        return self.verdict == "any" or summary.judged > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBrief:
    """A stored answer without header, maps and previews.

    row_id               of its image
    position             of its pack in the run
    key                  names the image within its run (see `store.rows.image_key`)
    image                the same for a person: path, member, frame
    label, score, point  of the finding that decides the category; "" and None where there is none
    backend              what ran the model, "" if nothing did
    verdict              what a person said of it
    why                  why the image was refused or failed, None where it was screened
    notes                what a person should know of the result
    """

    row_id: int
    run_id: int = 0
    position: int = 0
    key: bytes
    image: str
    content_sha256: str
    frame: int
    category: Category
    label: str = ""
    score: float | None = None
    point: OperatingPoint | None = None
    backend: str = ""
    verdict: VerdictChoice | None = None
    why: Reason | None = None
    notes: tuple[Reason, ...] = ()

    @property
    def threshold(self) -> float | None:
        """The threshold of the operating point, None without one."""
        return self.point.threshold if self.point else None

    @property
    def identity(self) -> tuple[str, int]:
        """The identity of the image in all runs: hash of the bytes (else the name) and frame."""
        return (self.content_sha256 or self.image, self.frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The number of images of a period that a pack put into one class, for one reason, with one verdict.

    spec  the pack and its operating points
    """

    spec: PackSpec
    category: Category
    why: Reason | None
    verdict: VerdictChoice | None
    images: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Month:
    """A month of a site, that begins on the day `first`.

    tallies    of the images that each pack first saw in it
    manifests  what these packs say, by their names; None for one that is not at hand
    checks     what came of the checks of constancy
    """

    first: datetime.date
    tallies: Sequence[Tally]
    manifests: Mapping[str, Manifest | None]
    checks: Sequence[Reason]


# ---- two runs


@dataclass(frozen=True, slots=True)
class ResultPair:
    """The results of two runs for the same image."""

    first: ResultBrief
    second: ResultBrief

    @property
    def has_changed(self) -> bool:
        """Whether the class of the image differs between both results."""
        return self.first.category != self.second.category

    @property
    def difference(self) -> float | None:
        """Second score less first; None where either has none, or they are of different labels."""
        if self.first.score is None or self.second.score is None or self.first.label != self.second.label:
            return None
        return self.second.score - self.first.score


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Comparison:
    """Two runs, or two packs of a run, image by image.

    first, second            the runs
    positions                of the packs whose answers are compared
    pairs                    of every image in both: those in another class first, then by the difference of scores
    only_first, only_second  what is in one of them alone
    manifests                of the packs of either run, None where one is not at hand
    """

    first: Run
    second: Run
    positions: tuple[int, int] = (0, 0)
    pairs: tuple[ResultPair, ...]
    only_first: tuple[ResultBrief, ...]
    only_second: tuple[ResultBrief, ...]
    manifests: tuple[Manifest | None, Manifest | None] = (None, None)

    @property
    def sides(self) -> tuple[tuple[PackOfRun, PackSpec], tuple[PackOfRun, PackSpec]]:
        """Both sides of the comparison, each with its pack."""
        first, second = zip((self.first, self.second), self.positions, strict=True)
        return _side(*first), _side(*second)

    @property
    def moves(self) -> Mapping[tuple[Category, Category], int]:
        """The number of images by their class in both runs, unchanged images included."""
        return Counter((pair.first.category, pair.second.category) for pair in self.pairs)

    @property
    def changed(self) -> int:
        """The number of images in another class."""
        return sum(pair.has_changed for pair in self.pairs)

    @property
    def is_same_label(self) -> bool:
        """Whether all scores are of one and the same label."""
        labels = {found.label for pair in self.pairs for found in (pair.first, pair.second) if found.label}
        return len(labels) <= 1


def _side(run: Run, position: int) -> tuple[PackOfRun, PackSpec]:
    return PackOfRun(run.run_id, position), run.spec.packs[position]


def compare(
    first: Run,
    first_results: Iterable[ResultBrief],
    second: Run,
    second_results: Iterable[ResultBrief],
    *,
    positions: tuple[int, int] = (0, 0),
) -> Comparison:
    """Match the answers of two packs by what is in the files; of the same bytes twice in a run, the first counts."""
    before, after = _by_identity(first_results), _by_identity(second_results)
    pairs = [ResultPair(found, after[key]) for key, found in before.items() if key in after]
    pairs.sort(key=lambda pair: (not pair.has_changed, -abs(pair.difference or 0.0), pair.first.image))
    return Comparison(
        first=first,
        second=second,
        positions=positions,
        pairs=tuple(pairs),
        only_first=tuple(found for key, found in before.items() if key not in after),
        only_second=tuple(found for key, found in after.items() if key not in before),
    )


def _by_identity(results: Iterable[ResultBrief]) -> dict[tuple[str, int], ResultBrief]:
    found: dict[tuple[str, int], ResultBrief] = {}
    for result in results:
        found.setdefault(result.identity, result)
    return found


# ---- deleting


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    """What deleting runs, or one patient, would take away, so that a person can be asked.

    run_ids        of the runs; of a patient those that have images of the patient, and stay
    patient_id     of the patient whose images alone are deleted, in all runs; "" where whole runs are
    results        answers, those of images that are not present any more included
    verdicts       what a person said of them and nowhere else: lost for good
    verdicts_kept  verdicts on them that stay with the same result in another run
    """

    run_ids: tuple[int, ...]
    results: int
    verdicts: int
    verdicts_kept: int
    patient_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """What was deleted.

    plan         what it was
    freed_bytes  by how much the store has shrunk; less than 0 if something was added meanwhile
    is_wiped     whether the bytes are gone from the store's files: another program that reads keeps them meanwhile
    copies_left  files that may still hold them: damaged stores that were set aside
    """

    plan: DeletionPlan
    freed_bytes: int
    is_wiped: bool
    copies_left: Sequence[str] = ()


# ---- the work list of a run


ListColumn = Literal["image", "patient", "date", "view", "class", "score", "backend", "ms", "status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFilter:
    """Which results are wanted.

    category  the only class, None for all
    backend   what ran the model, "" for anything
    verdict   results with such a verdict, or those that nobody has read
    text      parts of the patient's name, the number, the study date or the file name, in any order, whatever their
              case and accents
    staying   rows that stay whatever verdict is on them: those that were judged or read since the verdict was chosen
    """

    category: Category | None = None
    backend: str = ""
    verdict: ReadingFilter = "any"
    text: str = ""
    staying: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ResultOrder:
    """What results are sorted by: without a column by class, what needs eyes first on top; so are equal ones.

    By class an image of an earlier day than its patient's newest one is behind all that are of today.

    by_patient  whether all images of a patient, and of each study, stand where the first one of them would
    """

    column: ListColumn = "class"
    is_descending: bool = False
    by_patient: bool = False


# What begins in a row of a list by patient: nothing, another study of the same patient, or another patient.
SAME_STUDY, NEW_STUDY, NEW_PATIENT = range(3)
_MOST_OF_A_PATIENT: Final = 1000


class Group(NamedTuple):
    """A row among those of its patient.

    begins       what begins in it
    next_begins  what begins in the next one, another patient after the last
    size         the number of rows up to the next patient; counted no further than to 1000
    """

    begins: int
    next_begins: int
    size: int


def group_at(begins: NDArray[np.uint8], position: int) -> Group | None:
    """How a row stands among those of its patient, by what `Listed.begins` says; None where it says nothing."""
    if position >= len(begins):
        return None
    ahead = begins[position + 1 : position + _MOST_OF_A_PATIENT]
    others = np.flatnonzero(ahead == NEW_PATIENT)
    return Group(
        begins=int(begins[position]),
        next_begins=int(ahead[0]) if len(ahead) else NEW_PATIENT,
        size=1 + (int(others[0]) if len(others) else len(ahead)),
    )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Listed:
    """What a work list holds at a moment.

    row_ids     (n,) int64, the rows of the results that are wanted, in order
    begins      (n,) uint8, what begins in each of them by patient (`NEW_PATIENT`); (0,) in a list that is not by
                patient
    is_earlier  (n,) of an earlier day than the newest image of the same patient in the run (`domain.patient`)
    counts      all images of the run by class, whatever is wanted
    """

    row_ids: NDArray[np.int64]
    begins: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    is_earlier: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    counts: Mapping[Category, int] = field(default_factory=dict)

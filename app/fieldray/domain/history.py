"""Lists of runs and of results: their rows, filters and order, and the comparison of two runs."""

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
from fieldray.domain.run import CONTRADICTING_VERDICT_CHOICES, PackOfRun, PackSpec, Run, VerdictChoice
from fieldray.reasons import Reason

VerdictFilter = Literal["any", "given", "none", "disagreed"]
ReadingFilter = VerdictFilter | Literal["unread"]


def verdict_passes(choice: VerdictChoice | None, wanted: VerdictFilter) -> bool:
    """Return whether a result passes a filter by verdict.

    choice  the verdict of the result; None without a verdict
    wanted  the filter: "any", "given", "none" or "disagreed"
    """
    if wanted == "any":
        return True
    if wanted == "disagreed":
        return choice in CONTRADICTING_VERDICT_CHOICES
    return (choice is not None) == (wanted == "given")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RunSummary:
    """A run with its counts. Images that the run's last complete pass did not find count only in `absent_image_count`.

    counts              number of images by the category of their most urgent result
    counts_by_backend   number of results by backend; the key "" is for results without a backend
    counts_by_verdict   number of results by the reader's verdict
    absent_image_count  number of images that an earlier pass of the run found and the last complete pass did not find
    """

    run: Run
    counts: Mapping[Category, int] = field(default_factory=dict)
    counts_by_backend: Mapping[str, int] = field(default_factory=dict)
    counts_by_verdict: Mapping[VerdictChoice, int] = field(default_factory=dict)
    absent_image_count: int = 0

    @property
    def image_count(self) -> int:
        """The number of images of the run. Files that are no images are not counted."""
        return image_count(self.counts)

    @property
    def verdict_count(self) -> int:
        """The number of results that have a reader's verdict."""
        return sum(self.counts_by_verdict.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter of runs.

    text          part of a pack's name or of a path; letter case does not matter
    since, until  the first and the last day on which a run may have begun, in this computer's time zone
    verdict       "any": all runs; "given": runs with verdicts; "none": runs with results without a verdict;
                  "disagreed": runs in which a reader disagreed with a result
    backend       the backend that gave results in the run; "" for all runs
    """

    text: str = ""
    since: datetime.date | None = None
    until: datetime.date | None = None
    verdict: VerdictFilter = "any"
    backend: str = ""

    def accepts(self, summary: RunSummary) -> bool:
        """Return whether a run passes this filter."""
        spec = summary.run.spec
        searched = (*(pack.pack_name for pack in spec.packs), *spec.paths)
        if self.text and not any(self.text.casefold() in found.casefold() for found in searched):
            return False
        day = datetime.datetime.fromtimestamp(summary.run.started_s).date()
        if (self.since and day < self.since) or (self.until and day > self.until):
            return False
        if self.backend and not summary.counts_by_backend.get(self.backend):
            return False
        return self._has_verdict(summary)

    def _has_verdict(self, summary: RunSummary) -> bool:
        if self.verdict == "disagreed":
            return any(summary.counts_by_verdict.get(choice) for choice in CONTRADICTING_VERDICT_CHOICES)
        if self.verdict == "none":
            return summary.verdict_count < summary.image_count
        return self.verdict == "any" or summary.verdict_count > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultBrief:
    """A stored result of one pack for one image, without header, maps and previews.

    row_id               row of the image in the results database
    pack_position        position of the pack in the run
    image_key            identifies the image within its run (see `store.rows.image_key`)
    image_name           names the image for a person: path, member, frame
    label, score, point  label, score and operating point of the finding that decides the category. Without a finding,
                         `label` is "", and `score` and `point` are None
    backend              the backend that ran the model; "" if no backend did
    verdict              the reader's verdict, or None
    reason               the reason why the image was refused, failed, or is to be read first; None for every other
                         image
    notes                notes for a person about the result
    """

    row_id: int
    run_id: int = 0
    pack_position: int = 0
    image_key: bytes
    image_name: str
    content_sha256: str
    frame: int
    category: Category
    label: str = ""
    score: float | None = None
    point: OperatingPoint | None = None
    backend: str = ""
    verdict: VerdictChoice | None = None
    reason: Reason | None = None
    notes: tuple[Reason, ...] = ()

    @property
    def threshold(self) -> float | None:
        """The threshold of the operating point; None without an operating point."""
        return self.point.threshold if self.point else None

    @property
    def image_identity(self) -> tuple[str, int]:
        """The identity of the image in all runs: SHA-256 of the image's file, and number of the frame.

        If the SHA-256 is unknown, the text that names the image (`image_name`) takes its place.
        """
        return (self.content_sha256 or self.image_name, self.frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTally:
    """The number of images in a period whose results have the same pack, class, reason and reader's verdict.

    spec  the pack with its operating points
    """

    spec: PackSpec
    category: Category
    reason: Reason | None
    verdict: VerdictChoice | None
    image_count: int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MonthlyCounts:
    """The counts of the images that a site screened in one month.

    first_day          first day of the month
    tallies            counts of images by pack. An image counts in the month in which the pack first screened the image
    manifests          the packs' manifests by pack name; None for a pack that is not available
    constancy_results  the results of the constancy tests
    """

    first_day: datetime.date
    tallies: Sequence[ImageTally]
    manifests: Mapping[str, Manifest | None]
    constancy_results: Sequence[Reason]


# ---- the comparison of two runs


@dataclass(frozen=True, slots=True)
class ResultPair:
    """The results of one image in two runs."""

    first: ResultBrief
    second: ResultBrief

    @property
    def has_changed(self) -> bool:
        """Whether the image has different classes in the two runs."""
        return self.first.category != self.second.category

    @property
    def score_difference(self) -> float | None:
        """The second score minus the first score; None if a score is missing or the labels differ."""
        if self.first.score is None or self.second.score is None or self.first.label != self.second.label:
            return None
        return self.second.score - self.first.score


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RunComparison:
    """The comparison of two runs, or of two packs of one run, image by image.

    first, second                  the runs
    pack_positions                 positions of the compared packs in their runs
    pairs                          images that are in both runs: changed classes first, then by the difference of scores
    only_in_first, only_in_second  images that are only in the first run, and images that are only in the second run
    manifests                      manifests of the compared packs; None for a pack that is not available
    """

    first: Run
    second: Run
    pack_positions: tuple[int, int] = (0, 0)
    pairs: tuple[ResultPair, ...]
    only_in_first: tuple[ResultBrief, ...]
    only_in_second: tuple[ResultBrief, ...]
    manifests: tuple[Manifest | None, Manifest | None] = (None, None)

    @property
    def compared_packs(self) -> tuple[tuple[PackOfRun, PackSpec], tuple[PackOfRun, PackSpec]]:
        """The two compared packs. Each entry is the run and position of a pack (`PackOfRun`), and the pack itself."""
        first, second = zip((self.first, self.second), self.pack_positions, strict=True)
        return _side(*first), _side(*second)

    @property
    def counts_by_classes(self) -> Mapping[tuple[Category, Category], int]:
        """The number of images for each pair (class in the first run, class in the second run)."""
        return Counter((pair.first.category, pair.second.category) for pair in self.pairs)

    @property
    def changed_count(self) -> int:
        """The number of images with different classes in the two runs."""
        return sum(pair.has_changed for pair in self.pairs)

    @property
    def has_single_label(self) -> bool:
        """Whether all scores of the compared images are of one label."""
        labels = {found.label for pair in self.pairs for found in (pair.first, pair.second) if found.label}
        return len(labels) <= 1


def _side(run: Run, position: int) -> tuple[PackOfRun, PackSpec]:
    return PackOfRun(run.run_id, position), run.spec.packs[position]


def compare_runs(
    first: Run,
    first_results: Iterable[ResultBrief],
    second: Run,
    second_results: Iterable[ResultBrief],
    *,
    pack_positions: tuple[int, int] = (0, 0),
) -> RunComparison:
    """Compare the results of two packs, in two runs or in one run. Images are matched by the content of their files.

    Of several images with equal bytes in a run, only the first is compared.

    pack_positions  positions of the packs in their runs
    """
    before, after = _by_identity(first_results), _by_identity(second_results)
    pairs = [ResultPair(found, after[key]) for key, found in before.items() if key in after]
    pairs.sort(key=lambda pair: (not pair.has_changed, -abs(pair.score_difference or 0.0), pair.first.image_name))
    return RunComparison(
        first=first,
        second=second,
        pack_positions=pack_positions,
        pairs=tuple(pairs),
        only_in_first=tuple(found for key, found in before.items() if key not in after),
        only_in_second=tuple(found for key, found in after.items() if key not in before),
    )


def _by_identity(results: Iterable[ResultBrief]) -> dict[tuple[str, int], ResultBrief]:
    found: dict[tuple[str, int], ResultBrief] = {}
    for result in results:
        found.setdefault(result.image_identity, result)
    return found


# ---- the deletion of runs and of a patient's images


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    """The extent of a deletion of runs, or of one patient, for a person to confirm.

    run_ids             the runs to delete. For a patient: the runs that contain images of the patient; these runs are
                        not deleted
    patient_id          the patient whose images are deleted from all runs; "" if whole runs are deleted
    result_count        number of results to delete, including results of images whose files the last pass did not find
    verdict_count       number of verdicts that are stored nowhere else and will be lost
    kept_verdict_count  number of verdicts that stay with an equal result in another run
    """

    run_ids: tuple[int, ...]
    result_count: int
    verdict_count: int
    kept_verdict_count: int
    patient_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionResult:
    """The result of a deletion.

    plan                         the plan that was carried out
    freed_bytes                  how much smaller the database is; below 0 if results were added meanwhile
    is_deleted_data_overwritten  whether the deleted bytes are gone from the database's files; False if another program
                                 was reading the files
    files_with_possible_copies   files that may still contain the deleted results: damaged databases that were set aside
    """

    plan: DeletionPlan
    freed_bytes: int
    is_deleted_data_overwritten: bool
    files_with_possible_copies: Sequence[str] = ()


# ---- the work list of a run


WorkListColumnName = Literal["image", "patient", "date", "view", "class", "score", "backend", "ms", "status"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFilter:
    """A filter of results.

    category              the only class; None for all classes
    backend               the backend that ran the model; "" for all backends
    verdict               "any", "given", "none" or "disagreed" (see `RunFilter`); "unread" for results that nobody has
                          read
    text                  parts of the patient's name, patient ID, study date or file name, in any order; letter case
                          and accents do not matter
    always_shown_row_ids  row ids that always pass the verdict filter: rows judged or read since the filter was chosen
    """

    category: Category | None = None
    backend: str = ""
    verdict: ReadingFilter = "any"
    text: str = ""
    always_shown_row_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ResultOrder:
    """The order of results in the work list.

    column                 the column to sort by; "class" puts the most urgent class on top. Rows with equal values are
                           sorted by class
    is_descending          whether the order of the column is reversed
    is_grouped_by_patient  whether the images of each patient, and of each study, stay together. Patients are then in
                           the order of their first images

    In the order by class, images of earlier days come after all other images. An image is of an earlier day if the run
    has an image of a later day of the patient.
    """

    column: WorkListColumnName = "class"
    is_descending: bool = False
    is_grouped_by_patient: bool = False


# What begins in a row of a list by patient: nothing new, another study of one patient, or another patient.
SAME_STUDY, NEW_STUDY, NEW_PATIENT = range(3)
_MAX_IMAGES_OF_PATIENT: Final = 1000


class RowInPatientGroup(NamedTuple):
    """A row of a work list, in relation to the other rows of its patient.

    group_start_kind           whether the row begins a study or a patient: `SAME_STUDY`, `NEW_STUDY` or `NEW_PATIENT`
    next_row_group_start_kind  whether the next row begins a study or a patient; `NEW_PATIENT` after the last row
    remaining_row_count        number of the patient's rows from this row on, counted up to 1000
    """

    group_start_kind: int
    next_row_group_start_kind: int
    remaining_row_count: int


def row_in_patient_group_at(group_start_kinds: NDArray[np.uint8], position: int) -> RowInPatientGroup | None:
    """Return where a patient begins and ends around a row; None if the list is not ordered by patient.

    group_start_kinds  `WorkListRows.group_start_kinds` of the list
    position           position of the row in the list
    """
    if position >= len(group_start_kinds):
        return None
    ahead = group_start_kinds[position + 1 : position + _MAX_IMAGES_OF_PATIENT]
    others = np.flatnonzero(ahead == NEW_PATIENT)
    return RowInPatientGroup(
        group_start_kind=int(group_start_kinds[position]),
        next_row_group_start_kind=int(ahead[0]) if len(ahead) else NEW_PATIENT,
        remaining_row_count=1 + (int(others[0]) if len(others) else len(ahead)),
    )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class WorkListRows:
    """The content of a work list at one moment.

    row_ids                     (n,) int64, the row ids of the filtered results, in the order of the list
    group_start_kinds           (n,) uint8, whether each row begins a study or a patient (`SAME_STUDY`, `NEW_STUDY`,
                                `NEW_PATIENT`); (0,) if the list is not ordered by patient
    has_newer_image_of_patient  (n,) bool, whether the image is of an earlier day than its patient's newest image in the
                                run
    counts                      number of images of the run by class, without the filter
    """

    row_ids: NDArray[np.int64]
    group_start_kinds: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    has_newer_image_of_patient: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    counts: Mapping[Category, int] = field(default_factory=dict)

"""Measure how often reading images at a reduced resolution changes the decision: each image is screened in both ways.

If the score at reduced resolution is close to a threshold, the image is read again in finer detail, as in screening.
Images below one megapixel would hardly be reduced. So these images are enlarged, get the noise of a detector, and are
written as files of several kinds in turn.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.image_files import IMAGE_KINDS, ImageKind, enlarge_image, read_image, write_image
from benchmarks.reports import Goal, max_goal
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.domain.finding import Decision, FailedOutcome, Outcome, ScreenedOutcome
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Model
from fieldray.domain.pack_setup import PackSetup, set_up_pack
from fieldray.errors import InputProblem, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.inference.engine import Engine
from fieldray.pipeline.screen import screen_image
from fieldray.process_environment import usable_cores
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.workers.pool import WorkerPool, open_workers
from fieldray.workers.readiness import ModelReadiness

_MIN_PIXELS: Final = 1_000_000
_MEGAPIXELS: Final = (1.0, 1.5, 2.0, 3.0)
_IMAGES_PER_BATCH: Final = 20

Notify = Callable[[str], None]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SingleImageScreener:
    """Screens single images with a pack, with the processes and the device of normal screening."""

    setup: PackSetup
    workers: WorkerPool
    engine: Engine

    def screen(self, ref: ImageRef, *, at_full_resolution: bool) -> Outcome:
        """Screen an image, and return the outcome.

        The image is read at full resolution if `at_full_resolution`, else at the resolution that screening needs.
        """
        return screen_image(
            ref,
            setup=self.setup,
            workers=self.workers,
            engine=self.engine,
            detail="full" if at_full_resolution else "needed",
        )


@dataclass(frozen=True, slots=True)
class DecisionPair:
    """One label of one image: calibrated scores and decisions, first at reduced resolution, then at full resolution.

    An image that is not suitable has the score nan and the decision "not_assessed". `is_close` is whether the score at
    reduced resolution was close to a threshold, so that the first values come from a finer reading.
    """

    kind: str
    label: str
    scores: tuple[float, float]
    decisions: tuple[Decision, Decision]
    is_screened: tuple[bool, bool]
    is_close: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether the user sees no difference: equal decisions, or an image not suitable at both resolutions."""
        return self.is_screened in ((True, True), (False, False)) and len(set(self.decisions)) == 1


@dataclass(eq=False, slots=True, kw_only=True)
class DecisionComparison:
    """The results of screening images at reduced and at full resolution.

    Attributes
    ----------
    pairs
        Scores and decisions of each label of each image.
    images
        Number of compared images, by kind of file.
    unreadable_images
        Number of images that could not be read at one of the resolutions, by reason.
    """

    pairs: list[DecisionPair] = field(default_factory=list)
    images: Counter[str] = field(default_factory=Counter)
    unreadable_images: Counter[str] = field(default_factory=Counter)

    @property
    def differences(self) -> NDArray[np.float64]:
        """The absolute differences of calibrated scores, of images with scores at both resolutions; [0] if none."""
        found = [abs(pair.scores[0] - pair.scores[1]) for pair in self.pairs if all(pair.is_screened)]
        return np.array(found or [0.0])

    @property
    def equal_share(self) -> float:
        """The share of pairs without a difference for the user, 0..1."""
        return sum(pair.is_equal for pair in self.pairs) / len(self.pairs)

    @property
    def opposite_decisions(self) -> int:
        """The number of pairs in which one decision is "above" and the other decision is "below"."""
        return sum(set(pair.decisions) == {"above", "below"} for pair in self.pairs)


def run_benchmark(
    model: Model, *, folder: Path, max_images: int, kinds: Sequence[str], notify: Notify
) -> BenchmarkReport:
    """Compare decisions at reduced and full resolution on up to `max_images` images of a folder. Returns the report.

    Raises BackendProblem, UsageProblem (nothing_to_measure).
    """
    cores = usable_cores()
    with contextlib.ExitStack() as open_now:
        workers = open_now.enter_context(contextlib.closing(open_workers(Settings(), cores)))
        engine = open_now.enter_context(Engine(lambda _: None, cpu=functools.partial(ModelReadiness, workers)))
        engine.open(model)
        engine.next_device(model)
        program = SingleImageScreener(setup=set_up_pack(model), workers=workers, engine=engine)
        compared = compare(folder, program, max_images=max_images, cores=cores, kinds=kinds, notify=notify)
    if not compared.pairs:
        raise UsageProblem(reason("nothing_to_measure"))
    return decision_report(compared, pack=model.pack_name, images=f"images of {folder}")


def compare(
    folder: Path,
    program: SingleImageScreener,
    *,
    max_images: int,
    cores: int,
    notify: Notify,
    kinds: Sequence[str] = (),
) -> DecisionComparison:
    """Screen each image of a folder at reduced and at full resolution.

    Parameters
    ----------
    program
        Screens single images.
    max_images
        Largest number of images.
    cores
        Number of images that are read at the same time.
    notify
        A function that is called with messages about the progress.
    kinds
        Kinds of files as which enlarged images are written, in turn; all kinds if empty.

    Raises
    ------
    EnvironmentProblem, OSError
    """
    compared = DecisionComparison()
    refs = itertools.islice((ref for ref in discover([folder]) if ref.problem is None), max_images)
    with tempfile.TemporaryDirectory(prefix="fieldray-bench-") as place, ThreadPoolExecutor(cores) as threads:
        written = [kind for kind in IMAGE_KINDS.values() if kind.name in kinds or not kinds]
        both = functools.partial(_screen_both, place=Path(place), program=program, kinds=written)
        for batch in _batches(refs):
            notify(f"from image {batch[0][0] + 1}")
            for kind, outcomes in threads.map(both, batch):
                _add(compared, kind, outcomes, program.setup)
    return compared


def _screen_both(
    item: tuple[int, ImageRef], *, place: Path, program: SingleImageScreener, kinds: Sequence[ImageKind]
) -> tuple[str, tuple[Outcome, ...]]:
    """Screen an image at reduced and at full resolution. Returns the kind of file, and both outcomes.

    There are no outcomes if the file is no readable image. A file with an enlarged image is deleted afterwards.
    """
    number, source = item
    ages = program.setup.model.manifest.accepted.ages_years
    made = _large_enough(source, number, place, kinds, age_years=sum(ages) // 2 if ages else None)
    if made is None:
        return "", ()
    kind, ref = made
    outcomes = tuple(program.screen(ref, at_full_resolution=in_full) for in_full in (False, True))
    if ref is not source:
        ref.path.unlink()
    return kind, outcomes


def _add(compared: DecisionComparison, kind: str, outcomes: tuple[Outcome, ...], setup: PackSetup) -> None:
    failed = sorted({outcome.reason.code for outcome in outcomes if isinstance(outcome, FailedOutcome)})
    if not outcomes or failed:
        compared.unreadable_images[", ".join(failed) or "source"] += 1
        return
    compared.images[kind] += 1
    for label in setup.model.manifest.labels:
        compared.pairs.append(make_pair(kind, label.code, *outcomes))


def make_pair(kind: str, label: str, reduced: Outcome, full: Outcome) -> DecisionPair:
    """Return scores and decisions of a label from the outcomes at reduced resolution and at full resolution.

    `kind` is the kind of file. The outcomes must not be `FailedOutcome`.
    """
    sides = [_label_of(outcome, label) for outcome in (reduced, full)]
    return DecisionPair(
        kind,
        label,
        scores=(sides[0][0], sides[1][0]),
        decisions=(sides[0][1], sides[1][1]),
        is_screened=(isinstance(reduced, ScreenedOutcome), isinstance(full, ScreenedOutcome)),
        is_close=isinstance(reduced, ScreenedOutcome) and "read_twice" in reduced.facts.notes,
    )


def _label_of(outcome: Outcome, label: str) -> tuple[float, Decision]:
    if not isinstance(outcome, ScreenedOutcome):
        return math.nan, "not_assessed"
    found = next(finding for finding in outcome.findings if finding.label == label)
    return found.score, found.decision


def _batches(refs: Iterator[ImageRef]) -> Iterator[list[tuple[int, ImageRef]]]:
    numbered = enumerate(refs)
    while batch := list(itertools.islice(numbered, _IMAGES_PER_BATCH)):
        yield batch


def _large_enough(
    ref: ImageRef, number: int, place: Path, kinds: Sequence[ImageKind], *, age_years: int | None
) -> tuple[str, ImageRef] | None:
    """Return kind of file and image. An image below one megapixel is enlarged and written as a new file.

    `number` decides the kind of the new file and its size. None if the image cannot be read.
    """
    try:
        shown = read_image(ref)
    except InputProblem:
        return None
    if shown.size >= _MIN_PIXELS:
        return "as it is", ref
    kind, megapixels = kinds[number % len(kinds)], _MEGAPIXELS[number // len(kinds) % len(_MEGAPIXELS)]
    image = enlarge_image(shown, megapixels=megapixels, seed=number)
    path = write_image(place / f"{number:06}", image, kind, number=number, age_years=age_years)
    return kind.name, ImageRef(path=path)


MAX_MEAN_DIFFERENCE: Final = 0.01
MIN_EQUAL_SHARE: Final = 0.995
MIN_IMAGES: Final = 1000


def decision_report(compared: DecisionComparison, *, pack: str, images: str) -> BenchmarkReport:
    """Return the report of a comparison, which must have at least one pair.

    `pack` is the name of the pack. `images` describes the images.
    """
    marks = _marks(compared)
    notes = [
        f"Run on {images} with {pack}. Each image is read twice: at the reduced resolution of screening, and at full "
        "resolution. Nothing else differs. A borderline image is read again at a finer resolution, as in screening. "
        "Decisions are made at each label's first operating point. An image that is refused both times counts as an "
        "equal decision. An image that is refused once counts as a different decision.",
        *(
            f"Not compared: {count} images, {why}."
            for why, count in sorted(compared.unreadable_images.items())
            if count
        ),
    ]
    return BenchmarkReport(
        file_stem="decisions",
        title="Fieldray: decisions on images read at reduced and at full resolution",
        blocks=(
            _by_kind(compared),
            _decisions(compared),
            BulletList("Goals", tuple(mark.sentence for mark in marks)),
            BulletList("How it was measured", tuple(notes)),
        ),
        json_values=_data(compared, marks, pack=pack, images=images),
    )


def _marks(compared: DecisionComparison) -> tuple[Goal, ...]:
    differences = compared.differences
    count, mean = float(sum(compared.images.values())), float(differences.mean())
    return (
        Goal(name="Images compared", measured=count, goal=MIN_IMAGES, unit="images"),
        max_goal("Mean difference of scores", mean, MAX_MEAN_DIFFERENCE, unit=""),
        Goal(name="Share of equal decisions", measured=compared.equal_share, goal=MIN_EQUAL_SHARE, unit=""),
        max_goal("Changes between above and below", compared.opposite_decisions, 0, unit="images"),
    )


def _by_kind(compared: DecisionComparison) -> Table:
    columns = ("kind of file", "images", "borderline", "mean", "99th percentile", "largest", "equal decisions")
    rows = [_row(kind, images, compared) for kind, images in compared.images.items()]
    rows.append(_row("all", sum(compared.images.values()), compared))
    return Table("Absolute difference of the calibrated score", columns, tuple(rows))


def _row(kind: str, images: int, compared: DecisionComparison) -> tuple[str, ...]:
    part = DecisionComparison(pairs=[pair for pair in compared.pairs if kind in (pair.kind, "all")])
    moved = part.differences
    twice = f"{sum(pair.is_close for pair in part.pairs) / len(part.pairs):.1%}"
    cells = (twice, f"{moved.mean():.5f}", f"{np.percentile(moved, 99):.4f}", f"{moved.max():.4f}")
    return (kind, str(images), *cells, f"{part.equal_share:.2%}")


def _decisions(compared: DecisionComparison) -> Table:
    """Return a table with the number of images for each decision at reduced and each decision at full resolution."""
    counts = Counter(
        tuple(
            decision if screened else "refused"
            for decision, screened in zip(pair.decisions, pair.is_screened, strict=True)
        )
        for pair in compared.pairs
    )
    rows = tuple((reduced, in_full, str(count)) for (reduced, in_full), count in counts.most_common())
    return Table("Decisions", ("reduced resolution", "full resolution", "images"), rows)


def _data(compared: DecisionComparison, marks: tuple[Goal, ...], *, pack: str, images: str) -> dict[str, Any]:
    return {
        "pack": pack,
        "source": images,
        "images": dict(compared.images),
        "not_compared": dict(compared.unreadable_images),
        "marks": [{"name": mark.name, "measured": mark.measured, "is_met": mark.is_met} for mark in marks],
        "pairs": [
            [pair.kind, pair.label, *pair.scores, *pair.decisions, *pair.is_screened, pair.is_close]
            for pair in compared.pairs
        ],
    }

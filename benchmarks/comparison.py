"""Measure how accurately a prior image is aligned with the current image, and how reliably changes are found.

For warped copies of an image, the right alignment is known exactly. For two X-rays of a patient, the right alignment is
not known to a pixel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison_pairs import Part, PatientPair, insert_opacity, make_warped_copy, read_pairs
from benchmarks.reports import Goal, max_goal
from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table
from fieldray.comparison.compare import averaged_differences, compare, compared_area, robust_deviation
from fieldray.comparison.matching import warp
from fieldray.domain import metrics
from fieldray.domain.comparison import FRAME_SIDE, ChangeRegion, FramedImage
from fieldray.domain.mask import Mask

Notify = Callable[[str], None]
_EVERY: Final = 32  # every 32nd lung pixel is used, because adjacent pixels have similar errors


@dataclass(eq=False, slots=True)
class ComparisonFigures:
    """The measurements of the comparison, with one entry for each image, pair of images, or matched point.

    The first five fields are of warped copies: errors of the displacement in pixels, CPU seconds, whether comparable,
    smallest Jacobian, and noise after the alignment by band. `identical_px` and `identical_regions` are of images
    compared with themselves: 95th percentile of the displacement, and number of reported changes. `dice` is the Dice of
    the lungs before and after the alignment. A pair of one patient: comparable, equal view, patient, reliability. A
    pair of two patients: comparable, patient, seconds.
    """

    errors_px: list[NDArray[np.float64]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    copies_comparable: list[bool] = field(default_factory=list)
    jacobians: list[float] = field(default_factory=list)
    noise_by_band: list[list[float]] = field(default_factory=list)
    identical_px: list[float] = field(default_factory=list)
    identical_regions: list[int] = field(default_factory=list)
    dice: list[tuple[float, float]] = field(default_factory=list)
    same_patient_pairs: list[tuple[bool, bool, str, float]] = field(default_factory=list)
    other_patient_pairs: list[tuple[bool, str, float]] = field(default_factory=list)
    false_regions: dict[str, list[int]] = field(default_factory=lambda: {"copies": [], "stable pairs": []})
    opacity_hits: dict[str, list[tuple[bool, str]]] = field(default_factory=lambda: {"copies": [], "stable pairs": []})


def run_benchmark(data: Path, *, part: Part, max_pairs: int, notify: Notify) -> BenchmarkReport:
    """Measure at most `max_pairs` pairs of images, and return the report.

    `part` is the part of the patients: for choices, or for measuring.
    """
    pairs = read_pairs(data, part, max_pairs=max_pairs, notify=notify)
    generator, found = np.random.default_rng(2026), ComparisonFigures()
    for index, pair in enumerate(pairs):
        notify(f"comparing {index + 1} of {len(pairs)}")
        _measure_copy(pair, generator, found)
        _measure_identical(pair.current, found)
        _measure_pair(pair, generator, found)
        _measure_others(pair, pairs, generator, found)
    return _report(found, part, pairs)


# ---- one pair


def _measure_copy(pair: PatientPair, generator: np.random.Generator, found: ComparisonFigures) -> None:
    prior, copy = pair.prior, make_warped_copy(pair.prior, generator)
    began_s = time.process_time()
    done = compare(prior, copy.image)
    found.seconds.append(time.process_time() - began_s)
    found.copies_comparable.append(done.is_comparable)
    if done.aligned_pair is None:
        return
    alignment = done.aligned_pair.alignment
    found.jacobians.append(alignment.min_jacobian)
    errors = np.linalg.norm((alignment.displacement - copy.displacement).astype(np.float64), axis=2)
    found.errors_px.append(errors[copy.image.lungs][::_EVERY])
    inside = compared_area(prior, copy.image, alignment.displacement)
    bands = averaged_differences(warp(prior.pixels, alignment.displacement), copy.image, inside)
    found.noise_by_band.append([robust_deviation(average, inside) for average in bands.values()])
    found.false_regions["copies"].append(len(done.aligned_pair.regions))
    found.opacity_hits["copies"].append((_finds_opacity(prior, copy.image, generator), pair.patient))


def _measure_identical(image: FramedImage, found: ComparisonFigures) -> None:
    done = compare(image, image)
    found.identical_px.append(done.alignment.displacement_percentile_px(95) if done.alignment else np.inf)
    found.identical_regions.append(len(done.aligned_pair.regions) if done.aligned_pair else 0)


def _measure_pair(pair: PatientPair, generator: np.random.Generator, found: ComparisonFigures) -> None:
    done = compare(pair.prior, pair.current)
    found.same_patient_pairs.append((done.is_comparable, pair.is_same_view, pair.patient, done.reliability or 0.0))
    if done.aligned_pair is None:
        return
    alignment = done.aligned_pair.alignment
    if pair.is_same_view:
        moved = warp(pair.prior.lungs.astype(np.float32), alignment.displacement) > 0.5
        found.dice.append((_dice(pair.prior.lungs, pair.current.lungs), _dice(moved, pair.current.lungs)))
    if pair.is_stable:
        found.false_regions["stable pairs"].append(len(done.aligned_pair.regions))
        hit = _finds_opacity(pair.prior, pair.current, generator)
        found.opacity_hits["stable pairs"].append((hit, pair.patient))


def _measure_others(
    pair: PatientPair, pairs: Sequence[PatientPair], generator: np.random.Generator, found: ComparisonFigures
) -> None:
    others = [other for other in pairs if other.patient != pair.patient and other.source == pair.source]
    if others:
        other = others[int(generator.integers(len(others)))]
        done = compare(other.prior, pair.current)
        found.other_patient_pairs.append((done.is_comparable, pair.patient, done.duration_s))


def _finds_opacity(prior: FramedImage, current: FramedImage, generator: np.random.Generator) -> bool:
    """Insert an opacity in the current image, align the images again, and return whether the opacity is found."""
    image, core = insert_opacity(current, generator)
    done = compare(prior, image)
    regions = done.aligned_pair.regions if done.aligned_pair else ()
    return any(region.is_denser and _covers(region, core) for region in regions)


def _covers(region: ChangeRegion, core: Mask) -> bool:
    """Return whether a region that the program reports covers an opacity.

    The centre of the region must lie in the core of the opacity, or the centre of the core must lie in the region.
    """
    box = region.box
    rows, columns = np.nonzero(core)
    middle = rows.mean(), columns.mean()
    is_around = box.top <= middle[0] <= box.top + box.height and box.left <= middle[1] <= box.left + box.width
    row, column = int(box.top + box.height / 2), int(box.left + box.width / 2)
    return bool(is_around or core[min(row, FRAME_SIDE - 1), min(column, FRAME_SIDE - 1)])


def _dice(first: Mask, second: Mask) -> float:
    return 2 * int((first & second).sum()) / max(1, int(first.sum()) + int(second.sum()))


# ---- the report


def _report(found: ComparisonFigures, part: Part, pairs: Sequence[PatientPair]) -> BenchmarkReport:
    errors = np.concatenate(found.errors_px)
    marks = _marks(found, errors)
    patients = len({pair.patient for pair in pairs})
    role = "every constant was chosen on these pairs" if part == "choose" else "no constant was chosen on these pairs"
    spreads = ", ".join(f"{one:.4f}" for one in np.median(found.noise_by_band, axis=0))
    figures = [row[3] for row in found.same_patient_pairs]
    about = (
        f"{len(pairs)} pairs of {patients} patients; {role}. Images that the program refuses (no frontal chest X-ray) "
        "are left out.",
        "Copies are pairs of an image and a changed copy of the image: a random smooth warp of up to 8 % of the width, "
        "another gamma and contrast, and noise.",
        "Opacities are inserted before the alignment. Stable pairs are pairs of one view with equal findings at both "
        "times. Nobody examined stable pairs for other changes.",
        f"Noise of the averaged difference in copies, for each band, in deviations of the lungs: {spreads}.",
        f"Reliability of pairs of one patient, 5th, 25th, 50th, 75th percentile: {_percentiles(figures)}.",
    )
    blocks = (
        _figures(found, errors),
        BulletList("Goals", tuple(mark.sentence for mark in marks)),
        BulletList("How it was measured", about),
    )
    marked = {mark.name: mark.measured for mark in marks}
    title = "Prior and current image: alignment and change"
    return BenchmarkReport(
        file_stem="comparison", title=title, blocks=blocks, json_values={"part": part, "marks": marked}
    )


def _percentiles(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in np.percentile(values, (5, 25, 50, 75)))


def _marks(found: ComparisonFigures, errors: NDArray[np.float64]) -> list[Goal]:
    refused = [not comparable for comparable, _, _ in found.other_patient_pairs]
    after = [after for _, after in found.dice]
    marks = [
        max_goal("Median registration error in copies", float(np.median(errors)), 1.5, unit="px"),
        max_goal("95th percentile of the error in copies", float(np.percentile(errors, 95)), 4.0, unit="px"),
        Goal(name="Median lung Dice after alignment, same view", measured=_median(after), goal=0.93, unit=""),
        max_goal(
            "Identical pairs, largest 95th percentile of the displacement", max(found.identical_px), 0.3, unit="px"
        ),
        max_goal("Identical pairs, regions", float(sum(found.identical_regions)), 0, unit=""),
        Goal(name="Share of other patients' pairs not comparable", measured=_mean(refused), goal=0.9, unit=""),
        max_goal("CPU time of a comparison, median", float(np.median(found.seconds)), 2.0, unit="s"),
    ]
    for kind, hits in found.opacity_hits.items():
        found_share = _mean([hit for hit, _ in hits])
        marks.append(Goal(name=f"Share of opacities found, {kind}", measured=found_share, goal=0.8, unit=""))
        marks.append(max_goal(f"False regions per pair, {kind}", _mean(found.false_regions[kind]), 1, unit=""))
    return marks


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _figures(found: ComparisonFigures, errors: NDArray[np.float64]) -> Table:
    same = [row[:3] for row in found.same_patient_pairs]
    error_text = f"{np.median(errors):.2f}, {np.percentile(errors, 95):.2f}"
    dice_text = ", ".join(_shown([each[index] for each in found.dice]) for index in range(2))
    others = [(not comparable, patient) for comparable, patient, _ in found.other_patient_pairs]
    rows = [
        ("Registration error in copies, px of 512: median, 95th percentile", error_text),
        ("Copies: comparable", f"{sum(found.copies_comparable)} of {len(found.copies_comparable)}"),
        ("Smallest Jacobian in copies", f"{min(found.jacobians):.2f}"),
        ("Median lung Dice, same view: before, after alignment", dice_text),
        ("One patient, same view: comparable", _share([(row[0], row[2]) for row in same if row[1]])),
        ("One patient, other view: comparable", _share([(row[0], row[2]) for row in same if not row[1]])),
        ("Different patients: not comparable", _share(others)),
        *((f"Opacities found, {kind}", _share(hits)) for kind, hits in found.opacity_hits.items()),
    ]
    for kind, counts in found.false_regions.items():
        rows.append((f"False regions per pair, {kind}: mean, median", f"{_shown(counts, np.mean)}, {_shown(counts)}"))
    return Table("Figures", ("what", "value, with 95 % confidence intervals calculated by patient"), tuple(rows))


def _share(hits: Sequence[tuple[bool, str]]) -> str:
    """Format the share of hits with a 95 % interval. Each hit is a pair: whether it was a hit, and the patient."""
    if not hits:
        return "-"
    found = metrics.share_of_hits(np.array([hit for hit, _ in hits]), patients=[patient for _, patient in hits])
    return f"{found.count} of {found.of}: {found.value:.1%} ({found.low:.1%} to {found.high:.1%})"


def _shown(values: Sequence[float], of: Callable[[Sequence[float]], float | np.floating[Any]] = np.median) -> str:
    return f"{of(values):.3f}" if values else "-"

"""Measure whether a hospital's unlabelled X-rays can adapt a threshold, and whether the uncertain zone fits hospitals.

X-rays are screened as by the program. A rule for another hospital (site) sees only scores, and shifts the log-odds of
the scores to those of the pack's own hospital. The rule is fitted to one half of the site's patients and measured on
the other half, 200 times. For the fit, 150 X-rays are drawn with a share of findings: the site's real share, or a small
share as in screening.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.processes import CHECKOUT
from fieldray.audit.figures import arrays_of_scored_cases, category_at_point
from fieldray.audit.units import Case, ranking_score
from fieldray.bench.benchmark_case import BenchmarkReport, Table
from fieldray.domain.finding import Category
from fieldray.domain.metrics import Scores, Truth, logit, sigmoid, threshold_for_sensitivity
from fieldray.domain.model import Model, OperatingPoint
from fieldray.packs.library import PackLibrary
from fieldray_adapt.data.dataset import label_targets
from fieldray_adapt.data.image_set import read_rows
from fieldray_adapt.data.layouts import Row, assign_leak_free_parts
from fieldray_adapt.evaluation.screening import screen_rows
from fieldray_adapt.recipes.classifier import ClassifierRecipe, with_absolute_paths
from fieldray_adapt.recipes.shared import Source
from fieldray_adapt.recipes.tables import RecipeDocument

Notify = Callable[[str], None]
Logits = NDArray[np.float64]

_SITES: Final[Mapping[str, tuple[str, ...]]] = {
    "adult-normal-abnormal": ("india_da", "montgomery"),
    "tuberculosis-adult": ("india_da", "montgomery"),
}
_CHOOSE_ON: Final = ("india_da",)  # hospitals whose images choose zone limits, besides the pack's own
_FILMS: Final = 150
_ROUNDS: Final = 200
_PREVALENCES: Final = (None, 0.05)
_WITHIN: Final = 0.10
_STEPS: Final = 200
_CATEGORIES: Final[tuple[Category, ...]] = ("read_first", "abnormal", "unsure", "normal", "refused")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HospitalImages:
    """The X-rays of one hospital, which were screened at the pack's first operating point."""

    name: str
    cases: Sequence[Case]

    @property
    def truth(self) -> Truth:
        """Whether each X-ray has the finding, (n,) bool."""
        return np.array([case.truth for case in self.cases])

    @property
    def scores(self) -> Scores:
        """The score of each X-ray (n,): infinite for Read first, and below all scores for an X-ray without a score."""
        return np.array([ranking_score(case) for case in self.cases])

    @property
    def patients(self) -> NDArray[np.str_]:
        """The patient of each X-ray, (n,)."""
        return np.array([case.patient_key for case in self.cases])

    @property
    def logits(self) -> Logits:
        """The log-odds of the score of each X-ray (n,); nan for Read first and for X-rays without a score."""
        found = self.scores
        return np.where(np.isfinite(found), logit(np.where(np.isfinite(found), found, 0.5)), np.nan)


# ---- rules: scale and shift of a site's log-odds


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ReferenceScores:
    """The scores of the pack's own hospital, as log-odds.

    `normal_logits` are the log-odds of X-rays without the finding. `finding_share` is the share of X-rays with the
    finding, 0..1.
    """

    all_logits: Logits
    normal_logits: Logits
    finding_share: float


Rule = Callable[[ReferenceScores, Logits], tuple[float, float]]


def _as_it_is(_own: ReferenceScores, _site: Logits) -> tuple[float, float]:
    return 1.0, 0.0


def _median(own: ReferenceScores, site: Logits) -> tuple[float, float]:
    """Return scale 1 and the shift that moves the site's median to the median of the own hospital's X-rays."""
    return 1.0, float(np.median(own.all_logits) - np.median(site))


def _quarter(own: ReferenceScores, site: Logits) -> tuple[float, float]:
    """Return scale 1 and the shift by which the 25 % quantiles agree.

    The quantiles are those of all X-rays of the site, and of the own hospital's X-rays without the finding.
    """
    return 1.0, float(np.quantile(own.normal_logits, 0.25) - np.quantile(site, 0.25))


def _two_quantiles(own: ReferenceScores, site: Logits) -> tuple[float, float]:
    """Return the scale and the shift by which the 10 % and the 50 % quantiles agree.

    The quantiles are those of all X-rays of the site, and of the own hospital's X-rays without the finding.
    """
    (low, middle), (own_low, own_middle) = np.quantile(site, (0.1, 0.5)), np.quantile(own.normal_logits, (0.1, 0.5))
    scale = float((own_middle - own_low) / max(middle - low, 1e-6))
    return scale, float(own_middle - scale * middle)


def _prior_shift(own: ReferenceScores, site: Logits) -> tuple[float, float]:
    """Return scale 1 and the shift for the estimated share of X-rays with the finding at the site.

    The share is estimated by expectation maximisation (Saerens, Neural Computation 14 (2002) 21).
    """
    share = own.finding_share
    for _ in range(_STEPS):
        moved = site + _log_odds(share) - _log_odds(own.finding_share)
        share = float(np.clip(sigmoid(moved).mean(), 1e-3, 1 - 1e-3))
    return 1.0, _log_odds(share) - _log_odds(own.finding_share)


def _log_odds(share: float) -> float:
    return float(np.log(share / (1 - share)))


RULES: Final[Mapping[str, Rule]] = {
    "as it is": _as_it_is,
    "median": _median,
    "lowest quarter": _quarter,
    "10 % and 50 %": _two_quantiles,
    "prior shift": _prior_shift,
}


def measure_rule(
    rule: Rule, own: HospitalImages, site: HospitalImages, *, threshold: float, prevalence: float | None
) -> NDArray[np.float64]:
    """Fit a rule to random halves of a site's patients, and measure the rule on the other halves.

    Returns (rounds, 2): the share falsely referred of X-rays without the finding, and the share detected of X-rays with
    the finding. `prevalence` is the share of findings in the fit; None for the site's share.
    """
    known = ~np.isnan(own.logits)
    logits, truth = own.logits[known], own.truth[known]
    reference = ReferenceScores(all_logits=logits, normal_logits=logits[~truth], finding_share=float(truth.mean()))
    generator, found = np.random.default_rng(0), []
    people = np.unique(site.patients)
    for _ in range(_ROUNDS):
        half = generator.permutation(people)[: len(people) // 2]
        is_fitted = np.isin(site.patients, half)
        drawn = _drawn(site, is_fitted, prevalence, generator)
        scale, shift = rule(reference, drawn)
        ranks = np.where(np.isnan(site.logits), site.scores, scale * site.logits + shift)
        referred = ranks >= logit(np.array(threshold))
        judged = ~is_fitted
        found.append([referred[judged & ~site.truth].mean(), referred[judged & site.truth].mean()])
    return np.array(found)


def _drawn(
    site: HospitalImages, chosen: NDArray[np.bool_], prevalence: float | None, generator: np.random.Generator
) -> Logits:
    """Draw the log-odds of `chosen` X-rays of a site with replacement.

    The share of X-rays with the finding is `prevalence`; None for their real share.
    """
    usable = chosen & ~np.isnan(site.logits)
    share = float(site.truth[usable].mean()) if prevalence is None else prevalence
    wanted = {True: round(share * _FILMS), False: _FILMS - round(share * _FILMS)}
    parts = [
        generator.choice(site.logits[usable & (site.truth == truth)], number)
        for truth, number in wanted.items()
        if number
    ]
    return np.concatenate(parts)


# ---- limits of the uncertain zone


def choose_zone_limits(images: HospitalImages, point: OperatingPoint, recipe: ClassifierRecipe) -> tuple[float, float]:
    """Choose the limits of the uncertain zone on the X-rays of one hospital, by the rule of the recipe.

    Returns the lower and the upper limit, as calibrated scores.
    """
    asked = next(own for own in recipe.evaluation.points if own.name == point.name)
    scores, truth, _ = arrays_of_scored_cases([case for case in images.cases if case.score is not None])
    low = threshold_for_sensitivity(scores, truth, wanted=asked.band_catches)
    high = 1 - threshold_for_sensitivity(1 - scores, ~truth, wanted=asked.band_clears)
    return min(low, point.threshold), max(high, point.threshold)


def choose_common_zone_limits(
    hospitals: Sequence[HospitalImages], point: OperatingPoint, recipe: ClassifierRecipe
) -> tuple[float, float]:
    """Return limits of the uncertain zone that fit every hospital: the lowest lower and the highest upper limit."""
    found = [choose_zone_limits(hospital, point, recipe) for hospital in hospitals]
    return min(low for low, _ in found), max(high for _, high in found)


def count_categories(images: HospitalImages, point: OperatingPoint) -> dict[bool, Counter[Category]]:
    """Return the number of X-rays in each class that the user sees at an operating point.

    The keys are True for X-rays with the finding, and False for X-rays without the finding.
    """
    found = {True: Counter[Category](), False: Counter[Category]()}
    for case in images.cases:
        found[case.truth][category_at_point(point, case.score, otherwise=case.category)] += 1
    return found


# ---- screening


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Hospitals:
    """A pack, the X-rays of its recipe's validation part by hospital, and the X-rays of other hospitals (sites)."""

    model: Model
    recipe: ClassifierRecipe
    own: HospitalImages
    parts: Sequence[HospitalImages]
    sites: Sequence[HospitalImages]

    @property
    def point(self) -> OperatingPoint:
        """The first operating point of the pack."""
        return self.model.manifest.operating_points[0]


def screen_hospitals(data: Path, pack_id: str, *, home: Path, notify: Notify) -> Hospitals:
    """Screen X-rays of the pack's own hospitals and of other hospitals with a shipped pack. Raises FieldrayError.

    `home` is a temporary user data folder.
    """
    path = CHECKOUT / "models" / "recipes" / f"{pack_id}.toml"
    recipe = with_absolute_paths(RecipeDocument.read(path).parse_as(ClassifierRecipe), path)
    (folder,) = (CHECKOUT / "models").glob(f"{pack_id}-*")
    model = PackLibrary(home).load(folder)
    rows = read_rows(recipe.data, folder=home)
    parts = assign_leak_free_parts(rows, recipe.split, recipe.data)
    validation = [row for row, part in zip(rows, parts, strict=True) if part == "validation"]

    def hospital(name: str, rows: Sequence[Row]) -> HospitalImages:
        label = recipe.pack_labels[0]
        screening = screen_rows(
            model, rows, threads=recipe.training.threads, progress=lambda *_: notify(f"{pack_id}: {name}")
        )
        cases = screening.cases_by_operating_point(label.code, label_targets(rows, [label])[:, 0])
        return HospitalImages(name=name, cases=next(iter(cases.values())))

    named = {name: [row for row in validation if row.source == name] for name in {row.source for row in validation}}
    by_hospital = [hospital(name, own) for name, own in sorted(named.items())]
    sites = []
    for name in _SITES[pack_id]:
        source = Source(path=data / "index.csv", layout="index", name=name, where={"set": (name,)})
        sites.append(hospital(name, read_rows([source], folder=home)))
    whole = HospitalImages(name="own", cases=[case for part in by_hospital for case in part.cases])
    return Hospitals(model=model, recipe=recipe, own=whole, parts=by_hospital, sites=sites)


def run_benchmark(data: Path, notify: Notify) -> BenchmarkReport:
    """Measure every shipped pack, and return the report. Raises FieldrayError."""
    alarms, bands = list[list[str]](), list[list[str]]()
    with tempfile.TemporaryDirectory() as home:
        for pack_id in _SITES:
            found = screen_hospitals(data, pack_id, home=Path(home), notify=notify)
            alarms += _alarm_rows(pack_id, found)
            bands += _band_rows(pack_id, found)
    head = (
        "pack",
        "site",
        "set from",
        "rule",
        "falsely referred",
        "5 to 95 %",
        "change",
        "within 10 points",
        "detected",
    )
    fit = Table(title="Thresholds set from images without labels", columns=head, rows=tuple(map(tuple, alarms)))
    columns = ("pack", "hospital", "limits of Uncertain", "images", *_CATEGORIES)
    edges_of = Table(
        title="Classes for each choice of the limits of Uncertain", columns=columns, rows=tuple(map(tuple, bands))
    )
    return BenchmarkReport(
        file_stem="sites",
        title="Other hospitals: thresholds and limits of Uncertain",
        blocks=(fit, edges_of),
        json_values={"falsely_referred": alarms, "classes": bands},
    )


def _alarm_rows(pack_id: str, found: Hospitals) -> Iterator[list[str]]:
    """Yield a table row with the figures for each site, each share of findings in the fit, and each rule."""
    threshold, own = found.point.threshold, found.own
    wanted = float((own.scores[~own.truth] >= threshold).mean())
    yield [pack_id, "own, validation part", "", "", f"{wanted:.3f}", "", "", "", f"{_detected(own, threshold):.3f}"]
    for site in found.sites:
        for prevalence in _PREVALENCES:
            for name, rule in RULES.items():
                shares = measure_rule(rule, own, site, threshold=threshold, prevalence=prevalence)
                alarms = shares[:, 0]
                low, high = np.quantile(alarms, (0.05, 0.95))
                yield [
                    *(pack_id, site.name, "as found" if prevalence is None else f"{prevalence:.0%} with", name),
                    f"{alarms.mean():.3f}",
                    f"{low:.3f} to {high:.3f}",
                    f"{alarms.mean() - wanted:+.3f}",
                    f"{(np.abs(alarms - wanted) <= _WITHIN).mean():.2f}",
                    f"{shares[:, 1].mean():.3f}",
                ]


def _detected(hospital: HospitalImages, threshold: float) -> float:
    return float((hospital.scores[hospital.truth] >= threshold).mean())


def _band_rows(pack_id: str, found: Hospitals) -> Iterator[list[str]]:
    """Yield table rows for each hospital and each pair of limits of the uncertain zone (with, without the finding)."""
    point = found.point
    chosen_on = [*found.parts, *(site for site in found.sites if site.name in _CHOOSE_ON)]
    low, high = choose_common_zone_limits(chosen_on, point, found.recipe)
    both = {"as shipped": point, "suitable for every hospital": replace(point, unsure_low=low, unsure_high=high)}
    for hospital in (*found.parts, *found.sites):
        for name, own in both.items():
            for truth, counts in count_categories(hospital, own).items():
                span = f"{name}: {own.unsure_low:.3f} to {own.unsure_high:.3f}"
                total = counts.total()
                shown = [f"{counts[one]} ({counts[one] / total:.0%})" for one in _CATEGORIES] if total else []
                yield [pack_id, hospital.name, span, f"{total} {'with' if truth else 'without'}", *shown]

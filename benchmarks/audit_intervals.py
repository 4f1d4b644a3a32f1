"""How often the 95 % intervals of an audit hold the true value: made-up data sets whose truth is known.

Log-odds of positives and negatives are normal with unit variance, apart by what gives the true area. The threshold is
fixed beforehand, where the true sensitivity is what is asked for. With two images of a patient half of the variance is
the patient's own; the audit assumes the worst, that both images say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from benchmarks.reports import Mark
from fieldray.audit.figures import predictive_values
from fieldray.bench.report import Points, Report, Table
from fieldray.domain import metrics
from fieldray.domain.metrics import Scores, sigmoid

Notify = Callable[[str], None]
_NORMAL: Final = NormalDist()
_PREVALENCE: Final = 0.1
_FIGURES: Final = ("AUC", "sensitivity", "specificity", "PPV", "NPV")
_LOW, _HIGH = 0.93, 0.97


@dataclass(frozen=True, slots=True)
class Setting:
    """Numbers of images, the true area and sensitivity, and how many images a patient has."""

    positives: int
    negatives: int
    area: float
    sensitivity: float
    images: int = 1

    @property
    def shift(self) -> float:
        """How far the positives' mean lies above the negatives'."""
        return _NORMAL.inv_cdf(self.area) * math.sqrt(2)

    @property
    def threshold(self) -> float:
        """Where the true sensitivity is as wanted."""
        return self.shift - _NORMAL.inv_cdf(self.sensitivity)

    @property
    def truths(self) -> tuple[float, ...]:
        """The true values of `_FIGURES`."""
        hits, spared = self.sensitivity, _NORMAL.cdf(self.threshold)
        ill, well = _PREVALENCE, 1 - _PREVALENCE
        positive = ill * hits / (ill * hits + well * (1 - spared))
        negative = well * spared / (well * spared + ill * (1 - hits))
        return self.area, hits, spared, positive, negative


SETTINGS: Final = (
    Setting(20, 20, 0.8, 0.8),
    Setting(50, 50, 0.8, 0.9),
    Setting(50, 150, 0.85, 0.8),
    Setting(100, 400, 0.9, 0.9),
    Setting(200, 200, 0.7, 0.8),
    Setting(300, 1000, 0.95, 0.9),
    Setting(50, 50, 0.99, 0.95),
    Setting(100, 200, 0.85, 0.85, images=2),
)


def audit_intervals(draws: int, *, notify: Notify) -> Report:
    """The share of data sets whose interval holds the truth, for every figure and setting."""
    found = []
    for place, setting in enumerate(SETTINGS):
        notify(f"{place + 1} of {len(SETTINGS)}")
        found.append(_coverage(setting, draws, seed=place))
    marks = _marks(found)
    noise = 1.96 * math.sqrt(0.95 * 0.05 / draws)
    sentences = (
        f"{draws} data sets for each row; chance alone moves a share by ± {noise:.1%}.",
        f"Predictive values are at a prevalence of {_PREVALENCE:.0%}.",
        "With few images a share takes few values, so its coverage jumps with the true value; Wilson's interval is "
        "right on average, not at every one.",
        "Two images of a patient: the worst is assumed, so the intervals are too wide.",
    )
    return Report(
        kind="audit-intervals",
        title="How often the intervals of an audit hold the true value",
        blocks=(
            _table(found),
            Points("Marks", tuple(mark.sentence for mark in marks)),
            Points("What this is", sentences),
        ),
        data={"draws": draws, "rows": [dict(zip(_FIGURES, shares, strict=True)) for shares in found]},
    )


def _coverage(setting: Setting, draws: int, *, seed: int) -> tuple[float, ...]:
    generator = np.random.default_rng(seed)
    truth = np.arange(setting.positives + setting.negatives) < setting.positives
    patients = [str(number // setting.images) for number in range(len(truth))]
    held = np.zeros(len(_FIGURES))
    for _ in range(draws):
        scores = sigmoid(_drawn(generator, setting, len(truth)) + setting.shift * truth)
        threshold = float(sigmoid(np.float64(setting.threshold)))
        hits = metrics.sensitivity(scores, truth, threshold=threshold, patients=patients)
        spared = metrics.specificity(scores, truth, threshold=threshold, patients=patients)
        area = metrics.area(scores, truth, patients=patients)
        ends = (area, hits, spared, *predictive_values(hits, spared, prevalence=_PREVALENCE))
        pairs = zip(ends, setting.truths, strict=True)
        held += [one is not None and one.low <= true <= one.high for one, true in pairs]
    return tuple(float(share) for share in held / draws)


def _drawn(generator: np.random.Generator, setting: Setting, number: int) -> Scores:
    if setting.images == 1:
        return generator.normal(size=number)
    own = np.repeat(generator.normal(size=-(-number // setting.images)), setting.images)[:number]
    return (own + generator.normal(size=number)) / math.sqrt(2)


def _marks(found: list[tuple[float, ...]]) -> list[Mark]:
    marks = []
    for place, name in enumerate(_FIGURES):
        # Without the row of two images a patient, where more than 95 % is meant.
        shares = [shares[place] for shares, setting in zip(found, SETTINGS, strict=True) if setting.images == 1]
        marks += [
            Mark(name=f"{name}: mean coverage", measured=float(np.mean(shares)), goal=_LOW, unit=""),
            Mark(name=f"{name}: lowest coverage", measured=min(shares), goal=_LOW, unit=""),
            Mark(name=f"{name}: highest coverage", measured=max(shares), goal=_HIGH, is_most=True, unit=""),
        ]
    return marks


def _table(found: list[tuple[float, ...]]) -> Table:
    rows = tuple(
        (
            f"{setting.positives} + {setting.negatives}" + (" (two of a patient)" if setting.images > 1 else ""),
            f"{setting.area:g}",
            f"{setting.sensitivity:g}",
            *(f"{share:.1%}" for share in shares),
        )
        for setting, shares in zip(SETTINGS, found, strict=True)
    )
    columns = ("positive + negative images", "true AUC", "true sensitivity", *_FIGURES)
    return Table("Share of the intervals that hold the true value", columns, rows)

"""Figures of a test: AUC, thresholds, calibration, and shares and AUCs with 95 % intervals over patients.

The module uses NumPy alone, because the program that a clinic installs computes these figures too.

In all functions, `scores` (n,) float64 has the score of each image, `truth` (n,) whether each image has the condition,
and `patients` the patient of each image. A wanted sensitivity or specificity is a share, 0..1.

figure                interval
share                 Wilson
area under the curve  Newcombe
difference of areas of two packs on the same images
                      DeLong
difference of shares of two packs on the same images
                      Newcombe
share at a threshold chosen on the same images
                      bootstrap

All intervals except the bootstrap are valid also at 0 and 1. The bootstrap has no width if every image is right: 63 of
63 became 1.000 (1.000 to 1.000). In 100 simulated data sets of 20 positive and 20 negative images with a true area of
0.99, the bootstrap interval contained the true area 70 times, and Newcombe's interval 97 times.

Images of one patient are correlated. A few images cannot show how strongly, so the worst case is assumed: all images of
a patient give one result. The effective number of images is then (sum m)^2 / sum m^2 over the patients' numbers of
images m (Kish 1965). The effective number equals the number of images if each patient has one image, and the number of
patients if all patients have equally many images.

Wilson E. B., J Am Stat Assoc 22 (1927) 209; Brown, Cai, DasGupta, Statistical Science 16 (2001) 101: the exact
interval of Clopper and Pearson is always too wide. Wilson's interval is closer to 95 %, and is also defined for
effective numbers that are not whole. Newcombe R. G., Statistics in Medicine 25 (2006) 559, method 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldray.domain.model import Calibration, Estimate

# exp(700) is about 1e304, near the largest float64. Beyond, the sigmoid is 0 or 1 to any useful precision.
_MAX_EXPONENT: Final = 700.0


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """Return 1 / (1 + exp(-x)) of logits, as float64 in 0..1 with the shape of `logits`. Logits may be infinite."""
    return np.asarray(1 / (1 + np.exp(np.minimum(-np.asarray(logits, np.float64), _MAX_EXPONENT))))


Scores = NDArray[np.float64]
Truth = NDArray[np.bool_]
Unit = Literal["image", "exam", "patient"]  # the unit that figures count
COUNTING_UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
ReferralRule = Literal["above", "unsure"]  # referred at or above the threshold, or already in the uncertain zone

_SMALLEST: Final = 1e-7


def auc(scores: Scores, truth: Truth) -> float:
    """Return the area under the ROC curve (Mann-Whitney, ties count half); nan without positives or negatives."""
    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        return math.nan
    levels, rank = np.unique(scores, return_inverse=True)
    of_positives, of_negatives = (np.bincount(rank[own], minlength=len(levels)) for own in (truth, ~truth))
    # For each positive: the negatives with a lower score, and half of those with an equal score.
    beaten = np.cumsum(of_negatives) - of_negatives / 2
    return float((of_positives * beaten).sum() / (positive * negative))


def threshold_for_sensitivity(scores: Scores, truth: Truth, *, wanted: float) -> float:
    """Return the highest threshold with a sensitivity of at least `wanted`.

    The threshold is moved halfway to the next lower score, and is in 0..1 even if scores are infinite. If too many
    positives have the lowest score, only a threshold below that score reaches the wanted sensitivity. Every image is
    then positive.
    """
    positive = np.sort(scores[truth])
    allowed = math.floor((1 - wanted) * len(positive) + 1e-9)
    highest = min(max(positive[allowed], 0.0), 1.0)
    below = scores[scores < highest]
    return float((highest + below.max(initial=0.0)) / 2)


def threshold_for_specificity(scores: Scores, truth: Truth, *, wanted: float) -> float:
    """Return the lowest threshold with a specificity of at least `wanted`.

    The threshold is moved halfway to the next higher score, and is in 0..1.
    """
    negative = np.sort(scores[~truth])
    needed = math.ceil(wanted * len(negative) - 1e-9)
    lowest = min(max(negative[needed - 1], 0.0), 1.0) if needed else 0.0
    above = scores[scores > lowest]
    return float((lowest + above.min(initial=1.0)) / 2)


def threshold_for_youden_index(scores: Scores, truth: Truth, *, groups: NDArray[np.str_] | None = None) -> float:
    """Return the threshold with the largest sensitivity + specificity (Youden's index).

    If several thresholds share the largest sum, the middle threshold is returned.

    groups  (n,) group of each image, such as its hospital; each group must have images of both classes. The threshold
            is then judged by the group with the smallest sum. None to judge by all images together
    """
    members = [np.ones(len(scores), bool)] if groups is None else [groups == name for name in np.unique(groups)]
    levels = np.unique(scores)
    middles = np.concatenate([[levels[0] / 2], (levels[1:] + levels[:-1]) / 2])
    gains = [
        min((scores[own & truth] >= middle).mean() + (scores[own & ~truth] < middle).mean() for own in members)
        for middle in middles
    ]
    best = np.flatnonzero(np.isclose(gains, max(gains)))
    return float(middles[best[len(best) // 2]])


def logit(scores: Scores) -> Scores:
    """Return log(s / (1 - s)) of scores s. The scores are first clipped to just inside 0..1."""
    clipped = np.clip(scores, _SMALLEST, 1 - _SMALLEST)
    odds: Scores = np.log(clipped / (1 - clipped))
    return odds


def calibrate_scores(scores: Scores, calibration: Calibration) -> Scores:
    """Calibrate an array of scores as `domain.finding.calibrate` calibrates one score."""
    return sigmoid(calibration.slope * logit(scores) + calibration.intercept)


def calibration_error(scores: Scores, truth: Truth, *, bins: int = 10) -> float:
    """Return the expected calibration error, 0..1.

    The error is the mean distance between mean score and share of positives over bins with equal numbers of images.
    """
    parts = [part for part in np.array_split(np.argsort(scores, kind="stable"), bins) if len(part)]
    return float(sum(len(part) * abs(scores[part].mean() - truth[part].mean()) for part in parts) / len(scores))


# ---- figures with 95 % intervals


_Z: Final = 1.959964  # 97.5 % of a normal distribution lie below
_ROUNDS: Final = 1000
_HALVINGS: Final = 60
_NO_VARIANCE: Final = 1e-18  # rounding errors of a variance of zero


@dataclass(frozen=True, slots=True)
class Share:
    """A share with the ends of its 95 % interval, all in 0..1.

    count, of  number of images that have the property, and number of all images
    """

    count: int
    of: int
    value: float
    low: float
    high: float

    @property
    def estimate(self) -> Estimate:
        """The share with its confidence interval, without the numbers of images."""
        return Estimate(self.value, self.low, self.high)


def effective_image_count(patients: Sequence[str]) -> float:
    """Return the effective number of images (Kish 1965), between 1 and the number of images.

    Several images of a patient count less than independent images, because they are assumed to have one result.

    patients  the patient of each image
    """
    _, images = np.unique(np.asarray(patients), return_counts=True)
    return float(images.sum() ** 2 / (images**2).sum())


def share_of_hits(hits: NDArray[np.bool_], *, patients: Sequence[str]) -> Share:
    """Return the share of images that are hits, with its 95 % interval (Wilson). Raises ValueError without images.

    hits      (n,) whether each image is a hit, for example detected
    patients  the patient of each image
    """
    if not len(hits):
        raise ValueError("a share needs images")
    return wilson_share(int(hits.sum()), len(hits), effective_count=effective_image_count(patients))


def wilson_share(count: int, image_count: int, *, effective_count: float) -> Share:
    """Return the share `count` / `image_count` with Wilson's 95 % interval.

    count, image_count  number of images with a property, and number of all images; `image_count` must be 1 or more
    effective_count     the effective number of images (see `effective_image_count`), which decides the width of the
                        interval
    """
    value, shrink = count / image_count, 1 + _Z**2 / effective_count
    middle = (value + _Z**2 / (2 * effective_count)) / shrink
    half = _Z / shrink * math.sqrt(value * (1 - value) / effective_count + _Z**2 / (4 * effective_count**2))
    # The interval contains the value. The bounds only correct rounding errors.
    low, high = min(max(middle - half, 0.0), value), max(min(middle + half, 1.0), value)
    return Share(count=count, of=image_count, value=value, low=low, high=high)


def share_difference(
    first: NDArray[np.bool_], second: NDArray[np.bool_], *, patients: Sequence[str]
) -> tuple[float, float, float]:
    """Return the share of hits in `second` minus the share in `first`, and the ends of the difference's 95 % interval.

    The interval is method 10 of Newcombe, Statistics in Medicine 17 (1998) 2635. The method combines Wilson's
    intervals of both shares (square-and-add). It uses the correlation of both shares, corrected for continuity.

    first, second  (n,) hits of two tests on the same images

    Raises ValueError without images.
    """
    a, b = share_of_hits(first, patients=patients), share_of_hits(second, patients=patients)
    both, neither = int((first & second).sum()), int((~first & ~second).sum())
    spread = math.sqrt(a.count * (a.of - a.count) * b.count * (b.of - b.count))
    excess = both * neither - (a.count - both) * (b.count - both)
    # With a smaller effective number, the correction by one image weighs more.
    corrected = excess if excess < 0 else max(excess - a.of**2 / (2 * effective_image_count(patients)), 0.0)
    likeness = corrected / spread if spread else 0.0

    def reach(one: float, other: float) -> float:
        return math.sqrt(max(one**2 - 2 * likeness * one * other + other**2, 0.0))

    value = b.value - a.value
    low, high = reach(b.value - b.low, a.high - a.value), reach(b.high - b.value, a.value - a.low)
    return value, value - low, value + high


def sensitivity(scores: Scores, truth: Truth, *, threshold: float, patients: Sequence[str]) -> Share:
    """Return the share of positive images at or above a threshold, which must have been chosen on other images."""
    return share_of_hits(scores[truth] >= threshold, patients=_of(patients, truth))


def specificity(scores: Scores, truth: Truth, *, threshold: float, patients: Sequence[str]) -> Share:
    """Return the share of negative images below a threshold, which must have been chosen on other images."""
    return share_of_hits(scores[~truth] < threshold, patients=_of(patients, ~truth))


def specificity_at_sensitivity(scores: Scores, truth: Truth, *, wanted: float, patients: Sequence[str]) -> Share:
    """Return the specificity at the threshold that gives at least the wanted sensitivity on these images.

    The choice of the threshold is uncertain, too. The interval is therefore the wider of two: Wilson's interval, and a
    bootstrap over patients that chooses the threshold again in each draw.
    """

    def measure(drawn: Scores, answers: Truth) -> float:
        if answers.all() or not answers.any():
            return math.nan
        return float((drawn[~answers] < threshold_for_sensitivity(drawn, answers, wanted=wanted)).mean())

    threshold = threshold_for_sensitivity(scores, truth, wanted=wanted)
    found = specificity(scores, truth, threshold=threshold, patients=patients)
    return _widened(found, bootstrap_interval(measure, scores, truth, patients=patients))


def sensitivity_at_specificity(scores: Scores, truth: Truth, *, wanted: float, patients: Sequence[str]) -> Share:
    """Return the sensitivity at the threshold that gives at least the wanted specificity on these images.

    The interval is computed as in `specificity_at_sensitivity`.
    """

    def measure(drawn: Scores, answers: Truth) -> float:
        if answers.all() or not answers.any():
            return math.nan
        return float((drawn[answers] >= threshold_for_specificity(drawn, answers, wanted=wanted)).mean())

    threshold = threshold_for_specificity(scores, truth, wanted=wanted)
    found = sensitivity(scores, truth, threshold=threshold, patients=patients)
    return _widened(found, bootstrap_interval(measure, scores, truth, patients=patients))


def _widened(found: Share, drawn: tuple[float, float, float]) -> Share:
    _, low, high = drawn
    return Share(found.count, found.of, found.value, min(found.low, low), max(found.high, high))


def kappa(
    first: NDArray[np.bool_], second: NDArray[np.bool_], *, patients: Sequence[str]
) -> tuple[float, float, float] | None:
    """Return Cohen's kappa (-1..1) of two readers, and the ends of its 95 % interval.

    Returns None without images, or if both readers gave one and the same answer to all images. Cohen, Educational and
    Psychological Measurement 20 (1960) 37; variance by Fleiss, Cohen and Everitt, Psychological Bulletin 72 (1969) 323.

    first, second  (n,) answers of the readers on the same images
    patients       the patient of each image
    """
    table = np.array([[np.sum((first == one) & (second == other)) for other in (True, False)] for one in (True, False)])
    if not table.sum():
        return None
    shares = table / table.sum()
    rows, columns = shares.sum(axis=1), shares.sum(axis=0)
    agreed, chance = float(np.trace(shares)), float(rows @ columns)
    if chance == 1:
        return None
    value = (agreed - chance) / (1 - chance)
    on = sum(shares[i, i] * (1 - (rows[i] + columns[i]) * (1 - value)) ** 2 for i in (0, 1))
    off = (1 - value) ** 2 * sum(shares[i, 1 - i] * (columns[i] + rows[1 - i]) ** 2 for i in (0, 1))
    variance = (on + off - (value - chance * (1 - value)) ** 2) / ((1 - chance) ** 2 * effective_image_count(patients))
    half = _Z * math.sqrt(max(float(variance), 0.0))
    return float(value), max(float(value) - half, -1.0), min(float(value) + half, 1.0)


def auc_estimate(scores: Scores, truth: Truth, *, patients: Sequence[str]) -> Estimate:
    """Return the area under the ROC curve with its 95 % interval (Newcombe).

    scores    (n,) score of each image
    truth     (n,) whether each image has the condition; both classes must occur, else ValueError
    patients  the patient of each image: images of one patient are not independent
    """
    value = auc(scores, truth)
    if math.isnan(value):
        raise ValueError("the area has no value: a class has no images")
    positives, negatives = (effective_image_count(_of(patients, own)) for own in (truth, ~truth))

    def is_near(area: float) -> bool:
        return abs(value - area) <= _Z * math.sqrt(_area_variance(area, positives, negatives))

    return Estimate(value, _bisect(value, 0.0, is_near), _bisect(value, 1.0, is_near))


def _area_variance(area: float, positives: float, negatives: float) -> float:
    """Return the variance of an area under the ROC curve by Hanley and McNeil for exponential scores.

    The variance is made symmetric in both classes (Newcombe 2006).

    positives, negatives  effective numbers of images
    """
    spread = (positives + negatives) / 2 - 1
    shape = 1 + spread * (1 - area) / (2 - area) + spread * area / (1 + area)
    return area * (1 - area) * shape / (positives * negatives)


def _bisect(value: float, end: float, is_near: Callable[[float], bool]) -> float:
    """Find by bisection the last point on the way from `value` to `end` at which `is_near` is true."""
    near, far = value, end
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        near, far = (middle, far) if is_near(middle) else (near, middle)
    return near


def auc_difference(scores: Scores, truth: Truth, *, patients: Sequence[str]) -> tuple[float, float, float]:
    """Return the difference of two networks' AUCs, the second minus the first, and the ends of its 95 % interval.

    DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988) 837. For patients with several images, the contributions of
    each patient are summed (Obuchowski, Biometrics 53 (1997) 567). If both networks rank every pair correctly, or every
    pair wrongly, the variance is zero. The ends then come from the intervals of the two areas (square-and-add,
    Newcombe, Statistics in Medicine 17 (1998) 873).

    scores  (images, 2) scores of two networks
    """
    beaten = _beaten(scores[:, 1], truth) - _beaten(scores[:, 0], truth)
    value = float(beaten[truth].mean())
    _, owner = np.unique(np.asarray(patients), return_inverse=True)
    variance, sums = 0.0, []
    for own in (truth, ~truth):
        apart = np.where(own, beaten - value, 0.0) / own.sum()
        sums.append(np.bincount(owner, weights=apart))
        variance += _of_sample(len(set(owner[own]))) * float((sums[-1] ** 2).sum())
    variance += 2 * _of_sample(len(sums[0])) * float((sums[0] * sums[1]).sum())
    if variance > _NO_VARIANCE:
        half = _Z * math.sqrt(variance)
        return value, value - half, value + half
    first, second = (auc_estimate(scores[:, column], truth, patients=patients) for column in (0, 1))
    below = math.hypot(second.value - second.low, first.high - first.value)
    above = math.hypot(second.high - second.value, first.value - first.low)
    return value, value - below, value + above


def _of_sample(number: int) -> float:
    return number / max(number - 1, 1)


def _beaten(scores: Scores, truth: Truth) -> Scores:
    """Return DeLong's components (n,) of an AUC.

    The component of an image is a share of the images of the other class: the share against which the image is ranked
    correctly. Ties count half.
    """
    found = np.empty(len(scores))
    for own, sign in ((truth, 1), (~truth, -1)):
        others = np.sort(sign * scores[~own])
        below, level = (np.searchsorted(others, sign * scores[own], side) for side in ("left", "right"))
        found[own] = (below + level) / (2 * len(others))
    return found


def bootstrap_interval(
    measure: Callable[[Scores, Truth], float],
    scores: Scores,
    truth: Truth,
    *,
    patients: Sequence[str],
    seed: int = 0,
) -> tuple[float, float, float]:
    """Return a measure and the ends of its 95 % percentile interval, by a bootstrap over patients.

    Each of 1000 draws takes patients with replacement, with all images of each patient. Draws in which a class is
    missing are left out. With few patients the interval may not contain the measure, and is then widened.

    measure  computes the measure from scores and truths
    seed     seed of the random numbers

    Raises ValueError if the measure of all images is not a number.
    """
    value = measure(scores, truth)
    if math.isnan(value):
        raise ValueError("the measure has no value: a class has no images")
    generator = np.random.default_rng(seed)
    _, owner = np.unique(np.asarray(patients), return_inverse=True)
    order = np.argsort(owner, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(owner))[:-1])
    found = []
    for _ in range(_ROUNDS):
        drawn = np.concatenate([members[i] for i in generator.integers(len(members), size=len(members))])
        found.append(measure(scores[drawn], truth[drawn]))
    low, high = np.nanpercentile(found, (2.5, 97.5))
    return value, min(float(low), value), max(float(high), value)


def _of(patients: Sequence[str], chosen: NDArray[np.bool_]) -> list[str]:
    return [patient for patient, own in zip(patients, chosen, strict=True) if own]

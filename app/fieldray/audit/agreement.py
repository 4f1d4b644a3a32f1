"""Cohen's kappa (agreement beyond chance) of each two judges: the pack, the reference labels and every human reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from fieldray.audit.units import Case, CountingRule, is_referred
from fieldray.domain import metrics
from fieldray.domain.model import OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far two judges agree on units (images, examinations or patients) that both judged.

    first, second                 the judges: "pack", "reference" for the reference labels, or a reader's name
    unit_count                    number of units that both judged
    agreed_count                  number of units for which both judges gave the same answer
    kappa, kappa_low, kappa_high  Cohen's kappa, -1..1, and the ends of its 95 % interval
    """

    first: str
    second: str
    unit_count: int
    agreed_count: int
    kappa: float
    kappa_low: float
    kappa_high: float


def agreements(
    cases: Sequence[Case],
    points: Sequence[OperatingPoint],
    *,
    rule: CountingRule,
    readers: Mapping[str, Mapping[str, bool]],
) -> Iterator[Agreement]:
    """Yield the agreement of every two judges over the images that both judged.

    The judges are the pack, the reference labels and the readers. The pack finds the condition in a unit if the first
    operating point of `points` refers the unit. Without an operating point the pack is left out.

    cases    the images with their reference labels
    rule     how images are grouped into units, and from which score a unit is referred
    readers  by reader and image key, whether the reader found the condition
    """
    judges = {"reference": {case.image_key: case.truth for case in cases}, **readers}

    def judged(truths: Mapping[str, bool], by: Sequence[Case]) -> list[Case]:
        return rule.group_into_units(replace(case, truth=truths[case.image_key]) for case in by)

    def agreement(first: str, second: str, said: Sequence[bool], units: Sequence[Case]) -> Iterator[Agreement]:
        one, other = np.array(said, np.bool_), np.array([unit.truth for unit in units], np.bool_)
        if found := metrics.kappa(one, other, patients=[unit.patient_key for unit in units]):
            kappa, low, high = found
            alike = int((one == other).sum())
            yield Agreement(
                first=first,
                second=second,
                unit_count=len(units),
                agreed_count=alike,
                kappa=kappa,
                kappa_low=low,
                kappa_high=high,
            )

    for name, truths in judges.items() if points else ():
        units = judged(truths, [case for case in cases if case.image_key in truths])
        yield from agreement("pack", name, [is_referred(unit, rule.referral_score(points[0])) for unit in units], units)
    for (first, own), (second, others) in combinations(readers.items(), 2):
        both = [case for case in cases if case.image_key in own and case.image_key in others]
        said = [unit.truth for unit in judged(own, both)]
        yield from agreement(first, second, said, judged(others, both))

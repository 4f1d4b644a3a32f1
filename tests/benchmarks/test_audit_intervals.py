"""The benchmark of an audit's intervals knows the truth that it compares with."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.audit_intervals import SETTINGS, Setting, audit_intervals
from fieldray.domain import metrics


@pytest.mark.parametrize("setting", SETTINGS[:3])
def test_the_truth_is_what_many_images_show(setting: Setting) -> None:
    generator = np.random.default_rng(1)
    truth = np.arange(200_000) < 100_000
    scores = generator.normal(size=len(truth)) + setting.shift * truth
    patients = [str(number) for number in range(len(truth))]
    area, hits, spared, positive, negative = setting.truths
    assert metrics.auc(scores, truth) == pytest.approx(area, abs=0.004)
    measured = metrics.sensitivity(scores, truth, threshold=setting.threshold, patients=patients)
    assert measured.value == pytest.approx(hits, abs=0.005)
    measured = metrics.specificity(scores, truth, threshold=setting.threshold, patients=patients)
    assert measured.value == pytest.approx(spared, abs=0.005)
    assert positive == pytest.approx(0.1 * hits / (0.1 * hits + 0.9 * (1 - spared)))
    assert negative == pytest.approx(0.9 * spared / (0.9 * spared + 0.1 * (1 - hits)))


def test_every_row_has_a_share_for_every_figure() -> None:
    report = audit_intervals(20, notify=lambda _: None)
    assert len(report.data["rows"]) == len(SETTINGS)
    assert all(0.6 <= share <= 1 for row in report.data["rows"] for share in row.values())

"""The benchmark of exports saves a real run in the real window."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from benchmarks.drawn_run import make_run
from benchmarks.exports import IDLE
from benchmarks.exports import report as measured
from fieldray.domain.lungs import LungFields
from fieldray.packs.library import PackLibrary
from fieldray.paths import results_path, user_data
from fieldray.store.results import ResultQuery
from shipped_packs import CHILDREN

pytestmark = pytest.mark.gui


def test_every_result_of_the_run_has_all_that_a_report_shows(tmp_path: Path, home: Path) -> None:
    model = PackLibrary(home).load(CHILDREN)
    run_id = make_run(tmp_path / "images", model, 4, drawn=2)
    with ResultQuery(results_path()) as query:
        outcomes = [result.outcome for result in query.work_list(run_id)]
    assert len({outcome.ref.header.study_instance_uid for outcome in outcomes}) == 4
    assert all(outcome.ref.path.is_file() and outcome.class_maps.any() for outcome in outcomes)
    assert all(isinstance(outcome.lungs, LungFields) for outcome in outcomes)


@pytest.mark.slow
def test_a_few_results_are_saved_and_the_pauses_noted(qapp: QApplication, home: Path) -> None:
    model = PackLibrary(home).load(CHILDREN)
    report = measured(model, count=3, formats=("csv", "sr"), notify=lambda _: None, idle_s=0.1)
    idle, csv, sr = report.data["formats"]
    assert [idle["name"], csv["name"], sr["name"]] == [IDLE, "csv", "sr"]
    assert (csv["files"], sr["files"]) == (1, 3)
    assert all(
        one["seconds"] > 0 and list(one["pauses_ms"]) == sorted(one["pauses_ms"], reverse=True) for one in (csv, sr)
    )
    assert any("csv, pause" in sentence for sentence in report.blocks[1].sentences)
    assert user_data() == home  # its own home is gone

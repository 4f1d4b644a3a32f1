"""The benchmark of a large run: its made-up results, and its use of the real window."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.scale import run_benchmark as measured
from benchmarks.synthetic_run import SyntheticRun
from fieldray.domain.finding import ScreenedOutcome
from fieldray.packs.library import PackLibrary
from fieldray.paths import data_folder
from fieldray.store.results import ResultQuery
from shipped_packs import CHILDREN

pytestmark = pytest.mark.gui


def test_a_made_up_large_run_is_reproducible_and_its_results_are_complete(tmp_path: Path, home: Path) -> None:
    model = PackLibrary(home).load(CHILDREN)
    made, counts = SyntheticRun(model, chest_count=2), list[int]()
    run_id = made.save(tmp_path / "results.sqlite", 90, progress=counts.append)
    with ResultQuery(tmp_path / "results.sqlite") as query:
        outcomes = [result.outcome for result in query.results(run_id)]
    assert counts == [90]
    assert [outcome.ref for outcome in outcomes] == [outcome.ref for outcome in made.outcomes(0, 90)]
    screened = [outcome for outcome in outcomes if isinstance(outcome, ScreenedOutcome)]
    assert 70 < len(screened) < 90
    assert all(one.class_maps is not None and one.lungs and one.facts.thumbnail is not None for one in screened)
    patients = Counter(outcome.ref.header.patient_id for outcome in outcomes)
    assert set(patients.values()) == {3}
    assert len({outcome.facts.content_sha256 for outcome in outcomes}) == 90


@pytest.mark.slow
def test_a_small_run_is_scrolled_sorted_searched_and_grows_in_the_real_window(home: Path) -> None:
    model = PackLibrary(home).load(CHILDREN)
    report = measured(model, count=60, notify=lambda _: None, scroll_steps=3, new_results=5)
    acts = {act["name"]: act for act in report.json_values["acts"]}
    assert acts["open the run: its first page"]["rows"] == 60
    assert acts["search “nobody is called so”"]["rows"] == 0
    assert 0 < acts["only refused"]["rows"] < acts["only all classes"]["rows"] == 60
    assert acts["5 results arrive, scrolling and searching"]["rows"] == 65
    assert 0 < report.json_values["empty_mb"] < report.json_values["peak_mb"]
    assert [rows for name, rows, _ in report.json_values["queries"] if name == "as usual"] == [60]
    assert data_folder() == home  # the benchmark's own home is deleted

"""The benchmark of the results database, on a few images: its counts are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import store
from benchmarks.store import run_benchmark as measured
from fieldray.packs.library import PackLibrary
from shipped_packs import CHILDREN


@pytest.mark.slow
def test_a_few_images_are_screened_three_times_and_a_few_rows_looked_after(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_SETTLING_S", 0.0)  # so that no image is known by its stamp
    monkeypatch.setattr(store, "_ROUNDS", 1)
    model = PackLibrary(home).load(CHILDREN)
    report = measured(model, None, files=3, rows=50, notify=lambda _: None)
    assert report.json_values["sizes"]["results"] > 0 < report.json_values["sizes"]["pictures"]
    assert [step["name"] for step in report.json_values["steps"]][:2] == ["check", "backup"]
    assert report.json_values["steps"][0]["result_text"] == "50 results, no damage"
    assert (report.json_values["compared"], report.json_values["different"]) == (1, 0)
    (sentence,) = (line for block in report.blocks for line in getattr(block, "sentences", ()) if "reused" in line)
    assert "0 results were reused by the file's stamp and 3 by the file's content" in sentence

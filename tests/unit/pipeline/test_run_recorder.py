"""What is said of a run at its end: that most of its files failed, and why most of them did."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.domain.finding import Outcome
from fieldray.pipeline.run_recorder import RunRecorder
from fieldray.reasons import reason
from fieldray.store.results import ResultStore
from outcomes import failed, image_ref, run_spec, screened

SPEC = run_spec()
BROKEN = [failed(image_ref(f"broken-{number}.dcm")) for number in range(3)]
GOOD = [screened(image_ref(f"good-{number}.dcm")) for number in range(3)]


def noted(path: Path, *outcomes: Outcome) -> list[str]:
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC)
        recorder = RunRecorder(SPEC, run_id, last_row=store.last_row_id(), keeps_previews=False, watches=False)
        for outcome in outcomes:
            recorder.save(store, [([outcome], ())])
        notes, _ = recorder.end(store, "finished", None)
        return [note.text for note in notes]


def test_a_run_in_which_most_files_failed_says_so_and_why(tmp_path: Path) -> None:
    why = BROKEN[0].reason.text
    said = reason("most_failed", count=3, of=5, why=why).text
    assert noted(tmp_path / "results.sqlite", *BROKEN, *GOOD[:2]) == [said]
    assert said.startswith("Most files failed: 3 of 5. The most common reason: ")


@pytest.mark.parametrize("outcomes", [(*BROKEN, *GOOD), BROKEN[:1], GOOD])
def test_half_of_the_files_or_one_file_are_not_most(tmp_path: Path, outcomes: list[Outcome]) -> None:
    assert noted(tmp_path / "results.sqlite", *outcomes) == []

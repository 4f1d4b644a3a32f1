"""Notes at the end of a run: that most of its files failed, with the most frequent reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.domain.finding import Outcome, decide_by_larger_output
from fieldray.pipeline.run_recorder import RunRecorder
from fieldray.reasons import reason
from fieldray.store.results import ResultStore
from lungs import lungs, two_lungs
from outcomes import failed, image_ref, run_spec, screened

SPEC = run_spec()
BROKEN = [failed(image_ref(f"broken-{number}.dcm")) for number in range(3)]
GOOD = [screened(image_ref(f"good-{number}.dcm")) for number in range(3)]


def noted(path: Path, *outcomes: Outcome, of_pack: bool = False) -> list[str]:
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC)
        recorder = RunRecorder(SPEC, run_id, last_row=store.last_image_row_id(), keeps_previews=False, watches=False)
        for outcome in outcomes:
            recorder.save(store, [([outcome], ())])
        notes, (of_first,) = recorder.end_run(store, "finished", None)
        return [note.text for note in (of_first if of_pack else notes)]


def test_a_run_whose_files_mostly_failed_gets_a_note_with_the_reason(tmp_path: Path) -> None:
    why = BROKEN[0].reason.text
    said = reason("most_failed", count=3, of=5, why=why).text
    assert noted(tmp_path / "results.sqlite", *BROKEN, *GOOD[:2]) == [said]
    assert said.startswith("Most files failed: 3 of 5. The most common reason: ")


def test_read_first_is_counted_in_addition_to_the_two_classes_of_a_bare_model(tmp_path: Path) -> None:
    shares = two_lungs()
    shares[:, 20:] = 0
    half = lungs(shares)
    seen = [replace(good, lungs=half, notes=half.notes) for good in GOOD]
    bare = [replace(one, findings=decide_by_larger_output({"abnormal": 0.2, "normal": 0.8})) for one in seen]
    said = reason("read_first_images", count=2).text
    assert {one.category for one in bare} == {"normal"} and {one.category for one in seen} == {"read_first"}
    assert noted(tmp_path / "results.sqlite", *bare[:2], GOOD[2], of_pack=True) == [said]
    assert noted(tmp_path / "results.sqlite", *seen, of_pack=True) == []  # a class of its own


@pytest.mark.parametrize("outcomes", [(*BROKEN, *GOOD), BROKEN[:1], GOOD])
def test_half_of_the_files_or_a_single_file_give_no_note(tmp_path: Path, outcomes: list[Outcome]) -> None:
    assert noted(tmp_path / "results.sqlite", *outcomes) == []

"""A run folder's status: what failed is named there, what was done stays done, and the next run goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fieldray.adaptation.recipe import read_recipe
from fieldray.adaptation.run import HISTORY, Run, Step, keep_epoch
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import reason

RECIPE = Path(__file__).parents[3] / "models" / "recipes" / "pneumonia-paediatric.toml"


def _run(tmp_path: Path) -> Run:
    folder = tmp_path / "models" / "recipes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE.read_text(encoding="utf-8"), encoding="utf-8")
    return Run(recipe=read_recipe(folder / "recipe.toml"), progress=lambda *_: None)


def _works(run: Run) -> Mapping[str, Any]:
    run.write("first", "result.json", [1])
    return {"answer": 1}


def _fails(run: Run) -> Mapping[str, Any]:
    raise UsageProblem(reason("data_class_empty", label="pneumonia", kind="negative", part="test"))


FIRST = Step(name="first", perform=_works, reads=("input",))
SECOND = Step(name="second", perform=_fails, reads=("data",))


def test_a_step_that_fails_is_named_and_the_one_before_it_stays_done(tmp_path: Path) -> None:
    run, said = _run(tmp_path), list[str]()
    with pytest.raises(UsageProblem):
        run.execute((FIRST, SECOND), say=said.append)
    assert run.status["first"]["state"] == "done" and run.status["first"]["answer"] == 1
    assert run.status["second"]["state"] == "failed"
    assert run.status["second"]["problem"] == "The label pneumonia has no negative images in the test part."
    mended = Step(name="second", perform=_works, reads=("data",))
    said.clear()
    run.execute((FIRST, mended), say=said.append)
    assert said == ["first: done before", "second ..."] and run.status["second"]["state"] == "done"


def test_a_result_that_cannot_be_written_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    run = _run(tmp_path)
    run.folder("first").mkdir(parents=True)
    (run.folder("first") / "result.json").mkdir()  # no file can take its place
    with pytest.raises(StorageProblem, match=r"Cannot write to .*result\.json"):
        run.execute((FIRST,), say=lambda _: None)
    assert run.status["first"]["state"] == "failed" and "Cannot write" in run.status["first"]["problem"]
    (run.folder("first") / "result.json").rmdir()
    run.execute((FIRST,), say=lambda _: None)
    assert run.status["first"]["state"] == "done"


def test_a_pack_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    run, said, place = _run(tmp_path), list[str](), tmp_path / "packs" / "mine-1.0.0"

    def packs(_: Run) -> Mapping[str, Any]:
        place.mkdir(parents=True)
        return {"pack": str(place)}

    step = Step(name="pack", perform=packs, reads=("pack",))
    for taken_away in (False, False, True):
        if taken_away:
            place.rmdir()
        run.execute((step,), say=said.append)
    assert said == ["pack ...", "pack: done before", "pack ..."] and place.is_dir()


def test_the_history_of_a_training_grows_with_its_epochs(tmp_path: Path) -> None:
    def known() -> list[float]:
        return [row["loss"] for row in json.loads((tmp_path / HISTORY).read_text())]

    keep_epoch(tmp_path, {"epoch": 1, "loss": 3.0})
    keep_epoch(tmp_path, {"epoch": 2, "loss": 2.0})
    assert known() == [3.0, 2.0]
    keep_epoch(tmp_path, {"epoch": 2, "loss": 2.5})  # resumed from the first epoch
    assert known() == [3.0, 2.5]
    keep_epoch(tmp_path, {"epoch": 1, "loss": 4.0})  # another training
    assert known() == [4.0]
    (tmp_path / HISTORY).write_text("[")
    keep_epoch(tmp_path, {"epoch": 1, "loss": 5.0})
    assert known() == [5.0]

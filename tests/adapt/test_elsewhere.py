"""A pack measured at another hospital: with the thresholds it has, on nobody it has seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.domain.purpose import performance
from fieldray.errors import UsageProblem
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray_adapt.dataset import DATA, data_problems
from fieldray_adapt.evaluate_step import EVALUATE
from fieldray_adapt.pack import PACK
from fieldray_adapt.run import Run
from fieldray_adapt.steps import QUANTISE, TRAIN
from tiny_recipe import RECIPE, draw, read_recipe

ELSEWHERE = """
[evaluation.elsewhere]
name = "elsewhere"
layout = "csv"
path = "elsewhere.csv"
"""


@pytest.mark.adapt
@pytest.mark.timeout(600)
def test_the_thresholds_of_the_own_hospital_are_measured_at_another_on_nobody_of_it(tmp_path: Path) -> None:
    for name, images, first in (("clean", 60, 0), ("confounded", 30, 60), ("elsewhere", 20, 200)):
        draw(tmp_path, name, images=images, first=first)
    (tmp_path / "recipe.toml").write_text(RECIPE + ELSEWHERE, encoding="utf-8")
    recipe = replace(read_recipe(tmp_path / "recipe.toml"), prune=None)
    run = Run(recipe=recipe, progress=lambda *_: None)
    run.execute((DATA, TRAIN, QUANTISE, EVALUATE, PACK), say=lambda _: None)
    results = json.loads((tmp_path / "run" / "evaluate" / "metrics.json").read_text(encoding="utf-8"))
    found = results["labels"]["bright"]
    there, points = found["external_test"], found["test"]["points"]
    assert (there["images"], there["positive"], there["auc"]["value"]) == (20, 10, 1.0)
    assert there["points"]["balanced"]["threshold"] == points["balanced"]["threshold"]
    # the middle tells the class there too, the border does not
    assert there["shortcuts"]["thumbnail"] > 0.95 and there["shortcuts"]["border"] < 0.85
    assert results["gate"]["elsewhere_refused"]["of"] == 20
    pack = tmp_path / "packs" / "quick-0.1.0"
    manifest = read_files(pack, read_verified_manifest(pack)).model("signed").manifest
    said = [sentence.text for sentence in performance(manifest)]
    assert len(said) == 4 and "on 20 images of another hospital: area under the ROC curve 1.00" in said[2]
    assert said[3] == "It cannot tell in 0 of 100 of them: not sure about 0 of 20."
    card = (tmp_path / "packs" / "quick-0.1.0" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "At another hospital, on which nothing was trained or chosen: 20 images of 20 patients" in card
    assert "Of the other hospital's: " in card
    assert "has no file compiled for the Edge TPU.\n\n- Forecast for the Edge TPU" in card
    # nobody of the recipe is measured
    assert not data_problems(run.recipe, every_image=True)
    table = tmp_path / "elsewhere.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("p201,", "p1,"), encoding="utf-8")
    with pytest.raises(UsageProblem, match=r"patient p1 .*\(the recipe's own\).*\(elsewhere\)"):
        run.execute((DATA, TRAIN, QUANTISE, EVALUATE), say=lambda _: None)
    table.unlink()
    assert {problem.location for problem in data_problems(run.recipe, every_image=True)} == {
        ("evaluation", "elsewhere")
    }

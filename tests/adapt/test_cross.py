"""A small cross-validation: every evaluated image gets a score from a network that saw none of its patient's images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fieldray_adapt.cross import CROSS
from fieldray_adapt.dataset import DATA
from fieldray_adapt.pack import cross_validation_of, filled
from fieldray_adapt.run import Run
from tiny_recipe import RECIPE, draw, read_recipe


@pytest.mark.adapt
def test_every_judged_image_is_scored_out_of_its_fold(tmp_path: Path) -> None:
    draw(tmp_path, "clean", images=60, first=0)
    draw(tmp_path, "confounded", images=30, first=60)
    text = RECIPE.replace("cross_folds = [0, 1, 2]", "cross_folds = [0, 1]")
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    run = Run(recipe=read_recipe(tmp_path / "recipe.toml"), progress=lambda *_: None)
    run.execute((DATA, CROSS), say=lambda _: None)
    with np.load(tmp_path / "run" / "cross" / "scores.npz") as arrays:
        stages = {name: arrays[name][:, 0] for name in ("trained", "pruned", "int8")}
    judged = (np.arange(90) // 2 % 3 < 2) & (np.arange(90) < 60)  # of two of three folds, of the clean source
    assert all(np.array_equal(~np.isnan(own), judged) for own in stages.values())
    found = json.loads((tmp_path / "run" / "cross" / "metrics.json").read_text())["bright"]
    assert found["images"] == 40 and min(own["auc"]["value"] for own in found["stages"].values()) > 0.95
    assert set(found["stages"]["int8"]["auc_by_fold"]) == {"0", "1"}
    assert found["float_against_int8"]["mean_absolute_difference"] < 0.05 and found["after_training"]["low"] <= 0
    # the middle tells the class, the border cannot
    assert found["shortcuts"]["thumbnail"] > 0.95 and found["shortcuts"]["border"] < 0.75
    text = (tmp_path / "run" / "cross.json").read_text(encoding="utf-8")  # no folder for what is published was named
    assert json.loads(text)["labels"]["bright"] == found and str(tmp_path) not in text
    page = (tmp_path / "run" / "cross.html").read_text(encoding="utf-8")
    assert (
        f"{found['stages']['int8']['auc']['value']:.3f} (" in page
        and page.count("<svg") == 1
        and str(tmp_path) not in page
    )
    # what the card says
    assert cross_validation_of(run) == {"bright": found}
    said = filled("classifier_cross.md", code="bright", meaning="Bright", found=found)
    assert f"As the int8 file that a pack holds: AUC {found['stages']['int8']['auc']['value']:.3f} (" in said
    only_trained = {**found, "stages": {"trained": found["stages"]["trained"]}}
    said = filled("classifier_cross.md", code="bright", meaning="Bright", found=only_trained)
    assert "before pruning and int8: AUC" in said
    other = replace(run.recipe, training=replace(run.recipe.training, epochs=5))
    assert cross_validation_of(replace(run, recipe=other)) is None
    assert cross_validation_of(replace(run, recipe=replace(run.recipe, calibration_images=7))) is None

"""A small cross-validation: every judged film gets a score from a network that saw none of its patient's films."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fieldray.adaptation.card import cross_text
from fieldray.adaptation.cross import CROSS
from fieldray.adaptation.pack import cross_validation_of
from fieldray.adaptation.recipe import read_recipe
from fieldray.adaptation.run import Run

RECIPE = """
run = "run"
signing_key = "key.pem"
packs_folder = "packs"
labels = [{ code = "bright", meaning = { en = "Bright", uk = "Світле" }, positive = ["1"], negative = ["0"] }]
[pack]
id = "quick"
version = "0.1.0"
credits = "Drawn by code."
names = { en = "Quick", uk = "Швидкий" }
descriptions = { en = "A trial.", uk = "Спроба." }
intended_use = { en = "Tests.", uk = "Тести." }
limits = { en = "All.", uk = "Усі." }
[input]
height = 32
width = 32
[network]
blocks = [1]
width = 0.125
[split]
by = "fold"
validation_folds = [0]
test_folds = [1]
cross_folds = [0, 1, 2]
[training]
epochs = 4
batch_size = 16
learning_rate = 3e-3
average_epochs = 0.5
images_per_epoch = 128
threads = 1
[prune]
batch_size = { start = 16 }
epochs = { start = 1.0 }
learning_rate = { start = 3e-3 }
cut_kind = "level"
cut_off = { start = 0.9 }
minimum_channels = { start = 4 }
calibration = 16
stop = { iterations = 1 }
[evaluation]
points = [{ name = "balanced", rule = "balance", titles = { en = "Balanced", uk = "Збалансована" } }]
[[data]]
name = "clean"
layout = "csv"
path = "clean.csv"
columns = { fold = "fold" }
[[data]]
name = "confounded"
layout = "csv"
path = "confounded.csv"
columns = { fold = "fold" }
judged = false
"""


def _draw(folder: Path, name: str, *, films: int, first: int) -> None:
    lines, generator = ["path,label,patient,fold"], np.random.default_rng(first)
    for number in range(first, first + films):
        pixels = generator.integers(60, 120, (80, 80), np.uint8)
        pixels[:8] = 250  # so that stretching the grey levels leaves the middle's brightness as it is
        pixels[-8:] = 0
        pixels[20:60, 20:60] += 70 * (number % 2)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{number % 2},p{number},{number // 2 % 3}")
    (folder / f"{name}.csv").write_text("\n".join(lines))


@pytest.mark.adapt
def test_every_judged_film_is_scored_out_of_its_fold(tmp_path: Path) -> None:
    _draw(tmp_path, "clean", films=60, first=0)
    _draw(tmp_path, "confounded", films=30, first=60)
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    run = Run(recipe=read_recipe(tmp_path / "recipe.toml"), progress=lambda *_: None)
    run.execute((CROSS,), say=lambda _: None)
    with np.load(tmp_path / "run" / "cross" / "scores.npz") as arrays:
        stages = {name: arrays[name][:, 0] for name in ("trained", "pruned", "int8")}
    assert all(not np.isnan(own[:60]).any() and np.isnan(own[60:]).all() for own in stages.values())
    found = json.loads((tmp_path / "run" / "cross" / "metrics.json").read_text())["bright"]
    assert found["films"] == 60 and min(own["auc"]["value"] for own in found["stages"].values()) > 0.95
    assert set(found["stages"]["int8"]["auc_by_fold"]) == {"0", "1", "2"}
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
    _check_what_the_card_says(run, found)


def _check_what_the_card_says(run: Run, found: dict[str, Any]) -> None:
    assert cross_validation_of(run) == {"bright": found}
    said = cross_text("bright", "Bright", found)
    assert f"As the int8 file that a pack holds: AUC {found['stages']['int8']['auc']['value']:.3f} (" in said
    only_trained = {**found, "stages": {"trained": found["stages"]["trained"]}}
    assert "before pruning and int8: AUC" in cross_text("bright", "Bright", only_trained)
    other = replace(run.recipe, training=replace(run.recipe.training, epochs=5))
    assert cross_validation_of(replace(run, recipe=other)) is None
    assert cross_validation_of(replace(run, recipe=replace(run.recipe, calibration_images=7))) is None

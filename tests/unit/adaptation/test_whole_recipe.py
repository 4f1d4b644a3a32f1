"""A whole recipe on films drawn by code: from files to a signed pack that the program's own reader accepts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fieldray.adaptation.command import STEPS, adapt
from fieldray.errors import UsageProblem
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.sealed import read_files, read_sealed

pytestmark = [pytest.mark.adapt, pytest.mark.slow]

RECIPE = """
run = "run"
signing_key = "keys/signing.pem"
packs_folder = "packs"
calibration_images = 20
[pack]
id = "quick"
version = "0.1.0"
credits = "Films drawn by code."
names = {{ en = "Quick", uk = "Швидкий" }}
descriptions = {{ en = "A trial.", uk = "Спроба." }}
intended_use = {{ en = "Tests.", uk = "Тести." }}
limits = {{ en = "All.", uk = "Усі." }}
[input]
height = 64
width = 64
margin = 0.04
[network]
blocks = [1, 1]
width = 0.25
[[labels]]
code = "opacity"
meaning = {{ en = "Opacity", uk = "Затемнення" }}
positive = ["abnormal"]
negative = ["normal"]
[[labels]]
code = "bright"
meaning = {{ en = "Bright", uk = "Світлий" }}
positive = ["bright"]
auxiliary = true
[[data]]
name = "drawn"
layout = "csv"
path = "films.csv"
[split]
by = "random"
validation_share = 0.25
test_share = 0.25
[augmentation]
shift = 0.03
gamma = 0.1
[training]
epochs = {epochs}
images_per_epoch = 200
batch_size = 16
learning_rate = 3e-3
average_epochs = 0.5
threads = 1
[evaluation]
strangers_side = 64
gate_components = 8
strangers = {{ name = "noise", layout = "folders", path = "noise" }}
points = [{{ name = "balanced", rule = "balance", titles = {{ en = "Balanced", uk = "Збалансована" }} }}]
"""


def _draw(folder: Path, *, films: int) -> Path:
    lines = ["path,label,patient"]
    for number in range(films):
        pixels = (chest_phantom(96, 96, number, abnormal=number % 2 == 1) / 257).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        kind = "abnormal" if number % 2 else "normal"
        lines.append(f"{number}.png,{kind}{'|bright' if pixels.mean() > 128 or number % 3 == 0 else ''},p{number}")
    (folder / "films.csv").write_text("\n".join(lines))
    (folder / "noise" / "any").mkdir(parents=True)
    for number in range(10):
        noise = np.random.default_rng(number).integers(0, 256, (64, 64), np.uint8)
        Image.fromarray(noise).save(folder / "noise" / "any" / f"{number}.png")
    (folder / "recipe.toml").write_text(RECIPE.format(epochs=8), encoding="utf-8")
    return folder / "recipe.toml"


@pytest.mark.timeout(600)
def test_from_films_to_a_pack(tmp_path: Path) -> None:
    recipe, said = _draw(tmp_path, films=96), list[str]()

    with pytest.raises(UsageProblem, match="The step train has to be run first"):
        _only(recipe, "quantise")
    adapt("run", recipe, say=said.append, progress=lambda *_: None)

    pack = tmp_path / "packs" / "quick-0.1.0"
    model = read_files(pack, read_sealed(pack)).model("signed")
    assert [label.code for label in model.manifest.labels] == ["opacity"]  # the auxiliary one is gone
    assert model.golden is not None and model.golden.inputs.shape == (6, 64, 64, 1)
    assert model.manifest.gate is not None and model.manifest.point("opacity", "balanced") is not None
    metrics = json.loads((tmp_path / "run" / "evaluate" / "metrics.json").read_text())
    opacity = metrics["labels"]["opacity"]
    assert opacity["test"]["auc"]["value"] > 0.8  # opacities are drawn well visible
    assert opacity["float_against_int8"]["mean_absolute_difference"] < 0.05
    assert metrics["gate"]["strangers"] == 10 and metrics["data"]["films"]["training"] == 48
    assert f"AUC {opacity['test']['auc']['value']:.3f}" in model.card
    assert "no patient is on two sides" in model.card
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert report.count("<svg") == 3 and "http://" not in report.replace("http://www.w3.org", "").replace(
        "http://purl", ""
    )

    said.clear()
    adapt("run", recipe, say=said.append, progress=lambda *_: None)
    assert [line for line in said if "done before" in line] == [f"{step.name}: done before" for step in STEPS]
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace('rule = "balance"', 'rule = "sensitivity"'), encoding="utf-8")
    said.clear()
    adapt("run", recipe, say=said.append, progress=lambda *_: None)
    assert {"train: done before", "quantise: done before"} < set(said) and "evaluate ..." in said


def _only(recipe: Path, step: str) -> None:
    """One step without those before it."""
    from fieldray.adaptation.recipe import read_recipe
    from fieldray.adaptation.run import Run

    chosen = tuple(known for known in STEPS if known.name == step)
    Run(recipe=read_recipe(recipe), progress=lambda *_: None).execute(chosen, say=lambda _: None)

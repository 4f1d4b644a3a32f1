"""The quick lung-field recipes, on drawn chests: from images and masks to a pack, a card, a report and panels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drawn_data import draw_images, draw_lungs, project
from fieldray.domain.model import LUNG_CHECKS
from fieldray.errors import UsageProblem
from fieldray.packs.manifest import LungFieldsManifest, parse
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray_adapt.lungs.dataset import LungData
from fieldray_adapt.lungs.recipe import LungRecipe
from fieldray_adapt.lungs.results import hospitals, left_out
from fieldray_adapt.recipe import rooted
from fieldray_adapt.tables import Document
from tiny_recipe import adapted

pytestmark = [pytest.mark.adapt, pytest.mark.slow]


@pytest.mark.timeout(900)
def test_from_masks_to_a_pack(tmp_path: Path) -> None:
    draw_images(tmp_path, children=0, adults=32, ood_images=8)
    draw_lungs(tmp_path, learnt=24, evaluated=4, regions=24)
    recipe = project(tmp_path, "lung-fields-quick")
    text = recipe.read_text(encoding="utf-8")
    region = """[[masks]]
name = "kermany"
path = "../../../shared/data/lungs.csv"
where = { set = ["kermany"] }
shows = "region"

[[chests]]"""
    with pytest.raises(UsageProblem, match="that show the region need"):
        recipe.write_text(text.replace("[[chests]]", region, 1), encoding="utf-8")
        adapted("data", recipe)
    text = text.replace("[[chests]]", region, 1).replace("[network]", "[network]\nregion = true")
    recipe.write_text(text.replace("masks_per_step = 6", "masks_per_step = 10"), encoding="utf-8")
    adapted("run", recipe)

    runs = tmp_path / "project" / "runs"
    run, pack = runs / "lung-fields-quick", runs / "packs" / "lung-fields-quick-0.1.0"
    found = read_files(pack, read_verified_manifest(pack))
    manifest = parse((pack / "manifest.json").read_bytes())
    assert isinstance(manifest, LungFieldsManifest)
    assert tuple(check.name for check in manifest.checks) == LUNG_CHECKS
    assert np.load(pack / "golden_scores.npy", allow_pickle=False).shape == (6, 6)

    metrics = json.loads((run / "evaluate" / "metrics.json").read_text())
    masks = metrics["masks"]
    assert set(masks) == {"int8", "float"} and set(masks["int8"]) == {"montgomery", "shenzhen", "kermany"}
    for source in masks["int8"]:
        assert masks["int8"][source]["dice"]["value"] > 0.7  # drawn lungs are easy, and a minute is short
    assert abs(metrics["int8_less_float"]["dice"]) < 0.05  # 0.02 to 0.03 after a minute, by the order of additions
    assert set(metrics["chests"]) == {"nih", "montgomery", "kermany"}
    card = found.contents["MODEL_CARD.md"].decode()
    assert f"{masks['int8']['shenzhen']['dice']['value']:.4f} (" in card and "Dice of the lungs" in card
    assert "Sources whose masks were evaluated on and never learnt from: shenzhen." in card
    assert "has no file compiled for the Edge TPU.\n\n- Forecast for the Edge TPU" in card
    report = (run / "report.html").read_text(encoding="utf-8")
    assert report.count("data:image/png;base64,") == 3 and "worst" in report
    panels = sorted((run / "train" / "panels").iterdir())
    assert [path.name for path in panels] == [f"epoch-00{number}.png" for number in (1, 2, 3, 4)]
    with Image.open(panels[0]) as panel:
        assert panel.size == (3 * 192, 2 * 192)  # image, mask and prediction of two samples
    again = adapted("run", recipe)
    assert {"train: done before", "pack: done before"} <= set(again)


@pytest.mark.timeout(900)
def test_each_hospital_is_left_out_once(tmp_path: Path) -> None:
    draw_images(tmp_path, children=0, adults=12, ood_images=6)
    draw_lungs(tmp_path, learnt=12, evaluated=4)
    recipe = project(tmp_path, "lung-fields-quick")
    text = recipe.read_text(encoding="utf-8")
    with pytest.raises(UsageProblem, match="needs two or more of them; the recipe has nih"):
        adapted("cross", recipe)
    unseen = """[[chests]]
name = "shenzhen"
layout = "csv"
path = "../../../shared/data/lungs.csv"
where = { use = ["evaluate"] }
columns = { path = "film", classes = "label", patient = "patient_id" }

[[ood_images]]"""
    text = text.replace("[[ood_images]]", unseen, 1).replace("steps_per_epoch = 30", "steps_per_epoch = 2")
    first, last = text.index("[[training.stages]]"), text.rindex("[[training.stages]]")
    recipe.write_text(text[:first] + text[last:].replace("epochs = 2", "epochs = 1"), encoding="utf-8")
    assert "cross: " in "\n".join(adapted("cross", recipe))
    run = tmp_path / "project" / "runs" / "lung-fields-quick"
    found = json.loads((run / "cross" / "metrics.json").read_text())
    assert set(found["hospitals"]) == {"montgomery", "nih", "shenzhen"}
    assert {name: one["images"] for name, one in found["masks"].items()} == {"montgomery": 12, "shenzhen": 4}
    asked = {name: one["unseen"][name]["frontal_chest"]["of"] for name, one in found["hospitals"].items()}
    assert asked == {"montgomery": 4, "nih": 12, "shenzhen": 4}

    with (run / "data" / "images_and_masks.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        data = LungData(**arrays)
    whole = rooted(Document.read(recipe).parsed(LungRecipe), recipe)
    for number, name in enumerate(hospitals(whole)):
        rest = left_out(whole, data, number)
        held = set(rest.image_patients[rest.image_parts == "held out"])
        learnt = set(rest.image_patients[np.isin(rest.image_parts, ("training", "validation"))])
        assert len(held) == 4 and not held & learnt and len(learnt) == 8
        assert name not in rest.chest_sources[rest.chest_parts != "left out"]
        checks = rest.checks("training", {}, side=64)
        assert name not in checks.chests and ("montgomery" in checks.chests) == (name != "montgomery")
        evaluated = set(rest.image_sources[rest.image_parts == "evaluate"])
        assert evaluated == ({"shenzhen"} if name == "shenzhen" else set())


@pytest.mark.timeout(900)
def test_the_published_network_learns_and_is_measured(tmp_path: Path) -> None:
    draw_lungs(tmp_path, learnt=16, evaluated=0)
    recipe = project(tmp_path, "lung-fields-published-quick")
    adapted("run", recipe)
    run = tmp_path / "project" / "runs" / "lung-fields-published-quick"
    history = json.loads((run / "train" / "history.json").read_text())
    assert [row["side"] for row in history] == [220, 220] and history[1]["loss"] < history[0]["loss"]
    metrics = json.loads((run / "evaluate" / "metrics.json").read_text())
    assert set(metrics) == {"masks"} and metrics["masks"]["trained"]["montgomery"]["dice"]["value"] > 0
    assert len(list((run / "train" / "panels").iterdir())) == 2

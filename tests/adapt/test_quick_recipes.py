"""The quick versions of all shipped recipes on drawn data: from files to packs, tables and reports.

Recipes of lung-field packs also give cards and panels.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from drawn_data import draw_digits, draw_images, draw_lungs, project
from fieldray.audit.drift import reference_histograms
from fieldray.domain.model import LUNG_NETWORK_CHECKS
from fieldray.errors import UsageProblem
from fieldray.packs.cards import split_card_by_language
from fieldray.packs.manifest import LungFieldsManifest, parse_manifest
from fieldray.packs.verified import read_pack
from fieldray_adapt.lungs.dataset import LungData
from fieldray_adapt.lungs.hospital_cross_validation import list_hospitals, without_hospital
from fieldray_adapt.lungs.recipe import LungRecipe
from fieldray_adapt.recipe_actions import CLASSIFIER_STEPS
from fieldray_adapt.recipes.classifier import with_absolute_paths
from fieldray_adapt.recipes.tables import RecipeDocument
from fieldray_adapt.run import Run
from fieldray_adapt.training.loop import CHECKPOINT_FILE_NAME
from tiny_recipe import adapted, read_recipe

pytestmark = [pytest.mark.adapt, pytest.mark.slow]


def _only(recipe: Path, step: str) -> None:
    """Perform one step alone."""
    chosen = tuple(known for known in CLASSIFIER_STEPS if known.name == step)
    Run(recipe=read_recipe(recipe), progress=lambda *_: None).execute(chosen, say=lambda _: None)


@pytest.mark.timeout(600)
def test_from_images_to_a_pack(tmp_path: Path) -> None:
    draw_images(tmp_path, children=96, adults=0, ood_images=10)
    recipe = project(tmp_path, "pneumonia-paediatric-quick")
    run = tmp_path / "project" / "runs" / "pneumonia-paediatric-quick"

    with pytest.raises(UsageProblem, match="First run the step data"):
        _only(recipe, "quantise")
    said = adapted("profile", recipe)
    assert said[0] == "profile ..." and ", 64 " in said[1]
    said = adapted("run", recipe)

    pack = tmp_path / "project" / "runs" / "packs" / "pneumonia-paediatric-quick-0.1.0"
    model = read_pack(pack).model
    assert [label.code for label in model.manifest.labels] == ["pneumonia"]  # the auxiliary label is left out
    assert model.golden is not None and model.golden.inputs.shape == (6, 64, 64, 1)
    assert model.manifest.ood_gate is not None and model.manifest.point("pneumonia", "balanced") is not None
    metrics = json.loads((run / "evaluate" / "metrics.json").read_text())
    reference = reference_histograms(model.manifest.metrics, "pneumonia")  # for sites to compare with
    assert sum(reference["scores"]) == metrics["labels"]["pneumonia"]["test"]["scored"] > 0
    pneumonia = metrics["labels"]["pneumonia"]
    auc = "pneumonia {value:.3f} ({low:.3f} to {high:.3f})".format(**pneumonia["test"]["auc"])
    assert any(line.startswith("evaluate: ") and line.endswith(auc) for line in said)
    assert any(line.startswith("pack: ") and f"pack {pack}," in line for line in said)
    assert pneumonia["test"]["auc"]["value"] > 0.7  # opacities are drawn clearly; measured: 0.80
    assert pneumonia["float_against_int8"]["mean_absolute_difference"] < 0.05
    assert metrics["gate"]["ood_images"] == 10 and metrics["data"]["images"]["training"] == 48
    assert f"AUC {pneumonia['test']['auc']['value']:.3f}" in model.card
    assert "no patient is on two sides" in model.card
    caught = pneumonia["test"]["points"]["balanced"]["sensitivity"]
    assert f"{caught['count']} of {caught['of']}: {caught['value']:.3f} (" in model.card and caught["low"] < 1
    assert not list(run.rglob(CHECKPOINT_FILE_NAME))
    split = json.loads((run / "data" / "facts.json").read_text())["split_sha256"]
    assert f"split_sha256: {split}" in model.card
    first, second = json.loads((run / "prune" / "table.json").read_text())
    assert second["multiply_adds"] < first["multiply_adds"]
    row = "| 1, kept | {parameters:,} |".format(**second)
    assert f"training was begun with {first['parameters']:,}, and then" in model.card and row in model.card
    _check_report((run / "report.html").read_text(encoding="utf-8"))
    _check_resuming(recipe)


def _check_report(report: str) -> None:
    # training curves; pruning; ROC, calibration and scores; class maps
    assert report.count("<svg") == 4
    headings = ("Training", "Time per iteration", "Pruning", "Class maps", "Out-of-distribution gate", "Recipe")
    assert all(f"<h2>{heading}" in report for heading in headings)
    assert "running" not in report and "{&#39;" not in report and "{&#34;" not in report
    assert "ood_gate_keeps = 0.99" in report and "<td>report" not in report  # the unchanged recipe
    for axis in ("times faster", "validation AUC", "1 - specificity", "share with the finding"):
        assert axis in report
    assert "http://" not in report.replace("http://www.w3.org", "").replace("http://purl", "")


def _check_resuming(recipe: Path) -> None:
    said = adapted("run", recipe)
    assert [line for line in said if "done before" in line] == [
        f"{step.name}: done before" for step in CLASSIFIER_STEPS
    ]
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("ood_gate_keeps = 0.99", "ood_gate_keeps = 0.98"), encoding="utf-8")
    assert {"train: done before", "quantise: done before", "evaluate ..."} < set(adapted("run", recipe))


@pytest.mark.timeout(600)
def test_adults_are_cross_validated_from_the_pack_of_children(tmp_path: Path) -> None:
    draw_images(tmp_path, children=0, adults=64, ood_images=2)
    recipe = project(tmp_path, "adult-normal-abnormal-quick")
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace("cross_folds = [0, 1]", "cross_folds = [0]"), encoding="utf-8")
    adapted("cross", recipe)
    run = tmp_path / "project" / "runs" / "adult-normal-abnormal-quick"
    found = json.loads((run / "cross" / "metrics.json").read_text())
    assert list(found) == ["abnormal"]
    # of 64 images every second eight are in the clean set, the only evaluated one: 8 in each fold
    assert found["abnormal"]["images"] == 8 and set(found["abnormal"]["stages"]) == {"trained", "int8"}
    assert set(found["abnormal"]["shortcuts"]) == {"border", "thumbnail"}
    with np.load(run / "cross" / "scores.npz") as arrays:
        targets = arrays["targets"]
    # large images have labels for effusion, infiltration, sex, view and age; small ones only for findings
    assert np.isnan(targets[:64]).sum() == 0
    assert np.isnan(targets[64:, 3:]).all(axis=0).tolist() == [True, False, True]


@pytest.mark.timeout(600)
def test_a_study_ends_in_tables_and_curves(tmp_path: Path) -> None:
    draw_digits(tmp_path, training=700, test=30)
    recipe = project(tmp_path, "vgg16-mnist-quick")
    head, *runs = recipe.read_text(encoding="utf-8").split("[[runs]]")
    left_out = ("linear", "multiplicative", "constant")  # these differ from the other recipes only in numbers
    kept = [text for text in runs if not text.startswith(tuple(f'\nname = "{name}"' for name in left_out))]
    recipe.write_text("[[runs]]".join([head, *kept]), encoding="utf-8")
    run = tmp_path / "project" / "runs" / "vgg16-mnist-quick"
    said = adapted("profile", recipe)
    assert len(said) == 1 and said[0].startswith("profile: at 28 pixels train with batches of ")
    adapted("prune", recipe)
    results = json.loads((run / "results.json").read_text())
    assert {name: len(found["iterations"]) - 1 for name, found in results["runs"].items()} == {
        "context": 1,
        "smallest": 1,
    }
    assert {found["stopped_by"] for found in results["runs"].values()} == {"iterations"}
    last = results["runs"]["smallest"]["iterations"][-1]
    assert last["times_fewer_parameters"] > results["baselines"]["random-0.5"]["times_fewer_parameters"] > 1
    assert set(last["speed_up"]) == {"engine_batch", "int8"} and min(last["speed_up"].values()) > 0
    report = (run / "report.html").read_text(encoding="utf-8")
    assert report.count("<svg") == 1 and "Time per iteration of the original" in report


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
    with pytest.raises(UsageProblem, match="masks with shows = region need"):
        recipe.write_text(text.replace("[[chests]]", region, 1), encoding="utf-8")
        adapted("data", recipe)
    text = text.replace("[[chests]]", region, 1).replace("[network]", "[network]\nregion = true")
    recipe.write_text(text.replace("masks_per_step = 6", "masks_per_step = 10"), encoding="utf-8")
    adapted("run", recipe)

    runs = tmp_path / "project" / "runs"
    run, pack = runs / "lung-fields-quick", runs / "packs" / "lung-fields-quick-0.1.0"
    found = read_pack(pack)
    manifest = parse_manifest((pack / "manifest.json").read_bytes())
    assert isinstance(manifest, LungFieldsManifest)
    assert tuple(check.name for check in manifest.checks) == LUNG_NETWORK_CHECKS
    assert np.load(pack / "golden_scores.npy", allow_pickle=False).shape == (6, 6)

    metrics = json.loads((run / "evaluate" / "metrics.json").read_text())
    masks = metrics["masks"]
    assert set(masks) == {"int8", "float"} and set(masks["int8"]) == {"montgomery", "shenzhen", "kermany"}
    for source in masks["int8"]:
        assert masks["int8"][source]["dice"]["value"] > 0.7  # drawn lungs are easy, but a minute of training is short
    assert abs(metrics["int8_less_float"]["dice"]) < 0.05  # measured: 0.02 to 0.03, changed by rounding
    assert set(metrics["chests"]) == {"nih", "montgomery", "kermany"}
    card = found.file_contents["MODEL_CARD.md"].decode()
    assert f"{masks['int8']['shenzhen']['dice']['value']:.4f} (" in card and "Dice of the lungs" in card
    assert "Sources with masks for evaluation only, never for training: shenzhen." in card
    assert "has no file compiled for the Edge TPU.\n\n- Forecast for the Edge TPU" in card
    ukrainian, dice = (
        split_card_by_language(card)["uk"],
        f"{masks['int8']['shenzhen']['dice']['value']:.4f}".replace(".", ","),
    )
    assert "лише випробувано й нічого не навчено: shenzhen." in ukrainian and f"{dice} (від " in ukrainian
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
    with pytest.raises(UsageProblem, match="needs two or more hospitals, but the recipe has nih"):
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
    whole = with_absolute_paths(RecipeDocument.read(recipe).parse_as(LungRecipe), recipe)
    for number, name in enumerate(list_hospitals(whole)):
        rest = without_hospital(whole, data, number)
        held = set(rest.image_patients[rest.image_parts == "held out"])
        learnt = set(rest.image_patients[np.isin(rest.image_parts, ("training", "validation"))])
        assert len(held) == 4 and not held & learnt and len(learnt) == 8
        assert name not in rest.chest_sources[rest.chest_parts != "left out"]
        checks = rest.images_for_image_checks("training", {}, side=64)
        assert name not in checks.chests_and_frequency_by_source and (
            "montgomery" in checks.chests_and_frequency_by_source
        ) == (name != "montgomery")
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

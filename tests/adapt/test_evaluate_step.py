"""The step `evaluate` on drawn images with known scores: operating points, the OOD check, shortcuts, duplicates.

Then two small trainings: a cross-validation, in which a network that saw no image of the patient scores each image; and
a pack with fixed thresholds, measured at another hospital.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from msgspec import structs

from fieldray.audit.figures import compute_audit
from fieldray.audit.units import Case, CountingRule
from fieldray.domain.finding import Category
from fieldray.domain.image import ImageHeader
from fieldray.domain.intended_use import performance_sentences
from fieldray.domain.metrics import Share, auc
from fieldray.domain.model import Estimate
from fieldray.errors import UsageProblem
from fieldray.packs.cards import split_card_by_language
from fieldray.packs.verified import read_pack
from fieldray.reasons import reason
from fieldray.reports.audit_files import class_shares_for_manifest
from fieldray.translation import Translator
from fieldray.typed_json import to_type
from fieldray_adapt.data.dataset import DATA_STEP, find_data_problems, find_duplicates, thumbnails
from fieldray_adapt.data.layouts import Row
from fieldray_adapt.evaluation.cross_validation import CROSS_VALIDATION_STEP
from fieldray_adapt.evaluation.evaluate import (
    EvaluatedImages,
    auc_by_group,
    border_pixels,
    choose_operating_point,
    compare_with_int8,
    data_part_figures,
    fit_ood_check,
    ood_distances,
    select_labelled_images,
    shortcut_scores,
    thumbnail_pixels,
    with_measured_figures,
)
from fieldray_adapt.evaluation.evaluate_step import EVALUATE_STEP
from fieldray_adapt.evaluation.figures import ClassifierFigures, CrossValidationFigures, LabelFigures, OodCheckFigures
from fieldray_adapt.files import to_builtins
from fieldray_adapt.pack.card import find_warnings, render_template
from fieldray_adapt.pack.step import PACK_STEP, published_cross_validation
from fieldray_adapt.recipes.classifier import OperatingPointChoice
from fieldray_adapt.run import Run
from fieldray_adapt.training.steps import QUANTISE_STEP, TRAIN_STEP
from tiny_recipe import RECIPE, draw, read_recipe

TITLES = {"en": "Balanced", "uk": "Збалансована"}
MEASURED_ON = {"en": "{images} images of {patients} patients"}


def _rows(count: int, **facts: object) -> list[Row]:
    return [
        Row(path=Path(f"{n}.png"), source="set", classes=frozenset({"x"}), patient=f"p{n}", origin=f"line {n}", **facts)  # type: ignore[arg-type]
        for n in range(count)
    ]


def _evaluated(seed: int, *, count: int = 400, **facts: object) -> EvaluatedImages:
    generator = np.random.default_rng(seed)
    truth = np.arange(count) % 2 == 0
    scores = 1 / (1 + np.exp(-generator.normal(np.where(truth, 1.5, -1.5), 1.0)))
    return EvaluatedImages(scores=scores, truth=truth, rows=_rows(count, **facts))


def _cases(part: EvaluatedImages, categories: Sequence[Category] = ()) -> list[Case]:
    """Return screened images. Refused ones have no score."""
    said = [*categories, *["normal"] * (len(part.rows) - len(categories))]
    return [
        Case(
            image_key=str(index),
            row_id=index,
            patient_key=part.patients[index],
            truth=bool(part.truth[index]),
            score=None if own == "refused" else float(part.scores[index]),
            category=own,
            header=ImageHeader(),
            reason=reason("not_frontal_chest") if own == "refused" else None,
        )
        for index, own in enumerate(said)
    ]


def test_points_come_from_validation_and_figures_from_test() -> None:
    validation, test = _evaluated(1), _evaluated(2)
    wanted = OperatingPointChoice(
        name="high", titles=TITLES, rule="sensitivity", sensitivity=0.97, band_catches=0.99, band_clears=0.9
    )
    chosen = choose_operating_point(wanted, label="x", validation=validation)
    found = data_part_figures({"high": _cases(test)}, points=[chosen])
    point = with_measured_figures(chosen, figures=found, measured_on=MEASURED_ON)
    caught = (validation.scores[validation.truth] >= point.threshold).mean()
    assert 0.97 <= caught < 0.98  # the highest threshold that detects enough images: 194 of 200
    assert (validation.scores[validation.truth] < point.unsure_low).mean() <= 0.01
    assert (validation.scores[~validation.truth] >= point.unsure_high).mean() <= 0.1
    assert point.unsure_low <= point.threshold <= point.unsure_high
    assert point.sensitivity.value == pytest.approx((test.scores[test.truth] >= point.threshold).mean())
    assert point.measured_on == {"en": "400 images of 400 patients"}
    assert found.points["high"].detected_with_unsure.value >= found.points["high"].detected.value
    assert found.auc.value == pytest.approx(auc(test.scores, test.truth)) and found.patients == 400


def test_unknown_answers_are_not_evaluated() -> None:
    evaluated = select_labelled_images(np.array([0.1, 0.9, 0.5]), np.array([0, 1, np.nan], np.float32), _rows(3))
    assert evaluated.truth.tolist() == [False, True] and evaluated.patients == ["p0", "p1"]


def test_groups_need_ten_images_of_each_class() -> None:
    evaluated = _evaluated(3, count=40, view="PA", sex="F", age_years=30.0)
    assert set(auc_by_group(evaluated)) == {"view", "sex", "age", "source"} and set(auc_by_group(evaluated)["age"]) == {
        "18-39"
    }
    assert auc_by_group(_evaluated(3, count=18, view="PA")) == {}


def test_float_and_int8_are_compared_image_by_image() -> None:
    whole = _evaluated(4)
    shifted = dataclasses.replace(whole, scores=np.clip(whole.scores + 0.01, 0, 1))
    found = compare_with_int8(whole, shifted)
    assert found.mean_absolute_difference == pytest.approx(0.01, rel=0.02)
    assert found.auc_float == pytest.approx(found.auc_int8, abs=1e-3)


def test_the_ood_check_accepts_its_training_images_and_refuses_ood_images() -> None:
    generator = np.random.default_rng(5)
    mixing = generator.normal(size=(8, 20))
    images = (generator.normal(size=(900, 8)) @ mixing + 3).astype(np.float32)
    gate = fit_ood_check(images[:600], images[600:], components=8, accepted_share=0.98)
    assert gate.projection.shape == (20, 8)
    assert (ood_distances(gate, images[600:]) > gate.limit).mean() == pytest.approx(0.02, abs=0.005)
    # distances are whitened: their root mean square over the fitted images is 1
    assert np.sqrt((ood_distances(gate, images[:600]) ** 2).mean()) == pytest.approx(1, abs=0.02)
    ood_images = (generator.normal(size=(100, 8)) * 6 @ mixing + 3).astype(np.float32)
    assert (ood_distances(gate, ood_images) > gate.limit).mean() > 0.95


def _marked_images(place: str) -> tuple[np.ndarray, np.ndarray]:
    """Return noise images. Those of the class have a bright stripe at the border, or a bright middle."""
    generator = np.random.default_rng(6)
    truth = np.arange(300) % 2 == 0
    images = generator.integers(80, 120, (300, 64, 48, 1), np.uint8)
    where = (slice(None), slice(0, 3)) if place == "border" else (slice(None), slice(26, 38), slice(18, 30))
    images[where][truth] += 60
    return images, truth


@pytest.mark.parametrize("place", ["border", "middle"])
def test_a_shortcut_is_found_at_its_place(place: str) -> None:
    images, truth = _marked_images(place)
    areas = {
        name: auc(shortcut_scores(pixels(images[:200]), truth[:200], pixels(images[200:])), truth[200:])
        for name, pixels in (("border", border_pixels), ("thumbnail", thumbnail_pixels))
    }
    assert areas["thumbnail"] > 0.95
    assert areas["border"] > 0.95 if place == "border" else 0.3 < areas["border"] < 0.7


def test_thumbnails_are_exact_means() -> None:
    image = np.arange(36, dtype=np.uint8).reshape(1, 6, 6, 1)
    # each of 2 x 2 cells averages 3 x 3 pixels: the first of rows 0..2, columns 0..2 has the mean 7
    np.testing.assert_allclose(thumbnails(image, side=2)[0], [7, 10, 25, 28])
    # four columns of 1.5 pixels: (0 + 1 / 2) / 1.5 = 1/3 across, and rows likewise times 6
    assert thumbnails(image, side=4)[0, 0] == pytest.approx(1 / 3 + 6 / 3)


def test_copies_of_evaluated_images_are_left_out_of_the_training() -> None:
    generator = np.random.default_rng(7)
    images = generator.integers(0, 256, (7, 64, 64, 1), np.uint8)
    images[3] = images[0]
    images[6] = images[5]  # one file, in two sources
    images[4] = np.clip(images[1].astype(int) + 1, 0, 255)  # another file of the same exposure
    digests = ["a", "b", "c", "a", "d", "e", "e"]
    parts = ["training", "training", "training", "test", "training", "test", "test"]
    found = find_duplicates(images, digests, parts, [Path(name) for name in "abcdeff"])
    assert found.exact_pairs == ((0, 3),) and found.near_pairs == ((1, 4),)
    assert found.across_parts_count == 1 and found.training_copy_indices == {0}
    parts[5] = "training"  # the same file in another part
    apart = find_duplicates(images, digests, parts, [Path(name) for name in "abcdeff"])
    assert apart.exact_pairs == ((0, 3), (5, 6)) and apart.training_copy_indices == {0, 5}
    said = found.figures([f"line {n}" for n in range(6)], max_examples=5)
    assert said.near_examples == (("line 1", "line 4"),) and said.training_copies_left_out == 1


def test_weaknesses_of_the_figures_give_warnings() -> None:
    def label(*, best: float, area: float, positive: int, refused: float = 0.0) -> ClassifierFigures:
        test = data_part_figures({"high": _cases(_evaluated(1))}, points=[])
        test = structs.replace(test, auc=Estimate(area, area, area), positive=positive, negative=400)
        shortcuts = {"border": 0.5, "thumbnail": best}
        both = compare_with_int8(_evaluated(1), _evaluated(1))
        found = LabelFigures(
            validation_auc=test.auc, test=test, by_group={}, shortcuts=shortcuts, float_against_int8=both
        )
        gate = OodCheckFigures(limit=1.0, images_refused=Share(0, 1, refused, refused, refused))
        return ClassifierFigures(labels={"x": found}, data=None, gate=gate)  # type: ignore[arg-type]

    def codes(found: ClassifierFigures) -> list[str]:
        return [why.code for why in find_warnings(found, meanings={"x": "opacity"})]

    assert codes(label(best=0.6, area=0.9, positive=400)) == []
    assert codes(label(best=0.7, area=0.9, positive=400)) == ["pack_shortcut"]
    assert codes(label(best=0.88, area=0.9, positive=99)) == ["pack_shortcut_close", "pack_few_images"]
    assert codes(label(best=0.5, area=0.9, positive=400, refused=0.06)) == ["pack_gate_refuses"]
    (warning,) = find_warnings(label(best=0.88, area=0.9, positive=400), meanings={"x": "затемнення"})
    assert "затемнення" in Translator("uk").reason(warning) and "0,88" in Translator("uk").reason(warning)


@pytest.mark.parametrize("rule", ["balance", "sensitivity"])
def test_an_operating_point_can_hold_at_each_source(rule: Literal["balance", "sensitivity"]) -> None:
    large, small = _evaluated(1), _evaluated(2).where(np.arange(400) < 60)
    lower = EvaluatedImages(
        scores=small.scores * 0.5, truth=small.truth, rows=[replace(row, source="small") for row in small.rows]
    )
    both = EvaluatedImages(
        scores=np.append(large.scores, lower.scores),
        truth=np.append(large.truth, lower.truth),
        rows=[*large.rows, *lower.rows],
    )
    wanted = OperatingPointChoice(
        name="x", rule=rule, sensitivity=0.95, band_catches=0.95, band_clears=0.9, each_source=True
    )
    chosen, alone = (choose_operating_point(wanted, label="x", validation=images) for images in (both, large))
    pooled = choose_operating_point(replace(wanted, each_source=False), label="x", validation=both)
    assert chosen.threshold < pooled.threshold <= alone.threshold  # 400 images outvote 60
    for images in (large, lower):
        assert (images.scores[images.truth] >= chosen.unsure_low).mean() >= 0.95
        assert (images.scores[~images.truth] < chosen.unsure_high).mean() >= 0.9
        assert rule == "balance" or (images.scores[images.truth] >= chosen.threshold).mean() >= 0.95
    healthy = both.where(~both.truth | (both.sources != "small"))
    with pytest.raises(UsageProblem, match=r"validation \(small\) part of the data has no positive images"):
        choose_operating_point(wanted, label="x", validation=healthy)


def test_a_card_has_the_counts_of_an_audit() -> None:
    test = _evaluated(5)
    cases = _cases(test, ["refused"] * 10 + ["read_first"] * 4)
    wanted = OperatingPointChoice(
        name="high", titles=TITLES, rule="sensitivity", sensitivity=0.9, band_catches=0.95, band_clears=0.9
    )
    point = choose_operating_point(wanted, label="x", validation=_evaluated(6))
    found = data_part_figures({"high": cases}, points=[point])
    audited = compute_audit(cases, [point], rule=CountingRule(unit="image", refers="above"))
    (at,), own = audited.points, found.points["high"]
    assert (own.detected, own.falsely_referred) == (at.detected_share, at.falsely_referred_share)
    assert (own.sensitivity, own.specificity) == (at.sensitivity, at.specificity)
    assert to_builtins(own.classes) == class_shares_for_manifest(at.class_shares_by_truth)
    assert (found.images, found.scored, found.auc) == (400, 390, audited.auc)
    assert found.calibration_error == audited.calibration_error
    # of the first 14, half have the finding: 5 are refused, 2 are read first, which are referred whatever the score
    kept = test.where(np.arange(400) >= 14)
    referred = kept.scores >= point.threshold
    assert own.detected.count == 2 + referred[kept.truth].sum() and own.detected.of == 200
    assert own.falsely_referred.count == 2 + referred[~kept.truth].sum() and own.falsely_referred.of == 200
    assert (own.sensitivity.count, own.sensitivity.of) == (own.detected.count, 195)
    for truth, members in (("positive", kept.truth), ("negative", ~kept.truth)):
        assert own.classes[truth]["refused"].count == 5
        assert own.classes[truth]["abnormal"].count == (kept.scores[members] >= point.unsure_high).sum()
        assert own.classes[truth]["normal"].count == (kept.scores[members] < point.unsure_low).sum()
        assert sum(share.count for share in own.classes[truth].values()) == 200


def test_a_class_without_a_scored_image_is_an_error_with_the_reason() -> None:
    with pytest.raises(UsageProblem, match=r"Of 20 test images, only 0 have a score.*frontal chest"):
        data_part_figures({"high": _cases(_evaluated(5, count=20), ["refused"] * 20)}, points=[])


@pytest.mark.adapt
def test_every_evaluated_image_is_scored_by_a_network_of_other_folds(tmp_path: Path) -> None:
    draw(tmp_path, "clean", images=60, first=0)
    draw(tmp_path, "confounded", images=30, first=60)
    text = RECIPE.replace("cross_folds = [0, 1, 2]", "cross_folds = [0, 1]")
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    run = Run(recipe=read_recipe(tmp_path / "recipe.toml"), progress=lambda *_: None)
    run.execute((DATA_STEP, CROSS_VALIDATION_STEP), say=lambda _: None)
    with np.load(tmp_path / "run" / "cross" / "scores.npz") as arrays:
        stages = {name: arrays[name][:, 0] for name in ("trained", "pruned", "int8")}
    judged = (np.arange(90) // 2 % 3 < 2) & (np.arange(90) < 60)  # the images of the clean source in two of three folds
    assert all(np.array_equal(~np.isnan(own), judged) for own in stages.values())
    found = json.loads((tmp_path / "run" / "cross" / "metrics.json").read_text())["bright"]
    assert found["images"] == 40 and min(own["auc"]["value"] for own in found["stages"].values()) > 0.95
    assert set(found["stages"]["int8"]["auc_by_fold"]) == {"0", "1"}
    assert found["float_against_int8"]["mean_absolute_difference"] < 0.05 and found["after_training"]["low"] <= 0
    # the middle shows the class, the border does not
    assert found["shortcuts"]["thumbnail"] > 0.95 and found["shortcuts"]["border"] < 0.75
    text = (tmp_path / "run" / "cross.json").read_text(encoding="utf-8")  # no folder for published figures was given
    assert json.loads(text)["labels"]["bright"] == found and str(tmp_path) not in text
    page = (tmp_path / "run" / "cross.html").read_text(encoding="utf-8")
    assert f"{found['stages']['int8']['auc']['value']:.3f} (" in page
    assert page.count("<svg") == 1 and str(tmp_path) not in page
    # the figures of the card
    published = published_cross_validation(run)
    assert published is not None and to_builtins(published) == {"bright": found}
    said = render_template("classifier_cross.md", code="bright", meaning="Bright", found=published["bright"])
    assert f"As the int8 file that a pack holds: AUC {found['stages']['int8']['auc']['value']:.3f} (" in said
    only_trained = to_type({**found, "stages": {"trained": found["stages"]["trained"]}}, CrossValidationFigures)
    said = render_template("classifier_cross.md", code="bright", meaning="Bright", found=only_trained)
    assert "before pruning and int8: AUC" in said
    other = replace(run.recipe, training=replace(run.recipe.training, epochs=5))
    assert published_cross_validation(replace(run, recipe=other)) is None
    assert published_cross_validation(replace(run, recipe=replace(run.recipe, calibration_images=7))) is None


ELSEWHERE = """
[evaluation.elsewhere]
name = "elsewhere"
layout = "csv"
path = "elsewhere.csv"
"""


@pytest.mark.adapt
@pytest.mark.timeout(600)
def test_fixed_thresholds_are_measured_at_another_hospital_without_patients_of_the_first(tmp_path: Path) -> None:
    for name, images, first in (("clean", 60, 0), ("confounded", 30, 60), ("elsewhere", 20, 200)):
        draw(tmp_path, name, images=images, first=first)
    (tmp_path / "recipe.toml").write_text(RECIPE + ELSEWHERE, encoding="utf-8")
    recipe = replace(read_recipe(tmp_path / "recipe.toml"), prune=None)
    run = Run(recipe=recipe, progress=lambda *_: None)
    run.execute((DATA_STEP, TRAIN_STEP, QUANTISE_STEP, EVALUATE_STEP, PACK_STEP), say=lambda _: None)
    results = json.loads((tmp_path / "run" / "evaluate" / "metrics.json").read_text(encoding="utf-8"))
    found = results["labels"]["bright"]
    there, points = found["external_test"], found["test"]["points"]
    assert (there["images"], there["positive"], there["auc"]["value"]) == (20, 10, 1.0)
    assert there["points"]["balanced"]["threshold"] == points["balanced"]["threshold"]
    # at the other hospital, too, the middle shows the class and the border does not
    assert there["shortcuts"]["thumbnail"] > 0.95 and there["shortcuts"]["border"] < 0.85
    assert results["gate"]["elsewhere_refused"]["of"] == 20
    pack = tmp_path / "packs" / "quick-0.1.0"
    manifest = read_pack(pack).model.manifest
    said = [sentence.text for sentence in performance_sentences(manifest)]
    assert len(said) == 2 and "20 images of another hospital (external test). Area under the ROC curve: 1.00" in said[1]
    card = (tmp_path / "packs" / "quick-0.1.0" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "At another hospital, on which nothing was trained or chosen: 20 images of 20 patients" in card
    assert "Of the other hospital's: " in card and "- data_licence: CC0\n" in card
    assert "has no file compiled for the Edge TPU.\n\n- Forecast for the Edge TPU" in card
    ukrainian = split_card_by_language(card)["uk"]
    assert "В іншій лікарні, на знімках якої нічого не навчали й не вибирали: знімків 20, пацієнтів 20" in ukrainian
    assert "| balanced | зі знахідкою |" in ukrainian and "Зі знімків іншої лікарні: " in ukrainian
    assert "не має файлу, скомпільованого для Edge TPU.\n\n- Прогноз" in ukrainian
    assert re.search(r"- AUC [01],\d{3} \(від [01],\d{3} до [01],\d{3}\)", ukrainian)
    # no patient of the recipe is measured
    assert not find_data_problems(run.recipe, every_image=True)
    table = tmp_path / "elsewhere.csv"
    table.write_text(table.read_text(encoding="utf-8").replace("p201,", "p1,"), encoding="utf-8")
    with pytest.raises(UsageProblem, match=r"Patient p1 .*\(the recipe's own\).*\(elsewhere\)"):
        run.execute((DATA_STEP, TRAIN_STEP, QUANTISE_STEP, EVALUATE_STEP), say=lambda _: None)
    table.unlink()
    assert {problem.location for problem in find_data_problems(run.recipe, every_image=True)} == {
        ("evaluation", "elsewhere")
    }

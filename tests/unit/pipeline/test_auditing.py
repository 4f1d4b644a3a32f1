"""Audits of a stored run: all kinds of labels, operating points of pack and site, drift against earlier runs."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fieldray.audit.drift import Drift
from fieldray.audit.report import ProposalGoal, ScreeningPrices
from fieldray.domain.finding import ImageFacts, Outcome, RefusedOutcome, ScreenedOutcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.model import Model
from fieldray.domain.run import PackOfRun, RunSpec, Verdict
from fieldray.errors import UsageProblem
from fieldray.packs.site_choices import LocalPointFile, with_local_points
from fieldray.pipeline.auditing import AuditRequest, adopt_local_point, audit_run
from fieldray.pipeline.export import ExportRequest, export_run
from fieldray.pipeline.run_warnings import drifts_of, warnings_of_run
from fieldray.reasons import reason
from fieldray.reports.audit import AuditText
from fieldray.reports.audit_files import audit_json_values
from fieldray.store.results import ResultStore
from fieldray.store.work_list import HistoryQuery
from fieldray.translation import Translator
from lungs import lungs
from outcomes import POINT, run_spec, screened
from stores import keep
from tiny_models import tiny_model

DAY = datetime.date(2026, 11, 22)


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ResultStore]:
    with ResultStore(tmp_path / "results.sqlite") as opened:
        yield opened


def spec(model: Model, **changes: object) -> RunSpec:
    return run_spec(pack_name=model.pack_name, model_sha256=model.model_sha256, **changes)


def outcome(folder: str, number: int, score: float | None, *, model: Model, grey: int = 120) -> Outcome:
    header = ImageHeader(patient_id=f"P{number // 4}-{number % 2}", view_position="PA")
    ref = ImageRef(path=Path(f"/images/{folder}/{number:03}.dcm"), kind="dicom", header=header)
    content = hashlib.sha256(f"{folder}-{number}".encode()).hexdigest()
    facts = ImageFacts(content_sha256=content, thumbnail=np.full((3, 4), grey, np.uint8))
    if score is None:
        return RefusedOutcome(ref=ref, reason=reason("view", view="LL"), facts=facts)
    made = screened(ref, score=score)
    return dataclasses.replace(made, facts=facts, pack_name=model.pack_name, model_sha256=model.model_sha256)


def collection(model: Model, *, shift: float = 0.0, grey: int = 120, name: str = "") -> list[Outcome]:
    """80 images in two folders, five of them refused; two of each of 40 patients."""
    generator = np.random.default_rng(5)
    made: list[Outcome] = []
    for number in range(80):
        is_ill = number % 2 == 0
        score = float(np.clip(generator.normal(0.65 if is_ill else 0.35, 0.15) + shift, 0.01, 0.99))
        folder = f"{name}{'abnormal' if is_ill else 'normal'}"
        made.append(outcome(folder, number, None if number < 5 else score, grey=grey, model=model))
    return made


def test_labels_by_folder_give_the_figures_of_scikit_learn(store: ResultStore, model: Model) -> None:
    outcomes = collection(model)
    run_id = keep(store.path, outcomes, spec=spec(model))
    report = audit_run(
        store.path,
        PackOfRun(run_id),
        AuditRequest(label_source="folders", counted_unit="image", prevalence=0.1),
        model=model,
    )
    scored = [one for one in outcomes if isinstance(one, ScreenedOutcome)]
    truth = [one.ref.path.parent.name == "abnormal" for one in scored]
    assert report.audit.auc.value == pytest.approx(
        roc_auc_score(truth, [one.findings[0].score for one in scored]), abs=1e-9
    )
    assert (report.audit.image_count, report.audit.assessed_unit_count, report.audit.refused_share.count) == (80, 75, 5)
    assert report.audit.patient_count == 40
    assert report.audit.prevalence == 0.1
    document = audit_json_values(report)
    assert json.loads(json.dumps(document, allow_nan=False))["auc"]["value"] == report.audit.auc.value
    assert (
        audit_run(store.path, PackOfRun(run_id), AuditRequest(label_source="folders"), model=model).audit.unit_count
        == 40
    )


def test_without_the_pack_the_operating_points_of_the_run_are_audited(store: ResultStore, model: Model) -> None:
    run_id = keep(store.path, collection(model), spec=spec(model))
    report = audit_run(store.path, PackOfRun(run_id), AuditRequest(label_source="folders"), model=None)
    assert [at.point.name for at in report.audit.points] == [POINT.name]
    assert report.subject.label == "opacity"
    with pytest.raises(UsageProblem, match="needs the audited pack"):
        adopt_local_point(LocalPointFile(store.path.parent), report, name="a", person="P", model=None, day=DAY)


def test_verdicts_serve_as_labels_and_a_run_without_any_is_refused(store: ResultStore, model: Model) -> None:
    run_id = keep(store.path, collection(model), spec=spec(model))
    with pytest.raises(UsageProblem, match=f"No image of run {run_id} has a verdict"):
        audit_run(store.path, PackOfRun(run_id), AuditRequest(label_source="verdicts"), model=model)
    for row in list(store.results(run_id)):
        store.set_verdict(row.row_id, Verdict(choice="agree" if row.row_id % 3 else "disagree"), judged=row.outcome)
    report = audit_run(store.path, PackOfRun(run_id), AuditRequest(label_source="verdicts"), model=model)
    assert 0 < report.audit.image_count < 75  # uncertain images with Agree get no label
    assert {"audit_unseen", "audit_verdicts"} <= {note.code for note in report.audit.notes}


def test_images_that_a_table_does_not_name_are_left_out(store: ResultStore, model: Model, tmp_path: Path) -> None:
    outcomes = collection(model)
    run_id = keep(store.path, outcomes, spec=spec(model))
    lines = ["file,label,patient", *(f"{one.ref.path.name},{one.ref.path.parent.name},X" for one in outcomes[:30])]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(lines))
    report = audit_run(
        store.path, PackOfRun(run_id), AuditRequest(label_source=table, counted_unit="image"), model=model
    )
    assert (report.audit.image_count, report.audit.patient_count) == (30, 1)
    assert report.subject.label_source == str(table)


def test_a_missing_run_result_or_label_is_reported(store: ResultStore, model: Model) -> None:
    empty = keep(store.path, [], spec=spec(model))
    for run_id, request, said in (
        (99, AuditRequest(label_source="folders"), "Run 99 was not found"),
        (empty, AuditRequest(label_source="folders"), "no results"),
        (empty, AuditRequest(label_source="folders", label_code="mass"), "no label mass"),
    ):
        with pytest.raises(UsageProblem, match=said):
            audit_run(store.path, PackOfRun(run_id), request, model=model)


def test_an_adopted_proposal_is_offered_only_with_its_own_model(
    store: ResultStore, model: Model, tmp_path: Path
) -> None:
    run_id = keep(store.path, collection(model), spec=spec(model))
    report = audit_run(
        store.path,
        PackOfRun(run_id),
        AuditRequest(label_source="folders", goal=ProposalGoal(sensitivity=0.9)),
        model=model,
    )
    points = LocalPointFile(tmp_path)
    for name, person, said in (
        ("Our point", "P", "is not a valid name"),
        ("ours", "  ", "needs the name of the person"),
    ):
        with pytest.raises(UsageProblem, match=said):
            adopt_local_point(points, report, name=name, person=person, model=model, day=DAY)
    assert points.all_points() == ()
    point = adopt_local_point(points, report, name="ours", person=" A. Physicist ", model=model, day=DAY)
    assert (point.name, point.threshold) == ("local:ours", report.proposal.threshold)
    assert point.sensitivity.value >= 0.9
    (kept,) = points.all_points()
    assert (kept.chosen_by, kept.chosen_on, kept.images, kept.counted) == ("A. Physicist", "2026-11-22", 80, "patient")
    newer = dataclasses.replace(model, manifest=dataclasses.replace(model.manifest, version="9.0.0"))
    for other in (dataclasses.replace(model, model_sha256="0" * 64), newer):
        with pytest.raises(UsageProblem, match="needs the audited pack"):
            adopt_local_point(points, report, name="theirs", person="P", model=other, day=DAY)
    again = audit_run(
        store.path,
        PackOfRun(run_id),
        AuditRequest(label_source="folders"),
        model=with_local_points(model, points.points_for(model)),
    )
    at = again.audit.points[-1]
    assert at.point.is_local
    assert at.detected_share.count == report.proposal.sensitivity.count
    assert "counted by patient" in point.measured_on["en"]


def test_a_run_is_compared_with_another_run_of_the_same_images(store: ResultStore, model: Model) -> None:
    first = keep(store.path, collection(model), spec=spec(model))
    moved = [replace_path(one, Path("/elsewhere")) for one in collection(model, shift=0.05)[10:]]
    second = keep(store.path, moved, spec=run_spec(pack_name="other-2.0.0", model_sha256="e" * 64))
    report = audit_run(
        store.path,
        PackOfRun(first),
        AuditRequest(label_source="folders", counted_unit="image", compared_pack=PackOfRun(second)),
        model=model,
    )
    paired = report.pack_comparison
    assert (paired.image_count, paired.missing_image_count, paired.both_assessed_count) == (
        70,
        10,
        70,
    )  # refused ones are not in the second
    assert (paired.first.pack, paired.second.pack) == (model.pack_name, "other-2.0.0")
    assert paired.figures[0].difference == pytest.approx(0, abs=0.01)  # each score is higher by the same amount
    detected, falsely, sensitivity, specificity = paired.figures[1:]
    assert detected.difference == sensitivity.difference > 0
    assert falsely.difference == pytest.approx(-specificity.difference) and falsely.difference > 0
    assert json.loads(json.dumps(audit_json_values(report)))["compared"]["figures"][1]["name"] == "detected"
    words = [row[0] for block in AuditText(report, Translator("uk")).pack_comparison_blocks()[1:] for row in block.rows]
    assert len(words) == 5
    for against, said in ((first, "two different runs"), (99, "Run 99 was not found")):
        with pytest.raises(UsageProblem, match=said):
            audit_run(
                store.path,
                PackOfRun(first),
                AuditRequest(label_source="folders", compared_pack=PackOfRun(against)),
                model=model,
            )
    empty = keep(store.path, [], spec=spec(model))
    with pytest.raises(UsageProblem, match=r"also in run \d+: 0"):
        audit_run(
            store.path,
            PackOfRun(first),
            AuditRequest(label_source="folders", compared_pack=PackOfRun(empty)),
            model=model,
        )


def replace_path(one: Outcome, folder: Path) -> Outcome:
    return dataclasses.replace(one, ref=dataclasses.replace(one.ref, path=folder / one.ref.path.name))


def test_a_chosen_threshold_with_prices_is_planned_and_stored(store: ResultStore, model: Model, tmp_path: Path) -> None:
    outcomes = [
        dataclasses.replace(one, ref=dataclasses.replace(one.ref, header=ImageHeader(patient_id=str(number))))
        for number, one in enumerate(collection(model))
    ]
    run_id = keep(store.path, outcomes, spec=spec(model))
    request = AuditRequest(
        label_source="folders",
        goal=ProposalGoal(threshold=0.5),
        prices=ScreeningPrices(screening_price=2, test_price=20),
        prevalence=0.1,
    )
    report = audit_run(store.path, PackOfRun(run_id), request, model=model)
    assert report.threshold_plan is not None and 0.5 in report.threshold_plan.shown_thresholds
    assert report.proposal.threshold == 0.5
    sentences = AuditText(report, Translator()).threshold_plan_blocks()[0].sentences
    assert (
        sentences[0].startswith("At the threshold 0.500, ") and "of 1000 patients screened are referred" in sentences[0]
    )
    assert sentences[1].startswith("Total cost: ")
    assert "Not assessed: 5 patients, 3 of them with the condition." in sentences[2]
    point = adopt_local_point(LocalPointFile(tmp_path), report, name="ours", person="A. P.", model=model, day=DAY)
    assert point.threshold == 0.5
    with pytest.raises(UsageProblem, match="A cost must be a number"):
        audit_run(
            store.path,
            PackOfRun(run_id),
            dataclasses.replace(request, prices=ScreeningPrices(screening_price=-1.0)),
            model=model,
        )


def drifts(path: Path, run_id: int, model: Model) -> tuple[Drift, ...]:
    with HistoryQuery(path) as query:
        return drifts_of(query, query.run(run_id), 0, model.manifest)


def test_drift_is_against_other_images_of_earlier_runs_with_the_same_settings(store: ResultStore, model: Model) -> None:
    first = keep(store.path, collection(model), spec=spec(model))
    same = keep(store.path, collection(model), spec=spec(model))
    assert drifts(store.path, first, model) == ()
    assert drifts(store.path, same, model) == ()  # the same images are no comparison
    keep(store.path, collection(model, name="x"), spec=spec(model, settings_hash="t" * 64))
    alike = keep(store.path, collection(model, name="alike-"), spec=spec(model))
    assert [found.exceeds_limit for found in drifts(store.path, alike, model)] == [False, False, False]
    moved = keep(store.path, collection(model, name="moved-", shift=0.4, grey=20), spec=spec(model))
    found = {drift.quantity: drift for drift in drifts(store.path, moved, model)}
    assert {of for of, drift in found.items() if drift.exceeds_limit} == {"scores", "exposure"}
    assert found["scores"].reference_image_count == 150  # 75 of each of two folders, once


def test_drift_does_not_compare_with_images_of_another_folder(store: ResultStore, model: Model) -> None:
    """Two hospitals may differ without a fault, so only runs over one folder are compared."""

    def kept(folder: str, **how: object) -> int:
        outcomes = [
            dataclasses.replace(one, ref=dataclasses.replace(one.ref, path=Path(folder, one.ref.path.name)))
            for one in collection(model, name=folder, **how)  # type: ignore[arg-type]
        ]
        return keep(store.path, outcomes, spec=spec(model, paths=(folder,)))

    kept("/data/north/2026-11-27")
    south = kept("/data/south/2026-11-27", shift=0.4, grey=20)
    assert drifts(store.path, south, model) == ()
    assert not any(found.exceeds_limit for found in drifts(store.path, kept("/data/north/2026-11-28"), model))
    moved = drifts(store.path, kept("/data/north/2026-11-29", shift=0.4, grey=20), model)
    assert {found.quantity for found in moved if found.exceeds_limit} == {"scores", "exposure"}
    said = {found.quantity: found.summary.text for found in moved}
    assert "in the reference (earlier images of this folder)" in said["scores"]
    # For grey 20 and 120, given by the middles of bins of 25.6 levels.
    assert "is 13 in this run, and 115 in the reference" in said["exposure"]
    whole = drifts(store.path, kept("/data"), model)
    assert {found.reference_image_count for found in whole} == {300, 320}


def test_drift_against_the_packs_scores_needs_their_distribution(store: ResultStore, model: Model) -> None:
    run_id, asked = keep(store.path, collection(model), spec=spec(model)), AuditRequest(label_source="folders")
    said = audit_run(store.path, PackOfRun(run_id), asked, model=model)
    assert "drift_no_reference" in [note.code for note in said.audit.notes]
    assert "drift_no_reference" not in [
        note.code for note in audit_run(store.path, PackOfRun(run_id), asked, model=None).audit.notes
    ]
    metrics = {"labels": {"opacity": {"reference": {"scores": [500, 0, 0, 0, 0, 0, 0, 0, 0, 0]}}}}
    known = dataclasses.replace(model, manifest=dataclasses.replace(model.manifest, metrics=metrics))
    compared = audit_run(store.path, PackOfRun(run_id), asked, model=known)
    assert "drift_no_reference" not in [note.code for note in compared.audit.notes]
    (drift,) = compared.drifts
    assert (drift.reference_kind, drift.reference_image_count, drift.image_count, drift.exceeds_limit) == (
        "pack",
        500,
        75,
        True,
    )


def test_files_with_one_uid_and_different_pixels_are_reported(store: ResultStore, model: Model) -> None:
    numbers = ("2.25.1", "2.25.1", "2.25.2", "2.25.2", "2.25.3", "2.25.3", "", "")  # the third pair is of one image
    facts = [(0.3, 120), (0.3, 140), (0.3, 120), (0.5, 120), (0.3, 120), (0.31, 120), (0.3, 120), (0.9, 20)]
    found = [outcome("a", at, score, grey=grey, model=model) for at, (score, grey) in enumerate(facts)]
    with_numbers = []
    for number, (one, uid) in enumerate(zip(found, numbers, strict=True)):
        header = dataclasses.replace(one.ref.header, sop_instance_uid=uid)
        ref = dataclasses.replace(one.ref, path=Path(f"/images/{number}.dcm"), header=header)
        with_numbers.append(dataclasses.replace(one, ref=ref))
    run_id = keep(store.path, with_numbers, spec=spec(model))
    with HistoryQuery(store.path) as query:
        said = warnings_of_run(query, query.run(run_id), 0, None)
    assert said == (reason("instances_shared", count=4),)


def test_exports_warn_of_a_run_with_other_patients(store: ResultStore, model: Model, tmp_path: Path) -> None:
    far_out = dataclasses.replace(lungs(), evidence_inside=0.2)
    outcomes = [
        dataclasses.replace(one, lungs=far_out) for one in collection(model) if isinstance(one, ScreenedOutcome)
    ]
    run_id = keep(store.path, outcomes, spec=spec(model))
    metrics = {"evidence_inside": {"images": 200, "limit": 0.8}}
    pack = dataclasses.replace(model, manifest=dataclasses.replace(model.manifest, metrics=metrics))
    table, document = export_run(
        ExportRequest(
            database=store.path, run_id=run_id, folder=tmp_path / "out", formats=("csv", "json"), packs=(pack,)
        )
    )
    assert {row["run_notes"] for row in csv.DictReader(table.read_text("utf-8-sig").splitlines())} == {"drift_evidence"}
    (note,) = json.loads(document.read_text())["about"]["notes"]
    assert note["code"] == "drift_evidence" and "other patients than" in note["text"]


def test_an_audit_uses_the_packs_class_names_and_names_overruled_images(store: ResultStore, model: Model) -> None:
    asked = (reason("screened_anyway"),)
    outcomes = [
        dataclasses.replace(one, notes=asked) if number in (10, 11, 12) and isinstance(one, ScreenedOutcome) else one
        for number, one in enumerate(collection(model))
    ]
    run_id = keep(store.path, outcomes, spec=spec(model))
    named = {"abnormal": {"en": "Signs of it", "uk": "Ознаки"}, "normal": {"en": "None found", "uk": "Не виявлено"}}
    own = dataclasses.replace(model, manifest=dataclasses.replace(model.manifest, class_names=named))
    report = audit_run(
        store.path, PackOfRun(run_id), AuditRequest(label_source="folders", counted_unit="image"), model=own
    )
    words = AuditText(report, Translator("uk"))
    assert {row[4] for row in words.misclassified_table().rows} >= {"Не виявлено", "Невизначено"}
    assert any("Ознаки" in figure.name for figure in words.figure_rows())
    assert [dict(note.parameters) for note in report.audit.notes if note.code == "asked_for_images"] == [{"count": "3"}]

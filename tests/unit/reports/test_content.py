from __future__ import annotations

import dataclasses
from pathlib import Path

from fieldray.domain.finding import Finding
from fieldray.domain.image import ImageHeader
from fieldray.domain.run import Run, StoredResult, SupersededVerdict, Verdict
from fieldray.reports.content import (
    EXPORT_COLUMNS,
    RESEARCH_ONLY_NOTICE,
    export_rows_of_run,
    image_result_values,
    run_export_facts,
)
from fieldray.reports.exporter import PackOfStoredRun, StoredRun
from outcomes import POINT, failed, image_ref, refused, run_spec, screened

RUN = Run(run_id=1, spec=run_spec(), state="finished", reason=None, started_s=1.0, ended_s=2.0)


def test_the_export_row_of_a_screened_image() -> None:
    assert image_result_values(screened(), pack="tiny-1.0.0", model_sha256="m" * 64) == {
        "path": str(Path("/images/a.dcm")),
        "study": "1.2.3",
        "image": "1.2.a.dcm",
        "status": "screened",
        "category": "abnormal",
        "label": "opacity",
        "score": 0.8,
        "operating_point": POINT.name,
        "threshold": 0.5,
        "unsure_low": POINT.unsure_low,
        "unsure_high": POINT.unsure_high,
        "decision": "above",
        "reason": None,
        "reason_code": None,
        "stage": None,
        "backend": "cpu",
        "pack": "tiny-1.0.0",
        "model_sha256": "m" * 64,
        "lungs_pack": None,
        "decode_ms": 12.35,
        "inference_ms": 3.25,
        "lungs": None,
        "notes": [],
    }


def test_the_export_row_of_an_unscreened_image_has_the_reason() -> None:
    line = image_result_values(failed(), pack="tiny-1.0.0", model_sha256="m" * 64)
    assert (line["status"], line["stage"], line["reason_code"]) == ("failed", "decode", "truncated")
    assert line["reason"] == "The file is incomplete: part of the image is missing."
    assert (line["label"], line["score"], line["threshold"], line["decision"]) == (None,) * 4
    line = image_result_values(refused(), pack="tiny-1.0.0", model_sha256="m" * 64)
    assert (line["status"], line["stage"], line["reason_code"]) == ("refused", None, "view")


def test_zip_member_and_frame_are_named() -> None:
    ref = image_ref("study.zip", zip_member="deep/image.png", frame=2, header=ImageHeader(number_of_frames=3))
    line = image_result_values(refused(ref), pack="tiny-1.0.0", model_sha256="m" * 64)
    assert line["path"] == str(Path("/images/study.zip")) + "!deep/image.png"
    assert line["image"] == "image.png#2"
    assert line["study"] == ref.key


def test_without_an_operating_point_there_is_no_threshold() -> None:
    finding = Finding(label="opacity", score=0.9, point=None, decision="not_assessed")
    line = image_result_values(
        dataclasses.replace(screened(), findings=(finding,)), pack="tiny-1.0.0", model_sha256="m" * 64
    )
    assert (line["score"], line["threshold"], line["decision"]) == (0.9, None, "not_assessed")


def test_the_most_urgent_finding_leads_and_an_export_has_all() -> None:
    sure = Finding(label="nodule", score=0.97, point=POINT, decision="below")
    urgent = Finding(label="opacity", score=0.6, point=POINT, decision="above")
    outcome = dataclasses.replace(screened(), findings=(sure, urgent))
    assert image_result_values(outcome, pack="tiny-1.0.0", model_sha256="m" * 64)["label"] == "opacity"
    result = StoredResult(result_id=1, row_id=1, run_id=1, outcome=outcome, is_reused=False)
    assert [row["label"] for row in export_rows_of_run(StoredRun(run=RUN, results=[result]))] == ["nodule", "opacity"]


def test_every_export_row_has_the_same_columns_and_the_notice() -> None:
    verdict = Verdict(choice="disagree", note="rotated")
    for outcome in (screened(), refused(), failed()):
        result = StoredResult(result_id=1, row_id=1, run_id=1, outcome=outcome, is_reused=False, verdict=verdict)
        (row,) = export_rows_of_run(StoredRun(run=RUN, results=[result]))
        assert tuple(row) == EXPORT_COLUMNS
        assert row["lungs_pack"] == "lungs-1.0.0 0123456789ab"
        assert (row["notice"], row["reader_verdict"], row["reader_note"]) == (
            RESEARCH_ONLY_NOTICE,
            "disagree",
            "rotated",
        )


def test_the_run_part_states_pack_settings_and_version() -> None:
    run = Run(run_id=7, spec=run_spec(), state="finished", reason=None, started_s=0, ended_s=3600)
    about = run_export_facts(StoredRun(run=run, results=(), packs=(PackOfStoredRun(counts={"abnormal": 2}),)))
    assert about["notice"] == RESEARCH_ONLY_NOTICE
    assert (about["pack"], about["model_sha256"]) == ("tiny-1.0.0", "m" * 64)
    assert about["lungs_pack"] == "lungs-1.0.0 0123456789ab"
    assert (about["started"], about["ended"]) == ("1970-01-01T00:00:00+00:00", "1970-01-01T01:00:00+00:00")
    assert about["operating_points"] == [dataclasses.asdict(POINT)]
    counts = about["counts"]
    assert counts == {
        "read_first": 0, "abnormal": 2, "unsure": 0, "normal": 0, "not_assessed": 0, "refused": 0, "failed": 0,
        "not_an_image": 0,
    }  # fmt: skip


def test_a_verdict_on_an_earlier_result_is_exported_with_that_result() -> None:
    given = SupersededVerdict(
        image_key="/images/a.dcm", content_sha256="a" * 64, category="abnormal", score=1.0,
        verdict=Verdict(choice="agree", note="scar"),
    )  # fmt: skip
    (earlier,) = run_export_facts(StoredRun(run=RUN, results=(), superseded_verdicts=(given,)))["earlier_verdicts"]
    assert (earlier["content_sha256"], earlier["category"], earlier["score"]) == ("a" * 64, "abnormal", 1.0)
    assert (earlier["reader_verdict"], earlier["reader_note"]) == ("agree", "scar")

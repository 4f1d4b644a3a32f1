"""The files of an audit: a PDF that a reader opens, figures for programs, and nothing of anybody else replaced."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.audit.cases import Case
from fieldray.audit.figures import audit
from fieldray.audit.report import AuditReport, Subject, propose
from fieldray.domain.study import ImageHeader
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reports.audit_files import write_audit, write_audit_json
from fieldray.reports.outputs import is_own_report
from outcomes import POINT


@pytest.fixture(scope="module")
def report() -> AuditReport:
    """60 made-up cases of one view; images and pack have names in other scripts."""
    cases = [
        Case(
            image=f"/знімки/图{row}.png", row_id=row, patient=f"SECRET{row // 2}", truth=row % 2 == 1,
            score=0.05 if row == 1 else 0.45 + 0.4 * (row % 2),
            category="abnormal" if row % 2 and row > 1 else "normal",
            header=ImageHeader(view_position="PA", patient_name="Nobody^Known"),
        )
        for row in range(1, 61)
    ]  # fmt: skip
    names = {"en": "Made up", "uk": "Вигаданий"}
    subject = Subject(
        pack="made-up-1.0.0", names=names, trust="signed", fingerprint="ab12", model_sha256="c" * 64, label="opacity",
        meaning=names, labels_from="folders", run_id=3, paths=("/знімки",), program_version="0.1", made_s=1e9,
    )  # fmt: skip
    found = audit(cases, [POINT, replace(POINT, name="local:ours", titles={"en": "Local: ours"})])
    proposal = propose(cases, label="opacity", pattern=POINT, wanted=0.9)
    return AuditReport(subject=subject, audit=found, drifts=(), proposal=proposal)


@pytest.mark.parametrize(("language", "words"), [("en", "Sensitivity"), ("uk", "Чутливість")])
def test_both_files_say_the_same_in_the_language_asked_for(
    language: str, words: str, report: AuditReport, tmp_path: Path
) -> None:
    document, figures = write_audit(tmp_path, report, language=language)
    found = json.loads(figures.read_text("ascii"))
    assert (found["auc"]["value"], found["run_id"]) == (report.audit.area.value, 3)
    assert [point["is_local"] for point in found["operating_points"]] == [False, True]
    assert found["disagreements"][0]["image"] == "/знімки/图1.png"
    assert is_own_report(document.read_bytes()[:9999])
    assert is_own_report(figures.read_bytes())
    for data in (document.read_bytes(), figures.read_bytes()):
        assert not any(name in data for name in (b"SECRET", b"Nobody"))
    if shutil.which("pdftotext"):
        text = subprocess.run(["pdftotext", "-layout", document, "-"], capture_output=True, check=True).stdout.decode()
        assert words in text
        assert "Local: ours" in text
        assert "图1.png" in text
        assert "SECRET" not in text
    if shutil.which("qpdf"):
        subprocess.run(["qpdf", "--check", document], capture_output=True, check=True)
    write_audit(tmp_path, report, language=language)  # the next one replaces it


@pytest.mark.parametrize("name", ["audit.pdf", "audit.json"])
def test_files_of_others_stay_and_neither_file_is_then_written(name: str, report: AuditReport, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(UsageProblem, match=name):
        write_audit(tmp_path, report, language="en")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"mine")]


def test_a_full_disk_leaves_nothing_half_written(report: AuditReport) -> None:
    with pytest.raises((StorageProblem, UsageProblem), match="/dev/full"):
        write_audit_json(Path("/dev/full"), report)

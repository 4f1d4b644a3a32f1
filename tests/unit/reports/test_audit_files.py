"""The files of an audit: a PDF for people, figures for programs, and no foreign file replaced."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from audits import audit_report
from fieldray.audit.report import AuditReport
from fieldray.errors import UsageProblem
from fieldray.paths import data_folder
from fieldray.plain_text import escape_invisible_characters
from fieldray.reports.audit_files import audit_json, require_writable_audit_files, write_audit
from fieldray.reports.exporter import image_alias, pseudonym_key
from fieldray.reports.outputs import is_own_report
from hostile import ALL, forbidden_in, markup
from outcomes import POINT
from report_programs import needs, pdf_text

_POINTS_WIDE: Final = 595
_POINTS_HIGH: Final = 842


@pytest.fixture(scope="module")
def report() -> AuditReport:
    """A report without prices, other packs and earlier runs; the site has its own operating point."""
    points = (POINT, replace(POINT, name="local:ours", titles={"en": "Local: ours"}))
    return replace(audit_report(scores={1: 0.05}, points=points, prices=None), drifts=(), pack_comparison=None)


@pytest.mark.parametrize(("language", "words"), [("en", "Sensitivity"), ("uk", "Чутливість")])
def test_pdf_and_json_have_the_same_figures_in_the_wanted_language(
    language: str, words: str, report: AuditReport, tmp_path: Path
) -> None:
    document, figures, images, thresholds = write_audit(tmp_path, report, language=language)
    mark = {"en": (",", "."), "uk": (";", ",")}[language]
    rows = list(csv.DictReader(thresholds.read_text("utf-8-sig").splitlines(), delimiter=mark[0]))
    assert {row["name"] for row in rows} == {"", "made-up"}
    rows = [row for row in rows if not row["group"]]
    assert [row["threshold"].replace(mark[1], ".") for row in rows] == ["0.05", "0.45", "0.5", "0.65", "0.85"]
    # Of 59 patients 30 have an image with the condition; at 0.85 the one with 0.05 is missed.
    assert (rows[4]["sensitivity_patients"], rows[4]["sensitivity_of_patients"]) == ("29", "30")
    assert rows[4]["specificity_of_patients"] == "29"
    assert rows[0]["missed_per_1000_patients"] == f"0{mark[1]}0"
    lines = list(csv.DictReader(images.read_text("utf-8-sig").splitlines(), delimiter=mark[0]))
    assert [line["reference"] for line in lines[:2]] == ["positive", "negative"]
    assert [line["referred"] for line in lines[:3]] == ["False", "False", "True"]  # 0.05, 0.45 and 0.85
    assert len({line["patient"] for line in lines}) == 59 and all(line["patient"][:3] == "FR-" for line in lines)
    assert all(is_own_report(table.read_bytes()[:9999]) for table in (thresholds, images))
    found = json.loads(figures.read_text("ascii"))
    assert (found["auc"]["value"], found["run_id"]) == (report.audit.auc.value, 3)
    assert [point["is_local"] for point in found["operating_points"]] == [False, True]
    alias = image_alias("/знімки/made-up-图1.png", key=pseudonym_key(data_folder()))
    assert found["disagreements"][0]["image"] == alias  # as in the exports of a run: a path often contains a name
    assert not any("знімки" in str(value) for value in (found["paths"], found["label_source"], found["disagreements"]))
    assert audit_json(report) == figures.read_text("ascii")  # the output of `--json -`
    assert is_own_report(document.read_bytes()[:9999])
    assert is_own_report(figures.read_bytes())
    assert [case["image"] for case in found["cases"]] == [line["image"] for line in lines]
    for data in (document.read_bytes(), figures.read_bytes(), images.read_bytes()):
        assert not any(name in data for name in (b"SECRET", b"Nobody"))
    if shutil.which("pdftotext"):
        text = subprocess.run(["pdftotext", "-layout", document, "-"], capture_output=True, check=True).stdout.decode()
        assert words in text
        assert "Local: ours" in text
        assert alias in text
        assert not any(name in text for name in ("图1.png", "SECRET"))
    if shutil.which("qpdf"):
        subprocess.run(["qpdf", "--check", document], capture_output=True, check=True)
    named = write_audit(tmp_path, report, language=language, names_people=True)  # the next report replaces this one
    assert all("SECRET1" in path.read_text("utf-8-sig") for path in named[1:3])


@needs("pdftotext", "qpdf")
@pytest.mark.parametrize("text", [*ALL, markup(Path("/drawn.png")), "W" * 6000, "word " * 1500, "=1+1", "{nb}"])
def test_texts_from_outside_are_printed_literally_within_the_page(text: str, tmp_path: Path) -> None:
    points = (replace(POINT, name=text, titles={"en": text}, label=text),)
    report = audit_report(text, scores={1: 0.05, 3: 0.05}, points=points)
    document, figures, _, thresholds = write_audit(tmp_path, report, language="en")
    found = json.loads(figures.read_text("ascii"))
    assert found["pack"] == found["groups"][0]["name"] == text
    assert not any(line.startswith(("=", "+", "@")) for line in thresholds.read_text("utf-8-sig").splitlines())
    subprocess.run(["qpdf", "--check", document], capture_output=True, check=True)
    drawn = pdf_text(document)
    assert forbidden_in(drawn.replace("\n", "").replace("\f", "")) == set()
    assert escape_invisible_characters(text[:12]).split()[0][:10] in drawn
    words = list(words_of(document))
    assert max(right for _, right, _ in words) < _POINTS_WIDE - 45
    at_the_foot = {word for word, _, bottom in words if bottom > _POINTS_HIGH - 51}
    assert at_the_foot <= {*["Research", "use", "only.", "Not", "for", "diagnostic", "use."], "/", *map(str, range(99))}


def words_of(document: Path) -> Iterator[tuple[str, float, float]]:
    """Every word of a document, with its right and its lower end in points."""
    found = subprocess.run(["pdftotext", "-bbox", document, "-"], capture_output=True, check=True).stdout.decode()
    for right, bottom, word in re.findall(r'xMax="([0-9.]+)" yMax="([0-9.]+)">(.*)</word>', found):
        yield word, float(right), float(bottom)


@pytest.mark.parametrize("name", ["audit.pdf", "audit.json", "thresholds.csv", "images.csv"])
def test_a_foreign_file_is_kept_and_no_audit_file_is_written(name: str, report: AuditReport, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(UsageProblem, match=name):
        write_audit(tmp_path, report, language="en")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"mine")]


def test_a_device_path_as_output_is_refused_before_screening() -> None:
    with pytest.raises(UsageProblem, match="/dev/full"):
        require_writable_audit_files(Path("/dev/full"), None)

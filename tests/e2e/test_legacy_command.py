"""The dissertation's model files in a drive's root: right classes, and a remark next to every result.

The expected numbers follow the dissertation's demonstration: Pillow's `resize((128, 128))`, unscaled grey levels
0..255, and the larger of two outputs, the first of which is abnormal.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread

from fieldray.packs.naming import LEGACY_CPU_FILE_NAME, LEGACY_EDGETPU_FILE_NAME
from phantoms import write_dicom
from program import Fieldray
from report_programs import missing, pdf_text
from tiny_models import LEGACY_SIDE, legacy_model_bytes, legacy_scores

CHESTS = Path(__file__).parents[2] / "assets" / "demonstration"
BRIGHT, DARK = CHESTS / "adults" / "published-covid-19-6.jpg", CHESTS / "children" / "published-normal-2.jpg"
MARK = "operating point unknown"


def demonstrated(path: Path) -> tuple[str, float]:
    """Return class and number as in the dissertation's demonstration, with the tiny network in float32."""
    with Image.open(path) as picture:
        levels = np.asarray(picture.convert("L").resize((LEGACY_SIDE, LEGACY_SIDE))).astype(np.float32)
    scores = legacy_scores(levels)
    return ("abnormal", "normal")[int(scores.argmax())], float(scores.max())


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    folder = tmp_path / "drive"
    folder.mkdir()
    (folder / LEGACY_CPU_FILE_NAME).write_bytes(legacy_model_bytes("float32"))
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder with both JPEG images, and the bright one as DICOM."""
    folder = tmp_path / "images"
    folder.mkdir()
    for path in (BRIGHT, DARK):
        (folder / path.name).write_bytes(path.read_bytes())
    with Image.open(BRIGHT) as picture:
        write_dicom(folder / "bright.dcm", np.asarray(picture.convert("L"), np.uint16) << 4)
    return folder


def test_class_and_score_are_the_demonstrations(drive: Path, images: Path, fieldray: Fieldray) -> None:
    (images / "bright.dcm").unlink()
    fieldray("screen", images, "--pack", drive).ends_with(3).complains("not verified")
    done = fieldray("screen", images, "--pack", drive, "--allow-legacy", "--json", "-").ends_with(0)
    lines = {Path(line["path"]).name: line for line in done.lines}
    shown = {path.name: (lines[path.name]["category"], lines[path.name]["score"]) for path in (BRIGHT, DARK)}
    for path, decision in ((BRIGHT, "above"), (DARK, "below")):
        category, number = demonstrated(path)
        of_abnormal = number if category == "abnormal" else 1 - number  # one column, one class
        assert shown[path.name] == (category, pytest.approx(of_abnormal, abs=0.02)), path
        assert (lines[path.name]["label"], lines[path.name]["decision"]) == ("abnormal", decision)
        assert lines[path.name]["threshold"] is None
        assert any(MARK in note["text"] for note in lines[path.name]["notes"])
    assert {category for category, _ in shown.values()} == {"abnormal", "normal"}


def test_every_list_and_export_says_that_the_operating_point_is_unknown(
    drive: Path, images: Path, tmp_path: Path, run_ok: Fieldray
) -> None:
    out = tmp_path / "out"
    options = ("--pack", drive, "--allow-legacy", "--out", out, "--formats", "csv,json,pdf,sr,sc")
    done = run_ok("screen", images, *options)
    head, *_, sums = (line for line in done.out.splitlines() if MARK in line)
    assert head.startswith("Pack legacy-chest-resnet50") and "unsigned" in head.lower()
    assert "unsigned" in sums.lower() and "abnormal 2  uncertain 0  normal 1" in done.out
    listed = [line.split() for line in done.out.splitlines() if line.startswith(("ABNORMAL", "normal"))]
    assert [words[2] for words in listed] == ["unknown"] * 3
    (table,) = out.glob("*.csv")
    rows = list(csv.DictReader(table.read_text(encoding="utf-8-sig").splitlines()))
    assert {(row["category"], row["threshold"], row["notes"]) for row in rows} == {
        ("abnormal", "", "unsigned_operating_point_unknown"),
        ("normal", "", "unsigned_operating_point_unknown"),
    }
    (document,) = out.glob("*.json")
    about = json.loads(document.read_text(encoding="utf-8"))["about"]
    assert (about["pack_trust"], about["counts"]["abnormal"], about["counts"]["normal"]) == ("legacy", 2, 1)
    (pdf,) = out.glob("*.pdf")
    if not missing("pdftotext", "qpdf"):  # the remark, the signer, the heading of the list
        assert pdf_text(pdf).count(MARK) == 3
    written = [dcmread(path) for path in sorted(out.rglob("*.dcm"))]
    reports = [str(found) for found in written if found.Modality == "SR"]
    assert reports and all(report.count(MARK) >= 2 for report in reports)  # the decision's meaning, and a comment
    assert any(found.Modality != "SR" for found in written)
    assert f"(unsigned model, {MARK})" in run_ok("history", "list").out
    assert " unknown " in run_ok("history", "show", "1").out


def test_both_files_are_one_model_and_the_edge_tpu_file_alone_is_refused(
    drive: Path, images: Path, fieldray: Fieldray
) -> None:
    (drive / LEGACY_EDGETPU_FILE_NAME).write_bytes(legacy_model_bytes("uint8"))
    assert MARK in fieldray("packs", "list", drive).out
    (drive / LEGACY_CPU_FILE_NAME).unlink()
    done = fieldray("screen", images, "--pack", drive, "--allow-legacy")
    done.ends_with(3).complains(f"Copy the file for the CPU ({LEGACY_CPU_FILE_NAME}) into the same folder")

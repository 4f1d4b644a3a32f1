"""Several packs in one run: each gives the results that it gives alone, and one export has all results."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fieldray.imaging.synthetic import chest_phantom
from phantoms import write_dicom
from program import Fieldray, write_images
from report_programs import missing
from shipped_packs import ADULTS, CHILDREN, TUBERCULOSIS
from tiny_packs import fingerprint, write_tiny_pack

IMAGES = Path(__file__).parents[2] / "assets" / "demonstration"
_TIMES = {"decode_ms", "inference_ms", "taken_over_by"}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with X-rays of adults and a child, some with an age, and a file that is not an image."""
    folder = tmp_path_factory.mktemp("mixed")
    for path in (*sorted((IMAGES / "adults").glob("*.jpg"))[:4], *sorted((IMAGES / "children").glob("*.jpg"))[:2]):
        shutil.copy(path, folder)
    for name, age in (("adult", "040Y"), ("child", "003Y")):
        write_dicom(folder / f"{name}.dcm", chest_phantom(400, 320, 5, abnormal=True) >> 4, changes={"PatientAge": age})
    (folder / "notes.txt").write_text("no image", encoding="utf-8")
    return folder


def packs(*folders: Path) -> list[object]:
    return [option for folder in folders for option in ("--pack", folder)]


def answers(lines: Sequence[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return each pack's results without times, by image."""
    found = {}
    for line in lines:
        lungs = line["lungs"] and {key: value for key, value in line["lungs"].items() if key != "inference_ms"}
        said = {key: value for key, value in line.items() if key not in _TIMES}
        found[line["pack"], Path(line["path"]).name] = said | {"lungs": lungs}
    assert len(found) == len(lines)
    return found


def test_each_of_several_packs_gives_its_own_results_and_one_export_has_all(
    tmp_path: Path, mixed: Path, fieldray: Fieldray, run_ok: Fieldray
) -> None:
    alone = {}
    for folder in (ADULTS, TUBERCULOSIS, CHILDREN):
        alone |= answers(run_ok("screen", mixed, *packs(folder), "--json", "-", "--fresh").lines)
    out = tmp_path / "out"
    formats = ("--out", out, "--formats", "csv,json,pdf,sr,seg")
    done = fieldray("screen", mixed, *packs(ADULTS, TUBERCULOSIS, CHILDREN), "--json", "-", "--fresh", *formats)
    done.ends_with(1).complains(
        "images are missing from", "-seg"
    )  # JPEG files have no UIDs that a segmentation refers to
    assert answers(done.lines) == alone
    refused = {key for key, said in alone.items() if said["reason_code"] == "age"}
    assert refused == {
        (ADULTS.name, "child.dcm"), (TUBERCULOSIS.name, "child.dcm"), (CHILDREN.name, "adult.dcm")
    }  # fmt: skip

    (table,), (document,) = out.glob("*.csv"), out.glob("*.json")
    rows = list(csv.DictReader(table.read_text(encoding="utf-8-sig").splitlines()))
    assert Counter(row["pack"] for row in rows) == dict.fromkeys((ADULTS.name, TUBERCULOSIS.name, CHILDREN.name), 9)
    images = [row["image_id"] for row in rows]
    assert all(len(set(images[at : at + 3])) == 1 for at in range(0, len(images), 3))  # an image's rows are adjacent
    assert [row["pack"] for row in rows] == 9 * [ADULTS.name, TUBERCULOSIS.name, CHILDREN.name]
    for row in rows:
        if row["score"]:
            points = {line["label"]: line for key, line in alone.items() if key[0] == row["pack"] and line["score"]}
            assert row["threshold"] == str(points[row["label"]]["threshold"])
    urgent = ["read first", "abnormal", "not sure", "normal", "refused", "not an image"]
    places = [min(urgent.index(row["category"]) for row in rows[at : at + 3]) for at in range(0, len(rows), 3)]
    assert places == sorted(places) and places[0] < places[-1]
    content = json.loads(document.read_text(encoding="utf-8"))
    assert [content["about"]["pack"], *(one["pack"] for one in content["other_packs"])] == [
        ADULTS.name, TUBERCULOSIS.name, CHILDREN.name
    ]  # fmt: skip
    assert len(content["results"]) == len(rows)
    (reports,), (segments,) = out.glob("*-sr"), out.glob("*-seg")
    said = [path.read_bytes() for path in sorted(reports.iterdir())]
    screened = [row for row in rows if row["status"] == "screened"]
    assert len(said) == len(screened)
    names = [f"Pack {folder.name},".encode() for folder in (ADULTS, TUBERCULOSIS, CHILDREN)]
    for report, row in zip(said, screened, strict=True):
        assert [name for name in names if name in report] == [f"Pack {row['pack']},".encode()]
    assert len(list(segments.iterdir())) == 2  # one for each image with UIDs, whatever the number of packs


def test_a_person_gets_a_column_for_each_pack_and_its_own_counts(mixed: Path, run_ok: Fieldray) -> None:
    done = run_ok("screen", mixed, *packs(ADULTS, TUBERCULOSIS))
    heads = next(line for line in done.out.splitlines() if line.startswith("Normal or abnormal, adults   "))
    assert "Tuberculosis, adults" in heads
    for name in ("Normal or abnormal, adults", "Tuberculosis, adults"):
        assert f"\n{name}: read first " in done.out
    assert "An Edge TPU runs only" not in done.out  # no pack has a file for an Edge TPU
    lines = done.out.splitlines()
    at = next(place for place, line in enumerate(lines) if line.endswith("child.dcm"))
    assert lines[at].startswith("not suitable") and lines[at].count("not suitable") == 2
    assert [line[:13] for line in lines[at + 1 : at + 3]] == ["    Normal or", "    Tuberculo"]  # one for each pack
    at = next(place for place, line in enumerate(lines) if line.endswith("notes.txt"))
    assert lines[at + 1] == "    This file is not a DICOM, PNG or JPEG image."  # one reason for both packs
    (_, run) = run_ok("history", "list").out.splitlines()
    assert run.split()[0] == "1" and f"{ADULTS.name} + {TUBERCULOSIS.name}" in run
    shown = run_ok("history", "show", "1").out.splitlines()
    assert next(line for line in shown if line.endswith("child.dcm")).count("not suitable") == 2
    compared = run_ok("history", "compare", "1", "1.2").out
    assert "Run 1.2, " in compared and TUBERCULOSIS.name in compared


def test_two_versions_of_a_pack_are_told_apart(tmp_path: Path, run_ok: Fieldray) -> None:
    write_images(tmp_path / "images", 2)
    tiny = [write_tiny_pack(tmp_path / version, version=version) for version in ("1.0.0", "1.1.0")]
    out = ("--out", tmp_path / "out", "--formats", "pdf")
    done = run_ok("screen", tmp_path / "images", *packs(*tiny), "--trust", fingerprint(tiny[0]), *out)
    names = [f"tiny-{version}" for version in ("1.0.0", "1.1.0")]
    assert all(f"\n{name}: read first " in done.out for name in names)
    if not missing("pdftotext"):
        (document,) = (tmp_path / "out").glob("*.pdf")
        text = subprocess.run(["pdftotext", "-layout", document, "-"], capture_output=True, check=True).stdout.decode()
        assert all(f"{name} · Summary" in text for name in names)


def test_ages_are_not_confirmed_for_packs_that_share_no_patient(mixed: Path, fieldray: Fieldray) -> None:
    done = fieldray("screen", mixed, *packs(ADULTS, CHILDREN), "--ages-confirmed").ends_with(2)
    assert "No patient age fits all of these packs" in done.err
    fieldray("screen", mixed, *packs(ADULTS, TUBERCULOSIS), "--ages-confirmed").ends_with(0)

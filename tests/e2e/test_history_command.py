"""`fieldray history` from the command line, with the tiny network."""

from __future__ import annotations

import datetime
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.persistence import FileLock
from fieldray.pipeline.constancy import ConstancyRecord, ConstancyRecords
from fieldray.reports.content import CATEGORY_TEXTS
from program import Fieldray, write_images
from stores import change, rows_of
from tiny_models import tiny_manifest
from tiny_packs import fingerprint, write_tiny_pack

PICTURES = "SELECT COUNT(*) FROM pictures"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_images(tmp_path / "images", 6)
    return tmp_path / "images"


@pytest.fixture
def screened(fieldray: Fieldray, screen: Fieldray, images: Path) -> Fieldray:
    """Screen a folder twice, the second time with --fresh."""
    for more in ([], ["--fresh"]):
        screen(*more).ends_with(0)
    return fieldray


def listed(fieldray: Fieldray, *options: str) -> list[dict[str, object]]:
    return json.loads(fieldray("history", "list", "--json", "-", *options).ends_with(0).out)["runs"]


def test_runs_are_listed_filtered_and_shown_when_their_files_are_gone(screened: Fieldray, images: Path) -> None:
    newest, oldest = listed(screened)
    assert (newest["run"], oldest["run"], newest["images"]) == (2, 1, 6)
    assert newest["run_on"] == {"cpu": 6} and newest["paths"] == [str(images)]
    for options, wanted in (
        (("--search", "nowhere"), []),
        (("--search", str(images).upper()), [2, 1]),
        (("--device", "edgetpu"), []),
        (("--device", "cpu", "--verdict", "none", "--since", "2020-01-01"), [2, 1]),
        (("--verdict", "given"), []),
        (("--until", "2020-01-01"), []),
    ):
        assert [run["run"] for run in listed(screened, *options)] == wanted, options
    shutil.rmtree(images)
    shown = screened("history", "show", "1").ends_with(0).prints("The files of 6 images no longer exist.")
    assert sum(str(images) in line for line in shown.out.splitlines()) == 7
    table = screened("history", "list").out.splitlines()
    assert [line.split()[0] for line in table] == ["run", "2", "1"]
    assert all(word in table[0] for word in CATEGORY_TEXTS.values())
    screened("history", "show", "9").ends_with(2)
    assert "is not a date" in screened("history", "list", "--since", "yesterday").err


def test_a_past_run_says_why_an_image_was_refused(fieldray: Fieldray, screen: Fieldray, images: Path) -> None:
    (images / "note.txt").write_text("no image")
    screen().ends_with(0)
    refused, why = fieldray("history", "show", "1").out.splitlines()[-2:]
    assert refused.startswith("not an image") and refused.endswith("note.txt")
    assert why.strip() == "This file is not a DICOM, PNG or JPEG image."


def test_a_run_whose_files_are_gone_is_saved_again_with_its_previews(
    screened: Fieldray, images: Path, tmp_path: Path
) -> None:
    shutil.rmtree(images)
    done = screened("history", "export", "1", "--out", tmp_path / "out", "--formats", "csv,pdf-studies").ends_with(0)
    (table,) = (tmp_path / "out").glob("fieldray-run-1-*.csv")
    assert len(table.read_text("utf-8-sig").splitlines()) == 7
    (folder,) = (found for found in (tmp_path / "out").iterdir() if found.is_dir())
    assert len(list(folder.iterdir())) == 6
    assert "may name the patient" in done.err
    named = screened("history", "export", "1", "--out", tmp_path / "named", "--formats", "pdf-studies", "--names")
    plain = screened("history", "export", "1", "--out", tmp_path / "plain", "--formats", "csv,sr")
    assert "may name the patient" not in named.err + plain.err
    lacking = screened("history", "export", "1", "--out", tmp_path / "sc", "--formats", "sc").ends_with(1)
    assert "missing from" in lacking.err
    screened("history", "export", "9", "--out", tmp_path / "out").ends_with(2)


def test_history_month_prints_the_counts_of_a_month(screened: Fieldray, home: Path, tmp_path: Path) -> None:
    month = datetime.date.today().isoformat()[:7]
    screened("history", "month", month, "--pdf", tmp_path / "month.pdf", "--json", tmp_path / "month.json").ends_with(0)
    assert (tmp_path / "month.pdf").read_bytes().startswith(b"%PDF")
    found = json.loads((tmp_path / "month.json").read_text("ascii"))
    images = sum(one["images"] for one in found["images"])
    assert (found["report"], found["first_day"], images > 0) == ("month", f"{month}-01", True)
    assert "No constancy test was run" in screened("history", "month").out
    record = ConstancyRecord("made-up-1.0.0 - - -", "cpu", time.time(), "0", images=9, different=0, largest=0.01)
    ConstancyRecords(home).add(record, {})
    said = screened("history", "month").out
    assert record.summary.text in said and record.summary.text not in screened("history", "month", "2001-02").out
    assert "Reader agrees" in said and {one["pack"] for one in found["images"]} <= set(said.split())
    assert "Nothing was screened in this month." in screened("history", "month", "2001-02").out
    for slip in ("November", "11-2026", "2026-11-22"):
        assert f"{slip} is not a month. Write a month as year-month" in screened("history", "month", slip).err


def test_two_runs_are_compared(screened: Fieldray, tmp_path: Path, images: Path) -> None:
    screened("history", "compare", "1", "2", "--json", tmp_path / "compared.json").ends_with(0)
    document = json.loads((tmp_path / "compared.json").read_text("ascii"))
    assert (document["images_in_both"], document["changed"]) == (6, 0)
    (images / "image-000.png").unlink()
    words = screened("history", "compare", "1", "2", "--all").out
    assert "6 images are in both runs. Of the images in both runs, 0 have different classes" in words
    assert "+0.000" in words
    screened("history", "compare", "1", "1").ends_with(2)
    screened("history", "compare", "1", "7").ends_with(2)


def test_classes_with_long_names_stand_in_columns(fieldray: Fieldray, images: Path, tmp_path: Path) -> None:
    write_images(images, 6, side=128)  # with as much detail as a chest X-ray of that size
    (images / "note.txt").write_text("no image")
    point = replace(tiny_manifest().operating_points[0], threshold=0.8, unsure_low=0.7, unsure_high=0.9)
    names = {"abnormal": {"en": "Signs of an opacity"}, "normal": {"en": "None found by this pack"}}
    pack = write_tiny_pack(tmp_path / "named", class_names=names, operating_points=(point,))
    fieldray("packs", "install", pack, "--trust", fingerprint(pack)).ends_with(0)
    for more in ([], ["--fresh"]):
        fieldray("screen", images, "--pack", "tiny", *more).ends_with(0)
    said = fieldray("history", "compare", "1", "2").out.splitlines()
    moves = said[next(row for row, line in enumerate(said) if line.endswith("Images")) :]
    assert [move.split()[0] for move in moves[1:]] == ["None", "Not"]
    assert len(set(map(len, moves))) == 1
    month = fieldray("history", "month").out
    assert "None found by this pack" in month and "Normal" not in month
    assert "Bright images are abnormal. · tiny-1.0.0\n" in month  # title and name of the pack


def test_deleting_asks_first_then_leaves_nothing(screened: Fieldray, home: Path, images: Path) -> None:
    store, pictures = home / "results.sqlite", home / "results.pictures.sqlite"
    assert rows_of(pictures, PICTURES) == [(6,)]
    unconfirmed = screened("history", "delete", "1", "2").ends_with(2).prints("12 results will be deleted for good")
    assert "Add --yes" in unconfirmed.err and len(listed(screened)) == 2
    with FileLock(home / "results.sqlite.run-2.lock", holder="4711"):
        change(store, "UPDATE runs SET state = 'running' WHERE id = 2")
        refused = screened("history", "delete", "--all", "--yes").ends_with(2)
        refused.complains("in use by another program (process 4711)")
        assert len(listed(screened)) == 2
    screened("history", "delete", "--all", "--yes").ends_with(0).prints("2 runs were deleted.")
    assert listed(screened) == [] and rows_of(pictures, PICTURES) == [(0,)]
    left = b"".join(found.read_bytes() for found in home.iterdir() if found.is_file())
    assert str(images).encode() not in left
    assert "There are no runs." in screened("history", "delete", "--all", "--yes").out
    screened("history", "delete", "--yes").ends_with(2)


@pytest.mark.usefixtures("images")
def test_without_keep_previews_no_previews_are_stored(screen: Fieldray, home: Path) -> None:
    (home / "settings.json").write_text('{"keep_previews": false}')
    screen().ends_with(0)
    assert not (home / "results.pictures.sqlite").exists()
    store = home / "results.sqlite"
    assert rows_of(store, "SELECT COUNT(*) FROM answers WHERE class_maps IS NOT NULL") == [(6,)]

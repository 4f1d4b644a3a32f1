from __future__ import annotations

import csv
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fieldray.reports.content import RESEARCH_ONLY_NOTICE
from harness.record import json_lines
from phantoms import write_bad_inputs
from program import Fieldray, command, write_images
from tiny_packs import fingerprint, write_tiny_pack

KEYS = {
    "path", "study", "image", "status", "category", "label", "score", "operating_point", "threshold", "unsure_low",
    "unsure_high", "decision", "reason", "reason_code", "stage", "backend", "pack", "model_sha256", "decode_ms",
    "inference_ms", "images", "lungs", "lungs_pack", "notes", "taken_over_by",
}  # fmt: skip


def test_bad_inputs_give_one_line_each_and_do_not_affect_good_images(tmp_path: Path, screen: Fieldray) -> None:
    expected = write_bad_inputs(tmp_path / "images")
    good = write_images(tmp_path / "images" / "good", 3)
    done = screen("--json", "-", "--jobs", 2).ends_with(1)
    found = Counter(
        (os.path.relpath(line["path"], tmp_path / "images").partition("!")[0], line["status"], line["reason_code"])
        for line in done.lines
    )
    wanted = Counter((name, status, code) for name, (status, code) in expected.items())
    wanted += Counter((os.path.relpath(path, tmp_path / "images"), "screened", None) for path in good)
    assert found == wanted
    for line in done.lines:
        assert set(line) == KEYS
        if line["status"] == "screened":
            assert (line["label"], line["backend"], line["threshold"]) == ("opacity", "cpu", 0.5)
            assert 0 <= line["score"] <= 1
            assert line["inference_ms"] > 0
    assert RESEARCH_ONLY_NOTICE in done.err


def test_a_person_gets_a_list_counts_and_the_notice(tmp_path: Path, screen: Fieldray) -> None:
    write_images(tmp_path / "images", 3)
    (tmp_path / "images" / "notes.txt").write_text("not an image")
    done = screen().ends_with(0).prints("image-001.png").prints("Operating point screening (opacity): threshold 0.")
    done.prints("This file is not a DICOM, PNG or JPEG image.", "not suitable 0  failed 0  not an image 1")
    assert done.out.rstrip().endswith(RESEARCH_ONLY_NOTICE)
    assert done.err == ""


@pytest.mark.parametrize("others", [False, True])
def test_a_path_without_images_is_named_with_exit_code_4(
    others: bool, tmp_path: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    (tmp_path / "mount point").mkdir()
    (tmp_path / "mount point" / ".Trash").mkdir()
    images = [write_images(tmp_path / "images", 1)[0].parent] if others else []
    done = fieldray("screen", tmp_path / "mount point", *images, *pack_options).ends_with(4)
    assert f"There is no image file in {tmp_path / 'mount point'}." in done.out
    assert f"{len(images)} image{'s' if len(images) != 1 else ''} in" in done.out


def test_a_folder_of_files_that_are_no_images_has_exit_code_4(tmp_path: Path, screen: Fieldray) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "readme.txt").write_text("read me")
    screen().ends_with(4).prints("This file is not a DICOM, PNG or JPEG image.")


def test_files_that_are_no_images_are_counted_apart_everywhere(
    tmp_path: Path, fieldray: Fieldray, screen: Fieldray
) -> None:
    folder, out = write_images(tmp_path / "images", 3)[0].parent, tmp_path / "out"
    (folder / "readme.txt").write_text("read me")
    (folder / "report.pdf").write_bytes(b"%PDF-1.7\n")
    (folder / "empty.png").touch()
    for _ in range(2):  # the second run uses the results of the first
        done = screen("--json", tmp_path / "lines", "--out", out, "--names").ends_with(1)
        done.prints("4 images in", "not suitable 0  failed 1  not an image 2")
        lines = json_lines((tmp_path / "lines").read_text())
        assert Counter((line["category"], line["images"]) for line in lines)["not an image", 0] == 2
    document, table = next(out.glob("*.json")), next(out.glob("*.csv"))
    exported = json.loads(document.read_text())
    about = exported["about"]
    assert (about["counts"]["refused"], about["counts"]["not_an_image"]) == (0, 2)
    assert (about["state"], about["pack"], about["notice"]) == ("finished", "tiny-1.0.0", RESEARCH_ONLY_NOTICE)
    rows = list(csv.DictReader(table.read_text("utf-8-sig").splitlines()))
    scores = {line["path"]: line["score"] for line in lines if line["score"] is not None}
    assert {row["path"]: float(row["score"]) for row in rows if row["score"]} == scores and len(scores) == 3
    assert len(rows) == len(exported["results"]) == len(lines) == 6
    assert [row["category"] for row in rows][-2:] == ["not an image", "not an image"]
    assert not any(row["category"] == "refused" for row in rows)
    runs = json.loads(fieldray("history", "list", "--json", "-").out)["runs"]
    assert {(run["images"], run["counts"]["refused"], run["counts"]["not_an_image"]) for run in runs} == {(4, 0, 2)}


def test_an_unreadable_folder_counts_as_an_unknown_number_of_images(
    tmp_path: Path, home: Path, pack_options: list[str]
) -> None:
    folder = tmp_path / "drive"
    write_images(folder / "a", 300)
    write_images(folder / "b", 3)
    arguments = command("screen", folder, *pack_options, "--json", "-", "--jobs", "1")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        first = process.stdout.readline()
        folder.rename(tmp_path / "elsewhere")
        lines = json_lines(first + process.stdout.read())
        words = process.stderr.read()
        assert process.wait(60) == 1
    rows = [line for line in lines if line["reason_code"] in ("folder_lost", "folder_not_read")]
    assert [(row["path"], row["images"]) for row in rows] == [(str(folder), None)]
    assert {line["images"] for line in lines if line not in rows} == {1}
    assert len(lines) < 100  # only files that an earlier run found are reported as missing
    assert f"{len(lines) - 1} images in" in words
    assert "and an unknown number in unreadable folders (1)" in words


def test_a_second_run_reuses_results_and_fresh_does_not(tmp_path: Path, screen: Fieldray) -> None:
    write_images(tmp_path / "images", 4)
    first, second, fresh = (screen("--json", "-", *more) for more in ((), (), ("--fresh",)))
    assert "from an earlier run" not in first.err
    second.complains("4 images", "4 from an earlier run")
    assert "from an earlier run" not in fresh.err
    scores = [{line["path"]: line["score"] for line in done.lines} for done in (first, second, fresh)]
    assert scores[0] == scores[1] == scores[2]


def test_wrong_usage_has_exit_code_2_and_a_reason(tmp_path: Path, fieldray: Fieldray, pack_options: list[str]) -> None:
    write_images(tmp_path / "images", 1)
    images = tmp_path / "images"
    for arguments, words in [
        (["screen"], "PATH"),
        (["screen", images, *pack_options, "--jobs", "0"], "1 to 64"),
        (["screen", images, *pack_options, "--formats", "docx"], "choose from csv, json"),
        (["screen", images, *pack_options, "--formats", "csv"], "--out"),
        (["screen", images, *pack_options, "--device", "gpu"], "invalid choice"),
        (["screen", images, *pack_options, "--resume", "--fresh"], "not allowed with"),
        (["screen", tmp_path / "nowhere", *pack_options], "nowhere does not exist"),
        (
            ["screen", images, *pack_options, "--operating-point", "best"],
            "operating points of the pack are: screening",
        ),
        (["nonsense"], "invalid choice"),
    ]:
        assert fieldray(*arguments).ends_with(2).complains(words).out == ""


def test_without_a_usable_pack_the_exit_code_is_3_and_the_message_says_what_to_do(
    tmp_path: Path, fieldray: Fieldray, pack: Path
) -> None:
    write_images(tmp_path / "images", 1)
    for options, words in (
        ((tmp_path / "images",), ""),
        (("no-such-pack",), "No pack named no-such-pack"),
        ((pack,), "--trust"),
        ((pack, "--trust", "0" * 64), "not trusted"),
    ):
        assert fieldray("screen", tmp_path / "images", "--pack", *options).ends_with(3).complains(words).out == ""
    fieldray("packs", "trust", fingerprint(pack)).ends_with(0)
    namesake = write_tiny_pack(tmp_path / "drive", pack_id="adult-normal-abnormal")
    done = fieldray("screen", tmp_path / "images", "--pack", namesake).ends_with(3)
    done.complains("but a different signer", f"--pack adult-normal-abnormal@{fingerprint(pack)}")


def test_an_unwritable_output_path_has_exit_code_2_and_no_run_begins(tmp_path: Path, screen: Fieldray) -> None:
    write_images(tmp_path / "images", 1)
    (tmp_path / "file").write_text("")
    for option, place in (("--json", "no/folder"), ("--out", "file/out")):
        assert screen(option, tmp_path / place).ends_with(2).complains("Cannot write to").out == ""  # no run was begun

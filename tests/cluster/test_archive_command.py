"""`fieldray archive screen` as its user starts it, against `fieldray screen` on the same images."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from cluster.conftest import stored, wait_for_end
from fieldray.imaging.synthetic import chest_phantom
from fieldray.paths import KEPT
from fieldray.store.results import ResultQuery
from phantoms import write_dicom
from program import Fieldray, command
from waiting import wait_for

CHUNK = 8


def screen_archive(fieldray: Fieldray, images: Path, out: Path, *options: object) -> subprocess.CompletedProcess[str]:
    return fieldray("archive", "screen", images, "--out", out, "--workers", 2, "--chunk", CHUNK, *options)


def test_the_results_are_those_of_screen_and_screen_takes_them_over(
    tmp_path: Path, home: Path, images: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    other = tmp_path / "other-home"
    write_dicom(images / "hand.dcm", chest_phantom(160, 128, 1, abnormal=True), changes={"BodyPartExamined": "HAND"})
    alone = fieldray("screen", images, *pack_options, environment={"FIELDRAY_HOME": str(other)})
    assert alone.returncode == 1, alone.stderr  # one image is damaged
    done = screen_archive(fieldray, images, tmp_path / "out", *pack_options)
    assert done.returncode == 1, done.stderr
    assert stored(home) == stored(other)
    count = len(stored(home))
    assert f"{count - 1} images. Of {count} files, 0 from an earlier start." in done.stdout  # the letter is none
    assert "1 image failed. Start the same command again to try it again.\nA file that could not " in done.stdout
    (note,) = (line for line in alone.stdout.splitlines() if "pack (age or body part)" in line)
    assert note in done.stdout.splitlines()
    taken_over = [
        re.findall("[0-9]+ from an earlier run", fieldray("screen", images, *pack_options, environment=where).stdout)
        for where in ({}, {"FIELDRAY_HOME": str(other)})
    ]
    assert taken_over[0] and taken_over[0] == taken_over[1]
    shutil.copy(next(images.glob("*0.png")), images / "damaged.png")
    again = screen_archive(fieldray, images, tmp_path / "out", *pack_options)
    assert again.returncode == 0, again.stderr
    assert f"Of {count} files, {count - 1} from an earlier start." in again.stdout
    last = screen_archive(fieldray, images, tmp_path / "out", *pack_options)
    said = re.search(r"All images \((\d+)\) that were listed on 20\d\d-\d\d-\d\d have results: run \d+ .*", last.stdout)
    assert last.returncode == 0 and said and "Images added since then need another folder" in said[0]


def test_a_path_without_an_image_is_named_before_anything_is_screened(
    tmp_path: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    hollow, letters = tmp_path / "hollow", tmp_path / "letters"
    for folder in (hollow / "deep", letters):
        folder.mkdir(parents=True)
    (letters / "letter.txt").write_text("no image")
    arguments = ("archive", "screen", letters, hollow, "--out", tmp_path / "out", *pack_options)
    done = fieldray(*arguments)
    assert done.returncode == 4 and f"There is no image file in {hollow}" in done.stderr
    shutil.copy(letters / "letter.txt", hollow)
    for _ in range(2):
        done = fieldray(*arguments)
        assert done.returncode == 4 and "0 images. Of 2 files" in done.stdout, done.stderr


def test_a_driver_killed_in_the_middle_is_resumed(
    tmp_path: Path, home: Path, images: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    out, other = tmp_path / "out", tmp_path / "other-home"
    fieldray("screen", images, *pack_options, environment={"FIELDRAY_HOME": str(other)})
    arguments = ("archive", "screen", images, "--out", out, "--chunk", 2, *pack_options)
    with subprocess.Popen(
        command(*arguments), env={**os.environ, "FIELDRAY_HOME": str(home)}, stdout=subprocess.DEVNULL
    ) as driver:
        wait_for(lambda: len(list((out / "chunks").glob("*.parquet"))) >= 2, limit_s=60)
        children = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
    wait_for_end(children)
    kept = len(list((out / "chunks").glob("*.parquet")))
    done = fieldray(*arguments)
    assert done.returncode == 1, done.stderr
    resumed = re.search(r"(\d+) from an earlier start", done.stdout)
    assert resumed and 2 * kept - 1 <= int(resumed[1]) <= 2 * kept, done.stdout  # one image is damaged
    assert stored(home) == stored(other)
    with ResultQuery(home / "results.sqlite") as query:
        assert [run.state for run in query.runs()] == ["finished"]


def test_images_that_are_sent_get_the_same_results(
    tmp_path: Path, home: Path, images: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    other = tmp_path / "other-home"
    fieldray("screen", images, *pack_options, environment={"FIELDRAY_HOME": str(other)})
    done = screen_archive(fieldray, images, tmp_path / "out", *pack_options, "--send-files")
    assert done.returncode == 1, done.stderr  # one image is damaged
    assert stored(home) == stored(other)


@pytest.mark.parametrize("command_after", ["delete", "screen"])
def test_nothing_of_a_patient_or_a_key_is_left_by_an_archive_that_was_killed(
    home: Path, images: Path, fieldray: Fieldray, pack_options: list[str], command_after: str
) -> None:
    out = images.parent / "out"
    arguments = ("archive", "screen", images, "--out", out, "--send-files", "--chunk", 2, *pack_options)
    with subprocess.Popen(
        command(*arguments), env={**os.environ, "FIELDRAY_HOME": str(home)}, stdout=subprocess.DEVNULL
    ) as driver:
        wait_for(lambda: len(list((out / "chunks").glob("*.parquet"))) >= 2, limit_s=60)
        family = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    wait_for_end(family[1:])
    assert list((home / "cluster").rglob("*.key"))
    done = fieldray("history", "delete", "--all", "--yes") if command_after == "delete" else fieldray(*arguments)
    assert done.returncode == (1 if command_after == "screen" else 0), done.stderr  # one image is damaged
    assert not list((home / "cluster").iterdir())
    assert [path.name for path in home.iterdir() if not path.name.startswith(KEPT)] == []


def test_a_share_that_vanishes_ends_the_run_and_fails_no_image(
    tmp_path: Path, home: Path, images: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    away, out = tmp_path / "away", tmp_path / "out"
    shutil.rmtree(images / "studies")
    arguments = ("archive", "screen", images, "--out", out, "--chunk", 1, *pack_options)
    with subprocess.Popen(
        command(*arguments),
        env={**os.environ, "FIELDRAY_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        wait_for(lambda: list((out / "chunks").glob("*.parquet")), limit_s=60)
        images.rename(away)
        assert driver.stderr
        said = driver.stderr.read()
    assert driver.returncode == 1 and f"It does not see {images}" in said, said
    away.rename(images)
    done = fieldray(*arguments)
    assert done.returncode == 1, done.stderr  # one image is damaged
    assert [row[1] for row in stored(home)].count("failed") == 1

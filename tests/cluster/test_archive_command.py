"""`fieldray archive screen` from the command line, compared with `fieldray screen`; and `fieldray cluster`.

The two computers of a cluster are two addresses of this computer.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.cluster_kills import find_node_processes
from benchmarks.namespaces import SUBNET, NotPermitted, namespaces
from cluster.conftest import stored
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.naming import LEGACY_CPU_FILE_NAME
from fieldray.paths import DATA_FOLDER_FILE_PREFIXES
from fieldray.store.results import ResultQuery
from phantoms import write_dicom
from program import Fieldray, command, free_port, start, wait_for_end, write_images
from tiny_models import legacy_model_bytes
from waiting import wait_for

CHUNK = 8


def test_an_archive_gives_the_results_of_screen_and_screen_reuses_them(
    tmp_path: Path, home: Path, images: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    other = tmp_path / "other-home"
    write_dicom(images / "hand.dcm", chest_phantom(160, 128, 1, abnormal=True), changes={"BodyPartExamined": "HAND"})
    alone = fieldray("screen", images, *pack_options, environment={"FIELDRAY_HOME": str(other)})
    alone.ends_with(1)  # one image is damaged
    archive = ("archive", "screen", images, "--out", tmp_path / "out", "--workers", 2, "--chunk", CHUNK, *pack_options)
    done = fieldray(*archive).ends_with(1)
    assert stored(home) == stored(other)
    count = len(stored(home))
    done.prints(f"{count - 1} images. Finished earlier: 0 of {count} files.")  # letter.txt is not an image
    done.prints("1 image failed. To try the image again, start the command again.\nIf a file was unreadable ")
    (note,) = (line for line in alone.out.splitlines() if "pack (age or body part)" in line)
    assert note in done.out.splitlines()
    taken_over = [
        re.findall("[0-9]+ from an earlier run", fieldray("screen", images, *pack_options, environment=where).out)
        for where in ({}, {"FIELDRAY_HOME": str(other)})
    ]
    assert taken_over[0] and taken_over[0] == taken_over[1]
    shutil.copy(next(images.glob("*0.png")), images / "damaged.png")
    fieldray(*archive).ends_with(0).prints(f"Finished earlier: {count - 1} of {count} files.")
    last = fieldray(*archive).ends_with(0)
    said = re.search(r"All images \((\d+)\) that were listed on 20\d\d-\d\d-\d\d have results: run \d+ .*", last.out)
    assert said and "To screen images added since then" in said[0]


def test_allow_legacy_reaches_each_process_of_an_archive(tmp_path: Path, home: Path, fieldray: Fieldray) -> None:
    drive, other = tmp_path / "drive", tmp_path / "other-home"
    drive.mkdir()
    (drive / LEGACY_CPU_FILE_NAME).write_bytes(legacy_model_bytes("float32"))
    write_images(tmp_path / "in", 3)
    begin = ("archive", "screen", tmp_path / "in", "--pack", drive, "--out", tmp_path / "out")
    fieldray(*begin).ends_with(3).complains("not verified")
    options = ("--pack", drive, "--allow-legacy")
    fieldray("screen", tmp_path / "in", *options, environment={"FIELDRAY_HOME": str(other)}).ends_with(0)
    fieldray(*begin, "--allow-legacy").ends_with(0).prints("3 images.")
    assert stored(home) == stored(other)


def test_a_path_without_an_image_is_named_before_anything_is_screened(
    tmp_path: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    hollow, letters = tmp_path / "hollow", tmp_path / "letters"
    for folder in (hollow / "deep", letters):
        folder.mkdir(parents=True)
    (letters / "letter.txt").write_text("no image")
    arguments = ("archive", "screen", letters, hollow, "--out", tmp_path / "out", *pack_options)
    fieldray(*arguments).ends_with(4).complains(f"There is no image file in {hollow}")
    shutil.copy(letters / "letter.txt", hollow)
    for earlier in (0, 2):
        fieldray(*arguments).ends_with(4).prints(f"0 images. Finished earlier: {earlier} of 2 files.")


def kill_in_the_middle(arguments: tuple[object, ...], out: Path, *, is_whole: bool) -> None:
    """Kill the driver after two pieces; with `is_whole` also its child processes. The remaining ones end themselves."""
    with start(*arguments) as driver:
        wait_for(lambda: len(list((out / "chunks").glob("*.parquet"))) >= 2, limit_s=60)
        family = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
        for process in family if is_whole else family[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    wait_for_end(family[1:])


def assert_nothing_of_it_is_left(home: Path) -> None:
    """Require that no data of patients and no key are left."""
    assert not list((home / "cluster").iterdir())
    assert [path.name for path in home.iterdir() if not path.name.startswith(DATA_FOLDER_FILE_PREFIXES)] == []


@pytest.mark.parametrize("options", [(), ("--send-files",)])
def test_an_archive_killed_in_the_middle_is_resumed_and_leaves_nothing(
    home: Path, images: Path, fieldray: Fieldray, pack_options: list[str], options: tuple[str, ...]
) -> None:
    out, other = images.parent / "out", images.parent / "other-home"
    fieldray("screen", images, *pack_options, environment={"FIELDRAY_HOME": str(other)})
    arguments = ("archive", "screen", images, "--out", out, "--chunk", 2, *options, *pack_options)
    kill_in_the_middle(arguments, out, is_whole=bool(options))
    kept = len(list((out / "chunks").glob("*.parquet")))
    done = fieldray(*arguments).ends_with(1)
    resumed = re.search(r"Finished earlier: (\d+)", done.out)
    assert resumed and 2 * kept - 1 <= int(resumed[1]) <= 2 * kept, done.out  # one image is damaged
    assert stored(home) == stored(other)
    with ResultQuery(home / "results.sqlite") as query:
        assert [run.state for run in query.runs()] == ["finished"]
    assert_nothing_of_it_is_left(home)


def test_a_killed_scheduler_and_ctrl_c_end_without_a_traceback(images: Path, pack_options: list[str]) -> None:
    out = images.parent / "out"
    archive = ("archive", "screen", images, "--out", out, "--chunk", 1, *pack_options)
    with start(*archive) as driver:
        wait_for(lambda: list((out / "chunks").glob("*.parquet")), limit_s=60)
        (scheduler,) = find_node_processes(psutil.Process(driver.pid), "scheduler")
        scheduler.kill()
        said = driver.communicate(timeout=100)[1]
    assert driver.returncode == 1 and "Traceback" not in said, said  # one image is damaged
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with start(*archive[:4], images.parent / "other", *archive[5:], "--cluster", address) as driver:
            silent.accept()[0].close()
            driver.terminate()
            said = driver.communicate(timeout=100)[1]
    assert driver.returncode == 130 and said.splitlines()[-1] == "fieldray: cancelled", said


def test_files_of_a_killed_archive_are_deleted_with_the_history(
    home: Path, images: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    out = images.parent / "out"
    arguments = ("archive", "screen", images, "--out", out, "--send-files", "--chunk", 2, *pack_options)
    kill_in_the_middle(arguments, out, is_whole=True)
    assert list((home / "cluster").rglob("*.key"))
    fieldray("history", "delete", "--all", "--yes").ends_with(0)
    assert_nothing_of_it_is_left(home)


def test_a_share_that_vanishes_ends_the_run_and_fails_no_image(
    tmp_path: Path, home: Path, images: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    away, out = tmp_path / "away", tmp_path / "out"
    shutil.rmtree(images / "studies")
    arguments = ("archive", "screen", images, "--out", out, "--chunk", 1, *pack_options)
    with start(*arguments) as driver:
        wait_for(lambda: list((out / "chunks").glob("*.parquet")), limit_s=60)
        images.rename(away)
        assert driver.stderr
        said = driver.stderr.read()
    assert driver.returncode == 1 and f"{images} is missing or empty on the node" in said, said
    away.rename(images)
    done = fieldray(*arguments)
    assert done.code == 1, done.err  # one image is damaged
    assert [row[1] for row in stored(home)].count("failed") == 1


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a command for the block, then terminate it. Yields it and its first line after those about certificates."""
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        children: list[psutil.Process] = []
        try:
            line = process.stdout.readline()
            while line.startswith(("Certificates in", "The scheduler:")):
                line = process.stdout.readline()
            children = psutil.Process(process.pid).children(recursive=True)
            yield process, line
        finally:
            process.terminate()
            process.wait(30)
            wait_for_end(children)


@pytest.mark.cluster
def test_the_status_of_a_cluster_is_shown_on_another_computer(tmp_path: Path) -> None:
    """Loopback addresses are never refused, so this test uses two other addresses."""
    with contextlib.ExitStack() as ends:
        try:
            computers = ends.enter_context(namespaces(2, rate_mbit=100))
        except NotPermitted as why:
            pytest.skip(str(why))
        start = (
            "cluster",
            "start",
            "--host",
            computers.address(0),
            "--network",
            f"{SUBNET}.0/24",
            "--unencrypted",
        )
        line = computers.command(0, command(*start))
        scheduler = ends.enter_context(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        ends.callback(scheduler.terminate)
        assert scheduler.stdout and "The cluster is at" in scheduler.stdout.readline()
        look = computers.command(1, command("cluster", "status", f"{computers.address(0)}:8786"))
        shown = subprocess.run(look, capture_output=True, text=True, timeout=100, check=False)
        assert shown.stdout.startswith(f"tcp://{computers.address(0)}:8786: 0 workers"), shown.stderr


@pytest.mark.skipif(os.name != "posix", reason="other systems have 127.0.0.1 alone")
def test_a_cluster_is_started_joined_used_and_ended(
    tmp_path: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    certificates = tmp_path / "certificates"
    fieldray("cluster", "certificates", certificates).ends_with(0)
    port, encrypted = free_port(), ("--certificates", certificates)
    images = tmp_path / "images"
    write_images(images, 6)
    with started("cluster", "start", "--host", "127.0.0.2", "--port", port, *encrypted) as (scheduler, said):
        address = f"tls://127.0.0.2:{port}"
        assert address in said
        join = ("cluster", "join", address, "--host", "127.0.0.3", "--workers", 2, "--name", "ward", *encrypted)
        with started(*join) as (worker, line):
            assert line.strip() == f"ward works for {address}."
            shown = fieldray("cluster", "status", address, *encrypted).prints("2 workers", "ward/1  tls://127.0.0.3:")
            mine, *others = shown.out.splitlines()
            assert re.fullmatch(r"Certificates in .*: of a client, of the cluster [0-9a-f]{16}, valid until .*", mine)
            assert all(re.search(r"certificate until 20\d\d-\d\d-\d\d$", line) for line in others), others
            out = ("--out", tmp_path / "out", "--cluster", address, *encrypted)
            fieldray("archive", "screen", images, *pack_options, *out).ends_with(0).prints("By node: ward: 6 at")
            fieldray("cluster", "stop", address, *encrypted).ends_with(0)
            assert (worker.wait(30), scheduler.wait(30)) == (0, 0)


def test_listening_at_an_address_of_another_computer_is_an_error(fieldray: Fieldray) -> None:
    done = fieldray("cluster", "start", "--host", "203.0.113.7", "--port", free_port(), "--unencrypted")
    done.ends_with(1).complains("could not be started")


OPEN = "everybody who reaches the port of this computer can run programs"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("start --host ward-pc --unencrypted", "is not a numeric IP address"),
        # connections without certificates need an explicit option
        ("start --host 127.0.0.1", OPEN),
        ("join 127.0.0.1:8786 --host 127.0.0.1", OPEN),
        ("start --host 127.0.0.1 --certificates there --unencrypted", OPEN),
        ("start --host 127.0.0.1 --unencrypted --network 192.168.1.10/24", "is 192.168.1.0/24 meant?"),
        ("start --host 127.0.0.1 --unencrypted --network ward-net", "is not a numeric IP network"),
    ],
)
def test_wrong_cluster_options_are_reported_before_anything_starts(fieldray: Fieldray, words: str, said: str) -> None:
    fieldray("cluster", *words.split()).ends_with(2).complains(said)

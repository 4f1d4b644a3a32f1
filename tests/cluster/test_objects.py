"""Archives whose images are objects of a server, against moto's server of S3."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import fsspec
import fsspec.asyn
import pytest

from cluster.conftest import stored
from fieldray.domain.finding import Failed, Outcome
from fieldray.domain.image import ImageRef
from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray.imaging.discover import members_here
from fieldray.reasons import reason
from fieldray_cluster.objects import (
    ObjectCache,
    ObjectServer,
    ReadAhead,
    address_of,
    address_path,
    is_address,
    list_objects,
)
from program import Fieldray, command, write_images

if not all(map(importlib.util.find_spec, ("s3fs", "moto", "boto3", "flask"))):
    pytest.skip("the modules of buckets are not installed", allow_module_level=True)

from object_server import Bucket

Listed = Sequence[tuple[ImageRef, str]]
TEXTS = [(f"{number:02}", f"text {number}") for number in range(40)]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The bucket, as this user has configured it."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    server = Bucket()
    server.configure(tmp_path / "user")
    yield server
    quiet_fsspec()
    server.client.close()
    server.stop()


def quiet_fsspec() -> None:
    """End what fsspec keeps in a process."""
    for library in map(fsspec.get_filesystem_class, ("s3", "http")):
        library.clear_instance_cache()
    gc.collect()
    if loop := fsspec.asyn.loop[0]:
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        fsspec.asyn.iothread[0].join()
        loop.close()
        fsspec.asyn.reset_after_fork()


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("s3://box/a/b.png", "s3:/box/a/b.png"),
        ("s3://box/a//b.png", "s3:/box/a/%/b.png"),
        ("s3://box/./../100%.png", "s3:/box/%2E/%2E%2E/100%25.png"),
        ("s3://box/Знімок 1\\2.png", "s3:/box/Знімок 1%5C2.png"),
        ("file:///data/a.png", "file:/%/data/a.png"),
    ],
)
def test_a_place_stands_for_one_address(address: str, place: str) -> None:
    assert str(address_path(address)) == place and address_of(Path(place)) == address
    assert is_address(address) and not any(map(is_address, (place, "C://a", "s3://")))


# ---- the list


def listed(address: str) -> list[tuple[str, str]]:
    """The address of each image with its member, and what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        found = list(list_objects(ObjectServer(address), members_here(), Path(folder)))
    return [
        (address_of(ref.path) + (f"!{ref.member}" if ref.member else ""), ref.problem.code if ref.problem else "")
        for ref, _ in found
    ]


def test_what_is_listed_is_an_image_or_says_why_not(bucket: Bucket, tmp_path: Path) -> None:
    (png,) = write_images(tmp_path / "images" / "deep", 1)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.write(png, "1.png")
        archive.write(png, "2.png")
    for key in ("in/b.png", "in/a//b.png", "in/.hidden/c.png", "in-other/d.png", "in/refused.png"):
        bucket.put(key, png.read_bytes())
    bucket.put("in/folder/", b"")
    bucket.put("in/empty.png", b"")
    bucket.put("in/two.zip", (tmp_path / "two.zip").read_bytes())
    bucket.faults["in/refused.png"] = "refused"  # whoever is to screen it tries again
    assert listed("s3://box/in") == [
        ("s3://box/in/a//b.png", ""),
        ("s3://box/in/b.png", ""),
        ("s3://box/in/empty.png", "empty"),
        ("s3://box/in/refused.png", ""),
        ("s3://box/in/two.zip!1.png", ""),
        ("s3://box/in/two.zip!2.png", ""),
    ]
    assert listed("s3://box/in/b.png") == [("s3://box/in/b.png", "")]


def test_a_long_list_comes_in_pages(bucket: Bucket) -> None:
    names = [f"s3://box/long/{number:04}" for number in range(1001)]
    for name in names:
        bucket.put(name.removeprefix("s3://box/"), b"")
    bucket.asked.clear()
    found = ObjectServer("s3://box/long").names()
    assert next(found) == names[0] and len(bucket.asked) == 1
    assert list(found) == names[1:] and len(bucket.asked) == 2


def test_an_archive_that_cannot_be_listed_is_said_at_once(bucket: Bucket) -> None:
    for address in ("s3://box/none", "s3://no-box/in"):
        with pytest.raises(UsageProblem, match=f"{address} does not exist"):
            listed(address)
    bucket.faults[""] = "refused"
    with pytest.raises(EnvironmentProblem, match="The server does not let you list s3://box"):
        listed("s3://box")
    bucket.stop()
    with pytest.raises(EnvironmentProblem, match=r"s3://box/in cannot be reached: .*start the same command again"):
        listed("s3://box/in")
    bucket.start()


# ---- objects on their way


@pytest.fixture
def texts(bucket: Bucket) -> Listed:
    """Forty listed objects, each with its own text."""
    for name, text in TEXTS:
        bucket.put(f"in/{name}", text.encode())
    server = ObjectServer("s3://box/in")
    return [(ImageRef(path=address_path(name)), server.head(name, lambda _: None)[1]) for name in server.names()]


def brought(
    refs: Listed, cache: Path, address: str = "s3://box/in", *, patience_s: float = 30.0, most_bytes: int = 2**20
) -> list[tuple[str, str]]:
    """The key of each image, and what its file holds or why there is none."""

    def read(ref: ImageRef) -> Outcome:
        return Failed(ref=ref, stage="decode", reason=reason("internal", detail=ref.path.read_text()))

    server = ObjectServer(address, patience_s=patience_s, most_bytes=most_bytes)
    images, states = [ref for ref, _ in refs], [state for _, state in refs]
    with tempfile.TemporaryDirectory(dir=cache.parent) as own:
        with ReadAhead(server, ObjectCache(cache), images, states, Path(own)) as ahead:
            whys = [(ref.path.name, ahead.screened(read, ref).reason) for ref in images]  # type: ignore[union-attr]
        assert not list(Path(own).iterdir())  # what was used is gone
    return [(name, str(dict(why.parameters)["detail"]) if why.code == "internal" else why.code) for name, why in whys]


def test_a_fault_of_an_object_is_its_own(bucket: Bucket, texts: Listed, tmp_path: Path) -> None:
    bucket.faults = {"in/03": "refused", "in/05": "cut", "in/07": "slow"}
    bucket.put("in/11", b"other text")
    bucket.client.delete_object(Bucket="box", Key="in/13")
    bucket.put("in/40", b"a longer text than is allowed")
    found = brought([*texts, (ImageRef(path=address_path("s3://box/in/40")), "")], tmp_path / "cache", most_bytes=20)
    wrong = {"03": "no_permission", "05": "unreadable", "11": "archive_object_changed", "13": "missing"}
    wrong["40"] = "archive_object_large"
    assert found == [(name, wrong.get(name, text)) for name, text in (*TEXTS, ("40", ""))]


def test_a_server_that_comes_back_is_waited_for(bucket: Bucket, texts: Listed, tmp_path: Path) -> None:
    bucket.stop()
    with pytest.raises(EnvironmentProblem, match="s3://box/in cannot be reached"):
        brought(texts, tmp_path / "cache", patience_s=0.1)
    back = threading.Timer(1.0, bucket.start)
    back.start()
    assert brought(texts, tmp_path / "cache") == TEXTS
    back.join()
    bucket.asked.clear()
    assert brought(texts, tmp_path / "cache") == TEXTS and not bucket.asked  # they are in the cache


def test_a_cache_keeps_to_its_limit_and_takes_nothing_that_is_used(
    bucket: Bucket, texts: Listed, tmp_path: Path
) -> None:
    server, cache = ObjectServer("s3://box/in"), ObjectCache(tmp_path / "cache", limit_bytes=64)
    for number, (ref, state) in enumerate(texts):
        cache.bring(server, address_of(ref.path), state, tmp_path / f"{number}")
        if number != 1:
            (tmp_path / f"{number}").unlink()
        kept = [path.stat() for path in (tmp_path / "cache").iterdir()]
        assert sum(status.st_size for status in kept if status.st_nlink == 1) <= 64
    assert (tmp_path / "1").read_text() == "text 1"


# ---- the command


def test_a_bucket_gets_the_results_of_a_folder_whatever_happens_to_its_server(
    bucket: Bucket, fieldray: Fieldray, home: Path, images: Path, pack_options: list[str]
) -> None:
    other = images.parent / "other"
    for path in filter(Path.is_file, images.rglob("*")):
        bucket.put(f"in/{path.relative_to(images).as_posix()}", path.read_bytes())
    alone = fieldray("screen", images, *pack_options, environment={"FIELDRAY_HOME": str(other)})
    assert alone.returncode == 1, alone.stderr  # one image is damaged
    bucket.faults["in/image-005.png"] = "refused"
    begin = ("archive", "screen", "s3://box/in", "--out", images.parent / "out", "--chunk", 4, *pack_options)
    typo = fieldray(*begin[:2], "s3://bxo/in", *begin[3:])
    assert typo.returncode == 2 and "s3://bxo/in does not exist" in typo.stderr
    done = fieldray(*begin)
    assert done.returncode == 1 and "2 images failed." in done.stdout, done.stderr
    bucket.faults.clear()
    bucket.stop()
    again = subprocess.Popen(
        command(*begin), env={**os.environ, "FIELDRAY_HOME": str(home)}, stdout=-1, stderr=-1, text=True
    )
    assert again.stderr
    waits = next((line for line in again.stderr if "waits for it" in line), "")
    bucket.start()
    output, errors = again.communicate(timeout=120)
    assert waits.startswith("fieldray: local: It cannot reach the server") and "waits for it" not in errors
    assert again.returncode == 1 and "1 image failed." in output, errors
    assert "has changed on its server since, needs another folder (--out)" in output
    assert [(key.replace("s3:/box/in", str(images)), *more) for key, *more in stored(home)] == stored(other)
    assert not list((home / "cluster").rglob("objects*"))
    done = fieldray(*begin, "--send-files")
    assert done.returncode == 2 and "Name one address of objects alone" in done.stderr


def killed_at_random(bucket: Bucket, seed: int, is_over: threading.Event, killed: list[int]) -> None:
    """Kill the server again and again, each time after some more requests, for some time."""
    drawn = random.Random(seed)
    for _ in range(4):
        until = len(bucket.asked) + drawn.randint(3, 25)
        while len(bucket.asked) < until:
            if is_over.wait(0.001):
                return
        bucket.kill()
        killed.append(until)
        is_over.wait(drawn.uniform(0.1, 0.8))
        bucket.start()


def test_a_server_that_is_killed_at_random_costs_no_image(
    bucket: Bucket, fieldray: Fieldray, home: Path, tmp_path: Path, pack_options: list[str]
) -> None:
    paths = write_images(tmp_path / "in", 24)
    for path in paths:
        bucket.put(f"in/{path.name}", path.read_bytes())
    alone = fieldray("screen", tmp_path / "in", *pack_options, environment={"FIELDRAY_HOME": str(tmp_path / "other")})
    bucket.asked.clear()
    is_over, killed = threading.Event(), list[int]()
    kills = threading.Thread(target=killed_at_random, args=(bucket, 1, is_over, killed))
    kills.start()
    done = fieldray("archive", "screen", "s3://box/in", "--out", tmp_path / "out", "--chunk", 6, *pack_options)
    is_over.set()
    kills.join()
    assert len(killed) > 1  # listing and screening ask more than twice 25 times
    assert (alone.returncode, done.returncode) == (0, 0), done.stderr
    found = stored(home)
    assert len(found) == len(paths)
    assert [(key.replace("s3:/box/in", str(tmp_path / "in")), *more) for key, *more in found] == stored(
        tmp_path / "other"
    )


def test_keys_may_stand_in_the_environment_alone(
    bucket: Bucket, fieldray: Fieldray, tmp_path: Path, pack_options: list[str]
) -> None:
    (png,) = write_images(tmp_path, 1)
    bucket.put("in/1.png", png.read_bytes())
    begin = ("archive", "screen", "s3://box/in", "--out", tmp_path / "out", *pack_options)
    nothing = {"HOME": str(tmp_path), "AWS_ENDPOINT_URL": bucket.url, "AWS_MAX_ATTEMPTS": "1"}
    refused = fieldray(*begin, environment=nothing)
    assert refused.returncode == 1 and "Unable to locate credentials" in refused.stderr, refused.stderr
    done = fieldray(*begin, environment=nothing | bucket.environment)
    assert done.returncode == 0, done.stderr


def test_only_the_server_that_was_named_is_reached(bucket: Bucket) -> None:
    code = """
from fieldray.offline import reach_server, stay_offline
stay_offline(joins_cluster=True)
from fieldray_cluster.objects import ObjectServer
import socket
print(next(ObjectServer("s3://box/in").names()))
for host in ("127.0.0.2", "localhost"):
    try:
        socket.create_connection((host, PORT), timeout=1)
    except PermissionError:
        print("refused")
reach_server("localhost")
socket.create_connection(("localhost", PORT), timeout=1).close()
"""
    bucket.put("in/1", b"1")
    command = [sys.executable, "-c", code.replace("PORT", str(bucket.port))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["s3://box/in/1", "refused", "refused"] and not done.returncode, done.stderr

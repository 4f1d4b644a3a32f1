"""Archives whose images are objects of a server, against moto's server of S3."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib.util
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec.asyn
import pytest

from fieldray.domain.finding import Failed, Outcome, Refused
from fieldray.domain.study import ImageRef
from fieldray.errors import EnvironmentProblem, FieldrayError, UsageProblem
from fieldray.imaging.discover import members_here
from fieldray.imaging.synthetic import write_studies
from fieldray.reasons import reason
from fieldray.store.results import ResultQuery
from fieldray_cluster.objects import (
    ObjectCache,
    ObjectServer,
    ReadAhead,
    address_of,
    is_address,
    list_objects,
    place_of,
)
from program import Fieldray, write_images

if not all(map(importlib.util.find_spec, ("s3fs", "moto", "boto3", "flask"))):
    pytest.skip("the modules of buckets are not installed", allow_module_level=True)

from object_server import ObjectServer as Bucket

AT_ONCE = 0.1  # seconds of patience


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user who has configured the bucket."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.fixture
def bucket(user: Path) -> Iterator[Bucket]:
    server = Bucket()
    server.configure(user)
    yield server
    end_connections()
    server.client.close()
    server.stop()


def end_connections() -> None:
    """End what fsspec keeps in this process, its thread as well."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
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
        ("s3://box/./../b.png", "s3:/box/%2E/%2E%2E/b.png"),
        ("s3://box/100%.png", "s3:/box/100%25.png"),
        ("s3://box/Знімок 1\\2.png", "s3:/box/Знімок 1%5C2.png"),
        ("file:///data/a.png", "file:/%/data/a.png"),
    ],
)
def test_a_place_stands_for_one_address(address: str, place: str) -> None:
    assert str(place_of(address)) == place and address_of(Path(place)) == address
    assert is_address(address) and not any(map(is_address, (place, "C:\\a", "C://a", "simplecache::" + address)))


# ---- the list


def listed(address: str, folder: Path) -> list[tuple[str, str]]:
    """The address of each image, its member, and what is wrong with it."""
    found = list_objects(ObjectServer(address, patience_s=AT_ONCE), members_here(), folder)
    return [
        (address_of(ref.path) + (f"!{ref.member}" if ref.member else ""), ref.problem.code if ref.problem else "")
        for ref, _ in found
    ]


def test_what_is_listed_is_what_is_an_image_or_says_why_not(bucket: Bucket, tmp_path: Path) -> None:
    (png,) = write_images(tmp_path / "images", 1)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.write(png, "1.png")
        archive.write(png, "2.png")
    for key in ("in/b.png", "in/a//b.png", "in/.hidden/c.png", "in-other/d.png"):
        bucket.put(key, png.read_bytes())
    bucket.put("in/folder/", b"")
    bucket.put("in/empty.png", b"")
    bucket.put("in/two.zip", (tmp_path / "two.zip").read_bytes())
    bucket.put("in/refused.png", png.read_bytes())
    bucket.faults["in/refused.png"] = "refused"  # whoever is to screen it tries again
    assert listed("s3://box/in", tmp_path) == [
        ("s3://box/in/a//b.png", ""),
        ("s3://box/in/b.png", ""),
        ("s3://box/in/empty.png", "empty"),
        ("s3://box/in/refused.png", ""),
        ("s3://box/in/two.zip!1.png", ""),
        ("s3://box/in/two.zip!2.png", ""),
    ]
    assert listed("s3://box/in/b.png", tmp_path) == [("s3://box/in/b.png", "")]


def test_other_addresses_are_walked(tmp_path: Path) -> None:
    write_images(tmp_path / "images" / "deep", 2)
    assert listed(f"file://{tmp_path}/images", tmp_path) == [
        (f"file://{tmp_path}/images/deep/image-{number:03}.png", "") for number in range(2)
    ]


def test_a_long_list_comes_in_pages(bucket: Bucket) -> None:
    names = [f"long/{number:04}" for number in range(1001)]
    bucket.put_empty(names)
    bucket.asked.clear()
    found = ObjectServer("s3://box/long").names()
    assert next(found) == "s3://box/long/0000" and len(bucket.asked) == 1
    assert [name.removeprefix("s3://box/") for name in found] == names[1:] and len(bucket.asked) == 2


@pytest.mark.parametrize(
    ("address", "problem", "says"),
    [
        ("s3://box/none", UsageProblem, "s3://box/none does not exist"),
        ("s3://no-box/in", UsageProblem, "s3://no-box/in does not exist"),
        ("gopher://x/y", UsageProblem, "gopher://x/y cannot be read: Protocol not known: gopher"),
        ("s3://", None, ""),
    ],
)
def test_an_archive_that_is_none_is_said(
    bucket: Bucket, address: str, problem: type[FieldrayError] | None, says: str, tmp_path: Path
) -> None:
    assert is_address(address) is (problem is not None)
    if problem:
        with pytest.raises(problem, match=says):
            listed(address, tmp_path)


def test_a_server_that_refuses_or_is_gone_is_said_at_once(bucket: Bucket, tmp_path: Path) -> None:
    bucket.faults["box"] = bucket.faults["/box"] = "refused"
    with pytest.raises(EnvironmentProblem, match="The server does not let you list s3://box"):
        listed("s3://box", tmp_path)
    bucket.stop()
    try:
        with pytest.raises(EnvironmentProblem, match=r"s3://box/in cannot be reached: .*start the same command again"):
            list(ObjectServer("s3://box/in").names())
    finally:
        bucket.start()


# ---- objects on their way


def read(ref: ImageRef) -> Outcome:
    """In place of `screen_image`: what the file holds."""
    return Refused(ref=ref, reason=reason("internal", detail=ref.path.read_text()), facts=dataclasses.replace(FACTS))


FACTS: Any = Refused(ref=ImageRef(path=Path()), reason=reason("empty")).facts


def brought(
    refs: Sequence[tuple[ImageRef, str]], folder: Path, *, patience_s: float = 30.0, most_bytes: int = 2**20
) -> list[tuple[str, str]]:
    """The key of each image, and what it holds or why it failed."""
    own = folder / "own"
    own.mkdir()
    server = ObjectServer("s3://box/in", patience_s=patience_s, most_bytes=most_bytes)
    images, states = [ref for ref, _ in refs], [state for _, state in refs]
    try:
        with ReadAhead(server, ObjectCache(folder / "cache"), images, states, own) as ahead:
            outcomes = [ahead.screened(read, ref) for ref in images]
        assert not list(own.iterdir())  # what was used up is gone
    finally:
        shutil.rmtree(own)
    return [
        (
            outcome.ref.path.name,
            outcome.reason.code if isinstance(outcome, Failed) else str(dict(outcome.reason.parameters)["detail"]),  # type: ignore[union-attr]
        )
        for outcome in outcomes
    ]


@pytest.fixture
def texts(bucket: Bucket) -> list[tuple[ImageRef, str]]:
    """Forty listed objects, each with its own text."""
    for number in range(40):
        bucket.put(f"in/{number:02}", f"text {number}".encode())
    server = ObjectServer("s3://box/in")
    return [(ImageRef(path=place_of(name)), server.head(name, lambda _: None)[1]) for name in server.names()]


WHOLE = [(f"{number:02}", f"text {number}") for number in range(40)]


def test_a_fault_of_an_object_is_its_own(bucket: Bucket, texts: list[tuple[ImageRef, str]], tmp_path: Path) -> None:
    bucket.faults = {"in/03": "refused", "in/05": "cut", "in/07": "slow"}
    bucket.put("in/11", b"other text")
    bucket.client.delete_object(Bucket="box", Key="in/13")
    bucket.put("in/40", b"a longer text than is allowed")
    found = brought([*texts, (ImageRef(path=place_of("s3://box/in/40")), "")], tmp_path, most_bytes=20)
    wrong = {3: "no_permission", 5: "unreadable", 11: "archive_object_changed", 13: "missing"}
    assert found == [
        *((name, wrong.get(number, text)) for number, (name, text) in enumerate(WHOLE)),
        ("40", "archive_object_large"),
    ]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_server_that_comes_back_is_waited_for(
    bucket: Bucket, texts: list[tuple[ImageRef, str]], tmp_path: Path, is_late: bool
) -> None:
    bucket.stop()
    back = threading.Timer(1.0, bucket.start)
    if is_late:
        with pytest.raises(EnvironmentProblem, match="s3://box/in cannot be reached"):
            brought(texts, tmp_path, patience_s=AT_ONCE)
        bucket.start()
        return
    back.start()
    assert brought(texts, tmp_path) == WHOLE
    back.join()


def test_what_was_brought_is_not_asked_for_again(
    bucket: Bucket, texts: list[tuple[ImageRef, str]], tmp_path: Path
) -> None:
    assert brought(texts, tmp_path) == WHOLE
    bucket.asked.clear()
    assert brought(texts, tmp_path) == WHOLE and not bucket.asked


def test_a_cache_keeps_to_its_limit_and_takes_nothing_that_is_used(
    bucket: Bucket, texts: list[tuple[ImageRef, str]], tmp_path: Path
) -> None:
    server, cache = ObjectServer("s3://box/in"), ObjectCache(tmp_path / "cache", limit_bytes=64)
    for number, (ref, state) in enumerate(texts):
        cache.bring(server, address_of(ref.path), state, tmp_path / f"{number}")
        if number != 1:
            (tmp_path / f"{number}").unlink()
        kept = [path.stat() for path in (tmp_path / "cache").iterdir()]
        assert sum(status.st_size for status in kept if status.st_nlink == 1) <= 64
    assert (tmp_path / "1").read_text() == "text 1"
    bucket.asked.clear()
    cache.bring(server, address_of(texts[-1][0].path), texts[-1][1], tmp_path / "last")
    assert not bucket.asked
    cache.bring(server, address_of(texts[0][0].path), texts[0][1], tmp_path / "first")
    assert bucket.asked


# ---- the command


def gist(home: Path, top: str) -> list[tuple[str, ...]]:
    """What the newest run says of each image, named from `top` on."""
    with ResultQuery(home / "results.sqlite") as query:
        rows = [row.outcome for row in query.rows(query.runs()[0].run_id)]
    return sorted(
        (each.ref.key.removeprefix(top), each.category, each.facts.content_sha256, str(getattr(each, "findings", "")))
        for each in rows
    )


def test_a_bucket_gets_the_results_of_a_folder_whatever_happens_to_its_server(
    bucket: Bucket, fieldray: Fieldray, home: Path, tmp_path: Path, pack_options: list[str]
) -> None:
    folder, other = tmp_path / "images", tmp_path / "other"
    paths = write_images(folder, 12)
    write_studies(folder / "studies", count=1)
    (folder / "damaged.png").write_bytes(paths[0].read_bytes()[:500])
    (folder / "letter.txt").write_text("no image")
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.write(paths[3], "inside.png")
    bucket.fill(folder, "in")
    alone = fieldray("screen", folder, *pack_options, environment={"FIELDRAY_HOME": str(other)})
    assert alone.returncode == 1, alone.stderr  # one image is damaged
    bucket.faults["in/image-005.png"] = "refused"
    begin = ("archive", "screen", "s3://box/in", "--out", tmp_path / "out", "--chunk", 4, *pack_options)

    def away() -> None:
        bucket.stop()
        bucket.start()

    flicker = threading.Timer(2.0, away)
    flicker.start()
    done = fieldray(*begin)
    flicker.join()
    assert done.returncode == 1 and "2 images failed." in done.stdout, done.stderr
    bucket.faults.clear()
    done = fieldray(*begin)
    assert done.returncode == 1 and "1 image failed." in done.stdout, done.stderr
    assert gist(home, "s3:/box/in/") == gist(other, f"{folder}/")
    assert not list((home / "cluster").rglob("objects*"))


@pytest.mark.parametrize("more", [["--send-files"], ["/tmp"]])
def test_one_address_is_named_alone(
    fieldray: Fieldray, tmp_path: Path, pack_options: list[str], more: list[str]
) -> None:
    done = fieldray("archive", "screen", "s3://box/in", *more, "--out", tmp_path / "out", *pack_options)
    assert done.returncode == 2 and "Name one address of objects alone" in done.stderr


def test_only_the_server_that_was_named_is_reached(bucket: Bucket) -> None:
    code = """
from fieldray.offline import stay_offline
stay_offline(joins_cluster=True)
from fieldray_cluster.objects import ObjectServer
import socket
print(next(ObjectServer("s3://box/in").names()))
for host in ("127.0.0.2", "localhost", "box.127.0.0.1"):
    try:
        socket.create_connection((host, {port}), timeout=1)
    except PermissionError:
        print("refused")
from fieldray.offline import reach_server
reach_server("localhost")
socket.create_connection(("localhost", {port}), timeout=1).close()
"""
    bucket.put("in/1", b"1")
    said: Callable[..., Any] = subprocess.run
    done = said(
        [sys.executable, "-c", code.replace("{port}", str(bucket.port))], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["s3://box/in/1", "refused", "refused", "refused"] and not done.returncode, (
        done.stderr
    )

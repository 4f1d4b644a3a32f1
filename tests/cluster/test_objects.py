"""Archives on a server: S3 (by moto), HTTP (by Python's server) or SFTP (by paramiko)."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import random
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import fsspec
import fsspec.asyn
import fsspec.config
import pytest

from cluster.conftest import stored
from fieldray.domain.finding import FailedOutcome, Outcome
from fieldray.domain.image import ImageRef
from fieldray.errors import EnvironmentProblem, Unreadable, UsageProblem
from fieldray.imaging.discover import zip_search_in_this_process
from fieldray.imaging.object_identify import identify_server_file
from fieldray.imaging.synthetic import chest_phantom
from fieldray.reasons import reason
from fieldray.workers.pool import WorkerPool
from fieldray_cluster.object_server import ObjectServer, address_to_path, is_object_address, path_to_address
from fieldray_cluster.objects import ObjectCache, PieceDownloads, list_images_on_server
from phantoms import write_dicom
from program import Fieldray, python, start, write_images
from strange_services import reader_command

if not all(map(importlib.util.find_spec, ("s3fs", "moto", "boto3", "flask", "aiohttp", "paramiko"))):
    pytest.skip("the modules of buckets, HTTP and SFTP are not installed", allow_module_level=True)

from object_servers import CUT, ELSEWHERE, REFUSED, SLOW, UNDATED, Bucket, FolderServer, Server, SshServer, WebServer

Listed = Sequence[tuple[ImageRef, str]]
TEXTS = [(f"{number:02}", f"text {number}") for number in range(40)]


def served(kind: type[Server], home: Path) -> Iterator[Server]:
    """Start a server of this kind, for which the user's home is configured."""
    found, before = kind(home), dict(fsspec.config.conf)
    fsspec.config.set_conf_files(str(home / ".config" / "fsspec"), fsspec.config.conf)
    yield found
    close_fsspec()
    fsspec.config.conf.clear()
    fsspec.config.conf.update(before)
    found.stop()


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.fixture(params=[Bucket, WebServer, SshServer])
def server(request: pytest.FixtureRequest, user: Path) -> Iterator[Server]:
    yield from served(request.param, user)


@pytest.fixture
def bucket(user: Path) -> Iterator[Server]:
    yield from served(Bucket, user)


def close_fsspec() -> None:
    """Close the connections that fsspec keeps open."""
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
        ("s3://box/a.png/", "s3:/box/a.png/%"),
        ("s3://box/a%20b?versionId=1", "s3:/box/a%2520b?versionId=1"),
        ("file:///data/a.png", "file:/%/data/a.png"),
        ("http://10.0.0.1:80/a%20b%3F/%25.png", "http:/10.0.0.1:80/a b?/%25.png"),
        ("https://10.0.0.1/%D0%97%2Fb%5C%23", "https:/10.0.0.1/З%2Fb%5C#"),
        ("https://10.0.0.1/a/%FF/", "https:/10.0.0.1/a/\udcff/%"),
    ],
)
def test_an_address_and_its_path_convert_into_each_other(address: str, place: str) -> None:
    assert str(address_to_path(address)) == place and path_to_address(Path(place)) == address
    assert is_object_address(address) and not any(map(is_object_address, (place, "C://a", "s3://")))


# ---- the list


def listed(address: str) -> list[tuple[str, str]]:
    """Return the address of each listed image with its zip member, and its problem."""
    with tempfile.TemporaryDirectory() as folder:
        server, scratch = ObjectServer(address), Path(folder)
        found = list(
            list_images_on_server(
                server, scratch, list_members=zip_search_in_this_process(), find_images=identify_server_file
            )
        )
    return [
        (
            path_to_address(ref.path) + (f"!{ref.zip_member}" if ref.zip_member else ""),
            ref.problem.code if ref.problem else "",
        )
        for ref, _ in found
    ]


def test_each_listed_object_is_an_image_or_has_a_reason(server: Server, tmp_path: Path) -> None:
    (png,) = write_images(tmp_path / "images" / "deep", 1)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.write(png, "1.png")
        archive.write(png, "2.png")
    for name in ("b.png", "deep down/1.png", "deep down/[1] a&b#c?.png", ".hidden/c.png", ".hidden.png", "refused.png"):
        server.put(f"in/{name}", png.read_bytes())
    server.put("in-other/d.png", png.read_bytes())
    server.put("in/empty.png", b"")
    server.put("in/two.zip", (tmp_path / "two.zip").read_bytes())
    server.faults["in/refused.png"] = REFUSED  # the worker that screens the image tries again
    files = [("b.png", ""), ("empty.png", "empty"), ("refused.png", ""), ("two.zip!1.png", ""), ("two.zip!2.png", "")]
    below = [("deep down/1.png", ""), ("deep down/[1] a&b#c?.png", "")]
    if server.protocol == "http":
        below = [(quote(name), why) for name, why in below]
    if isinstance(server, Bucket):  # none of the listed names is a folder
        server.put("in/a//b.png", png.read_bytes())
        server.put("in/folder/", b"")
        files.append(("a//b.png", ""))
    if isinstance(server, FolderServer):
        (server.folder / "in" / "none").mkdir()
    expected = sorted([*files, *below]) if isinstance(server, Bucket) else [*files, *sorted(below)]
    assert listed(f"{server.address}/in/") == [(f"{server.address}/in/{name}", why) for name, why in expected]
    assert listed(f"{server.address}/in/b.png") == [(f"{server.address}/in/b.png", "")]


NAMES = (
    "1.png", "1.png?versionId=null", "1.png#2", "1.png;2", "%31.png", "1%2Epng", "b\\1.png", "1.png\t", "a+b&c.png",
    "(1) '!*,:@$=.png",
    "a/%2e%2e/1.png", "a/?versionId=null", "?", "#", "Знімок 1.png", "1" * 255,
)  # fmt: skip
OF_BUCKETS = ("1.png/", "tr/", "a//1.png", "a/./1.png", "a/../1.png", "1" * 1021)


def test_objects_with_unusual_names_are_read_by_their_own_name(server: Server, tmp_path: Path) -> None:
    names = NAMES + (OF_BUCKETS if isinstance(server, Bucket) else ())
    for name in names:
        server.put(f"in/{name}", f"of {name}".encode())
    asked, found = ObjectServer(f"{server.address}/in"), dict[str, str]()
    for address, listed_state in asked.iterate_objects():
        text, state = asked.read_beginning(address, listed_state, 2**16)
        assert asked.download(address, state, tmp_path / "copy") == len(text)
        assert (tmp_path / "copy").read_bytes() == text and path_to_address(address_to_path(address)) == address
        found[text.decode().removeprefix("of ")] = address
    assert sorted(found) == sorted(names)
    assert len(set(map(address_to_path, found.values()))) == len(names)
    for name in ("1.png?versionId=null", "1.png#2", "1%2Epng"):
        alone = ObjectServer(found[name])
        assert [alone.read_beginning(*each, 99)[0] for each in alone.iterate_objects()] == [f"of {name}".encode()]


@pytest.mark.parametrize("server", [SshServer], indirect=True)
def test_a_name_that_is_no_text_leaves_its_folder_readable(server: SshServer) -> None:
    odd = os.fsdecode(b"\xc7\xed.png")
    for name in ("1.png", odd):
        server.put(f"in/{name}", b"1")
    place = f"{server.address}/in"
    assert [name for name, _ in ObjectServer(place).iterate_objects()] == [f"{place}/1.png", f"{place}/{odd}"]


def test_the_answer_for_another_object_is_rejected(bucket: Bucket, tmp_path: Path) -> None:
    """As from a server that interprets a part of the name."""
    for name in ("1.png", "1.png?versionId=null"):
        bucket.put(f"in/{name}", f"of {name}".encode())
    bucket.answers_for["in/1.png?versionId=null"] = "in/1.png"
    asked = ObjectServer("s3://box/in")
    right, wrong = asked.iterate_objects()
    assert asked.read_beginning(*right, 99)[0] == b"of 1.png"
    for ask in (lambda: asked.read_beginning(*wrong, 99), lambda: asked.download(*wrong, tmp_path / "copy")):
        with pytest.raises(Unreadable, match="has changed since the list of images of this run was made"):
            ask()


def test_a_header_is_fetched_as_far_as_it_goes_and_parsed_by_no_process_with_a_network(
    bucket: Bucket, home: Path, tmp_path: Path
) -> None:
    write_dicom(
        tmp_path / "long.dcm", chest_phantom(64, 64, 1, abnormal=False), changes={"ImageComments": "x" * 99_000}
    )
    (png,) = write_images(tmp_path, 1)
    bucket.put("in/long.dcm", (tmp_path / "long.dcm").read_bytes())
    bucket.put("in/cut.dcm", (tmp_path / "long.dcm").read_bytes()[:90_000])
    bucket.put("in/huge.png", png.read_bytes() + bytes(2**22))
    code = """
import sys
from fieldray.offline import stay_offline
stay_offline(joins_cluster=True)
from pathlib import Path
from fieldray.settings import Settings
from fieldray.workers.pool import open_workers
from fieldray_cluster.object_server import ObjectServer
from fieldray_cluster.objects import list_images_on_server
with open_workers(Settings(), 1) as readers:
    server = ObjectServer("s3://box/in")
    find = {"list_members": readers.zip_members, "find_images": readers.identify_server_file}
    for ref, _ in list_images_on_server(server, Path(), **find):
        print(ref.path.name, ref.kind, ref.header.rows, ref.problem and ref.problem.code)
print("pydicom" in sys.modules)
"""
    done = python(code)
    told = ["cut.dcm unknown 0 truncated", "huge.png png 256 None", "long.dcm dicom 64 None", "False"]
    assert done.stdout.splitlines() == told and not done.returncode, done.stderr
    assert bucket.asked.count("in/huge.png") == 1 and bucket.asked.count("in/long.dcm") == 2


def test_a_header_that_crashes_its_reader_fails_only_its_own_object(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # a log record would keep the server's session
    (png,) = write_images(tmp_path, 1)
    for name in ("1.png", "2.killed.png", "3.png"):
        bucket.put(f"in/{name}", png.read_bytes())
    server = ObjectServer("s3://box/in")
    with WorkerPool(1, timeout_s=60, memory_limit_mb=2048, command=reader_command) as readers:
        found = list(
            list_images_on_server(
                server, tmp_path, list_members=readers.zip_members, find_images=readers.identify_server_file
            )
        )
    assert [(ref.path.name, bool(ref.problem)) for ref, _ in found] == [
        ("1.png", False), ("2.killed.png", True), ("3.png", False),
    ]  # fmt: skip


def test_a_long_list_comes_in_pages(bucket: Bucket) -> None:
    names = [f"s3://box/long/{number:04}" for number in range(1001)]
    for name in names:
        bucket.put(name.removeprefix("s3://box/"), b"")
    bucket.asked.clear()
    found = ObjectServer("s3://box/long").iterate_objects()
    assert next(found)[0] == names[0] and len(bucket.asked) == 1
    assert [name for name, _ in found] == names[1:] and len(bucket.asked) == 2


def test_an_archive_that_cannot_be_listed_is_an_error_at_once(server: Server) -> None:
    server.put("in/below/1.png", b"")
    absent = [f"{server.address}/none", *(["s3://no-box/in"] if isinstance(server, Bucket) else [])]
    for address in absent:
        with pytest.raises(UsageProblem, match=f"{address} does not exist"):
            listed(address)
    server.faults["" if isinstance(server, Bucket) else "in/below"] = REFUSED
    with pytest.raises(EnvironmentProblem, match=f"The server does not let you list the files of {server.address}"):
        listed(server.address if isinstance(server, Bucket) else f"{server.address}/in")
    server.stop()
    with pytest.raises(EnvironmentProblem, match=rf"{server.address}/in cannot be reached: .*start the command again"):
        listed(f"{server.address}/in")
    server.start()


# ---- copying objects to a cache


@pytest.fixture
def texts(server: Server) -> Listed:
    """Put forty objects with different texts on the server. Returns them as listed."""
    for name, text in TEXTS:
        server.put(f"in/{name}", text.encode())
    asked = ObjectServer(f"{server.address}/in")
    return [
        (ImageRef(path=address_to_path(name)), asked.read_beginning(name, state, 1)[1])
        for name, state in asked.iterate_objects()
    ]


def read_through_cache(
    refs: Listed, cache: Path, address: str, *, patience_s: float = 30.0, most_bytes: int = 2**20
) -> list[tuple[str, str]]:
    """Return, by the key of each image, the content of its file, or the reason without one."""

    def read(ref: ImageRef) -> Outcome:
        return FailedOutcome(ref=ref, stage="decode", reason=reason("internal", detail=ref.path.read_text()))

    server = ObjectServer(address, patience_s=patience_s, max_bytes=most_bytes)
    images, states = [ref for ref, _ in refs], [state for _, state in refs]
    with tempfile.TemporaryDirectory(dir=cache.parent) as own:
        with PieceDownloads(server, ObjectCache(cache), images, states, Path(own)) as ahead:
            whys = [(ref.path.name, ahead.screen(read, ref).reason) for ref in images]  # type: ignore[union-attr]
        assert not list(Path(own).iterdir())  # files are deleted after use
    return [(name, str(dict(why.parameters)["detail"]) if why.code == "internal" else why.code) for name, why in whys]


def test_a_fault_of_one_object_fails_only_that_object(server: Server, texts: Listed, tmp_path: Path) -> None:
    place = f"{server.address}/in"
    server.faults = {"in/03": REFUSED, "in/05": CUT, "in/07": SLOW}
    server.put("in/11", b"TEXT 11")  # of the same size
    server.delete("in/13")
    server.put("in/40", b"a longer text than is allowed")
    refs = [*texts, (ImageRef(path=address_to_path(f"{place}/40")), "")]
    found = read_through_cache(refs, tmp_path / "cache", place, most_bytes=20)
    wrong = {"03": "no_permission", "05": "unreadable", "11": "archive_object_changed", "13": "missing"}
    wrong["40"] = "archive_object_large"
    assert found == [(name, wrong.get(name, text)) for name, text in (*TEXTS, ("40", ""))]


def test_an_unavailable_server_is_waited_for(server: Server, texts: Listed, tmp_path: Path) -> None:
    place = f"{server.address}/in"
    server.stop()
    with pytest.raises(EnvironmentProblem, match=f"{place} cannot be reached"):
        read_through_cache(texts, tmp_path / "cache", place, patience_s=0.1)
    back = threading.Timer(1.0, server.start)
    back.start()
    assert read_through_cache(texts, tmp_path / "cache", place) == TEXTS
    back.join()
    server.asked.clear()
    assert read_through_cache(texts, tmp_path / "cache", place) == TEXTS and not server.asked  # these are in the cache


@pytest.mark.parametrize("server", [Bucket], indirect=True)
def test_a_cache_keeps_to_its_limit_and_takes_nothing_that_is_used(
    server: Bucket, texts: Listed, tmp_path: Path
) -> None:
    asked, cache = ObjectServer(f"{server.address}/in"), ObjectCache(tmp_path / "cache", limit_bytes=64)
    for number, (ref, state) in enumerate(texts):
        cache.fetch(asked, path_to_address(ref.path), state, tmp_path / f"{number}")
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
    alone.ends_with(1)  # one image is damaged
    bucket.faults["in/image-005.png"] = REFUSED
    begin = ("archive", "screen", "s3://box/in", "--out", images.parent / "out", "--chunk", 4, *pack_options)
    fieldray(*begin[:2], "s3://bxo/in", *begin[3:]).ends_with(2).complains("s3://bxo/in does not exist")
    fieldray(*begin).ends_with(1).prints("2 images failed.")
    bucket.faults.clear()
    bucket.stop()
    again = start(*begin)
    assert again.stderr
    waits = next((line for line in again.stderr if "tries again for up to 5 minutes" in line), "")
    bucket.start()
    output, errors = again.communicate(timeout=120)
    assert (
        waits.startswith("fieldray: local: The node cannot reach the server")
        and "tries again for up to 5 minutes" not in errors
    )
    assert again.returncode == 1 and "1 image failed." in output, errors
    assert "or has changed on its server since then, start a new run with another folder (--out)" in output
    assert stored(home, moved=("s3:/box/in", str(images))) == stored(other)
    assert not list((home / "cluster").rglob("objects*"))
    fieldray(*begin, "--send-files").ends_with(2).complains("To screen images on a server, name only the address")


def killed_at_random(bucket: Bucket, seed: int, is_over: threading.Event, killed: list[int]) -> None:
    """Kill the server repeatedly, each time after a random number of requests, and restart it after a while."""
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
    assert len(killed) > 1  # listing and screening need more than 50 requests
    assert (alone.code, done.code) == (0, 0), done.err
    found = stored(home, moved=("s3:/box/in", str(tmp_path / "in")))
    assert len(found) == len(paths) and found == stored(tmp_path / "other")


def test_keys_of_a_bucket_may_come_from_the_environment_only(
    bucket: Bucket, fieldray: Fieldray, tmp_path: Path, pack_options: list[str]
) -> None:
    (png,) = write_images(tmp_path, 1)
    bucket.put("in/1.png", png.read_bytes())
    begin = ("archive", "screen", "s3://box/in", "--out", tmp_path / "out", *pack_options)
    nothing = {"HOME": str(tmp_path), "AWS_ENDPOINT_URL": bucket.url, "AWS_MAX_ATTEMPTS": "1"}
    fieldray(*begin, environment=nothing).ends_with(1).complains("Unable to locate credentials")
    fieldray(*begin, environment=nothing | bucket.environment).ends_with(0)


def test_only_the_server_that_was_named_is_reached(bucket: Bucket) -> None:
    code = """
from fieldray.offline import allow_server, stay_offline
stay_offline(joins_cluster=True)
from fieldray_cluster.object_server import ObjectServer
import socket
print(next(ObjectServer("s3://box/in").iterate_objects())[0])
for host in ("127.0.0.2", "localhost"):
    try:
        socket.create_connection((host, PORT), timeout=1)
    except PermissionError:
        print("refused")
allow_server("localhost")
socket.create_connection(("localhost", PORT), timeout=1).close()
"""
    bucket.put("in/1", b"1")
    done = python(code.replace("PORT", str(bucket.port)))
    assert done.stdout.split() == ["s3://box/in/1", "refused", "refused"] and not done.returncode, done.stderr


@pytest.mark.parametrize("server", [WebServer, SshServer], indirect=True)
def test_an_archive_gets_the_results_of_a_folder(
    server: FolderServer, fieldray: Fieldray, home: Path, images: Path, pack_options: list[str]
) -> None:
    other = images.parent / "other"
    images.rename(server.folder / "in")
    alone = fieldray("screen", server.folder / "in", *pack_options, environment={"FIELDRAY_HOME": str(other)})
    done = fieldray(
        "archive", "screen", f"{server.address}/in", "--out", images.parent / "out", "--chunk", 8, *pack_options
    )
    assert (alone.code, done.code) == (1, 1), done.err  # one image is damaged
    there = f"{server.protocol}:/127.0.0.1:{server.port}"
    assert stored(home, moved=(there, str(server.folder))) == stored(other)
    shown = fieldray("history", "show", 1).ends_with(0)
    assert f"Screened: {server.address}/in" in shown.out and " gone" not in shown.out


# ---- security


@pytest.mark.parametrize("server", [SshServer], indirect=True)
def test_an_ssh_server_with_an_unknown_key_gets_no_password(server: FolderServer) -> None:
    (server.home / ".ssh" / "known_hosts").unlink()
    with pytest.raises(EnvironmentProblem, match=r"the key of .* is not in ~/.ssh/known_hosts"):
        listed(f"{server.address}/in")


@pytest.mark.parametrize("server", [WebServer], indirect=True)
def test_an_object_without_a_time_of_change_is_not_screened(server: FolderServer) -> None:
    write_images(server.folder, 1)
    server.faults["image-000.png"] = UNDATED
    with tempfile.TemporaryDirectory() as folder:
        asked = ObjectServer(server.address)
        ((ref, state),) = list_images_on_server(
            asked, Path(folder), list_members=zip_search_in_this_process(), find_images=identify_server_file
        )
    (server.home.parent / "work").mkdir()
    assert read_through_cache([(ref, state)], server.home.parent / "work" / "cache", server.address) == [
        ("image-000.png", "archive_no_tag")
    ]


@pytest.mark.parametrize("server", [WebServer], indirect=True)
def test_neither_a_link_nor_an_answer_leads_to_another_server(server: FolderServer) -> None:
    code = """
import sys
from fieldray.offline import stay_offline
stay_offline(joins_cluster=True)
from pathlib import Path
from fieldray.errors import Unreadable
from fieldray_cluster.object_server import ObjectServer
server = ObjectServer(sys.argv[1])
for name, _ in server.iterate_objects():
    try:
        print(name, server.download(name, "", Path(sys.argv[2])))
    except Unreadable:
        print(name, "refused")
"""
    outside = ("http://127.0.0.2/a", "//127.0.0.2/b", "../c", "/e", "%2e%2e/e", "deep/f", "?C=N")
    links = (*outside, "/in/d", "he&#114;e", "gone")
    server.put("in/index.html", "".join(f'<a href="{link}">x</a>' for link in links).encode())
    server.put("in/here", b"text")
    server.faults["in/gone"] = ELSEWHERE
    done = python(code, f"{server.address}/in", server.home.parent / "file")
    told = [line.removeprefix(f"{server.address}/in/") for line in done.stdout.splitlines()]
    assert told == ["d refused", "gone refused", "here 4"] and not done.returncode, done.stderr


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("gopher://x/y", "The address gopher://x/y is not supported"),
        ("gs://bucket/y", "is not supported"),
        ("memory://y", "is not supported"),
        ("file:///data", "is not supported"),
        ("zip://a.png::s3://box/in.zip", "is not supported"),
        ("simplecache::s3://box/in", "is not supported"),
        ("sftp://me:word@host/in", "Leave the password out of the address"),
    ],
)
def test_unsupported_addresses_are_refused_with_a_reason(address: str, why: str) -> None:
    with pytest.raises(UsageProblem, match=why) as raised:
        ObjectServer(address)
    assert "word@" not in str(raised.value)


def test_a_library_that_is_missing_is_named() -> None:
    code = """
import sys
sys.modules["paramiko"] = None
from fieldray.errors import UsageProblem
from fieldray_cluster.object_server import ObjectServer
try:
    ObjectServer("sftp://127.0.0.1/in")
except UsageProblem as problem:
    print(problem)
"""
    done = python(code)
    assert 'requires "paramiko" to be installed' in done.stdout, done.stderr

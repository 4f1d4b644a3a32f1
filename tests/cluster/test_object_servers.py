"""Archives whose images a server gives by HTTP or SFTP, against Python's own server and paramiko's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec.config
import pytest

from cluster.conftest import stored
from cluster.test_objects import brought, listed, quiet_fsspec
from fieldray.domain.image import ImageRef
from fieldray.errors import EnvironmentProblem, UsageProblem
from fieldray_cluster.objects import ObjectServer, address_path
from program import Fieldray, write_images

if not all(map(importlib.util.find_spec, ("aiohttp", "paramiko"))):
    pytest.skip("the modules of HTTP and SFTP are not installed", allow_module_level=True)

from folder_servers import CUT, ELSEWHERE, REFUSED, UNDATED, FolderServer, SshServer, WebServer

TEXTS = [(f"{number:02}", f"text {number}") for number in range(12)]


@pytest.fixture(params=[WebServer, SshServer])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FolderServer]:
    """A server of the folder `served`, as this user has configured it."""
    home = tmp_path / "user"
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "served").mkdir()
    found: FolderServer = request.param(tmp_path / "served", home)
    before = dict(fsspec.config.conf)
    fsspec.config.set_conf_files(str(home / ".config" / "fsspec"), fsspec.config.conf)
    yield found
    quiet_fsspec()
    fsspec.config.conf.clear()
    fsspec.config.conf.update(before)
    found.stop()


def test_every_folder_is_listed_or_the_archive_is_refused(server: FolderServer) -> None:
    (png,) = write_images(server.folder / "in" / "deep down", 1)
    for name in ("b.png", ".hidden.png", "deep down/[1] a&b#c?.png"):
        (server.folder / "in" / name).write_bytes(png.read_bytes())
    (server.folder / "in" / "empty.png").touch()
    (server.folder / "in" / "none").mkdir()
    (server.folder / "beside.png").write_bytes(png.read_bytes())
    quoted = (
        ("deep%20down", "%5B1%5D%20a%26b%23c%3F.png") if server.protocol == "http" else ("deep down", "[1] a&b#c?.png")
    )
    assert listed(f"{server.address}/in/") == [
        (f"{server.address}/in/b.png", ""),
        (f"{server.address}/in/empty.png", "empty"),
        (f"{server.address}/in/{quoted[0]}/{quoted[1]}", ""),
        (f"{server.address}/in/{quoted[0]}/image-000.png", ""),
    ]
    assert listed(f"{server.address}/in/b.png") == [(f"{server.address}/in/b.png", "")]
    with pytest.raises(UsageProblem, match="does not exist"):
        listed(f"{server.address}/no")
    server.faults["in/none"] = REFUSED
    with pytest.raises(EnvironmentProblem, match="The server does not let you list"):
        listed(f"{server.address}/in")
    server.stop()
    with pytest.raises(EnvironmentProblem, match="cannot be reached"):
        listed(f"{server.address}/in")
    server.start()


def test_a_fault_of_a_file_is_its_own_and_a_server_is_waited_for(server: FolderServer, tmp_path: Path) -> None:
    (server.folder / "in").mkdir()
    for name, text in TEXTS:
        (server.folder / "in" / name).write_text(text)
    objects = ObjectServer(f"{server.address}/in")
    refs = [(ImageRef(path=address_path(name)), objects.head(name, lambda _: None)[1]) for name in objects.names()]
    server.stop()
    back = threading.Timer(1.0, server.start)
    back.start()
    assert brought(refs, tmp_path / "cache", f"{server.address}/in") == TEXTS
    back.join()
    server.faults = {"in/03": REFUSED, "in/05": CUT}
    (server.folder / "in" / "07").write_text("text 8")  # of the same size
    os.utime(server.folder / "in" / "07", (1, 1))
    (server.folder / "in" / "09").unlink()
    found = brought(refs, tmp_path / "other", f"{server.address}/in")
    wrong = {"03": "no_permission", "05": "unreadable", "07": "archive_object_changed", "09": "missing"}
    assert found == [(name, wrong.get(name, text)) for name, text in TEXTS]


def test_an_archive_gets_the_results_of_a_folder(
    server: FolderServer, fieldray: Fieldray, home: Path, images: Path, pack_options: list[str]
) -> None:
    other = images.parent / "other"
    images.rename(server.folder / "in")
    alone = fieldray("screen", server.folder / "in", *pack_options, environment={"FIELDRAY_HOME": str(other)})
    done = fieldray(
        "archive", "screen", f"{server.address}/in", "--out", images.parent / "out", "--chunk", 8, *pack_options
    )
    assert (alone.returncode, done.returncode) == (1, 1), done.stderr  # one image is damaged
    here, there = str(server.folder), f"{server.protocol}:/127.0.0.1:{server.port}"
    assert [(key.replace(there, here), *more) for key, *more in stored(home)] == stored(other)


# ---- what the guarantees need


@pytest.mark.parametrize("server", [SshServer], indirect=True)
def test_a_server_whose_key_is_not_known_is_told_nothing(server: FolderServer) -> None:
    (server.home / ".ssh" / "known_hosts").unlink()
    with pytest.raises(EnvironmentProblem, match=r"the key of .* is not in ~/.ssh/known_hosts"):
        listed(f"{server.address}/in")


@pytest.mark.parametrize("server", [WebServer], indirect=True)
def test_what_may_have_changed_unseen_is_not_screened(server: FolderServer) -> None:
    write_images(server.folder, 1)
    server.faults["image-000.png"] = UNDATED
    with pytest.raises(EnvironmentProblem, match="a change of the image would not be noticed"):
        listed(server.address)


@pytest.mark.parametrize("server", [WebServer], indirect=True)
def test_neither_a_link_nor_an_answer_leads_to_another_server(server: FolderServer) -> None:
    code = """
import sys
from fieldray.offline import stay_offline
stay_offline(joins_cluster=True)
from pathlib import Path
from fieldray.errors import Unreadable
from fieldray_cluster.objects import ObjectServer
server = ObjectServer(sys.argv[1])
for name in server.names():
    try:
        print(name, server.copy(name, "", Path(sys.argv[2])))
    except Unreadable:
        print(name, "refused")
"""
    links = ("http://127.0.0.2/a", "//127.0.0.2/b", "../c", "/d", "he&#114;e", "gone", "?C=N")
    (server.folder / "index.html").write_text("".join(f'<a href="{link}">x</a>' for link in links))
    (server.folder / "here").write_text("text")
    server.faults["gone"] = ELSEWHERE
    command = [sys.executable, "-c", code, server.address, str(server.home.parent / "file")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    told = [line.removeprefix(f"{server.address}/") for line in done.stdout.splitlines()]
    assert told == ["d refused", "gone refused", "here 4"] and not done.returncode, done.stderr


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("gopher://x/y", "gopher://x/y cannot be screened"),
        ("gs://bucket/y", "cannot be screened"),
        ("memory://y", "cannot be screened"),
        ("file:///data", "cannot be screened"),
        ("zip://a.png::s3://box/in.zip", "cannot be screened"),
        ("simplecache::s3://box/in", "cannot be screened"),
        ("sftp://me:word@host/in", "Leave the password out of the address"),
    ],
)
def test_other_addresses_are_refused_in_a_sentence(address: str, why: str) -> None:
    with pytest.raises(UsageProblem, match=why) as raised:
        ObjectServer(address)
    assert "word@" not in str(raised.value)


def test_a_library_that_is_missing_is_named() -> None:
    code = """
import sys
sys.modules["paramiko"] = None
from fieldray.errors import UsageProblem
from fieldray_cluster.objects import ObjectServer
try:
    ObjectServer("sftp://127.0.0.1/in")
except UsageProblem as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert 'requires "paramiko" to be installed' in done.stdout, done.stderr

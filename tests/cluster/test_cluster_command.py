"""`fieldray cluster` as its user starts it: two computers, here by two addresses of this one."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.namespaces import NETWORK, NotPermitted, namespaces
from cluster.test_connection import free_port
from program import Fieldray, command, write_images
from waiting import wait_for


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that goes on, and its first line that is not about certificates and clocks."""
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
            wait_for(lambda: not any(child.is_running() for child in children))


@pytest.mark.cluster
def test_a_cluster_is_looked_at_from_a_computer_with_another_address(tmp_path: Path) -> None:
    """Whatever is on this computer has a loopback address, which no process is refused: here are two of others."""
    with contextlib.ExitStack() as ends:
        try:
            computers = ends.enter_context(namespaces(2, rate_mbit=100))
        except NotPermitted as why:
            pytest.skip(str(why))
        start = ("cluster", "start", "--host", computers.address(0), "--network", f"{NETWORK}.0/24", "--unencrypted")
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
    assert fieldray("cluster", "certificates", certificates).returncode == 0
    port, encrypted = free_port(), ("--certificates", certificates)
    images = tmp_path / "images"
    write_images(images, 6)
    with started("cluster", "start", "--host", "127.0.0.2", "--port", port, *encrypted) as (scheduler, said):
        address = f"tls://127.0.0.2:{port}"
        assert address in said
        join = ("cluster", "join", address, "--host", "127.0.0.3", "--workers", 2, "--name", "ward", *encrypted)
        with started(*join) as (worker, line):
            assert line.strip() == f"ward works for {address}."
            shown = fieldray("cluster", "status", address, *encrypted)
            assert "2 workers" in shown.stdout and "ward/1  tls://127.0.0.3:" in shown.stdout
            mine, *others = shown.stdout.splitlines()
            assert re.fullmatch(r"Certificates in .*: of a client, of the cluster [0-9a-f]{16}, valid until .*", mine)
            assert all(re.search(r"certificate until 20\d\d-\d\d-\d\d$", line) for line in others), others
            out = ("--out", tmp_path / "out", "--cluster", address, *encrypted)
            done = fieldray("archive", "screen", images, *pack_options, *out)
            assert done.returncode == 0, done.stderr
            assert "By node: ward: 6 at" in done.stdout
            assert fieldray("cluster", "stop", address, *encrypted).returncode == 0
            assert (worker.wait(30), scheduler.wait(30)) == (0, 0)


def test_an_address_of_another_computer_cannot_be_had(fieldray: Fieldray) -> None:
    done = fieldray("cluster", "start", "--host", "203.0.113.7", "--port", free_port(), "--unencrypted")
    assert done.returncode == 1 and "could not be started" in done.stderr
    done = fieldray("cluster", "start", "--host", "ward-pc", "--unencrypted")
    assert done.returncode == 2 and "is not an address in numbers" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("start", "--host", "127.0.0.1"),
        ("join", "127.0.0.1:8786", "--host", "127.0.0.1"),
        ("start", "--host", "127.0.0.1", "--certificates", "there", "--unencrypted"),
    ],
)
def test_connections_without_certificates_are_nobody_s_mistake(fieldray: Fieldray, words: tuple[str, ...]) -> None:
    done = fieldray("cluster", *words)
    assert done.returncode == 2 and "everybody who reaches this computer's port can run programs" in done.stderr


@pytest.mark.parametrize(
    ("network", "words"),
    [("192.168.1.10/24", "is 192.168.1.0/24 meant?"), ("ward-net", "is no network in numbers")],
)
def test_a_network_is_looked_at_before_anything_starts(fieldray: Fieldray, network: str, words: str) -> None:
    done = fieldray("cluster", "start", "--host", "127.0.0.1", "--unencrypted", "--network", network)
    assert done.returncode == 2 and words in done.stderr

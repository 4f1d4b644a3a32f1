"""An archive on three computers that are network namespaces of this one, joined by links of 100 Mbit/s.

The scheduler and the driver are in the first one; the two others join, and see no image: images are sent, encrypted.
On the way all links are cut for half a minute, and later one computer is gone for good.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cluster_runs import COUNTED, Said, differences, rows_of, stored
from benchmarks.screening import ScreeningFailed
from fieldray.paths import python_command
from fieldray.store.results import ResultQuery
from fieldray_cluster.certificates import make_certificates

Notify = Callable[[str], None]

RATE: Final = "100mbit"
CUT_S: Final = 30.0
_NETWORK: Final = "10.77.0"
_PORT: Final = "8786"
_CUT_AT: Final = 0.2
_GONE_AT: Final = 0.6
_LOOK_S: Final = 0.2
_START_S: Final = 60.0


class NotPermitted(Exception):
    """This computer does not let this user make network namespaces; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRun:
    """What came of it.

    Attributes
    ----------
    resumed_s
        From the links' return to the next result.
    after_loss_s
        From the loss of the second computer to the end.
    sent_mb
        What went over the links to the two computers.
    """

    images: int
    total_s: float
    resumed_s: float
    after_loss_s: float
    sent_mb: float
    lost: int
    doubled: int
    differing: int

    @property
    def sentences(self) -> tuple[str, ...]:
        """What there is to say."""
        return (
            f"{self.images} images on two computers over links of {RATE}/s, {self.sent_mb:.0f} MB sent, encrypted; "
            f"{self.total_s:.0f} s.",
            f"All links cut for {CUT_S:.0f} s: the next results came {self.resumed_s:.1f} s after their return.",
            f"One computer gone for good: the other one was done {self.after_loss_s:.0f} s later.",
            f"Lost {self.lost}, doubled {self.doubled}, other decisions {self.differing}.",
        )


class Namespaces:
    """A first computer with a bridge, and others that are linked to it; removed at the end with what runs in them.

    Raises NotPermitted.
    """

    def __init__(self, count: int) -> None:
        self._names = [f"fieldray-{os.getpid()}-{number}" for number in range(count + 1)]
        self._processes: list[subprocess.Popen[bytes]] = []
        if sys.platform != "linux" or not shutil.which("ip") or not shutil.which("tc"):
            raise NotPermitted("network namespaces need Linux with ip and tc (the package iproute2)")
        try:
            self._make()
        except NotPermitted:
            self.close()
            raise

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, number: int) -> str:
        """Of a computer; 0 is the first one."""
        return f"{_NETWORK}.{number + 1}"

    def start(self, number: int, *words: str, home: Path, said: Path) -> subprocess.Popen[bytes]:
        """Run `fieldray` on a computer; what it says goes to a file."""
        home.parent.mkdir(parents=True, exist_ok=True)
        command = ["ip", "netns", "exec", self._names[number], *python_command("fieldray.__main__", *words)]
        with said.open("wb") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, "FIELDRAY_HOME": str(home)}
            )
        self._processes.append(process)
        return process

    def link(self, number: int, *, is_up: bool) -> None:
        """Cut a computer's link, or put it back."""
        _told("ip", "-n", self._names[0], "link", "set", f"to{number}", "up" if is_up else "down")

    def sent_mb(self) -> float:
        """What went from the first computer to the others."""
        total = 0
        for number in range(1, len(self._names)):
            counter = f"/sys/class/net/to{number}/statistics/tx_bytes"
            total += int(_told("ip", "netns", "exec", self._names[0], "cat", counter))
        return total / 2**20

    def close(self) -> None:
        """End what runs, and remove the computers with their links."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        for name in self._names:
            with contextlib.suppress(NotPermitted):
                _told("ip", "netns", "delete", name)

    def _make(self) -> None:
        for name in self._names:
            _told("ip", "netns", "add", name)
            _told("ip", "-n", name, "link", "set", "lo", "up")
        first, *others = self._names
        _told("ip", "-n", first, "link", "add", "bridge0", "type", "bridge")
        _told("ip", "-n", first, "address", "add", f"{self.address(0)}/24", "dev", "bridge0")
        _told("ip", "-n", first, "link", "set", "bridge0", "up")
        for number, name in enumerate(others, start=1):
            end, other = ("-n", first), ("-n", name)
            _told(
                "ip", "link", "add", f"to{number}", "netns", first, "type", "veth", "peer", "name", "up0", "netns", name
            )
            _told("ip", *end, "link", "set", f"to{number}", "master", "bridge0", "up")
            _told("ip", *other, "address", "add", f"{self.address(number)}/24", "dev", "up0")
            _told("ip", *other, "link", "set", "up0", "up")
            for where, device in ((end, f"to{number}"), (other, "up0")):
                _told("tc", *where, "qdisc", "add", "dev", device, "root", "tbf",
                      "rate", RATE, "burst", "64kb", "latency", "50ms")  # fmt: skip


def network_run(
    images: Path, place: Path, options: Sequence[str], expected: Said, *, count: int, notify: Notify
) -> NetworkRun:
    """Screen the images there, with the cut and the loss. Raises NotPermitted, ScreeningFailed."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    certificates = place / "certificates"
    make_certificates(certificates)
    encrypted = ("--certificates", str(certificates))
    with Namespaces(2) as computers:
        address = f"{computers.address(0)}:{_PORT}"

        def begin(number: int, name: str, *words: str) -> subprocess.Popen[bytes]:
            return computers.start(number, *words, *encrypted, home=place / name / "home", said=place / f"{name}.txt")

        (place / "driver").mkdir()
        begin(0, "scheduler", "cluster", "start", "--host", computers.address(0), "--network", f"{_NETWORK}.0/24")
        _wait(lambda: b"The cluster is at" in (place / "scheduler.txt").read_bytes(), "the scheduler did not start")
        for number in (1, 2):
            (place / f"node{number}").mkdir()
            where = ("--host", computers.address(number), "--network", f"{_NETWORK}.0/24")
            begin(number, f"node{number}", "cluster", "join", address, *where, "--name", f"node{number}")
        for number in (1, 2):
            said = place / f"node{number}.txt"
            _wait(lambda said=said: b" works for " in said.read_bytes(), "a computer did not join")  # type: ignore[misc]
        began_s = time.perf_counter()
        own = ("--out", str(place / "out"), "--chunk", "32", "--send-files", "--device", "cpu", "--cluster", address)
        driver = begin(0, "driver", "archive", "screen", str(images), *own, *options)
        rows = _rows(place / "driver" / "home" / "results.sqlite")
        with contextlib.closing(rows):
            resumed_s = _cut(computers, driver, rows, count, notify)
            gone_s = _lose(computers, driver, rows, count, notify)
        driver.wait()
        ended_s = time.perf_counter()
        sent_mb = computers.sent_mb()
    if driver.returncode not in COUNTED or not (place / "out" / "merged.json").exists():
        raise ScreeningFailed(f"ended with {driver.returncode}: {(place / 'driver.txt').read_text()[-2000:]}")
    said_of = stored(place / "driver" / "home")
    return NetworkRun(
        images=count,
        total_s=ended_s - began_s,
        resumed_s=resumed_s,
        after_loss_s=ended_s - gone_s,
        sent_mb=sent_mb,
        lost=len(expected.keys() - said_of.keys()),
        doubled=rows_of(place / "driver" / "home") - len(said_of),
        differing=differences(expected, said_of),
    )


def _cut(
    computers: Namespaces, driver: subprocess.Popen[bytes], rows: Iterator[int], count: int, notify: Notify
) -> float:
    """Cut all links for a while; seconds from their return to the next result."""
    _reach(driver, rows, round(_CUT_AT * count))
    notify("network: all links are cut")
    for number in (1, 2):
        computers.link(number, is_up=False)
    time.sleep(CUT_S)
    at = next(rows)
    for number in (1, 2):
        computers.link(number, is_up=True)
    back_s = time.perf_counter()
    notify("network: the links are back")
    _reach(driver, rows, at + 1)
    return time.perf_counter() - back_s


def _lose(
    computers: Namespaces, driver: subprocess.Popen[bytes], rows: Iterator[int], count: int, notify: Notify
) -> float:
    """Lose the second computer; when that was."""
    _reach(driver, rows, round(_GONE_AT * count))
    notify("network: one computer is gone")
    computers.link(2, is_up=False)
    return time.perf_counter()


def _rows(database: Path) -> Generator[int, None, None]:
    """How many results there are, whenever it is asked."""
    while not database.exists():
        yield 0
    with ResultQuery(database) as query:
        while True:
            yield query.last_row_id()


def _reach(driver: subprocess.Popen[bytes], rows: Iterator[int], wanted: int) -> None:
    while next(rows) < wanted:
        if driver.poll() is not None:
            raise ScreeningFailed(f"it ended with {driver.returncode} before {wanted} images were done")
        time.sleep(_LOOK_S)


def _wait(is_so: Callable[[], bool], otherwise: str) -> None:
    until_s = time.monotonic() + _START_S
    while not is_so():
        if time.monotonic() > until_s:
            raise ScreeningFailed(otherwise)
        time.sleep(_LOOK_S)


def _told(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermitted(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    return done.stdout

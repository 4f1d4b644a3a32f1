"""Screen an archive on three computers, which are network namespaces of this computer with links of 100 Mbit/s.

Scheduler and driver (the process of the command) run on the first computer. The other two computers have no image
files: images are sent to them, encrypted. During the run, all links are cut for half a minute. Later, the link of one
computer is cut for good.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import cluster_runs
from benchmarks.cluster_runs import ImageResults
from benchmarks.namespaces import SUBNET, Namespaces, namespaces
from benchmarks.screening import ScreeningFailed
from fieldray.paths import python_command
from fieldray.store.results import ResultQuery
from fieldray_cluster.certificates import make_certificates

Notify = Callable[[str], None]

LINK_RATE_MBIT: Final = 100
LINK_CUT_S: Final = 30.0
_PORT: Final = "8786"
_CUT_AT: Final = 0.2
_GONE_AT: Final = 0.6
_LOOK_S: Final = 0.2
_START_S: Final = 60.0


def screen_on_three_computers(
    images: Path, folder: Path, options: Sequence[str], expected: ImageResults, *, count: int, notify: Notify
) -> dict[str, Any]:
    """Screen images on three computers while links are cut and one computer is lost. Returns figures for the report.

    Raises NotPermitted without root, and ScreeningFailed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    certificates = folder / "certificates"
    make_certificates(certificates)
    encrypted = ("--certificates", str(certificates))
    with namespaces(3, rate_mbit=LINK_RATE_MBIT) as computers, contextlib.ExitStack() as ends:
        address = f"{computers.address(0)}:{_PORT}"

        def begin(number: int, name: str, *words: str) -> subprocess.Popen[bytes]:
            command = computers.command(number, python_command("fieldray.__main__", *words, *encrypted))
            process = cluster_runs.start_logged_command(command, folder / name / "home", folder / f"{name}.txt")
            ends.callback(_end_process, process)
            return process

        begin(0, "scheduler", "cluster", "start", "--host", computers.address(0), "--network", f"{SUBNET}.0/24")
        _wait(lambda: b"The cluster is at" in (folder / "scheduler.txt").read_bytes(), "the scheduler did not start")
        for number in (1, 2):
            where = ("--host", computers.address(number), "--network", f"{SUBNET}.0/24")
            begin(number, f"node{number}", "cluster", "join", address, *where, "--name", f"node{number}")
        for number in (1, 2):
            said = folder / f"node{number}.txt"
            _wait(lambda said=said: b" works for " in said.read_bytes(), "a computer did not join")  # type: ignore[misc]
        began_s = time.perf_counter()
        own = ("--out", str(folder / "out"), "--chunk", "32", "--send-files", "--device", "cpu", "--cluster", address)
        driver = begin(0, "driver", "archive", "screen", str(images), *own, *options)
        with contextlib.closing(_rows(folder / "driver" / "home" / "results.sqlite")) as rows:
            resumed_s = _cut(computers, driver, rows, count, notify)
            gone_s = _lose(computers, driver, rows, count, notify)
        driver.wait()
        ended_s = time.perf_counter()
        sent_mb = sum(map(computers.received_mb, (1, 2)))
    if driver.returncode not in cluster_runs.COMPLETED_EXIT_CODES or not (folder / "out" / "merged.json").exists():
        raise ScreeningFailed(f"the driver failed: {(folder / 'driver.txt').read_text()[-2000:]}")
    total_s, after_loss_s = ended_s - began_s, ended_s - gone_s
    figures = {"images": count, "total_s": total_s, "resumed_s": resumed_s, "after_loss_s": after_loss_s}
    faults = cluster_runs.count_faults(folder / "driver" / "home", expected)
    sentences = [
        f"{count} images, two computers, TLS links of {LINK_RATE_MBIT} Mbit/s: {total_s:.0f} s, {sent_mb:.0f} MB sent.",
        f"All links were cut for {LINK_CUT_S:.0f} s. Results resumed {resumed_s:.1f} s after the links returned.",
        f"One computer was removed. The other computer finished {after_loss_s:.0f} s later.",
        cluster_runs.faults_sentence(faults),
    ]
    return {**figures, "sent_mb": sent_mb, **faults, "sentences": sentences}


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(20)
    process.kill()
    process.wait()


def _cut(
    computers: Namespaces, driver: subprocess.Popen[bytes], rows: Iterator[int], count: int, notify: Notify
) -> float:
    """Cut the links of all computers for a while. Returns the seconds from the repair to the next result."""
    _reach(driver, rows, round(_CUT_AT * count))
    notify("network: all links are cut")
    for number in (1, 2):
        computers.switch_link(number, is_up=False)
    time.sleep(LINK_CUT_S)
    at = next(rows)
    for number in (1, 2):
        computers.switch_link(number, is_up=True)
    back_s = time.perf_counter()
    notify("network: the links are back")
    _reach(driver, rows, at + 1)
    return time.perf_counter() - back_s


def _lose(
    computers: Namespaces, driver: subprocess.Popen[bytes], rows: Iterator[int], count: int, notify: Notify
) -> float:
    """Cut the link of one computer for good during the run. Returns the time of the cut, by `time.perf_counter`."""
    _reach(driver, rows, round(_GONE_AT * count))
    notify("network: one computer is gone")
    computers.switch_link(2, is_up=False)
    return time.perf_counter()


def _rows(database: Path) -> Generator[int, None, None]:
    """Yield the current number of results in a results database. The generator never ends."""
    while not database.exists():
        yield 0
    with ResultQuery(database) as query:
        while True:
            yield query.last_image_row_id()


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

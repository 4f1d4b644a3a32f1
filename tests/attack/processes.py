"""Attack cases: killed processes, signals, closed streams, memory and file limits, wrong clocks, locales and homes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from harness.case import Group
from harness.machine import command_line, send
from harness.record import check_fate, check_rows, json_lines, tail
from harness.world import FakeClock, World

CASES = Group("processes")
_COUNT: Final = 120


# ---- killed and stopped

_CHILDREN: Final = {
    f"workers-{number.name.lower()}": (f"{number.name} to the workers during a run", number)
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
}


@CASES.table(_CHILDREN, limit_s=90)
def children_end(world: World, number: signal.Signals) -> None:
    """Every image gets its row although workers end in mid-run."""
    world.write_settings(decode_timeout_s=5)
    expected = world.good_images(_COUNT)
    running = world.begin(3)
    workers = [child for child in running.children() if b"fieldray.workers" in command_line(child)]
    assert workers, "no worker is running"
    send(workers, number)
    done = running.finish().ends_with(0, 1).has(dict.fromkeys(expected, "any"))
    lost = [line for line in done.lines if line["status"] != "screened"]
    assert len(lost) <= 4, f"{len(lost)} images lost: {tail(str(lost[0]['reason']))}"


@CASES.case("program-stopped", "the program gets SIGSTOP and SIGCONT during a run")
def program_stopped(world: World) -> None:
    expected = world.good_images(_COUNT)
    running = world.begin(3)
    for _ in range(5):
        running.signal(signal.SIGSTOP)
        running.signal(signal.SIGCONT)
    running.finish().ends_with(0).has(expected)


def _asked_to_end(number: signal.Signals, *more: int) -> tuple[str, signal.Signals, tuple[int, ...]]:
    return f"{number.name} during a run, which is then resumed", number, (130, *more)


_SIGNALS: Final = {
    "sigint": _asked_to_end(signal.SIGINT),
    "sigterm": _asked_to_end(signal.SIGTERM),
    "sighup": _asked_to_end(signal.SIGHUP, -signal.SIGHUP, 0, 1),
    "sigquit": _asked_to_end(signal.SIGQUIT, -signal.SIGQUIT, 0, 1),
    "sigusr1": _asked_to_end(signal.SIGUSR1, -signal.SIGUSR1, 0, 1),
    "sigpipe": _asked_to_end(signal.SIGPIPE, -signal.SIGPIPE, 0, 1),
}


@CASES.table(_SIGNALS, quick=("sigint", "sighup"))
def asked_to_end(world: World, number: signal.Signals, codes: tuple[int, ...]) -> None:
    """The program ends in order on the signal, and the next run resumes without losing an image."""
    expected = world.good_images(_COUNT)
    running = world.start_screen(held=True)
    lines = running.read_lines(5)
    ended = running.interrupt(number, codes=codes)
    done = world.run_screen().ends_with(0).has(expected)
    if ended.code == 130:
        ended.says("run the same command again to resume")
        assert re.search(r"\b[1-9]\d* from an earlier run", done.err), tail(done.err)
    assert {line["path"] for line in lines} <= {line["path"] for line in done.lines}


@CASES.case("two-programs", "two programs share home and folder, and one gets SIGINT", is_quick=True)
def two_programs(world: World) -> None:
    expected = world.good_images(_COUNT)
    first, second = world.begin(1), world.begin(1)
    first.interrupt()
    second.finish().ends_with(0).has(expected).says(f"process {first.pid}")
    states = world.query("SELECT state, (SELECT count(*) FROM answers WHERE run_id = runs.id) FROM runs ORDER BY id")
    assert states[1] == ("finished", _COUNT)
    assert states[0][0] == "cancelled" and states[0][1] < _COUNT


# ---- streams


@CASES.case("slow-pipe", "the output's reader takes one line at a time", is_quick=True)
def slow_pipe(world: World) -> None:
    expected = world.good_images(60)
    running = world.start_screen(held=True)
    lines = [line for _ in range(60) for line in running.read_lines(1)]
    running.finish().ends_with(0)
    check_rows(lines, expected, images=world.images)


@CASES.case("no-reader", "a JSON pipe without a reader ends with exit code 1, even after few lines", is_quick=True)
def no_reader(world: World) -> None:
    for count in (1, 4):
        world.good_images(count)
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = world.run_screen("--fresh", redirect=f">&{write_end}", pass_files=(write_end,))
        os.close(write_end)
        done.ends_with(1)


_STREAMS: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "stdout-closed": (">&-", (0, 1)),
    "stderr-closed": ("2>&-", (0,)),
    "both-closed": (">&- 2>&-", (0, 1)),
    "all-closed": ("<&- >&- 2>&-", (0, 1)),
    "stdin-closed": ("<&-", (0,)),
    "stdout-full": (">/dev/full", (0, 1, 130)),
    "stderr-full": ("2>/dev/full", (0, 1)),
}


@CASES.table(
    {name: (f"started with {row[0]}", *row) for name, row in _STREAMS.items()},
    quick=("both-closed", "all-closed"),
)
def streams(world: World, redirect: str, codes: tuple[int, ...]) -> None:
    """With closed or full streams every image gets its row in a file of JSON lines, and every command ends in order."""
    expected = world.good_images(3)
    path = world.folder / "lines"
    arguments = ("screen", world.images, *world.pack_options)
    done = world.run(*arguments, "--json", path, redirect=redirect).ends_with(*codes)
    if done.code == 0:
        check_rows(json_lines(path.read_text()), expected, images=world.images)
    world.run(*arguments, redirect=redirect).ends_with(*codes)
    world.run("packs", "list", redirect=redirect).ends_with(*codes)
    world.run("screen", redirect=redirect).ends_with(2)
    assert world.query("PRAGMA integrity_check") == [("ok",)]
    log = world.home / "fieldray.log"
    assert not log.exists() or "Traceback" not in log.read_text(), tail(log.read_text())


# ---- limits


_KILOBYTES: Final = (3_000_000, 2_000_000, 1_400_000, 1_000_000, 600_000, 500_000, 300_000, 100_000)


@CASES.table(
    {f"memory-{kilobytes}": (f"ulimit -v {kilobytes}",) * 2 for kilobytes in _KILOBYTES}, quick=("memory-2000000",)
)
def memory(world: World, before: str) -> None:
    """With little memory all images get their score, or the run ends with a reason. No image is called damaged."""
    expected = world.good_images(20)
    done = world.run_screen(before=before).ends_with(0, 1, 3)
    for line in done.lines:
        assert line["status"] == "screened", f"a healthy image: {line['reason']}"
    if done.code == 0:
        done.has(expected)
        return
    assert done.err.strip(), "it ended without a word"
    world.screen(expected, codes=(0,))


_LIMITS: Final = {
    "files-40": ("ulimit -n 40", 16),
    "files-30": ("ulimit -n 30", 4),
    "files-20": ("ulimit -n 20", 2),
    "files-12": ("ulimit -n 12", 1),
    "file-size": ("ulimit -f 64", 2),
    "stack": ("ulimit -s 512", 2),
}


@CASES.table({name: (f"{row[0]}, {row[1]} files at a time", *row) for name, row in _LIMITS.items()})
def limited(world: World, before: str, jobs: int) -> None:
    """Under the limit the run ends in order, with scores or with a reason other than an unexpected error."""
    expected = world.good_images(20)
    done = world.run_screen("--jobs", jobs, before=before).ends_with(0, 1, 3)
    names = [line["path"] for line in done.lines]
    assert len(names) == len(set(names)), "rows doubled"
    for line in done.lines:
        assert line["reason_code"] not in ("damaged", "truncated", "decoder_crashed", "internal"), line["reason"]
    world.run_screen().ends_with(0).has(expected)


# ---- surroundings


_YEARS: Final = {"1980": 315_532_800, "2038": 2_147_483_600, "2099": 4_070_908_800}


@CASES.table(
    {f"clock-{year}": (f"the clock is in {year}, and then correct", year, at) for year, at in _YEARS.items()},
    quick=("clock-2099",),
)
def clock(world: World, year: str, seconds: int) -> None:
    """With a wrong clock every image gets its score and the export is written. A run at the right time reuses them."""
    expected = world.good_images(5)
    clock = FakeClock(world)
    clock.set_to(seconds)
    world.screen(expected, codes=(0,), environment=clock.environment)
    out = world.folder / "out"
    world.run_screen("--out", out, environment=clock.environment).ends_with(0).has(expected)
    (path,) = out.glob("*.json")
    assert json.loads(path.read_text())["about"]["started"].startswith(year)
    assert "5 from an earlier run" in world.screen(expected, codes=(0,)).err


_LANGUAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "language-c": {"LANG": "C", "LC_ALL": "C"},
    "language-c-strict": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "language-unknown": {"LANG": "xx_XX.nothing", "LC_ALL": "xx_XX.nothing"},
}


@CASES.table(
    {name: (f"Cyrillic and invalid names with {given}", given) for name, given in _LANGUAGES.items()},
    quick=("language-c-strict",),
)
def language(world: World, environment: Mapping[str, str]) -> None:
    """With this locale every image gets its row, in the JSON lines and in the list, whatever its name."""
    (good,) = world.good_images(1)
    data = (world.images / good).read_bytes()
    for number, name in enumerate(("знімок.png".encode(), b"not-\xff\xfe.png", b"\xc3.png")):
        Path(os.fsdecode(os.fsencode(world.images) + b"/" + name)).write_bytes(data + bytes(number + 1))
    options = {"environment": {"PYTHONIOENCODING": "", **environment}}
    done = world.run_screen(**options).ends_with(0)
    assert len(done.lines) == 4
    for line in done.lines:
        check_fate(line, "screened")
    record = world.run("screen", world.images, *world.pack_options, **options).ends_with(0)
    # where the system's encoding is ASCII, the name's bytes are shown: the first letter is D0 B7 in UTF-8
    assert "images/знімок.png" in record.out or "images/\\udcd0\\udcb7" in record.out, record.out
    assert record.out.count(".png") == 4 and not record.err, record.err
    out = world.folder / "звіт"
    world.run("screen", world.images, *world.pack_options, "--out", out, **options).ends_with(0)
    assert len(list(out.iterdir())) == 2
    (table,) = out.glob("*.csv")
    assert table.read_text(encoding="utf-8-sig").count('"screened"') == 4  # invalid bytes are escaped


def touched(path: Path) -> Path:
    """Make an empty file."""
    path.touch()
    return path


def dangling(path: Path) -> Path:
    """Make a link to a path that does not exist."""
    path.symlink_to(path.with_name("no-folder") / "nothing")
    return path


_HOMES: Final[Mapping[str, tuple[str, Callable[[Path], object]]]] = {
    "home-file": ("FIELDRAY_HOME is a file", lambda folder: touched(folder / "home-file")),
    "home-under-file": (
        "FIELDRAY_HOME is a folder below a file",
        lambda folder: touched(folder / "home-file") / "home",
    ),
    "home-proc": (
        "FIELDRAY_HOME is a folder in /proc, where no file can be made",
        lambda _folder: "/proc/fieldray-home",
    ),
    "home-null": ("FIELDRAY_HOME is /dev/null", lambda _folder: "/dev/null"),
    "home-dangling": ("FIELDRAY_HOME is a broken link", lambda folder: dangling(folder / "home-link")),
    "home-long": ("FIELDRAY_HOME is a name of 5,000 letters", lambda _folder: "/tmp/" + "x" * 5_000),
}


@CASES.table(_HOMES, quick=("home-file",))
def home(world: World, make: Callable[[Path], object]) -> None:
    """With this home every command fails with one line on standard error."""
    world.good_images(1)
    environment = {"FIELDRAY_HOME": str(make(world.folder))}
    for arguments in (("screen", world.images, *world.pack_options, "--json", "-"), ("packs", "list")):
        done = world.run(*arguments, environment=environment).ends_with(1, 2, 3)
        assert len(done.err.strip().splitlines()) == 1, tail(done.err)

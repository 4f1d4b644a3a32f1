"""Processes, streams, limits and surroundings: killed, stopped, starved, closed, and at the wrong time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from attack.case import Group
from attack.native import OtherClock
from attack.world import Fate, World, check_fate, json_lines, tail

CASES = Group("processes")
_COUNT: Final = 120


def decoders(world: World, children: list[int]) -> list[int]:
    """Those of the children that read images."""
    return [child for child in children if b"imaging" in command_line(child)]


def command_line(process_id: int) -> bytes:
    """Of a process, empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    return b""


def send(process_ids: list[int], number: int) -> None:
    """A signal to processes of this case that may be gone."""
    for process_id in process_ids:
        with suppress(ProcessLookupError):
            os.kill(process_id, number)


# ---- killed and stopped


def _children(kind: bytes, number: int) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """Every image has its row all the same."""
        world.home.mkdir()
        (world.home / "settings.json").write_text(json.dumps({"decode_timeout_s": 5}))
        expected = world.good_images(_COUNT)
        running = world.start_screen(held=True)
        running.read_lines(3)
        send([child for child in running.children() if kind in command_line(child)], number)
        done = running.finish().ends_with(0, 1)
        world.check_rows(done.lines, dict.fromkeys(expected, "any"))
        lost = [line for line in done.lines if line["status"] != "screened"]
        assert len(lost) <= 4, f"{len(lost)} images lost: {tail(str(lost[0]['reason']))}"

    return attempt


for _what, _kind in (("decoders", b"imaging"), ("model", b"inference")):
    for _number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP):
        CASES.add(
            f"{_what}-{_number.name.lower()}",
            f"{_number.name} to the {'decoders' if _what == 'decoders' else 'process of the model'} in mid-run",
            _children(_kind, _number),
            limit_s=90,
        )


@CASES.case("parent-killed", "the program killed: its children end within 5 s", is_quick=True)
def parent_killed(world: World) -> None:
    world.good_images(_COUNT)
    running = world.start_screen(held=True)
    running.read_lines(3)
    assert running.children()
    running.signal(signal.SIGKILL)
    running.finish()


@CASES.case(
    "stopped-then-killed", "children stopped with SIGSTOP, then the program killed: they end within 5 s", is_quick=True
)
def stopped_then_killed(world: World) -> None:
    world.good_images(_COUNT)
    running = world.start_screen(held=True)
    running.read_lines(3)
    children = running.children()
    assert children
    world.wait_until(lambda: all(map(_serves, children)), "a child does not begin to serve")
    send(children, signal.SIGSTOP)
    running.signal(signal.SIGKILL)
    running.finish()


def _serves(process_id: int) -> bool:
    """Whether a child has begun: its second thread starts once its end is tied to the program's."""
    with suppress(OSError):
        return len(list(Path(f"/proc/{process_id}/task").iterdir())) > 1
    return True  # it ended


@CASES.case("program-stopped", "the program stopped and continued in mid-run")
def program_stopped(world: World) -> None:
    expected = world.good_images(_COUNT)
    running = world.start_screen(held=True)
    running.read_lines(3)
    for _ in range(5):
        running.signal(signal.SIGSTOP)
        running.signal(signal.SIGCONT)
    world.check_rows(running.finish().ends_with(0).lines, expected)


def _polite(number: int, codes: tuple[int, ...]) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """It ends in order, and the next run goes on from there without a loss."""
        expected = world.good_images(_COUNT)
        running = world.start_screen(held=True)
        told = running.read_lines(5)
        running.signal(number)
        running.finish().ends_with(*codes)
        done = world.start_screen().finish().ends_with(0)
        world.check_rows(done.lines, expected)
        assert {line["path"] for line in told} <= {line["path"] for line in done.lines}

    return attempt


for _number in (signal.SIGINT, signal.SIGTERM):
    CASES.add(_number.name.lower(), f"{_number.name} in mid-run, then resumed", _polite(_number, (130,)))
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGPIPE):
    CASES.add(_number.name.lower(), f"{_number.name} in mid-run, then resumed", _polite(_number, (130, -_number, 0, 1)))


@CASES.case("early-interrupt", "Ctrl-C in the first half second, at 12 moments: no traceback", limit_s=60)
def early_interrupt(world: World) -> None:
    world.good_images(3)
    for moment in range(12):
        interrupt_early(world, more=4 * moment)


def interrupt_early(world: World, *, more: int) -> None:
    """Ctrl-C once the program's own code runs (its guard needs ctypes) and has loaded so many more libraries.

    Not after a time, so that it is the same moment on a slow machine.
    """
    running = world.start_screen()
    wanted = None

    def is_far_enough() -> bool:
        nonlocal wanted
        found = mapped(running.pid)
        if wanted is None and any("_ctypes" in name for name in found):
            wanted = len(found) + more
        return running.process.poll() is not None or (wanted is not None and len(found) >= wanted)

    world.wait_until(is_far_enough, "it does not get so far", most_s=5)
    if running.process.poll() is None:
        running.signal(signal.SIGINT)
    done = running.finish()
    assert "Traceback" not in done.err, tail(done.err)
    assert done.code in (0, 130, -signal.SIGINT), f"exit code {done.code}"


def mapped(process_id: int) -> set[str]:
    """The libraries a process has loaded."""
    with suppress(OSError):
        text = Path(f"/proc/{process_id}/maps").read_text(errors="replace")
        return {line.split()[-1] for line in text.splitlines() if ".so" in line}
    return set()


# ---- streams


@CASES.case("slow-pipe", "a reader that takes a line at a time")
def slow_pipe(world: World) -> None:
    expected = world.good_images(60)
    running = world.start_screen(held=True)
    lines = [line for _ in range(60) for line in running.read_lines(1)]
    running.finish().ends_with(0)
    world.check_rows(lines, expected)


@CASES.case("broken-pipe", "a reader that leaves after two lines")
def broken_pipe(world: World) -> None:
    expected = world.good_images(_COUNT)
    running = world.start_screen(held=True)
    running.read_lines(2)
    running.pipe.close()
    running.process.stdout = None
    running.process.wait(world.left_s())
    words = (world.folder / "err-0").read_text()
    assert "Traceback" not in words and "BrokenPipe" not in words, tail(words)
    assert running.process.returncode in (0, 1, 130)
    world.check_rows(world.start_screen().finish().ends_with(0).lines, expected)


@CASES.case("no-reader", "JSON lines into a pipe that nobody reads: exit code 1, however few there are", is_quick=True)
def no_reader(world: World) -> None:
    for count in (1, 4):
        world.good_images(count)
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = world.start_screen("--fresh", redirect=f">&{write_end}", pass_files=(write_end,)).finish()
        os.close(write_end)
        done.ends_with(1)


STREAMS: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "stdout-closed": (">&-", (0, 1)),
    "stderr-closed": ("2>&-", (0,)),
    "both-closed": (">&- 2>&-", (0, 1)),
    "all-closed": ("<&- >&- 2>&-", (0, 1)),
    "stdin-closed": ("<&-", (0,)),
    "stdout-full": (">/dev/full", (0, 1, 130)),
    "stderr-full": ("2>/dev/full", (0, 1)),
}


def _stream(redirect: str, codes: tuple[int, ...]) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """With the lines in a file every image has its row; as a list for a person it ends in order, too."""
        expected = world.good_images(3)
        path = world.folder / "lines"
        arguments = ("screen", world.images, *world.pack_options)
        done = world.run(*arguments, "--json", path, redirect=redirect)
        done.ends_with(*codes)
        if done.code == 0:
            world.check_rows(json_lines(path.read_text()), expected)
        world.run(*arguments, redirect=redirect).ends_with(*codes)
        world.run("packs", "list", redirect=redirect).ends_with(*codes)
        log = world.home / "fieldray.log"
        assert not log.exists() or "Traceback" not in log.read_text(), tail(log.read_text())

    return attempt


for _name, (_redirect, _codes) in STREAMS.items():
    CASES.add(_name, f"started with {_redirect}", _stream(_redirect, _codes), is_quick=_name == "stdout-closed")


# ---- limits


def _memory(kilobytes: int) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """The images get their score, or the run ends with one reason; no image is called damaged."""
        expected = world.good_images(20)
        done = world.start_screen(before=f"ulimit -v {kilobytes}").finish()
        done.is_calm()
        for line in done.lines:
            assert line["status"] == "screened", f"a healthy image: {line['reason']}"
        if done.code == 0:
            world.check_rows(done.lines, expected)
            return
        assert done.code in (1, 3), f"exit code {done.code}: {tail(done.err)}"
        assert done.err.strip(), "it ended without a word"
        world.screen(expected, codes=(0,))

    return attempt


for _kilobytes in (3_000_000, 2_000_000, 1_400_000, 1_000_000, 600_000, 500_000, 300_000, 100_000):
    CASES.add(f"memory-{_kilobytes}", f"ulimit -v {_kilobytes}", _memory(_kilobytes), is_quick=_kilobytes == 2_000_000)


def _limited(before: str, jobs: int) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """It ends in order, with scores or with a reason that is not an unexpected error."""
        expected = world.good_images(20)
        done = world.start_screen("--jobs", jobs, before=before).finish()
        done.ends_with(0, 1, 3)
        names = [line["path"] for line in done.lines]
        assert len(names) == len(set(names)), "rows doubled"
        for line in done.lines:
            assert line["reason_code"] not in ("damaged", "truncated", "decoder_crashed", "internal"), line["reason"]
        world.check_rows(world.start_screen().finish().ends_with(0).lines, expected)

    return attempt


for _name, _before, _jobs in (
    ("files-40", "ulimit -n 40", 16),
    ("files-30", "ulimit -n 30", 4),
    ("files-20", "ulimit -n 20", 2),
    ("files-12", "ulimit -n 12", 1),
    ("file-size", "ulimit -f 64", 2),
    ("stack", "ulimit -s 512", 2),
):
    CASES.add(_name, f"{_before}, {_jobs} files at a time", _limited(_before, _jobs))


# ---- surroundings


def _clock(seconds: int) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """Every image gets its score, twice, and the export can be written."""
        expected = world.good_images(5)
        clock = OtherClock(world)
        clock.set_to(seconds)
        world.screen(expected, codes=(0,), environment=clock.environment)
        out = world.folder / "out"
        done = world.start_screen("--out", out, environment=clock.environment).finish().ends_with(0)
        world.check_rows(done.lines, expected)
        (path,) = out.glob("*.json")
        year = {315_532_800: "1980", 4_070_908_800: "2099", 0: "1970", 2_147_483_600: "2038"}[seconds]
        assert json.loads(path.read_text())["about"]["started"].startswith(year)
        world.screen(expected, codes=(0,))

    return attempt


for _year, _seconds in (("1980", 315_532_800), ("2038", 2_147_483_600), ("2099", 4_070_908_800)):
    CASES.add(f"clock-{_year}", f"the clock says {_year}, then the right time", _clock(_seconds))


def _language(environment: Mapping[str, str]) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """Every name gives its row, as lines and as a list for a person."""
        (good,) = world.good_images(1)
        data = (world.images / good).read_bytes()
        folder = os.fsencode(world.images)
        for number, name in enumerate(
            (b"\xd0\xb7\xd0\xbd\xd1\x96\xd0\xbc\xd0\xbe\xd0\xba.png", b"not-\xff\xfe.png", b"\xc3.png")
        ):
            Path(os.fsdecode(folder + b"/" + name)).write_bytes(data + bytes(number + 1))
        options = {"environment": {"PYTHONIOENCODING": "", **environment}}
        done = world.start_screen(**options).finish().ends_with(0)
        assert len(done.lines) == 4
        for line in done.lines:
            check_fate(line, "screened")
        world.run("screen", world.images, *world.pack_options, **options).ends_with(0)
        out = world.folder / "звіт"
        world.run("screen", world.images, *world.pack_options, "--out", out, **options).ends_with(0)
        assert len(list(out.iterdir())) == 2

    return attempt


for _name, _environment in {
    "language-c": {"LANG": "C", "LC_ALL": "C"},
    "language-c-strict": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "language-unknown": {"LANG": "xx_XX.nothing", "LC_ALL": "xx_XX.nothing"},
}.items():
    CASES.add(_name, f"Cyrillic and invalid names with {_environment}", _language(_environment))

HOMES: Final[Mapping[str, tuple[str, Callable[[World], str]]]] = {
    "home-file": ("a file", lambda world: str(touched(world.folder / "home-file"))),
    "home-under-file": ("a folder below a file", lambda world: str(touched(world.folder / "home-file") / "home")),
    "home-proc": ("a place where nothing can be made", lambda _world: "/proc/fieldray-home"),
    "home-null": ("/dev/null", lambda _world: "/dev/null"),
    "home-dangling": ("a link to nothing", lambda world: str(dangling(world.folder / "home-link"))),
    "home-long": ("a name of 5,000 letters", lambda _world: "/tmp/" + "x" * 5_000),
}


def touched(path: Path) -> Path:
    """An empty file."""
    path.touch()
    return path


def dangling(path: Path) -> Path:
    """A link to nothing."""
    path.symlink_to(path.with_name("no-folder") / "nothing")
    return path


def _home(make: Callable[[World], str]) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """Every command says why in one sentence."""
        world.good_images(1)
        home = {"FIELDRAY_HOME": make(world)}
        for arguments in (("screen", world.images, *world.pack_options, "--json", "-"), ("packs", "list")):
            done = world.run(*arguments, environment=home).ends_with(1, 2, 3)
            assert len(done.err.strip().splitlines()) == 1, tail(done.err)

    return attempt


for _name, (_what, _make) in HOMES.items():
    CASES.add(_name, f"FIELDRAY_HOME is {_what}", _home(_make), is_quick=_name == "home-file")


@CASES.case("settings", "settings that are garbage, nested 600 deep, a folder, a FIFO", limit_s=60)
def settings(world: World) -> None:
    expected: dict[str, Fate] = world.good_images(1)
    world.home.mkdir()
    path = world.home / "settings.json"
    for data in (
        b"\xff\xfe",
        b"[" * 600 + b"]" * 600,
        b"[" * 200_000,
        b"{" + b'"decoders": 1e999}',
        b'{"decoders": 99999}',
    ):
        path.write_bytes(data)
        world.check_rows(world.start_screen("--fresh").finish().ends_with(0).lines, expected)
    path.unlink()
    path.mkdir()
    world.check_rows(world.start_screen("--fresh").finish().ends_with(0).lines, expected)

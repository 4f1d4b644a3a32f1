"""What a case works with: a folder, a home and a pack of its own, and the program as a person starts it.

Every process carries a mark in its environment that its children inherit. At the end of a case whatever still carries
the mark is killed and the folder is removed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self

from attack.memory import MemoryWatch
from program import write_images
from tiny_packs import fingerprint, write_tiny_pack

# What must become of an image. "unscored": refused or failed, which of the two is not what the case is about.
Fate = Literal["screened", "refused", "failed", "unscored", "any"]
PARENT_MB: Final = 450.0
CHILD_MB: Final = 2300.0  # a decoder's limit is 2,048 MB of address space
_MARK: Final = "FIELDRAY_ATTACK_MARK"
_GRACE_S: Final = 5.0
_LOOK_S: Final = 0.02
# Text is written to files, so that no reader has to keep up; a held run writes into a pipe of this size instead.
_SMALL_PIPE: Final = 4096
_SET_PIPE_SIZE: Final = 1031  # F_SETPIPE_SZ of linux/fcntl.h
_NEVER_SAID: Final = ("Traceback", "unexpected error", '"internal"', "Exception ignored", "Fatal Python error")


class TimeIsUp(AssertionError):
    """The case took longer than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A process that has ended. `code` is negative for a signal."""

    code: int
    out: str
    err: str
    parent_mb: float = 0.0
    child_mb: float = 0.0

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines of its standard output."""
        return json_lines(self.out)

    def is_calm(self) -> Done:
        """Itself, if it ended with words for a person and not with an error nobody expected."""
        for words in _NEVER_SAID:
            assert words not in self.out + self.err, f"{words} in: {tail(self.err or self.out)}"
        return self

    def ends_with(self, *codes: int) -> Done:
        """Itself, if it is calm and its exit code is one of these."""
        self.is_calm()
        assert self.code in codes, f"exit code {self.code}, not {codes}: {tail(self.err)}"
        return self

    def says(self, words: str) -> Done:
        """Itself, if these words are in what it said."""
        assert words in self.out + self.err, f"{words!r} is not in: {tail(self.out + self.err)}"
        return self


class Running:
    """The program while it runs."""

    def __init__(self, world: World, process: subprocess.Popen[bytes], files: tuple[Path, Path], *, held: bool) -> None:
        self.process = process
        self.pid = process.pid
        self._world = world
        self._files = files
        self._is_held = held
        self._told = b""
        self._watch = MemoryWatch(process.pid)

    @property
    def pipe(self) -> IO[bytes]:
        """The standard output of a held run."""
        assert self.process.stdout is not None
        return self.process.stdout

    def read_lines(self, number: int) -> list[dict[str, Any]]:
        """The next lines of a held run; it can go on by only a few until more is read."""
        text = b""
        for _ in range(number):
            ready = select.select([self.pipe], [], [], self._world.left_s())[0]
            line = self.pipe.readline() if ready else b""
            assert line, f"ended early: {tail(self._files[1].read_text(errors='replace'))}"
            text += line
        self._told += text
        return json_lines(text.decode("utf-8", "surrogateescape"))

    def has_begun(self, *, most_s: float) -> bool:
        """Whether a held run says its first line, or ends, within this time."""
        return bool(select.select([self.pipe], [], [], min(most_s, self._world.left_s()))[0])

    def children(self) -> list[int]:
        """The processes below it."""
        from attack.memory import descendants

        return descendants(self.pid)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def finish(self, *, leaves_nothing: bool = True) -> Done:
        """Wait for its end. Raises AssertionError when time is up, or a process of it is there 5 s after its end."""
        try:
            if self._is_held:
                self._told += self._read_rest()
            self.process.wait(self._world.left_s())
        except subprocess.TimeoutExpired as error:
            raise TimeIsUp(f"still running: {tail(self._files[1].read_text(errors='replace'))}") from error
        finally:
            self._watch.stop()
        if leaves_nothing:
            self._world.wait_until(lambda: not self._world.processes(), "it left processes behind", most_s=_GRACE_S)
        out, err = (path.read_bytes() if path.exists() else b"" for path in self._files)
        return Done(
            code=self.process.returncode,
            out=(self._told + out).decode("utf-8", "surrogateescape"),
            err=err.decode("utf-8", "surrogateescape"),
            parent_mb=self._watch.parent_mb,
            child_mb=self._watch.child_mb,
        )

    def _read_rest(self) -> bytes:
        """All that a held run still says, until it ends or time is up."""
        text = b""
        while select.select([self.pipe], [], [], self._world.left_s())[0]:
            part = os.read(self.pipe.fileno(), 2**16)
            if not part:
                return text
            text += part
        raise subprocess.TimeoutExpired("fieldray", 0)


class World:
    """See the module's text. Used as a context; not shared by threads."""

    def __init__(self, program: Sequence[str], *, limit_s: float) -> None:
        self.program = tuple(program)
        self.folder = Path(tempfile.mkdtemp(prefix="fieldray-attack-"))
        self.home = self.folder / "home"
        self.images = self.folder / "images"
        self.images.mkdir()
        self.peak_mb = {"parent": 0.0, "child": 0.0}
        self._mark = uuid.uuid4().hex
        self._until = time.monotonic() + limit_s
        self._started: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- material

    @cached_property
    def pack(self) -> Path:
        """A pack that works: bright images are abnormal."""
        return write_tiny_pack(self.folder / "packs")

    @cached_property
    def pack_options(self) -> tuple[str, ...]:
        """How a command is told to use it."""
        return ("--pack", str(self.pack), "--trust", fingerprint(self.pack))

    def good_images(self, count: int, *, side: int = 128, folder: Path | None = None) -> dict[str, Fate]:
        """Write so many images that must get a score; their names."""
        paths = write_images(folder or self.images, count, side=side)
        return {os.path.relpath(path, self.images): "screened" for path in paths}

    # ---- the program

    def start(
        self,
        *arguments: object,
        before: str = "",
        redirect: str = "",
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: Sequence[str] = (),
        held: bool = False,
        executable: Sequence[str] | None = None,
        pass_files: Sequence[int] = (),
    ) -> Running:
        """Start it. `before` is said to the shell first (`ulimit -v 2000000`), `redirect` after the command (`>&-`).

        held        standard output is a small pipe: the run waits after a few lines until they are read
        pass_files  numbers of open files that it gets as well
        """
        number = len(self._started)
        files = (self.folder / f"out-{number}", self.folder / f"err-{number}")
        command = [*prefix, *(executable or self.program), *map(str, arguments)]
        if before or redirect:
            command = ["bash", "-c", f'{before or ":"}; exec "$@" {redirect}', "sh", *command]
        with files[0].open("wb") as out, files[1].open("wb") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if held else out,
                bufsize=0,
                stderr=err,
                cwd=cwd or self.folder,
                env=self.environment(environment or {}),
                start_new_session=True,
                pass_fds=pass_files,
                restore_signals=True,
            )
        if held:
            import fcntl

            assert process.stdout is not None
            fcntl.fcntl(process.stdout, _SET_PIPE_SIZE, _SMALL_PIPE)
        running = Running(self, process, files, held=held)
        self._started.append(running)
        return running

    def run(self, *arguments: object, **options: Any) -> Done:
        """Run it to its end."""
        done = self.start(*arguments, **options).finish()
        self._note_peaks(done)
        return done

    def start_screen(self, *options: object, paths: Sequence[Path] = (), **start: Any) -> Running:
        """Begin to screen the images (or `paths`) with JSON lines on standard output."""
        return self.start("screen", *(paths or [self.images]), *self.pack_options, "--json", "-", *options, **start)

    def screen(
        self,
        expected: Mapping[str, Fate],
        *options: object,
        codes: Sequence[int] = (0, 1),
        parent_mb: float = PARENT_MB,
        child_mb: float = CHILD_MB,
        **start: Any,
    ) -> Done:
        """Screen the images to the end and hold the result against `expected`, by path below the images' folder."""
        done = self.start_screen(*options, **start).finish()
        self._note_peaks(done)
        # A folder in which nothing is an image ends like one without images (code 4): a drive may be unplugged.
        none = bool(done.lines) and {line["reason_code"] for line in done.lines} == {"not_an_image"}
        done.ends_with(*((4,) if none and codes == (0, 1) else codes))
        self.check_rows(done.lines, expected)
        assert done.parent_mb < parent_mb, f"the program took {done.parent_mb:.0f} MB, at most {parent_mb:.0f} allowed"
        assert done.child_mb < child_mb, f"a child took {done.child_mb:.0f} MB, at most {child_mb:.0f} allowed"
        return done

    def check_rows(self, lines: Sequence[Mapping[str, Any]], expected: Mapping[str, Fate]) -> None:
        """One row for each image, none twice, and no score for what must have none."""
        found = Counter((os.path.relpath(line["path"], self.images), line["image"]) for line in lines)
        doubled = {name for name, number in found.items() if number > 1}
        assert not doubled, f"rows doubled: {sorted(doubled)[:5]}"
        names = {name for name, _ in found}
        lacking, extra = set(expected) - names, names - set(expected)
        assert not lacking and not extra, f"lost: {sorted(lacking)[:5]}, not expected: {sorted(extra)[:5]}"
        for line in lines:
            check_fate(line, expected[os.path.relpath(line["path"], self.images)])

    def rows_in_store(self) -> dict[str, dict[str, Any]]:
        """What the newest run has in the store, as the export to JSON tells it, by path below the images' folder."""
        out = self.folder / f"export-{uuid.uuid4().hex}"
        self.run("screen", self.images, *self.pack_options, "--out", out, "--names", "--formats", "json").is_calm()
        (path,) = out.glob("*.json")
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
        names = [os.path.relpath(row["path"], self.images) for row in results]
        assert len(names) == len(set(names)), "an image stands twice in the export"
        return dict(zip(names, results, strict=True))

    def query(self, statement: str) -> list[Any]:
        """Ask the store itself."""
        place = f"{(self.home / 'results.sqlite').as_uri()}?mode=ro"
        with closing(sqlite3.connect(place, uri=True)) as connection:
            return connection.execute(statement).fetchall()

    # ---- processes and time

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        """What the program is started with."""
        left_out = ("DISPLAY", "WAYLAND_DISPLAY", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONWARNINGS")
        plain = {name: value for name, value in os.environ.items() if name not in left_out}
        own = {"FIELDRAY_HOME": str(self.home), "PYTHONIOENCODING": "utf-8", _MARK: self._mark}
        return {**plain, **own, **changes}

    def processes(self) -> list[int]:
        """Every process that carries the mark and is no zombie."""
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def left_s(self) -> float:
        """Seconds until time is up. Raises TimeIsUp."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeIsUp("the time of this case is up")
        return left

    def wait_until(self, is_so: Callable[[], object], otherwise: str, *, most_s: float = 30.0) -> None:
        """Wait for something. Raises AssertionError with `otherwise` after `most_s`."""
        until = time.monotonic() + min(most_s, self.left_s())
        while not is_so():
            assert time.monotonic() < until, otherwise
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Kill what is left and remove the folder."""
        until = time.monotonic() + _GRACE_S
        while (left := self.processes()) and time.monotonic() < until:
            for process_id in left:
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            time.sleep(_LOOK_S)
        for running in self._started:
            running.process.wait()
            running._watch.stop()
            if running.process.stdout:
                running.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _note_peaks(self, done: Done) -> None:
        self.peak_mb["parent"] = max(self.peak_mb["parent"], done.parent_mb)
        self.peak_mb["child"] = max(self.peak_mb["child"], done.child_mb)


def json_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects of `--json` lines; a last line cut by a kill is left out."""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def check_fate(line: Mapping[str, Any], fate: Fate) -> None:
    """Whether a row is as it must be."""
    status, why = line["status"], f"{line['path']}: {line['status']} ({line['reason_code']}), not {fate}"
    if status == "screened":
        assert fate in ("screened", "any"), why
        assert 0 <= line["score"] <= 1, why
        return
    assert line["score"] is None, why
    assert fate in (status, "unscored", "any"), why
    assert line["reason"], f"{line['path']}: no reason"


def tail(text: str, *, longest: int = 300) -> str:
    """The end of a text in one line."""
    return " | ".join(text.split("\n"))[-longest:].encode("ascii", "backslashreplace").decode()

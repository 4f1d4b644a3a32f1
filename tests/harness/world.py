"""The world of a case: its own folder, home and pack, and the program started from the command line.

Every process has a mark in its environment, which its children inherit. At the end of a case all processes that have
the mark are killed, and the folder is removed.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sqlite3
import struct
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Final, Self

from harness.case import NotPossible
from harness.machine import MemoryWatch, build, compiler, descendants
from harness.record import PARENT_MB, Fate, Record, json_lines, tail
from program import write_images
from tiny_packs import fingerprint, write_tiny_pack

_MARK: Final = "FIELDRAY_ATTACK_MARK"
_CTRL_C: Final = signal.SIGINT
_GRACE_S: Final = 5.0
_LOOK_S: Final = 0.02
# Output goes to files, which never fill up. Only a held run writes into a pipe, which has this size.
_SMALL_PIPE: Final = 4096
_SET_PIPE_SIZE: Final = 1031  # F_SETPIPE_SZ of linux/fcntl.h


class TimeIsUp(AssertionError):
    """The case reached its time limit."""


class Running:
    """A running program that a case has started."""

    def __init__(self, world: World, process: subprocess.Popen[bytes], files: tuple[Path, Path], *, held: bool) -> None:
        self.process = process
        self.pid = process.pid
        self._world = world
        self._files = files
        self._is_held = held
        self._read = b""
        self._watch = MemoryWatch(process.pid)

    @property
    def pipe(self) -> IO[bytes]:
        """The standard output of a held run."""
        assert self.process.stdout is not None
        return self.process.stdout

    def read_lines(self, number: int) -> list[dict[str, Any]]:
        """Read the next lines of a held run. The run waits a few lines further on, until more is read."""
        text = b""
        for _ in range(number):
            ready = select.select([self.pipe], [], [], self._world.left_s())[0]
            line = self.pipe.readline() if ready else b""
            assert line, f"ended early: {tail(self._files[1].read_text(errors='replace'))}"
            text += line
        self._read += text
        return json_lines(text.decode("utf-8", "surrogateescape"))

    def children(self) -> list[int]:
        """Return the program's descendants."""
        return descendants(self.pid)

    def signal(self, number: int) -> None:
        """Send the program a signal."""
        self.process.send_signal(number)

    def interrupt(self, number: int = _CTRL_C, *, codes: Sequence[int] = (130,)) -> Record:
        """Send the program a signal, and require an orderly end with one of these exit codes."""
        self.signal(number)
        return self.finish().ends_with(*codes)

    def finish(self) -> Record:
        """Wait for the program's end, and then for the end of all processes of the world, if no other program runs.

        Raises AssertionError if the time of the case is up, or if a process is left 5 s later.
        """
        try:
            if self._is_held:
                self._read += self._read_rest()
            self.process.wait(self._world.left_s())
        except subprocess.TimeoutExpired as error:
            raise TimeIsUp(f"still running: {tail(self._files[1].read_text(errors='replace'))}") from error
        finally:
            self._watch.stop()
        if not self._world.is_running():
            self._world.wait_until(lambda: not self._world.processes(), "it left processes behind", most_s=_GRACE_S)
        out, err = (path.read_bytes() if path.exists() else b"" for path in self._files)
        return Record(
            code=self.process.returncode,
            out=(self._read + out).decode("utf-8", "surrogateescape"),
            err=err.decode("utf-8", "surrogateescape"),
            images=self._world.images,
            parent_mb=self._watch.parent_mb,
            child_mb=self._watch.child_mb,
        )

    def _read_rest(self) -> bytes:
        """Return the remaining output of a held run."""
        text = b""
        while select.select([self.pipe], [], [], self._world.left_s())[0]:
            part = os.read(self.pipe.fileno(), 2**16)
            if not part:
                return text
            text += part
        raise subprocess.TimeoutExpired("fieldray", 0)


class World:
    """See the module's docstring. A context manager for one thread. A case may count its outcomes in `counts`."""

    def __init__(self, program: Sequence[str], *, limit_s: float) -> None:
        self.program = tuple(program)
        self.folder = Path(tempfile.mkdtemp(prefix="fieldray-attack-"))
        self.home = self.folder / "home"
        self.images = self.folder / "images"
        self.images.mkdir()
        self.peak_mb = {"parent": 0.0, "child": 0.0}
        self.counts: Counter[str] = Counter()
        self._mark = uuid.uuid4().hex
        self._until = time.monotonic() + limit_s
        self._started: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes that are left, and remove the folder."""
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

    # ---- material

    @cached_property
    def pack(self) -> Path:
        """A working pack: bright images are abnormal."""
        return write_tiny_pack(self.folder / "packs")

    @cached_property
    def pack_options(self) -> tuple[str, ...]:
        """The command-line options that select the pack."""
        return ("--pack", str(self.pack), "--trust", fingerprint(self.pack))

    def good_images(self, count: int, *, folder: Path | None = None) -> dict[str, Fate]:
        """Write `count` images that must get a score. Returns what `check_rows` has to expect."""
        paths = write_images(folder or self.images, count, side=128)
        return {os.path.relpath(path, self.images): "screened" for path in paths}

    # ---- the program

    def start(
        self,
        *arguments: object,
        before: str = "",
        redirect: str = "",
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        held: bool = False,
        pass_files: Sequence[int] = (),
    ) -> Running:
        """Start the program with these arguments.

        before      a shell command to run first, like `ulimit -v 2000000`
        redirect    a redirection for the shell, like `>&-`

        held        standard output is a small pipe: the program waits after a few lines until they are read
        pass_files  further file descriptors that the program inherits
        """
        number = len(self._started)
        files = (self.folder / f"out-{number}", self.folder / f"err-{number}")
        # This process may ignore Ctrl-C, and its children would inherit that.
        command = ["env", "--default-signal=INT", *self.program, *map(str, arguments)]
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

    def run(self, *arguments: object, **options: Any) -> Record:
        """Run the program to its end."""
        return self._to_end(self.start(*arguments, **options))

    def begin(self, lines: int, *options: object, **start: Any) -> Running:
        """Begin a held run over the images, and read `lines` lines of it."""
        running = self.start_screen(*options, held=True, **start)
        running.read_lines(lines)
        return running

    def run_screen(self, *options: object, **start: Any) -> Record:
        """Screen the images to the end."""
        return self._to_end(self.start_screen(*options, **start))

    def start_screen(self, *options: object, **start: Any) -> Running:
        """Begin to screen the images with JSON lines on standard output."""
        return self.start("screen", self.images, *self.pack_options, "--json", "-", *options, **start)

    def screen(
        self,
        expected: Mapping[str, Fate],
        *options: object,
        codes: Sequence[int] = (0, 1),
        parent_mb: float = PARENT_MB,
        **start: Any,
    ) -> Record:
        """Screen the images to the end. Require the results of `expected`, whose paths are below the images' folder."""
        done = self.run_screen(*options, **start)
        # If no file is an image, the exit code is 4, as for an empty folder, which may be that of an unplugged drive.
        none = bool(done.lines) and {line["reason_code"] for line in done.lines} == {"not_an_image"}
        done.ends_with(*((4,) if none and codes == (0, 1) else codes))
        return done.has(expected).takes(parent_mb=parent_mb)

    def write_settings(self, **settings: object) -> Path:
        """Write these settings to the home. Returns the file."""
        self.home.mkdir(exist_ok=True)
        path = self.home / "settings.json"
        path.write_text(json.dumps(settings))
        return path

    def query(self, statement: str) -> list[Any]:
        """Return the rows of a query to the results database."""
        place = f"{(self.home / 'results.sqlite').as_uri()}?mode=ro"
        with closing(sqlite3.connect(place, uri=True)) as connection:
            return connection.execute(statement).fetchall()

    # ---- processes and time

    def loading(self, source: Path) -> dict[str, str]:
        """Return the environment variables that load this C file into every process. Raises NotPossible."""
        if compiler() is None:
            raise NotPossible("there is no C compiler")
        try:
            return {"LD_PRELOAD": str(build(source, self.folder / f"{source.stem}.so"))}
        except subprocess.CalledProcessError as error:
            raise NotPossible(f"the C compiler failed: {error.stderr[-200:]}") from error

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables for the program."""
        left_out = ("DISPLAY", "WAYLAND_DISPLAY", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONWARNINGS")
        plain = {name: value for name, value in os.environ.items() if name not in left_out}
        own = {"FIELDRAY_HOME": str(self.home), "PYTHONIOENCODING": "utf-8", _MARK: self._mark}
        return {**plain, **own, **changes}

    def processes(self) -> list[int]:
        """Return every process with the mark of this world, except zombies."""
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def is_running(self) -> bool:
        """Return whether any started program still runs."""
        return any(running.process.poll() is None for running in self._started)

    def left_s(self) -> float:
        """Return the seconds left for this case. Raises TimeIsUp."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeIsUp("the time of this case is up")
        return left

    def wait_until(self, is_so: Callable[[], object], otherwise: str, *, most_s: float = 30.0) -> None:
        """Wait until `is_so()` is true. Raises AssertionError with the text `otherwise` after `most_s`."""
        until = time.monotonic() + min(most_s, self.left_s())
        while not is_so():
            assert time.monotonic() < until, otherwise
            time.sleep(_LOOK_S)

    def _to_end(self, running: Running) -> Record:
        done = running.finish()
        self.peak_mb["parent"] = max(self.peak_mb["parent"], done.parent_mb)
        self.peak_mb["child"] = max(self.peak_mb["child"], done.child_mb)
        return done


class FakeClock:
    """A fake calendar clock for the program. It can be set before the start and while the program runs."""

    def __init__(self, world: World) -> None:
        self._file = world.folder / "clock"
        source = Path(__file__).with_name("other_clock.c")
        self.environment = {**world.loading(source), "FIELDRAY_ATTACK_CLOCK": str(self._file)}
        self.set_to(time.time())

    def set_to(self, seconds: float) -> None:
        """Set the clock to a time, in seconds since 1970. The clock goes on from there."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:  # the same file: it is mapped
            file.write(struct.pack("@l", int(seconds - time.time())))

"""Prove that the program sends nothing to the network.

    python tools/prove_offline.py [--frozen FOLDER] [--quick] [--only WORDS] [--out FILE]

The script runs each task of the program twice. The first time, `strace` records every network socket that the task
opens. The second time, the task runs without any network (`unshare -n`) and must also succeed. At the end, a test
program that opens a connection shows that the script would notice a connection. The script prints a table.

Exit code 0: no task opened an internet socket, and all tasks succeeded. Exit code 1: a check failed. Exit code 2: a
needed program is missing. The script needs Linux, and root or the right to make namespaces.

    --frozen FOLDER   test the installed program instead of this checkout, and search its file names for telemetry
    --quick           leave out the task with the simulated Edge TPU, which takes a minute or two
    --only WORDS      run only the tasks that have these words in their name
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "app"), str(ROOT / "tests")]

_TOOLS: Final = {"strace": "strace", "unshare": "util-linux", "Xvfb": "xvfb"}
_INSIDE: Final = frozenset({"AF_UNIX", "AF_LOCAL", "AF_NETLINK"})  # families that cannot reach another computer
_FAMILY: Final = re.compile(r"(?:\bsocket\(|\bsocketpair\(|sa_family=)(AF_\w+|0x[0-9a-f]+)")
_UNIX_PATH: Final = re.compile(r'connect\(.*sun_path=(@?"[^"]+")')
_RINGS: Final = re.compile(r"\bio_uring_setup\(.*\) = \d+$", re.MULTILINE)
_TIMEOUT_S: Final = 600.0
_TELEMETRY: Final = re.compile(
    r"telemetry|sentry|analytics|posthog|mixpanel|datadog|newrelic|bugsnag|crashpad|breakpad|urllib3|requests|httpx"
    r"|aiohttp|websocket|grpc|boto|paramiko|Qt6?Network|QtWebEngine|libcurl",
    re.IGNORECASE,
)
_IMAGES: Final = 4
# Without an address, libdbus may start a bus with dbus-launch, which outlives the window. strace waits for the bus.
_BUS: Final = os.environ.get("DBUS_SESSION_BUS_ADDRESS", "unix:path=/dev/null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of the program that is watched. If `is_window`, the window is closed when all results are stored.

    `environment` are further environment variables of the task.
    """

    name: str
    command: tuple[str, ...]
    is_window: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCalls:
    """The system calls of a task.

    `families` counts the socket calls by address family ("AF_INET"). `programs` is the number of started programs,
    `socket_paths` are the paths of connected unix sockets, and `io_rings` is the number of io_uring rings.
    """

    families: Counter[str]
    programs: int
    socket_paths: frozenset[str]
    io_rings: int

    @property
    def internet(self) -> int:
        """The number of calls that could send data to another computer: internet sockets and io_uring rings.

        io_uring rings count, because strace does not see the sockets that are opened through a ring.
        """
        return self.io_rings + sum(count for family, count in self.families.items() if family not in _INSIDE)


def read_trace(text: str) -> SystemCalls:
    """Parse the output of strace. Returns the counted system calls."""
    families: Counter[str] = Counter(_FAMILY.findall(text))
    programs = len(re.findall(r"execve\(.*\) = 0$", text, re.MULTILINE))
    return SystemCalls(
        families=families,
        programs=programs,
        socket_paths=frozenset(_UNIX_PATH.findall(text)),
        io_rings=len(_RINGS.findall(text)),
    )


# ---- the tasks


def fieldray_command(frozen: Path | None) -> list[str]:
    """Return the command that starts Fieldray: from the installed folder `frozen`, or if None from this checkout."""
    from fieldray.paths import program_command

    return [str(frozen / "fieldray")] if frozen else program_command()


def watched_tasks(folder: Path, frozen: Path | None, *, display: str, quick: bool) -> Iterator[Task]:
    """Yield the tasks to watch. Their images and packs are written below `folder`.

    `frozen` is the folder of the installed program, or None for this checkout. `display` is the name of an X display;
    "" leaves out the window. `quick` leaves out the simulated Edge TPU.
    """
    from fieldray.imaging.synthetic import write_studies
    from program import write_images
    from tiny_packs import fingerprint, write_tiny_pack

    images, call = folder / "images", fieldray_command(frozen)
    write_images(images, _IMAGES)
    write_studies(images / "studies", count=3)
    pack = write_tiny_pack(folder / "packs")
    trust = ("--pack", str(pack), "--trust", fingerprint(pack))
    yield Task(name="command line: help", command=(*call, "screen", "--help"))
    written = ("--json", str(folder / "lines.jsonl"), "--out", str(folder / "out"))
    yield Task(name="batch and reports", command=(*call, "screen", str(images), *trust, "--fresh", *written))
    yield Task(name="the pack that ships", command=(*call, "demo", "--no-window", "--folder", str(folder / "demo")))
    yield Task(name="doctor", command=("sh", "-c", '"$@"; test $? -le 1', "sh", *call, "doctor", *trust[:2]))
    yield Task(name="model drive", command=(*_with_drive(folder / "drive", pack), *call, "packs", "list"))
    on_drive = ("--pack", str(folder / "drive" / "fieldray" / pack.name), *trust[2:], "--fresh")
    yield Task(
        name="batch from a drive",
        command=(*_with_drive(folder / "drive", pack), *call, "screen", str(images), *on_drive),
    )
    if display:
        write_studies(folder / "chests", count=_IMAGES)  # DICOM has ages, so the window asks no question
        window = (str(frozen / "fieldray-window"),) if frozen else (sys.executable, "-P", "-c", _WINDOW)
        yield Task(
            name="window",
            command=(*window, str(folder / "chests")),
            is_window=True,
            environment={"DISPLAY": display, "LANG": "C.UTF-8", "DBUS_SESSION_BUS_ADDRESS": _BUS},
        )
    if not frozen and importlib.util.find_spec("tensorflow"):
        yield Task(name="toolchain: a network", command=(sys.executable, "-P", "-c", _TOOLCHAIN))
    if not frozen and not quick:
        double = ("--events", "8", "--images", "30", "--seed", "3", "--window", "--out", str(folder / "faults.json"))
        yield Task(
            name="Edge TPU double, window",
            command=(sys.executable, str(ROOT / "tests" / "faults" / "run_faults.py"), *double),
            environment={"QT_QPA_PLATFORM": "offscreen"},
        )


_TOOLCHAIN: Final = """
from fieldray.offline import stay_offline
stay_offline(is_toolchain=True)
import numpy, keras, requests, tensorflow
network = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
network.compile(loss="mse")
network.fit(numpy.zeros((4, 8, 8, 1)), numpy.zeros((4, 1)), verbose=0)
tensorflow.lite.TFLiteConverter.from_keras_model
"""
_WINDOW: Final = "import sys; from fieldray.__main__ import open_in_window; sys.exit(open_in_window(sys.argv[1:]))"


def _with_drive(mount_point: Path, pack: Path) -> tuple[str, ...]:
    """Return a command prefix that mounts a temporary drive at `mount_point` with a copy of the pack in `pack`.

    Only the prefixed command sees the drive, because the mount is in a separate namespace.
    """
    mount_point.mkdir(exist_ok=True)
    script = 'mount -t tmpfs none "$1" && mkdir "$1/fieldray" && cp -r "$2" "$1/fieldray/" && shift 2 && exec "$@"'
    return (*_unshare("-m"), "sh", "-c", script, "sh", str(mount_point), str(pack))


def _unshare(*what: str) -> tuple[str, ...]:
    return ("unshare", *([] if os.geteuid() == 0 else ["-r"]), *what)


# ---- running a task under strace


def run_under_strace(work: Task, home: Path) -> tuple[int, SystemCalls]:
    """Run a task under strace, with the data folder `home`. Returns the exit code and the counted system calls."""
    trace = home.parent / f"{home.name}.trace"
    calls = "trace=%network,execve,io_uring_setup"
    prefix = ("strace", "--follow-forks", "--seccomp-bpf", "-qq", "-e", "signal=none", "-e", calls, "-o", str(trace))
    code = run_task(work, prefix, home)
    return code, read_trace(trace.read_text(encoding="utf-8", errors="replace"))


def run_without_network(work: Task, home: Path) -> int:
    """Run a task without any network, not even localhost, with the data folder `home`. Returns the exit code."""
    return run_task(work, _unshare("-n"), home)


def run_task(work: Task, prefix: Sequence[str], home: Path) -> int:
    """Run a task behind the command prefix `prefix`, with the new data folder `home`. Returns the exit code.

    The output goes to a file next to `home`, with the suffix .words. Raises TimeoutError or subprocess.TimeoutExpired
    after 10 minutes.
    """
    home.mkdir()
    if work.is_window:  # with a default pack, the window asks no question
        (home / "settings.json").write_text(json.dumps({"pack": "adult-normal-abnormal"}), encoding="utf-8")
    paths = os.pathsep.join([str(ROOT / "app"), str(ROOT / "tests")])
    environment = {**os.environ, "FIELDRAY_HOME": str(home), "PYTHONPATH": paths, **work.environment}
    with home.with_suffix(".words").open("wb") as words:
        process = subprocess.Popen([*prefix, *work.command], env=environment, stdout=words, stderr=words)
        try:
            if work.is_window:
                _close_when_done(process, home)
            return process.wait(_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _close_when_done(process: subprocess.Popen[bytes], home: Path) -> None:
    import psutil

    deadline = time.monotonic() + _TIMEOUT_S
    while _result_count(home) < _IMAGES and process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError("the window kept no results")
        time.sleep(0.5)
    # Only the window's process, not strace, unshare or child processes of the window.
    mine = psutil.Process(process.pid)
    chain = [mine, *mine.children(recursive=True)]
    named = [child for child in chain if child.name() not in ("strace", "unshare")]
    if named and process.poll() is None:
        named[0].send_signal(signal.SIGTERM)


def _result_count(home: Path) -> int:
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_database(home)) as database:
        return int(database.execute("SELECT count(*) FROM answers").fetchone()[0])
    return 0


def _database(home: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{home / 'results.sqlite'}?mode=ro", uri=True)


@contextlib.contextmanager
def virtual_display() -> Iterator[str]:
    """Start the X server Xvfb without a network port during the block. Yields the display name; "" if it fails."""
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1366x768x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[write], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(write)
    try:
        with os.fdopen(read) as reports:
            number = reports.readline().strip()
        yield f":{number}" if number else ""
    finally:
        server.terminate()
        server.wait()


# ---- the results


def find_telemetry_files(frozen: Path) -> list[str]:
    """Return the files and modules of the installed program whose names suggest telemetry or a network client."""
    names = [path.relative_to(frozen).as_posix() for path in frozen.rglob("*")]
    with contextlib.suppress(ImportError):
        sys.path.append(str(ROOT / "installer"))
        import parts

        names += sorted(parts.module_names(frozen))
    return [name for name in names if _TELEMETRY.search(name)]


def trace_connecting_program(folder: Path) -> SystemCalls:
    """Run a test program that tries to open a connection, under strace. Returns its counted system calls.

    The calls show that strace notices a connection. Files are written below `folder`.
    """
    code = "import socket\ntry: socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError: pass"
    work = Task(name="a program that connects", command=(sys.executable, "-I", "-c", code))
    return run_under_strace(work, folder / "control")[1]


def _row(name: str, seen: SystemCalls, codes: Sequence[int | str]) -> str:
    inside = seen.families["AF_UNIX"], seen.families["AF_NETLINK"]
    return (
        f"{name:26} {seen.programs:9} {inside[0]:6} {inside[1]:8} {seen.internet:9}  {codes[0]!s:>6} {codes[1]!s:>11}"
    )


def main() -> int:
    """Run each task twice, and print the table. Returns 0 if all checks succeeded, 1 if not, 2 without the tools."""
    parser = argparse.ArgumentParser(description="Prove that the program connects to no other computer.")
    parser.add_argument("--frozen", type=Path, metavar="FOLDER", help="test the frozen program in this folder")
    parser.add_argument("--quick", action="store_true", help="run fewer tasks")
    parser.add_argument("--only", default="", metavar="WORDS", help="run only the tasks with these words in their name")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures to this JSON file")
    options = parser.parse_args()
    missing = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    if missing or sys.platform != "linux":
        sys.stderr.write(f"Needs Linux and: apt-get install {' '.join(missing)}\n")
        return 2
    with tempfile.TemporaryDirectory() as temporary, virtual_display() as display:
        failures, figures = _prove(Path(temporary), options, display)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write("".join(f"FAILED: {line}\n" for line in failures) or "No task connected to another computer.\n")
    return 1 if failures else 0


def _prove(folder: Path, options: argparse.Namespace, display: str) -> tuple[list[str], list[dict[str, object]]]:
    failures, figures, socket_paths = [], [], set()
    sys.stdout.write(f"{'':26} programs   unix  netlink  INTERNET  exit, exit without network\n")
    frozen = options.frozen.resolve() if options.frozen else None
    tasks = watched_tasks(folder, frozen, display=display, quick=options.quick)
    chosen = [work for work in tasks if options.only in work.name]
    for number, work in enumerate(chosen):
        code, seen = run_under_strace(work, folder / f"watched-{number}")
        alone = run_without_network(work, folder / f"alone-{number}")
        sys.stdout.write(_row(work.name, seen, (code, alone)) + "\n")
        sys.stdout.flush()
        figures.append(
            {"work": work.name, "internet": seen.internet, "families": dict(seen.families), "exit": [code, alone]}
        )
        socket_paths |= seen.socket_paths
        if seen.internet:
            failures.append(f"{work.name}: {dict(seen.families)}")
        if code or alone:
            words = (folder / f"watched-{number}.words").read_text(errors="replace")[-500:]
            failures.append(f"{work.name} ended with exit code {code}, without network with {alone}: {words}")
    control = trace_connecting_program(folder)
    sys.stdout.write(_row("control: a program that connects", control, ("", "")) + "\n")
    if not control.internet:
        failures.append("strace did not report the connection of the control program")
    sys.stdout.write(f"connected unix sockets: {', '.join(sorted(socket_paths)) or 'nothing'}\n")
    if frozen:
        found = find_telemetry_files(frozen)
        sys.stdout.write(f"files and modules that could send data: {', '.join(found) or 'none'}\n")
        failures += [f"the frozen program contains a file that could send data: {name}" for name in found]
    return failures, figures


if __name__ == "__main__":
    sys.exit(main())

"""Open the installed window on an X display without a window manager, and control the window from outside."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

from clean_root import CleanRoot, User
from expectation import UnexpectedResult

T = TypeVar("T")

DISPLAY: Final = ":97"
PROGRAM: Final = "/opt/fieldray/fieldray-window"
WAIT_S: Final = 60.0


@contextlib.contextmanager
def virtual_display(root: CleanRoot) -> Iterator[None]:
    """Start an X display without a window manager during the block, for the programs in the small system."""
    Path("/tmp/.X11-unix").mkdir(mode=0o1777, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/tmp/.X11-unix"], check=True)
    server = subprocess.Popen(
        ["Xvfb", DISPLAY, "-screen", "0", "1366x768x24", "-nolisten", "tcp", "-noreset"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    socket = Path("/tmp/.X11-unix") / f"X{DISPLAY[1:]}"
    try:
        wait_until(socket.exists, "the X screen")
        (root.path / "tmp/.X11-unix").mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", "/tmp/.X11-unix", str(root.path / "tmp/.X11-unix")], check=True)
        yield
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def run_window(root: CleanRoot, user: User, *paths: str, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Open the installed window as a user during the block, and yield the window's number on the display.

    `more` are further environment variables. Raises UnexpectedResult if the program prints output.
    """
    environment = {"DISPLAY": DISPLAY, "XDG_RUNTIME_DIR": f"/run/user/{user.number}", **(more or {})}
    known = set(find_windows("Fieldray"))
    process = root.start("/usr/bin/env", f"--chdir={user.home}", PROGRAM, *paths, user=user, environment=environment)
    try:
        title = "a window with the title Fieldray"
        wait_until(lambda: set(find_windows("Fieldray")) - known or process.poll() is not None, title)
        for window in set(find_windows("Fieldray")) - known:
            yield window
            break
    finally:
        process.terminate()
        output, errors = process.communicate(timeout=WAIT_S)
    if process.returncode or output or errors:
        raise UnexpectedResult(f"the window ended with {process.returncode} and said:\n{output}{errors}")


def find_windows(title: str) -> list[str]:
    """Return the numbers of the visible windows on the display whose title is `title`."""
    command = ["xdotool", "search", "--onlyvisible", "--name", f"^{title}$"]
    done = subprocess.run(command, env={"DISPLAY": DISPLAY}, capture_output=True, text=True, check=False)
    return done.stdout.split()


def type_and_press(window: str, *keys: str, text: str = "") -> None:
    """Give a window the keyboard focus, type the text `text`, and then press the keys `keys`."""
    typed = ["type", "--delay", "30", text] if text else []
    for action in (["windowfocus", "--sync", window], typed, ["key", *keys]):
        if action:
            subprocess.run(["xdotool", *action], env={"DISPLAY": DISPLAY}, check=True)


def wait_until(is_so: Callable[[], T], what: str) -> T:
    """Wait until the function `is_so` returns a true value, and return the value.

    Raises UnexpectedResult, with the description `what`, if the function does not return a true value in time.
    """
    deadline_s = time.monotonic() + WAIT_S
    while not (value := is_so()):
        if time.monotonic() > deadline_s:
            raise UnexpectedResult(f"{what} did not appear within {WAIT_S:.0f} s")
        time.sleep(0.1)
    return value

"""Where the window is started, and what happens without a screen."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fieldray.paths import child_command, installed_program
from fieldray.starting import has_screen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for the window's program")


def test_from_a_checkout_nothing_is_installed_beside() -> None:
    assert installed_program("fieldray-window") is None
    assert child_command("fieldray.imaging.service:handle")[:2] == [sys.executable, "-I"]


def test_a_screen_is_one_of_three_things() -> None:
    assert not has_screen({})
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        assert has_screen({name: ":0"})
        assert not has_screen({name: ""})


@pytest.mark.parametrize("arguments", [(), (".",)])
def test_without_a_screen_a_plain_sentence_and_no_crash(arguments: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name and "QT_" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "fieldray", *arguments],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "fieldray: The window needs a screen, and there is none here. This works without one: fieldray screen FOLDER\n"
    )


def test_the_window_computes_with_one_thread_which_is_said_before_numpy_loads() -> None:
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name and "QT_" not in name}
    environment.pop("OPENBLAS_NUM_THREADS", None)
    code = (
        "import os, sys\nfrom fieldray.__main__ import window\nwindow([])\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["1", "False"]


@pytest.mark.parametrize("paths", [(), (".", "..")])
def test_installed_the_window_is_the_program_beside_this_one(tmp_path: Path, paths: tuple[str, ...]) -> None:
    window = tmp_path / "fieldray-window"
    window.write_text('#!/bin/sh\nprintf "%s|" "$0" "$@"\nexit 5\n')
    window.chmod(window.stat().st_mode | stat.S_IXUSR)
    frozen = (
        "import sys; sys.frozen, sys.executable = True, sys.argv.pop(1)\n"
        "from fieldray.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", frozen, str(tmp_path / "fieldray"), *paths], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (5, "|".join([str(window), *paths, ""]), "")

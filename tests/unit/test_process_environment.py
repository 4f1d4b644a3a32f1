"""Environment variables that name libraries, and the environment of the window."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fieldray.paths import child_process_command, installed_program_path, program_command
from fieldray.process_environment import has_display, restrict_environment
from program import python

_CODE = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void begin(void) { FILE *mark = fopen(getenv("MARK"), "a"); fclose(mark); }
"""
_CONFIGURATION = """
openssl_conf = begin
[begin]
providers = providers
[providers]
other = other
[other]
module = {library}
activate = 1
"""


def test_only_known_environment_variables_are_kept() -> None:
    known = {"LANG": "uk_UA.UTF-8", "LC_TIME": "C", "DISPLAY": ":0", "FIELDRAY_HOME": "home", "SYSTEMROOT": r"C:\W"}
    known |= {"QT_SCALE_FACTOR": "2", "XDG_SESSION_TYPE": "x11", "TF_NUM_INTRAOP_THREADS": "1", "USERPROFILE": r"C:\me"}
    known |= {"AWS_ACCESS_KEY_ID": "reader", "AWS_CONFIG_FILE": str(Path("/config").absolute())}
    naming_code = ("OPENSSL_CONF", "QT_PLUGIN_PATH", "GTK_MODULES", "LIBGL_DRIVERS_PATH", "LD_AUDIT", "MATPLOTLIBRC")
    naming_code += ("DASK_CONFIG", "OMP_TOOL_LIBRARIES", "KERAS_BACKEND", "SSLKEYLOGFILE", "PYTHONPATH", "OF_TOMORROW")
    naming_code += ("AWS_DATA_PATH", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    environment = known | dict.fromkeys(naming_code, "/x")
    restrict_environment(environment)
    assert environment == known


@pytest.mark.skipif(os.name != "posix", reason="a colon parts paths")
def test_the_current_directory_is_in_no_search_path() -> None:
    separator, first, last = os.pathsep, str(Path("/first").absolute()), str(Path("/last").absolute())
    environment = {
        "LD_LIBRARY_PATH": separator.join([first, "", ".", "lib", last]),
        "LD_PRELOAD": f"{first} ./here.so:{last}:here.so",
        "DYLD_LIBRARY_PATH": "",
        "PATH": separator + first,
        "XDG_CONFIG_HOME": ".",
        "XDG_DATA_DIRS": separator.join([".", last]),
        "HOMEPATH": "me",
        "AWS_SHARED_CREDENTIALS_FILE": "credentials",
    }
    restrict_environment(environment)
    assert environment == {
        "LD_LIBRARY_PATH": separator.join([first, last]),
        "LD_PRELOAD": separator.join([first, last]),
        "PATH": first,
        "XDG_DATA_DIRS": last,
        "HOMEPATH": "me",
    }


@pytest.mark.skipif(os.name != "posix", reason="core files of POSIX")
def test_the_program_itself_leaves_no_core_file() -> None:
    code = (
        "import resource\nfrom fieldray.__main__ import main\nresource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))\n"
        "main(['packs', 'list'])\nprint(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    done = python(code)
    assert done.stdout.splitlines()[-1:] == ["(0, 0)"], done.stderr


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler of Linux")
def test_libraries_named_in_an_openssl_configuration_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text(_CODE)
    library, mark = tmp_path / "other.so", tmp_path / "mark"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "other.c"], check=True)
    (tmp_path / "openssl.cnf").write_text(_CONFIGURATION.format(library=library))
    own = {"OPENSSL_CONF": str(tmp_path / "openssl.cnf"), "FIELDRAY_HOME": str(tmp_path / "home"), "MARK": str(mark)}
    done = subprocess.run(program_command("packs", "list"), env={**os.environ, **own}, capture_output=True, check=False)
    assert (done.returncode, mark.exists()) == (0, False), done.stderr


# ---- the window


def test_from_a_checkout_there_is_no_installed_window_program() -> None:
    assert installed_program_path("fieldray-window") is None
    assert child_process_command("fieldray.workers.image_worker:handle")[:2] == [sys.executable, "-I"]


_NOWHERE = ":99"  # no X server has this number, and no Wayland display this name


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="X11 and Wayland")
def test_a_display_counts_only_if_it_can_be_opened() -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        assert not has_display({})
        assert not has_display({name: ""})
        assert not has_display({name: _NOWHERE})
        assert not has_display({name: _NOWHERE, "QT_QPA_PLATFORM": "xcb"})
        assert not has_display({name: _NOWHERE, "QT_QPA_PLATFORM": "wayland-egl"})
    assert has_display({"DISPLAY": _NOWHERE, "QT_QPA_PLATFORM": "offscreen"})
    assert has_display({"QT_QPA_PLATFORM": "minimal:a"})
    assert not has_display({"QT_QPA_PLATFORM": "xcb"})


@pytest.mark.skipif(sys.platform != "linux", reason="X11")
def test_a_display_whose_server_answers_can_be_used() -> None:
    number = os.getpid()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(20)
        server.bind(f"\0/tmp/.X11-unix/X{number}")
        server.listen()
        answering = threading.Thread(target=_let_in, args=(server,))
        answering.start()
        try:
            assert has_display({"DISPLAY": f":{number}"})
        finally:
            answering.join()


def _let_in(server: socket.socket) -> None:
    """The handshake of X11, version 11: read the client's 12 bytes, and accept."""
    client, _ = server.accept()
    with client:
        client.recv(4096)
        client.sendall(struct.pack("<BxHHH", 1, 11, 0, 8) + bytes(32))
        while client.recv(4096):  # until the client goes
            pass


def without_screen() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "DISPLAY" not in name and "QT_" not in name}


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="X11 and Wayland")
@pytest.mark.parametrize("screen", [{}, {"DISPLAY": _NOWHERE}, {"WAYLAND_DISPLAY": _NOWHERE}])
@pytest.mark.parametrize("arguments", [(), (".",)])
def test_without_a_display_the_window_ends_with_a_message(arguments: tuple[str, ...], screen: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fieldray", *arguments],
        env=without_screen() | screen, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "fieldray: No display is available for the window. Use the command line instead: fieldray screen FOLDER\n"
    )


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="X11 and Wayland")
def test_the_windows_one_thread_limit_is_set_before_numpy_loads() -> None:
    environment = without_screen()
    environment.pop("OPENBLAS_NUM_THREADS", None)
    code = (
        "import os, sys\nfrom fieldray.__main__ import open_in_window\nopen_in_window([])\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)"
    )
    assert python(code, environment=environment).stdout.split() == ["1", "False"]


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for the window's program")
@pytest.mark.parametrize("paths", [(), (".", "..")])
def test_the_installed_window_is_the_program_next_to_this_one(tmp_path: Path, paths: tuple[str, ...]) -> None:
    window = tmp_path / "fieldray-window"
    window.write_text('#!/bin/sh\nprintf "%s|" "$0" "$@"\nexit 5\n')
    window.chmod(window.stat().st_mode | stat.S_IXUSR)
    frozen = (
        "import sys; sys.frozen, sys.executable = True, sys.argv.pop(1)\n"
        "from fieldray.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = python(frozen, tmp_path / "fieldray", *paths)
    assert (done.returncode, done.stdout, done.stderr) == (5, "|".join([str(window), *paths, ""]), "")

"""Wrong use of output options: no image or result is lost, and the exit code is not 0."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from fieldray.reports.exporter import exporters
from harness.record import json_lines
from program import Fieldray, python, write_images

posix = pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")


def test_a_forgotten_file_name_after_json_overwrites_no_image(
    tmp_path: Path, fieldray: Fieldray, pack_options: list[str]
) -> None:
    images = write_images(tmp_path / "images", 3)
    before = {path: path.read_bytes() for path in images}
    done = fieldray("screen", *pack_options, "--json", *images)  # as the shell expands images/*
    done.ends_with(2).complains("not an earlier output")
    fieldray("screen", *images, *pack_options, "--json", images[1]).ends_with(2).complains("input files")
    assert {path: path.read_bytes() for path in images} == before


def test_an_earlier_file_of_json_lines_is_replaced_and_a_pipe_is_written(tmp_path: Path, screen: Fieldray) -> None:
    write_images(tmp_path / "images", 2)
    for _ in range(2):
        screen("--json", tmp_path / "lines").ends_with(0)
    assert len(json_lines((tmp_path / "lines").read_text())) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "lines"]
    if sys.platform != "win32":
        assert screen("--json", "/dev/stderr").ends_with(0).err.count('"status"') == 2


@posix
def test_only_their_user_can_read_outputs(tmp_path: Path, screen: Fieldray, fieldray: Fieldray) -> None:
    """Whatever the umask, others cannot read outputs, also if an earlier output was readable."""
    write_images(tmp_path / "images", 1)
    out, maps, lines = tmp_path / "out", tmp_path / "maps", tmp_path / "lines"
    to_folder = ("--out", out / "deep", "--formats")

    def modes(*, of_folders: bool) -> set[int]:
        paths = (out, maps, lines, *out.rglob("*"), *maps.rglob("*"))
        return {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir() == of_folders}

    before = os.umask(0)
    try:
        screen(*to_folder, ",".join(exporters()), "--maps", maps, "--json", lines).ends_with(0)
        assert (modes(of_folders=False), modes(of_folders=True)) == ({0o600}, {0o700})
        for path in (*out.glob("deep/*.csv"), *out.glob("deep/*-sr"), *out.glob("deep/*-sr/*")):
            path.chmod(0o777)
        assert 0o777 in modes(of_folders=False) & modes(of_folders=True)
        fieldray("history", "export", 1, *to_folder, "csv,sr").ends_with(0)
        assert (modes(of_folders=False), modes(of_folders=True)) == ({0o600}, {0o700})
    finally:
        os.umask(before)


@posix
def test_a_results_file_that_is_no_database_is_renamed_and_reported(
    tmp_path: Path, home: Path, screen: Fieldray
) -> None:
    write_images(tmp_path / "images", 2)
    (home / "results.sqlite").write_bytes(b"these are no results" * 100)
    screen().ends_with(0).complains("results.damaged-1.sqlite")
    assert screen().ends_with(0).err == ""


INTERRUPTED = """
import _signal, os, sys
sys.modules.pop("fieldray.__main__", None)
import fieldray.__main__ as program
left = int(sys.argv.pop(1))

def count(event, arguments):
    global left
    if event == "import":
        left -= 1
        if left == 0:
            _signal.raise_signal(_signal.SIGINT)

sys.addaudithook(count)
sys.exit(program.main())
"""


@posix
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("after_imports", "path"), [*((number, "") for number in (1, 2, 5, 20, 60, 90)), (5, "/x")])
def test_ctrl_c_during_the_start_prints_no_traceback(tmp_path: Path, after_imports: int, path: str) -> None:
    """Press Ctrl-C while the program is starting, at the import with this number."""
    done = python(INTERRUPTED, after_imports, "screen", tmp_path / "x", environment={**os.environ, "PYTHONPATH": path})
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 130

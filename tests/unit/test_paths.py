"""The folders of the program, and its version."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem
from fieldray.paths import DATA_FOLDER_FILE_PREFIXES, VERSION, data_folder, scratch_folder, translation_catalogue_paths


def test_the_version_is_that_of_the_package() -> None:
    document = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert document["project"]["version"] == VERSION


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_the_home_is_for_this_user_only(home: Path) -> None:
    home.chmod(0o755)
    assert data_folder() == home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_file_in_place_of_the_data_folder_is_reported(home: Path) -> None:
    home.rmdir()
    home.write_text("")
    with pytest.raises(StorageProblem) as problem:
        data_folder()
    assert problem.value.reason.code == "home_unusable"


def test_with_an_invalid_data_folder_the_shipped_languages_remain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FIELDRAY_HOME", "/" + "x" * 5000)
    assert "uk" in translation_catalogue_paths()


HELD = """
import sys, time
from fieldray.paths import scratch_folder
with scratch_folder() as own:
    (own / "patient.dcm").write_bytes(b"of a patient")
    print(own, flush=True)
    time.sleep(600)
"""


def test_temporary_folders_of_dead_processes_are_removed(home: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True) as living,
    ):
        assert killed.stdout and living.stdout
        left, held = (Path(process.stdout.readline().strip()) for process in (killed, living) if process.stdout)
        killed.kill()
        killed.wait()
        assert (left / "patient.dcm").exists()
        with scratch_folder() as own:
            assert set(own.parent.iterdir()) == {own, held}
        assert (held / "patient.dcm").exists()
        living.kill()


def test_the_privacy_page_names_every_stored_file() -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    for name in DATA_FOLDER_FILE_PREFIXES:
        assert re.search(rf"^- .*`{re.escape(name)}", page, re.MULTILINE), name

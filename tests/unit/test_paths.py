"""Where things are, and which version this is."""

from __future__ import annotations

import stat
import sys
import tomllib
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem
from fieldray.paths import VERSION, catalogues, user_data


def test_the_version_is_the_packages() -> None:
    document = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert document["project"]["version"] == VERSION


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_the_home_is_for_this_user_only(home: Path) -> None:
    home.chmod(0o755)
    assert user_data() == home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_home_that_is_a_file_is_told(home: Path) -> None:
    home.rmdir()
    home.write_text("")
    with pytest.raises(StorageProblem) as problem:
        user_data()
    assert problem.value.reason.code == "home_unusable"


def test_a_data_folder_of_an_impossible_name_leaves_the_languages_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FIELDRAY_HOME", "/" + "x" * 5000)
    assert "uk" in catalogues()

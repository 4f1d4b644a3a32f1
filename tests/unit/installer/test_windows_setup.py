"""The script of the Windows installer as text: files to install and to remove, and no downloads.

The installer itself is run by installer/windows/smoke_test.py, in wine.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

import build_setup

SCRIPT = build_setup.SCRIPT.read_text(encoding="utf-8")
TEXTS = build_setup.SCRIPT.with_name("texts.nsh").read_text(encoding="utf-8")
FILES = ["_internal/знімки/файл.txt", "_internal/a/b$c.txt", "fieldray.exe"]


def test_every_file_is_installed_and_removed_by_name() -> None:
    laid = build_setup.install_lines(Path("/frozen"), FILES)
    assert laid == [
        'SetOutPath "$Staging\\_internal\\знімки"',
        'File "/oname=файл.txt" "/frozen/_internal/знімки/файл.txt"',
        'SetOutPath "$Staging\\_internal\\a"',
        'File "/oname=b$$c.txt" "/frozen/_internal/a/b$c.txt"',
        'SetOutPath "$Staging"',
        'File "/oname=fieldray.exe" "/frozen/fieldray.exe"',
    ]
    removed = build_setup.remove_lines(FILES)
    assert removed[:3] == [
        'Delete "$INSTDIR\\_internal\\знімки\\файл.txt"',
        'Delete "$INSTDIR\\_internal\\a\\b$$c.txt"',
        'Delete "$INSTDIR\\fieldray.exe"',
    ]
    folders = [re.findall(r'"\$INSTDIR\\(.+)"', line)[0] for line in removed[3:]]
    assert folders == ["_internal\\a", "_internal\\знімки", "_internal"]  # the innermost folder first
    assert len(PurePosixPath(*folders[0].split("\\")).parts) == 2


def test_a_file_name_that_windows_does_not_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="not a name for Windows"):
        build_setup.install_lines(Path("/frozen"), ["_internal/a:b.txt"])


@pytest.mark.parametrize(
    ("version", "numbers"), [("1.2.3", "1.2.3.0"), ("0.1", "0.1.0.0"), ("1.2rc1", "1.2.0.0"), ("1.2.3.4", "1.2.3.4")]
)
def test_a_windows_version_has_four_numbers(version: str, numbers: str) -> None:
    assert build_setup.windows_version(version) == numbers


def test_a_folder_without_the_program_is_refused(tmp_path: Path) -> None:
    if build_setup.shutil.which("makensis") is None:
        pytest.skip("makensis is not installed")
    with pytest.raises(FileNotFoundError, match=r"fieldray-window\.exe"):
        build_setup.build(tmp_path, tmp_path / "out", version="1.0")


def test_setup_downloads_nothing() -> None:
    code = "\n".join(line.partition(";")[0] for line in SCRIPT.splitlines()).lower()
    assert re.findall(r"nsisdl|inetc|inetload|nscurl|wininet|winhttp|powershell|bitsadmin|://", code) == []


def test_setup_removes_only_its_own_files_and_on_request_results() -> None:
    """Three whole folders are removed: those that Setup itself created or set aside, and the results if asked for."""
    whole = re.findall(r'RMDir /r "([^"]+)"', SCRIPT)
    assert set(whole) == {"$Staging", "$INSTDIR.old", "$LOCALAPPDATA\\fieldray"}
    asked = re.search(
        r"\$WantsResultsGone = 1\s+SetShellVarContext current[^\n]*\n\s+RMDir /r \"\$LOCALAPPDATA", SCRIPT
    )
    assert asked is not None


def test_every_text_exists_in_both_languages() -> None:
    said = set(re.findall(r"\$\(([A-Z_]+)\)", SCRIPT + TEXTS))
    written = re.findall(r'!insertmacro Text (\w+)\s*\\?\s*"([^"]+)"\s*\\?\s*"([^"]+)"', TEXTS)
    assert said == {name for name, _english, _ukrainian in written}
    for name, english, ukrainian in written:
        assert re.search("[А-Яа-яіїєґ]", ukrainian), name
        assert not re.search("[А-Яа-я]", english), name

"""Names of files that a shell puts in place of `*` are never taken for options and commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.cli import run
from fieldray.commands.typed import require_typed
from fieldray.errors import UsageProblem

FINGERPRINT = "ab12" * 16


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FIELDRAY_HOME", str(tmp_path / "home"))
    folder = tmp_path / "drive"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def as_shell(folder: Path) -> list[str]:
    """What `*` becomes."""
    return sorted(place.name for place in folder.iterdir())


@pytest.mark.parametrize("name", [f"--trust={FINGERPRINT}", "--allow-older", "--json=out", "--", "-h", "--pack=m"])
def test_a_file_is_no_option(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / name).touch()
    (here / "film.png").touch()
    assert run(["screen", *as_shell(here)]) == 2
    assert f"There is a file called {name} here" in capsys.readouterr().err
    assert not (here.parent / "home" / "pack_trust.json").exists()


def test_files_are_no_command(here: Path) -> None:
    for name in ("packs", "trust", f"\u3000{FINGERPRINT}"):
        (here / name).touch()
    assert run(as_shell(here)) == 2
    assert not (here.parent / "home" / "pack_trust.json").exists()


def test_what_a_person_types_passes(here: Path) -> None:
    for name in ("screen", "images", "-", "--trust", "doctor"):
        (here / name).mkdir()
    for arguments in (
        ["doctor"],
        ["screen", "./images"],
        ["screen", str(here / "images")],
        ["screen", "images", "--json", "-"],
        ["screen", "images", "--fresh"],
        ["screen", "--", "--trust"],
        ["screen", "./--trust"],
        ["packs", "list"],
    ):
        require_typed(arguments)
    with pytest.raises(UsageProblem):
        require_typed(["screen", "images"])
    (here / "screen").rmdir()
    require_typed(["screen", "images"])


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["screen", "http://clinic.example/a.dcm"], "http://clinic.example/a.dcm"),
        (["screen", ".", "file://host/share"], "file://host/share"),
        (["screen", ".", "--out=SMB://host/share"], "SMB://host/share"),
        (["history", "export", "1", "--out", "file:///tmp/out"], "file:///tmp/out"),
        (["compare", "https://x/y", "b.png", "--out", "o"], "https://x/y"),
        (["file://host/share"], "file://host/share"),
        ([".", "file:///a%20b"], "file:///a%20b"),
    ],
)
def test_an_address_is_no_path(
    arguments: list[str], address: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith(f"fieldray: {address} is an address")
    assert not [*here.iterdir()]


def test_the_address_of_a_scheduler_is_none_of_them() -> None:
    require_typed(["cluster", "status", "tls://192.168.1.10:8786"])

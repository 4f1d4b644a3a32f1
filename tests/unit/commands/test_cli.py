"""Arguments: a file name is never an option, an empty path no folder; and Ctrl-C ends a command."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fieldray.cli import CANCELLED_EXIT_CODE, run
from fieldray.commands.console import refuse_shell_expanded_names, system_console
from fieldray.errors import UsageProblem

FINGERPRINT = "ab12" * 16


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "drive"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def as_shell(folder: Path) -> list[str]:
    """The file names that the shell puts in place of `*`."""
    return sorted(place.name for place in folder.iterdir())


@pytest.mark.parametrize("name", [f"--trust={FINGERPRINT}", "--allow-older", "--json=out", "--", "-h", "--pack=m"])
def test_a_file_name_is_never_taken_for_an_option(
    name: str, here: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / name).touch()
    (here / "film.png").touch()
    assert run(["screen", *as_shell(here)]) == 2
    assert f"{name} is both an option and the name of a file" in capsys.readouterr().err
    assert not (home / "pack_trust.json").exists()


def test_a_file_name_is_never_taken_for_a_command(here: Path, home: Path) -> None:
    for name in ("packs", "trust", f"\u3000{FINGERPRINT}"):
        (here / name).touch()
    assert run(as_shell(here)) == 2
    assert not (home / "pack_trust.json").exists()


def test_ordinary_arguments_are_accepted(here: Path) -> None:
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
        refuse_shell_expanded_names(arguments)
    with pytest.raises(UsageProblem):
        refuse_shell_expanded_names(["screen", "images"])
    (here / "screen").rmdir()
    refuse_shell_expanded_names(["screen", "images"])


@pytest.mark.parametrize("option", ["--json", "--out", "--maps"])
def test_an_output_that_cannot_be_written_is_wrong_usage(
    option: str, here: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").touch()
    assert run(["screen", ".", option, str(here / "file" / "folder" / "below")]) == 2
    assert "Cannot write to" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("screen", ""),
        ("screen", "here", ""),
        ("screen", "here", "--out", ""),
        ("screen", "here", "--maps", ""),
        ("screen", "here", "--json", ""),
        ("screen", "here", "--pack", ""),
        ("history", "export", "1", "--out", ""),
        ("compare", "", "here", "--out", "out"),
        ("compare", "here", "", "--out", "out"),
        ("compare", "here", "here", "--out", ""),
        ("audit", ""),
        ("audit", "here", "--labels", ""),
        ("audit", "here", "--labels", "folders", "--out", ""),
        ("store", "backup", ""),
        ("store", "restore", ""),
        ("packs", "list", ""),
        ("packs", "install", ""),
        ("packs", "verify", ""),
        ("demo", "--folder", ""),
        ("doctor", "--out", ""),
        ("bench", "load", "--out", ""),
        ("bench", "host", "--float-file", ""),
        ("archive", "screen", "", "--out", "out"),
        ("archive", "screen", "here", "--out", ""),
        ("cluster", "certificates", ""),
        ("workflow", "run", ""),
        ("adapt", "run", ""),
        ("adapt", "check", ""),
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(arguments: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(list(arguments)) == 2
    assert "the value is empty" in capsys.readouterr().err
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ("screen", "smb://host/share"),
        ("screen", "here", "--out", "file://host/share"),
        ("store", "backup", "smb://host/share"),
        ("archive", "screen", "s3://bucket", "--out", "sftp://host/out"),
    ],
    ids=" ".join,
)
def test_a_url_is_refused_as_a_path(arguments: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(list(arguments)) == 2
    assert " is a network address" in capsys.readouterr().err
    assert not list(here.iterdir())


# ---- Ctrl-C while a native library is being loaded


class Panic(BaseException):
    """A panic as libraries in Rust raise it."""


def run_command(command: Callable[[object, object], int]) -> int:
    """Run this function as a command of the program."""
    parser = argparse.ArgumentParser()
    parser.set_defaults(command=command)
    return run([], parser=parser, console=system_console())


@pytest.mark.parametrize("kind", [Panic, RuntimeError])
def test_an_error_of_an_interrupted_library_counts_as_a_cancel(
    kind: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    def command(_options: object, _console: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise kind("cannot be loaded") from None
        return 0

    assert run_command(command) == CANCELLED_EXIT_CODE
    assert "cancelled" in capsys.readouterr().err


def test_a_panic_without_an_interrupt_is_raised() -> None:
    def command(_options: object, _console: object) -> int:
        raise Panic

    with pytest.raises(Panic):
        run_command(command)

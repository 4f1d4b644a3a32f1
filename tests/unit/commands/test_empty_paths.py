"""An empty path is a script's variable that was never set, and never the current folder."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fieldray import cli
from fieldray.commands.console import Console


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
def test_an_empty_path_is_refused(
    arguments: tuple[str, ...], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert cli.run(list(arguments), console=Console(io.StringIO(), io.StringIO())) == 2
    assert "it is empty" in capsys.readouterr().err
    assert not list(here.iterdir())

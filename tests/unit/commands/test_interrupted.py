"""What a Ctrl-C leaves of a native library that is just being loaded."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import pytest

from fieldray import cli
from fieldray.commands.console import system_console


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("kind", [Panic, RuntimeError])
def test_what_an_interrupted_library_raises_is_a_cancel(
    kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIELDRAY_HOME", str(tmp_path))

    def command(_options: object, _console: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise kind("cannot be loaded") from None
        return 0

    parser = argparse.ArgumentParser()
    parser.set_defaults(command=command)
    assert cli.run([], parser=parser, console=system_console()) == cli.CANCELLED
    assert "cancelled" in capsys.readouterr().err


def test_a_panic_that_nobody_asked_for_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDRAY_HOME", str(tmp_path))

    def command(_options: object, _console: object) -> int:
        raise Panic

    parser = argparse.ArgumentParser()
    parser.set_defaults(command=command)
    with pytest.raises(Panic):
        cli.run([], parser=parser, console=system_console())

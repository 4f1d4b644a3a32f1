"""The place where all parts meet: no arguments open the window, arguments run the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fieldray.offline import stay_offline


def main(arguments: list[str] | None = None) -> int:
    """Run Fieldray; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] != ["adapt"]:  # TensorFlow, which the toolchain needs, insists on what this takes away
        stay_offline()
    if arguments:
        from fieldray.cli import run

        return run(arguments, open_window=_open_window)
    return _open_window(())


def _open_window(paths: Sequence[Path]) -> int:
    from fieldray.desktop.main_window import run

    return run(paths)


if __name__ == "__main__":
    sys.exit(main())

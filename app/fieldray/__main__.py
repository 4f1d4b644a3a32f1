"""The place where all parts meet: no arguments open the window, arguments run the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fieldray.offline import stay_offline


def main(arguments: list[str] | None = None) -> int:
    """Run Fieldray; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    stay_offline(is_toolchain=arguments[:1] == ["adapt"], shows_window=arguments[:1] in ([], ["demo"]))
    if arguments:
        from fieldray.cli import run

        return run(arguments, open_window=_open_window)
    return _open_window(())


def _open_window(paths: Sequence[Path]) -> int:
    from fieldray.desktop.main_window import run

    return run(paths)


if __name__ == "__main__":
    sys.exit(main())

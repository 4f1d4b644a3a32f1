"""`fieldray demo`: synthetic studies, screened, shown in the window or printed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fieldray.commands import screen
from fieldray.commands.console import Console
from fieldray.commands.pack_options import add_pack_options

OpenWindow = Callable[[Sequence[Path]], int]


def add_to(commands: argparse._SubParsersAction[Any], *, open_window: OpenWindow | None) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "demo",
        help="draw synthetic studies, screen them and show the results",
        description="Draw synthetic images that resemble radiographs (of no patient), screen them with the "
        "built-in pack, and open the window if there is a screen.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="folder for the synthetic studies (default: in the program's own folder)",
    )
    parser.add_argument("--no-window", action="store_true", help="print the work list even if there is a screen")
    add_pack_options(parser)
    screen.add_run_options(parser)
    parser.set_defaults(command=run, open_window=open_window)


def run(options: argparse.Namespace, console: Console) -> int:
    """Make, screen, show; the exit code."""
    from fieldray.imaging.synthetic import write_studies
    from fieldray.paths import user_data
    from fieldray.reports.outputs import require_own
    from fieldray.starting import has_window

    folder = options.folder or user_data() / "demo"
    for path in folder.glob("study-*.dcm") if folder.is_dir() else ():
        require_own(path, "demo")  # a clinic may call its own studies so
    console.machine_reads = options.json == "-"
    console.print_line(f"Drawing synthetic studies in {folder}")
    console.print_line(
        "They are drawings, not X-rays. Their results show how the program works, not how well the pack performs."
    )
    write_studies(folder)
    options.paths = [folder]
    code = screen.run(options, console)
    if code in (0, 1) and options.open_window and not options.no_window and has_window():
        return int(options.open_window([folder]))
    return code

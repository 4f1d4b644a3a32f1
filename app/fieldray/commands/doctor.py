"""`fieldray doctor`: can this computer screen, and if not, what has to be done."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fieldray.commands.console import Console
from fieldray.commands.pack_options import add_pack_options


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "doctor",
        help="can this computer screen, and what would make it better",
        description="Looks at this computer, screens one image drawn by the program, and says what to change.",
        epilog="Exit code: 0 this computer can screen, 1 it cannot yet.",
        allow_abbrev=False,
    )
    add_pack_options(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON and HTML into this folder")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace, console: Console) -> int:
    """Look and tell; the exit code."""
    from fieldray.commands.measuring import doctor

    return doctor(options, console)

"""`fieldray doctor`: whether this computer can screen images, and what to change."""

from __future__ import annotations

import argparse
from typing import Any

from fieldray.commands.console import Console, add_command, given_path
from fieldray.commands.options import add_pack_options


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its options."""
    parser = add_command(
        commands,
        "doctor",
        run=run,
        description="Check this computer, screen a test image, and report what to change.",
        epilog="Exit code: 0 this computer can screen images; 1 it cannot yet.",
    )
    add_pack_options(parser, default="the one of `fieldray packs default`, else the first that can be used")
    parser.add_argument("--out", type=given_path, metavar="DIR", help="write all figures as JSON to this folder")


def run(options: argparse.Namespace, console: Console) -> int:
    """Inspect this computer and report; the exit code. Raises StorageProblem, UsageProblem."""
    from fieldray.bench.host import can_screen, findings, host_report
    from fieldray.commands.bench import chosen_model, host_facts, show

    console.bar("checking this computer")
    found = findings(facts := host_facts(lambda: chosen_model(options)))
    show(host_report(facts, found, kind="doctor"), options.out, console)
    return 0 if can_screen(found) else 1

"""The commands of `python -m benchmarks` that need several processes or machines: a cluster, and divided training."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from benchmarks.argument_types import counts
from benchmarks.commands import SCREENING, Added
from fieldray.bench.report import Report
from fieldray.commands.bench import number_from
from fieldray.commands.console import Console

_TRAINING: Final = ("app/fieldray_cluster/training",)


def add_cluster(commands: argparse._SubParsersAction[Any]) -> Added:
    """Add `cluster`."""
    parser = commands.add_parser(
        "cluster",
        help="archive screen against screen on the same images, and under random kills",
        epilog="Options after -- are options of both commands, for example --pack.",
    )
    _add_cluster_options(parser)

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.cluster import Effort, cluster_report
        from benchmarks.reports import write

        effort = Effort(
            count=options.count,
            workers=tuple(options.workers),
            rounds=options.rounds,
            kills=options.kills,
            trials=options.trials,
            trial_kills=options.trial_kills,
            has_network=not options.no_network,
            seed=options.seed,
        )

        def keep(report: Report) -> None:
            if options.out:
                write(report, options.out)

        return cluster_report(
            options.folder,
            options.screen_options,
            effort=effort,
            work=options.work,
            notify=console.print_error,
            partial=keep,
        )

    return parser, (*SCREENING, "app/fieldray_cluster"), measure


def add_shaped_links(commands: argparse._SubParsersAction[Any]) -> Added:
    """Add `shaped-links`."""
    parser = commands.add_parser(
        "shaped-links", help="divided training over links of a shaped rate, against the formulas (as root, Linux)"
    )
    parser.add_argument("--workers", type=number_from(1), default=8, metavar="N", help="up to so many (default: 8)")
    parser.add_argument("--batches", type=number_from(8), default=24, metavar="D", help="of each (default: 24)")
    parser.add_argument(
        "--slower", type=number_from(1), default=1, metavar="K",
        help="times K times as long, at a Kth of 200 Mbit/s: the formulas predict the same (default: 1)",
    )  # fmt: skip

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.shaped_links import shaped_links_report

        return shaped_links_report(
            most_workers=options.workers, batches=options.batches, slower=options.slower, notify=console.bar
        )

    return parser, (*_TRAINING, "benchmarks/shaped_links.py", "benchmarks/shaped_machine.py"), measure


def add_real_training(commands: argparse._SubParsersAction[Any]) -> Added:
    """Add `real-training`."""
    parser = commands.add_parser(
        "real-training", help="divided training of a recipe on one and two workers here, against the formulas"
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="the recipe (a TOML file)")
    parser.add_argument("--epochs", type=number_from(3), default=8, metavar="N", help="of each (default: 8)")

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.real_training import real_training_report

        return real_training_report(options.recipe, count=options.epochs, notify=console.bar)

    return parser, (*_TRAINING, "benchmarks/real_training.py"), measure


def add_training_channel(commands: argparse._SubParsersAction[Any]) -> Added:
    """Add `training-channel`."""
    parser = commands.add_parser(
        "training-channel", help="what a round trip of weights costs: a Dask actor against a channel of raw numbers"
    )
    parser.add_argument("--repeats", type=number_from(3), default=20, metavar="N", help="of each (default: 20)")

    def measure(options: argparse.Namespace, _console: Console) -> Report:
        from benchmarks.training_channel import channel_report

        return channel_report(repeats=options.repeats)

    return parser, ("app/fieldray_cluster/training/channel.py", "benchmarks/training_channel.py"), measure


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, help="images to copy (otherwise: drawn by the program)")
    parser.add_argument("--count", type=number_from(100), default=2000, metavar="N", help="images (default: 2000)")
    parser.add_argument(
        "--workers", type=counts, default=(1, 2), metavar="N,...", help="numbers of workers (default: 1,2)"
    )
    numbers = (
        ("rounds", 1, 1, "runs of each"),
        ("kills", 0, 20, "random kills during an archive"),
        ("trials", 0, 64, "short trainings of a sweep"),
        ("trial-kills", 0, 5, "workers killed during the sweep"),
        ("seed", 0, 1, "of the kills"),
    )
    for name, least, default, text in numbers:
        parser.add_argument(
            f"--{name}",
            type=number_from(least),
            default=default,
            metavar="N",
            help=f"{text} (default: {default})",
        )
    parser.add_argument("--no-network", action="store_true", help="leave out the part with network namespaces")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="keep images and figures here: another start resumes (default: none)"
    )

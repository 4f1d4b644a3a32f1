"""The options of `fieldray adapt` that divide a training among processes or computers, and what measures them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from fieldray.commands.console import Console, add_command, given_path
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_cluster.commands.estimate import print_estimate

if TYPE_CHECKING:
    from fieldray_adapt.run import Trainer

_MODES: Final = ("local", "sync-join", "sync-split", "async")
_SERVERS: Final = ("none", "central", "distributed")


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how a training is divided."""
    group = parser.add_argument_group("training by several workers")
    group.add_argument("--workers", type=_count(1), default=1, metavar="N", help="how many take part (default: 1)")
    group.add_argument(
        "--mode",
        choices=_MODES,
        default="local",
        help="local: this process alone; sync-join: each worker a batch, then one step; sync-split: each worker a part "
        "of a batch; async: nobody waits (default: local)",
    )
    group.add_argument(
        "--server",
        choices=_SERVERS,
        default="central",
        help="where the weights are: with every worker (needs PyTorch; processes of this computer only), in one "
        "process, or shared among as many as workers (default: central)",
    )
    group.add_argument(
        "--placement",
        choices=("even", "whole"),
        default="even",
        help="shares of distributed servers: equal, or whole tensors as Šlampa printed it (default: even)",
    )
    group.add_argument(
        "--staleness", type=_count(0), metavar="N", help="async: how many steps late a gradient may be at most"
    )
    add_cluster_options(group)


def add_cluster_options(group: argparse._ArgumentGroup) -> None:
    """Add what says where the cluster is."""
    group.add_argument(
        "--cluster", metavar="ADDRESS", help="the scheduler to use; without it, processes of this computer"
    )
    group.add_argument(
        "--certificates", type=given_path, metavar="DIR", help="encrypt with the certificates in this folder"
    )


def trainer_of(options: argparse.Namespace, console: Console) -> Trainer | None:
    """Who trains by the options; None for this process. Raises UsageProblem."""
    if options.mode == "local":
        if options.workers > 1:
            raise UsageProblem(reason("training_needs_mode", workers=options.workers))
        return None
    with training_modules():
        from fieldray_cluster.training.cluster import opened
        from fieldray_cluster.training.plan import Plan
        from fieldray_cluster.training.trainer import DividedTrainer
    plan = Plan(
        workers=options.workers,
        mode=options.mode,
        server=options.server,
        places_evenly=options.placement == "even",
        staleness=options.staleness,
        address=options.cluster,
        certificates=options.certificates,
    )
    return DividedTrainer(plan, open_cluster=lambda: opened(plan), say=console.print_line)


@contextlib.contextmanager
def training_modules() -> Iterator[None]:
    """What a divided training needs: the cluster's modules and the toolchain's. Raises UsageProblem."""
    try:
        yield
    except ModuleNotFoundError as error:
        is_cluster = str(error.name).partition(".")[0] in ("dask", "distributed")
        code = "cluster_not_installed" if is_cluster else "adapt_not_installed"
        raise UsageProblem(reason(code, name=error.name)) from error


def add_measure_cluster(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `measure-cluster`."""
    action = add_command(actions, "measure-cluster", "measure what decides whether several workers are worth it")
    action.add_argument(
        "recipe", type=given_path, metavar="RECIPE", help="the recipe (a TOML file), with its data step done"
    )
    action.add_argument("--repeats", type=_count(2), default=10, metavar="N", help="measurements of each (default: 10)")
    action.add_argument("--workers", type=_count(1), default=2, metavar="N", help="estimate up to so many (default: 2)")
    add_cluster_options(action.add_argument_group("cluster"))
    action.set_defaults(command=run_measure_cluster)


def run_measure_cluster(options: argparse.Namespace, console: Console) -> int:
    """Measure and print; the exit code. Raises UsageProblem, EnvironmentProblem."""
    with training_modules():
        from fieldray_cluster.speedup.formulas import MODES, SERVERS, Measured
        from fieldray_cluster.training.measure import measure_costs
    costs = measure_costs(
        options.recipe, address=options.cluster, certificates=options.certificates, repeats=options.repeats
    )
    for line in costs.lines():
        console.print_line(line)
    measured = Measured(gradient_s=costs.gradient_s, transfer_s=costs.transfer_s, batches=costs.batches)
    workers = min(options.workers, costs.batches)
    for mode in MODES:
        for server in SERVERS:
            print_estimate(console, measured, mode=mode, server=server, workers=workers)
    return 0


def _count(least: int) -> Any:
    def count(text: str) -> int:
        if text.isascii() and text.isdigit() and least <= int(text) <= 1000:
            return int(text)
        raise argparse.ArgumentTypeError(f"a whole number from {least} to 1000 is needed")

    return count

"""The options and subcommands of `fieldray adapt` for training with several workers.

`adapt measure-cluster` measures the times of a cluster. `adapt estimate` predicts the speed-up from two measured times.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.commands.console import Console, add_command, parse_path_option
from fieldray.errors import UsageProblem
from fieldray.paths import program_command
from fieldray.reasons import reason
from fieldray_cluster.commands.cluster import add_cluster_options, importing_cluster_modules, whole_number
from fieldray_cluster.training.formulas import (
    CLUSTER_TRAINING_MODES,
    PARAMETER_SERVER_KINDS,
    REFERENCE_NETWORK_TENSOR_SIZES,
    ClusterTrainingMode,
    ParameterServerKind,
    TrainingMeasurements,
    best_choice_sentences,
    estimate_each_worker_count,
    estimate_training,
)

if TYPE_CHECKING:
    from fieldray_adapt.run import Trainer

_USUAL_SERVER: Final[ParameterServerKind] = "distributed"
_MAX_WORKERS: Final = 10_000
_MAX_WORKERS_PLACED: Final = 1000
"""Largest number of workers for which `adapt estimate` computes a placement of whole tensors on servers."""
_MAX_NUMBER: Final = 1e9
"""Largest accepted value of an option: a time in seconds, or a factor by which a worker is slower."""


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that divide one training among several worker processes to a parser."""
    group = parser.add_argument_group("training by several workers")
    group.add_argument(
        "--workers", type=whole_number(1, 1000), default=1, metavar="N", help="number of workers (default: 1)"
    )
    group.add_argument(
        "--mode",
        choices=("local", "sync-join", "sync-split", "async"),
        default="local",
        help="local: this process alone trains; sync-join: each worker computes a batch, then one update follows; "
        "sync-split: each worker computes a part of one batch; async: no worker waits (default: local)",
    )
    group.add_argument(
        "--server",
        choices=PARAMETER_SERVER_KINDS,
        default="central",
        help="central: one process has all weights (parameter server); distributed: one process per worker has a "
        "part of the weights (default: central)",
    )
    group.add_argument(
        "--placement",
        choices=("even", "whole"),
        default="even",
        help="with --server distributed. even: each process has an equal part of the weights; whole: each process has "
        "whole tensors, by Šlampa's published algorithm (default: even)",
    )
    group.add_argument(
        "--staleness",
        type=whole_number(0, 1000),
        metavar="N",
        help="with --mode async: number of updates by which a gradient may be late",
    )
    group.add_argument(
        "--take-turns",
        action="store_true",
        help="let one worker at a time transfer, first come, first served (the semaphore that Šlampa proposes)",
    )
    add_cluster_options(group)


def make_trainer(options: argparse.Namespace, console: Console) -> Trainer | None:
    """Return the trainer that trains with several workers, as the options say; None if this process trains alone.

    Raises UsageProblem.
    """
    if options.mode == "local" and options.workers == 1:
        return None
    with importing_cluster_modules():
        from fieldray_cluster.training.session import open_plan_client
        from fieldray_cluster.training.tasks import TrainingPlan
        from fieldray_cluster.training.trainer import DividedTrainer
    plan = TrainingPlan(
        workers=options.workers,
        mode=options.mode,
        server=options.server,
        splits_evenly=options.placement == "even",
        staleness=options.staleness,
        takes_turns=options.take_turns,
        address=options.cluster,
        certificates=options.certificates,
    )
    return DividedTrainer(plan, open_cluster=lambda: open_plan_client(plan), say=console.print_line)


def add_fetch_subcommand(actions: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `adapt fetch`, which copies a recipe's images from servers."""
    action = add_command(actions, "fetch", "copy the images of a recipe from their server", run=run_fetch)
    action.add_argument("recipe", type=parse_path_option, metavar="RECIPE", help="the recipe (a TOML file)")


def add_fetch_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--fetch` of a command that runs a recipe."""
    parser.add_argument(
        "--fetch",
        action="store_true",
        help="first copy new and changed images from the recipe's servers, as `fieldray adapt fetch` does",
    )


def fetch_images_in_other_process(recipe: Path) -> int:
    """Run `adapt fetch` in another process, and return its exit code.

    Only the other process connects to a server. This process, which later reads the images, stays offline.
    """
    with subprocess.Popen(program_command("adapt", "fetch", str(recipe.absolute()))) as process:
        try:
            return process.wait()
        except BaseException:  # also Ctrl-C: the process must delete its temporary files
            process.terminate()
            raise


def run_fetch(options: argparse.Namespace, console: Console) -> int:
    """Run `adapt fetch`, which copies a recipe's images from servers to the run folder. Returns the exit code.

    Raises UsageProblem, EnvironmentProblem, StorageProblem.
    """
    with importing_cluster_modules():
        from fieldray_adapt.recipe_actions import image_copy_folders, recipe_kind_of
        from fieldray_adapt.recipes.classifier import with_absolute_paths
        from fieldray_adapt.recipes.tables import RecipeDocument
        from fieldray_adapt.run import lock_run_folder
        from fieldray_cluster.object_copies import copy_objects
        from fieldray_cluster.object_server import ObjectServer
    document = RecipeDocument.read(options.recipe)
    recipe = with_absolute_paths(document.parse_as(recipe_kind_of(document).recipe_class), document.path)
    with lock_run_folder(recipe.run):
        for address, folder in image_copy_folders(document).items():
            copied = copy_objects(
                ObjectServer(address),
                folder,
                progress=lambda done, total: console.show_progress_bar(f"objects {done}/{total}"),
            )
            console.print_line(
                f"{address}: {copied.object_count} objects, {copied.downloaded_object_count} of them new, in {folder}"
            )
    return 0


def add_measure_cluster_subcommand(actions: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `adapt measure-cluster`, which measures the times of a cluster."""
    action = add_command(
        actions, "measure-cluster", "measure whether several workers are worth using", run=run_measure_cluster
    )
    action.add_argument(
        "recipe", type=parse_path_option, metavar="RECIPE", help="the recipe (a TOML file), after fieldray adapt data"
    )
    action.add_argument(
        "--repeats", type=whole_number(2, 1000), default=10, metavar="N", help="number of measurements (default: 10)"
    )
    action.add_argument(
        "--workers",
        type=whole_number(1, 1000),
        default=2,
        metavar="N",
        help="largest number of workers to estimate (default: 2)",
    )
    add_cluster_options(action.add_argument_group("cluster"))


def run_measure_cluster(options: argparse.Namespace, console: Console) -> int:
    """Run `adapt measure-cluster`, which measures the times of a cluster. Returns the exit code.

    Raises UsageProblem, EnvironmentProblem.
    """
    with importing_cluster_modules():
        from fieldray_cluster.training.tasks import TrainingPlan
        from fieldray_cluster.training.trainer import measure_cluster
    plan = TrainingPlan(address=options.cluster, certificates=options.certificates)
    costs = measure_cluster(options.recipe, plan, repeats=options.repeats)
    console.print_lines(costs.text_lines())
    measured = TrainingMeasurements(
        gradient_s=costs.gradient_s, transfer_s=costs.transfer_s, update_s=costs.update_s, batch_count=costs.batch_count
    )
    workers = min(options.workers, costs.batch_count)
    for mode in CLUSTER_TRAINING_MODES:
        for server in PARAMETER_SERVER_KINDS:
            print_estimate(console, measured, mode=mode, server=server, workers=workers)
    return 0


def _number(*, above: float = -math.inf, minimum: float = -math.inf) -> Callable[[str], float]:
    def number(text: str) -> float:
        with contextlib.suppress(ValueError):
            if above < float(text) <= _MAX_NUMBER and float(text) >= minimum:
                return float(text)
        least_said = f"above {above:g}" if above > minimum else f"from {minimum:g}"
        raise argparse.ArgumentTypeError(f"a number {least_said} to {_MAX_NUMBER:g} is needed, not {text}")

    return number


def add_estimate_subcommand(actions: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `adapt estimate`, which predicts the speed-up of a training with several workers."""
    parser = add_command(
        actions, "estimate", "predict how much faster training is on several machines", run=run_estimate,
        epilog="Exit code: 0 done; 2 an option is missing or invalid.",
    )  # fmt: skip
    time, number = _number(above=0.0), whole_number(1, 10**17)
    parser.add_argument(
        "--t-grad",
        type=time,
        required=True,
        metavar="SECONDS",
        help="time for the gradient of one batch on one machine",
    )
    parser.add_argument(
        "--t-comm", type=time, required=True, metavar="SECONDS", help="time to transfer all weights once, one way"
    )
    parser.add_argument("--workers", type=number, required=True, metavar="N", help="number of workers")
    parser.add_argument("--batches", type=number, required=True, metavar="D", help="number of batches to train on")
    parser.add_argument(
        "--mode",
        choices=CLUSTER_TRAINING_MODES,
        default="sync-join",
        help="sync-join: each worker computes a batch; sync-split: each worker computes a part of one batch; async: "
        "no worker waits (default: sync-join)",
    )
    parser.add_argument(
        "--server",
        choices=PARAMETER_SERVER_KINDS,
        help="central: one machine has all weights (parameter server); distributed: each machine has a part of the "
        "weights (default: distributed; the search for the best number of workers tries both)",
    )
    parser.add_argument(
        "--output",
        choices=("single", "csv"),
        default="single",
        help="single: a sentence for N workers; csv: a table for 1 to N workers, with semicolons (default: single)",
    )
    _add_corrections(parser)


def _add_corrections(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("corrections to the published formulas")
    group.add_argument(
        "--t-update",
        type=_number(minimum=0.0),
        default=0.0,
        metavar="SECONDS",
        help="time to update all weights with a gradient on one machine (default: 0, no update)",
    )
    group.add_argument(
        "--slowest",
        type=_number(minimum=1.0),
        default=1.0,
        metavar="FACTOR",
        help="time of the slowest worker, divided by the time of the others",
    )
    group.add_argument("--ceil", action="store_true", help="round the batches of a worker up to a whole number")
    group.add_argument(
        "--network",
        choices=REFERENCE_NETWORK_TENSOR_SIZES,
        help="with --server distributed: place whole tensors of this network, by the published algorithm",
    )


def run_estimate(options: argparse.Namespace, console: Console) -> int:
    """Run `adapt estimate`, which predicts the speed-up of a training with several workers. Returns the exit code.

    Raises UsageProblem.
    """
    console.is_output_for_program = options.output == "csv"
    measured, workers = _measured(options), options.workers
    _require_possible(measured, workers)
    if options.output == "single":
        print_estimate(console, measured, mode=options.mode, server=options.server, workers=workers)
        return 0
    _print_table(options, console, measured, workers)
    _print_advice(console, measured, options.mode, options.server, workers)
    return 0


def print_estimate(
    console: Console,
    measured: TrainingMeasurements,
    *,
    mode: ClusterTrainingMode,
    server: ParameterServerKind | None,
    workers: int,
) -> None:
    """Print the estimated speed-up with `workers` workers, and the best choice with at most this number of workers.

    `server` is the kind of parameter server; None to compare all kinds.
    """
    asked, server = server, server or _USUAL_SERVER
    one = estimate_training(measured, mode=mode, server=server, workers=workers)
    console.print_line(
        f"With {workers} worker{'s' if workers > 1 else ''}, --mode {mode} and --server {server}, training is "
        f"{one.speed_up:.3f} times as fast as on one machine."
    )
    if server == "central":
        console.print_line(f"Speed-up: worst case {one.lowest_speed_up:.3f}, best case {one.highest_speed_up:.3f}.")
    console.print_line(
        f"Training takes {one.time_range.mean_s:.4g} s; on one machine {measured.one_machine_training_s:.4g} s."
    )
    if not math.isclose(one.thesis_speed_up, one.speed_up):
        console.print_line(f"Speed-up by the published formulas, without corrections: {one.thesis_speed_up:.3f}.")
    _print_advice(console, measured, mode, asked, workers)


def _print_advice(
    console: Console,
    measured: TrainingMeasurements,
    mode: ClusterTrainingMode,
    server: ParameterServerKind | None,
    workers: int,
) -> None:
    servers = (server,) if server else PARAMETER_SERVER_KINDS
    if not measured.update_s:
        console.print_line(reason("estimate_no_update").text)
    advised = best_choice_sentences(measured, mode=mode, max_workers=workers, servers=servers)
    console.print_lines(sentence.text for sentence in advised)


def _print_table(options: argparse.Namespace, console: Console, measured: TrainingMeasurements, workers: int) -> None:
    server = options.server or _USUAL_SERVER
    known = list(estimate_each_worker_count(measured, mode=options.mode, server=server, max_workers=workers))
    console.write_machine_readable_line(";".join(("workers", "speed_up", "worst", "best", "printed")))
    for one in known:
        figures = (one.speed_up, one.lowest_speed_up, one.highest_speed_up, one.thesis_speed_up)
        console.write_machine_readable_line(";".join((str(one.worker_count), *(f"{figure:.6f}" for figure in figures))))


def _measured(options: argparse.Namespace) -> TrainingMeasurements:
    return TrainingMeasurements(
        gradient_s=options.t_grad,
        transfer_s=options.t_comm,
        batch_count=options.batches,
        update_s=options.t_update,
        slowest_worker_factor=options.slowest,
        rounds_up_batches=options.ceil,
        tensor_sizes=REFERENCE_NETWORK_TENSOR_SIZES[options.network]() if options.network else (),
    )


def _require_possible(measured: TrainingMeasurements, workers: int) -> None:
    """Raise UsageProblem if there are more workers than batches, or more workers than the estimate allows."""
    if workers > measured.batch_count:
        raise UsageProblem(reason("estimate_workers", workers=workers, batches=measured.batch_count))
    limit = _MAX_WORKERS_PLACED if measured.tensor_sizes else _MAX_WORKERS
    if workers > limit:
        raise UsageProblem(reason("estimate_most_workers", workers=workers, limit=limit))

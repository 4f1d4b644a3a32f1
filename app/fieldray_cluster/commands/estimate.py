"""`fieldray adapt estimate`: whether training on several machines is worth it, from two measured times."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any, Final

from fieldray.commands.console import Console, add_command, given_path
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

if TYPE_CHECKING:
    from fieldray_cluster.speedup.formulas import Estimate, Measured

_MODES: Final = ("async", "sync-join", "sync-split")
_SERVERS: Final = ("central", "distributed")
_USUAL_SERVER: Final = "distributed"
_NETWORKS: Final = ("vgg-16e", "googlenet", "googlenet-auxiliary", "squeezenet", "resnet-34")
_SUFFIXES: Final = (".svg", ".png")
_MOST_WORKERS: Final = 10_000
_MOST_WORKERS_PLACED: Final = 1000
"""Whole tensors are placed anew for each number of workers."""
_LONGEST_S: Final = 1e9
_NEEDED: Final = {"t_grad": "--t-grad", "t_comm": "--t-comm", "workers": "--workers", "batches": "--batches"}


def add_to(actions: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its options."""
    parser = add_command(actions, "estimate", "predict how much faster training is on several machines")
    parser.epilog = "Exit code: 0, or 2 where an option is missing or cannot be."
    parser.add_argument("--t-grad", metavar="SECONDS", help="time for the gradient of one batch on one machine")
    parser.add_argument("--t-comm", metavar="SECONDS", help="time to transfer all weights once, one way")
    parser.add_argument("--workers", metavar="N", help="number of workers")
    parser.add_argument("--batches", metavar="D", help="number of batches to train on")
    parser.add_argument(
        "--mode",
        choices=_MODES,
        default="sync-join",
        help="async; sync-join: a batch per worker; sync-split: a part of a batch per worker (default: sync-join)",
    )
    parser.add_argument(
        "--server",
        choices=_SERVERS,
        help="one machine with all weights, or a part of them on every machine (default: distributed; what is best is "
        "looked for among both)",
    )
    parser.add_argument(
        "--output",
        choices=("single", "csv", "plot"),
        default="single",
        help="words for N workers; a table for 1 to N, separated by semicolons; a picture (default: single)",
    )
    parser.add_argument(
        "--picture", type=given_path, metavar="FILE", help="where --output plot draws to (.svg or .png)"
    )
    _add_corrections(parser)
    parser.set_defaults(command=run)


def _add_corrections(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the printed formulas leave out")
    group.add_argument(
        "--slowest", metavar="FACTOR", help="how many times as long the slowest worker takes as the others"
    )
    group.add_argument("--ceil", action="store_true", help="round the batches of a worker up to a whole number")
    group.add_argument(
        "--network",
        choices=_NETWORKS,
        help="distributed servers hold whole tensors of this network, as the source's algorithm places them",
    )
    group.add_argument("--simulate", action="store_true", help="also play every transfer through, as a cross-check")


def run(options: argparse.Namespace, console: Console) -> int:
    """Estimate; the exit code. Raises UsageProblem, StorageProblem."""
    console.machine_reads = options.output == "csv"
    from fieldray_adapt.adapt_command import toolchain  # it has this command among its own

    with toolchain(console):
        measured, workers = _measured(options), _count("--workers", options.workers)
        _check(options, measured, workers)
        if options.output == "single":
            print_estimate(
                console, measured, mode=options.mode, server=options.server, workers=workers,
                is_simulated=options.simulate,
            )  # fmt: skip
            return 0
        _write(options, console, measured, workers)
        _print_advice(console, measured, options.mode, options.server, workers)
    return 0


def print_estimate(
    console: Console, measured: Measured, *, mode: str, server: str | None, workers: int, is_simulated: bool = False
) -> None:
    """Say what so many workers bring, as `--output single` does, and what would be best up to that number.

    server  that was asked for; with None what is best is looked for among all
    """
    from fieldray_cluster.speedup.formulas import known_mode, known_server

    asked, server = server, server or _USUAL_SERVER
    one = _estimates(measured, mode, server, workers)[-1]
    name = {"central": "a central server", "distributed": "distributed servers"}[server]
    console.print_line(
        f"{mode} on {workers} worker{'s' if workers > 1 else ''} with {name}: {one.speed_up:.3f} times as fast as "
        f"one machine."
    )
    if server == "central":
        console.print_line(f"Worst case {one.lowest_speed_up:.3f}, best case {one.highest_speed_up:.3f}.")
    console.print_line(f"Training takes {one.span.mean_s:.4g} s; on one machine {_serial_s(measured):.4g} s.")
    if not math.isclose(one.printed_speed_up, one.speed_up):
        console.print_line(f"By the formulas as printed, without corrections: {one.printed_speed_up:.3f}.")
    if is_simulated:
        exclusive, shared = _simulated(measured, known_mode(mode), known_server(server), workers)
        console.print_line(f"Simulated: {exclusive:.3f} with transfers one after another, {shared:.3f} all at once.")
    _print_advice(console, measured, mode, asked, workers)


def _print_advice(console: Console, measured: Measured, mode: str, server: str | None, workers: int) -> None:
    from fieldray_cluster.speedup.formulas import SERVERS, known_mode, known_server
    from fieldray_cluster.speedup.simulator import advise

    servers = (known_server(server),) if server else SERVERS
    for sentence in advise(measured, mode=known_mode(mode), most_workers=workers, servers=servers).reasons:
        console.print_line(sentence.text)


def _write(options: argparse.Namespace, console: Console, measured: Measured, workers: int) -> None:
    known = _estimates(measured, options.mode, options.server or _USUAL_SERVER, workers)
    if options.output == "plot":
        from fieldray_cluster.speedup.plot import write_plot

        write_plot(options.picture, known)
        console.print_line(f"Written: {options.picture}")
        return
    more = ("simulated_exclusive", "simulated_shared") if options.simulate else ()
    console.emit(";".join(("workers", "speed_up", "worst", "best", "printed", *more)))
    for one in known:
        figures = [one.speed_up, one.lowest_speed_up, one.highest_speed_up, one.printed_speed_up]
        if options.simulate:
            figures += _simulated(measured, one.mode, one.server, one.workers)
        console.emit(";".join((str(one.workers), *(f"{figure:.6f}" for figure in figures))))


def _estimates(measured: Measured, mode: str, server: str, workers: int) -> list[Estimate]:
    from fieldray_cluster.speedup.formulas import estimates, known_mode, known_server

    return list(estimates(measured, mode=known_mode(mode), server=known_server(server), most_workers=workers))


def _simulated(measured: Measured, mode: Any, server: Any, workers: int) -> tuple[float, float]:
    """The speed-ups with exclusive and with shared links."""
    from fieldray_cluster.speedup.simulator import simulated_s

    exclusive_s = simulated_s(measured, mode=mode, server=server, workers=workers)
    shared_s = simulated_s(measured, mode=mode, server=server, workers=workers, links="shared")
    return _serial_s(measured) / exclusive_s, _serial_s(measured) / shared_s


def _serial_s(measured: Measured) -> float:
    return measured.batches * measured.gradient_s


def _measured(options: argparse.Namespace) -> Measured:
    """Raises UsageProblem for what is missing or cannot be."""
    from fieldray_cluster.speedup.formulas import Measured
    from fieldray_cluster.speedup.placement import REFERENCE_NETWORKS

    missing = [name for key, name in _NEEDED.items() if getattr(options, key) is None]
    if missing:
        raise UsageProblem(reason("estimate_missing", options=", ".join(missing)))
    slowest = 1.0 if options.slowest is None else _number(options.slowest)
    if not 1 <= slowest <= _LONGEST_S:
        raise UsageProblem(reason("estimate_slowest", given=options.slowest))
    return Measured(
        gradient_s=_seconds("--t-grad", options.t_grad),
        transfer_s=_seconds("--t-comm", options.t_comm),
        batches=_count("--batches", options.batches),
        slowest=slowest,
        is_whole=options.ceil,
        tensors=REFERENCE_NETWORKS[options.network]().sizes if options.network else (),
    )


def _check(options: argparse.Namespace, measured: Measured, workers: int) -> None:
    """Raises UsageProblem for what does not go together."""
    if workers > measured.batches:
        raise UsageProblem(reason("estimate_workers", workers=workers, batches=measured.batches))
    limit = _MOST_WORKERS_PLACED if measured.tensors else _MOST_WORKERS
    if workers > limit:
        raise UsageProblem(reason("estimate_most_workers", workers=workers, limit=limit))
    if options.output == "plot" and (options.picture is None or options.picture.suffix.lower() not in _SUFFIXES):
        raise UsageProblem(reason("estimate_plot"))
    if options.simulate:
        from fieldray_cluster.speedup.simulator import MOST_TRANSFERS, transfers_of

        asked = range(1, workers + 1) if options.output == "csv" else (workers,)
        transfers = sum(
            transfers_of(measured, mode=options.mode, server=options.server, workers=count) for count in asked
        )
        if transfers > MOST_TRANSFERS:
            raise UsageProblem(reason("estimate_too_large", transfers=transfers, limit=MOST_TRANSFERS))


def _number(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(option: str, text: str) -> float:
    seconds = _number(text)
    if not 0 < seconds <= _LONGEST_S:
        raise UsageProblem(reason("estimate_time", option=option, given=text))
    return seconds


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text)):
        raise UsageProblem(reason("estimate_count", option=option, given=text))
    return int(text)

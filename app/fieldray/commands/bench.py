"""`fieldray bench`: how fast this computer is, what slows it down, and what would help."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from fieldray.commands.console import Console
from fieldray.commands.pack_options import add_pack_rules

_BACKENDS: Final = ("cpu", "edgetpu")


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its own commands."""
    parser = commands.add_parser("bench", help="measure this computer and the packs on it", allow_abbrev=False)
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    device = actions.add_parser("device", help="time of each image on each backend, the first ones apart")
    device.add_argument("--pack", metavar="DIR|ID", action="append", help="a pack to measure; may be given again")
    device.add_argument("--threads", type=_number, default=1, metavar="N", help="on the processor (default: 1)")
    device.add_argument("--power-w", type=_of_backend, action="append", default=[], metavar="BACKEND=WATTS")
    device.add_argument("--price-usd", type=_of_backend, action="append", default=[], metavar="BACKEND=DOLLARS")
    device.set_defaults(command=run_device)
    load = actions.add_parser("load", help="the same while other programs work; makes that load itself")
    load.add_argument("--pack", metavar="DIR|ID", help="the pack to measure")
    load.set_defaults(command=run_load)
    host = actions.add_parser("host", help="what the parts of this computer are worth, and what to change")
    host.add_argument("--pack", metavar="DIR|ID", help="the pack to measure with")
    host.add_argument("--float-file", type=Path, metavar="FILE", help="the pack's network in floating point (.tflite)")
    host.add_argument(
        "--max-clock", action="store_true", help="also run the Edge TPU at its highest clock: it gets hot"
    )
    host.set_defaults(command=run_host)
    for action in (device, load, host):
        _add_effort(action)
    _add_pipeline(actions)


def run_device(options: argparse.Namespace, console: Console) -> int:
    """Measure packs on backends; the exit code. Raises PackProblem, UsageProblem, BackendProblem, StorageProblem."""
    from fieldray.commands import measuring

    return measuring.device(options, console)


def run_load(options: argparse.Namespace, console: Console) -> int:
    """Measure beside loads; the exit code. Raises as `run_device` does."""
    from fieldray.commands import measuring

    return measuring.load(options, console)


def run_host(options: argparse.Namespace, console: Console) -> int:
    """Look at the computer and measure ways to run; the exit code. Raises as `run_device` does."""
    from fieldray.commands import measuring

    return measuring.host(options, console)


def run_pipeline(options: argparse.Namespace, console: Console) -> int:
    """Screen a mixed archive beside what others do; the exit code. Raises as `run_device` does."""
    from fieldray.commands import contest, measuring

    measure = contest.decisions if options.decisions else contest.pipeline
    return measuring.show(measure(options, console), options.out, console)


def _add_pipeline(actions: argparse._SubParsersAction[Any]) -> None:
    parser = actions.add_parser("pipeline", help="from files to scores, beside what others do, and the limits")
    parser.add_argument("folder", nargs="?", type=Path, help="images to enlarge (otherwise: drawn by the program)")
    parser.add_argument("--pack", metavar="DIR|ID", help="the pack to measure with")
    add_pack_rules(parser)
    parser.add_argument("--files", type=_number, default=144, metavar="N", help="of the six usual kinds (default: 144)")
    parser.add_argument("--others", type=_count, default=6, metavar="N", help="of each further kind (default: 6)")
    parser.add_argument("--megapixels", type=_range, default=(1.0, 7.0), metavar="LOW-HIGH", help="(default: 1-7)")
    parser.add_argument("--kinds", type=_kinds, default=(), metavar="KIND,...", help="only these (default: all)")
    parser.add_argument("--repeats", type=_number, default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument("--minutes", type=_number, default=60, metavar="N", help="then no new round (default: 60)")
    parser.add_argument("--float-file", type=Path, metavar="FILE", help="a float32 network (.tflite) to compare with")
    parser.add_argument("--int8-file", type=Path, metavar="FILE", help="another int8 network to compare engines on")
    parser.add_argument(
        "--decisions",
        type=Path,
        metavar="DIR",
        help="instead: read the images of this folder reduced and in full, and compare the decisions (up to --images)",
    )
    parser.add_argument("--images", type=_number, default=1200, metavar="N", help="to compare (default: 1200)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON, HTML and pictures into this folder")
    parser.set_defaults(command=run_pipeline)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("0 or more")
    return number


def _kinds(text: str) -> tuple[str, ...]:
    from benchmarks.image_files import KINDS

    by_name = {name.lower(): name for name in KINDS}
    asked = tuple(name.strip().lower() for name in text.split(","))
    if not set(asked) <= set(by_name):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(KINDS)}")
    return tuple(by_name[name] for name in asked)


def _range(text: str) -> tuple[float, float]:
    """`1-7` as (1.0, 7.0)."""
    low, _, high = text.partition("-")
    try:
        found = float(low), float(high or low)
    except ValueError:
        found = (0.0, 0.0)
    if not 0.01 <= found[0] <= found[1] <= 100:
        raise argparse.ArgumentTypeError("give LOW-HIGH, for example 1-7")
    return found


def _add_effort(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, help="images to run on (otherwise: drawn by the program)")
    add_pack_rules(parser)
    parser.add_argument("--images", type=_images, default=50, metavar="N", help="of a repetition (default: 50)")
    parser.add_argument("--repeats", type=_number, default=5, metavar="N", help="fresh processes each (default: 5)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON, HTML and pictures into this folder")


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("1 or more")
    return number


def _images(text: str) -> int:
    number = int(text)
    if number < 3:
        raise argparse.ArgumentTypeError("3 or more: the first two are kept apart")
    return number


def _of_backend(text: str) -> tuple[str, float]:
    """`edgetpu=2` as ("edgetpu", 2.0)."""
    backend, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if backend not in _BACKENDS or not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"give {' or '.join(_BACKENDS)}=NUMBER")
    return backend, number

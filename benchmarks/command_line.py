"""`python -m benchmarks COMMAND`: arguments to a report, and where the report goes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.argument_types import amount, checkout, counts, file_kinds, format_names, low_and_high
from benchmarks.cluster_command_line import (
    add_cluster,
    add_real_training,
    add_shaped_links,
    add_training_channel,
)
from benchmarks.commands import SCREENING, Added, Measure
from benchmarks.measured_pack import load_measured_pack
from fieldray import cli
from fieldray.bench.report import Report, lines
from fieldray.commands.bench import number_from
from fieldray.commands.console import Console
from fieldray.commands.options import add_pack_options

# The code that figures depend on, as pages name it.
_WITH_SCREEN_OPTIONS: Final = ("screening", "compare-checkouts", "cluster")
_FIGURES: Final = (
    "app/fieldray/audit/figures.py",
    "app/fieldray/domain/metrics.py",
)
_COMPARING: Final = ("app/fieldray/comparison", "app/fieldray/domain/comparison.py", "app/fieldray/pipeline/compare.py")
_SAVING: Final = tuple(f"app/fieldray/{part}" for part in ("desktop", "pipeline/export.py", "reports", "store"))
_LISTING: Final = tuple(f"app/fieldray/{part}" for part in ("desktop", "pipeline/work_list.py", "store"))
_MATCHING: Final = (
    "app/fieldray_adapt/matcher",
    "app/fieldray/domain/image.py",
    "models/recipes/matcher.toml",
)
_ENGINES: Final = (
    "app/fieldray_adapt/keras_engine.py",
    "app/fieldray_adapt/lungs/recipe.py",
    "app/fieldray_adapt/networks.py",
    "app/fieldray/inference",
    "models",
)
_READING: Final = ("app/fieldray/imaging", "app/fieldray/domain/finding.py", "models")


def run(arguments: Sequence[str], *, console: Console | None = None) -> int:
    """Run one command; the exit code (see `fieldray.cli`)."""
    own, more = list(arguments), []
    if "--" in arguments and arguments[0] in _WITH_SCREEN_OPTIONS:
        end = arguments.index("--")
        own, more = own[:end], own[end + 1 :]
    typed = shlex.join(["python", "-m", "benchmarks", *arguments])
    return cli.run(own, console=console, parser=_parser(typed, more))


def _parser(typed: str, screen_options: Sequence[str]) -> argparse.ArgumentParser:
    parser = cli.Parser(prog="python -m benchmarks", description="What developers measure.", allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (
        _add_pipeline,
        _add_decisions,
        _add_screening,
        _add_compare,
        _add_intervals,
        _add_exports,
        _add_scale,
        _add_store,
        _add_comparison,
        _add_matcher,
        add_cluster,
        _add_networks,
        add_shaped_links,
        add_real_training,
        add_training_channel,
    ):
        action, paths, measure = add(commands)
        action.add_argument("--out", type=Path, metavar="DIR", help="write JSON and a page to this folder")
        action.add_argument(
            "--page",
            nargs="?",
            const=action.prog.rpartition(" ")[2],
            metavar="SUBJECT",
            help="write a page to build/benchmarks (default: named after the command)",
        )
        action.set_defaults(command=_command(measure, typed, paths), screen_options=screen_options)
    return parser


def _command(measure: Measure, typed: str, paths: Sequence[str]) -> Callable[[argparse.Namespace, Console], int]:
    def run_command(options: argparse.Namespace, console: Console) -> int:
        from benchmarks.reports import PageRefused, plan_page, write, write_page
        from benchmarks.screening import ScreeningFailed

        try:
            page = plan_page(options.page, command=typed, paths=paths) if options.page else None
            report = measure(options, console)
        except (PageRefused, ScreeningFailed) as problem:
            console.print_error(str(problem))
            return 1
        for line in lines(report):
            console.print_line(line)
        written = write(report, options.out) if options.out else ()
        for path in (*written, *(write_page(report, page) if page else ())):
            console.print_line(f"Written: {path}")
        return 0

    return run_command


def _add_pipeline(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser("pipeline", help="from files to scores, compared with the usual scripts and limits")
    parser.add_argument("folder", nargs="?", type=Path, help="images to enlarge (otherwise: drawn by the program)")
    add_pack_options(parser)
    _add_archive(parser, files=144, others=6)
    parser.add_argument("--repeats", type=number_from(1), default=3, metavar="N", help="rounds (default: 3)")
    parser.add_argument(
        "--minutes",
        type=number_from(1),
        default=60,
        metavar="N",
        help="start no new round after N minutes (default: 60)",
    )
    parser.add_argument("--float-file", type=Path, metavar="FILE", help="a float32 network (.tflite) to compare with")

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.pipeline import pipeline

        return pipeline(options, console)

    return parser, SCREENING, measure


def _add_decisions(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser("decisions", help="whether reading at a reduced resolution changes decisions")
    parser.add_argument("folder", type=Path, help="the images to compare")
    add_pack_options(parser)
    parser.add_argument("--images", type=number_from(1), default=1200, metavar="N", help="at most (default: 1200)")
    _add_kinds(parser)

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.pipeline import decisions

        return decisions(options, console)

    return parser, _READING, measure


def _add_intervals(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser("audit-intervals", help="how often the intervals of an audit hold the true value")
    parser.add_argument("--draws", type=number_from(1), default=2000, metavar="N", help="data sets (default: 2000)")

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.audit_intervals import audit_intervals

        return audit_intervals(options.draws, notify=console.bar)

    return parser, _FIGURES, measure


def _add_exports(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser("exports", help="how long saving a run takes, and the window pauses meanwhile")
    add_pack_options(parser)
    parser.add_argument("--results", type=number_from(1), default=1000, metavar="N", help="of the run (default: 1000)")
    parser.add_argument("--formats", type=format_names, default=(), metavar="NAME,...", help="formats (default: all)")

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.exports import exports_report

        model = load_measured_pack(options)
        return exports_report(model, count=options.results, formats=options.formats, notify=console.bar)

    return parser, _SAVING, measure


def _add_scale(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser("scale", help="the window with a run of a million images: its pauses and its memory")
    add_pack_options(parser)
    parser.add_argument("--rows", type=number_from(1), default=10**6, metavar="N", help="images (default: 1000000)")

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.scale import scale_report

        return scale_report(load_measured_pack(options), count=options.rows, notify=console.bar)

    return parser, _LISTING, measure


def _add_store(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser("store", help="bytes per image, screening again, upkeep of a large store")
    add_pack_options(parser)
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="whose files are copied (default: drawn images)")
    parser.add_argument("--files", type=number_from(1), default=20_000, metavar="N", help="copies (default: 20000)")
    parser.add_argument(
        "--rows", type=number_from(1), default=10**6, metavar="N", help="results of the large store (default: 1000000)"
    )

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.store import store_report

        sources = sorted(path for path in options.images.iterdir() if path.is_file()) if options.images else ()
        model = load_measured_pack(options)
        return store_report(model, sources, files=options.files, rows=options.rows, notify=console.bar)

    return parser, SCREENING, measure


def _add_comparison(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser(
        "comparison", help="how well a prior is laid over the current image, and change is found"
    )
    parser.add_argument("data", type=Path, help="folder with pairs.csv and the images that it names")
    parser.add_argument("--pairs", type=number_from(1), default=60, metavar="N", help="at most (default: 60)")
    parser.add_argument(
        "--part", choices=("choose", "measure"), default="measure", help="patients for choosing, or for measuring"
    )

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.comparison import comparison_report

        return comparison_report(options.data, part=options.part, limit=options.pairs, notify=console.bar)

    return parser, _COMPARING, measure


def _add_matcher(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser("matcher", help="false matches of the matcher, the band-pass and grey levels")
    parser.add_argument(
        "recipe",
        nargs="?",
        type=Path,
        default=Path("models/recipes/matcher.toml"),
        help="(default: the one that ships)",
    )

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.matcher import matcher_report

        return matcher_report(options.recipe, notify=console.bar)

    return parser, _MATCHING, measure


def _add_networks(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser("networks", help="inference engines and each step of fusion on the packs' networks")
    parser.add_argument("--threads", type=counts, default=(1, 2), metavar="N,...", help="threads (default: 1,2)")
    parser.add_argument("--batches", type=counts, default=(1, 8), metavar="N,...", help="images (default: 1,8)")
    parser.add_argument("--rounds", type=number_from(1), default=5, metavar="N", help="rounds (default: 5)")
    parser.add_argument("--seconds", type=amount, default=1.0, metavar="S", help="of a round's calls (default: 1)")

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.networks import Effort
        from benchmarks.networks_report import networks_report

        return networks_report(
            threads=options.threads,
            batches=options.batches,
            effort=Effort(rounds=options.rounds, seconds=options.seconds),
            notify=console.bar,
        )

    return parser, _ENGINES, measure


def _add_screening(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser(
        "screening",
        help="run the program as a user does: time to the first result, rate, memory",
        epilog="Options after -- are options of `fieldray screen`.",
    )
    parser.add_argument("folder", nargs="?", type=Path, help="images to screen (otherwise: drawn by the program)")
    parser.add_argument(
        "--counts",
        type=counts,
        default=(200, 2000),
        metavar="N,...",
        help="numbers of images, one run each (default: 200,2000)",
    )
    parser.add_argument("--starts", type=number_from(1), default=5, metavar="N", help="short runs (default: 5)")

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.screening import screening_report

        effort = {"counts": options.counts, "starts": options.starts}
        return screening_report(options.folder, options.screen_options, notify=console.bar, **effort)

    return parser, SCREENING, measure


def _add_compare(commands: argparse._SubParsersAction[Any]) -> Added:
    parser = commands.add_parser(
        "compare-checkouts",
        help="compare the programs of two checkouts: speed and decisions",
        epilog="Options after -- are options of `fieldray screen`, for both programs.",
    )
    parser.add_argument("old", type=checkout, help="root of the checkout to compare with")
    parser.add_argument("new", type=checkout, help="root of the checkout to measure")
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="images to enlarge (otherwise: drawn by the program)"
    )
    _add_archive(parser, files=36, others=0)
    parser.add_argument("--images", type=number_from(1), default=288, metavar="N", help="per run (default: 288)")
    parser.add_argument("--repeats", type=number_from(1), default=7, metavar="N", help="rounds (default: 7)")

    def measure(options: argparse.Namespace, console: Console) -> Report:
        from benchmarks.archive import Wanted
        from benchmarks.checkouts import compare_on_archive

        return compare_on_archive(
            options.old,
            options.new,
            source=options.source,
            wanted=Wanted(
                files=options.files, others=options.others, megapixels=options.megapixels, kinds=options.kinds
            ),
            images=options.images,
            repeats=options.repeats,
            options=options.screen_options,
            notify=console.bar,
        )

    return parser, ("app/fieldray",), measure


def _add_archive(parser: argparse.ArgumentParser, *, files: int, others: int) -> None:
    usual, further = f"files of the six usual kinds (default: {files})", f"files of each other kind (default: {others})"
    parser.add_argument("--files", type=number_from(1), default=files, metavar="N", help=usual)
    parser.add_argument("--others", type=number_from(0), default=others, metavar="N", help=further)
    parser.add_argument(
        "--megapixels",
        type=low_and_high,
        default=(1.0, 7.0),
        metavar="LOW-HIGH",
        help="size of the images (default: 1-7)",
    )
    _add_kinds(parser)


def _add_kinds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kinds", type=file_kinds, default=(), metavar="KIND,...", help="kinds of files (default: all)"
    )

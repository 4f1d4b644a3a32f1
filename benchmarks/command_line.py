"""The command line of `python -m benchmarks`: for each benchmark, the arguments, the function, and the report path."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.image_files import IMAGE_KINDS
from fieldray import cli
from fieldray.bench.benchmark_case import BenchmarkReport
from fieldray.commands.bench import whole_number_at_least
from fieldray.commands.console import Console
from fieldray.commands.options import add_pack_options, load_pack, name_of_pack_to_measure, pack_library
from fieldray.reports.document import console_lines
from fieldray_cluster.training.formulas import CLUSTER_TRAINING_MODES

Argument = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of `python -m benchmarks`.

    Attributes
    ----------
    name
        The name of the command, and of the module with the function `run_benchmark`. The arguments of `run_benchmark`
        are the command-line arguments by name, and `notify`.
    paths
        The source files on which the figures depend, as listed on the page of the benchmark.
    further_argument
        A further argument of `run_benchmark`. "pack": `model`, the chosen pack. "screen": `options`, the options after
        --. "options": `run_benchmark` gets no arguments but the parsed options and the console.
    """

    name: str
    help: str
    paths: Sequence[str]
    arguments: Sequence[Argument] = ()
    further_argument: str = ""

    def register_commands(
        self, commands: argparse._SubParsersAction[Any], typed: str, screen_options: Sequence[str]
    ) -> None:
        """Add the command with its arguments to a parser.

        `typed` is the whole command line, for the page. `screen_options` are the options after --.
        """
        epilog = "Options after -- are passed to `fieldray screen`." if self.further_argument == "screen" else None
        parser = commands.add_parser(self.name, help=self.help, epilog=epilog)
        own = [parser.add_argument(name, **more).dest for name, more in self.arguments]
        if self.further_argument in ("pack", "options"):
            add_pack_options(parser)
        parser.add_argument("--out", type=Path, metavar="DIR", help="write JSON and a page to this folder")
        text = "write a page to build/benchmarks/SUBJECT.md (default: the name of the command)"
        parser.add_argument("--page", nargs="?", const=self.name, metavar="SUBJECT", help=text)

        def measured(options: argparse.Namespace, console: Console) -> BenchmarkReport:
            module = importlib.import_module(f"benchmarks.{self.name.replace('-', '_')}")
            function: Callable[..., BenchmarkReport] = module.run_benchmark
            if self.further_argument == "options":
                return function(options, console)
            given = {each: getattr(options, each) for each in own}
            if self.further_argument == "pack":
                library = pack_library()
                pack = options.pack or name_of_pack_to_measure(library)
                given["model"] = load_pack(library, pack, options)
            elif self.further_argument == "screen":
                given["options"] = screen_options
            return function(**given, notify=console.show_progress_bar)

        parser.set_defaults(command=_writing_report(measured, typed, self.paths))


# ---- parsers of option values


def _counts(text: str) -> tuple[int, ...]:
    """Parse a text such as `1,2,4` as whole numbers of 1 or more. Raises ArgumentTypeError."""
    return tuple(map(whole_number_at_least(1), text.split(",")))


def _file_kinds(text: str) -> tuple[str, ...]:
    """Parse a text such as `JPEG,RLE` as names of kinds of image files. Raises ArgumentTypeError."""
    return _chosen(text, tuple(IMAGE_KINDS))


def _networks(text: str) -> tuple[str, ...]:
    """Parse a text such as `squeezenet,vgg16` as kinds of networks in recipes. Raises ArgumentTypeError."""
    from fieldray_adapt.networks.architectures import NETWORKS  # not needed by other commands

    return _chosen(text, tuple(NETWORKS))


def _modes(text: str) -> tuple[str, ...]:
    """Parse a text such as `async,sync-join` as modes of training with several workers. Raises ArgumentTypeError."""
    return _chosen(text, CLUSTER_TRAINING_MODES)


def _chosen(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a comma-separated text, with the spelling in `known`. Raises ArgumentTypeError if unknown."""
    by_name = {name.lower(): name for name in known}
    asked = tuple(name.strip().lower() for name in text.split(","))
    if not set(asked) <= set(by_name):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
    return tuple(by_name[name] for name in asked)


def _low_and_high(text: str) -> tuple[float, float]:
    """Parse a text such as `1-7` as two numbers, the lower and the upper limit. Raises ArgumentTypeError."""
    low, _, high = text.partition("-")
    try:
        found = float(low), float(high or low)
    except ValueError:
        found = (0.0, 0.0)
    if not 0.01 <= found[0] <= found[1] <= 100:
        raise argparse.ArgumentTypeError("give LOW-HIGH, for example 1-7")
    return found


def _amount(text: str) -> float:
    """Parse a text as a number of 0 or more. Raises ArgumentTypeError."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < 1e9:
        raise argparse.ArgumentTypeError("give a number of 0 or more")
    return amount


# ---- the options


def _number(name: str, default: int, text: str, *, minimum: int = 1, parameter: str | None = None) -> Argument:
    more: dict[str, Any] = {"type": whole_number_at_least(minimum), "default": default, "metavar": "N"}
    return name, {**more, **({"dest": parameter} if parameter else {}), "help": f"{text} (default: {default})"}


def _numbers(name: str, default: Sequence[int], text: str) -> Argument:
    shown = ",".join(map(str, default))
    return name, {"type": _counts, "default": default, "metavar": "N,...", "help": f"{text} (default: {shown})"}


def _folder(name: str, text: str, **more: Any) -> Argument:
    return name, {"type": Path, "help": text, **more}


_AMOUNT: Final = {"type": _amount, "default": 1.0}
_SIZES: Final = {"type": _low_and_high, "default": (1.0, 7.0), "metavar": "LOW-HIGH"}
_KINDS: Final = (
    "--kinds",
    {"type": _file_kinds, "default": (), "metavar": "KIND,...", "help": "only these kinds of files (default: all)"},
)
_SYNTHETIC: Final = "(default: synthetic images)"
_APP: Final = "app/fieldray"
_SCREENING: Final = tuple(
    f"{_APP}/{room}" for room in ("imaging", "inference", "packs", "pipeline", "processes", "store", "workers")
)
_TRAINING: Final = "app/fieldray_cluster/training"

COMMANDS: Final = (
    Command(
        name="pipeline",
        help="measure the time from files to scores, and compare with a usual script",
        paths=_SCREENING,
        further_argument="options",
        arguments=(
            _folder("folder", f"folder of images to enlarge {_SYNTHETIC}", nargs="?"),
            _number("--files", 144, "number of files of the six usual kinds"),
            _number("--others", 6, "number of files of each other kind", minimum=0),
            ("--megapixels", {**_SIZES, "help": "size of the images in megapixels (default: 1-7)"}),
            _KINDS,
            _number("--repeats", 3, "number of rounds"),
            _number("--minutes", 60, "start no new round after this number of minutes"),
        ),
    ),
    Command(
        name="decisions",
        help="count the decisions that reading at a reduced resolution changes",
        paths=(f"{_APP}/imaging", f"{_APP}/domain/finding.py", "models"),
        further_argument="pack",
        arguments=(
            _folder("folder", "folder of images to compare"),
            _number("--images", 1200, "maximum number of images", parameter="max_images"),
            _KINDS,
        ),
    ),
    Command(
        name="sites",
        help="measure a threshold set from unlabelled images, and the limits of Uncertain, at other hospitals",
        paths=("app/fieldray_adapt/evaluation", f"{_APP}/domain", "models"),
        arguments=(_folder("data", "folder with index.csv and the images that it names"),),
    ),
    Command(
        name="screening",
        help="run the program as a user does, and measure the time to the first result, the rate and the memory",
        paths=_SCREENING,
        further_argument="screen",
        arguments=(
            _folder("source", f"folder of images to screen {_SYNTHETIC}", nargs="?"),
            _numbers("--counts", (200, 2000), "numbers of images; one run for each number"),
            _number("--starts", 5, "number of short runs"),
        ),
    ),
    Command(
        name="scale",
        help="measure pauses and memory of the window with a run of a million images",
        paths=tuple(f"{_APP}/{part}" for part in ("desktop", "pipeline/history.py", "store")),
        further_argument="pack",
        arguments=(_number("--rows", 10**6, "number of images", parameter="count"),),
    ),
    Command(
        name="store",
        help="measure the results database: bytes per image, a repeated run, maintenance of a large database",
        paths=_SCREENING,
        further_argument="pack",
        arguments=(
            _folder("--images", "files to copy (default: synthetic images)", metavar="FOLDER", dest="source"),
            _number("--files", 20_000, "number of copies"),
            _number("--rows", 10**6, "number of results in the large database"),
        ),
    ),
    Command(
        name="migration",
        help="measure the migration of a large results database, also with kills during the migration",
        paths=(f"{_APP}/store",),
        arguments=(
            _number("--rows", 10**6, "number of results in the database"),
            _number("--kills", 10, "number of migrations that are killed at a random moment", minimum=0),
        ),
    ),
    Command(
        name="comparison",
        help="measure the alignment of prior and current images, and the detection of change",
        paths=(f"{_APP}/comparison", f"{_APP}/domain/comparison.py", f"{_APP}/pipeline/compare.py"),
        arguments=(
            _folder("data", "folder with pairs.csv and the images that it names"),
            _number("--pairs", 60, "maximum number of pairs", parameter="max_pairs"),
            (
                "--part",
                {"choices": ("choose", "measure"), "default": "measure", "help": "part of the patients"},
            ),
        ),
    ),
    Command(
        name="networks",
        help="compare inference engines with the networks of the packs",
        paths=(
            *(
                f"app/fieldray_adapt/{name}.py"
                for name in ("lungs/recipe", "networks/architectures", "training/keras_engine")
            ),
            f"{_APP}/inference",
            "models",
        ),
        arguments=(
            _numbers("--threads", (1, 2), "numbers of threads"),
            _numbers("--batches", (1, 8), "numbers of images in a batch"),
            _number("--rounds", 5, "number of rounds"),
            ("--seconds", {**_AMOUNT, "metavar": "S", "help": "duration of a round in seconds (default: 1)"}),
        ),
    ),
    Command(
        name="cluster",
        help="compare `archive screen` with `screen`, also with random kills of workers",
        paths=(*_SCREENING, "app/fieldray_cluster"),
        further_argument="screen",
        arguments=(
            _folder("source", f"folder of images to copy {_SYNTHETIC}", nargs="?"),
            _number("--count", 2000, "number of images", minimum=100),
            _numbers("--workers", (1, 2), "numbers of workers"),
            _number("--rounds", 1, "number of runs for each number of workers"),
            _number("--kills", 20, "number of random kills during an archive run", minimum=0),
            _number("--trials", 64, "number of short trainings in a sweep", minimum=0),
            _number("--trial-kills", 5, "number of workers killed during the sweep", minimum=0),
            _number("--seed", 1, "seed of the random kills", minimum=0),
            ("--no-network", {"action": "store_false", "dest": "has_network", "help": "use no network namespaces"}),
            _folder("--work", "keep images and figures in this folder, so that a later start resumes", metavar="DIR"),
        ),
    ),
    Command(
        name="shaped-links",
        help="measure training over links of limited rate, and compare with the formulas (root, Linux)",
        paths=(_TRAINING, "benchmarks/shaped_links.py", "benchmarks/shaped_machine.py"),
        arguments=(
            _numbers("--workers", tuple(range(1, 9)), "numbers of workers"),
            _number("--batches", 24, "batches per training", minimum=8),
            _number("--slower", 1, "factor for all times, and divisor for the rates", parameter="time_factor"),
            (
                "--networks",
                {"type": _networks, "default": (), "metavar": "KIND,...", "help": "networks to train"},
            ),
            _number("--rate", 1000, "link rate for --networks, in Mbit/s", parameter="rate_mbit"),
            (
                "--width",
                {
                    "type": _amount,
                    "default": 1.0,
                    "metavar": "SHARE",
                    "help": "channel factor for --networks (default: 1)",
                },
            ),
            (
                "--modes",
                {
                    "type": _modes,
                    "default": CLUSTER_TRAINING_MODES,
                    "metavar": "MODE,...",
                    "help": "modes of training (default: all)",
                },
            ),
            ("--turns", {"action": "store_true", "dest": "has_turns", "help": "also measure one transfer at a time"}),
        ),
    ),
    Command(
        name="real-training",
        help="train a recipe on one and two workers of this computer, and compare with the formulas",
        paths=(_TRAINING, "benchmarks/real_training.py"),
        arguments=(
            _folder("recipe", "the recipe (a TOML file)", metavar="RECIPE"),
            _number("--epochs", 8, "number of epochs of each training", minimum=3, parameter="count"),
        ),
    ),
    Command(
        name="objects",
        help="compare training iterations with images from an object server and from files",
        paths=("app/fieldray_cluster/objects.py", "app/fieldray_cluster/object_server.py", "benchmarks/objects.py"),
        arguments=(
            _folder("folder", "folder of PNG and JPEG images"),
            _number("--images", 24, "maximum number of images", minimum=2, parameter="max_images"),
            _number("--batch", 4, "number of images in an iteration"),
            _number("--rounds", 3, "number of rounds for each network"),
        ),
    ),
    Command(
        name="object-training",
        help="train a recipe from an object server and from files, and compare epoch times and weights",
        paths=(
            *(f"app/fieldray_cluster/{name}.py" for name in ("object_copies", "objects", "object_server")),
            "benchmarks/object_training.py",
        ),
        arguments=(
            _number("--patients", 120, "number of patients, with two synthetic images each", minimum=30),
            _number("--epochs", 6, "number of epochs", minimum=2),
            _number("--rounds", 2, "number of trainings of each kind"),
        ),
    ),
)


def run(arguments: Sequence[str], *, console: Console | None = None) -> int:
    """Run the benchmark that the command-line arguments name. Returns the exit code (see `fieldray.cli`)."""
    own, more = list(arguments), []
    if "--" in arguments and any(one.name == arguments[0] and one.further_argument == "screen" for one in COMMANDS):
        end = arguments.index("--")
        own, more = own[:end], own[end + 1 :]
    parser = cli.Parser(prog="python -m benchmarks", description="Run a benchmark for developers.", allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for one in COMMANDS:
        one.register_commands(commands, shlex.join(["python", "-m", "benchmarks", *arguments]), more)
    return cli.run(own, console=console, parser=parser)


def _writing_report(
    measured: Callable[[argparse.Namespace, Console], BenchmarkReport], typed: str, paths: Sequence[str]
) -> Callable[[argparse.Namespace, Console], int]:
    """Return a function that calls `measured`, prints the report, and writes the report to the path in the arguments.

    `typed` is the whole command line, `paths` the source files on which the figures depend.
    """

    def run_command(options: argparse.Namespace, console: Console) -> int:
        from benchmarks.reports import PageRefused, plan_page, write_page, write_report
        from benchmarks.screening import ScreeningFailed

        try:
            page = plan_page(options.page, command=typed, paths=paths) if options.page else None
            report = measured(options, console)
        except (PageRefused, ScreeningFailed) as problem:
            console.print_error(str(problem))
            return 1
        for line in console_lines(report.blocks):
            console.print_line(line)
        written = write_report(report, options.out) if options.out else ()
        for path in (*written, *([write_page(report, page)] if page else [])):
            console.print_line(f"Written: {path}")
        return 0

    return run_command

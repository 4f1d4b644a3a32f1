"""The command `fieldray adapt`, which makes a signed pack from labelled images.

The options that divide one training among several processes are defined in `fieldray_cluster.commands.training`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from fieldray.commands.console import Console, add_command, add_command_group, parse_path_option, progress_text
from fieldray.errors import UsageProblem
from fieldray.packs.verified import read_verified_manifest
from fieldray.paths import data_folder
from fieldray.persistence import PRIVATE_FILE_MODE
from fieldray.reasons import reason
from fieldray_cluster.commands.training import (
    add_estimate_subcommand,
    add_fetch_option,
    add_fetch_subcommand,
    add_measure_cluster_subcommand,
    add_training_options,
    fetch_images_in_other_process,
    make_trainer,
)

TENSORFLOW_LOG_FILE_NAME: Final = "tensorflow.log"
_LARGEST_BYTES: Final = 1_000_000
STEP_SUMMARIES: Final = {
    "run": "run all unfinished steps",
    "cross": "cross-validate, if the recipe has folds; for lung fields, leave out each hospital in turn",
    "profile": "time training iterations for several batch and image sizes, and suggest a batch size",
    "data": "read the images and fix their split into parts",
    "train": "train the network",
    "prune": "make the trained network smaller and faster",
    "quantise": "convert the network to int8",
    "placement": "predict which operators run on the Edge TPU, and how fast",
    "evaluate": "choose operating points and evaluate the pack",
    "pack": "write the signed pack",
    "report": "write the report of the run",
}


@contextlib.contextmanager
def report_missing_libraries(console: Console) -> Iterator[None]:
    """Run a block that uses the training libraries, and turn a missing library into a message for the user.

    Text that the libraries print goes to the file `tensorflow.log`. If the block raises an error that lists several
    problems of a recipe, the list is printed first.

    Raises UsageProblem (`adapt_not_installed`) if a library is missing.
    """
    try:
        with log_library_messages(console):
            yield
    except ModuleNotFoundError as error:
        raise UsageProblem(reason("adapt_not_installed", name=error.name)) from error
    except UsageProblem as problem:
        print_problems(problem, console)
        raise


@contextlib.contextmanager
def log_library_messages(console: Console) -> Iterator[None]:
    """Redirect the libraries' messages on standard error to `tensorflow.log` during the block.

    The C++ code of TensorFlow writes to file descriptor 2 directly, not through `sys.stderr`. Therefore file descriptor
    2 is replaced. The messages of `console` go to a duplicate of the original descriptor.
    """
    if not console.prints_errors_to_stderr:
        yield
        return
    own = os.dup(2)
    try:
        with _log() as log, os.fdopen(own, "w", encoding="utf-8", errors="backslashreplace", closefd=False) as stream:
            before = console.redirect_errors(stream)
            os.dup2(log.fileno(), 2)
            try:
                yield
            finally:
                sys.stderr.flush()
                os.dup2(own, 2)
                console.redirect_errors(before)
    finally:
        os.close(own)


def _log() -> BinaryIO:
    """Open the log file of the libraries for appending.

    A log that is larger than 1 MB is emptied first. Returns the null device if the log cannot be opened.
    """
    path, append = (
        data_folder() / TENSORFLOW_LOG_FILE_NAME,
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0),
    )
    try:
        is_large = path.exists() and path.stat().st_size > _LARGEST_BYTES
        return os.fdopen(os.open(path, append | (os.O_TRUNC if is_large else 0), PRIVATE_FILE_MODE), "ab")
    except OSError:
        return open(os.devnull, "ab")  # noqa: PTH123


def print_problems(problem: UsageProblem, console: Console) -> None:
    """Print each problem of a recipe on a line, if the error lists more than one problem; otherwise print nothing."""
    lines = getattr(problem, "lines", ())
    if len(lines) > 1:
        for line in lines:
            console.print_line(line)


def register_commands(commands: argparse._SubParsersAction[Any], summary: str) -> None:
    """Add the command `adapt` and its subcommands to a parser."""
    actions = add_command_group(commands, "adapt", summary)
    for name, text in STEP_SUMMARIES.items():
        action = add_command(actions, name, text)
        action.add_argument("recipe", type=parse_path_option, metavar="RECIPE", help="the recipe (a TOML file)")
        add_fetch_option(action)
        action.set_defaults(command=run_adapt, step=name)
        if name in ("run", "train"):
            add_training_options(action)
    check = add_command(actions, "check", "list every problem in a recipe and its data")
    check.add_argument("recipe", type=parse_path_option, metavar="RECIPE", help="the recipe (a TOML file)")
    check.set_defaults(command=run_check)
    new = add_command(actions, "new", "write a commented recipe to start from")
    new.add_argument("kind", metavar="KIND", help="the kind of pack to make, for example classifier")
    new.add_argument(
        "recipe", type=parse_path_option, nargs="?", metavar="RECIPE", help="the file to write (default: KIND.toml)"
    )
    new.set_defaults(command=run_new_recipe_command)
    add_compile_subcommand(actions)
    add_fetch_subcommand(actions)
    add_measure_cluster_subcommand(actions)
    add_estimate_subcommand(actions)


def add_compile_subcommand(actions: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `compile`, which compiles an existing pack for the Edge TPU."""
    action = add_command(actions, "compile", "compile a pack for the Edge TPU, where edgetpu_compiler is installed")
    action.add_argument("pack", type=parse_path_option, metavar="PACK", help="the folder of a classifier's pack")
    action.add_argument(
        "--key", type=parse_path_option, default=Path("signing.pem"), metavar="FILE",
        help="signing key of the pack (default: signing.pem, made if missing)",
    )  # fmt: skip
    where = "folder for the new pack (default: the folder of the pack, if signed with the same key)"
    action.add_argument("--out", type=parse_path_option, metavar="FOLDER", help=where)
    action.set_defaults(command=run_compile)


def run_compile(options: argparse.Namespace, console: Console) -> int:
    """Run `adapt compile`, which compiles a pack for the Edge TPU. Returns the exit code. Raises FieldrayError."""
    with report_missing_libraries(console):
        from fieldray_adapt.recipe_actions import compile_pack

        path = compile_pack(options.pack, signing_key=options.key, output_folder=options.out, say=console.print_line)
    console.print_line(f"Written: {path}")
    console.print_line(
        f"To use the pack: fieldray packs install {path} --trust {read_verified_manifest(path).fingerprint}"
    )
    return 0


def run_adapt(options: argparse.Namespace, console: Console) -> int:
    """Run the steps of a recipe up to `options.step`. Returns the exit code. Raises UsageProblem, PackProblem."""
    if options.fetch and (code := fetch_images_in_other_process(options.recipe)):
        return code
    # NumPy reads this variable on import. The matrices here are so small that BLAS threads slow them down.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    trainer = make_trainer(options, console) if "mode" in options else None
    console.logs_progress = True
    with report_missing_libraries(console):
        from fieldray_adapt.recipe_actions import run_recipe

        run_recipe(options.step, options.recipe, say=console.print_line, progress=ProgressBar(console), trainer=trainer)
    return 0


def run_check(options: argparse.Namespace, console: Console) -> int:
    """Run `adapt check`, which lists all problems of a recipe. Returns the exit code. Raises UsageProblem."""
    with report_missing_libraries(console):
        from fieldray_adapt.recipe_actions import check_recipe

        left_out = check_recipe(options.recipe)
    console.print_lines([*left_out, f"{options.recipe}: no problems found"])
    return 0


def run_new_recipe_command(options: argparse.Namespace, console: Console) -> int:
    """Run `adapt new`, which writes a new recipe. Returns the exit code. Raises UsageProblem, StorageProblem."""
    with report_missing_libraries(console):
        from fieldray_adapt.recipe_actions import write_new_recipe

        for path in write_new_recipe(options.kind, options.recipe or Path(f"{options.kind}.toml")):
            console.print_line(f"Written: {path}")
    return 0


class ProgressBar:
    """A progress bar on the console, for several kinds of work that follow each other, such as reading and training.

    Rate and remaining time are counted anew for each kind of work.

    Parameters
    ----------
    console
        Shows the bar.
    clock
        Returns the time in seconds.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._console, self._what, self._began_s, self._done = console, "", 0.0, 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now_s = self._clock()
        if what != self._what or done <= self._done:
            self._what, self._began_s = what, now_s
        self._done = done
        elapsed_s = now_s - self._began_s
        rate = (done - 1) / elapsed_s if elapsed_s > 0 and done > 1 else 0.0
        left_s = (total - done) / rate if rate else None
        self._console.show_progress_bar(f"{what} {progress_text(done, total, rate, left_s)}")

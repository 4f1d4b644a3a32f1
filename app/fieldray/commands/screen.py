"""`fieldray screen`: every image of some folders, as lines for a program or a list for a person."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fieldray.backends import device_choices
from fieldray.commands.console import Console, add_command, given_path, given_text
from fieldray.commands.options import (
    add_pack_options,
    add_report_options,
    load_pack,
    pack_library,
    report_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fieldray.commands.run import RunReport
    from fieldray.domain.model import Model
    from fieldray.pipeline.batch import Batch
    from fieldray.pipeline.session import Session
    from fieldray.settings import Settings

_JOIN_S = 0.2


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its options."""
    parser = add_command(
        commands,
        "screen",
        run=run,
        description="Screen every image in the given files and folders.",
        epilog="Exit code: 0 every image has a result; 1 some images failed; 2 wrong usage; "
        "3 no usable pack; 4 a given path contains no image (is its drive connected?); 130 cancelled. "
        "Research use only. Not for diagnostic use.",
    )
    parser.add_argument("paths", nargs="+", type=given_path, metavar="PATH", help="a file or folder to screen")
    add_pack_options(parser, has_several=True)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="go on screening what comes into these folders, until Ctrl-C; the next watch goes on from there",
    )
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options of a run whose results are written."""
    add_screening_options(parser)
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="also screen what is refused for its view, its body part, its lungs, or as unlike the pack's images: its "
        "result says so",
    )
    parser.add_argument(
        "--turn",
        action="store_true",
        help="turn images that lie on their side, upside down or inverted, and screen them: their results say so",
    )
    parser.add_argument("--out", type=given_path, metavar="DIR", help="write the results to this folder")
    add_report_options(parser)
    parser.add_argument(
        "--json",
        type=given_text,
        metavar="FILE|-",
        help="write one line of JSON per image; - prints each at once, a file appears when the run ends, "
        "that of --watch grows",
    )
    parser.add_argument(
        "--maps",
        type=given_path,
        metavar="DIR",
        help="write for each image the lungs, the class map and both laid over the image into this folder; of several "
        "packs into a folder for each",
    )


def add_screening_options(parser: argparse.ArgumentParser) -> None:
    """How images are screened."""
    parser.add_argument(
        "--device",
        choices=device_choices(),
        help="the device that runs the model (default: from the settings)",
    )
    parser.add_argument(
        "--operating-point", metavar="NAME", help="operating point of each pack that has it (default: its first)"
    )
    parser.add_argument(
        "--ages-confirmed",
        action="store_true",
        help="all patients are of the ages the pack is for: written into results of files that state no age",
    )
    parser.add_argument(
        "--jobs", type=_jobs, metavar="N", help="files to read at the same time, 1 to 64 (default: from the settings)"
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="reuse the results of an earlier run (the default)")
    again.add_argument("--fresh", action="store_true", help="screen everything again as a new run")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read every file as a whole before its earlier result is reused, not only its size, times and a sample",
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Screen; the exit code."""
    console.machine_reads = options.json == "-"
    if (options.formats or options.names) and not options.out:
        given = "--formats" if options.formats else "--names"
        console.print_error(f"{given} needs --out: name the folder to write to")
        return 2

    if options.watch and options.maps:
        console.print_error("--maps cannot be used with --watch: screen the folder without --watch afterwards")
        return 2

    if options.maps:  # what cannot be written is said before anything is screened
        from fieldray.reports.outputs import require_folder

        require_folder(options.maps)
    is_listed = options.json is None
    with screened(options, console, target=options.json, has_list=is_listed, watches=options.watch) as done:
        code = done.report.finish(
            done.batch,
            done.session,
            out=options.out,
            formats=options.formats,
            options=report_options(options, done.settings, console),
        )
        return done.report.add_maps(done.session, done.batch, options.maps, code=code) if options.maps else code


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Done:
    """A run that is over, with its session still open; `model` is the first pack."""

    model: Model
    report: RunReport
    batch: Batch
    session: Session
    settings: Settings


@contextlib.contextmanager
def screened(
    options: argparse.Namespace, console: Console, *, target: str | None, has_list: bool, watches: bool = False
) -> Iterator[Done]:
    """Screen `options.paths` to the end; the lines of JSON go to `target` (see `json_lines`).

    With `watches` the end is that somebody stops it.

    Raises UsageProblem, PackProblem, StorageProblem, BackendProblem.
    """
    from fieldray.workers.pool import number_of_workers, open_workers

    settings = _settings(options)
    # The other processes get ready while this one imports its own parts and loads the pack: half a second sooner.
    with contextlib.closing(open_workers(settings, number_of_workers(settings))) as warm:
        library, names = pack_library(), options.pack if isinstance(options.pack, list) else [options.pack]
        loaded = [load_pack(library, name, options, print_error=console.print_error) for name in names]
        model, *beside = {(one.pack_name, one.fingerprint): one for one in loaded}.values()
        from fieldray.commands.run import RunReport, json_lines
        from fieldray.domain.run import Resuming, Wishes
        from fieldray.pipeline.session import Session

        with json_lines(target, console, inputs=options.paths, watches=watches) as emit:
            report = RunReport(console, emit, models=(model, *beside), has_list=has_list, watches=watches)
            with Session(settings, report.publish, warm=warm) as session:
                session.use_pack(model, beside=beside)
                # The operating point of the settings goes with the pack of the settings alone.
                point = options.operating_point or (None if options.pack else str(settings["operating_point"]))
                batch = session.start(
                    options.paths,
                    operating_point=point or None,
                    fresh=options.fresh,
                    resuming=Resuming(verifies=options.verify, reports_each=emit is not None),
                    ages_confirmed=options.ages_confirmed,
                    wishes=Wishes(overrules=options.anyway, turns=options.turn),
                    watches=watches,
                )
                report.begin(batch.specs, ages_confirmed=options.ages_confirmed)
                if watches:
                    console.print_line(f"Watching {', '.join(batch.spec.paths)}. Ctrl-C stops.")
                _wait(batch, console)
                yield Done(model=model, report=report, batch=batch, session=session, settings=settings)


def _wait(batch: Batch, console: Console) -> None:
    """Until the run is over; Ctrl-C and a reader that has gone away cancel it in order."""
    try:
        while not batch.join(_JOIN_S):
            if console.is_broken:
                batch.cancel()
    except KeyboardInterrupt:
        batch.cancel()
        batch.join()


def _settings(options: argparse.Namespace) -> Settings:
    from fieldray.settings import load

    settings, _ = load()
    if options.device:
        settings.set("device", options.device)
    if options.jobs:
        settings.set("decoders", options.jobs)
    return settings


def _jobs(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 64:
        return int(text)
    raise argparse.ArgumentTypeError("a whole number from 1 to 64 is needed")

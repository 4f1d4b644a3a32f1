"""`fieldray screen`: screen every image of some folders, and print JSON lines or a work list.

`fieldray demo`: screen openly licensed images with a matching pack, and show them in the window or print the list.
"""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.backends import device_choices
from fieldray.commands.console import Console, add_command, parse_path_option, parse_text_option
from fieldray.commands.options import (
    add_pack_options,
    add_report_options,
    load_pack,
    pack_library,
    report_options,
)
from fieldray.errors import UsageProblem
from fieldray.paths import data_folder
from fieldray.persistence import SHARED_FILE_MODE, storage_problem, write_atomically
from fieldray.process_environment import can_open_window
from fieldray.reasons import reason
from fieldray.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fieldray.commands.run_report import RunReport
    from fieldray.domain.model import Model
    from fieldray.imaging.synthetic import DemoImageSet
    from fieldray.pipeline.batch import Batch
    from fieldray.pipeline.session import Session
    from fieldray.settings import Settings

_JOIN_S = 0.2
_SYNTHETIC: Final = "drawn"
_PATIENTS: Final = ("children", "adults")  # parts of the demonstration


def register_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands `screen` and `demo` with their options."""
    parser = add_command(
        commands,
        "screen",
        run=run,
        description="Screen every image in the given files and folders.",
        epilog="Exit code: 0 every image has a result; 1 some images failed; 2 wrong usage; "
        "3 no usable pack; 4 a given path contains no image (is its drive connected?); 130 cancelled. "
        "Research use only. Not for diagnostic use.",
    )
    parser.add_argument("paths", nargs="+", type=parse_path_option, metavar="PATH", help="a file or folder to screen")
    add_pack_options(parser, allows_several=True)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="watch the folders and screen new files until Ctrl-C; a later --watch continues",
    )
    add_run_options(parser)
    _add_demo(commands)


def _add_demo(commands: argparse._SubParsersAction[Any]) -> None:
    parser = add_command(
        commands,
        "demo",
        run=run_demo,
        description="Screen openly licensed images with the pack for them, and open the window if there is a display. "
        "The name of each file gives the published label. Some of the images are not suitable on purpose, "
        "as examples.",
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=(*_PATIENTS, _SYNTHETIC),
        default=_PATIENTS[0],
        help="images of children (default) or of adults, or synthetic images, which need --pack",
    )
    parser.add_argument(
        "--folder",
        type=parse_path_option,
        metavar="DIR",
        help="folder for the images (default: in the user's data folder)",
    )
    parser.add_argument("--no-window", action="store_true", help="print the work list even if there is a display")
    add_pack_options(parser, default="the one that these images are for")
    add_run_options(parser)
    parser.set_defaults(watch=False)  # there is nothing to watch in the folder of the demonstration


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run whose results are exported."""
    add_screening_options(parser)
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="also screen images that are not suitable because of view, body part or lungs, because they are raw or "
        "subtracted images, or because they are unlike the pack's images; each result notes this",
    )
    parser.add_argument(
        "--turn",
        action="store_true",
        help="correct images that lie on their side, upside down or inverted, and screen them; the results say so",
    )
    parser.add_argument("--out", type=parse_path_option, metavar="DIR", help="write the results to this folder")
    add_report_options(parser)
    parser.add_argument(
        "--json",
        type=parse_text_option,
        metavar="FILE|-",
        help="write JSON Lines, one per image; - prints each line at once; FILE is written when the run ends, or "
        "continuously with --watch",
    )
    parser.add_argument(
        "--maps",
        type=parse_path_option,
        metavar="DIR",
        help="write the lung mask, the class map and an overlay of each image to this folder; with several packs, "
        "one subfolder per pack",
    )


def add_screening_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that control how images are screened."""
    parser.add_argument(
        "--device",
        choices=device_choices(),
        help="the device that runs the model (default: from the settings)",
    )
    parser.add_argument(
        "--operating-point",
        metavar="NAME",
        help="name of the operating point; a pack without this operating point uses its first (the default)",
    )
    parser.add_argument(
        "--ages-confirmed",
        action="store_true",
        help="confirm that all patients are in the pack's age range; for files without an age, the result notes this",
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
        help="before a result is reused, compare the whole file, not only size, times and a sample",
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray screen`. Returns the exit code.

    Raises UsageProblem, PackProblem, StorageProblem, BackendProblem.
    """
    console.is_output_for_program = options.json == "-"
    if (options.formats or options.names) and not options.out:
        given = "--formats" if options.formats else "--names"
        console.print_error(f"{given} needs --out: name the folder to write to")
        return 2

    if options.watch and options.maps:
        console.print_error("--maps cannot be used with --watch: screen the folder without --watch afterwards")
        return 2

    is_listed = options.json is None
    with screening_run(
        options, console, target=options.json, prints_work_list=is_listed, watches=options.watch
    ) as done:
        code = done.report.finish(
            done.batch,
            done.session,
            out=options.out,
            formats=options.formats,
            options=report_options(options, done.settings, console),
        )
        return done.report.write_map_files(done.session, done.batch, options.maps, code=code) if options.maps else code


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class FinishedRun:
    """A finished run. The session, with its engine and worker processes, is still open.

    model  the first pack of the run
    """

    model: Model
    report: RunReport
    batch: Batch
    session: Session
    settings: Settings


@contextlib.contextmanager
def screening_run(
    options: argparse.Namespace, console: Console, *, target: str | None, prints_work_list: bool, watches: bool = False
) -> Iterator[FinishedRun]:
    """Screen all images under `options.paths`, and yield the finished run, whose session is open in the `with` block.

    target            target of the JSON lines (see `json_lines`)
    prints_work_list  whether the work list is printed at the end
    watches           whether the folders are watched until somebody stops the run

    Raises UsageProblem, PackProblem, StorageProblem, BackendProblem.
    """
    from fieldray.workers.pool import number_of_workers, open_workers

    settings = _settings(options)
    # The worker processes start while this process imports modules and loads the pack, which saves half a second.
    with contextlib.closing(open_workers(settings, number_of_workers(settings))) as warm:
        library, names = pack_library(), options.pack if isinstance(options.pack, list) else [options.pack]
        loaded = [load_pack(library, name, options, print_error=console.print_error) for name in names]
        models = tuple({(one.pack_name, one.fingerprint): one for one in loaded}.values())
        from fieldray.commands.run_report import RunReport, open_json_lines
        from fieldray.domain.run import RefusalOverrides, ResumeOptions
        from fieldray.pipeline.session import Session

        with open_json_lines(target, console, inputs=options.paths, watches=watches) as emit:
            report = RunReport(console, emit, models=models, prints_work_list=prints_work_list, watches=watches)
            with Session(settings, report.publish, running_workers=warm) as session:
                session.use_packs(*models)
                # The operating point of the settings belongs to the default pack, so it is not used with `--pack`.
                point = options.operating_point or (None if options.pack else str(settings["operating_point"]))
                batch = session.start(
                    options.paths,
                    operating_point=point or None,
                    as_new_run=options.fresh,
                    resume_options=ResumeOptions(verifies_content=options.verify, reports_each_image=emit is not None),
                    ages_confirmed=options.ages_confirmed,
                    overrides=RefusalOverrides(overrules=options.anyway, turns=options.turn),
                    watches_folders=watches,
                )
                report.begin(batch.spec, ages_confirmed=options.ages_confirmed)
                if watches:
                    console.print_line(f"Watching {', '.join(batch.spec.paths)}. Ctrl-C stops.")
                _wait(batch, console)
                yield FinishedRun(model=models[0], report=report, batch=batch, session=session, settings=settings)


def _wait(batch: Batch, console: Console) -> None:
    """Wait until the run is over. Ctrl-C or a closed output stream cancels the run."""
    try:
        while not batch.join(_JOIN_S):
            if console.has_failed_stream:
                batch.cancel()
    except KeyboardInterrupt:
        batch.cancel()
        batch.join()


def _settings(options: argparse.Namespace) -> Settings:
    settings, _ = load_settings()
    if options.device:
        settings.set("device", options.device)
    if options.jobs:
        settings.set("decoders", options.jobs)
    return settings


def _jobs(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 64:
        return int(text)
    raise argparse.ArgumentTypeError("a whole number from 1 to 64 is needed")


# ---- the demonstration


def run_demo(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray demo`: write the images, screen and show them. Returns the exit code.

    Raises UsageProblem, PackProblem, StorageProblem, BackendProblem.
    """
    folder = options.folder or data_folder() / "demo" / options.part
    console.is_output_for_program = options.json == "-"
    if options.part == _SYNTHETIC:
        _write_synthetic(folder, console)
    else:
        _write_real(folder, options, console)
    options.paths = [folder]
    code = run(options, console)
    if options.part == _PATIENTS[0] and code in (0, 1):
        console.print_line(f"Images of adults need the pack for adults: fieldray demo {_PATIENTS[1]}")
    if code in (0, 1) and options.open_window and not options.no_window and can_open_window():
        return int(options.open_window([folder]))
    return code


def _write_synthetic(folder: Path, console: Console) -> None:
    from fieldray.imaging.synthetic import write_studies
    from fieldray.reports.outputs import require_own_output

    for path in folder.glob("study-*.dcm") if folder.is_dir() else ():
        require_own_output(path, "demo")  # a clinic's own studies may have such names
    console.print_line(f"Drawing synthetic studies in {folder}")
    console.print_line(
        "The studies are drawings, not X-rays. They show how the program works, not how well a pack works."
    )
    write_studies(folder)


def _write_real(folder: Path, options: argparse.Namespace, console: Console) -> None:
    """Write the openly licensed images of a part of the demonstration.

    Without `--pack`, the pack that suits these images is chosen, and stored as the pack of the folder.
    """
    from fieldray.imaging.synthetic import DEMO_IMAGE_SETS, demo_image_credits_path
    from fieldray.packs.site_choices import RememberedPacks

    part = next(part for part in DEMO_IMAGE_SETS if part.name == options.part)
    for name, content in _files_to_write(part, folder, is_own=options.folder is None):
        write_atomically(folder / name, content, mode=SHARED_FILE_MODE)
    console.print_line(
        f"Images of {part.patient_group} in {folder}. File names give the published labels. "
        "Some images are not suitable."
    )
    console.print_line(
        f"The images show every kind of result, not how well the pack performs. Sources: {demo_image_credits_path()}"
    )
    if options.pack is None:
        options.pack = part.pack_id
        options.ages_confirmed = part.has_ages
        RememberedPacks(data_folder()).remember([folder], part.pack_id, ages_confirmed=part.has_ages)


def _files_to_write(part: DemoImageSet, folder: Path, *, is_own: bool) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each demonstration file that is missing.

    In the program's own folder, files from another version of the program are yielded as well.

    is_own  whether the folder is the program's own folder, not a folder that the user named

    Raises UsageProblem if the user's folder has a file of the same name with other content. Raises StorageProblem.
    """
    from fieldray.imaging.synthetic import demo_files

    for name, content in demo_files(part):
        path = folder / name
        try:
            if path.exists() and path.read_bytes() == content:
                continue
            if path.exists() and not is_own:
                raise UsageProblem(reason("output_not_ours", path=path))
        except OSError as error:
            raise storage_problem(error, path) from error
        yield name, content

"""The command `fieldray archive`: screen very many images with several processes, on one or several computers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.backends import device_choices
from fieldray.commands.console import (
    Console,
    add_command,
    add_command_group,
    parse_path_option,
    parse_text_option,
    progress_text,
)
from fieldray.commands.options import add_pack_options, load_pack, pack_library, pack_name_with_signer
from fieldray.errors import UsageProblem
from fieldray.paths import results_database_path
from fieldray.reasons import reason
from fieldray_cluster.commands.cluster import (
    add_connection_options,
    connection_settings,
    importing_cluster_modules,
    whole_number,
)

if TYPE_CHECKING:
    from fieldray.commands.run_report import PackSummary
    from fieldray.domain.run import RunSpec
    from fieldray_cluster.archive import ArchiveProgress
    from fieldray_cluster.archive_folder import ArchiveFolder
    from fieldray_cluster.archive_worker import ArchiveRequest

NO_IMAGES_EXIT_CODE: Final = 4


def register_commands(commands: argparse._SubParsersAction[Any], summary: str) -> None:
    """Add the command `archive` and its subcommands to a parser."""
    actions = add_command_group(commands, "archive", summary)
    screen = add_command(
        actions, "screen", "screen every image of an archive; resume after an interruption", run=run_screen
    )
    what = "a file or folder to screen; or only one s3, http, https or sftp address, such as s3://BUCKET/PREFIX"
    screen.add_argument("paths", nargs="+", type=parse_text_option, metavar="PATH", help=what)
    add_pack_options(screen)
    screen.add_argument(
        "--out",
        type=parse_path_option,
        required=True,
        metavar="DIR",
        help="folder for the list of images and the results; an existing folder is resumed",
    )
    add_connection_options(screen)
    screen.add_argument(
        "--send-files", action="store_true", help="send the images to computers that cannot read the folders"
    )
    screen.add_argument(
        "--chunk",
        type=whole_number(1, 4096),
        default=256,
        metavar="N",
        help="images per task of a process (default: 256)",
    )
    screen.add_argument("--device", choices=device_choices(), help="the device that runs the model")
    screen.add_argument("--operating-point", metavar="NAME", help="operating point of the pack (default: its first)")
    screen.add_argument(
        "--ages-confirmed",
        action="store_true",
        help="confirm that all patients are in the pack's age range (see `fieldray screen`)",
    )


def run_screen(options: argparse.Namespace, console: Console) -> int:
    """Run `archive screen` (screen an archive into an output folder). Returns the exit code. Raises FieldrayError."""
    with importing_cluster_modules():
        from fieldray.commands.run_report import PackSummary
        from fieldray.domain.pack_setup import set_up_pack
        from fieldray.imaging.discover import absolute_paths
        from fieldray.pipeline.batch_ports import run_spec
        from fieldray.settings import load_settings
        from fieldray_cluster.archive_folder import ArchiveFolder, is_merged, make_image_list
        from fieldray_cluster.archive_worker import make_request
        from fieldray_cluster.object_server import is_object_address

    console.logs_progress = True
    settings, _ = load_settings()
    if options.device:
        settings.set("device", options.device)
    paths = options.paths
    if not any(map(is_object_address, paths)):
        paths = list(map(str, absolute_paths([Path(path) for path in paths])))
    elif len(paths) > 1 or options.send_files:
        raise UsageProblem(reason("archive_one_address"))
    model = load_pack(pack_library(), options.pack, options, print_error=console.print_error)
    setup = set_up_pack(model, operating_point=options.operating_point, ages_confirmed=options.ages_confirmed)
    spec, database = run_spec(paths, [setup]), results_database_path()
    is_folder = bool(options.pack) and Path(options.pack).is_dir()
    name = str(Path(options.pack).absolute()) if is_folder else pack_name_with_signer(spec.packs[0])
    request = make_request(
        paths,
        name,
        setup,
        operating_point=options.operating_point,
        settings=settings,
        allow_older=options.allow_older,
        allow_legacy=options.allow_legacy,
    )
    with ArchiveFolder(options.out) as folder:
        folder.store_request(request)
        try:
            make_image_list(
                folder, paths, settings, progress=lambda n: console.show_progress_bar(f"Listing images: {n}")
            )
        except UsageProblem as problem:
            if problem.reason.code != "no_image_in":
                raise
            console.print_error(problem.reason.text)
            return NO_IMAGES_EXIT_CODE
        run_id = folder.merged_run_id()
        if run_id is not None and is_merged(database, run_id, spec):
            console.print_line(_all_done(folder, run_id))
            return 0
        progress, run_id = _screened(options, console, folder, request, spec=spec, database=database)
        return _sum_up(console, PackSummary(model, model.pack_name), progress, run_id, database)


def _screened(
    options: argparse.Namespace,
    console: Console,
    folder: ArchiveFolder,
    request: ArchiveRequest,
    *,
    spec: RunSpec,
    database: Path,
) -> tuple[ArchiveProgress, int]:
    """Screen the images of an archive that have no results. Returns the progress, and the number of the run.

    The run in the results database `database` has all results. Raises FieldrayError.
    """
    from fieldray_cluster.archive import ArchiveDriver, PieceOptions
    from fieldray_cluster.archive_folder import open_archive_run

    keeps_previews = bool(dict(request.settings)["keep_previews"])
    with (
        folder.open_image_list() as images,
        open_archive_run(database, spec, lambda _event: None, keeps_previews=keeps_previews) as run,
    ):
        archive = ArchiveDriver(
            folder,
            request,
            images,
            save=run.save,
            progress=lambda progress: _show(console, progress),
            on_message=lambda node, why: console.print_error(f"{node}: {why.text}"),
            options=PieceOptions(images_per_piece=options.chunk, sends_files=options.send_files),
        )
        progress = archive.run(connection_settings(options))
        run.finish()
        folder.record_merged_run(run.run_id)
        return progress, run.run_id


def _show(console: Console, progress: ArchiveProgress) -> None:
    text = progress_text(
        progress.screened_image_count, progress.image_count, progress.images_per_s, progress.remaining_s
    )
    console.show_progress_bar(f"{text}  {_nodes(progress)}".rstrip())


def _sum_up(console: Console, summary: PackSummary, progress: ArchiveProgress, run_id: int, database: Path) -> int:
    from fieldray.commands.run_report import result_counts_of_run
    from fieldray.domain.finding import image_count
    from fieldray.domain.run import PackOfRun
    from fieldray.reports.content import RESEARCH_ONLY_NOTICE

    summary.set_counts(result_counts_of_run(database, run_id)[0])
    print_line, counts = console.print_line, summary.counts
    images, files = image_count(counts), sum(counts.values())
    print_line(
        f"{_counted(images, 'image')}. "
        f"Finished earlier: {progress.earlier_screened_image_count} of {_counted(files, 'file')}."
    )
    console.print_lines((*summary.summary_lines(), *summary.drift_sentences(database, PackOfRun(run_id))))
    if progress.nodes:
        print_line(f"By node: {_nodes(progress)}")
    print_line(f"The history lists these results as run {run_id}.")
    if failed := counts["failed"]:
        print_line(reason("archive_failed", count=failed).text)
        print_line(
            "If a file was unreadable when it was listed, or has changed on its server since then, "
            "start a new run with another folder (--out)."
        )
    print_line(RESEARCH_ONLY_NOTICE)
    return 1 if failed else 0 if images else NO_IMAGES_EXIT_CODE


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _all_done(folder: ArchiveFolder, run_id: int) -> str:
    """Return a sentence about a finished archive: number of images, date of listing, and number of the run."""
    with folder.open_image_list() as images:
        listed = f"All images ({len(images)}) that were listed on {folder.listing_date.isoformat()} have results"
    return f"{listed}: run {run_id} of the history. To screen images added since then, name another folder (--out)."


def _nodes(progress: ArchiveProgress) -> str:
    return ", ".join(
        f"{node.name}: {node.screened_image_count} at {node.images_per_s:.1f}/s" for node in progress.nodes
    )

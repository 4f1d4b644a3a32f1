"""`fieldray demo`: openly licensed images, screened by the pack that is for them, shown in the window or printed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.commands import screen
from fieldray.commands.console import Console, add_command, given_path
from fieldray.commands.options import add_pack_options

if TYPE_CHECKING:
    from fieldray.imaging.synthetic import Part

_DRAWN: Final = "drawn"
_PARTS: Final = ("children", "adults")


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its options."""
    parser = add_command(
        commands,
        "demo",
        run=run,
        description="Screens openly licensed images with the pack that is for them, and opens the window if there is "
        "a screen. Each file's name gives the published label. Some images are there to be refused.",
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=(*_PARTS, _DRAWN),
        default=_PARTS[0],
        help="whose images: of children (default), of adults, or drawn ones of nobody, which need --pack",
    )
    parser.add_argument(
        "--folder", type=given_path, metavar="DIR", help="folder for the images (default: in the user's data folder)"
    )
    parser.add_argument("--no-window", action="store_true", help="print the work list even if there is a screen")
    add_pack_options(parser, default="the one that these images are for")
    screen.add_run_options(parser)
    parser.set_defaults(watch=False)  # the folder is the program's own


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the images, screen, show; the exit code. Raises as `screen.run` does."""
    from fieldray.paths import user_data
    from fieldray.surroundings import has_window

    folder = options.folder or user_data() / "demo" / options.part
    console.machine_reads = options.json == "-"
    if options.part == _DRAWN:
        _write_drawn(folder, console)
    else:
        _write_real(folder, options, console)
    options.paths = [folder]
    code = screen.run(options, console)
    if options.part == _PARTS[0] and code in (0, 1):
        console.print_line(f"Images of adults need the pack for adults: fieldray demo {_PARTS[1]}")
    if code in (0, 1) and options.open_window and not options.no_window and has_window():
        return int(options.open_window([folder]))
    return code


def _write_drawn(folder: Path, console: Console) -> None:
    from fieldray.imaging.synthetic import write_studies
    from fieldray.reports.outputs import require_own

    for path in folder.glob("study-*.dcm") if folder.is_dir() else ():
        require_own(path, "demo")  # a clinic may call its own studies so
    console.print_line(f"Drawing synthetic studies in {folder}")
    console.print_line(
        "They are drawings, not X-rays. Their results show how the program works, not how well the pack performs."
    )
    write_studies(folder)


def _write_real(folder: Path, options: argparse.Namespace, console: Console) -> None:
    """Write the images of a part, and have its pack used, now and when the folder is opened."""
    from fieldray.imaging.synthetic import PARTS, credits_file
    from fieldray.packs.site_choices import PackMemory
    from fieldray.paths import user_data
    from fieldray.persistence import SHARED, write_atomically

    part = next(part for part in PARTS if part.name == options.part)
    for name, content in _files_to_write(part, folder, is_own=options.folder is None):
        write_atomically(folder / name, content, mode=SHARED)
    console.print_line(
        f"Images of {part.of} in {folder}. Their names give the published labels; some are to be refused."
    )
    console.print_line(
        f"They were chosen to show every kind of answer, not how well the pack performs: {credits_file()}"
    )
    if options.pack is None:
        options.pack = part.pack
        options.ages_confirmed = part.has_ages
        PackMemory(user_data()).remember([folder], part.pack, ages_confirmed=part.has_ages)


def _files_to_write(part: Part, folder: Path, *, is_own: bool) -> Iterator[tuple[str, bytes]]:
    """What is not there yet, and in the program's own folder what another version of the program wrote there.

    Raises UsageProblem where another file of this name is in a folder that a person chose, StorageProblem.
    """
    from fieldray.errors import UsageProblem
    from fieldray.imaging.synthetic import files
    from fieldray.persistence import storage_problem
    from fieldray.reasons import reason

    for name, content in files(part):
        path = folder / name
        try:
            if path.exists() and path.read_bytes() == content:
                continue
            if path.exists() and not is_own:
                raise UsageProblem(reason("output_not_ours", path=path))
        except OSError as error:
            raise storage_problem(error, path) from error
        yield name, content

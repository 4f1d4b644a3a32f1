"""`fieldray store`: the files of results checked, made small, copied and put back; their pictures deleted."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fieldray.commands.console import Console, add_command, add_commands, given_path
from fieldray.errors import UsageProblem
from fieldray.paths import results_path
from fieldray.reasons import reason


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its own commands."""
    actions = add_commands(commands, "store")
    add_command(actions, "check", "look through all results for damage", run=run_check)
    add_command(actions, "compact", "give back the room that nothing needs any more", run=run_compact)
    saving = add_command(actions, "backup", "copy the results into a folder, also during a run", run=run_backup)
    saving.add_argument("folder", type=given_path, metavar="DIR", help="a folder without a backup")
    saving.add_argument("--without-pictures", action="store_true", help="leave the small pictures out")
    restoring = add_command(actions, "restore", "put a backup in the place of the results", run=run_restore)
    restoring.add_argument("folder", type=given_path, metavar="DIR", help="the folder that the backup was made into")
    restoring.add_argument("--yes", action="store_true", help="do it; the results before are set aside")
    dropping = add_command(
        actions, "drop-pictures", "delete the small pictures; results, maps and verdicts stay", run=run_drop
    )
    dropping.add_argument("--yes", action="store_true", help="delete them")


def run_check(_: argparse.Namespace, console: Console) -> int:
    """Check the store; the exit code. Raises StorageProblem, UsageProblem."""
    from fieldray.store.maintenance import check

    found = check(_store(), progress=lambda share: _show_share(console, "store_checking", share))
    counts = {"results": found.results, "verdicts": found.verdicts, "pictures": found.pictures}
    console.print_line(reason("store_whole", size_mb=_megabytes(found.size_bytes), **counts).text)
    return 0


def run_compact(_: argparse.Namespace, console: Console) -> int:
    """Give back room; the exit code. Raises StorageProblem, UsageProblem."""
    from fieldray.store.maintenance import compact

    freed_bytes, is_whole = compact(_store())
    console.print_line(reason("store_compacted", freed_mb=_megabytes(freed_bytes)).text)
    if not is_whole:
        console.print_error(reason("store_not_compacted").text)
    return 0 if is_whole else 1


def run_backup(options: argparse.Namespace, console: Console) -> int:
    """Copy the store; the exit code. Raises StorageProblem, UsageProblem."""
    from fieldray.persistence import clear_abandoned
    from fieldray.store.maintenance import backup

    clear_abandoned(options.folder)  # what a killed one left there has names of patients in it
    written = backup(
        _store(),
        options.folder,
        has_pictures=not options.without_pictures,
        progress=lambda share: _show_share(console, "store_copying", share),
    )
    console.print_lines(f"Written: {path}" for path in written)
    return 0


def run_restore(options: argparse.Namespace, console: Console) -> int:
    """Put a backup in place; the exit code. Raises StorageProblem, UsageProblem."""
    from fieldray.store.maintenance import restore

    if not options.yes:
        console.print_error(reason("store_confirm_restore").text)
        return 2
    replaced = restore(results_path(), options.folder)
    console.print_line(reason("store_restored").text)
    if replaced:
        console.print_line(reason("store_replaced", path=replaced).text)
    return 0


def run_drop(options: argparse.Namespace, console: Console) -> int:
    """Delete the pictures; the exit code. Raises StorageProblem, UsageProblem."""
    from fieldray.store.maintenance import drop_pictures

    if not options.yes:
        console.print_error(reason("store_confirm_drop").text)
        return 2
    deleted, is_wiped, freed_bytes = drop_pictures(_store())
    counts = {"count": deleted, "freed_mb": _megabytes(freed_bytes)}
    console.print_line(reason("store_pictures_dropped", **counts).text)
    if not is_wiped:
        console.print_error(reason("store_not_compacted").text)
    return 0 if is_wiped else 1


def _store() -> Path:
    """Where the results are. Raises UsageProblem where there are none."""
    path = results_path()
    if not path.exists():
        raise UsageProblem(reason("store_no_results", path=path))
    return path


def _show_share(console: Console, code: str, share: float) -> None:
    """Say in one line how much of something is done."""
    console.bar(reason(code, percent=round(100 * share)).text)


def _megabytes(size_bytes: int) -> str:
    return f"{max(0, size_bytes) / 1e6:.1f}"

"""`fieldray history`: list, show, compare, export and delete past runs, and summarise a month.

`fieldray store`: check, compact, back up and restore the results database, and delete its preview images.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.backends import device_choices
from fieldray.commands.console import Console, add_command, add_command_group, parse_path_option, parse_text_option
from fieldray.commands.options import (
    add_pdf_language_option,
    add_report_options,
    parse_pack_of_run,
    print_database_update_notice,
    report_options,
    write_json,
)
from fieldray.errors import UsageProblem
from fieldray.paths import data_folder, results_database_path
from fieldray.persistence import remove_unfinished_files
from fieldray.plain_text import console_cell_text
from fieldray.reasons import FREQUENT_NOTE_CODES, Reason, reason
from fieldray.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fieldray.domain.finding import Category
    from fieldray.domain.history import DeletionPlan, ResultBrief, RunSummary
    from fieldray.domain.run import RunSpec
    from fieldray.pipeline.history import History


_VERDICTS: Final = ("any", "given", "none", "disagreed")


def register_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands `history` and `store` with their subcommands."""
    actions = add_command_group(commands, "history")
    listing = add_command(actions, "list", "list past runs, the newest first", run=run_list)
    listing.add_argument("--search", default="", metavar="TEXT", help="part of a pack's name or of a path")
    listing.add_argument("--since", type=_day, metavar="DATE", help="runs from this day on (year-month-day)")
    listing.add_argument("--until", type=_day, metavar="DATE", help="runs up to this day (year-month-day)")
    _add_filters(listing, "runs")
    _add_json(listing)
    showing = add_command(
        actions, "show", "show the results of a run, even if the image files no longer exist", run=run_show
    )
    showing.add_argument("run", type=int, metavar="RUN", help="number of the run, as listed")
    _add_filters(showing, "results")
    comparing = add_command(actions, "compare", "compare two runs on the images that are in both", run=run_compare)
    comparing.add_argument("first", type=parse_pack_of_run, metavar="FIRST", help="a run; RUN.2 is its second pack")
    comparing.add_argument(
        "second", type=parse_pack_of_run, metavar="SECOND", help="another run; RUN.2 is its second pack"
    )
    comparing.add_argument("--all", action="store_true", help="list images in the same class as well")
    _add_json(comparing)
    saving = add_command(actions, "export", "export the results of a run to files again", run=run_export)
    saving.add_argument("run", type=int, metavar="RUN", help="number of the run, as listed")
    saving.add_argument(
        "--out", type=parse_path_option, metavar="DIR", required=True, help="write the results to this folder"
    )
    add_report_options(saving)
    month = add_command(actions, "month", "show the monthly summary for programme managers", run=run_month)
    month.add_argument(
        "month", nargs="?", type=_month, metavar="YEAR-MONTH", help="the month (default: the current month)"
    )
    month.add_argument("--folder", type=parse_path_option, metavar="DIR", help="count only the images of this folder")
    month.add_argument("--pdf", type=parse_path_option, metavar="FILE", help="write the report as PDF")
    add_pdf_language_option(month)
    _add_json(month)
    deleting = add_command(
        actions, "delete", "delete runs for good, with their results, previews and verdicts", run=run_delete
    )
    deleting.add_argument("runs", nargs="*", type=int, metavar="RUN", help="numbers of runs, as listed")
    deleting.add_argument("--all", action="store_true", help="delete all runs")
    deleting.add_argument(
        "--patient", metavar="ID", type=parse_text_option, help="delete all images with this patient ID, in all runs"
    )
    deleting.add_argument("--yes", action="store_true", help="delete; without --yes, only list what would be deleted")
    _add_upkeep(add_command_group(commands, "store"))


def _add_upkeep(actions: argparse._SubParsersAction[Any]) -> None:
    add_command(actions, "check", "check the results database for damage", run=run_check)
    add_command(actions, "compact", "free disk space that is no longer used", run=run_compact)
    saving = add_command(
        actions, "backup", "back up the results database to a folder, even during a run", run=run_backup
    )
    saving.add_argument(
        "folder", type=parse_path_option, metavar="DIR", help="folder for the backup, without an earlier backup"
    )
    saving.add_argument("--without-pictures", action="store_true", help="leave the previews out")
    restoring = add_command(actions, "restore", "replace the results database by a backup", run=run_restore)
    restoring.add_argument("folder", type=parse_path_option, metavar="DIR", help="the folder of the backup")
    restoring.add_argument(
        "--yes", action="store_true", help="replace the results database; the earlier file is set aside"
    )
    dropping = add_command(
        actions, "drop-pictures", "delete all previews; results, maps and verdicts stay", run=run_drop_pictures
    )
    dropping.add_argument("--yes", action="store_true", help="delete; without --yes, only list what would be deleted")


def _add_filters(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--verdict",
        choices=_VERDICTS,
        default="any",
        help=f"{what} with a reader's verdict, without one, or with a disagreement (default: any)",
    )
    parser.add_argument("--device", choices=device_choices()[1:], default="", help=f"{what} that ran on this device")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", type=parse_text_option, metavar="FILE|-", help="write JSON to FILE; - prints the JSON"
    )
    parser.set_defaults(json_kind="json")


def _day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(reason("history_date", text=text).text) from None


def _month(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(f"{text}-01")
    except ValueError:
        raise argparse.ArgumentTypeError(reason("history_month", text=text).text) from None


# ---- the commands


def run_list(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray history list`: list past runs. Returns the exit code. Raises StorageProblem, UsageProblem."""
    print_database_update_notice(console)
    from fieldray.domain.history import RunFilter
    from fieldray.reports.content import CATEGORY_TEXTS, runs_as_json

    wanted = RunFilter(
        text=options.search,
        since=options.since,
        until=options.until,
        verdict=options.verdict,
        backend=options.device,
    )
    found = _history().runs(wanted)
    if write_json(options.json, runs_as_json(found), console, kind="json"):
        return 0
    if not found:
        console.print_line("No runs found.")
        return 0
    header = ("run", "started", "state", "pack", "images", *CATEGORY_TEXTS.values(), "verdicts", "folder")
    console.print_lines(_RUN_LINE.format(*cells) for cells in (header, *map(_run_cells, found)))
    return 0


def run_show(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray history show`: print the results of a run. Returns the exit code.

    Raises UsageProblem (history_no_run), StorageProblem.
    """
    print_database_update_notice(console)
    from fieldray.domain.history import verdict_passes
    from fieldray.pipeline.history import History
    from fieldray.reports.content import class_texts
    from fieldray.store.bookkeeping import file_exists
    from fieldray.store.work_list import HistoryQuery

    database = results_database_path()
    run, models = History(database).open(options.run)
    texts = [class_texts(model.manifest if model else None) for model in models]
    with HistoryQuery(database) as query:
        images = [
            list(of_image)
            for _, of_image in itertools.groupby(query.result_briefs(options.run), lambda one: one.row_id)
        ]
    console.print_line(f"Run {run.run_id} of {_moment(run.started_s)}, {run.state}, {_packs(run.spec)}")
    console.print_lines(f"Screened: {console_cell_text(path)}" for path in run.spec.paths)
    shown = [
        answers
        for answers in images
        if any(verdict_passes(one.verdict, options.verdict) and options.device in ("", one.backend) for one in answers)
    ]
    lines = [f"{{:<{max(13, *map(len, own.values()))}}} {{:>6}} {{:>9}}  {{:<9}}" for own in texts]
    heads = ("result", "score", "threshold", "verdict")
    console.print_line(" ".join((*(line.format(*heads) for line in lines), "file")))
    left = " ".join(line.format("", "", "", "") for line in lines)
    for answers in shown:
        found = {one.pack_position: one for one in answers}
        cells = (
            line.format(*(_result_cells(found[at], texts[at]) if at in found else ("",) * len(heads)))
            for at, line in enumerate(lines)
        )
        console.print_line(" ".join((*cells, console_cell_text(answers[0].image_name))))
        said = (why for one in answers for why in (*([one.reason] if one.reason else ()), *one.notes))
        texts_said = dict.fromkeys(why.text for why in said if why.code not in FREQUENT_NOTE_CODES)
        console.print_lines(f"{left} {text}" for text in texts_said)
    for position, model in enumerate(models):
        console.print_lines(doubt.text for doubt in History(database).warnings(run, position, model))
    gone = sum(not file_exists(answers[0].image_key) for answers in shown)
    if gone:
        console.print_line(reason("history_files_gone", count=gone).text)
    return 0


def run_compare(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray history compare`: compare two runs. Returns the exit code. Raises UsageProblem, StorageProblem."""
    print_database_update_notice(console)
    from fieldray.pipeline.history import comparison_blocks
    from fieldray.reports.content import run_comparison_as_json
    from fieldray.reports.document import console_lines
    from fieldray.translation import Translator

    found = _history().compare(options.first, options.second)
    if write_json(options.json, run_comparison_as_json(found), console, kind="json"):
        return 0
    pairs = [pair for pair in found.pairs if options.all or pair.has_changed]
    said, *tables = comparison_blocks(found, Translator(), pairs=pairs)
    console.print_lines(console_lines((said, *(table for table in tables if table.rows))))
    return 0


def run_export(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray history export`: write the results of a run to files. Returns the exit code.

    Raises UsageProblem, StorageProblem, WorkerProblem.
    """
    print_database_update_notice(console)
    from fieldray.pipeline.export import ExportRequest, export_run
    from fieldray.workers.pool import number_of_workers, open_workers

    (settings, _), left_out = load_settings(), list[Reason]()
    request = ExportRequest(
        database=results_database_path(),
        run_id=options.run,
        folder=options.out,
        formats=tuple(options.formats or ()),
        options=report_options(options, settings, console),
    )
    written = export_run(
        request,
        make_workers=lambda: open_workers(settings, number_of_workers(settings)),
        progress=lambda done, total: console.show_progress_bar(f"Reports {done}/{total}"),
        note=left_out.append,
    )
    console.print_lines(f"Written: {path}" for path in written)
    for why in left_out:
        console.print_error(why.text)
    if not written:
        console.print_line("Nothing was written: these formats need screened images, and this run has none.")
    return 1 if left_out else 0


def run_month(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray history month`: summarise a month. Returns the exit code. Raises UsageProblem, StorageProblem."""
    print_database_update_notice(console)
    from fieldray.pipeline.constancy import ConstancyRecords
    from fieldray.pipeline.history import month_report_blocks, month_report_title
    from fieldray.reports.content import monthly_counts_as_json
    from fieldray.reports.document import console_lines
    from fieldray.translation import Translator

    first, translator, history = options.month or datetime.date.today().replace(day=1), Translator(), _history()
    folder = options.folder.absolute() if options.folder else None
    month = history.monthly_counts(first, ConstancyRecords(data_folder()), folder=folder)
    if not write_json(options.json, monthly_counts_as_json(month), console, kind="json"):
        console.print_lines(
            (month_report_title(translator, month), *console_lines(month_report_blocks(month, translator)))
        )
    if options.pdf:
        history.save_month_report(options.pdf, month, Translator(options.language))
        console.print_line(f"Written: {options.pdf}")
    return 0


def run_delete(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray history delete`: delete runs, or without `--yes` only print the runs. Returns the exit code.

    Raises UsageProblem, StorageProblem.
    """
    print_database_update_notice(console)
    history = _history()
    if [bool(options.runs), options.all, options.patient is not None].count(True) != 1:
        raise UsageProblem(reason("history_which"))
    if options.patient is not None:
        return _delete(history, history.plan_patient_deletion(options.patient), options, console)
    run_ids = [found.run.run_id for found in history.runs()] if options.all else options.runs
    if not run_ids:
        if options.yes:
            history.remove_temporary_files()
        console.print_line("There are no runs.")
        return 0
    return _delete(history, history.plan_deletion(run_ids), options, console)


def _delete(history: History, plan: DeletionPlan, options: argparse.Namespace, console: Console) -> int:
    """Print which runs would be deleted, and delete them if `--yes` was given. Returns the exit code.

    Raises UsageProblem, StorageProblem.
    """
    from fieldray.pipeline.history import deletion_plan_sentences, deletion_sentences

    console.print_lines(said.text for said in deletion_plan_sentences(plan))
    if not options.yes:
        console.print_error(reason("history_confirm").text)
        return 2
    console.print_lines(said.text for said in deletion_sentences(history.delete(plan)))
    return 0


# ---- the files of results


def run_check(_: argparse.Namespace, console: Console) -> int:
    """Run `fieldray store check`: check the results database. Returns the exit code.

    Raises StorageProblem, UsageProblem.
    """
    from fieldray.store.maintenance import check_database
    from fieldray.store.pictures import database_size_bytes

    found = check_database(_store(), progress=lambda share: _show_share(console, "store_checking", share))
    counts = {"results": found["answers"], "verdicts": found["verdicts"], "pictures": found["pictures"]}
    console.print_line(reason("store_whole", size_mb=_megabytes(database_size_bytes(_store())), **counts).text)
    return 0


def run_compact(_: argparse.Namespace, console: Console) -> int:
    """Run `fieldray store compact`: make the results database smaller. Returns the exit code.

    Raises StorageProblem, UsageProblem.
    """
    from fieldray.store.deletion import compact

    freed_bytes, is_whole = compact(_store())
    console.print_line(reason("store_compacted", freed_mb=_megabytes(freed_bytes)).text)
    if not is_whole:
        console.print_error(reason("store_not_compacted").text)
    return 0 if is_whole else 1


def run_backup(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray store backup`: copy the results database. Returns the exit code.

    Raises StorageProblem, UsageProblem.
    """
    from fieldray.store.maintenance import backup

    remove_unfinished_files(options.folder)  # an interrupted backup may have left names of patients there
    written = backup(
        _store(),
        options.folder,
        includes_pictures=not options.without_pictures,
        progress=lambda share: _show_share(console, "store_copying", share),
    )
    console.print_lines(f"Written: {path}" for path in written)
    return 0


def run_restore(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray store restore`: replace the results database by a backup. Returns the exit code.

    Raises StorageProblem, UsageProblem.
    """
    from fieldray.store.maintenance import restore

    if not options.yes:
        console.print_error(reason("store_confirm_restore").text)
        return 2
    replaced = restore(results_database_path(), options.folder)
    console.print_line(reason("store_restored").text)
    if replaced:
        console.print_line(reason("store_replaced", path=replaced).text)
    return 0


def run_drop_pictures(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray store drop-pictures`: delete the preview images. Returns the exit code.

    Raises StorageProblem, UsageProblem.
    """
    from fieldray.store.deletion import delete_all_pictures

    if not options.yes:
        console.print_error(reason("store_confirm_drop").text)
        return 2
    deleted, is_overwritten, freed_bytes = delete_all_pictures(_store())
    counts = {"count": deleted, "freed_mb": _megabytes(freed_bytes)}
    console.print_line(reason("store_pictures_dropped", **counts).text)
    if not is_overwritten:
        console.print_error(reason("store_not_compacted").text)
    return 0 if is_overwritten else 1


def _store() -> Path:
    """Return the path of the results database. Raises UsageProblem if this computer has no results database."""
    path = results_database_path()
    if not path.exists():
        raise UsageProblem(reason("store_no_results", path=path))
    return path


def _show_share(console: Console, code: str, share: float) -> None:
    """Show the progress of an operation on the results database.

    code   code of the message
    share  the finished part of the operation, 0..1
    """
    console.show_progress_bar(reason(code, percent=round(100 * share)).text)


def _megabytes(size_bytes: int) -> str:
    return f"{max(0, size_bytes) / 1e6:.1f}"


# ---- how it is printed

_RUN_LINE: Final = (
    "{:>5}  {:<23}  {:<11}  {:<28}  {:>7}  {:>10}  {:>8}  {:>8}  {:>7}  {:>12}  {:>7}  {:>6}  {:>12}  {:>8}  {}"
)


def _packs(spec: RunSpec) -> str:
    """Return the packs of a run as one line of text. Each pack is followed by the name of its lung-field pack."""
    from fieldray.formatting import pack_label
    from fieldray.translation import Translator

    label = partial(pack_label, Translator())
    lungs = (f", lung fields {pack.lungs_pack}" if pack.lungs_pack else "" for pack in spec.packs)
    return console_cell_text("; ".join(f"pack {label(pack)}{of}" for pack, of in zip(spec.packs, lungs, strict=True)))


def _run_cells(summary: RunSummary) -> tuple[object, ...]:
    from fieldray.formatting import pack_names_of_run
    from fieldray.reports.content import CATEGORY_TEXTS
    from fieldray.translation import Translator

    run, counts = summary.run, summary.counts
    return (
        run.run_id,
        _moment(run.started_s),
        run.state,
        console_cell_text(pack_names_of_run(Translator(), run.spec)),
        summary.image_count,
        *(counts.get(category, 0) for category in CATEGORY_TEXTS),
        summary.verdict_count,
        console_cell_text(", ".join(run.spec.paths)),
    )


def _result_cells(found: ResultBrief, texts: Mapping[Category, str]) -> tuple[str, ...]:
    from fieldray.reports.content import format_printed_score, format_printed_threshold

    cells = texts[found.category], format_printed_score(found), format_printed_threshold(found)
    return *cells, found.verdict or "-"


def _moment(seconds: float) -> str:
    from fieldray.formatting import date_and_time_text
    from fieldray.translation import Translator

    return date_and_time_text(Translator("en"), seconds)


def _history() -> History:
    from fieldray.pipeline.history import History

    return History(results_database_path())

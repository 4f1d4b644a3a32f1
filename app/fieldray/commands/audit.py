"""`fieldray audit`: measure a pack on a site's own images, and choose a site's own operating point."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.commands.console import Console, add_command, parse_path_option, parse_text_option
from fieldray.commands.options import (
    add_pack_options,
    add_pdf_language_option,
    load_pack,
    pack_library,
    pack_name_with_signer,
    parse_pack_of_run,
    print_database_update_notice,
    write_json,
)
from fieldray.commands.screen import add_screening_options, screening_run
from fieldray.errors import PackProblem
from fieldray.paths import data_folder, results_database_path
from fieldray.reasons import reason
from fieldray.reports.exporter import ReportOptions

if TYPE_CHECKING:
    from fieldray.audit.report import AuditReport
    from fieldray.domain.model import Model
    from fieldray.domain.run import PackOfRun
    from fieldray.pipeline.auditing import AuditRequest

_COLUMNS: Final = ("image", "label", "patient", "exam", "reader")
_SHOWN: Final = 10


def register_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command `audit` and its options."""
    parser = add_command(
        commands,
        "audit",
        run=run,
        description="Measure a pack on your own images with known labels. Images are screened first; existing "
        "results are reused.",
        epilog="Exit codes: see `fieldray screen`; also 2 if the labels cannot be used. Research use only. Not for "
        "diagnostic use.",
    )
    parser.add_argument(
        "paths", nargs="*", type=parse_path_option, metavar="PATH", help="a file or folder with labelled images"
    )
    _add_label_options(parser)
    _add_output_options(parser)
    _add_local_options(parser)
    add_pack_options(parser)
    add_screening_options(parser)
    parser.set_defaults(json_kind="json", anyway=False, turn=False)  # the audit counts images that are not suitable


def _add_label_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("labels and figures")
    group.add_argument(
        "--labels",
        type=parse_text_option,
        metavar="folders|verdicts|FILE.csv",
        help="where the labels are: names of the folders, readers' verdicts of the window, or a table with a row "
        "for each image",
    )
    group.add_argument(
        "--positive", action="append", default=[], metavar="NAME", help="label of images with the condition; repeatable"
    )
    for name in _COLUMNS:
        group.add_argument(f"--{name}-column", metavar="NAME", help=f"the column of the table with the {name}")
    group.add_argument(
        "--by",
        choices=("image", "exam", "patient"),
        help="what the audit counts; an examination or a patient has the condition if any of the images has the "
        "condition (default: patient where the table or a header has patients, else image)",
    )
    group.add_argument(
        "--refer",
        choices=("above", "unsure"),
        default="above",
        help="above: Read first and scores at or above the threshold are referred; unsure: uncertain results are "
        "referred, too (default: above)",
    )
    group.add_argument("--label", metavar="CODE", help="the label of the pack to audit (default: its first)")
    group.add_argument(
        "--prevalence",
        type=float,
        metavar="SHARE",
        help="share with the condition among the patients to screen, for predictive values (default: as in the images)",
    )
    group.add_argument(
        "--run",
        type=parse_pack_of_run,
        metavar="N",
        dest="stored",
        help="use the results of run N and screen nothing; N.2 is the second pack of run N",
    )
    group.add_argument(
        "--against",
        type=_against,
        metavar="N",
        help="compare with run N of the same images; N.2 is the second pack of run N",
    )
    _add_prices(group)


def _add_prices(group: argparse._ArgumentGroup) -> None:
    for name, of in (
        ("screening", "cost of one screening"),
        ("test", "cost of one confirmatory test after a referral"),
        ("unsure", "cost of the second reading of an uncertain result"),
    ):
        group.add_argument(f"--price-{name}", type=float, metavar="PRICE", help=f"{of} (for the threshold plan)")


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=parse_path_option,
        metavar="DIR",
        help="write the report to this folder: PDF, JSON, thresholds.csv, and images.csv with a line for each image",
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="write file names and patient IDs into the report (default: pseudonyms)",
    )
    parser.add_argument(
        "--json", type=parse_text_option, metavar="FILE|-", help="write all figures as JSON; - prints the JSON"
    )
    add_pdf_language_option(parser)


def _add_local_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("local operating point")
    group.add_argument(
        "--sensitivity",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="propose a local operating point with this sensitivity (share of all with the condition that are "
        "referred; default: 0.9)",
    )
    group.add_argument(
        "--specificity",
        type=float,
        metavar="SHARE",
        help="propose a local operating point with this specificity (share of all without the condition that are not "
        "referred)",
    )
    group.add_argument(
        "--accept-local",
        metavar="NAME",
        help="keep the proposed operating point under this name, for this pack only; used as "
        "--operating-point local:NAME",
    )
    group.add_argument(
        "--threshold",
        type=float,
        metavar="SCORE",
        help="propose this threshold from the threshold plan, instead of --sensitivity",
    )
    group.add_argument("--name", metavar="PERSON", help="name of the person who accepts the local operating point")
    group.add_argument("--remove-local", metavar="NAME", help="remove a local operating point of the pack")


def run(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray audit`. Returns the exit code.

    Raises UsageProblem, PackProblem, StorageProblem, BackendProblem.
    """
    console.is_output_for_program = options.json == "-"
    if wrong := _wrong_usage(options):
        console.print_error(wrong)
        return 2
    if options.remove_local:
        return _remove(options, console)
    request = _request(options)
    _require_all(options, request)
    if options.stored is not None:
        print_database_update_notice(console)
        model = _model_of_run(options, console, results_database_path())
        _audit(options, console, request, database=results_database_path(), pack_in_run=options.stored, model=model)
        return 0
    return _audit_screened(options, console, request)


def _against(text: str) -> PackOfRun:
    try:
        return parse_pack_of_run(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(reason("audit_against", text=text).text) from None


def _wrong_usage(options: argparse.Namespace) -> str:
    if options.remove_local:
        return "--remove-local takes no PATH and no --run" if options.paths or options.stored is not None else ""
    if bool(options.paths) == (options.stored is not None):
        return "name the folders to audit, or a stored run with --run"
    if not options.labels:
        return "--labels says where the labels are: folders, verdicts, or a CSV file"
    if options.accept_local and not options.name:
        return "--accept-local needs --name: the name of the person who accepts the operating point"
    return ""


def _request(options: argparse.Namespace) -> AuditRequest:
    from fieldray.audit.report import ProposalGoal, ScreeningPrices
    from fieldray.pipeline.auditing import AuditRequest

    prices = {
        "screening_price": options.price_screening,
        "test_price": options.price_test,
        "second_reading_price": options.price_unsure,
    }
    prices = {name: price for name, price in prices.items() if price is not None}
    wanted = ProposalGoal(sensitivity=options.sensitivity, specificity=options.specificity, threshold=options.threshold)
    given = {name: getattr(options, f"{name}_column") for name in _COLUMNS}
    return AuditRequest(
        label_source=options.labels if options.labels in ("folders", "verdicts") else Path(options.labels),
        positive_classes=tuple(options.positive),
        column_names={name: column for name, column in given.items() if column},
        label_code=options.label,
        prevalence=options.prevalence,
        counted_unit=options.by,
        referral_rule=options.refer,
        goal=wanted,
        prices=ScreeningPrices(**prices) if prices else None,
        compared_pack=options.against,
    )


def _require_all(options: argparse.Namespace, request: AuditRequest) -> None:
    """Raise UsageProblem for each wrong option that can be found before the screening, which may take hours."""
    from fieldray.pipeline.auditing import require_local_point_name, require_usable_request
    from fieldray.reports.audit_files import require_writable_audit_files

    if options.accept_local:
        require_local_point_name(options.accept_local, options.name)
    require_writable_audit_files(Path(options.json) if options.json not in (None, "-") else None, options.out)
    require_usable_request(request, options.paths)


def _audit_screened(options: argparse.Namespace, console: Console, request: AuditRequest) -> int:
    with screening_run(options, console, target=None, prints_work_list=False) as done:
        code = done.report.finish(done.batch, done.session, out=None, formats=None, options=ReportOptions())
        if done.batch.state != "finished":
            console.print_error(reason("audit_run_unfinished").text)
            return code
        pack_in_run = parse_pack_of_run(str(done.batch.run_id))
        _audit(options, console, request, database=done.session.database, pack_in_run=pack_in_run, model=done.model)
        return code


def _model_of_run(options: argparse.Namespace, console: Console, database: Path) -> Model | None:
    """Return the pack of a stored run. If this computer lacks the pack, print a message and return None."""
    from fieldray.domain.run import pack_of_run
    from fieldray.store.results import ResultQuery

    with ResultQuery(database) as query:
        spec = pack_of_run(query.run(options.stored.run_id), options.stored.position)
    name = options.pack or pack_name_with_signer(spec)
    try:
        model = load_pack(pack_library(), name, options, print_error=console.print_error)
    except PackProblem as problem:
        console.print_error(problem.reason.text)
        return None
    if (model.pack_name, model.model_sha256) == (spec.pack_name, spec.model_sha256):
        return model
    console.print_error(reason("audit_other_pack", pack=model.pack_name, run=options.stored).text)
    return None


def _audit(
    options: argparse.Namespace,
    console: Console,
    request: AuditRequest,
    *,
    database: Path,
    pack_in_run: PackOfRun,
    model: Model | None,
) -> None:
    from fieldray.pipeline.auditing import audit_run

    report = audit_run(database, pack_in_run, request, model=model)
    _print(report, console)
    _write(report, options, console)
    if options.accept_local:
        _accept(report, options, console, model)


def _accept(report: AuditReport, options: argparse.Namespace, console: Console, model: Model | None) -> None:
    from fieldray.packs.site_choices import LocalPointFile
    from fieldray.pipeline.auditing import adopt_local_point

    today = datetime.date.today()
    point = adopt_local_point(
        LocalPointFile(data_folder()), report, name=options.accept_local, person=options.name, model=model, day=today
    )
    console.print_line(
        f"Local operating point of {options.name.strip()} saved. To use it: --operating-point {point.name}"
    )


def _remove(options: argparse.Namespace, console: Console) -> int:
    library = pack_library()
    model = load_pack(library, options.pack, options, print_error=console.print_error)
    name = options.remove_local.removeprefix("local:")
    library.site_points.remove(name, model.pack_name, model.model_sha256)
    console.print_line(f"Removed the local operating point local:{name} of {model.pack_name}")
    return 0


def _print(report: AuditReport, console: Console) -> None:
    from fieldray.reports.audit import AuditText
    from fieldray.reports.document import console_lines
    from fieldray.translation import Translator

    texts = AuditText(report, Translator())
    *others, _ = texts.blocks_after_charts()
    shown = texts.misclassified_table(_SHOWN)
    console.print_lines(("", texts.title, *console_lines((*texts.blocks_before_charts(), *others, shown))))
    if (left := len(report.audit.misclassified) - len(shown.rows)) > 0:
        console.print_line(f"  and {left} more mistakes; --json FILE or --out DIR writes all mistakes")


def _write(report: AuditReport, options: argparse.Namespace, console: Console) -> None:
    from fieldray.reports.audit_files import audit_json, write_audit

    if options.json:
        write_json(options.json, audit_json(report, names_people=options.names), console, kind="json")
    if options.out:
        written = write_audit(options.out, report, language=options.language, names_people=options.names)
        console.print_lines(f"Written: {path}" for path in written)

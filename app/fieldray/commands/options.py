"""Command-line options of several commands: the pack, trust in the pack's signer, and the reports of a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from fieldray.commands.console import parse_text_option
from fieldray.errors import PackNotChosen, PackNotTrusted, PackProblem
from fieldray.paths import data_folder, results_database_path
from fieldray.plain_text import console_cell_text
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import ReportOptions, default_exporters, exporters
from fieldray.settings import language_choices

if TYPE_CHECKING:
    from fieldray.commands.console import Console
    from fieldray.domain.model import Model
    from fieldray.domain.run import LineHandler, PackOfRun, PackSpec
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.naming import PackCandidate
    from fieldray.reports.outputs import OutputKind
    from fieldray.settings import Settings

T = TypeVar("T")
CONFIRMABLE_PACK_PROBLEM_CODES: Final = (
    "pack_older",
    "pack_legacy",
    "pack_namesake",
    "pack_namesake_shipped",
    "pack_unknown_key",
)


def add_trust_options(parser: argparse.ArgumentParser) -> None:
    """Add the options `--trust` and `--allow-older` to a parser."""
    parser.add_argument("--trust", metavar="FINGERPRINT", help="trust the signing key that has this fingerprint")
    parser.add_argument(
        "--allow-older", action="store_true", help="allow a version older than one already used on this computer"
    )


class SinglePackAction(argparse.Action):
    """The argparse action of `--pack` for commands in which the option may be given only once.

    Without this action, argparse would silently use the last of several values.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, _: str | None = None
    ) -> None:
        """Store the first value of the option. A second value is a usage error."""
        if getattr(namespace, self.dest) is not None:
            parser.error(reason("pack_twice").text)
        setattr(namespace, self.dest, values)


def add_pack_options(
    parser: argparse.ArgumentParser,
    *,
    default: str = "the one of `fieldray packs default`, else none",
    allows_several: bool = False,
) -> None:
    """Add the option `--pack`, and the options that decide which packs are accepted, to a parser.

    default         phrase for the help: the pack that is used without `--pack`
    allows_several  whether `--pack` may be repeated; the value is then a list
    """
    several = "; repeat to screen each image with several packs" if allows_several else ""
    parser.add_argument(
        "--pack",
        type=parse_text_option,
        action="append" if allows_several else SinglePackAction,
        metavar="DIR|ID[@FINGERPRINT]",
        help=f"the pack to use; @FINGERPRINT selects a signer (default: {default}){several}",
    )
    add_pack_acceptance_options(parser)


def add_pack_acceptance_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide which packs are accepted: `--trust`, `--allow-older`, `--allow-legacy`."""
    add_trust_options(parser)
    parser.add_argument(
        "--allow-legacy", action="store_true", help="allow an unsigned legacy model (operating point unknown)"
    )


def pack_library() -> PackLibrary:
    """Return the collection of packs on this computer."""
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.reading import drives_with_packs

    return PackLibrary(data_folder(), drives=drives_with_packs)


def pack_name_with_signer(spec: PackSpec) -> str:
    """Return the name of a stored run's pack.

    The fingerprint of the signer is added, except for packs that come with the program.
    """
    from fieldray.packs.naming import name_with_signer

    return name_with_signer(spec.pack_name, is_signed=spec.trust == "signed", fingerprint=spec.fingerprint)


def parse_pack_of_run(text: str) -> PackOfRun:
    """Parse an option that names one pack of a run: `12` is the first pack of run 12, `12.2` the second pack."""
    from fieldray.domain.run import PackOfRun

    try:
        return PackOfRun.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(reason("history_number", text=text).text) from None


def load_pack(
    library: PackLibrary,
    name: str | None,
    options: argparse.Namespace,
    *,
    print_error: LineHandler = lambda _: None,
) -> Model:
    """Load and verify a pack by name or path; without a name, load the site's default pack.

    Some damage is found only when a pack is read completely. If a pack is damaged, the search continues with another
    pack of that name.

    options      `--trust`, `--allow-older` and `--allow-legacy` decide which packs are accepted
    print_error  receives a message about each damaged pack, and about unreadable local operating points

    Raises PackNotChosen, PackProblem, StorageProblem.
    """
    name = name or default_pack_name(library)
    broken: dict[Path, Reason] = {}
    while True:
        folder = library.find(name, skipped_folders=broken).folder
        try:
            load = partial(library.load, folder, allow_legacy=options.allow_legacy)
            model = use_pack_with_granted_trust(library, name, options, load)
        except PackProblem as problem:
            if problem.reason.code in CONFIRMABLE_PACK_PROBLEM_CODES or folder in broken:
                raise
            broken[folder] = problem.reason
        else:
            for passed_over, why in broken.items():
                print_error(reason("pack_passed_over", folder=passed_over, detail=why.text).text)
            for doubt in library.warnings(model):
                print_error(doubt.text)
            return model


def use_pack_with_granted_trust(
    library: PackLibrary, name: str, options: argparse.Namespace, use: Callable[..., T]
) -> T:
    """Call `use`, which loads or installs a pack, with the trust that the options grant. Returns the result of `use`.

    name  name of the pack, with or without the signer
    use   receives the keyword arguments `allow_older` and `signer`

    A signer named in `name` or by `--trust` counts as confirmed by the user. If the key of the pack is unknown and
    `--trust` names that key, the key is stored as trusted and `use` is called again. Raises PackNotTrusted and the
    exceptions of `use`.
    """
    from fieldray.packs.naming import split_pack_name
    from fieldray.packs.signing import require_fingerprint

    signer = split_pack_name(name)[1] or (require_fingerprint(options.trust) if options.trust else "")
    use = partial(use, allow_older=options.allow_older, signer=signer)
    try:
        return use()
    except PackNotTrusted as problem:
        if options.trust is None or require_fingerprint(options.trust) != problem.fingerprint:
            raise
        library.trust_store.trust(problem.fingerprint)
        return use()


def default_pack_name(library: PackLibrary) -> str:
    """Return the name of the site's default pack.

    Raises PackNotChosen, with a list of choices, if there is no default: the program never chooses a pack silently.
    Raises PackProblem (no_pack) if no pack can screen.
    """
    from fieldray.packs.naming import packs_named
    from fieldray.settings import load_settings

    settings, _ = load_settings()
    name = str(settings["pack"])
    packs = [candidate for candidate in library.available() if candidate.can_screen]
    if packs_named(name, packs):
        return name
    if not packs:
        raise PackProblem(reason("no_pack"))
    why = reason("default_gone", name=name) if name else reason("pack_not_chosen")
    raise PackNotChosen(why, [describe_pack_candidate(candidate) for candidate in packs])


def name_of_pack_to_measure(library: PackLibrary) -> str:
    """Return the name or folder of a pack for benchmarks: the site's default pack, or else the first usable pack.

    Benchmarks involve no patients, so a pack may be chosen without asking the user.
    """
    try:
        return default_pack_name(library)
    except PackNotChosen:
        found = [candidate for candidate in library.available() if candidate.problem is None]
        if not found:
            raise
        return str(found[0].folder)


def describe_pack_candidate(candidate: PackCandidate) -> str:
    """Return a line that describes a pack to a user: the id for `--pack`, version, title and intended patients."""
    from fieldray.domain.intended_use import intended_patients_sentence

    manifest = candidate.manifest
    description = f"{manifest.names['en']}. {intended_patients_sentence(manifest.accepted).text}" if manifest else ""
    columns = f"{console_cell_text(candidate.pack_id):<24} {console_cell_text(candidate.version):<8}"
    return f"{columns} {console_cell_text(description)}".rstrip()


# ---- writing the results of a run


def write_json(
    target: str | None, text: str, console: Console, *, kind: OutputKind, inputs: Sequence[Path] = ()
) -> bool:
    """Write an ASCII text to standard output (`-`), a file, a pipe or a device. Returns whether there was a target.

    target  where to write; None writes nothing
    kind    kind of the document. An existing file is replaced only if this program wrote the file as such a document
    inputs  files that must not be overwritten

    Raises UsageProblem, StorageProblem.
    """
    if target == "-":
        console.is_output_for_program = True
        console.write_machine_readable_line(text.rstrip("\n"))
    elif target:
        from fieldray.reports.outputs import is_stream, write_output

        path = Path(target)
        if is_stream(path):
            path.write_text(text, encoding="ascii")
            return True
        write_output(path, kind, text.encode("ascii"), inputs=inputs)
        console.print_line(f"Written: {target}")
    return bool(target)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of reports: formats, pseudonyms and language."""
    names = ",".join(exporters())
    usual = " and ".join(exporter.name for exporter in default_exporters())
    parser.add_argument("--formats", type=_formats, metavar=names, help=f"formats to write to --out (default: {usual})")
    parser.add_argument(
        "--names",
        action="store_true",
        help="write the names and numbers of patients, and names of files, into exports (default: pseudonyms)",
    )
    parser.add_argument(
        "--decimal-comma",
        action="store_true",
        help="write CSV for Excel with decimal commas: columns divided by semicolons",
    )
    parser.add_argument(
        "--language",
        choices=language_choices()[1:],
        help="language of PDF reports and of texts in images (default: from the settings, else English)",
    )


def add_pdf_language_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--language`, the language of the PDF file that a command writes."""
    parser.add_argument(
        "--language", choices=language_choices()[1:], default="en", help="language of the PDF (default: en)"
    )


def report_options(options: argparse.Namespace, settings: Settings, console: Console) -> ReportOptions:
    """Return the report options of the command line.

    Prints a warning if reports will contain images and `--names` is not given: names that are burned into the pixels
    are not removed.
    """
    shows_images = bool(set(options.formats or ()) & {"pdf", "pdf-studies", "sc"} or getattr(options, "maps", None))
    if shows_images and not options.names:
        console.print_error(reason("pixels_not_cleaned").text)
    language = options.language or str(settings["language"])
    return ReportOptions(
        language="en" if language == "system" else language,
        names_people=options.names,
        uses_decimal_comma=options.decimal_comma,
        reader_name=str(settings["reader"]),
    )


def _formats(text: str) -> Sequence[str]:
    names = tuple(dict.fromkeys(name.strip().lower() for name in text.split(",")))
    if not set(names) <= exporters().keys():
        raise argparse.ArgumentTypeError(f"choose from {', '.join(exporters())}")
    return names


def print_database_update_notice(console: Console) -> None:
    """Print a message if the results database has an older format. The update of the database may take minutes."""
    from fieldray.store.opening import is_older_version

    if is_older_version(results_database_path()):
        console.print_error(reason("store_updating").text)

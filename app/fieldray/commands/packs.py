"""`fieldray packs`: list, verify and install packs, and manage the trusted keys.

`fieldray constancy`: test whether the packs still give the expected results on this computer.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from fieldray.commands.console import Console, add_command, add_command_group, parse_path_option, parse_text_option
from fieldray.commands.options import (
    CONFIRMABLE_PACK_PROBLEM_CODES,
    add_pack_options,
    add_trust_options,
    load_pack,
    pack_library,
    use_pack_with_granted_trust,
)
from fieldray.errors import PackProblem, UsageProblem
from fieldray.paths import data_folder
from fieldray.plain_text import console_cell_text
from fieldray.reasons import reason
from fieldray.settings import load_settings

if TYPE_CHECKING:
    from fieldray.packs.naming import PackCandidate

_PACK_HELP = "folder of a pack, a drive, or ID of a pack (ID or ID-VERSION; @FINGERPRINT selects a signer)"


def register_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands `packs` and `constancy` with their options."""
    actions = add_command_group(commands, "packs")
    listing = add_command(actions, "list", "list the available packs", run=run_list)
    listing.add_argument("folder", nargs="?", type=parse_path_option, help="search only this folder or drive")
    verifying = add_command(
        actions, "verify", "check every file of a pack against its signature, without trusting its key", run=run_verify
    )
    verifying.add_argument("pack", type=parse_text_option, help=_PACK_HELP)
    trusting = add_command(actions, "trust", "trust a signing key, or list the keys that are trusted", run=run_trust)
    trusting.add_argument(
        "fingerprint", nargs="?", help="fingerprint of the key, as published by its signer (default: list the keys)"
    )
    trusting.add_argument("--forget", action="store_true", help="stop trusting this key")
    default = add_command(actions, "default", "show or set the default pack", run=run_default)
    default.add_argument(
        "pack",
        nargs="?",
        metavar="ID",
        help="ID of a pack, or ID-VERSION; @FINGERPRINT selects a signer (default: show the default pack)",
    )
    default.add_argument(
        "--operating-point", metavar="NAME", help="an operating point of the pack (default: its first)"
    )
    default.add_argument("--none", action="store_true", help="use no default pack: every run must name a pack")
    installing = add_command(actions, "install", "verify a pack and copy it to this computer", run=run_install)
    installing.add_argument("pack", type=parse_text_option, help=_PACK_HELP)
    add_trust_options(installing)
    checking = add_command(
        commands,
        "constancy",
        run=run_constancy,
        description="Run the constancy test of each pack: screen the test images of the program, and compare the "
        "results with the expected ones.",
        epilog="Exit code: 0 every constancy test passed; 1 a test failed, is due or could not be run.",
    )
    add_pack_options(checking, default="every pack that can screen here")
    checking.add_argument("--status", action="store_true", help="show the last result and the date of the next test")


def run_list(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray packs list`: print the packs on this computer. Returns the exit code. Raises PackProblem."""
    library = pack_library()
    found = library.candidates(options.folder) if options.folder else library.available()
    for candidate in found:
        console.print_lines(_candidate_lines(candidate))
    if not found:
        console.print_line("No packs found.")
    return 0


def run_verify(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray packs verify`: check every file of a pack. Returns the exit code. Raises PackProblem."""
    from fieldray.packs.verified import read_pack

    library = pack_library()
    found = library.find(options.pack)
    manifest = read_pack(found.folder).manifest
    console.print_line(f"{manifest.pack_name}: complete, every file matches the signature")
    console.print_line(f"folder:      {found.folder}")
    console.print_line(f"signed by:   {manifest.fingerprint}")
    is_trusted = found.trust == "builtin" or library.trusts(manifest.fingerprint)
    console.print_line(f"trusted:     {'yes' if is_trusted else 'no, this key is not trusted on this computer'}")
    console.print_line(f"model:       {manifest.content.files['litert'].sha256}")
    return 0


def run_trust(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray packs trust`: change or list the trusted keys. Returns the exit code.

    Raises UsageProblem, StorageProblem.
    """
    keys = pack_library().trust_store
    if options.fingerprint:
        (keys.forget if options.forget else keys.trust)(options.fingerprint)
    trusted = keys.trusted_key_dates()
    console.print_lines(f"{key}  since {day}" for key, day in trusted.items())
    if not trusted:
        console.print_line("No key is trusted on this computer. The packs of the program need no trusted key.")
    return 0


def run_default(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray packs default`: change or print the default pack. Returns the exit code.

    Raises PackProblem, UsageProblem, StorageProblem.
    """
    settings, problems = load_settings()
    for problem in problems:
        console.print_error(problem.text)
    if options.none:
        settings.choose_pack("")
    elif options.pack:
        settings.choose_pack(_lasting_name(options.pack, options.operating_point), options.operating_point or "")
    if options.none or options.pack:
        settings.save()
    name, point = str(settings["pack"]), str(settings["operating_point"])
    at = f", operating point {point}" if point else ""
    console.print_line(
        f"Default pack: {name}{at}" if name else "There is no default pack. Name a pack with --pack in every run."
    )
    return 0


def _lasting_name(name: str, operating_point: str | None) -> str:
    """Return the name of an available pack that can screen. The name contains the signer, so that it stays unique.

    Raises PackProblem if no such pack is available, UsageProblem if the pack lacks the operating point.
    """
    from fieldray.packs.naming import name_with_signer, split_pack_name

    library = pack_library()
    chosen = library.find(name)
    is_here = chosen.folder in [pack.folder for pack in library.available() if pack.has_name(name)]
    if not is_here or not chosen.can_screen:
        raise PackProblem(chosen.problem if is_here and chosen.problem else reason("pack_not_found", name=name))
    known = dict.fromkeys(point.name for point in chosen.manifest.operating_points) if chosen.manifest else {}
    if operating_point is not None and operating_point not in known:
        raise UsageProblem(reason("operating_point", name=operating_point, known=", ".join(known) or "-"))
    return name_with_signer(
        split_pack_name(name)[0], is_signed=chosen.trust != "builtin", fingerprint=chosen.fingerprint
    )


def run_install(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray packs install`: copy a pack to this computer. Returns the exit code.

    Raises PackProblem, StorageProblem.
    """
    library = pack_library()
    folder = library.find(options.pack).folder
    installed = use_pack_with_granted_trust(library, options.pack, options, partial(library.install, folder))
    console.print_line(f"Installed: {installed}")
    return 0


def run_constancy(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray constancy`: test each pack, or print the last results with `--status`. Returns the exit code.

    Raises PackProblem, StorageProblem.
    """
    from fieldray.pipeline.constancy import ConstancyRecords, run_constancy_test
    from fieldray.pipeline.session import Session

    library, records = pack_library(), ConstancyRecords(data_folder())
    found = [] if options.pack else [one for one in library.available() if one.kind == "classifier"]
    names = [options.pack] if options.pack else [str(one.folder) for one in found if one.problem is None]
    left_out = [(one.pack_name, one.problem) for one in found if one.problem]
    console.print_lines(reason("constancy_not_run", device=pack, detail=why.text).text for pack, why in left_out)
    if not (names or left_out):
        console.print_error(reason("no_pack").text)
    is_well = bool(names) and all(
        why.code in CONFIRMABLE_PACK_PROBLEM_CODES for _, why in left_out
    )  # unconfirmed is no fault
    for name in names:
        model = load_pack(library, name, options)
        if options.status:
            said = records.state_sentences(model)
        else:
            with Session(load_settings()[0], lambda _: None) as session:
                session.use_packs(model)
                console.show_progress_bar(model.pack_name)
                said = run_constancy_test(session, records)
        console.print_lines(why.text for why in said)
        codes = {why.code for why in said} - {"constancy_not_run"}
        is_well &= set() < codes <= {"constancy_passed", "constancy_first"}
    return 0 if is_well else 1


def _candidate_lines(candidate: PackCandidate) -> Iterator[str]:
    """Yield the lines that describe a pack: name, source, trust, patients, measured performance and limits."""
    from fieldray.domain.intended_use import intended_patients_sentence, performance_sentences
    from fieldray.reports.performance import performance_of_pack
    from fieldray.translation import Translator

    trust = {
        "builtin": "comes with the program",
        "trusted": "trusted",
        "unknown_key": "key not trusted",
        "legacy": "unsigned legacy, operating point unknown",
        "broken": "broken",
    }[candidate.trust]
    origin = "" if candidate.trust == "builtin" else {"drive": "on a drive, "}.get(candidate.origin, "installed, ")
    name, folder = console_cell_text(candidate.pack_name), console_cell_text(str(candidate.folder))
    yield f"{name:<32} {origin + trust:<24} {folder}"
    if candidate.problem:
        yield f"    {candidate.problem.text}"
    manifest = candidate.manifest
    if manifest is not None:
        yield f"    {console_cell_text(manifest.names['en'])}. {intended_patients_sentence(manifest.accepted).text}"
        warnings = manifest.warnings["en"].splitlines() if manifest.warnings else []
        sentences = (one.sentence for one in performance_of_pack(Translator(), manifest))
        measured = (*sentences, *(why.text for why in performance_sentences(manifest)))
        for text in (manifest.descriptions["en"], *measured, *warnings, manifest.limits["en"]):
            yield from textwrap.wrap(
                console_cell_text(text), width=112, initial_indent="    ", subsequent_indent="    "
            )

"""Which pack a command uses, and the yes a person gives on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fieldray.errors import PackNotTrusted, PackProblem
from fieldray.reasons import Reason, reason

if TYPE_CHECKING:
    from fieldray.domain.model import Model
    from fieldray.packs.library import PackLibrary

PrintError = Callable[[str], None]
_LACKS_A_YES: Final = ("pack_older", "pack_legacy")


def _keep_quiet(_: str) -> None:
    """Where nobody is listening; the log has it in any case."""


def add_trust_options(parser: argparse.ArgumentParser) -> None:
    """`--trust` and `--allow-older`."""
    parser.add_argument("--trust", metavar="FINGERPRINT", help="trust the signing key that has this fingerprint")
    parser.add_argument(
        "--allow-older", action="store_true", help="allow a version older than one already used on this computer"
    )


def add_pack_options(parser: argparse.ArgumentParser) -> None:
    """`--pack` and the options that go with it."""
    parser.add_argument(
        "--pack",
        metavar="DIR|ID",
        help="folder or id of the pack to use (default: the one on a drive, else the built-in one)",
    )
    add_pack_rules(parser)


def add_pack_rules(parser: argparse.ArgumentParser) -> None:
    """Which packs may be used: `--trust`, `--allow-older`, `--allow-legacy`."""
    add_trust_options(parser)
    parser.add_argument(
        "--allow-legacy", action="store_true", help="allow an unsigned legacy model, which gives scores only"
    )


def load_model(library: PackLibrary, options: argparse.Namespace, *, print_error: PrintError = _keep_quiet) -> Model:
    """The pack asked for, else that of a drive, else the newest that ships with the program, verified and in memory.

    `print_error` is told of broken packs that were passed over, and of site points that cannot be read. Raises
    PackProblem, PackNotTrusted, StorageProblem.
    """
    return load_pack(library, options.pack, options, print_error=print_error)


def load_pack(
    library: PackLibrary,
    name: str | None,
    options: argparse.Namespace,
    *,
    print_error: PrintError = _keep_quiet,
    drives: Sequence[Path] | None = None,
) -> Model:
    """As `load_model`, for a pack by name or path; `options` say what is allowed, `drives` are as for `find_pack`.

    A pack may turn out to be broken only when it is read whole: it is then passed over like one that looks so.
    """
    drives = drives_with_packs() if drives is None else drives
    broken: dict[Path, Reason] = {}
    while True:
        folder = find_pack(library, name, drives=drives, broken=broken)
        try:
            model = _load(library, folder, options)
        except PackProblem as problem:
            if isinstance(problem, PackNotTrusted) or problem.reason.code in _LACKS_A_YES or folder in broken:
                raise
            broken[folder] = problem.reason
        else:
            for passed_over, why in broken.items():
                print_error(reason("pack_passed_over", folder=passed_over, detail=why.text).text)
            if lost := library.site_problem():
                print_error(lost.text)
            return model


def _load(library: PackLibrary, folder: Path, options: argparse.Namespace) -> Model:
    def load() -> Model:
        return library.load(folder, allow_older=options.allow_older, allow_legacy=options.allow_legacy)

    try:
        return load()
    except PackNotTrusted as problem:
        give_trust(library, problem, options.trust)
        return load()


def give_trust(library: PackLibrary, problem: PackNotTrusted, fingerprint: str | None) -> None:
    """Trust the key if it is exactly the one a person named; raises the problem again if not."""
    from fieldray.packs.signing import read_fingerprint

    if fingerprint is None or read_fingerprint(fingerprint) != problem.fingerprint:
        raise problem
    library.trust(problem.fingerprint)


def find_pack(
    library: PackLibrary,
    name: str | None,
    *,
    drives: Sequence[Path] | None = None,
    broken: dict[Path, Reason] | None = None,
) -> Path:
    """The folder of a pack by name or path; without a name the default one. Raises PackProblem.

    drives    where to look, in this order; those plugged in with packs on them if not given
    broken    folders that are passed over; those on drives that are seen to be broken are added
    """
    broken = {} if broken is None else broken
    drives = drives_with_packs() if drives is None else drives
    try:
        if name is None:
            return default_pack(library, drives, broken=broken)
        return library.find(name, drives=drives, without=broken)
    except PackProblem as problem:
        if broken and problem.reason.code in ("no_pack", "pack_not_found", "pack_no_manifest"):
            raise PackProblem(next(iter(broken.values()))) from problem
        raise


def default_pack(library: PackLibrary, drives: Sequence[Path], *, broken: dict[Path, Reason]) -> Path:
    """The pack of the first drive with one that would load, else of the first with one that only lacks a yes, else
    the newest kept here: a broken pack hides no other. `broken` as for `find_pack`. Raises PackProblem.
    """
    from fieldray.packs.library import choose

    seen = []
    for drive in drives:
        found = [candidate for candidate in library.on_drive(drive) if candidate.folder not in broken]
        broken |= {entry.folder: entry.problem for entry in found if entry.trust == "broken" and entry.problem}
        seen.append((drive, [candidate for candidate in found if candidate.can_screen]))
    whole = [(drive, found) for drive, found in seen if found]
    if not whole:
        return newest_kept(library)
    drive, found = min(whole, key=lambda entry: min(candidate.hindrance for candidate in entry[1]))
    return choose(found, name=drive).folder


def drives_with_packs() -> list[Path]:
    """Where drives with packs are mounted; none where the system does not tell."""
    from fieldray.packs.drives import list_drives

    try:
        return [Path(drive.mount_point) for drive in list_drives() if drive.pack_folders]
    except OSError:
        return []


def newest_kept(library: PackLibrary) -> Path:
    """The newest pack that ships with the program, else the newest installed. Raises PackProblem: why the first one
    found cannot be used, or no_pack.
    """
    from fieldray.packs.naming import version_key

    why = None
    for kept in (library.builtin(), library.installed()):
        usable = [candidate for candidate in kept if candidate.problem is None]
        if usable:
            return max(usable, key=lambda candidate: version_key(candidate.version)).folder
        why = why or next((candidate.problem for candidate in kept), None)
    raise PackProblem(why or reason("no_pack"))

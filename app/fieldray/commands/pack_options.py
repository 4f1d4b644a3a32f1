"""Which pack a command uses, and the yes a person gives on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fieldray.errors import PackNotTrusted, PackProblem
from fieldray.reasons import reason

if TYPE_CHECKING:
    from fieldray.domain.model import Model
    from fieldray.packs.library import PackLibrary


def add_trust_options(parser: argparse.ArgumentParser) -> None:
    """`--trust` and `--allow-older`."""
    parser.add_argument("--trust", metavar="FINGERPRINT", help="trust the key with this fingerprint from now on")
    parser.add_argument("--allow-older", action="store_true", help="use a version older than one used here before")


def add_pack_options(parser: argparse.ArgumentParser) -> None:
    """`--pack` and the options that go with it."""
    parser.add_argument(
        "--pack", metavar="DIR|ID", help="the pack to use (otherwise: a drive's, else the built-in one)"
    )
    add_pack_rules(parser)


def add_pack_rules(parser: argparse.ArgumentParser) -> None:
    """Which packs may be used: `--trust`, `--allow-older`, `--allow-legacy`."""
    add_trust_options(parser)
    parser.add_argument("--allow-legacy", action="store_true", help="use an unsigned legacy model: scores only")


def load_model(library: PackLibrary, options: argparse.Namespace) -> Model:
    """The pack asked for, else that of a drive, else the newest that ships with the program, verified and in memory.

    Raises PackProblem, PackNotTrusted, StorageProblem.
    """
    return load_pack(library, options.pack, options)


def load_pack(library: PackLibrary, name: str | None, options: argparse.Namespace) -> Model:
    """As `load_model`, for a pack by name or place; `options` say what is allowed."""
    folder = find_pack(library, name)

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


def find_pack(library: PackLibrary, name: str | None) -> Path:
    """The folder of a pack by name or place; without a name the default one. Raises PackProblem."""
    drives = drives_with_packs()
    if name is not None:
        return library.find(name, drives=drives)
    return library.find(drives[0]) if drives else newest_kept(library)


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

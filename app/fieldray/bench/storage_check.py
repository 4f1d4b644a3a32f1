"""Where results and packs are: room, permission, trusted keys, packs within reach."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fieldray.errors import StorageProblem
from fieldray.packs.library import PackLibrary
from fieldray.reasons import Reason, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFacts:
    """A pack within reach, and why it would not be loaded as things stand (None: it would)."""

    name: str
    origin: str
    problem: Reason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFacts:
    """`results` is the folder of results; `problem` why nothing can be written there; `trust_problem` with the keys."""

    results: str
    free_mb: int
    problem: Reason | None
    trusted_keys: int
    trust_problem: Reason | None
    packs: tuple[PackFacts, ...]


def check_storage(home: Path, library: PackLibrary, *, drives: Iterable[Path]) -> StorageFacts:
    """Ask the disk; `home` is the user's data folder."""
    keys, trust_problem = 0, None
    try:
        keys = len(library.trusted())
    except StorageProblem as problem:
        trust_problem = problem.reason
    found = library.available(drives)
    return StorageFacts(
        results=str(home),
        free_mb=shutil.disk_usage(home).free // 2**20,
        problem=_write_problem(home),
        trusted_keys=keys,
        trust_problem=trust_problem,
        packs=tuple(PackFacts(name=one.pack_name, origin=one.origin, problem=one.problem) for one in found),
    )


def _write_problem(folder: Path) -> Reason | None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"fieldray")
    except OSError as error:
        return reason("not_writable", path=folder, detail=error.strerror or error)
    return None

"""Whose images a folder holds: the pack a person chose for it, kept for the next time and for its sub-folders.

Folders are often called by patients' names, so the file holds a digest of each path and no path. A file that cannot be
read is as good as none: the question is asked again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec

from fieldray.errors import StorageProblem
from fieldray.persistence import make_folder, only_writer, require_plain, storage_problem, write_atomically
from fieldray.typed_json import decoded

log = logging.getLogger(__name__)

FILE_NAME: Final = "folders.json"
_LOCK_NAME: Final = "folders.lock"
_WAIT_S: Final = 10.0
_MOST: Final = 10_000
_LIMIT_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class RememberedPack:
    """What was chosen for a folder: a pack's id with its signer, the name of an operating point ("" for its first).

    ages_confirmed  the patients' ages are known to be those of the pack, as for the demonstration's images
    """

    pack: str
    operating_point: str = ""
    ages_confirmed: bool = False


_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class PackMemory:
    """The choices of one user. `home` is the user's data folder. Of two programs the later one's choice stays."""

    def __init__(self, home: Path) -> None:
        self._path = home / FILE_NAME
        self._lock_path = home / _LOCK_NAME

    def find(self, paths: Sequence[Path]) -> RememberedPack | None:
        """What all of these paths were chosen to be screened with, by themselves or the nearest folder above.

        None where nothing was chosen, and where it was not the same for all of them.
        """
        known = self._read()
        found = {next((known[digest] for digest in _digests(path) if digest in known), None) for path in paths}
        return found.pop() if len(found) == 1 else None

    def remember(
        self, paths: Sequence[Path], pack: str, *, operating_point: str = "", ages_confirmed: bool = False
    ) -> None:
        """Keep the choice for these paths and all below them. Raises StorageProblem."""
        chosen = RememberedPack(pack, operating_point, ages_confirmed)
        digests = [next(_digests(path)) for path in paths]
        try:
            make_folder(self._path.parent)
            with only_writer(self._path, self._lock_path, wait_s=_WAIT_S):
                known = {digest: entry for digest, entry in self._known().items() if digest not in digests}
                latest = [*known.items(), *((digest, chosen) for digest in digests)][-_MOST:]
                write_atomically(self._path, msgspec.json.encode(dict(latest)))
        except OSError as error:
            raise storage_problem(error, self._path) from error

    def _read(self) -> Mapping[str, RememberedPack]:
        try:
            return self._known()
        except (OSError, StorageProblem) as error:
            log.warning("%s is not used: %r", FILE_NAME, error)
            return {}

    def _known(self) -> Mapping[str, RememberedPack]:
        """Nothing in a damaged file. Raises OSError for one that cannot be read, StorageProblem."""
        require_plain(self._path)
        try:
            with self._path.open("rb") as file:
                return decoded(file.read(_LIMIT_BYTES), dict[_Digest, RememberedPack])
        except FileNotFoundError:
            return {}
        except ValueError as error:
            log.warning("%s is not used: %r", FILE_NAME, error)
            return {}


def _digests(path: Path) -> Iterator[str]:
    """Of a path and of every folder above it, the nearest first. Links are followed: a folder is one folder."""
    real = Path(os.path.realpath(path))
    for place in (real, *real.parents):
        yield hashlib.sha256(os.fsencode(os.path.normcase(place))).hexdigest()

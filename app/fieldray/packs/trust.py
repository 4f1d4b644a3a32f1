"""Which signing keys a person trusts, and the highest version of each pack that ran here under each key.

One JSON file, `pack_trust.json`, in the user's data folder, written beside and renamed. A file that is not there is
a first start. A file that cannot be understood is never taken for an empty one, since that would let an older pack
pass for new: everything that needs it is refused, with the file's path, until a person repairs or deletes it.
Every change is made under a lock that holds across processes (`pack_trust.lock`), so that two programs at work do
not lose each other's entries.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from fieldray.errors import PackProblem, StorageProblem, UsageProblem
from fieldray.packs.document import read_document, write_document
from fieldray.packs.manifest_types import ID
from fieldray.packs.naming import version_key
from fieldray.packs.signing import read_fingerprint, require_strong
from fieldray.persistence import FileLock, HeldError, storage_problem, write_atomically
from fieldray.reasons import reason
from fieldray.typed_json import converted

_FILE_NAME: Final = "pack_trust.json"
_LOCK_NAME: Final = "pack_trust.lock"
_LOCK_WAIT_S: Final = 10.0  # a change takes milliseconds, on a slow disk a second
_FORMAT: Final = 1
_LIMIT_BYTES: Final = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    """A key a person said yes to; `since` is the day (ISO 8601, UTC)."""

    fingerprint: str
    since: str


@dataclass(frozen=True, slots=True)
class _Records:
    """The file's content: day by fingerprint, and highest version that ran by pack id by fingerprint."""

    keys: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class TrustStore:
    """The records of one user. May be used by several threads and processes; every question reads the file again.

    wait_s    how long a change waits for another program's at most

    Every method raises StorageProblem("trust_damaged") for a damaged file; those that write raise "not_writable",
    "disk_full" and "trust_in_use" too.
    """

    def __init__(self, home: Path, *, wait_s: float = _LOCK_WAIT_S) -> None:
        self._path = home / _FILE_NAME
        self._wait_s = wait_s
        self._lock_path = home / _LOCK_NAME

    def trusted(self) -> tuple[TrustedKey, ...]:
        """The trusted keys, ordered by fingerprint."""
        return tuple(TrustedKey(fingerprint=key, since=day) for key, day in sorted(self._read().keys.items()))

    def is_trusted(self, fingerprint: str) -> bool:
        """Whether a person said yes to this key."""
        return fingerprint in self._read().keys

    def trust(self, fingerprint: str) -> None:
        """Trust a key from now on. Raises UsageProblem when it is not a fingerprint, or one of a key that is none."""
        known = read_fingerprint(fingerprint)
        require_strong(known)
        with self._locked():
            records = self._read()
            day = datetime.now(UTC).date().isoformat()
            self._write(replace(records, keys={known: day, **records.keys}))

    def forget(self, fingerprint: str) -> None:
        """Trust a key no longer; the versions seen under it are kept. Raises UsageProblem, not for an unknown key."""
        known = read_fingerprint(fingerprint)
        with self._locked():
            records = self._read()
            self._write(replace(records, keys={key: day for key, day in records.keys.items() if key != known}))

    def highest_seen(self, fingerprint: str, *, pack_id: str) -> str | None:
        """The highest version of this pack that ran here under this key, None for none."""
        return self._read().seen.get(fingerprint, {}).get(pack_id)

    def signers(self, pack_id: str) -> set[str]:
        """The keys under which a pack of this id ran here."""
        return {key for key, packs in self._read().seen.items() if pack_id in packs}

    def record(self, fingerprint: str, *, pack_id: str, version: str) -> None:
        """Remember that a version ran here; writes only when it is the highest so far."""
        if not _is_higher(version, than=self.highest_seen(fingerprint, pack_id=pack_id)):
            return  # the highest one never sinks, so this needs no lock
        with self._locked():
            records = self._read()
            packs = records.seen.get(fingerprint, {})
            if _is_higher(version, than=packs.get(pack_id)):
                self._write(replace(records, seen={**records.seen, fingerprint: {**packs, pack_id: version}}))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = FileLock(self._lock_path, holder=f"process {os.getpid()}", wait_s=self._wait_s)
        except HeldError as held:
            raise StorageProblem(reason("trust_in_use", path=self._path, holder=held.holder)) from held
        except OSError as error:
            raise storage_problem(error, self._path) from error
        with lock:
            yield

    def _read(self) -> _Records:
        try:
            with self._path.open("rb") as file:
                return _records(read_document(file.read(_LIMIT_BYTES)))
        except FileNotFoundError:
            return _Records()
        except OSError as error:
            if error.errno == errno.EIO:  # no reason to delete what may be read another time
                raise storage_problem(error, self._path) from error
            raise self._damaged(error.strerror or type(error).__name__) from error
        except (PackProblem, UsageProblem, ValueError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, detail: str) -> StorageProblem:
        return StorageProblem(reason("trust_damaged", path=self._path, detail=detail))

    def _write(self, records: _Records) -> None:
        content = {"format": _FORMAT, "keys": records.keys, "seen": records.seen}
        write_atomically(self._path, write_document(content))  # a file cut short would lock every pack out


def _is_higher(version: str, *, than: str | None) -> bool:
    return than is None or version_key(version) > version_key(than)


class _TrustFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file as it stands."""

    format: Literal[1]
    keys: dict[str, Annotated[str, msgspec.Meta(min_length=1, max_length=200)]]
    seen: dict[str, dict[Annotated[str, msgspec.Meta(pattern=ID)], str]]


def _records(document: Mapping[str, object]) -> _Records:
    """Raises UsageProblem for what is no fingerprint, ValueError for all else."""
    found = converted(document, _TrustFile)
    for version in (version for packs in found.seen.values() for version in packs.values()):
        version_key(version)
    keys = {read_fingerprint(key): day for key, day in found.keys.items()}
    return _Records(keys, {read_fingerprint(key): packs for key, packs in found.seen.items()})

"""Which signing keys a person trusts, and the highest version of each pack seen under each key.

One JSON file, `pack_trust.json`, in the user's data folder, written beside and renamed. A file that is not there is
a first start. A file that cannot be understood is never taken for an empty one, since that would let an older pack
pass for new: everything that needs it is refused, with the file's path, until a person repairs or deletes it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fieldray.errors import PackProblem, StorageProblem, UsageProblem
from fieldray.packs.document import Node, read_document, write_document
from fieldray.packs.naming import is_pack_id, version_key
from fieldray.packs.signing import read_fingerprint
from fieldray.reasons import reason

_FILE_NAME: Final = "pack_trust.json"
_FORMAT: Final = 1
_LIMIT_BYTES: Final = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    """A key a person said yes to; `since` is the day (ISO 8601, UTC)."""

    fingerprint: str
    since: str


@dataclass(frozen=True, slots=True)
class _Records:
    """The file's content: day by fingerprint, and highest version by pack id by fingerprint."""

    keys: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class TrustStore:
    """The records of one user. May be used by several threads; every question reads the file anew.

    Every method raises StorageProblem("trust_damaged") for a damaged file, those that write "not_writable" too.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / _FILE_NAME
        self._lock = threading.Lock()

    def trusted(self) -> tuple[TrustedKey, ...]:
        """The trusted keys, ordered by fingerprint."""
        return tuple(TrustedKey(fingerprint=key, since=day) for key, day in sorted(self._read().keys.items()))

    def is_trusted(self, fingerprint: str) -> bool:
        """Whether a person said yes to this key."""
        return fingerprint in self._read().keys

    def trust(self, fingerprint: str) -> None:
        """Trust a key from now on. Raises UsageProblem when it is not a fingerprint."""
        known = read_fingerprint(fingerprint)
        with self._lock:
            records = self._read()
            day = datetime.now(UTC).date().isoformat()
            self._write(replace(records, keys={known: day, **records.keys}))

    def forget(self, fingerprint: str) -> None:
        """Trust a key no longer; the versions seen under it are kept. Raises UsageProblem, not for an unknown key."""
        known = read_fingerprint(fingerprint)
        with self._lock:
            records = self._read()
            self._write(replace(records, keys={key: day for key, day in records.keys.items() if key != known}))

    def highest_seen(self, fingerprint: str, *, pack_id: str) -> str | None:
        """The highest version of this pack that was loaded from under this key, None for none."""
        return self._read().seen.get(fingerprint, {}).get(pack_id)

    def record(self, fingerprint: str, *, pack_id: str, version: str) -> None:
        """Remember that a version was loaded; writes only when it is the highest so far."""
        with self._lock:
            records = self._read()
            packs = records.seen.get(fingerprint, {})
            if pack_id in packs and version_key(packs[pack_id]) >= version_key(version):
                return
            self._write(replace(records, seen={**records.seen, fingerprint: {**packs, pack_id: version}}))

    def _read(self) -> _Records:
        try:
            with self._path.open("rb") as file:
                return _records(read_document(file.read(_LIMIT_BYTES)))
        except FileNotFoundError:
            return _Records()
        except OSError as error:
            raise self._damaged(error.strerror or type(error).__name__) from error
        except (PackProblem, UsageProblem, ValueError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, detail: str) -> StorageProblem:
        return StorageProblem(reason("trust_damaged", path=self._path, detail=detail))

    def _write(self, records: _Records) -> None:
        content = {"format": _FORMAT, "keys": records.keys, "seen": records.seen}
        try:
            handle, beside = tempfile.mkstemp(prefix=_FILE_NAME, suffix=".new", dir=self._path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(write_document(content))
                    file.flush()
                    os.fsync(file.fileno())  # a file cut short by a power failure would lock every pack out
                Path(beside).replace(self._path)
            finally:
                Path(beside).unlink(missing_ok=True)
        except OSError as error:
            raise StorageProblem(reason("not_writable", path=self._path, detail=error.strerror)) from error


def _records(root: Node) -> _Records:
    fields = root.fields(("format", "keys", "seen"))
    fields["format"].integer(low=_FORMAT, high=_FORMAT)
    keys = {read_fingerprint(key): day.text() for key, day in fields["keys"].members().items()}
    seen = {read_fingerprint(key): _versions(packs) for key, packs in fields["seen"].members().items()}
    return _Records(keys, seen)


def _versions(packs: Node) -> Mapping[str, str]:
    versions = {pack_id: version.text() for pack_id, version in packs.members().items()}
    for pack_id, version in versions.items():
        version_key(version)
        if not is_pack_id(pack_id):
            raise ValueError(f"not a pack id: {pack_id!r}")
    return versions

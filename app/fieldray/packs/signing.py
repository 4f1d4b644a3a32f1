"""Signatures of packs (Ed25519 over the manifest, RFC 8032), the keys that a person trusts, and the shipped packs.

`manifest.sig` is one line of JSON, {"key": base64, "signature": base64}: the raw 32-byte public key and the 64-byte
signature over the bytes of `manifest.json`. Exactly one form is valid, byte for byte, so that no byte of a pack can
change unnoticed. A key is identified by its fingerprint: SHA-256 of the raw public key, as 16 groups of 4 hexadecimal
digits joined by hyphens.

`pack_trust.json` in the user's data folder has three records: the keys that a person trusts; for each key and pack, the
highest version that ran on this computer; for each key and version of a pack, SHA-256 of the manifest at the last run.

A missing file means a first start. An unreadable file never counts as empty, because an older pack could then pass for
a new pack. Every operation that needs the file is refused, with the file's path, until a person repairs or deletes the
file. Changes are made under a lock between processes (`pack_trust.lock`), so that two programs do not lose each other's
entries.

Shipped packs are trusted by content: SHA-256 of their manifest.json.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec.structs import replace

from fieldray.errors import PackProblem, StorageProblem, UsageProblem
from fieldray.packs.manifest import FINGERPRINT_PATTERN, ID_PATTERN, SHA256_PATTERN, VERSION_PATTERN
from fieldray.packs.naming import group_fingerprint_digits, parse_fingerprint, version_key
from fieldray.packs.reading import canonical_json, parse_json_object
from fieldray.persistence import (
    PRIVATE_FILE_MODE,
    exclusive_write_access,
    is_accessible_to_other_users,
    make_folder,
    storage_problem,
    write_atomically,
    write_new_file,
)
from fieldray.reasons import reason
from fieldray.typed_json import to_type

_PRIME: Final = 2**255 - 19
_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# Weak public keys: the y of the eight points whose order divides 8 (RFC 8032, 5.1), and any y that is not below the
# prime. For such a key, anybody can make a signature that is valid for every text.
_WEAK_Y: Final = (0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8, *range(_PRIME, 2**255))
_WEAK_KEYS: Final = frozenset((y | sign << 255).to_bytes(32, "little") for y in _WEAK_Y for sign in (0, 1))


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """Load the signing key in a file, or create the key and its folder if the file is missing.

    The file is PEM (PKCS #8), not encrypted, and readable by its owner alone: anybody with the key can sign packs.
    Raises UsageProblem, StorageProblem.
    """
    # Imported here because the import is slow, and only people who make packs need it.
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if not path.is_file():
        key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            make_folder(path.parent)
            write_new_file(path, key, mode=PRIVATE_FILE_MODE)
        except OSError as error:
            raise storage_problem(error, path) from error
    return load_private_key(path)


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Load a signing key that `load_or_create_key` wrote. Raises UsageProblem (signing_key, signing_key_open)."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        is_open = is_accessible_to_other_users(path)
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UsageProblem(reason("signing_key", path=path, detail=error.strerror)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageProblem(
            reason("signing_key", path=path, detail="the file is not a PEM key, or the key has a password")
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageProblem(reason("signing_key", path=path, detail="the key is not an Ed25519 key"))
    if is_open:
        raise UsageProblem(reason("signing_key_open", path=path))
    return key


def sign(manifest: bytes, *, key: Ed25519PrivateKey) -> bytes:
    """Sign a manifest. Returns the bytes of `manifest.sig`."""
    return _compose(key.public_key().public_bytes_raw(), key.sign(manifest))


def verified_fingerprint(manifest: bytes, *, signature: bytes) -> str:
    """Verify the signature of a manifest. Returns the fingerprint of the signing key, trusted or not.

    signature  the content of `manifest.sig`

    Raises PackProblem (pack_bad_signature, pack_weak_key).
    """
    try:
        parts = json.loads(signature)
        raw_key, raw_signature = (base64.b64decode(parts[name], validate=True) for name in ("key", "signature"))
        if _compose(raw_key, raw_signature) != signature:
            raise ValueError("not in the one valid form")
        Ed25519PublicKey.from_public_bytes(raw_key).verify(raw_signature, manifest)
    except (ValueError, TypeError, LookupError, RecursionError, InvalidSignature) as error:
        raise PackProblem(reason("pack_bad_signature")) from error
    if raw_key in _WEAK_KEYS:
        raise PackProblem(reason("pack_weak_key"))
    return fingerprint_of(raw_key)


def fingerprint_of(raw_key: bytes) -> str:
    """Return the fingerprint of a raw public key."""
    return group_fingerprint_digits(hashlib.sha256(raw_key).hexdigest())


def require_fingerprint(text: str) -> str:
    """Normalise a fingerprint that a person typed.

    Letter case does not matter. Spaces, colons or hyphens may separate the digits. Raises UsageProblem if the text is
    no fingerprint.
    """
    found = parse_fingerprint(text)
    if not found:
        raise UsageProblem(reason("fingerprint", text=text))
    return found


def _compose(raw_key: bytes, raw_signature: bytes) -> bytes:
    parts = {"key": base64.b64encode(raw_key).decode(), "signature": base64.b64encode(raw_signature).decode()}
    return (json.dumps(parts, sort_keys=True) + "\n").encode()


# ---- trusted keys


_FILE_NAME: Final = "pack_trust.json"
_LIMIT_BYTES: Final = 2**24
_Fingerprint = Annotated[str, msgspec.Meta(pattern=FINGERPRINT_PATTERN)]


class _Records(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file of trust records. Each field is keyed by the fingerprint of a key.

    keys      the day on which a person trusted the key
    seen      the highest version that ran on this computer, by pack id
    contents  SHA-256 of the manifest at the last run, by `id-version`
    """

    format: Literal[1]
    keys: Mapping[_Fingerprint, Annotated[str, msgspec.Meta(min_length=1, max_length=200)]]
    seen: Mapping[
        _Fingerprint,
        Mapping[
            Annotated[str, msgspec.Meta(pattern=ID_PATTERN)], Annotated[str, msgspec.Meta(pattern=VERSION_PATTERN)]
        ],
    ]
    contents: Mapping[_Fingerprint, Mapping[str, Annotated[str, msgspec.Meta(pattern=SHA256_PATTERN)]]] = {}


_NOTHING: Final = _Records(1, {}, {})


class TrustStore:
    """The trust records of one user.

    Several threads and processes may use the records: every query reads the file again.

    Every method raises StorageProblem("trust_damaged") for a damaged file. Methods that write also raise
    StorageProblem: "not_writable", "disk_full" and "file_in_use".
    """

    def __init__(self, home: Path) -> None:
        self._path = home / _FILE_NAME

    def trusted_key_dates(self) -> dict[str, str]:
        """Return for each trusted key the day (ISO 8601, UTC) on which a person trusted it, sorted by fingerprint."""
        return dict(sorted(self._read().keys.items()))

    def is_trusted(self, fingerprint: str) -> bool:
        """Return whether a person trusts this key."""
        return fingerprint in self._read().keys

    def trust(self, fingerprint: str) -> None:
        """Store a key as trusted. Raises UsageProblem for a text that is no fingerprint, or for a weak key."""
        known = require_fingerprint(fingerprint)
        if known in map(fingerprint_of, _WEAK_KEYS):
            raise UsageProblem(reason("pack_weak_key"))
        with exclusive_write_access(self._path):
            records = self._read()
            day = datetime.now(UTC).date().isoformat()
            self._write(replace(records, keys={known: day, **records.keys}))

    def forget(self, fingerprint: str) -> None:
        """Remove a key from the trusted keys. The record of pack versions signed with the key stays.

        Removing an unknown key is no error. Raises UsageProblem for a text that is no fingerprint.
        """
        known = require_fingerprint(fingerprint)
        with exclusive_write_access(self._path):
            records = self._read()
            self._write(replace(records, keys={key: day for key, day in records.keys.items() if key != known}))

    def highest_version(self, fingerprint: str, *, pack_id: str) -> str | None:
        """Return the highest version of a pack, signed by this key, that ran on this computer; None if none ran."""
        return self._read().seen.get(fingerprint, {}).get(pack_id)

    def known_signers(self, pack_id: str) -> set[str]:
        """Return the fingerprints of the signers of all packs with this id that ran on this computer."""
        return {key for key, packs in self._read().seen.items() if pack_id in packs}

    def manifest_hash_of(self, fingerprint: str, *, pack_name: str) -> str | None:
        """Return the SHA-256 of a pack's manifest at the pack's last run on this computer; None if the pack never ran.

        fingerprint  fingerprint of the key that signed the pack
        pack_name    id and version of the pack
        """
        return self._read().contents.get(fingerprint, {}).get(pack_name)

    def record_used_version(self, fingerprint: str, *, pack_id: str, version: str, manifest_sha256: str) -> None:
        """Record that a version of a pack ran on this computer with this content.

        The file is written only if the record changes.

        fingerprint      fingerprint of the key that signed the pack
        manifest_sha256  SHA-256 (hex) of the manifest
        """
        pack_name = f"{pack_id}-{version}"
        is_higher = _is_higher(version, than=self.highest_version(fingerprint, pack_id=pack_id))
        if not is_higher and self.manifest_hash_of(fingerprint, pack_name=pack_name) == manifest_sha256:
            return  # no lock is needed, because the highest version never decreases
        with exclusive_write_access(self._path):
            records = self._read()
            packs = dict(records.seen.get(fingerprint, {}))
            if _is_higher(version, than=packs.get(pack_id)):
                packs[pack_id] = version
            contents = {**records.contents.get(fingerprint, {}), pack_name: manifest_sha256}
            seen = {**records.seen, fingerprint: packs}
            self._write(replace(records, seen=seen, contents={**records.contents, fingerprint: contents}))

    def _read(self) -> _Records:
        try:
            with self._path.open("rb") as file:
                return to_type(parse_json_object(file.read(_LIMIT_BYTES)), _Records)
        except FileNotFoundError:
            return _NOTHING
        except OSError as error:
            if error.errno == errno.EIO:  # a temporary error is no reason to delete the file
                raise storage_problem(error, self._path) from error
            raise self._damaged(error.strerror or type(error).__name__) from error
        except (PackProblem, ValueError) as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, detail: str) -> StorageProblem:
        return StorageProblem(reason("trust_damaged", path=self._path, detail=detail))

    def _write(self, records: _Records) -> None:
        content: dict[str, object] = msgspec.to_builtins(records)
        write_atomically(self._path, canonical_json(content))  # an incomplete file would lock out every pack


def _is_higher(version: str, *, than: str | None) -> bool:
    return than is None or version_key(version) > version_key(than)


# ---- the packs that ship
#
# A manifest lists the SHA-256 of every other file, so the SHA-256 of the manifest identifies a whole pack. For a pack
# added to `models/`, `python tools/builtin_pack.py models/<id>-<version>` prints the line of this table. The pack must
# be added to `pyproject.toml` as well, for wheels.


BUILTIN_PACK_HASHES: Final[Mapping[str, str]] = {
    "adult-normal-abnormal-0.6.0": "7c90b020b15388d8ac96f593722273e32f913d390b12018e49aa2f573e25714a",
    "lung-fields-1.1.0": "0ec8fce785dc200cb42950f594db71617d384d8908fc13af0feb61bd741a54e6",
    "lung-fields-2.0.1": "7416ebbb5d1a94e660c2ebe3a4270bc63052a16b9ace8996a182340c251463a3",
    "pneumonia-paediatric-1.4.0": "cf8cd4d6a1ef8e617e219066f40036cbd30e7ab65e10470e9dcfb554b1592d54",
    "tuberculosis-adult-0.4.0": "b61028aca982ec86213918c12dd602d26f1b9cdd450898e5d6f893e71158de2d",
}
# The lung-field pack for every classifier that does not require another one. No such classifier loads without it.
BUILTIN_LUNG_PACK: Final = "lung-fields-1.1.0"
# The key that signed the expected answers of the constancy test (`assets/constancy.json`).
CONSTANCY_TEST_SIGNER: Final = "3fe9-a914-5c8c-75ed-8c2e-ed9a-449f-1c7c-63ee-d61f-65ff-097e-6767-cc8f-2490-f34f"

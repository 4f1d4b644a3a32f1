"""Ed25519 signatures over a pack's description (RFC 8032).

`manifest.sig` is one line of JSON, {"key": base64, "signature": base64}: the raw 32-byte public key and the 64-byte
signature over the bytes of `manifest.json`. There is exactly one valid way to write it, byte for byte, so that no
byte of a pack can change unnoticed. A key is known by its fingerprint: SHA-256 of the raw public key, as 16 groups
of 4 hexadecimal digits joined by hyphens.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fieldray.errors import PackProblem, StorageProblem, UsageProblem
from fieldray.packs.naming import fingerprint_in, grouped
from fieldray.persistence import is_open_to_others
from fieldray.reasons import reason

_PRIME: Final = 2**255 - 19
_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
# The y of the points whose order divides 8 (RFC 8032, 5.1; there are eight of them), and those that are written as one
# that is not below the prime. A signature that fits every text can be made for such a key, by anybody.
_WEAK_Y: Final = (0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8, *range(_PRIME, 2**255))
_WEAK_KEYS: Final = frozenset((y | sign << 255).to_bytes(32, "little") for y in _WEAK_Y for sign in (0, 1))


def generate_key(path: Path) -> str:
    """Make a private key in a new file that only its owner can read; returns its fingerprint.

    The file is PEM (PKCS #8), not encrypted: whoever holds it can sign packs. Raises StorageProblem, also when the
    file is there already.
    """
    # Slow to import, and every run verifies a signature while hardly anyone makes a key.
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
    except OSError as error:
        raise StorageProblem(reason("not_writable", path=path, detail=error.strerror)) from error
    return fingerprint_of(_raw(key.public_key()))


def own_key(path: Path) -> Ed25519PrivateKey:
    """The key of this file, made with its folder where there is none. Raises UsageProblem, StorageProblem."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        generate_key(path)
    return load_private_key(path)


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """The key that `generate_key` wrote. Raises UsageProblem (signing_key, signing_key_open)."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        is_open = is_open_to_others(path)
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UsageProblem(reason("signing_key", path=path, detail=error.strerror)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageProblem(reason("signing_key", path=path, detail="not an unencrypted PEM key")) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageProblem(reason("signing_key", path=path, detail="not an Ed25519 key"))
    if is_open:
        raise UsageProblem(reason("signing_key_open", path=path))
    return key


def sign(manifest: bytes, *, key: Ed25519PrivateKey) -> bytes:
    """The bytes of `manifest.sig`."""
    return _compose(_raw(key.public_key()), key.sign(manifest))


def verify(manifest: bytes, *, signature: bytes) -> str:
    """The fingerprint of the key that signed; whether that key is trusted is another question.

    `signature` is the content of `manifest.sig`. Raises PackProblem (pack_bad_signature, pack_weak_key).
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


def require_strong(fingerprint: str) -> None:
    """Require that the key of this fingerprint is none that fits every text. Raises UsageProblem(pack_weak_key)."""
    if fingerprint in map(fingerprint_of, _WEAK_KEYS):
        raise UsageProblem(reason("pack_weak_key"))


def fingerprint_of(raw_key: bytes) -> str:
    """The fingerprint of a raw public key."""
    return grouped(hashlib.sha256(raw_key).hexdigest())


def read_fingerprint(text: str) -> str:
    """A fingerprint as a person typed it (any case; spaces, colons, hyphens or nothing between), in its one form.

    Raises UsageProblem when it is not one.
    """
    found = fingerprint_in(text)
    if not found:
        raise UsageProblem(reason("fingerprint", text=text))
    return found


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes_raw()


def _compose(raw_key: bytes, raw_signature: bytes) -> bytes:
    parts = {"key": base64.b64encode(raw_key).decode(), "signature": base64.b64encode(raw_signature).decode()}
    return (json.dumps(parts, sort_keys=True) + "\n").encode()

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fieldray.errors import PackProblem, StorageProblem, UsageProblem
from fieldray.packs import signing
from fieldray.packs.trust import TrustStore
from fieldray.reasons import reason
from packs_factory import key

CONTENT = b'{"some": "description"}'


def test_the_signer_is_known_by_the_fingerprint_of_the_raw_key() -> None:
    fingerprint = signing.verify(CONTENT, signature=signing.sign(CONTENT, key=key()))
    digits = hashlib.sha256(key().public_key().public_bytes_raw()).hexdigest()
    assert fingerprint.replace("-", "") == digits
    assert [len(group) for group in fingerprint.split("-")] == [4] * 16


def test_every_changed_byte_of_the_signature_is_refused() -> None:
    signature = signing.sign(CONTENT, key=key())
    for position in range(len(signature)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128):
            changed = bytearray(signature)
            changed[position] ^= flip
            with pytest.raises(PackProblem) as caught:
                signing.verify(CONTENT, signature=bytes(changed))
            assert caught.value.reason.code == "pack_bad_signature"


def _spread(signature: bytes) -> bytes:
    return json.dumps(json.loads(signature), indent=1).encode()


def _with_extra(signature: bytes) -> bytes:
    return json.dumps({**json.loads(signature), "more": 1}).encode()


def _short_key(signature: bytes) -> bytes:
    return json.dumps({**json.loads(signature), "key": base64.b64encode(b"short").decode()}).encode() + b"\n"


@pytest.mark.parametrize("change", [_spread, _with_extra, _short_key, lambda data: data + b"\n", lambda data: b""])
def test_there_is_one_way_to_write_a_signature(change: object) -> None:
    with pytest.raises(PackProblem, match="does not match"):
        signing.verify(CONTENT, signature=change(signing.sign(CONTENT, key=key())))  # type: ignore[operator]


@pytest.mark.parametrize(
    "data", [b"[" * 900, b"[]", b"null", b"\xff", b'{"key": 1, "signature": 2}', b'{"key": "\xc3\xa9"}']
)
def test_what_is_no_signature_is_a_wrong_one(data: bytes) -> None:
    with pytest.raises(PackProblem, match="does not match"):
        signing.verify(CONTENT, signature=data)


def test_a_generated_key_signs_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    fingerprint = signing.generate_key(path)
    signature = signing.sign(CONTENT, key=signing.load_private_key(path))
    assert signing.verify(CONTENT, signature=signature) == fingerprint
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_is_never_written_over_another(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    path.write_bytes(b"precious")
    with pytest.raises(StorageProblem) as caught:
        signing.generate_key(path)
    assert caught.value.reason == reason("not_writable", path=path, detail=os.strerror(errno.EEXIST))
    assert path.read_bytes() == b"precious"


def test_a_key_of_the_programs_own_is_made_once_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "own.pem"
    first = signing.own_key(path)
    assert signing.own_key(path).private_bytes_raw() == first.private_bytes_raw()
    beside = signing.own_key(path.with_name("other.pem"))
    assert beside.private_bytes_raw() != first.private_bytes_raw()


def test_what_is_not_an_ed25519_key_is_refused(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name, content in (("text.pem", b"no key"), ("other.pem", other)):
        (tmp_path / name).write_bytes(content)
    for name, detail in (
        ("absent.pem", os.strerror(errno.ENOENT)),
        ("text.pem", "not an unencrypted PEM key"),
        ("other.pem", "not an Ed25519 key"),
    ):
        with pytest.raises(UsageProblem) as caught:
            signing.load_private_key(tmp_path / name)
        assert caught.value.reason == reason("signing_key", path=tmp_path / name, detail=detail)


def test_a_fingerprint_may_be_typed_in_any_usual_way() -> None:
    digits = "0123456789abcdef" * 4
    expected = "-".join(["0123", "4567", "89ab", "cdef"] * 4)
    spellings = (
        digits,
        digits.upper(),
        expected,
        expected.replace("-", " "),
        expected.replace("-", ":"),
        f" {digits}\n",
    )
    assert {signing.read_fingerprint(spelling) for spelling in spellings} == {expected}


@pytest.mark.parametrize("text", ["", "0123", "g" * 64, "0" * 63, "0" * 65])
def test_what_is_not_a_whole_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        signing.read_fingerprint(text)
    assert caught.value.reason.code == "fingerprint"


# The eight points whose order divides 8, then the same written in ways that no encoder does: with a y that is not below
# the prime, or with a sign where x is 0.
WEAK_KEYS = [
    bytes.fromhex(f"{first}{middle * 30}{last}")
    for first, middle, last in [
        *(("00", "00", last) for last in ("00", "80")),
        *(("01", "00", last) for last in ("00", "80")),
        *((first, "ff", last) for first in ("ec", "ed", "ee") for last in ("7f", "ff")),
    ]
] + [
    bytes.fromhex(points + last)
    for points, lasts in (
        ("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc", ("05", "85")),
        ("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03", ("7a", "fa")),
    )
    for last in lasts
]


def _signature(raw_key: bytes, raw_signature: bytes) -> bytes:
    parts = {"key": base64.b64encode(raw_key).decode(), "signature": base64.b64encode(raw_signature).decode()}
    return (json.dumps(parts, sort_keys=True) + "\n").encode()


def test_a_signature_that_fits_every_text_is_refused() -> None:
    """Key and R are the neutral element, and S is 0: S B = R + h A for every h, so that any text is signed by it."""
    neutral = bytes([1]) + bytes(31)
    for content in (CONTENT, b"anything else"):
        Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), content)
        with pytest.raises(PackProblem) as caught:
            signing.verify(content, signature=_signature(neutral, neutral + bytes(32)))
        assert caught.value.reason.code == "pack_weak_key"


@pytest.mark.parametrize("raw_key", WEAK_KEYS, ids=bytes.hex)
def test_a_key_of_small_order_neither_verifies_nor_is_trusted(raw_key: bytes, home: Path) -> None:
    refused = 0
    for point in WEAK_KEYS:  # R is one of them: with S = 0 some text is signed by it
        for number in range(8):
            with pytest.raises(PackProblem) as caught:
                signing.verify(bytes([number]), signature=_signature(raw_key, point + bytes(32)))
            refused += caught.value.reason.code == "pack_weak_key"
    assert refused > 0
    with pytest.raises(UsageProblem) as problem:
        TrustStore(home).trust(signing.fingerprint_of(raw_key))
    assert problem.value.reason.code == "pack_weak_key"


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_signing_key_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.pem"
    signing.generate_key(path)
    path.chmod(mode)
    for load in (signing.load_private_key, signing.own_key):
        with pytest.raises(UsageProblem) as caught:
            load(path)
        assert caught.value.reason == reason("signing_key_open", path=path)

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
import sys
import threading
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fieldray.errors import PackProblem, StorageProblem, UsageProblem
from fieldray.packs import signing
from fieldray.packs.signing import TrustStore, fingerprint_of
from fieldray.persistence import FileLock, exclusive_write_access
from fieldray.reasons import reason
from packs_factory import key
from raised import raises

CONTENT = b'{"some": "description"}'


def test_the_signer_is_known_by_the_fingerprint_of_the_raw_key() -> None:
    fingerprint = signing.verified_fingerprint(CONTENT, signature=signing.sign(CONTENT, key=key()))
    digits = hashlib.sha256(key().public_key().public_bytes_raw()).hexdigest()
    assert fingerprint.replace("-", "") == digits
    assert [len(group) for group in fingerprint.split("-")] == [4] * 16


def test_every_changed_byte_of_the_signature_is_refused() -> None:
    signature = signing.sign(CONTENT, key=key())
    for position in range(len(signature)):
        for flip in (1, 2, 4, 8, 16, 32, 64, 128):
            changed = bytearray(signature)
            changed[position] ^= flip
            with raises(PackProblem, "pack_bad_signature"):
                signing.verified_fingerprint(CONTENT, signature=bytes(changed))


SIGNATURE = signing.sign(CONTENT, key=key())
PARTS = json.loads(SIGNATURE)


@pytest.mark.parametrize(
    "data",
    [
        # the right signature in another encoding
        json.dumps(PARTS, indent=1).encode(),
        json.dumps({**PARTS, "more": 1}).encode(),
        SIGNATURE + b"\n",
        json.dumps({**PARTS, "key": base64.b64encode(b"short").decode()}).encode() + b"\n",
        b"",
        b"[" * 900,
        b"[]",
        b"null",
        b"\xff",
        b'{"key": 1, "signature": 2}',
        b'{"key": "\xc3\xa9"}',
    ],
)
def test_only_one_encoding_of_a_signature_is_accepted(data: bytes) -> None:
    with pytest.raises(PackProblem, match="does not match"):
        signing.verified_fingerprint(CONTENT, signature=data)


def test_a_new_key_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "own.pem"
    first = signing.load_or_create_key(path)
    assert signing.load_or_create_key(path).private_bytes_raw() == first.private_bytes_raw()
    other = signing.load_or_create_key(path.with_name("other.pem"))
    assert other.private_bytes_raw() != first.private_bytes_raw()
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"precious")  # an existing key is never overwritten
    with raises(UsageProblem, "signing_key"):
        signing.load_or_create_key(path)
    assert path.read_bytes() == b"precious"
    with raises(StorageProblem, "not_writable"):
        signing.load_or_create_key(path / "below.pem")


def test_a_file_without_an_ed25519_key_is_refused(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name, content in (("text.pem", b"no key"), ("other.pem", other)):
        (tmp_path / name).write_bytes(content)
    for name, detail in (
        ("absent.pem", os.strerror(errno.ENOENT)),
        ("text.pem", "the file is not a PEM key, or the key has a password"),
        ("other.pem", "the key is not an Ed25519 key"),
    ):
        with pytest.raises(UsageProblem) as caught:
            signing.load_private_key(tmp_path / name)
        assert caught.value.reason == reason("signing_key", path=tmp_path / name, detail=detail)


def test_an_incomplete_fingerprint_is_refused() -> None:  # see test_naming
    with raises(UsageProblem, "fingerprint"):
        signing.require_fingerprint("0" * 63)


# The eight points of small order, whose order divides 8, then other encodings of them that no encoder writes: with a y
# that is not below the prime, or with a sign where x is 0.
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


def test_a_signature_valid_for_every_text_is_refused() -> None:
    """Key and R are the neutral element, and S is 0: S B = R + h A for every h, so the signature fits any text."""
    neutral = bytes([1]) + bytes(31)
    for content in (CONTENT, b"anything else"):
        Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), content)
        with raises(PackProblem, "pack_weak_key"):
            signing.verified_fingerprint(content, signature=_signature(neutral, neutral + bytes(32)))


@pytest.mark.parametrize("raw_key", WEAK_KEYS, ids=bytes.hex)
def test_a_key_of_small_order_neither_verifies_nor_is_trusted(raw_key: bytes, home: Path) -> None:
    refused = 0
    for point in WEAK_KEYS:  # with R of small order and S = 0, some text has this valid signature
        for number in range(8):
            with pytest.raises(PackProblem) as caught:
                signing.verified_fingerprint(bytes([number]), signature=_signature(raw_key, point + bytes(32)))
            refused += caught.value.reason.code == "pack_weak_key"
    assert refused > 0
    with raises(UsageProblem, "pack_weak_key"):
        TrustStore(home).trust(signing.fingerprint_of(raw_key))


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_signing_key_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.pem"
    signing.load_or_create_key(path)
    path.chmod(mode)
    for load in (signing.load_private_key, signing.load_or_create_key):
        with pytest.raises(UsageProblem) as caught:
            load(path)
        assert caught.value.reason == reason("signing_key_open", path=path)


# ---- trusted keys

RAN = "c" * 64
CHEST = {"pack_id": "chest", "manifest_sha256": RAN}
FIRST, SECOND = fingerprint_of(b"first"), fingerprint_of(b"second")


def test_trust_in_a_key_lasts_until_it_is_withdrawn(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    assert store.trusted_key_dates() == {} and not store.is_trusted(FIRST)
    assert store.highest_version(FIRST, pack_id="chest") is None and store.known_signers("chest") == set()
    assert list(tmp_path.iterdir()) == []  # asking writes nothing
    TrustStore(tmp_path).trust(FIRST.upper().replace("-", " "))
    TrustStore(tmp_path).trust(SECOND)
    assert list(TrustStore(tmp_path).trusted_key_dates()) == sorted([FIRST, SECOND])
    TrustStore(tmp_path).forget(FIRST)
    assert not TrustStore(tmp_path).is_trusted(FIRST)
    assert TrustStore(tmp_path).is_trusted(SECOND)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack_trust.json", "pack_trust.lock"]


def test_the_highest_version_is_recorded_per_key_and_pack(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        store.record_used_version(FIRST, pack_id="chest", version=version, manifest_sha256=RAN)
    store.record_used_version(SECOND, pack_id="chest", version="0.1.0", manifest_sha256=RAN)
    store.record_used_version(FIRST, pack_id="hand", version="0.2.0", manifest_sha256=RAN)
    assert store.highest_version(FIRST, pack_id="chest") == "1.10.0"
    assert store.highest_version(SECOND, pack_id="chest") == "0.1.0"
    assert store.highest_version(FIRST, pack_id="hand") == "0.2.0"
    assert (store.known_signers("chest"), store.known_signers("hand")) == ({FIRST, SECOND}, {FIRST})
    store.trust(FIRST)
    store.forget(FIRST)
    store.trust(FIRST)
    assert store.highest_version(FIRST, pack_id="chest") == "1.10.0"  # forgetting a key keeps its versions


def test_a_known_version_is_not_written_again(tmp_path: Path) -> None:
    store, path = TrustStore(tmp_path), tmp_path / "pack_trust.json"
    for version in ("2.0.0", "1.0.0"):
        store.record_used_version(FIRST, pack_id="chest", version=version, manifest_sha256=RAN)
    before = path.stat()
    for version in ("2.0.0", "1.0.0"):
        store.record_used_version(FIRST, pack_id="chest", version=version, manifest_sha256=RAN)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_last_content_is_recorded_per_key_pack_and_version(tmp_path: Path) -> None:
    store, other = TrustStore(tmp_path), "d" * 64
    store.record_used_version(FIRST, pack_id="chest", version="2.0.0", manifest_sha256=RAN)
    assert store.manifest_hash_of(FIRST, pack_name="chest-2.0.0") == RAN
    assert (
        store.manifest_hash_of(SECOND, pack_name="chest-2.0.0")
        is store.manifest_hash_of(FIRST, pack_name="chest-1.0.0")
        is None
    )
    store.record_used_version(FIRST, pack_id="chest", version="2.0.0", manifest_sha256=other)
    store.record_used_version(FIRST, pack_id="chest", version="1.0.0", manifest_sha256=RAN)
    assert store.manifest_hash_of(FIRST, pack_name="chest-2.0.0") == other
    assert store.highest_version(FIRST, pack_id="chest") == "2.0.0"


def test_a_key_keeps_the_date_of_its_first_trust(tmp_path: Path) -> None:
    store, before = TrustStore(tmp_path), datetime.now(UTC).date()
    store.trust(FIRST)
    (day,) = store.trusted_key_dates().values()
    assert before <= date.fromisoformat(day) <= datetime.now(UTC).date()
    old = {"format": 1, "keys": {FIRST: "2024-01-31"}, "seen": {}}
    (tmp_path / "pack_trust.json").write_text(json.dumps(old))
    store.trust(FIRST)
    assert store.trusted_key_dates() == {FIRST: "2024-01-31"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\0" * 100,
        b"[]",
        b'{"format": 1, "keys": {}}',
        b'{"format": 2, "keys": {}, "seen": {}}',
        b'{"format": 1, "keys": {"abc": "2026-01-01"}, "seen": {}}',
        b'{"format": 1, "keys": {}, "seen": {"%s": {"chest": "new"}}}' % FIRST.encode(),
        b'{"format": 1, "keys": {}, "seen": {"%s": {"../chest": "1.0.0"}}}' % FIRST.encode(),
    ],
)
def test_a_damaged_trust_file_is_never_read_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pack_trust.json"
    path.write_bytes(content)
    store = TrustStore(tmp_path)
    for question in (
        store.trusted_key_dates,
        lambda: store.is_trusted(FIRST),
        lambda: store.highest_version(FIRST, pack_id="chest"),
        lambda: store.trust(FIRST),
        lambda: store.forget(FIRST),
        lambda: store.record_used_version(FIRST, pack_id="chest", version="1.0.0", manifest_sha256=RAN),
    ):
        with raises(StorageProblem, "trust_damaged", says=str(path)):
            question()
    assert path.read_bytes() == content


def test_changing_trust_waits_for_another_program_and_reading_does_not(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    store.trust(FIRST)
    store.record_used_version(FIRST, pack_id="chest", version="2.0.0", manifest_sha256=RAN)
    other = FileLock(tmp_path / "pack_trust.lock", holder="process 7")
    assert store.is_trusted(FIRST) and store.highest_version(FIRST, pack_id="chest") == "2.0.0"
    store.record_used_version(
        FIRST, pack_id="chest", version="2.0.0", manifest_sha256=RAN
    )  # nothing to change, so nothing to wait for
    change = threading.Thread(target=store.record_used_version, args=(FIRST,), kwargs={**CHEST, "version": "3.0.0"})
    change.start()
    assert store.highest_version(FIRST, pack_id="chest") == "2.0.0"
    other.release()
    change.join()
    assert store.highest_version(FIRST, pack_id="chest") == "3.0.0"


def test_a_lock_that_is_never_released_is_reported(tmp_path: Path) -> None:
    changes = exclusive_write_access(tmp_path / "pack_trust.json", wait_s=0.02)
    with FileLock(tmp_path / "pack_trust.lock", holder="process 7"), raises(StorageProblem, "file_in_use", says="7"):
        changes.__enter__()


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    with raises(StorageProblem, "not_writable"):
        TrustStore(tmp_path / "absent").trust(FIRST)


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_trust_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    TrustStore(tmp_path).trust(FIRST)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600] * 2

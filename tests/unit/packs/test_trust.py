from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.packs.signing import fingerprint_of
from fieldray.packs.trust import TrustStore

FIRST, SECOND = fingerprint_of(b"first"), fingerprint_of(b"second")


def test_nothing_is_trusted_at_first_and_nothing_is_written_by_asking(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    assert store.trusted() == () and not store.is_trusted(FIRST)
    assert store.highest_seen(FIRST, pack_id="chest") is None
    assert list(tmp_path.iterdir()) == []


def test_trust_lasts_and_can_be_taken_back(tmp_path: Path) -> None:
    TrustStore(tmp_path).trust(FIRST.upper().replace("-", " "))
    TrustStore(tmp_path).trust(SECOND)
    assert [key.fingerprint for key in TrustStore(tmp_path).trusted()] == sorted([FIRST, SECOND])
    TrustStore(tmp_path).forget(FIRST)
    assert not TrustStore(tmp_path).is_trusted(FIRST)
    assert TrustStore(tmp_path).is_trusted(SECOND)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack_trust.json", "pack_trust.lock"]


def test_only_whole_fingerprints_are_trusted(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem):
        TrustStore(tmp_path).trust(FIRST[:20])


def test_the_highest_version_is_kept_per_key_and_pack(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    for version in ("1.9.0", "1.10.0", "1.2.0"):
        store.record(FIRST, pack_id="chest", version=version)
    store.record(SECOND, pack_id="chest", version="0.1.0")
    store.record(FIRST, pack_id="hand", version="0.2.0")
    assert store.highest_seen(FIRST, pack_id="chest") == "1.10.0"
    assert store.highest_seen(SECOND, pack_id="chest") == "0.1.0"
    assert store.highest_seen(FIRST, pack_id="hand") == "0.2.0"


def test_forgetting_a_key_keeps_its_versions(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    store.trust(FIRST)
    store.record(FIRST, pack_id="chest", version="2.0.0")
    store.forget(FIRST)
    store.trust(FIRST)
    assert store.highest_seen(FIRST, pack_id="chest") == "2.0.0"


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
def test_a_damaged_file_is_never_taken_for_an_empty_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pack_trust.json"
    path.write_bytes(content)
    store = TrustStore(tmp_path)
    for question in (
        store.trusted,
        lambda: store.is_trusted(FIRST),
        lambda: store.highest_seen(FIRST, pack_id="chest"),
        lambda: store.trust(FIRST),
        lambda: store.forget(FIRST),
        lambda: store.record(FIRST, pack_id="chest", version="1.0.0"),
    ):
        with pytest.raises(StorageProblem) as caught:
            question()
        assert caught.value.reason.code == "trust_damaged"
        assert str(path) in caught.value.reason.text
    assert path.read_bytes() == content


def test_threads_do_not_lose_each_others_entries(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    names = [f"pack-{number}" for number in range(12)]
    threads = [
        threading.Thread(target=store.record, args=(FIRST,), kwargs={"pack_id": name, "version": "1.0.0"})
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.highest_seen(FIRST, pack_id=name) for name in names] == ["1.0.0"] * 12

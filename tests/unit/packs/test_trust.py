from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.packs.signing import fingerprint_of
from fieldray.packs.trust import TrustedKey, TrustStore
from fieldray.persistence import FileLock

# Adds versions of packs of its own, when it is told to: each of them, and the pack that all of them share.
_RECORD = """
import sys
from pathlib import Path
from fieldray.packs.trust import TrustStore
home, key, number, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
for version in range(1, count + 1):
    TrustStore(home).record(key, pack_id=f"pack-{number}-{version}", version="1.0.0")
    TrustStore(home).record(key, pack_id="shared", version=f"{version}.{number}.0")
"""
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


def test_a_version_that_is_known_is_not_written_again(tmp_path: Path) -> None:
    store, path = TrustStore(tmp_path), tmp_path / "pack_trust.json"
    store.record(FIRST, pack_id="chest", version="2.0.0")
    before = path.stat()
    for version in ("2.0.0", "1.0.0"):
        store.record(FIRST, pack_id="chest", version=version)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_is_wrong_with_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "pack_trust.json").write_text('{"format": 1, "keys": {"abc": "2026-01-01"}, "seen": {}}')
    with pytest.raises(StorageProblem) as caught:
        TrustStore(tmp_path).trusted()
    assert "abc" in caught.value.reason.text


def test_forgetting_a_key_keeps_its_versions(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    store.trust(FIRST)
    store.record(FIRST, pack_id="chest", version="2.0.0")
    store.forget(FIRST)
    store.trust(FIRST)
    assert store.highest_seen(FIRST, pack_id="chest") == "2.0.0"


def test_who_signed_a_pack_that_ran_here_is_known(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    assert store.signers("chest") == set()
    for key, pack_id in ((FIRST, "chest"), (SECOND, "chest"), (SECOND, "hand")):
        store.record(key, pack_id=pack_id, version="1.0.0")
    assert store.signers("chest") == {FIRST, SECOND}
    assert store.signers("hand") == {SECOND}


def test_a_key_is_trusted_since_the_first_day(tmp_path: Path) -> None:
    store, before = TrustStore(tmp_path), datetime.now(UTC).date()
    store.trust(FIRST)
    (key,) = store.trusted()
    assert before <= date.fromisoformat(key.since) <= datetime.now(UTC).date()
    old = {"format": 1, "keys": {FIRST: "2024-01-31"}, "seen": {}}
    (tmp_path / "pack_trust.json").write_text(json.dumps(old))
    store.trust(FIRST)
    assert store.trusted() == (TrustedKey(fingerprint=FIRST, since="2024-01-31"),)


def test_a_weak_key_is_never_trusted(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem) as caught:
        TrustStore(tmp_path).trust(fingerprint_of(bytes(32)))  # y is 0: a point of order 4
    assert caught.value.reason.code == "pack_weak_key"
    assert list(tmp_path.iterdir()) == []


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


def test_processes_do_not_lose_each_others_entries(tmp_path: Path) -> None:
    count, numbers = 12, range(4)
    TrustStore(tmp_path).trust(FIRST)
    command = [sys.executable, "-c", _RECORD, str(tmp_path), FIRST]
    processes = [
        subprocess.Popen([*command, str(number), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in numbers
    ]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0] * len(processes)
    store = TrustStore(tmp_path)
    names = [f"pack-{number}-{version}" for number in numbers for version in range(1, count + 1)]
    assert [name for name in names if store.highest_seen(FIRST, pack_id=name) != "1.0.0"] == []
    assert store.highest_seen(FIRST, pack_id="shared") == f"{count}.{max(numbers)}.0"
    assert store.is_trusted(FIRST)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack_trust.json", "pack_trust.lock"]


def test_a_change_waits_for_another_program_and_asking_does_not(tmp_path: Path) -> None:
    store = TrustStore(tmp_path)
    store.trust(FIRST)
    store.record(FIRST, pack_id="chest", version="2.0.0")
    other = FileLock(tmp_path / "pack_trust.lock", holder="process 7")
    assert store.is_trusted(FIRST) and store.highest_seen(FIRST, pack_id="chest") == "2.0.0"
    store.record(FIRST, pack_id="chest", version="1.0.0")  # nothing to keep, so nothing to wait for
    change = threading.Thread(target=store.record, args=(FIRST,), kwargs={"pack_id": "chest", "version": "3.0.0"})
    change.start()
    assert store.highest_seen(FIRST, pack_id="chest") == "2.0.0"
    other.release()
    change.join()
    assert store.highest_seen(FIRST, pack_id="chest") == "3.0.0"


def test_a_lock_that_is_never_given_back_is_told(tmp_path: Path) -> None:
    with FileLock(tmp_path / "pack_trust.lock", holder="process 7"), pytest.raises(StorageProblem) as caught:
        TrustStore(tmp_path, wait_s=0.02).trust(FIRST)
    assert caught.value.reason.code == "trust_in_use"
    assert "process 7" in caught.value.reason.text
    assert not (tmp_path / "pack_trust.json").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageProblem) as caught:
        TrustStore(tmp_path / "absent").trust(FIRST)
    assert caught.value.reason.code == "not_writable"


def test_a_store_cut_short_anywhere_is_told_and_kept_as_it_is(tmp_path: Path) -> None:
    """It is the guard against older versions: an empty one in its place would let them all pass."""
    store, path = TrustStore(tmp_path), tmp_path / "pack_trust.json"
    store.trust(FIRST)
    store.record(FIRST, pack_id="chest", version="2.0.0")
    whole = path.read_bytes()
    for length in range(len(whole) - 1):  # without its last line feed it still says all
        path.write_bytes(whole[:length])
        for change in (lambda: store.trust(SECOND), lambda: store.record(FIRST, pack_id="chest", version="9.0.0")):
            with pytest.raises(StorageProblem) as caught:
                change()
            assert caught.value.reason.code == "trust_damaged"
        assert path.read_bytes() == whole[:length]


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_what_is_written_is_for_its_owner_only(tmp_path: Path) -> None:
    TrustStore(tmp_path).trust(FIRST)
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600] * 2

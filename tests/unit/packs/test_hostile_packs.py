"""A hostile pack next to a good one: it is listed as broken, and the good one stays available."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fieldray.errors import PackNotTrusted, PackProblem, StorageProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.naming import pack_folders_inside
from fieldray.packs.reading import packs_on_drives, raising_fieldray_errors
from fieldray.packs.signing import fingerprint_of
from fieldray.reasons import reason
from packs_factory import MODEL_BYTES, key, make_pack
from raised import raises
from tiny_packs import sign

FINGERPRINT = fingerprint_of(key().public_key().public_bytes_raw())
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes and renaming of POSIX")

# A few cases; `pack_suite` has a hundred. New signatures are by an untrusted key, since anybody can make those.
HARMS: dict[str, Callable[[Path], object]] = {
    "100,000 lists": lambda pack: sign(pack, b"[" * 100_000, key_number=66),
    "a description of 200 kB": lambda pack: sign(pack, b'{"a": [' + b"0," * 100_000 + b"0]}", key_number=66),
    "no JSON": lambda pack: sign(pack, b"\x93NUMPY", key_number=66),
    "a huge description": lambda pack: os.truncate(pack / "manifest.json", 2**38),
    "a huge signature": lambda pack: os.truncate(pack / "manifest.sig", 2**38),
    "a nested signature": lambda pack: (pack / "manifest.sig").write_bytes(b"[" * 1_000),
}


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    return tmp_path / "drive"


@pytest.fixture
def library(home: Path, tmp_path: Path, drive: Path) -> PackLibrary:
    made = PackLibrary(home, drives=lambda: [drive], builtin_root=tmp_path / "no-models")
    made.trust_store.trust(FINGERPRINT)
    return made


@pytest.fixture
def good(drive: Path) -> Path:
    return make_pack(drive / "fieldray", pack_id="good")


@pytest.fixture
def bad(drive: Path) -> Path:
    return make_pack(drive / "fieldray", pack_id="aaa")


@pytest.mark.parametrize("name", HARMS)
def test_a_broken_pack_is_refused_with_its_reason_and_hides_no_other(
    library: PackLibrary, drive: Path, good: Path, bad: Path, name: str
) -> None:
    HARMS[name](bad)
    assert [(found.folder, found.trust) for found in library.available()] == [(bad, "broken"), (good, "trusted")]
    assert {library.find(name).folder for name in ("good", drive, drive / "fieldray")} == {good}
    assert library.load(good).manifest.pack_id == "good"
    assert packs_on_drives([drive]) == {drive: (bad, good)}
    for use in (library.load, library.install):
        with pytest.raises(PackProblem) as caught:
            use(bad)
        assert not isinstance(caught.value, PackNotTrusted)
        assert caught.value.reason.text


@pytest.mark.parametrize("error", [RecursionError("too deep"), MemoryError(), ValueError("bad"), AssertionError()])
def test_any_error_while_reading_a_pack_becomes_a_reason(tmp_path: Path, error: Exception) -> None:
    @raising_fieldray_errors
    def read(_: Path) -> None:
        raise error

    with raises(PackProblem, "pack_unreadable", says=type(error).__name__):
        read(tmp_path)


def test_system_errors_and_own_reasons_are_raised_unchanged(tmp_path: Path) -> None:
    @raising_fieldray_errors
    def read(_: Path, error: BaseException) -> None:
        raise error

    for own in (PackNotTrusted(FINGERPRINT), StorageProblem(reason("disk_full", path="x"))):
        with pytest.raises(type(own)):
            read(tmp_path, own)
    with pytest.raises(PackProblem, match="Too many open files"):
        read(tmp_path, OSError(24, "Too many open files"))
    with raises(PackProblem, "drive_gone"):
        read(tmp_path / "pulled", OSError(24, "Too many open files"))
    with pytest.raises(KeyboardInterrupt):
        read(tmp_path, KeyboardInterrupt())


def test_a_pack_is_found_among_many_other_folders(drive: Path, good: Path) -> None:
    for number in range(300):
        (drive / "fieldray" / f"a{number:03}").mkdir()
    assert pack_folders_inside(drive / "fieldray") == (good,)


@needs_posix
def test_files_swapped_during_an_install_are_never_installed(library: PackLibrary, good: Path, home: Path) -> None:
    """Every byte is copied once, and this copy is verified and written."""
    evil, model = b"EVIL" * (len(MODEL_BYTES) // 4), good / "model.tflite"
    temporary = good.parent / "temporary"
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            for content in (evil, MODEL_BYTES):
                temporary.write_bytes(content)
                temporary.replace(model)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(40):
            try:
                place = library.install(good)
            except PackProblem as problem:
                assert problem.reason.code == "pack_tampered"
            else:
                assert (place / "model.tflite").read_bytes() == MODEL_BYTES
                shutil.rmtree(place)
    finally:
        is_over.set()
        swapping.join()
    left = home / "packs"
    assert not left.exists() or list(left.iterdir()) == []

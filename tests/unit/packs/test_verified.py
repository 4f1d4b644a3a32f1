from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import PackProblem, StorageProblem
from fieldray.packs.reading import array_to_npy
from fieldray.packs.verified import read_pack, read_verified_manifest, write_pack
from packs_factory import MODEL_BYTES, golden, key, make_pack, manifest
from raised import raises
from tiny_packs import put_file

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return make_pack(tmp_path, edgetpu=True)


def test_a_loaded_pack_is_independent_of_its_files(pack: Path) -> None:
    model = read_pack(pack).model
    for file in pack.iterdir():
        file.write_bytes(b"\0" * file.stat().st_size)
    assert (model.pack_name, model.trust) == ("test-chest-1.2.3", "signed")
    assert model.files == {"litert": MODEL_BYTES, "edgetpu": MODEL_BYTES[::-1]}
    assert model.golden is not None and np.array_equal(model.golden.inputs, golden().inputs)
    assert model.golden.scores.tolist() == golden().scores.tolist()
    expected = manifest().ood_gate
    assert np.array_equal(model.manifest.ood_gate.projection, expected.projection)
    assert np.array_equal(model.manifest.ood_gate.mean, expected.mean)
    assert model.manifest.ood_gate.limit == 3.5
    assert model.card.startswith("# Test chest\n\nМодель")


def _flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << position % 8
    return bytes(changed)


def test_a_changed_byte_of_any_other_file_is_refused(pack: Path) -> None:
    names = sorted(path.name for path in pack.iterdir() if not path.name.startswith("manifest."))
    assert len(names) == 7
    for name in names:
        whole = (pack / name).read_bytes()
        for position in {*range(0, len(whole), 97), len(whole) - 1}:
            (pack / name).write_bytes(_flipped(whole, position))
            with raises(PackProblem, "pack_tampered", says=name):
                read_pack(pack)
        (pack / name).write_bytes(whole)
    read_pack(pack)  # the file is restored


def test_a_missing_folder_is_reported_as_a_removed_drive(tmp_path: Path) -> None:
    with raises(PackProblem, "drive_gone"):
        read_pack(tmp_path / "pulled")


@needs_links
@pytest.mark.skipif(sys.platform != "win32" and os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_unreadable(pack: Path) -> None:
    (pack / "model.tflite").chmod(0)
    with raises(PackProblem, "pack_unreadable"):
        read_pack(pack)


def test_files_that_are_not_listed_are_never_read(pack: Path) -> None:
    with (pack / "autorun.exe").open("wb") as file:
        file.truncate(2**40)
    read_pack(pack)


@pytest.mark.parametrize(
    ("name", "data", "detail"),
    [
        ("golden_inputs.npy", array_to_npy(np.zeros((3, 8, 16, 1), np.uint8)), "do not fit the pack's input"),
        ("golden_inputs.npy", array_to_npy(np.zeros((2, 16, 16, 1), np.uint8)), "differ in number"),
        ("golden_scores.npy", array_to_npy(np.zeros((3, 2), np.float32)), "2 scores for 1 labels"),
        ("golden_scores.npy", b"\x80\x04]", "golden"),
        ("ood_gate_mean.npy", array_to_npy(np.zeros(5, np.float32)), "differ in length"),
        ("ood_gate_projection.npy", array_to_npy(np.full((4, 2), np.inf, np.float32)), "finite"),
        ("MODEL_CARD.md", b"\xff\xfe", "card"),
    ],
)
def test_a_correctly_signed_but_invalid_pack_is_refused(pack: Path, name: str, data: bytes, detail: str) -> None:
    """The pack of a hostile maker, valid by its own key."""
    put_file(pack, name, data, key_number=66)
    with raises(PackProblem, "pack_manifest", says=detail):
        read_pack(pack)


# ---- writing


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_writing_a_pack_is_reproducible_and_leaves_no_other_file(tmp_path: Path) -> None:
    first = _content(make_pack(tmp_path))
    assert first == _content(make_pack(tmp_path))  # Ed25519 signatures are deterministic
    make_pack(tmp_path, metrics={"auc": 0.95})
    assert [path.name for path in tmp_path.iterdir()] == ["test-chest-1.2.3"]
    assert read_verified_manifest(tmp_path / "test-chest-1.2.3").content.metrics == {"auc": 0.95}


def test_writing_next_to_a_newer_version_keeps_only_the_newer(tmp_path: Path) -> None:
    make_pack(tmp_path, version="1.10.0")
    with raises(PackProblem, "pack_older"):
        make_pack(tmp_path, version="1.9.0")
    make_pack(tmp_path, version="1.11.0")
    make_pack(tmp_path, pack_id="other", version="0.1.0")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"other-0.1.0", "test-chest-1.10.0", "test-chest-1.11.0"}


@pytest.mark.parametrize(
    "changes",
    [
        {"pack_id": "../escape"},
        {"version": "1.0"},
        {"limits": {"uk": "Лише українська"}},
        {"metrics": {"note": "\x1b"}},
    ],
)
def test_an_invalid_pack_is_not_written(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(PackProblem):
        make_pack(tmp_path / "drive", **changes)
    assert _content(tmp_path) == {}


def test_without_a_file_for_the_cpu_or_with_vectors_that_do_not_fit_nothing_is_written(tmp_path: Path) -> None:
    wrong = replace(golden(), inputs=golden().inputs[:, :8])
    for role, vectors, said in (("litert", wrong, "do not fit"), ("edgetpu", golden(), "litert")):
        with pytest.raises(PackProblem, match=said):
            write_pack(tmp_path, manifest=manifest(), files={role: b"x"}, card="c", golden=vectors, key=key())
    assert _content(tmp_path) == {}


def test_a_pack_without_a_self_test_has_none(tmp_path: Path) -> None:
    plain = manifest(ood_gate=None)
    pack = write_pack(tmp_path, manifest=plain, files={"litert": b"x"}, card="c", golden=None, key=key())
    model = read_pack(pack).model
    assert (model.golden, model.manifest.ood_gate) == (None, None)


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageProblem, match=re.escape(str(tmp_path / "file"))):
        make_pack(tmp_path / "file")


def _refused(folder: Path, **changes: object) -> str:
    with pytest.raises(PackProblem) as caught:
        make_pack(folder, **changes)
    assert caught.value.reason.code == "pack_in_the_way"
    assert str(folder / "test-chest-1.2.3") in caught.value.reason.text
    return caught.value.reason.text


def _is_no_pack(folder: Path) -> None:
    (folder / "test-chest-1.2.3").mkdir()
    (folder / "test-chest-1.2.3" / "thesis.docx").write_bytes(b"precious")


def _has_more(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        foreign = make_pack(folder) / name
        foreign.parent.mkdir(exist_ok=True)
        foreign.write_bytes(b"precious")

    return make


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_is_no_pack, ""),
        *((_has_more(name), Path(name).parts[0]) for name in ("thesis.docx", "images/a.dcm", ".hidden")),
        (lambda folder: make_pack(folder, key_number=2), "The new pack is signed with the key"),
        (lambda folder: (make_pack(folder) / "MODEL_CARD.md").write_text("edited by hand"), "MODEL_CARD.md"),
    ],
)
def test_a_folder_not_completely_written_by_this_key_is_kept(
    tmp_path: Path, make: Callable[[Path], None], said: str
) -> None:
    make(tmp_path)
    before = _content(tmp_path)
    assert said in _refused(tmp_path, metrics={"auc": 0.95})
    assert _content(tmp_path) == before


def test_a_link_or_a_file_of_that_name_is_kept(tmp_path: Path) -> None:
    elsewhere = make_pack(tmp_path / "elsewhere")
    drive = tmp_path / "drive"
    drive.mkdir()
    place = drive / elsewhere.name
    place.symlink_to(elsewhere)
    _refused(drive)
    place.unlink()
    place.write_bytes(b"a file")
    _refused(drive)
    assert place.read_bytes() == b"a file"
    place.unlink()
    place.mkdir()  # nothing in it could be lost
    assert make_pack(drive) == place

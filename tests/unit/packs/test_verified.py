from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fieldray.errors import PackProblem
from fieldray.packs import signing
from fieldray.packs.reading import pack_array
from fieldray.packs.verified import read_files, read_verified_manifest
from packs_factory import MODEL_BYTES, golden, key, make_pack, manifest

needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return make_pack(tmp_path, edgetpu=True)


def _read(pack: Path) -> object:
    return read_files(pack, read_verified_manifest(pack)).model("signed")


def _code(pack: Path) -> str:
    with pytest.raises(PackProblem) as caught:
        _read(pack)
    return caught.value.reason.code


def _sign_again(pack: Path, change: Callable[[dict], object]) -> None:
    """Change the description and sign it: a hostile maker's pack, right by its own key."""
    content = json.loads((pack / "manifest.json").read_bytes())
    change(content)
    data = json.dumps(content).encode()
    (pack / "manifest.json").write_bytes(data)
    (pack / "manifest.sig").write_bytes(signing.sign(data, key=key(66)))


def test_a_whole_pack_is_read_into_memory(pack: Path) -> None:
    model = read_files(pack, read_verified_manifest(pack)).model("signed")
    assert (model.pack_name, model.trust) == ("test-chest-1.2.3", "signed")
    assert model.files == {"litert": MODEL_BYTES, "edgetpu": MODEL_BYTES[::-1]}
    assert model.golden is not None and np.array_equal(model.golden.inputs, golden().inputs)
    assert model.golden.scores.tolist() == golden().scores.tolist()
    expected = manifest().ood_gate
    assert model.manifest.ood_gate is not None and expected is not None
    assert np.array_equal(model.manifest.ood_gate.projection, expected.projection)
    assert np.array_equal(model.manifest.ood_gate.mean, expected.mean)
    assert model.manifest.ood_gate.limit == 3.5
    assert model.card.startswith("# Test chest\n\nМодель")


def test_a_model_outlives_its_folder(pack: Path) -> None:
    model = read_files(pack, read_verified_manifest(pack)).model("signed")
    for file in pack.iterdir():
        file.write_bytes(b"\0" * file.stat().st_size)
    assert model.files["litert"] == MODEL_BYTES
    assert model.golden is not None and np.array_equal(model.golden.inputs, golden().inputs)


def test_every_changed_byte_of_description_and_signature_is_refused(pack: Path) -> None:
    manifest_bytes, signature = (pack / "manifest.json").read_bytes(), (pack / "manifest.sig").read_bytes()
    for position in range(len(manifest_bytes)):
        with pytest.raises(PackProblem, match="does not match"):
            signing.verify(_flipped(manifest_bytes, position), signature=signature)
    for position in range(len(signature)):
        with pytest.raises(PackProblem, match="does not match"):
            signing.verify(manifest_bytes, signature=_flipped(signature, position))


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig"])
def test_a_changed_byte_of_description_or_signature_on_the_disk_is_refused(pack: Path, name: str) -> None:
    whole = (pack / name).read_bytes()
    for position in range(0, len(whole), 61):
        (pack / name).write_bytes(_flipped(whole, position))
        assert _code(pack) == "pack_bad_signature"


def _flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << position % 8
    return bytes(changed)


def test_a_changed_byte_of_any_other_file_is_refused(pack: Path) -> None:
    names = sorted(path.name for path in pack.iterdir() if not path.name.startswith("manifest."))
    assert len(names) == 7
    sealed = read_verified_manifest(pack)
    for name in names:
        whole = (pack / name).read_bytes()
        for position in {*range(0, len(whole), 97), len(whole) - 1}:
            (pack / name).write_bytes(_flipped(whole, position))
            with pytest.raises(PackProblem) as caught:
                read_files(pack, sealed)
            assert caught.value.reason.code == "pack_tampered"
            assert name in caught.value.reason.text
        (pack / name).write_bytes(whole)
    _read(pack)  # whole again


@pytest.mark.parametrize("change", [lambda data: data + b"\0", lambda data: data[:-1], lambda data: b""])
def test_a_file_of_another_length_is_refused(pack: Path, change: Callable[[bytes], bytes]) -> None:
    model = pack / "model.tflite"
    model.write_bytes(change(model.read_bytes()))
    assert _code(pack) == "pack_tampered"


def test_what_is_missing_is_named(pack: Path) -> None:
    (pack / "MODEL_CARD.md").unlink()
    assert _code(pack) == "pack_incomplete"
    (pack / "manifest.sig").unlink()
    assert _code(pack) == "pack_unsigned"
    (pack / "manifest.json").unlink()
    assert _code(pack) == "pack_incomplete"


def test_a_folder_that_is_not_there_any_more_is_a_drive_that_went(tmp_path: Path) -> None:
    assert _code(tmp_path / "pulled") == "drive_gone"


def test_bombs_are_refused_before_they_are_read(pack: Path) -> None:
    with (pack / "manifest.json").open("r+b") as file:
        file.truncate(2**40)  # sparse: takes no room on the disk, would take 1 TB of memory
    assert _code(pack) == "pack_too_large"


def test_a_huge_signature_is_a_wrong_one(pack: Path) -> None:
    (pack / "manifest.sig").write_bytes(b" " * 2000)
    assert _code(pack) == "pack_bad_signature"


@needs_links
@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig", "model.tflite"])
def test_links_are_not_followed(pack: Path, tmp_path: Path, name: str) -> None:
    (pack / name).rename(tmp_path / name)
    (pack / name).symlink_to(tmp_path / name)
    assert _code(pack) == "pack_bad_name"


@needs_links
def test_only_regular_files_are_read(pack: Path) -> None:
    (pack / "model.tflite").unlink()
    os.mkfifo(pack / "model.tflite")  # to open it for reading would block for ever
    assert _code(pack) == "pack_bad_name"
    (pack / "model.tflite").unlink()
    (pack / "model.tflite").mkdir()
    assert _code(pack) == "pack_bad_name"


@needs_links
@pytest.mark.skipif(sys.platform != "win32" and os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_unreadable(pack: Path) -> None:
    (pack / "model.tflite").chmod(0)
    assert _code(pack) == "pack_unreadable"


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "..\\secret", "sub/model.tflite"])
def test_a_well_signed_pack_with_a_path_in_a_file_name_is_refused(pack: Path, name: str) -> None:
    _sign_again(pack, lambda content: content["files"]["litert"].update(name=name))
    assert _code(pack) == "pack_bad_name"


def test_files_that_are_not_listed_are_never_read(pack: Path) -> None:
    with (pack / "autorun.exe").open("wb") as file:
        file.truncate(2**40)
    _read(pack)


def _replace_file(pack: Path, role: str, data: bytes) -> None:
    import hashlib

    def change(content: dict) -> None:
        listed = content["files"][role]
        listed.update(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        (pack / listed["name"]).write_bytes(data)

    _sign_again(pack, change)


@pytest.mark.parametrize(
    ("role", "data", "detail"),
    [
        ("golden_inputs", pack_array(np.zeros((3, 8, 16, 1), np.uint8)), "do not fit the pack's input"),
        ("golden_inputs", pack_array(np.zeros((2, 16, 16, 1), np.uint8)), "differ in number"),
        ("golden_scores", pack_array(np.zeros((3, 2), np.float32)), "2 scores for 1 labels"),
        ("golden_scores", b"\x80\x04]", "golden"),
        ("ood_gate_mean", pack_array(np.zeros(5, np.float32)), "differ in length"),
        ("ood_gate_projection", pack_array(np.full((4, 2), np.inf, np.float32)), "finite"),
        ("card", b"\xff\xfe", "card"),
    ],
)
def test_well_signed_nonsense_is_refused(pack: Path, role: str, data: bytes, detail: str) -> None:
    _replace_file(pack, role, data)
    with pytest.raises(PackProblem) as caught:
        _read(pack)
    assert caught.value.reason.code == "pack_manifest"
    assert detail in caught.value.reason.text

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.errors import PackProblem, StorageProblem
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray.packs.write import write_pack
from packs_factory import MODEL_BYTES, golden, key, make_pack, manifest


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_pack_is_written_byte_for_byte_the_same(tmp_path: Path) -> None:
    first, second = make_pack(tmp_path / "a"), make_pack(tmp_path / "b")
    assert _content(first) == _content(second)  # Ed25519 signatures are deterministic


def test_only_the_pack_is_left_behind(tmp_path: Path) -> None:
    make_pack(tmp_path)
    make_pack(tmp_path, metrics={"auc": 0.95})
    assert [path.name for path in tmp_path.iterdir()] == ["test-chest-1.2.3"]
    assert read_verified_manifest(tmp_path / "test-chest-1.2.3").description.metrics == {"auc": 0.95}


def test_a_pack_without_gate_golden_and_edgetpu_file(tmp_path: Path) -> None:
    bare = replace(manifest(), ood_gate=None, operating_points=())
    folder = write_pack(tmp_path, manifest=bare, files={"litert": MODEL_BYTES}, card="card", golden=None, key=key())
    model = read_files(folder, read_verified_manifest(folder)).model("signed")
    assert (model.golden, model.manifest.ood_gate, list(model.files)) == (None, None, ["litert"])
    assert sorted(_content(folder)) == ["MODEL_CARD.md", "manifest.json", "manifest.sig", "model.tflite"]


def test_a_newer_version_beside_is_kept_alone(tmp_path: Path) -> None:
    make_pack(tmp_path, version="1.10.0")
    with pytest.raises(PackProblem) as caught:
        make_pack(tmp_path, version="1.9.0")
    assert caught.value.reason.code == "pack_older"
    make_pack(tmp_path, version="1.11.0")
    make_pack(tmp_path, pack_id="other", version="0.1.0")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "other-0.1.0",
        "test-chest-1.10.0",
        "test-chest-1.11.0",
    ]


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


def test_golden_vectors_must_fit_the_input(tmp_path: Path) -> None:
    wrong = replace(golden(), inputs=golden().inputs[:, :8])
    with pytest.raises(PackProblem, match="do not fit"):
        write_pack(tmp_path, manifest=manifest(), files={"litert": b"x"}, card="c", golden=wrong, key=key())
    assert _content(tmp_path) == {}


def test_without_the_litert_file_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(PackProblem, match="litert"):
        write_pack(tmp_path, manifest=manifest(), files={"edgetpu": b"x"}, card="c", golden=golden(), key=key())
    assert _content(tmp_path) == {}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageProblem) as caught:
        make_pack(tmp_path / "file")
    assert str(tmp_path / "file") in caught.value.reason.text


def _refused(folder: Path, **changes: object) -> str:
    with pytest.raises(PackProblem) as caught:
        make_pack(folder, **changes)
    assert caught.value.reason.code == "pack_in_the_way"
    assert str(folder / "test-chest-1.2.3") in caught.value.reason.text
    return caught.value.reason.text


def test_a_folder_of_that_name_that_is_no_pack_is_kept(tmp_path: Path) -> None:
    thesis = tmp_path / "test-chest-1.2.3" / "thesis.docx"
    thesis.parent.mkdir()
    thesis.write_bytes(b"precious")
    _refused(tmp_path)
    assert _content(tmp_path) == {"test-chest-1.2.3/thesis.docx": b"precious"}


@pytest.mark.parametrize("name", ["thesis.docx", "images/a.dcm", ".hidden"])
def test_a_pack_with_something_beside_its_files_is_kept(tmp_path: Path, name: str) -> None:
    beside = make_pack(tmp_path) / name
    beside.parent.mkdir(exist_ok=True)
    beside.write_bytes(b"precious")
    before = _content(tmp_path)
    assert Path(name).parts[0] in _refused(tmp_path, metrics={"auc": 0.95})
    assert _content(tmp_path) == before


def test_a_pack_by_another_key_is_kept(tmp_path: Path) -> None:
    make_pack(tmp_path, key_number=2)
    before = _content(tmp_path)
    assert "another key" in _refused(tmp_path)
    assert _content(tmp_path) == before


def test_a_pack_whose_card_was_edited_is_kept(tmp_path: Path) -> None:
    (make_pack(tmp_path) / "MODEL_CARD.md").write_text("edited by hand")
    before = _content(tmp_path)
    assert "MODEL_CARD.md" in _refused(tmp_path)
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

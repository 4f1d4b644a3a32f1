from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from fieldray.packs.manifest import ID_PATTERN
from fieldray.packs.naming import (
    DRIVE_FOLDER,
    LEGACY_CPU_FILE_NAME,
    LEGACY_EDGETPU_FILE_NAME,
    contains_legacy_model,
    is_file_name,
    is_pack,
    is_version,
    name_with_signer,
    pack_folders,
    pack_folders_inside,
    parse_fingerprint,
    split_pack_name,
    version_key,
)

DIGITS = hashlib.sha256(b"a key").hexdigest()
FINGERPRINT = "-".join(re.findall("....", DIGITS))


@pytest.mark.parametrize("name", ["model.tflite", "MODEL_CARD.md", "a", "console.npy", "com10.bin", "x" * 100])
def test_plain_file_names_pass(name: str) -> None:
    assert is_file_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "../model.tflite",
        "folder/model.tflite",
        "folder\\model.tflite",
        "/etc/passwd",
        "C:model.tflite",
        "model.tflite:stream",
        "model.tflite.",
        "model.tflite ",
        " model.tflite",
        "mo\ndel",
        "mo\x00del",
        "model\n",
        "модель.tflite",
        "model\u202egpj.tflite",
        "NUL",
        "nul.tflite",
        "Com1.tflite",
        "LPT9",
        "aux.tar.gz",
        "manifest.json",
        "MANIFEST.SIG",
        "x" * 101,
    ],
)
def test_hostile_file_names_are_refused(name: str) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize(
    "version", ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-rc1", "1.2.x", "-1.2.3", "1.2.٣", "1.2.3\n", "1000000.0.0"]
)
def test_malformed_versions_are_refused(version: str) -> None:
    assert not is_version(version)
    with pytest.raises(ValueError, match="not a version"):
        version_key(version)


def test_versions_compare_as_numbers() -> None:
    mixed = ["10.0.0", "0.9.10", "2.0.0", "0.0.0", "1.2.3", "999999.0.10"]
    assert sorted(mixed, key=version_key) == ["0.0.0", "0.9.10", "1.2.3", "2.0.0", "10.0.0", "999999.0.10"]


def test_valid_and_invalid_pack_ids() -> None:
    assert all(re.search(ID_PATTERN, text) for text in ("chest-normal-2", "a" * 64))
    assert not any(
        re.search(ID_PATTERN, text) for text in ("", "a" * 65, "Chest", "chest_normal", "chest/..", "chest\n", "ґ")
    )


# ---- names with a signer


@pytest.mark.parametrize("text", [DIGITS, DIGITS.upper(), FINGERPRINT, FINGERPRINT.replace("-", ":"), f" {DIGITS}\n"])
def test_a_fingerprint_is_recognised_in_any_notation(text: str) -> None:
    assert parse_fingerprint(text) == FINGERPRINT
    assert split_pack_name(f"chest-1.0.0@{text}") == ("chest-1.0.0", FINGERPRINT)


@pytest.mark.parametrize("text", ["", DIGITS[:-1], DIGITS + "0", "g" + DIGITS[1:], DIGITS.replace(DIGITS[0], "_", 1)])
def test_text_after_at_that_is_no_fingerprint_belongs_to_the_name(text: str) -> None:
    assert parse_fingerprint(text) == ""
    assert split_pack_name(f"chest@{text}") == (f"chest@{text}", "")


def test_a_pack_is_pinned_to_its_signer() -> None:
    assert name_with_signer("chest", is_signed=True, fingerprint=FINGERPRINT) == f"chest@{FINGERPRINT}"
    assert name_with_signer("chest", is_signed=False, fingerprint=FINGERPRINT) == "chest"
    assert name_with_signer("chest", is_signed=True, fingerprint="") == "chest"
    assert split_pack_name(f"@{FINGERPRINT}") == (f"@{FINGERPRINT}", "")
    assert split_pack_name(f"/mnt/a@b/chest@{FINGERPRINT}") == ("/mnt/a@b/chest", FINGERPRINT)
    assert split_pack_name("chest") == ("chest", "")


# ---- finding packs


def pack(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()
    return folder


def test_packs_are_found_in_the_drives_folder_or_as_the_folder_itself(tmp_path: Path) -> None:
    assert pack_folders(tmp_path) == pack_folders(tmp_path / "absent") == ()
    drive = tmp_path / "drive"
    packs = [pack(drive / DRIVE_FOLDER / name) for name in ("b", "a")]
    pack(drive / "elsewhere")
    (drive / DRIVE_FOLDER / "empty").mkdir()
    (drive / DRIVE_FOLDER / "file").touch()
    pack(drive / DRIVE_FOLDER / ".hidden")
    assert pack_folders(drive) == (packs[1], packs[0])
    (drive / LEGACY_EDGETPU_FILE_NAME).touch()
    assert pack_folders(drive) == (packs[1], packs[0], drive)
    (drive / "manifest.json").touch()
    assert pack_folders(drive) == (drive,)


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = pack(tmp_path / "target")
    (target / LEGACY_CPU_FILE_NAME).touch()
    for place, name in (("packs", "link"), ("drive", DRIVE_FOLDER)):
        (tmp_path / place).mkdir()
        (tmp_path / place / name).symlink_to(target if place == "packs" else tmp_path)
    (tmp_path / "linked").mkdir()
    for name in ("manifest.json", LEGACY_CPU_FILE_NAME):
        (tmp_path / "linked" / name).symlink_to(target / name)
    assert pack_folders_inside(tmp_path / "packs") == pack_folders(tmp_path / "drive") == ()
    assert not is_pack(tmp_path / "linked") and not contains_legacy_model(tmp_path / "linked")
    assert is_pack(target) and contains_legacy_model(target)


def test_at_most_a_hundred_packs_are_searched(tmp_path: Path) -> None:
    for number in range(101):
        pack(tmp_path / f"{number:03}")
    assert pack_folders_inside(tmp_path) == tuple(tmp_path / f"{number:03}" for number in range(100))


def test_a_bare_model_is_found_by_its_usual_names_or_by_a_given_name(tmp_path: Path) -> None:
    for name in (LEGACY_CPU_FILE_NAME, LEGACY_EDGETPU_FILE_NAME):
        folder = tmp_path / name
        folder.mkdir()
        assert not contains_legacy_model(folder)
        (folder / name).touch()
        assert contains_legacy_model(folder)
        assert contains_legacy_model(folder, name=name)
    assert not contains_legacy_model(tmp_path / LEGACY_CPU_FILE_NAME, name=LEGACY_EDGETPU_FILE_NAME)
    (tmp_path / "manifest.json").mkdir()  # a folder of that name is no manifest
    assert not is_pack(tmp_path)

from __future__ import annotations

import re

import pytest

from fieldray.packs.manifest_types import ID
from fieldray.packs.naming import is_file_name, is_version, version_key


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
def test_hostile_file_names_do_not(name: str) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize(
    "version", ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-rc1", "1.2.x", "-1.2.3", "1.2.٣", "1.2.3\n"]
)
def test_what_is_not_a_version(version: str) -> None:
    assert not is_version(version)
    with pytest.raises(ValueError, match="not a version"):
        version_key(version)


def test_versions_compare_as_numbers() -> None:
    mixed = ["10.0.0", "0.9.10", "2.0.0", "0.0.0", "1.2.3", "0.10.9"]
    assert sorted(mixed, key=version_key) == ["0.0.0", "0.9.10", "0.10.9", "1.2.3", "2.0.0", "10.0.0"]


def test_pack_ids() -> None:
    assert all(re.search(ID, text) for text in ("chest-normal-2", "a" * 64))
    assert not any(re.search(ID, text) for text in ("", "a" * 65, "Chest", "chest_normal", "chest/..", "chest\n", "ґ"))

"""How the program treats stored files of a later version: each row of the table in docs/kept.md."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fieldray.errors import StorageProblem
from fieldray.packs.signing import TrustStore
from fieldray.packs.site_choices import (
    LOCAL_POINTS_FILE_NAME,
    REMEMBERED_PACKS_FILE_NAME,
    LocalPointFile,
    RememberedPacks,
)
from fieldray.pipeline.constancy import ConstancyRecords
from fieldray.settings import load_settings
from packs_factory import site_point

HASH = "0123456789abcdef" * 4
FINGERPRINT = "-".join(["0123"] * 16)


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_setting_of_a_later_version_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path / "settings.json", {"language": "uk", "of_the_future": 1})
    settings, problems = load_settings(tmp_path / "settings.json")
    assert settings["language"] == "uk"
    assert [why.code for why in problems] == ["setting_unknown"]


def test_trusted_keys_with_an_unknown_field_are_refused_and_kept(tmp_path: Path) -> None:
    kept = {"format": 1, "keys": {FINGERPRINT: "2026-01-31"}, "seen": {}}
    write(tmp_path / "pack_trust.json", kept)
    assert set(TrustStore(tmp_path).trusted_key_dates()) == {FINGERPRINT}
    write(tmp_path / "pack_trust.json", kept | {"of_the_future": 1})
    before = (tmp_path / "pack_trust.json").read_bytes()
    with pytest.raises(StorageProblem):
        TrustStore(tmp_path).trusted_key_dates()
    assert (tmp_path / "pack_trust.json").read_bytes() == before


def test_local_operating_points_with_an_unknown_field_are_refused_and_kept(tmp_path: Path) -> None:
    point = json.loads(msgspec.json.encode(site_point(HASH)))
    write(tmp_path / LOCAL_POINTS_FILE_NAME, [point])
    assert len(LocalPointFile(tmp_path).all_points()) == 1
    write(tmp_path / LOCAL_POINTS_FILE_NAME, [point | {"of_the_future": 1}])
    before = (tmp_path / LOCAL_POINTS_FILE_NAME).read_bytes()
    with pytest.raises(StorageProblem):
        LocalPointFile(tmp_path).all_points()
    assert (tmp_path / LOCAL_POINTS_FILE_NAME).read_bytes() == before


def test_unreadable_remembered_packs_count_as_none(tmp_path: Path) -> None:
    write(tmp_path / REMEMBERED_PACKS_FILE_NAME, ["of the future"])
    assert RememberedPacks(tmp_path).find([tmp_path]) is None


def test_constancy_records_with_an_unknown_field_are_refused_and_kept(tmp_path: Path) -> None:
    write(tmp_path / "constancy.json", {"records": [], "answers": {}, "images": {}})
    assert ConstancyRecords(tmp_path).read().records == ()
    write(tmp_path / "constancy.json", {"records": [], "of_the_future": 1})
    with pytest.raises(StorageProblem):
        ConstancyRecords(tmp_path).read()

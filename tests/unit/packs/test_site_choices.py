"""A site's own operating points: bound to one model, added when it is loaded, and no obstacle if damaged."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from fieldray.domain.pack_setup import set_up_pack
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.site_choices import (
    LOCAL_POINTS_FILE_NAME,
    REMEMBERED_PACKS_FILE_NAME,
    LocalPointFile,
    RememberedPack,
    RememberedPacks,
)
from packs_factory import make_pack, site_point
from tiny_packs import fingerprint


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return make_pack(tmp_path / "drive" / "fieldray")


@pytest.fixture
def library(tmp_path: Path, pack: Path) -> PackLibrary:
    (tmp_path / "home").mkdir()
    made = PackLibrary(tmp_path / "home", builtin_root=tmp_path / "none")
    made.trust_store.trust(fingerprint(pack))
    return made


def test_a_local_point_is_offered_only_with_its_own_model(library: PackLibrary, pack: Path) -> None:
    model = library.load(pack)
    label = model.manifest.labels[0].code
    library.site_points.add(site_point(model.model_sha256, label=label))
    library.site_points.add(site_point("0" * 64, label=label, name="of-another-model"))
    calibrated = site_point(model.model_sha256, label=label, name="of-another-version", pack="test-chest-1.3.0")
    library.site_points.add(calibrated)  # an equal network under another calibration gives scores another meaning
    loaded = library.load(pack)
    first, *_, last = loaded.manifest.operating_points
    assert (last.name, last.is_local, last.titles["en"]) == ("local:ours", True, "Local: ours")
    assert "О. Петренко" in last.measured_on["en"]
    assert first == model.manifest.operating_points[0]  # a local point is never the default by itself
    assert sum(point.is_local for point in loaded.manifest.operating_points) == 1
    assert set_up_pack(loaded, operating_point="local:ours").points[label] == last
    assert set_up_pack(loaded).settings_hash == set_up_pack(model).settings_hash
    with pytest.raises(UsageProblem, match="local:ours"):
        set_up_pack(model, operating_point="local:ours")


def test_a_local_points_name_is_unique_per_model_and_can_be_removed(tmp_path: Path) -> None:
    points = LocalPointFile(tmp_path)
    points.add(site_point("a" * 64))
    points.add(site_point("b" * 64))
    with pytest.raises(UsageProblem, match="already an operating point named ours"):
        points.add(site_point("a" * 64, threshold=0.75))
    points.remove("ours", "test-chest-1.2.3", "a" * 64)
    assert [point.model_sha256 for point in points.all_points()] == ["b" * 64]
    with pytest.raises(UsageProblem, match="no local operating point named ours"):
        points.remove("ours", "test-chest-1.2.3", "a" * 64)


DAMAGED = [
    b"",
    b"[{",
    b'{"name": 1}',
    json.dumps([{"name": "ours"}]).encode(),
    msgspec.json.encode([site_point(), site_point(threshold=0.7)]),
    b"[" * 100_000,
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_of_local_points_disables_no_pack_and_is_reported(
    content: bytes, library: PackLibrary, pack: Path
) -> None:
    plain = library.load(pack)
    assert library.site_points.problem() is None
    library.site_points.path.write_bytes(content)
    assert library.load(pack).manifest.operating_points == plain.manifest.operating_points
    assert [found.trust for found in library.candidates(pack.parent.parent)] == ["trusted"]
    why = library.site_points.problem()
    assert why and LOCAL_POINTS_FILE_NAME in why.text and why.code == "site_points_unreadable"
    with pytest.raises(StorageProblem):  # and it is not overwritten
        library.site_points.add(site_point(plain.model_sha256))
    assert library.site_points.path.read_bytes() == content


def test_a_local_point_with_an_invalid_zone_or_label_is_not_used(library: PackLibrary, pack: Path) -> None:
    model = library.load(pack)
    good = site_point(model.model_sha256, label=model.manifest.labels[0].code)
    library.site_points.add(replace(good, label="unheard-of"))
    assert library.load(pack).manifest.operating_points == model.manifest.operating_points
    library.site_points.add(replace(good, name="turned", unsure_low=0.9))
    assert library.site_points.problem().code == "site_points_unreadable"  # type: ignore[union-attr]


# ---- the remembered pack of a folder


def test_a_remembered_pack_holds_for_the_folder_and_its_subfolders(tmp_path: Path) -> None:
    memory, folder = RememberedPacks(tmp_path / "home"), tmp_path / "ward"
    (folder / "2026" / "may").mkdir(parents=True)
    memory.remember([folder], "children", operating_point="careful")
    chosen = RememberedPack("children", "careful")
    assert memory.find([folder]) == memory.find([folder / "2026" / "may"]) == chosen
    assert memory.find([folder / "image.png"]) == chosen
    assert memory.find([tmp_path]) is None
    memory.remember([folder / "2026"], "adults", ages_confirmed=True)
    assert memory.find([folder / "2026" / "may"]) == RememberedPack("adults", ages_confirmed=True)
    assert memory.find([folder]) == chosen
    written = (tmp_path / "home" / REMEMBERED_PACKS_FILE_NAME).read_text()
    assert "ward" not in written and "adults" in written  # folder names may be patients' names


def test_folders_with_different_packs_have_no_common_pack(tmp_path: Path) -> None:
    memory = RememberedPacks(tmp_path)
    memory.remember([tmp_path / "a"], "children")
    assert memory.find([tmp_path / "a", tmp_path / "b"]) is None
    memory.remember([tmp_path / "b"], "adults")
    assert memory.find([tmp_path / "a", tmp_path / "b"]) is None
    memory.remember([tmp_path / "b"], "children")
    assert memory.find([tmp_path / "a", tmp_path / "b"]) == RememberedPack("children")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"x": 1}', b"\xff\xfe", b"{" * 100_000])
def test_a_damaged_file_of_remembered_packs_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / REMEMBERED_PACKS_FILE_NAME).write_bytes(content)
    memory = RememberedPacks(tmp_path)
    assert memory.find([tmp_path / "a"]) is None
    memory.remember([tmp_path / "a"], "adults")
    assert memory.find([tmp_path / "a"]) == RememberedPack("adults")


def test_a_link_instead_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"{}")
    (tmp_path / REMEMBERED_PACKS_FILE_NAME).symlink_to(tmp_path / "other")
    with pytest.raises(StorageProblem):
        RememberedPacks(tmp_path).remember([tmp_path / "a"], "adults")
    assert (tmp_path / "other").read_bytes() == b"{}"

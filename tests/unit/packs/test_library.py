from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from builtin_pack import builtin_table_line, main
from fieldray.errors import PackNotTrusted, PackProblem, StorageProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.naming import LEGACY_CPU_FILE_NAME, LEGACY_EDGETPU_FILE_NAME
from fieldray.packs.signing import BUILTIN_PACK_HASHES, fingerprint_of
from fieldray.packs.verified import read_verified_manifest
from fieldray.paths import builtin_packs_folder
from packs_factory import MODEL_BYTES, key, make_pack
from raised import raises
from shipped_packs import ADULTS, CHILDREN, LUNGS, TUBERCULOSIS

FINGERPRINT, OTHER = (fingerprint_of(key(number).public_key().public_bytes_raw()) for number in (1, 2))


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    return tmp_path / "drive"


@pytest.fixture
def library(home: Path, tmp_path: Path, drive: Path) -> PackLibrary:
    drives = drive / "gone", drive, drive / "b"
    return PackLibrary(home, drives=lambda: drives, builtin_root=tmp_path / "no-models")


def _make(drive: Path, **changes: object) -> Path:
    return make_pack(drive / "fieldray", **changes)  # type: ignore[arg-type]


def _code(library: PackLibrary, folder: Path, **allowed: bool) -> str:
    with pytest.raises(PackProblem) as caught:
        library.load(folder, **allowed)
    return caught.value.reason.code


# ---- trust


def test_an_unknown_key_needs_a_consent_to_its_fingerprint(library: PackLibrary, drive: Path) -> None:
    folder = _make(drive)
    (folder / "model.tflite").write_bytes(MODEL_BYTES[:-1] + b"?")
    assert _code(library, folder) == "pack_tampered"
    (folder / "model.tflite").write_bytes(MODEL_BYTES)
    with pytest.raises(PackNotTrusted) as caught:
        library.load(folder)
    assert caught.value.fingerprint == FINGERPRINT
    assert FINGERPRINT in caught.value.reason.text
    library.trust_store.trust(FINGERPRINT)
    model = library.load(folder)
    assert (model.trust, model.fingerprint) == ("signed", FINGERPRINT)


# ---- rollback


def test_an_older_version_is_refused_unless_allowed(library: PackLibrary, drive: Path, home: Path) -> None:
    older, newer = _make(drive, version="1.9.0"), _make(drive, version="1.10.0")
    library.trust_store.trust(FINGERPRINT)
    library.record_passed_self_test(library.load(older))
    library.record_passed_self_test(library.load(newer))
    again = PackLibrary(home, builtin_root=drive)
    assert _code(again, older) == "pack_older"
    loaded = again.load(older, allow_older=True)
    assert loaded.manifest.version == "1.9.0"
    again.record_passed_self_test(loaded)
    assert _code(again, older) == "pack_older"
    assert again.load(newer).manifest.version == "1.10.0"


def test_a_refused_or_never_tested_pack_is_not_recorded(library: PackLibrary, drive: Path) -> None:
    older, newer, newest = (_make(drive, version=version) for version in ("1.0.0", "2.0.0", "999999.0.0"))
    library.trust_store.trust(FINGERPRINT)
    (newer / "model.tflite").write_bytes(b"broken")
    assert _code(library, newer) == "pack_tampered"
    assert library.load(newest).manifest.version == "999999.0.0"
    library.install(newest)
    assert library.load(older).manifest.version == "1.0.0"


def test_packs_that_ship_and_legacy_models_are_not_recorded(home: Path, tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "models")
    table = {folder.name: read_verified_manifest(folder).manifest_sha256}
    library = PackLibrary(home, builtin_root=tmp_path / "models", builtin_table=table)
    shipped = library.load(folder)
    library.record_passed_self_test(shipped)
    library.record_passed_self_test(replace(shipped, trust="legacy", fingerprint=""))
    assert not (home / "pack_trust.json").exists()


def test_versions_are_recorded_by_pack_and_key(library: PackLibrary, drive: Path) -> None:
    library.trust_store.trust(FINGERPRINT)
    library.trust_store.trust(OTHER)
    library.record_passed_self_test(library.load(_make(drive, version="5.0.0")))
    library.load(_make(drive / "a", pack_id="other", version="0.0.1"))
    second = _make(drive / "b", key_number=2, version="0.0.1")
    assert _code(library, second) == "pack_namesake"
    library.load(second, signer=OTHER)


def test_with_a_damaged_trust_file_no_signed_pack_is_used(library: PackLibrary, drive: Path, home: Path) -> None:
    folder = _make(drive)
    library.trust_store.trust(FINGERPRINT)
    (home / "pack_trust.json").write_bytes(b"")
    with raises(StorageProblem, "trust_damaged"):
        library.load(folder)
    (candidate,) = library.candidates(drive)
    assert candidate.problem is not None and candidate.problem.code == "trust_damaged"


# ---- names


def test_a_pack_with_the_name_of_another_signers_pack_is_refused(library: PackLibrary, drive: Path) -> None:
    for fingerprint in (FINGERPRINT, OTHER):
        library.trust_store.trust(fingerprint)
    library.install(_make(drive / "a", version="1.0.0"))
    namesake = _make(drive / "b", version="9.0.0", key_number=2)
    (candidate,) = library.candidates(drive / "b")
    assert candidate.problem is not None and candidate.problem.code == "pack_namesake"
    assert dict(candidate.problem.parameters)["command_option"] == f"--pack test-chest@{OTHER}"
    assert library.find("test-chest").pack_name == "test-chest-1.0.0"
    assert library.find(f"test-chest@{OTHER.upper()}").folder == namesake
    assert _code(library, namesake) == _code(library, library.find(namesake).folder) == "pack_namesake"
    with raises(PackProblem, "pack_namesake"):
        library.install(namesake)
    library.record_passed_self_test(library.load(namesake, signer=OTHER))
    assert library.load(namesake).manifest.version == "9.0.0"  # it ran here before, so the person knows both
    with raises(PackProblem, "pack_several_signers"):
        library.find("test-chest")
    assert library.find(f"test-chest@{FINGERPRINT}").pack_name == "test-chest-1.0.0"


def test_a_name_stays_with_its_signer_after_the_pack_is_removed(library: PackLibrary, drive: Path) -> None:
    library.trust_store.trust(FINGERPRINT)
    library.record_passed_self_test(library.load(_make(drive / "a")))
    shutil.rmtree(drive)
    library.trust_store.trust(OTHER)
    assert _code(library, _make(drive / "b", key_number=2)) == "pack_namesake"


# ---- listing


def test_a_drive_is_listed_without_reading_models(library: PackLibrary, drive: Path) -> None:
    folder = _make(drive)
    (folder / "model.tflite").unlink()  # a listing does not need the model
    (candidate,) = library.candidates(drive)
    assert (candidate.pack_id, candidate.version, candidate.pack_name) == ("test-chest", "1.2.3", "test-chest-1.2.3")
    assert (candidate.folder, candidate.origin, candidate.trust) == (folder, "drive", "unknown_key")
    assert candidate.names["uk"] == "Тест грудної клітки"
    assert candidate.fingerprint == FINGERPRINT
    assert candidate.problem is not None and candidate.problem.code == "pack_unknown_key"
    library.trust_store.trust(FINGERPRINT)
    (candidate,) = library.candidates(folder)
    assert (candidate.trust, candidate.problem) == ("trusted", None)


def test_a_broken_pack_is_listed_with_a_reason_and_without_its_texts(library: PackLibrary, drive: Path) -> None:
    folder = _make(drive)
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"Test chest", b"Best chest"))
    (candidate,) = library.candidates(drive)
    assert (candidate.trust, candidate.pack_id, candidate.names) == ("broken", "", {})
    assert candidate.problem is not None and candidate.problem.code == "pack_bad_signature"


def test_a_pack_is_found_by_path_name_or_id(library: PackLibrary, drive: Path) -> None:
    older, newer = _make(drive, version="1.9.0"), _make(drive, version="1.10.0")
    assert library.find(older).folder == older
    assert library.find(str(drive)).folder == library.find(drive / "fieldray").folder == newer
    assert library.find("test-chest").folder == newer
    assert library.find("test-chest-1.9.0").folder == older
    for absent in ("test-chest-3.0.0", "chest", str(drive / "absent"), ""):
        with raises(PackProblem, "pack_not_found"):
            library.find(absent)
    (drive / "empty").mkdir()
    with pytest.raises(PackProblem, match="is not a pack"):
        library.find(drive / "empty")


def test_a_folder_of_the_same_name_does_not_hide_an_installed_pack(
    library: PackLibrary, drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.trust_store.trust(FINGERPRINT)
    kept = library.install(_make(drive / "card"))
    for name in (kept.name, kept.name.rpartition("-")[0]):
        (tmp_path / "images" / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "images")
        assert library.find(name).folder == kept
        with pytest.raises(PackProblem):
            library.find(f"./{name}")
        with pytest.raises(PackProblem):
            library.find(tmp_path / "images" / name)


def test_with_several_packs_in_a_folder_one_must_be_named(library: PackLibrary, drive: Path) -> None:
    _make(drive)
    other = _make(drive, pack_id="other")
    with raises(PackProblem, "pack_several", says="other-1.2.3, test-chest-1.2.3"):
        library.find(drive)
    assert library.find("other").folder == other


# ---- installing


def test_install_copies_what_was_verified_and_nothing_else(library: PackLibrary, drive: Path, home: Path) -> None:
    folder = _make(drive)
    (folder / "autorun.inf").write_bytes(b"[autorun]")
    with pytest.raises(PackNotTrusted):
        library.install(folder)
    library.trust_store.trust(FINGERPRINT)
    place = library.install(folder)
    assert place == home / "packs" / "test-chest-1.2.3"
    listed = {path.name for path in folder.iterdir()} - {"autorun.inf"}
    assert {path.name for path in place.iterdir()} == listed
    shutil.rmtree(drive)
    (candidate,) = library.installed()
    assert (candidate.origin, candidate.trust, candidate.problem) == ("installed", "trusted", None)
    assert library.available() == (candidate,)
    assert library.load(library.find("test-chest").folder).files["litert"] == MODEL_BYTES
    (place / "model.tflite").write_bytes(b"changed on the disk")
    assert _code(library, place) == "pack_tampered"


# ---- shipped packs


def test_a_shipped_pack_is_trusted_by_folder_and_content(home: Path, tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "models")
    table = {folder.name: read_verified_manifest(folder).manifest_sha256}
    library = PackLibrary(home, builtin_root=tmp_path / "models", builtin_table=table)
    (home / "pack_trust.json").write_bytes(b"damaged")  # not needed for shipped packs
    (candidate,) = library.builtin()
    assert (candidate.origin, candidate.trust, candidate.problem) == ("builtin", "builtin", None)
    assert library.load(folder).trust == "builtin"
    (home / "pack_trust.json").unlink()
    copy = shutil.copytree(folder, tmp_path / "drive" / folder.name)
    assert library.load(copy).trust == "signed"  # signed by the key of the shipped pack, so no namesake of it


def test_a_drives_pack_with_the_key_of_the_shipped_packs_needs_no_consent(home: Path, tmp_path: Path) -> None:
    folder, drive = make_pack(tmp_path / "models"), tmp_path / "drive"
    table = {folder.name: read_verified_manifest(folder).manifest_sha256}
    library = PackLibrary(home, builtin_root=tmp_path / "models", builtin_table=table)
    make_pack(tmp_path / "models", pack_id="intruder", key_number=3)  # a later addition does not trust its key
    ours, newer = _make(drive, pack_id="another"), _make(drive, version="1.9.0")
    foreign, intruder = (_make(drive, pack_id=f"foreign-{number}", key_number=number) for number in (2, 3))
    found = {entry.folder: entry for entry in library.candidates(drive)}
    assert [found[one].trust for one in (ours, newer, foreign, intruder)] == ["trusted"] * 2 + ["unknown_key"] * 2
    assert [library.load(one).trust for one in (ours, newer)] == ["signed"] * 2
    assert [_code(library, one) for one in (foreign, intruder)] == ["pack_unknown_key"] * 2
    assert library.trust_store.trusted_key_dates() == {}  # no question was asked, and no consent was recorded


def test_a_pack_older_than_the_shipped_version_needs_a_consent(home: Path, tmp_path: Path) -> None:
    folder, drive = make_pack(tmp_path / "models"), tmp_path / "drive"
    table = {folder.name: read_verified_manifest(folder).manifest_sha256}
    library = PackLibrary(home, builtin_root=tmp_path / "models", builtin_table=table)
    older, another = _make(drive, version="1.0.0"), _make(drive, pack_id="another", version="1.0.0")
    assert _code(library, older) == "pack_older"
    assert library.load(older, allow_older=True).manifest.version == "1.0.0"
    assert library.load(another).manifest.version == "1.0.0"  # only versions of one pack are compared


def test_an_unlisted_pack_in_the_programs_folder_is_not_trusted(home: Path, tmp_path: Path) -> None:
    folder = make_pack(tmp_path / "models")
    for table in ({}, {folder.name: "0" * 64}, {"other-1.2.3": read_verified_manifest(folder).manifest_sha256}):
        library = PackLibrary(home, builtin_root=tmp_path / "models", builtin_table=table)
        assert _code(library, folder) == "pack_unknown_key"


def test_the_shipped_packs_are_in_the_table_and_intact() -> None:
    shipped = [path.parent for path in sorted(builtin_packs_folder().glob("*/manifest.json"))]
    lines = {folder.name: builtin_table_line(folder) for folder in shipped}
    assert lines == {name: f'    "{name}": "{digest}",' for name, digest in BUILTIN_PACK_HASHES.items()}


def test_the_table_line_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_pack(tmp_path)
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out == f'    "test-chest-1.2.3": "{read_verified_manifest(folder).manifest_sha256}",\n'
    (folder / "model.tflite").write_bytes(b"")
    assert main([str(folder)]) == 1
    assert "model.tflite" in capsys.readouterr().err


# ---- legacy


@pytest.fixture
def legacy_drive(tmp_path: Path) -> Path:
    folder = tmp_path / "legacy"
    folder.mkdir()
    (folder / LEGACY_CPU_FILE_NAME).write_bytes(MODEL_BYTES)
    return folder


def test_a_legacy_model_needs_a_consent_and_has_no_operating_point(library: PackLibrary, legacy_drive: Path) -> None:
    assert _code(library, legacy_drive) == "pack_legacy"
    (candidate,) = library.candidates(legacy_drive)
    assert candidate.trust == "legacy"
    assert candidate.problem is not None and candidate.problem.code == "pack_legacy"
    assert library.find(legacy_drive).folder == legacy_drive
    model = library.load(legacy_drive, allow_legacy=True)
    assert (model.trust, model.fingerprint, list(model.files), model.golden) == ("legacy", "", ["litert"], None)
    assert model.manifest.operating_points == ()
    assert (model.manifest.input.height, model.manifest.input.width, model.manifest.input.channels) == (128, 128, 1)
    assert model.files["litert"] == MODEL_BYTES
    assert "The program assumes" in model.manifest.limits["en"]
    assert [label.code for label in model.manifest.labels] == ["abnormal", "normal"]
    assert model.manifest.is_bare
    (legacy_drive / LEGACY_EDGETPU_FILE_NAME).write_bytes(b"edge")
    assert library.load(legacy_drive, allow_legacy=True).files["edgetpu"] == b"edge"


def test_an_edge_tpu_file_without_its_cpu_file_is_refused_with_a_reason(library: PackLibrary, tmp_path: Path) -> None:
    (tmp_path / LEGACY_EDGETPU_FILE_NAME).write_bytes(b"edge")
    (candidate,) = library.candidates(tmp_path)
    assert (candidate.trust, candidate.can_screen) == ("broken", False)
    assert candidate.problem is not None and LEGACY_CPU_FILE_NAME in candidate.problem.text
    for is_allowed in (False, True):
        assert _code(library, tmp_path, allow_legacy=is_allowed) == "pack_legacy_no_cpu"


def test_a_signed_pack_is_preferred_to_a_legacy_model(library: PackLibrary, legacy_drive: Path) -> None:
    folder = _make(legacy_drive)
    assert [candidate.trust for candidate in library.candidates(legacy_drive)] == ["unknown_key", "legacy"]
    assert library.find(legacy_drive).folder == folder


def test_a_legacy_model_cannot_pass_for_a_pack(library: PackLibrary, legacy_drive: Path) -> None:
    (legacy_drive / "manifest.json").write_bytes(b"{}")
    assert _code(library, legacy_drive, allow_legacy=True) == "pack_unsigned"
    with pytest.raises(PackProblem):
        library.install(legacy_drive)


def test_shipped_packs_are_listed_by_descending_version(tmp_path: Path) -> None:
    shipped = PackLibrary(tmp_path).builtin()
    problems = {candidate.pack_name: candidate.problem and candidate.problem.code for candidate in shipped}
    names = tuple(pack.name for pack in (CHILDREN, ADULTS, TUBERCULOSIS, *LUNGS))
    assert tuple(problems) == names and list(problems.values()) == [None] * 3 + ["pack_not_classifier"] * len(LUNGS)


@pytest.mark.parametrize("name", ["manifest.json", "model.tflite", "pack.zip"])
def test_naming_a_file_instead_of_a_pack_gets_advice(library: PackLibrary, drive: Path, name: str) -> None:
    folder = _make(drive)
    (folder / "pack.zip").write_bytes(b"PK")
    with raises(PackProblem, "pack_is_file", says="Name the folder with the file manifest.json"):
        library.find(folder / name)

"""The pack of a command: only one that was named or is the default, and broken packs that hide no other."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import pytest

from fieldray.commands.console import system_console
from fieldray.commands.options import default_pack_name, load_pack
from fieldray.commands.packs import run_default
from fieldray.errors import PackNotChosen, PackNotTrusted, PackProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.signing import fingerprint_of
from fieldray.packs.verified import read_verified_manifest
from fieldray.settings import Settings
from packs_factory import key, make_pack

FINGERPRINT, OTHER = (fingerprint_of(key(number).public_key().public_bytes_raw()) for number in (1, 2))


def test_without_any_pack_the_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PackProblem) as caught:
        default_pack_name(PackLibrary(tmp_path / "home", builtin_root=tmp_path / "none", builtin_table={}))
    assert caught.value.reason.code == "no_pack"


def test_the_default_pack_is_not_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pack(tmp_path / "chest", pack_id="chest")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PackProblem, match="chest"):
        run_default(argparse.Namespace(pack="chest", operating_point=None, none=False), system_console())


# ---- drives


class Clinic:
    """A library with one trusted key, a pack that ships, two drives, and the reported errors."""

    def __init__(self, folder: Path) -> None:
        self.shipped = make_pack(folder / "models", pack_id="shipped")
        table = {self.shipped.name: read_verified_manifest(self.shipped).manifest_sha256}
        drives = self.drives = [folder / "first", folder / "second"]
        self.library = PackLibrary(
            folder / "home", drives=lambda: drives, builtin_root=folder / "models", builtin_table=table
        )
        (folder / "home").mkdir()
        self.library.trust_store.trust(FINGERPRINT)
        self.errors: list[str] = []

    def pack(self, drive: int = 0, **changes: object) -> Path:
        """A pack on a drive, copied there: its maker would not write it next to a newer version."""
        with tempfile.TemporaryDirectory() as made_in:
            made = make_pack(Path(made_in), **changes)  # type: ignore[arg-type]
            return shutil.copytree(made, self.drives[drive] / "fieldray" / made.name, dirs_exist_ok=True)

    def taken(self, name: str | None = None, *, trust: str | None = None) -> str:
        options = argparse.Namespace(trust=trust, allow_older=False, allow_legacy=False)
        return load_pack(self.library, name, options, print_error=self.errors.append).pack_name

    def refused(self, name: str | None = None) -> str:
        with pytest.raises(PackProblem) as caught:
            self.taken(name)
        return caught.value.reason.code


@pytest.fixture
def clinic(tmp_path: Path, home: Path) -> Clinic:
    return Clinic(tmp_path)


def _make_default(home: Path, name: str) -> None:
    settings = Settings()
    settings.choose_pack(name)
    settings.save(home / "settings.json")


def _spoil_listing(pack: Path) -> None:
    (pack / "manifest.sig").write_bytes(b"[" * 1_000)


def _spoil_model(pack: Path) -> None:
    """A change that anybody can make to a pack of a trusted key; a listing does not notice it."""
    (pack / "model.tflite").write_bytes(b"nothing of the kind")


SPOILS = pytest.mark.parametrize("spoil", [_spoil_listing, _spoil_model])


def test_without_a_chosen_pack_the_available_ones_are_listed(clinic: Clinic) -> None:
    clinic.pack(1, pack_id="for-adults", version="99.0.0")
    with pytest.raises(PackNotChosen) as caught:
        clinic.taken()
    assert caught.value.reason.code == "pack_not_chosen"
    first, second = caught.value.choices
    assert first.startswith("for-adults") and second.startswith("shipped")
    assert "Test chest. The pack states no age range." in second or "years." in second


def test_the_sites_default_is_taken_and_no_higher_version_of_another_pack(clinic: Clinic, home: Path) -> None:
    _make_default(home, "shipped")
    clinic.pack(1, pack_id="for-adults", version="99.0.0")
    assert clinic.taken() == "shipped-1.2.3"
    _make_default(home, "for-adults-99.0.0")
    assert clinic.taken() == "for-adults-99.0.0"
    clinic.drives.pop()
    assert clinic.refused() == "default_gone"


@SPOILS
def test_a_broken_version_is_skipped_if_a_whole_one_is_available(clinic: Clinic, spoil: object) -> None:
    spoil(clinic.pack(0, version="9.0.0"))  # type: ignore[operator]
    clinic.pack(1, version="2.0.0")
    assert clinic.taken("test-chest") == "test-chest-2.0.0"
    clinic.pack(0, version="1.0.0")
    assert clinic.taken(str(clinic.drives[0])) == "test-chest-1.0.0"


@SPOILS
def test_a_broken_pack_that_was_named_is_refused_with_its_own_reason(clinic: Clinic, spoil: object) -> None:
    broken = clinic.pack(version="9.0.0")
    spoil(broken)  # type: ignore[operator]
    clinic.pack(version="1.0.0")
    assert clinic.refused(str(broken)) in ("pack_bad_signature", "pack_tampered")
    assert clinic.refused(broken.name) in ("pack_bad_signature", "pack_tampered")
    assert clinic.errors == []


def test_a_pack_of_an_unknown_key_does_not_hide_a_trusted_one(clinic: Clinic) -> None:
    clinic.pack(0, pack_id="strange", version="99.0.0", key_number=66)
    with pytest.raises(PackNotTrusted):
        clinic.taken("strange")
    clinic.pack(1)
    clinic.pack(0, pack_id="test-chest", version="99.0.0", key_number=66)
    assert clinic.taken("test-chest") == "test-chest-1.2.3"


# ---- other signers


def test_no_trusted_key_takes_the_name_of_a_pack_that_ships(clinic: Clinic, home: Path) -> None:
    clinic.library.trust_store.trust(OTHER)
    namesake = clinic.pack(0, pack_id="shipped", version="9.0.0", key_number=2)
    _make_default(home, "shipped")
    for name in (None, "shipped"):
        assert clinic.taken(name) == "shipped-1.2.3"
    for place in (namesake, clinic.drives[0], "shipped-9.0.0"):
        assert clinic.refused(str(place)) == "pack_namesake_shipped"
    _make_default(home, "shipped-9.0.0")
    assert clinic.refused() == "default_gone"
    assert clinic.taken(f"shipped@{OTHER}") == clinic.taken(str(namesake), trust=OTHER) == "shipped-9.0.0"
    clinic.library.record_passed_self_test(clinic.library.load(namesake, signer=OTHER))
    _make_default(home, "shipped")
    for name in (None, "shipped"):  # a consent to one is none to the other
        assert clinic.taken(name) == "shipped-1.2.3"


def test_naming_a_signer_does_not_make_the_key_trusted(clinic: Clinic) -> None:
    clinic.pack(0, pack_id="shipped", version="9.0.0", key_number=2)
    with pytest.raises(PackNotTrusted):
        clinic.taken(f"shipped@{OTHER}")


def test_a_default_with_a_signer_takes_no_pack_of_another_signer(clinic: Clinic, home: Path) -> None:
    clinic.library.trust_store.trust(OTHER)
    _make_default(home, f"test-chest@{FINGERPRINT}")
    clinic.pack(0, version="9.0.0", key_number=2)
    assert clinic.refused() == "default_gone"
    clinic.pack(1)
    assert clinic.taken() == "test-chest-1.2.3"


def test_a_changed_content_of_a_known_version_is_reported(tmp_path: Path) -> None:
    """Two packs with the same id, version and signer: each change from one to the other is reported once."""
    clinic = Clinic(tmp_path)
    first = clinic.library.load(clinic.pack(0))
    clinic.library.record_passed_self_test(first)
    assert clinic.taken(str(clinic.drives[0])) == "test-chest-1.2.3" and clinic.errors == []
    other = clinic.pack(1, calibration={})
    assert clinic.taken(str(clinic.drives[1])) == "test-chest-1.2.3"
    (said,) = clinic.errors
    assert said.startswith("test-chest-1.2.3 differs from the pack that ran on this computer before")
    clinic.library.record_passed_self_test(clinic.library.load(other))
    clinic.errors.clear()
    assert clinic.taken(str(clinic.drives[1])) == "test-chest-1.2.3" and clinic.errors == []
    assert clinic.library.warnings(first)[0].code == "pack_content_changed"
    assert clinic.library.warnings(clinic.library.load(clinic.shipped)) == ()

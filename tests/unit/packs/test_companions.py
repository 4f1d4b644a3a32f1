"""Packs that screen nothing by themselves, and packs that do not run without one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.domain.model import Requirement
from fieldray.errors import PackProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.signing import fingerprint_of
from fieldray.reasons import Reason
from packs_factory import MODEL_BYTES, key, make_lung_fields, make_pack

FINGERPRINT = fingerprint_of(key().public_key().public_bytes_raw())
LUNGS = Requirement(kind="lung-fields")


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    return tmp_path / "drive" / "fieldray"


@pytest.fixture
def library(home: Path, tmp_path: Path) -> PackLibrary:
    made = PackLibrary(home, builtin_root=tmp_path / "no-models")
    made.trust(FINGERPRINT)
    return made


def _refusal(library: PackLibrary, folder: Path) -> Reason:
    with pytest.raises(PackProblem) as caught:
        library.load(folder)
    return caught.value.reason


def _listed(library: PackLibrary, folder: Path) -> Reason | None:
    return next(entry.problem for entry in library.candidates(folder.parents[1]) if entry.folder == folder)


def test_a_companion_is_listed_and_installed_but_does_not_screen(library: PackLibrary, drive: Path) -> None:
    folder = make_lung_fields(drive)
    (listed,) = library.candidates(folder)
    assert (listed.kind, listed.trust, listed.pack_name) == ("lung-fields", "trusted", "test-lungs-1.0.0")
    assert (listed.can_screen, listed.hindrance) == (False, 3)
    assert _refusal(library, folder).code == "pack_not_classifier"
    assert "lung-fields" in _refusal(library, folder).text
    assert _listed(library, folder) == _refusal(library, folder)
    assert (library.install(folder) / "model.tflite").read_bytes() == MODEL_BYTES


def test_a_companion_never_comes_before_a_classifier(library: PackLibrary, drive: Path) -> None:
    make_lung_fields(drive)
    assert library.find(drive.parent) == drive / "test-lungs-1.0.0"
    classifier = make_pack(drive, key_number=2)  # its key is not trusted yet: a yes is missing, no more
    assert library.find(drive.parent) == classifier


@pytest.mark.parametrize(
    ("requirement", "code", "tells"),
    [
        (Requirement(kind="matcher"), "pack_companion_missing", "matcher"),
        (Requirement(kind="lung-fields", id="other-lungs"), "pack_companion_missing", "lung-fields (other-lungs)"),
        (Requirement(kind="lung-fields", minimum_version="1.0.1"), "pack_companion_older", "1.0.1+"),
        (Requirement(kind="lung-fields", id="test-lungs", minimum_version="1.0.0"), None, ""),
        (LUNGS, None, ""),
    ],
)
def test_what_is_required_must_be_there(
    library: PackLibrary, drive: Path, requirement: Requirement, code: str | None, tells: str
) -> None:
    make_lung_fields(drive)
    folder = make_pack(drive, requires=(requirement,))
    if code is None:
        assert library.load(folder).manifest.requires == (requirement,)
        assert _listed(library, folder) is None
    else:
        why = _refusal(library, folder)
        assert why.code == code
        assert tells in why.text
        assert _listed(library, folder) == why


def test_the_reason_says_which_version_is_here(library: PackLibrary, drive: Path) -> None:
    make_lung_fields(drive)
    folder = make_pack(drive, requires=(Requirement(kind="lung-fields", minimum_version="2.0.0"),))
    assert "Version 1.0.0 is here." in _refusal(library, folder).text


def test_a_damaged_companion_is_named_with_what_is_wrong(library: PackLibrary, drive: Path) -> None:
    companion = make_lung_fields(drive)
    folder = make_pack(drive, requires=(LUNGS,))
    (companion / "model.tflite").write_bytes(MODEL_BYTES[:-1] + b"?")
    why = _refusal(library, folder)
    assert why.code == "pack_companion_unusable"
    assert "lung-fields" in why.text and "model.tflite is not the one that was signed" in why.text
    (companion / "manifest.json").write_bytes(b"{}")
    assert _refusal(library, folder).code == "pack_companion_missing"


def test_a_companion_by_a_key_that_nobody_trusts_is_not_used(library: PackLibrary, drive: Path) -> None:
    make_lung_fields(drive, key_number=2)
    folder = make_pack(drive, requires=(LUNGS,))
    assert _refusal(library, folder).code == "pack_companion_unusable"


def test_of_several_companions_one_that_is_whole_is_enough(library: PackLibrary, drive: Path) -> None:
    library.install(make_lung_fields(drive))
    newer = make_lung_fields(drive, version="1.1.0")
    (newer / "MODEL_CARD.md").unlink()
    assert library.load(make_pack(drive, requires=(LUNGS,)))


def test_an_installed_companion_serves_a_pack_on_a_drive(library: PackLibrary, drive: Path, tmp_path: Path) -> None:
    library.install(make_lung_fields(tmp_path / "other"))
    assert library.load(make_pack(drive, requires=(LUNGS,)))

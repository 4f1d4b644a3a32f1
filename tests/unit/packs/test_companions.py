"""Lung-field packs, which find the lungs and screen nothing alone, and packs that require one of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fieldray.domain.model import LUNG_NETWORK_CHECKS, InputSpec, PackRequirement
from fieldray.errors import PackProblem
from fieldray.packs.library import PackLibrary
from fieldray.packs.manifest import GoldenTolerance, LungCheck, LungFieldsManifest, LungOutputs, parse_manifest
from fieldray.packs.signing import fingerprint_of
from fieldray.packs.verified import read_pack, read_verified_manifest
from fieldray.reasons import Reason
from packs_factory import MODEL_BYTES, key, make_lung_fields, make_pack
from tiny_lungs import write_tiny_lungs
from tiny_packs import fingerprint

FINGERPRINT = fingerprint_of(key().public_key().public_bytes_raw())
OTHER = fingerprint_of(key(2).public_key().public_bytes_raw())
LUNGS = PackRequirement(kind="lung-fields")


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    return tmp_path / "drive" / "fieldray"


@pytest.fixture
def library(home: Path, tmp_path: Path) -> PackLibrary:
    made = PackLibrary(home, builtin_root=tmp_path / "no-models")
    made.trust_store.trust(FINGERPRINT)
    return made


def _refusal(library: PackLibrary, folder: Path) -> Reason:
    with pytest.raises(PackProblem) as caught:
        library.load(folder)
    return caught.value.reason


def _listed(library: PackLibrary, folder: Path) -> Reason | None:
    return next(entry.problem for entry in library.candidates(folder.parents[1]) if entry.folder == folder)


def test_a_lung_field_pack_is_listed_and_installed_but_does_not_screen(library: PackLibrary, drive: Path) -> None:
    folder = make_lung_fields(drive)
    (listed,) = library.candidates(folder)
    assert (listed.kind, listed.trust, listed.pack_name) == ("lung-fields", "trusted", "test-lungs-1.0.0")
    assert (listed.can_screen, listed.usability_rank) == (False, 3)
    assert _refusal(library, folder).code == "pack_not_classifier"
    assert "lung-fields" in _refusal(library, folder).text
    assert _listed(library, folder) == _refusal(library, folder)
    assert (library.install(folder) / "model.tflite").read_bytes() == MODEL_BYTES


def test_a_lung_field_pack_is_listed_after_the_classifiers(library: PackLibrary, drive: Path) -> None:
    make_lung_fields(drive)
    assert library.find(drive.parent).folder == drive / "test-lungs-1.0.0"
    classifier = make_pack(drive, key_number=2)  # its key is not trusted yet: only the consent is missing
    assert library.find(drive.parent).folder == classifier


@pytest.mark.parametrize(
    ("requirement", "code", "said"),
    [
        (PackRequirement(kind="lung-fields", id="other-lungs"), "pack_companion_missing", "lung-fields (other-lungs)"),
        (PackRequirement(kind="lung-fields", minimum_version="1.0.1"), "pack_companion_older", "1.0.1+"),
        (PackRequirement(kind="lung-fields", id="test-lungs", minimum_version="1.0.0"), None, ""),
        (LUNGS, None, ""),
    ],
)
def test_a_required_lung_field_pack_must_be_available(
    library: PackLibrary, drive: Path, requirement: PackRequirement, code: str | None, said: str
) -> None:
    make_lung_fields(drive)
    folder = make_pack(drive, requires=(requirement,))
    if code is None:
        assert library.load(folder).manifest.requires == (requirement,)
        assert _listed(library, folder) is None
    else:
        why = _refusal(library, folder)
        assert why.code == code
        assert said in why.text
        assert _listed(library, folder) == why


def test_a_damaged_lung_field_pack_is_named_with_its_fault(library: PackLibrary, drive: Path) -> None:
    companion = make_lung_fields(drive)
    folder = make_pack(drive, requires=(LUNGS,))
    (companion / "model.tflite").write_bytes(MODEL_BYTES[:-1] + b"?")
    why = _refusal(library, folder)
    assert why.code == "pack_companion_unusable"
    assert "lung-fields" in why.text and "model.tflite differs from the file that was signed" in why.text
    (companion / "manifest.json").write_bytes(b"{}")
    assert _refusal(library, folder).code == "pack_companion_missing"


def test_a_lung_field_pack_of_an_untrusted_key_is_not_used(library: PackLibrary, drive: Path) -> None:
    make_lung_fields(drive, key_number=2)
    folder = make_pack(drive, requires=(PackRequirement(kind="lung-fields", key=OTHER),))
    assert _refusal(library, folder).code == "pack_companion_unusable"


def test_one_whole_lung_field_pack_of_several_is_enough(library: PackLibrary, drive: Path) -> None:
    library.install(make_lung_fields(drive))
    newer = make_lung_fields(drive, version="1.1.0")
    (newer / "MODEL_CARD.md").unlink()
    assert library.load(make_pack(drive, requires=(LUNGS,)))


# ---- the lung-field pack that a classifier is loaded with


def test_an_installed_lung_field_pack_is_used_only_if_required(library: PackLibrary, drive: Path) -> None:
    library.install(make_lung_fields(drive))
    assert library.load(make_pack(drive)).lungs is None


@pytest.fixture
def shipping(home: Path, tmp_path: Path) -> PackLibrary:
    """A program that ships a lung-field pack."""
    folder = make_lung_fields(tmp_path / "models", key_number=3)
    manifest = read_verified_manifest(folder)
    table = {folder.name: manifest.manifest_sha256}
    made = PackLibrary(home, builtin_root=tmp_path / "models", builtin_table=table, builtin_lungs=folder.name)
    made.trust_store.trust(FINGERPRINT)
    return made


BY_OTHER = PackRequirement(kind="lung-fields", id="test-lungs", key=OTHER)
Made = tuple[str, int]  # a version and its signer: 1 signed the classifier, 2 is trusted too


@pytest.mark.parametrize(
    ("installed", "on_drive", "required", "taken"),
    [
        (("1.5.0", 1), None, None, ("1.0.0", "builtin")),
        (("1.1.0", 1), None, LUNGS, ("1.1.0", "signed")),
        (("1.1.0", 1), ("1.2.0", 1), LUNGS, ("1.2.0", "signed")),
        (("9.0.0", 2), ("8.0.0", 2), LUNGS, ("1.0.0", "builtin")),
        (("1.1.0", 1), ("0.9.0", 2), BY_OTHER, ("0.9.0", "signed")),
    ],
)
def test_the_newest_lung_field_pack_of_the_required_signer_is_used(
    shipping: PackLibrary, tmp_path: Path, *, installed: Made, on_drive: Made | None, required: PackRequirement | None,
    taken: tuple[str, str],
) -> None:  # fmt: skip
    shipping.trust_store.trust(OTHER)
    kept = make_lung_fields(tmp_path / "kept", version=installed[0], key_number=installed[1])
    shipping.install(kept, signer=fingerprint(kept))
    if on_drive:
        make_lung_fields(tmp_path / "drive", version=on_drive[0], key_number=on_drive[1])
    lungs = shipping.load(make_pack(tmp_path / "drive", requires=(required,) if required else ())).lungs
    assert (lungs.manifest.version, lungs.trust) == taken


@pytest.mark.parametrize("by", [FINGERPRINT, OTHER])
def test_a_shipped_pack_uses_only_a_shipped_lung_field_pack(home: Path, tmp_path: Path, by: str) -> None:
    models, number = tmp_path / "models", 1 if by == FINGERPRINT else 2
    folders = (make_lung_fields(models), make_pack(models, requires=(LUNGS,)))
    table = {folder.name: read_verified_manifest(folder).manifest_sha256 for folder in folders}
    library = PackLibrary(home, builtin_root=models, builtin_table=table, builtin_lungs=folders[0].name)
    library.trust_store.trust(by)
    foreign = make_lung_fields(tmp_path / "drive", version="9.0.0", key_number=number, mask_threshold=0.9)
    library.install(foreign, signer=by)
    lungs = library.load(folders[1]).lungs
    assert (lungs.pack_name, lungs.trust) == ("test-lungs-1.0.0", "builtin")


def test_a_lung_field_pack_of_another_signer_is_named_with_its_key(library: PackLibrary, drive: Path) -> None:
    library.trust_store.trust(OTHER)
    make_lung_fields(drive, key_number=2)
    folder = make_pack(drive, requires=(LUNGS,))
    why = _refusal(library, folder)
    assert why.code == "pack_companion_other_signer"
    assert OTHER in why.text
    assert _listed(library, folder) == why


@pytest.mark.parametrize("name", ["model.tflite", "manifest.json", "manifest.sig"])
@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b"?"), lambda path: path.write_bytes(b"")]
)
def test_a_damaged_shipped_lung_field_pack_is_reported(
    shipping: PackLibrary, drive: Path, tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    damage(tmp_path / "models" / "test-lungs-1.0.0" / name)
    why = _refusal(shipping, make_pack(drive))
    assert why.code == "pack_companion_unusable"
    assert "lung-fields" in why.text


def test_a_missing_shipped_lung_field_pack_is_reported(shipping: PackLibrary, drive: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "models" / "test-lungs-1.0.0")
    folder = make_pack(drive)
    assert _refusal(shipping, folder).code == _listed(shipping, folder).code == "pack_companion_missing"
    make_lung_fields(tmp_path / "models", mask_threshold=0.4)  # another one does not replace it
    assert _refusal(shipping, folder).code == "pack_companion_unusable"


def test_a_lung_crop_in_a_manifest_is_written_and_read(library: PackLibrary, drive: Path) -> None:
    make_lung_fields(drive)
    spec = InputSpec(height=16, width=16, crop="lungs", crop_margin=0.1)
    folder = make_pack(drive, requires=(LUNGS,), input=spec)
    assert library.load(folder).manifest.input == spec
    assert b'"crop": "lungs"' in (folder / "manifest.json").read_bytes()
    plain = make_pack(drive, pack_id="plain")
    assert b"crop" not in (plain / "manifest.json").read_bytes()


# ---- the manifest of a lung-field pack, and a tiny one that runs


def _checks(*names: str) -> tuple[LungCheck, ...]:
    return tuple(LungCheck(name=name, threshold=0.5) for name in names)


def test_a_written_lung_field_pack_reads_back(tmp_path: Path) -> None:
    folder = write_tiny_lungs(tmp_path, mask_threshold=0.4)
    found = parse_manifest((folder / "manifest.json").read_bytes())
    assert isinstance(found, LungFieldsManifest)
    assert (found.outputs.mask, found.outputs.checks, found.mask_threshold) == (0, 1, 0.4)
    assert tuple(check.name for check in found.checks) == LUNG_NETWORK_CHECKS
    model = read_pack(folder).model
    assert model.manifest.lung_rules.mask_threshold == 0.4
    assert {label.scheme for label in model.manifest.labels} == {"fieldray"}
    assert (model.manifest.outputs.mask, model.manifest.outputs.scores) == (0, 1)
    assert tuple(label.code for label in model.manifest.labels) == tuple(model.manifest.lung_rules.thresholds)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"checks": _checks(*reversed(LUNG_NETWORK_CHECKS))},
            f": checks: need {', '.join(LUNG_NETWORK_CHECKS)}, in this order",
        ),
        ({"checks": (LungCheck(name="frontal_chest", threshold=1.0), *_checks(*LUNG_NETWORK_CHECKS[1:]))}, "threshold"),
        ({"outputs": LungOutputs(mask=1, checks=1)}, ": outputs: one output has two roles"),
        ({"golden": GoldenTolerance(tolerance=0.02)}, "golden_inputs is missing"),
    ],
)
def test_an_unusable_manifest_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(PackProblem) as caught:
        make_lung_fields(tmp_path, **changes)
    assert message in caught.value.reason.text


def test_golden_scores_have_one_column_per_check(tmp_path: Path) -> None:
    folder = write_tiny_lungs(tmp_path)
    scores = np.load(folder / "golden_scores.npy", allow_pickle=False)
    assert scores.shape == (5, 6)
    with pytest.raises(PackProblem):  # five columns: `mirrored` is missing
        write_tiny_lungs(tmp_path, checks=_checks(*LUNG_NETWORK_CHECKS[:-1]))

"""Small packs for tests. Their network files are arbitrary bytes, because these tests run no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fieldray.domain.model import (
    LUNG_NETWORK_CHECKS,
    Calibration,
    Estimate,
    GoldenVectors,
    HeaderRules,
    InputSpec,
    Label,
    Manifest,
    OperatingPoint,
    OutOfDistributionCheck,
    OutputRoles,
)
from fieldray.packs.manifest import Input, LungCheck, LungFieldsManifest, LungOutputs
from fieldray.packs.site_choices import LocalOperatingPoint
from fieldray.packs.verified import manifest_file_entries, write_pack, write_pack_of_any_kind

MODEL_BYTES = b"TFL3" + bytes(range(256)) * 8


def key(number: int = 1) -> Ed25519PrivateKey:
    """Return a signing key for tests, equal for equal numbers (1..255)."""
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def manifest(**changes: object) -> Manifest:
    """Return a small valid manifest with one label, two operating points, a calibration and an out-of-distribution
    check.
    """
    texts = {"en": "A pack of the tests.", "uk": "Пакет для перевірок."}
    share = Estimate(0.9, 0.85, 0.94)
    points = tuple(
        OperatingPoint(
            name=name,
            label="abnormal",
            threshold=threshold,
            unsure_low=threshold - 0.1,
            unsure_high=threshold + 0.1,
            sensitivity=share,
            specificity=share,
            titles={"en": name, "uk": "точка"},
            measured_on={"en": "100 synthetic images", "uk": "100 намальованих знімках"},
        )
        for name, threshold in (("sensitive", 0.3), ("balanced", 0.5))
    )
    made = Manifest(
        pack_id="test-chest",
        version="1.2.3",
        names={"en": "Test chest", "uk": "Тест грудної клітки"},
        descriptions=texts,
        intended_use=texts,
        limits=texts,
        input=InputSpec(height=16, width=16),
        labels=(Label(code="abnormal", scheme="fieldray", meaning={"en": "abnormal", "uk": "є відхилення"}),),
        outputs=OutputRoles(scores=0, class_maps=1, features=2),
        operating_points=points,
        calibration={"abnormal": Calibration(slope=1.5, intercept=-0.25)},
        ood_gate=OutOfDistributionCheck(
            mean=np.arange(4, dtype=np.float32), projection=np.eye(4, 2, dtype=np.float32), limit=3.5
        ),
        accepted=HeaderRules(ages_years=(18, 90)),
        provenance={"data": "made by code"},
        metrics={"auc": {"value": 0.9, "n": 100}},
    )
    return replace(made, **changes)


def golden() -> GoldenVectors:
    """Return three golden inputs that fit `manifest()`."""
    inputs = np.arange(3 * 16 * 16, dtype=np.int64).reshape(3, 16, 16, 1) % 256
    return GoldenVectors(
        inputs=inputs.astype(np.uint8), scores=np.array([[0.1], [0.5], [0.9]], np.float32), tolerance=0.02
    )


def make_pack(folder: Path, *, key_number: int = 1, edgetpu: bool = False, **changes: object) -> Path:
    """Write the pack `folder`/<id>-<version>/, signed by `key(key_number)`. `changes` go to `manifest()`."""
    files = {"litert": MODEL_BYTES} | ({"edgetpu": MODEL_BYTES[::-1]} if edgetpu else {})
    return write_pack(
        folder,
        manifest=manifest(**changes),
        files=files,
        card="# Test chest\n\nМодель для перевірок.\n",
        golden=golden(),
        key=key(key_number),
    )


def make_lung_fields(
    folder: Path, *, key_number: int = 1, contents: Mapping[str, bytes] | None = None, **changes: object
) -> Path:
    """Write the lung-field pack `folder`/test-lungs-1.0.0/, signed by `key(key_number)`.

    `changes` go to its description. `contents` are its files by role; without them its network is arbitrary bytes.
    """
    contents = contents or {"litert": MODEL_BYTES, "card": b"# Test lungs\n"}
    texts = {"en": "Lungs of the tests."}
    description = LungFieldsManifest(
        schema_version=2,
        id="test-lungs",
        version="1.0.0",
        names=texts,
        descriptions=texts,
        intended_use=texts,
        limits=texts,
        input=Input(height=16, width=16, channels=1, dtype="uint8", intensity="percentile", fit="pad", margin=0.0),
        outputs=LungOutputs(mask=0, checks=1),
        checks=tuple(LungCheck(name=name, threshold=0.5) for name in LUNG_NETWORK_CHECKS),
        mask_threshold=0.5,
        files=manifest_file_entries(contents),
        provenance={},
        metrics={},
    )
    changed = msgspec.structs.replace(description, **changes)
    return write_pack_of_any_kind(folder, manifest=changed, contents=contents, key=key(key_number))


def site_point(model_sha256: str = "a" * 64, **changes: object) -> LocalOperatingPoint:
    """Return a local operating point."""
    made = LocalOperatingPoint(
        name="ours", label="opacity", model_sha256=model_sha256, pack="test-chest-1.2.3", threshold=0.7, unsure_low=0.6,
        unsure_high=0.8, sensitivity=(0.9, 0.8, 0.95), specificity=(0.7, 0.6, 0.8), images=120, patients=100,
        chosen_by="О. Петренко", chosen_on="2026-11-22",
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)

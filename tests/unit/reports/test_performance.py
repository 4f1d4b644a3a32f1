"""Measured performance of a class: another hospital comes first, even if nothing was measured there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import shipped_packs
from fieldray.domain.model import Manifest
from fieldray.packs.manifest import domain_manifest
from fieldray.packs.verified import read_verified_manifest
from fieldray.reports.performance import class_performance, performance_of_pack
from fieldray.translation import Translator
from packs_factory import manifest as made_manifest

ENGLISH = Translator()


def shares(**counts: int) -> dict[str, object]:
    of = sum(counts.values())
    return {
        name: {"count": count, "of": of, "value": count / of, "low": 0.0, "high": 1.0} for name, count in counts.items()
    }


OWN = {
    "positive": shares(read_first=32, abnormal=95, unsure=37, normal=7, refused=1),
    "negative": shares(read_first=5, abnormal=39, unsure=272, normal=299),
}
ELSEWHERE = {
    "positive": shares(read_first=3, abnormal=6, unsure=24, normal=3),
    "negative": shares(read_first=0, abnormal=0, unsure=21, normal=38),
}


def measured(**parts: object) -> Manifest:
    """The manifest of a pack with one label, with counts of the classes at its first operating point."""
    pack = made_manifest()
    point = pack.operating_points[0]
    of_parts = {part: {"classes": {point.name: classes}} for part, classes in parts.items()}
    return replace(pack, metrics={"labels": {point.label: of_parts}})


@pytest.mark.parametrize(
    ("category", "said"),
    [
        (
            "normal",
            "Of 100 images with the finding, 8 are not flagged at another hospital, and 4 at the hospital of the "
            "training images.",
        ),
        (
            "abnormal",
            "Of 100 images without the finding, 0 are flagged at another hospital, and 7 at the hospital of the "
            "training images.",
        ),
        (
            "read_first",
            "Of 100 images without the finding, 0 are flagged at another hospital, and 7 at the hospital of the "
            "training images.",
        ),
        # 24 + 21 of 36 + 59 images; 37 + 272 of 172 + 615
        (
            "unsure",
            "The pack is uncertain about 47 of 100 images at another hospital, and about 39 of 100 images at the "
            "hospital of the training images.",
        ),
    ],
)
def test_errors_of_a_class_are_stated_for_another_hospital_first(category: str, said: str) -> None:
    pack = measured(test=OWN, external_test=ELSEWHERE)
    found = class_performance(ENGLISH, pack, pack.operating_points[0], category)  # type: ignore[arg-type]
    assert found is not None and (found.sentence, found.title) == (said, "At another hospital")


def test_a_missing_external_test_is_stated_in_place_of_the_figures() -> None:
    pack = measured(test=OWN)
    found = class_performance(ENGLISH, pack, pack.operating_points[0], "normal")
    assert found is not None
    assert found.sentence == (
        "The pack was not fully tested at another hospital. "
        "At the hospital of the training images, the pack does not flag 4 of 100 images with the finding."
    )
    assert found.title == "At the hospital of the training images"


def test_the_summary_of_a_pack_has_detected_missed_and_uncertain() -> None:
    (found,) = performance_of_pack(ENGLISH, measured(test=OWN, external_test=ELSEWHERE))
    assert found.sentence.startswith(
        "At another hospital the pack detects 25 of 100 images with the finding, misses 8 and is uncertain about 67. "
    )
    assert [sum(part.images_per_hundred for part in bar.parts) for bar in found.bars] == [100, 100]
    assert [bar.title for bar in found.bars] == [
        "Results per 100 images with the finding (measured on 36 images)",
        "Results per 100 images without the finding (measured on 59 images)",
    ]
    assert found.bars[0].alt_text.endswith("Read first 8, Abnormal 17, Uncertain 67, Not flagged 8")


def test_without_class_counts_no_performance_is_stated() -> None:
    pack = measured()
    assert class_performance(ENGLISH, pack, pack.operating_points[0]) is None
    assert class_performance(ENGLISH, None, pack.operating_points[0]) is None
    assert performance_of_pack(ENGLISH, pack) == ()


@pytest.mark.parametrize("folder", [shipped_packs.CHILDREN, shipped_packs.ADULTS, shipped_packs.TUBERCULOSIS])
def test_shipped_packs_state_their_performance(folder: Path) -> None:
    assert performance_of_pack(Translator("uk"), domain_manifest(read_verified_manifest(folder).content))  # type: ignore[arg-type]

"""For whom a pack is, how good it is, and what a result says of the patient's age."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import shipped_packs
from fieldray.domain.finding import Refused
from fieldray.domain.model import HeaderRules, Manifest
from fieldray.domain.purpose import PatientCount, classes_measured, header_notes, patients, performance
from fieldray.domain.study import ImageHeader
from fieldray.packs.manifest import domain_manifest
from fieldray.packs.verified import read_verified_manifest
from fieldray.paths import builtin_packs
from fieldray.reasons import reason
from outcomes import image_ref

CHILDREN = HeaderRules(ages_years=(1, 5))


@pytest.fixture
def children() -> Manifest:
    """What the shipped pack for children says."""
    folder = next(builtin_packs().glob("pneumonia-paediatric-*"))
    return domain_manifest(read_verified_manifest(folder).description)  # type: ignore[arg-type]


def test_a_pack_says_for_whom_it_is() -> None:
    assert patients(CHILDREN).text == "For patients aged 1 to 5 years."
    assert patients(HeaderRules()).text == "The pack names no age range."


def test_a_pack_says_how_good_it_is_and_what_was_not_measured(children: Manifest) -> None:
    own, unsure, elsewhere = performance(children)
    assert own.text.startswith(
        "On 618 images of the same hospital or hospitals that it was not trained on: area under the ROC curve 0.99"
    )
    assert unsure.text == "It cannot tell in 5 of 100 of them: not sure about 33 of 618."
    assert elsewhere.text == "It was not measured on images of another hospital."
    measured = {"auc": {"value": 0.81, "low": 0.7, "high": 0.9}, "images": 95}
    metrics = {"labels": {"pneumonia": {"external_test": measured}}}
    (only,) = performance(dataclasses.replace(children, metrics=metrics))
    assert only.text.startswith("On 95 images of another hospital: area under the ROC curve 0.81")


@pytest.mark.parametrize(
    "metrics", [{}, {"labels": 3}, {"labels": {"pneumonia": {"test": {"auc": {"value": "high"}}}}}]
)
def test_metrics_in_another_form_are_passed_over(children: Manifest, metrics: dict[str, object]) -> None:
    (only,) = performance(dataclasses.replace(children, metrics=metrics))
    assert only.code == "not_measured_elsewhere"


def _notes(header: ImageHeader, accepted: HeaderRules = CHILDREN, *, is_confirmed: bool = False) -> list[str]:
    return [note.code for note in header_notes(header, accepted, is_confirmed=is_confirmed)]


def test_a_result_says_whether_the_age_is_known() -> None:
    unknown, known = ImageHeader(), ImageHeader(patient_age_years=3.0)
    assert _notes(known) == _notes(unknown, HeaderRules()) == []
    assert _notes(unknown, is_confirmed=True) == ["age_confirmed"]
    assert _notes(unknown) == ["age_not_stated"]


def test_two_ages_are_said_whatever_was_confirmed() -> None:
    header = ImageHeader(patient_age_years=3.0, contrary_age_years=5.2)
    assert _notes(header, is_confirmed=True) == _notes(header, HeaderRules()) == ["ages_differ"]
    (note,) = header_notes(header, CHILDREN, is_confirmed=True)
    assert "3 and 5 years" in note.text


def test_words_that_nobody_knows_and_writing_in_the_image_are_said() -> None:
    header = ImageHeader(view_position="CHEST", body_part_examined="COEUR", burned_in_annotation="YES")
    assert _notes(header, HeaderRules()) == ["view_unknown", "body_part_unknown", "burned_in_annotation"]
    assert (
        _notes(ImageHeader(view_position="P.A.", body_part_examined="TORAX", burned_in_annotation="NO"), HeaderRules())
        == []
    )


def test_images_of_others_are_counted() -> None:
    count = PatientCount()
    for code, values in (
        ("age", {"age": 40, "youngest": 1, "oldest": 5}),
        ("body_part", {"body_part": "HAND"}),
        ("view", {"view": "LL"}),
    ):
        count.add(Refused(ref=image_ref(), reason=reason(code, **values)))
    assert [note.code for note in count.notes(CHILDREN)] == ["other_patients"]
    assert "2 images say that they are not for this pack" in count.notes(CHILDREN)[0].text


@pytest.mark.parametrize("folder", [shipped_packs.CHILDREN, shipped_packs.ADULTS, shipped_packs.TUBERCULOSIS])
def test_a_pack_that_ships_says_at_each_point_what_a_person_sees(folder: Path) -> None:
    manifest = domain_manifest(read_verified_manifest(folder).description)  # type: ignore[arg-type]
    for point in manifest.operating_points:
        parts = classes_measured(manifest, point)
        assert [part.is_elsewhere for part in parts] == [False, True][: 1 + (folder != shipped_packs.CHILDREN)]
        for part in parts:
            for shares in part.shares.values():
                (number,) = {share.of for share in shares.values()}
                assert sum(share.count for share in shares.values()) == number
    assert any(why.code == "measured_unsure" for why in performance(manifest))
    assert manifest.warnings


def test_classes_in_another_form_are_passed_over(children: Manifest) -> None:
    point = children.operating_points[0]
    good = {"count": 1, "of": 2, "value": 0.5, "low": 0.1, "high": 0.9}
    for bad in ({**good, "of": 0}, {**good, "value": "0.5"}, {**good, "low": 2.0}, {**good, "count": True}, 7):
        classes = {point.name: {"positive": {"unsure": bad}, "negative": {"unsure": good}}}
        metrics = {"labels": {point.label: {"test": {"classes": classes}}}}
        assert classes_measured(dataclasses.replace(children, metrics=metrics), point) == ()

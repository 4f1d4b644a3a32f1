"""The patients that a pack is for, its measured performance, and notes of a result on the patient's age."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import shipped_packs
from fieldray.domain.finding import Category, RefusedOutcome, result_count_of_outcome
from fieldray.domain.image import ImageHeader
from fieldray.domain.intended_use import (
    HeaderMatch,
    PatientNoteCounts,
    body_part_match,
    body_parts_named_in,
    class_distributions,
    counts_per_hundred,
    header_notes,
    intended_patients_sentence,
    is_for_processing,
    is_special_exposure,
    performance_sentences,
    view_match,
    view_of_code,
    views_named_in,
)
from fieldray.domain.metrics import Share
from fieldray.domain.model import HeaderRules, Manifest
from fieldray.packs.manifest import domain_manifest
from fieldray.packs.verified import read_verified_manifest
from fieldray.paths import builtin_packs_folder
from fieldray.reasons import reason
from outcomes import image_ref

CHILDREN = HeaderRules(ages_years=(1, 5))


@pytest.fixture
def children() -> Manifest:
    """The manifest of the shipped pack for children."""
    folder = next(builtin_packs_folder().glob("pneumonia-paediatric-*"))
    return domain_manifest(read_verified_manifest(folder).content)  # type: ignore[arg-type]


def test_the_purpose_of_a_pack_names_its_patients() -> None:
    assert intended_patients_sentence(CHILDREN).text == "For patients aged 1 to 5 years."
    assert intended_patients_sentence(HeaderRules()).text == "The pack states no age range."


def test_a_pack_states_its_performance_and_what_was_not_measured(children: Manifest) -> None:
    own, elsewhere = performance_sentences(children)
    assert (
        "was tested on 618 images from the hospital or hospitals of the training images" in own.text
        and "ROC curve: 0.99" in own.text
    )
    assert (
        elsewhere.text == "There was no external test, so the area under the ROC curve at another hospital is unknown."
    )
    measured = {"auc": {"value": 0.81, "low": 0.7, "high": 0.9}, "images": 95}
    metrics = {"labels": {"pneumonia": {"external_test": measured}}}
    (only,) = performance_sentences(dataclasses.replace(children, metrics=metrics))
    assert "was tested on 95 images of another hospital (external test). Area under the ROC curve: 0.81" in only.text


@pytest.mark.parametrize(
    "metrics", [{}, {"labels": 3}, {"labels": {"pneumonia": {"test": {"auc": {"value": "high"}}}}}]
)
def test_malformed_metrics_are_ignored(children: Manifest, metrics: dict[str, object]) -> None:
    (only,) = performance_sentences(dataclasses.replace(children, metrics=metrics))
    assert only.code == "not_measured_elsewhere"


def _notes(header: ImageHeader, accepted: HeaderRules = CHILDREN, *, is_confirmed: bool = False) -> list[str]:
    return [note.code for note in header_notes(header, accepted, ages_confirmed=is_confirmed)]


def test_a_result_has_a_note_if_the_age_is_unknown() -> None:
    unknown, known = ImageHeader(), ImageHeader(patient_age_years=3.0)
    assert _notes(known) == _notes(unknown, HeaderRules()) == []
    assert _notes(unknown, is_confirmed=True) == ["age_confirmed"]
    assert _notes(unknown) == ["age_not_stated"]


def test_contradictory_ages_are_noted_although_ages_were_confirmed() -> None:
    header = ImageHeader(patient_age_years=3.0, contrary_age_years=5.2)
    assert _notes(header, is_confirmed=True) == _notes(header, HeaderRules()) == ["ages_differ"]
    (note,) = header_notes(header, CHILDREN, ages_confirmed=True)
    assert "3 and 5 years" in note.text


def test_unknown_header_terms_and_burned_in_text_are_noted() -> None:
    header = ImageHeader(view_position="CHEST", body_part_examined="COEUR", burned_in_annotation="YES")
    assert _notes(header, HeaderRules()) == ["view_unknown", "body_part_unknown", "burned_in_annotation"]
    known = ImageHeader(view_position="P.A.", body_part_examined="TORAX", burned_in_annotation="NO")
    assert _notes(known, HeaderRules()) == []


def test_images_outside_the_packs_purpose_are_counted() -> None:
    count = PatientNoteCounts()
    for code, values in (
        ("age", {"age": 40, "youngest": 1, "oldest": 5}),
        ("body_part", {"body_part": "HAND"}),
        ("view", {"view": "LL"}),
    ):
        count.add(result_count_of_outcome(RefusedOutcome(ref=image_ref(), reason=reason(code, **values))))
    assert [note.code for note in count.notes(CHILDREN)] == ["other_patients"]
    assert "2 images do not match this pack" in count.notes(CHILDREN)[0].text


@pytest.mark.parametrize("folder", [shipped_packs.CHILDREN, shipped_packs.ADULTS, shipped_packs.TUBERCULOSIS])
def test_shipped_packs_describe_each_operating_point_in_every_language(folder: Path) -> None:
    manifest = domain_manifest(read_verified_manifest(folder).content)  # type: ignore[arg-type]
    for point in manifest.operating_points:
        parts = class_distributions(manifest, point)
        assert [part.is_from_other_hospital for part in parts] == [False, True][
            : 1 + (folder != shipped_packs.CHILDREN)
        ]
        for part in parts:
            for shares in part.shares_by_truth.values():
                (number,) = {share.of for share in shares.values()}
                assert sum(share.count for share in shares.values()) == number
    assert manifest.warnings.keys() == manifest.names.keys()  # in each language of the pack


def test_malformed_class_counts_are_ignored(children: Manifest) -> None:
    point = children.operating_points[0]
    good = {"count": 1, "of": 2, "value": 0.5, "low": 0.1, "high": 0.9}
    for bad in ({**good, "of": 0}, {**good, "value": "0.5"}, {**good, "low": 2.0}, {**good, "count": True}, 7):
        classes = {point.name: {"positive": {"unsure": bad}, "negative": {"unsure": good}}}
        metrics = {"labels": {point.label: {"test": {"classes": classes}}}}
        assert class_distributions(dataclasses.replace(children, metrics=metrics), point) == ()


def test_rounded_percentages_add_up_to_100() -> None:
    def shares(**counts: int) -> dict[Category, Share]:
        return {name: Share(count, sum(counts.values()), 0, 0, 1) for name, count in counts.items()}  # type: ignore[misc]

    # 8.3, 16.7, 66.7 and 8.3 of 100: the two with the largest rounding loss are rounded up
    found = counts_per_hundred(shares(read_first=3, abnormal=6, unsure=24, normal=3))
    assert {name: number for name, number in found.items() if number} == {
        "read_first": 8, "abnormal": 17, "unsure": 67, "normal": 8,
    }  # fmt: skip
    assert counts_per_hundred(shares(unsure=1, normal=2))["normal"] == 67
    assert set(counts_per_hundred({}).values()) == {0}


# ---- header texts for views and body parts, and their meaning for a pack

_FRONTAL = """PA|AP|P.A.|a.-p.|P A|PA UPRIGHT|PAUPRIGHT|APSUPINE|SUPINEAP|(AP) (Mobile) Supine|AP_PORTABLE
THORAX AP|PA1|AP\\PA|POSTERO_ANTERIOR|POSTEROANTERIOR|Antero-Posterior|ANTERIOR TO POSTERIOR
postéro-antérieur|FRONTAL|DE FACE|FRENTE|ПРЯМАЯ|передня пряма|передньо-задня|正位|AP LLD
AP LAT DECUB|PA BILATERAL"""
_SIDE = """LATERAL|LAT|LL|RL|LLD|RLD|L LAT|RLAT|Lt. Lateral|LATÉRALE|PROFIL G|PERFIL|SEITLICH|BOCZNE
БОКОВАЯ|бічна|侧位|PA/LAT|OBLIQUE|LAO|RPO|OBLICUA|КОСАЯ|AP OBLIQUE|AXIAL|MLO|SAGITTAL|сагітальна
LEFT LATERAL DECUBITUS"""
_UNKNOWN_VIEWS = "CHEST|L|PLAIN|STANDING|1"
_CHEST = """CHEST|Thorax^CHEST_PA|CHEST, AP|PORTCHEST|TORAX|TÓRAX|TORACE|TORAKS|THORAKALE|POUMON|POUMONS
PULMON|PULMÃO|LUNGS|LUNGE|POLMONE|PŁUCA|KLATKA PIERSIOWA|HRUDNÍK|plíce|Göğüs|AKCİĞER|POITRINE
Brustkorb|ГРУДНАЯ КЛЕТКА|Органи грудної клітки|ОГК|ЛЁГКИЕ|легені|胸部|흉부|الصدر|CHEST ABDOMEN
THORACIC|C X R|THX|GÖĞÜS RÖNTGENİ|HRUDNÍ KOŠ|ΘΩΡΑΚΟΣ|CHEST THORACIC SPINE|胸片|胸腹部|HRUĎ A BŘICHO"""
_OTHERS = """HAND|KNEE|ABDOMEN|Abdominal|PELVIS|SKULL|T-SPINE|TSPINE|THORACIC SPINE|COLUMNA TORACICA
BRUSTWIRBELSÄULE|ГРУДНОЙ ОТДЕЛ ПОЗВОНОЧНИКА|RIBS|STERNUM|SHOULDER|CLAVICLE|ЧЕРЕП|коліно
EXTREMITY|UPPER EXTREMITY|WHOLE BODY|HIP|BREAST|MAMA|SENO
胸椎|胸腰椎|胸骨|胸鎖関節|KRĘGOSŁUP PIERSIOWY|ODCINEK PIERSIOWY|THX SPINE|HRUDNÍ PÁTEŘ|HRUDNÁ CHRBTICA|BRÖSTRYGG
BRYSTHVIRVEL|THORACALE WERVELKOLOM|THORACOLUMBAR|TORACOLOMBARE|COLOANA TORACALĂ|GÖĞÜS OMURGA|GRUDNA KRALJEŽNICA
CỘT SỐNG NGỰC|ΘΩΡΑΚΙΚΗ ΜΟΙΡΑ ΣΠΟΝΔΥΛΙΚΗΣ ΣΤΗΛΗΣ|ТОРАКАЛЬНИЙ ВІДДІЛ ХРЕБТА|Грудний відділ|العمود الفقري الصدري
SCHULTERSTELLUNG|DARSTELLUNG KNIE"""
_UNKNOWN_PARTS = "BEINSTELLUNG|COEUR|HEART|CHILD|ARMADILLO|XYZ"


def _each(*texts: str) -> list[str]:
    return [word for text in texts for line in text.splitlines() for word in line.split("|")]


@pytest.mark.parametrize(("texts", "saying"), [(_FRONTAL, "accepted"), (_SIDE, "other"), (_UNKNOWN_VIEWS, "unknown")])
def test_view_texts_are_understood(texts: str, saying: HeaderMatch) -> None:
    wrong = [text for text in _each(texts) if view_match(ImageHeader(view_position=text), HeaderRules()) != saying]
    assert wrong == []


@pytest.mark.parametrize(("texts", "saying"), [(_CHEST, "accepted"), (_OTHERS, "other"), (_UNKNOWN_PARTS, "unknown")])
def test_body_part_texts_are_understood(texts: str, saying: HeaderMatch) -> None:
    headers = [ImageHeader(body_part_examined=text) for text in _each(texts)]
    assert [one.body_part_examined for one in headers if body_part_match(one, HeaderRules()) != saying] == []


def test_texts_without_a_meaning_say_nothing() -> None:
    header = ImageHeader(view_position="n/a", body_part_examined=" - ")
    assert view_match(header, HeaderRules()) == body_part_match(header, HeaderRules()) == "nothing"


@pytest.mark.parametrize(
    ("position", "code", "saying"),
    [
        ("", "PA", "accepted"),
        ("", "LATERAL", "other"),
        ("PA", "LATERAL", "other"),
        ("LL", "AP", "other"),
        ("PA", "AP", "accepted"),
        ("CHEST", "PA", "accepted"),
        ("", "something of a clinic's own", "unknown"),
    ],
)
def test_view_position_and_view_code_are_both_used(position: str, code: str, saying: HeaderMatch) -> None:
    assert view_match(ImageHeader(view_position=position, view_code=code), HeaderRules()) == saying


@pytest.mark.parametrize(
    ("orientation", "saying", "notes"),
    [
        *((f"{across}\\F", "other", []) for across in ("P", "A", "ap", "PL")),
        ("L\\A", "other", []),
        *(("L\\F", "nothing", []), ("LP\\FA", "nothing", []), ("R\\F", "nothing", ["orientation_mirrored"])),
        *((turned, "nothing", ["orientation_turned"]) for turned in ("L\\H", "R\\H", "F\\R", "H\\L")),
        ("P\\H", "other", ["orientation_turned"]),
        *((silent, "nothing", []) for silent in ("", "\\", "L", "L\\R", "X\\F", "L\\F\\P")),
    ],
)
def test_patient_orientation_is_used_without_a_view_position(
    orientation: str, saying: HeaderMatch, notes: list[str]
) -> None:
    header, rules = ImageHeader(patient_orientation=orientation), HeaderRules()
    assert (view_match(header, rules), _notes(header, rules)) == (saying, notes)
    assert view_match(dataclasses.replace(header, view_position="UNKNOWN"), rules) == saying
    coded = dataclasses.replace(header, view_code="PA")  # a side view by either field is never accepted
    assert view_match(coded, rules) == ("other" if saying == "other" else "accepted")
    stated = dataclasses.replace(header, view_position="PA")
    assert (view_match(stated, rules), _notes(stated, rules)) == ("accepted", [])
    lateral = HeaderRules(views=("LATERAL",))
    assert view_match(header, lateral) == ("accepted" if set("PA") & set(orientation[0:1].upper()) else saying)


@pytest.mark.parametrize(
    ("facts", "is_raw"),
    [
        ({"presentation_intent_type": "FOR PROCESSING"}, True),
        ({"presentation_intent_type": "For Processing"}, True),
        ({"sop_class_uid": "1.2.840.10008.5.1.4.1.1.1.1.1"}, True),
        ({"sop_class_uid": "1.2.840.10008.5.1.4.1.1.1.2.1", "presentation_intent_type": "FOR PRESENTATION"}, True),
        ({"sop_class_uid": "1.2.840.10008.5.1.4.1.1.1.1", "presentation_intent_type": "FOR PRESENTATION"}, False),
        ({"sop_class_uid": "1.2.840.10008.5.1.4.1.1.1"}, False),
    ],
)
def test_raw_values_of_a_detector_are_known(facts: dict[str, str], is_raw: bool) -> None:
    assert is_for_processing(ImageHeader(**facts)) == is_raw


@pytest.mark.parametrize(
    ("image_type", "derivation", "is_other"),
    [
        *(
            (f"DERIVED\\PRIMARY\\{kind}", "", True)
            for kind in ("DUAL_ENERGY", "SOFT_TISSUE", "BONE", "ENERGY SUBTRACTED")
        ),
        *((f"DERIVED\\SECONDARY\\\\{kind}", "", True) for kind in ("SUBTRACTION", "DE", "BONE_SUPPRESSED", "RIB SUPP")),
        ("DERIVED\\PRIMARY", "Dual-energy subtraction", True),
        ("", "bone suppression by software", True),
        ("DERIVED\\PRIMARY", "Grid line subtraction, imagen de torax", False),
        *(
            (usual, "", False)
            for usual in ("", "ORIGINAL\\PRIMARY", "DERIVED\\SECONDARY\\OTHER", "ORIGINAL\\PRIMARY\\STANDARD")
        ),
    ],
)
def test_images_of_bone_soft_tissue_or_a_difference_are_known(image_type: str, derivation: str, is_other: bool) -> None:
    assert is_special_exposure(ImageHeader(image_type=image_type, derivation=derivation)) == is_other


def test_codes_of_both_snomed_schemes() -> None:
    # PS3.16 CID 4010: postero-anterior, antero-posterior, lateral, left lateral
    codes = ["272479007", "R-10214", "399348003", "R-10206", "399067008", "r-102cd", "R-10236 "]
    assert [view_of_code(code, "x") for code in codes] == ["PA", "PA", "AP", "AP", "LATERAL", "LATERAL", "LATERAL"]
    assert view_of_code("99CLINIC", "Left lateral") == "Left lateral"
    assert views_named_in("Left lateral") == {"LATERAL"}


def test_a_pack_for_other_body_parts_lists_its_own_terms() -> None:
    rules = HeaderRules(body_parts=("HAND",), views=("OBLIQUE", "SWIMMER"))
    assert body_part_match(ImageHeader(body_part_examined="WRIST"), rules) == "accepted"
    assert body_part_match(ImageHeader(body_part_examined="TORAX"), rules) == "other"
    assert view_match(ImageHeader(view_position="LAO"), rules) == "accepted"
    assert view_match(ImageHeader(view_position="swimmer"), rules) == "accepted"
    assert view_match(ImageHeader(view_position="PA"), rules) == "other"
    assert body_parts_named_in("CHEST, RIBS") == {"CHEST", "RIB"}


def test_a_lateral_or_other_view_is_refused_by_its_term() -> None:
    assert views_named_in("DECUBITUS") == views_named_in("LEFT LATERAL DECUBITUS") == {"LATERAL"}
    assert views_named_in("Waters") == views_named_in("MLO") == {"AXIAL"}
    assert views_named_in("AP LLD") == {"AP"}
    assert views_named_in("standing") == frozenset()


def test_the_word_frontal_is_accepted_only_by_packs_for_frontal_views() -> None:
    assert view_match(ImageHeader(view_position="FRONTAL"), HeaderRules(views=("AP",))) == "accepted"
    assert view_match(ImageHeader(view_position="FRONTAL"), HeaderRules(views=("OBLIQUE",))) == "other"


def test_a_packs_own_body_part_is_matched_in_any_letter_case() -> None:
    rules = HeaderRules(body_parts=("XYZZY",))
    assert body_part_match(ImageHeader(body_part_examined="left xyzzy"), rules) == "accepted"
    assert body_part_match(ImageHeader(body_part_examined="left xyz"), rules) == "unknown"

"""What clinics write for views and body parts, and what it means to a pack."""

from __future__ import annotations

import pytest

from fieldray.domain.header_words import Saying, body_part_says, body_parts_of, view_of_code, view_says, views_of
from fieldray.domain.model import HeaderRules
from fieldray.domain.study import ImageHeader

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
THORACIC|C X R"""
_OTHERS = """HAND|KNEE|ABDOMEN|Abdominal|PELVIS|SKULL|T-SPINE|TSPINE|THORACIC SPINE|COLUMNA TORACICA
BRUSTWIRBELSÄULE|ГРУДНОЙ ОТДЕЛ ПОЗВОНОЧНИКА|RIBS|STERNUM|SHOULDER|CLAVICLE|ЧЕРЕП|коліно
EXTREMITY|UPPER EXTREMITY|WHOLE BODY|HIP|BREAST|MAMA|SENO"""
_UNKNOWN_PARTS = "COEUR|HEART|CHILD|ARMADILLO|XYZ"


def _each(*texts: str) -> list[str]:
    return [word for text in texts for line in text.splitlines() for word in line.split("|")]


@pytest.mark.parametrize(("texts", "saying"), [(_FRONTAL, "accepted"), (_SIDE, "other"), (_UNKNOWN_VIEWS, "unknown")])
def test_views(texts: str, saying: Saying) -> None:
    wrong = [text for text in _each(texts) if view_says(ImageHeader(view_position=text), HeaderRules()) != saying]
    assert wrong == []


@pytest.mark.parametrize(("texts", "saying"), [(_CHEST, "accepted"), (_OTHERS, "other"), (_UNKNOWN_PARTS, "unknown")])
def test_body_parts(texts: str, saying: Saying) -> None:
    headers = [ImageHeader(body_part_examined=text) for text in _each(texts)]
    assert [one.body_part_examined for one in headers if body_part_says(one, HeaderRules()) != saying] == []


def test_what_says_nothing() -> None:
    header = ImageHeader(view_position="n/a", body_part_examined=" - ")
    assert view_says(header, HeaderRules()) == body_part_says(header, HeaderRules()) == "nothing"


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
def test_position_and_code_are_asked_both(position: str, code: str, saying: Saying) -> None:
    assert view_says(ImageHeader(view_position=position, view_code=code), HeaderRules()) == saying


def test_codes_of_both_snomed_schemes() -> None:
    # PS3.16 CID 4010: postero-anterior, antero-posterior, lateral, left lateral
    codes = ["272479007", "R-10214", "399348003", "R-10206", "399067008", "r-102cd", "R-10236 "]
    assert [view_of_code(code, "x") for code in codes] == ["PA", "PA", "AP", "AP", "LATERAL", "LATERAL", "LATERAL"]
    assert view_of_code("99CLINIC", "Left lateral") == "Left lateral"
    assert views_of("Left lateral") == {"LATERAL"}


def test_a_pack_for_something_else_names_its_own() -> None:
    rules = HeaderRules(body_parts=("HAND",), views=("OBLIQUE", "SWIMMER"))
    assert body_part_says(ImageHeader(body_part_examined="WRIST"), rules) == "accepted"
    assert body_part_says(ImageHeader(body_part_examined="TORAX"), rules) == "other"
    assert view_says(ImageHeader(view_position="LAO"), rules) == "accepted"
    assert view_says(ImageHeader(view_position="swimmer"), rules) == "accepted"
    assert view_says(ImageHeader(view_position="PA"), rules) == "other"
    assert body_parts_of("CHEST, RIBS") == {"CHEST", "RIB"}


def test_a_side_or_another_view_is_named_by_its_term() -> None:
    assert views_of("DECUBITUS") == views_of("LEFT LATERAL DECUBITUS") == {"LATERAL"}
    assert views_of("Waters") == views_of("MLO") == {"AXIAL"}
    assert views_of("AP LLD") == {"AP"}
    assert views_of("standing") == frozenset()


def test_frontal_is_accepted_only_where_a_frontal_view_is() -> None:
    assert view_says(ImageHeader(view_position="FRONTAL"), HeaderRules(views=("AP",))) == "accepted"
    assert view_says(ImageHeader(view_position="FRONTAL"), HeaderRules(views=("OBLIQUE",))) == "other"


def test_a_part_that_only_a_pack_knows_is_found_in_any_case() -> None:
    rules = HeaderRules(body_parts=("XYZZY",))
    assert body_part_says(ImageHeader(body_part_examined="left xyzzy"), rules) == "accepted"
    assert body_part_says(ImageHeader(body_part_examined="left xyz"), rules) == "unknown"

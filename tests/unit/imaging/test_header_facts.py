"""Values read from headers: ages, views and character sets that depart from the standard, and huge values."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from fieldray.domain.image import ImageHeader
from fieldray.imaging.dicom_text import decode_text
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import chest_phantom
from long_headers import HOSTILE, PIXELS, dicom_file, element
from phantoms import write_dicom

IMAGE = chest_phantom(64, 64, 1, abnormal=False)
_PLACEHOLDER = b"Q" * 64


def _header(folder: Path, **changes: Any) -> ImageHeader:
    write_dicom(folder / "a.dcm", IMAGE, changes=changes)
    [ref] = discover([folder])
    return ref.header


@pytest.mark.parametrize(
    ("age", "years"),
    [
        *(("018M", 18 * 30.4375 / 365.25), ("003W", 21 / 365.25), ("6M", 0.5), ("42", 42), ("042y", 42), ("Y045", 45)),
        *(("45 Y", 45), ("45Y.", 45), ("Y45Y", None), ("1000Y", None), ("999Y", None), ("x", None)),
    ],
)
def test_spellings_of_an_age(age: str, years: float | None, tmp_path: Path) -> None:
    assert _header(tmp_path, PatientAge=age).patient_age_years == (years if years is None else pytest.approx(years))


@pytest.mark.parametrize(
    ("changes", "stated", "contrary"),
    [
        # born on 1 March 2017: two years and 320 days old on 15 January 2020
        ({"PatientBirthDate": "20170301"}, 2.88, None),
        ({"PatientBirthDate": "2017.03.01"}, 2.88, None),
        ({"PatientBirthDate": "20170301", "PatientAge": "x"}, 2.88, None),
        ({"PatientBirthDate": "20170301", "StudyDate": "", "AcquisitionDate": "20200115"}, 2.88, None),
        ({"PatientBirthDate": "20170301", "StudyDate": None, "ContentDate": "20200115"}, 2.88, None),
        ({"PatientBirthDate": "20170301", "StudyDate": ""}, None, None),
        # the 18th birthday itself: 6,574 days are less than 18 times 365.25
        ({"PatientBirthDate": "20020115"}, 18.0, None),
        ({"PatientBirthDate": "201703"}, 2.84, None),
        ({"PatientBirthDate": "2017"}, 2.54, None),
        ({"PatientBirthDate": "19000101"}, None, None),  # a placeholder date
        ({"PatientBirthDate": "20210101"}, None, None),  # a birth date after the study
        ({"PatientBirthDate": "20170301", "PatientAge": "045Y"}, 45.0, 2.88),
        ({"PatientBirthDate": "20170301", "PatientAge": "034M"}, 2.83, None),
        ({"PatientBirthDate": "20170301", "PatientAge": "034W"}, 0.65, 2.88),
        ({"PatientAge": ["045Y", "046Y"]}, 45.0, None),
        ({"PatientAge": ["045Y", "004Y"]}, 45.0, 4.0),
    ],
)
def test_ages_by_statement_and_by_dates(
    changes: dict[str, Any], stated: float | None, contrary: float | None, tmp_path: Path
) -> None:
    header = _header(tmp_path, **{"PatientAge": "", "StudyDate": "20200115"} | changes)
    ages = (header.patient_age_years, header.contrary_age_years)
    assert ages == tuple(None if age is None else pytest.approx(age, abs=0.01) for age in (stated, contrary))


def _coded(value: str, meaning: str) -> Sequence:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, "SRT", meaning
    return Sequence([item])


def test_view_and_body_part_by_their_codes(tmp_path: Path) -> None:
    codes = {
        "ViewCodeSequence": _coded("R-10236", "left lateral"),
        "AnatomicRegionSequence": _coded("T-D3000", "Chest"),
    }
    header = _header(tmp_path, ViewPosition="", BodyPartExamined="", **codes)
    assert (header.view_position, header.view_code, header.view) == ("", "LATERAL", "LATERAL")
    assert header.body_part_examined == "Chest"
    assert _header(tmp_path, ViewPosition=["AP", "PA"]).view_position == "AP\\PA"
    made = {
        "PatientOrientation": ["P", "F"],
        "PresentationIntentType": "FOR PROCESSING",
        "ImageType": ["DERIVED", "PRIMARY", "BONE"],
        "DerivationDescription": "subtracted",
    }
    header = _header(tmp_path, **made)
    assert (header.patient_orientation, header.presentation_intent_type) == ("P\\F", "FOR PROCESSING")
    assert (header.image_type, header.derivation) == ("DERIVED\\PRIMARY\\BONE", "subtracted")
    assert _header(tmp_path, BurnedInAnnotation="YES").burned_in_annotation == "YES"


@pytest.mark.parametrize(
    ("declared", "letters", "name"),
    [
        (None, "cp1251", "Шевченко^Тарас"),
        ("ISO_IR 100", "cp1251", "Шевченко^Тарас"),
        ("ISO_IR 144", "cp1251", "Шевченко^Тарас"),
        ("ISO_IR 192", "cp1251", "Шевченко^Тарас"),
        ("nonsense", "cp1251", "ІВАНЕНКО^ІВАН"),
        ("ISO_IR 100", "utf-8", "Шевченко^Тарас"),
        (None, "utf-8", "김^희중"),
        ("ISO_IR 144", "iso8859_5", "Шевченко^Тарас"),
        (None, "latin_1", "Müller^Jörg"),
        ("ISO_IR 100", "latin_1", "Østergård^Åse"),
        ("ISO_IR 101", "iso8859_2", "Kováč^Ján"),
        ("ISO 2022 IR 149", "euc_kr", "김^희중"),
        ("GB18030", "gb18030", "王^小东"),
    ],
)
def test_a_name_in_a_recognisable_character_set_is_decoded(
    declared: str | None, letters: str, name: str, tmp_path: Path
) -> None:
    value = name.encode(letters)
    path = write_dicom(
        tmp_path / "a.dcm",
        IMAGE,
        changes={"PatientName": _PLACEHOLDER.decode(), "SpecificCharacterSet": declared or "ISO_IR 6"},
    )
    path.write_bytes(path.read_bytes().replace(_PLACEHOLDER, value.ljust(64)))
    [ref] = discover([tmp_path])
    assert ref.header.patient_name == name


@pytest.mark.parametrize(
    ("declared", "letters", "name"),
    [
        ("iso8859", "euc_kr", "김^희중"),
        ("latin_1", "euc_kr", "박^민수"),
        ("iso8859", "gb18030", "李^小明"),
        ("iso8859", "shift_jis", "山田^太郎"),
        ("iso8859", "koi8_r", "Шевченко^Тарас"),
        ("iso8859", "koi8_r", "ИВАНОВ^ИВАН"),  # йчбопч^йчбо in the Windows code page
        ("latin_1", "koi8_u", "ШЕВЧЕНКО^ТАРАС=Shevchenko^Taras"),
        ("iso_ir_144", "koi8_u", "ПЕТРЕНКО^ОКСАНА"),
        ("iso8859", "cp866", "Шевченко^Тарас"),
        ("iso8859", "cp1250", "Kováč^Ján"),
        ("latin_1", "iso8859_2", "Łukasz^Wałęsa"),
        ("UTF8", "gb18030", "王^小东"),
    ],
)
def test_uncertain_characters_are_marked_and_never_replaced_by_others(declared: str, letters: str, name: str) -> None:
    text = decode_text(name.encode(letters), [declared], is_name=True)
    assert "\N{REPLACEMENT CHARACTER}" in text
    assert all(letter.isascii() or letter == "\N{REPLACEMENT CHARACTER}" for letter in text)


def test_texts_other_than_names_may_have_signs_and_small_letters() -> None:
    assert decode_text("пряма проекція".encode("cp1251"), ["iso8859"], is_name=False) == "пряма проекція"
    assert decode_text("Thorax 90° ±5".encode("latin_1"), ["latin_1"], is_name=False) == "Thorax 90° ±5"


# ---- values that are short in the file and huge as objects: the program itself reads them, not a child

_MOST_MB = 64.0


def _peak_mb(path: Path) -> float:
    tracemalloc.start()
    try:
        assert len(list(discover([path]))) == 1, "a file gives a row, whatever is wrong with it"
        return (tracemalloc.get_traced_memory()[1] - path.stat().st_size) / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_takes_little_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(HOSTILE[name]())
    import fieldray.imaging.dicom_identify  # noqa: F401 - its import does not count as memory of the header

    assert _peak_mb(path) < _MOST_MB


def test_a_value_longer_than_its_representation_allows_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(
        dicom_file(element(0x00100020, b"A\\" * 5_000), element(0x00280008, b"2\\" * 5_000), PIXELS)
    )
    (found,) = discover([tmp_path])
    assert (found.header.patient_id, found.header.number_of_frames) == ("", 1)


def test_an_overlong_transfer_syntax_is_cut(tmp_path: Path) -> None:
    meta = bytes(128) + b"DICM" + element(0x00020010, b"1.2.840.10008.1.2" + b".1" * 50_000)
    (tmp_path / "a").write_bytes(meta + PIXELS)
    (found,) = discover([tmp_path])
    assert len(found.header.transfer_syntax_uid) <= 200

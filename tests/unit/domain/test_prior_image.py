"""Which images are priors: by what two headers state about patient and day, never by guessing."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.domain.finding import ImageFacts, RefusedOutcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.patient import match_patients, patient_key
from fieldray.domain.prior_image import (
    TimeGap,
    gap_between,
    prior_from,
    prior_warnings,
    priors_of,
    time_order,
    unscreened_outcome,
)
from fieldray.reasons import reason

BASE = ImageHeader(patient_id="PX-1", patient_birth_date="19600214", patient_sex="F", study_date="20240405")


def header(**changes: object) -> ImageHeader:
    return replace(BASE, **changes)  # type: ignore[arg-type]


def outcome(name: str, *, content: str = "", **changes: object) -> RefusedOutcome:
    """An image with this header; the kind of outcome does not matter here."""
    ref = ImageRef(path=Path(f"/images/{name}.dcm"), kind="dicom", header=header(**changes))
    return RefusedOutcome(ref=ref, reason=reason("view", view="LL"), facts=ImageFacts(content_sha256=content))


CURRENT = outcome("current", content="c", study_instance_uid="1.1", sop_instance_uid="1.1.1", study_time="0930")


@pytest.mark.parametrize(
    ("changes", "patient_match"),
    [
        ({}, "same"),
        ({"patient_id": " PX-1 "}, "same"),
        ({"patient_name": "MARRIED^SINCE"}, "same"),
        ({"patient_birth_date": ""}, "same"),
        ({"patient_birth_date": "1960"}, "same"),
        ({"patient_sex": "O"}, "same"),
        ({"patient_id": "PX-2"}, "other"),
        ({"patient_id": "px-1"}, "other"),
        ({"patient_birth_date": "19600215"}, "other"),
        ({"patient_sex": "M"}, "other"),
        ({"patient_id": ""}, "unknown"),
        ({"patient_id": "   "}, "unknown"),
        ({"patient_id": "", "patient_birth_date": "19600215"}, "other"),
        ({"patient_id": "", "patient_sex": "M"}, "other"),
    ],
)
def test_patients_are_matched_by_id_birth_date_and_sex(changes: dict[str, str], patient_match: str) -> None:
    assert match_patients(header(**changes), BASE) == match_patients(BASE, header(**changes)) == patient_match


_NOBODY = """0|000000|ANONYMOUS|Anonymized|anon|unknown|N/A|???|-|X|UNK|NOT AVAILABLE|UNIDENTIFIED|NO NUMBER|No ID|nil
EMERGENCY|TEMP|Anonymous Patient|UNKNOWN^0000|невідомо|Невідомий|неизвестно|н/д|б/н|без номера|немає|A-\ufffd12"""
_SOMEBODY = "10|X1|TEMP 12|UNKNOWN-7|Anna|Нема 3|NO-5|x0y|#"


@pytest.mark.parametrize(("numbers", "patient_match"), [(_NOBODY, "unknown"), (_SOMEBODY, "same")])
def test_placeholder_patient_ids_match_nobody(numbers: str, patient_match: str) -> None:
    headers = [header(patient_id=number) for line in numbers.splitlines() for number in line.split("|")]
    assert [one.patient_id for one in headers if match_patients(one, one) != patient_match] == []


@pytest.mark.parametrize(
    ("image", "current", "order"),
    [
        (("20240404", ""), ("20240405", ""), "earlier"),
        (("20240406", "0000"), ("20240405", "2359"), "later"),
        (("20240405", "0929"), ("20240405", "093000.5"), "earlier"),
        (("20240405", "0931"), ("20240405", "093000"), "later"),
        (("20240405", "093010"), ("20240405", "093050"), "same"),
        (("20240405", ""), ("20240405", "0930"), "unknown"),
        (("20240405", "25"), ("20240405", "0930"), "unknown"),
        (("", "0900"), ("20240405", "0930"), "unknown"),
        (("20240231", "0900"), ("20240405", "0930"), "unknown"),
        (("00000000", ""), ("20240405", ""), "unknown"),
        (("17000101", ""), ("20240405", ""), "unknown"),
        (("٢٠٢٤٠٤٠٤", ""), ("20240405", ""), "unknown"),
    ],
)
def test_the_order_of_two_images_follows_study_dates_and_times(
    image: tuple[str, str], current: tuple[str, str], order: str
) -> None:
    first, second = (header(study_date=day, study_time=time) for day, time in (image, current))
    assert time_order(first, second) == order
    mirrored = {"earlier": "later", "later": "earlier"}.get(order, order)
    assert time_order(second, first) == mirrored


@pytest.mark.parametrize(
    ("image", "current", "gap"),
    [
        (("20210205", ""), ("20240405", ""), TimeGap(3, 2, 0)),
        (("20240405", ""), ("20210205", ""), TimeGap(3, 2, 0)),
        (("20230406", ""), ("20240405", ""), TimeGap(0, 11, 30)),  # 11 months to 6 March, and 30 days
        (
            ("20240131", ""),
            ("20240301", ""),
            TimeGap(0, 1, 1),
        ),  # a month to 29 February, its last day, and one more day
        (("20230331", ""), ("20240229", ""), TimeGap(0, 10, 29)),
        (("20240404", ""), ("20240405", ""), TimeGap(0, 0, 1)),
        (("20240405", "0930"), ("20240405", "1240"), TimeGap(0, 0, 0, 190)),
        (("20240405", ""), ("20240405", "1240"), TimeGap(0, 0, 0)),
        (("19940405", "0930"), ("20240405", "1240"), TimeGap(30, 0, 0)),
    ],
)
def test_the_gap_is_counted_by_the_calendar(image: tuple[str, str], current: tuple[str, str], gap: TimeGap) -> None:
    first, second = (header(study_date=day, study_time=time) for day, time in (image, current))
    assert gap_between(first, second) == gap


def test_without_a_date_there_is_no_gap() -> None:
    assert gap_between(header(study_date=""), BASE) is None


def test_priors_are_of_the_same_patient_earlier_and_the_newest_first() -> None:
    old = outcome("old", study_date="20200101", content="1")
    new = outcome("new", study_date="20230101", content="2")
    undated = outcome("undated", study_date="", content="3")
    later = outcome("later", study_date="20250101", content="4")
    another = outcome("another", patient_id="PX-2", study_date="20230101", content="5")
    nobody = outcome("nobody", patient_id="", study_date="20230101", content="6")
    same_study = outcome("lateral of the day", study_instance_uid="1.1", study_date="20240405", content="7")
    found = priors_of(
        CURRENT, [("run", one) for one in (old, undated, later, another, nobody, same_study, CURRENT, new)]
    )
    assert [prior.outcome for prior in found] == [new, old, undated]
    assert [prior.time_order for prior in found] == ["earlier", "earlier", "unknown"]


def test_of_one_study_the_frontal_image_comes_first() -> None:
    lateral = outcome("lateral", study_date="20230101", view_position="LL")
    frontal = outcome("frontal", study_date="20230101", view_position="PA")
    assert [prior.outcome for prior in priors_of(CURRENT, [("run", lateral), ("run", frontal)])] == [frontal, lateral]


def test_the_same_image_twice_is_one_prior_and_itself_is_none() -> None:
    here = outcome("here", study_date="20230101", content="1")
    copy = outcome("copy", study_date="20230101", content="1")
    by_instance = outcome("by instance", study_date="", sop_instance_uid="1.1.1", content="9")
    own_copy = outcome("own copy", study_date="20230101", content="c")
    found = priors_of(CURRENT, [("run", here), ("history", copy), ("run", by_instance), ("run", own_copy)])
    assert [(prior.outcome, prior.origin) for prior in found] == [(here, "run")]


@pytest.mark.parametrize(
    ("changes", "is_prior"),
    [
        ({"content": "9", "study_date": "20230101"}, True),
        ({"content": "9", "study_date": "", "study_instance_uid": "1.2"}, True),
        ({"content": "9", "study_date": "2024.04.05"}, False),  # the day of the current image, written in another form
        ({"content": "", "study_date": "20230101", "study_instance_uid": "1.2"}, False),
    ],
)
def test_a_reused_uid_does_not_hide_a_prior(changes: dict[str, str], is_prior: bool) -> None:
    other = outcome("again", sop_instance_uid="1.1.1", **changes)
    warnings = [doubt.code for doubt in prior_warnings(prior_from(other, CURRENT, "run"), CURRENT)]
    assert (len(priors_of(CURRENT, [("run", other)])), "prior_same_image" not in warnings) == (is_prior, is_prior)


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"study_date": "20230101"}, []),
        ({"study_date": "20230101", "patient_id": "PX-2"}, ["prior_other_patient"]),
        ({"study_date": "20230101", "patient_id": ""}, ["prior_unknown_patient"]),
        ({"study_date": "20250101"}, ["prior_later"]),
        ({"study_date": ""}, ["prior_order_unknown"]),
        ({"study_time": "093047"}, ["prior_order_same"]),
        ({"study_date": "20230101", "view_position": "LL"}, ["prior_other_view"]),
    ],
)
def test_a_doubtful_pair_gets_warnings(changes: dict[str, str], codes: list[str]) -> None:
    prior = prior_from(outcome("chosen", content="1", **changes), CURRENT, "file")
    assert [doubt.code for doubt in prior_warnings(prior, CURRENT)] == codes


def test_images_grouped_in_the_list_are_of_one_patient() -> None:
    said = itertools.product(
        ("PX-1", " PX-1 ", "px-1", "", "unknown", "0"), ("19600214", "19610214", ""), ("F", "M", "")
    )
    refs = [
        ImageRef(
            path=Path(f"/images/{place}.dcm"),
            header=header(patient_id=number, patient_birth_date=birth, patient_sex=sex),
        )
        for place, (number, birth, sex) in enumerate(said)
    ]
    together = [pair for pair in itertools.combinations(refs, 2) if patient_key(pair[0]) == patient_key(pair[1])]
    assert len(together) == 9  # the same number, written with and without blanks
    assert {match_patients(one.header, other.header) for one, other in together} == {"same"}


def test_the_current_image_chosen_as_its_own_prior_gets_a_warning() -> None:
    same = prior_from(unscreened_outcome(CURRENT.ref), CURRENT, "file")
    assert [doubt.code for doubt in prior_warnings(same, CURRENT)] == ["prior_same_image"]

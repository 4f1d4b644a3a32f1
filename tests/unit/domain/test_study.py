from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.domain.image import ImageHeader, ImageRef

FRAMES = ImageHeader(number_of_frames=3)
PATH = Path("/images/a.dcm")


def test_every_image_of_a_run_has_a_key_of_its_own() -> None:
    refs = [
        ImageRef(path=PATH),
        ImageRef(path=PATH, zip_member="b.dcm"),
        ImageRef(path=PATH, zip_member=""),
        *(ImageRef(path=PATH, zip_member="c.dcm", frame=frame, header=FRAMES) for frame in range(3)),
    ]
    assert len({ref.key for ref in refs}) == len(refs)
    assert [ref.key for ref in refs[:2]] == [str(PATH), f"{PATH}!b.dcm"]
    assert refs[-1].key == f"{PATH}!c.dcm#2"


def test_the_key_of_a_single_frame_has_no_frame_number() -> None:
    assert ImageRef(path=PATH, frame=0).key == str(PATH)
    with pytest.raises(ValueError, match="frame must be 0 or more"):
        ImageRef(path=PATH, frame=-1)


def test_a_study_is_identified_by_its_uid_or_its_only_image() -> None:
    assert ImageRef(path=PATH, header=ImageHeader(study_instance_uid="1.2.3")).patient_study_key == "1.2.3"
    assert ImageRef(path=PATH).patient_study_key == ImageRef(path=PATH).study_or_image_key == str(PATH)


def test_one_study_uid_with_two_patients_makes_two_studies() -> None:
    def key(**header: str) -> str:
        ref = ImageRef(path=PATH, header=ImageHeader(study_instance_uid="1.2.3", **header))
        assert ref.study_or_image_key == "1.2.3"
        return ref.patient_study_key

    assert key(patient_id="A", patient_name="Alpha^Anna") == key(patient_id="A ", patient_name="Alpha")
    people = [{"patient_id": "A"}, {"patient_id": "B"}, {"patient_name": "Alpha^Anna"}, {"patient_name": "Beta^Boris"}]
    people += [{"patient_name": "Alpha^Anna", "patient_birth_date": "19700101"}, {"patient_sex": "F"}, {}]
    people += [{"patient_id": "UNKNOWN", "patient_name": name} for name in ("Gamma^Galyna", "Delta^Denys")]
    people += [{"patient_id": "\ufffd-12", "patient_name": name} for name in ("Eta^Emil", "Theta^Taras")]
    assert len({key(**person) for person in people}) == len(people)

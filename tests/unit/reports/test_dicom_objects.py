"""DICOM reports: content, patient and study references, and that independent libraries and programs read them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames

from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.image import Correction, ImageHeader
from fieldray.domain.run import Verdict
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import chest_phantom
from fieldray.reasons import reason
from fieldray.reports.dicom_images import CAPTURE_SIDE_PX, capture_layout, mask_on_capture
from fieldray.reports.dicom_instance import derived_uid, is_valid_uid
from fieldray.reports.exporter import Exporter, ReportOptions, is_own_dicom
from fieldray.reports.exporters import sc, seg, sr
from fieldray.reports.outputs import is_own_report
from outcomes import failed, refused
from pairs import compared_with
from phantoms import write_collection
from report_programs import iod_errors, needs, orthanc
from report_programs import said as printed
from report_runs import NAMES, results_of, run_with, screened_files, with_header, write_frames

NAMED = ReportOptions(names_people=True)
WRITERS = (sr.EXPORTER, sc.EXPORTER, seg.EXPORTER)


@pytest.fixture
def highdicom() -> ModuleType:
    """An independent library that reads the objects by the standard's rules."""
    return pytest.importorskip("highdicom", reason="highdicom needs pyjpegls, which has no files for this Python")


def written(folder: Path, exporter: Exporter, outcomes: list[ScreenedOutcome], **options: object) -> list[Dataset]:
    """The DICOM objects that an exporter writes for these outcomes."""
    path = folder / exporter.name
    exporter.write(path, run_with(results_of(outcomes), options=ReportOptions(**options)))  # type: ignore[arg-type]
    return [dcmread(file) for file in sorted(path.iterdir())]


@pytest.fixture(params=WRITERS, ids=lambda exporter: exporter.name)
def exporter(request: pytest.FixtureRequest) -> Exporter:
    return request.param


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> list[ScreenedOutcome]:
    """An image of each kind of file."""
    folder = tmp_path_factory.mktemp("images")
    write_collection(folder)
    write_frames(folder / "frames.dcm", 2)
    write_frames(folder / "wrong-class.dcm", 2, sop_class_uid="1.2.840.10008.5.1.4.1.1.1.1")
    return screened_files([folder])


def test_there_is_an_object_for_every_kind_of_image(
    exporter: Exporter, collection: list[ScreenedOutcome], tmp_path: Path
) -> None:
    objects = written(tmp_path, exporter, collection)
    assert len(objects) == len(collection) > 40
    assert len({made.SOPInstanceUID for made in objects}) == len(objects)
    for outcome, made in zip(collection, objects, strict=True):
        header = outcome.ref.header
        assert all(map(is_valid_uid, (made.SOPInstanceUID, made.SeriesInstanceUID, made.StudyInstanceUID)))
        assert made.SOPInstanceUID != header.sop_instance_uid
        if header.study_instance_uid:
            assert made.StudyInstanceUID == header.study_instance_uid
            assert "StudyDescription" not in made
        else:
            assert "without DICOM data" in made.StudyDescription


def test_a_structured_report_has_all_results(one: ScreenedOutcome, tmp_path: Path, highdicom: ModuleType) -> None:
    path = tmp_path / "sr"
    result = replace(results_of([one])[0], verdict=Verdict(choice="disagree", note="тінь ребра"))
    sr.EXPORTER.write(path, run_with([result]))
    content = highdicom.sr.srread(path / "00001.dcm").content
    (group,) = content.get_image_measurement_groups()
    values = {item.name.value: float(item.value) for item in group.get_measurements()}
    # POINT: threshold 0.5, uncertain 0.4 to 0.6; sensitivity 0.9 (0.8 to 0.95), specificity 0.7 (0.6 to 0.8)
    assert values == {
        "score": 0.8,
        "threshold": 0.5,
        "unsure-low": 0.4,
        "unsure-high": 0.6,
        "sensitivity": 90,
        "sensitivity-low": 80,
        "sensitivity-high": 95,
        "specificity": 70,
        "specificity-low": 60,
        "specificity-high": 80,
    }
    assert group.finding_type.value == "opacity"
    assert [found.value.value for found in group.get_qualitative_evaluations()] == ["above", "abnormal"]
    (image,) = group.source_images
    assert image.referenced_sop_instance_uid == one.ref.header.sop_instance_uid
    texts = {element.value for element in dcmread(path / "00001.dcm").iterall() if element.keyword == "TextValue"}
    assert texts >= {
        "Fieldray: tiny-1.0.0",
        "1.0.0",
        "Model SHA-256 " + "m" * 64,
        "Lung fields lungs-1.0.0 0123456789ab",
        "Research use only. Not for diagnostic use.",
        "Reader's verdict: disagree. тінь ребра",
    }


def test_a_secondary_capture_has_the_image_and_is_labelled(one: ScreenedOutcome, tmp_path: Path) -> None:
    (made,) = written(tmp_path, sc.EXPORTER, [one])
    assert list(made.ImageType) == ["DERIVED", "SECONDARY"]
    assert made.SourceImageSequence[0].ReferencedSOPInstanceUID == one.ref.header.sop_instance_uid
    (frame,) = generate_frames(made.PixelData, number_of_frames=1)
    picture = np.asarray(Image.open(io.BytesIO(frame)).convert("RGB")).astype(int)
    layout = capture_layout(160, 128)
    assert picture.shape == (layout.rows, layout.columns, 3) == (made.Rows, made.Columns, 3)
    assert layout.image_height == CAPTURE_SIDE_PX
    panel = picture[layout.image_height :]
    assert (panel > 200).any()  # text on a dark background
    assert np.median(panel) < 40
    outline = (picture[..., 2] - picture[..., 0] > 90) & (picture[..., 1] > 150)
    assert outline[: layout.image_height].sum() > 500  # a grey image has no coloured outline of the lungs


def test_a_segmentation_matches_the_image_grid(one: ScreenedOutcome, tmp_path: Path, highdicom: ModuleType) -> None:
    path = tmp_path / "seg"
    seg.EXPORTER.write(path, run_with(results_of([one])))
    found = highdicom.seg.segread(path / "00001.dcm")
    assert one.lungs is not None
    assert np.array_equal(found.pixel_array.astype(bool), one.lungs.mask_at_image_size(rows=160, columns=128))
    assert found.get_segment_description(1).segmented_property_type.meaning == "Lung"
    reference = found.PerFrameFunctionalGroupsSequence[0].DerivationImageSequence[0].SourceImageSequence[0]
    assert reference.ReferencedSOPInstanceUID == one.ref.header.sop_instance_uid


def test_for_a_turned_image_the_segmentation_matches_the_file(
    one: ScreenedOutcome, tmp_path: Path, highdicom: ModuleType
) -> None:
    turn, path = Correction(90), tmp_path / "seg"
    sizes = replace(one.facts, rows=128, columns=160)
    wished = replace(one, ref=replace(one.ref, correction=turn), facts=sizes, notes=(reason("turned_back"),))
    seg.EXPORTER.write(path, run_with(results_of([wished])))
    found = highdicom.seg.segread(path / "00001.dcm").pixel_array.astype(bool)
    assert one.lungs is not None
    mask = one.lungs.mask_at_image_size(rows=128, columns=160)
    assert np.array_equal(turn.rotate(found), mask)
    (upright,) = written(tmp_path, sc.EXPORTER, [one])
    (lying,) = written(tmp_path / "lying", sc.EXPORTER, [wished])
    # the file has 160 x 128 pixels, so turned it shows 128 x 160
    assert (upright.Rows, lying.Rows) == (capture_layout(160, 128).rows, capture_layout(128, 160).rows)
    (report,) = written(tmp_path, sr.EXPORTER, [wished])
    assert wished.notes[0].text in [item.get("TextValue") for item in last_group(report)]
    seg.EXPORTER.write(tmp_path / "png", run_with(results_of([with_header(wished, sop_instance_uid="")])))
    of_png = highdicom.seg.segread(tmp_path / "png" / "00001.dcm").pixel_array.astype(bool)
    assert np.array_equal(of_png, mask_on_capture(mask))


def test_reports_on_a_png_refer_to_its_secondary_capture(tmp_path: Path) -> None:
    Image.fromarray((chest_phantom(160, 128, seed=1, abnormal=True) >> 4).astype(np.uint8)).save(tmp_path / "image.png")
    outcomes = screened_files([tmp_path / "image.png"])
    ((capture,), (report,), (lungs,)) = (
        written(tmp_path, exporter, outcomes) for exporter in (sc.EXPORTER, sr.EXPORTER, seg.EXPORTER)
    )
    assert capture.StudyInstanceUID == report.StudyInstanceUID == lungs.StudyInstanceUID
    (study,) = report.CurrentRequestedProcedureEvidenceSequence
    (series,) = study.ReferencedSeriesSequence
    assert series.SeriesInstanceUID == capture.SeriesInstanceUID
    assert series.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == capture.SOPInstanceUID
    assert lungs.ReferencedSeriesSequence[0].ReferencedInstanceSequence[0].ReferencedSOPInstanceUID == (
        capture.SOPInstanceUID
    )
    assert (lungs.Rows, lungs.Columns) == (capture.Rows, capture.Columns)


def test_a_frame_is_referred_to_by_its_number(tmp_path: Path) -> None:
    write_frames(tmp_path / "frames.dcm", 3)
    objects = written(tmp_path, sc.EXPORTER, screened_files([tmp_path / "frames.dcm"]))
    assert [made.SourceImageSequence[0].ReferencedFrameNumber for made in objects] == [1, 2, 3]
    assert len({made.SourceImageSequence[0].ReferencedSOPInstanceUID for made in objects}) == 1
    assert len({made.SOPInstanceUID for made in objects}) == 3


def test_patients_are_named_only_on_request(exporter: Exporter, one: ScreenedOutcome, tmp_path: Path) -> None:
    person = with_header(
        one,
        patient_name="Шевченко^Тарас",
        patient_id="1814-03-09",
        patient_birth_date="18140309",
        accession_number="A7",
    )
    (made,) = written(tmp_path / "alias", exporter, [person])
    assert made.PatientIdentityRemoved == ("NO" if exporter is sc.EXPORTER else "YES")  # its pixels were not cleaned
    assert str(made.PatientName) == f"{made.PatientID}^"
    assert made.PatientID.startswith("FR-")
    assert (made.PatientBirthDate, made.AccessionNumber, made.StudyID) == ("", "", "")
    stored = (tmp_path / "alias" / exporter.name / "00001.dcm").read_bytes()
    assert not any(word.encode() in stored for word in ("Шевченко", "Тарас", "1814-03", "181403"))
    (named,) = written(tmp_path / "named", exporter, [person], names_people=True)
    assert (str(named.PatientName), named.PatientID, named.PatientBirthDate) == (
        "Шевченко^Тарас",
        "1814-03-09",
        "18140309",
    )
    assert named.AccessionNumber == "A7"
    assert "PatientIdentityRemoved" not in named


@pytest.mark.parametrize(("stated", "is_removed"), [("YES", "NO"), ("NO", "YES"), ("", "NO")])
def test_a_capture_states_burned_in_annotation(
    one: ScreenedOutcome, tmp_path: Path, stated: str, is_removed: str
) -> None:
    image = with_header(one, burned_in_annotation=stated)
    (made,) = written(tmp_path, sc.EXPORTER, [image])
    assert (made.get("BurnedInAnnotation", ""), made.PatientIdentityRemoved) == (stated, is_removed)
    (named,) = written(
        tmp_path / "named", sc.EXPORTER, [with_header(one, burned_in_annotation=stated)], names_people=True
    )
    assert "PatientIdentityRemoved" not in named


PEOPLE = [
    *NAMES,
    *("", "^^^^", "a" * 10_000, "=" * 50),
    *("\u202eevil\u202c^\x00\x1b[2J\n", "back\\slash^name", "one^two^three^four^five^six^seven", "😀^smile"),
]


def test_any_valid_name_is_written_and_read_back(exporter: Exporter, one: ScreenedOutcome, tmp_path: Path) -> None:
    people = [with_header(one, patient_name=name, patient_id=name) for name in PEOPLE]
    objects = written(tmp_path, exporter, people, names_people=True)
    names = [str(made.PatientName) for made in objects]
    assert names[:8] == PEOPLE[:8]
    assert all(len(made.PatientID) <= 64 for made in objects)
    assert "\u202e" not in "".join(names)
    # Values that no name may have are left out; pydicom checks the others while it reads and writes.
    assert not any(letter in "".join(names) for letter in "\\\x00\x1b\n")


def test_an_undecodable_name_is_left_out(exporter: Exporter, one: ScreenedOutcome, tmp_path: Path) -> None:
    person = with_header(one, patient_name="\ufffd\ufffd^Anna", patient_id="7")
    (made,) = written(tmp_path, exporter, [person], names_people=True)
    assert (str(made.PatientName), made.PatientID) == ("", "7")


def test_lung_masks_match_files_with_non_square_pixels(one: ScreenedOutcome, tmp_path: Path) -> None:
    """The image was screened with half as many columns as the file has."""
    (square,) = written(tmp_path / "square", seg.EXPORTER, [one])
    (wide,) = written(tmp_path / "wide", seg.EXPORTER, [with_header(one, columns=2 * one.ref.header.columns)])
    assert (wide.Rows, wide.Columns) == (square.Rows, 2 * square.Columns)
    np.testing.assert_array_equal(wide.pixel_array, np.repeat(square.pixel_array, 2, axis=1))


@pytest.mark.parametrize("names_people", [True, False])
def test_two_patients_of_one_study_share_no_series(
    exporter: Exporter, names_people: bool, one: ScreenedOutcome, tmp_path: Path
) -> None:
    people = [with_header(one, patient_name=name, patient_id="") for name in ("Alpha^Anna", "Beta^Boris", "Beta^Boris")]
    objects = written(tmp_path, exporter, people, names_people=names_people)
    first, second, third = (made.SeriesInstanceUID for made in objects)
    assert first != second == third
    assert (objects[0].PatientID, str(objects[0].PatientName)) != (objects[1].PatientID, str(objects[1].PatientName))


@pytest.mark.parametrize(
    "changes",
    [
        {"study_instance_uid": "not a uid"},
        {"study_instance_uid": "1." + "9" * 80},
        {"study_instance_uid": "1.02.3"},
        {"study_instance_uid": ""},
        {"sop_instance_uid": "1.2..3"},
        {"sop_class_uid": ""},
        {"series_instance_uid": "x"},
        {"study_date": "31.12.2020", "study_time": "noon", "patient_sex": "unknown", "patient_birth_date": "?"},
        {"study_id": "a" * 200, "accession_number": "b\\c" * 50, "manufacturer": "\u202e" * 300},
        {"patient_id": ""},
    ],
)
def test_a_wrong_header_does_not_make_an_invalid_object(
    exporter: Exporter, changes: dict[str, str], one: ScreenedOutcome, tmp_path: Path
) -> None:
    (made,) = written(tmp_path, exporter, [with_header(one, **changes)], names_people=True)
    uids = [element.value for element in made.iterall() if element.VR == "UI" and element.value]
    assert all(is_valid_uid(str(uid)) for uid in uids)
    assert made.StudyDate in ("", "20240101", one.ref.header.study_date)


def test_a_file_without_any_header_has_a_study_of_its_own(one: ScreenedOutcome, tmp_path: Path) -> None:
    bare = replace(one, ref=replace(one.ref, header=ImageHeader()))
    other = replace(bare, facts=replace(bare.facts, content_sha256="d" * 64))
    first, second, again = written(tmp_path, sr.EXPORTER, [bare, other, bare])
    assert "names no valid study" in first.StudyDescription
    assert first.StudyInstanceUID == again.StudyInstanceUID != second.StudyInstanceUID


def test_the_same_result_gives_the_same_uid_and_another_result_another(one: ScreenedOutcome, tmp_path: Path) -> None:
    (first,) = written(tmp_path / "1", sr.EXPORTER, [one])
    (again,) = written(tmp_path / "2", sr.EXPORTER, [one])
    assert first == again
    path = tmp_path / "3"
    sr.EXPORTER.write(path, run_with(results_of([one], verdict=Verdict(choice="agree"))))
    assert dcmread(path / "00001.dcm").SOPInstanceUID != first.SOPInstanceUID
    assert derived_uid("a", "b") == derived_uid("a", "b") != derived_uid("ab")


def test_each_copy_of_an_image_gets_its_own_objects(one: ScreenedOutcome, tmp_path: Path) -> None:
    copy = replace(one, ref=replace(one.ref, path=one.ref.path.with_name("copy.dcm")))
    objects = written(tmp_path, sr.EXPORTER, [one, copy])
    assert len({made.SOPInstanceUID for made in objects}) == 2


def test_without_screened_images_no_object_is_written(exporter: Exporter, tmp_path: Path) -> None:
    for number, outcomes in enumerate(([], [refused(), failed()])):
        path = tmp_path / str(number)
        exporter.write(path, run_with(results_of(outcomes)))  # type: ignore[arg-type]
        assert not path.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == []


def test_objects_are_not_screened_in_the_next_run(exporter: Exporter, one: ScreenedOutcome, tmp_path: Path) -> None:
    written(tmp_path, exporter, [one])
    head = (tmp_path / exporter.name / "00001.dcm").read_bytes()[:4096]
    assert is_own_dicom(head)
    assert not is_own_dicom(one.ref.path.read_bytes()[:4096])
    notes = []
    refs = list(discover([tmp_path], is_own_report=is_own_report, notify=notes.append))
    assert [ref.path for ref in refs if ref.problem is None] == [one.ref.path]
    marked = [ref for ref in refs if ref.problem is not None]
    if exporter.name == "sr":  # no image
        assert marked == [] and [why.code for why in notes] == ["own_reports"]
    else:  # a patient's image cannot be hidden by writing the mark into it
        assert [(ref.problem, ref.problem_is_refusal) for ref in marked] == [(reason("own_image"), True)]


# ---- an image that was compared with a prior one


def last_group(made: Dataset) -> list[Dataset]:
    measurements = made.ContentSequence[-1].ContentSequence
    return list(measurements[-1].ContentSequence)


def test_the_prior_image_of_a_pair_is_referred_to(one: ScreenedOutcome, tmp_path: Path, highdicom: ModuleType) -> None:
    (made,) = written(tmp_path, sr.EXPORTER, [one], prior_comparisons=(compared_with(one),))
    items = last_group(made)
    images = [item.ReferencedSOPSequence[0].ReferencedSOPInstanceUID for item in items if item.ValueType == "IMAGE"]
    assert images == [one.ref.header.sop_instance_uid, "1.2.840.7.3"]
    (study,) = made.PertinentOtherEvidenceSequence
    assert study.StudyInstanceUID == "1.2.840.7.1"
    assert study.ReferencedSeriesSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID == "1.2.840.7.3"
    assert [item.Date for item in items if item.ValueType == "DATE"] == ["20210205"]
    numbers = [float(item.MeasuredValueSequence[0].NumericValue) for item in items if item.ValueType == "NUM"]
    assert numbers == [0.83, 2]
    said = " ".join(item.TextValue for item in items if item.ValueType == "TEXT")
    assert "Differences between two images do not show the course of a disease." in said
    assert "Region 1: left 20, top 10, 40 x 30 px of the image fitted into 512 px: denser, 5.0 times the noise." in said
    read = highdicom.sr.ComprehensiveSR.from_dataset(made)
    assert len(read.content.get_image_measurement_groups()) == len(one.findings) + 1


def test_a_pair_that_was_not_comparable_is_named_with_the_reason(one: ScreenedOutcome, tmp_path: Path) -> None:
    pair = compared_with(
        one, similarity=None, regions=(), not_comparable_reason=reason("compare_unlike"), patient_match="other"
    )
    (made,) = written(tmp_path, sr.EXPORTER, [one], prior_comparisons=(pair,))
    items = last_group(made)
    assert not [item for item in items if item.ValueType == "NUM"]
    said = " ".join(item.TextValue for item in items if item.ValueType == "TEXT")
    assert "The images are not comparable. The two images differ too much" in said
    assert "The two images show different patients" in said


def test_a_prior_without_uids_is_named_by_its_day_alone(one: ScreenedOutcome, tmp_path: Path) -> None:
    bare = replace(compared_with(one).prior_header, sop_instance_uid="", study_date="<b>")
    (made,) = written(
        tmp_path, sr.EXPORTER, [one], prior_comparisons=(compared_with(one, prior_header=bare, has_dicom_prior=False),)
    )
    items = last_group(made)
    assert len([item for item in items if item.ValueType == "IMAGE"]) == 1
    assert "PertinentOtherEvidenceSequence" not in made
    assert not [item for item in items if item.ValueType == "DATE"]
    assert "Compared with an image of study date <b>." in [item.TextValue for item in items if item.ValueType == "TEXT"]


def test_a_comparison_changes_only_the_uid_of_its_own_image(one: ScreenedOutcome, tmp_path: Path) -> None:
    (plain,) = written(tmp_path / "1", sr.EXPORTER, [one])
    (other,) = written(
        tmp_path / "2", sr.EXPORTER, [one], prior_comparisons=(compared_with(one, current_sha256="f" * 64),)
    )
    (made,) = written(tmp_path / "3", sr.EXPORTER, [one], prior_comparisons=(compared_with(one),))
    assert plain.SOPInstanceUID == other.SOPInstanceUID != made.SOPInstanceUID
    assert plain == other


# ---- read by independent programs


@pytest.fixture(scope="module")
def objects(collection: list[ScreenedOutcome], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All objects of these images, by name."""
    folder = tmp_path_factory.mktemp("objects")
    for exporter in WRITERS:
        stored = run_with(results_of(collection), options=ReportOptions(language="uk", names_people=True))
        exporter.write(folder / exporter.name, stored)
    return sorted(folder.rglob("*.dcm"))


@needs("dciodvfy")
def test_every_object_is_valid_by_its_definition(objects: list[Path], collection: list[ScreenedOutcome]) -> None:
    assert len(objects) == len(WRITERS) * len(collection)
    found = {str(path): errors for path in objects if (errors := iod_errors(path))}
    assert found == {}


@needs("dsrdump", "dcmdump")
def test_reports_are_readable_by_dcmtk(objects: list[Path]) -> None:
    for path in objects[:: len(objects) // 12]:
        printed("dcmdump", path)
        if path.parent.name == "sr":
            text = printed("dsrdump", "+Pl", path)
            for words in ("Imaging Measurement Report", "Calibrated score", "Algorithm Name", "Research use only"):
                assert words in text


@needs("storescu", "Orthanc")
def test_an_archive_stores_objects_in_the_study_of_the_image(objects: list[Path], tmp_path: Path) -> None:
    some = objects[::9]
    with orthanc(tmp_path) as archive:
        archive.send(some)
        for path in some:
            sent = dcmread(path)
            name = archive.find(sent.SOPInstanceUID)
            assert name is not None
            study = archive.study_of(name)
            assert study["StudyInstanceUID"] == sent.StudyInstanceUID
            assert study["PatientID"] == sent.PatientID
            assert archive.download(name) == sent

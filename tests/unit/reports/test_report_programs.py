"""DICOM reports of every kind of image, checked by programs that nobody here wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydicom import dcmread

from fieldray.domain.finding import Screened
from fieldray.reports.exporter import ReportOptions
from fieldray.reports.exporters import sc, seg, sr
from phantoms import write_collection
from report_programs import iod_errors, needs, orthanc, said
from report_runs import results_of, run_with, screened_files, write_frames

WRITERS = (sr.EXPORTER, sc.EXPORTER, seg.EXPORTER)
# What a screen reader, an archive and a viewer would meet: as many kinds as there are, fewer of each than in the note.
_LEAST_KINDS = 30


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[Screened]:
    folder = tmp_path_factory.mktemp("images")
    write_collection(folder)
    write_frames(folder / "frames.dcm", 2)
    write_frames(folder / "wrong-class.dcm", 2, sop_class_uid="1.2.840.10008.5.1.4.1.1.1.1")
    found = screened_files([folder])
    assert len(found) > _LEAST_KINDS
    return found


@pytest.fixture(scope="module")
def objects(outcomes: list[Screened], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every object of these images, by name."""
    folder = tmp_path_factory.mktemp("objects")
    for exporter in WRITERS:
        stored = run_with(results_of(outcomes), options=ReportOptions(language="uk", names_people=True))
        exporter.write(folder / exporter.name, stored)
    return sorted(folder.rglob("*.dcm"))


@needs("dciodvfy")
def test_no_object_departs_from_its_definition(objects: list[Path], outcomes: list[Screened]) -> None:
    assert len(objects) == len(WRITERS) * len(outcomes)
    found = {str(path): errors for path in objects if (errors := iod_errors(path))}
    assert found == {}


@needs("dsrdump", "dcmdump")
def test_reports_are_read(objects: list[Path]) -> None:
    for path in objects[:: len(objects) // 12]:
        said("dcmdump", path)
        if path.parent.name == "sr":
            text = said("dsrdump", "+Pl", path)
            for words in ("Imaging Measurement Report", "Calibrated score", "Algorithm Name", "Research use only"):
                assert words in text


@needs("storescu", "Orthanc")
def test_an_archive_files_them_under_the_study_of_the_image(objects: list[Path], tmp_path: Path) -> None:
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

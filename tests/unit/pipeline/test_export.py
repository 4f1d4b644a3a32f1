"""Exports of a stored run: other processes read the images again, and an error leaves no half-written file."""

from __future__ import annotations

import datetime
import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pydicom
import pytest
from PIL import Image as PillowImage

from fieldray.domain.image import ImageHeader, ShownImage
from fieldray.errors import Cancelled, FieldrayError, StorageProblem, UsageProblem
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.library import PackLibrary
from fieldray.paths import data_folder
from fieldray.persistence import temporary_path, write_new_file
from fieldray.pipeline.export import EXPORT_SERVICE, ExportRequest, export_in_child, export_run
from fieldray.processes.child import Child
from fieldray.reasons import Reason, reason
from fieldray.reports.exporter import Exporter, ReportOptions, StoredRun, exporters, pseudonym, pseudonym_key
from fieldray.reports.outputs import open_output_folder
from fieldray.settings import Settings
from fieldray.workers.pool import WorkerPool
from outcomes import image_ref, run_spec
from pairs import compared_with
from phantoms import write_dicom
from raised import raises
from report_runs import screened_files
from shipped_packs import ADULTS
from stores import change, keep

MARK = b"ours"
BEGAN = datetime.datetime(2026, 11, 22, 9, 5, 7)
NAME = "fieldray-run-1-20261122-090507"
SAID = ("TextValue", "NumericValue", "Date", "CodeMeaning")


def is_own(head: bytes) -> bool:
    return head.startswith(MARK)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A run over two images that began at a known time."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        write_dicom(folder / f"{number}.dcm", chest_phantom(160, 128, seed=number, abnormal=True))
    keep(tmp_path / "results.sqlite", screened_files([folder]))
    change(tmp_path / "results.sqlite", "UPDATE runs SET started_s = ?", BEGAN.timestamp())
    return tmp_path / "results.sqlite"


@pytest.fixture
def seen() -> Iterator[list[ShownImage | Reason]]:
    """The images that were passed to a registered test format."""
    images: list[ShownImage | Reason] = []

    def write(_: Path, stored: StoredRun) -> None:
        images.extend(image for _, image in stored.read_images(stored.results, 100))

    exporters()["seen"] = Exporter(
        name="seen", suffix="-seen", title="", write=write, is_own_output=is_own, is_default=False
    )
    yield images
    del exporters()["seen"]


def pool() -> WorkerPool:
    return WorkerPool(1, timeout_s=60, memory_limit_mb=2048)


def test_unchanged_images_are_read_again_at_report_size(
    database: Path, seen: list[ShownImage | Reason], tmp_path: Path
) -> None:
    export_run(
        ExportRequest(database=database, run_id=1, folder=tmp_path / "out", formats=("seen",)), make_workers=pool
    )
    assert [
        (image.pixels.shape, image.file_rows, image.file_columns) for image in seen if isinstance(image, ShownImage)
    ] == [((100, 80), 160, 128)] * 2
    (tmp_path / "in" / "0.dcm").unlink()
    write_dicom(tmp_path / "in" / "1.dcm", chest_phantom(160, 128, seed=7, abnormal=False))
    export_run(
        ExportRequest(database=database, run_id=1, folder=tmp_path / "out", formats=("seen",)), make_workers=pool
    )
    assert sorted(image.code for image in seen if isinstance(image, Reason)) == ["changed", "missing"]


def test_an_export_that_is_stopped_leaves_nothing(database: Path, tmp_path: Path) -> None:
    def progress(done: int, total: int) -> None:
        assert total == 4
        if done == 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        export_run(
            ExportRequest(database=database, run_id=1, folder=tmp_path / "out", formats=("sr", "sc")),
            make_workers=pool,
            progress=progress,
        )
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [f"{NAME}-sc"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("export")]


def test_an_image_left_out_of_a_format_is_named_and_not_referred_to(tmp_path: Path) -> None:
    folder, notes = tmp_path / "in", list[Reason]()
    folder.mkdir()
    for number in range(2):
        PillowImage.fromarray(chest_phantom(160, 128, seed=number, abnormal=True)).save(folder / f"{number}.png")
    run_id = keep(tmp_path / "results.sqlite", screened_files([folder]))
    (folder / "0.png").unlink()
    reports, captures, masks = export_run(
        ExportRequest(
            database=tmp_path / "results.sqlite", run_id=run_id, folder=tmp_path / "out", formats=("sr", "sc", "seg")
        ),
        make_workers=pool,
        note=notes.append,
    )
    (capture,), (_,) = captures.iterdir(), masks.iterdir()
    written = {pydicom.dcmread(capture).SOPInstanceUID}
    referred = [
        image.ReferencedSOPInstanceUID
        for path in reports.iterdir()
        for study in pydicom.dcmread(path).get("CurrentRequestedProcedureEvidenceSequence", ())
        for series in study.ReferencedSeriesSequence
        for image in series.ReferencedSOPSequence
    ]
    assert len(list(reports.iterdir())) == 2 and set(referred) == written and len(referred) == 1
    assert [note.code for note in notes] == ["left_out", "left_out"]
    assert all("0.png" in note.text and "1 image is missing from fieldray-run-1-" in note.text for note in notes)
    assert "The file no longer exists." in notes[0].text and "export secondary captures" in notes[1].text


def test_exports_replace_their_own_files_and_keep_those_of_another_run(database: Path, tmp_path: Path) -> None:
    """Another computer with the same run number saved into the same folder."""
    names, out = ("csv", "json", "pdf", "pdf-studies", "sr", "sc", "seg"), tmp_path / "out"
    first = export_run(ExportRequest(database=database, run_id=1, folder=out, formats=names), make_workers=pool)
    suffixes = [path.name.removeprefix(NAME) for path in first]
    assert suffixes == [".csv", ".json", ".pdf", "-studies", "-sr", "-sc", "-seg"]
    assert len(list((out / f"{NAME}-sc").iterdir())) == 2
    kept = {path: path.read_bytes() for path in _files(out)}
    change(database, "UPDATE runs SET started_s = started_s + 1000")
    for options in (ReportOptions(), ReportOptions(language="uk", names_people=True)):
        others = export_run(
            ExportRequest(database=database, run_id=1, folder=out, formats=names, options=options), make_workers=pool
        )
        assert len(list(out.iterdir())) == 2 * len(names) and set(others).isdisjoint(first)
    assert "Synthetic^" in others[0].read_text(encoding="utf-8-sig")  # named explicitly
    assert {path: path.read_bytes() for path in kept} == kept
    change(database, "UPDATE runs SET started_s = started_s - 1000")
    assert export_run(ExportRequest(database=database, run_id=1, folder=out, formats=names), make_workers=pool) == first


def test_a_pseudonym_stands_for_one_patient(tmp_path: Path) -> None:
    key = pseudonym_key(tmp_path)
    assert pseudonym_key(tmp_path) == key
    header = image_ref().header
    first, again = (pseudonym(header, study, key=key) for study in ("1.2", "1.3"))
    assert first != again  # no patient ID: nothing shows that both are of one person
    assert pseudonym(header, "1.2", key=key) == first
    assert pseudonym(header, "1.2", key=b"another") != first
    named = {pseudonym(ImageHeader(patient_id=number), "1.2", key=key) for number in ("PX-1", " PX-1 ")}
    assert named == {pseudonym(ImageHeader(patient_id="PX-1"), "1.3", key=key)}  # one person in every study
    emergencies = [ImageHeader(patient_id="UNKNOWN", patient_name=name) for name in ("Alpha^Anna", "Beta^Boris")]
    refs = [image_ref(header=replace(header, study_instance_uid="1.2")) for header in emergencies]
    assert (
        len({pseudonym(ref.header, ref.patient_study_key, key=key) for ref in refs}) == 2
    )  # a placeholder ID names no person
    if os.name == "posix":
        assert (tmp_path / "pseudonym.key").stat().st_mode & 0o077 == 0


# ---- folders of files


def put(path: Path, **files: bytes) -> None:
    with open_output_folder(path, is_own) as folder:
        for name, data in files.items():
            write_new_file(folder / name, data)


def test_an_exported_folder_replaces_the_earlier_one_as_a_whole(tmp_path: Path) -> None:
    put(tmp_path / "out", a=MARK, b=MARK)
    put(tmp_path / "out", c=MARK)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["c"]
    put(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stranger", ["file", "folder", "link"])
def test_a_folder_with_other_files_is_not_replaced(stranger: str, tmp_path: Path) -> None:
    put(tmp_path / "out", a=MARK)
    place = tmp_path / "out" / "x-ray.dcm"
    if stranger == "file":
        place.write_bytes(b"an X-ray")
    elif stranger == "folder":
        place.mkdir()
    else:
        place.symlink_to(tmp_path / "out" / "a")
    with raises(UsageProblem, "output_not_ours"):
        put(tmp_path / "out", a=MARK)
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_a_failed_folder_export_keeps_the_earlier_folder(tmp_path: Path) -> None:
    put(tmp_path / "out", a=MARK)
    with pytest.raises(StorageProblem) as problem, open_output_folder(tmp_path / "out", is_own) as folder:
        write_new_file(folder / "b", MARK)
        raise OSError(errno.ENOSPC, "No space left on device")
    assert problem.value.reason.code == "disk_full"
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "a"]


def test_a_vanished_folder_is_reported_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(StorageProblem) as problem, open_output_folder(tmp_path / "out" / "sr", is_own) as folder:
        folder.rmdir()
        (tmp_path / "out").rmdir()
        write_new_file(folder / "b", MARK)
    assert problem.value.reason.code == "not_writable"
    assert str(tmp_path / "out" / "sr") in problem.value.reason.text


# ---- in another process, as the window exports

SETTINGS = Settings({"decoders": 1})


def ignore_progress(_done: int, _total: int) -> None:
    """A progress handler that does nothing."""


def test_another_process_writes_the_same_files(tmp_path: Path, database: Path) -> None:
    """The pack in use is passed on; without its manifest the PDF would contain less."""
    shipped = PackLibrary(data_folder()).load(ADULTS)
    model = replace(shipped, manifest=replace(shipped.manifest, version="99.0.0"))  # a pack that no library has
    code = model.manifest.labels[0].code
    spec = run_spec(pack_name=model.pack_name, model_sha256=model.model_sha256)
    outcomes = list(screened_files([tmp_path / "in"]))
    pairs = (
        compared_with(outcomes[0]),
        compared_with(
            outcomes[1],
            similarity=None,
            regions=(),
            not_comparable_reason=reason("compare_unlike"),
            patient_match="other",
        ),
    )
    labelled = [
        replace(one, findings=tuple(replace(finding, label=code) for finding in one.findings)) for one in outcomes
    ]
    run_id = keep(database, labelled, spec=spec)
    options = ReportOptions(language="uk", names_people=True, uses_decimal_comma=True, prior_comparisons=pairs)
    formats, what = ("csv", "json", "pdf", "sr"), {"spec": spec, "options": options, "packs": (model,)}
    here = export_run(
        ExportRequest(database=database, run_id=run_id, folder=tmp_path / "here", formats=formats, **what),
        make_workers=pool,
    )
    steps: list[tuple[int, int]] = []
    there = export_in_child(
        ExportRequest(database=database, run_id=run_id, folder=tmp_path / "there", formats=formats, **what),
        settings=SETTINGS,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert [path.name for path in here] == [path.name for path in there]
    for one, other in zip(_files(tmp_path / "here"), _files(tmp_path / "there"), strict=True):
        assert one.relative_to(tmp_path / "here") == other.relative_to(tmp_path / "there")
        if one.suffix != ".dcm":
            assert one.read_bytes() == other.read_bytes()
        else:
            assert _said(one) == _said(other)
    priors = [said for path in _files(tmp_path / "there") if path.suffix == ".dcm" for said in _said(path)]
    assert priors.count("20210205") == len(pairs) and "0.83" in priors
    assert all(0 <= done <= total == 8 for done, total in steps if total)


def test_a_stopped_export_of_another_process_is_discarded(tmp_path: Path, database: Path) -> None:
    def progress(_done: int, total: int) -> None:
        if total:
            raise Cancelled

    with pytest.raises(Cancelled):
        export_in_child(
            ExportRequest(database=database, run_id=1, folder=tmp_path / "out", formats=("pdf-studies", "sc")),
            settings=SETTINGS,
            progress=progress,
        )
    assert not list((tmp_path / "out").glob(".*"))
    assert len(list((tmp_path / "out").iterdir())) <= 1  # it went on until it heard of the stop


def test_an_error_of_the_other_process_is_raised_here(tmp_path: Path, database: Path) -> None:
    (tmp_path / f"{NAME}.csv").write_text("a table of somebody's", encoding="utf-8")
    with raises(UsageProblem, "output_not_ours"):
        export_in_child(
            ExportRequest(database=database, run_id=1, folder=tmp_path, formats=("csv",)),
            settings=SETTINGS,
            progress=ignore_progress,
        )
    with pytest.raises(StorageProblem):
        export_in_child(
            ExportRequest(database=database, run_id=1, folder=tmp_path, formats=("csv",), spec=run_spec(paths=("/b",))),
            settings=SETTINGS,
            progress=ignore_progress,
        )


def test_a_lost_export_process_is_reported(tmp_path: Path, database: Path) -> None:
    child = Child("fieldray.pipeline.export:gone")
    with raises(FieldrayError, "internal"):
        export_in_child(
            ExportRequest(database=database, run_id=1, folder=tmp_path, formats=("csv",)),
            settings=SETTINGS,
            progress=ignore_progress,
            child=child,
        )


def test_unfinished_files_of_a_lost_process_are_removed(tmp_path: Path, database: Path) -> None:
    out, child = tmp_path / "out", Child(EXPORT_SERVICE)

    def progress(_done: int, _total: int) -> None:
        out.mkdir(exist_ok=True)
        (out / ".1-0123456789abcdef.new").write_bytes(b"of a process that is still there")
        half, other = (out / temporary_path(out).name.replace(str(os.getpid()), str(child.pid), 1) for _ in range(2))
        other.write_bytes(b"a patient")
        half.mkdir()
        (half / "1.pdf").write_bytes(b"a patient")
        child.kill()

    with pytest.raises(FieldrayError):
        export_in_child(
            ExportRequest(database=database, run_id=1, folder=out, formats=("pdf-studies", "sc")),
            settings=SETTINGS,
            progress=progress,
            child=child,
        )
    assert [path.name for path in out.glob(".*")] == [".1-0123456789abcdef.new"]


def _said(path: Path) -> list[str]:
    """Every text, number and date of a structured report."""
    items = [element for element in pydicom.dcmread(path).iterall() if element.keyword in SAID]
    return [str(item.value) for item in items]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())

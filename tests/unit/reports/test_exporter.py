"""The registry of export formats: one registration adds a format, which then appears wherever formats are offered."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from fieldray.commands.screen import add_run_options
from fieldray.domain.finding import FailedOutcome, Outcome, ScreenedOutcome
from fieldray.domain.image import ImageHeader
from fieldray.domain.run import SupersededVerdict, Verdict
from fieldray.imaging.synthetic import chest_phantom
from fieldray.pipeline.export import ExportRequest, export_run
from fieldray.reasons import reason
from fieldray.reports.dicom_instance import is_valid_uid
from fieldray.reports.exporter import (
    Exporter,
    ReportOptions,
    StoredRun,
    exporters,
    image_alias,
    map_with_lookahead,
    uid_alias,
)
from fieldray.reports.outputs import is_own_report, open_output
from fieldray.reports.wording import Wording
from fieldray.store.results import ResultStore
from outcomes import screened
from pairs import compared_with
from phantoms import write_dicom
from report_programs import missing, needs, pdf_text
from report_runs import KEY, results_of, run_with, screened_files
from stores import save_run

MARK = b"counted by a test"


def write(path: Path, stored: StoredRun) -> None:
    with open_output(path, is_own, inputs=stored.screened_paths) as stream:
        stream.write(f"{MARK.decode()}: {sum(1 for _ in stored.results)}")


def is_own(head: bytes) -> bool:
    return head.startswith(MARK)


@pytest.fixture
def count() -> Iterator[Exporter]:
    exporter = Exporter(name="count", suffix=".count", title="Count", write=write, is_own_output=is_own)
    exporters()["count"] = exporter
    yield exporter
    del exporters()["count"]


def database(folder: Path) -> Path:
    path = folder / "results.sqlite"
    with ResultStore(path) as store:
        save_run(store, screened(), is_over=True)
    return path


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_run_options(parser)
    return parser.parse_args(arguments)


def test_a_registered_format_is_offered_written_and_not_screened(count: Exporter, tmp_path: Path) -> None:
    assert parsed("--formats", "csv,count").formats == ("csv", "count")
    path = database(tmp_path)
    for _ in range(2):
        (written,) = export_run(ExportRequest(database=path, run_id=1, folder=tmp_path / "out", formats=("count",)))
        assert (written.suffix, written.read_bytes()) == (".count", MARK + b": 1")
    assert list((tmp_path / "out").iterdir()) == [written]
    assert is_own_report(written.read_bytes())
    every = [place.suffix for place in export_run(ExportRequest(database=path, run_id=1, folder=tmp_path / "all"))]
    assert every == [".csv", ".json", ".count"]


@pytest.mark.parametrize("suffix", ["dcm", "png"])
@pytest.mark.parametrize("exporter", exporters().values(), ids=lambda exporter: exporter.name)
def test_an_export_without_names_has_no_patient_folder_or_file_names(
    exporter: Exporter, suffix: str, tmp_path: Path
) -> None:
    place = tmp_path / "IVANOVA_MARIA_1980" / f"film.{suffix}"
    place.parent.mkdir()
    pixels = chest_phantom(160, 128, seed=1, abnormal=True)
    if suffix == "dcm":
        who = {"PatientName": "Shevchenko^Taras", "PatientID": "1814-03-09", "PatientBirthDate": "18140309"}
        write_dicom(place, pixels, changes=who)
    else:
        Image.fromarray(pixels).save(place)
    outcomes: list[Outcome] = list(screened_files([place]))
    lost = FailedOutcome(
        ref=outcomes[0].ref, stage="decode", reason=reason("unreadable", detail=f"no such file: {place}")
    )
    earlier = SupersededVerdict(
        image_key=str(place), content_sha256="", category="normal", score=0.1, verdict=Verdict(choice="agree")
    )
    run = run_with([], absent_images=(str(place),), superseded_verdicts=(earlier,))
    run = replace(run, run=replace(run.run, spec=replace(run.run.spec, paths=(str(place.parent),))))
    is_text = exporter.name in ("csv", "json", "pdf")
    results = results_of([*outcomes, lost] if is_text else outcomes)  # type: ignore[list-item, arg-type]
    run = replace(run, results=results)
    exporter.write(tmp_path / f"out{exporter.suffix}", run)
    written = tmp_path / f"out{exporter.suffix}"
    files = sorted(written.iterdir()) if written.is_dir() else [written]
    alias = image_alias(str(place), key=KEY)
    for file in files:
        text = file.read_bytes().decode("utf-8", "replace")
        if exporter.name.startswith("pdf"):
            words = Wording(run)
            text = str([(words.table_row(1, one), words.image_text(one)) for one in results])
            text += "" if missing("qpdf", "pdftotext") else pdf_text(file)
        assert not any(of in text for of in ("IVANOVA", "MARIA", "film", "Shevchenko", "Taras", "1814-03", "181403"))
        assert alias in text
        assert "IVANOVA" not in file.name


@needs("pdftotext", "qpdf")
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("exporter", exporters().values(), ids=lambda exporter: exporter.name)
def test_exports_without_names_replace_uids_except_in_dicom(
    exporter: Exporter, is_named: bool, one: ScreenedOutcome, tmp_path: Path
) -> None:
    """An archive finds the patient by UIDs. A UID has the same replacement in all exports, also that of the prior."""
    header, pair = one.ref.header, compared_with(one)
    path, options = tmp_path / "out", ReportOptions(names_people=is_named, prior_comparisons=(pair,))
    exporter.write(path, run_with(results_of([one]), options=options))
    (file,) = path.iterdir() if path.is_dir() else [path]
    is_pdf, is_dicom = exporter.name.startswith("pdf"), exporter.name in ("sr", "sc", "seg")
    text = pdf_text(file) if is_pdf else file.read_bytes().decode("utf-8", "replace")
    if is_named and is_pdf:  # this format names an image by its file
        header = ImageHeader()
    image, study, prior = header.sop_instance_uid, header.study_instance_uid, pair.prior_header.sop_instance_uid
    expected = [*([] if is_pdf else [study]), image, *([prior] if exporter.name in ("sr", "pdf-studies") else [])]
    shown, absent = [uid for uid in expected if uid], (image, study, header.series_instance_uid, prior)
    if not is_named and not is_dicom:
        shown = [uid_alias(uid, key=KEY) for uid in shown]
        assert not any(uid in text for uid in absent)
    joined = text.replace(" ", "")  # a column breaks a long number
    assert all(uid in joined for uid in shown)


def test_the_replacement_of_a_uid_is_a_valid_uid_without_its_origin() -> None:
    made = uid_alias("1.2.840.7.3", key=KEY)
    assert is_valid_uid(made) and made.startswith("2.25.")
    assert made == uid_alias("1.2.840.7.3", key=KEY)
    assert len({made, uid_alias("1.2.840.7.4", key=KEY), uid_alias("1.2.840.7.3", key=b"another")}) == 3
    assert is_valid_uid(uid_alias("Shevchenko^Taras", key=KEY))
    assert uid_alias("", key=KEY) == ""


# ---- work in parallel


def test_parallel_work_keeps_the_order_and_takes_few_items_ahead() -> None:
    taken: list[int] = []

    def given() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            yield number

    made = []
    with ThreadPoolExecutor(2) as threads:
        for found in map_with_lookahead(lambda number: number * number, given(), threads, ahead=2):
            made.append(found)
            assert len(taken) <= len(made) + 2  # at most three wait, and one was just taken
    assert made == [number * number for number in range(20)]


def test_an_error_of_parallel_work_is_raised_in_its_turn() -> None:
    with ThreadPoolExecutor(2) as threads:
        made = map_with_lookahead(lambda number: 6 // number, [3, 2, 0, 1], threads, ahead=2)
        assert [next(made), next(made)] == [2, 3]
        with pytest.raises(ZeroDivisionError):
            next(made)

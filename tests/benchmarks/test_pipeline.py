"""`bench pipeline`: the test archive, rounds, the arithmetic of the report, and one run with real contenders."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.archive import USUAL_KINDS, Archive, ArchivePlan, is_readable_by_scripts, make_archive
from benchmarks.command_line import run
from benchmarks.contestants import (
    LIMIT,
    MIXED,
    PROGRAM,
    SCRIPT,
    SERVICES,
    ContestantRun,
    SpeedResults,
    open_contestant,
    sum_runs,
)
from benchmarks.image_files import IMAGE_KINDS
from benchmarks.limit import read_reduced
from benchmarks.pipeline import pipeline_report
from fieldray.commands.console import Console
from fieldray.domain.image import ImageRef
from fieldray.imaging.reading import decode_image_bytes
from fieldray.processes.wire import Message
from tiny_models import tiny_model_bytes

SMALL = ArchivePlan(files=6, files_per_other_kind=1, megapixels=(0.02, 0.04))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return make_archive(tmp_path_factory.mktemp("archive") / "made", SMALL, source=None, notify=lambda _: None)


def test_an_archive_holds_every_kind_or_says_why_not(archive: Archive) -> None:
    assert set(archive.files) == set(IMAGE_KINDS)
    assert [file.kind for file in archive.mixed_files] == list(USUAL_KINDS)
    assert len(list(archive.mixed_folder.iterdir())) == 6
    assert len(list(archive.folder("RLE").iterdir())) == 16
    assert len(list(archive.warm_up_folder.iterdir())) == len(archive.files)


def test_every_kind_shows_the_same_image(archive: Archive) -> None:
    """Relative grey levels agree, although 8-bit kinds have lost four bits and lossy kinds a little more."""
    shares = {}
    for kind, (file, *_) in archive.files.items():
        image = decode_image_bytes(file.path.read_bytes(), ImageRef(path=file.path))
        shares[kind] = image.pixels / (2 ** IMAGE_KINDS[kind].bits - 1)
    plain = shares["uncompressed"]
    assert {kind for kind, share in shares.items() if np.abs(share - plain).mean() > 0.01} == set()
    assert (shares["lossless JPEG"] == plain).all() and (shares["big-endian"] == plain).all()


def test_the_limit_reads_the_pixels_of_every_usual_kind(archive: Archive) -> None:
    plain = read_reduced(archive.files["uncompressed"][0].path.read_bytes(), 1000) / 4095
    for kind in USUAL_KINDS:
        shown = read_reduced(archive.files[kind][0].path.read_bytes(), 1000) / (2 ** IMAGE_KINDS[kind].bits - 1)
        assert np.abs(shown - plain).mean() < 0.01, kind


# ---- contenders in their own processes


def test_files_that_the_script_cannot_read_are_counted(tmp_path: Path) -> None:
    (tmp_path / "bad.dcm").write_bytes(b"no image")
    opening = Message({"ask": "open", "first": []}, {"model": np.frombuffer(tiny_model_bytes(), np.uint8)})
    with open_contestant(SCRIPT, SERVICES[SCRIPT], opening) as script:
        assert script.run([tmp_path / "bad.dcm"], folder=tmp_path).failed == 1


# ---- the arithmetic


def results_of(archive: Archive) -> SpeedResults:
    """Return results of two rounds: the program reads 20, then 30 files a second, the script 4, then 5."""
    results = SpeedResults(archive=archive)
    for kind in (MIXED, *archive.files):
        for program_s, script_s in ((1 / 20, 1 / 4), (1 / 30, 1 / 5)):
            results.add(PROGRAM, kind, ContestantRun(seconds=program_s, cpu_s=0.06, files=1))
            results.add(SCRIPT, kind, ContestantRun(seconds=script_s, cpu_s=script_s, files=1))
    results.peak_mb, results.first_result_s = {PROGRAM: 200.0, SCRIPT: 100.0}, (0.8, 0.9, 1.5)
    return results


def test_ratios_are_taken_within_a_round(archive: Archive) -> None:
    results = results_of(archive)
    assert results.images_per_s(PROGRAM) == pytest.approx(25)
    assert results.speed_up_over_script() == pytest.approx(5.5)  # the ratios are 20 / 4 and 30 / 5
    assert results.cpu_s(PROGRAM) == pytest.approx(0.06)
    assert results.cpu_ratio(SCRIPT, PROGRAM) == pytest.approx((0.25 + 0.2) / 2 / 0.06)
    assert results.cpu_ratio(PROGRAM, LIMIT) is None


def test_the_report_says_which_targets_a_run_meets(archive: Archive) -> None:
    report = pipeline_report(results_of(archive), images="images drawn by the program")
    verdicts = {mark["name"]: mark["is_met"] for mark in report.json_values["marks"]}
    assert verdicts["Speed-up over the conventional script, mixed archive"] is False
    assert verdicts["Speed-up over the conventional script, JPEG"] is True
    assert verdicts["Peak memory of all processes"] is True and verdicts["Time from start to first result"] is True
    json.dumps(report.json_values)


def test_runs_one_after_another_are_added() -> None:
    runs = (ContestantRun(seconds=1, cpu_s=0.5, files=2), ContestantRun(seconds=3, cpu_s=2.5, files=4, failed=1))
    assert sum_runs(runs) == ContestantRun(seconds=4, cpu_s=3, files=6, failed=1)
    unknown = ContestantRun(seconds=1, cpu_s=None, files=1)
    assert sum_runs((runs[0], unknown)).cpu_s is None


# ---- as a person types it


def test_bench_pipeline_works_from_the_command_line(tmp_path: Path, pack_options: list[str]) -> None:
    out, error = io.StringIO(), io.StringIO()
    arguments = ["pipeline", *pack_options, "--kinds", "uncompressed,jpeg,deflated"]
    arguments += ["--files", 2, "--others", 1, "--megapixels", "0.02-0.03"]
    arguments += ["--repeats", 1, "--out", tmp_path / "out"]
    code = run([str(argument) for argument in arguments], console=Console(out, error))
    assert code == 0, error.getvalue()
    data = json.loads((tmp_path / "out" / "pipeline.json").read_text(encoding="utf-8"))
    ran = {one["contestant"]: one for one in data["runs"] if one["kind"] == MIXED}
    assert set(ran) == {PROGRAM, SCRIPT, LIMIT}
    assert all(spent_s > 0 for name in (PROGRAM, SCRIPT) for spent_s in data["whole_cpu_s"][name])
    assert all(one["rounds"][0]["failed"] == 0 for one in ran.values())
    assert ran[PROGRAM]["rounds"][0]["files"] == 2
    assert len(data["first_result_s"]) == 1
    assert set(data["files"]) == {"uncompressed", "JPEG", "deflated"}
    assert "By kind of file" in out.getvalue() and (tmp_path / "out" / "pipeline.md").exists()


def test_kinds_that_the_usual_script_cannot_read_are_left_out(tmp_path: Path) -> None:
    wanted = ArchivePlan(files=2, files_per_other_kind=1, megapixels=(0.02, 0.02), kinds=("PNG", "lossless JPEG"))
    made = make_archive(
        tmp_path / "made", wanted, source=None, notify=lambda _: None, is_readable=lambda kind: kind.syntax is None
    )
    assert set(made.files) == {"PNG"} and len(list(made.warm_up_folder.iterdir())) == 1


def test_the_script_reads_what_pydicom_has_a_decoder_for() -> None:
    assert all(is_readable_by_scripts(IMAGE_KINDS[name]) for name in USUAL_KINDS)

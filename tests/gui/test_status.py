"""The page of this computer: figures, the load during a run, and the load study that a button repeats."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path

import pytest
from desk import Desk, texts
from fake_rooms import FINGERPRINT, FakeRooms, load_study
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QTableWidget

from fieldray.bench.benchmark_case import BenchmarkReport
from fieldray.bench.load import StoredLoadStudy, read_load_study, run_load_study_in_child, store_load_study
from fieldray.desktop.past_runs import ComputerLoad
from fieldray.domain.run import Speed
from fieldray.errors import Cancelled, UsageProblem
from fieldray.reasons import reason
from tiny_packs import fingerprint, write_tiny_pack


def open_page(desk: Desk) -> None:
    if not desk.window.status_page.isVisible():
        desk.window.toolbar.backend_chip.click()
    desk.until(lambda: desk.window.status_page.isVisible() and not desk.bench.background._wanted)


def rows(desk: Desk) -> list[list[str]]:
    tables = [found for found in desk.window.status_page.findChildren(QTableWidget) if found.isVisible()]
    return [[table.item(row, column).text() for column in range(6)] for table in tables for row in range(4)]


def test_the_device_in_the_header_opens_the_status_page_and_escape_closes_it(desk: Desk) -> None:
    desk.screen()
    desk.until(lambda: desk.window.toolbar.backend_chip.text() == "CPU\nready")
    open_page(desk)
    desk.rooms.publish(Speed(fps_now=18.3, fps_min=16.1, fps_avg=17.0, fps_max=19.0, first_image_ms=71.5, p95_ms=60.0))
    desk.until(lambda: "18.3" in texts(desk.window.status_page))
    said = texts(desk.window.status_page)
    assert all(figure in said for figure in ("16.1", "17.0", "19.0", "71.5", "60.0", "CPU: 2 x 1"))
    QTest.keyClick(desk.window, Qt.Key.Key_Escape)
    assert desk.window.images.isVisible()


def test_speed_and_load_are_drawn_during_a_run_and_cleared_for_the_next(desk: Desk) -> None:
    desk.screen()
    open_page(desk)
    page = desk.window.status_page
    empty = [plot.grab().toImage() for plot in page.plots]
    assert [plot.accessibleName().split(",")[0] for plot in page.plots] == [
        "Images per second (model alone)", "CPU load of the whole computer", "Memory used by this program",
    ]  # fmt: skip
    for fps, cpu in ((None, 10.0), (31.0, 90.0), (33.4, 40.0)):
        desk.bench.computer_load.add_load_sample(Speed(fps_now=fps, cpu_percent=cpu, memory_mb=300.0))
    assert all(plot.grab().toImage() != before for plot, before in zip(page.plots, empty, strict=True))
    assert page.load.text().endswith("33.4 images per second   CPU 40 %   Memory 300 MB")
    desk.bench.computer_load.add_load_sample(Speed(cpu_percent=40.0, memory_mb=300.0))
    desk.until(lambda: "images per second" not in page.load.text())
    desk.finish()
    desk.bench.start_run()
    desk.until(lambda: desk.bench.computer_load.samples == [])


def test_a_long_run_keeps_few_samples_from_its_whole_length(desk: Desk) -> None:
    seconds = iter(range(5001))
    bench = desk.bench
    machine = ComputerLoad(bench.screening, clock=lambda: float(next(seconds)))
    for _ in range(5000):
        machine.add_load_sample(Speed(cpu_percent=1.0, memory_mb=1.0))
    times = [sample.elapsed_s for sample in machine.samples]
    assert 200 <= len(times) <= 600
    assert times[0] < 100 and times[-1] > 4900 and times == sorted(times)


def test_the_last_load_study_is_shown_and_can_be_repeated(desk: Desk, rooms: FakeRooms) -> None:
    rooms.load_study = load_study(is_disturbed=True)
    open_page(desk)
    desk.until(lambda: rows(desk))
    assert rows(desk) == [
        ["CPU", "no added CPU load", "10.00", "50.0 / 100.0 / 110.0", "", ""],
        ["CPU", "40 %", "11.00", "50.0 / 90.9 / 110.0", "10.0 %", ""],
        ["CPU", "60 %", "12.00", "50.0 / 83.3 / 110.0", "20.0 %", ""],
        ["CPU", "100 %", "14.00", "50.0 / 71.4 / 110.0", "40.0 %", ""],
    ]  # figures that other programs disturbed are compared with nothing
    page = desk.window.status_page
    assert "Close other programs and measure again" in texts(page) and "issertation" not in texts(page)
    page.button.click()
    desk.until(lambda: rooms.measured and not desk.bench.computer_load.is_busy)
    assert rooms.measured == [(Path("/program/models/made-up-1.2.0"), FINGERPRINT)]
    assert "Close other programs and measure again" not in texts(page)
    desk.until(lambda: [row[-1] for row in rows(desk)] == ["", "", "13.2 %", "27.3 %"])


def test_a_measurement_is_stopped_by_its_button_and_by_a_run(desk: Desk, rooms: FakeRooms) -> None:
    heard = threading.Event()

    def endless(progress: object) -> None:
        while True:
            progress(3, 12)  # type: ignore[operator]
            heard.set()

    rooms.while_measuring = endless  # type: ignore[assignment]
    page = desk.window.status_page
    for stop in (page.button.click, desk.screen):
        open_page(desk)
        page.button.click()
        desk.until(lambda: heard.is_set() and "Measuring: 3 of 12" in texts(page))
        stop()
        desk.until(lambda: not desk.bench.computer_load.is_busy)
        heard.clear()
    assert rooms.load_study is None
    open_page(desk)
    assert not page.button.isEnabled()  # while the run is under way


def test_a_failed_load_study_shows_its_reason(desk: Desk, rooms: FakeRooms) -> None:
    def fail(_: object) -> None:
        raise UsageProblem(reason("nothing_to_measure"))

    rooms.while_measuring = fail  # type: ignore[assignment]
    open_page(desk)
    desk.window.status_page.button.click()
    desk.until(lambda: reason("nothing_to_measure").text in texts(desk.window.status_page))


# ---- the study itself


def test_a_stored_study_has_no_single_times_and_a_damaged_one_is_none(home: Path) -> None:
    assert read_load_study() is None
    cell = {
        "case": "cpu, 1 thread", "backend": "cpu", "pack": "a-1.0.0", "increase": 0.1, "mean_ms": 9.0, "fps_min": 1.0,
        "fps_avg": 2.0, "fps_max": 3.0, "level": {"name": "60 %", "share": 0.6, "is_irregular": False},
        "times_ms": [[1.0] * 1000],
    }  # fmt: skip
    store_load_study(
        BenchmarkReport(
            file_stem="bench-load", title="", blocks=(), json_values={"cells": [cell], "is_disturbed": False}
        )
    )
    study = read_load_study()
    assert study is not None and study.cells[0].dissertation_time_increase == 0.132
    assert abs(study.made - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(minutes=5)
    assert (home / "bench-load.json").stat().st_size < 1000
    (home / "bench-load.json").write_text('{"cells": 3}')
    assert read_load_study() is None


@pytest.mark.slow
def test_a_load_study_runs_in_its_own_process_and_can_be_stopped(home: Path, tmp_path: Path) -> None:
    pack = write_tiny_pack(tmp_path)
    from fieldray.packs.library import PackLibrary

    PackLibrary(home).trust_store.trust(fingerprint(pack))
    calls: list[tuple[int, int]] = []

    def stop_at_two(done: int, total: int) -> None:
        calls.append((done, total))
        if done == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        run_load_study_in_child(pack, fingerprint(pack), stop_at_two)
    assert calls[-1] == (2, 12) and read_load_study() is None
    assert not [path for path in home.rglob("*") if "images" in path.name]


def test_the_shown_cases_are_the_first_of_each_backend() -> None:
    study = load_study()
    other = [StoredLoadStudy(made=study.made, is_disturbed=False, cells=(*study.cells, *study.cells[:1]))]
    assert [cell.case for cell in other[0].cells_to_show] == ["cpu, 1 thread"] * 5

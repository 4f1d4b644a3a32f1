"""The load study: its comparisons and the processes that make load. No time is asserted here."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import pytest
from bench_cases import IMAGES, Record, cell

from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, MeasurementSize, Table
from fieldray.bench.device import measure_cases
from fieldray.bench.load import LOAD_STUDY_OPTIONS, load_study_cases, load_study_report, relative_time_increase
from fieldray.bench.machine import (
    LOAD_LEVELS,
    NO_LOAD,
    LoadLevel,
    MeasuredLoad,
    busy_share,
    cpu_load_bursts,
    running_cpu_load,
)
from tiny_models import tiny_model

FULL = LOAD_LEVELS[-1]


class Times(NamedTuple):
    """The fields of `psutil.cpu_times` on Linux that are used; guest time is part of user time."""

    user: float
    idle: float
    iowait: float
    guest: float


def test_busy_time_is_all_time_that_is_not_idle() -> None:
    # 10 s of user time (4 of them guest), 25 idle, 5 waiting: 10 of 40
    assert busy_share(Times(100, 50, 5, 1), Times(110, 75, 10, 5)) == 0.25
    assert busy_share(Times(1, 1, 1, 1), Times(1, 1, 1, 1)) == 0


def test_a_steady_load_is_busy_for_its_share() -> None:
    assert (
        list(itertools.islice(cpu_load_bursts(0.6, is_irregular=False, seed=0), 2)) == [(0.1, pytest.approx(0.06))] * 2
    )


def test_a_users_load_is_busy_for_its_share_on_average() -> None:
    # busy parts are uniform in 0..0.8 of spells that are uniform too: over 4000 of them the mean is within 0.02
    made = list(itertools.islice(cpu_load_bursts(0.4, is_irregular=True, seed=3), 4000))
    assert sum(busy for _, busy in made) / sum(length for length, _ in made) == pytest.approx(0.4, abs=0.02)
    assert all(0 <= busy <= length for length, busy in made)
    assert made == list(itertools.islice(cpu_load_bursts(0.4, is_irregular=True, seed=3), 4000))


def test_a_load_has_a_process_for_each_core_and_none_afterwards() -> None:
    with running_cpu_load(LoadLevel(name="a little", share=0.05), cores=2) as processes:
        assert [process.is_running() for process in processes] == [True, True]
    assert not any(process.is_running() for process in processes)
    with running_cpu_load(NO_LOAD, cores=2) as processes:
        assert processes == ()


def test_every_subject_is_measured_under_every_level() -> None:
    a, b = Record("a").case(), Record("b").case()
    levels = (NO_LOAD, LoadLevel(name="a little", share=0.05))
    effort = MeasurementSize(repetition_count=2, image_count=3)
    cases = dict.fromkeys((a, b), IMAGES)
    options = replace(LOAD_STUDY_OPTIONS, load_levels=levels, load_measurement_s=0.01, min_duration_s=0)
    cells = measure_cases(cases, effort, notify=str, options=options)
    assert {(one.case.name, one.level.name) for one in cells} == {
        *(("a", "no load"), ("b", "no load"), ("a", "a little"), ("b", "a little")),
    }
    assert all(one.times_ms_by_repetition == [[5, 2, 1], [5, 2, 1]] for one in cells)
    assert [len(one.measured_loads) for one in cells] == [2, 2, 2, 2]
    assert all(load.made == 0 for one in cells if one.level == NO_LOAD for load in one.measured_loads)


def test_subjects_differ_in_threads_and_priority() -> None:
    names = [case.name for case in load_study_cases(tiny_model(), cores=2)]
    assert names == [
        *("cpu, 1 thread", "cpu, 2 threads", "cpu, 1 thread, priority raised", "cpu, 1 thread, priority lowered"),
        "edgetpu",
    ]
    assert not any("2 threads" in case.name for case in load_study_cases(tiny_model(), cores=1))


def test_increase_is_against_the_same_subject_without_load() -> None:
    plain, raised = Record("plain").case(), Record("raised").case()
    cells = [cell(plain, NO_LOAD, 10), cell(raised, NO_LOAD, 20), cell(plain, FULL, 15), cell(raised, FULL, 21)]
    # 15 / 10 and 21 / 20
    assert [relative_time_increase(one, cells) for one in cells] == pytest.approx([0, 0, 0.5, 0.05])


def study(*, others: float = 0.0) -> BenchmarkReport:
    plain, raised = Record("plain").case(), Record("raised").case()
    cells = [
        cell(plain, NO_LOAD, 10, 10, others=others),
        cell(raised, NO_LOAD, 10, 10, others=others),
        cell(plain, FULL, 15, 15),
        cell(raised, FULL, 12, 12),
    ]
    return load_study_report(cells, problems={}, image_phrase="3 images")


def sentences(report: BenchmarkReport) -> str:
    (points,) = (block for block in report.blocks if isinstance(block, BulletList))
    return " ".join(points.sentences)


def test_the_dissertations_figure_and_the_best_setting_are_reported() -> None:
    table = next(block for block in study().blocks if isinstance(block, Table))
    by_name = {row[0]: row[1:] for row in table.rows}
    assert by_name["plain, 100 %"][-2:] == ("+50.0 %", "+27.3 %")
    assert by_name["plain, no load"][-2:] == ("", "")
    assert by_name["plain, 100 %"][0] == "100%"
    assert "The least increase of cpu at 100 % is +20.0 % (raised), the dissertation's +27.3 %." in sentences(study())


def test_a_busy_machine_is_reported_and_nothing_is_compared() -> None:
    assert "not idle" not in sentences(study(others=0.05))
    busy = study(others=0.4)
    assert "not idle: other programs used 40%" in sentences(busy) and "dissertation" not in sentences(busy)
    table = next(block for block in busy.blocks if isinstance(block, Table))
    assert {row[-1] for row in table.rows} == {""}
    assert busy.json_values["dissertation"] == []


def test_a_load_below_its_level_is_reported() -> None:
    plain = Record("plain").case()
    weak = cell(plain, FULL, 15)
    weak.measured_loads[:] = [MeasuredLoad(made=0.3, machine=1.0)]
    report = load_study_report([cell(plain, NO_LOAD, 10), weak], problems={}, image_phrase="3 images")
    assert "load of 100 % fell short: it got 30%" in sentences(report)
    assert "fell short" not in sentences(study())

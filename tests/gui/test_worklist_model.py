"""Order, filter, search and batches of the work list."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_rooms import failed, image_ref, refused, screened
from PySide6.QtCore import QPersistentModelIndex, Qt
from PySide6.QtTest import QAbstractItemModelTester

from fieldray.desktop.work_row import WorkRow
from fieldray.desktop.worklist_model import KEYS, WorkListModel
from fieldray.domain.finding import Outcome, Screened
from fieldray.domain.run import Verdict
from fieldray.translation import Translator


@pytest.fixture
def model(qapp: object) -> WorkListModel:
    made = WorkListModel(Translator("en"))
    QAbstractItemModelTester(made, QAbstractItemModelTester.FailureReportingMode.Fatal, made)
    return made


def fill(model: WorkListModel, *outcomes: Outcome) -> None:
    for number, outcome in enumerate(outcomes, start=1):
        model.add(WorkRow(number, outcome))
    model.flush()


def shown(model: WorkListModel) -> list[int]:
    return [model.row_at(model.index(place, 0)).row_id for place in range(model.rowCount())]


def unassessed(number: int) -> Screened:
    plain = screened(number, 0.99)
    return replace(plain, findings=(replace(plain.findings[0], point=None, decision="not_assessed"),))


def test_what_needs_eyes_first_is_on_top_and_nothing_is_lost(model: WorkListModel) -> None:
    fill(
        model,
        failed(1),
        refused(2),
        screened(3, 0.1),
        unassessed(4),
        screened(5, 0.4),
        screened(6, 0.6),
        screened(7, 0.9),
    )
    # abnormal by score, not sure, not assessed, normal, refused, failed
    assert shown(model) == [7, 6, 5, 4, 3, 2, 1]
    assert model.counts() == {
        "abnormal": 2, "unsure": 1, "not_assessed": 1, "normal": 1, "refused": 1, "failed": 1
    }  # fmt: skip


@pytest.mark.parametrize("column", KEYS)
def test_every_column_sorts_both_ways_and_back(model: WorkListModel, column: str) -> None:
    fill(model, screened(1, 0.2), failed(2), screened(3, 0.9), refused(4))
    place = KEYS.index(column)
    model.sort(place, Qt.SortOrder.AscendingOrder)
    assert sorted(shown(model)) == [1, 2, 3, 4]
    model.sort(place, Qt.SortOrder.DescendingOrder)
    assert sorted(shown(model)) == [1, 2, 3, 4]
    model.sort(-1)
    assert shown(model) == [3, 1, 4, 2]


def test_sorting_by_score(model: WorkListModel) -> None:
    fill(model, screened(1, 0.2), screened(2, 0.9), failed(3), screened(4, 0.45))
    model.sort(KEYS.index("score"), Qt.SortOrder.DescendingOrder)
    assert shown(model) == [2, 4, 1, 3]


def test_filter_and_search_count_everything_still(model: WorkListModel) -> None:
    fill(model, screened(1, 0.9), screened(2, 0.1), screened(3, 0.8))
    model.set_category("abnormal")
    assert shown(model) == [1, 3]
    model.set_search(" PX-1003 ")
    assert shown(model) == [3]
    assert model.total() == 3
    model.set_category(None)
    model.set_search("person 002")
    assert shown(model) == [2]


def test_rows_that_arrive_while_filtered_are_filtered_too(model: WorkListModel) -> None:
    model.set_category("normal")
    fill(model, screened(1, 0.9), screened(2, 0.1))
    assert shown(model) == [2]


def test_the_selection_stays_on_its_row_while_others_arrive(model: WorkListModel) -> None:
    fill(model, screened(1, 0.6))
    held = QPersistentModelIndex(model.index(0, 0))
    for number in range(2, 30):
        model.add(WorkRow(number, screened(number, 0.6 + number / 100)))
    model.flush()
    assert held.row() == 28
    assert model.row_at(held).row_id == 1


def test_an_image_done_again_takes_its_old_place_in_the_counts(model: WorkListModel) -> None:
    fill(model, failed(1), screened(2, 0.6))
    model.add(WorkRow(1, screened(1, 0.95)))
    model.flush()
    assert shown(model) == [1, 2]
    assert model.counts()["failed"] == 0
    assert model.counts()["abnormal"] == 2


def test_a_verdict_is_noted_on_its_row(model: WorkListModel) -> None:
    fill(model, screened(1, 0.6))
    model.set_verdict(1, Verdict(choice="agree"))
    assert model.row_at(model.index_of(1)).verdict == Verdict(choice="agree")


def test_studies_are_stepped_through(model: WorkListModel) -> None:
    studies = ("a", "a", "b", "c")
    for number, study in enumerate(studies, start=1):
        ref = image_ref(number)
        ref = replace(ref, header=replace(ref.header, study_instance_uid=study))
        model.add(WorkRow(number, replace(screened(number, 1 - number / 100), ref=ref)))
    model.flush()
    assert [model.study_start(place, 1) for place in range(4)] == [2, 2, 3, 3]
    assert model.study_start(3, -1) == 2
    assert model.study_start(0, -1) == 0

"""The work list in the store: order, search and counts, without reading any result."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fieldray.domain.finding import WORK_LIST_ORDER, Finding, Outcome, ScreenedOutcome
from fieldray.domain.history import (
    ResultFilter,
    ResultOrder,
    VerdictFilter,
    WorkListColumnName,
    row_in_patient_group_at,
    verdict_passes,
)
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.run import Verdict
from fieldray.formatting import file_name, format_person_name, view_and_laterality_label
from fieldray.reasons import reason
from fieldray.store import bookkeeping
from fieldray.store.bookkeeping import ReusedResults
from fieldray.store.database import damage_mark_path
from fieldray.store.deletion import delete_runs
from fieldray.store.maintenance import repair
from fieldray.store.results import ResultStore
from fieldray.store.work_list import SELECT_PATIENTS_AND_STUDIES, HistoryQuery, work_list_statement
from outcomes import failed, image_ref, refused, screened
from stores import AGREE, SPEC, AskedStatements, rows_of, save_run

ODD_NAME = "zahn\udcfc.png"  # not valid Unicode
COLUMNS: tuple[WorkListColumnName, ...] = get_args(WorkListColumnName)


@pytest.fixture
def query(store: ResultStore) -> Iterator[HistoryQuery]:
    with HistoryQuery(store.path) as opened:
        yield opened


def image(name: str, score: float = 0.8, **header: object) -> ScreenedOutcome:
    """An image with a score; a higher score took longer."""
    made = screened(image_ref(name, header=ImageHeader(**header)), score=score)
    return replace(made, inference_ms=round(10 * score, 1))


OUTCOMES: tuple[Outcome, ...] = (
    image("c.dcm", 0.2, patient_name="Ärger^Ida", patient_id="P-7", study_date="20240101", view_position="PA"),
    failed(image_ref("broken.dcm")),
    image("a.dcm", 0.9, patient_name="Zorn^Udo", patient_id=" P-8 ", study_date="20230101", view_position="AP"),
    refused(image_ref("d.dcm", header=ImageHeader(patient_name="zorn^udo", study_date="20240101"))),
    replace(image("b.dcm", 0.7, patient_id="P-7", study_instance_uid="1.2"), backend="edgetpu"),
    image(ODD_NAME, 0.7, study_instance_uid="1.2"),
    replace(image("e.dcm", 0.1), findings=(Finding(label="o", score=0.99, point=None, decision="not_assessed"),)),
    image("f.dcm", 0.2, patient_name="Ärger^Ida", study_date="20240101"),
)


def add(store: ResultStore, *outcomes: Outcome) -> int:
    return save_run(store, *(outcomes or OUTCOMES), as_new_run=True)


def listed(query: HistoryQuery, run_id: int, order: ResultOrder = ResultOrder(), **wanted: object) -> list[int]:  # noqa: B008
    return query.list_rows(run_id, ResultFilter(**wanted), order).row_ids.tolist()


def urgency(row_id: int, outcome: Outcome) -> tuple[int, float, int]:
    return WORK_LIST_ORDER.index(outcome.category), -leading_score(outcome), row_id


def leading_score(outcome: Outcome) -> float:
    return outcome.findings[0].score if isinstance(outcome, ScreenedOutcome) else -1.0


def key(column: WorkListColumnName, row_id: int, outcome: Outcome) -> object:
    """The sort key of a column, computed in Python to compare with SQL."""
    header, is_screened = outcome.ref.header, isinstance(outcome, ScreenedOutcome)
    return {
        "image": row_id,
        "patient": (format_person_name(header.patient_name) or file_name(outcome.ref)).casefold(),
        "date": header.study_date,
        "view": view_and_laterality_label(header).casefold(),
        "class": urgency(row_id, outcome),
        "score": leading_score(outcome),
        "backend": outcome.backend if is_screened else "",
        "ms": outcome.inference_ms if is_screened else -1.0,
        "status": "" if is_screened else outcome.reason.code,
    }[column]


# ---- order and filter


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_sorts_both_ways_with_equal_rows_by_class(
    store: ResultStore, query: HistoryQuery, column: WorkListColumnName, is_descending: bool
) -> None:
    run_id = add(store)
    rows = [(result.row_id, result.outcome) for result in store.results(run_id)]
    wanted = sorted(rows, key=lambda row: urgency(*row))
    wanted.sort(key=lambda row: key(column, *row), reverse=is_descending)  # type: ignore[arg-type,return-value]
    order, expected = ResultOrder(column, is_descending), [row_id for row_id, _ in wanted]
    assert listed(query, run_id, order) == expected
    assert query.list_rows(run_id, ResultFilter(), order, limit=3).row_ids.tolist() == expected[:3]
    assert listed(query, run_id, order, text="nobody") == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {1, 2, 3, 4, 5, 6, 7, 8}),
        ("ärger", {1, 8}),
        ("ÄRGER ida p-7 2024", {1}),
        ("zorn udo", {3, 4}),
        ("P-7", {1, 5}),
        ("20240101", {1, 4, 8}),
        ("B.DCM", {5}),
        (".png", {6}),
        ("arger", {1, 8}),
        ("ida  ÁRG", {1, 8}),
        ("2024-01-01 zorn", {4}),
        ("01.01.2024 p-7", {1}),
        ("2023-01", {3}),
        ("nobody", set()),
        ("%", set()),
        ("a.dcm", {3}),
    ],
)
def test_a_search_finds_parts_of_name_number_date_and_file(
    store: ResultStore, query: HistoryQuery, text: str, found: set[int]
) -> None:
    run_id = add(store)
    assert set(listed(query, run_id, text=text)) == found
    assert set(listed(query, run_id, ResultOrder("date", True), text=text)) == found


def test_filters_of_class_device_and_verdict_can_be_combined(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store)
    for row_id, choice in ((3, "agree"), (5, "disagree")):
        store.set_verdict(row_id, Verdict(choice=choice), judged=OUTCOMES[row_id - 1])  # type: ignore[arg-type]
    assert listed(query, run_id, category="abnormal") == [3, 5, 6]
    assert listed(query, run_id, backend="edgetpu") == [5]
    assert listed(query, run_id, backend="cpu", category="normal") == [1, 8]
    choices = {3: "agree", 5: "disagree"}
    for wanted in get_args(VerdictFilter):
        has = [row_id for row_id in listed(query, run_id) if verdict_passes(choices.get(row_id), wanted)]  # type: ignore[arg-type]
        assert listed(query, run_id, verdict=wanted) == has
    assert listed(query, run_id, verdict="given", backend="cpu", text="zorn") == [3]
    assert listed(query, run_id, verdict="none", category="abnormal", always_shown_row_ids=frozenset({5})) == [5, 6]


def test_a_verdict_on_a_replaced_result_is_not_filtered(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store, image("a.dcm", 0.9))
    store.set_verdict(1, AGREE, judged=image("a.dcm", 0.9))
    store.save_image(run_id, image("a.dcm", 0.3), spec=SPEC)
    assert listed(query, run_id, verdict="given") == []
    assert listed(query, run_id, verdict="none") == [1]


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("column", COLUMNS)
def test_no_list_reads_a_result_or_another_run(
    query: HistoryQuery, column: WorkListColumnName, is_descending: bool
) -> None:
    """Every statement uses an index that contains all its values and, as a rule, the order. Results are read only to
    filter by verdict.
    """
    seeks = ("SEARCH work_list USING PRIMARY KEY (run_id=?", "SEARCH work_list USING COVERING INDEX")
    is_in_order = column in ("class", "image") or (column == "patient" and not is_descending)
    assert plan(query, SELECT_PATIENTS_AND_STUDIES.format(only=""), (1,)) == [
        "SEARCH work_list USING PRIMARY KEY (run_id=?)"
    ]
    for wanted in (
        ResultFilter(),
        ResultFilter(category="normal"),
        ResultFilter(backend="cpu"),
        ResultFilter(verdict="none", always_shown_row_ids=frozenset({1})),
        ResultFilter(verdict="disagreed", text="px"),
    ):
        statement, values = work_list_statement(wanted, ResultOrder(column, is_descending))
        steps = plan(query, statement, {**values, "run_id": 1, "limit": -1})
        assert steps[0].startswith(seeks) and "(run_id=?" in steps[0]
        assert not is_in_order or not [step for step in steps if "TEMP B-TREE" in step], steps
        assert not [step for step in steps if step.startswith(("SCAN work_list", "SCAN results", "SCAN found"))], steps
        of_results = [step for step in steps if "results" in step]
        assert of_results in ([], ["SEARCH results USING INTEGER PRIMARY KEY (rowid=?)"])


def plan(query: HistoryQuery, statement: str, values: object) -> list[str]:
    return [row["detail"] for row in query._connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


def person_of(name: str, score: float, patient_id: str, study: str, **header: object) -> ScreenedOutcome:
    return image(name, score, patient_id=patient_id, study_instance_uid=study, **header)


BY_PATIENT = (
    person_of("1.dcm", 0.3, "A", "a1"),
    person_of("2.dcm", 0.9, "B", "b1"),
    person_of("3.dcm", 0.8, "A", "a2"),
    person_of("4.dcm", 0.2, "A", "a1"),
    person_of("5.dcm", 0.7, "B", "b1", patient_birth_date="19700101"),  # another B, by the birth date
    person_of("6.dcm", 0.39, "", "b1"),  # without a patient, in a study of this number
    person_of("7.dcm", 0.38, "unknown", "c"),
    person_of("8.dcm", 0.1, "unknown", "c"),
    person_of("9.dcm", 0.25, "A", "a2"),
    person_of("10.dcm", 0.95, "C", "c1"),
)


def test_images_of_a_patient_are_grouped_at_their_most_urgent_image(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store, *BY_PATIENT)
    found = query.list_rows(run_id, ResultFilter(), ResultOrder(is_grouped_by_patient=True))
    assert found.row_ids.tolist() == [10, 2, 3, 9, 1, 4, 5, 6, 7, 8]
    assert found.group_start_kinds.tolist() == [2, 2, 2, 0, 1, 0, 2, 2, 2, 2]
    groups = [row_in_patient_group_at(found.group_start_kinds, index) for index in (0, 2, 3, 4, 5)]
    assert groups == [(2, 2, 1), (2, 0, 4), (0, 1, 3), (1, 0, 2), (0, 2, 1)]
    assert row_in_patient_group_at(query.list_rows(run_id, ResultFilter(), ResultOrder()).group_start_kinds, 0) is None


def test_patients_are_grouped_in_every_order_and_filter(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store, *BY_PATIENT)
    assert listed(query, run_id, ResultOrder("image", True, is_grouped_by_patient=True)) == [
        10,
        9,
        3,
        4,
        1,
        8,
        7,
        6,
        5,
        2,
    ]
    assert listed(query, run_id, ResultOrder("score", is_grouped_by_patient=True), category="normal") == [
        8,
        4,
        1,
        9,
        7,
        6,
    ]
    first = query.list_rows(run_id, ResultFilter(), ResultOrder(is_grouped_by_patient=True), limit=5)
    assert first.row_ids.tolist() == [10, 2, 3, 5, 6]
    assert (
        query.list_rows(
            run_id, ResultFilter(text="none"), ResultOrder(is_grouped_by_patient=True)
        ).group_start_kinds.tolist()
        == []
    )


def of_day(name: str, score: float, patient_id: str, day: str) -> ScreenedOutcome:
    return image(name, score, patient_id=patient_id, study_instance_uid=f"{patient_id}.{day}", study_date=day)


SEASONS = (
    of_day("1.dcm", 0.99, "A", "20260615"),  # an image of last season, of a patient whose image of today follows
    of_day("2.dcm", 0.2, "A", "20261129"),
    of_day("3.dcm", 0.7, "B", "20261129"),
    of_day("4.dcm", 0.8, "C", "20260101"),  # the newest image of C
    of_day("5.dcm", 0.9, "D", "20261128"),
    of_day("6.dcm", 0.3, "D", "20261129"),
    of_day("7.dcm", 0.85, "D", ""),  # without a date it counts as today's
    of_day("8.dcm", 0.95, "unknown", "20251129"),  # without a patient
    of_day("9.dcm", 0.1, "unknown", "20261129"),
)


def test_a_patient_is_listed_by_todays_images_with_earlier_ones_last(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store, *SEASONS)
    for limit in (None, 256):
        found = query.list_rows(run_id, ResultFilter(), ResultOrder(is_grouped_by_patient=True), limit=limit)
        assert found.row_ids.tolist() == [8, 7, 6, 5, 4, 3, 2, 1, 9]
        assert found.row_ids[found.has_newer_image_of_patient].tolist() == [5, 1]
    assert listed(query, run_id) == [8, 7, 4, 3, 6, 2, 9, 1, 5]
    assert listed(query, run_id, category="abnormal") == [8, 7, 4, 3, 1, 5]  # both, today's first
    assert listed(query, run_id, ResultOrder("class", True)) == [9, 2, 6, 3, 4, 7, 8, 5, 1]
    assert listed(query, run_id, ResultOrder("score", True)) == [1, 8, 5, 7, 4, 3, 6, 2, 9]  # in the requested order


def test_a_later_image_of_today_moves_the_earlier_image_down(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store, SEASONS[0], SEASONS[2])
    assert listed(query, run_id) == [1, 2]
    store.save_image(run_id, SEASONS[1], spec=SPEC)
    assert listed(query, run_id, ResultOrder(is_grouped_by_patient=True)) == [2, 3, 1]


def test_exports_have_todays_images_first_and_mark_earlier_ones(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store, *SEASONS)
    ordered = list(query.images_in_work_list_order(run_id))
    assert [found.row_id for found in ordered] == listed(query, run_id) == [8, 7, 4, 3, 6, 2, 9, 1, 5]
    assert [found.row_id for found in ordered if found.most_urgent_result.has_newer_image_of_patient] == [1, 5]
    assert [brief.row_id for brief in query.result_briefs(run_id)] == listed(query, run_id)


def test_the_next_unread_image_is_searched_below_then_from_the_top(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store)
    rows = np.array([3, 5, 6, 8, 1], np.int64)
    store.set_read_state(5, judged=OUTCOMES[4], is_read=True)
    store.set_verdict(8, AGREE, judged=OUTCOMES[7])
    store.set_read_state(3, judged=image("a.dcm", 0.3), is_read=True)  # the row's earlier result
    assert [query.next_unread(run_id, rows, index) for index in (-1, 0, 2, 4)] == [3, 6, 1, 3]
    assert query.next_unread(run_id, np.array([5, 1], np.int64), 1) is None
    assert sorted(listed(query, run_id, verdict="unread")) == [1, 2, 3, 4, 6, 7]
    assert 5 in listed(query, run_id, verdict="unread", always_shown_row_ids=frozenset({5}))
    assert listed(query, run_id, verdict="given") == [8]
    assert 5 in listed(query, run_id, verdict="none")
    assert [image.most_urgent_result.is_read for image in query.images([3, 5, 8])] == [False, True, True]


def test_a_query_can_be_interrupted(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store)
    begun = threading.Event()
    query._connection.create_function("slow", 1, lambda value: begun.set() or threading.Event().wait(0.05) or value)
    other = threading.Thread(target=lambda: begun.wait(10) and query.interrupt())
    other.start()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"), query.snapshot():
        query._connection.execute("SELECT slow(image_id) FROM work_list WHERE run_id = ?", (run_id,)).fetchall()
    other.join()
    assert len(listed(query, run_id)) == len(OUTCOMES)


# ---- updates


def counts(query: HistoryQuery, run_id: int) -> dict[str, int]:
    found = query.list_rows(run_id, ResultFilter(), ResultOrder())
    assert sum(found.counts.values()) == len(found.row_ids)
    return {category: number for category, number in found.counts.items() if number}


def test_counts_follow_saved_replaced_and_missing_images(store: ResultStore, query: HistoryQuery) -> None:
    run_id = store.open_run(SPEC)
    store.save_image(run_id, image("a.dcm", 0.9), spec=SPEC)
    store.save_image(run_id, image("b.dcm", 0.9), spec=SPEC)
    assert counts(query, run_id) == {"abnormal": 2}
    store.save_image(run_id, image("b.dcm", 0.3), spec=SPEC)  # screened again
    store.save_image(run_id, image("a.dcm", 0.9), spec=SPEC)  # and again with the same result
    assert counts(query, run_id) == {"abnormal": 1, "normal": 1}
    store.set_run_state(run_id, "cancelled")
    assert store.open_run(SPEC) == run_id  # a second run over the folder, which finds only one of them
    store.save_image(run_id, image("a.dcm", 0.9), spec=SPEC)
    assert counts(query, run_id) == {"abnormal": 1, "normal": 1}
    assert store.finish_run(run_id) == 1
    assert counts(query, run_id) == {"abnormal": 1}
    assert counts(query, run_id) == store.category_counts(run_id)


def test_a_result_that_was_not_saved_is_not_counted(store: ResultStore, query: HistoryQuery) -> None:
    run_id = store.open_run(SPEC)
    store._connection.execute("CREATE TEMP TRIGGER full BEFORE INSERT ON work_list BEGIN SELECT RAISE(ABORT, ''); END")
    with pytest.raises(sqlite3.IntegrityError):
        store.save_image(run_id, image("a.dcm"), spec=SPEC)
    store._connection.execute("DROP TRIGGER full")
    assert tuple(store.results(run_id)) == ()
    assert counts(query, run_id) == {}


def test_a_deleted_run_has_no_rows_left(store: ResultStore, query: HistoryQuery) -> None:
    first, second = add(store), add(store, image("x.dcm"))
    for run_id in (first, second):
        store.finish_run(run_id)
    delete_runs(store.path, [first])
    assert {run_id for (run_id,) in rows_of(store.path, "SELECT run_id FROM work_list")} == {second}


def test_a_store_that_was_repaired_is_listed_as_before(path: Path) -> None:
    with ResultStore(path) as store, HistoryQuery(path) as query:
        run_id = add(store)
        rows, number = listed(query, run_id), counts(query, run_id)
        store._connection.execute("DELETE FROM work_list")
    damage_mark_path(path).touch()
    assert repair(path) is not None
    with HistoryQuery(path) as query:
        assert (listed(query, run_id), counts(query, run_id)) == (rows, number)


# ---- a few results


def test_results_come_in_the_requested_order_without_missing_ones(store: ResultStore, query: HistoryQuery) -> None:
    add(store)
    store.set_verdict(3, AGREE, judged=OUTCOMES[2])
    found = query.images([3, 99, 1])
    assert [result.row_id for result in found] == [3, 1]
    assert found[0].most_urgent_result.verdict == AGREE
    assert (
        isinstance(found[0].most_urgent_result.outcome, ScreenedOutcome)
        and found[0].most_urgent_result.outcome.class_maps is not None
    )


def test_the_next_study_is_found_at_any_distance(
    store: ResultStore, query: HistoryQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldray.store.work_list._STUDY_ROWS", (2, 3))
    studies = ["a"] * 9 + ["b", "", "", "c"]
    outcomes = [image(f"{number}.dcm", study_instance_uid=study) for number, study in enumerate(studies)]
    run_id = add(store, *outcomes)
    rows = np.array(listed(query, run_id, ResultOrder("image")), np.int64)
    assert query.next_study(run_id, rows, 0, 1) == 10
    assert query.next_study(run_id, rows, 9, -1) == 9
    assert query.next_study(run_id, rows, 10, 1) == 12  # without a study UID each image is a study
    assert query.next_study(run_id, rows, 12, 1) is None
    assert query.next_study(run_id, rows, 4, -1) is None


def test_an_image_is_found_by_its_path(store: ResultStore, query: HistoryQuery) -> None:
    run_id = add(store)
    found = query.find_image(run_id, ImageRef(path=Path("/images/a.dcm")))
    assert found is not None and found.row_id == 3
    assert query.find_image(run_id, ImageRef(path=Path("/images/other.dcm"))) is None
    assert query.find_image(run_id + 1, ImageRef(path=Path("/images/a.dcm"))) is None


def test_images_of_a_patient_are_found_in_all_runs(store: ResultStore, query: HistoryQuery) -> None:
    broken = failed(image_ref("z.dcm", header=ImageHeader(patient_id="P-7")))
    first = add(store, *OUTCOMES, broken)
    add(store, image("x.dcm", patient_id="P-7"), image("y.dcm", patient_id="p-7"))
    for run_id, names in ((None, ["x.dcm", "b.dcm", "c.dcm"]), (first, ["z.dcm", "b.dcm", "c.dcm", "x.dcm"])):
        assert [found.ref.path.name for found in query.images_of_patient("P-7 ", run_id=run_id)] == names
    assert [found.ref.path.name for found in query.images_of_patient("P-8")] == ["a.dcm"]
    assert query.images_of_patient(" ") == query.images_of_patient("nobody") == ()


def test_patients_are_found_by_an_index(path: Path) -> None:
    said = AskedStatements()
    with ResultStore(path) as store:
        add(store)
    with HistoryQuery(path, connect=said.connect) as query:
        said.clear()
        query.images_of_patient("P-7")
    assert sum("INDEXED BY work_list_by_patient_id" in statement for statement in said) == 1
    for plan in said.plans(path):
        assert not [step for step in plan if step.startswith(("SCAN images", "SCAN answers", "SCAN work_list"))], plan


def test_every_reason_of_a_refusal_is_sorted_by_its_code(store: ResultStore, query: HistoryQuery) -> None:
    why = [reason("view", view="LL"), reason("modality", modality="CT"), reason("view", view="RL")]
    outcomes = [replace(refused(image_ref(f"{number}.dcm")), reason=one) for number, one in enumerate(why)]
    run_id = add(store, *outcomes)
    assert listed(query, run_id, ResultOrder("status")) == [2, 1, 3]


def one_pack(row_ids: Sequence[int]) -> ReusedResults:
    """References to results whose ids equal their row ids, as in a store of runs with one pack."""
    return ReusedResults(row_ids, [row_ids])


def all_listed(store: ResultStore, run_id: int) -> tuple[object, ...]:
    """The rows of a run's list without their ids, and its counts."""
    names = [row[1] for row in rows_of(store.path, "PRAGMA table_info (work_list)")]
    columns = ", ".join(f"list.{name}" for name in names if name not in ("run_id", "image_id"))
    rows = f"""SELECT image_key, {columns} FROM work_list AS list JOIN images ON images.id = list.image_id
               WHERE list.run_id = {run_id} ORDER BY image_key"""
    return (*rows_of(store.path, rows), store.category_counts(run_id))


def test_reused_results_are_listed_like_saved_ones(store: ResultStore) -> None:
    """Reused from listed and from missing rows of another run, and from a row of the same run whose image is back."""
    earlier = add(store)
    expected, rows = all_listed(store, earlier), [row.row_id for row in store.results(earlier)]
    assert len(rows) == len(OUTCOMES)
    store._all(bookkeeping.DELETE_WORK_LIST_ROW, earlier, rows[1])

    run_id = store.open_run(SPEC, as_new_run=True)
    copies = [*store.reuse_results(run_id, one_pack(rows[:5])), *store.reuse_results(run_id, one_pack(rows[5:]))]
    assert all_listed(store, run_id) == expected

    store._all(bookkeeping.DELETE_WORK_LIST_ROW, run_id, copies[2])
    assert all_listed(store, run_id) != expected
    store.reuse_results(run_id, one_pack(copies))
    assert all_listed(store, run_id) == expected

"""Deleting all images of one patient for good in all runs, while other images and the runs stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.history import ResultFilter, ResultOrder
from fieldray.errors import UsageProblem
from fieldray.store.database import pictures_path
from fieldray.store.deletion import delete_patient, delete_runs, plan_patient_deletion
from fieldray.store.results import ResultStore
from fieldray.store.work_list import HistoryQuery
from stores import AGREE, SPEC, image


def of(name: str, content: str, patient_id: str) -> ScreenedOutcome:
    preview = f"JPEG of {patient_id.strip()} ".encode() * 300
    return image(name, content, preview=preview, patient_id=patient_id, patient_name=f"NAME^{patient_id.strip()}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two runs with two patients. The first patient has a verdict in both runs, and one missing image."""
    place = tmp_path / "results.sqlite"
    with ResultStore(place) as store:
        for _ in range(2):
            run_id = store.open_run(SPEC, as_new_run=True)
            first = of("1.dcm", "a", "MRN-1")
            saved = store.save_image(run_id, first, spec=SPEC)
            store.save_image(run_id, of("2.dcm", "b", "MRN-10"), spec=SPEC)
            store.save_image(run_id, of("3.dcm", "c", " MRN-1 "), spec=SPEC)
            store.set_verdict(saved.most_urgent_result.result_id, AGREE, judged=first)
            store.finish_run(run_id)
    return place


def listed(path: Path, run_id: int) -> list[str]:
    with HistoryQuery(path) as query:
        rows = query.list_rows(run_id, ResultFilter(), ResultOrder()).row_ids.tolist()
        return [found.ref.header.patient_id for found in query.images(rows)]


def test_a_patient_is_deleted_from_all_runs_and_no_other_patient(path: Path) -> None:
    plan = plan_patient_deletion(path, "MRN-1 ")
    assert (plan.run_ids, plan.result_count, plan.verdict_count, plan.patient_id) == ((1, 2), 4, 1, "MRN-1")
    done = delete_patient(path, "MRN-1", confirmed_plan=plan)
    assert done.is_deleted_data_overwritten and done.plan.result_count == 4
    assert [listed(path, run_id) for run_id in (1, 2)] == [["MRN-10"], ["MRN-10"]]
    kept = path.read_bytes() + pictures_path(path).read_bytes()
    assert b'MRN-1"' not in kept and b'NAME^MRN-1"' not in kept and b"JPEG of MRN-1 " not in kept
    assert b"JPEG of MRN-10 " in kept
    with HistoryQuery(path) as query:
        assert [found.verdict_count for found in query.run_summaries()] == [0, 0]


def test_part_of_a_patient_id_or_an_empty_one_deletes_nobody(path: Path) -> None:
    for number in ("MRN", "", " "):
        with pytest.raises(UsageProblem, match="No result has the patient ID"):
            plan_patient_deletion(path, number)


def test_images_of_a_run_in_use_are_not_deleted(path: Path) -> None:
    with ResultStore(path) as store:
        store.save_image(store.open_run(SPEC, as_new_run=True), of("4.dcm", "d", "MRN-1"), spec=SPEC)
        with pytest.raises(UsageProblem, match="in use"):
            delete_patient(path, "MRN-1")
    assert len(listed(path, 1)) == 3


def test_more_images_than_agreed_are_not_deleted(path: Path) -> None:
    plan = plan_patient_deletion(path, "MRN-1")
    delete_runs(path, [2])
    delete_patient(path, "MRN-1", confirmed_plan=plan)  # fewer images are deleted
    with ResultStore(path) as store:
        run_id = store.open_run(SPEC, as_new_run=True)
        store.save_image(run_id, of("5.dcm", "e", "MRN-10"), spec=SPEC)
        store.finish_run(run_id)
        agreed = plan_patient_deletion(path, "MRN-10")
        store.save_image(store.open_run(SPEC, as_new_run=True), of("6.dcm", "f", "MRN-10"), spec=SPEC)
    with pytest.raises(UsageProblem, match="were added"):
        delete_patient(path, "MRN-10", confirmed_plan=agreed)

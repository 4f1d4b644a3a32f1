"""Past runs in the store: counts, briefs, previews, and deletion that leaves no trace."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stores
from fieldray.domain.finding import PREVIEW_SIDE, Outcome, RefusedOutcome, ScreenedOutcome
from fieldray.domain.history import MonthlyCounts
from fieldray.domain.run import RunSpec
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.persistence import FileLock, temporary_path
from fieldray.pipeline.history import month_report_blocks
from fieldray.reasons import reason
from fieldray.reports.content import monthly_counts_as_json
from fieldray.reports.document import console_lines
from fieldray.store.database import companion_files, pictures_path
from fieldray.store.deletion import delete_runs, plan_deletion
from fieldray.store.results import ResultStore
from fieldray.store.work_list import HistoryQuery
from fieldray.translation import Translator
from outcomes import failed, image_ref, operating_point, refused, run_spec
from raised import raises
from stores import AGREE, DISAGREE, SPEC, AskedStatements, change, rows_of, save_run

OTHER = run_spec(model_sha256="n" * 64, pack_name="other-2.0.0")
SECRET_NAME, SECRET_PREVIEW = "SECRETNAME^OF^A^PATIENT", b"\xff\xd8 preview of a patient " * 40


def image(content: str, *, score: float = 0.8, preview: bytes = b"jpeg") -> ScreenedOutcome:
    """An image with a score whose content hash consists of `content`."""
    return stores.image(f"{content}.dcm", content, score=score, preview=preview, patient_name=SECRET_NAME)


def add(store: ResultStore, *outcomes: Outcome, spec: RunSpec = SPEC, is_over: bool = True) -> int:
    """Save a further run with these outcomes."""
    return save_run(store, *outcomes, spec=spec, as_new_run=True, is_over=is_over)


def on_disk(path: Path) -> bytes:
    """All bytes of the files in the folder of the store."""
    return b"".join(file.read_bytes() for file in path.parent.iterdir() if file.is_file())


# ---- reading


def test_runs_come_with_their_counts_the_newest_first(store: ResultStore) -> None:
    first = add(store, image("a"), image("b", score=0.1), refused(), failed())
    second = add(store, replace(image("a"), backend="edgetpu"), spec=OTHER)
    store.set_verdict(1, DISAGREE, judged=image("a"))
    with HistoryQuery(store.path) as query:
        newest, oldest = query.run_summaries()
    assert (newest.run.run_id, oldest.run.run_id) == (second, first)
    assert oldest.counts == {"abnormal": 1, "normal": 1, "refused": 1, "failed": 1}
    assert (oldest.counts_by_backend, newest.counts_by_backend) == ({"cpu": 2, "": 2}, {"edgetpu": 1})
    assert (oldest.counts_by_verdict, oldest.verdict_count, newest.verdict_count) == ({"disagree": 1}, 1, 0)
    assert (oldest.image_count, oldest.absent_image_count) == (4, 0)


def test_notes_on_image_quality_are_counted_by_day(store: ResultStore) -> None:
    def taken(content: str, *codes: str) -> ScreenedOutcome:
        return replace(image(content), notes=tuple(map(reason, codes)))

    run_id = add(
        store, taken("a", "lungs_cut_off_top", "lungs_cut_off_left", "lungs_tilted"), taken("b", "lungs_unseen")
    )
    add(store, taken("c", "lungs_low"), taken("d", "lungs_low"), taken("e", "perhaps_mirrored"), spec=OTHER)
    change(store.path, "UPDATE images SET saved_s = saved_s - 200000 WHERE run_id = ?", run_id)
    change(store.path, "UPDATE answers SET saved_s = saved_s - 200000 WHERE run_id = ?", run_id)
    with HistoryQuery(store.path) as query:
        first, second = query.image_quality_by_day(since_s=0.0).items()
        assert first > second  # the newest day first
        assert (first[1], second[1]) == (
            {"images": 3, "lungs_low": 2},
            {"images": 2, "lungs_cut_off_top": 1, "lungs_cut_off_left": 1, "lungs_tilted": 1},
        )
        assert len(query.image_quality_by_day(since_s=time.time() - 1000)) == 1


def test_missing_images_are_counted_separately(store: ResultStore) -> None:
    run_id = save_run(store, image("a"), image("b"))
    store.set_run_state(run_id, "cancelled")
    assert save_run(store, image("a"), is_over=True) == run_id
    with HistoryQuery(store.path) as query:
        (summary,) = query.run_summaries()
        assert (summary.image_count, summary.absent_image_count) == (1, 1)
        assert [found.content_sha256 for found in query.result_briefs(run_id)] == ["a" * 64]


@pytest.mark.parametrize(
    "ask",
    [
        lambda q: q.run_summaries(),
        lambda q: q.image_quality_by_day(since_s=0.0),
        lambda q: q.preview("a" * 64, frame=0),
        lambda q: list(q.result_briefs(1)),
    ],
)
def test_the_list_of_runs_reads_no_result(path: Path, ask: Callable[[HistoryQuery], object]) -> None:
    """It reads only an index: results are large, and there may be many."""
    said = AskedStatements()
    with ResultStore(path) as store:
        add(store, *(image(f"{number:x}") for number in range(10)))
    with HistoryQuery(path, connect=said.connect) as query:
        said.clear()
        ask(query)
    for plan in said.plans(path):
        whole = [step for step in plan if step.startswith("SCAN results") and "COVERING INDEX" not in step]
        assert whole == [], plan


# ---- previews


def test_a_preview_is_stored_once_for_all_results_of_one_content(store: ResultStore) -> None:
    add(store, image("a", preview=b"first"))
    add(store, image("a", preview=b"second"), spec=OTHER)
    with HistoryQuery(store.path) as query:
        assert query.preview("a" * 64, frame=0) == b"first"
        assert query.preview("a" * 64, frame=1) is None
        assert query.preview("b" * 64, frame=0) is None
    assert rows_of(pictures_path(store.path), "SELECT COUNT(*) FROM pictures") == [(1,)]


@pytest.mark.parametrize("kept", [2**50, 3.5, "text", b"x" * (PREVIEW_SIDE**2 + 1)])
def test_an_invalid_preview_counts_as_missing(store: ResultStore, path: Path, kept: object) -> None:
    """Python's bytes() would turn a number into that many zero bytes."""
    add(store, image("a"))
    change(pictures_path(path), "UPDATE pictures SET preview = ?", kept)
    with HistoryQuery(path) as query:
        assert query.preview("a" * 64, frame=0) is None


@pytest.mark.parametrize("harm", ["thumbnail = x'010203'", "thumbnail = 7", "thumbnail_columns = 'x'", "frame = 9"])
def test_a_damaged_thumbnail_does_not_affect_its_result(store: ResultStore, harm: str) -> None:
    row_id = store.save_image(store.open_run(SPEC), image("a"), spec=SPEC).row_id
    assert store.result(row_id).outcome.facts.thumbnail is not None
    change(pictures_path(store.path), f"UPDATE pictures SET {harm}")
    outcome = store.result(row_id).outcome
    assert isinstance(outcome, ScreenedOutcome)
    assert (outcome.facts.thumbnail, outcome.findings[0].score) == (None, 0.8)


# ---- deleting


def test_no_file_contains_anything_of_a_deleted_run(store: ResultStore, path: Path) -> None:
    first = add(store, image("a", preview=SECRET_PREVIEW), image("b", preview=SECRET_PREVIEW))
    second = add(store, stores.image("kept.dcm", preview=b"kept preview"), spec=OTHER)
    store.close()
    assert all(said in on_disk(path) for said in (SECRET_NAME.encode(), b"secretname", SECRET_PREVIEW))
    done = delete_runs(path, [first])
    assert (done.plan.result_count, done.is_deleted_data_overwritten) == (2, True)
    assert rows_of(pictures_path(path), "SELECT COUNT(*) FROM pictures") == [(1,)]
    left = on_disk(path)
    assert (
        SECRET_NAME.encode() not in left
        and b"secretname" not in left
        and b"preview of a patient" not in left
        and b"/images/a.dcm" not in left
    )
    assert b"kept preview" in left and b"kept.dcm" in left
    assert not any(companion.exists() and companion.stat().st_size for companion in companion_files(path)[:1])
    with HistoryQuery(path) as query:
        assert [summary.run.run_id for summary in query.run_summaries()] == [second]


def test_a_deleted_run_is_removed_from_the_log_while_another_window_is_open(store: ResultStore, path: Path) -> None:
    run_id = add(store, image("a", preview=SECRET_PREVIEW))
    assert delete_runs(path, [run_id]).is_deleted_data_overwritten
    assert SECRET_NAME.encode() not in on_disk(path) and SECRET_PREVIEW not in on_disk(path)
    assert store.runs() == ()


def test_a_deletion_reports_if_a_reader_prevents_overwriting(
    store: ResultStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldray.store.database._BUSY_TIMEOUT_S", 0.05)
    run_id = add(store, image("a"))
    with HistoryQuery(path) as reading, reading.snapshot():
        assert len(reading.runs()) == 1
        assert not delete_runs(path, [run_id]).is_deleted_data_overwritten
    assert store.runs() == ()


def test_a_preview_stays_while_another_run_needs_it(store: ResultStore, path: Path) -> None:
    first, second = add(store, image("a", preview=b"shared")), add(store, image("a"), spec=OTHER)
    delete_runs(path, [first])
    with HistoryQuery(path) as query:
        assert query.preview("a" * 64, frame=0) == b"shared"
    delete_runs(path, [second])
    assert rows_of(pictures_path(path), "SELECT COUNT(*) FROM pictures") == [(0,)]


def test_the_deletion_plan_counts_lost_verdicts_and_those_of_another_run(store: ResultStore, path: Path) -> None:
    add(store, image("a"), image("b"))
    for row_id, content in ((1, "a"), (2, "b")):
        store.set_verdict(row_id, AGREE, judged=image(content))
    second = add(store, image("a"))  # this run takes the verdict over
    plan = plan_deletion(path, [1])
    assert (plan.result_count, plan.verdict_count, plan.kept_verdict_count) == (2, 1, 1)
    both = plan_deletion(path, [1, second, 1])
    assert (both.run_ids, both.result_count, both.verdict_count, both.kept_verdict_count) == ((1, second), 3, 2, 0)
    assert delete_runs(path, [1]).plan == plan
    with HistoryQuery(path) as query:
        assert query.result(3).verdict == AGREE


def test_a_run_in_use_prevents_the_deletion_of_all_chosen_runs(store: ResultStore, path: Path) -> None:
    done = add(store, image("a"))
    under_way = add(store, image("b"), spec=OTHER, is_over=False)
    with pytest.raises(UsageProblem) as problem:
        delete_runs(path, [done, under_way])
    assert problem.value.reason.code == "history_in_use"
    assert dict(problem.value.reason.parameters)["process"] == str(os.getpid())
    assert {run.run_id for run in store.runs()} == {done, under_way}
    store.set_run_state(under_way, "cancelled")
    store.close()  # releases the run, which may then be resumed
    assert delete_runs(path, [done, under_way]).plan.result_count == 2
    assert list(path.parent.glob("*.lock")) == []


def test_deleting_an_unknown_run_deletes_nothing(store: ResultStore, path: Path) -> None:
    run_id = add(store, image("a"))
    for ask in (plan_deletion, delete_runs):
        with pytest.raises(UsageProblem, match="Run 99 was not found"):
            ask(path, [run_id, 99])
    assert len(store.runs()) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a lock keeps Windows from deleting the file")
def test_without_a_writable_lock_nothing_is_deleted(
    store: ResultStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = add(store, image("a"), is_over=False)
    store.close()

    def denied(place: Path, **options: Any) -> FileLock:
        if ".run-" in place.name:
            raise PermissionError(13, "denied")
        return FileLock(place, **options)

    monkeypatch.setattr("fieldray.store.locks.FileLock", denied)
    with pytest.raises(StorageProblem, match="denied"):
        delete_runs(path, [run_id])
    with HistoryQuery(path) as query:
        assert len(query.runs()) == 1


def test_deletion_removes_leftover_files_and_names_files_set_aside(store: ResultStore, path: Path) -> None:
    run_id = add(store, image("a", preview=SECRET_PREVIEW))
    store.close()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    left = path.with_name(temporary_path(path).name.replace(str(os.getpid()), str(ended.pid), 1))
    shutil.copy(path, left)
    aside = path.with_name("results.damaged-1.sqlite")
    aside.write_bytes(b"once a store")
    assert delete_runs(path, [run_id]).files_with_possible_copies == (str(aside),)
    assert not left.exists() and aside.read_bytes() == b"once a store"
    assert SECRET_NAME.encode() not in on_disk(path)


def test_a_verdict_given_after_the_deletion_plan_prevents_the_deletion(store: ResultStore, path: Path) -> None:
    run_id = add(store, image("a"))
    agreed = plan_deletion(path, [run_id])
    store.set_verdict(1, DISAGREE, judged=image("a"))  # given while the question is open
    with raises(UsageProblem, "history_grown"):
        delete_runs(path, [run_id], confirmed_plan=agreed)
    with HistoryQuery(path) as query:
        assert query.result(1).verdict == DISAGREE
    assert delete_runs(path, [run_id], confirmed_plan=plan_deletion(path, [run_id])).plan.verdict_count == 1


def test_a_month_counts_each_image_once_per_pack_at_its_first_run(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "results.sqlite") as store:
        first = add(store, image("a"), image("b", score=0.2), refused(image_ref("side.dcm")))
        again = add(store, image("a", score=0.2), spec=run_spec(settings_hash="t" * 64))  # the newest answer counts
        add(store, image("a"), spec=OTHER)
        row = next(iter(store.results(again)))
        store.set_verdict(row.row_id, AGREE, judged=row.outcome)
        assert first < again
    with HistoryQuery(tmp_path / "results.sqlite") as query:
        now = time.time()
        found = {
            (one.spec.pack_name, one.category, one.verdict): one.image_count
            for one in query.image_tallies(now - 999, now + 999)
        }
        assert found == {
            (SPEC.packs[0].pack_name, "normal", "agree"): 1,
            (SPEC.packs[0].pack_name, "normal", None): 1,
            (SPEC.packs[0].pack_name, "refused", None): 1,
            (OTHER.packs[0].pack_name, "abnormal", None): 1,
        }
        (why,) = (one.reason for one in query.image_tallies(now - 999, now + 999) if one.category == "refused")
        assert why is not None and why.code == "view"
        assert query.image_tallies(now - 9999, now - 999) == query.image_tallies(now + 999, now + 9999) == ()


def test_a_month_of_one_folder_counts_its_images_alone(tmp_path: Path) -> None:
    with ResultStore(tmp_path / "results.sqlite") as store:
        for number, path in enumerate(("/clinic/a.dcm", "/clinic/more/b.dcm", "/clinic-2/c.dcm")):
            add(store, replace(image(str(number)), ref=image_ref(path=Path(path))))
    with HistoryQuery(tmp_path / "results.sqlite") as query:
        until = time.time() + 999
        assert sum(one.image_count for one in query.image_tallies(0, until)) == 3
        assert sum(one.image_count for one in query.image_tallies(0, until, folder=Path("/clinic"))) == 2
        assert query.image_tallies(0, until, folder=Path("/cli")) == ()


def test_a_month_does_not_count_a_failure_that_was_later_screened(tmp_path: Path) -> None:
    def counted() -> list[tuple[str, str, int]]:
        with HistoryQuery(tmp_path / "results.sqlite") as query:
            found = query.image_tallies(0, time.time() + 999)
            return sorted((one.spec.pack_name, one.category, one.image_count) for one in found)

    with ResultStore(tmp_path / "results.sqlite") as store:
        add(store, failed(image_ref("a.dcm")), failed(image_ref("b.dcm")))
        add(store, failed(image_ref("a.dcm")), spec=OTHER)
        add(store, image("a"))  # the same file, now readable
        others = (OTHER.packs[0].pack_name, "failed", 1)
        assert counted() == [others, (SPEC.packs[0].pack_name, "abnormal", 1), (SPEC.packs[0].pack_name, "failed", 1)]
        change(store.path, "UPDATE images SET absent_s = 1 WHERE run_id = 1")  # b.dcm no longer exists
        assert counted() == [others, (SPEC.packs[0].pack_name, "abnormal", 1)]


def test_a_month_states_common_refusals_and_different_operating_points(tmp_path: Path) -> None:
    def month() -> str:
        with HistoryQuery(tmp_path / "results.sqlite") as query:
            tallies = query.image_tallies(0, time.time() + 999)
        first = datetime.date(2026, 11, 1)
        found = MonthlyCounts(
            first_day=first, tallies=tallies, manifests={SPEC.packs[0].pack_name: None}, constancy_results=()
        )
        (refusals,) = (
            one["images"] for one in json.loads(monthly_counts_as_json(found))["images"] if one["why"] == "age"
        )
        assert refusals == 2
        return "\n".join(console_lines(month_report_blocks(found, Translator())))

    with ResultStore(tmp_path / "results.sqlite") as store:
        ages = [reason("age", youngest=18, oldest=120, age=age) for age in (3, 16)]
        children = [RefusedOutcome(ref=image_ref(f"{at}.dcm"), reason=why) for at, why in enumerate(ages)]
        add(store, image("a"), *children, refused())
        said = month()
        assert "This pack is for patients aged 18 to 120 years. This patient is … years old." in said
        assert "the file says LL." in said and "different operating points" not in said
        other = run_spec(settings_hash="t" * 64, operating_points=(operating_point(threshold=0.55),))
        add(store, image("b"), spec=other)
        assert "The counts combine results of different operating points." in month()

"""Results in the store: saved outcomes come back unchanged, and runs are resumed."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fieldray.domain.finding import FailedOutcome, Outcome, RefusedOutcome, ScreenedOutcome
from fieldray.domain.history import ResultFilter, ResultOrder
from fieldray.domain.image import Correction, ImageHeader
from fieldray.domain.run import Verdict
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import reason
from fieldray.store.database import StoreConnection
from fieldray.store.opening import open_database
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.rows import image_columns, result_hash
from fieldray.store.work_list import HistoryQuery
from lungs import SIDE, lungs, two_lungs
from outcomes import failed, image_ref, pack_spec, read_facts, refused, run_spec, screened
from raised import raises
from stores import AGREE, SPEC, AskedStatements, change, rows_of, save_run

PACK = SPEC.packs[0]


def as_values(outcome: Outcome) -> object:
    """All fields of an outcome as comparable values."""

    def plain(value: object) -> object:
        if isinstance(value, np.ndarray):
            return (str(value.dtype), value.tolist())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    return (type(outcome).__name__, plain(outcome))


KEPT = {"evidence_inside": 0.25, "latency_ms": 1.5, "quality": ("lungs_low",), "compressed_region": None}
MIRRORED = replace(lungs(mirrored=0.9, region_shares=two_lungs()), **KEPT)


@pytest.mark.parametrize(
    "outcome",
    [
        screened(),
        replace(screened(), class_maps=None, findings=(), extra_figures={}),
        refused(),
        replace(refused(), facts=read_facts()),
        failed(),
        failed(image_ref(problem=reason("empty"), kind="unknown")),
        refused(image_ref(zip_member="folder/знімок.dcm", frame=2, header=ImageHeader(number_of_frames=3))),
        screened(image_ref("not-unicode-\udcff.dcm")),
        screened(image_ref(correction=Correction(90, inverts_grey=True))),
        replace(screened(), lungs=MIRRORED, notes=(reason("perhaps_mirrored"), reason("evidence_outside", percent=25))),
        replace(refused(), reason=reason("rotated"), lungs=lungs(rotated_90=0.9)),
    ],
)
def test_an_outcome_comes_back_unchanged(store: ResultStore, outcome: Outcome) -> None:
    run_id = store.open_run(SPEC)
    row_id = store.save_image(run_id, outcome, spec=SPEC).row_id
    with ResultQuery(store.path) as decoder:
        result = decoder.result(row_id)
    assert as_values(result.outcome) == as_values(outcome)
    assert (result.run_id, result.is_reused, result.verdict) == (run_id, False, None)


def test_an_image_saved_twice_in_a_run_is_one_row_and_keeps_its_verdict(store: ResultStore) -> None:
    run_id = store.open_run(SPEC)
    row_id = store.save_image(run_id, screened(), spec=SPEC).row_id
    store.set_verdict(row_id, AGREE, judged=screened())
    again = store.save_image(run_id, store.result(row_id).outcome, spec=SPEC, reused_positions=[0])
    assert (again.row_id, again.most_urgent_result.verdict) == (row_id, AGREE)
    (result,) = store.results(run_id)
    assert result.is_reused
    assert result.verdict == AGREE
    assert store.superseded_verdicts(run_id) == ()


def test_a_verdict_is_stored_with_the_result_and_can_be_withdrawn(store: ResultStore) -> None:
    row_id = store.save_image(store.open_run(SPEC), screened(), spec=SPEC).row_id
    before = None
    for verdict in (AGREE, Verdict(choice="disagree"), None):
        assert store.set_verdict(row_id, verdict, judged=screened(), replaceable=[before]) == verdict
        assert store.result(row_id).verdict == verdict == store.verdict(row_id, screened())
        assert store.verdict(row_id, screened(score=0.81)) is None
        assert as_values(store.result(row_id).outcome) == as_values(screened())
        before = verdict
    with pytest.raises(StorageProblem):
        store.set_verdict(row_id + 1, AGREE, judged=screened())


def test_a_verdict_that_the_person_has_not_seen_is_not_replaced(store: ResultStore, path: Path) -> None:
    """Two windows show the same result. One gives a verdict, withdraws it, and gives a verdict again."""
    row_id = store.save_image(store.open_run(SPEC), screened(), spec=SPEC).row_id
    mine, theirs = Verdict(choice="unsure"), Verdict(choice="agree", note="old scar")
    with ResultStore(path) as other:
        assert other.set_verdict(row_id, theirs, judged=screened()) == theirs
        for given in (mine, Verdict(choice="agree")):
            assert store.set_verdict(row_id, given, judged=screened()) == theirs == store.result(row_id).verdict
        assert store.set_verdict(row_id, theirs, judged=screened()) == theirs  # both give the same verdict
        assert other.set_verdict(row_id, None, judged=screened(), replaceable=[theirs]) is None
        assert store.set_verdict(row_id, mine, judged=screened(), replaceable=[theirs]) is None
        assert store.result(row_id).verdict is None
        assert other.set_verdict(row_id, theirs, judged=screened()) == theirs
        assert store.set_verdict(row_id, None, judged=screened(), replaceable=[mine]) == theirs
        assert store.set_verdict(row_id, None, judged=screened(), replaceable=[mine, theirs]) is None


def test_an_unfinished_run_of_the_same_request_is_resumed(store: ResultStore) -> None:
    first = store.open_run(SPEC)
    assert store.open_run(SPEC) == first  # killed: still "running"
    store.set_run_state(first, "failed", reason=reason("disk_full", path="/x"))
    assert store.run(first).reason == reason("disk_full", path="/x")
    assert store.open_run(SPEC) == first
    assert store.run(first).reason is None
    assert store.open_run(run_spec(paths=("/other",))) != first
    assert store.open_run(run_spec(settings_hash="t" * 64)) != first
    assert store.open_run(SPEC, as_new_run=True) != first


def test_a_finished_run_is_never_resumed(store: ResultStore) -> None:
    first = store.open_run(SPEC)
    store.set_run_state(first, "finished")
    assert store.run(first).ended_s is not None
    second = store.open_run(SPEC)
    assert second != first
    assert [run.run_id for run in store.runs()] == [second, first]
    assert store.run(second).spec == SPEC


def test_a_result_is_found_by_content_model_and_settings(store: ResultStore) -> None:
    run_id = store.open_run(SPEC)
    row_id = store.save_image(run_id, screened(), spec=SPEC).row_id

    def earlier(**changes: object) -> Outcome | None:
        wanted = {"content_sha256": "c" * 64, "frame": 0, "up_to_result_id": row_id, **changes}
        return store.reusable_outcome(wanted.pop("spec", SPEC).packs[0], **wanted)

    assert isinstance(earlier(), ScreenedOutcome)
    assert earlier(content_sha256="d" * 64) is None
    assert earlier(frame=1) is None
    assert earlier(up_to_result_id=row_id - 1) is None
    assert earlier(spec=run_spec(model_sha256="n" * 64)) is None
    assert earlier(spec=run_spec(settings_hash="t" * 64)) is None
    assert isinstance(earlier(spec=run_spec(paths=("/elsewhere",))), ScreenedOutcome)
    assert store.has_results(PACK)
    assert not store.has_results(pack_spec(settings_hash="t" * 64))


def test_a_failure_is_not_reused_but_a_refusal_is(store: ResultStore) -> None:
    run_id = store.open_run(SPEC)
    store.save_image(run_id, replace(failed(), facts=read_facts("f" * 64)), spec=SPEC)
    store.save_image(run_id, replace(refused(), facts=read_facts("e" * 64)), spec=SPEC)
    last = store.last_result_id()
    assert store.reusable_outcome(PACK, content_sha256="f" * 64, frame=0, up_to_result_id=last) is None
    assert isinstance(
        store.reusable_outcome(PACK, content_sha256="e" * 64, frame=0, up_to_result_id=last), RefusedOutcome
    )


def test_rows_come_in_pages(store: ResultStore) -> None:
    run_id = save_run(store, *(refused(image_ref(f"{number}.dcm")) for number in range(600)))
    save_run(store, refused(), spec=run_spec(paths=("/b",)))
    assert [row.row_id for row in store.results(run_id)] == [*range(1, 601)]


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.has_results(PACK),
        lambda store: store.reusable_outcome(PACK, content_sha256="c" * 64, frame=0, up_to_result_id=9),
        lambda store: list(store.results(1)),
        lambda store: store.category_counts(1),
    ],
)
def test_no_query_on_a_run_scans_the_whole_store(tmp_path: Path, ask: Callable[[ResultQuery], object]) -> None:
    said = AskedStatements()
    with ResultStore(tmp_path / "results.sqlite", connect=said.connect) as store:
        save_run(store, *(refused(image_ref(f"{number}.dcm")) for number in range(300)))
        said.clear()
        ask(store)
    assert 1 <= len(said) <= 3  # the work list: the order, and the rows in pages of 256
    for plan in said.plans(tmp_path / "results.sqlite"):
        assert not any(step.startswith("SCAN") and "json_each" not in step for step in plan), plan


def test_an_empty_store_gives_no_runs_or_results(store: ResultStore) -> None:
    assert (store.runs(), store.last_image_row_id(), store.category_counts(1), list(store.results(1))) == (
        (),
        0,
        {},
        [],
    )
    with pytest.raises(KeyError):
        store.result(1)
    for number in (1, 2**63, -(2**63) - 1, 10**30):
        with pytest.raises(UsageProblem, match=f"Run {number} was not found"):
            store.run(number)


def test_a_reason_of_another_version_stays_readable(store: ResultStore) -> None:
    row_id = store.save_image(store.open_run(SPEC), failed(), spec=SPEC).row_id
    change(store.path, """UPDATE answers SET reason = '["of_the_future", []]'""")
    outcome = store.result(row_id).outcome
    assert isinstance(outcome, FailedOutcome)
    assert "of_the_future" in outcome.reason.text


def open_small(path: Path) -> sqlite3.Connection:
    """A database limited to some pages, which acts like a full disk (https://sqlite.org/pragma.html)."""
    connection = open_database(path)
    connection.execute("PRAGMA max_page_count = 40")
    return connection


def test_a_full_disk_is_reported_and_what_is_committed_stays(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with ResultStore(path, connect=open_small) as store:
        run_id = store.open_run(SPEC)
        kept = store.save_image(run_id, screened(), spec=SPEC).row_id
        with raises(StorageProblem, "disk_full"):
            for number in range(1000):
                store.save_image(run_id, screened(image_ref(f"{number}.dcm")), spec=SPEC)
    with ResultQuery(path) as decoder:
        assert decoder.result(kept).outcome.status == "screened"
        assert decoder.run(run_id).state == "interrupted"  # closed without an end


# ---- lung fields and notes


def kept(path: Path, outcome: ScreenedOutcome | RefusedOutcome) -> ScreenedOutcome | RefusedOutcome:
    """The outcome as it comes back after it was stored."""
    with ResultStore(path) as store:
        row_id = store.save_image(store.open_run(run_spec()), outcome, spec=run_spec()).row_id
        found = store.result(row_id).outcome
    assert isinstance(found, ScreenedOutcome | RefusedOutcome)
    return found


def test_read_first_comes_back_and_makes_another_result(tmp_path: Path) -> None:
    white = np.where(np.arange(SIDE) < SIDE // 2, two_lungs(), np.float32(0))  # the patient's left lung
    seen, unseen = (replace(screened(), lungs=lungs(shares)) for shares in (two_lungs(), white))
    found = kept(tmp_path / "results.sqlite", unseen)
    assert found.category == "read_first"
    assert isinstance(found, ScreenedOutcome) and found.lungs is not None
    assert found.lungs.unseen_lungs == ("left",)
    assert (
        found.lungs.read_first_reason
        == unseen.lungs.read_first_reason
        == reason("left_lung_not_found", opposite="12.5")
    )
    assert result_hash(seen) != result_hash(unseen)  # a verdict on the one does not count for the other
    with HistoryQuery(tmp_path / "results.sqlite") as query:
        assert query.run_summaries()[0].counts == {"read_first": 1}
    with HistoryQuery(tmp_path / "results.sqlite") as query:
        listed = query.list_rows(1, ResultFilter(category="read_first"), ResultOrder())
    assert (len(listed.row_ids), listed.counts["read_first"]) == (1, 1)


def test_an_old_result_without_measurement_names_the_lung_and_keeps_its_verdict(tmp_path: Path) -> None:
    white = np.where(np.arange(SIDE) < SIDE // 2, two_lungs(), np.float32(0))
    unseen, path = replace(screened(), lungs=lungs(white)), tmp_path / "results.sqlite"
    kept(path, unseen)
    ((text,),) = rows_of(path, "SELECT lungs FROM answers")
    earlier, _, measured = text.partition(',{"measure":"smaller"')
    assert measured.endswith(',"against":0.125}]')
    change(path, "UPDATE answers SET lungs = ?", f"{earlier}]")
    with ResultStore(path) as store:
        found = store.result(1).outcome
    assert isinstance(found, ScreenedOutcome) and found.lungs is not None
    assert (found.lungs.unseen_measurement, found.lungs.read_first_reason) == (None, reason("left_lung_unseen"))
    assert result_hash(found) == result_hash(unseen)


def test_a_mask_takes_little_room(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:256, 0:256]
    soft = 1 / (1 + np.exp(((rows - 128) ** 2 / 90**2 + (columns - 70) ** 2 / 40**2 - 1) * 20))
    kept(tmp_path / "results.sqlite", replace(screened(), lungs=lungs(soft.astype(np.float32))))
    ((size,),) = rows_of(tmp_path / "results.sqlite", "SELECT LENGTH(lung_shares) FROM answers")
    assert size < 256 * 256 / 32


def test_writing_waits_longer_for_a_lock_than_reading(tmp_path: Path) -> None:
    """A run that cannot save a row ends, while a program that copies the file may lock it for a minute."""
    opened = []

    def connect(path: Path) -> StoreConnection:
        opened.append(open_database(path))
        return opened[-1]

    with (
        ResultStore(tmp_path / "results.sqlite", connect=connect),
        ResultQuery(tmp_path / "results.sqlite", connect=connect) as query,
    ):
        query.runs()
        waits_ms = [connection.execute("PRAGMA busy_timeout").fetchone()[0] for connection in opened]
    assert waits_ms == [120_000, 30_000]


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (4, 4)])
def test_the_grey_of_an_image_is_the_median_of_its_thumbnail(shape: tuple[int, int]) -> None:
    thumbnail = np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)
    outcome = screened(image_ref("a.dcm"))
    outcome = replace(outcome, facts=replace(outcome.facts, thumbnail=thumbnail))
    assert image_columns(outcome)["grey"] == np.median(thumbnail)

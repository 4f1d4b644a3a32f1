"""Resumed runs while files change: the listed images, the result that a verdict is on, and who may resume a run."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from fieldray.domain.finding import Outcome, ScreenedOutcome
from fieldray.domain.image import ImageHeader
from fieldray.domain.run import SupersededVerdict, Verdict
from fieldray.errors import StorageProblem
from fieldray.reasons import reason
from fieldray.store.database import damage_mark_path
from fieldray.store.deletion import plan_deletion
from fieldray.store.maintenance import check_database, repair
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.work_list import HistoryQuery
from outcomes import failed, image_ref, read_facts, refused, run_spec, screened
from stores import AGREE, DISAGREE, SPEC, AskedStatements, image, save_run


def names(store: ResultQuery, run_id: int) -> set[str]:
    listed = {result.outcome.ref.path.name for result in store.results(run_id)}
    assert listed == {result.outcome.ref.path.name for result in store.results(run_id)}
    assert sum(store.category_counts(run_id).values()) == len(listed)
    return listed


# ---- missing files


def test_images_missing_in_a_completed_run_are_marked_and_not_listed(store: ResultStore) -> None:
    save_run(store, image("kept.dcm", "a"), image("renamed.dcm", "b"), image("deleted.dcm", "d"))
    run_id = save_run(store, image("kept.dcm", "a"), image("new name.dcm", "b"))
    assert names(store, run_id) == {"kept.dcm", "renamed.dcm", "deleted.dcm", "new name.dcm"}  # it may still be found
    assert store.finish_run(run_id) == 2
    assert names(store, run_id) == {"kept.dcm", "new name.dcm"}
    assert store.absent_images(run_id) == tuple(str(Path("/images") / name) for name in ("renamed.dcm", "deleted.dcm"))
    assert store.run(run_id).state == "finished"


def test_an_interrupted_run_marks_no_image_as_missing(store: ResultStore) -> None:
    save_run(store, image("a.dcm", "a"), image("b.dcm", "b"))
    run_id = save_run(store, image("a.dcm", "a"))
    store.set_run_state(run_id, "cancelled")
    assert names(store, run_id) == {"a.dcm", "b.dcm"}
    assert save_run(store, image("b.dcm", "b")) == run_id
    assert store.finish_run(run_id) == 1
    assert names(store, run_id) == {"b.dcm"}


def test_images_in_an_unreadable_folder_stay_listed(store: ResultStore) -> None:
    save_run(store, image("a/1.dcm"), image("a/b/2.dcm"), image("ab/3.dcm"), image("4.dcm"))
    unread = dataclasses.replace(failed(image_ref("a")), stage="discover", reason=reason("no_permission"))
    run_id = save_run(store, unread, image("4.dcm"))
    assert store.finish_run(run_id) == 1
    assert names(store, run_id) == {"a", "1.dcm", "2.dcm", "4.dcm"}


def test_members_of_an_unreadable_zip_stay_listed(store: ResultStore) -> None:
    members = [
        dataclasses.replace(image("a.zip"), ref=image_ref("a.zip", zip_member=name)) for name in ("1.dcm", "2.dcm")
    ]
    several = image_ref("frames.dcm", frame=1, header=ImageHeader(number_of_frames=2))
    save_run(store, *members, dataclasses.replace(image("frames.dcm"), ref=several), image("4.dcm", "d"))
    unread = [dataclasses.replace(failed(image_ref(name)), stage="discover") for name in ("a.zip", "frames.dcm")]
    run_id = save_run(store, *unread, image("4.dcm", "d"))
    assert store.finish_run(run_id) == 1
    assert store.absent_images(run_id) == (several.key,)  # a damaged file has no frames left


def test_members_removed_from_a_zip_are_missing_despite_duplicate_names(store: ResultStore) -> None:
    save_run(store, dataclasses.replace(image("a.zip"), ref=image_ref("a.zip", zip_member="1.dcm")))
    doubled = reason("double_members", count=1, file="2.dcm")
    outcome = dataclasses.replace(failed(image_ref("a.zip")), stage="discover", reason=doubled)
    assert store.finish_run(save_run(store, outcome)) == 1


def test_images_of_a_path_without_any_files_are_not_marked_as_missing(store: ResultStore) -> None:
    """One of two drives is not connected. Its verdicts are shown again when it is."""
    spec = run_spec(paths=("/images/a", "/images/b"))
    every = image("a/1.dcm", "a"), image("b/2.dcm", "b"), image("b/3.dcm", "d")
    for outcomes, gone, state in ((every, 0, "broken off"), (every[1:2], 1, "cancelled"), (every[:2], 0, "finished")):
        run_id = save_run(store, *outcomes, spec=spec)
        if state == "broken off":
            row = next(store.results(run_id))
            store.set_verdict(row.row_id, AGREE, judged=row.outcome)
            continue
        assert store.finish_run(run_id) == gone
        assert store.run(run_id).state == state
        assert names(store, run_id) == {"1.dcm", "2.dcm"}
        assert [result.verdict for result in store.results(run_id)] == [AGREE, None]


@pytest.mark.parametrize("is_over", [True, False])
def test_an_image_moved_during_a_run_is_listed_once_with_its_verdict(
    store: ResultStore, tmp_path: Path, is_over: bool
) -> None:
    """It was screened in one folder, moved to another, and found again. A watched run removes the old row at once."""
    places = [tmp_path / name for name in ("a.dcm", "moved.dcm", "twin.dcm", "also.dcm")]
    outcomes = [
        dataclasses.replace(image(str(place), content), ref=image_ref(str(place)))
        for place, content in zip(places, "aabb", strict=True)
    ]
    for place in places[1:]:
        place.touch()
    run_id = save_run(store, *outcomes)
    row, moved, *_ = store.results(run_id)
    store.set_verdict(row.row_id, AGREE, judged=row.outcome)
    if is_over:
        assert store.finish_run(run_id) == 1
    else:
        store.mark_moved_images_absent(run_id, moved.row_id)
    assert names(store, run_id) == {"moved.dcm", "twin.dcm", "also.dcm"}
    listed = {result.outcome.ref.path.name: result.verdict for result in store.results(run_id)}
    assert listed == {"moved.dcm": AGREE, "twin.dcm": None, "also.dcm": None}


@pytest.mark.parametrize("where", ["watched", "same run", "next run"])
def test_verdicts_follow_their_images_when_two_files_exchange_names(
    store: ResultStore, tmp_path: Path, where: str
) -> None:
    """The verdict may be changed and withdrawn under the new name, and does not come back."""
    for name in ("1.dcm", "2.dcm"):
        (tmp_path / name).touch()

    def images(contents: str) -> list[ScreenedOutcome]:
        return [image(str(tmp_path / f"{number}.dcm"), content) for number, content in enumerate(contents, start=1)]

    run_id = save_run(store, *images("ab"))
    row = next(store.results(run_id))
    store.set_verdict(row.row_id, AGREE, judged=row.outcome)
    if where == "next run":
        store.finish_run(run_id)
    exchanged = save_run(store, *images("ba"))
    assert (exchanged == run_id) is (where != "next run")
    if where == "watched":
        for saved in list(store.results(run_id)):
            store.mark_moved_images_absent(run_id, saved.row_id)
    else:
        store.finish_run(exchanged)
    assert verdicts(store, exchanged) == [None, AGREE]
    _, moved = store.results(exchanged)
    store.set_verdict(moved.row_id, DISAGREE, judged=moved.outcome, replaceable=[AGREE])
    store.finish_run(exchanged)
    assert verdicts(store, exchanged) == [None, DISAGREE]
    store.set_verdict(moved.row_id, None, judged=moved.outcome, replaceable=[DISAGREE])
    store.finish_run(exchanged)
    assert verdicts(store, exchanged) == [None, None]


def test_the_result_of_a_missing_image_is_found_by_its_content(store: ResultStore) -> None:
    save_run(store, image("a.dcm", "a"))
    run_id = save_run(store, image("b.dcm", "b"))
    assert store.finish_run(run_id) == 1
    last = store.last_result_id()
    assert store.reusable_outcome(SPEC.packs[0], content_sha256="a" * 64, frame=0, up_to_result_id=last) is not None


def test_a_run_without_any_file_marks_nothing_as_missing(store: ResultStore) -> None:
    """The folder is the empty mount point of a removed drive."""
    save_run(store, image("a.dcm", "a"))
    run_id = save_run(store)
    assert store.finish_run(run_id) == 0
    assert store.run(run_id).state == "cancelled"
    assert names(store, run_id) == {"a.dcm"}
    assert save_run(store, image("a.dcm", "a")) == run_id
    assert store.finish_run(run_id) == 0
    assert store.run(run_id).state == "finished"


def test_similar_names_of_files_members_and_frames_have_separate_rows(store: ResultStore) -> None:
    several = ImageHeader(number_of_frames=3)
    refs = [
        image_ref("a.zip!b.dcm"),
        image_ref("a.zip", zip_member="b.dcm"),
        image_ref("a.zip!b.dcm#1"),
        image_ref("a.zip", zip_member="b.dcm", frame=1, header=several),
        image_ref("a.zip", zip_member="b.dcm#1"),
        image_ref("c.dcm#2"),
        image_ref("c.dcm", frame=2, header=several),
    ]
    outcomes = [screened(ref) for ref in refs]
    run_id = save_run(store, *outcomes, image("not-unicode-\udcff.dcm"))
    assert len(list(store.results(run_id))) == len(refs) + 1
    save_run(store, image("new.dcm"))
    store.finish_run(run_id)
    assert store.absent_images(run_id) == (*(ref.key for ref in refs), image_ref("not-unicode-\udcff.dcm").key)


# ---- verdicts


REFUSED = dataclasses.replace(refused(image_ref()), facts=read_facts())


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (screened(), image("a.dcm", "d")),
        (screened(), screened(score=0.81)),
        (screened(), dataclasses.replace(screened(), model_sha256="n" * 64)),
        (screened(), REFUSED),
        (screened(), failed(image_ref())),
        (REFUSED, dataclasses.replace(REFUSED, reason=reason("blank"))),
        (REFUSED, dataclasses.replace(REFUSED, facts=read_facts("d" * 64))),
    ],
    ids=["content", "score", "model", "refused", "failed", "another reason", "other bytes refused"],
)
def test_a_verdict_does_not_pass_to_another_result(store: ResultStore, first: Outcome, other: Outcome) -> None:
    run_id = save_run(store, first)
    (row,) = store.results(run_id)
    store.set_verdict(row.row_id, AGREE, judged=row.outcome)
    save_run(store, other)
    (result,) = store.results(run_id)
    assert result.row_id == row.row_id
    assert result.verdict is None
    assert store.result(row.row_id).verdict is None
    (earlier,) = store.superseded_verdicts(run_id)
    assert earlier == SupersededVerdict(
        image_key=image_ref().key,
        content_sha256="c" * 64,
        category=first.category,
        score=0.8 if first.status == "screened" else None,
        verdict=AGREE,
    )
    # a verdict on the new result changes nothing on the old one, and the old one is back with the old content
    store.set_verdict(row.row_id, DISAGREE, judged=other)
    assert store.result(row.row_id).verdict == DISAGREE
    assert store.superseded_verdicts(run_id) == (earlier,)
    save_run(store, first)
    assert store.result(row.row_id).verdict == AGREE
    assert [given.verdict for given in store.superseded_verdicts(run_id)] == [DISAGREE]


def test_a_verdict_on_a_replaced_result_is_stored_but_not_shown(store: ResultStore) -> None:
    """A window shows a result while another program resumes the run and finds another content in the file."""
    run_id = save_run(store, image("a.dcm", "a"))
    (row,) = store.results(run_id)
    save_run(store, image("a.dcm", "b"))
    store.set_verdict(row.row_id, AGREE, judged=row.outcome)
    assert store.result(row.row_id).verdict is None
    assert store.verdict(row.row_id, row.outcome) == AGREE
    assert [given.content_sha256 for given in store.superseded_verdicts(run_id)] == ["a" * 64]
    store.set_verdict(row.row_id, None, judged=row.outcome, replaceable=[AGREE])
    assert store.superseded_verdicts(run_id) == ()


def test_the_verdict_on_a_deleted_image_is_kept(store: ResultStore) -> None:
    run_id = save_run(store, image("a.dcm", "a"), image("b.dcm", "b"))
    row, _ = store.results(run_id)
    store.set_verdict(row.row_id, AGREE, judged=row.outcome)
    save_run(store, image("b.dcm", "b"))
    store.finish_run(run_id)
    (earlier,) = store.superseded_verdicts(run_id)
    assert (earlier.image_key, earlier.verdict) == (image_ref("a.dcm").key, AGREE)
    assert store.result(row.row_id).verdict == AGREE


def test_a_verdict_follows_its_renamed_image(store: ResultStore) -> None:
    run_id = save_run(store, image("old.dcm", "a"), image("b.dcm", "b"))
    for row in store.results(run_id):
        store.set_verdict(row.row_id, AGREE, judged=row.outcome)
    save_run(store, image("new.dcm", "a"), image("b.dcm", "d"))
    store.finish_run(run_id)
    verdicts = {result.outcome.ref.path.name: result.verdict for result in store.results(run_id)}
    assert verdicts == {"new.dcm": AGREE, "b.dcm": None}


# ---- verdicts in later runs


def judged_run(store: ResultStore, outcome: Outcome, verdict: Verdict | None = AGREE) -> int:
    """A finished run over this one image, which got this verdict; returns the run's id."""
    run_id = save_run(store, outcome)
    if verdict:
        (row,) = store.results(run_id)
        store.set_verdict(row.row_id, verdict, judged=row.outcome, replaceable=[row.verdict])
    store.finish_run(run_id)
    return run_id


def verdicts(store: ResultStore, run_id: int) -> list[Verdict | None]:
    return [result.verdict for result in store.results(run_id)]


@pytest.mark.parametrize("judged", [screened(), REFUSED], ids=["screened", "refused"])
def test_a_verdict_is_taken_over_by_a_new_run_with_the_same_result(store: ResultStore, judged: Outcome) -> None:
    judged_run(store, judged)
    second = save_run(store, judged, image("b.dcm", "b"))
    assert verdicts(store, second) == [AGREE, None]
    assert store.superseded_verdicts(second) == ()
    store.finish_run(second)
    judged_run(store, judged, DISAGREE)
    assert verdicts(store, save_run(store, judged)) == [DISAGREE]  # the newest verdict


@pytest.mark.parametrize("other", [image("a.dcm", "d"), screened(score=0.81)], ids=["content", "score"])
def test_a_verdict_on_another_result_of_an_earlier_run_is_only_listed_as_superseded(
    store: ResultStore, other: Outcome
) -> None:
    judged_run(store, screened())
    second = save_run(store, other)
    assert verdicts(store, second) == [None]
    (earlier,) = store.superseded_verdicts(second)
    assert (earlier.image_key, earlier.content_sha256, earlier.verdict) == (image_ref().key, "c" * 64, AGREE)


def test_a_verdict_follows_a_moved_image_but_not_a_copy(store: ResultStore, tmp_path: Path) -> None:
    old, new = (image(str(tmp_path / name), "a") for name in ("old.dcm", "new.dcm"))
    (tmp_path / "old.dcm").touch()
    judged_run(store, old)
    assert verdicts(store, judged_run(store, new, None)) == [None]  # both files exist
    (tmp_path / "old.dcm").unlink()
    (tmp_path / "new.dcm").touch()
    assert verdicts(store, judged_run(store, new, None)) == [AGREE]
    copy = image(str(tmp_path / "copy.dcm"), "a")
    assert verdicts(store, judged_run(store, copy, None)) == [None]  # the judged file exists under its new name
    (row,) = store.results(judged_run(store, copy, DISAGREE))
    store.set_verdict(row.row_id, None, judged=copy, replaceable=[DISAGREE])
    assert verdicts(store, judged_run(store, new, None)) == [AGREE]  # only the verdict on the copy was withdrawn


def test_a_verdict_is_found_through_a_link_to_its_folder(store: ResultStore, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.dcm").touch()
    (tmp_path / "way").symlink_to(tmp_path / "images")
    judged_run(store, image(str(tmp_path / "images" / "a.dcm"), "a"))
    assert verdicts(store, judged_run(store, image(str(tmp_path / "way" / "a.dcm"), "a"), None)) == [AGREE]


@pytest.mark.parametrize("last", [AGREE, DISAGREE], ids=["brought", "changed"])
def test_a_withdrawn_verdict_does_not_come_back(last: Verdict, store: ResultStore) -> None:
    judged_run(store, image("old.dcm", "a"))
    second = save_run(store, image("new.dcm", "a"))
    (row,) = store.results(second)
    assert row.verdict == AGREE
    for verdict, before in ((last, AGREE), (None, last)):
        store.set_verdict(row.row_id, verdict, judged=row.outcome, replaceable=[before])
    store.finish_run(second)
    for name in ("old.dcm", "new.dcm"):
        third = save_run(store, image(name, "a"))
        assert (verdicts(store, third), store.superseded_verdicts(third)) == ([None], ())
        store.finish_run(third)


def test_a_verdict_on_another_image_than_the_rows_is_refused(store: ResultStore) -> None:
    """A window shows a run; meanwhile an older store was restored, and has given the same ids to other images."""
    run_id = save_run(store, image("other.dcm", "d"))
    (row,) = store.results(run_id)
    for row_id in (row.row_id, row.row_id + 1):
        for verdict in (AGREE, None):
            with pytest.raises(StorageProblem, match="results database was replaced"):
                store.set_verdict(row_id, verdict, judged=image("shown.dcm", "a"))
    assert store.superseded_verdicts(run_id) == ()


def test_a_snapshot_shows_no_later_results(store: ResultStore) -> None:
    run_id = save_run(store, image("a.dcm", "a"))
    with ResultQuery(store.path) as query:
        with query.snapshot():
            assert names(query, run_id) == {"a.dcm"}
            store.save_image(run_id, image("b.dcm", "b"), spec=SPEC)
            assert names(query, run_id) == {"a.dcm"}
        assert names(query, run_id) == {"a.dcm", "b.dcm"}


def test_a_verdict_is_on_disk_before_it_is_confirmed(tmp_path: Path) -> None:
    """In WAL mode a commit outlives a power cut only with synchronous = FULL (https://sqlite.org/pragma.html)."""
    said = AskedStatements()
    with ResultStore(tmp_path / "results.sqlite", connect=said.connect) as store:
        run_id = save_run(store, screened())
        (row,) = store.results(run_id)
        for verdict in (AGREE, None):
            said.clear()
            store.set_verdict(row.row_id, verdict, judged=row.outcome, replaceable=[None if verdict else AGREE])
            changes = [text for text in said if "SELECT" not in text[:6] and "user_version" not in text]
            words = ["FULL" if "FULL" in text else text.split()[0] for text in changes]
            assert words == ["FULL", "BEGIN", "DELETE", "INSERT", "INSERT", "COMMIT", "PRAGMA"]
        with pytest.raises(StorageProblem):
            store.set_verdict(row.row_id + 1, AGREE, judged=row.outcome)
        assert store._all("PRAGMA synchronous")[0][0] == 1  # results can be computed again


# ---- two programs


def test_a_run_of_another_program_is_not_resumed(store: ResultStore) -> None:
    first = save_run(store, image("a.dcm"))
    with ResultStore(store.path) as second:
        other = second.open_run(SPEC)
        assert other != first
        assert second.process_holding_run == str(os.getpid())
        assert second.open_run(SPEC) == other
        second.set_run_state(other, "cancelled")
    assert (store.run(first).state, store.process_holding_run) == ("running", None)
    store.finish_run(first)
    assert store.run(first).state == "finished"
    with ResultStore(store.path) as third:  # the newest run that no program works on is resumed
        assert third.open_run(SPEC) == other
        assert third.process_holding_run is None


def test_the_lock_of_a_finished_run_is_deleted_and_of_an_interrupted_one_released(store: ResultStore) -> None:
    first = store.open_run(SPEC)
    store.finish_run(first)
    assert list(store.path.parent.glob("*.lock")) == []
    second = store.open_run(SPEC)
    store.set_run_state(second, "cancelled")
    store.close()
    with ResultStore(store.path) as again:
        assert again.open_run(SPEC) == second


def test_a_fresh_run_of_the_same_request_leaves_the_active_one(store: ResultStore) -> None:
    first = store.open_run(SPEC)
    with ResultStore(store.path) as second:
        assert second.open_run(SPEC, as_new_run=True) != first
        assert second.process_holding_run is None


def test_a_withdrawal_is_written_even_without_a_stored_verdict(store: ResultStore) -> None:
    """A verdict that a full disk refused may remain in the log, and would come back unless it is overwritten."""
    run_id = store.open_run(SPEC)
    row_id = store.save_image(run_id, judged := screened(image_ref("a.dcm")), spec=SPEC).row_id
    log = store.path.with_name(f"{store.path.name}-wal")
    before = log.read_bytes()
    store.set_verdict(row_id, None, judged=judged)
    assert len(log.read_bytes()) > len(before)


def test_a_verdict_given_during_a_later_run_is_in_that_run_too(store: ResultStore, path: Path) -> None:
    """Another program gives it, before the later run comes to its image, and after."""
    early, late = image("a.dcm", "a"), image("b.dcm", "b")
    save_run(store, early, late)
    rows = list(store.results(1))
    store.finish_run(1)
    later = save_run(store, early)
    with ResultStore(path) as other:
        for row in rows:
            other.set_verdict(row.row_id, AGREE, judged=row.outcome)
    save_run(store, early, late)
    assert verdicts(store, later) == [AGREE, AGREE]
    store.set_verdict(rows[0].row_id, DISAGREE, judged=early, replaceable=[AGREE])  # the copy changes, too
    assert verdicts(store, later) == [DISAGREE, AGREE]


def test_a_verdict_of_a_later_run_is_not_changed_by_an_earlier_one(store: ResultStore) -> None:
    first = judged_run(store, image("a.dcm", "a"), None)
    second = judged_run(store, image("a.dcm", "a"), DISAGREE)
    (row,) = store.results(first)
    for verdict in (AGREE, Verdict(choice="unsure")):
        store.set_verdict(row.row_id, verdict, judged=row.outcome, replaceable=[None, AGREE])
    assert (verdicts(store, first), verdicts(store, second)) == ([Verdict(choice="unsure")], [DISAGREE])


def test_withdrawing_keeps_a_later_verdict_of_another_run(store: ResultStore) -> None:
    first = judged_run(store, image("a.dcm", "a"))
    second = judged_run(store, image("a.dcm", "a"), DISAGREE)
    (early,) = store.results(first)
    store.set_verdict(early.row_id, None, judged=early.outcome, replaceable=[AGREE])
    assert (verdicts(store, first), verdicts(store, second)) == ([None], [DISAGREE])
    store.set_verdict(early.row_id, AGREE, judged=early.outcome)
    store.set_verdict(early.row_id, None, judged=early.outcome, replaceable=[AGREE])
    assert (verdicts(store, first), verdicts(store, second)) == ([None], [None])  # the earlier one goes as well


# ---- images marked as read


def read_in(store: ResultStore, run_id: int) -> list[bool]:
    return [result.is_read for result in store.results(run_id)]


def test_the_read_mark_is_taken_over_with_the_same_result_only(store: ResultStore) -> None:
    first = save_run(store, image("a.dcm", "a"), image("b.dcm", "b"), image("d.dcm", "d"))
    for row_id, name, content in ((1, "a.dcm", "a"), (2, "b.dcm", "b")):
        store.set_read_state(row_id, judged=image(name, content), is_read=True)
    store.finish_run(first)
    second = save_run(store, image("a.dcm", "a"), image("b.dcm", "e"), image("d.dcm", "d"))
    assert (read_in(store, first), read_in(store, second)) == ([True, True, False], [True, False, False])
    store.set_read_state(4, judged=image("a.dcm", "a"), is_read=False)
    assert (read_in(store, first), read_in(store, second)) == ([False, True, False], [False, False, False])
    assert store.superseded_verdicts(second) == ()
    with pytest.raises(StorageProblem, match="no longer has the result"):
        store.set_read_state(1, judged=image("b.dcm", "b"), is_read=True)


def test_a_verdict_takes_precedence_over_a_read_mark(store: ResultStore) -> None:
    first = save_run(store, image("a.dcm", "a"))
    store.finish_run(first)
    second = save_run(store, image("a.dcm", "a"))
    store.set_read_state(2, judged=image("a.dcm", "a"), is_read=True)
    assert store.set_verdict(1, AGREE, judged=image("a.dcm", "a")) == AGREE  # another window, on the previous run
    assert store.result(2).verdict == AGREE
    store.set_read_state(2, judged=image("a.dcm", "a"), is_read=True)
    store.set_read_state(2, judged=image("a.dcm", "a"), is_read=False)
    assert (store.result(2).verdict, store.result(2).is_read) == (AGREE, True)
    store.finish_run(second)
    store.set_verdict(2, None, judged=image("a.dcm", "a"), replaceable=[AGREE])
    assert (store.result(2).verdict, store.result(2).is_read) == (None, True)  # the read mark stays
    third = save_run(store, image("a.dcm", "a"))
    assert ([result.verdict for result in store.results(third)], read_in(store, third)) == ([None], [True])


def test_a_read_mark_is_not_counted_as_a_verdict(store: ResultStore, path: Path) -> None:
    run_id = save_run(store, image("a.dcm", "a"), image("b.dcm", "b"))
    store.set_read_state(1, judged=image("a.dcm", "a"), is_read=True)
    store.set_verdict(2, AGREE, judged=image("b.dcm", "b"))
    store.finish_run(run_id)
    with HistoryQuery(path) as history:
        assert dict(history.run_summaries()[0].counts_by_verdict) == {"agree": 1}
        assert [brief.verdict for brief in history.result_briefs(run_id)] == [None, "agree"]
    assert plan_deletion(path, [run_id]).verdict_count == 1
    assert check_database(path, progress=lambda _: None)["verdicts"] == 1
    damage_mark_path(path).touch()
    store.close()
    kept = repair(path)
    assert kept is not None and dict(kept.parameters)["verdicts"] == "1"
    with ResultStore(path) as repaired:
        assert read_in(repaired, run_id) == [True, True]


def test_a_run_without_a_living_program_is_interrupted(path: Path) -> None:
    with ResultStore(path) as store, ResultQuery(path) as query, HistoryQuery(path) as history:
        run_id = save_run(store, screened())
        assert {query.run(run_id).state, store.run(run_id).state, history.run_summaries()[0].run.state} == {"running"}
        store.set_run_state(run_id, "paused")
        assert query.runs()[0].state == "paused"
    with HistoryQuery(path) as history:  # closed without an end, as after a kill
        assert {history.run(run_id).state, history.runs()[0].state, history.run_summaries()[0].run.state} == {
            "interrupted"
        }
    with ResultStore(path) as store:
        assert save_run(store, screened()) == run_id
        assert store.run(run_id).state == "running"

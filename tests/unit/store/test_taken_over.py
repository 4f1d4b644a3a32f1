"""Results that a run reuses, outcomes that replace a result, and the stamps of files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fieldray.domain.finding import ResultCount, ScreenedOutcome, notes_of
from fieldray.domain.history import ResultBrief
from fieldray.domain.intended_use import AGE_NOTE_CODE_BY_CONFIRMED
from fieldray.domain.lungs import LungFields
from fieldray.domain.run import PackOfRun, Run
from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import reason
from fieldray.store.bookkeeping import ReusedResults
from fieldray.store.database import pictures_path
from fieldray.store.results import ImageFileStamps, ResultQuery, ResultStore
from fieldray.store.rows import outcome_columns
from fieldray.store.schema import image_key
from fieldray.store.work_list import HistoryQuery
from lungs import lungs
from outcomes import failed, image_ref, read_facts, refused, run_spec, screened
from stores import AGREE, SPEC, change

OTHER = run_spec(paths=("/other",))


def stamped(name: str, stamp: bytes = b"stamp", *, score: float = 0.8) -> ScreenedOutcome:
    made = screened(image_ref(name), score=score)
    return dataclasses.replace(made, facts=dataclasses.replace(made.facts, file_stamp=stamp))


def listed(store: ResultStore, run_id: int) -> list[tuple[str, bool]]:
    return [(row.outcome.ref.path.name, row.is_reused) for row in store.results(run_id)]


def one_pack(*row_ids: int) -> ReusedResults:
    """References to results whose ids equal their row ids, as in a store of runs with one pack."""
    return ReusedResults(row_ids, [row_ids])


def file(name: str, row_id: int, stamp: bytes | None) -> ImageFileStamps:
    return ImageFileStamps(image_key=image_key(image_ref(name)), row_id=row_id, stamped_results={0: (row_id, stamp)})


# ---- reused results


def test_results_of_another_run_become_rows_of_this_one_with_their_verdicts(store: ResultStore) -> None:
    first = store.open_run(SPEC)
    high, low = (
        store.save_image(first, stamped(name, score=score), spec=SPEC).row_id
        for name, score in (("a", 0.9), ("b", 0.7))
    )
    store.set_verdict(high, AGREE, judged=stamped("a", score=0.9))
    store.finish_run(first)
    second = store.open_run(OTHER)
    copies = store.reuse_results(second, one_pack(low, high))
    assert len(copies) == 2 and not set(copies) & {high, low}
    assert listed(store, second) == [("a", True), ("b", True)]
    verdicts = {row.outcome.ref.path.name: row.verdict for row in store.results(second)}
    assert verdicts == {"a": AGREE, "b": None}
    assert store.category_counts(second) == {"abnormal": 2}
    assert listed(store, first) == [("a", False), ("b", False)]
    assert {row.row_id for row in store.results(second)} == set(copies)


def test_reused_results_of_the_run_itself_count_as_found(store: ResultStore) -> None:
    finished = store.open_run(OTHER)
    judged = store.save_image(finished, stamped("a"), spec=OTHER).row_id
    store.finish_run(finished)
    run_id = store.open_run(SPEC)
    seen, unseen = (store.save_image(run_id, stamped(name), spec=SPEC).row_id for name in ("a", "b"))
    store.set_run_state(run_id, "cancelled")
    store.set_verdict(judged, AGREE, judged=stamped("a"))
    assert store.open_run(SPEC) == run_id
    assert store.reuse_results(run_id, one_pack(seen)) == (seen,)
    assert store.finish_run(run_id) == 1
    assert listed(store, run_id) == [("a", True)]
    assert store.result(seen).verdict == AGREE  # given in the finished run while this one was stopped
    assert store.absent_images(run_id) == (store.result(unseen).outcome.ref.key,)


def test_results_are_reused_all_together_or_not_at_all(store: ResultStore) -> None:
    first = store.open_run(SPEC)
    there = store.save_image(first, stamped("a"), spec=SPEC).row_id
    store.finish_run(first)
    second = store.open_run(OTHER)
    own = store.save_image(second, stamped("b"), spec=OTHER).row_id
    with pytest.raises(StorageProblem) as caught:
        store.reuse_results(second, one_pack(own, there, 999))
    assert caught.value.reason == reason("results_lost", path=store.path, found=2, saved=3)
    assert listed(store, second) == [("b", False)]
    taken = store.reuse_results(second, one_pack(there, own))
    assert taken[1] == own and len(taken) == 2
    assert sorted(listed(store, second)) == [("a", True), ("b", True)]
    assert store.reuse_results(second, one_pack()) == ()


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_reused_results_get_the_age_note_of_the_new_run(store: ResultStore, *, is_confirmed: bool) -> None:
    """Other notes stay, also a text that looks like the note on ages."""
    first = store.open_run(dataclasses.replace(SPEC, ages_confirmed=not is_confirmed))
    written, other = (
        reason(AGE_NOTE_CODE_BY_CONFIRMED[confirmed], youngest=1, oldest=5)
        for confirmed in (is_confirmed, not is_confirmed)
    )
    text = reason("view_unknown", view=f'["{other.code}",')
    row = store.save_image(first, dataclasses.replace(stamped("a"), notes=(other, text)), spec=SPEC).row_id
    store.finish_run(first)
    second = store.open_run(dataclasses.replace(OTHER, ages_confirmed=is_confirmed))
    (copy,) = store.reuse_results(second, one_pack(row))
    assert notes_of(store.result(copy).outcome) == (written, text)
    assert notes_of(store.result(row).outcome) == (other, text)


def test_a_refusal_for_a_too_young_patient_is_not_reused(store: ResultStore) -> None:
    """The patient may be old enough by now, so neither stamp nor content finds this result."""
    run_id = store.open_run(SPEC)
    why = reason("born_too_late", born=2009, youngest=18, oldest=95)
    young = dataclasses.replace(refused(image_ref("a")), reason=why, facts=stamped("a").facts)
    row = store.save_image(run_id, young, spec=SPEC).row_id
    assert store.image_file_stamps(run_id, b"", limit=10) == (file("a", row, None),)
    asked = {"content_sha256": young.facts.content_sha256, "frame": 0, "up_to_result_id": store.last_result_id()}
    assert store.reusable_outcome(SPEC.packs[0], **asked) is None


# ---- stamps


def test_stamps_of_a_run_are_listed_by_file_name(store: ResultStore) -> None:
    run_id = store.open_run(SPEC)
    rows = [store.save_image(run_id, stamped(name, name.encode()), spec=SPEC).row_id for name in ("c", "a", "b")]
    broken = store.save_image(run_id, failed(image_ref("d")), spec=SPEC).row_id
    order = [
        *(file(name, row, name.encode()) for name, row in sorted(zip("cab", rows, strict=True))),
        file("d", broken, None),
    ]
    assert store.image_file_stamps(run_id, b"", limit=10) == tuple(order)
    assert store.image_file_stamps(run_id, order[1].image_key, limit=2) == tuple(order[1:3])
    assert store.image_file_stamps(run_id + 1, b"", limit=10) == ()


def test_the_key_of_stamps_is_made_once(store: ResultStore, path: Path, tmp_path: Path) -> None:
    key = store.file_stamp_key()
    assert len(key) == 32
    assert store.file_stamp_key() == key
    with ResultStore(path) as again, ResultStore(tmp_path / "other.sqlite") as other:
        assert again.file_stamp_key() == key != other.file_stamp_key()


# ---- replaced results


def ended(store: ResultStore) -> tuple[Run, int]:
    run_id = store.open_run(SPEC)
    row_id = store.save_image(run_id, dataclasses.replace(refused(), facts=read_facts()), spec=SPEC).row_id
    store.finish_run(run_id)
    return store.run(run_id), row_id


def test_another_outcome_replaces_a_refusal(store: ResultStore) -> None:
    run, row_id = ended(store)
    judged = store.result(row_id).outcome
    store.set_verdict(row_id, AGREE, judged=judged)
    store.replace_result(row_id, screened(judged.ref), run=run)
    found = store.result(row_id)
    assert (found.outcome.status, found.verdict, found.is_reused) == ("screened", None, False)
    assert store.verdict(row_id, judged) == AGREE
    assert store.category_counts(run.run_id) == {"abnormal": 1}


def test_results_of_a_run_of_another_program_are_not_replaced(store: ResultStore, path: Path) -> None:
    run_id = store.open_run(SPEC)
    row_id = store.save_image(run_id, refused(), spec=SPEC).row_id
    with ResultStore(path) as other, pytest.raises(UsageProblem) as caught:
        other.replace_result(row_id, screened(refused().ref), run=other.run(run_id))
    assert caught.value.reason == reason("again_busy")
    store.replace_result(row_id, screened(refused().ref), run=store.run(run_id))  # its own run
    assert store.result(row_id).outcome.status == "screened"


def test_any_program_may_replace_results_of_a_finished_run(store: ResultStore, path: Path) -> None:
    run, row_id = ended(store)
    other_bytes = [
        dataclasses.replace(screened(refused().ref), facts=read_facts(digit * 64)) for digit in ("a", "b", "d")
    ]
    store.replace_result(row_id, other_bytes[0], run=run)
    assert store.result(row_id).outcome.facts.thumbnail is not None
    store.replace_result(row_id, other_bytes[1], run=run, keeps_preview=False)
    assert store.result(row_id).outcome.facts.thumbnail is None
    with ResultStore(path) as another:
        another.replace_result(row_id, other_bytes[2], run=run)
    assert store.result(row_id).outcome.facts.content_sha256 == "d" * 64


def test_a_result_of_another_image_or_run_is_not_replaced(store: ResultStore) -> None:
    run, row_id = ended(store)
    own = screened(store.result(row_id).outcome.ref)
    elsewhere = dataclasses.replace(run, spec=OTHER)
    for row, outcome, of in ((row_id, screened(), run), (row_id + 1, own, run), (row_id, own, elsewhere)):
        with pytest.raises(StorageProblem) as caught:
            store.replace_result(row, outcome, run=of)
        assert caught.value.reason == reason("store_gone", path=store.path)
    assert store.result(row_id).outcome.status == "refused"


# ---- many results at once


def test_outcomes_are_saved_together_with_or_without_their_pictures(store: ResultStore) -> None:
    run_id = store.open_run(SPEC)
    store.save_all(run_id, [([stamped("a")], [0]), ([refused()], [0])], spec=SPEC, keeps_preview=False)
    assert [(row.outcome.status, row.is_reused) for row in store.results(run_id)] == [
        ("screened", True),
        ("refused", True),
    ]
    assert [row.outcome.facts.thumbnail for row in store.results(run_id)] == [None, None]
    assert not pictures_path(store.path).exists()
    store.save_all(run_id, [([stamped("a")], ())], spec=SPEC)
    (again, _) = store.results(run_id)
    assert (again.is_reused, again.outcome.facts.thumbnail is None) == (False, False)


def test_given_rows_are_read_and_counted(store: ResultStore) -> None:
    run_id = store.open_run(SPEC)
    made = [
        stamped("a"),
        stamped("b"),
        refused(),
        dataclasses.replace(stamped("c"), notes=(reason("perhaps_mirrored"),), lungs=lungs()),
    ]
    rows = [store.save_image(run_id, outcome, spec=SPEC).row_id for outcome in made]
    with ResultQuery(store.path) as query:
        assert {row.row_id for row in query.images(rows[:2], checks_lung_mask=False)} == set(rows[:2])
        assert query.images([]) == ()
        change(store.path, "UPDATE answers SET lung_shares = x'00' WHERE id = ?", rows[3])
        assert (
            len(query.images(rows, checks_lung_mask=False)) == 4
        )  # the values shown in a list do not include the mask
        with pytest.raises(StorageProblem):
            query.result(rows[3])
        kinds = sorted(query.count_results(rows)[0], key=lambda kind: kind.reason_and_note_codes)
    assert kinds == [
        ResultCount(category="abnormal", reason_and_note_codes=(), result_count=2),
        ResultCount(category="abnormal", reason_and_note_codes=("perhaps_mirrored",), result_count=1),
        ResultCount(category="refused", reason_and_note_codes=("view",), result_count=1),
    ]
    # A file that failed at first: its row exists already, and is counted once.
    store.save_image(run_id, dataclasses.replace(made[0], ref=made[2].ref), spec=SPEC)
    assert {(kind.category, kind.result_count) for kind in store.count_results_of_run(run_id)[0]} == {
        ("abnormal", 1),
        ("abnormal", 3),
    }


def inside(share: float) -> LungFields:
    return dataclasses.replace(lungs(), evidence_inside=share)


def test_briefs_and_drift_samples_have_no_pictures(store: ResultStore) -> None:
    run_id = store.open_run(SPEC)
    notes = (reason("perhaps_mirrored"),)
    made = dataclasses.replace(screened(image_ref("a", frame=2)), notes=notes, lungs=inside(0.25))
    row_id = store.save_image(run_id, made, spec=SPEC).row_id
    side = store.save_image(run_id, dataclasses.replace(refused(), lungs=inside(0.5)), spec=SPEC).row_id
    store.save_image(run_id, failed(), spec=SPEC)
    with HistoryQuery(store.path) as query:
        brief, other, _ = query.result_briefs(run_id)
        samples = query.drift_samples(PackOfRun(run_id), limit=9)
    assert brief == ResultBrief(
        row_id=row_id, run_id=run_id, image_key=image_key(made.ref), image_name=made.ref.key,
        content_sha256="c" * 64, frame=2, category="abnormal",
        label="opacity", score=0.8, point=made.findings[0].point, backend="cpu", notes=notes,
    )  # fmt: skip
    assert (other.row_id, other.label, other.score, other.backend) == (side, "", None, "")
    assert (other.reason, other.notes) == (refused().reason, ())
    assert [(sample.category, sample.scores, sample.evidence_inside) for sample in samples] == [
        ("abnormal", {"opacity": 0.8}, 0.25),
        ("refused", {}, None),
    ]
    assert samples[0].median_grey == outcome_columns(made)["grey"] is not None

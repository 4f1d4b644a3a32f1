"""A run of several packs in the store: one result per pack for each image, the order of the list, and verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fieldray.domain.finding import Decision, Outcome, ScreenedOutcome
from fieldray.domain.history import ResultFilter, ResultOrder
from fieldray.domain.run import PackOfRun, RunSpec, Verdict
from fieldray.errors import StorageProblem
from fieldray.store.bookkeeping import ReusedResults
from fieldray.store.maintenance import check_database, repair
from fieldray.store.results import ResultStore
from fieldray.store.work_list import HistoryQuery
from outcomes import image_ref, pack_spec, refused, run_spec, screened
from stores import AGREE, DISAGREE, change, rows_of

ADULTS, TUBERCULOSIS = (
    pack_spec(pack_name=f"{name}-1.0.0", settings_hash=name[0] * 64) for name in ("adults", "tuberculosis")
)
BOTH = run_spec(packs=(ADULTS, TUBERCULOSIS))


def scored(name: str, score: float, decision: Decision | None = None) -> ScreenedOutcome:
    return screened(image_ref(name), score=score, decision=decision)


def saved(store: ResultStore, *images: tuple[Outcome, ...], spec: RunSpec = BOTH) -> int:
    """Save a finished run with these results, one tuple per image; returns the run's id."""
    run_id = store.open_run(spec, as_new_run=True)
    store.save_all(run_id, [(answers, ()) for answers in images], spec=spec)
    store.finish_run(run_id)
    return run_id


def test_an_image_is_listed_by_its_most_urgent_result(store: ResultStore, path: Path) -> None:
    run_id = saved(
        store,
        (scored("healthy.dcm", 0.1), scored("healthy.dcm", 0.3)),
        (scored("unsure.dcm", 0.5), scored("unsure.dcm", 0.2)),
        # The score of an uncertain result does not list the image among the abnormal ones.
        (scored("both.dcm", 0.7), scored("both.dcm", 0.99, "unsure")),
        (refused(image_ref("side.dcm")), refused(image_ref("side.dcm"))),
        (scored("tuberculous.dcm", 0.2), scored("tuberculous.dcm", 0.9)),
        (scored("late.dcm", 0.8), scored("late.dcm", 0.4)),
    )
    order = ["tuberculous.dcm", "late.dcm", "both.dcm", "unsure.dcm", "healthy.dcm", "side.dcm"]
    with HistoryQuery(path) as query:
        images = list(query.images_in_work_list_order(run_id))
        assert [image.ref.path.name for image in images] == order
        assert [[answer.pack_position for answer in image.results] for image in images] == 6 * [[0, 1]]
        assert [image.most_urgent_result.pack_position for image in images] == [1, 0, 0, 0, 1, 0]
        listed = query.list_rows(run_id, ResultFilter(), ResultOrder())
        assert listed.row_ids.tolist() == [image.row_id for image in images]
        assert (listed.counts["abnormal"], listed.counts["normal"]) == (3, 1)
        briefs = [(brief.row_id, brief.pack_position) for brief in query.result_briefs(run_id)]
        assert briefs == [(image.row_id, position) for image in images for position in (0, 1)]
        assert {brief.pack_position for brief in query.result_briefs(run_id, pack_position=1)} == {1}
        (summary,) = query.run_summaries()
        assert (summary.image_count, summary.counts["abnormal"], summary.counts_by_backend["cpu"]) == (6, 3, 10)
        assert [query.category_counts(run_id, pack_position=at)["abnormal"] for at in (0, 1)] == [2, 1]
        assert len(query.drift_samples(PackOfRun(run_id, 1), limit=99)) == 6


def test_a_verdict_counts_only_for_the_judged_packs_result(store: ResultStore) -> None:
    run_id = saved(store, (scored("a.dcm", 0.8), scored("a.dcm", 0.1)))
    first, second = store.results(run_id)
    store.set_verdict(second.result_id, DISAGREE, judged=second.outcome)
    assert [answer.verdict for answer in store.results(run_id)] == [None, DISAGREE]
    assert store.superseded_verdicts(run_id) == ()
    again = saved(store, (scored("a.dcm", 0.8), scored("a.dcm", 0.1)))
    assert [answer.verdict for answer in store.results(again)] == [None, DISAGREE]
    assert store.superseded_verdicts(again) == ()
    alone = saved(store, (scored("a.dcm", 0.8),), spec=run_spec(packs=(ADULTS,)))
    assert [one.verdict for one in store.superseded_verdicts(alone)] == [DISAGREE]
    store.set_read_state(first.result_id, judged=first.outcome, is_read=True)
    assert [(answer.is_read, answer.verdict) for answer in store.image(first.row_id).results] == [
        (True, None),
        (True, DISAGREE),
    ]


def test_a_saved_image_has_the_earlier_verdicts_of_its_reused_results(store: ResultStore) -> None:
    run_id = saved(store, (scored("a.dcm", 0.8), scored("a.dcm", 0.1)))
    (_, judged) = store.results(run_id)
    store.set_verdict(judged.result_id, AGREE, judged=judged.outcome)
    again = store.open_run(BOTH, as_new_run=True)
    image = store.save_image(again, scored("a.dcm", 0.8), scored("a.dcm", 0.1), spec=BOTH, reused_positions=[1])
    assert [(one.pack_position, one.is_reused, one.verdict, one.is_read) for one in image.results] == [
        (0, False, None, False),
        (1, True, AGREE, True),
    ]
    kept = store.image(image.row_id)
    assert [(one.result_id, one.verdict) for one in kept.results] == [
        (one.result_id, one.verdict) for one in image.results
    ]


def test_results_of_one_pack_are_reused_from_a_run_of_that_pack(store: ResultStore, path: Path) -> None:
    of_adults = saved(store, (scored("a.dcm", 0.2),), (scored("b.dcm", 0.8),), spec=run_spec(packs=(ADULTS,)))
    of_other = saved(store, (scored("a.dcm", 0.9),), (scored("b.dcm", 0.3),), spec=run_spec(packs=(TUBERCULOSIS,)))
    both = store.open_run(BOTH)
    adults, tuberculosis = ([answer.result_id for answer in store.results(one)] for one in (of_adults, of_other))
    images = [answer.row_id for answer in store.results(of_adults)]
    taken = store.reuse_results(both, ReusedResults(images, [adults, tuberculosis]))
    kinds = store.count_results(taken)
    assert [{kind.category: kind.result_count for kind in of_pack} for of_pack in kinds] == 2 * [
        {"normal": 1, "abnormal": 1}
    ]
    store.finish_run(both)
    with HistoryQuery(path) as query:  # listed by its now most urgent result, not as in the source run
        assert [image.most_urgent_result.pack_position for image in query.images_in_work_list_order(both)] == [1, 0]
        assert [image.ref.path.name for image in query.images_in_work_list_order(both)] == ["a.dcm", "b.dcm"]
    assert rows_of(path, f"SELECT rank FROM images WHERE run_id = {both} ORDER BY image_key") == [(1,), (1,)]
    alone = store.open_run(run_spec(packs=(TUBERCULOSIS,)), as_new_run=True)
    of_both = [answer.result_id for answer in store.results(both, pack_position=1)]
    store.reuse_results(alone, ReusedResults(taken, [of_both]))
    assert [answer.outcome.category for answer in store.results(alone)] == ["abnormal", "normal"]
    assert rows_of(path, f"SELECT rank FROM images WHERE run_id = {alone} ORDER BY image_key") == [(1,), (4,)]
    with HistoryQuery(path) as query:
        assert query.list_rows(alone, ResultFilter(), ResultOrder()).counts["abnormal"] == 1


def test_a_replaced_result_moves_its_image_in_the_list(store: ResultStore, path: Path) -> None:
    run_id = saved(
        store, (scored("a.dcm", 0.2), refused(image_ref("a.dcm"))), (scored("b.dcm", 0.6), scored("b.dcm", 0.1))
    )
    _, of_other, *_ = store.results(run_id)
    image = store.replace_result(of_other.result_id, scored("a.dcm", 0.9), run=store.run(run_id))
    assert [answer.outcome.category for answer in image.results] == ["normal", "abnormal"]
    with HistoryQuery(path) as query:
        assert [found.ref.path.name for found in query.images_in_work_list_order(run_id)] == ["a.dcm", "b.dcm"]


def test_a_run_is_resumed_only_with_the_same_packs(store: ResultStore) -> None:
    run_id = store.open_run(BOTH)
    assert store.open_run(BOTH) == run_id
    assert store.open_run(run_spec(packs=(ADULTS,))) != run_id
    assert store.run(run_id).spec == BOTH


def test_a_file_has_a_stamp_for_each_pack_that_did_not_fail(store: ResultStore) -> None:
    facts = replace(screened().facts, file_stamp=b"stamp")
    run_id = store.open_run(BOTH)
    failed = replace(scored("a.dcm", 0.1), facts=facts)
    store.save_image(run_id, failed, replace(refused(image_ref("a.dcm")), facts=facts), spec=BOTH)
    (known,) = store.image_file_stamps(run_id, b"", limit=9)
    assert {position: stamp for position, (_, stamp) in known.stamped_results.items()} == {0: b"stamp", 1: b"stamp"}


@pytest.mark.parametrize(
    "lost", ["DELETE FROM run_packs WHERE position = 1", "DELETE FROM run_packs WHERE position = 0"]
)
def test_a_lost_pack_loses_its_results_and_a_lost_first_pack_the_run(store: ResultStore, path: Path, lost: str) -> None:
    saved(store, (scored("a.dcm", 0.2), scored("a.dcm", 0.9)))
    store.close()
    change(path, lost)
    with pytest.raises(StorageProblem):
        check_database(path, progress=lambda _share: None)
    repair(path)
    check_database(path, progress=lambda _share: None)
    with HistoryQuery(path) as query:
        kept = [
            [answer.pack_position for answer in image.results]
            for run in query.runs()
            for image in query.images_in_work_list_order(run.run_id)
        ]
    assert kept == ([[0]] if "= 1" in lost else [])


def test_a_disagreement_with_a_second_pack_is_found(store: ResultStore, path: Path) -> None:
    run_id = saved(store, (scored("a.dcm", 0.2), scored("a.dcm", 0.9)), (scored("b.dcm", 0.2), scored("b.dcm", 0.1)))
    _, of_other, *_ = store.results(run_id)
    store.set_verdict(of_other.result_id, Verdict(choice="disagree"), judged=of_other.outcome)
    with HistoryQuery(path) as query:
        assert len(query.list_rows(run_id, ResultFilter(verdict="disagreed"), ResultOrder()).row_ids) == 1
        assert query.run_summaries()[0].counts_by_verdict == {"disagree": 1}

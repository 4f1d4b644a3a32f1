"""Runs of several packs over the same images: how they are linked and listed, and whose verdict is whose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fieldray.domain.finding import Decision, Outcome, Screened
from fieldray.domain.run import Verdict
from fieldray.store.maintenance import delete_runs, plan_deletion
from fieldray.store.results import ResultStore
from fieldray.store.work_list import HistoryQuery
from outcomes import image_ref, refused, run_spec, screened

SPECS = [run_spec(pack_name=f"{name}-1.0.0", model_sha256=name[0] * 64) for name in ("adults", "tuberculosis")]


def scored(name: str, score: float, decision: Decision | None = None) -> Screened:
    return screened(image_ref(name), score=score, decision=decision)


def saved(store: ResultStore, *outcomes: Sequence[Outcome]) -> list[int]:
    """Runs of the packs with these outcomes, linked."""
    run_ids = [store.open_run(spec) for spec in SPECS]
    store.link(run_ids)
    for run_id, spec, found in zip(run_ids, SPECS, outcomes, strict=True):
        store.save_all(run_id, found, spec=spec)
    return run_ids


def listed(path: Path, run_ids: Sequence[int]) -> list[tuple[str, int]]:
    """The file and the run of each result, as they are listed."""
    with HistoryQuery(path) as query:
        results = [(found.outcome.ref.path.name, found.run_id) for found in query.listed_together(run_ids)]
        assert [(Path(brief.image).name, brief.run_id) for brief in query.briefs(*run_ids)] == results
        return results


def test_an_image_stands_where_its_most_urgent_answer_puts_it(store: ResultStore, path: Path) -> None:
    adults = [
        scored("healthy.dcm", 0.1),
        scored("unsure.dcm", 0.5),
        scored("both.dcm", 0.7),
        refused(image_ref("side.dcm")),
        scored("tuberculous.dcm", 0.2),
        scored("late.dcm", 0.8),
    ]
    tuberculosis = [
        scored("healthy.dcm", 0.3),
        refused(image_ref("side.dcm")),
        scored("both.dcm", 0.99, "unsure"),  # its score puts nothing among those that are abnormal
        scored("tuberculous.dcm", 0.9),
        scored("unsure.dcm", 0.2),
    ]
    first, second = saved(store, adults, tuberculosis)
    order = ["tuberculous.dcm", "late.dcm", "both.dcm", "unsure.dcm", "healthy.dcm", "side.dcm"]
    both = [(name, run_id) for name in order for run_id in (first, second) if (name, run_id) != ("late.dcm", second)]
    assert listed(path, [first, second]) == both
    assert [name for name, _ in listed(path, [second, first])] == [name for name, _ in both]
    assert listed(path, [second, first])[:2] == [("tuberculous.dcm", second), ("tuberculous.dcm", first)]
    assert [name for name, _ in listed(path, [first])][:2] == ["late.dcm", "both.dcm"]


def test_a_verdict_on_one_pack_is_no_earlier_one_on_another_of_the_same_pass(store: ResultStore, path: Path) -> None:
    first, second = saved(store, [scored("a.dcm", 0.8)], [scored("a.dcm", 0.1)])
    (found,) = store.rows(first)
    store.set_verdict(found.row_id, Verdict(choice="agree"), judged=found.outcome)
    assert store.earlier_verdicts(second) == ()
    (other,) = store.rows(second)
    assert other.verdict is None
    store.link([second])  # gone on with alone: then it was given in another run
    assert [one.verdict.choice for one in store.earlier_verdicts(second)] == ["agree"]


def test_a_run_is_alone_once_the_other_is_deleted(store: ResultStore, path: Path) -> None:
    first, second = saved(store, [scored("a.dcm", 0.8)], [scored("a.dcm", 0.1)])
    for run_id in (first, second):
        store.finish(run_id)
    store.close()
    with HistoryQuery(path) as query:
        assert [run.run_id for run in query.runs_together(second)] == [second, first]
    delete_runs(path, [first], agreed=plan_deletion(path, [first]))
    with HistoryQuery(path) as query:
        assert [run.run_id for run in query.runs_together(second)] == [second]
    assert listed(path, [second]) == [("a.dcm", second)]

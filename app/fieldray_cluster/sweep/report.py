"""A sweep's leaderboard, as JSON and as one HTML page: exact values, curves, and where the winner's pack is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from optuna import Study
from optuna.trial import TrialState

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.files import write_atomically
from fieldray_adapt.page import Code, Figure, Report, Section, Table, facts, page, told_value, trial_curves
from fieldray_cluster.sweep.study import PACKS, best_of, figures_of, name_of, read_study, values_of
from fieldray_cluster.workflow.graph import TASKS
from fieldray_cluster.workflow.recipe import Sweep, Workflow, read_workflow
from fieldray_cluster.workflow.report import REPORT, lead_of, tasks_table
from fieldray_cluster.workflow.run import RECIPE_TEXT, read_states

LEADERBOARD: Final = "leaderboard.json"
_STATES: Final = {
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "ended early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "under way",
    TrialState.WAITING: "waiting",
}


def write_report(path: Path) -> Path:
    """Write a sweep's leaderboard and page into its run's folder; where the page is.

    Raises UsageProblem (the recipe; workflow_no_sweep, workflow_no_run), StorageProblem.
    """
    workflow = read_workflow(path)
    if not workflow.sweep:
        raise UsageProblem(reason("workflow_no_sweep", path=path))
    states = read_states(path)
    rows = leaderboard(workflow, workflow.sweep, read_study(workflow.run))
    write_atomically(workflow.run / LEADERBOARD, json.dumps(rows, indent=1, ensure_ascii=False).encode())
    recipe = (workflow.run / RECIPE_TEXT).read_text(encoding="utf-8")
    report = Report(
        title=f"Sweep {path.stem}",
        lead=f"{len(rows)} trials of {workflow.sweep.trials}. {lead_of(states)}",
        sections=[
            Section(title="Winner", parts=_winner(rows)),
            Section(title="Leaderboard", parts=[_table(rows, workflow.sweep)]),
            Section(title="Curves", parts=_curves(rows, workflow.sweep)),
            Section(title="Tasks", parts=[tasks_table(states)]),
            Section(title="Recipe", parts=[Code(recipe), Code(workflow.sweep.recipe.read_text(encoding="utf-8"))]),
        ],
    )
    write_atomically(workflow.run / REPORT, page(report))
    return workflow.run / REPORT


def leaderboard(workflow: Workflow, sweep: Sweep, study: Study) -> list[dict[str, Any]]:
    """A row for each trial, the best first: its exact values, state, figure and curve, and the winner's pack."""
    best, sign = best_of(study), -1 if sweep.direction == "maximize" else 1
    found = []
    for trial in study.get_trials(deepcopy=False):
        name = name_of(trial.number)
        curve = figures_of(workflow.run / TASKS / name, sweep.metric)
        packs = sorted((workflow.run / PACKS / name).glob("*/manifest.json"))
        found.append(
            {
                "trial": name,
                "state": _STATES[trial.state],
                sweep.metric: trial.value if trial.state == TrialState.COMPLETE else (curve[-1][1] if curve else None),
                "epochs": len(curve),
                "values": values_of(sweep, trial),
                "curve": curve,
                "is_best": best is not None and best.number == trial.number,
                "pack": packs[0].parent.relative_to(workflow.run).as_posix() if packs else None,
            }
        )

    def place(row: Mapping[str, Any]) -> tuple[bool, float]:
        figure = row[sweep.metric]
        return row["state"] != "done", sign * figure if figure is not None else float("inf")

    return sorted(found, key=place)


def _winner(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    return [facts({"trial": row["trial"], **row["values"], "pack": row["pack"]}) for row in rows if row["is_best"]]


def _table(rows: Sequence[Mapping[str, Any]], sweep: Sweep) -> Table:
    return Table(
        head=["trial", "state", sweep.metric, "epochs", *sweep.keys],
        rows=[
            [row["trial"], row["state"], told_value(row[sweep.metric]), told_value(row["epochs"])]
            + [_exact(row["values"][key]) for key in sweep.keys]
            for row in rows
        ],
        caption="The figure of a trial that was ended early is that of its last epoch. Values are exact.",
    )


def _curves(rows: Sequence[Mapping[str, Any]], sweep: Sweep) -> list[Figure]:
    curves = {row["trial"]: row["curve"] for row in rows if row["curve"]}
    best = next((row["trial"] for row in rows if row["is_best"]), "")
    if not curves:
        return []
    svg = trial_curves(curves, figure=sweep.metric, best=best)
    return [Figure(svg=svg, caption=f"The validation {sweep.metric} of each trial against the epoch.")]


def _exact(value: Any) -> str:
    """As many digits as tell it from every other number."""
    return repr(value) if isinstance(value, float) else told_value(value)

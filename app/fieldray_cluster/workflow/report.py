"""Write the report of a workflow's run or of a sweep as an HTML page, and a sweep's leaderboard as JSON."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fieldray.plain_text import escape_invisible_characters
from fieldray_adapt.files import write_atomically
from fieldray_adapt.reports.page import (
    CodeBlock,
    Figure,
    Report,
    ReportPart,
    Section,
    Table,
    duration_text,
    facts_table,
    render_page,
    trial_curves_svg,
    value_text,
)
from fieldray_cluster.workflow.recipe import Sweep, Workflow
from fieldray_cluster.workflow.run import (
    RECIPE_COPY_FILE_NAME,
    TASKS_FOLDER_NAME,
    TaskState,
    count_statuses,
    read_task_states,
    read_workflow_of_last_run,
)

if TYPE_CHECKING:
    from optuna import Study

REPORT_FILE_NAME: Final = "report.html"
"""The file name of the report."""
_MAX_ROWS: Final = 2000
_MAX_OUTPUTS: Final = 50
_END_BYTES: Final = 4000
_END_LINES: Final = 30


def write_report(path: Path) -> Path:
    """Write the report of a workflow's run, and a sweep's leaderboard, to the run folder. Returns the report's path.

    `path` is the recipe. Raises UsageProblem for an invalid recipe or if there is no run (workflow_no_run), and
    StorageProblem.
    """
    workflow, states = read_workflow_of_last_run(path), read_task_states(path)
    run, sweep = workflow.run, workflow.sweep
    tasks = Section(title="Tasks", parts=[tasks_table(states)])
    recipes = [CodeBlock((run / RECIPE_COPY_FILE_NAME).read_text(encoding="utf-8"))]
    failed = Section(title="What failed", parts=_outputs([state for state in states if state.status == "failed"]))
    title, lead, sections = f"Workflow {path.stem}", summary_text(states), [tasks, failed]
    if sweep:
        from fieldray_cluster.workflow.sweep import read_study

        rows = leaderboard(workflow, sweep, read_study(run))
        write_atomically(run / LEADERBOARD_FILE_NAME, json.dumps(rows, indent=1, ensure_ascii=False).encode())
        title, lead = f"Sweep {path.stem}", f"{len(rows)} trials of {sweep.trials}. {lead}"
        sections = [*_sweep_sections(rows, sweep), tasks]
        recipes.append(CodeBlock(sweep.recipe.read_text(encoding="utf-8")))
    report = Report(title=title, intro=lead, sections=[*sections, Section(title="Recipe", parts=recipes)])
    write_atomically(run / REPORT_FILE_NAME, render_page(report))
    return run / REPORT_FILE_NAME


def summary_text(states: Sequence[TaskState]) -> str:
    """Return two sentences that sum up the results of all tasks: numbers of tasks by status, and times."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(count_statuses(states).items()))
    seconds = sum(state.outcome.seconds for state in states)
    cpu_seconds = sum(state.outcome.cpu_seconds or 0.0 for state in states)
    nodes = {state.outcome.node for state in states} - {""}
    return (
        f"{len(states)} tasks: {counts}. The last attempts took {duration_text(seconds)} together, "
        f"{duration_text(cpu_seconds)} of CPU time, on {len(nodes)} workers."
    )


def task_row(state: TaskState) -> dict[str, Any]:
    """Return the state of a task as values by column name, for a table or for JSON. Times in seconds, memory in MB."""
    outcome = state.outcome
    return {
        "task": state.task.name,
        "status": state.status,
        "performances": state.event.number if state.event else 0,
        "lost_workers": state.event.lost if state.event else 0,
        "node": outcome.node,
        "began": _time(outcome.began),
        "seconds": outcome.seconds,
        "cpu_seconds": outcome.cpu_seconds,
        "memory_mb": outcome.memory_mb,
        "exit_code": outcome.exit_code,
        "problem": outcome.problem,
        "values": dict(state.task.parameter_values),
        "command": list(state.task.command),
        "output": str(state.output_file) if state.output_file else None,
    }


def tasks_table(states: Sequence[TaskState]) -> Table:
    """Return a report table with a row for each task. Failed tasks come first."""
    order = {"failed": 0, "blocked": 1, "stopped": 2, "running": 3}
    shown = sorted(states, key=lambda state: order.get(state.status, 4))[:_MAX_ROWS]
    head = ("status", "performances", "lost_workers", "node", "began", "seconds", "cpu_seconds", "memory_mb", "values")
    rows = [task_row(state) for state in shown]
    left = f"The first {_MAX_ROWS} of {len(states)}." if len(states) > _MAX_ROWS else ""
    return Table(
        column_names=["task", *(name.replace("_", " ") for name in head), "problem"],
        rows=[[row["task"], *(value_text(row[name]) for name in head), row["problem"] or "-"] for row in rows],
        caption=left,
    )


def last_output_lines(state: TaskState) -> str:
    """Return the last lines of the output of a task's last attempt; "" without output."""
    if state.output_file is None:
        return ""
    with state.output_file.open("rb") as stream:
        stream.seek(max(0, state.output_file.stat().st_size - _END_BYTES))
        text = stream.read().decode(errors="replace")
    return "\n".join(escape_invisible_characters(line) for line in text.splitlines()[-_END_LINES:])


def _outputs(states: Sequence[TaskState]) -> list[ReportPart]:
    parts: list[ReportPart] = []
    for state in states[:_MAX_OUTPUTS]:
        own: Mapping[str, Any] = {"command": " ".join(state.task.command), "problem": state.outcome.problem}
        parts.append(facts_table(own, caption=state.task.name))
        if end := last_output_lines(state):
            parts.append(CodeBlock(end))
    return parts


def _time(seconds: float) -> str | None:
    """Format a time in seconds since 1970 as date and time in UTC; None for 0."""
    if not seconds:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# ---- sweeps


LEADERBOARD_FILE_NAME: Final = "leaderboard.json"
"""The file name of the leaderboard."""
_STATES: Final = {
    "COMPLETE": "done",
    "PRUNED": "ended early",
    "FAIL": "failed",
    "RUNNING": "under way",
    "WAITING": "waiting",
}


def _sweep_sections(rows: Sequence[Mapping[str, Any]], sweep: Sweep) -> list[Section]:
    winner = [
        facts_table({"trial": row["trial"], **row["values"], "pack": row["pack"]}) for row in rows if row["is_best"]
    ]
    return [
        Section(title="Winner", parts=winner),
        Section(title="Leaderboard", parts=[_table(rows, sweep)]),
        Section(title="Curves", parts=_curves(rows, sweep)),
    ]


def leaderboard(workflow: Workflow, sweep: Sweep, study: Study) -> list[dict[str, Any]]:
    """Return a row for each trial of a sweep, with the best trial first. The rows have only JSON values.

    A row has the state of the trial, the values of the recipe's keys, the trial's figure, the figure after each epoch,
    and the pack if the trial has one.
    """
    from fieldray_cluster.workflow.sweep import PACKS_FOLDER_NAME, best_trial, read_figures, trial_name, trial_values

    best, sign = best_trial(study), -1 if sweep.direction == "maximize" else 1
    found = []
    for trial in study.get_trials(deepcopy=False):
        name = trial_name(trial.number)
        curve = read_figures(workflow.run / TASKS_FOLDER_NAME / name, sweep.metric)
        packs = sorted((workflow.run / PACKS_FOLDER_NAME / name).glob("*/manifest.json"))
        found.append(
            {
                "trial": name,
                "state": _STATES[trial.state.name],
                sweep.metric: trial.value if trial.state.name == "COMPLETE" else (curve[-1][1] if curve else None),
                "epochs": len(curve),
                "values": trial_values(sweep, trial),
                "curve": curve,
                "is_best": best is not None and best.number == trial.number,
                "pack": packs[0].parent.relative_to(workflow.run).as_posix() if packs else None,
            }
        )

    def rank(row: Mapping[str, Any]) -> tuple[bool, float]:
        figure = row[sweep.metric]
        return row["state"] != "done", sign * figure if figure is not None else float("inf")

    return sorted(found, key=rank)


def _table(rows: Sequence[Mapping[str, Any]], sweep: Sweep) -> Table:
    return Table(
        column_names=["trial", "state", sweep.metric, "epochs", *sweep.keys],
        rows=[
            [row["trial"], row["state"], value_text(row[sweep.metric]), value_text(row["epochs"])]
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
    svg = trial_curves_svg(curves, metric=sweep.metric, best_trial=best)
    return [Figure(svg=svg, caption=f"The validation {sweep.metric} of each trial against the epoch.")]


def _exact(value: Any) -> str:
    """Format a value for the report. A number gets all digits that are needed to restore the number exactly."""
    return repr(value) if isinstance(value, float) else value_text(value)

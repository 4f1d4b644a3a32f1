"""A workflow's report: one HTML page with what every task was, did and cost, and the end of what it said."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fieldray.plain_text import visible
from fieldray_adapt.files import write_atomically
from fieldray_adapt.page import Code, Part, Report, Section, Table, facts, page, told_seconds, told_value
from fieldray_cluster.workflow.recipe import read_workflow
from fieldray_cluster.workflow.run import RECIPE_TEXT, TaskState, counted, read_states

REPORT: Final = "report.html"
_MOST_ROWS: Final = 2000
_MOST_OUTPUTS: Final = 50
_END_BYTES: Final = 4000
_END_LINES: Final = 30


def write_report(path: Path) -> Path:
    """Write the page of a recipe's run into its folder; where it is.

    Raises UsageProblem (the recipe; workflow_no_run), StorageProblem.
    """
    states, run = read_states(path), read_workflow(path).run
    recipe = run / RECIPE_TEXT
    text = recipe.read_text(encoding="utf-8") if recipe.is_file() else ""
    report = Report(
        title=f"Workflow {path.stem}",
        lead=lead_of(states),
        sections=[
            Section(title="Tasks", parts=[tasks_table(states)]),
            Section(title="What failed", parts=_outputs([state for state in states if state.status == "failed"])),
            Section(title="Recipe", parts=[Code(text)] if text else []),
        ],
    )
    write_atomically(run / REPORT, page(report))
    return run / REPORT


def lead_of(states: Sequence[TaskState]) -> str:
    """What became of the tasks, in a sentence or two."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(counted(list(states)).items()))
    seconds = sum(state.outcome.seconds for state in states)
    cpu_seconds = sum(state.outcome.cpu_seconds or 0.0 for state in states)
    nodes = {state.outcome.node for state in states} - {""}
    return (
        f"{len(states)} tasks: {counts}. The last performances took {told_seconds(seconds)} together, of CPUs "
        f"{told_seconds(cpu_seconds)}, on {len(nodes)} workers."
    )


def row_of(state: TaskState) -> dict[str, Any]:
    """What is known of a task, for a table or a program; times in seconds, memory in MB."""
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
        "values": dict(state.task.values),
        "command": list(state.task.command),
        "output": str(state.output) if state.output else None,
    }


def tasks_table(states: Sequence[TaskState]) -> Table:
    """A row for each task, those that failed first."""
    order = {"failed": 0, "blocked": 1, "stopped": 2, "running": 3}
    shown = sorted(states, key=lambda state: order.get(state.status, 4))[:_MOST_ROWS]
    head = ("status", "performances", "lost_workers", "node", "began", "seconds", "cpu_seconds", "memory_mb", "values")
    rows = [row_of(state) for state in shown]
    left = f"The first {_MOST_ROWS} of {len(states)}." if len(states) > _MOST_ROWS else ""
    return Table(
        head=["task", *(name.replace("_", " ") for name in head), "problem"],
        rows=[[row["task"], *(told_value(row[name]) for name in head), row["problem"] or "-"] for row in rows],
        caption=left,
    )


def output_end(state: TaskState) -> str:
    """The last lines of what a task said last; empty where it said nothing."""
    if state.output is None:
        return ""
    with state.output.open("rb") as stream:
        stream.seek(max(0, state.output.stat().st_size - _END_BYTES))
        text = stream.read().decode(errors="replace")
    return "\n".join(visible(line) for line in text.splitlines()[-_END_LINES:])


def _outputs(states: Sequence[TaskState]) -> list[Part]:
    parts: list[Part] = []
    for state in states[:_MOST_OUTPUTS]:
        own: Mapping[str, Any] = {"command": " ".join(state.task.command), "problem": state.outcome.problem}
        parts.append(facts(own, caption=state.task.name))
        if end := output_end(state):
            parts.append(Code(end))
    return parts


def _time(seconds: float) -> str | None:
    """A time of a node's clock, in universal time."""
    if not seconds:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

"""The command `fieldray workflow`: run experiments on a cluster, and search for the best values of a recipe (sweep)."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from typing import Any, Final

from fieldray.commands.console import Console, add_command, add_command_group, parse_path_option
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.adapt_command import print_problems
from fieldray_cluster.commands.cluster import importing_cluster_modules

_STOPPED: Final = 130


def register_commands(commands: argparse._SubParsersAction[Any], summary: str) -> None:
    """Add the command `workflow` and its subcommands to a parser."""
    actions = add_command_group(commands, "workflow", summary)
    for name, (text, run) in _COMMANDS.items():
        action = add_command(actions, name, text, run=functools.partial(_run, run))
        action.add_argument(
            "recipe", type=parse_path_option, metavar="RECIPE", help="the workflow's recipe (a TOML file)"
        )
        if name == "status":
            action.add_argument("--task", metavar="NAME", help="show one task, with the end of its output")
            action.add_argument("--json", choices=("-",), help="print one JSON object per task")


def run_experiments(options: argparse.Namespace, console: Console) -> int:
    """Run `workflow run`, which runs the experiments of a workflow. Returns the exit code.

    Raises UsageProblem, EnvironmentProblem.
    """
    from fieldray_cluster.workflow.report import write_report
    from fieldray_cluster.workflow.run import run_workflow

    counts = run_workflow(options.recipe, say=console.print_line)
    console.print_line(f"Report: {write_report(options.recipe)}")
    if counts["stopped"]:
        return _STOPPED
    return 1 if set(counts) - {"done"} else 0


def run_sweep(options: argparse.Namespace, console: Console) -> int:
    """Run `workflow sweep`, which searches for the best values of a recipe. Returns the exit code.

    Raises UsageProblem, EnvironmentProblem.
    """
    from fieldray_cluster.workflow.report import write_report
    from fieldray_cluster.workflow.sweep import run_sweep as run

    end = run(options.recipe, say=console.print_line)
    console.print_line(f"Report: {write_report(options.recipe)}")
    return {"done": 0, "failed": 1, "stopped": _STOPPED}[end]


def run_status(options: argparse.Namespace, console: Console) -> int:
    """Run `workflow status`, which lists the tasks of a workflow's run. Returns the exit code. Raises UsageProblem."""
    from fieldray_cluster.workflow.report import last_output_lines, summary_text, task_row
    from fieldray_cluster.workflow.run import read_task_states

    states = read_task_states(options.recipe)
    shown = [state for state in states if options.task in (None, state.task.name)]
    if not shown:
        raise UsageProblem(reason("workflow_no_task", task=options.task))
    if options.json:
        for state in shown:
            console.write_machine_readable_line(json.dumps(task_row(state), ensure_ascii=False))
        return 0
    for state in shown:
        row = task_row(state)
        node = f" on {row['node']}" if row["node"] else ""
        console.print_line(f"{row['task']}: {row['status']}{node}, {row['seconds']:.1f} s. {row['problem']}".rstrip())
        if options.task:
            console.print_lines(f"  {line}" for line in last_output_lines(state).splitlines())
    if not options.task:
        console.print_line(summary_text(states))
    return 0


def run_cancel(options: argparse.Namespace, console: Console) -> int:
    """Run `workflow cancel`, which asks a workflow's run to stop. Returns the exit code.

    Raises UsageProblem, StorageProblem.
    """
    from fieldray_cluster.workflow.run import cancel_run

    cancel_run(options.recipe)
    console.print_line("The workflow is being stopped. Finished tasks are kept.")
    return 0


def run_report(options: argparse.Namespace, console: Console) -> int:
    """Run `workflow report`, which writes the report of a workflow's run. Returns the exit code.

    Raises UsageProblem, StorageProblem.
    """
    from fieldray_cluster.workflow.report import write_report

    console.print_line(f"Report: {write_report(options.recipe)}")
    return 0


def run_new_command(options: argparse.Namespace, console: Console) -> int:
    """Run `workflow new`, which writes a new recipe. Returns the exit code. Raises UsageProblem, StorageProblem."""
    from fieldray_cluster.workflow.recipe import write_new_workflow

    write_new_workflow(options.recipe)
    console.print_line(f"Written: {options.recipe}")
    return 0


def _run(run: Callable[[argparse.Namespace, Console], int], options: argparse.Namespace, console: Console) -> int:
    """Run a subcommand of `workflow`. Returns the exit code.

    If a module is missing, raises UsageProblem with the module's name. If a recipe has several problems, all are
    printed.
    """
    try:
        with importing_cluster_modules():
            return run(options, console)
    except UsageProblem as problem:
        print_problems(problem, console)
        raise


_COMMANDS: Final = {
    "new": ("write a commented recipe to begin with", run_new_command),
    "run": ("run the unfinished tasks of a workflow", run_experiments),
    "sweep": ("run the unfinished trials of a sweep, and make a pack of the best trial", run_sweep),
    "status": ("list the tasks of a run, while it runs or afterwards", run_status),
    "cancel": ("stop a workflow that runs in another window", run_cancel),
    "report": ("write the report of a run as one page", run_report),
}

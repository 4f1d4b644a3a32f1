"""The sentences of workflows and sweeps (see `reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.sentence import Plural, Template

# fmt: off
WORKFLOW: Final[Mapping[str, Template]] = {
    "workflow_blocked": "Not started, because {parent} did not end well. Look at it (fieldray workflow status RECIPE --task {parent}), fix it, and run the workflow again.",
    "workflow_other_answer": "The answer of another task came back in its place. Run the workflow again; if that repeats itself, start the cluster again.",
    "workflow_node_aside": "{node} is given no more work in this run: {detail}. Its tasks go to other nodes.",
    "workflow_no_node": "No node is left that can work on the tasks. {node}: {detail}. Fix that, and run the same command again: what is done is not repeated.",
    "workflow_exit": "The command ended with the exit code {exit_code}.",
    "workflow_signal": "The command was ended by the signal {number}.",
    "workflow_not_started": "The command could not be started on {node}: {detail}.",
    "workflow_worker_lost": Plural("The process that worked on it ended {count} time.",
                                   "The processes that worked on it ended {count} times.", by="count"),
    "workflow_stopped": "Stopped before its end.",
    "workflow_node_failed": "{node} could not work on it: {detail}.",
    "workflow_input_missing": "{path} is not there.",
    "workflow_no_resource": "No node of the cluster has what the experiment {experiment} asks for ({resource}: {amount}).",
    "workflow_node_version": "{node} has {theirs}, and this computer has {ours}. Install the same versions on both.",
    "workflow_node_folder": "{node} cannot see {path}. Put the recipe's folder on a share that every node has at the same place.",
    "workflow_node_clock": "The clock of {node} differs from this computer's by {seconds} s. The times in the report are those of each node.",
    "workflow_connection_lost": "The connection to the cluster was lost. Run the same command again: what is done is not repeated.",
    "workflow_not_running": "Nothing is running in {path}.",
    "workflow_no_run": "There is no run of this recipe yet ({path}).",
    "workflow_journal": "The journal {path} is damaged in line {line}. Delete that line and run the same command again: what was done stays done.",
    "workflow_no_task": "There is no task {task} in this workflow.",
    "workflow_is_sweep": "{path} has a table [sweep]. Use: fieldray workflow sweep {path}",
    "workflow_no_sweep": "{path} has no table [sweep].",
    "sweep_differs": "The sweep in {path} was begun with other settings, other data or another version of the program. Use another folder, or delete that one.",
    "sweep_diverged": "The trial has no {metric} in its history.",
    "sweep_none": "No trial of the sweep came to its end, so there is no winner. Look why (fieldray workflow status RECIPE), then raise trials in the recipe and run the sweep again.",
}

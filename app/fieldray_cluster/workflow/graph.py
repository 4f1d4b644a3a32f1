"""A workflow compiled to a graph of tasks: what each runs, and whose end it waits for.

Edges run between experiments: every task of a child waits for all tasks of its parents. What makes a task what it is,
is its key: the program's version, command, values, inputs, and the keys of the tasks before it. A task with the key of
one that is done is done.
"""

from __future__ import annotations

import graphlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray_cluster.result_key import result_key, state_of
from fieldray_cluster.workflow.recipe import PLACEHOLDER, Experiment, Workflow
from fieldray_cluster.workflow.sampling import Value, samples

TASKS: Final = "tasks"
"""The folder, within the run's, that has a folder for each task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One command of an experiment with its values.

    Attributes
    ----------
    name
        The experiment's name and the number of its sample, from 1.
    command
        The words, with the values filled in.
    values
        What was sampled, by parameter.
    folder
        Its own; everything that is known of it lies there.
    inputs
        Files and folders that it reads.
    """

    name: str
    experiment: str
    command: tuple[str, ...]
    values: Mapping[str, Value]
    folder: Path
    inputs: tuple[Path, ...] = ()

    def key(self, before: str) -> str:
        """The digest of what decides its result; `before` is that of all tasks that it waits for.

        Its inputs are read now. Raises FileNotFoundError for one that is not there, OSError.
        """
        return result_key(self.command, dict(self.values), [state_of(path) for path in self.inputs], before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """All tasks, by experiment in an order in which each comes after those that it depends on."""

    tasks: Mapping[str, tuple[Task, ...]]
    parents: Mapping[str, tuple[str, ...]]

    @property
    def count(self) -> int:
        """How many tasks there are."""
        return sum(map(len, self.tasks.values()))


def compiled(workflow: Workflow, *, here: Path) -> Graph:
    """The graph of a workflow; `here` is its recipe's folder. Its reading has excluded cycles."""
    parents = {name: own.depends_on for name, own in workflow.experiments.items()}
    order = list(graphlib.TopologicalSorter(parents).static_order())
    return Graph(
        tasks={name: _tasks(name, workflow.experiments[name], workflow, here) for name in order},
        parents={name: parents[name] for name in order},
    )


def filled(command: str, values: Mapping[str, Value]) -> tuple[str, ...]:
    """The command's words with the values in place of the placeholders.

    The template is split first and filled in afterwards: a value stays within its word, whatever spaces, quotes or
    semicolons are in it, and no shell ever sees it.
    """
    return tuple(_fill(word, values) for word in shlex.split(command))


def told(value: Value) -> str:
    """A value as a word of a command."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tasks(name: str, experiment: Experiment, workflow: Workflow, here: Path) -> tuple[Task, ...]:
    # Another seed for each experiment: two with the same ranges would otherwise draw the same numbers.
    rows = samples(experiment.parameters, count=experiment.tasks, seed=f"{workflow.seed}/{name}")
    found = []
    for index, values in enumerate(rows, start=1):
        own = f"{name}-{index:04d}"
        folder = workflow.run / TASKS / own
        known = {**values, "index": index, "run": str(workflow.run), "folder": str(folder), "here": str(here)}
        found.append(
            Task(
                name=own,
                experiment=name,
                command=filled(experiment.command, known),
                values=values,
                folder=folder,
                inputs=tuple(here / _fill(text, known) for text in experiment.inputs),
            )
        )
    return tuple(found)


def _fill(word: str, values: Mapping[str, Value]) -> str:
    return PLACEHOLDER.sub(lambda match: told(values[match[1]]), word)

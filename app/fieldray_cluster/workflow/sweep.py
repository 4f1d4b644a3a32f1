"""Run a sweep: the library Optuna proposes values for keys of a recipe, and each trial trains with one set of values.

At the end, a pack is made from the best trial. Optuna's storage and the journal are in the run folder. So a killed
sweep can resume: interrupted trials continue from their checkpoints. Only the process that started the sweep uses
Optuna. This process reads the figures that a trial writes after each epoch, and stops poor trials early.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from fieldray.errors import UsageProblem
from fieldray.processes.wire import INVALID_MESSAGE_ERRORS
from fieldray.reasons import reason
from fieldray.typed_json import parse_json
from fieldray_adapt.files import write_atomically
from fieldray_adapt.recipe_actions import recipe_kind_of
from fieldray_adapt.recipes.tables import Problem, RecipeDocument, RecipeProblems, parse_table
from fieldray_adapt.run import EPOCH_HISTORY_FILE_NAME
from fieldray_cluster.worker_registry import path_fingerprint, result_key
from fieldray_cluster.workflow.recipe import Parameter, ParameterValue, RetryPolicy, Sweep, Workflow, read_workflow
from fieldray_cluster.workflow.run import TASKS_FOLDER_NAME, LineHandler, WorkflowRun, open_workflow_run
from fieldray_cluster.workflow.tasks import STOP_FILE_NAME, Event, TaskSpec
from fieldray_cluster.workflow.trial_command import with_changed_keys

SweepOutcome = Literal["done", "failed", "stopped"]
"""How a run of a sweep ended: all trials done, failed, or stopped by the user."""
EpochValues = list[tuple[int, float]]
"""Pairs of an epoch and the value of a figure, such as the AUC, after the epoch."""

STUDY_FILE_NAME: Final = "study.jsonl"
"""The name of the file with Optuna's study (values and results of all trials), in the run folder."""
_STUDY_NAME: Final = "sweep"
PACKS_FOLDER_NAME: Final = "packs"
"""The name of the folder in the run folder that has a subfolder for the packs of each trial."""
BEST_TRIAL_TASK_NAME: Final = "winner"
"""The name of the task that makes the pack of the best trial."""
_MODULE: Final = "fieldray_cluster.workflow.trial_command"
_SETTINGS: Final = "settings"
_DATA: Final = frozenset({"path", "images", "masks", "file", "lungs", "weights"})  # keys of a recipe's input files
_OVER: Final = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def run_sweep(path: Path, *, say: LineHandler, trial_command: tuple[str, ...] = ()) -> SweepOutcome:
    """Run the unfinished trials of a sweep, and make the pack of the best trial. Returns "done", "failed" or "stopped".

    `path` is the workflow's recipe. `say` is called with lines of text for the user. `trial_command` is the command of
    another program that runs trials, with the order as last argument; empty to use this program. Ctrl-C stops the
    trials, and KeyboardInterrupt is raised.

    Raises UsageProblem for an invalid recipe, workflow_no_sweep, sweep_differs or sweep_none, and EnvironmentProblem.
    """
    workflow = read_workflow(path)
    if not workflow.sweep:
        raise UsageProblem(reason("workflow_no_sweep", path=path))
    document = RecipeDocument.read(workflow.sweep.recipe)
    _require_sweepable(document, workflow.sweep)
    with open_workflow_run(workflow, path, say=say) as opened:
        settings = _settings(workflow, workflow.sweep, document)
        study = _opened_study(workflow.run, workflow.sweep, seed=workflow.seed)
        if _SETTINGS not in study.user_attrs:
            study.set_user_attr(_SETTINGS, settings)
        elif study.user_attrs[_SETTINGS] != settings:
            raise UsageProblem(reason("sweep_differs", path=workflow.run))
        trials = _Trials(study, opened, workflow.sweep, settings=settings, trial=trial_command)
        if trials.is_over:
            say("Everything was done before.")
        else:
            opened.run_tasks(trials)
        return trials.end_of_sweep


def read_study(run: Path) -> optuna.Study:
    """Read Optuna's study of a sweep from the run folder `run`, without changing the study. The sweep may be running.

    Raises UsageProblem (workflow_no_run).
    """
    if not (run / STUDY_FILE_NAME).is_file():
        raise UsageProblem(reason("workflow_no_run", path=run))
    try:
        return optuna.load_study(study_name=_STUDY_NAME, storage=_storage(run))
    except KeyError as error:  # the file was just created and has no study yet
        raise UsageProblem(reason("workflow_no_run", path=run)) from error


def _storage(run: Path) -> JournalStorage:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = str(run / STUDY_FILE_NAME)
    return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))


def _opened_study(run: Path, sweep: Sweep, *, seed: int) -> optuna.Study:
    """Open or create Optuna's study of a sweep in the run folder `run`, which the calling process must have locked."""
    for left in run.glob(f"{STUDY_FILE_NAME}.lock*"):  # Optuna's locks, left by a killed driver
        left.unlink(missing_ok=True)
    study = optuna.create_study(
        study_name=_STUDY_NAME, storage=_storage(run), direction=sweep.direction, load_if_exists=True
    )
    # The seed changes with each start, because an equal seed would propose the first values again.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials), n_startup_trials=min(10, sweep.trials))
    if sweep.pruning:
        study.pruner = optuna.pruners.MedianPruner(
            n_startup_trials=sweep.pruning.trials, n_warmup_steps=sweep.pruning.epochs
        )
    else:
        study.pruner = optuna.pruners.NopPruner()
    return study


def read_figures(folder: Path, metric: str) -> EpochValues:
    """Read the values of a figure of a trial, such as the AUC, for all epochs that were trained until now.

    Parameters
    ----------
    folder
        The folder of the trial's task, which contains the run folder of the trial.
    metric
        The name of the figure: a key in the rows of history.json.
    """
    try:
        rows = parse_json((folder / "run" / "train" / EPOCH_HISTORY_FILE_NAME).read_bytes(), list[dict[str, Any]])
        found = [(int(row["epoch"]), _figure(row.get(metric))) for row in rows]
    except (OSError, *INVALID_MESSAGE_ERRORS):
        return []
    return [(epoch, value) for epoch, value in found if value is not None]


def trial_name(number: int) -> str:
    """Return the task name of the trial with Optuna's number `number`, which starts at 0."""
    return f"trial-{number + 1:04d}"


def trial_values(sweep: Sweep, trial: FrozenTrial) -> dict[str, ParameterValue]:
    """Return the values of a trial by key of the recipe, including keys with a constant value."""
    return {key: known.values[0] if known.is_constant else trial.params[key] for key, known in sweep.keys.items()}


class _Trials:
    """The waiting, running and finished trials of a sweep, as the source of the sweep's tasks (see `TaskSource`)."""

    def __init__(
        self, study: optuna.Study, run: WorkflowRun, sweep: Sweep, *, settings: str, trial: tuple[str, ...]
    ) -> None:
        self._study, self._run, self._sweep = study, run, sweep
        self._settings, self._trial = settings, trial
        self._out: dict[str, optuna.Trial] = {}  # trials by name of the task
        self._waiting: list[FrozenTrial] = []
        self._has_winner = False

    @property
    def is_over(self) -> bool:
        """Whether every trial has ended, and the pack of the best trial exists."""
        return self._are_trials_over and self.end_of_sweep == "done"

    @property
    def end_of_sweep(self) -> SweepOutcome:
        """How the sweep ended: "done", "failed" or "stopped"."""
        if self._run.is_stopped or not self._are_trials_over:
            return "stopped"
        best = best_trial(self._study)
        return "done" if best and self._run.journal.is_done(BEST_TRIAL_TASK_NAME, self._key(best, "run")) else "failed"

    def requeue_running_tasks(self) -> None:
        """Queue again the trials that were running at an interruption (see `TaskSource.requeue_running_tasks`)."""
        self._out.clear()
        self._waiting, self._has_winner = [], False
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            event = self._run.journal.latest.get(trial_name(trial.number))
            if event and event.status in ("done", "failed", "pruned") and event.key == self._key(trial, "train"):
                self._begin(trial)
                self.record_task_end(event.task, event)
            else:
                self._waiting.append(trial)

    def next_task(self) -> tuple[TaskSpec, RetryPolicy] | None:
        """Return the task of the next trial; after the last trial, the task that makes the best trial's pack.

        None if no task may start now (see `TaskSource.next_task`). Raises UsageProblem (sweep_none) if no trial was
        completed.
        """
        if self._sweep.workers and len(self._out) >= self._sweep.workers:
            return None
        if self._waiting:
            trial = self._waiting.pop(0)
        elif len(self._study.trials) < self._sweep.trials:
            number = self._study.ask(_distributions(self._sweep.keys)).number
            trial = self._study.get_trials()[number]
        else:
            return None if self._out or self._has_winner else self._winner()
        self._begin(trial)
        return self._spec(trial, "train", trial_name(trial.number)), self._sweep

    def record_task_end(self, task: str, event: Event) -> None:
        """Report the end of a trial to Optuna (see `TaskSource.record_task_end`).

        A trial that was stopped early is reported as pruned. If the whole sweep was stopped, the trial can resume.
        """
        if task == BEST_TRIAL_TASK_NAME:
            best = best_trial(self._study)
            self._run.say(
                f"{BEST_TRIAL_TASK_NAME}: {trial_name(best.number) if best else '-'}. "
                f"{event.outcome.problem or event.status}"
            )
            return
        own = self._out.pop(task)
        self._report(task, own)
        figures = self._figures(task)
        if event.status in ("stopped", "pruned"):
            if self._run.is_stopped:
                return
            self._run.journal.add(replace(event, status="pruned"))
            value, state = None, TrialState.PRUNED
        elif event.status == "done" and figures:
            value, state = figures[-1][1], TrialState.COMPLETE
        else:
            value, state = None, TrialState.FAIL
        self._study.tell(own, value, state=state, skip_if_finished=True)
        problem = event.outcome.problem if event.status == "failed" else ""
        if event.status == "done" and not figures:
            problem = reason("sweep_diverged", metric=self._sweep.metric).text
        last = f"{self._sweep.metric} {figures[-1][1]:.4f} after {figures[-1][0]} epochs" if figures else ""
        status = "ended early" if event.status in ("stopped", "pruned") else event.status
        self._run.say(" ".join(part for part in (f"{task}: {status}.", last, problem) if part))

    def check_progress(self) -> None:
        """Report new figures of running trials to Optuna, and stop poor trials (see `TaskSource.check_progress`)."""
        for task, own in self._out.items():
            if self._report(task, own) and own.should_prune():
                write_atomically(self._folder(task) / STOP_FILE_NAME, b"")

    @property
    def _are_trials_over(self) -> bool:
        trials = self._study.get_trials(deepcopy=False)
        return len(trials) >= self._sweep.trials and all(trial.state in _OVER for trial in trials)

    def _winner(self) -> tuple[TaskSpec, RetryPolicy] | None:
        """Return the task that makes the pack of the best trial; None if the pack exists.

        Raises UsageProblem (sweep_none) if no trial was completed.
        """
        self._has_winner, best = True, best_trial(self._study)
        if best is None:
            raise UsageProblem(reason("sweep_none"))
        if self._run.journal.is_done(BEST_TRIAL_TASK_NAME, self._key(best, "run")):
            return None
        return self._spec(best, "run", BEST_TRIAL_TASK_NAME), self._sweep

    def _begin(self, trial: FrozenTrial) -> None:
        # Optuna has no public way to resume a trial of another process.
        self._out[trial_name(trial.number)] = optuna.Trial(self._study, trial._trial_id)

    def _spec(self, trial: FrozenTrial, step: str, task: str) -> TaskSpec:
        own = self._folder(trial_name(trial.number))
        spec = {
            "recipe": str(self._sweep.recipe),
            "step": step,
            "changes": {
                **trial_values(self._sweep, trial),
                "run": str(own / "run"),
                "packs_folder": str(self._run.workflow.run / PACKS_FOLDER_NAME / own.name),
            },
        }
        return self._run.make_spec(
            task,
            self._key(trial, step),
            (*self._trial, json.dumps(spec)),
            module="" if self._trial else _MODULE,
            working_folder=self._sweep.recipe.parent,
        )

    def _report(self, task: str, trial: optuna.Trial) -> bool:
        """Report the figures of a trial's new epochs to Optuna. Returns whether there were new epochs."""
        known = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
        new = [row for row in self._figures(task) if row[0] not in known]
        for epoch, value in new:
            trial.report(value, epoch)
        return bool(new)

    def _figures(self, task: str) -> EpochValues:
        return read_figures(self._folder(task), self._sweep.metric)

    def _folder(self, task: str) -> Path:
        return self._run.workflow.run / TASKS_FOLDER_NAME / task

    def _key(self, trial: FrozenTrial, step: str) -> str:
        return result_key(self._settings, trial.number, trial_values(self._sweep, trial), step)


def best_trial(study: optuna.Study) -> FrozenTrial | None:
    """Return the best completed trial of Optuna's study; None if no trial was completed."""
    is_there = any(trial.state == TrialState.COMPLETE for trial in study.get_trials(deepcopy=False))
    return study.best_trial if is_there else None


def _figure(value: object) -> float | None:
    """Return a value in history.json as one number: for a list, the mean of the known values. None if unknown."""
    numbers = [value] if isinstance(value, int | float) else value if isinstance(value, Sequence) else []
    known = [float(number) for number in numbers if isinstance(number, int | float) and math.isfinite(number)]
    return sum(known) / len(known) if known else None


def _distributions(keys: Mapping[str, Parameter]) -> dict[str, BaseDistribution]:
    return {
        key: FloatDistribution(known.low, known.high, log=known.scale == "log")
        if known.is_range
        else CategoricalDistribution(known.values)
        for key, known in keys.items()
        if not known.is_constant
    }


def _settings(workflow: Workflow, sweep: Sweep, document: RecipeDocument) -> str:
    """Return a digest of all inputs that the trials have in common: recipe, keys and data.

    Sweeps with different digests have different studies. Raises UsageProblem (workflow_input_missing).
    """
    try:
        data = [path_fingerprint(path) for path in _data_of(document, workflow.run)]
    except OSError as error:
        raise UsageProblem(reason("workflow_input_missing", path=error.filename or document.path)) from error
    return result_key(dict(sweep.keys), sweep.metric, sweep.direction, workflow.seed, document.text, data)


def _data_of(document: RecipeDocument, run: Path) -> list[Path]:
    """Return the input files and folders of a recipe, without the sweep's own output, which changes with each trial."""
    base, found = document.path.resolve().parent, list[Path]()

    def add(table: object) -> None:
        for key, value in table.items() if isinstance(table, Mapping) else ():
            for each in value if isinstance(value, list) else [value]:
                add(each)
            if key in _DATA and isinstance(value, str) and (path := base / Path(value).expanduser()).exists():
                found.append(path)

    add(document.tables)
    own = run.resolve()
    return [path for path in found if not own.is_relative_to(path.resolve())]


def _require_sweepable(document: RecipeDocument, sweep: Sweep) -> None:
    """Check that the recipe allows all values to try. Raises RecipeProblems with all problems, or UsageProblem."""
    schema, lines = recipe_kind_of(document).recipe_class, list[str]()
    tried = {key: list(known.values) or [known.low, known.high] for key, known in sweep.keys.items()}
    first: dict[str, ParameterValue] = {key: values[0] for key, values in tried.items()}
    for key, values in tried.items():
        for value in values:
            try:
                found = parse_table(schema, with_changed_keys(document, {**first, key: value}).tables)
            except KeyError:
                found = [Problem(tuple(key.split(".")), "is within a key that is no table")]
            if isinstance(found, list):
                lines += [line for line in document.problem_lines(found) if line not in lines]
    if lines:
        raise RecipeProblems(document.path, lines)

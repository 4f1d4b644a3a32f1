"""The run folder of a recipe, with a copy of the recipe, the results of the steps, and the status of each step.

While a run writes to the folder, the folder is locked, because two runs would mix their files.
"""

from __future__ import annotations

import datetime
import getpass
import json
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from msgspec import Struct
from numpy.typing import NDArray

from fieldray.errors import FieldrayError, StorageProblem, UsageProblem
from fieldray.persistence import FileLock, LockHeldError
from fieldray.reasons import reason
from fieldray.typed_json import parse_json, to_type
from fieldray_adapt.files import (
    digest,
    file_sha256,
    json_bytes,
    open_arrays,
    raise_if_damaged,
    to_builtins,
    write_atomically,
)
from fieldray_adapt.networks.specification import Weights
from fieldray_adapt.recipes.classifier import ClassifierRecipe
from fieldray_adapt.training.loop import EpochFigures, remove_checkpoints

T = TypeVar("T")
StepFacts = Mapping[str, object]
"""Results that a step reports to the user, by name. The values are JSON values and are stored in status.json."""

LOCK_FILE_NAME: Final = "run.lock"
EPOCH_HISTORY_FILE_NAME: Final = "history.json"
"""The name of the file with the figures of each epoch, in the folder of a training."""


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Lock a run folder during the block, so that only one process works there.

    The operating system releases the lock if the process ends. Raises UsageProblem (`run_in_use`) if another process
    has locked the folder, and StorageProblem if the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE_NAME, holder=_holder())
    except LockHeldError as held:
        raise UsageProblem(reason("run_in_use", path=folder, holder=held.holder)) from held
    except OSError as problem:
        raise StorageProblem(reason("not_writable", path=folder, detail=problem.strerror or problem)) from problem
    try:
        yield
    finally:
        lock.release()


def _holder() -> str:
    """Describe this process (number, user, computer, time), for the error message of a process that needs the lock."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "?"
    since = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    return f"process {os.getpid()} of {user} on {platform.node() or '?'}, since {since}"


STATUS_FILE_NAME: Final = "status.json"
RECIPE_COPY_FILE_NAME: Final = "recipe.toml"

Progress = Callable[[str, int, int], None]
"""A function that is called with the name of the work, the number of finished parts, and the number of all parts."""


class Trainer(Protocol):
    """The interface of objects that train networks outside this process, for example on a cluster.

    The methods take the arguments of `training.classifier.train` and `lungs.train.train`.
    """

    def train_classifier(self, *arguments: Any, **named: Any) -> tuple[Weights, list[EpochFigures]]:
        """Train a classifier. Returns the averaged weights, and the figures of each epoch."""

    def train_lung_fields(self, *arguments: Any, **named: Any) -> tuple[Weights, list[EpochFigures]]:
        """Train a lung-field network. Returns the averaged weights, and the figures of each epoch."""

    def facts(self) -> StepFacts:
        """Return facts about how the training is done, such as the number of workers, for status.json."""


SPLIT_FILE_NAME: Final = "split.csv"
"""The name of the file with the part (such as "training") of each image, in the folder of the data step."""


def _nothing(_run: Run) -> str:
    return ""


def _report_exists(facts: StepFacts) -> bool:
    return "report" not in facts or Path(str(facts["report"])).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a run, such as training or evaluation.

    Attributes
    ----------
    perform
        A function that performs the step, and returns results for status.json.
    recipe_keys
        The keys of the recipe that the step reads.
    outside_inputs_digest
        A function that returns a digest of the step's inputs outside the run folder: data, weights, a pack.
    outputs
        Files in the step's folder that later steps read. If a file is missing, the step is performed again.
    are_outside_files_intact
        A function that returns whether the files that the step wrote outside its own folder still exist. The argument
        is the step's results in status.json.
    """

    name: str
    perform: Callable[[Run], StepFacts]
    recipe_keys: tuple[str, ...]
    outside_inputs_digest: Callable[[Run], str] = field(default=_nothing)
    outputs: tuple[str, ...] = ()
    are_outside_files_intact: Callable[[StepFacts], bool] = field(default=_report_exists)


class StepRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The entries that all steps have in status.json.

    Attributes
    ----------
    key
        The digest of the step's inputs.
    made
        A random text that differs each time the step is performed. The text is an input of the next step, which is
        therefore performed again, too.
    seconds
        Duration of the step; None until the step is done.
    left
        The SHA-256 of each output, by file name; None until the step is done.
    problem
        The error as a sentence if the step failed; else "".
    """

    state: Literal["running", "done", "failed"]
    key: str = ""
    made: str = ""
    seconds: float | None = None
    left: dict[str, str] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StepStatus:
    """The status of a step in status.json.

    Attributes
    ----------
    record
        The entries that every step has, such as state and duration.
    facts
        All entries: the entries of `record`, and the results that only this step reports.
    """

    record: StepRecord
    facts: StepFacts

    @property
    def is_done(self) -> bool:
        """Whether the step was performed to its end."""
        return self.record.state == "done"


def append_epoch(folder: Path, row: EpochFigures) -> None:
    """Add the figures of an epoch to the history file in a training's folder. Raises StorageProblem.

    Existing rows for this epoch and for later epochs, which an earlier training wrote, are removed.
    """
    try:
        before = parse_json((folder / EPOCH_HISTORY_FILE_NAME).read_bytes(), list[EpochFigures])
    except (OSError, ValueError):
        before = []
    kept = [known for known in before if known.epoch < row.epoch]
    write_atomically(folder / EPOCH_HISTORY_FILE_NAME, json_bytes([*kept, row]))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Run:
    """A run of a recipe: the recipe, and access to its run folder.

    Attributes
    ----------
    recipe_text
        The content of the recipe file.
    trainer
        Trains the network outside this process, for example on a cluster. None to train in this process.
    """

    recipe: ClassifierRecipe
    progress: Progress
    recipe_text: str = ""
    trainer: Trainer | None = None

    def step_folder(self, step: str) -> Path:
        """Return the path of the folder for the results of a step."""
        return self.recipe.run / step

    def write_step_json(self, step: str, name: str, content: object) -> None:
        """Write `content` as JSON to the file `name` in the folder of a step. Raises StorageProblem."""
        write_atomically(self.step_folder(step) / name, json_bytes(content))

    def read_step_json(self, step: str, name: str, kind: type[T]) -> T:
        """Read the JSON file `name` in the folder of a step as an object of the type `kind`.

        Raises OSError, StorageProblem (run_file_damaged).
        """
        path = self.step_folder(step) / name
        with raise_if_damaged(path):
            return parse_json(path.read_bytes(), kind)

    @contextmanager
    def open_step_arrays(self, step: str, name: str) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Open the `.npz` file `name` in the folder of a step during the block, and yield the file's arrays by name.

        Raises UsageProblem (step_missing) if the file does not exist, and StorageProblem (run_file_damaged).
        """
        path = self.step_folder(step) / name
        if not path.is_file():
            raise UsageProblem(reason("step_missing", step=step))
        with open_arrays(path) as found:
            yield found

    def report_epoch(self, folder: Path, row: EpochFigures, *, work_name: str = "epochs") -> None:
        """Add the figures of an epoch to the history file in a training's folder, and report the progress.

        `work_name` is the name of the work in the progress report. Raises StorageProblem.
        """
        append_epoch(folder, row)
        self.progress(work_name, row.epoch, row.epochs)

    @property
    def step_statuses(self) -> dict[str, StepStatus]:
        """The status of each step that was begun, by name. Raises StorageProblem (run_file_damaged)."""
        path = self.recipe.run / STATUS_FILE_NAME
        if not path.is_file():
            return {}
        with raise_if_damaged(path):
            found = parse_json(path.read_bytes(), dict[str, dict[str, object]])
            return {name: StepStatus(to_type(entry, StepRecord), entry) for name, entry in found.items()}

    def execute(self, steps: tuple[Step, ...], *, say: Callable[[str], None]) -> None:
        """Perform the first step that is not done, and all steps after this step.

        A step is done if it has ended, and if its inputs are unchanged. The inputs are the recipe's keys that the step
        reads, files outside the run folder, and the results of the step before. An interrupted step starts again and
        resumes from its checkpoints. `say` is called with a line for each step. Raises the exceptions of the steps.
        """
        document = json.loads(json_bytes(asdict(self.recipe)))
        write_atomically(self.recipe.run / "recipe.json", json_bytes(document))
        if self.recipe_text:
            write_atomically(self.recipe.run / RECIPE_COPY_FILE_NAME, self.recipe_text.encode())
        before = ""
        for step in steps:
            parts = {name: document[name] for name in step.recipe_keys}
            key = digest(before, step.name, parts, step.outside_inputs_digest(self))
            if self._is_done(step, key):
                say(f"{step.name}: done before")
            else:
                say(f"{step.name} ...")
                self._perform(step, key)
            before = self.step_statuses[step.name].record.made

    def _is_done(self, step: Step, key: str) -> bool:
        """Return whether a step was performed with the inputs whose digest is `key`, and its results still exist.

        Raises UsageProblem if a result was changed after the step.
        """
        if not (entry := self.step_statuses.get(step.name)):
            return False
        is_there = all((self.step_folder(step.name) / name).exists() for name in step.outputs)
        if not (is_there and entry.is_done and entry.record.key == key and step.are_outside_files_intact(entry.facts)):
            return False
        for name, left in (entry.record.left or {}).items():
            path = self.step_folder(step.name) / name
            if file_sha256(path) != left:
                code = "run_split_changed" if name == SPLIT_FILE_NAME else "run_file_changed"
                raise UsageProblem(reason(code, path=path, **({} if name == SPLIT_FILE_NAME else {"step": step.name})))
        return True

    def _perform(self, step: Step, key: str) -> None:
        began = time.monotonic()
        self._note(step, to_builtins(StepRecord(state="running", key=key)))
        try:
            facts = step.perform(self)
        except FieldrayError as problem:
            self._note(step, to_builtins(StepRecord(state="failed", key=key, problem=problem.reason.text)))
            raise
        # `made` is random and part of the next step's key, so the next step is performed again, too.
        state = StepRecord(
            state="done",
            key=key,
            made=secrets.token_hex(8),
            seconds=round(time.monotonic() - began, 1),
            left={name: file_sha256(self.step_folder(step.name) / name) for name in step.outputs},
        )
        done = to_builtins(state)
        self._note(step, done | dict(facts) | done)  # the record's keys come first, and replace facts of equal name
        remove_checkpoints(self.step_folder(step.name))

    def _note(self, step: Step, entry: StepFacts) -> None:
        known = {name: status.facts for name, status in self.step_statuses.items()}
        write_atomically(self.recipe.run / STATUS_FILE_NAME, json_bytes({**known, step.name: entry}))

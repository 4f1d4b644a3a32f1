"""A run folder: the recipe as read, the steps' results, and the status.

A run folder is locked while a run works in it: two at once would mix their files.
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
from fieldray.persistence import FileLock, HeldError
from fieldray.reasons import reason
from fieldray.typed_json import converted, decoded
from fieldray_adapt.files import arrays_in, as_json, content_digest, digest, plain, reading, write_atomically
from fieldray_adapt.networks.specification import Weights
from fieldray_adapt.recipes.classifier import Recipe
from fieldray_adapt.training.engine import EpochFigures, remove_checkpoints

T = TypeVar("T")
Facts = Mapping[str, object]
"""What a step says of what it did, by name: values that JSON has, for the status and the line that a person reads."""

LOCK_NAME: Final = "run.lock"
HISTORY: Final = "history.json"
"""In the folder of a training: the figures of its epochs, the last one's when it has ended."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder. A lock whose process has ended counts for nothing: the kernel released it.

    Raises UsageProblem `run_in_use` saying who holds it, StorageProblem if the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_NAME, holder=_holder())
    except HeldError as held:
        raise UsageProblem(reason("run_in_use", path=folder, holder=held.holder)) from held
    except OSError as problem:
        raise StorageProblem(reason("not_writable", path=folder, detail=problem.strerror or problem)) from problem
    try:
        yield
    finally:
        lock.release()


def _holder() -> str:
    """Describe this process for a person who finds the folder in use."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "?"
    since = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    return f"process {os.getpid()} of {user} on {platform.node() or '?'}, since {since}"


STATUS: Final = "status.json"
RECIPE_TEXT: Final = "recipe.toml"

Progress = Callable[[str, int, int], None]
"""What is being done, how many are done, of how many."""


class Trainer(Protocol):
    """A substitute for training in this process, with the arguments of `train.train` and `lungs.train.train`."""

    def classifier(self, *arguments: Any, **named: Any) -> tuple[Weights, list[EpochFigures]]:
        """Train a classifier. Returns averaged weights, and figures by epoch."""

    def lung_fields(self, *arguments: Any, **named: Any) -> tuple[Weights, list[EpochFigures]]:
        """Train a lung-field network. Returns averaged weights, and figures by epoch."""

    def facts(self) -> Facts:
        """Return the facts about the training method for the status."""


SPLIT: Final = "split.csv"
"""Which part each image is in, beside what was trained on it."""


def _nothing(_run: Run) -> str:
    return ""


def _report_is_there(facts: Facts) -> bool:
    return "report" not in facts or Path(str(facts["report"])).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a run.

    Attributes
    ----------
    perform
        Does it, and returns a few facts for the status.
    recipe_keys
        The recipe's keys that it reads.
    external_inputs
        A digest of what it reads that neither the recipe nor a step before it holds: data, weights, a pack.
    outputs
        Files in its folder that later steps read: without them it is not done, whatever the status says.
    is_valid
        Whether what it made beyond its folder is still there, by the facts that it returned.
    """

    name: str
    perform: Callable[[Run], Facts]
    recipe_keys: tuple[str, ...]
    external_inputs: Callable[[Run], str] = field(default=_nothing)
    outputs: tuple[str, ...] = ()
    is_valid: Callable[[Facts], bool] = field(default=_report_is_there)


class StepRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status entry of every step, next to the step's own facts.

    `key` is the digest of the step's inputs, `made` a random text for each performance, `left` the SHA-256 of each
    output, `problem` a sentence.
    """

    state: Literal["running", "done", "failed"]
    key: str = ""
    made: str = ""
    seconds: float | None = None
    left: dict[str, str] | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StepStatus:
    """The result of a step with its facts, including state, seconds and left."""

    record: StepRecord
    facts: Facts

    @property
    def is_done(self) -> bool:
        """Whether the step was performed to its end."""
        return self.record.state == "done"


def keep_epoch(folder: Path, row: EpochFigures) -> None:
    """Add an epoch's figures to a training's history, for those who watch it. Raises StorageProblem.

    What an earlier training left of this epoch and later ones goes: whoever resumes has the epochs before.
    """
    try:
        before = decoded((folder / HISTORY).read_bytes(), list[EpochFigures])
    except (OSError, ValueError):
        before = []
    kept = [known for known in before if known.epoch < row.epoch]
    write_atomically(folder / HISTORY, as_json([*kept, row]))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Run:
    """A recipe at work in its folder.

    Attributes
    ----------
    text
        The recipe as it was written.
    trainer
        Who trains, where it is not this process.
    """

    recipe: Recipe
    progress: Progress
    text: str = ""
    trainer: Trainer | None = None

    def folder(self, step: str) -> Path:
        """The folder of a step's results."""
        return self.recipe.run / step

    def write(self, step: str, name: str, content: object) -> None:
        """Write a JSON result. Raises StorageProblem."""
        write_atomically(self.folder(step) / name, as_json(content))

    def read(self, step: str, name: str, kind: type[T]) -> T:
        """Read a JSON result of this type. Raises OSError, StorageProblem (run_file_damaged)."""
        path = self.folder(step) / name
        with reading(path):
            return decoded(path.read_bytes(), kind)

    @contextmanager
    def arrays(self, step: str, name: str) -> Iterator[Mapping[str, NDArray[Any]]]:
        """The arrays that a step left. Raises UsageProblem (step_missing), StorageProblem (run_file_damaged)."""
        path = self.folder(step) / name
        if not path.is_file():
            raise UsageProblem(reason("step_missing", step=step))
        with arrays_in(path) as found:
            yield found

    def report_epoch(self, folder: Path, row: EpochFigures, *, what: str = "epochs") -> None:
        """Tell of an epoch that a training in `folder` has ended, and keep its figures. Raises StorageProblem."""
        keep_epoch(folder, row)
        self.progress(what, row.epoch, row.epochs)

    @property
    def status(self) -> dict[str, StepStatus]:
        """Return the result of each step. Raises StorageProblem (run_file_damaged)."""
        path = self.recipe.run / STATUS
        if not path.is_file():
            return {}
        with reading(path):
            found = decoded(path.read_bytes(), dict[str, dict[str, object]])
            return {name: StepStatus(converted(entry, StepRecord), entry) for name, entry in found.items()}

    def execute(self, steps: tuple[Step, ...], *, say: Callable[[str], None]) -> None:
        """Perform the steps that are not done, and every step after one that is performed.

        A step is done if it was performed with the same key: a digest of the recipe's parts that it reads, of what it
        reads from outside, and of the performance of the step before it. A step that was stopped starts again and
        resumes from its checkpoints. `say` gets a line for each step.

        Raises what a step raises; the status says why.
        """
        document = json.loads(as_json(asdict(self.recipe)))
        write_atomically(self.recipe.run / "recipe.json", as_json(document))
        if self.text:
            write_atomically(self.recipe.run / RECIPE_TEXT, self.text.encode())
        before = ""
        for step in steps:
            parts = {name: document[name] for name in step.recipe_keys}
            key = digest(before, step.name, parts, step.external_inputs(self))
            if self._is_done(step, key):
                say(f"{step.name}: done before")
            else:
                say(f"{step.name} ...")
                self._perform(step, key)
            before = self.status[step.name].record.made

    def _is_done(self, step: Step, key: str) -> bool:
        """Raises UsageProblem where the step is done but what it left was changed since."""
        if not (entry := self.status.get(step.name)):
            return False
        is_there = all((self.folder(step.name) / name).exists() for name in step.outputs)
        if not (is_there and entry.is_done and entry.record.key == key and step.is_valid(entry.facts)):
            return False
        for name, left in (entry.record.left or {}).items():
            path = self.folder(step.name) / name
            if content_digest(path) != left:
                code = "run_split_changed" if name == SPLIT else "run_file_changed"
                raise UsageProblem(reason(code, path=path, **({} if name == SPLIT else {"step": step.name})))
        return True

    def _perform(self, step: Step, key: str) -> None:
        began = time.monotonic()
        self._note(step, plain(StepRecord(state="running", key=key)))
        try:
            facts = step.perform(self)
        except FieldrayError as problem:
            self._note(step, plain(StepRecord(state="failed", key=key, problem=problem.reason.text)))
            raise
        # Random, so that every performance differs: later steps are then performed again.
        state = StepRecord(
            state="done",
            key=key,
            made=secrets.token_hex(8),
            seconds=round(time.monotonic() - began, 1),
            left={name: content_digest(self.folder(step.name) / name) for name in step.outputs},
        )
        done = plain(state)
        self._note(step, done | dict(facts) | done)  # first, and whatever a step calls its own facts
        remove_checkpoints(self.folder(step.name))

    def _note(self, step: Step, entry: Facts) -> None:
        known = {name: status.facts for name, status in self.status.items()}
        write_atomically(self.recipe.run / STATUS, as_json({**known, step.name: entry}))

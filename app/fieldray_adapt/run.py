"""A run folder: the recipe as it was read, the steps' results, and what has been done.

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
from typing import Any, Final, Protocol

from fieldray.errors import FieldrayError, StorageProblem, UsageProblem
from fieldray.persistence import FileLock, HeldError
from fieldray.reasons import reason
from fieldray_adapt.engine import remove_checkpoints
from fieldray_adapt.files import arrays_in, content_digest, digest, reading, write_atomically
from fieldray_adapt.recipe import Recipe
from fieldray_adapt.specification import Weights

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
    """Who this is, for a person who finds the folder in use."""
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
    """Who trains in place of this process: as `train.train` and `lungs.train.train`, with their arguments."""

    def classifier(self, *arguments: Any, **named: Any) -> tuple[Weights, list[dict[str, Any]]]:
        """A classifier's averaged weights, and figures by epoch."""

    def lung_fields(self, *arguments: Any, **named: Any) -> tuple[Weights, list[dict[str, Any]]]:
        """The same of a lung-field network."""

    def facts(self) -> Mapping[str, Any]:
        """What the status is to have of how it was trained."""


SPLIT: Final = "split.csv"
"""Which part each image is in, beside what was trained on it."""


def _nothing(_run: Run) -> str:
    return ""


def _report_is_there(facts: Mapping[str, Any]) -> bool:
    return "report" not in facts or Path(facts["report"]).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a run.

    Attributes
    ----------
    perform
        Does it, and returns a few facts for the status.
    reads
        The recipe's keys it reads.
    outside
        A digest of what it reads that neither the recipe nor a step before it holds: data, weights, a pack.
    leaves
        Files in its folder that later steps read: without them it is not done, whatever the status says.
    stands
        Whether what it made beyond its folder is still there, by the facts that it returned.
    """

    name: str
    perform: Callable[[Run], Mapping[str, Any]]
    reads: tuple[str, ...]
    outside: Callable[[Run], str] = field(default=_nothing)
    leaves: tuple[str, ...] = ()
    stands: Callable[[Mapping[str, Any]], bool] = field(default=_report_is_there)


def keep_epoch(folder: Path, row: Mapping[str, Any]) -> None:
    """Add an epoch's figures to a training's history, for those who watch it. Raises StorageProblem.

    What an earlier training left of this epoch and later ones goes: whoever resumes has the epochs before.
    """
    try:
        before = json.loads((folder / HISTORY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = []
    kept = [known for known in before if known["epoch"] < row["epoch"]]
    write_atomically(folder / HISTORY, json.dumps([*kept, row], indent=1, default=str).encode())


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

    def write(self, step: str, name: str, content: Any) -> None:
        """Write a JSON result. Raises StorageProblem."""
        write_atomically(self.folder(step) / name, json.dumps(content, indent=1, default=str).encode())

    def read(self, step: str, name: str) -> Any:
        """Read a JSON result. Raises OSError, StorageProblem (run_file_damaged)."""
        path = self.folder(step) / name
        with reading(path):
            return json.loads(path.read_text(encoding="utf-8"))

    @contextmanager
    def arrays(self, step: str, name: str) -> Iterator[Mapping[str, Any]]:
        """The arrays that a step left. Raises UsageProblem (step_missing), StorageProblem (run_file_damaged)."""
        path = self.folder(step) / name
        if not path.is_file():
            raise UsageProblem(reason("step_missing", step=step))
        with arrays_in(path) as found:
            yield found

    def report_epoch(self, folder: Path, row: Mapping[str, Any], *, what: str = "epochs") -> None:
        """Tell of an epoch that a training in `folder` has ended, and keep its figures. Raises StorageProblem."""
        keep_epoch(folder, row)
        self.progress(what, row["epoch"], row["epochs"])

    @property
    def status(self) -> dict[str, Any]:
        """What each step came to: state (running, done, failed), key, made, left, seconds, facts or problem.

        Raises StorageProblem (run_file_damaged).
        """
        path = self.recipe.run / STATUS
        if not path.is_file():
            return {}
        with reading(path):
            found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
            return {name: dict(entry) for name, entry in found.items()}

    def execute(self, steps: tuple[Step, ...], *, say: Callable[[str], None]) -> None:
        """Perform the steps that are not done, and every step after one that is performed.

        A step is done if it was performed with the same key: a digest of the recipe's parts that it reads, of what it
        reads from outside, and of the performance of the step before it. A step that was stopped starts again and
        resumes from its checkpoints. `say` gets a line for each step.

        Raises what a step raises; the status says why.
        """
        document = json.loads(json.dumps(asdict(self.recipe), default=str))
        write_atomically(self.recipe.run / "recipe.json", json.dumps(document, indent=1).encode())
        if self.text:
            write_atomically(self.recipe.run / RECIPE_TEXT, self.text.encode())
        before = ""
        for step in steps:
            parts = {name: document[name] for name in step.reads}
            key = digest(before, step.name, parts, step.outside(self))
            if self._is_done(step, key):
                say(f"{step.name}: done before")
            else:
                say(f"{step.name} ...")
                self._perform(step, key)
            before = self.status[step.name]["made"]

    def _is_done(self, step: Step, key: str) -> bool:
        """Raises UsageProblem where the step is done but what it left was changed since."""
        entry = self.status.get(step.name, {})
        is_there = all((self.folder(step.name) / name).exists() for name in step.leaves)
        if not (is_there and entry.get("state") == "done" and entry.get("key") == key and step.stands(entry)):
            return False
        for name, left in entry.get("left", {}).items():
            path = self.folder(step.name) / name
            if content_digest(path) != left:
                code = "run_split_changed" if name == SPLIT else "run_file_changed"
                raise UsageProblem(reason(code, path=path, **({} if name == SPLIT else {"step": step.name})))
        return True

    def _perform(self, step: Step, key: str) -> None:
        began = time.monotonic()
        self._note(step, {"state": "running", "key": key})
        try:
            facts = step.perform(self)
        except FieldrayError as problem:
            self._note(step, {"state": "failed", "key": key, "problem": problem.reason.text})
            raise
        # Random, so that every performance differs: later steps are then performed again.
        done = {
            "state": "done",
            "key": key,
            "made": secrets.token_hex(8),
            "seconds": round(time.monotonic() - began, 1),
            "left": {name: content_digest(self.folder(step.name) / name) for name in step.leaves},
        }
        self._note(step, done | dict(facts) | done)  # first, and whatever a step calls its own facts
        remove_checkpoints(self.folder(step.name))

    def _note(self, step: Step, entry: Mapping[str, Any]) -> None:
        content = json.dumps({**self.status, step.name: entry}, indent=1, default=str)
        write_atomically(self.recipe.run / STATUS, content.encode())

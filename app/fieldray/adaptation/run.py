"""A run folder: the recipe as it was read, the steps' results, and what has been done."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.recipe import Recipe
from fieldray.errors import FieldrayError

STATUS: Final = "status.json"

Progress = Callable[[str, int, int], None]
"""What is being done, how many are done, of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: what it does with the run (returning a few facts for the status), and the recipe's keys it reads."""

    name: str
    perform: Callable[[Run], Mapping[str, Any]]
    reads: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Run:
    """A recipe at work in its folder."""

    recipe: Recipe
    progress: Progress

    def folder(self, step: str) -> Path:
        """The folder of a step's results."""
        return self.recipe.run / step

    def write(self, step: str, name: str, content: Any) -> None:
        """Write a JSON result. Raises StorageProblem."""
        write_atomically(self.folder(step) / name, json.dumps(content, indent=1, default=str).encode())

    def read(self, step: str, name: str) -> Any:
        """Read a JSON result. Raises OSError or ValueError."""
        return json.loads((self.folder(step) / name).read_text(encoding="utf-8"))

    @property
    def status(self) -> dict[str, Any]:
        """What each step came to: state (running, done, failed), key, seconds, facts or problem."""
        path = self.recipe.run / STATUS
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}

    def execute(self, steps: tuple[Step, ...], *, say: Callable[[str], None]) -> None:
        """Perform the steps that are not done yet with these parts of the recipe and the same steps before them.

        A step that was stopped is begun again and goes on from what it left; `say` hears of each. Raises what a step
        raises; the status says why.
        """
        document = json.loads(json.dumps(asdict(self.recipe), default=str))
        write_atomically(self.recipe.run / "recipe.json", json.dumps(document, indent=1).encode())
        key = ""
        for step in steps:
            parts = {name: document[name] for name in step.reads}
            key = hashlib.sha256((key + step.name + json.dumps(parts, sort_keys=True)).encode()).hexdigest()
            done = self.status.get(step.name, {})
            if done.get("state") == "done" and done.get("key") == key:
                say(f"{step.name}: done before")
            else:
                say(f"{step.name} ...")
                self._perform(step, key)

    def _perform(self, step: Step, key: str) -> None:
        began = time.monotonic()
        self._note(step, {"state": "running", "key": key})
        try:
            facts = step.perform(self)
        except FieldrayError as problem:
            self._note(step, {"state": "failed", "key": key, "problem": problem.reason.text})
            raise
        self._note(step, {"state": "done", "key": key, "seconds": round(time.monotonic() - began, 1), **facts})

    def _note(self, step: Step, entry: Mapping[str, Any]) -> None:
        content = json.dumps({**self.status, step.name: entry}, indent=1, default=str)
        write_atomically(self.recipe.run / STATUS, content.encode())

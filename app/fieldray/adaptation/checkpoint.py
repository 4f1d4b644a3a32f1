"""The state of a long training in one file, so that a kill costs minutes and not the training."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fieldray.adaptation.engine import Engine
from fieldray.adaptation.files import write_atomically


@dataclass(slots=True)
class Checkpoint:
    """Where a training keeps its state, and how often.

    Only what was written with the same key is taken up again: the key says what is trained, on what and how.
    """

    path: Path
    every_s: float = 180.0
    clock: Callable[[], float] = time.monotonic
    _last_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_s = self.clock()

    def restore(self, engine: Engine, *, key: str) -> list[float]:
        """Set the engine to the state kept; the losses of the steps done, none if there is no such state."""
        if not self.path.is_file():
            return []
        with np.load(self.path, allow_pickle=False) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            if facts["key"] != key:
                return []
            parts = {name: arrays[name] for name in arrays.files if name != "facts"}
        engine.set_weights({n.removeprefix("weights/"): a for n, a in parts.items() if n.startswith("weights/")})
        state = {n.removeprefix("optimiser/"): a for n, a in parts.items() if n.startswith("optimiser/")}
        engine.set_optimiser_state(state)
        return list(facts["losses"])

    def save_if_due(self, engine: Engine, losses: list[float], *, key: str) -> None:
        """Write the state when `every_s` have passed since the last time. Raises StorageProblem."""
        if self.clock() - self._last_s < self.every_s:
            return
        arrays = {f"weights/{name}": array for name, array in engine.weights().items()}
        arrays |= {f"optimiser/{name}": array for name, array in engine.optimiser_state().items()}
        facts = json.dumps({"key": key, "losses": losses})
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.frombuffer(facts.encode(), np.uint8), **arrays)
        write_atomically(self.path, buffer.getvalue())
        self._last_s = self.clock()

    def remove(self) -> None:
        """The training is over."""
        self.path.unlink(missing_ok=True)

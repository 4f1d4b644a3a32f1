"""The state of a long training in one file, so that a kill costs minutes and not the training."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.engine import Trainable
from fieldray.adaptation.files import write_atomically

CHECKPOINT: Final = "checkpoint.npz"
"""The name of every checkpoint: a run removes those of a step that is done."""

_ENGINE_PARTS: Final = ("weights", "optimiser")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Kept:
    """What a checkpoint keeps besides the engine's own state."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class Checkpoint:
    """Where a training keeps its state, and how often.

    Only a state written with the same key, by an engine of the same kind, is resumed. The key is the digest of
    everything that goes into the training (see `digest.digest`): network, weights, data, schedule, settings.
    """

    path: Path
    every_s: float = 180.0
    clock: Callable[[], float] = time.monotonic
    _last_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._last_s = self.clock()

    def restore(self, engine: Trainable, *, key: str) -> Kept | None:
        """Restore the engine to the stored state; without such a state None, and the engine unchanged."""
        if not self.path.is_file():
            return None
        with np.load(self.path, allow_pickle=False) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            if facts.pop("key", None) != _whole_key(engine, key):
                return None
            parts: dict[str, dict[str, NDArray[Any]]] = {"weights": {}, "optimiser": {}, "more": {}}
            for name in set(arrays.files) - {"facts"}:
                part, _, rest = name.partition("/")
                parts[part][rest] = arrays[name]
        engine.set_weights(parts["weights"])
        engine.set_optimiser_state(parts["optimiser"])
        return Kept(facts=facts, arrays=parts["more"])

    def save_if_due(self, engine: Trainable, kept: Kept, *, key: str) -> None:
        """Write the state when `every_s` have passed since the last time. Raises StorageProblem."""
        if self.clock() - self._last_s < self.every_s:
            return
        found = dict(zip(_ENGINE_PARTS, (engine.weights(), engine.optimiser_state()), strict=True))
        found["more"] = dict(kept.arrays)
        arrays = {f"{part}/{name}": array for part, own in found.items() for name, array in own.items()}
        facts = json.dumps({**kept.facts, "key": _whole_key(engine, key)})
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.frombuffer(facts.encode(), np.uint8), **arrays)
        write_atomically(self.path, buffer.getvalue())
        self._last_s = self.clock()

    def remove(self) -> None:
        """Remove the state once the result of the training is stored."""
        self.path.unlink(missing_ok=True)


def remove_checkpoints(folder: Path) -> None:
    """Remove every checkpoint in a folder and below, once their results are stored."""
    for path in folder.rglob(CHECKPOINT):
        path.unlink()


def _whole_key(engine: Trainable, key: str) -> str:
    return f"{type(engine).__name__} {key}"

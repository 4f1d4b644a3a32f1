"""The iterations of a pruning run, stored in a folder.

For each iteration, the network and a line of JSON are stored. So a run that was killed at any point can resume.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import reason
from fieldray.typed_json import parse_json
from fieldray_adapt.files import write_atomically
from fieldray_adapt.networks.specification import (
    Specification,
    Weights,
    load_network,
    save_network,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSettings:
    """The settings of one iteration of pruning, as the recipe's laws give them.

    The settings are not rounded. The pruning loop rounds batch size and number of channels before use.

    Attributes
    ----------
    batch_size, epochs, learning_rate
        Settings of the retraining after the removal of channels.
    cut_off
        The limit of the average percentage of zeros above which a channel is removed, as a share or as a number of
        standard deviations (see `selection.PruningRule`).
    minimum_channels
        Smallest number of channels that a channel set keeps.
    """

    batch_size: float
    epochs: float
    learning_rate: float
    cut_off: float
    minimum_channels: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The figures of one iteration of pruning. Iteration 0 is the original network, and has no settings.

    Attributes
    ----------
    quality_before, quality
        Quality (0..1) on the validation part before and after retraining.
    loss
        Loss on the validation part after retraining.
    seconds_per_image
        Time of inference for one image in the training engine, in seconds.
    batch_size_proposed
        Batch size that a profile proposes for the network after this iteration; None without a profile.
    wall_seconds
        Duration of the iteration, in seconds.
    """

    number: int
    parameters: int
    multiply_adds: int
    quality_before: float
    quality: float
    loss: float
    seconds_per_image: float
    batch_size_proposed: int | None
    wall_seconds: float
    settings: IterationSettings | None = None


class PruningRunFolder:
    """The folder of one pruning run, with the network and the figures of each iteration.

    An iteration is complete if the file `iterations.jsonl` has the iteration's line, which is written last.
    """

    def __init__(self, folder: Path, *, fingerprint: str, replaces_other_run: bool = False) -> None:
        """Open the folder, or make a new folder.

        Parameters
        ----------
        fingerprint
            A text that identifies the run: recipe, data and original network.
        replaces_other_run
            Whether stored iterations with another fingerprint are deleted. If False, such iterations raise UsageProblem
            (run_differs).
        """
        self.folder, self._fingerprint, self._marker = folder, fingerprint, folder / "settings.json"
        if self._marker.exists() and self._marker.read_text() != fingerprint:
            if not replaces_other_run:
                raise UsageProblem(reason("run_differs", path=folder))
            self._clear()

    def _clear(self) -> None:
        """Delete all iterations. The marker file is deleted last, so that an interrupted deletion is repeated."""
        paths = [self.folder / "iterations.jsonl", *self.folder.glob("iteration-*"), self._marker]
        for path in paths:
            path.unlink(missing_ok=True)

    def iterations(self) -> tuple[Iteration, ...]:
        """Return the complete iterations, in order. Raises StorageProblem (run_damaged)."""
        path = self.folder / "iterations.jsonl"
        if not path.exists():
            return ()
        try:
            return tuple(parse_json(line, Iteration) for line in path.read_text().splitlines())
        except (OSError, ValueError) as problem:
            raise StorageProblem(reason("run_damaged", path=path)) from problem

    def add(self, iteration: Iteration, specification: Specification, weights: Weights) -> None:
        """Store an iteration: first the network, then the iteration's line in `iterations.jsonl`."""
        rows = (*self.iterations(), iteration)
        if not self._marker.exists():
            write_atomically(self._marker, self._fingerprint.encode())
        save_network(*self._paths(iteration.number), specification, weights)
        lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
        write_atomically(self.folder / "iterations.jsonl", lines.encode())

    def network_after_iteration(self, number: int) -> tuple[Specification, Weights]:
        """Return the network after the iteration `number`. Raises StorageProblem (run_damaged)."""
        path, text = self._paths(number)
        try:
            return load_network(path, text)
        except (OSError, StorageProblem) as problem:
            raise StorageProblem(reason("run_damaged", path=text)) from problem

    def _paths(self, number: int) -> tuple[Path, Path]:
        name = f"iteration-{number:02d}"
        return self.folder / f"{name}.npz", self.folder / f"{name}.json"

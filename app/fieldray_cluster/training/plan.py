"""How a training is divided: who works, who waits for whom, and where the weights are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from fieldray.errors import UsageProblem
from fieldray.reasons import reason

Mode = Literal["local", "sync-join", "sync-split", "async"]
ServerKind = Literal["none", "central", "distributed"]
MODES: Final[tuple[str, ...]] = get_args(Mode)
SERVERS: Final[tuple[str, ...]] = get_args(ServerKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A training by several workers.

    Parameters
    ----------
    workers
        How many take gradients.
    mode
        sync-join: each a batch of its own, one update of all of them; sync-split: each a part of one batch; async: each
        by itself; local: one process, as without a plan.
    server
        none: all-reduce between the workers (PyTorch), for the synchronous modes and processes of this computer, as
        it is not encrypted; central: one parameter server;
        distributed: as many as workers, each with a share of the weights.
    places_evenly
        Whether the shares of distributed servers are equal, or whole tensors as printed.
    staleness
        How many updates a gradient may come too late at most; None for any.
    address, certificates
        Of the cluster; None for processes of this computer.
    notes_every
        Of so many gradients one is looked at more closely, for a log; 0 for none.
    """

    workers: int = 1
    mode: Mode = "local"
    server: ServerKind = "central"
    places_evenly: bool = True
    staleness: int | None = None
    address: str | None = None
    certificates: Path | None = None
    notes_every: int = 0

    def __post_init__(self) -> None:
        if self.mode == "local" and self.workers > 1:
            raise UsageProblem(reason("training_needs_mode", workers=self.workers))
        if self.mode == "async" and self.server == "none":
            raise UsageProblem(reason("training_needs_server"))
        if self.server == "none" and (self.address or self.certificates):
            raise UsageProblem(reason("training_none_elsewhere"))
        if self.staleness is not None:
            if self.mode != "async":
                raise UsageProblem(reason("training_staleness_sync"))
            if self.staleness < self.workers - 1:
                raise UsageProblem(
                    reason("training_staleness", staleness=self.staleness, least=self.workers - 1, workers=self.workers)
                )

    @property
    def is_local(self) -> bool:
        """Whether it is trained by one process, as without a plan."""
        return self.mode == "local"

    @property
    def waits(self) -> bool:
        """Whether workers wait for each other."""
        return self.mode != "async"

    @property
    def servers(self) -> int:
        """How many hold the weights."""
        return {"none": 0, "central": 1, "distributed": self.workers}[self.server]

    def updates(self, batches: int) -> int:
        """Updates in an epoch of so many batches; joined batches that do not divide evenly leave a smaller last one."""
        return -(-batches // self.workers) if self.mode == "sync-join" else batches

    def numbers(self, batches: int, worker: int) -> int:
        """Gradients that a worker gives in an epoch, where its turn comes also those of no batch."""
        return len(range(worker, batches, self.workers)) if self.mode == "async" else self.updates(batches)

    def batch(self, batches: int, worker: int, number: int) -> int | None:
        """Which batch of the epoch a worker's gradient of that number is of; None where none is left for it."""
        found = number if self.mode == "sync-split" else number * self.workers + worker
        return found if found < batches else None

    def part(self, size: int, worker: int) -> slice:
        """Which of a batch's `size` samples are the worker's."""
        if self.mode != "sync-split":
            return slice(0, size)
        return slice(size * worker // self.workers, size * (worker + 1) // self.workers)

    def require_room(self, *, batches: int, sizes: Sequence[int]) -> None:
        """Require that no worker is without work. Raises UsageProblem.

        Parameters
        ----------
        sizes
            Of what a batch has: images, or masks and images for the checks.
        """
        least = min((size for size in sizes if size), default=0)
        if self.mode == "sync-split" and self.workers > least:
            raise UsageProblem(reason("training_small_batch", workers=self.workers, images=least))
        if self.mode in ("sync-join", "async") and self.workers > batches:
            raise UsageProblem(reason("training_few_batches", workers=self.workers, batches=batches))

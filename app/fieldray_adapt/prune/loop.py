"""The loop of pruning, and the laws by which its settings move from one iteration to the next.

The four laws of the dissertation (Taran 2022, formulas 3.1-3.4): constant, linear, multiplicative, and dependent on
the context, which is how much size, loss and time changed in the last iteration.

Adaptive iterative pruning: measure, choose, slice, retrain, evaluate, record; again until a rule says stop.

After the dissertation (Taran 2022, chapter 3): each iteration removes the channels that are zero most often, carries
the weights of the others over, and retrains; how hard it cuts and trains follows a law for each setting. What an
iteration did is a line of JSON beside its weights, so that a run can resume after a kill at any point.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, Literal, Protocol

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import reason
from fieldray.typed_json import decoded
from fieldray_adapt.files import write_atomically
from fieldray_adapt.networks.specification import (
    Specification,
    Weights,
    load_network,
    multiply_adds,
    parameters,
    save_network,
)
from fieldray_adapt.prune.selection import Cut, CutKind, Keep, Scores, select
from fieldray_adapt.recipes.tables import key, table
from fieldray_adapt.training.engine import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the last iteration changed, as ratios after / before, each above 0.

    Attributes
    ----------
    size
        Of the number of parameters, at most 1.
    loss
        Of the validation loss after retraining.
    time
        Of the seconds per image.
    batch
        The batch size that the profile proposes for the network as it is now, over the one used last.
    """

    size: float = 1.0
    loss: float = 1.0
    time: float = 1.0
    batch: float = 1.0

    @classmethod
    def between(cls, earlier: Iteration, last: Iteration) -> Context:
        """What the last of two iterations changed; it has settings."""
        used = last.settings.batch_size if last.settings else math.nan
        return cls(
            size=last.parameters / earlier.parameters,
            loss=max(last.loss, 1e-6) / max(earlier.loss, 1e-6),
            time=last.seconds_per_image / earlier.seconds_per_image,
            batch=(last.batch_size_proposed or used) / used,
        )


@table
class Range:
    """Bounds a law's values stay in."""

    lowest: float = key("No value is below this.", default=-math.inf)
    highest: float = key("No value is above this.", default=math.inf)

    def __post_init__(self) -> None:
        if self.lowest > self.highest:
            raise ValueError(f"lowest {self.lowest} is above highest {self.highest}")

    def clip(self, value: float) -> float:
        """The nearest value within the bounds."""
        return min(max(value, self.lowest), self.highest)


@table
class Constant:
    """Always the same value (3.1)."""

    start: float = key("The value.")

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002 - the same door as the other laws
        """The start value."""
        return self.start


@table
class Linear:
    """A step added each time (3.2)."""

    start: float = key("The first value.")
    step: float = key("Added after each iteration.")
    bounds: Range = key("Bounds that every value stays in.", default=Range())

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002
        """`previous` plus the step."""
        return self.bounds.clip(previous + self.step)


@table
class Multiplicative:
    """A factor each time (3.3)."""

    start: float = key("The first value.")
    factor: float = key("Multiplies the value after each iteration.", above=0)
    bounds: Range = key("Bounds that every value stays in.", default=Range())

    def next(self, previous: float, context: Context) -> float:  # noqa: ARG002
        """`previous` times the factor."""
        return self.bounds.clip(previous * self.factor)


@table
class ContextDependent:
    """Follows what the last iteration changed (3.4): each strength weighs a ratio r of after to before."""

    start: float = key("The first value.")
    size: float = key("Strength of the change in parameters.", default=0.0)
    loss: float = key("Strength of the change in validation loss.", default=0.0)
    time: float = key("Strength of the change in time per image.", default=0.0)
    batch: float = key("Strength of the batch size proposed over the one used last.", default=0.0)
    form: Literal["product", "sum"] = key(
        "product: value x r ^ strength, for values above 0; sum: value + strength x log2 r, for values that may be 0 "
        "or negative.",
        default="product",
    )
    bounds: Range = key("Bounds that every value stays in.", default=Range())

    def next(self, previous: float, context: Context) -> float:
        """`previous`, moved by the context."""
        doublings = (
            self.size * math.log2(context.size)
            + self.loss * math.log2(context.loss)
            + self.time * math.log2(context.time)
            + self.batch * math.log2(context.batch)
        )
        return self.bounds.clip(previous + doublings if self.form == "sum" else previous * 2.0**doublings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of the laws that one iteration ran with."""

    batch_size: float
    epochs: float
    learning_rate: float
    cut_off: float
    minimum_channels: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One line of the table. Iteration 0 is the original, which has no settings.

    Attributes
    ----------
    quality_before, quality
        On the validation part, before and after retraining (0..1).
    loss
        On the validation part, after retraining.
    seconds_per_image
        Of inference in the engine that trains.
    batch_size_proposed
        By the profile, for training the network as it is after this iteration; None without one.
    wall_seconds
        That the iteration took.
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
    settings: Settings | None = None


class RunFolder:
    """The iterations of one pruning run.

    An iteration counts from the moment its line is in `iterations.jsonl`, which is written last and as a whole.
    """

    def __init__(self, folder: Path, *, fingerprint: str, begins_again: bool = False) -> None:
        """Open a run, or one that its first iteration begins.

        begins_again    what another fingerprint left is removed; else it raises UsageProblem (run_differs)
        """
        self.folder, self._fingerprint, self._marker = folder, fingerprint, folder / "settings.json"
        if self._marker.exists() and self._marker.read_text() != fingerprint:
            if not begins_again:
                raise UsageProblem(reason("run_differs", path=folder))
            self._clear()

    def _clear(self) -> None:
        """The list first, by which iterations count, and the marker last: a kill in between ends in the same."""
        paths = [self.folder / "iterations.jsonl", *self.folder.glob("iteration-*"), self._marker]
        for path in paths:
            path.unlink(missing_ok=True)

    def iterations(self) -> tuple[Iteration, ...]:
        """Those that are complete, in order. Raises StorageProblem (run_damaged)."""
        path = self.folder / "iterations.jsonl"
        if not path.exists():
            return ()
        try:
            return tuple(decoded(line, Iteration) for line in path.read_text().splitlines())
        except (OSError, ValueError) as problem:
            raise StorageProblem(reason("run_damaged", path=path)) from problem

    def add(self, iteration: Iteration, specification: Specification, weights: Weights) -> None:
        """Keep an iteration: first its network, then its line."""
        rows = (*self.iterations(), iteration)
        if not self._marker.exists():
            write_atomically(self._marker, self._fingerprint.encode())
        save_network(*self._paths(iteration.number), specification, weights)
        lines = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
        write_atomically(self.folder / "iterations.jsonl", lines.encode())

    def network(self, number: int) -> tuple[Specification, Weights]:
        """The network after an iteration. Raises StorageProblem (run_damaged)."""
        path, text = self._paths(number)
        try:
            return load_network(path, text)
        except (OSError, StorageProblem) as problem:
            raise StorageProblem(reason("run_damaged", path=text)) from problem

    def _paths(self, number: int) -> tuple[Path, Path]:
        name = f"iteration-{number:02d}"
        return self.folder / f"{name}.npz", self.folder / f"{name}.json"


class Task(Protocol):
    """What the network is for: the loop measures and retrains through it, and knows no data itself."""

    def zero_shares(self, specification: Specification, weights: Weights) -> Scores:
        """APoZ of each prunable channel set on the calibration set."""

    def cut(self, specification: Specification, weights: Weights, *, keep: Keep) -> tuple[Specification, Weights]:
        """The network with the channels kept, their weights carried over."""

    def retrain(self, specification: Specification, weights: Weights, *, effort: Effort, seed: int) -> Weights:
        """The weights after training."""

    def quality(self, specification: Specification, weights: Weights) -> tuple[float, float]:
        """Quality (0..1, higher is better) and loss on the validation part."""

    def seconds_per_image(self, specification: Specification, weights: Weights) -> float:
        """Time of inference."""

    def propose_batch_size(self, specification: Specification, weights: Weights) -> int | None:
        """The batch size that trains this network fastest per image; None if there is nothing to choose."""


@table
class Stop:
    """When to stop: whichever rule comes first."""

    iterations: int = key("At most.", low=1, example=3)
    lowest_quality: float = key(
        "Stop once retraining does not bring the validation quality back to this.", default=0.0, low=0, high=1
    )
    target_parameters: int | None = key("Stop once at most so many parameters are left.", default=None, low=1)

    def why(self, rows: tuple[Iteration, ...]) -> str | None:
        """The rule that ends the run after these iterations, or None."""
        last = rows[-1]
        if last.number and last.quality < self.lowest_quality:
            return "lowest_quality"
        if self.target_parameters is not None and last.parameters <= self.target_parameters:
            return "target_parameters"
        if last.number and last.parameters == rows[-2].parameters:
            return "nothing_left"
        return "iterations" if last.number >= self.iterations else None


AnyLaw = Constant | Linear | Multiplicative | ContextDependent


@table
class PruneRecipe:
    """Iterative pruning: five settings that move by laws, and when to stop.

    A law is a table: { start } constant, { start, step } linear, { start, factor } multiplicative, { start, size, loss,
    time, batch, form } dependent on the context; all but the first also take bounds = { lowest, highest }.
    """

    batch_size: AnyLaw = key("Images in a step of retraining.", example={"start": 32})
    epochs: AnyLaw = key("Epochs of retraining after each cut.", example={"start": 1.0})
    learning_rate: AnyLaw = key("Of retraining.", example={"start": 3e-4})
    cut_off: AnyLaw = key("Where the cut lies; its meaning is in cut_kind.", example={"start": 0.3})
    minimum_channels: AnyLaw = key("Fewest channels left in a layer.", example={"start": 16})
    stop: Stop = key("When to stop.")
    batch_sizes: tuple[int, ...] = key(
        "After each iteration a profile proposes one of these batch sizes; none for no profile.", default=(), low=1
    )
    cut_kind: CutKind = key(
        "level: channels that are used less than the cut-off; deviation: less than the mean by so many standard "
        "deviations.",
        default="deviation",
    )
    largest_share: float = key("Of a layer's channels that one iteration may cut.", default=1.0, above=0, high=1)
    multiple: int = key("Channel counts stay multiples of this.", default=1, unit="channels", low=1)
    calibration: int = key("Training images that the use is measured on.", default=200, unit="images", low=1)

    @property
    def fingerprint(self) -> str:
        """A stable text of all but the stop rules: a run may be continued with others."""
        return json.dumps({**asdict(self), "stop": None}, sort_keys=True)

    def first(self) -> Settings:
        """The settings of iteration 1."""
        return Settings(**{name: getattr(self, name).start for name in _SETTINGS})

    def following(self, rows: tuple[Iteration, ...]) -> Settings:
        """The settings of the iteration that follows these."""
        last = rows[-1]
        if last.settings is None:
            return self.first()
        context = Context.between(rows[-2], last)
        return Settings(**{name: getattr(self, name).next(getattr(last.settings, name), context) for name in _SETTINGS})


_SETTINGS: Final = tuple(field.name for field in fields(Settings))


def best(rows: tuple[Iteration, ...], *, stop: Stop) -> Iteration:
    """The smallest network that kept the quality asked for; the original if none did."""
    kept = [row for row in rows if row.number == 0 or row.quality >= stop.lowest_quality]
    return min(kept, key=lambda row: row.parameters)


def prune(
    task: Task,
    plan: PruneRecipe,
    *,
    folder: RunFolder,
    seed: int = 0,
    original: Callable[[], tuple[Specification, Weights]],
    progress: Callable[[Iteration], None] = lambda _: None,
) -> str:
    """Prune until a rule stops it, and return that rule's name. Resumes a run that was stopped.

    Parameters
    ----------
    seed
        The retraining of an iteration has this and its number.
    original
        The network to begin with; asked for only if the run has not begun.
    progress
        Is told of each iteration once it is kept.
    """
    if not folder.iterations():
        specification, weights = original()
        row = _measure(task, specification, weights, number=0, begun=time.perf_counter())
        folder.add(row, specification, weights)
        progress(row)
    while (why := plan.stop.why(folder.iterations())) is None:
        progress(_iterate(task, plan, folder, seed=seed))
    return why


def _iterate(task: Task, plan: PruneRecipe, folder: RunFolder, *, seed: int) -> Iteration:
    begun, rows = time.perf_counter(), folder.iterations()
    number, settings = len(rows), plan.following(rows)
    specification, weights = folder.network(number - 1)
    cut = Cut(
        kind=plan.cut_kind,
        value=settings.cut_off,
        minimum_channels=round(settings.minimum_channels),
        largest_share=plan.largest_share,
        multiple=plan.multiple,
    )
    keep = select(task.zero_shares(specification, weights), cut=cut)
    specification, weights = task.cut(specification, weights, keep=keep)
    before, _ = task.quality(specification, weights)
    effort = Effort(batch_size=round(settings.batch_size), epochs=settings.epochs, learning_rate=settings.learning_rate)
    weights = task.retrain(specification, weights, effort=effort, seed=seed + number)
    row = _measure(task, specification, weights, number=number, begun=begun, before=before, settings=settings)
    folder.add(row, specification, weights)
    return row


def _measure(
    task: Task,
    specification: Specification,
    weights: Weights,
    *,
    number: int,
    begun: float,
    before: float | None = None,
    settings: Settings | None = None,
) -> Iteration:
    quality, loss = task.quality(specification, weights)
    return Iteration(
        number=number,
        parameters=parameters(specification),
        multiply_adds=multiply_adds(specification),
        quality_before=quality if before is None else before,
        quality=quality,
        loss=loss,
        seconds_per_image=task.seconds_per_image(specification, weights),
        batch_size_proposed=task.propose_batch_size(specification, weights) if number else None,
        wall_seconds=time.perf_counter() - begun,
        settings=settings,
    )

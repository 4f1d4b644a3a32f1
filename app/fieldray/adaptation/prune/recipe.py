"""The pruning part of a recipe."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from fieldray.adaptation.prune.laws import Constant, ContextDependent, Linear, Multiplicative
from fieldray.adaptation.prune.loop import Laws, Plan, Stop
from fieldray.adaptation.prune.selection import CutKind

AnyLaw = Constant | Linear | Multiplicative | ContextDependent


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRecipe:
    """The five laws, and when to stop.

    A law is a table: { start } constant, { start, step } linear, { start, factor } multiplicative, { start, size, loss,
    time, batch, form } dependent on the context; all but the first also take bounds = { lowest, highest }.

    batch_sizes    the profile's candidates, between which it proposes one after each iteration; none for no profile
    cut_kind, largest_share, multiple    see `selection.Cut`
    calibration    training images that zeros are counted on
    """

    batch_size: AnyLaw
    epochs: AnyLaw
    learning_rate: AnyLaw
    cut_off: AnyLaw
    minimum_channels: AnyLaw
    stop: Stop
    batch_sizes: tuple[int, ...] = ()
    cut_kind: CutKind = "deviation"
    largest_share: float = 1.0
    multiple: int = 1
    calibration: int = 200

    @property
    def fingerprint(self) -> str:
        """A stable text of all but the stop rules: a run may be told to go on further."""
        return json.dumps({**asdict(self), "stop": None}, sort_keys=True)

    def plan(self, seed: int) -> Plan:
        """As the loop takes it."""
        laws = Laws(
            batch_size=self.batch_size,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            cut_off=self.cut_off,
            minimum_channels=self.minimum_channels,
        )
        return Plan(
            laws=laws,
            stop=self.stop,
            cut_kind=self.cut_kind,
            largest_share=self.largest_share,
            multiple=self.multiple,
            seed=seed,
        )

"""The pruning part of a recipe."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated

from fieldray.adaptation.prune.laws import Constant, ContextDependent, Linear, Multiplicative
from fieldray.adaptation.prune.loop import Laws, Plan, Stop
from fieldray.adaptation.prune.selection import CutKind
from fieldray.adaptation.tables import Key

AnyLaw = Constant | Linear | Multiplicative | ContextDependent


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRecipe:
    """Iterative pruning: five settings that move by laws, and when to stop.

    A law is a table: { start } constant, { start, step } linear, { start, factor } multiplicative, { start, size, loss,
    time, batch, form } dependent on the context; all but the first also take bounds = { lowest, highest }.
    """

    batch_size: Annotated[AnyLaw, Key(doc="Images in a step of retraining.", example={"start": 32})]
    epochs: Annotated[AnyLaw, Key(doc="Epochs of retraining after each cut.", example={"start": 1.0})]
    learning_rate: Annotated[AnyLaw, Key(doc="Of retraining.", example={"start": 3e-4})]
    cut_off: Annotated[AnyLaw, Key(doc="Where the cut lies; its meaning is in cut_kind.", example={"start": 0.3})]
    minimum_channels: Annotated[AnyLaw, Key(doc="Fewest channels left in a layer.", example={"start": 16})]
    stop: Annotated[Stop, Key(doc="When to stop.")]
    batch_sizes: Annotated[
        tuple[int, ...],
        Key(doc="After each iteration a profile proposes one of these batch sizes; none for no profile.", low=1),
    ] = ()
    cut_kind: Annotated[
        CutKind,
        Key(
            doc="level: channels that are used less than the cut-off; deviation: less than the mean by so many "
            "standard deviations; time: the share of the time, from the channels that are used least for their cost."
        ),
    ] = "deviation"
    largest_share: Annotated[float, Key(doc="Of a layer's channels that one iteration may cut.", above=0, high=1)] = 1.0
    multiple: Annotated[int, Key(doc="Channel counts stay multiples of this.", unit="channels", low=1)] = 1
    calibration: Annotated[int, Key(doc="Training images that the use is measured on.", unit="images", low=1)] = 200

    @property
    def fingerprint(self) -> str:
        """A stable text of all but the stop rules: a run may be continued with others."""
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

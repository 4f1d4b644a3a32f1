"""The train step: stages of growing images, masks and checks in each step, averaged weights, panels after each epoch.

All randomness depends on (seed, epoch), so a training that was killed resumes exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.checkpoint import CHECKPOINT, Checkpoint, Kept
from fieldray.adaptation.digest import digest
from fieldray.adaptation.lungs.check_samples import CheckImages
from fieldray.adaptation.lungs.dataset import LungData, data_of, shrunk
from fieldray.adaptation.lungs.engine import MaskEngine
from fieldray.adaptation.lungs.measures import dice
from fieldray.adaptation.lungs.pair_augmentation import augment_pair
from fieldray.adaptation.lungs.panels import draw_panel
from fieldray.adaptation.lungs.recipe import LungRecipe, Stage, recipe_of
from fieldray.adaptation.run import Run, Step
from fieldray.adaptation.weights import Weights, load_weights, save_weights
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

_WARM_UP: Final = 0.15
"""Share of a stage in which the rate rises."""
_AVERAGED_EVERY: Final = 4
"""Steps: taking the weights out of the framework costs a tenth of a step."""
_LONGEST_MEAN: Final = 0.98


def train_step(run: Run) -> Mapping[str, Any]:
    """Train the network; weights.npz, history.json and panels/. Raises UsageProblem, StorageProblem."""
    recipe = recipe_of(run)
    _use_threads(recipe.training.threads)
    weights, history = train(
        recipe,
        data_of(run),
        folder=run.folder("train"),
        progress=lambda row: run.progress("epochs", row["epoch"], row["epochs"]),
    )
    save_weights(run.folder("train") / "weights.npz", weights)
    run.write("train", "history.json", history)
    return history[-1]


def load_trained(run: Run) -> Weights:
    """The weights that the train step left. Raises UsageProblem `step_missing`."""
    path = run.folder("train") / "weights.npz"
    if not path.is_file():
        raise UsageProblem(reason("step_missing", step="train"))
    return load_weights(path)


def train(
    recipe: LungRecipe, data: LungData, *, folder: Path, progress: Callable[[Mapping[str, Any]], None] = lambda _: None
) -> tuple[Weights, list[dict[str, Any]]]:
    """Train, or resume this very training from the folder's checkpoint; averaged weights, and figures by epoch.

    Raises UsageProblem `training_diverged` when a loss is not a number, StorageProblem.
    """
    key = digest(asdict(recipe.network), asdict(recipe.training), asdict(recipe.augmentation), data.films, data.masks)
    key = digest(key, asdict(recipe.checks_augmentation), data.film_parts, data.chests, data.ood_images)
    checkpoint = Checkpoint(folder / CHECKPOINT, every_s=0)
    state, first = _State(Weights(), []), 0
    total = sum(stage.epochs for stage in recipe.training.stages)
    for number, stage in enumerate(recipe.training.stages):
        engine, own_key = MaskEngine(recipe.network, stage.side, recipe.training), digest(key, number)
        if number == 0:
            state.average = _initial(engine, recipe.training.seed)
        engine.set_weights(state.average)
        if kept := checkpoint.restore(engine, key=own_key):
            state = _State(dict(kept.arrays), kept.facts["history"], kept.facts["steps"])
        samples = _Samples(recipe, data, engine)
        for epoch in range(max(first, len(state.history)), first + stage.epochs):
            started = time.monotonic()
            loss = _run_epoch(engine, samples, state, epoch, rate=_rates(stage, epoch - first))
            row = {"epoch": epoch + 1, "epochs": total, "side": stage.side, "loss": loss}
            row |= samples.validate(state.average, folder / "panels" / f"epoch-{epoch + 1:03d}.png")
            state.history.append(row | {"seconds": round(time.monotonic() - started, 1)})
            facts = {"history": state.history, "steps": state.steps}
            checkpoint.save_if_due(engine, Kept(facts=facts, arrays=state.average), key=own_key)
            progress(state.history[-1])
        first += stage.epochs
    return state.average, state.history


@dataclass(slots=True)
class _State:
    """What a training has come to: averaged weights, figures by epoch, steps since the beginning."""

    average: Weights
    history: list[dict[str, Any]]
    steps: int = 0


class _Samples:
    """Batches of one stage, and its look at the validation images."""

    def __init__(self, recipe: LungRecipe, data: LungData, engine: MaskEngine) -> None:
        self._recipe, self._engine, self.training = recipe, engine, recipe.training
        side = engine.side if engine.has_checks else engine.mask_side
        own = data.of("training")
        self._films, self._masks = shrunk(data.films[own], side), shrunk(data.masks[own], side)
        weights = {source.name: source.share for source in recipe.chests}
        self._checks: CheckImages | None = (
            data.checks("training", weights, side=side) if engine.has_checks and recipe.chests else None
        )
        seen = data.of("validation")
        self._seen_films, self._seen_masks = data.films[seen], data.masks[seen]

    def batch(self, generator: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32]]:
        """Images, masks of the first of them, and targets of the checks for the rest."""
        training, pairs = self.training, []
        for index in generator.integers(len(self._films), size=training.masks_per_step):
            image, mask = self._films[index], self._masks[index]
            pairs.append(augment_pair(image, mask, self._recipe.augmentation, generator=generator))
        settings, share = self._recipe.checks_augmentation, training.ood_share
        drawn = [
            self._checks.draw(settings, ood_share=share, generator=generator)
            for _ in range(training.checks_per_step)
            if self._checks is not None
        ]
        images = np.stack([*(image for image, _ in pairs), *(image for image, _ in drawn)])
        targets = np.stack([target for _, target in drawn]) if drawn else np.zeros((0, 0), np.float32)
        return images, np.stack([mask for _, mask in pairs]), targets

    def validate(self, average: Weights, panel: Path) -> dict[str, Any]:
        """Mean and least Dice of the validation images with the averaged weights; draws the panel of fixed samples."""
        if not len(self._seen_films):
            return {}
        kept = self._engine.weights()
        self._engine.set_weights(average)
        found, checks = self._engine.predict(self._seen_films)
        self._engine.set_weights(kept)
        truth = shrunk(self._seen_masks, self._engine.mask_side)
        values = [dice(one >= 0.5, true > 127) for one, true in zip(found, truth, strict=True)]
        if count := self._recipe.evaluation.panel_images:
            draw_panel(panel, self._seen_films[:count], truth[:count], found[:count])
        row = {"dice": round(float(np.mean(values)), 4), "least_dice": round(min(values), 4)}
        return row | ({"frontal": round(float((checks[:, 0] >= 0.5).mean()), 4)} if checks.shape[1] else {})


def _run_epoch(
    engine: MaskEngine, samples: _Samples, state: _State, epoch: int, *, rate: Callable[[float], float]
) -> float:
    """One epoch; its mean loss. `rate` is the learning rate by the share of the epoch that is done."""
    training, losses = samples.training, []
    generator = np.random.default_rng((training.seed, epoch))
    for step in range(training.steps_per_epoch):
        images, masks, targets = samples.batch(generator)
        loss = engine.step(images, masks, targets, learning_rate=rate(step / training.steps_per_epoch))
        if not math.isfinite(loss):
            raise UsageProblem(reason("training_diverged", epoch=epoch + 1, step=step + 1))
        losses.append(loss)
        state.steps += 1
        if state.steps % _AVERAGED_EVERY == 0:
            _average(state.average, engine.weights(), count=state.steps // _AVERAGED_EVERY)
    return float(np.mean(losses))


def _average(average: Weights, current: Weights, *, count: int) -> None:
    """The running mean; young means forget faster, so that the initial weights leave no trace."""
    share = np.float32(1 - min(_LONGEST_MEAN, count / (count + 9)))
    for name, array in current.items():
        np.add(average[name], share * (array - average[name]), out=average[name])


def _rates(stage: Stage, epochs_done: int) -> Callable[[float], float]:
    """The learning rate within an epoch of a stage: over the stage a rise, then a half cosine to 0."""

    def rate(share: float) -> float:
        done = (epochs_done + share) / stage.epochs
        if done < _WARM_UP:
            return stage.learning_rate * max(done, 0.002) / _WARM_UP
        return stage.learning_rate * (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP))) / 2

    return rate


def _initial(engine: MaskEngine, seed: int) -> Weights:
    """The kernels drawn anew by the seed (He 2015, arXiv:1502.01852), all else as it is."""
    generator, weights = np.random.default_rng(seed), engine.weights()
    for name, array in weights.items():
        if name.endswith("/kernel"):
            reads = math.prod(array.shape[:2]) * (1 if name.endswith("_dw/kernel") else array.shape[2])
            weights[name] = np.asarray(generator.normal(0, math.sqrt(2 / reads), array.shape), np.float32)
    return weights


def _use_threads(count: int) -> None:
    """As many CPU threads as the recipe says; TensorFlow takes it only before its first operation."""
    if not count:
        return
    import tensorflow

    for set_count in (
        tensorflow.config.threading.set_intra_op_parallelism_threads,
        tensorflow.config.threading.set_inter_op_parallelism_threads,
    ):
        try:
            set_count(count)
        except RuntimeError:  # it has begun already: another run of this process chose
            return


LUNG_TRAIN: Final = Step(
    name="train",
    perform=train_step,
    reads=("network", "training", "augmentation", "checks_augmentation", "evaluation"),
    leaves=("weights.npz", "history.json"),
)

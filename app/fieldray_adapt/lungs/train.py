"""The train step of lung fields: stages of growing images, masks and checks in each step, averaged weights.

After each epoch panels of fixed samples are drawn. All randomness depends on (seed, epoch), so a training that was
killed resumes exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fieldray_adapt.data.augmentation import UNKNOWN, CheckImages, augment_pair, whitened
from fieldray_adapt.files import digest, plain
from fieldray_adapt.lungs.dataset import LungData, data_of, shrunk
from fieldray_adapt.lungs.engine import Batch, MaskEngine, use_threads
from fieldray_adapt.lungs.mask_fit import dice
from fieldray_adapt.lungs.panels import draw_panel
from fieldray_adapt.lungs.recipe import LungRecipe, Stage, recipe_of
from fieldray_adapt.networks.specification import Weights, save_weights
from fieldray_adapt.run import Facts, Run, Step
from fieldray_adapt.training.engine import (
    CHECKPOINT,
    Checkpoint,
    EpochFigures,
    Progress,
    TrainingState,
    cosine_rate,
    share_of_some,
    train_epochs,
)
from fieldray_adapt.training.steps import trainer_facts

_WARM_UP: Final = 0.15
"""Share of a stage in which the rate rises."""


def train_step(run: Run) -> Facts:
    """Train the network. Writes weights.npz, history.json and panels/. Raises UsageProblem, StorageProblem."""
    recipe = recipe_of(run)
    use_threads(recipe.training.threads)
    weights, history = (run.trainer.lung_fields if run.trainer else train)(
        recipe,
        data_of(run),
        folder=run.folder("train"),
        progress=lambda row: run.report_epoch(run.folder("train"), row),
    )
    save_weights(run.folder("train") / "weights.npz", weights)
    run.write("train", "history.json", history)
    return {**plain(history[-1]), **trainer_facts(run)}


def train(
    recipe: LungRecipe, data: LungData, *, folder: Path, progress: Progress = lambda _: None
) -> tuple[Weights, list[EpochFigures]]:
    """Train, or resume the same training from the folder's checkpoint. Returns averaged weights, figures by epoch.

    Raises UsageProblem `training_diverged` when a loss is not a number, StorageProblem.
    """
    key = digest(asdict(recipe.network), asdict(recipe.training), asdict(recipe.augmentation), data.images, data.masks)
    key = digest(key, asdict(recipe.checks_augmentation), data.image_parts, data.chests, data.ood_images)
    key = digest(key, data.chest_parts, bool(data.masks_are_chests))
    checkpoint, state = Checkpoint(folder / CHECKPOINT), TrainingState(Weights())
    stages = recipe.training.stages
    total, first = sum(stage.epochs for stage in stages), 0
    resumed = next((n for n in reversed(range(len(stages))) if checkpoint.holds(MaskEngine, key=digest(key, n))), 0)
    for number, stage in enumerate(stages):
        until = first + stage.epochs
        if number >= resumed:
            engine, own_key = MaskEngine(recipe.network, stage.side, recipe.training), digest(key, number)
            if number == 0:
                state.average = first_weights(engine, recipe.training.seed)
            if not state.resume(checkpoint, engine, key=own_key):
                engine.set_weights(state.average)
            train_epochs(
                StageTask(StageSamples(recipe, data, engine), engine, stage, first, folder / "panels"),
                engine,
                state,
                until=until,
                epochs=total,
                checkpoint=checkpoint,
                key=own_key,
                progress=progress,
            )
        first = until
    return state.average, state.history


@dataclass(frozen=True, eq=False, slots=True)
class StageTask:
    """One stage of a training; its first epoch has number `first` of the whole training."""

    samples: StageSamples
    engine: MaskEngine
    stage: Stage
    first: int
    panels: Path

    def steps(self, epoch: int) -> Iterator[float]:
        """Perform the steps of an epoch (see `TrainingTask.steps`)."""
        training, rate = self.samples.training, rates(self.stage, epoch - self.first)
        generator = np.random.default_rng((training.seed, epoch))
        for step in range(training.steps_per_epoch):
            batch = self.samples.batch(generator)
            yield self.engine.step(*batch, learning_rate=rate(step / training.steps_per_epoch))

    def share(self, steps: int) -> float:
        """Weight of the weights in their running mean (see `TrainingTask.share`)."""
        return share_of_some(steps)

    def validate(self, average: Weights, ended: EpochFigures) -> EpochFigures:
        """Draw the epoch's panel, and measure the averaged weights (see `TrainingTask.validate`)."""
        return self.samples.validate(average, structs.replace(ended, side=self.stage.side), self.panels)


class StageSamples:
    """Batches of one stage, and its look at the validation images."""

    def __init__(self, recipe: LungRecipe, data: LungData, engine: MaskEngine) -> None:
        self._recipe, self._engine, self.training = recipe, engine, recipe.training
        side = engine.side if engine.has_checks else engine.mask_side
        own = data.of("training")
        self._images, self._masks = shrunk(data.images[own], side), shrunk(data.masks[own], side)
        sources, shares = data.image_sources, {source.name: source.share for source in recipe.masks}
        chances = np.array([shares[name] / np.count_nonzero(sources[own] == name) for name in sources[own]])
        self._chances, self._shows_region = chances / chances.sum(), np.isin(sources[own], [*recipe.region_sources])
        weights = {source.name: source.share for source in recipe.chests}
        self._checks: CheckImages | None = (
            data.checks("training", weights, side=side) if engine.has_checks and recipe.chests else None
        )
        seen = data.of("validation")
        self._seen_images, self._seen_masks = data.images[seen], data.masks[seen]
        self._seen_region = np.isin(sources[seen], [*recipe.region_sources])

    def batch(self, generator: np.random.Generator) -> tuple[NDArray[np.uint8], Batch, Batch]:
        """Draw a batch: images, masks of the first of them, and check targets of the rest."""
        training = self.training
        pairs = [self.pair(generator) for _ in range(training.masks_per_step)]
        settings, share = self._recipe.checks_augmentation, training.ood_share
        drawn = [
            self._checks.draw(settings, ood_share=share, generator=generator)
            for _ in range(training.checks_per_step)
            if self._checks is not None
        ]
        images = np.stack([*(image for image, _ in pairs), *(image for image, _ in drawn)])
        targets = np.stack([target for _, target in drawn]) if drawn else np.zeros((0, 0), np.float32)
        return images, np.stack([mask for _, mask in pairs]), targets

    def pair(self, generator: np.random.Generator) -> tuple[NDArray[np.uint8], Batch]:
        """One augmented image and its mask targets, in the form that `MaskEngine` takes."""
        index, settings = int(generator.choice(len(self._images), p=self._chances)), self._recipe.augmentation
        image, mask = self._images[index], self._masks[index]
        seen = mask
        if generator.random() < settings.whitening:
            image, seen = whitened(image, mask, generator)
        masks = np.stack([seen, mask][: self._recipe.network.masks], axis=-1)
        image, masks = augment_pair(image, masks, settings, generator=generator)
        side = self._engine.mask_side
        return image, mask_targets(shrunk(masks.transpose(2, 0, 1), side), shows_region=bool(self._shows_region[index]))

    def check(self, generator: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """An image for the checks with its targets, drawn by a generator of its own. Raises ValueError without any."""
        if self._checks is None:
            raise ValueError("no images for the checks")
        settings, share = self._recipe.checks_augmentation, self.training.ood_share
        return self._checks.draw(settings, ood_share=share, generator=generator)

    def validate(self, average: Weights, ended: EpochFigures, panels: Path) -> EpochFigures:
        """Add the validation Dice of the averaged weights to an epoch's figures. Draws a panel of fixed samples."""
        if not len(self._seen_images):
            return ended
        kept = self._engine.weights()
        self._engine.set_weights(average)
        found, checks = self._engine.predict(self._seen_images)
        self._engine.set_weights(kept)
        truth = shrunk(self._seen_masks, self._engine.mask_side)
        found = found[np.arange(len(found)), :, :, self._seen_region.astype(int)]
        values = np.array([dice(one >= 0.5, true > 127) for one, true in zip(found, truth, strict=True)])
        if count := self.training.panel_images:
            panel = panels / f"epoch-{ended.epoch:03d}.png"
            draw_panel(panel, self._seen_images[:count], truth[:count], found[:count])
        row = dict[str, float]()
        for name, is_own in (("", ~self._seen_region), ("region_", self._seen_region)):
            if is_own.any():
                row |= {f"{name}dice": round(float(values[is_own].mean()), 4)}
                row |= {f"{name}least_dice": round(float(values[is_own].min()), 4)}
        row["cells_wrong"] = round(float(((found >= 0.5) != (truth > 127)).mean()), 4)
        row |= {"frontal": round(float((checks[:, 0] >= 0.5).mean()), 4)} if checks.shape[1] else {}
        return structs.replace(ended, **row)


def mask_targets(masks: NDArray[np.uint8], *, shows_region: bool) -> Batch:
    """Return the targets (rows, columns, masks) of a network's masks, from an image's one known mask.

    masks  (masks, rows, columns) share of lung, 0..255: the mask without painted white parts, and the whole mask

    A mask of the visible lung tells that the region includes that lung and has its height and width at most. A mask of
    the region tells that no visible lung is outside of it. All else is unknown.
    """
    wanted = masks.transpose(1, 2, 0).astype(np.float32) / np.float32(255)
    if wanted.shape[2] < 2:
        return wanted
    visible, region = wanted[..., 0], wanted[..., 1]
    if shows_region:
        visible[visible > 0] = UNKNOWN
    else:
        filled = [np.flatnonzero((region > 0).any(axis=axis)) for axis in (1, 0)]
        within = region[tuple(slice(*(own[[0, -1]] + (0, 1) if len(own) else (0, 0))) for own in filled)]
        within[within < 1] = UNKNOWN
    return wanted


def rates(stage: Stage, epochs_done: int) -> Callable[[float], float]:
    """The learning rate as a function of the share of an epoch: over the stage a warm-up, then a half cosine to 0."""

    def rate(share: float) -> float:
        return cosine_rate(stage.learning_rate, (epochs_done + share) / stage.epochs, warm_up=_WARM_UP)

    return rate


def first_weights(engine: MaskEngine, seed: int) -> Weights:
    """Draw the kernels again from the seed (He 2015, arXiv:1502.01852); other weights are unchanged."""
    generator, weights = np.random.default_rng(seed), engine.weights()
    for name, array in weights.items():
        if name.endswith("/kernel"):
            reads = math.prod(array.shape[:2]) * (1 if name.endswith("_dw/kernel") else array.shape[2])
            weights[name] = np.asarray(generator.normal(0, math.sqrt(2 / reads), array.shape), np.float32)
    return weights


LUNG_TRAIN: Final = Step(
    name="train",
    perform=train_step,
    recipe_keys=("network", "training", "augmentation", "checks_augmentation"),
    outputs=("weights.npz", "history.json"),
)

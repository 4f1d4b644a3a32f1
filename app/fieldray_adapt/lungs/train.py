"""The train step of a lung-field recipe: stages with larger and larger images, and averaged weights.

Each training step uses images with masks and images for the image checks. After each epoch, a picture shows predictions
for fixed images. All random numbers depend on seed and epoch. So a resumed training gives the result of an
uninterrupted training.
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

from fieldray_adapt.data.augmentation import augment_with_mask, whiten_lung
from fieldray_adapt.data.images_for_checks import UNKNOWN_TARGET, ImagesForImageChecks
from fieldray_adapt.files import digest, to_builtins
from fieldray_adapt.lungs.dataset import LungData, load_lung_data, resize_images
from fieldray_adapt.lungs.engine import Batch, MaskEngine, set_thread_count
from fieldray_adapt.lungs.mask_fit import dice_coefficient
from fieldray_adapt.lungs.panels import draw_panel
from fieldray_adapt.lungs.recipe import LungRecipe, TrainingStage, lung_recipe_of
from fieldray_adapt.networks.specification import Weights, save_weights
from fieldray_adapt.run import Run, Step, StepFacts
from fieldray_adapt.training.loop import (
    CHECKPOINT_FILE_NAME,
    Checkpoint,
    EpochFigures,
    Progress,
    TrainingState,
    cosine_learning_rate,
    fourth_step_averaging_weight,
    train_epochs,
)
from fieldray_adapt.training.steps import trainer_facts

_WARM_UP: Final = 0.15
"""Share of a training stage, counted from its start, during which the learning rate rises."""


def train_step(run: Run) -> StepFacts:
    """Train the lung-field network of a recipe. Writes weights.npz, history.json and the folder panels.

    Raises UsageProblem, StorageProblem.
    """
    recipe = lung_recipe_of(run)
    set_thread_count(recipe.training.threads)
    weights, history = (run.trainer.train_lung_fields if run.trainer else train)(
        recipe,
        load_lung_data(run),
        folder=run.step_folder("train"),
        progress=lambda row: run.report_epoch(run.step_folder("train"), row),
    )
    save_weights(run.step_folder("train") / "weights.npz", weights)
    run.write_step_json("train", "history.json", history)
    return {**to_builtins(history[-1]), **trainer_facts(run)}


def train(
    recipe: LungRecipe, data: LungData, *, folder: Path, progress: Progress = lambda _: None
) -> tuple[Weights, list[EpochFigures]]:
    """Train a lung-field network, or resume the training from the checkpoint in `folder`.

    Returns the averaged weights, and the figures of each epoch. Raises UsageProblem (`training_diverged`) if a loss is
    not a number, and StorageProblem.
    """
    key = digest(asdict(recipe.network), asdict(recipe.training), asdict(recipe.augmentation), data.images, data.masks)
    key = digest(key, asdict(recipe.checks_augmentation), data.image_parts, data.chests, data.ood_images)
    key = digest(key, data.chest_parts, bool(data.masks_are_chests))
    checkpoint, state = Checkpoint(folder / CHECKPOINT_FILE_NAME), TrainingState(Weights())
    stages = recipe.training.stages
    total, first = sum(stage.epochs for stage in stages), 0
    resumed = next(
        (
            n
            for n in reversed(range(len(stages)))
            if checkpoint.has_training_state(MaskEngine, fingerprint=digest(key, n))
        ),
        0,
    )
    for number, stage in enumerate(stages):
        until = first + stage.epochs
        if number >= resumed:
            engine, own_key = MaskEngine(recipe.network, stage.side, recipe.training), digest(key, number)
            if number == 0:
                state.averaged_weights = draw_first_weights(engine, recipe.training.seed)
            if not state.resume(checkpoint, engine, fingerprint=own_key):
                engine.set_weights(state.averaged_weights)
            train_epochs(
                StageTask(StageSamples(recipe, data, engine), engine, stage, first, folder / "panels"),
                engine,
                state,
                stop_epoch=until,
                epochs=total,
                checkpoint=checkpoint,
                fingerprint=own_key,
                progress=progress,
            )
        first = until
    return state.averaged_weights, state.history


@dataclass(frozen=True, eq=False, slots=True)
class StageTask:
    """One stage of a lung-field training, as a `TrainingTask`.

    `earlier_epoch_count` is the number of epochs in earlier stages.
    """

    samples: StageSamples
    engine: MaskEngine
    stage: TrainingStage
    earlier_epoch_count: int
    panel_folder: Path

    def run_steps(self, epoch: int) -> Iterator[float]:
        """Perform the training steps of an epoch, and yield the loss of each step (see `TrainingTask.run_steps`)."""
        training, rate = self.samples.training, stage_learning_rate(self.stage, epoch - self.earlier_epoch_count)
        generator = np.random.default_rng((training.seed, epoch))
        for step in range(training.steps_per_epoch):
            batch = self.samples.draw_batch(generator)
            yield self.engine.step(*batch, learning_rate=rate(step / training.steps_per_epoch))

    def averaging_weight(self, step_count: int) -> float:
        """Return the factor (0..1) of the current weights in the running mean (see `TrainingTask.averaging_weight`)."""
        return fourth_step_averaging_weight(step_count)

    def validate(self, averaged_weights: Weights, figures: EpochFigures) -> EpochFigures:
        """Measure the averaged weights on the validation images, and store a picture of some images.

        The picture shows the same images after every epoch.

        Returns `figures` with the measured figures added (see `TrainingTask.validate`).
        """
        return self.samples.validate(
            averaged_weights, structs.replace(figures, side=self.stage.side), self.panel_folder
        )


class StageSamples:
    """The training and validation images of one stage of a lung-field training."""

    def __init__(self, recipe: LungRecipe, data: LungData, engine: MaskEngine) -> None:
        self._recipe, self._engine, self.training = recipe, engine, recipe.training
        side = engine.side if engine.has_checks else engine.mask_side
        own = data.indices_of_part("training")
        self._images, self._masks = resize_images(data.images[own], side), resize_images(data.masks[own], side)
        sources, shares = data.image_sources, {source.name: source.share for source in recipe.masks}
        chances = np.array([shares[name] / np.count_nonzero(sources[own] == name) for name in sources[own]])
        self._chances, self._shows_region = (
            chances / chances.sum(),
            np.isin(sources[own], [*recipe.region_source_names]),
        )
        weights = {source.name: source.share for source in recipe.chests}
        self._checks: ImagesForImageChecks | None = (
            data.images_for_image_checks("training", weights, side=side)
            if engine.has_checks and recipe.chests
            else None
        )
        seen = data.indices_of_part("validation")
        self._seen_images, self._seen_masks = data.images[seen], data.masks[seen]
        self._seen_region = np.isin(sources[seen], [*recipe.region_source_names])

    def draw_batch(self, generator: np.random.Generator) -> tuple[NDArray[np.uint8], Batch, Batch]:
        """Draw a random batch: images with masks, then images for the image checks.

        Returns all images (n, side, side) uint8, the masks of the first images, and the right answers of the image
        checks for the remaining images.
        """
        training = self.training
        pairs = [self.draw_pair(generator) for _ in range(training.masks_per_step)]
        settings, share = self._recipe.checks_augmentation, training.ood_share
        drawn = [
            self._checks.draw_training_image(settings, ood_share=share, generator=generator)
            for _ in range(training.checks_per_step)
            if self._checks is not None
        ]
        images = np.stack([*(image for image, _ in pairs), *(image for image, _ in drawn)])
        targets = np.stack([target for _, target in drawn]) if drawn else np.zeros((0, 0), np.float32)
        return images, np.stack([mask for _, mask in pairs]), targets

    def draw_pair(self, generator: np.random.Generator) -> tuple[NDArray[np.uint8], Batch]:
        """Draw a random augmented image with the true masks for the network's outputs.

        Returns the image (side, side) uint8, and masks (mask_side, mask_side, masks) float32 in 0..1, with
        `UNKNOWN_TARGET` for unknown pixels.
        """
        index, settings = int(generator.choice(len(self._images), p=self._chances)), self._recipe.augmentation
        image, mask = self._images[index], self._masks[index]
        seen = mask
        if generator.random() < settings.whitening:
            image, seen = whiten_lung(image, mask, generator)
        masks = np.stack([seen, mask][: self._recipe.network.mask_count], axis=-1)
        image, masks = augment_with_mask(image, masks, settings, generator=generator)
        side = self._engine.mask_side
        return image, mask_targets(
            resize_images(masks.transpose(2, 0, 1), side), shows_region=bool(self._shows_region[index])
        )

    def draw_image_for_image_checks(
        self, generator: np.random.Generator
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Draw an augmented image, and the answer of each image check (see `ImagesForChecks.draw_training_image`).

        Raises ValueError if the recipe has no images for the image checks.
        """
        if self._checks is None:
            raise ValueError("no images for the checks")
        settings, share = self._recipe.checks_augmentation, self.training.ood_share
        return self._checks.draw_training_image(settings, ood_share=share, generator=generator)

    def validate(self, average: Weights, figures: EpochFigures, panel_folder: Path) -> EpochFigures:
        """Return `figures` with the validation Dice of the averaged weights.

        Writes a picture of fixed images with true and predicted masks to the folder `panel_folder`.
        """
        if not len(self._seen_images):
            return figures
        kept = self._engine.weights()
        self._engine.set_weights(average)
        found, checks = self._engine.predict_masks_and_checks(self._seen_images)
        self._engine.set_weights(kept)
        truth = resize_images(self._seen_masks, self._engine.mask_side)
        found = found[np.arange(len(found)), :, :, self._seen_region.astype(int)]
        values = np.array([dice_coefficient(one >= 0.5, true > 127) for one, true in zip(found, truth, strict=True)])
        if count := self.training.panel_images:
            panel = panel_folder / f"epoch-{figures.epoch:03d}.png"
            draw_panel(panel, self._seen_images[:count], truth[:count], found[:count])
        row = dict[str, float]()
        for name, is_own in (("", ~self._seen_region), ("region_", self._seen_region)):
            if is_own.any():
                row |= {f"{name}dice": round(float(values[is_own].mean()), 4)}
                row |= {f"{name}least_dice": round(float(values[is_own].min()), 4)}
        row["cells_wrong"] = round(float(((found >= 0.5) != (truth > 127)).mean()), 4)
        row |= {"frontal": round(float((checks[:, 0] >= 0.5).mean()), 4)} if checks.shape[1] else {}
        return structs.replace(figures, **row)


def mask_targets(masks: NDArray[np.uint8], *, shows_region: bool) -> Batch:
    """Return the true masks (rows, columns, masks) for both outputs of the network, from an image's only mask.

    A network with one output gets the mask as it is. Otherwise the other true mask follows from the mask:

    - The mask shows the visible lung. Visible lung is also lung region. Pixels outside the bounding box of the visible
      lung are no lung region. For all other pixels, the lung region is unknown.
    - The mask shows the lung region. Pixels outside the region are no visible lung. For pixels inside the region, the
      visible lung is unknown.

    Parameters
    ----------
    masks
        The image's mask twice, (2, rows, columns) uint8, share of lung 0..255: first without the areas of the image
        that augmentation painted white, then whole.
    shows_region
        Whether the mask shows the lung region. False for a mask of the visible lung.
    """
    wanted = masks.transpose(1, 2, 0).astype(np.float32) / np.float32(255)
    if wanted.shape[2] < 2:
        return wanted
    visible, region = wanted[..., 0], wanted[..., 1]
    if shows_region:
        visible[visible > 0] = UNKNOWN_TARGET
    else:
        filled = [np.flatnonzero((region > 0).any(axis=axis)) for axis in (1, 0)]
        within = region[tuple(slice(*(own[[0, -1]] + (0, 1) if len(own) else (0, 0))) for own in filled)]
        within[within < 1] = UNKNOWN_TARGET
    return wanted


def stage_learning_rate(stage: TrainingStage, epochs_done: int) -> Callable[[float], float]:
    """Return a function from the completed share of the current epoch (0..1) to the learning rate.

    The rate rises in the first part of the stage, then falls to 0 by a half cosine until the end of the stage.
    `epochs_done` is the number of completed epochs of the stage.
    """

    def rate(share: float) -> float:
        return cosine_learning_rate(stage.learning_rate, (epochs_done + share) / stage.epochs, warm_up_end=_WARM_UP)

    return rate


def draw_first_weights(engine: MaskEngine, seed: int) -> Weights:
    """Return the initial weights of a network, with random kernels drawn from `seed` (He 2015, arXiv:1502.01852).

    Weights that are no kernels keep their values in `engine`.
    """
    generator, weights = np.random.default_rng(seed), engine.weights()
    for name, array in weights.items():
        if name.endswith("/kernel"):
            reads = math.prod(array.shape[:2]) * (1 if name.endswith("_dw/kernel") else array.shape[2])
            weights[name] = np.asarray(generator.normal(0, math.sqrt(2 / reads), array.shape), np.float32)
    return weights


LUNG_TRAIN_STEP: Final = Step(
    name="train",
    perform=train_step,
    recipe_keys=("network", "training", "augmentation", "checks_augmentation"),
    outputs=("weights.npz", "history.json"),
)

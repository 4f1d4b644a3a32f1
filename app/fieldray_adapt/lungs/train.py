"""The training of a lung-field network: its engine, and the train and quantise steps.

The engine is Keras on TensorFlow, for the compact network and the published one alike. A segmentation is trained by
1 - Dice of the lungs and the cross-entropy of each cell, added. Dice alone has hardly a gradient while nothing is
found; the cross-entropy alone lets the larger class win.

The train and quantise steps: stages of growing images, masks and checks in each step, averaged weights.

After each epoch panels of fixed samples are drawn. All randomness depends on (seed, epoch), so a training that was
killed resumes exactly. What it ends with becomes an int8 and a float file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from fieldray.domain.metrics import sigmoid
from fieldray.domain.model import LUNG_CHECKS, InputSpec, OutputRoles
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray_adapt.data.augmentation import UNKNOWN, CheckImages, augment_pair, whitened
from fieldray_adapt.files import digest, plain, write_atomically
from fieldray_adapt.lungs.dataset import LungData, data_of, dice, shrunk
from fieldray_adapt.lungs.recipe import (
    MARGIN,
    LungNetwork,
    LungRecipe,
    LungTraining,
    Stage,
    compact_unet,
    mask_side,
    published_unet,
    recipe_of,
)
from fieldray_adapt.networks.quantise import Converted, equalise, quantise, to_float_file
from fieldray_adapt.networks.specification import Specification, Weights, save_weights
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
from fieldray_adapt.training.keras_engine import KerasGradients, KerasState, build_network, compiled
from fieldray_adapt.training.steps import trained_weights, trainer_facts, write_files

_SMOOTHING: Final = 1.0
"""Cells added to both sides of the fraction, so that two empty masks have a loss of 0 and not 0 / 0."""


def dice_loss(truth: Any, probabilities: Any) -> Any:
    """1 - 2 sum(t p) / (sum(t) + sum(p)) of each mask, (n, masks); (n, rows, columns, masks) tensors in 0..1."""
    from keras import ops

    axes = (1, 2)
    shared = ops.sum(truth * probabilities, axes)
    total = ops.sum(truth, axes) + ops.sum(probabilities, axes)
    return 1 - (2 * shared + _SMOOTHING) / (total + _SMOOTHING)


def mask_loss(truth: Any, logits: Any) -> Any:
    """1 - Dice and mean cross-entropy of each image, added over its masks: (n,).

    `logits` (n, rows, columns, masks) are before the sigmoid. The truth is below 0 where unknown; such a cell teaches
    nothing, and a mask with one has no Dice.
    """
    from keras import ops

    known = ops.cast(truth >= 0, logits.dtype)
    truth = ops.maximum(truth, 0.0)
    entropy = ops.mean(ops.binary_crossentropy(truth, logits, from_logits=True) * known, axis=(1, 2))
    return ops.sum(dice_loss(truth, ops.sigmoid(logits)) * ops.min(known, axis=(1, 2)) + entropy, axis=1)


def checks_loss(targets: Any, logits: Any) -> Any:
    """Cross-entropy of each image (n,), whose mean is that over all that is known.

    Targets (n, checks) are 1, 0, or below 0 where unknown.
    """
    from keras import ops

    known = ops.cast(targets >= 0, logits.dtype)
    each = ops.binary_crossentropy(ops.maximum(targets, 0.0), logits, from_logits=True) * known
    return ops.sum(each, axis=1) / ops.maximum(ops.mean(ops.sum(known, axis=1)), 1.0)


Batch = NDArray[np.float32]
CLIP: Final = 5.0
"""The gradient's largest norm."""

_PREDICT_BATCH: Final = 16


class MaskEngine(KerasState):
    """A lung-field network of one input side in training.

    Images are (n, side, side) uint8; the network gives masks of `mask_side` pixels, which cover the whole image. What
    they should be is (n, mask_side, mask_side, masks) float32 in 0..1, or `UNKNOWN`.
    """

    def __init__(self, network: LungNetwork, side: int, training: LungTraining) -> None:
        import keras

        keras.config.set_dtype_policy("float32")
        self._network, self.side = network, side
        self.has_checks = network.kind == "compact"
        if self.has_checks:
            specification = compact_unet(height=side, width=side, channels=network.channels, masks=network.masks)
            self.model = build_network(specification, outputs=["mask_logits", "logits"])
            self.mask_side = side // 2
        else:
            self.model = published_unet(side=side, root_channels=network.root_channels)
            self.mask_side = mask_side(side)
        self._optimiser = keras.optimizers.AdamW(
            0.0, weight_decay=training.weight_decay, epsilon=1e-8, global_clipnorm=CLIP
        )
        self._optimiser.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        self._optimiser.build(self.model.trainable_variables)
        per_mask = (training.masks_per_step + training.checks_per_step) / training.masks_per_step
        if self.has_checks:
            losses, factors = [mask_loss, checks_loss], [per_mask, training.checks_weight]
            compiled(self.model, self._optimiser, loss=losses, loss_weights=factors)
        else:
            compiled(self.model, self._optimiser, loss=mask_loss)
        self._gradients = KerasGradients(self.model)

    def prepared(self, images: NDArray[np.uint8]) -> Batch:
        """Images (n, any side) as the network sees them: (n, side, side, 1) float32 in 0..1."""
        if self.has_checks:
            return shrunk(images, self.side).astype(np.float32)[..., None] / 255
        inner = shrunk(images, self.mask_side)
        mirrored = np.pad(inner, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)), mode="symmetric")
        return mirrored.astype(np.float32)[..., None] / 255

    def step(self, images: NDArray[np.uint8], masks: Batch, targets: Batch, *, learning_rate: float) -> float:
        """One step; the batch's loss before it. The first images have masks, the rest have targets for the checks."""
        self.model.reset_metrics()  # Keras would tell the mean over all steps so far
        self._optimiser.learning_rate = learning_rate
        loss = self.model.train_on_batch(*self._batch(images, masks, targets))
        return float(loss[0] if self.has_checks else loss)

    def gradient(self, images: NDArray[np.uint8], masks: Batch, targets: Batch) -> tuple[Weights, float]:
        """What `step` would learn from a batch, and its loss; by name, see `engine.Engine.gradient`. Not clipped."""
        return self._gradients.take(*self._batch(images, masks, targets))

    def _batch(self, images: NDArray[np.uint8], masks: Batch, targets: Batch) -> tuple[Batch, Any]:
        """Images and targets as Keras takes them."""
        if not self.has_checks:
            return self.prepared(images), masks
        blank = np.full((len(images) - len(masks), *masks.shape[1:]), UNKNOWN, np.float32)
        unknown = np.full((len(masks), len(LUNG_CHECKS)), UNKNOWN, np.float32)
        return self.prepared(images), [np.concatenate([masks, blank]), np.concatenate([unknown, targets])]

    def predict(self, images: NDArray[np.uint8]) -> tuple[Batch, Batch]:
        """Shares of lung (n, mask_side, mask_side, masks) and scores of the checks (n, checks), both in 0..1."""
        masks, checks = list[Batch](), list[Batch]()
        for start in range(0, len(images), _PREDICT_BATCH):
            found = self.model.predict_on_batch(self.prepared(images[start : start + _PREDICT_BATCH]))
            logits, scores = found if self.has_checks else (found, np.zeros((len(found), 0), np.float32))
            masks.append(sigmoid(logits).astype(np.float32))
            checks.append(sigmoid(scores).astype(np.float32))
        return np.concatenate(masks), np.concatenate(checks)


Grey = NDArray[np.uint8]
_WARM_UP: Final = 0.15
"""Share of a stage in which the rate rises."""


def train_step(run: Run) -> Facts:
    """Train the network; weights.npz, history.json and panels/. Raises UsageProblem, StorageProblem."""
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
    """Train, or resume this very training from the folder's checkpoint; averaged weights, and figures by epoch.

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
                side=stage.side,
                checkpoint=checkpoint,
                key=own_key,
                progress=progress,
            )
        first = until
    return state.average, state.history


@dataclass(frozen=True, eq=False, slots=True)
class StageTask:
    """A stage, whose first epoch is number `first` of the whole training."""

    samples: StageSamples
    engine: MaskEngine
    stage: Stage
    first: int
    panels: Path

    def steps(self, epoch: int) -> Iterator[float]:
        """As `TrainingTask`."""
        training, rate = self.samples.training, rates(self.stage, epoch - self.first)
        generator = np.random.default_rng((training.seed, epoch))
        for step in range(training.steps_per_epoch):
            batch = self.samples.batch(generator)
            yield self.engine.step(*batch, learning_rate=rate(step / training.steps_per_epoch))

    def share(self, steps: int) -> float:
        """As `TrainingTask`."""
        return share_of_some(steps)

    def validate(self, average: Weights, ended: EpochFigures) -> EpochFigures:
        """As `TrainingTask`; draws the epoch's panel."""
        return self.samples.validate(average, ended, self.panels)


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
        """Images, masks of the first of them, and targets of the checks for the rest."""
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
        """A changed image with its masks as `MaskEngine` takes them."""
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
        """The epoch with the Dice of the validation images by the averaged weights; draws a panel of fixed samples."""
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
    """What a network's masks are to be, (rows, columns, masks), from what an image's one mask says of each.

    masks  (masks, rows, columns) the share, 0..255, of the mask that was drawn: less what was painted white, and whole

    A mask of the visible lung teaches of the region that it holds all of that lung, and does not reach further up, down
    or to the sides; one of the region that no lung is seen outside of it. The rest is unknown.
    """
    wanted = masks.transpose(1, 2, 0).astype(np.float32) / 255
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
    """The learning rate within an epoch of a stage: over the stage a rise, then a half cosine to 0."""

    def rate(share: float) -> float:
        return cosine_rate(stage.learning_rate, (epochs_done + share) / stage.epochs, warm_up=_WARM_UP)

    return rate


def first_weights(engine: MaskEngine, seed: int) -> Weights:
    """The kernels drawn by the seed once more (He 2015, arXiv:1502.01852), all else as it is."""
    generator, weights = np.random.default_rng(seed), engine.weights()
    for name, array in weights.items():
        if name.endswith("/kernel"):
            reads = math.prod(array.shape[:2]) * (1 if name.endswith("_dw/kernel") else array.shape[2])
            weights[name] = np.asarray(generator.normal(0, math.sqrt(2 / reads), array.shape), np.float32)
    return weights


def use_threads(count: int) -> None:
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
    reads=("network", "training", "augmentation", "checks_augmentation"),
    leaves=("weights.npz", "history.json"),
)


_CHECKS_SHARE: Final = 0.5
"""Of the images that decide the ranges, so many are those that the checks are trained on, turned and strange ones."""


def specification_of(recipe: LungRecipe) -> Specification:
    """The compact network that the recipe asks for."""
    network, wanted = recipe.network, recipe.input
    return compact_unet(height=wanted.height, width=wanted.width, channels=network.channels, masks=network.masks)


def quantise_step(run: Run) -> Facts:
    """Write int8.tflite, float.tflite, and which output of each is what."""
    return write_files(run, to_files(recipe_of(run), data_of(run), trained_weights(run)))


def to_files(recipe: LungRecipe, data: LungData, weights: Weights) -> dict[str, Converted]:
    """A trained compact network as the files "float" and "int8"."""
    specification, images = specification_of(recipe), representative(recipe, data)
    weights = equalise(specification, weights, representative=images)
    return {
        "float": to_float_file(specification, weights),
        "int8": quantise(specification, weights, representative=images),
    }


def representative(recipe: LungRecipe, data: LungData) -> NDArray[np.uint8]:
    """Training images as the network may meet them, (n, side, side, 1): upright ones, turned ones, OOD images."""
    generator, own = np.random.default_rng(recipe.training.seed), data.of("training")
    checks = data.checks("training", {}, side=recipe.input.height)
    drawn = round(recipe.calibration_images * _CHECKS_SHARE) if checks else 0
    images = [data.images[index] for index in generator.permutation(own)[: recipe.calibration_images - drawn]]
    for _ in range(drawn):
        assert checks is not None
        share = recipe.training.ood_share
        images.append(checks.draw(recipe.checks_augmentation, ood_share=share, generator=generator)[0])
    stacked: NDArray[np.uint8] = np.stack(images)[..., None]
    return stacked


def run_file(file: Converted, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What a file answers to images (n, side, side) uint8: shares (n, rows, columns, masks) and scores of the checks.

    One thread, by the same code that screens.
    """
    spec = InputSpec(height=images.shape[1], width=images.shape[2])
    roles = OutputRoles(scores=file.outputs["scores"], mask=file.outputs["mask"])
    wanted = NetworkSpec(input=spec, outputs=roles, labels=len(LUNG_CHECKS))
    network = Network(file.data, wanted, runtime=load_runtime(), threads=1)
    found = [network.run(image[..., None]) for image in images]
    masks = [np.stack([mask for mask in (one.mask, one.region) if mask is not None], axis=-1) for one in found]
    return np.stack(masks), np.stack([answer.scores for answer in found])


LUNG_QUANTISE: Final = Step(
    name="quantise",
    perform=quantise_step,
    reads=("calibration_images",),
    leaves=("int8.tflite", "float.tflite", "outputs.json"),
)


_TRUTH_COLOUR: Final = (60, 220, 90)
_FOUND_COLOUR: Final = (255, 90, 60)
_PANEL_SIDE: Final = 192


def draw_panel(path: Path, images: Iterable[Grey], masks: Iterable[Grey], found: Iterable[NDArray[np.float32]]) -> None:
    """Write a PNG with a row for each sample: image, true mask, and the share of lung that was predicted."""
    rows = [
        np.hstack([_sized(image), _sized(mask), _sized((share * 255).astype(np.uint8))])
        for image, mask, share in zip(images, masks, found, strict=True)
    ]
    write_atomically(path, png(np.vstack(rows)))


def overlay(image: Grey, truth: NDArray[np.bool_], found: NDArray[np.bool_], *, side: int = 256) -> Grey:
    """The image with the true outline in green and the one found in red: (side, side, 3) uint8."""
    drawn = np.repeat(np.asarray(Image.fromarray(image).resize((side, side)))[..., None], 3, axis=2)
    for mask, colour in ((truth, _TRUTH_COLOUR), (found, _FOUND_COLOUR)):
        sized = np.asarray(Image.fromarray(mask).resize((side, side), Image.Resampling.NEAREST))
        drawn[sized & ~ndimage.binary_erosion(sized)] = colour
    return drawn


def png(pixels: Grey) -> bytes:
    """A picture (rows, columns) or (rows, columns, 3) uint8 as the bytes of a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _sized(image: Grey) -> Grey:
    return np.asarray(Image.fromarray(image).resize((_PANEL_SIDE, _PANEL_SIDE), Image.Resampling.BILINEAR))

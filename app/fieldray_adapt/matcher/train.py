"""The train and quantise steps of a matcher: crops of pairs, templates at random places, averaged weights.

All randomness depends on (seed, epoch), so a training that was killed resumes exactly. What it ends with becomes an
int8 and a float file for whole images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.local_contrast import locally_normalised
from fieldray_adapt.engine import CHECKPOINT, Checkpoint
from fieldray_adapt.files import digest
from fieldray_adapt.lungs.pair_augmentation import augment_pair
from fieldray_adapt.matcher.dataset import MatcherData, data_of
from fieldray_adapt.matcher.engine import MatcherEngine, Step, specification_of
from fieldray_adapt.matcher.recipe import MatcherRecipe, recipe_of
from fieldray_adapt.quantise import equalise, quantise, to_float_file
from fieldray_adapt.run import Run
from fieldray_adapt.run import Step as RunStep
from fieldray_adapt.specification import Weights, save_weights
from fieldray_adapt.steps import trained_weights, write_files
from fieldray_adapt.training import Progress, TrainingState, cosine_rate, share_of_some, train_epochs

Grey = NDArray[np.uint8]
_WARM_UP: Final = 0.05
_VALIDATION_STEPS: Final = 8
_MARGIN: Final = 1.25
"""Changes move what lies about a crop into it, so that more than the crop is changed."""


def train_step(run: Run) -> Mapping[str, Any]:
    """Train the encoder; weights.npz and history.json. Raises UsageProblem, StorageProblem."""
    recipe = recipe_of(run)
    weights, history = train(
        recipe,
        data_of(run),
        folder=run.folder("train"),
        progress=lambda row: run.tell_epoch(run.folder("train"), row),
    )
    save_weights(run.folder("train") / "weights.npz", weights)
    run.write("train", "history.json", history)
    return history[-1]


def train(
    recipe: MatcherRecipe,
    data: MatcherData,
    *,
    folder: Path,
    progress: Progress = lambda _: None,
) -> tuple[Weights, list[dict[str, Any]]]:
    """Train, or resume this very training from the folder's checkpoint; averaged weights, and figures by epoch.

    Raises UsageProblem `training_diverged` when a loss is not a number, StorageProblem.
    """
    training = recipe.training
    key = digest(asdict(recipe.network), asdict(training), asdict(recipe.augmentation), data.priors, data.parts)
    checkpoint, engine = Checkpoint(folder / CHECKPOINT, every_s=0), MatcherEngine(recipe.network, training)
    state = TrainingState(engine.weights())
    state.resume(checkpoint, engine, key=key)
    train_epochs(
        MatcherTask(recipe, data, engine),
        engine,
        state,
        until=training.epochs,
        epochs=training.epochs,
        facts={},
        checkpoint=checkpoint,
        key=key,
        progress=progress,
    )
    return state.average, state.history


class MatcherTask:
    """Steps of pairs, and the same validation pairs after each epoch."""

    def __init__(self, recipe: MatcherRecipe, data: MatcherData, engine: MatcherEngine) -> None:
        self._training, self._engine, self._found = recipe.training, engine, list[tuple[float, float, float]]()
        self._sampler, seen = Sampler(recipe, data, "training"), Sampler(recipe, data, "validation")
        self._seen = [
            seen.step(np.random.default_rng((recipe.training.seed, 1, n)), n) for n in range(_VALIDATION_STEPS)
        ]

    def steps(self, epoch: int) -> Iterator[float]:
        """As `TrainingTask`."""
        training = self._training
        generator = np.random.default_rng((training.seed, 0, epoch))
        self._found.clear()
        for number in range(training.steps_per_epoch):
            done = (epoch + number / training.steps_per_epoch) / training.epochs
            rate = cosine_rate(training.learning_rate, done, warm_up=_WARM_UP)
            self._found.append(self._engine.step(self._sampler.step(generator, number), learning_rate=rate))
            yield self._found[-1][0]

    def share(self, steps: int) -> float:
        """As `TrainingTask`."""
        return share_of_some(steps)

    def validate(self, average: Weights, _epoch: int) -> dict[str, Any]:
        """Mean P1 - P2 and |P1| of dissimilar templates, of the epoch and on the validation pairs."""
        kept = self._engine.weights()
        self._engine.set_weights(average)
        means = np.mean(self._found, axis=0), np.mean([self._engine.look(step) for step in self._seen], axis=0)[1:]
        self._engine.set_weights(kept)
        names = ("loss", "gap", "stray", "validation_gap", "validation_stray")
        return {name: round(float(mean), 4) for name, mean in zip(names, np.concatenate(means), strict=True)}


class Sampler:
    """Steps drawn from the pairs of one part. It moves and recolours images, and keeps none of the motions."""

    def __init__(self, recipe: MatcherRecipe, data: MatcherData, part: str) -> None:
        self._recipe, self._data, self.training = recipe, data, recipe.training
        own = data.of(part)
        self._by_patient = {name: own[data.patients[own] == name] for name in sorted(set(data.patients[own]))}

    def step(self, generator: np.random.Generator, number: int) -> Step:
        """Step `number`: pairs of different patients, and places of templates that have the reach around them."""
        training = self._recipe.training
        names = list(self._by_patient)
        count = min(training.pairs_per_step, len(names))
        drawn = [names[place] for place in generator.permutation(len(names))[:count]]
        pairs = [self._pair(int(generator.choice(self._by_patient[name])), generator) for name in drawn]
        template = training.templates[number % len(training.templates)]
        places = training.crop_side - template - training.reach
        shape = (count * training.templates_per_pair, 2)
        return Step(
            priors=np.stack([prior for prior, _ in pairs]),
            currents=np.stack([current for _, current in pairs]),
            owners=np.repeat(np.arange(count, dtype=np.int32), training.templates_per_pair),
            corners=generator.integers(training.reach, places + 1, shape).astype(np.int32),
            template=template,
        )

    def _pair(self, index: int, generator: np.random.Generator) -> tuple[Grey, Grey]:
        """The same part of both images, or of one image twice, each changed by itself."""
        prior, current = self._data.priors[index], self._data.currents[index]
        if generator.random() < self._recipe.training.same_image:
            prior = current = (prior, current)[int(generator.integers(2))]
        side = prior.shape[0]
        wide = min(side, round(self._recipe.training.crop_side * _MARGIN))
        # The middle is drawn more often than the border, which shows air, letters and collimation.
        top, left = (round((side - wide) * generator.beta(1.5, 1.5)) for _ in range(2))
        parts = [image[top : top + wide, left : left + wide] for image in (prior, current)]
        first, second = (self._changed(part, generator) for part in parts)
        return first, second

    def _changed(self, part: Grey, generator: np.random.Generator) -> Grey:
        changed = augment_pair(part, part, self._recipe.augmentation, generator=generator)[0]
        start, side = (len(part) - self._recipe.training.crop_side) // 2, self._recipe.training.crop_side
        normalised = locally_normalised(changed, radius_px=self._recipe.network.local_radius)
        return normalised[start : start + side, start : start + side]


MATCHER_TRAIN: Final = RunStep(
    name="train",
    perform=train_step,
    reads=("network", "training", "augmentation"),
    leaves=("weights.npz", "history.json"),
)


def quantise_step(run: Run) -> Mapping[str, Any]:
    """Write int8.tflite, float.tflite, and which output of each is what."""
    recipe = recipe_of(run)
    specification, images = (
        specification_of(recipe.network, side=recipe.input.height),
        representative(recipe, data_of(run)),
    )
    weights = equalise(specification, trained_weights(run), representative=images)
    integer = quantise(specification, weights, representative=images)
    return write_files(run, {"float": to_float_file(specification, weights), "int8": integer})


def representative(recipe: MatcherRecipe, data: MatcherData) -> NDArray[np.uint8]:
    """Training images as the encoder meets them, changed and locally normalised: (n, side, side, 1)."""
    generator, own = np.random.default_rng(recipe.training.seed), data.of("training")
    images = []
    for index in generator.permutation(own)[: recipe.calibration_images]:
        image = (data.priors, data.currents)[int(generator.integers(2))][index]
        changed = augment_pair(image, image, recipe.augmentation, generator=generator)[0]
        images.append(locally_normalised(changed, radius_px=recipe.network.local_radius))
    stacked: NDArray[np.uint8] = np.stack(images)[..., None]
    return stacked


MATCHER_QUANTISE: Final = RunStep(
    name="quantise",
    perform=quantise_step,
    reads=("calibration_images",),
    leaves=("int8.tflite", "float.tflite", "outputs.json"),
)

"""The train and quantise steps of a matcher: crops of pairs, templates at random places, averaged weights.

All randomness depends on (seed, epoch), so a training that was killed resumes exactly. What it ends with becomes an
int8 and a float file for whole images.
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

from fieldray.domain.local_contrast import locally_normalised
from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.engine import CHECKPOINT, Checkpoint, Kept
from fieldray_adapt.files import digest, write_atomically
from fieldray_adapt.lungs.pair_augmentation import augment_pair
from fieldray_adapt.matcher.dataset import MatcherData, data_of
from fieldray_adapt.matcher.engine import MatcherEngine, Step, specification_of
from fieldray_adapt.matcher.recipe import MatcherRecipe, recipe_of
from fieldray_adapt.quantise import equalise, quantise, to_float_file
from fieldray_adapt.run import Run
from fieldray_adapt.run import Step as RunStep
from fieldray_adapt.specification import Weights, save_weights
from fieldray_adapt.steps import trained_weights

Grey = NDArray[np.uint8]
_WARM_UP: Final = 0.05
_AVERAGED_EVERY: Final = 4
_LONGEST_MEAN: Final = 0.98
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
    progress: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> tuple[Weights, list[dict[str, Any]]]:
    """Train, or resume this very training from the folder's checkpoint; averaged weights, and figures by epoch.

    Raises UsageProblem `training_diverged` when a loss is not a number, StorageProblem.
    """
    training = recipe.training
    key = digest(asdict(recipe.network), asdict(training), asdict(recipe.augmentation), data.priors, data.parts)
    checkpoint = Checkpoint(folder / CHECKPOINT, every_s=0)
    engine = MatcherEngine(recipe.network, training)
    state = _State(engine.weights(), [])
    if kept := checkpoint.restore(engine, key=key):
        state = _State(dict(kept.arrays), kept.facts["history"], kept.facts["steps"])
    sampler = Sampler(recipe, data, "training")
    seen = [Sampler(recipe, data, "validation").step(np.random.default_rng((training.seed, 1, n)), n)
            for n in range(_VALIDATION_STEPS)]  # fmt: skip
    for epoch in range(len(state.history), training.epochs):
        started = time.monotonic()
        row = {"epoch": epoch + 1, "epochs": training.epochs, **_run_epoch(engine, sampler, state, epoch)}
        row |= _look(engine, seen, state.average)
        state.history.append(row | {"seconds": round(time.monotonic() - started, 1)})
        facts = {"history": state.history, "steps": state.steps}
        checkpoint.save_if_due(engine, Kept(facts=facts, arrays=state.average), key=key)
        progress(state.history[-1])
    return state.average, state.history


@dataclass(slots=True)
class _State:
    """What a training has come to: averaged weights, figures by epoch, steps since the beginning."""

    average: Weights
    history: list[dict[str, Any]]
    steps: int = 0


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


def _run_epoch(engine: MatcherEngine, sampler: Sampler, state: _State, epoch: int) -> dict[str, float]:
    training = sampler.training
    generator = np.random.default_rng((training.seed, 0, epoch))
    found = []
    for number in range(training.steps_per_epoch):
        rate = _rate(training.learning_rate, (epoch + number / training.steps_per_epoch) / training.epochs)
        found.append(engine.step(sampler.step(generator, number), learning_rate=rate))
        if not math.isfinite(found[-1][0]):
            raise UsageProblem(reason("training_diverged", epoch=epoch + 1, step=number + 1))
        state.steps += 1
        if state.steps % _AVERAGED_EVERY == 0:
            _average(state.average, engine.weights(), count=state.steps // _AVERAGED_EVERY)
    return dict(zip(("loss", "gap", "stray"), (round(float(mean), 4) for mean in np.mean(found, axis=0)), strict=True))


def _look(engine: MatcherEngine, seen: list[Step], average: Weights) -> dict[str, float]:
    """Mean P1 - P2 and |P1| of dissimilar templates on the validation pairs, with the averaged weights."""
    kept = engine.weights()
    engine.set_weights(average)
    _, gap, stray = np.mean([engine.look(step) for step in seen], axis=0)
    engine.set_weights(kept)
    return {"validation_gap": round(float(gap), 4), "validation_stray": round(float(stray), 4)}


def _average(average: Weights, current: Weights, *, count: int) -> None:
    """The running mean; young means forget faster, so that the initial weights leave no trace."""
    share = np.float32(1 - min(_LONGEST_MEAN, count / (count + 9)))
    for name, array in current.items():
        np.add(average[name], share * (array - average[name]), out=average[name])


def _rate(highest: float, done: float) -> float:
    """A rise, then a half cosine to 0."""
    if done < _WARM_UP:
        return highest * max(done, 0.002) / _WARM_UP
    return highest * (1 + math.cos(math.pi * (done - _WARM_UP) / (1 - _WARM_UP))) / 2


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
    files = {
        "float": to_float_file(specification, weights),
        "int8": quantise(specification, weights, representative=images),
    }
    for name, file in files.items():
        write_atomically(run.folder("quantise") / f"{name}.tflite", file.data)
    run.write("quantise", "outputs.json", {name: file.outputs for name, file in files.items()})
    return {f"{name}_bytes": len(file.data) for name, file in files.items()}


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

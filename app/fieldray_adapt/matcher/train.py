"""The training of a matcher: its pairs, roughly aligned, and the data, train and quantise steps.

One image laid over another roughly: shift, scale along each axis, rotation, by the best correlation of both, small.

Two images of one patient may lie a fifth of their side apart. What learns or matches in windows of some tens of pixels
needs them nearer than that. The result is an image that has been moved: nobody is told how.

The data step of a matcher: pairs of images of one patient, read once, split by patient, laid over each other.

What is kept of a pair is two images. How the one had to be moved to lie over the other is not kept.

The train and quantise steps of a matcher: crops of pairs, templates at random places, averaged weights.

All randomness depends on (seed, epoch), so a training that was killed resumes exactly. What it ends with becomes an
int8 and a float file for whole images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import fft, ndimage

from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.augmentation import augment_pair
from fieldray_adapt.engine import Progress, cosine_rate, share_of_some, train_whole
from fieldray_adapt.files import digest, save_arrays
from fieldray_adapt.image_set import read_every_image, rows_digest, with_digests
from fieldray_adapt.layouts import Row, Wrong, parts_of, table_rows
from fieldray_adapt.matcher.engine import MatcherEngine, Step, specification_of
from fieldray_adapt.matcher.recipe import MatcherRecipe, PairSource, locally_normalised, recipe_of
from fieldray_adapt.quantise import equalise, quantise, to_float_file
from fieldray_adapt.run import Run
from fieldray_adapt.run import Step as RunStep
from fieldray_adapt.specification import Weights, save_weights
from fieldray_adapt.steps import trained_weights, write_files
from fieldray_adapt.tables import Problem

Grey = NDArray[np.uint8]
Matrix = tuple[float, float, float, float, float, float]
_SIDE: Final = 64
_SCALES: Final = (-0.24, -0.16, -0.08, 0.0, 0.08, 0.16, 0.24)
"""In powers of e; first alike along both axes, then apart by a step."""
_APART: Final = (-0.08, 0.0, 0.08)
_DEGREES: Final = (-6.0, -3.0, 0.0, 3.0, 6.0)
_FINE, _COARSE = 1.0, 8.0
_LEAST_SHARED: Final = 0.5
_LEAST: Final = 1e-9
_SIZE: Final = (2 * _SIDE, 2 * _SIDE)


def roughly_aligned(moving: Grey, fixed: Grey) -> tuple[Grey, float]:
    """The moving image over the fixed one, both (side, side) uint8, and how well they then correlate, -1..1."""
    target, small = _Target(fixed), _small(moving)
    alike = [(degrees, scale, scale) for degrees in _DEGREES for scale in _SCALES]
    degrees, down, across = max(alike, key=lambda motion: target.compare(small, motion)[0])
    nearby = [(degrees, down + more, across + other) for more in _APART for other in _APART]
    score, matrix = max((target.compare(small, motion) for motion in nearby), key=lambda found: found[0])
    scale = len(fixed) / _SIDE
    whole = (matrix[0], matrix[1], matrix[2] * scale, matrix[3], matrix[4], matrix[5] * scale)
    return _moved(moving, whole), score


class _Target:
    """The fixed image, small, in spectra that all motions are compared with."""

    def __init__(self, fixed: Grey) -> None:
        details = _details(_small(fixed))
        self._spectra = [fft.rfft2(plane, _SIZE) for plane in (details, details**2, np.ones_like(details))]

    def compare(self, small: Grey, motion: tuple[float, float, float]) -> tuple[float, Matrix]:
        """How well an image fits that was turned and scaled so, at the best shift, and the whole motion."""
        degrees, down, across = motion
        matrix = _about_middle(degrees, math.exp(down), math.exp(across))
        score, (rows, columns) = self._best_shift(_details(_moved(small, matrix)))
        return score, _shifted(matrix, rows, columns)

    def _best_shift(self, moved: NDArray[np.float64]) -> tuple[float, tuple[int, int]]:
        """The cosine of what both share, of those shifts at which they share half their area or more."""
        values, squares, inside = self._spectra
        own, own_squares, own_inside = (
            np.conj(fft.rfft2(plane, _SIZE)) for plane in (moved, moved**2, np.ones_like(moved))
        )
        products = fft.irfft2(values * own, _SIZE)
        norms = fft.irfft2(squares * own_inside, _SIZE) * fft.irfft2(inside * own_squares, _SIZE)
        is_wide = fft.irfft2(inside * own_inside, _SIZE) > _LEAST_SHARED * _SIDE**2
        cosines = np.where(is_wide, products / np.sqrt(np.maximum(norms, _LEAST)), -1.0)
        row, column = np.unravel_index(int(cosines.argmax()), _SIZE)
        rows, columns = ((int(place) + _SIDE) % (2 * _SIDE) - _SIDE for place in (row, column))
        return float(cosines.max()), (rows, columns)


def _small(image: Grey) -> Grey:
    return np.asarray(Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BOX))


def _details(image: Grey) -> NDArray[np.float64]:
    values = image.astype(np.float64)
    return np.asarray(ndimage.gaussian_filter(values, _FINE) - ndimage.gaussian_filter(values, _COARSE))


def _about_middle(degrees: float, down: float, across: float) -> Matrix:
    """From a place (x, y) of the result to one of the source, in pixels of the small image."""
    cosine, sine, middle = math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), _SIDE / 2
    a, b, d, e = cosine * across, sine * down, -sine * across, cosine * down
    return (a, b, middle - (a + b) * middle, d, e, middle - (d + e) * middle)


def _shifted(matrix: Matrix, rows: int, columns: int) -> Matrix:
    """The result moved down and right by so many pixels."""
    a, b, c, d, e, f = matrix
    return (a, b, c - a * columns - b * rows, d, e, f - d * columns - e * rows)


def _moved(image: Grey, matrix: Matrix) -> Grey:
    picture = Image.fromarray(image)
    return np.asarray(
        picture.transform(picture.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)
    )


_ARRAYS: Final = "pairs.npz"
_REPORTED: Final = 20
_PARTS: Final = ("training", "validation", "test")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MatcherData:
    """Every pair, at the size of the input.

    Attributes
    ----------
    priors, currents
        (n, side, side) uint8; a prior is roughly laid over its current.
    parts, patients, sources
        Of each pair; the part is training, validation or test.
    is_far
        Whether the recipe calls their gap in time far.
    likeness
        How well the small images correlate when laid over each other, -1..1.
    """

    priors: NDArray[np.uint8]
    currents: NDArray[np.uint8]
    parts: NDArray[np.str_]
    patients: NDArray[np.str_]
    sources: NDArray[np.str_]
    is_far: NDArray[np.bool_]
    likeness: NDArray[np.float32]

    def of(self, part: str) -> NDArray[np.int64]:
        """Which pairs are in a part."""
        return np.flatnonzero(self.parts == part)


@dataclass(frozen=True, slots=True)
class ImagePair:
    """Two images of one patient, before they are read."""

    prior: Row
    current: Row
    is_far: bool = False

    def problem(self) -> Reason | None:
        """What is wrong with it."""
        for row in (self.prior, self.current):
            if not row.path.is_file():
                return reason("data_unreadable", path=row.path, detail=f"it is not there ({row.origin})")
        return None


def find_pairs(source: PairSource, wrong: Wrong) -> list[ImagePair]:
    """The pairs of one source; `wrong` gets everything that is wrong with its table."""
    pairs = []
    needed = ("prior", "current", "patient_id", *(("gap",) if source.far_from is not None else ()))
    for line, cells in table_rows(source, wrong, needed):
        if detail := _fault(cells, source):
            wrong(reason("data_row", path=source.path, line=line, detail=detail))
            continue
        prior, current = (
            Row(
                path=source.path.parent / cells[name],
                source=source.name,
                classes=frozenset(),
                patient=cells["patient_id"],
                origin=f"{source.path.name}, line {line}",
            )
            for name in ("prior", "current")
        )
        is_far = source.far_from is not None and float(cells["gap"]) >= source.far_from
        pairs.append(ImagePair(prior, current, is_far=is_far))
    return pairs


def _fault(cells: Mapping[str, str], source: PairSource) -> str:
    if not cells["patient_id"]:
        return "it names no patient"
    if source.far_from is not None and not _is_number(cells["gap"]):
        return f"the gap {cells['gap']!r} is no number"
    return ""


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def matcher_problems(recipe: MatcherRecipe) -> list[Problem]:
    """What is wrong with the files that a recipe names, each problem at the recipe's key that it is about."""
    problems: list[Problem] = []
    pairs: list[ImagePair] = []
    for number, source in enumerate(recipe.pairs):
        wrong: list[Reason] = []
        found = find_pairs(source, wrong.append)
        wrong += [why for pair in found if (why := pair.problem())]
        if not found and not wrong:
            wrong.append(reason("data_empty", name=source.name, path=source.path))
        problems += [Problem(("pairs", number), f"cannot be used: {why.text}") for why in wrong[:_REPORTED]]
        pairs += found
    if not problems:
        people = _people(recipe, pairs)
        empty = [part for part in _PARTS if not people[part]]
        problems += [Problem(("split",), f"leaves no pair for {', '.join(empty)}")] if empty else []
        if not empty and len(people["training"]) < recipe.training.pairs_per_step:
            problems.append(Problem(("training", "pairs_per_step"), "must not be above the patients to train on"))
    return problems


def _people(recipe: MatcherRecipe, pairs: Sequence[ImagePair]) -> dict[str, set[str]]:
    parts = parts_of([pair.prior for pair in pairs], recipe.split, ())
    return {
        part: {pair.prior.patient for pair, own in zip(pairs, parts, strict=True) if own == part} for part in _PARTS
    }


def data_step(run: Run) -> Mapping[str, Any]:
    """Read the images, lay each prior over its current, split by patient; pairs.npz and facts.json.

    Raises UsageProblem for an image that cannot be read, StorageProblem.
    """
    recipe = recipe_of(run)
    pairs = _pairs(recipe)
    images = _images(run, pairs)
    priors, likeness = [], []
    for number, pair in enumerate(pairs):
        moved, score = roughly_aligned(images[pair.prior.path], images[pair.current.path])
        priors.append(moved)
        likeness.append(score)
        run.progress("pairs", number + 1, len(pairs))
    arrays = {
        "priors": np.stack(priors),
        "currents": np.stack([images[pair.current.path] for pair in pairs]),
        "parts": np.array(parts_of([pair.prior for pair in pairs], recipe.split, ())),
        "patients": np.array([pair.prior.patient for pair in pairs]),
        "sources": np.array([pair.prior.source for pair in pairs]),
        "is_far": np.array([pair.is_far for pair in pairs]),
        "likeness": np.array(likeness, np.float32),
    }
    save_arrays(run.folder("data") / _ARRAYS, arrays)
    facts = _facts(arrays)
    run.write(
        "data", "facts.json", facts | {"data_sha256": _outside(run), "split_sha256": digest(list(arrays["parts"]))}
    )
    return dict(facts["pairs"])


def data_of(run: Run) -> MatcherData:
    """What the data step left. Raises UsageProblem `step_missing`."""
    with run.arrays("data", _ARRAYS) as arrays:
        return MatcherData(**arrays)


def _pairs(recipe: MatcherRecipe) -> list[ImagePair]:
    wrong: list[Reason] = []
    pairs = [pair for source in recipe.pairs for pair in find_pairs(source, wrong.append)]
    for why in wrong:
        raise UsageProblem(why)
    return pairs


def _rows(pairs: Sequence[ImagePair]) -> Iterator[Row]:
    """Each image once, though it may be in two pairs."""
    yield from {row.path: row for pair in pairs for row in (pair.prior, pair.current)}.values()


def _images(run: Run, pairs: Sequence[ImagePair]) -> dict[Path, NDArray[np.uint8]]:
    cache = run.folder("data") / "images.npz"
    rows, images = read_every_image(with_digests(_rows(pairs)), run.recipe.input, cache=cache, progress=run.progress)
    return {row.path: image for row, image in zip(rows, images, strict=True)}


def _facts(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    parts, patients, sources = (arrays[name] for name in ("parts", "patients", "sources"))
    return {
        "pairs": {part: int((parts == part).sum()) for part in _PARTS},
        "patients": {part: len(set(patients[parts == part])) for part in _PARTS},
        "sources": {str(name): int((sources == name).sum()) for name in sorted(set(sources))},
    }


def _outside(run: Run) -> str:
    """Of everything that the step reads: images and tables."""
    pairs = _pairs(recipe_of(run))
    couples = [[str(row.path.name) for row in (pair.prior, pair.current)] for pair in pairs]
    return digest(rows_digest(with_digests(_rows(pairs))), couples)


MATCHER_DATA: Final = RunStep(
    name="data",
    perform=data_step,
    reads=("input", "pairs", "split"),
    outside=_outside,
    leaves=(_ARRAYS, "facts.json"),
)


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
    engine = MatcherEngine(recipe.network, training)
    return train_whole(
        MatcherTask(recipe, data, engine),
        engine,
        average=engine.weights(),
        epochs=training.epochs,
        folder=folder,
        key=key,
        progress=progress,
    )


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

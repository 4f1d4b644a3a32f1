"""The evaluate step of a lung-field recipe, which measures the fit of masks and the errors of the image checks.

The image checks are: is the image a frontal chest, rotated, inverted, mirrored? Their thresholds are chosen on
validation images. All figures are measured on images that were used neither for training nor for choices. Intervals are
95 % over patients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from PIL import Image

from fieldray.domain.metrics import Share, bootstrap_interval, share_of_hits
from fieldray.domain.model import LUNG_NETWORK_CHECKS
from fieldray_adapt.data.images_for_checks import OOD_KIND_WEIGHTS, ImagesForImageChecks, reorient
from fieldray_adapt.evaluation.figures import Interval
from fieldray_adapt.lungs.dataset import LungData, load_lung_data
from fieldray_adapt.lungs.engine import MaskEngine
from fieldray_adapt.lungs.figures import (
    ImageCheckFigures,
    ImageCheckRates,
    LungFigures,
    MaskFitDifference,
    SourceMaskFits,
)
from fieldray_adapt.lungs.mask_fit import REFERENCE_IMAGE_SIDE_PIXELS, MaskFit, measure_fit
from fieldray_adapt.lungs.masks import read_mask
from fieldray_adapt.lungs.quantise import run_tflite_file
from fieldray_adapt.lungs.recipe import LungRecipe, lung_recipe_of
from fieldray_adapt.run import Run, Step, StepFacts
from fieldray_adapt.training.steps import read_converted_file, trained_weights

PredictMasksAndChecks = Callable[[NDArray[np.uint8]], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""A function that runs a lung-field network on images (n, side, side) uint8.

Returns masks (n, rows, columns, masks), and scores (n, checks) of the image checks, all in 0..1.
"""
_MEASURES: Final = ("dice", "jaccard", "average_distance", "distance_95")
_VALIDATION_CHESTS: Final = 240
_TEST_CHESTS: Final = 120
_OOD_IMAGES: Final = 60
_FRONTAL_BOUNDS: Final = (0.2, 0.8)
_FRONTAL_STEPS: Final = 61


def evaluate_step(run: Run) -> StepFacts:
    """Evaluate a lung-field network. Returns the mean Dice of each source.

    Writes metrics.json, fits.json with the fit of each image's mask, and for a compact network thresholds.json.
    """
    recipe, data = lung_recipe_of(run), load_lung_data(run)
    answers = _answers(run)
    fits = {name: measure_mask_fits(recipe, data, answer) for name, answer in answers.items()}
    best = fits["int8" if "int8" in fits else "trained"]
    metrics = LungFigures(masks={name: summarise_mask_fits(data, found) for name, found in fits.items()})
    if "int8" in fits:
        checks, difference = (
            measure_image_checks(recipe, data, answers["int8"]),
            _difference(fits["int8"], fits["float"]),
        )
        metrics = structs.replace(metrics, int8_less_float=difference, **structs.asdict(checks))
        run.write_step_json("evaluate", "thresholds.json", checks.thresholds)
    run.write_step_json("evaluate", "fits.json", {str(data.image_paths[index]): fit for index, fit in best.items()})
    run.write_step_json("evaluate", "metrics.json", metrics)
    return {name: found.dice.value for name, found in next(iter(metrics.masks.values())).items()}


def _answers(run: Run) -> dict[str, PredictMasksAndChecks]:
    """Return the functions that predict masks, by network: "int8" and "float", or "trained" (published network)."""
    recipe = lung_recipe_of(run)
    if recipe.network.kind == "compact":
        files = {name: read_converted_file(run, name) for name in ("int8", "float")}
        return {name: partial(run_tflite_file, file) for name, file in files.items()}
    engine = MaskEngine(recipe.network, recipe.input.height, recipe.training)
    engine.set_weights(trained_weights(run))
    return {"trained": engine.predict_masks_and_checks}


def enlarge_mask(shares: NDArray[np.float32], shape: tuple[int, ...], threshold: float) -> NDArray[np.bool_]:
    """Return a predicted mask in the size of its image, as (rows, columns) bool.

    Parameters
    ----------
    shares
        The predicted share of lung in each pixel of the network's mask, 0..1. Shares are interpolated linearly.
    shape
        Rows and columns of the image.
    threshold
        A pixel of the image counts as lung if its share of lung is at or above this value, 0..1.
    """
    rows, columns = shape
    sized = Image.fromarray(shares).resize((columns, rows), Image.Resampling.BILINEAR)
    return np.asarray(sized) >= threshold


def measure_mask_fits(
    recipe: LungRecipe, data: LungData, predict: PredictMasksAndChecks, *, parts: Sequence[str] = ("test", "evaluate")
) -> dict[int, MaskFit]:
    """Measure how well predicted masks fit the true masks (Dice, Jaccard, distances), at the size of the true masks.

    Returns the fit for each image of `parts`, by the index of the image in `data`.
    """
    chosen = np.concatenate([data.indices_of_part(part) for part in parts])
    if not len(chosen):
        return {}
    shares, _ = predict(data.images[chosen])
    fits = {}
    for index, found in zip(chosen, shares, strict=True):
        truth = read_mask(Path(data.mask_paths[index]))
        own = select_mask(recipe, data, index, found)
        fits[int(index)] = measure_fit(enlarge_mask(own, truth.shape, recipe.evaluation.mask_threshold), truth)
    return fits


def select_mask(
    recipe: LungRecipe, data: LungData, index: int, predicted_masks: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the predicted mask (rows, columns) to compare with an image's true mask: visible lung or lung region.

    `predicted_masks` (rows, columns, masks) are the network's masks for the image with index `index` in `data`.
    """
    return np.ascontiguousarray(predicted_masks[..., int(data.image_sources[index] in recipe.region_source_names)])


def summarise_mask_fits(data: LungData, fits: Mapping[int, MaskFit]) -> dict[str, SourceMaskFits]:
    """Return a summary of the mask fits of each source, by the name of the source.

    A summary has the mean of each measure (such as Dice) with a 95 % interval, and the lowest Dice. `fits` comes from
    `measure_mask_fits`.
    """
    found = {}
    indices = np.array(list(fits), np.int64)
    for source in sorted(set(data.image_sources[indices])):
        own = [int(index) for index in indices if data.image_sources[index] == source]
        patients = [str(data.image_patients[index]) for index in own]
        means = {name: _mean([getattr(fits[index], name) for index in own], patients) for name in _MEASURES}
        share_of_width = {
            key: value / REFERENCE_IMAGE_SIDE_PIXELS * 100
            for key, value in structs.asdict(means["average_distance"]).items()
        }
        found[str(source)] = SourceMaskFits(
            images=len(own),
            patients=len(set(patients)),
            **means,
            average_distance_percent_of_width=Interval(**share_of_width),
            least_dice=min(fits[index].dice for index in own),
        )
    return found


def _mean(values: list[float], patients: list[str]) -> Interval:
    scores = np.array(values)
    none = np.zeros(len(scores), np.bool_)
    value, low, high = bootstrap_interval(lambda drawn, _: float(drawn.mean()), scores, none, patients=patients)
    return Interval(value=value, low=low, high=high)


def _difference(integer: Mapping[int, MaskFit], whole: Mapping[int, MaskFit]) -> MaskFitDifference:
    each = np.array([integer[index].dice - whole[index].dice for index in integer])
    return MaskFitDifference(dice=float(each.mean()), largest=float(np.abs(each).max()))


def measure_image_checks(recipe: LungRecipe, data: LungData, predict: PredictMasksAndChecks) -> ImageCheckFigures:
    """Choose the thresholds of the image checks on validation images, and measure the checks on test images."""
    validation = data.images_for_image_checks("validation", {}, side=recipe.input.height)
    thresholds = dict.fromkeys(LUNG_NETWORK_CHECKS, 0.5)
    if validation is not None:
        chests = np.concatenate([images for images, _ in validation.chests_and_frequency_by_source.values()])
        refusable = np.concatenate([_ood_images_of(validation, kind, recipe) for kind in _kinds(validation)])
        thresholds = choose_check_thresholds(
            _evenly_spaced(chests, _VALIDATION_CHESTS), refusable, predict, no_alarm_share=recipe.evaluation.keeps
        )
    test = data.images_for_image_checks("test", {}, side=recipe.input.height)
    if test is None:
        return ImageCheckFigures(thresholds=thresholds)
    accepted = {
        name: measure_image_check_rates(images, predict, thresholds)
        for name, (images, _) in test.chests_and_frequency_by_source.items()
    }
    limit = thresholds[LUNG_NETWORK_CHECKS[0]]
    refused = {kind: _share(predict(_ood_images_of(test, kind, recipe))[1][:, 0] < limit) for kind in _kinds(test)}
    return ImageCheckFigures(thresholds=thresholds, chests=accepted, ood_images=refused)


def choose_check_thresholds(
    chests: NDArray[np.uint8], ood_images: NDArray[np.uint8], predict: PredictMasksAndChecks, *, no_alarm_share: float
) -> dict[str, float]:
    """Choose the threshold of each image check. Returns the thresholds by the name of the check.

    The threshold of "frontal chest" gives the largest sum of two shares: accepted chest images, and refused
    out-of-distribution images. The threshold of every other check is at least 0.5.

    Parameters
    ----------
    chests, ood_images
        Upright chest images, and out-of-distribution images, (n, side, side) uint8.
    no_alarm_share
        For each other check, such as "inverted": share of the chest images that score below the threshold, 0..1.
    """
    scores, strange = predict(chests)[1], predict(ood_images)[1][:, 0]
    tried = np.linspace(*_FRONTAL_BOUNDS, _FRONTAL_STEPS)
    balance = [(scores[:, 0] >= value).mean() + (strange < value).mean() for value in tried]
    others = np.quantile(scores[:, 1:], no_alarm_share, axis=0)
    found = {
        name: float(max(0.5, min(0.95, value))) for name, value in zip(LUNG_NETWORK_CHECKS[1:], others, strict=True)
    }
    return {LUNG_NETWORK_CHECKS[0]: float(tried[int(np.argmax(balance))]), **found}


def measure_image_check_rates(
    images: NDArray[np.uint8],
    predict: PredictMasksAndChecks,
    thresholds: Mapping[str, float],
    *,
    max_images: int = _TEST_CHESTS,
) -> ImageCheckRates:
    """Measure how often the image checks of a lung-field network are right, on at most `max_images` of the images.

    `images` are upright chest images (n, side, side) uint8. The returned shares are: accepted images, changed copies
    whose rotation, inversion or mirroring is noticed, and unchanged images that a check takes for changed.
    """
    images, limits = _evenly_spaced(images, max_images), np.array([thresholds[name] for name in LUNG_NETWORK_CHECKS])
    changes = {
        "rotated_90": partial(reorient, turns=1),
        "rotated_180": partial(reorient, turns=2),
        "rotated_270": partial(reorient, turns=3),
        "inverted": partial(reorient, is_inverted=True),
        "mirrored": partial(reorient, is_mirrored=True),
    }
    upright = predict(images)[1] >= limits
    rows = {"frontal_chest": _share(upright[:, 0])}
    rows["left_as_it_is"] = _share(upright[:, 0] & ~upright[:, 1:5].any(axis=1))
    for name, change in changes.items():
        held = predict(np.stack([change(image)[0] for image in images]))[1] >= limits
        rows[name] = _share(held[:, LUNG_NETWORK_CHECKS.index(name)])
        rows[f"{name}_false"] = _share(upright[:, LUNG_NETWORK_CHECKS.index(name)])
    return rows


def _kinds(images: ImagesForImageChecks) -> list[str]:
    return [*OOD_KIND_WEIGHTS, *(["files"] if len(images.ood_images) else [])]


def _ood_images_of(images: ImagesForImageChecks, kind: str, recipe: LungRecipe) -> NDArray[np.uint8]:
    """Return out-of-distribution images of a kind, such as "fractal". Equal arguments give equal images."""
    if kind == "files":
        return _evenly_spaced(images.ood_images, _OOD_IMAGES)
    generator, settings = np.random.default_rng(len(kind)), recipe.checks_augmentation
    return np.stack([images.draw_ood_image(settings, generator=generator, kind=kind) for _ in range(_OOD_IMAGES)])


def _share(hits: NDArray[np.bool_]) -> Share:
    return share_of_hits(hits, patients=[str(index) for index in range(len(hits))])


def _evenly_spaced(images: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Return at most `count` of the images, chosen at equal distances in the array."""
    if len(images) <= count:
        return images
    chosen: NDArray[np.uint8] = images[np.linspace(0, len(images) - 1, count).round().astype(int)]
    return chosen


LUNG_EVALUATE_STEP: Final = Step(
    name="evaluate",
    perform=evaluate_step,
    recipe_keys=("evaluation",),
    outputs=("metrics.json", "fits.json"),
)

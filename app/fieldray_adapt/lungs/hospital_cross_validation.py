"""Cross-validation of a lung-field recipe by hospital: each hospital is tested by a network trained without it.

The masks are divided by patient into one share for each hospital. A network is trained for each hospital, without that
hospital's chest images and without that share of the masks. So every mask is tested once by a network that was not
trained on the mask. The figures describe the recipe and not the network in the pack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.errors import UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.lungs.dataset import LungData, load_lung_data
from fieldray_adapt.lungs.engine import set_thread_count
from fieldray_adapt.lungs.evaluate import (
    measure_image_check_rates,
    measure_image_checks,
    measure_mask_fits,
    summarise_mask_fits,
)
from fieldray_adapt.lungs.figures import (
    ImageCheckRates,
    LeftOutHospitalFigures,
    LungCrossValidationFigures,
)
from fieldray_adapt.lungs.mask_fit import MaskFit
from fieldray_adapt.lungs.quantise import convert_lung_network, run_tflite_file
from fieldray_adapt.lungs.recipe import LungRecipe, lung_recipe_of
from fieldray_adapt.lungs.train import train
from fieldray_adapt.run import Run, Step, StepFacts

_HELD: Final = "held out"
_LEFT_OUT: Final = "left out"
_UNUSED: Final = "none"


def list_hospitals(recipe: LungRecipe) -> tuple[str, ...]:
    """Return the sorted names of a recipe's hospitals.

    Each group of chest images is a hospital, and each source of masks that may be used for training is a hospital.
    """
    masks = {source.name for source in recipe.masks if not source.evaluate_only}
    return tuple(sorted(masks | {source.group for source in recipe.chests}))


def without_hospital(recipe: LungRecipe, data: LungData, hospital_index: int) -> LungData:
    """Return the data for training a network without one hospital. Only the parts of the images differ from `data`.

    `hospital_index` is the index of the hospital in `list_hospitals`. Chest images of the hospital get the part "left
    out". Images with masks get these parts:

    - "held out": images of every n-th patient of all hospitals, beginning with patient `hospital_index`, for n
    hospitals. - "validation": all other images that are validation images in `data`. - "training": all other images,
    including the test images of `data`. - "evaluate", "none": images of sources for evaluation only; "evaluate" if the
    source is this hospital.
    """
    names = list_hospitals(recipe)
    learnt = data.image_parts != "evaluate"
    patients = sorted(set(data.image_patients[learnt]))
    fold = {patient: index % len(names) for index, patient in enumerate(patients)}
    held = np.array([fold.get(str(patient)) == hospital_index for patient in data.image_patients]) & learnt
    own = data.image_sources == names[hospital_index]
    images = np.where(data.image_parts == "validation", "validation", "training").astype("U16")
    images[~learnt] = np.where(own[~learnt], "evaluate", _UNUSED)
    images[held] = _HELD
    if not (images == "validation").any():
        images[np.flatnonzero(images == "training")[:1]] = "validation"
    groups = {source.name: source.group for source in recipe.chests}
    chests = data.chest_parts.astype("U16")
    chests[[groups[str(source)] == names[hospital_index] for source in data.chest_sources]] = _LEFT_OUT
    is_masks = any(source.name == names[hospital_index] and not source.evaluate_only for source in recipe.masks)
    return replace(data, image_parts=images, chest_parts=chests, masks_are_chests=not is_masks)


def leave_one_hospital_out_step(run: Run) -> StepFacts:
    """Train and evaluate one network for each hospital, without the images of that hospital. Writes metrics.json.

    Raises UsageProblem if the recipe's chest images come from fewer than two hospitals.
    """
    recipe, whole = lung_recipe_of(run), load_lung_data(run)
    names, chests = list_hospitals(recipe), sorted({source.group for source in recipe.chests})
    if len(chests) < 2:
        raise UsageProblem(reason("cross_one_hospital", found=", ".join(chests) or "-"))
    set_thread_count(recipe.training.threads)
    fits, found = dict[int, MaskFit](), dict[str, LeftOutHospitalFigures]()
    for number, name in enumerate(names):
        data, folder = without_hospital(recipe, whole, number), run.step_folder("cross") / str(number)
        weights, _ = train(recipe, data, folder=folder, progress=partial(run.report_epoch, folder))
        answer = partial(run_tflite_file, convert_lung_network(recipe, data, weights)["int8"])
        fits |= measure_mask_fits(recipe, data, answer, parts=(_HELD, "evaluate"))
        checks = measure_image_checks(recipe, data, answer)
        unseen = {
            source: measure_image_check_rates(images, answer, checks.thresholds, max_images=len(images))
            for source, images in _unseen(data, name).items()
        }
        found[name] = LeftOutHospitalFigures(
            unseen=unseen, ood_images=checks.ood_images or {}, thresholds=checks.thresholds
        )
    run.write_step_json(
        "cross", "metrics.json", LungCrossValidationFigures(masks=summarise_mask_fits(whole, fits), hospitals=found)
    )
    return {f"{name}_accepted": _accepted(one.unseen) for name, one in found.items()}


def _unseen(data: LungData, name: str) -> dict[str, NDArray[np.uint8]]:
    """Return the images of the hospital `name` that were not used for training, by source.

    The images are chest images, and images whose masks were held out: (n, side, side) uint8.
    """
    sources = data.chest_sources[data.chest_parts == _LEFT_OUT]
    found = {str(one): data.chests[data.chest_sources == one] for one in sorted(set(sources))}
    held = (data.image_parts == _HELD) & (data.image_sources == name)
    return found | ({name: data.images[held]} if held.any() else {})


def _accepted(unseen: Mapping[str, ImageCheckRates]) -> float:
    rows = [one["frontal_chest"] for one in unseen.values()]
    accepted, asked = sum(row.count for row in rows), sum(row.of for row in rows)
    return float(accepted / asked)


LUNG_CROSS_VALIDATION_STEP: Final = Step(
    name="cross",
    perform=leave_one_hospital_out_step,
    recipe_keys=("network", "training", "augmentation", "checks_augmentation", "calibration_images", "evaluation"),
    outputs=("metrics.json",),
)

"""Cross-validation of lung fields by hospitals: how a recipe's network does where it was never trained.

As many networks as there are hospitals. Each learns from no chest image of one hospital and from none of a part of the
masks, which are divided by patient: every mask that is learnt from is also measured once, by a network that never saw
it. What is measured is the recipe, not the one network that ships.
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
from fieldray_adapt.lungs.dataset import LungData, data_of
from fieldray_adapt.lungs.engine import use_threads
from fieldray_adapt.lungs.evaluate import check_rates, checks_of, fits_of, summary
from fieldray_adapt.lungs.figures import (
    CheckRates,
    LeftOutFigures,
    LungCrossFigures,
)
from fieldray_adapt.lungs.mask_fit import Fit
from fieldray_adapt.lungs.quantise import run_file, to_files
from fieldray_adapt.lungs.recipe import LungRecipe, recipe_of
from fieldray_adapt.lungs.train import train
from fieldray_adapt.run import Facts, Run, Step

_HELD: Final = "held out"
_LEFT_OUT: Final = "left out"
_UNUSED: Final = "none"


def hospitals(recipe: LungRecipe) -> tuple[str, ...]:
    """The groups of the chest images and the sources of masks that are learnt, by name."""
    masks = {source.name for source in recipe.masks if not source.evaluate_only}
    return tuple(sorted(masks | {source.group for source in recipe.chests}))


def left_out(recipe: LungRecipe, data: LungData, number: int) -> LungData:
    """The data without the hospital of that number and without as large a part of the masks.

    The part of the masks is "held out", the hospital's chest images are "left out"; masks that are never learnt are to
    be evaluated if they are the hospital's. What was to be tested otherwise is trained on.
    """
    names = hospitals(recipe)
    learnt = data.image_parts != "evaluate"
    patients = sorted(set(data.image_patients[learnt]))
    fold = {patient: index % len(names) for index, patient in enumerate(patients)}
    held = np.array([fold.get(str(patient)) == number for patient in data.image_patients]) & learnt
    own = data.image_sources == names[number]
    images = np.where(data.image_parts == "validation", "validation", "training").astype("U16")
    images[~learnt] = np.where(own[~learnt], "evaluate", _UNUSED)
    images[held] = _HELD
    if not (images == "validation").any():
        images[np.flatnonzero(images == "training")[:1]] = "validation"
    groups = {source.name: source.group for source in recipe.chests}
    chests = data.chest_parts.astype("U16")
    chests[[groups[str(source)] == names[number] for source in data.chest_sources]] = _LEFT_OUT
    is_masks = any(source.name == names[number] and not source.evaluate_only for source in recipe.masks)
    return replace(data, image_parts=images, chest_parts=chests, masks_are_chests=not is_masks)


def cross_step(run: Run) -> Facts:
    """Train a network for each hospital left out. Writes metrics.json.

    Raises UsageProblem for chest images of fewer than two hospitals: no hospital would be left to train on.
    """
    recipe, whole = recipe_of(run), data_of(run)
    names, chests = hospitals(recipe), sorted({source.group for source in recipe.chests})
    if len(chests) < 2:
        raise UsageProblem(reason("cross_one_hospital", found=", ".join(chests) or "-"))
    use_threads(recipe.training.threads)
    fits, found = dict[int, Fit](), dict[str, LeftOutFigures]()
    for number, name in enumerate(names):
        data, folder = left_out(recipe, whole, number), run.folder("cross") / str(number)
        weights, _ = train(recipe, data, folder=folder, progress=partial(run.report_epoch, folder))
        answer = partial(run_file, to_files(recipe, data, weights)["int8"])
        fits |= fits_of(recipe, data, answer, parts=(_HELD, "evaluate"))
        checks = checks_of(recipe, data, answer)
        unseen = {
            source: check_rates(images, answer, checks.thresholds, most=len(images))
            for source, images in _unseen(data, name).items()
        }
        found[name] = LeftOutFigures(unseen=unseen, ood_images=checks.ood_images or {}, thresholds=checks.thresholds)
    run.write("cross", "metrics.json", LungCrossFigures(masks=summary(whole, fits), hospitals=found))
    return {f"{name}_accepted": _accepted(one.unseen) for name, one in found.items()}


def _unseen(data: LungData, name: str) -> dict[str, NDArray[np.uint8]]:
    """Return by source the chest images of the left-out hospital; of a source of masks, those held out."""
    sources = data.chest_sources[data.chest_parts == _LEFT_OUT]
    found = {str(one): data.chests[data.chest_sources == one] for one in sorted(set(sources))}
    held = (data.image_parts == _HELD) & (data.image_sources == name)
    return found | ({name: data.images[held]} if held.any() else {})


def _accepted(unseen: Mapping[str, CheckRates]) -> float:
    rows = [one["frontal_chest"] for one in unseen.values()]
    accepted, asked = sum(row.count for row in rows), sum(row.of for row in rows)
    return float(accepted / asked)


LUNG_CROSS: Final = Step(
    name="cross",
    perform=cross_step,
    recipe_keys=("network", "training", "augmentation", "checks_augmentation", "calibration_images", "evaluation"),
    outputs=("metrics.json",),
)

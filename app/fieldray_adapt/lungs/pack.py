"""The pack of lung fields: manifest, model card and golden vectors, signed."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import LUNG_CHECKS, GoldenVectors
from fieldray.packs.manifest import GoldenTolerance, LungCheck, LungFieldsManifest, LungOutputs
from fieldray.packs.verified import golden_files
from fieldray_adapt.data.augmentation import DRAWN, apply
from fieldray_adapt.files import plain
from fieldray_adapt.lungs.figures import (
    LungDataFigures,
    LungFigures,
)
from fieldray_adapt.lungs.quantise import run_file, specification_of
from fieldray_adapt.lungs.recipe import LungRecipe, recipe_of
from fieldray_adapt.lungs.report import FIT_HEAD, fit_row
from fieldray_adapt.networks.quantise import Converted
from fieldray_adapt.pack.card import card
from fieldray_adapt.pack.step import evaluated
from fieldray_adapt.pack.written import GOLDEN_TOLERANCE, phantom, provenance, whole_pack_step, write_whole
from fieldray_adapt.run import Facts, Run
from fieldray_adapt.training.steps import converted_file


def lung_card(recipe: LungRecipe, *, data: LungDataFigures, metrics: LungFigures, **made: Any) -> str:
    """The card's Markdown, of the figures of the data and of the evaluation; `made` goes to `pack.card`."""
    evaluated_only = [source.name for source in recipe.masks if source.evaluate_only]
    return card(
        "lungs_card.md",
        recipe.pack,
        recipe=recipe,
        data=data,
        metrics=metrics,
        only=evaluated_only,
        both=sorted(set(evaluated_only) & set(data.chests)),
        head=FIT_HEAD,
        fits=[fit_row(name, found) for name, found in metrics.masks["int8"].items()],
        **made,
    )


_GOLDEN_SEED: Final = 5


def pack_step(run: Run) -> Facts:
    """Write the pack; the signing key is made where the recipe says, if it is not there.

    Raises UsageProblem `step_missing`, PackProblem `pack_older`, StorageProblem.
    """
    recipe, metrics = recipe_of(run), evaluated(run, LungFigures)
    thresholds = evaluated(run, dict[str, float], "thresholds.json")
    file, made_with = converted_file(run, "int8"), _provenance(run)
    golden = _golden(recipe, file)
    card = lung_card(
        recipe,
        specification=specification_of(recipe),
        files={"litert": file.data},
        data=run.read("data", "facts.json", LungDataFigures),
        metrics=metrics,
        tools=made_with,
    )
    return write_whole(
        recipe,
        LungFieldsManifest,
        {"litert": file.data, "card": card.encode(), **golden_files(golden)},
        outputs=LungOutputs(mask=file.outputs["mask"], checks=file.outputs["scores"]),
        golden=GoldenTolerance(tolerance=golden.tolerance),
        checks=tuple(LungCheck(name=name, threshold=round(thresholds[name], 4)) for name in LUNG_CHECKS),
        mask_threshold=recipe.evaluation.mask_threshold,
        provenance=made_with,
        metrics=plain(metrics),
    )


def _provenance(run: Run) -> dict[str, str]:
    recipe = recipe_of(run)
    learnt = [source.name for source in recipe.masks if not source.evaluate_only]
    return provenance(run, data=[*learnt, *(source.name for source in recipe.chests)])


def _golden(recipe: LungRecipe, file: Converted) -> GoldenVectors:
    """Return golden vectors of synthetic images: chests upright, turned, mirrored and inverted, and an OOD image."""
    chest: NDArray[np.uint8] = phantom(1, recipe.input)[..., 0]
    generator = np.random.default_rng(_GOLDEN_SEED)
    turned = [apply(chest, turns=turns)[0] for turns in range(3)]
    changed = [apply(chest, is_inverted=True)[0], apply(chest, is_mirrored=True)[0]]
    images = [*turned, *changed, DRAWN["scene"](len(chest), generator)]
    inputs = np.stack(images)
    return GoldenVectors(inputs=inputs[..., None], scores=run_file(file, inputs)[1], tolerance=GOLDEN_TOLERANCE)


LUNG_PACK: Final = whole_pack_step(pack_step)

"""The pack step of a lung-field recipe: manifest, model card, golden vectors and signature."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import LUNG_NETWORK_CHECKS, GoldenVectors
from fieldray.packs.manifest import GoldenTolerance, LungCheck, LungFieldsManifest, LungOutputs
from fieldray.packs.verified import golden_files
from fieldray_adapt.data.images_for_checks import SYNTHETIC_OOD_DRAW_FUNCTIONS, reorient
from fieldray_adapt.files import to_builtins
from fieldray_adapt.lungs.figures import (
    LungDataFigures,
    LungFigures,
)
from fieldray_adapt.lungs.quantise import lung_specification, run_tflite_file
from fieldray_adapt.lungs.recipe import LungRecipe, lung_recipe_of
from fieldray_adapt.lungs.report import MASK_FIT_COLUMNS, mask_fit_row
from fieldray_adapt.networks.quantise import ConvertedNetwork
from fieldray_adapt.pack.card import render_card
from fieldray_adapt.pack.step import read_evaluation
from fieldray_adapt.pack.writing import GOLDEN_TOLERANCE, make_pack_step, provenance, synthetic_chest, write_recipe_pack
from fieldray_adapt.run import Run, StepFacts
from fieldray_adapt.training.steps import read_converted_file


def lung_card(recipe: LungRecipe, *, data: LungDataFigures, metrics: LungFigures, **card_arguments: Any) -> str:
    """Return the model card of a lung-field pack as Markdown.

    All further arguments by name are passed on to `pack.card.render_card`.
    """
    evaluated_only = [source.name for source in recipe.masks if source.evaluate_only]
    return render_card(
        "lungs_card.md",
        recipe.pack,
        recipe=recipe,
        data=data,
        metrics=metrics,
        only=evaluated_only,
        both=sorted(set(evaluated_only) & set(data.chests)),
        head=MASK_FIT_COLUMNS,
        fits=[mask_fit_row(name, found) for name, found in metrics.masks["int8"].items()],
        **card_arguments,
    )


_GOLDEN_SEED: Final = 5


def pack_step(run: Run) -> StepFacts:
    """Write the signed lung-field pack. Returns facts about the pack, such as its folder.

    If the file of the recipe's signing key does not exist, a new key is made. Raises UsageProblem (`step_missing`),
    PackProblem (`pack_older`), StorageProblem.
    """
    recipe, metrics = lung_recipe_of(run), read_evaluation(run, LungFigures)
    thresholds = read_evaluation(run, dict[str, float], "thresholds.json")
    file, made_with = read_converted_file(run, "int8"), _provenance(run)
    golden = _golden(recipe, file)
    card = lung_card(
        recipe,
        specification=lung_specification(recipe),
        files={"litert": file.data},
        data=run.read_step_json("data", "facts.json", LungDataFigures),
        metrics=metrics,
        tools=made_with,
    )
    return write_recipe_pack(
        recipe,
        LungFieldsManifest,
        {"litert": file.data, "card": card.encode(), **golden_files(golden)},
        outputs=LungOutputs(mask=file.output_indices["mask"], checks=file.output_indices["scores"]),
        golden=GoldenTolerance(tolerance=golden.tolerance),
        checks=tuple(LungCheck(name=name, threshold=round(thresholds[name], 4)) for name in LUNG_NETWORK_CHECKS),
        mask_threshold=recipe.evaluation.mask_threshold,
        provenance=made_with,
        metrics=to_builtins(metrics),
    )


def _provenance(run: Run) -> dict[str, str]:
    recipe = lung_recipe_of(run)
    learnt = [source.name for source in recipe.masks if not source.evaluate_only]
    return provenance(run, data=[*learnt, *(source.name for source in recipe.chests)])


def _golden(recipe: LungRecipe, file: ConvertedNetwork) -> GoldenVectors:
    """Return golden vectors: synthetic input images with the scores that the network file gives for them.

    The images are upright, rotated, mirrored and inverted chests, and a scene of objects.
    """
    chest: NDArray[np.uint8] = synthetic_chest(1, recipe.input)[..., 0]
    generator = np.random.default_rng(_GOLDEN_SEED)
    turned = [reorient(chest, turns=turns)[0] for turns in range(3)]
    changed = [reorient(chest, is_inverted=True)[0], reorient(chest, is_mirrored=True)[0]]
    images = [*turned, *changed, SYNTHETIC_OOD_DRAW_FUNCTIONS["scene"](len(chest), generator)]
    inputs = np.stack(images)
    return GoldenVectors(inputs=inputs[..., None], scores=run_tflite_file(file, inputs)[1], tolerance=GOLDEN_TOLERANCE)


LUNG_PACK_STEP: Final = make_pack_step(pack_step)

"""The pack step of a lung-field recipe: manifest, model card, self-test and signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.digest import digest
from fieldray.adaptation.lungs.card import lung_card
from fieldray.adaptation.lungs.check_samples import apply
from fieldray.adaptation.lungs.ood_images import DRAWN
from fieldray.adaptation.lungs.quantise_step import run_file, specification_of
from fieldray.adaptation.lungs.recipe import LungRecipe, recipe_of
from fieldray.adaptation.pack import GOLDEN_TOLERANCE, phantom, provenance
from fieldray.adaptation.quantise import Converted
from fieldray.adaptation.quantise_step import converted
from fieldray.adaptation.run import Run, Step
from fieldray.domain.model import LUNG_CHECKS, GoldenVectors
from fieldray.errors import UsageProblem
from fieldray.packs.manifest_types import (
    SCHEMA_VERSION,
    GoldenTolerance,
    Input,
    LungCheck,
    LungFieldsManifest,
    LungOutputs,
)
from fieldray.packs.signing import generate_key, load_private_key
from fieldray.packs.write import golden_files, list_files, write_described
from fieldray.reasons import reason

_GOLDEN_SEED: Final = 5


def pack_step(run: Run) -> Mapping[str, Any]:
    """Write the pack; the signing key is made where the recipe says, if it is not there.

    Raises UsageProblem `step_missing`, PackProblem `pack_older`, StorageProblem.
    """
    recipe = recipe_of(run)
    try:
        metrics, thresholds = run.read("evaluate", "metrics.json"), run.read("evaluate", "thresholds.json")
        facts = run.read("data", "facts.json")
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step="evaluate")) from problem
    file, made_with, golden = converted(run, "int8"), _provenance(run), _golden(recipe, converted(run, "int8"))
    card = lung_card(
        recipe,
        specification=specification_of(recipe),
        size_bytes=len(file.data),
        data=facts,
        metrics=metrics,
        tools=made_with,
    )
    contents = {"litert": file.data, "card": card.encode(), **golden_files(golden)}
    description = msgspec.structs.replace(
        _described(recipe, thresholds),
        outputs=LungOutputs(mask=file.outputs["mask"], checks=file.outputs["scores"]),
        golden=GoldenTolerance(tolerance=golden.tolerance),
        files=list_files(contents),
        provenance=made_with,
        metrics=metrics,
    )
    if not recipe.signing_key.is_file():
        recipe.signing_key.parent.mkdir(parents=True, exist_ok=True)
        generate_key(recipe.signing_key)
    key = load_private_key(recipe.signing_key)
    place = write_described(recipe.packs_folder, description=description, contents=contents, key=key)
    return {"pack": str(place), "bytes": sum(path.stat().st_size for path in place.iterdir())}


def _described(recipe: LungRecipe, thresholds: Mapping[str, float]) -> LungFieldsManifest:
    """What the recipe says of the pack; what its files are is not said yet."""
    texts, spec = recipe.pack, recipe.input
    return LungFieldsManifest(
        schema_version=SCHEMA_VERSION,
        id=texts.id,
        version=texts.version,
        names=dict(texts.names),
        descriptions=dict(texts.descriptions),
        intended_use=dict(texts.intended_use),
        limits=dict(texts.limits),
        input=Input(
            height=spec.height,
            width=spec.width,
            channels=1,
            dtype="uint8",
            intensity=spec.intensity,
            fit=spec.fit,
            margin=spec.margin,
        ),
        outputs=LungOutputs(mask=0, checks=1),
        checks=tuple(LungCheck(name=name, threshold=round(thresholds[name], 4)) for name in LUNG_CHECKS),
        mask_threshold=recipe.evaluation.mask_threshold,
        files={},
        provenance={},
        metrics={},
    )


def _provenance(run: Run) -> dict[str, str]:
    recipe = recipe_of(run)
    learnt = [source.name for source in recipe.masks if not source.evaluate_only]
    return provenance(run, data=[*learnt, *(source.name for source in recipe.chests)])


def _golden(recipe: LungRecipe, file: Converted) -> GoldenVectors:
    """Synthetic images, no patient's: chests upright, turned, mirrored and inverted, and an OOD image."""
    chest: NDArray[np.uint8] = phantom(1, recipe.input)[..., 0]
    generator = np.random.default_rng(_GOLDEN_SEED)
    changes: tuple[dict[str, Any], ...] = ({}, {"turns": 1}, {"turns": 2}, {"is_inverted": True}, {"is_mirrored": True})
    images = [apply(chest, **how)[0] for how in changes] + [DRAWN["scene"](len(chest), generator)]
    inputs = np.stack(images)
    return GoldenVectors(inputs=inputs[..., None], scores=run_file(file, inputs)[1], tolerance=GOLDEN_TOLERANCE)


LUNG_PACK: Final = Step(
    name="pack",
    perform=pack_step,
    reads=("pack", "packs_folder", "signing_key"),
    outside=lambda run: digest(run.recipe.credits_text),
)

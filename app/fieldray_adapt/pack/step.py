"""The pack step of a classifier's recipe: manifest, model card, golden vectors and signature."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from fieldray.domain.model import (
    GoldenVectors,
    Manifest,
    OutOfDistributionCheck,
)
from fieldray.errors import UsageProblem
from fieldray.packs.signing import load_or_create_key
from fieldray.packs.verified import write_pack
from fieldray.reasons import reason
from fieldray.translation import Translator, languages
from fieldray.typed_json import parse_json
from fieldray_adapt.evaluation.cross_validation import CROSS_VALIDATION_FILE_NAME
from fieldray_adapt.evaluation.evaluate import CARD_COUNTING_RULE
from fieldray_adapt.evaluation.figures import (
    ClassifierFigures,
    CrossValidationFigures,
    DataFigures,
    EvaluationChoices,
    PublishedCrossValidation,
)
from fieldray_adapt.files import digest, file_sha256, json_bytes, raise_if_damaged, remove_on_failure, to_builtins
from fieldray_adapt.pack.card import find_warnings, model_card
from fieldray_adapt.pack.figures import PackFigures, PackLabelFigures
from fieldray_adapt.pack.manifest import make_manifest
from fieldray_adapt.pack.writing import (
    GOLDEN_TOLERANCE,
    is_pack_unchanged,
    provenance,
    synthetic_chest,
    written_pack_facts,
)
from fieldray_adapt.prune.tasks import PrunedNetwork
from fieldray_adapt.recipes.classifier import conversion_description, training_description
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.run import Run, Step, StepFacts
from fieldray_adapt.training.steps import load_last_network, read_converted_file, run_converted_file

T = TypeVar("T")


_GOLDEN_IMAGES: Final = 6
_GOLDEN_CANDIDATES: Final = 36


def pack_step(run: Run) -> StepFacts:
    """Write the signed pack of a classifier. Returns facts about the pack, such as its folder.

    If the file of the recipe's signing key does not exist, a new key is made. Raises UsageProblem (`step_missing`),
    PackProblem (`pack_older`), StorageProblem.
    """
    recipe = run.recipe
    results, chosen = read_evaluation(run, ClassifierFigures), read_evaluation(run, EvaluationChoices, "points.json")
    file, (specification, _) = read_converted_file(run, "int8"), load_last_network(run)
    manifest = dataclasses.replace(
        make_manifest(run, points=chosen.points, calibration=chosen.calibration, ood_check=_ood_gate(run)),
        warnings=_warning_texts(recipe.pack_labels, results),
        provenance=provenance(run, data=[source.name for source in recipe.data]),
        metrics=to_builtins(_figures(run, results)),
    )
    files = {"litert": file.data}
    card = model_card(
        recipe,
        specification=specification,
        files=files,
        results=results,
        tools=manifest.provenance,
        cross_validation=published_cross_validation(run),
        pruned=run.read_step_json("prune", "table.json", list[PrunedNetwork]) if recipe.prune else [],
    )
    golden = _golden(run, manifest)
    with remove_on_failure(recipe.signing_key, recipe.packs_folder):
        key = load_or_create_key(recipe.signing_key)
        folder = write_pack(recipe.packs_folder, manifest=manifest, files=files, card=card, golden=golden, key=key)
    warnings = tuple(manifest.warnings["en"].splitlines()) if manifest.warnings else ()
    return dict(to_builtins(written_pack_facts(folder, warnings=warnings)))


def read_evaluation(run: Run, kind: type[T], name: str = "metrics.json") -> T:
    """Read the JSON file `name` that the evaluate step wrote. Raises UsageProblem (`step_missing`) if it is missing."""
    try:
        return run.read_step_json("evaluate", name, kind)
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step="evaluate")) from problem


def published_cross_validation(run: Run) -> Mapping[str, CrossValidationFigures] | None:
    """Return the figures of the cross-validation in the recipe's publication folder, by label.

    None without a cross-validation, or if the folder's cross-validation has other settings or other data than the run.
    Raises StorageProblem (run_file_damaged).
    """
    path = run.recipe.publication_folder / CROSS_VALIDATION_FILE_NAME
    try:
        data_sha256 = run.read_step_json("data", "facts.json", DataFigures).data_sha256
        with raise_if_damaged(path):
            found = parse_json(path.read_bytes(), PublishedCrossValidation)
    except OSError:
        return None
    wanted = (training_description(run.recipe), conversion_description(run.recipe))
    trained, made = (json.loads(json_bytes(document)) for document in wanted)
    is_of_this = found.trained == trained and found.made in (None, made)
    return found.labels if is_of_this and found.data_sha256 == data_sha256 else None


def _figures(run: Run, results: ClassifierFigures) -> PackFigures:
    return PackFigures(
        counted=CARD_COUNTING_RULE,
        labels={code: PackLabelFigures.from_figures(found) for code, found in results.labels.items()},
        ood_gate=results.gate,
        evidence_inside=results.labels[run.recipe.pack_labels[0].code].evidence_inside,
    )


def _warning_texts(labels: Sequence[LabelRule], results: ClassifierFigures) -> dict[str, str] | None:
    """Return the warnings about a pack's figures by language, each warning on a line; None without warnings."""
    texts = {}
    for translator in map(Translator, languages()):
        meanings = {label.code: translator.pack_text(label.meaning) for label in labels}
        found = find_warnings(results, meanings=meanings)
        texts[translator.language] = "\n".join(map(translator.reason, found))
    return texts if any(texts.values()) else None


def _ood_gate(run: Run) -> OutOfDistributionCheck:
    with np.load(run.step_folder("evaluate") / "gate.npz", allow_pickle=False) as arrays:
        return OutOfDistributionCheck(
            mean=arrays["mean"], projection=arrays["projection"], limit=float(arrays["limit"])
        )


def _golden(run: Run, manifest: Manifest) -> GoldenVectors:
    """Return golden vectors: synthetic images, and the scores that the int8 file gives for them on this computer.

    The images are chosen so that the scores differ widely.
    """
    inputs = np.stack([synthetic_chest(seed, manifest.input) for seed in range(_GOLDEN_CANDIDATES)])
    scores = run_converted_file(run, "int8", inputs, "golden vectors").scores
    spread = np.argsort(scores[:, 0])[np.linspace(0, len(scores) - 1, _GOLDEN_IMAGES).round().astype(int)]
    return GoldenVectors(inputs=inputs[spread], scores=scores[spread].astype(np.float32), tolerance=GOLDEN_TOLERANCE)


PACK_STEP: Final = Step(
    name="pack",
    perform=pack_step,
    recipe_keys=("pack", "packs_folder", "results", "signing_key"),
    outside_inputs_digest=lambda run: digest(
        file_sha256(run.recipe.publication_folder / CROSS_VALIDATION_FILE_NAME), run.recipe.pack.credits_text
    ),
    are_outside_files_intact=is_pack_unchanged,
)

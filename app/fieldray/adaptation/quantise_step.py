"""The quantise step of a recipe: the network as an int8 and a float file, equalised, its head refitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.answers import answer
from fieldray.adaptation.dataset import dataset_of
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.networks import LABELS
from fieldray.adaptation.quantise import Converted, equalise, quantise, refit_head, to_float_file
from fieldray.adaptation.recipe import Recipe
from fieldray.adaptation.run import Run, Step
from fieldray.adaptation.specification import Specification
from fieldray.adaptation.steps import load_network, save_network
from fieldray.adaptation.weights import Weights, keep_channels
from fieldray.errors import UsageProblem
from fieldray.reasons import reason

FITTED_IMAGES: Final = 1500
"""So many training images fit the head, where there are so many."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Files:
    """A network with the labels of the pack alone, and its two files."""

    specification: Specification
    weights: Weights
    whole: Converted
    integer: Converted


def quantise_step(run: Run) -> Mapping[str, Any]:
    """Cut the head down to the labels of the pack, fit it to the integers, write the int8 and the float file."""
    data, folder = dataset_of(run), run.folder("quantise")
    drawn = np.random.default_rng(run.recipe.training.seed).permutation(data.indices("training"))
    files = to_files(run.recipe, *load_network(run), images=data.image_set.images[drawn[:FITTED_IMAGES]])
    for name, file in (("float", files.whole), ("int8", files.integer)):
        write_atomically(folder / f"{name}.tflite", file.data)
    run.write("quantise", "outputs.json", {"float": files.whole.outputs, "int8": files.integer.outputs})
    save_network(folder, files.specification, files.weights)
    return {"int8_bytes": len(files.integer.data), "float_bytes": len(files.whole.data)}


def to_files(recipe: Recipe, specification: Specification, weights: Weights, *, images: NDArray[np.uint8]) -> Files:
    """The network's files, with the labels of the pack alone.

    Parameters
    ----------
    images
        (n, height, width, channels) training images, drawn by chance, `FITTED_IMAGES` are enough: the recipe's
        `calibration_images` first of them give the ranges, all fit the head to the integers.
    """
    kept = [index for index, label in enumerate(recipe.labels) if not label.auxiliary]
    specification, weights = keep_channels(specification, weights, keep={LABELS: np.array(kept)})
    representative = images[: recipe.calibration_images]
    weights = equalise(specification, weights, representative=representative)
    whole = to_float_file(specification, weights)
    integer = quantise(specification, weights, representative=representative)
    float_answers, integer_answers = (
        answer(file.data, images, spec=recipe.input, outputs=file.roles(specification), labels=len(kept))
        for file in (whole, integer)
    )
    refitted = refit_head(weights, whole=float_answers, integer=integer_answers)
    integer = quantise(specification, refitted, representative=representative)
    return Files(specification=specification, weights=weights, whole=whole, integer=integer)


def converted(run: Run, name: str) -> Converted:
    """What the quantise step left: "int8" or "float". Raises UsageProblem `step_missing`."""
    path = run.folder("quantise") / f"{name}.tflite"
    if not path.is_file():
        raise UsageProblem(reason("step_missing", step="quantise"))
    return Converted(path.read_bytes(), run.read("quantise", "outputs.json")[name])


QUANTISE: Final = Step(
    name="quantise",
    perform=quantise_step,
    reads=("calibration_images",),
    leaves=("int8.tflite", "float.tflite", "outputs.json"),
)

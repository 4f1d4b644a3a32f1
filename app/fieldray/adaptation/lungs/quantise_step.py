"""The quantise step: the trained network as an int8 and a float file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.lungs.compact import compact_unet
from fieldray.adaptation.lungs.dataset import LungData, data_of
from fieldray.adaptation.lungs.recipe import LungRecipe, recipe_of
from fieldray.adaptation.lungs.train import load_trained
from fieldray.adaptation.quantise import Converted, equalise, quantise, to_float_file
from fieldray.adaptation.run import Run, Step
from fieldray.adaptation.specification import Specification
from fieldray.domain.model import LUNG_CHECKS, InputSpec, OutputRoles
from fieldray.inference.litert import Network, NetworkSpec
from fieldray.inference.runtime import load_runtime

_CHECKS_SHARE: Final = 0.5
"""Of the images that decide the ranges, so many are those that the checks are trained on, turned and strange ones."""


def specification_of(recipe: LungRecipe) -> Specification:
    """The compact network that the recipe asks for."""
    return compact_unet(height=recipe.input.height, width=recipe.input.width, channels=recipe.network.channels)


def quantise_step(run: Run) -> Mapping[str, Any]:
    """Write int8.tflite, float.tflite, and which output of each is what."""
    recipe = recipe_of(run)
    specification, images = specification_of(recipe), representative(recipe, data_of(run))
    weights = equalise(specification, load_trained(run), representative=images)
    files = {
        "float": to_float_file(specification, weights),
        "int8": quantise(specification, weights, representative=images),
    }
    for name, file in files.items():
        write_atomically(run.folder("quantise") / f"{name}.tflite", file.data)
    run.write("quantise", "outputs.json", {name: file.outputs for name, file in files.items()})
    return {f"{name}_bytes": len(file.data) for name, file in files.items()}


def representative(recipe: LungRecipe, data: LungData) -> NDArray[np.uint8]:
    """Training images as the network may meet them, (n, side, side, 1): upright ones, turned ones, OOD images."""
    generator, own = np.random.default_rng(recipe.training.seed), data.of("training")
    checks = data.checks("training", {}, side=recipe.input.height)
    drawn = round(recipe.calibration_images * _CHECKS_SHARE) if checks else 0
    images = [data.films[index] for index in generator.permutation(own)[: recipe.calibration_images - drawn]]
    for _ in range(drawn):
        assert checks is not None
        share = recipe.training.ood_share
        images.append(checks.draw(recipe.checks_augmentation, ood_share=share, generator=generator)[0])
    stacked: NDArray[np.uint8] = np.stack(images)[..., None]
    return stacked


def run_file(file: Converted, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What a file answers to images (n, side, side) uint8: shares of lung (n, rows, columns) and scores of the checks.

    One thread, by the same code that screens.
    """
    spec = InputSpec(height=images.shape[1], width=images.shape[2])
    roles = OutputRoles(scores=file.outputs["scores"], mask=file.outputs["mask"])
    wanted = NetworkSpec(input=spec, outputs=roles, labels=len(LUNG_CHECKS))
    network = Network(file.data, wanted, runtime=load_runtime(), threads=1)
    found = [network.run(image[..., None]) for image in images]
    masks = [answer.mask for answer in found if answer.mask is not None]
    return np.stack(masks), np.stack([answer.scores for answer in found])


LUNG_QUANTISE: Final = Step(
    name="quantise",
    perform=quantise_step,
    reads=("calibration_images",),
    leaves=("int8.tflite", "float.tflite", "outputs.json"),
)

"""The quantise step of lung fields: the compact network as an int8 and a float file, and the files' output."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import LUNG_CHECKS, InputSpec, OutputRoles
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray_adapt.lungs.dataset import LungData, data_of
from fieldray_adapt.lungs.networks import compact_unet
from fieldray_adapt.lungs.recipe import LungRecipe, recipe_of
from fieldray_adapt.networks.quantise import Converted, equalise, quantise, to_float_file
from fieldray_adapt.networks.specification import Specification, Weights
from fieldray_adapt.run import Facts, Run, Step
from fieldray_adapt.training.steps import trained_weights, write_files

_CHECKS_SHARE: Final = 0.5
"""Share of the calibration images that the checks are trained on: turned ones, and ones that are no chest."""


def specification_of(recipe: LungRecipe) -> Specification:
    """The compact network that the recipe asks for."""
    network, wanted = recipe.network, recipe.input
    return compact_unet(height=wanted.height, width=wanted.width, channels=network.channels, masks=network.masks)


def quantise_step(run: Run) -> Facts:
    """Write int8.tflite, float.tflite, and which output of each is what."""
    return write_files(run, to_files(recipe_of(run), data_of(run), trained_weights(run)))


def to_files(recipe: LungRecipe, data: LungData, weights: Weights) -> dict[str, Converted]:
    """A trained compact network as the files "float" and "int8"."""
    specification, images = specification_of(recipe), representative(recipe, data)
    weights = equalise(specification, weights, representative=images)
    return {
        "float": to_float_file(specification, weights),
        "int8": quantise(specification, weights, representative=images),
    }


def representative(recipe: LungRecipe, data: LungData) -> NDArray[np.uint8]:
    """Representative training images for quantisation, (n, side, side, 1): upright, turned and OOD images."""
    generator, own = np.random.default_rng(recipe.training.seed), data.of("training")
    checks = data.checks("training", {}, side=recipe.input.height)
    drawn = round(recipe.calibration_images * _CHECKS_SHARE) if checks else 0
    images = [data.images[index] for index in generator.permutation(own)[: recipe.calibration_images - drawn]]
    for _ in range(drawn):
        assert checks is not None
        share = recipe.training.ood_share
        images.append(checks.draw(recipe.checks_augmentation, ood_share=share, generator=generator)[0])
    stacked: NDArray[np.uint8] = np.stack(images)[..., None]
    return stacked


def run_file(file: Converted, images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Run a file on images (n, side, side) uint8. Returns shares (n, rows, columns, masks) and scores of the checks.

    Uses one thread and the code that screens.
    """
    spec = InputSpec(height=images.shape[1], width=images.shape[2])
    roles = OutputRoles(scores=file.outputs["scores"], mask=file.outputs["mask"])
    wanted = NetworkSpec(input=spec, outputs=roles, labels=len(LUNG_CHECKS))
    network = Network(file.data, wanted, runtime=load_runtime(), threads=1)
    found = [network.run(image[..., None]) for image in images]
    masks = [np.stack([mask for mask in (one.mask, one.region) if mask is not None], axis=-1) for one in found]
    return np.stack(masks), np.stack([answer.scores for answer in found])


LUNG_QUANTISE: Final = Step(
    name="quantise",
    perform=quantise_step,
    recipe_keys=("calibration_images",),
    outputs=("int8.tflite", "float.tflite", "outputs.json"),
)

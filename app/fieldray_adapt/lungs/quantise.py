"""The quantise step of a lung-field recipe, which converts the compact network to an int8 file and a float file."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import LUNG_NETWORK_CHECKS, InputSpec, OutputRoles
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray_adapt.lungs.dataset import LungData, load_lung_data
from fieldray_adapt.lungs.networks import compact_unet
from fieldray_adapt.lungs.recipe import LungRecipe, lung_recipe_of
from fieldray_adapt.networks.quantise import ConvertedNetwork, equalise_channels, quantise, to_float_file
from fieldray_adapt.networks.specification import Specification, Weights
from fieldray_adapt.run import Run, Step, StepFacts
from fieldray_adapt.training.steps import trained_weights, write_converted_files

_CHECKS_SHARE: Final = 0.5
"""Share of the calibration images that are images for the image checks: reoriented or out-of-distribution images."""


def lung_specification(recipe: LungRecipe) -> Specification:
    """Return the specification of the recipe's compact network."""
    network, wanted = recipe.network, recipe.input
    return compact_unet(
        height=wanted.height, width=wanted.width, channels=network.channels, mask_count=network.mask_count
    )


def quantise_step(run: Run) -> StepFacts:
    """Convert the trained network. Writes int8.tflite, float.tflite, and a file with the roles of their outputs."""
    return write_converted_files(
        run, convert_lung_network(lung_recipe_of(run), load_lung_data(run), trained_weights(run))
    )


def convert_lung_network(recipe: LungRecipe, data: LungData, weights: Weights) -> dict[str, ConvertedNetwork]:
    """Convert a trained compact network to TensorFlow Lite files. Returns the files by name: "float" and "int8"."""
    specification, images = lung_specification(recipe), representative_images(recipe, data)
    weights = equalise_channels(specification, weights, representative=images)
    return {
        "float": to_float_file(specification, weights),
        "int8": quantise(specification, weights, representative=images),
    }


def representative_images(recipe: LungRecipe, data: LungData) -> NDArray[np.uint8]:
    """Return training images (n, side, side, 1) uint8 from which the converter takes the ranges of the int8 values.

    Half are images with masks, half are images for the image checks: rotated, inverted or no chest. If the recipe has
    no images for the checks, all are images with masks.
    """
    generator, own = np.random.default_rng(recipe.training.seed), data.indices_of_part("training")
    checks = data.images_for_image_checks("training", {}, side=recipe.input.height)
    drawn = round(recipe.calibration_images * _CHECKS_SHARE) if checks else 0
    images = [data.images[index] for index in generator.permutation(own)[: recipe.calibration_images - drawn]]
    for _ in range(drawn):
        assert checks is not None
        share = recipe.training.ood_share
        images.append(checks.draw_training_image(recipe.checks_augmentation, ood_share=share, generator=generator)[0])
    stacked: NDArray[np.uint8] = np.stack(images)[..., None]
    return stacked


def run_tflite_file(
    file: ConvertedNetwork, images: NDArray[np.uint8]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Run a lung-field network file on images (n, side, side) uint8, with the code of screening, on one thread.

    Returns masks (n, rows, columns, number of masks), and the scores of the image checks (n, number of checks). Both
    are in 0..1.
    """
    spec = InputSpec(height=images.shape[1], width=images.shape[2])
    roles = OutputRoles(scores=file.output_indices["scores"], mask=file.output_indices["mask"])
    wanted = NetworkSpec(input=spec, outputs=roles, label_count=len(LUNG_NETWORK_CHECKS))
    network = Network(file.data, wanted, runtime=load_runtime(), threads=1)
    found = [network.run(image[..., None]) for image in images]
    masks = [np.stack([mask for mask in (one.mask, one.region_shares) if mask is not None], axis=-1) for one in found]
    return np.stack(masks), np.stack([answer.scores for answer in found])


LUNG_QUANTISE_STEP: Final = Step(
    name="quantise",
    perform=quantise_step,
    recipe_keys=("calibration_images",),
    outputs=("int8.tflite", "float.tflite", "outputs.json"),
)

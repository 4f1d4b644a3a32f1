"""The train and quantise steps of a classifier's recipe, and functions that read the networks stored by steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.errors import StorageProblem, UsageProblem
from fieldray.reasons import reason
from fieldray_adapt.data.dataset import load_dataset
from fieldray_adapt.files import digest, file_sha256, to_builtins, write_atomically
from fieldray_adapt.networks.architectures import (
    HEAD_LAYER,
    LABELS_CHANNEL_SET,
    NETWORKS,
    channels_from_pack,
    weights_from_pack,
)
from fieldray_adapt.networks.quantise import (
    ConvertedNetwork,
    NetworkOutputs,
    equalise_channels,
    quantise,
    refit_head,
    run_network,
    to_float_file,
)
from fieldray_adapt.networks.specification import (
    Specification,
    Weights,
    copy_matching_weights,
    initial_weights,
    keep_channels,
    load_network,
    load_weights,
    multiply_add_count,
    parameter_count,
    save_network,
)
from fieldray_adapt.prune.selection import select_in_one_shot
from fieldray_adapt.recipes.classifier import NO_STARTING_WEIGHTS, ClassifierRecipe, ClassifierTraining, NetworkChoice
from fieldray_adapt.run import Run, Step, StepFacts
from fieldray_adapt.training.classifier import Samples, Schedule, TrainingOptions, train, train_and_average_networks
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_adapt.training.loop import EpochFigures
from fieldray_adapt.training.teacher import with_teacher_targets

NETWORK_FILE_NAMES: Final = ("weights.npz", "specification.json")
"""The names of the two files of a stored network: weights and specification."""


def save_step_network(folder: Path, specification: Specification, weights: Weights) -> None:
    """Write a network (specification and weights) to the folder of a step. Raises StorageProblem."""
    path, text = (folder / name for name in NETWORK_FILE_NAMES)
    save_network(path, text, specification, weights)


def load_last_network(run: Run) -> tuple[Specification, Weights]:
    """Read the pruned network if the recipe prunes, else the trained network. Raises UsageProblem (`step_missing`)."""
    is_pruned = run.recipe.prune and (run.step_folder("prune") / NETWORK_FILE_NAMES[0]).is_file()
    return load_step_network(run, "prune" if is_pruned else "train")


def load_step_network(run: Run, step: str) -> tuple[Specification, Weights]:
    """Read the network that a step stored. Raises UsageProblem (`step_missing`) if the step has stored none."""
    path, text = (run.step_folder(step) / name for name in NETWORK_FILE_NAMES)
    if not path.is_file():
        raise UsageProblem(reason("step_missing", step=step))
    return load_network(path, text)


def trained_weights(run: Run) -> Weights:
    """Read the weights that the train step stored. Raises UsageProblem (`step_missing`)."""
    path = run.step_folder("train") / "weights.npz"
    if not path.is_file():
        raise UsageProblem(reason("step_missing", step="train"))
    return load_weights(path)


def train_step(run: Run) -> StepFacts:
    """Train the recipe's network from the recipe's starting weights. Returns the figures of the last epoch.

    Writes weights.npz, specification.json and history.json.
    """
    recipe, folder, data = run.recipe, run.step_folder("train"), load_dataset(run)
    specification = recipe_specification(recipe)
    weights, history = train_recipe(
        run, training=data.samples("training"), validation=data.samples("validation"), folder=folder
    )
    save_step_network(folder, specification, weights)
    run.write_step_json("train", "history.json", history)
    return {
        "parameters": parameter_count(specification),
        "multiply_adds": multiply_add_count(specification),
        **to_builtins(history[-1]),
        **trainer_facts(run),
    }


def trainer_facts(run: Run) -> StepFacts:
    """Return facts about a training by several processes, such as their number; empty if this process trains alone."""
    return run.trainer.facts() if run.trainer else {}


def train_recipe(
    run: Run, *, training: Samples, validation: Samples, folder: Path, work_name: str = "epochs"
) -> tuple[Weights, list[EpochFigures]]:
    """Train the recipe's network with the recipe's settings. Returns the weights, and the figures of each epoch.

    `work_name` is the name of the work in progress reports. See `classifier.train_and_average_networks`.
    """
    recipe, specification = run.recipe, recipe_specification(run.recipe)
    start = starting_weights(recipe, specification)
    if recipe.training.teacher_epochs:
        start = _train_on_teacher(run, start, training=training, validation=validation, folder=folder / "teacher")
    return train_and_average_networks(
        specification,
        start,
        training=training_samples(run, training),
        validation=validation,
        options=replace(training_options(recipe, specification), starting_weights_share=recipe.training.start_share),
        folder=folder,
        progress=lambda own_folder: partial(run.report_epoch, own_folder, work_name=work_name),
        train_one=run.trainer.train_classifier if run.trainer else train,
    )


def training_samples(run: Run, samples: Samples, *, teacher_share: float | None = None) -> Samples:
    """Return the images from which training draws batches: the images of all sources with a share above 0.

    If the recipe names a teacher, each target is a mean of the label and the teacher's score. `teacher_share` (0..1) is
    the weight of the score. By default, the weight is 0 if the recipe has the key `teacher_epochs`, else 0.5. Raises
    the exceptions of `teacher.with_teacher_targets`.
    """
    settings = run.recipe.training
    drawn = samples.select_sources([source.name for source in run.recipe.data if source.share])
    weight = (0.0 if settings.teacher_epochs else 0.5) if teacher_share is None else teacher_share
    if not settings.teacher or not weight:
        return drawn
    cache = run.step_folder("data") / "teacher.npz"
    return with_teacher_targets(drawn, settings.teacher, teacher_share=weight, cache=cache, progress=run.progress)


def _train_on_teacher(run: Run, weights: Weights, *, training: Samples, validation: Samples, folder: Path) -> Weights:
    """Train a network on the teacher's predictions alone, for `teacher_epochs`. Returns the trained weights."""
    specification = recipe_specification(run.recipe)
    options = training_options(run.recipe, specification)
    trained, _ = train(
        specification,
        dict(weights),
        training=training_samples(run, training, teacher_share=1.0),
        validation=validation,
        options=replace(options, schedule=replace(options.schedule, epochs=run.recipe.training.teacher_epochs)),
        folder=folder,
        progress=partial(run.report_epoch, folder, work_name="epochs on the teacher's predictions"),
    )
    return trained


def training_options(recipe: ClassifierRecipe, specification: Specification | None = None) -> TrainingOptions:
    """Return the training options of a recipe. `specification` is needed if layers are frozen."""
    return TrainingOptions(
        schedule=make_schedule(recipe),
        augmentation=recipe.augmentation,
        engine_settings=engine_settings(recipe, specification),
        engine_name=recipe.training.engine,
    )


def engine_settings(recipe: ClassifierRecipe, specification: Specification | None = None) -> EngineSettings:
    """Return a recipe's settings for the training engine.

    `specification` is the network; None is allowed if no layers are frozen. The recipe's key `evidence_outside` is not
    applied to auxiliary labels.
    """
    training, frozen = recipe.training, recipe.network.frozen or ("-",)
    layers = specification.layers if specification else ()
    return EngineSettings(
        weight_decay=training.weight_decay,
        frozen=frozenset(layer.name for layer in layers if layer.name.startswith(frozen)),
        precision=training.precision,
        threads=training.threads,
        label_weights=tuple(label.weight for label in recipe.labels),
        outside_weights=tuple(training.evidence_outside * (not label.auxiliary) for label in recipe.labels),
    )


def recipe_specification(recipe: ClassifierRecipe) -> Specification:
    """Return the specification of the recipe's network, with a head for all labels.

    Raises UsageProblem (`recipe_key`) for invalid numbers of channels.
    """
    choice, whole = recipe.network, full_width_specification(recipe)
    if Path(choice.weights).is_dir():
        known = _network_of_pack(recipe)
        return known.with_channels(
            {
                name: math.ceil(count * choice.width)
                for name, count in known.channels.items()
                if name != known.label_channel_set
            }
        )
    scaled = whole.with_scaled_channels(choice.width) if choice.width != 1 else whole
    unknown = set(choice.channels) - set(scaled.channels) | (set(choice.channels) & {scaled.label_channel_set})
    if unknown or not all(count >= 1 for count in choice.channels.values()):
        detail = f"names no hidden channel set: {', '.join(sorted(unknown))}" if unknown else "must be 1 or more"
        raise UsageProblem(reason("recipe_key", key="network.channels", detail=detail))
    return scaled.with_channels(choice.channels)


def full_width_specification(recipe: ClassifierRecipe) -> Specification:
    """Return the specification of the recipe's network with the published number of channels in each layer."""
    choice, spec = recipe.network, recipe.input
    stride = {"last_stride": choice.last_stride} if choice.is_residual else {}
    blocks = {"blocks": choice.blocks} if choice.blocks else {}
    return NETWORKS[choice.kind](
        height=spec.height,
        width=spec.width,
        labels=len(recipe.labels),
        input_channels=spec.channels,
        **stride,
        **blocks,
    )


def _network_of_pack(recipe: ClassifierRecipe) -> Specification:
    """Return the specification of the pack's network from which the recipe's network starts.

    Raises UsageProblem (`recipe_key`) if the recipe sets numbers of channels, or a width above 1.
    """
    choice, whole = recipe.network, full_width_specification(recipe)
    if choice.width > 1 or choice.channels:
        key, detail = "network.channels", "cannot be chosen for a network that starts from a pack"
        if not choice.channels:
            key, detail = "network.width", "must be at most 1 for a network that starts from a pack"
        raise UsageProblem(reason("recipe_key", key=key, detail=detail))
    return whole.with_channels(channels_from_pack(Path(choice.weights), whole))


def starting_weights(recipe: ClassifierRecipe, specification: Specification) -> Weights:
    """Return the weights with which a recipe's training starts: random, or copied from the key `network.weights`.

    Only arrays of equal name and shape are copied; all others are random. The head is copied only if the recipe has the
    key `start_share` or `teacher_epochs`. Otherwise the copied head may belong to other labels.

    Raises UsageProblem: `weights_unfit` if no array could be copied, `data_unreadable` if the file cannot be read,
    `recipe_key` if the recipe has the key `start_share` and the head has another number of labels.
    """
    weights, source = initial_weights(specification, seed=recipe.training.seed), recipe.network.weights
    if source == NO_STARTING_WEIGHTS:
        return weights
    found = _other_weights(recipe)
    head = {key: array for key, array in found.items() if key.startswith(f"{HEAD_LAYER}/")}
    if not copy_matching_weights({key: array for key, array in found.items() if key not in head}, weights):
        raise UsageProblem(reason("weights_unfit", path=source))
    keeps_head = recipe.training.start_share or recipe.training.teacher_epochs
    if keeps_head and not copy_matching_weights(head, weights) and recipe.training.start_share:
        detail = "needs starting weights of a network with as many labels"
        raise UsageProblem(reason("recipe_key", key="training.start_share", detail=detail))
    return weights


def _other_weights(recipe: ClassifierRecipe) -> Weights:
    path = Path(recipe.network.weights)
    if path.is_dir():
        return _weights_of_pack(recipe)
    try:
        return load_weights(path)
    except (OSError, StorageProblem) as problem:
        detail = getattr(problem, "strerror", None) or "no file of weights"
        raise UsageProblem(reason("data_unreadable", path=path, detail=detail)) from problem


def _weights_of_pack(recipe: ClassifierRecipe) -> Weights:
    """Return the weights of the pack's network, reduced to the channels with the largest weights.

    The share of the channels is the recipe's key `network.width`.
    """
    known, width = _network_of_pack(recipe), recipe.network.width
    found = weights_from_pack(Path(recipe.network.weights), known)
    if width == 1:
        return found
    weights = initial_weights(known, seed=recipe.training.seed)
    copied = [key for key, array in found.items() if copy_matching_weights({key: array}, weights)]
    keep = select_in_one_shot(known, weights, kind="magnitude", share=width)
    kept = keep_channels(known, weights, keep=keep)[1]
    return {key: kept[key] for key in copied}


def training_files_digest(network: NetworkChoice, training: ClassifierTraining) -> str:
    """Return a digest of the files that a training reads: the network's starting weights, the teacher's weights."""
    return digest(starting_weights_digest(network), file_sha256(training.teacher) if training.teacher else "")


def starting_weights_digest(choice: NetworkChoice) -> str:
    """Return the SHA-256 of a network's starting weights; "" for random weights.

    For a pack, this is the SHA-256 of the manifest, which contains the digests of the pack's files.
    """
    path = Path(choice.weights)
    return (
        "" if choice.weights == NO_STARTING_WEIGHTS else file_sha256(path / "manifest.json" if path.is_dir() else path)
    )


def make_schedule(recipe: ClassifierRecipe) -> Schedule:
    """Return the schedule of a recipe's training: duration, learning rate, shares of the sources, and groups."""
    names = (
        *("epochs", "batch_size", "learning_rate", "warm_up_epochs", "average_epochs"),
        *("label_smoothing", "images_per_epoch", "seed", "networks"),
    )
    values = {name: getattr(recipe.training, name) for name in names}
    groups = (
        [tuple(shares) for _, shares in sorted(recipe.source_shares_by_group.items())]
        if recipe.training.average_sources
        else ()
    )
    shares = tuple((source.name, source.share) for source in recipe.data)
    return Schedule(**values, shares=shares, groups=tuple(groups))


TRAIN_STEP: Final = Step(
    name="train",
    perform=train_step,
    recipe_keys=("input", "lungs", "network", "labels", "data", "split", "training", "augmentation"),
    outside_inputs_digest=lambda run: training_files_digest(run.recipe.network, run.recipe.training),
    outputs=(*NETWORK_FILE_NAMES, "history.json"),
)


MAX_HEAD_FIT_IMAGES: Final = 1500
"""The largest number of training images to which `convert_network` fits the head again."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class NetworkFiles:
    """A network without auxiliary labels, and the network's float and int8 files."""

    specification: Specification
    weights: Weights
    float_file: ConvertedNetwork
    int8_file: ConvertedNetwork


def quantise_step(run: Run) -> StepFacts:
    """Convert the network to an int8 file and a float file. Returns the sizes of the files in bytes.

    Auxiliary labels are removed, and the head is fitted again. Writes both files and the converted network.
    """
    data = load_dataset(run)
    drawn = np.random.default_rng(run.recipe.training.seed).permutation(data.indices("training"))
    files = convert_network(
        run.recipe, *load_last_network(run), images=data.image_set.images[drawn[:MAX_HEAD_FIT_IMAGES]]
    )
    save_step_network(run.step_folder("quantise"), files.specification, files.weights)
    return write_converted_files(run, {"float": files.float_file, "int8": files.int8_file})


def convert_network(
    recipe: ClassifierRecipe, specification: Specification, weights: Weights, *, images: NDArray[np.uint8]
) -> NetworkFiles:
    """Remove the auxiliary labels of a network, and convert the network to a float file and an int8 file.

    Parameters
    ----------
    images
        Training images (n, height, width, channels) uint8 in random order; `MAX_HEAD_FIT_IMAGES` are enough. The int8
        file's head is fitted to all images. The ranges of the int8 values are measured on the first images; the
        recipe's key `calibration_images` is their number.
    """
    kept = [index for index, label in enumerate(recipe.labels) if not label.auxiliary]
    specification, weights = keep_channels(specification, weights, keep={LABELS_CHANNEL_SET: np.array(kept)})
    representative = images[: recipe.calibration_images]
    weights = equalise_channels(specification, weights, representative=representative)
    whole = to_float_file(specification, weights)
    integer = quantise(specification, weights, representative=representative)
    float_answers, integer_answers = (
        run_network(file.data, images, spec=recipe.input, outputs=file.output_roles(specification), labels=len(kept))
        for file in (whole, integer)
    )
    refitted = refit_head(weights, float_outputs=float_answers, int8_outputs=integer_answers)
    integer = quantise(specification, refitted, representative=representative)
    return NetworkFiles(specification=specification, weights=weights, float_file=whole, int8_file=integer)


def write_converted_files(run: Run, files: Mapping[str, ConvertedNetwork]) -> StepFacts:
    """Write the files int8.tflite and float.tflite, and the roles of their outputs. Returns the sizes in bytes."""
    for name, file in files.items():
        write_atomically(run.step_folder("quantise") / f"{name}.tflite", file.data)
    run.write_step_json("quantise", "outputs.json", {name: file.output_indices for name, file in files.items()})
    return {f"{name}_bytes": len(file.data) for name, file in files.items()}


def read_converted_file(run: Run, name: str) -> ConvertedNetwork:
    """Read the network file `name` ("int8" or "float") of the quantise step. Raises UsageProblem (`step_missing`)."""
    path = run.step_folder("quantise") / f"{name}.tflite"
    if not path.is_file():
        raise UsageProblem(reason("step_missing", step="quantise"))
    return ConvertedNetwork(
        path.read_bytes(), run.read_step_json("quantise", "outputs.json", dict[str, dict[str, int]])[name]
    )


def run_converted_file(run: Run, name: str, images: NDArray[np.uint8], work_name: str) -> NetworkOutputs:
    """Run the network file `name` ("int8" or "float") on images (n, height, width, channels) uint8.

    Returns the outputs. `work_name` is the name of the work in progress reports. Raises UsageProblem (`step_missing`).
    """
    file, (specification, _) = read_converted_file(run, name), load_last_network(run)
    return run_network(
        file.data,
        images,
        spec=run.recipe.input,
        outputs=file.output_roles(specification),
        labels=len(run.recipe.pack_labels),
        progress=lambda done, total: run.progress(work_name, done, total),
    )


QUANTISE_STEP: Final = Step(
    name="quantise",
    perform=quantise_step,
    recipe_keys=("calibration_images",),
    outputs=("int8.tflite", "float.tflite", "outputs.json"),
)

"""Measure the speed of training and inference, for `fieldray adapt profile` and for pruning studies.

A profile measures the time of training iterations by batch size and image size, and proposes a batch size. Iterations 1
and 2 include start-up (memory, compilation of kernels) and are reported separately (Taran 2022, chapter 4).

The networks of a pruning study are timed one after the other in several rounds on one thread, in two ways:

- "engine_batch": float32 in the training engine, batches of 100 (as the dissertation measured in Keras);
- "int8": the int8 TensorFlow Lite file, one image at a time, as a clinic's computer runs it.

A time is compared only with the time of the original network that was measured in the same way.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fieldray_adapt.files import json_bytes, write_atomically
from fieldray_adapt.networks.specification import Specification, Weights, initial_weights
from fieldray_adapt.prune.recipe import StudyRecipe
from fieldray_adapt.recipes.shared import ProfileChoice
from fieldray_adapt.reports.page import Paragraph, ReportPart, Table
from fieldray_adapt.run import Progress, Run, Step, StepFacts
from fieldray_adapt.training.engine_choice import open_engine
from fieldray_adapt.training.engine_interface import EngineName, EngineSettings
from fieldray_adapt.training.steps import recipe_specification, starting_weights_digest

Mode = Literal["training", "inference"]
"""What a profile measures: training steps or inference."""
Clock = Callable[[], float]
"""A function that returns the time in seconds."""
_TOLERANCE: Final = 1.1
_BATCH: Final = 100
_SLICE_S: Final = 0.15


class ProfileRow(Struct, frozen=True, kw_only=True):
    """The times of iterations with one batch size and one image side (pixels).

    `later_ms` is the median of iteration 3 and all later iterations, in milliseconds.
    """

    mode: Mode
    side: int
    batch_size: int
    first_ms: float
    second_ms: float
    later_ms: float
    later_ms_per_image: float


class Profile(Struct, frozen=True, kw_only=True):
    """The document profile.json: measured times, and the proposed batch size by image side."""

    rows: tuple[ProfileRow, ...]
    proposed_batch_size: dict[str, int]


def time_iterations(
    call: Callable[[], object], *, iterations: int = 5, clock: Clock = time.perf_counter
) -> tuple[float, float, float]:
    """Run the function `call` several times, and measure the time of each run in milliseconds.

    Returns the time of the first call, the time of the second call, and the median of all later calls. `clock` returns
    the time in seconds.
    """
    milliseconds = []
    for _ in range(iterations):
        begun = clock()
        call()
        milliseconds.append((clock() - begun) * 1e3)
    first, second, *later = milliseconds
    return first, second, statistics.median(later)


def profile_network(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    batch_sizes: Sequence[int],
    sides: Sequence[int] = (),
    modes: Sequence[Mode] = ("training", "inference"),
    settings: EngineSettings,
    engine: EngineName = "auto",
    iterations: int = 5,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[ProfileRow]:
    """Measure the times of training and inference for each batch size and image side.

    Each combination is measured with a new engine, on images of noise. A network with dense layers can only be measured
    at the side of its specification.

    Parameters
    ----------
    sides
        Image sides in pixels; empty for the side of the specification.
    engine
        The training library whose iterations are timed.
    iterations
        Number of timed iterations of each combination.
    progress
        A function that is called with the number of finished combinations and the number of all combinations.
    """
    rows: list[ProfileRow] = []
    wanted = [(side, size, mode) for side in sides or (specification.height,) for size in batch_sizes for mode in modes]
    for side, size, mode in wanted:
        sized = specification if side == specification.height else replace(specification, height=side, width=side)
        run = _iteration(sized, weights, mode=mode, batch_size=size, settings=settings, name=engine)
        first, second, later = time_iterations(run, iterations=iterations)
        row = ProfileRow(
            mode=mode,
            side=side,
            batch_size=size,
            first_ms=first,
            second_ms=second,
            later_ms=later,
            later_ms_per_image=later / size,
        )
        rows.append(row)
        progress(len(rows), len(wanted))
    return rows


def _iteration(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    mode: Mode,
    batch_size: int,
    settings: EngineSettings,
    name: EngineName,
) -> Callable[[], object]:
    """Return a function that performs one training step or one inference on images of noise."""
    generator = np.random.default_rng(0)
    shape = (batch_size, specification.height, specification.width, specification.input_channels)
    images = generator.random(shape, np.float32)
    labels = specification.channels[specification.label_channel_set]
    targets = np.eye(labels, dtype=np.float32)[generator.integers(0, labels, batch_size)]
    engine = open_engine(specification, weights, settings=settings, name=name)
    if mode == "inference":
        return lambda: engine.logits(images)
    return lambda: engine.step(images, targets, learning_rate=1e-6)


def propose_batch_size(rows: Sequence[ProfileRow]) -> int:
    """Return the smallest batch size whose training time per image is at most 10 % above the shortest.

    Larger batches save little time and give fewer steps in an epoch. Raises ValueError if `rows` has no training times.
    """
    per_image = {row.batch_size: row.later_ms_per_image for row in rows if row.mode == "training"}
    limit = min(per_image.values()) * _TOLERANCE
    return min(size for size, milliseconds in per_image.items() if milliseconds <= limit)


def fastest_batch_size(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    batch_sizes: Sequence[int],
    settings: EngineSettings,
) -> int | None:
    """Measure the training time with each of `batch_sizes`, and return the size that `propose_batch_size` chooses.

    None if `batch_sizes` is empty.
    """
    if not batch_sizes:
        return None
    rows = profile_network(
        specification, weights, batch_sizes=batch_sizes, modes=("training",), settings=settings, iterations=4
    )
    return propose_batch_size(rows)


def inference_s_per_image(
    specification: Specification,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    images: NDArray[np.float32],
    settings: EngineSettings,
) -> float:
    """Return the time of inference per image in seconds, measured after start-up.

    All of `images` (n, height, width, channels) float32 are one batch.
    """
    engine = open_engine(specification, weights, settings=settings)
    return time_iterations(lambda: engine.logits(images), iterations=7)[-1] / 1e3 / len(images)


Network = tuple[Specification, Weights]
"""A network whose speed is measured: specification and weights."""


def time_networks(
    networks: Mapping[str, Network],
    *,
    files: Mapping[str, bytes],
    images: NDArray[np.uint8],
    settings: EngineSettings,
    rounds: int,
) -> dict[str, dict[str, float]]:
    """Return the median time per image of each network in milliseconds, by network, then by kind of timing.

    The kinds are "engine_batch" and "int8". Each round times every network once, so that all have equal conditions.

    Parameters
    ----------
    files
        The int8 files, by name of the network. A network without a file is timed in the engine only.
    images
        (n, height, width, channels) uint8, for timing in the engine.
    rounds
        Number of time measurements of each network.
    """
    runs: dict[tuple[str, str], tuple[Callable[[], object], int]] = {}
    batch = images[:_BATCH].astype(np.float32) / np.float32(255)
    for name, (specification, weights) in networks.items():
        engine = open_engine(specification, weights, settings=settings)
        runs[name, "engine_batch"] = (partial(engine.logits, batch), len(batch))
        if name in files:
            runs[name, "int8"] = (_file_run(files[name]), 1)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, (run, count) in runs.items():
            seconds[key].append(_median_seconds(run) / count)
    found: dict[str, dict[str, float]] = {name: {} for name in networks}
    for (name, kind), taken in seconds.items():
        found[name][kind] = statistics.median(taken) * 1e3
    return found


def _median_seconds(call: Callable[[], object]) -> float:
    """Return the median duration in seconds of several runs of the function `call`.

    After a first run that does not count, `call` runs until 0.15 s have passed, at least once.
    """
    call()
    taken: list[float] = []
    began = ended = time.perf_counter()
    while not taken or ended - began < _SLICE_S:
        begun = time.perf_counter()
        call()
        ended = time.perf_counter()
        taken.append(ended - begun)
    return statistics.median(taken)


def _file_run(data: bytes) -> Callable[[], object]:
    """Return a function that runs a TensorFlow Lite file once on a random image, with one thread."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    entrance, exits = interpreter.get_input_details()[0], interpreter.get_output_details()
    image = np.random.default_rng(0).random(entrance["shape"], np.float32)
    image = (image * 255).astype(np.uint8) if entrance["dtype"] == np.uint8 else image

    def run() -> object:
        interpreter.set_tensor(entrance["index"], image)
        interpreter.invoke()
        return [interpreter.get_tensor(row["index"]) for row in exits]

    return run


PROFILE_FILE_NAME: Final = "profile.json"
_WHAT: Final = "profile"


def profile_step(run: Run) -> StepFacts:
    """Measure the speed of the recipe's network with initial weights. The speed does not depend on the weights.

    Writes profile.json.
    """
    training = run.recipe.training
    settings = EngineSettings(precision=training.precision, threads=training.threads)
    network = recipe_specification(run.recipe)
    found = _profiled(network, run.recipe.profile, settings=settings, engine=training.engine, progress=run.progress)
    run.write_step_json("profile", PROFILE_FILE_NAME, found)
    return found.proposed_batch_size


def profile_study(recipe: StudyRecipe, *, say: Callable[[str], None], progress: Progress) -> None:
    """Measure the speed of a pruning study's original network. Writes profile/profile.json to the run folder."""
    settings = EngineSettings(loss="categorical", precision=recipe.original.precision, threads=recipe.training_threads)
    found = _profiled(recipe.original.specification(), recipe.profile, settings=settings, progress=progress)
    write_atomically(recipe.run / "profile" / PROFILE_FILE_NAME, json_bytes(found))
    for side, size in found.proposed_batch_size.items():
        say(f"profile: at {side} pixels train with batches of {size}")


def _profiled(
    specification: Specification,
    choice: ProfileChoice,
    *,
    settings: EngineSettings,
    engine: EngineName = "auto",
    progress: Progress,
) -> Profile:
    rows = profile_network(
        specification,
        initial_weights(specification, seed=0),
        batch_sizes=choice.batch_sizes,
        sides=choice.sides,
        settings=settings,
        engine=engine,
        iterations=choice.iterations,
        progress=lambda done, total: progress(_WHAT, done, total),
    )
    sides = {row.side: [own for own in rows if own.side == row.side] for row in rows}
    proposed = {str(side): propose_batch_size(sides[side]) for side in sorted(sides)}
    return Profile(rows=tuple(rows), proposed_batch_size=proposed)


def profile_report_parts(profile: Profile) -> list[ReportPart]:
    """Return a profile as parts of a report: a table of times, and the proposed batch sizes."""
    head = (
        *("mode", "side, pixels", "images in a batch", "iteration 1, ms", "iteration 2, ms", "later, ms"),
        "later, ms per image",
    )
    rows = [
        [row.mode, str(row.side), str(row.batch_size), f"{row.first_ms:.2f}", f"{row.second_ms:.2f}",
         f"{row.later_ms:.2f}", f"{row.later_ms_per_image:.2f}"]
        for row in profile.rows
    ]  # fmt: skip
    chosen = ", ".join(f"{size} at {side} pixels" for side, size in profile.proposed_batch_size.items())
    return [Table(column_names=head, rows=rows), Paragraph(f"Batch size proposed for training: {chosen}.")]


PROFILE_STEP: Final = Step(
    name="profile",
    perform=profile_step,
    recipe_keys=("input", "network", "labels", "training", "profile"),
    # A network that starts from a pack has the pack's channel counts.
    outside_inputs_digest=lambda run: starting_weights_digest(run.recipe.network),
)

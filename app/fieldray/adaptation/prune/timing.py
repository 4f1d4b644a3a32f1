"""The time of networks per image, all measured in one run, alternating, on one thread.

Three kinds, and each network is only ever compared with the original of the same kind:
- "engine_batch": float32 in the engine that trains, batches of 100 (as the dissertation measured in Keras);
- "float32": the float TensorFlow Lite file, one image at a time;
- "int8": the full int8 TensorFlow Lite file, one image at a time, which is what a clinic's computer runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.engine import EngineSettings, open_engine
from fieldray.adaptation.quantise import quantise, to_float_file
from fieldray.adaptation.specification import Specification
from fieldray.adaptation.weights import Weights

_BATCH: Final = 100
ROUNDS: Final = 7
_SLICE_S: Final = 0.15
Network = tuple[Specification, Weights]
Key = TypeVar("Key", str, tuple[str, str])


@dataclass(frozen=True, slots=True, eq=False)
class Files:
    """A network as a full int8 TensorFlow Lite file and, where it was asked for, as a float32 one."""

    int8: bytes
    float32: bytes | None


def files_of(network: Network, *, images: NDArray[np.uint8], with_float: bool = True) -> Files:
    """Convert a network; the int8 ranges are taken from `images`, (n, height, width, channels) uint8 for training."""
    whole = to_float_file(*network).data if with_float else None
    return Files(quantise(*network, representative=images).data, whole)


@dataclass(frozen=True, slots=True)
class Timed:
    """Median milliseconds per image of each kind, and the size of the int8 file."""

    milliseconds: Mapping[str, float]
    int8_bytes: int

    def against(self, original: Timed) -> dict[str, float]:
        """Times faster than the original, by kind."""
        return {kind: original.milliseconds[kind] / own for kind, own in self.milliseconds.items()}


def time_networks(
    networks: Mapping[str, Network],
    *,
    files: Mapping[str, Files],
    images: NDArray[np.uint8],
    settings: EngineSettings,
    rounds: int = ROUNDS,
) -> dict[str, Timed]:
    """Time every network alternating, so that what else the machine does falls on all alike.

    Parameters
    ----------
    files
        Of each network.
    images
        (n, height, width, channels) uint8, for timing in the engine.
    rounds
        How often each network is timed; the median counts.
    """
    runs: dict[tuple[str, str], tuple[Callable[[], object], int]] = {}
    batch = images[:_BATCH].astype(np.float32) / 255
    for name, (specification, weights) in networks.items():
        runs[name, "engine_batch"] = (_engine_run(specification, weights, batch, settings), len(batch))
        if (whole := files[name].float32) is not None:
            runs[name, "float32"] = (_file_run(whole), 1)
        runs[name, "int8"] = (_file_run(files[name].int8), 1)
    taken = _alternating(runs, rounds=rounds)
    return {
        name: Timed(
            {kind: milliseconds for (owner, kind), milliseconds in taken.items() if owner == name},
            len(files[name].int8),
        )
        for name in networks
    }


def time_files(files: Mapping[str, bytes], *, rounds: int = ROUNDS) -> dict[str, float]:
    """Median milliseconds per image of TensorFlow Lite files by name, on one thread and alternating."""
    return _alternating({name: (_file_run(data), 1) for name, data in files.items()}, rounds=rounds)


def _alternating(runs: Mapping[Key, tuple[Callable[[], object], int]], *, rounds: int) -> dict[Key, float]:
    """Median milliseconds per image of each run, given with the number of images it does."""
    seconds: dict[Key, list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, (run, count) in runs.items():
            seconds[key].append(median_seconds(run, slice_s=_SLICE_S) / count)
    return {key: statistics.median(rows) * 1e3 for key, rows in seconds.items()}


def median_seconds(run: Callable[[], object], *, slice_s: float) -> float:
    """Median seconds of the runs that fit into a slice of time, at least one, after one to warm up."""
    run()
    taken: list[float] = []
    began = ended = time.perf_counter()
    while not taken or ended - began < slice_s:
        begun = time.perf_counter()
        run()
        ended = time.perf_counter()
        taken.append(ended - begun)
    return statistics.median(taken)


def _engine_run(
    specification: Specification, weights: Weights, images: NDArray[np.float32], settings: EngineSettings
) -> Callable[[], object]:
    engine = open_engine(specification, weights, settings=settings)
    return lambda: engine.logits(images)


def _file_run(data: bytes) -> Callable[[], object]:
    """Runs of a TensorFlow Lite file on one thread, with an image copied in and the scores read each time."""
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

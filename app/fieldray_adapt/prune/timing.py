"""The time of networks per image, all measured in one run, alternating, on one thread.

Two kinds, and each network is only ever compared with the original of the same kind:
- "engine_batch": float32 in the engine that trains, batches of 100 (as the dissertation measured in Keras);
- "int8": the full int8 TensorFlow Lite file, one image at a time, which is what a clinic's computer runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.engine import EngineSettings, open_engine
from fieldray_adapt.specification import Specification, Weights

_BATCH: Final = 100
ROUNDS: Final = 7
_SLICE_S: Final = 0.15
Network = tuple[Specification, Weights]


def time_networks(
    networks: Mapping[str, Network],
    *,
    files: Mapping[str, bytes],
    images: NDArray[np.uint8],
    settings: EngineSettings,
    rounds: int = ROUNDS,
) -> dict[str, dict[str, float]]:
    """Median milliseconds per image of every network by kind, timed alternating, so that what else the machine does
    falls on all alike.

    Parameters
    ----------
    files
        The int8 file of each network.
    images
        (n, height, width, channels) uint8, for timing in the engine.
    rounds
        How often each network is timed; the median counts.
    """
    runs: dict[tuple[str, str], tuple[Callable[[], object], int]] = {}
    batch = images[:_BATCH].astype(np.float32) / 255
    for name, (specification, weights) in networks.items():
        engine = open_engine(specification, weights, settings=settings)
        runs[name, "engine_batch"] = (partial(engine.logits, batch), len(batch))
        runs[name, "int8"] = (_file_run(files[name]), 1)
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, (run, count) in runs.items():
            seconds[key].append(_median_seconds(run) / count)
    return {
        name: {kind: statistics.median(seconds[name, kind]) * 1e3 for kind in ("engine_batch", "int8")}
        for name in networks
    }


def _median_seconds(run: Callable[[], object]) -> float:
    """Median seconds of the runs that fit into a slice of time, at least one, after one to warm up."""
    run()
    taken: list[float] = []
    began = ended = time.perf_counter()
    while not taken or ended - began < _SLICE_S:
        begun = time.perf_counter()
        run()
        ended = time.perf_counter()
        taken.append(ended - begun)
    return statistics.median(taken)


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

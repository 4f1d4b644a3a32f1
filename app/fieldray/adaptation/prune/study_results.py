"""What a study's networks are worth: converted and tested once, then timed alternately, then laid out as tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.digest import digest
from fieldray.adaptation.engine import EngineSettings
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.fit import Labelled, quality
from fieldray.adaptation.prune.record import Iteration
from fieldray.adaptation.prune.timing import Files, Network, Timed, files_of
from fieldray.adaptation.specification import multiply_adds, parameters


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """A network's files, and the share of test images that the float network and the int8 file get right."""

    files: Files
    accuracy: float
    accuracy_int8: float


def convert_and_test(
    network: Network,
    *,
    folder: Path,
    images: NDArray[np.uint8],
    test: Labelled,
    settings: EngineSettings,
    with_float: bool = True,
    say: Callable[[], None] = lambda: None,
) -> Conversion:
    """Convert and test a network, or take what `folder` keeps of it; `say` is told if there is work to do.

    Parameters
    ----------
    images
        Training images (n, height, width, channels) uint8 that decide the ranges of the integers.
    with_float
        Make a float32 file too.
    """
    key = digest(*network, images, test, with_float)
    found = _stored(folder, key)
    if found is None:
        say()
        files = files_of(network, images=images, with_float=with_float)
        right, _ = quality(*network, data=test, settings=settings)
        found = Conversion(files, right, file_accuracy(files.int8, test))
        if files.float32 is not None:
            write_atomically(folder / "float32.tflite", files.float32)
        write_atomically(folder / "int8.tflite", files.int8)
        facts = {"key": key, "accuracy": found.accuracy, "accuracy_int8": found.accuracy_int8}
        write_atomically(folder / "tested.json", json.dumps(facts).encode())
    return found


def _stored(folder: Path, key: str) -> Conversion | None:
    """What an earlier run left, if it is of this very network; the facts are written last."""
    path = folder / "tested.json"
    facts = json.loads(path.read_text()) if path.is_file() else {}
    if facts.get("key") != key:
        return None
    whole = folder / "float32.tflite"
    files = Files((folder / "int8.tflite").read_bytes(), whole.read_bytes() if whole.is_file() else None)
    return Conversion(files, facts["accuracy"], facts["accuracy_int8"])


def file_accuracy(data: bytes, test: Labelled) -> float:
    """Share of images, 0..1, whose highest score from a TensorFlow Lite file (uint8 in and out) is the right one."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=data, num_threads=1)
    interpreter.allocate_tensors()
    entrance, exit_ = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    right = 0
    for image, targets in zip(test.images, test.targets, strict=True):
        interpreter.set_tensor(entrance, np.rint(image[None] * 255).astype(np.uint8))
        interpreter.invoke()
        right += int(interpreter.get_tensor(exit_)[0].argmax() == targets.argmax())
    return right / len(test)


def row_of(network: Network, *, of: Conversion, timed: Timed, original: tuple[Network, Timed]) -> dict[str, Any]:
    """A network's line of the table, ready for JSON; `original` is what it is compared with."""
    whole, here = parameters(original[0][0]), parameters(network[0])
    return {
        "parameters": here,
        "times_fewer_parameters": whole / here,
        "removed_share": 1 - here / whole,
        "multiply_adds": multiply_adds(network[0]),
        "test_accuracy": of.accuracy,
        "test_accuracy_int8": of.accuracy_int8,
        "milliseconds_per_image": dict(timed.milliseconds),
        "speed_up": timed.against(original[1]),
        "int8_bytes": timed.int8_bytes,
        "channels": dict(network[0].channels),
    }


def iteration_row(iteration: Iteration, row: Mapping[str, Any]) -> dict[str, Any]:
    """An iteration's line: what its run recorded, and the network's own line."""
    return {
        "iteration": iteration.number,
        "settings": None if iteration.settings is None else asdict(iteration.settings),
        "validation_accuracy_before_retraining": iteration.quality_before,
        "validation_accuracy": iteration.quality,
        "batch_size_proposed": iteration.batch_size_proposed,
        "wall_seconds": iteration.wall_seconds,
        **row,
    }

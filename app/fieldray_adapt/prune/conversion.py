"""Convert the networks of a pruning study to int8 files, measure their test accuracy, and store the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fieldray.typed_json import parse_json
from fieldray_adapt.files import digest, json_bytes, raise_if_damaged, write_atomically
from fieldray_adapt.networks.quantise import quantise
from fieldray_adapt.training.engine_interface import EngineSettings
from fieldray_adapt.training.loop import LabelledImages, measure_accuracy
from fieldray_adapt.training.profile import Network

T = TypeVar("T")


class _Tested(Struct, frozen=True, kw_only=True):
    """The document tested.json: a network's digest, its test accuracy, and the test accuracy of its int8 file."""

    key: str
    accuracy: float
    accuracy_int8: float


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """The int8 file of a network, and the test accuracies (0..1) of the float network and of the int8 file."""

    int8_file: bytes
    float_accuracy: float
    int8_accuracy: float


def convert_and_test(
    network: Network,
    *,
    folder: Path,
    images: NDArray[np.uint8],
    test: LabelledImages,
    settings: EngineSettings,
    on_start: Callable[[], None] = lambda: None,
) -> Conversion:
    """Convert a network to an int8 file, and measure the test accuracies of network and file.

    If `folder` has a stored result for the network, the stored result is returned without work.

    Parameters
    ----------
    folder
        The folder that stores the result.
    images
        Training images (n, height, width, channels) uint8 from which the converter takes the ranges of the integers.
    test
        The test images with labels.
    on_start
        A function that is called before the work. It is not called if a stored result is returned.
    """
    key, path, file = digest(*network, images, test), folder / "tested.json", folder / "int8.tflite"
    tested = read_json_if_present(path, _Tested)
    if tested is None or tested.key != key:
        on_start()
        data = quantise(*network, representative=images).data
        right, _ = measure_accuracy(*network, data=test, settings=settings)
        write_atomically(file, data)
        tested = _Tested(key=key, accuracy=right, accuracy_int8=file_accuracy(data, test))
        write_atomically(path, json_bytes(tested))
    return Conversion(file.read_bytes(), tested.accuracy, tested.accuracy_int8)


def read_json_if_present(path: Path, kind: type[T]) -> T | None:
    """Read a JSON file of a run folder as an object of type `kind`; None if the file does not exist.

    Raises StorageProblem (run_file_damaged).
    """
    if not path.is_file():
        return None
    with raise_if_damaged(path):
        return parse_json(path.read_bytes(), kind)


def file_accuracy(data: bytes, test: LabelledImages) -> float:
    """Return the share (0..1) of test images that a TensorFlow Lite file classifies correctly.

    The file must have uint8 input and uint8 output.
    """
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

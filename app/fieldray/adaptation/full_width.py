"""The full-width ResNet50 that a pruned pack is compared with: drawn weights, for timing only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from fieldray.adaptation.files import publish, require_publishable
from fieldray.adaptation.networks import resnet50
from fieldray.adaptation.quantise import quantise, to_float_file
from fieldray.adaptation.weights import initial_weights

_IMAGES: Final = 2


def write_full_width(folder: Path, *, size: tuple[int, int, int], has_int8: bool) -> tuple[Path, ...]:
    """Write resnet50-float.tflite (float32, image in 0..1), with `has_int8` also resnet50-int8.tflite (uint8).

    Parameters
    ----------
    size
        (height, width, channels) of the image.

    Raises
    ------
    UsageProblem
    StorageProblem
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    require_publishable(folder / "resnet50-float.tflite", folder / "resnet50-int8.tflite")
    height, width, channels = size
    network = resnet50(height=height, width=width, labels=1, input_channels=channels)
    weights = initial_weights(network, seed=1)
    files = {"resnet50-float.tflite": to_float_file(network, weights)}
    if has_int8:
        images = np.random.default_rng(1).integers(0, 256, (_IMAGES, *size), np.uint8)
        files["resnet50-int8.tflite"] = quantise(network, weights, representative=images)
    for name, converted in files.items():
        publish(folder / name, converted.data)
    return tuple(folder / name for name in files)

"""A TensorFlow Lite file's answers to many images, by the same code that screens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import InputSpec, OutputRoles
from fieldray.inference.litert import Network, NetworkSpec
from fieldray.inference.runtime import load_runtime


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Answers:
    """Raw scores (n, labels) in 0..1, pooled features (n, f), class maps (n, labels, rows, columns) as logits."""

    scores: NDArray[np.float64]
    features: NDArray[np.float32]
    class_maps: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scores)


def answer(
    file: bytes,
    images: NDArray[np.uint8],
    *,
    spec: InputSpec,
    outputs: OutputRoles,
    labels: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Answers:
    """Run every image (n, height, width, channels) uint8 on one thread. Raises BackendProblem."""
    network = Network(file, NetworkSpec(input=spec, outputs=outputs, labels=labels), runtime=load_runtime(), threads=1)
    found = []
    for index, image in enumerate(images):
        found.append(network.run(image))
        progress(index + 1, len(images))
    none = np.zeros(0, np.float32)
    return Answers(
        scores=np.stack([one.scores for one in found]).astype(np.float64),
        features=np.stack([none if one.features is None else one.features for one in found]),
        class_maps=np.stack([none if one.class_maps is None else one.class_maps for one in found]),
    )

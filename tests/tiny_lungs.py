"""A tiny lung-field network as a TensorFlow Lite file and as a signed pack. Its outputs follow simple formulas:

b = block means of the input / 255                       4x4 blocks
mask = 1 - b                                             dark areas are lung
second mask = 1.2 - b                                    optional: less dark areas are lung, too
frontal_chest = sigmoid(4 - 10 * mean(relu(1 - 2b)))     no chest where all is black
inverted      = sigmoid(-4 + 8 * mean(relu(2b - 1)))     inverted where nearly all is white
all others    = sigmoid(-4)
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.model import LUNG_NETWORK_CHECKS, GoldenVectors, Model
from fieldray.packs.manifest import GoldenTolerance, Input
from fieldray.packs.verified import golden_files, manifest_file_entries, read_pack
from packs_factory import make_lung_fields
from tiny_models import SIDE, lungs_bytes, tiny_inputs

_OWN: Final = {"frontal_chest": (4.0, 0.0, -10.0), "inverted": (-4.0, 8.0, 0.0)}  # bias, bright weight, dark weight
_WEIGHTS: Final = [_OWN.get(name, (-4.0, 0.0, 0.0)) for name in LUNG_NETWORK_CHECKS]


def tiny_checks(inputs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the scores (n, 6) of inputs (n, SIDE, SIDE, 1) by the formula of this module, without quantisation."""
    blocks = inputs.reshape(len(inputs), SIDE // 4, 4, SIDE // 4, 4).mean(axis=(2, 4)) / 255
    bright, dark = ((2 * blocks - 1).clip(0).mean((1, 2)), (1 - 2 * blocks).clip(0).mean((1, 2)))
    logits = np.stack([bias + of_bright * bright + of_dark * dark for bias, of_bright, of_dark in _WEIGHTS], axis=1)
    return (1 / (1 + np.exp(-logits))).astype(np.float32)


def tiny_lungs_model(**changes: object) -> Model:
    """Return a lung-field pack in memory. `changes` go to the manifest."""
    model = _loaded()
    return replace(model, manifest=replace(model.manifest, **changes))


@lru_cache
def _loaded() -> Model:
    with tempfile.TemporaryDirectory() as folder:
        pack = write_tiny_lungs(Path(folder))
        return replace(read_pack(pack).model, trust="builtin")


def write_tiny_lungs(folder: Path, *, masks: int = 1, **changes: object) -> Path:
    """Write `folder`/test-lungs-1.0.0/, a lung-field pack that runs. `changes` go to its description."""
    golden = GoldenVectors(inputs=tiny_inputs(), scores=tiny_checks(tiny_inputs()), tolerance=0.02)
    contents = {"litert": lungs_bytes(_WEIGHTS, masks=masks), "card": b"# Tiny lungs\n", **golden_files(golden)}
    said = {
        "input": Input(
            height=SIDE, width=SIDE, channels=1, dtype="uint8", intensity="percentile", fit="stretch", margin=0.0
        ),
        "files": manifest_file_entries(contents),
        "golden": GoldenTolerance(tolerance=golden.tolerance),
    }
    return make_lung_fields(folder, contents=contents, **{**said, **changes})

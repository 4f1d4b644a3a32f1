"""The lungs of training images, found by the pack that finds them when screening, and read by the same rules."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import Image, PixelMap
from fieldray.domain.lungs import LungFields, find_lungs
from fieldray.domain.mask import edges, overlaps
from fieldray.domain.model import LungRules, Manifest
from fieldray.errors import UsageProblem
from fieldray.imaging.preprocess import to_tensor
from fieldray.inference.litert import Network, NetworkSpec
from fieldray.inference.runtime import load_runtime
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray.reasons import reason

CELLS: Final = 64
"""Rows and columns of the share of lung that is kept of an image as the network sees it."""


class LungFinder:
    """A lung-field pack in an interpreter of its own.

    Raises PackProblem where the pack cannot be read, UsageProblem `recipe_key` where it is no lung-field pack.
    """

    def __init__(self, folder: Path) -> None:
        model = read_files(folder, read_verified_manifest(folder)).companion("signed")
        if model is None or model.manifest.lung_rules is None:
            raise UsageProblem(reason("recipe_key", key="lungs", detail="names a pack of another kind"))
        self._manifest: Manifest = model.manifest
        self._rules: LungRules = model.manifest.lung_rules
        spec = NetworkSpec(
            input=model.manifest.input, outputs=model.manifest.outputs, labels=len(model.manifest.labels)
        )
        self._network = Network(model.files["litert"], spec, runtime=load_runtime(), threads=1)

    def find(self, image: Image) -> LungFields:
        """The lungs of one image, in pixels of its file. Raises BackendProblem."""
        spec, (rows, columns) = self._manifest.input, image.extent
        tensor = to_tensor(image, spec)
        found = self._network.run(tensor.values[0])
        if found.mask is None:
            raise ValueError("a lung-field pack without a mask")
        scores = {label.code: float(score) for label, score in zip(self._manifest.labels, found.scores, strict=True)}
        return find_lungs(
            found.mask,
            scores,
            self._rules,
            pixel_map=tensor.pixel_map.for_cells(found.mask.shape, of=(spec.height, spec.width)),
            rows=round(rows * image.step),
            columns=round(columns * image.step),
        )


def lung_shares(lungs: LungFields, pixel_map: PixelMap, *, of: tuple[int, int]) -> NDArray[np.uint8]:
    """Share of lung, 0..255, in `CELLS` x `CELLS` cells of what the network sees: uint8 (CELLS, CELLS).

    Parameters
    ----------
    pixel_map
        Where a pixel of the tensor lies in the image.
    of
        Height and width of the tensor.
    """
    cells = pixel_map.for_cells((CELLS, CELLS), of=of)
    down, across = edges(cells, (CELLS, CELLS))
    lung_down, lung_across = edges(lungs.pixel_map, lungs.shares.shape)
    inside = overlaps(down, lung_down) @ lungs.mask.astype(np.float64) @ overlaps(across, lung_across).T
    shares = np.rint(255 * inside / (cells.row_scale * cells.column_scale)).clip(0, 255)
    return np.asarray(shares, np.uint8)

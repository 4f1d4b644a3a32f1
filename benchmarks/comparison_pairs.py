"""Make the image pairs on which comparison is measured: warped copies, inserted opacities, pairs of patients.

Patients are divided by a hash of the patient number. One part is used for choices (thresholds, band-pass, noise), the
other part for measuring. No patient is in both parts.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fieldray.comparison.matching import Displacement, GreyFloatImage, blur, warp
from fieldray.domain.comparison import FRAME_SIDE, FramedImage
from fieldray.domain.image import CoordinateMap, ImageHeader, ImageRef
from fieldray.domain.mask import Mask

Part = Literal["choose", "measure"]
_MAX_DISPLACEMENT: Final = 0.08  # largest displacement, as a share of the image's width
_GREY_NOISE: Final = 2.0  # standard deviation in grey levels (0..255)
_RADII_PX: Final = (12.0, 40.0)
_CONTRASTS: Final = (0.03, 0.10)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PatientPair:
    """Two images of one patient. `is_stable` is whether view and findings of both images are equal."""

    prior: FramedImage
    current: FramedImage
    patient: str
    source: str
    is_same_view: bool
    is_stable: bool


def part_of_patient(patient: str) -> Part:
    """Return the part to which a patient belongs: the part for choices, or the part for measuring."""
    return "choose" if hashlib.sha256(f"comparison:{patient}".encode()).digest()[0] % 2 == 0 else "measure"


def read_pairs(data: Path, part: Part, *, max_pairs: int, notify: Callable[[str], None]) -> list[PatientPair]:
    """Read at most `max_pairs` random pairs of comparable images of the patients in a part. The seed is fixed."""
    with (data / "pairs.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if part_of_patient(row["patient_id"]) == part]
    drawn = [rows[index] for index in np.random.default_rng(17).permutation(len(rows))]
    pairs: list[PatientPair] = []
    with _reader() as read:
        for row in drawn:
            if len(pairs) == max_pairs:
                break
            notify(f"reading {len(pairs)} of {max_pairs}")
            prior, current = read(data / row["prior"]), read(data / row["current"])
            if prior and current:
                pairs.append(_pair(row, prior, current))
    return pairs


def _pair(row: Mapping[str, str], prior: FramedImage, current: FramedImage) -> PatientPair:
    is_same_view = row["prior_view"] == row["current_view"]
    return PatientPair(
        prior=prior,
        current=current,
        patient=row["patient_id"],
        source=row["set"],
        is_same_view=is_same_view,
        is_stable=is_same_view and row["prior_finding"] == row["current_finding"],
    )


@contextlib.contextmanager
def _reader() -> Iterator[Callable[[Path], FramedImage | None]]:
    """Yield a function that reads an image file as `fieldray compare` does. It returns None for unsuitable images."""
    from fieldray.packs.library import PackLibrary
    from fieldray.paths import data_folder
    from fieldray.pipeline.compare import read_pair_image
    from fieldray.settings import load_settings
    from fieldray.workers.pool import open_workers

    settings, _ = load_settings()
    finder = PackLibrary(data_folder()).load_shipped_lung_pack()
    assert finder is not None
    known: dict[Path, FramedImage | None] = {}
    with contextlib.closing(open_workers(settings, 1)) as readers:

        def read(path: Path) -> FramedImage | None:
            if path not in known:
                ref = ImageRef(path=path, kind="jpeg", header=ImageHeader())
                known[path] = read_pair_image(ref, workers=readers, lung_pack=finder).framed_image
            return known[path]

        yield read


# ---- warped copies and inserted opacities


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class WarpedCopy:
    """A copy of an image, warped by a known displacement, with other exposure and noise.

    A point at the position p in the copy is at p + displacement in the original image.
    """

    image: FramedImage
    displacement: Displacement


def random_displacement(generator: np.random.Generator) -> Displacement:
    """Return a smooth random displacement of up to 8 % of the image's width. The smoothness is one of three values."""
    sigma = float(generator.choice((48.0, 64.0, 96.0)))
    fields = [blur(generator.normal(size=(FRAME_SIDE, FRAME_SIDE)).astype(np.float32), sigma) for _ in range(2)]
    field = np.stack(fields, axis=-1)
    largest = np.hypot(field[..., 0], field[..., 1]).max()
    share = generator.uniform(0.5, 1.0)
    return np.asarray(field * (share * _MAX_DISPLACEMENT * FRAME_SIDE / largest), np.float32)


def make_warped_copy(image: FramedImage, generator: np.random.Generator) -> WarpedCopy:
    """Return a copy of an image, warped by a random displacement, with other exposure and new noise."""
    displacement = random_displacement(generator)
    return WarpedCopy(image=warp_image(image, displacement, generator), displacement=displacement)


def warp_image(image: FramedImage, displacement: Displacement, generator: np.random.Generator) -> FramedImage:
    """Return a copy of an image, warped by `displacement`, with other gamma, contrast and noise."""
    grey = warp(image.pixels, displacement)
    gamma, contrast = generator.uniform(0.85, 1.15), generator.uniform(0.85, 1.0)
    changed = 255 * contrast * (grey / 255) ** gamma + generator.normal(0, _GREY_NOISE, grey.shape)
    return to_framed_image(changed, warp(image.lungs.astype(np.float32), displacement) > 0.5)


def to_framed_image(grey: NDArray[np.float32] | NDArray[np.float64], lungs: Mask) -> FramedImage:
    """Return grey levels (rows, columns) and a lung mask as a `FramedImage`."""
    pixels = np.rint(grey.clip(0, 255)).astype(np.uint8)
    return FramedImage(pixels=pixels, lungs=np.array(lungs), frame_to_image=CoordinateMap(1.0, 0.0, 1.0, 0.0))


def insert_opacity(image: FramedImage, generator: np.random.Generator) -> tuple[FramedImage, Mask]:
    """Insert a round soft opacity at a random position in the lungs.

    Returns the new image, and a mask of the core: the area where the opacity has more than half of its contrast.
    """
    rows, columns = np.nonzero(image.lungs)
    index = int(generator.integers(len(rows)))
    radius, contrast = generator.uniform(*_RADII_PX), generator.uniform(*_CONTRASTS)
    down, across = np.mgrid[:FRAME_SIDE, :FRAME_SIDE]
    distance = np.hypot(down - rows[index], across - columns[index]) / radius
    profile: GreyFloatImage = np.where(distance < 1, 0.5 * (1 + np.cos(np.pi * np.square(distance.clip(0, 1)))), 0)
    return to_framed_image(image.pixels + 255 * contrast * profile, image.lungs), np.asarray(profile > 0.5)

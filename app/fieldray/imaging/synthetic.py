"""Synthetic images for the demonstration and the tests: drawn like chest radiographs, of no real person.

Each image is drawn from a map of the material in the beam's path: tissue, ribs and heart, with less material in the
lungs. Scatter and noise are added. The images show that the program works, but say nothing about a model's performance.

The module also provides the real images of the demonstration, which are openly licensed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from fieldray.paths import asset_path

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

_DIGITAL_XRAY: Final = "1.2.840.10008.5.1.4.1.1.1.1"
# The root for identifiers made from a UUID (PS3.5 B.2). The rest is fixed, so that the files are always equal.
_UID_ROOT: Final = "2.25.3141592653589793"
_TWELVE_BITS: Final = 4095

FloatImage = NDArray[np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class _Grid:
    """Coordinates of every pixel.

    across  -1..1, with the spine at 0
    down    0..1
    """

    across: FloatImage
    down: FloatImage


def chest_phantom(rows: int, columns: int, seed: int, *, abnormal: bool) -> NDArray[np.uint16]:
    """Draw an image like a chest radiograph: uint16 (rows, columns), values of 12 bits, 0 for air.

    Equal arguments give equal images. The drawing scales with the size.

    seed      seed of the random numbers
    abnormal  whether to add opacities to a lung; the rest of the image stays unchanged
    """
    random = np.random.default_rng(seed)
    grid, size = _place_and_size(rows, columns, random)
    lungs = _lungs(grid, size)
    thickness = _body(grid) - 0.62 * lungs + _middle(grid, size) + _ribs(grid, lungs, random) + _collar_bones(grid)
    if abnormal:
        thickness = thickness + _opacities(grid, lungs, np.random.default_rng((seed, 1)))
    image = np.float32(1) - np.exp(-1.25 * np.clip(thickness, 0, None))
    image = image + random.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.008)
    image = _with_side_marker(image * _TWELVE_BITS * np.float32(random.uniform(0.85, 1.0)), random)
    sides = _soft(np.subtract(0.97, np.abs(grid.across) / 1.1), 0.004)
    border = sides * _soft(np.subtract(np.minimum(grid.down, 1 - grid.down), 0.015), 0.004)
    pixels: NDArray[np.uint16] = np.rint((image * border).clip(0, _TWELVE_BITS)).astype(np.uint16)
    return pixels


def lung_mask(rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """Return the lung mask of the image that `chest_phantom` draws for these arguments.

    The mask is uint8 (rows, columns), 255 inside the lungs, else 0.
    """
    grid, size = _place_and_size(rows, columns, np.random.default_rng(seed))
    return np.uint8(255) * (_lungs(grid, size) >= 0.5)


def _place_and_size(rows: int, columns: int, random: np.random.Generator) -> tuple[_Grid, np.float32]:
    """Choose the middle and the size of the drawn chest by the first random numbers."""
    across = np.linspace(-1.1, 1.1, columns, dtype=np.float32)[None, :] + np.float32(random.normal(0, 0.02))
    down = np.linspace(0, 1, rows, dtype=np.float32)[:, None]
    return _Grid(across=across, down=down), np.float32(random.uniform(0.92, 1.08))


def _soft(distance: FloatImage, width: float) -> FloatImage:
    """Return a soft edge: 0 outside, rising to 1 inside.

    distance  distance from the edge, positive inside
    width     width of the transition, in units of the distance
    """
    share = 1 / (1 + np.exp((-distance / np.float32(width)).clip(-40, 40)))
    edge: FloatImage = share.astype(np.float32, copy=False)
    return edge


def _blob(grid: _Grid, across: float, down: float, wide: float, high: float, *, edge: float = 0.08) -> FloatImage:
    radius = np.sqrt(((grid.across - across) / wide) ** 2 + ((grid.down - down) / high) ** 2)
    return _soft((1 - radius).astype(np.float32), edge)


def _body(grid: _Grid) -> FloatImage:
    shoulders = 0.45 + 0.6 * np.sqrt(np.clip((grid.down - 0.01) / 0.16, 0, 1))
    depth = np.sqrt(np.clip(1 - (grid.across / 1.12) ** 2, 0, 1))
    body: FloatImage = 0.95 * depth * _soft((shoulders - np.abs(grid.across)).astype(np.float32), 0.015)
    return body


def _lungs(grid: _Grid, size: np.float32) -> FloatImage:
    """Draw the lungs: two rounded triangles, narrow at the top, with the domes of the diaphragm below.

    The dome on the patient's right is higher.
    """
    lungs = np.zeros(np.broadcast_shapes(grid.across.shape, grid.down.shape), np.float32)
    for side, dome in ((-1, 0.77), (1, 0.80)):
        away = (side * grid.across - 0.44 * size) / (0.16 + 0.19 * np.clip((grid.down - 0.08) / 0.45, 0, 1) * size)
        floor = dome + 0.10 * ((side * grid.across - 0.35) / 0.4) ** 2 - grid.down
        top = grid.down - 0.09 - 0.06 * away**2
        inside = np.minimum(np.minimum(0.3 * (1 - np.abs(away)), floor), top).astype(np.float32)
        lungs = np.maximum(lungs, _soft(inside, 0.012))
    return lungs


def _middle(grid: _Grid, size: np.float32) -> FloatImage:
    """Draw the spine with its discs, the great vessels, and the heart, which leans to the left side of the body."""
    spine = np.exp(-((grid.across / 0.09) ** 2)) * (0.34 + 0.05 * np.sin(grid.down * 95))
    vessels = 0.25 * _blob(grid, 0.06, 0.30, 0.17, 0.20)
    heart = 0.55 * _blob(grid, 0.16, 0.63, float(0.36 * size), 0.19, edge=0.05)
    hila = 0.12 * (_blob(grid, -0.22, 0.45, 0.10, 0.09, edge=0.3) + _blob(grid, 0.25, 0.43, 0.10, 0.09, edge=0.3))
    middle: FloatImage = (spine + vessels + heart + hila).astype(np.float32)
    return middle


def _ribs(grid: _Grid, lungs: FloatImage, random: np.random.Generator) -> FloatImage:
    """Draw the ribs as arcs. The rear parts fall away from the spine, the front parts rise towards the breast bone."""
    shift = random.uniform(-0.01, 0.01)
    away = np.abs(grid.across)
    ribs = np.zeros_like(lungs)
    for number in range(9):
        start = 0.10 + 0.083 * number + shift
        rear = start - 0.02 + 0.20 * away**2 - 0.10 * away
        front = start + 0.16 - 0.13 * away
        for line, strength in ((rear, 0.15), (front, 0.08)):
            ribs += np.float32(strength) * np.exp(-(((grid.down - line) / 0.013) ** 2)).astype(np.float32)
    ribs *= _soft((away - 0.08).astype(np.float32), 0.02) * _soft((0.86 - away).astype(np.float32), 0.02)
    return ribs * (0.35 + 0.65 * lungs)


def _collar_bones(grid: _Grid) -> FloatImage:
    away = np.abs(grid.across)
    line = 0.145 - 0.06 * away + 0.02 * np.sin(away * 7)
    within = _soft((away - 0.1).astype(np.float32), 0.02) * _soft((0.8 - away).astype(np.float32), 0.02)
    bones: FloatImage = 0.20 * np.exp(-(((grid.down - line) / 0.014) ** 2)) * within
    return bones


def _opacities(grid: _Grid, lungs: FloatImage, random: np.random.Generator) -> FloatImage:
    """Draw one to three clouds of uneven density in one lung."""
    side = random.choice((-1, 1))
    clouds = np.zeros_like(lungs)
    for _ in range(random.integers(1, 4)):
        across, down = side * random.uniform(0.36, 0.60), random.uniform(0.28, 0.68)
        wide, high = random.uniform(0.10, 0.20), random.uniform(0.06, 0.12)
        cloud = _blob(grid, across, down, wide, high, edge=0.28)
        waves = 1 + 0.25 * np.sin(random.uniform(20, 40) * grid.across + random.uniform(0, 6))
        clouds += (random.uniform(0.28, 0.45) * cloud * waves).astype(np.float32)
    return clouds * lungs


def _with_side_marker(image: FloatImage, random: np.random.Generator) -> FloatImage:
    """Burn in the side marker as radiographers place it: in the image, the patient's right is on the left."""
    rows, columns = image.shape
    height = max(10, rows // 16)
    sheet = Picture.new("L", (columns, rows))
    at = (round(columns * random.uniform(0.06, 0.1)), round(rows * random.uniform(0.05, 0.12)))
    ImageDraw.Draw(sheet).text(at, "R", fill=255, font=ImageFont.load_default(height))
    letters = np.asarray(sheet, np.float32) / np.float32(255)
    lettered: FloatImage = image * (1 - letters) + letters * _TWELVE_BITS
    return lettered


# ---- synthetic images as DICOM files


def dicom_dataset(pixels: NDArray[np.uint16], *, study_number: int, view: str = "PA") -> Dataset:
    """Make a DICOM dataset (Digital X-Ray Image, uncompressed) from pixels of 12 bits, (rows, columns).

    study_number  number of the study, from which UIDs and patient data are made
    view          View Position
    """
    from pydicom.dataset import Dataset, FileMetaDataset  # the window starts without pydicom
    from pydicom.uid import UID, ExplicitVRLittleEndian

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID, dataset.SOPInstanceUID = UID(_DIGITAL_XRAY), UID(f"{_UID_ROOT}.{study_number}.1.1")
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = f"{_UID_ROOT}.{study_number}", f"{_UID_ROOT}.{study_number}.1"
    dataset.Modality, dataset.BodyPartExamined, dataset.ViewPosition = "DX", "CHEST", view
    dataset.PatientName, dataset.PatientID = f"Synthetic^{study_number:03d}", f"SYN-{study_number:03d}"
    dataset.PatientSex, dataset.PatientAge = "MF"[study_number % 2], f"{1 + study_number % 5:03d}Y"
    dataset.StudyDate, dataset.StudyDescription = f"202401{1 + study_number % 28:02d}", "Synthetic chest, not a patient"
    dataset.Manufacturer, dataset.ImagerPixelSpacing = "Fieldray", [0.2, 0.2]
    dataset.Rows, dataset.Columns = pixels.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 12, 11, 0
    dataset.WindowCenter, dataset.WindowWidth = 2048, 4096
    dataset.PresentationLUTShape = "IDENTITY"
    dataset.PixelData = pixels.astype("<u2").tobytes()
    return dataset


def write_studies(folder: Path, *, count: int = 24, seed: int = 1) -> tuple[Path, ...]:
    """Write `count` synthetic studies as DICOM files into a folder. Every third study has opacities. Returns the paths.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number in range(1, count + 1):
        rows, columns = (1024, 860) if number % 2 else (960, 960)
        pixels = chest_phantom(rows, columns, seed * 1000 + number, abnormal=number % 3 == 0)
        path = folder / f"study-{number:03d}.dcm"
        dicom_dataset(pixels, study_number=number).save_as(path, enforce_file_format=True)
        written.append(path)
    return tuple(written)


# ---- The demonstration: real images whose licences allow it, with published labels, and some that are refused on
# purpose.
#
# Where they are from, under which licence, and what was changed is in `assets/demonstration/CREDITS.md` and
# `labels.csv`.

_ROWS: Final = 640
_COLUMNS: Final = 540
_FOR_CONSTANCY: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoImageSet:
    """One part of the images of the demonstration. A single pack screens the part.

    pack_id        id of the pack
    patient_group  phrase that names the patients
    has_ages       whether the patients' ages are published
    """

    name: str
    pack_id: str
    patient_group: str
    has_ages: bool


DEMO_IMAGE_SETS: Final[tuple[DemoImageSet, ...]] = (
    DemoImageSet(
        name="children", pack_id="pneumonia-paediatric", patient_group="children aged one to five years", has_ages=True
    ),
    DemoImageSet(
        name="adults", pack_id="adult-normal-abnormal", patient_group="patients with COVID-19", has_ages=False
    ),
)


def published_labels(part: DemoImageSet) -> Mapping[str, str]:
    """Return the published label of each image of a part, by file name."""
    rows = csv.DictReader((_folder() / "labels.csv").read_text(encoding="utf-8").splitlines())
    found = ((Path(row["file"]), row["published_label"]) for row in rows)
    return {path.name: label for path, label in found if path.parent.name == part.name}


def demo_files(part: DemoImageSet) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file of a part: the images to screen, then the files that packs must refuse."""
    for name in published_labels(part):
        yield name, (_folder() / part.name / name).read_bytes()
    for name, make in _REFUSED.items():
        yield name, make(part)


def constancy_test_files() -> Iterator[tuple[str, bytes]]:
    """Yield name (`part/file`) and content of every image of the constancy test."""
    for part in DEMO_IMAGE_SETS:
        yield from ((f"{part.name}/{name}", content) for name, content in demo_files(part))
    for number in range(1, _FOR_CONSTANCY + 1):
        dataset = dicom_dataset(chest_phantom(1024, 860, 9000 + number, abnormal=number % 2 == 0), study_number=number)
        dataset.PatientAge = ""  # packs for children and for adults accept images without an age
        yield f"drawn/study-{number}.dcm", _saved(dataset)


def demo_image_credits_path() -> Path:
    """Return the path of the Markdown file with the sources, authors and licences of the demonstration images."""
    return _folder() / "CREDITS.md"


def _folder() -> Path:
    return asset_path("demonstration")


# ---- drawn images that packs must refuse


def _drawn(part: DemoImageSet, *, view: str = "PA", body_part: str = "CHEST", age: str | None = None) -> Dataset:
    dataset = dicom_dataset(chest_phantom(_ROWS, _COLUMNS, 7, abnormal=False), study_number=900, view=view)
    dataset.BodyPartExamined = body_part
    dataset.PatientAge = age or ("003Y" if part.name == "children" else "045Y")
    return dataset


def _hand(part: DemoImageSet) -> bytes:
    """Return a drawn image of a hand (five fingers and a palm) as DICOM. The header says HAND."""
    dataset = _drawn(part, body_part="HAND")
    down, across = np.mgrid[0:_ROWS, 0:_COLUMNS].astype(np.float32)
    inside = ((down - 470) / 120) ** 2 + ((across - 270) / 115) ** 2 < 1
    for number, top in enumerate((300, 150, 110, 140, 230)):
        middle = 120 + 75 * number
        inside |= (np.abs(across - middle - (down - 400) * (2 - number) * 0.06) < 24) & (down > top) & (down < 470)
    pixels = (2800 * inside + 60 * np.cos(across / 5) * inside + 40).astype("<u2")
    dataset.PixelData = pixels.tobytes()
    return _saved(dataset)


def _lying_image(part: DemoImageSet) -> bytes:
    """Return the first image of the part, lying on its side, as PNG."""
    name = next(iter(published_labels(part)))
    with Picture.open(_folder() / part.name / name) as picture:
        turned = picture.convert("L").transpose(Picture.Transpose.ROTATE_90)
    stream = io.BytesIO()
    turned.save(stream, "PNG")
    return stream.getvalue()


def _saved(dataset: Dataset) -> bytes:
    stream = io.BytesIO()
    dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


_REFUSED: Final[Mapping[str, Callable[[DemoImageSet], bytes]]] = {
    "refused-lateral-view.dcm": lambda part: _saved(_drawn(part, view="LL")),
    "refused-hand.dcm": _hand,
    "refused-other-age.dcm": lambda part: _saved(_drawn(part, age="045Y" if part.name == "children" else "003Y")),
    "refused-on-its-side.png": _lying_image,
}

"""From stored values to an `Image`: Modality LUT, VOI LUT, window, polarity and padding (DICOM PS3.3 C.11).

The pixels of an `Image` are the stored values shifted to start at 0, and inverted if low means white. The rescale is
kept as two numbers, so nothing is rounded. Files give windows and VOI LUTs in modality values; they are converted to
pixel values here.

An image that is to be averaged over blocks (`step`) is averaged as stored, because everything after that is affine. A
Modality LUT and pixel padding are not: then it is averaged afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from fieldray.domain.image import Image, SpacingPlane, Window, WindowFunction
from fieldray.imaging.dicom_header import first_value, items, number, numbers, text, whole_number
from fieldray.imaging.reduction import block_means

KEYWORDS: Final = (
    "PhotometricInterpretation",
    "BitsStored",
    "PixelRepresentation",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    "RescaleSlope",
    "RescaleIntercept",
    "ModalityLUTSequence",
    "VOILUTSequence",
    "WindowCenter",
    "WindowWidth",
    "VOILUTFunction",
    "PresentationLUTShape",
    "PixelSpacing",
    "ImagerPixelSpacing",
    "PixelSpacingCalibrationType",
    "ViewPosition",
)
_NARROWEST: Final = 1e-3

Pixels = NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class _Table:
    """A lookup table: value `first` maps to entries[0]; values outside map to the first and last entry."""

    first: int
    entries: NDArray[np.uint16]
    highest: int

    def take(self, values: NDArray[Any]) -> NDArray[np.uint16]:
        index = (values.astype(np.int64) - self.first).clip(0, len(self.entries) - 1)
        return np.take(self.entries, index)


@dataclass(frozen=True, eq=False, slots=True)
class _Modality:
    """Pixels after the Modality LUT stage: value = pixels * scale + offset.

    lowest, highest   of all pixels, before any were averaged
    step              what is still to be averaged over
    """

    pixels: Pixels
    scale: float
    offset: float
    no_data: NDArray[np.bool_] | None
    lowest: int
    highest: int
    step: int


def grey_image(stored: NDArray[Any], dataset: Dataset, notes: tuple[str, ...] = (), *, step: int = 1) -> Image:
    """The image of stored values (rows, columns) of any integer or float type, by the elements that explain them.

    Parameters
    ----------
    stored
        Values as the file holds them.
    dataset
        Holds `KEYWORDS`, as far as the file has them.
    notes
        Codes of what was assumed so far; more are added here.
    step
        Averages over blocks of this many rows and columns.
    """
    remarks = list(notes)
    spacing_mm, plane = _spacing(dataset, step)
    stage = _modality(stored, dataset, remarks, step)
    pixels = stage.pixels
    padding = None
    if stage.no_data is not None:
        pixels = np.where(stage.no_data, pixels.dtype.type(0), pixels)
        padding = 0
    return Image(
        pixels=block_means(pixels, stage.step),
        window=_window(dataset, stage, remarks),
        voi_lut=_voi_lut(dataset, stage),
        padding=padding,
        value_scale=stage.scale,
        value_offset=stage.offset,
        spacing_mm=spacing_mm,
        spacing_plane=plane,
        view=text(dataset, "ViewPosition").upper(),
        step=step,
        full_rows=stored.shape[0],
        full_columns=stored.shape[1],
        notes=tuple(remarks),
    )


def grey_image_at(stored: NDArray[Any], dataset: Dataset, *, step: int, rows: int, columns: int) -> Image:
    """The same for values that a codec gave at 1 / `step` of a frame of `rows` x `columns`."""
    image = grey_image(stored, dataset)
    spacing_mm, _ = _spacing(dataset, step)
    return replace(image, step=step, is_approximate=True, full_rows=rows, full_columns=columns, spacing_mm=spacing_mm)


# ---- stored values to pixels


def _modality(stored: NDArray[Any], dataset: Dataset, remarks: list[str], step: int) -> _Modality:
    unit, base = 1.0, 0.0
    is_spread = stored.dtype.kind == "f" or stored.dtype.itemsize > 2
    if is_spread:
        stored, unit, base = _on_16_bits(stored)
        remarks.append("scaled_to_16_bits")
    lowest, highest = int(stored.min()), int(stored.max())
    low, high = (0, 65535) if is_spread else _stored_range(stored.dtype, dataset, lowest, highest)
    no_data = _no_data(stored, dataset, low, high)
    sequence = items(dataset, "ModalityLUTSequence")
    table = _table(sequence[0], dataset, is_signed=low < 0) if sequence else None
    if table is not None:
        values, top = table.take(np.arange(low, high + 1)), int(table.entries.max())
        pixels = _fitted(values, top)[stored.astype(np.int32) - low]
        whole = _Modality(pixels, 1.0, 0.0, no_data, int(pixels.min()), int(pixels.max()), step)
        return _turned(whole, top) if _low_is_white(dataset) else whole
    slope, intercept = number(dataset, "RescaleSlope") or 1.0, number(dataset, "RescaleIntercept") or 0.0
    if no_data is None:
        stored, step = block_means(stored, step, highest=highest), 1
    scale, offset = slope * unit, slope * (low * unit + base) + intercept
    pixels = _shifted(stored, low, high)
    shifted = _Modality(pixels, scale, offset, no_data, lowest - low, highest - low, step)
    return _turned(shifted, high - low) if _low_is_white(dataset) != (scale < 0) else shifted


def _turned(stage: _Modality, top: int) -> _Modality:
    """Inverted, so that 0 is black although low values are shown white: pixels become `top` - pixels."""
    return replace(
        stage,
        pixels=stage.pixels.dtype.type(top) - stage.pixels,
        scale=-stage.scale,
        offset=stage.offset + stage.scale * top,
        lowest=top - stage.highest,
        highest=top - stage.lowest,
    )


def _low_is_white(dataset: Dataset) -> bool:
    """MONOCHROME1, or a Presentation LUT Shape INVERSE beside MONOCHROME2 (PS3.3 C.7.6.3.1.2 and C.11.6.1.2)."""
    inverse_shape = text(dataset, "PresentationLUTShape").upper() == "INVERSE"
    return text(dataset, "PhotometricInterpretation").upper() == "MONOCHROME1" or inverse_shape


def _stored_range(of: np.dtype[Any], dataset: Dataset, lowest: int, highest: int) -> tuple[int, int]:
    """The lowest and highest value that Bits Stored allows, or more if the values found exceed that."""
    container = 8 * of.itemsize
    bits = whole_number(dataset, "BitsStored", container)
    bits = bits if 1 <= bits <= container else container
    while bits < container and not _holds(bits, lowest, highest, of.kind):
        bits += 1
    if of.kind == "i":
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return 0, 2**bits - 1


def _holds(bits: int, lowest: int, highest: int, kind: str) -> bool:
    half = 1 << (bits - 1)
    return -half <= lowest and highest < half if kind == "i" else highest < 2 * half


def _shifted(stored: NDArray[Any], low: int, high: int) -> Pixels:
    """stored - low as unsigned values, in 8 bits if they fit; the subtraction wraps around on purpose."""
    if stored.dtype.kind == "f":
        return stored - np.float32(low)
    unsigned = stored.view(f"u{stored.dtype.itemsize}")
    if low:
        unsigned = unsigned - unsigned.dtype.type(low % 2 ** (8 * stored.dtype.itemsize))
    return _fitted(unsigned, high - low)


def _fitted(values: NDArray[Any], highest: int) -> Pixels:
    if highest <= 255:
        return values.astype(np.uint8, copy=False)
    return values.astype(np.uint16, copy=False)


def _on_16_bits(stored: NDArray[Any]) -> tuple[NDArray[np.uint16], float, float]:
    """Wide integers and floats spread over 0..65535: values, step and base with stored = values * step + base."""
    finite = np.nan_to_num(stored.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    base, top = float(finite.min()), float(finite.max())
    step = (top - base) / 65535 or 1.0
    return np.rint((finite - base) / step).astype(np.uint16), step, base


def _no_data(stored: NDArray[Any], dataset: Dataset, low: int, high: int) -> NDArray[np.bool_] | None:
    """Where the file marks "no image here" (PS3.3 C.7.5.1.1.2); None if that is nowhere or everywhere."""
    value = number(dataset, "PixelPaddingValue")
    if value is None or stored.dtype.kind == "f":
        return None
    limit = number(dataset, "PixelPaddingRangeLimit")
    ends = [_with_other_sign(int(end), low, high) for end in (value, value if limit is None else limit)]
    mask = (stored >= min(ends)) & (stored <= max(ends))
    return mask if mask.any() and not mask.all() else None


def _with_other_sign(value: int, low: int, high: int) -> int:
    """A padding value written with the other signedness means the same 16 bits."""
    turned = value - 65536 if value > high else value + 65536
    return turned if low <= turned <= high and not low <= value <= high else value


# ---- how it is to be shown


def _window(dataset: Dataset, stage: _Modality, remarks: list[str]) -> Window | None:
    """The first window of the file in pixel values. LINEAR equals LINEAR_EXACT half a value lower and one narrower."""
    pairs = zip(numbers(dataset, "WindowCenter"), numbers(dataset, "WindowWidth"), strict=False)
    center, width = next(((center, width) for center, width in pairs if width > 0), (0.0, 0.0))
    if width <= 0:
        return None
    named = text(dataset, "VOILUTFunction").upper()
    function: WindowFunction = "SIGMOID" if named == "SIGMOID" else "LINEAR_EXACT"
    if named not in ("SIGMOID", "LINEAR_EXACT"):
        center, width = center - 0.5, width - 1
    width = max(width / abs(stage.scale), _NARROWEST)
    center = (center - stage.offset) / stage.scale
    if center - width / 2 > stage.highest or center + width / 2 < stage.lowest:
        remarks.append("window_ignored")
        return None
    return Window(center, width, function)


def _voi_lut(dataset: Dataset, stage: _Modality) -> NDArray[np.uint16] | None:
    """The first VOI LUT as display values 0..65535 for every pixel value (PS3.3 C.11.2.1.1)."""
    sequence = items(dataset, "VOILUTSequence")
    if not sequence:
        return None
    values = np.arange(256 if stage.pixels.dtype == np.uint8 else 65536) * stage.scale + stage.offset
    is_signed = bool(values.min() < 0)
    table = _table(sequence[0], dataset, is_signed=is_signed)
    if table is None:
        return None
    shown = table.take(np.rint(values)).astype(np.float64) * (65535 / table.highest)
    if _low_is_white(dataset):
        shown = 65535 - shown
    display: NDArray[np.uint16] = np.rint(shown).astype(np.uint16)
    return display


def _table(item: Dataset, dataset: Dataset, *, is_signed: bool) -> _Table | None:
    """The LUT Descriptor and LUT Data of a sequence item (PS3.3 C.11.1.1); None if they cannot be used."""
    little = dataset.original_encoding[1] is not False
    descriptor = _unsigned_words(item, "LUTDescriptor", little)
    entries = _unsigned_words(item, "LUTData", little)
    raw = first_value(item, "LUTData")
    if descriptor is None or len(descriptor) < 3 or entries is None:
        return None
    count, first, bits = int(descriptor[0]) or 65536, int(descriptor[1]), int(descriptor[2])
    if isinstance(raw, bytes) and len(raw) == count and bits <= 8:
        entries = np.frombuffer(raw, np.uint8).astype(np.uint16)
    entries = entries[:count]
    if len(entries) < 2 or not 1 <= bits <= 16:
        return None
    first = first - 65536 if is_signed and first > 32767 else first
    return _Table(first, entries, _highest(entries, bits))


def _highest(entries: NDArray[np.uint16], bits: int) -> int:
    """The value of white: by the descriptor, unless the entries need more bits, or at least three bits fewer."""
    used = max(1, int(entries.max()).bit_length())
    return (1 << (bits if bits - 3 < used <= bits else used)) - 1


def _unsigned_words(item: Dataset, keyword: str, little: bool) -> NDArray[np.uint16] | None:
    """16-bit words, whether pydicom gives them as bytes or as numbers."""
    raw = first_value(item, keyword)
    if isinstance(raw, bytes):
        whole = raw[: len(raw) // 2 * 2]
        return np.frombuffer(whole, "<u2" if little else ">u2").astype(np.uint16)
    listed = numbers(item, keyword)
    words = np.array([int(value) & 0xFFFF for value in listed], np.uint16)
    return words if listed else None


def _spacing(dataset: Dataset, step: int) -> tuple[tuple[float, float] | None, SpacingPlane]:
    """The spacing of the pixels, and what it is measured in (PS3.3, 10.7.1.3).

    Pixel Spacing is a calibration where the file says so, or where it differs from that of the detector. A file that
    gives it alone does not say whether it is one.
    """
    pixel, imager = (_two_sides(dataset, keyword) for keyword in ("PixelSpacing", "ImagerPixelSpacing"))
    if (found := pixel or imager) is None:
        return None, ""
    plane: SpacingPlane = "unstated"
    if pixel and (text(dataset, "PixelSpacingCalibrationType") or (imager and not np.allclose(pixel, imager, 1e-4))):
        plane = "calibrated"
    elif imager:
        plane = "detector"
    return (found[0] * step, found[1] * step), plane


def _two_sides(dataset: Dataset, keyword: str) -> tuple[float, float] | None:
    spacing = numbers(dataset, keyword)
    return (spacing[0], spacing[1]) if len(spacing) == 2 and min(spacing) > 0 else None

"""From stored values to an `Image`: Modality LUT, VOI LUT, window, polarity and padding (DICOM PS3.3 C.11).

The pixels of an `Image` are the stored values shifted to start at 0, and inverted if low values are white. The rescale
is kept as two numbers, so nothing is rounded. Files state windows and VOI LUTs in modality values, which this module
converts to pixel values.

If an image is averaged over blocks (`step`), the stored values are averaged, because all later steps are affine. A
Modality LUT and pixel padding are not affine, so images with a Modality LUT or padding are averaged afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import apply_color_lut

from fieldray.domain.image import Image, SpacingPlane, Window, WindowFunction
from fieldray.imaging.dicom_header import (
    finite_numbers,
    first_number,
    first_text,
    first_value,
    has_value,
    numbers_with_none,
    sequence_items,
    text_values,
    whole_number,
)
from fieldray.imaging.preprocess import apply_window, percentiles
from fieldray.imaging.reduction import block_means

GREY_VALUE_KEYWORDS: Final = (
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
    "PixelAspectRatio",
    "ViewPosition",
)
_DECIMALS: Final = ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth")
_MIN_WINDOW_WIDTH: Final = 1e-3
# In modality values: a narrower window over fractions is used unchanged (see `_windows`).
_NARROW: Final = 16.0
_SLOPES: Final = (1e-9, 1e9)
_MAX_WINDOWS: Final = 8
# Share of each side that is left out when a window is tested on the middle of the image.
_MARGIN: Final = 0.15
_SAMPLE_SIDE: Final = 128
_TAILS: Final = (5.0, 95.0)
_MIN_RANGE_OF_LEVELS: Final = 16
_MIN_SHARE_BETWEEN: Final = 0.08
_MAX_PIXEL_ASPECT: Final = 8.0  # a larger ratio of a pixel's sides is an error of the header
_SQUARE: Final = 0.01  # relative difference of the sides up to which a pixel counts as square

Pixels = NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class _LookupTable:
    """A lookup table. Value `first` maps to entries[0]; values outside the table map to the first or last entry.

    highest        the value that means white
    stated_length  number of entries that the file states
    """

    first: int
    entries: NDArray[np.uint16]
    highest: int
    stated_length: int

    def take(self, values: NDArray[Any]) -> NDArray[np.uint16]:
        index = (values.astype(np.int64) - self.first).clip(0, len(self.entries) - 1)
        return np.take(self.entries, index)


@dataclass(frozen=True, eq=False, slots=True)
class _ModalityPixels:
    """Pixels after the Modality LUT stage: modality value = pixels * scale + offset.

    no_data_mask  mask of the pixel padding, or None
    step          block size for the averaging of the pixels, which comes later
    """

    pixels: Pixels
    scale: float
    offset: float
    no_data_mask: NDArray[np.bool_] | None
    step: int


def grey_image(
    stored: NDArray[Any],
    dataset: Dataset,
    notes: tuple[str, ...] = (),
    *,
    step: int = 1,
    extremes: tuple[int, int] | None = None,
) -> Image:
    """Make the image of stored values (rows, columns) of any integer or float type.

    Parameters
    ----------
    stored
        Values as stored in the file.
    dataset
        The elements named by `GREY_VALUE_KEYWORDS`, as far as the file has them.
    notes
        Codes of the assumptions made so far. They are kept in the image, and further codes are added.
    step
        Blocks of step x step values are averaged to one pixel; 1 for full resolution.
    extremes
        Minimum and maximum of the values; None if not known.
    """
    remarks = [*notes, *_header_notes(dataset, 8 * stored.dtype.itemsize)]
    spacing_mm, plane = _spacing(dataset, step)
    stage = _modality(stored, dataset, remarks, step, extremes)
    pixels = stage.pixels
    padding = None
    if stage.no_data_mask is not None:
        pixels = np.where(stage.no_data_mask, pixels.dtype.type(0), pixels)
        padding = 0
    window, voi_lut = _presentation(dataset, stage, remarks)
    if any("," in value for keyword in _DECIMALS for value in text_values(dataset, keyword)):  # left unconverted
        remarks.append("decimal_comma")
    return Image(
        pixels=block_means(pixels, stage.step),
        window=window,
        voi_lut=voi_lut,
        padding_value=padding,
        value_scale=stage.scale,
        value_offset=stage.offset,
        spacing_mm=spacing_mm,
        spacing_plane=plane,
        view=first_text(dataset, "ViewPosition").upper(),
        reduction_factor=step,
        file_rows=stored.shape[0],
        file_columns=stored.shape[1],
        notes=tuple(remarks),
    )


def grey_image_from_reduced(stored: NDArray[Any], dataset: Dataset, *, step: int, rows: int, columns: int) -> Image:
    """Make the image of stored values that a codec decoded at a lower resolution: one value for step x step pixels.

    rows, columns  size of the frame at full resolution
    """
    image = grey_image(stored, dataset)
    spacing_mm, _ = _spacing(dataset, step)
    return replace(
        image,
        reduction_factor=step,
        has_approximate_pixels=True,
        file_rows=rows,
        file_columns=columns,
        spacing_mm=spacing_mm,
    )


def _header_notes(dataset: Dataset, container_bits: int) -> list[str]:
    """Return note codes for impossible header statements about grey values.

    The text of each note says how the statement is interpreted.
    """
    is_grey = first_text(dataset, "PhotometricInterpretation").upper() in ("MONOCHROME1", "MONOCHROME2")
    bits = whole_number(dataset, "BitsStored", container_bits)
    return [*["photometric_unknown"] * (not is_grey), *["bits_stored_ignored"] * (not 1 <= bits <= container_bits)]


# ---- stored values to pixels


def _modality(
    stored: NDArray[Any], dataset: Dataset, remarks: list[str], step: int, extremes: tuple[int, int] | None
) -> _ModalityPixels:
    unit, base = 1.0, 0.0
    is_spread = stored.dtype.kind == "f" or stored.dtype.itemsize > 2
    if is_spread:
        no_data = _padding_mask(stored, dataset, 0, 0)
        stored, unit, base = _on_16_bits(stored, no_data)
        remarks.append("scaled_to_16_bits")
        extremes = None
    lowest, highest = extremes or (int(stored.min()), int(stored.max()))
    low, high = (0, 65535) if is_spread else _stored_range(stored.dtype, dataset, lowest, highest)
    if not is_spread:
        no_data = _padding_mask(stored, dataset, low, high)
    sequence = sequence_items(dataset, "ModalityLUTSequence")
    table = _table(sequence[0], dataset, is_signed=low + base < 0) if sequence else None
    if table is not None:
        values, top = table.take(np.arange(low, high + 1) * unit + base), int(table.entries.max())
        pixels = _fitted(values, top)[stored.astype(np.int32) - low]
        whole = _ModalityPixels(pixels, 1.0, 0.0, no_data, step)
        if np.ptp(_central_sample(whole)) or not np.ptp(_central_sample(replace(whole, pixels=stored))):
            return _inverted(whole, top) if _low_is_white(dataset) else whole
    slope, intercept, is_usable = _rescale(dataset)
    if sequence or not is_usable:
        remarks.append("rescale_ignored")
    if no_data is None:
        stored, step = block_means(stored, step, max_value=highest), 1
    scale, offset = slope * unit, slope * (low * unit + base) + intercept
    pixels = _shifted(stored, low, high)
    shifted = _ModalityPixels(pixels, scale, offset, no_data, step)
    return _inverted(shifted, high - low) if _low_is_white(dataset) != (scale < 0) else shifted


def _inverted(stage: _ModalityPixels, top: int) -> _ModalityPixels:
    """Return inverted pixels (`top` - pixels) of a file whose low values are white. Afterwards 0 is black."""
    return replace(
        stage,
        pixels=stage.pixels.dtype.type(top) - stage.pixels,
        scale=-stage.scale,
        offset=stage.offset + stage.scale * top,
    )


def _rescale(dataset: Dataset) -> tuple[float, float, bool]:
    """Return the rescale slope, the rescale intercept, and whether the values in the file are valid.

    For invalid values the slope is 1 and the intercept 0.
    """
    slope, intercept = first_number(dataset, "RescaleSlope"), first_number(dataset, "RescaleIntercept")
    is_stated = has_value(dataset, "RescaleSlope"), has_value(dataset, "RescaleIntercept")
    is_usable = (slope is not None or not is_stated[0]) and (intercept is not None or not is_stated[1])
    if not is_usable or (slope is not None and not _SLOPES[0] <= abs(slope) <= _SLOPES[1]):
        return 1.0, 0.0, False
    return 1.0 if slope is None else slope, intercept or 0.0, True


def _low_is_white(dataset: Dataset) -> bool:
    """Return whether low values are white, by MONOCHROME1 or by Presentation LUT Shape INVERSE.

    See PS3.3 C.7.6.3.1.2 and C.11.6.1.2.
    """
    inverse_shape = first_text(dataset, "PresentationLUTShape").upper() == "INVERSE"
    return first_text(dataset, "PhotometricInterpretation").upper() == "MONOCHROME1" or inverse_shape


def _stored_range(of: np.dtype[Any], dataset: Dataset, lowest: int, highest: int) -> tuple[int, int]:
    """Return the lowest and highest value that Bits Stored allows.

    If the values found exceed that range, the range is widened.

    of               type of the stored values
    lowest, highest  minimum and maximum of the values found
    """
    container = 8 * of.itemsize
    bits = whole_number(dataset, "BitsStored", container)
    needed = max(highest, ~lowest, 0).bit_length() + (of.kind == "i")
    bits = max(bits if 1 <= bits <= container else container, needed)
    half = 2 ** (bits - 1)
    return (-half, half - 1) if of.kind == "i" else (0, 2 * half - 1)


def _shifted(stored: NDArray[Any], low: int, high: int) -> Pixels:
    """Return `stored` - `low` as unsigned values: 8 bits if `high` - `low` fits into 8 bits, else 16 bits.

    The subtraction wraps around on purpose.
    """
    if stored.dtype.kind == "f":
        return stored - np.float32(low)
    unsigned = stored.view(f"u{stored.dtype.itemsize}")
    if low:
        unsigned = unsigned - unsigned.dtype.type(low % 2 ** (8 * stored.dtype.itemsize))
    return _fitted(unsigned, high - low)


def _fitted(values: NDArray[Any], highest: int) -> Pixels:
    return values.astype(np.uint8 if highest <= 255 else np.uint16, copy=False)


def _on_16_bits(stored: NDArray[Any], no_data: NDArray[np.bool_] | None) -> tuple[NDArray[np.uint16], float, float]:
    """Spread integers of more than 16 bits, or floats, over 0..65535.

    Returns values, step and base, with stored = values * step + base. Integers whose range fits are only shifted.
    Padding values do not count for the range.
    """
    finite = np.nan_to_num(stored.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    if no_data is not None:
        finite[no_data] = finite[~no_data].min()
    base, top = float(finite.min()), float(finite.max())
    has_room = stored.dtype.kind != "f" and top - base <= 65535
    base = 0.0 if has_room and base >= 0 and top <= 65535 else base
    step = 1.0 if has_room else (top - base) / 65535 or 1.0
    return np.rint((finite - base) / step).astype(np.uint16), step, base


def padding_range_of(dataset: Dataset) -> tuple[int, int] | None:
    """Return the two ends of the Pixel Padding Value range of a DICOM file; None if the file states no range."""
    value, limit = first_number(dataset, "PixelPaddingValue"), first_number(dataset, "PixelPaddingRangeLimit")
    return None if value is None else (int(value), int(value if limit is None else limit))


def _padding_mask(stored: NDArray[Any], dataset: Dataset, low: int, high: int) -> NDArray[np.bool_] | None:
    """Return the mask of the pixel padding (PS3.3 C.7.5.1.1.2); None if no pixel is padding, or all pixels are."""
    if (ends := padding_range_of(dataset)) is None or stored.dtype.kind == "f":
        return None
    if stored.dtype.itemsize <= 2:
        ends = _with_other_sign(ends[0], low, high), _with_other_sign(ends[1], low, high)
    mask = (stored >= min(ends)) & (stored <= max(ends))
    return mask if mask.any() and not mask.all() else None


def _with_other_sign(value: int, low: int, high: int) -> int:
    """Convert a padding value that the file states as signed instead of unsigned, or the reverse.

    The 16 bits of the value are right, only their meaning is wrong. A value that is already right is returned
    unchanged.
    """
    turned = value - 65536 if value > high else value + 65536
    return turned if low <= turned <= high and not low <= value <= high else value


# ---- window and VOI LUT


def _presentation(
    dataset: Dataset, stage: _ModalityPixels, remarks: list[str]
) -> tuple[Window | None, NDArray[np.uint16] | None]:
    """Return the file's first window or VOI LUT that shows something of the image, and None for the other.

    VOI LUTs have precedence (PS3.3 C.11.2.1.1). A window or VOI LUT is useless if it lies outside the values, shows a
    single grey, or is a step. If all are useless, both results are None, except for an image without contrast, which
    keeps its window. If one is skipped, a note is added to `remarks`.
    """
    ways: list[Window | NDArray[np.uint16] | None] = [*_voi_luts(dataset, stage), *_windows(dataset, stage)]
    inside = _central_sample(stage)
    for before, way in enumerate(ways):
        if way is None:
            continue
        if isinstance(way, Window):
            shown = apply_window(inside, way)
        else:
            shown = way[np.rint(inside).astype(np.intp).clip(0, len(way) - 1)] * np.float32(255 / 65535)
        if _shows_something(shown):
            remarks += ["presentation_ignored"] if before else []
            return (way, None) if isinstance(way, Window) else (None, way)
    # an image without any contrast keeps its window, and is later refused as blank
    if ways and _shows_something(apply_window(inside, _all_of(inside))):
        remarks.append("presentation_ignored")
        return None, None
    return next((way for way in ways if isinstance(way, Window)), None), None


def _central_sample(stage: _ModalityPixels) -> NDArray[np.float32]:
    """Return some thousand pixels from the middle of the image, away from borders, marks and collimators."""
    rows, columns = (slice(int(_MARGIN * side), max(1, int((1 - _MARGIN) * side))) for side in stage.pixels.shape)
    pixels = stage.pixels[rows, columns]
    step = max(1, min(pixels.shape) // _SAMPLE_SIDE)
    sample = pixels[::step, ::step]
    if stage.no_data_mask is not None:
        is_data = ~stage.no_data_mask[rows, columns][::step, ::step]
        sample = sample[is_data] if is_data.any() else sample
    return sample.astype(np.float32).reshape(-1)


def _all_of(values: NDArray[np.float32]) -> Window:
    low, high = np.percentile(values, _TAILS)
    return Window(float(low + high) / 2, max(float(high - low), _MIN_WINDOW_WIDTH), "LINEAR_EXACT")


def _shows_something(shown: NDArray[np.float32]) -> bool:
    """Return whether displayed grey levels (0..255) show an image.

    The grey levels must differ, and enough of them must lie between the darkest and the brightest.
    """
    dark, bright = percentiles(shown, _TAILS)
    lowest, highest = shown.min() + 1, shown.max() - 1
    between = np.mean((shown > lowest) & (shown < highest))
    return bool(bright - dark >= _MIN_RANGE_OF_LEVELS and between >= _MIN_SHARE_BETWEEN)


def _windows(dataset: Dataset, stage: _ModalityPixels) -> list[Window | None]:
    """Return the file's windows in pixel values; None for each invalid window in the file.

    LINEAR equals LINEAR_EXACT with the centre half a value lower and the width one less (PS3.3 C.11.2.1.2.1). The
    conversion is meant for whole numbers, so a narrow window over fractions is used unchanged.
    """
    named = first_text(dataset, "VOILUTFunction").upper()
    function: WindowFunction = "SIGMOID" if named == "SIGMOID" else "LINEAR_EXACT"
    found: list[Window | None] = []
    pairs = zip(numbers_with_none(dataset, "WindowCenter"), numbers_with_none(dataset, "WindowWidth"), strict=False)
    is_stated = has_value(dataset, "WindowCenter") and has_value(dataset, "WindowWidth")
    for center, width in list(pairs)[: is_stated * _MAX_WINDOWS]:
        if center is None or width is None or width <= 0:
            found.append(None)
            continue
        is_of_fractions = abs(stage.scale) < 1 and width < _NARROW
        is_exact = named in ("SIGMOID", "LINEAR_EXACT") or width <= 1 or is_of_fractions
        less = 0.0 if is_exact else 1.0
        middle = (center - less / 2 - stage.offset) / stage.scale
        extent = max((width - less) / abs(stage.scale), _MIN_WINDOW_WIDTH)
        found.append(Window(middle, extent, function) if isfinite(middle + extent) else None)
    return found


def _voi_luts(dataset: Dataset, stage: _ModalityPixels) -> list[NDArray[np.uint16] | None]:
    """Return the VOI LUTs as display values 0..65535 for every pixel value (PS3.3 C.11.2.1.1).

    The list contains None for each invalid VOI LUT.
    """
    values = np.arange(256 if stage.pixels.dtype == np.uint8 else 65536) * stage.scale + stage.offset
    tables: list[NDArray[np.uint16] | None] = []
    for item in sequence_items(dataset, "VOILUTSequence")[:_MAX_WINDOWS]:
        table = _table(item, dataset, is_signed=bool(values.min() < 0))
        if table is None:
            tables.append(None)
            continue
        shown = table.take(np.rint(values)).astype(np.float64) * (65535 / table.highest)
        tables.append(np.rint(65535 - shown if _low_is_white(dataset) else shown).astype(np.uint16))
    return tables


def palette_colours(indices: NDArray[Any], dataset: Dataset) -> NDArray[Any]:
    """Convert indices into a palette to colours (rows, columns, 3): red, green and blue (PS3.3 C.7.9).

    For a damaged palette, any exception of pydicom may be raised.
    """
    names = [f"{colour}PaletteColorLookupTable" for colour in ("Red", "Green", "Blue")]
    tables = [_table(dataset, dataset, is_signed=indices.dtype.kind == "i", name=name) for name in names]
    found = [table.take(indices) for table in tables if table and len(table.entries) == table.stated_length]
    if len(found) < len(names):  # segmented or damaged palettes are left to pydicom
        return np.asarray(apply_color_lut(indices, dataset)[:, :, :3])
    return _fitted(np.stack(found, axis=2), max(int(plane.max()) for plane in found))


def _table(item: Dataset, dataset: Dataset, *, is_signed: bool, name: str = "LUT") -> _LookupTable | None:
    """Return the lookup table in a sequence item or palette (PS3.3 C.11.1.1); None if the table cannot be used."""
    little = dataset.original_encoding[1] is not False
    descriptor = _as_unsigned(item, f"{name}Descriptor", little)
    entries = _as_unsigned(item, f"{name}Data", little)
    raw = first_value(item, f"{name}Data")
    if descriptor is None or len(descriptor) < 3 or entries is None:
        return None
    count, first, bits = int(descriptor[0]) or 65536, int(descriptor[1]), int(descriptor[2])
    if isinstance(raw, bytes) and len(raw) in (count, count + count % 2) and bits <= 8:
        entries = np.frombuffer(raw, np.uint8).astype(np.uint16)
    entries = entries[:count]
    if len(entries) < 2 or not 1 <= bits <= 16:
        return None
    first = first - 65536 if is_signed and first > 32767 else first
    return _LookupTable(first, entries, _highest(entries, bits), count)


def _highest(entries: NDArray[np.uint16], bits: int) -> int:
    """Return the table value that means white.

    The table's descriptor states the number of bits. The entries decide instead if they need more bits, or at least
    three bits fewer.
    """
    used = max(1, int(entries.max()).bit_length())
    return (1 << (bits if bits - 3 < used <= bits else used)) - 1


def _as_unsigned(item: Dataset, keyword: str, little: bool) -> NDArray[np.uint16] | None:
    """Return the value of an element as 16-bit words; None if the element has no value."""
    raw = first_value(item, keyword)
    if isinstance(raw, bytes):
        whole = raw[: len(raw) // 2 * 2]
        return np.frombuffer(whole, "<u2" if little else ">u2").astype(np.uint16)
    values = np.array([int(value) & 0xFFFF for value in finite_numbers(item, keyword)], np.uint16)
    return values if len(values) else None


def _spacing(dataset: Dataset, step: int) -> tuple[tuple[float, float] | None, SpacingPlane]:
    """Return the pixel spacing in mm and the plane in which the spacing is measured (PS3.3, 10.7.1.3).

    Pixel Spacing is calibrated to the patient if the file says so, or if it differs from the detector's spacing. If the
    file has Pixel Spacing alone, the plane is unknown.
    """
    pixel, imager = (_two_sides(dataset, keyword) for keyword in ("PixelSpacing", "ImagerPixelSpacing"))
    if (found := pixel or imager) is None:
        return None, ""
    plane: SpacingPlane = "unstated"
    if pixel and (
        first_text(dataset, "PixelSpacingCalibrationType") or (imager and not np.allclose(pixel, imager, 1e-4))
    ):
        plane = "calibrated"
    elif imager:
        plane = "detector"
    return (found[0] * step, found[1] * step), plane


def pixel_aspect(dataset: Dataset) -> float:
    """Return the height of an image's pixels divided by their width.

    The result is 1 for square pixels, and for a missing or implausible statement in the header.
    """
    keywords = ("PixelSpacing", "ImagerPixelSpacing", "PixelAspectRatio")
    height, width = next(filter(None, (_two_sides(dataset, keyword) for keyword in keywords)), (1.0, 1.0))
    is_plausible = 1 / _MAX_PIXEL_ASPECT <= height / width <= _MAX_PIXEL_ASPECT
    return height / width if is_plausible and abs(height / width - 1) > _SQUARE else 1.0


def _two_sides(dataset: Dataset, keyword: str) -> tuple[float, float] | None:
    spacing = finite_numbers(dataset, keyword)
    return (spacing[0], spacing[1]) if len(spacing) == 2 and min(spacing) > 0 else None

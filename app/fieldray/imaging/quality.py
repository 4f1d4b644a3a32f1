"""Two checks of an image: whether it can be a frontal chest X-ray, by header and pixels, and how well it was taken.

A suitable image must not be refused. An empty header field therefore passes, and the pixel checks refuse only files
that nobody would call an image. An image that merely looks unlike the training images is left to the pack's
out-of-distribution check.

`may_lack_patient_ages` estimates from file names, before a run, whether files state the patient's age. Notes on how
well an image was taken are for the radiographer, and change no result.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import CoordinateMap, Image, ImageHeader, parse_dicom_date
from fieldray.domain.intended_use import (
    HeaderMatch,
    body_part_match,
    is_for_processing,
    is_special_exposure,
    view_match,
    view_words,
)
from fieldray.domain.lungs import LungFields, QualityNote
from fieldray.domain.mask import Mask, cell_edges
from fieldray.domain.model import HeaderRules
from fieldray.imaging.preprocess import apply_window, coarse_means, percentiles, thumbnail
from fieldray.imaging.source import is_system_name
from fieldray.reasons import Reason, reason

MIN_SIDE_PX: Final = 64
MAX_ASPECT_RATIO: Final = 2.5
_MIN_CONTRAST: Final = 0.01
_MIN_LEVELS: Final = 4
# Displayed difference, of 255, between dark and bright areas. In a blank image noise gives a far smaller difference.
_MIN_DISPLAYED_CONTRAST: Final = 64
# Minimum of the empty lower part, as a share of the rows. Lungs reach the empty part if they come nearer than
# `_NEAR_LOWER_PART` (share of the rows) over more than `_MAX_NEAR_WIDTH` of the width. Of 158 images of adults cut at
# 85 % of the height of their lungs, 143 are recognised; at 93 %, 137. Of 141 images collimated by 6 % of their rows
# below the lungs, none is recognised.
_MIN_LOWER_PART: Final = 0.05
_LARGE_LOWER_PART: Final = 0.1  # if the lungs are not known
_NEAR_LOWER_PART: Final = 0.05
_MAX_NEAR_WIDTH: Final = 0.02
_ONE_GREY: Final = 0.02  # spread of one grey, as a share of the range of values
_ONE_ROW: Final = 0.99  # share of a row's pixels that must have one grey
_SAMPLED: Final = 256  # rows and columns
# Minimum ratio of fine to coarse roughness. The minimum over 1,074 ordinary images (224 to 1024 pixels) is 0.293. Of
# these images blurred by a Gaussian of 15 of 1024 pixels, or shrunk to 64 pixels, 999 in 1,000 are below 0.28. Of the
# images shrunk and enlarged again, 994 in 1,000 are below 0.28.
_MIN_DETAIL: Final = 0.28
_FINE_SIDE: Final = 128
_COARSER: Final = 4
# Limits for notes on how well an image was taken. Of 600 ordinary images of adults, 4 get the note *tilted* and 7 the
# note *low*. Of 100 images turned by 15 degrees, 92 get the note *tilted*.
_MIN_HEIGHT_BY_WIDTH: Final = 0.65  # height of the lungs divided by their width
_MAX_SHARE_OF_ONE_GREY: Final = 0.08  # share of the lungs with one grey; at most 0.04 in an image without clipping
_TILTS: Final = np.array(sorted(range(-24, 25, 4), key=abs))  # degrees; of equal fits the smallest counts
_TILTED: Final = 12
_SHIFTS: Final = (-0.06, 0.0, 0.06)  # of the axis, as shares of the lungs' width
_BOTH: Final = 0.5  # minimum ratio of the lungs' areas; a single lung has no symmetry


def check_header(
    header: ImageHeader, rules: HeaderRules, *, finds_lungs: bool = False, overruled_codes: Collection[str] = ()
) -> Reason | None:
    """Return the reason to refuse an image with this header, or None. Empty header fields pass.

    finds_lungs      whether the lungs will be searched for in the pixels; an unknown view or body part then passes with
                     a note
    overruled_codes  codes of reasons for refusal that a person overruled
    """
    refused: tuple[HeaderMatch, ...] = ("other",) if finds_lungs else ("other", "unknown")
    return next((why for why in _header_problems(header, rules, refused) if why.code not in overruled_codes), None)


def _header_problems(header: ImageHeader, rules: HeaderRules, refused: Collection[HeaderMatch]) -> Iterator[Reason]:
    modality = header.modality.upper()
    if modality and modality not in rules.modalities:
        yield reason("modality", modality=header.modality)
    if body_part_match(header, rules) in refused:
        yield reason("body_part", body_part=header.body_part_examined)
    if view_match(header, rules) in refused:
        yield reason("view", view=view_words(header))
    if is_for_processing(header):
        yield reason("for_processing")
    if is_special_exposure(header):
        yield reason("image_type", kind=" / ".join(filter(None, (header.image_type, header.derivation))))
    ages = sorted(age for age in (header.patient_age_years, header.contrary_age_years) if age is not None)
    accepted = rules.ages_years
    if accepted is not None and not all(accepted[0] <= int(age) <= accepted[1] for age in ages):
        age_facts = {"age": int(ages[0]), "youngest": accepted[0], "oldest": accepted[1]}
        yield (
            reason("age", **age_facts) if len(ages) == 1 else reason("ages_contradict", other=int(ages[1]), **age_facts)
        )
    if accepted is not None and not ages and _is_born_too_late(header, accepted[0]):
        born = header.patient_birth_date[:4]
        yield reason("born_too_late", born=born, youngest=accepted[0], oldest=accepted[1])


def _is_born_too_late(header: ImageHeader, youngest: int) -> bool:
    """Return whether the patient is younger than `youngest` years today, and so was younger in every image."""
    born, today = parse_dicom_date(header.patient_birth_date), datetime.date.today()
    if born is None or born > today:
        return False
    return (born.year + youngest, born.month, born.day) > (today.year, today.month, today.day)


def check_pixels(image: Image) -> Reason | None:
    """Return the reason to refuse an image for its size or its pixels; None for an acceptable image."""
    rows, columns = image.size
    if min(rows, columns) < MIN_SIDE_PX:
        return reason("too_small", rows=rows, columns=columns)
    if max(rows, columns) > MAX_ASPECT_RATIO * min(rows, columns):
        return reason("aspect", rows=rows, columns=columns)
    return reason("blank") if _is_blank(image) else None


def _is_blank(image: Image) -> bool:
    """Return whether large areas of an image hardly differ in grey. An image that is only noise counts as blank.

    The difference must be small relative to the largest value. Values are counted from pixel value 0 or from modality
    value 0, whichever makes the largest value smaller. If the file has a window, the difference must also be small in
    displayed grey levels.
    """
    means = coarse_means(image)
    low, high = percentiles(means, (1.0, 99.0))
    zero = -image.value_offset / image.value_scale
    greatest = min(float(means.max()), float(np.abs(means - zero).max()))
    if high - low >= max(_MIN_LEVELS, _MIN_CONTRAST * greatest):
        return False
    if high - low < _MIN_LEVELS or image.window is None:
        return True
    black, white = apply_window(np.array([low, high], np.float32), image.window)
    return bool(white - black < _MIN_DISPLAYED_CONTRAST)


def lung_quality_notes(image: Image, lungs: LungFields) -> tuple[QualityNote, ...]:
    """Return codes of notes for the radiographer on the quality of an upright image.

    The result is empty for an image that is refused or has no lungs.
    """
    if lungs.refusal or not lungs.has_lungs or not (mask := lungs.mask).any():
        return ()
    cells, found = lungs.cells_to_image, list[QualityNote]()
    step = max(1, max(mask.shape) // 128)  # 128 cells a side are enough
    rows, columns = np.nonzero(mask[::step, ::step])
    down = (step * rows + 0.5) * cells.row_scale + cells.row_offset
    across = (step * columns + 0.5) * cells.column_scale + cells.column_offset
    smaller, larger = sorted((lungs.left_lung_area_share, lungs.right_lung_area_share))
    if smaller >= _BOTH * larger and abs(_tilt(mask, cells)) >= _TILTED:
        found.append("lungs_tilted")
    high, wide = (np.ptp(rows) + 1) * cells.row_scale, (np.ptp(columns) + 1) * cells.column_scale
    if not lungs.unseen_lungs and high < _MIN_HEIGHT_BY_WIDTH * wide:
        found.append("lungs_low")
    limits = np.array(image.pixels.shape)[:, None] - 1
    grey = image.pixels[tuple((np.stack((down, across)) / image.reduction_factor).astype(np.intp).clip(0, limits))]
    counts = np.bincount(np.rint(grey).astype(np.uint16))
    often = int(counts.argmax())
    if len(rows) >= 500 and counts[often] > _MAX_SHARE_OF_ONE_GREY * len(rows):
        least, most = int(np.flatnonzero(counts)[0]), len(counts) - 1
        position = (often - least) / max(1, most - least)
        found.append("lungs_black" if position < 0.02 else "lungs_white" if position > 0.98 else "lungs_few_greys")
    return tuple(found)


def incomplete_image_notes(image: Image, lungs: LungFields | None) -> tuple[str, ...]:
    """Return codes of notes that a part of an upright image, or fine detail, may be missing.

    An image with one of these notes must not be called normal. Most images have no such note.

    lungs  the lung fields, or None if no lung-field pack ran
    """
    is_known = lungs is not None and not lungs.refusal and lungs.mask.any()
    is_cut = _runs_into_lower_part(image, lungs) if lungs and is_known else _empty_share(image) >= _LARGE_LOWER_PART
    return (*["lower_part_dark"] * is_cut, *["little_detail"] * _has_little_detail(image))


def _runs_into_lower_part(image: Image, lungs: LungFields) -> bool:
    """Return whether lungs reach an empty lower part of the image.

    If a collimator made the lower part empty, the diaphragm is visible above it.
    """
    share, rows = _empty_share(image), image.size[0]
    down, _ = cell_edges(lungs.cells_to_image, lungs.mask.shape)
    reaches = lungs.mask & (down[1:, None] >= (1 - share - _NEAR_LOWER_PART) * rows)
    return bool(share >= _MIN_LOWER_PART and reaches.any(axis=0).mean() > _MAX_NEAR_WIDTH)


def _empty_share(image: Image) -> float:
    """Return the share of rows at the bottom of the image that have a single grey.

    The rows are black, white, or the grey with which a decoder replaces missing data.
    """
    values = image.pixels[:, :: max(1, image.pixels.shape[1] // _SAMPLED)]
    sample = values[:: max(1, len(values) // _SAMPLED * 4), ::4]
    low, high = percentiles(sample.astype(np.float32), (1.0, 99.0))
    grey, spread = float(np.median(values[-1])), _ONE_GREY * (high - low)
    if np.mean(np.abs(values[-1] - grey) <= spread) < _ONE_ROW:  # the last row has several greys, as usual
        return 0.0
    filled = np.flatnonzero((np.abs(values - np.float32(grey)) <= spread).mean(axis=1) < _ONE_ROW)
    return 1 - (float(filled[-1]) + 1) / len(values) if filled.size else 0.0


def _has_little_detail(image: Image) -> bool:
    """Return whether the image lacks fine detail.

    Fine detail is missing if neighbouring pixels of the image at 128 pixels differ too little, compared with
    neighbouring pixels at 32 pixels.
    """
    fine = thumbnail(image, _FINE_SIDE).astype(np.float32)
    rows, columns = (side // _COARSER * _COARSER for side in fine.shape)
    coarse = fine[:rows, :columns].reshape(rows // _COARSER, _COARSER, columns // _COARSER, _COARSER).mean(axis=(1, 3))
    return _roughness(fine) < _MIN_DETAIL * _roughness(coarse)


def _roughness(grey: NDArray[np.float32]) -> float:
    """Return the standard deviation of the difference between a pixel and the mean of its four neighbours.

    Only pixels in the middle of the image count.
    """
    sideways = grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]
    margins = [max(0, side // 8 - 1) for side in grey.shape]
    middle = tuple(slice(margin, side - 2 - margin) for margin, side in zip(margins, grey.shape, strict=True))
    return float((grey[1:-1, 1:-1] - sideways / 4)[middle].std())


def _tilt(mask: Mask, cells: CoordinateMap) -> int:
    """Return the tilt in degrees of two lungs, from their mask (rows, columns) and the map of its cells to the image.

    The tilt is that of the axis about which the lungs are most symmetrical.
    """
    step = max(1, max(mask.shape) // 42)
    mask = mask[::step, ::step]
    rows, columns = np.nonzero(mask)
    shape, middle = cells.row_scale / cells.column_scale, (rows.mean(), columns.mean())
    down, across = (rows - middle[0]) * shape, columns - middle[1]
    along, sideways = (of(np.radians(_TILTS))[:, None, None] for of in (np.cos, np.sin))
    away = 2 * (across * along + down * sideways - np.array(_SHIFTS)[:, None] * np.ptp(columns))
    row = np.rint((down - away * sideways) / shape + middle[0]).astype(np.intp)
    column = np.rint(across - away * along + middle[1]).astype(np.intp)
    inside = (row >= 0) & (row < mask.shape[0]) & (column >= 0) & (column < mask.shape[1])
    fits = (mask[row.clip(0, mask.shape[0] - 1), column.clip(0, mask.shape[1] - 1)] & inside).sum(axis=2)
    return int(_TILTS[int(fits.max(axis=1).argmax())])


def are_empty_folders(paths: Sequence[Path]) -> bool:
    """Return whether all paths are folders without any file at any depth.

    A folder is not empty if a subfolder is unreadable or is a link, because a run reports both.
    """

    def refuse(error: OSError) -> None:
        raise error

    def holds_something(found: tuple[str, list[str], list[str]]) -> bool:
        folder, folders, names = found
        return bool(names) or any(Path(folder, name).is_symlink() for name in folders)

    try:
        return all(path.is_dir() and not any(map(holds_something, os.walk(path, onerror=refuse))) for path in paths)
    except OSError:
        return False


_WITHOUT_AGE: Final = (".png", ".jpg", ".jpeg", ".zip")
_MAX_FILE_NAMES: Final = 20_000


def may_lack_patient_ages(paths: Sequence[Path]) -> bool:
    """Return whether some of these files may lack the patient's age, as PNG, JPEG and zip files may.

    Only file names are examined. The result is also True for folders with too many files to examine quickly.
    """
    seen = 0
    for path in paths:
        if path.name.lower().endswith(_WITHOUT_AGE):
            return True
        for _, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not is_system_name(name)]
            seen += len(names)
            if seen > _MAX_FILE_NAMES or any(name.lower().endswith(_WITHOUT_AGE) for name in names):
                return True
    return False

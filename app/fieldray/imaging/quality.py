"""Whether an image can be a frontal chest X-ray at all, by its header and by its pixels.

Too few refusals cost trust, too many cost images. So an empty header field passes, and the pixel checks refuse only
what nobody would call an image. What merely looks unlike the training images is left to the pack's OOD gate. Whether
files say how old a patient is, which a header check may ask for, is told beforehand as far as their names tell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from fieldray.domain.image import Image
from fieldray.domain.model import HeaderRules
from fieldray.domain.study import ImageHeader
from fieldray.imaging.preprocess import coarse_means, percentiles
from fieldray.reasons import Reason, reason

SMALLEST_SIDE: Final = 64
LARGEST_ASPECT: Final = 2.5
_LEAST_CONTRAST: Final = 0.01
_LEAST_LEVELS: Final = 4
_SAYS_NOTHING: Final = frozenset({"", "NONE", "UNKNOWN", "UNK", "OTHER", "UNSPECIFIED", "NA"})


def check_header(header: ImageHeader, rules: HeaderRules, *, waives: Collection[str] = ()) -> Reason | None:
    """Why an image with this header is refused, or None. Fields that say nothing pass.

    waives  codes of reasons that a person overruled
    """
    return next((why for why in _header_problems(header, rules) if why.code not in waives), None)


def _header_problems(header: ImageHeader, rules: HeaderRules) -> Iterator[Reason]:
    modality = header.modality.upper()
    if modality and modality not in rules.modalities:
        yield reason("modality", modality=header.modality)
    body_part = header.body_part_examined.upper()
    if _letters(body_part) not in _SAYS_NOTHING and not any(part in body_part for part in rules.body_parts):
        yield reason("body_part", body_part=header.body_part_examined)
    view = header.view_position.upper()
    words = set(re.split(r"[^A-Z0-9]+", view))
    if _letters(view) not in _SAYS_NOTHING and not words & set(rules.views):
        yield reason("view", view=header.view_position)
    age_years, accepted = header.patient_age_years, rules.ages_years
    if age_years is not None and accepted is not None and not accepted[0] <= int(age_years) <= accepted[1]:
        yield reason("age", age=int(age_years), youngest=accepted[0], oldest=accepted[1])


def check_pixels(image: Image) -> Reason | None:
    """Why this image is refused by its pixels, or None."""
    rows = image.full_rows or image.pixels.shape[0]
    columns = image.full_columns or image.pixels.shape[1]
    if min(rows, columns) < SMALLEST_SIDE:
        return reason("too_small", rows=rows, columns=columns)
    if max(rows, columns) > LARGEST_ASPECT * min(rows, columns):
        return reason("aspect", rows=rows, columns=columns)
    return reason("blank") if _is_blank(image) else None


def _is_blank(image: Image) -> bool:
    """Whether large areas hardly differ in grey: noise alone does not make an image."""
    means = coarse_means(image)
    low, high = percentiles(means, (1.0, 99.0))
    return bool(high - low < max(_LEAST_LEVELS, _LEAST_CONTRAST * float(means.max())))


def _letters(text: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "", text)


_WITHOUT_AGE: Final = (".png", ".jpg", ".jpeg", ".zip")
_MOST_NAMES: Final = 20_000


def may_lack_ages(paths: Sequence[Path]) -> bool:
    """Whether images among these may not say how old a patient is: PNG, JPEG, and what is in a zip.

    By their names alone, and of so many files that it cannot be told quickly, yes.
    """
    seen = 0
    for path in paths:
        if path.name.lower().endswith(_WITHOUT_AGE):
            return True
        for _, _, names in os.walk(path):
            seen += len(names)
            if seen > _MOST_NAMES or any(name.lower().endswith(_WITHOUT_AGE) for name in names):
                return True
    return False

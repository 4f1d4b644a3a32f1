"""The sentences of a comparison of two images (see `reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.sentence import Template

# fmt: off
COMPARISON: Final[Mapping[str, Template]] = {
    "compare_unlike": "The two images are too unlike each other to be compared. They may show different patients, or the "
                      "patient may have changed too much.",
    "compare_no_matches": "Too few places of the two images match, so they cannot be laid over each other.",
    "compare_mirrored": "One of the two images may be mirrored left to right, so they are not compared. Compare the side "
                        "markers.",
    "compare_inverted": "Black and white may be swapped in one of the two images, so they are not compared.",
    "compare_other_patients": "The files state different patients, so the images are not compared.",
    "compare_small": "The image is too small to be compared: {rows} x {columns} pixels. At least {least} a side are needed.",
    "compare_cut": "Too little of the lungs is in the image to compare it.",
    "compare_slow": "Comparing the images took longer than {seconds} s and was stopped.",
    "compare_stopped": "The comparison was stopped by an error: {detail}.",
    "compare_one_image": "{path} holds {count} images. Name a file with one image.",
    "compare_no_lungs_pack": "Images cannot be compared, because the lung-field pack of this program is missing. Reinstall "
                             "the program.",
    "compare_notice": "This shows differences of two images, not a course of disease.",
}
# fmt: on

"""Message texts of a comparison of two images, and of the choice of a prior image (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Plural, Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
    "compare_unlike": "The two images differ too much to be compared. The images may show different patients or a "
                      "large change.",
    "compare_no_matches": "Too few points of the two images match, so the images cannot be aligned.",
    "compare_mirrored": "One of the two images may be mirrored left to right, so the images are not compared. Check "
                        "the side markers.",
    "compare_inverted": "Black and white may be swapped in one of the two images, so the images are not compared.",
    "compare_other_patients": "The files state different patients, so the images are not compared.",
    "compare_small": "The image is too small to be compared: {rows} x {columns} pixels. Each side needs at least "
                     "{least} pixels.",
    "compare_cut": "The image shows too little of the lungs to be compared.",
    "compare_slow": "Comparing the images took longer than {seconds} s and was stopped.",
    "compare_stopped": "The comparison was stopped by an error: {detail}.",
    "compare_one_image": "{path} contains {count} images. Name a file with one image.",
    "compare_no_lungs_pack": "Images cannot be compared, because the lung-field pack of this program is missing. Reinstall "
                             "the program.",
    "compare_notice": "Differences between two images do not show the course of a disease. Subtle changes are "
                      "missed. In a test with artificial faint opacities, 0 of 12 were detected in X-rays of "
                      "different days. In copies of one X-ray, 30 of 30 were detected.",
    "prior_same_image": "The current image and the prior image are identical.",
    "prior_other_patient": "The two images show different patients: the patient ID, birth date or sex in the two "
                           "files differs.",
    "prior_unknown_patient": "The program cannot tell whether both images show the same patient: a file has no "
                             "patient ID.",
    "prior_later": "This image is later than the current image, so it is not a prior image.",
    "prior_order_same": "The order of the two images is unknown: both have the same study date and time, to the "
                        "minute.",
    "prior_order_unknown": "The order of the two images is unknown: a study date or time is missing.",
    "prior_other_view": "The current or the prior image is a lateral view.",
    "prior_none": "No prior image of this patient was found in this run or in the history. You can choose the file "
                  "of a prior image.",
    "prior_no_number": "The program cannot look for prior images: this file has no patient ID. You can choose the "
                       "file of a prior image.",
    "prior_gone": Plural("{count} prior image is known from an earlier run, but the image file no longer exists.",
                         "{count} prior images are known from earlier runs, but the image files no longer exist.", count_parameter="count"),
    "prior_no_image": "{path} contains no chest X-ray to compare with the current image.",
    "prior_in_zip": "{path} is a zip file. Unpack the zip file and choose one image.",
    "prior_question_closed": "Another image is open now, so the question about the prior image was closed.",
    "comparison_stopped": "The comparison was stopped.",
}
# fmt: on

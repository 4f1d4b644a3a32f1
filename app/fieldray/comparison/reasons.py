"""The sentences of a comparison of two images, and about the pair of a prior and a current one (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Plural, Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
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
    "compare_notice": "These are differences of two images, not a course of disease. Subtle changes are missed: "
                      "of synthetic faint opacities, 0 of 12 were detected in X-rays of different days, and 30 of "
                      "30 in copies of one X-ray.",
    "prior_same_image": "Both are the same image.",
    "prior_other_patient": "Another patient's image: the patient ID, birth date or sex in the two files is not the same.",
    "prior_unknown_patient": "It is not known whether both images are of the same patient: a file gives no patient ID.",
    "prior_later": "This image is not a prior one: it is later than the open image.",
    "prior_order_same": "Which image is the earlier one is not known: both give the same study date and time, to the minute.",
    "prior_order_unknown": "Which image is the earlier one is not known: a study date or time is missing.",
    "prior_other_view": "One of the two is a lateral view.",
    "prior_none": "No prior image of this patient was found in this run or in the history. A file can be chosen.",
    "prior_no_number": "Prior images are not searched for: this file gives no patient ID. A file can be chosen.",
    "prior_gone": Plural("{count} prior image is known from an earlier run, but its file is no longer there.",
                         "{count} prior images are known from earlier runs, but their files are no longer there.", by="count"),
    "prior_no_image": "There is no chest X-ray to compare with in {path}.",
    "prior_in_zip": "{path} is a zip file. Unpack it and choose one image.",
    "prior_question_closed": "Another image is open now, so the question about the prior image was closed.",
    "comparison_stopped": "The comparison was stopped.",
}
# fmt: on

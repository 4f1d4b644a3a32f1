"""The sentences about the pair of a prior and a current image (see `reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.sentence import Plural, Template

# fmt: off
PRIORS: Final[Mapping[str, Template]] = {
    "prior_same_image": "Both are the same image.",
    "prior_other_patient": "Another patient's image: the patient ID, birth date or sex in the two files is not the same.",
    "prior_unknown_patient": "It is not known whether both images are of the same patient: a file gives no patient ID.",
    "prior_later": "This image is not a prior one: it is later than the open image.",
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

"""The sentences of an audit and of the operating points of a site (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Plural, Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
    "audit_table_unreadable": "The table {path} cannot be read: {detail}.",
    "audit_table_large": "{path} is larger than {limit_mb} MB, which is too large for a table of labels.",
    "audit_table_no_text": "{path} is not a text file. Save the table as CSV.",
    "audit_table_empty": "The table {path} has no rows below its header line.",
    "audit_table_column": "The table {path} has no column named {column}. Its columns are: {known}. Rename the right "
                          "one, or say which it is.",
    "audit_table_doubled": "The table {path} has more than one column of the same name: {columns}. Case and blanks around a "
                           "name do not count. Keep or rename one.",
    "audit_table_problems": "Rows of the table {path} that cannot be used: {count}. Correct them, then audit again. Lines without an "
                            "image or a label: {gaps}. Lines that name several images, so that more of the path is needed: "
                            "{several}. Lines that give an image two labels: {two_labels}.",
    "audit_table_no_match": "The table {path} names none of the images that were screened. Its lines, and behind ≠ images of these names elsewhere: {rows}.",
    "audit_rows_unknown": Plural("{count} row of the table names no image of this run and was left out. Its line, and behind ≠ an image of that name elsewhere: {rows}.",
                                 "{count} rows of the table name no image of this run and were left out. Their lines, and behind ≠ images of these names elsewhere: {rows}.",
                                 by="count"),
    "audit_rows_doubled": Plural("{count} row of the table repeats an earlier one and was counted once.",
                                 "{count} rows of the table repeat an earlier one and were counted once.", by="count"),
    "audit_rows_uncertain": Plural("{count} row says -1 or uncertain and was left out: it is neither positive nor negative.",
                                   "{count} rows say -1 or uncertain and were left out: they are neither positive nor "
                                   "negative.", by="count"),
    "audit_counted_positive": "Counted as positive: {names}.",
    "audit_counted_negative": "Counted as negative: {names}.",
    "audit_images_unlabelled": Plural("{count} screened image has no label and is left out.",
                                      "{count} screened images have no label and are left out.", by="count"),
    "audit_unseen": "These figures hold only if {pack} was not trained on these images, nor on others of these patients. "
                    "Its model card says what it was trained on.",
    "audit_no_class": "No image is labelled {missing}. The labels are: {known}.",
    "audit_which_positive": "The labels are: {known}. Say which of them mean positive.",
    "audit_one_class": "All labels are the same ({known}). An audit needs positive and negative images.",
    "audit_one_class_scored": "Of {images} images with a label, {scored} have a score, and all of these have the "
                              "same label. An audit needs positive and negative images.",
    "audit_prevalence": "The prevalence is a share between 0 and 1, for example 0.05, not {value}.",
    "audit_sensitivity": "The sensitivity is a share between 0 and 1, for example 0.9, not {value}.",
    "audit_threshold": "The threshold {value} is not between 0 and 1, or detects no positive image. Choose a "
                       "lower threshold from the threshold plan.",
    "audit_against": "{text} is not the number of a run. To compare with a pack, screen the same folder with it first: "
                     "fieldray screen FOLDER --pack {text}. Then name that run: fieldray history list shows its number.",
    "audit_price": "A cost must be 0 or more, not {value}.",
    "audit_pairs_one_class": "Of {images} images with a label that run {run} has too, both packs could judge "
                             "{both}, and these have the same label. A comparison needs positive and negative "
                             "images.",
    "audit_no_score": Plural("{count} image with a label has no score, because it was refused or failed.",
                             "{count} images with a label have no score, because they were refused or failed.",
                             by="count"),
    "audit_few": Plural("Only {count} image in the smaller class has a score. That is too few to judge a pack: "
                        "check how wide the intervals are.",
                        "Only {count} images in the smaller class have a score. That is too few to judge a pack: "
                        "check how wide the intervals are.", by="count"),
    "audit_verdicts": "The labels are verdicts that readers gave after they saw the result (automation bias). "
                      "These figures overestimate the pack.",
    "audit_patients_unknown": "Most images have no patient ID, so each study, or image without a study, counts as "
                              "one patient. With several studies of a patient the intervals are too narrow.",
    "audit_no_results": "There are no results to audit in {path}.",
    "site_points_unreadable": "The local operating points in {path} cannot be read, so none is used: {detail}. Move "
                              "the file away, or restore it.",
    "audit_no_label": "The pack has no label {label}. Its labels are: {known}.",
    "audit_no_verdicts": "No image of run {run} has a verdict that says whether the pack was right. Give verdicts in the "
                         "window, or take the labels from folders or a table.",
    "audit_other_pack": "{pack} is not the pack of run {run}, so only the operating points that the run used are judged.",
    "audit_run_unfinished": "The run did not finish, so there is no audit.",
    "drift_scores": "The score distribution differs from that of the reference ({reference}): population "
                    "stability index {index}, by chance less than {limit} ({images} and {others} images).",
    "instances_shared": "Files of this run that share a SOP Instance UID with a different image: {count}. A PACS "
                        "will treat each such file and the different image as one image. Correct the UIDs before "
                        "archiving.",
    "drift_evidence": "These images look unlike those the pack was made for: other patients? The heat map lies outside of "
                      "the lungs far more often than in {reference}: population stability index {index}, limit {limit} "
                      "({images} against {others} images).",
    "drift_refused": "The share of refused images differs from that of the reference ({reference}): population "
                     "stability index {index}, by chance less than {limit} ({images} and {others} images).",
    "drift_exposure": "The exposure of the images differs from that of the reference ({reference}): population "
                      "stability index {index}, by chance less than {limit} ({images} and {others} images).",
    "drift_no_reference": "The pack does not say how its scores were distributed on the images it was measured on, so "
                          "scores can only be compared with those of earlier runs.",
    "constancy_passed": "Constancy test of {pack} ({device}), {day}: passed. {images} images gave the expected "
                        "answers. Largest score difference: {largest} (limit {limit}). Next test: {due}.",
    "constancy_failed": "Constancy test of {pack} ({device}), {day}: failed. {different} of {images} images gave "
                        "another answer than expected. Largest score difference: {largest} (limit {limit}). Do "
                        "not rely on this pack on this device. Install the program again and repeat the test. If "
                        "that does not help, use another computer, and inform the person responsible for this "
                        "computer.",
    "constancy_first": "Constancy test of {pack} ({device}), {day}: this pack comes without expected answers, so "
                       "nothing was compared. The answers of today to {images} images were kept, and later tests "
                       "are compared with these answers. Next test: {due}.",
    "constancy_never": "Constancy test of {pack}: not run on this computer yet.",
    "constancy_due": "The constancy test is overdue since {due}.",
    "constancy_not_run": "{device}: not checked. {detail}",
    "constancy_image": "{image}: expected {expected}, found {found}.",
    "constancy_busy": "A run is under way, or another pack was chosen. Wait until the run is over, then repeat "
                      "the constancy test.",
    "constancy_set": "The expected answers for the constancy test were altered ({detail}). Install the program "
                     "again.",
    "constancy_unreadable": "The records of constancy tests in {path} cannot be read: {detail}. Restore the file, "
                            "or move it away: the next test is then the first one.",
    "site_point_bad_name": "{name} is no name for a local operating point. Use up to 40 small Latin letters, digits and "
                           "hyphens, beginning with a letter or digit.",
    "site_point_person": "A local operating point needs the name of the person who chooses it.",
    "site_point_model": "A local operating point needs the pack that was audited ({pack}), signed and at hand.",
    "site_point_unknown": "There is no local operating point named {name} for this pack.",
    "site_point_name": "There is already an operating point named {name} for this pack. Choose another name.",
}
# fmt: on

"""Message texts of audits, drift, constancy tests and local operating points (see `fieldray.reasons`)."""

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
    "audit_table_column": "The table {path} has no column named {column}. The columns are: {known}. Give the right "
                          "column this name, or choose another column.",
    "audit_table_doubled": "The table {path} has several columns with the same name: {columns}. Names that differ "
                           "only by case or by blanks around the name count as the same name. Rename or delete all "
                           "but one of these columns.",
    "audit_table_problems": "Rows of the table {path} that cannot be used: {count}. Correct the rows, then audit "
                            "again. Lines without an image or a label: {gaps}. Lines with a label other than 1, 0, "
                            "-1 or empty: {values}. Lines that match several images (write more of the path): "
                            "{several}. Lines that give one image two labels: {two_labels}. Lines with patient IDs "
                            "that differ only by case, blanks, leading zeros or letters that look alike: {numbers}.",
    "audit_table_no_match": "No row of the table {path} matches a screened image. Lines of the table: {rows}. If a "
                            "line shows ≠ and an image, this image has the same file name in another folder.",
    "audit_rows_unknown": Plural("{count} row of the table matches no image of this run and was left out. Line: "
                                 "{rows}. If a line shows ≠ and an image, this image has the same file name in another "
                                 "folder.",
                                 "{count} rows of the table match no image of this run and were left out. Lines: "
                                 "{rows}. If a line shows ≠ and an image, this image has the same file name in another "
                                 "folder.",
                                 count_parameter="count"),
    "audit_rows_doubled": Plural("{count} row of the table repeats an earlier row and was not counted again.",
                                 "{count} rows of the table repeat an earlier row and were not counted again.",
                                 count_parameter="count"),
    "audit_rows_uncertain": Plural("{count} row has the label -1 or uncertain (neither positive nor negative) and "
                                   "was left out.",
                                   "{count} rows have the label -1 or uncertain (neither positive nor negative) and "
                                   "were left out.", count_parameter="count"),
    "audit_readers_split": Plural("{count} image was left out, because half of the readers saw the finding and half "
                                  "did not.",
                                  "{count} images were left out, because half of the readers saw the finding and "
                                  "half did not.",
                                  count_parameter="count"),
    "audit_both_labels": Plural("{count} patient has images with the condition and images without the condition: "
                                "{numbers}. An audit by patient counts such a patient as having the condition.",
                                "{count} patients have images with the condition and images without the condition: "
                                "{numbers}. An audit by patient counts such a patient as having the condition.", count_parameter="count"),
    "audit_several_exams": Plural("{count} patient has images of several examinations, up to {days} days apart. An "
                                  "audit by patient applies the label of one examination to all examinations of the "
                                  "patient. To count each examination separately, audit by examination.",
                                  "{count} patients have images of several examinations, up to {days} days apart. An "
                                  "audit by patient applies the label of one examination to all examinations of the "
                                  "patient. To count each examination separately, audit by examination.", count_parameter="count"),
    "audit_counted_positive": "Labels counted as positive: {names}.",
    "audit_counted_negative": "Labels counted as negative: {names}.",
    "audit_images_unlabelled": Plural("{count} screened image has no label and was left out of the audit.",
                                      "{count} screened images have no label and were left out of the audit.", count_parameter="count"),
    "audit_unseen": "The figures are valid only if the pack {pack} was not trained on images of these patients. The "
                    "model card names the training images.",
    "audit_no_class": "No image is labelled {missing}. The labels are: {known}.",
    "audit_which_positive": "The labels are: {known}. Choose which of these labels mean “with the condition”.",
    "audit_one_class": "All labels are equal ({known}). An audit needs images with the condition and images without "
                       "the condition.",
    "audit_one_class_scored": "An audit needs results with the condition and results without the condition. Results "
                              "with a label: {units}. Results with a label and a score: {scored}. All results with a "
                              "score are in the same group. A patient with both kinds of images counts once, in "
                              "the group with the condition. If this is the cause, audit by image or by examination.",
    "audit_prevalence": "The prevalence is a share between 0 and 1, for example 0.05, not {value}.",
    "audit_sensitivity": "The sensitivity is a share between 0 and 1, for example 0.9, not {value}.",
    "audit_specificity": "The specificity is a share between 0 and 1, for example 0.7, not {value}.",
    "audit_threshold": "The threshold {value} is not between 0 and 1, or detects no image with the condition. Choose "
                       "a lower threshold from the threshold plan.",
    "audit_against": "{text} is not the number of a run. To compare two packs, first screen the folder with the "
                     "other pack: fieldray screen FOLDER --pack {text}. Then name the number of the new run. To "
                     "list all runs: fieldray history list",
    "audit_price": "A cost must be a number of 0 or more, not {value}.",
    "audit_pairs_one_class": "The runs cannot be compared. A comparison needs images with the condition and images "
                             "without the condition. Images with a label that are also in run {run}: {images}. "
                             "Images with a score in both runs: {both}. All of these images are in the same group.",
    "audit_no_score": Plural("{count} image with a label has no score, because the image is not suitable or failed.",
                             "{count} images with a label have no score, because these images are not suitable or "
                             "failed.",
                             count_parameter="count"),
    "audit_few": Plural("The smaller group (with or without the condition) has only {count} score. That is too few "
                        "to judge a pack. Check the width of the confidence intervals.",
                        "The smaller group (with or without the condition) has only {count} scores. That is too few "
                        "to judge a pack. Check the width of the confidence intervals.", count_parameter="count"),
    "audit_verdicts": "The labels are readers' verdicts, given after the readers saw the result of the pack "
                      "(automation bias). The figures of this audit overestimate the pack.",
    "audit_patients_unknown": "Most images have no patient ID, so each study (or image without a study) counts as "
                              "one patient. If patients have several studies, the confidence intervals "
                              "are too narrow.",
    "audit_no_results": "There are no results to audit in {path}.",
    "site_points_unreadable": "The local operating points (thresholds chosen in audits) in {path} cannot be read, so "
                              "no local operating point is used: {detail}. Move or restore the file.",
    "audit_no_label": "The pack has no label {label}. The labels of the pack are: {known}.",
    "audit_no_verdicts": "No image of run {run} has a verdict Agree or Disagree, so the audit has no labels. Give "
                         "verdicts in the window, or take the labels from folders or a table.",
    "audit_other_pack": "Run {run} did not use the pack {pack}. Only the operating points that the run used can be "
                        "audited.",
    "audit_run_unfinished": "The run did not finish, so no audit can be made.",
    "drift_scores": "The scores have changed. The mean score is {now} in this run, and {before} in the reference "
                    "({reference}). Population stability index: {index} (limit {limit}). Compared: {images} images "
                    "of this run with {others} reference images.",
    "instances_shared": Plural("{count} file shares a SOP Instance UID with a different image. A PACS will treat the "
                               "two images as one image. Correct the UID before archiving.",
                               "{count} files share a SOP Instance UID with a different image. A PACS will treat "
                               "images with the same UID as one image. Correct the UIDs before archiving.", count_parameter="count"),
    "drift_evidence": "The images may show other patients than the pack was made for. Check that the right pack was "
                      "chosen. The heat map lies outside the lungs in {now} of 100 images of this run, and in "
                      "{before} of 100 images of the reference ({reference}). Population stability index: {index} "
                      "(limit {limit}). Compared: {images} images of this run with {others} reference images.",
    "drift_refused": "The share of images that are not suitable has changed: {now} of 100 in this run, and {before} "
                     "of 100 in the reference ({reference}). Population stability index: {index} (limit {limit}). "
                     "Compared: {images} images of this run with {others} reference images.",
    "drift_exposure": "The exposure of the images has changed. The mean grey level (0 to 255) is {now} in this run, "
                      "and {before} in the reference ({reference}). Population stability index: {index} (limit "
                      "{limit}). Compared: {images} images of this run with {others} reference images.",
    "drift_no_reference": "The pack has no reference distribution of scores. Scores can only be compared with the "
                          "scores of earlier images of this folder.",
    "constancy_passed": "Constancy test of {pack} ({device}), {day}: passed. {images} images gave the expected "
                        "result. Largest score difference: {largest} (limit {limit}). Next test: {due}.",
    "constancy_failed": "Constancy test of {pack} ({device}), {day}: failed. {different} of {images} images gave "
                        "another result than expected. Largest score difference: {largest} (limit {limit}). Do not "
                        "rely on this pack on this device. Install the program again, and run the test again. If the "
                        "test still fails, use another computer, and inform the person responsible for this computer.",
    "constancy_first": "Constancy test of {pack} ({device}), {day}: the pack comes without expected results, so "
                       "nothing was compared. Today's results of {images} images were kept for comparison in later "
                       "tests. Next test: {due}.",
    "constancy_never": "Constancy test of {pack}: not run on this computer yet.",
    "constancy_due": "The constancy test has been overdue since {due}. Run the constancy test.",
    "constancy_not_run": "Constancy test ({device}): not run. {detail}",
    "constancy_image": "{image}: expected result {expected}, found {found}.",
    "constancy_busy": "The constancy test was not run: a run is under way, or another pack was chosen. Wait until "
                      "the run is over, then run the test again.",
    "constancy_set": "The expected results of the constancy test were changed ({detail}). Install the program again.",
    "constancy_unreadable": "The records of the constancy test in {path} cannot be read: {detail}. Restore the file. "
                            "If the file cannot be restored, move the file to another folder. The next test then "
                            "begins new records.",
    "site_point_bad_name": "{name} is not a valid name for a local operating point. Use up to 40 small Latin "
                           "letters, digits and hyphens, beginning with a letter or digit.",
    "site_point_person": "A local operating point needs the name of the person who chooses the operating point.",
    "site_point_model": "A local operating point needs the audited pack ({pack}). The pack must be signed and "
                        "available.",
    "site_point_unknown": "There is no local operating point named {name} for this pack.",
    "site_point_name": "There is already an operating point named {name} for this pack. Choose another name.",
}
# fmt: on

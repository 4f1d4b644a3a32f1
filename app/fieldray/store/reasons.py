"""Messages about past runs and about maintenance of the results database, by code (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Plural, Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
    "history_number": "{text} is not the number of a run. Write 12 for run 12, or 12.2 for the second pack of run "
                      "12.",
    "history_no_pack": "Run {run} has no pack with the number {pack}. The highest pack number is {packs}.",
    "history_no_run": "Run {run} was not found in the history. List the runs with: fieldray history list",
    "history_in_use": "Run {run} is in use by another program (process {process}). Nothing was deleted. Close the "
                      "other program, or wait until the run is over.",
    "history_grown": "Results or verdicts were added to these runs while you confirmed the deletion. Nothing was "
                     "deleted. Try again.",
    "history_is_open": "A run is under way in this window. Stop the run first, or wait until the run is over.",
    "history_same_run": "Choose two different runs to compare.",
    "history_date": "{text} is not a date. Write a date as year-month-day, for example 2026-11-22.",
    "history_month": "{text} is not a month. Write a month as year-month, for example 2026-11.",
    "history_confirm": "Nothing was deleted. Add --yes to delete.",
    "history_which": "Name the numbers of the runs to delete, or delete all runs with --all.",
    "history_deletes": Plural("{results} result will be deleted for good, with its preview and its heat map.",
                              "{results} results will be deleted for good, with their previews and heat maps.", count_parameter="results"),
    "history_verdicts": Plural("{count} verdict on these results will be deleted too and cannot be restored.",
                               "{count} verdicts on these results will be deleted too and cannot be restored.", count_parameter="count"),
    "history_verdicts_kept": Plural("{count} verdict is kept, because another run has the same result.",
                                    "{count} verdicts are kept, because other runs have the same results.", count_parameter="count"),
    "history_no_verdicts": "No verdict is lost.",
    "history_files_stay": "The image files are neither changed nor deleted.",
    "history_no_patient": "No result has the patient ID {patient}. Write the whole patient ID.",
    "history_patient_deletes": Plural("{results} result of this patient will be deleted for good from all runs, with "
                                      "its preview and its heat map. The runs themselves are kept.",
                                      "{results} results of this patient will be deleted for good from all runs, "
                                      "with their previews and heat maps. The runs themselves are kept.", count_parameter="results"),
    "history_patient_deleted": Plural("{results} result of the patient was deleted.", "{results} results of the patient were deleted.", count_parameter="results"),
    "history_deleted": Plural("{count} run was deleted.", "{count} runs were deleted.", count_parameter="count"),
    "history_freed": "The results database is now {freed_mb} MB smaller.",
    "history_copies_left": "The deleted results may still be in damaged files that the program kept in {folder}: "
                           "{names}. Delete the files that you do not need.",
    "history_not_wiped": "The results are deleted, but the data of these results may still be readable on the disk. "
                         "Another program is using the results database, or the disk is full. Close the other program "
                         "or free disk space, then repeat the deletion.",
    "history_files_gone": Plural("The file of {count} image no longer exists. The window still shows its result, "
                                 "heat map and preview.",
                                 "The files of {count} images no longer exist. The window still shows their "
                                 "results, heat maps and previews.", count_parameter="count"),
    "history_other_label": "The two packs look for different findings, so the scores of the two packs cannot be "
                           "compared.",
    "store_whole": "The results database is not damaged. Results: {results}. Verdicts: {verdicts}. Previews: "
                   "{pictures}. The files take {size_mb} MB of disk space.",
    "store_compacted": "The results database and the preview file are now {freed_mb} MB smaller.",
    "store_not_compacted": "Disk space was only partly freed. Another program is using the results database, or the "
                           "disk is full. Close the other program or free disk space, then try again.",
    "store_pictures_dropped": Plural("The preview of {count} image was deleted. No result is lost. The preview file "
                                     "is now {freed_mb} MB smaller.",
                                     "The previews of {count} images were deleted. No result is lost. The preview "
                                     "file is now {freed_mb} MB smaller.", count_parameter="count"),
    "store_copying": "Copying the results: {percent} %",
    "store_checking": "Checking the results: {percent} %",
    "store_updating": "Updating the results database for this version of the program. This may take some minutes. Do not turn "
    "the computer off.",
    "store_no_results": "There are no results in {path} yet.",
    "store_backup_exists": "{path} already exists. Name another folder.",
    "store_no_backup": "There are no results in {path}. Name the folder of a backup.",
    "store_not_ours": "Restore failed: {path} is damaged, or was made by another version of the program. Nothing "
                      "was changed.",
    "store_restored": "The results of the backup were restored.",
    "store_replaced": "The earlier results are now in {path}. Delete this file if you do not need the earlier "
                      "results.",
    "store_confirm_restore": "Nothing was changed. Add --yes to replace the results on this computer with the "
                             "results of the backup.",
    "store_confirm_drop": "Nothing was deleted. Add --yes to delete all previews. Results, heat maps and verdicts "
                          "are kept.",
    "pictures_damaged": "The preview file {path} is damaged. No result is lost. The next run begins a new preview "
                        "file.",
    "preview_shown": "The window shows the small preview that was saved with the result, not the image itself.",
    "preview_missing": "No preview of this image was kept.",
    "preview_damaged": "The preview that was kept with the result is damaged.",
    "no_capture": "No lung segmentation (DICOM SEG) was written: the image file has no UIDs, so a segmentation "
                  "cannot refer to the image. If you also export secondary captures (DICOM SC), the segmentation "
                  "refers to the secondary capture.",
    "left_out": Plural("{count} image is missing from {file}: {image}. {why}",
                       "{count} images are missing from {file}. The first missing image is {image}. {why}",
                       count_parameter="count"),
}
# fmt: on

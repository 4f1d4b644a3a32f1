"""The messages for a person: each reason is a code with an English sentence.

A reason is a value. It can be sent between processes, stored, translated, and counted by its code. Parameters are
inserted last, so that a translation can put them where its grammar requires. A sentence says what is wrong and, if a
person can act, what to do. A sentence contains no names of exceptions and no jargon.

Sentences of a sub-package are in `TEMPLATES` of its module `reasons`. All other sentences are in this module.
"""

from __future__ import annotations

import functools
import pkgutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Final

import fieldray
from fieldray.command_names import modules_of_optional_packages
from fieldray.plain_text import escape_invisible_characters


@dataclass(frozen=True, slots=True)
class Plural:
    """A sentence with a number, in singular and plural.

    one              the sentence for exactly 1
    many             the sentence for any other number
    count_parameter  name of the parameter with the number
    """

    one: str
    many: str
    count_parameter: str

    def count_in_parameters(self, parameters: Sequence[tuple[str, str]]) -> int:
        """Return the number that decides between singular and plural; 0 if the stored parameter is no number.

        parameters  names and values of the sentence's parameters
        """
        value = dict(parameters)[self.count_parameter]
        return int(value) if value.isdecimal() else 0


Template = str | Plural

# fmt: off
# Notes on a result for a person.
NOTE_TEMPLATES: Final[Mapping[str, Template]] = {
    "presentation_ignored": "The display window (or VOI LUT) in the file would hide almost all of this image. This "
                            "window was ignored.",
    "rescale_ignored": "The conversion of grey values in the file is invalid and was ignored (Rescale Slope, "
                       "Rescale Intercept or Modality LUT).",
    "photometric_unknown": "The file does not say whether low pixel values mean black or white (Photometric "
                           "Interpretation). Low values were taken as black. Check that black and white are not "
                           "swapped.",
    "bits_stored_ignored": "The file states an invalid number of bits per pixel value (Bits Stored). This number "
                           "was ignored.",
    "little_detail": "The image is blurred, or was enlarged from a smaller image. Too little detail is left to "
                     "classify the image as normal. Screen the original image.",
    "decimal_comma": "Numbers in the header have a decimal comma, which DICOM does not allow. Each comma was read "
                     "as a decimal point.",
    "syntax_contradicted": "The pixels are not encoded as the file header says (Transfer Syntax). The actual "
                           "encoding was used.",
    "end_was_missing": "The end marker of the image is missing. All pixels are present.",
    "lower_part_dark": "The lower part of the image is empty, so the lung bases may be missing. The image is "
                       "therefore not classified as normal. Check whether the empty part is collimation. If the "
                       "empty part is not collimation, the file is incomplete.",
    "further_images": "The file has additional, smaller images, such as a preview. These smaller images were not "
                      "screened.",
    "age_not_stated": "The patient's age is not in the file, and nobody confirmed the age. This pack is for "
                      "patients aged {youngest} to {oldest} years.",
    "age_confirmed": "The patient's age is not in the file. The user confirmed an age of {youngest} to {oldest} "
                     "years.",
    "turned_back": "The image was turned 90 degrees anticlockwise before screening.",
    "turned_clockwise": "The image was turned 90 degrees clockwise before screening.",
    "turned_round": "The image was turned by 180 degrees before screening.",
    "grey_swapped_back": "The image was inverted (black and white swapped) before screening.",
    "screened_anyway": "The image is not suitable, but a user chose to screen the image. The score may be "
                       "meaningless.",
    "ages_differ": "The file gives two ages: {age} and {other} years. Check the birth date and the date of the study.",
    "view_unknown": "The file states an unknown view: {view}. Check that the image is a frontal view (PA or AP).",
    "body_part_unknown": "The file states an unknown body part: {body_part}. Check that the image shows the chest.",
    "orientation_mirrored": "The file says that the image is mirrored left to right (Patient Orientation "
                            "{orientation}). Check the side marker in the image (L or R).",
    "orientation_turned": "The file says that the image is not upright (Patient Orientation {orientation}). Check "
                          "the orientation of the image.",
    "burned_in_annotation": "The file says that the image has burned-in text. The text may name the patient.",
    "pixels_not_cleaned": "Text burned into an image may name the patient. This text stays in every exported file "
                          "that shows the image: PDF, DICOM SC (secondary capture) and heat maps.",
    "pixels_not_square": "The pixels of the file are not square. The image is shown and screened with the correct "
                         "aspect ratio.",
    "lungs_cut_off_top": "The lungs are cut off at the top of the image.",
    "lungs_unseen": "The lungs are hard to see in this chest X-ray.",
    "left_lung_unseen": "The patient's left lung was not found, or is far smaller or whiter than the right lung.",
    "right_lung_unseen": "The patient's right lung was not found, or is far smaller or whiter than the left lung.",
    "chest_in_doubt": "The program doubts that this image is a frontal chest X-ray: the certainty is {own}, and at "
                      "least {limit} is expected. Opacities in both lungs can lower the certainty.",
    "lungs_hardly_found": "Hardly any lung was found: the lungs cover only {own} % of the image. In a chest X-ray, "
                          "both lungs together cover at least {limit} % of the image.",
    "left_lung_smaller": "The left lung is far smaller than the right lung. Share of the image: left lung {own} %, "
                         "right lung {opposite} %.",
    "left_lung_not_found": "The left lung was not found. The right lung covers {opposite} % of the image.",
    "right_lung_smaller": "The right lung is far smaller than the left lung. Share of the image: right lung {own} "
                          "%, left lung {opposite} %.",
    "right_lung_not_found": "The right lung was not found. The left lung covers {opposite} % of the image.",
    "left_upper_third_denser": "The upper third of the left lung is denser than the upper third of the right lung. "
                               "Density: left lung {own} %, right lung {opposite} % (air 0 %, soft tissue 100 %).",
    "left_middle_third_denser": "The middle third of the left lung is denser than the middle third of the right "
                                "lung. Density: left lung {own} %, right lung {opposite} % (air 0 %, soft tissue "
                                "100 %).",
    "left_lower_third_denser": "The lower third of the left lung is denser than the lower third of the right lung. "
                               "Density: left lung {own} %, right lung {opposite} % (air 0 %, soft tissue 100 %).",
    "right_upper_third_denser": "The upper third of the right lung is denser than the upper third of the left lung. "
                                "Density: right lung {own} %, left lung {opposite} % (air 0 %, soft tissue 100 %).",
    "right_middle_third_denser": "The middle third of the right lung is denser than the middle third of the left "
                                 "lung. Density: right lung {own} %, left lung {opposite} % (air 0 %, soft tissue "
                                 "100 %).",
    "right_lower_third_denser": "The lower third of the right lung is denser than the lower third of the left lung. "
                                "Density: right lung {own} %, left lung {opposite} % (air 0 %, soft tissue 100 %).",
    "thirds_dense": "In each lung, one third (upper, middle or lower) is dense. Density: left lung {left} %, right "
                    "lung {right} % (air 0 %, soft tissue 100 %).",
    "lungs_cut_off_bottom": "The lungs are cut off at the bottom of the image.",
    "lungs_cut_off_left": "The lungs are cut off at the left edge of the image.",
    "lungs_cut_off_right": "The lungs are cut off at the right edge of the image.",
    "lungs_tilted": "The patient is tilted in the image by about 10 degrees or more.",
    "lungs_low": "The lung volumes are low, possibly because of a shallow inspiration. The lung bases may be hidden.",
    "lungs_black": "Part of the lungs is clipped to black, without detail. A lucency may be hidden. Check the "
                   "exposure, and the export of the image.",
    "lungs_white": "Part of the lungs is clipped to white, without detail. An opacity may be hidden. Check the "
                   "exposure, and the export of the image.",
    "lungs_few_greys": "The lungs are shown in few grey levels, so subtle changes may be hidden. Check the "
                       "exposure, and the export of the image.",
    "perhaps_mirrored": "The image may be mirrored left to right. Check the side marker in the image (L or R).",
    "unlike_measured": "The image is unlike the images that this pack was measured on. The score may be less "
                       "reliable.",
    "unsigned_operating_point_unknown": "This is an unsigned legacy model (operating point unknown). The accuracy of "
                                        "the model was not measured. The model has one output for each class, and "
                                        "the larger output decides the class.",
    "evidence_outside": "Only {percent} % of the heat map is inside the lungs. A border, label or device outside "
                        "the lungs may have raised the score. Read the score with caution.",
}

BACKEND_TEMPLATES: Final[Mapping[str, Template]] = {
    "no_runtime": "No TensorFlow Lite runtime is installed. Install ai-edge-litert.",
    "bad_model": "The model file cannot be run on this computer: {detail}.",
    "self_test": "On this computer, the model does not give the results that the pack expects ({detail}). The model "
                 "is not used.",
    "model_memory": "The model needs more memory than this computer allows ({limit_mb} MB). Use another pack, or "
                    "raise the memory limit.",
    "lungs_unavailable": "The pack {pack}, which finds the lungs, cannot be run: {detail}",
    "worker_died": "The process that runs the model stopped unexpectedly.",
    "worker_timeout": "The process that runs the model gave no answer within {seconds} s.",
    "wrong_answer": "The process that runs the model gave an invalid answer.",
    "engine_closed": "The program was stopped before this image was processed.",
    "start_failed": "The model could not be started: {detail}.",
    "no_model_file": "The pack has no model file for the device {device}.",
    "no_device": "This computer has no device named {name}.",
    "edgetpu_not_here": "No Edge TPU is connected.",
    "device_not_chosen": "This device is switched off in the settings.",
    "coral_no_library": "The Edge TPU runtime is not installed ({name} is missing). Install libedgetpu, then plug "
                        "the Edge TPU in again.",
    "coral_no_libusb": "The Edge TPU runtime needs libusb, which is not installed. Install libusb 1.0, then try "
                       "again.",
    "coral_bad_library": "The file {name} is not an Edge TPU runtime for this computer. Reinstall libedgetpu.",
    "coral_wrong_abi": "The installed Edge TPU runtime does not fit this program: the runtime was built for another "
                       "version of TensorFlow. Install a newer libedgetpu.",
    "coral_library_failed": "The Edge TPU runtime crashed while looking for devices. Plug the Edge TPU into another "
                            "port and try again.",
    "coral_library_slow": "The Edge TPU runtime gave no answer within {seconds} s. Plug the Edge TPU into another "
                          "port and try again.",
    "coral_not_listed": "The Edge TPU is plugged in, but the Edge TPU runtime does not find the Edge TPU. Plug the "
                        "Edge TPU in again. If the Edge TPU is still not found, reinstall libedgetpu.",
    "coral_no_permission": "You do not have permission to use the Edge TPU. Install the udev rule that comes with "
                           "the program and join the group plugdev. Sign in again, then plug the Edge TPU in again.",
    "coral_open_failed": "The Edge TPU cannot be opened. Close other programs that may be using the Edge TPU, then "
                         "plug the Edge TPU in again.",
    "coral_busy": "Another window of this program is using the Edge TPU (process {process}). To use the Edge TPU in "
                  "this window, close the other window.",
    "coral_runtime_old": "The pack's Edge TPU file needs version {needed} of the Edge TPU runtime, but version "
                         "{found} is installed. Install a newer libedgetpu.",
    "coral_not_compiled": "The pack {pack} has no file compiled for the Edge TPU, so the pack runs on the CPU only. "
                          "The maker of the pack can compile such a file with Google's edgetpu_compiler.",
    "coral_unplugged": "The Edge TPU was unplugged.",
    "coral_stopped": "The Edge TPU stopped during screening. If nobody unplugged the Edge TPU, the USB port may give "
                     "too little power. Plug the Edge TPU into another port, without a hub.",
    "coral_no_answer": "The Edge TPU gave no answer within {seconds} s and was stopped. Plug the Edge TPU into "
                       "another port.",
    "coral_run_failed": "The Edge TPU reported an error ({detail}). If the error happens again, use another port or "
                        "cable.",
    "coral_flapping": "The Edge TPU keeps connecting and disconnecting. The USB port may give too little power, or "
                      "the cable may be faulty. Use another port, without a hub, or another cable.",
    "coral_usb2": "The Edge TPU is in a slow USB 2 port. An image may take seven times as long as in a USB 3 port. "
                  "Use a USB 3 port (often blue).",
    "coral_weak_hub": "The Edge TPU is plugged into a hub without its own power supply, and may stop at any time. "
                      "Plug the Edge TPU into the computer.",
    "coral_max_clock": "The Edge TPU runs at its highest clock speed and can get hot enough to burn the skin. Keep "
                       "the room below 25 degrees Celsius.",
}

TEMPLATES: Final[Mapping[str, Template]] = {
    **NOTE_TEMPLATES,
    **BACKEND_TEMPLATES,

    # ---- why an image is refused
    "not_an_image": "This file is not a DICOM, PNG or JPEG image.",
    "other_image": "This image format is not supported. Save the image as DICOM, PNG or JPEG.",
    "packed_otherwise": "This archive format is not supported. Unpack the file first.",
    "no_pixel_data": "This DICOM file contains no image ({modality}).",
    "modality": "Not a radiograph: the modality is {modality}.",
    "body_part": "Not a chest image: the body part is {body_part}.",
    "view": "Not a frontal view: the file says {view}.",
    "for_processing": "The file holds raw detector values (FOR PROCESSING), not a finished image. Screen the "
                      "finished image (FOR PRESENTATION) of this exposure.",
    "image_type": "Not a standard radiograph: the file says {kind} (for example a subtraction, bone or soft-tissue "
                  "image). Screen the standard radiograph of this examination.",
    "age": Plural("This pack is for patients aged {youngest} to {oldest} years. This patient is {age} year old.",
                  "This pack is for patients aged {youngest} to {oldest} years. This patient is {age} years old.", count_parameter="age"),
    "born_too_late": "This pack is for patients aged {youngest} to {oldest} years. The patient was born in {born} "
                     "and is too young.",
    "ages_contradict": "The file gives two ages, {age} and {other} years. This pack is for patients aged {youngest} "
                       "to {oldest} years. Check the birth date and the date of the study.",
    "colour": "A colour image is not a radiograph.",
    "too_small": "The image is too small: {rows} x {columns} pixels.",
    "blank": "The image is blank or has almost no contrast.",
    "aspect": "The image is too long and narrow for a chest X-ray: {rows} x {columns} pixels.",
    "nested_zip": "A zip file inside another zip file is not opened. Unpack the outer zip file first.",
    "not_frontal_chest": "The image was not recognised as a frontal chest X-ray. If this image is a frontal chest "
                         "X-ray, read the image yourself.",
    "rotated": "The image lies on its side. The image can be turned upright and then screened.",
    "upside_down": "The image is upside down. The image can be turned upright and then screened.",
    "inverted": "The image is inverted: black and white are swapped. The image can be corrected and then screened.",
    "unlike_training": "The image is unlike the chest X-rays that this pack was made for.",
    "too_many_frames": Plural("The file has {frames} frame. At most {limit} frames can be read.",
                              "The file has {frames} frames. At most {limit} frames can be read.", count_parameter="frames"),
    "several_images": "The file has {count} images, but only one image per file can be read in this file format. "
                      "Save each image as a separate file. Then screen these files.",

    # ---- why reading or screening an image fails
    "unreadable": "The file cannot be opened: {detail}.",
    "drive_error": "The drive reported an error while this file was read. Check the drive and its cable, or copy "
                   "the file again from its source. Then screen the file again.",
    "missing": "The file no longer exists.",
    "object_elsewhere": "This image is on a server ({address}), but this program opens files of this computer only. "
                        "Copy the file to this computer.",
    "changed": "The file has changed since the start of the run. Screen the file again.",
    "folder_not_read": "This folder cannot be read: {detail}. No image of this folder was screened, and the number "
                       "of images in the folder is unknown.",
    "folder_lost": "This folder disappeared during the search for images, so some images may not have been screened. "
                   "If the folder is on a removable or network drive, reconnect the drive and start the run again. "
                   "Results so far are kept.",
    "missing_listed": "The DICOMDIR lists this file, but the file is missing. Check that the whole disc was copied.",
    "index_alone": Plural("The DICOMDIR lists {count} file, and this file is missing. The DICOMDIR was probably "
                          "copied without the listed files. Open the original disc, or copy the whole disc.",
                          "The DICOMDIR lists {count} files, and all of them are missing. The DICOMDIR was probably "
                          "copied without the listed files. Open the original disc, or copy the whole disc.", count_parameter="count"),
    "index_empty": "The DICOMDIR lists no files. If you opened only the DICOMDIR file, open the folder of the "
                   "DICOMDIR instead.",
    "index_damaged": "The DICOMDIR is damaged or incomplete. If you opened only the DICOMDIR file, open the folder "
                     "of the DICOMDIR instead, and check that all files were copied.",
    "no_permission": "You do not have permission to read this file.",
    "empty": "The file is empty.",
    "truncated": "The file is incomplete: part of the image is missing.",
    "more_images": "The file has more images than the header says: {found} instead of {stated}. Save each image as a "
                   "separate file. Then screen these files.",
    "lower_part_empty": "The file is incomplete: the lower {percent} % of the image is empty. Copy the file again "
                        "from the source.",
    "unknown_syntax": "The transfer syntax of this file is not supported ({uid}).",
    "size_mismatch": "The file is damaged: the image has {found} pixels, but the header says {stated}.",
    "damaged": "The file is damaged: {detail}.",
    "unsupported_compression": "This kind of image compression is not supported ({name}).",
    "unsupported_pixels": "This pixel format is not supported ({detail}).",
    "too_large": "The image is too large to read safely ({detail}).",
    "too_many_members": Plural("The zip file contains {count} file. At most {limit} files of a zip file can be "
                               "read. Unpack the zip file and screen the folder.",
                               "The zip file contains {count} files. At most {limit} files of a zip file can be "
                               "read. Unpack the zip file and screen the folder.", count_parameter="count"),
    "too_many_records": "The DICOMDIR has more than {limit} records, too many to read. If you opened only the "
                        "DICOMDIR file, open the folder of the DICOMDIR instead.",
    "double_members": Plural("In this zip file, {count} name is used by several different files: {file}. Only the "
                             "last file of this name was read. Make a new zip file in which every file has a "
                             "different name.",
                             "In this zip file, {count} names are each used by several different files, for example "
                             "{file}. Only the last file of each name was read. Make a new zip file in which every "
                             "file has a different name.", count_parameter="count"),
    "file_too_large": "The file is too large to read safely ({size_mb} MB).",
    "linked_folder": "This is a link to another folder. The program does not follow links. To screen the images of "
                     "the other folder, choose the other folder too.",
    "encrypted": "The file is encrypted. First unpack the file with the password.",
    "executable": "The file looks like a program and is not opened.",
    "outside_folder": "The DICOMDIR refers to a file outside the chosen folder. That file is not opened.",
    "decoder_crashed": "The image decoder crashed twice on this file. The file may be damaged.",
    "reader_killed": "The operating system ended the process that read this file, most likely because memory ran "
                     "out. Close other programs and screen the file again.",
    "decoder_timeout": "Reading this file took longer than {seconds} s and was stopped. The file may be damaged.",
    "memory": "Reading this file needs more memory than is allowed ({limit_mb} MB).",
    "inference": "The model could not be run on this image: {detail}.",
    "lungs_failed": "The lungs could not be found in this image: {detail}",
    "internal": "An unexpected error occurred ({detail}). Report the error and attach the log.",

    # ---- the program
    "disk_full": "The disk is full: {path}. Free disk space.",
    "not_writable": "Cannot write to {path}: {detail}.",
    "file_in_use": "Another window of this program is using {path} ({holder}). Close the other window, or wait until "
                   "the other window has finished. Then try again.",
    "disk_failing": "The disk reported an error at {path}: {detail}. Everything saved before the error is kept. Try "
                    "again. If the error happens again, copy your files to another disk and have the faulty disk "
                    "checked.",
    "not_plain": "{path} is a link or not a regular file, so the program does not use {path}. Delete {path}, or "
                 "replace it with a regular file.",
    "home_unusable": "The program cannot keep its files in {path}: {detail}. Set the environment variable "
                     "FIELDRAY_HOME to another folder.",
    "database_newer": "The results database {path} was made by Fieldray {made_by} or a later version. Fieldray "
                      "{program} cannot read this database. Nothing was changed. Install Fieldray {made_by} or later.",
    "database_of_later": "The results database {path} was made by a later version of Fieldray. Fieldray {program} "
                         "cannot read this database. Nothing was changed. Install the later version.",
    "database_too_old": "The results database {path} was made before the first release of the program and cannot be "
                        "read. Nothing was changed. Move the file to another folder. The program then begins a new "
                        "database.",
    "database_older_damaged": "The results database {path} is damaged, and was made by an earlier version of the "
                              "program. Nothing was changed. To repair the database, screen any folder with the "
                              "earlier version.",
    "database_damaged": "The results database {path} is damaged. Start the program again and screen any folder. The "
                        "program then renames the damaged file and copies every readable result into a new database.",
    "database_repaired": "The results database was damaged. The damaged file was moved to {path}. Results "
                         "recovered: {results}. Verdicts recovered: {verdicts}. Images without a result are "
                         "screened again.",
    "store_gone": "The results database {path} was moved, deleted or replaced while the program was running, so new "
                  "results are not saved. If the file was moved, deleted or replaced by mistake, put the file back. "
                  "Then start the program again.",
    "pictures_renewed": "The file with previews of images ({path}) was damaged, so the program began a new preview "
                        "file. No result is lost.",
    "store_in_use": "The results database {path} is in use by another window or command of this program. Close "
                    "the window, or wait until the command has finished. Then try again.",
    "results_lost": "Results are missing from the results database {path}: {found} of {saved} saved results were "
                    "found. Start the program again.",
    "verdict_misplaced": "The verdict was not saved: {path} no longer has the result of this image. The run was "
                         "deleted, or the results database was replaced. Screen the images again. Then give the "
                         "verdict again.",
    "image_replaced": "The file of the current image was replaced or screened again. The window still shows the "
                      "earlier image, and no verdict can be given on the earlier image. Open the new image to give a "
                      "verdict.",
    "image_deleted": "The current image was deleted from the results database, so no verdict can be given on this "
                     "image. Choose another image in the list.",
    "images_deleted": "All images of run {run} were deleted from the results database. The image files were not "
                      "changed. To screen the images again, open their folder.",
    "not_judged_none": "No verdict was given: no image is open. Choose an image in the list.",
    "not_judged_yet": "No verdict was given: the next image was not shown yet. Wait until the image is shown, then "
                      "press the key again.",
    "not_judged_replaced": "No verdict was given: the file of this image was replaced. Open the new image first.",
    "not_judged_not_listed": "No verdict was given: the search or a filter hides the current image. Choose an image "
                             "in the list.",
    "not_judged_searching": "No verdict was given: the search field is active, so keys write text. Press Enter to "
                            "go to the list, then press the key again.",
    "open_files": "The operating system lets the program open {limit} files at the same time, but the program needs "
                  "{needed} open files. Raise the limit of the operating system, or read fewer files at the same time "
                  "(see the settings).",
    "memory_limit": "The operating system lets the program use {limit_mb} MB of memory, but the program needs "
                    "{needed_mb} MB. Raise the limit of the operating system, or read fewer files at the same time "
                    "(see the settings).",
    "system_short": "The operating system refused the program more memory, threads or open files ({detail}). Close "
                    "other programs. If this computer limits memory, threads or open files, raise the limits. Then "
                    "start the program again.",
    "readers_not_started": "No image can be read, because a process of the program could not be started: {detail}. "
                           "The image files are not the cause. Close other programs. If this computer limits memory "
                           "or open files, raise the limits. If images still cannot be read, reinstall the program.",
    "output_is_input": "{path} is one of the input files, so the program does not overwrite {path}. Choose another "
                       "name for the output.",
    "output_in_home": "{path} is in the program's own folder, where only the program writes. Choose another folder "
                      "for the output.",
    "output_not_ours": "{path} already exists and is not an earlier output of this command, so the file was not "
                       "replaced. Choose another name for the output, or delete the file.",
    "option_is_file": "{name} is both an option and the name of a file in this folder. To screen all files of "
                      "this folder, name the folder (.) or write ./* instead of *.",
    "command_is_file": "{name} is both a command and the name of a file in this folder. To screen all files of "
                       "this folder, name the folder (.) or write ./* instead of *. To run the command, write ./ "
                       "before the names of files.",
    "nothing_to_screen": "Nothing to screen: {path} does not exist.",
    "watch_no_folder": "Only a folder can be watched, and {path} is not a folder.",
    "watch_waits": "{path} cannot be read now. Check that the drive is connected. Watching continues when the "
                   "folder is available again.",
    "watch_goes_on": "{path} can be read again. Watching continues.",
    "files_lost": "Files that could not be read: {count}. If the files are on a drive, connect the drive and "
                  "press Start. Only failed files are screened again.",
    "next_run": Plural("{count} file or folder will be screened after this run.",
                       "{count} files or folders will be screened after this run.", count_parameter="count"),
    "question_closed": "You chose another pack before you answered the question about {paths}. Choose the pack for "
                       "these images again.",
    "saved": Plural("{count} file or folder was saved in {folder}.",
                    "{count} files or folders were saved in {folder}.", count_parameter="count"),
    "nothing_saved": "Nothing was saved: the chosen formats need screened images, and this run has no screened image.",
    "watch_stopped": "Watching the folder has stopped. New results: {results}. Files that are not screened yet: "
                     "{waiting}.",
    "points_differ": "The packs run at different operating points: {packs}. Choose the operating points on the Packs "
                     "page.",
    "packs_missing": "The last run of this folder also used the packs {packs}. This run uses only {pack}. To use "
                     "several packs again, choose the packs on the Packs page, then press Start.",
    "run_elsewhere": "Another window or command (process {process}) is screening the same images with the same "
                     "pack. Each run saves its own results.",
    "not_present": Plural("{count} image file of this run no longer exists. The result of this file is kept, but is "
                          "no longer listed.",
                          "{count} image files of this run no longer exist. The results of these files are kept, but "
                          "are no longer listed.", count_parameter="count"),
    "taken_over": Plural("{count} result was reused from an earlier run, because the file has not changed. Files "
                         "compared by size, times and a sample of the content: {sampled}. Files compared by the "
                         "whole content: {whole}.",
                         "{count} results were reused from an earlier run, because the files have not changed. Files "
                         "compared by size, times and a sample of the content: {sampled}. Files compared by the "
                         "whole content: {whole}.", count_parameter="count"),
    "unlike_images": Plural("{count} image is unlike the images that the pack was measured on. The score may be "
                            "less reliable.",
                            "{count} images are unlike the images that the pack was measured on. The scores may be "
                            "less reliable.", count_parameter="count"),
    "asked_for_images": Plural("At a user's request, {count} image was turned or inverted, or was screened although "
                               "not suitable. The result of this image has a note.",
                               "At a user's request, {count} images were turned or inverted, or were screened "
                               "although not suitable. The results of these images have a note.", count_parameter="count"),
    "read_first_images": Plural("Read {count} image first: a lung is missing or hard to see. The image is also "
                                "counted in the class of its score.",
                                "Read {count} images first: a lung is missing or hard to see. These images are also "
                                "counted in the classes of their scores.", count_parameter="count"),
    "most_failed": "Most files failed: {count} of {of}. The most common reason: {why}",
    "again_busy": "A run is under way. Wait until the run is over or stop the run, then screen this image again.",
    "again_other_pack": "This result was made by the pack {pack} with settings that are not in use now. Choose the "
                        "pack {pack} and the operating point of this result, or screen the folder again.",
    "again_refused": "The image was turned, but is still not suitable. Read the image yourself, or choose to screen "
                     "the image anyway.",
    "maps_incomplete": Plural("The lung mask, class map and overlay (option --maps) of {count} image could not be "
                              "written. The image file has changed or cannot be read.",
                              "The lung masks, class maps and overlays (option --maps) of {count} images could not "
                              "be written. The image files have changed or cannot be read.", count_parameter="count"),
    "other_patients": Plural("{count} image does not match this pack (age or body part). {patients} Check that "
                             "the right pack was chosen.",
                             "{count} images do not match this pack (age or body part). {patients} Check that the "
                             "right pack was chosen.", count_parameter="count"),
    "ages_not_stated": Plural("{count} image file has no patient age, and nobody confirmed the age. {patients}",
                              "{count} image files have no patient age, and nobody confirmed the age. {patients}",
                              count_parameter="count"),
    "path_missing": "The folder or file {path} does not exist.",
    "path_is_address": "{address} is a network address, but this program opens folders and files of this computer "
                       "only. Name the folder where the network share is mounted, or copy the files to this computer.",
    "command_missing": "The command {command} is not installed. Install the commands for making packs and for "
                       "archives, clusters and workflows with: pip install 'fieldray[adapt,cluster]'",
    "option_without_command": "The option {option} needs a command, for example: fieldray screen FOLDER. Without a "
                              "command, folders and files are opened in the window.",
    "no_image_in": "There is no image file in {path}. If the folder is on a drive, check that the drive is "
                   "connected.",
    "only_hidden": Plural("{count} file or folder in {path} is hidden (the name begins with a dot) and was not "
                          "screened. To screen hidden images, rename the file or folder.",
                          "{count} files or folders in {path} are hidden (the names begin with a dot) and were not "
                          "screened. To screen hidden images, rename the files or folders.", count_parameter="count"),
    "bins_left_out": Plural("{count} folder was left out, because this folder is a recycle bin, thumbnail cache or "
                            "disk snapshot: {several}. To screen the files in this folder, open this folder itself.",
                            "{count} folders were left out, because these folders are recycle bins, thumbnail caches "
                            "or disk snapshots: {several}. To screen the files in a folder that was left out, open "
                            "that folder itself.", count_parameter="count"),
    "question_waits": "Screening waits for your answer to a question. First finish your work on this page, then "
                      "answer the question.",
    "own_image": "The program made this picture from another image, so the picture was not screened.",
    "own_reports": Plural("{count} result file of this program was found among the images and left out.",
                          "{count} result files of this program were found among the images and left out.", count_parameter="count"),
    "ages_apart": "No patient age fits all of these packs: {packs}. Screen without confirming the ages, or with one "
                  "pack at a time.",
    "operating_point": "The pack has no operating point named {name}. The operating points of the pack are: {known}.",
    "no_screen": "No display is available for the window. Use the command line instead: {command}",
    "setting_type": "The setting {key} cannot be {value}. The value must be of the type {kind}.",
    "setting_choice": "The setting {key} cannot be {value}. Choose one of: {known}.",
    "setting_range": "The setting {key} cannot be {value}. The value must be between {low} and {high}.",
    "setting_unknown": "This version of the program has no setting {key}. The setting stays in the settings file.",
    "settings_unreadable": "The settings in {path} cannot be read: {detail}. The defaults are used.",
    "settings_not_saved": "The settings were not saved: {path} could not be read ({detail}), and an unreadable file "
                          "is not replaced. Start the program again.",

    # ---- this computer
    "nothing_to_measure": "No readable image was found, so nothing can be measured.",
    "energy_not_counted": "Power consumption cannot be measured: Linux gives no energy counter on this computer "
                          "(/sys/class/powercap).",
    "energy_denied": "Only the administrator may read {path}. Run the command as root to measure power consumption.",
    "priority_denied": "You may not change the priority of a process on this computer.",
    "host_trial_well": "A test image was read and processed by {pack} on {backend} within {seconds} s.",
    "host_trial_stopped": "The test image could not be screened: {detail}.",
    "host_library_missing": "Parts of the program are missing: {names}. Reinstall the program.",
    "host_no_vectors": "The CPU has no AVX2 instructions (common since about 2013), so the model runs several times "
                       "slower. Use a newer computer or an Edge TPU.",
    "host_power_plan": "The system slows the CPU down to save power (plan {plan}). Choose the high performance plan "
                       "in the system's power settings.",
    "host_governor": "The system slows the CPU down to save power (CPU governor {governor}). Run: cpupower "
                     "frequency-set -g performance",
    "host_battery": "The computer is running on battery, which slows most computers down. Plug the computer in.",
    "host_memory": "Only {free_mb} MB of memory are free, but large images need {needed_mb} MB. Close other programs.",
    "host_disk": "Only {free_mb} MB are free on the disk with the results ({path}). Free some space.",
    "host_busy": "Other programs use {percent} % of the CPU. Close programs that are not needed during screening.",
    "host_few_threads": "The program may use only {usable} of the {threads} threads of the CPU. Remove this limit "
                        "if nobody set the limit on purpose.",
    "host_no_edgetpu": "No Edge TPU is plugged in. An Edge TPU is not needed: the packs of the program run on the "
                       "CPU.",
    "host_edgetpu_well": "The Edge TPU can be used.",
    "host_other_pack": "The pack {name} is not used: {detail}",
}
# fmt: on

# Codes of problems of a whole folder, in which the number of images is not known.
FOLDER_PROBLEM_CODES: Final = frozenset({"folder_not_read", "folder_lost", "linked_folder"})
# Codes of notes that most results of a run have. A list shows these notes only once.
FREQUENT_NOTE_CODES: Final = frozenset({"age_not_stated", "age_confirmed", "unsigned_operating_point_unknown"})

# Parameters that are numbers and may have decimals. They are shown with the decimal mark of the language.
NUMERIC_PARAMETERS: Final = frozenset(
    {"auc", "low", "high", "index", "limit", "seconds", "speed_up", "freed_mb", "area", "own", "largest"}
    | {"now", "before", "opposite", "left", "right"}
)

# Parameters that never contain a patient's name: numbers, and words of the program, a pack or this computer. All other
# parameters are hidden with the names of patients, because a label or a detail may contain the name of a folder.
_WITHOUT_NAMES: Final = """
    backend batches body_part command companion count day days device different due end epoch exit_code expected found
    fingerprint frames free_mb gaps governor iteration images key kind least limit_mb line memory metric minutes
    modality needed needed_mb of oldest operators option others pack packs part parts patients percent pictures plan
    process protocol results role run sampled saved scored size_mb staleness stated step subgraphs threads
    times uid units usable verdicts version view waiting whole workers youngest
"""
NON_IDENTIFYING_PARAMETERS: Final = NUMERIC_PARAMETERS | frozenset(_WITHOUT_NAMES.split())


def template_of(code: str) -> Template:
    """Return the sentence with this code, from this module or from the module `reasons` of a sub-package.

    Raises KeyError for an unknown code.
    """
    return TEMPLATES[code] if code in TEMPLATES else templates_of_subpackages()[code]


@functools.cache
def templates_of_subpackages() -> Mapping[str, Template]:
    """Return the sentences of the modules `reasons` in this package's sub-packages and in the optional packages.

    The modules are found like the entries of a `registry`: a new module `reasons` in a sub-package is included
    automatically.
    """
    rooms = (f"fieldray.{found.name}.reasons" for found in pkgutil.iter_modules(fieldray.__path__) if found.ispkg)
    own = [import_module(name) for name in rooms if find_spec(name)]
    return {
        code: text
        for module in (*own, *modules_of_optional_packages("reasons"))
        for code, text in module.TEMPLATES.items()
    }


@dataclass(frozen=True, slots=True)
class Reason:
    """A message for a person: the code of its text (see `template_of`), and the values of its parameters.

    The constructor raises KeyError for an unknown code or a missing parameter.
    """

    code: str
    parameters: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        self.template.format(**dict(self.parameters))

    @property
    def template(self) -> str:
        """The English sentence with placeholders. A `Plural` gives its singular or plural, as its number requires."""
        template = template_of(self.code)
        if isinstance(template, Plural):
            return template.one if template.count_in_parameters(self.parameters) == 1 else template.many
        return template

    @property
    def text(self) -> str:
        """The message as an English sentence, with the values of its parameters."""
        return self.template.format(**dict(self.parameters))


def reason(code: str, **parameters: object) -> Reason:
    """Make a `Reason`. Parameter values become visible text on one line, at most 200 characters long."""
    return Reason(code, tuple((key, _plain(value)) for key, value in sorted(parameters.items())))


def _plain(value: object) -> str:
    text = escape_invisible_characters(str(value).strip())
    return text if len(text) <= 200 else text[:197] + "..."


def merge_by_code(whys: Counter[Reason]) -> Counter[Reason]:
    """Merge reasons with equal codes, and add up their counts. A parameter with different values becomes "…"."""
    found = Counter[Reason]()
    for code in dict.fromkeys(why.code for why in whys):
        alike = [why for why in whys if why.code == code]
        shared = set(alike[0].parameters).intersection(*(why.parameters for why in alike))
        parameters = tuple((name, value if (name, value) in shared else "…") for name, value in alike[0].parameters)
        found[Reason(code, parameters)] = sum(whys[why] for why in alike)
    return found

"""Every reason a person can be shown, as a code with a plain English sentence.

A reason is a value: it travels between processes, is stored, translated and counted by its code. Parameters are
filled in last, so a translation can put them where its grammar wants them. Rules for the sentences: say what is
wrong and, where a person can act, what to do; no exception names, no jargon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fieldray.plain_text import visible

# fmt: off
REFUSED: Final[Mapping[str, str]] = {
    "not_an_image": "This file is not a DICOM, PNG or JPEG image.",
    "no_pixel_data": "This DICOM file holds no image ({modality}).",
    "modality": "Not a radiograph: the modality is {modality}.",
    "body_part": "Not a chest image: the body part is {body_part}.",
    "view": "Not a frontal view: the view position is {view}.",
    "age": "This pack is for patients of {youngest} to {oldest} years; this one is {age}.",
    "colour": "A colour image is not a radiograph.",
    "too_small": "The image is too small: {rows} x {columns} pixels.",
    "blank": "The image is blank or has almost no contrast.",
    "aspect": "The image is too long and narrow for a chest X-ray: {rows} x {columns} pixels.",
    "nested_zip": "A zip file inside a zip file is not opened. Unpack it first.",
    "unlike_training": "The image does not look like the chest X-rays this pack was made for.",
    "too_many_frames": "The file has {frames} frames; at most {limit} are read.",
}

FAILED: Final[Mapping[str, str]] = {
    "unreadable": "The file cannot be opened: {detail}.",
    "missing": "The file is not there any more.",
    "changed": "The file has changed meanwhile. Screen it again.",
    "folder_not_read": "This folder cannot be read: {detail}. How many images are in it is not known, and none of them "
                       "was screened.",
    "folder_lost": "This folder disappeared while it was searched. How many images in it were not screened is not "
                   "known. If it is on a drive, connect the drive again, then start again: what was done is kept.",
    "missing_listed": "The DICOMDIR beside it lists this file, but it is not there. Was the medium copied completely?",
    "no_permission": "You have no permission to read this file.",
    "empty": "The file is empty.",
    "truncated": "The file is cut short: part of the image is missing.",
    "size_mismatch": "The file is damaged: the image has {found} pixels, its header says {stated}.",
    "damaged": "The file is damaged: {detail}.",
    "unsupported_compression": "The image is compressed in a way that cannot be read here ({name}).",
    "unsupported_pixels": "The pixel format cannot be read here ({detail}).",
    "too_large": "The image is too large to read safely ({detail}).",
    "too_many_members": "The zip file holds {count} files; at most {limit} are read from one. Unpack it, then screen "
                        "the folder.",
    "too_many_records": "The DICOMDIR has {count} records; at most {limit} are read. Screen the folder that it is in "
                        "instead.",
    "double_members": "In this zip file several different files have the same name ({count} names, such as {name}). "
                      "Only the last of each name was read: pack them again under different names.",
    "file_too_large": "The file is too large to read safely ({size_mb} MB).",
    "encrypted": "The file is encrypted. Unpack it with its password first.",
    "executable": "The file begins like a program and is not opened.",
    "outside_folder": "The index refers to a file outside the chosen folder. It is not opened.",
    "decoder_crashed": "The decoder stopped while reading this file, twice. The file may be damaged.",
    "decoder_timeout": "Reading took longer than {seconds} s and was stopped. The file may be damaged.",
    "memory": "Reading this file needs more memory than allowed ({limit_mb} MB).",
    "inference": "The network could not be run on this image: {detail}.",
    "inference_timeout": "The network gave no answer within {seconds} s.",
    "storage": "The result could not be saved: {detail}.",
    "internal": "An unexpected error. Please report it with the log ({detail}).",
}

PACKS: Final[Mapping[str, str]] = {
    "no_pack": "No model pack found. Plug in a model drive, or give its folder with --pack.",
    "pack_not_found": "There is no pack named {name} here.",
    "pack_unreadable": "The pack cannot be read: {detail}.",
    "pack_incomplete": "The pack lacks the file {name}.",
    "pack_unsigned": "The pack has no signature.",
    "pack_bad_signature": "The signature does not match: the pack was changed after it was signed. Nothing was loaded.",
    "pack_tampered": "The file {name} is not the one that was signed. Nothing was loaded.",
    "pack_unknown_key": "The pack is signed by a key that is not trusted yet: {fingerprint}. "
                        "Compare it with its maker's, then trust it.",
    "pack_older": "Version {version} of this pack is older than {seen}, which was used here before.",
    "pack_manifest": "The pack's description is not valid: {detail}.",
    "pack_bad_name": "The pack names a file in a way that is not allowed: {name}.",
    "pack_too_large": "The pack's file {name} is too large ({size_mb} MB; at most {limit_mb} MB).",
    "pack_newer_format": "The pack needs a newer program (format {version}).",
    "pack_older_format": "The pack is in an older format ({version}) that this program does not read. Ask its maker for a new version.",
    "pack_not_classifier": "This pack does not screen images by itself: it is used by other packs (kind: {kind}).",
    "pack_companion_missing": "This pack needs another pack that is not here: {companion}.",
    "pack_companion_older": "This pack needs a newer version of another pack: {companion}. Here is version {seen}.",
    "pack_companion_unusable": "This pack needs another pack that cannot be used: {companion}. {detail}",
    "pack_legacy": "An unsigned legacy model: nobody vouches for it. It is used only after an explicit yes, "
                   "and then gives scores only: nothing is assessed.",
    "pack_several": "There are several packs here: {names}. Name one of them.",
    "trust_damaged": "The record of trusted keys and versions cannot be read: {path} ({detail}). No signed pack is "
                     "used until this file is repaired. If you delete it, keys have to be trusted again, and an "
                     "older version is no longer noticed.",
    "trust_in_use": "The record of trusted keys and versions is held by another window of this program ({holder}): "
                    "{path}. Wait until it is done, or close it, then try again.",
    "pack_passed_over": "The pack in {folder} cannot be used, so another one is: {detail}",
    "drive_gone": "The drive was removed while it was read. Nothing was loaded.",
    "fingerprint": "This is not a key's fingerprint: {text}. It has 64 digits from 0-9 and a-f.",
    "signing_key": "The signing key {path} cannot be used: {detail}.",
}

BACKENDS: Final[Mapping[str, str]] = {
    "no_runtime": "No TensorFlow Lite runtime is installed. Install ai-edge-litert.",
    "bad_model": "The model file cannot be run here: {detail}.",
    "self_test": "The model gives other results here than its maker measured ({detail}). It is not used.",
    "model_memory": "The model needs more memory than it is allowed here ({limit_mb} MB). Use another pack, or "
                    "raise the limit if this computer sets one.",
    "worker_died": "The process that runs the model stopped unexpectedly.",
    "worker_timeout": "The process that runs the model gave no answer within {seconds} s.",
    "wrong_answer": "The process that runs the model gave an answer that makes no sense.",
    "engine_closed": "The program was stopped before this image was run.",
    "start_failed": "The model could not be started: {detail}.",
    "no_model_file": "This pack has no file for this device: {device}.",
    "no_device": "There is no device named {name} here.",
    "edgetpu_not_here": "No Edge TPU is connected.",
    "device_not_chosen": "It is switched off in the settings.",
    "coral_no_library": "The Edge TPU runtime is not installed ({name} is not there). Install libedgetpu, then plug the "
                        "Edge TPU in again.",
    "coral_no_libusb": "The Edge TPU runtime needs libusb, which is not installed. Install libusb 1.0, then try again.",
    "coral_bad_library": "The file {name} is not an Edge TPU runtime for this computer. Install libedgetpu again.",
    "coral_wrong_abi": "The installed Edge TPU runtime does not fit this program: it was built for another TensorFlow. "
                       "Install a newer libedgetpu.",
    "coral_library_failed": "The Edge TPU runtime stopped while it looked for the Edge TPU. Unplug the Edge TPU, plug it into "
                            "another port and try again.",
    "coral_library_slow": "The Edge TPU runtime gave no answer within {seconds} s. Unplug the Edge TPU, plug it into "
                          "another port and try again.",
    "coral_not_listed": "The Edge TPU is plugged in, but the Edge TPU runtime does not see it. Plug it in again; if that "
                        "does not help, install libedgetpu again.",
    "coral_no_permission": "You may not use the Edge TPU. Install the udev rule that comes with the program, join the "
                           "group plugdev, sign in again and plug the Edge TPU in again.",
    "coral_open_failed": "The Edge TPU cannot be opened. Close other programs that may use it, then plug it in again.",
    "coral_busy": "The Edge TPU is used by another window of this program (process {process}). Close it to use the Edge TPU "
                  "here.",
    "coral_runtime_old": "The pack's Edge TPU file needs runtime {needed}; runtime {found} is installed. Install a newer "
                         "libedgetpu.",
    "coral_not_compiled": "The pack's Edge TPU file was not compiled for the Edge TPU. Its maker has to compile it.",
    "coral_unplugged": "The Edge TPU was unplugged.",
    "coral_stopped": "The Edge TPU stopped in the middle of its work. If nobody unplugged it, it may lack power: use "
                     "another port without a hub.",
    "coral_no_answer": "The Edge TPU gave no answer within {seconds} s and was stopped. Plug it into another port.",
    "coral_run_failed": "The Edge TPU reported an error ({detail}). If it happens again, use another port or cable.",
    "coral_flapping": "The Edge TPU appears and disappears. It may lack power or have a bad cable: use another port "
                      "without a hub.",
    "coral_usb2": "The Edge TPU is in a slow USB 2 port, where an image may take seven times as long. Use a USB 3 port "
                  "(often blue).",
    "coral_weak_hub": "The Edge TPU is plugged into a hub without its own power supply. It may stop at any time: plug it "
                      "into the computer.",
    "coral_max_clock": "The Edge TPU runs at its highest clock. It can get hot enough to burn the skin; keep the room "
                       "below 25 degrees.",
}

PROGRAM: Final[Mapping[str, str]] = {
    "disk_full": "The disk is full: {path}.",
    "not_writable": "Cannot write to {path}: {detail}.",
    "not_plain": "{path} is a link or no ordinary file, so it is not used. Delete it, or put the file itself there.",
    "home_unusable": "The program cannot keep its files in {path}: {detail}. Name another folder in FIELDRAY_HOME.",
    "database_newer": "The results in {path} were made by a newer version of the program.",
    "database_damaged": "The results in {path} are damaged. Run the program again: it sets the damaged file aside, "
                        "begins a new one and keeps every result that can still be read.",
    "database_mended": "The file of results was damaged. It is now {path}. Kept from it: {results} results, {verdicts} "
                       "verdicts. What is lost is done again.",
    "store_gone": "The file of results {path} was moved, deleted or replaced while the program was at work, so what it "
                  "found is not kept. Put the file back if that was a mistake, then run the program again.",
    "results_lost": "The results are not all in {path}, although each was saved ({found} of {saved}). Run the program "
                    "again.",
    "open_files": "Only {limit} files may be open at the same time here; {needed} are needed. Raise that "
                  "limit of this computer, or read fewer files at the same time.",
    "memory_limit": "This computer lets the program use {limit_mb} MB of memory at most; {needed_mb} MB are needed. Raise "
                    "that limit, or read fewer files at the same time.",
    "system_short": "The system refuses this program what it needs ({detail}). Close other programs. If this computer "
                    "limits memory, threads or open files, raise the limits. Then start again.",
    "readers_not_started": "A process that reads images could not be started, so no image can be read: {detail}. Nothing "
                           "is wrong with the images. Close other programs; if this computer limits memory or open "
                           "files, raise the limits; else reinstall this program. Then start again.",
    "output_is_input": "{path} is one of the files to be read, so nothing is written there. Give the output another name.",
    "output_in_home": "{path} is in the program's own folder, where only it writes. Give the output another place.",
    "output_not_ours": "{path} is there already, and it is no earlier output of this command, so it is not replaced. Give "
                       "the output another name, or delete the file.",
    "library_missing": "The library {name} that this needs is not installed.",
    "nothing_to_screen": "There is nothing to screen: {path} does not exist.",
    "run_elsewhere": "Another window or command (process {process}) is screening the same with the same pack. "
                     "It is left alone; this is a run of its own.",
    "not_present": "Images of this run that are not there any more: {count}. Their results are kept, but no longer "
                   "listed.",
    "no_image_in": "There is no image file in {path}. If it is on a drive, check that the drive is connected.",
    "own_reports": "Result files of this program lie among the images. They were left out: {count}.",
    "operating_point": "The pack has no operating point named {name}. It has: {known}.",
    "no_screen": "There is no screen here to open a window on. This works without one: {command}",
    "setting": "The setting {key} cannot be {value}: {detail}.",
}

HOST: Final[Mapping[str, str]] = {
    "nothing_to_measure": "There is no image here that can be read, so there is nothing to measure with.",
    "priority_denied": "This user may not change the priority of a process here.",
    "host_trial_well": "An image drawn by the program was read and run with {pack} on {backend} within {seconds} s.",
    "host_trial_stopped": "An image drawn by the program could not be screened: {detail}.",
    "host_library_missing": "Parts of the program are missing: {names}. Install it again.",
    "host_no_vectors": "The processor has no AVX2 instructions (it is older than about 2013), so a network runs several "
                       "times slower. Use a newer computer or an Edge TPU Edge TPU.",
    "host_power_plan": "The system holds the processor back to save power (plan {plan}). Choose the plan for high "
                       "performance in the system's power settings.",
    "host_governor": "The system holds the processor back to save power (governor {governor}). Run: cpupower "
                     "frequency-set -g performance",
    "host_battery": "The computer runs on its battery, and most slow down then. Plug it into the mains.",
    "host_slow_runtime": "The older runtime tflite-runtime is used, which runs networks many times slower on the "
                         "processor. Install ai-edge-litert.",
    "host_memory": "Only {free_mb} MB of memory are free; {needed_mb} MB are needed to read large images. Close other "
                   "programs.",
    "host_disk": "Only {free_mb} MB are free where results are kept ({path}). Make room there.",
    "host_busy": "Other programs keep {percent} percent of the processor busy. Close what is not needed while images are "
                 "screened.",
    "host_few_threads": "The program may use only {usable} of the processor's {threads} threads. Lift the limit if "
                        "nobody set it on purpose.",
    "host_no_edgetpu": "No Edge TPU Edge TPU is plugged in. Nothing has to be done: the processor is used.",
    "host_edgetpu_well": "The Edge TPU Edge TPU can be used.",
    "host_other_pack": "The pack {name} is not used: {detail}",
}

ADAPTATION: Final[Mapping[str, str]] = {
    "recipe_unreadable": "The recipe {path} cannot be read: {detail}.",
    "recipe_key": "The recipe's {key} {detail}.",
    "recipe_problems": "The recipe {path} cannot be used. Problems: {count}. The first: {problem}.",
    "recipe_kind": "There is no kind of recipe called {kind}. There are: {known}.",
    "recipe_exists": "{path} is already there; nothing was written.",
    "not_a_tflite": "This is not a TensorFlow Lite file, or it is damaged ({detail}).",
    "no_compiler": "edgetpu_compiler is not installed, so nothing was compiled for the Edge TPU. It runs on "
                   "64-bit Intel or AMD Linux; see coral.ai/docs/edgetpu/compiler. The pack works on the CPU without it.",
    "compiler_failed": "edgetpu_compiler did not succeed: {detail}.",
    "compiled_partly": "The compiled network does not run on the Edge TPU as a whole: {subgraphs} subgraphs, "
                       "{operators} operators on the CPU.",
    "run_differs": "The run in {path} was begun with other settings. Give another folder, or delete that one.",
    "run_damaged": "The run cannot go on: {path} is damaged. Delete the run's folder and begin again.",
    "run_in_use": "Another run is at work in {path}: {holder}. Wait for it, end it, or give this run another folder.",
    "iteration_missing": "The run {run} has no iteration {iteration}, where another run of the recipe is to begin.",
    "training_diverged": "Training went wrong in epoch {epoch}, step {step}: the loss is not a number. "
                         "Lower learning_rate in the recipe and run it again; it goes on from the last good epoch.",
    "data_unreadable": "The data in {path} cannot be read: {detail}.",
    "data_column": "{path} has no column named {column}. It has: {known}.",
    "data_row": "{path}, line {line}: {detail}.",
    "data_empty": "The data set {name} has no images that the recipe asks for ({path}).",
    "data_patient": "No patient can be found in the file name {name} with the pattern {pattern}.",
    "data_leak": "The patient {patient} is on two sides of the split: {first} and {second}. "
                 "Nothing was trained: results would look better than they are.",
    "data_changed": "{path} does not belong to the images and tables as they are now: they have changed. "
                    "Give the command again: whatever depends on them is done again.",
    "data_split": "No row is for training: the split column has the values {values}, "
                  "and the recipe's key splits must say which of them are for training.",
    "data_none_readable": "Not one image of the data set can be read; the first is {path}: {detail}",
    "adapt_not_installed": "The toolchain that makes packs is not installed ({name} is missing). "
                           "Install it: pip install 'fieldray[adapt]'.",
    "step_missing": "The step {step} has to be run first: fieldray adapt {step} RECIPE.",
    "weights_unfit": "No layer of the weights in {path} fits the network of the recipe.",
    "weights_unreachable": "The published weights of {name} cannot be had: {detail}. "
                           "Use weights = \"none\" or the path of a weights file.",
    "data_class_empty": "The label {label} has no {kind} images in the {part} part.",
}
# fmt: on

# What fails here is a folder: the number of images is not known.
OF_FOLDERS: Final = frozenset({"folder_not_read", "folder_lost"})

TEMPLATES: Final[Mapping[str, str]] = {**REFUSED, **FAILED, **PACKS, **BACKENDS, **PROGRAM, **HOST, **ADAPTATION}


@dataclass(frozen=True, slots=True)
class Reason:
    """A code of `TEMPLATES` and its parameters, in a fixed order.

    Raises KeyError at birth for an unknown code or a missing parameter.
    """

    code: str
    parameters: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        TEMPLATES[self.code].format(**dict(self.parameters))

    @property
    def text(self) -> str:
        """The English sentence."""
        return TEMPLATES[self.code].format(**dict(self.parameters))


def reason(code: str, **parameters: object) -> Reason:
    """Make a `Reason`; parameter values are turned into texts of one line, all of it to be seen, at most 200 long."""
    return Reason(code, tuple((key, _plain(value)) for key, value in sorted(parameters.items())))


def _plain(value: object) -> str:
    text = visible(str(value).strip())
    return text if len(text) <= 200 else text[:197] + "..."

"""The messages of `fieldray adapt`, by code (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Plural, Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
    "recipe_unreadable": "The recipe {path} cannot be read: {detail}.",
    "recipe_key": "The recipe's key {key} {detail}.",
    "recipe_problems": Plural("The recipe {path} has {count} problem and cannot be used: {problem}.",
                              "The recipe {path} has {count} problems and cannot be used. The first problem: "
                              "{problem}.",
                              count_parameter="count"),
    "recipe_kind": "There is no recipe of the kind {kind}. The kinds are: {known}.",
    "recipe_exists": "{path} already exists. Nothing was written.",
    "not_a_tflite": "This file is not a TensorFlow Lite file, or the file is damaged ({detail}).",
    "no_compiler": "edgetpu_compiler is not installed, so nothing was compiled for the Edge TPU. The pack works on "
                   "the CPU. The compiler runs on 64-bit Intel or AMD Linux; see coral.ai/docs/edgetpu/compiler.",
    "compiler_failed": "edgetpu_compiler failed: {detail}.",
    "compile_elsewhere": "{path} is signed with another key, so the pack was not changed. Name a folder for the new "
                         "pack: --out FOLDER.",
    "compiled_partly": "The compiled network does not run entirely on the Edge TPU. Subgraphs: {subgraphs}. "
                       "Operators that run on the CPU: {operators}.",
    "run_differs": "The training run in {path} was started with other settings. Use another folder, or delete the "
                   "folder of this training run.",
    "run_damaged": "The training run cannot be resumed: {path} is damaged. Delete the run's folder and start the run "
                   "again.",
    "run_file_damaged": "{path} is damaged. Delete the file and start again: the step that made the file is "
                        "repeated.",
    "run_file_changed": "{path} was changed after the step {step}. Delete the file and start again: this step and "
                        "later steps are repeated.",
    "run_split_changed": "{path} was changed after the images were split into parts. Delete the file and start "
                         "again; the images will then be split again. To choose the parts yourself, write the path of "
                         "your table in the recipe's key split.table.",
    "run_in_use": "Another run is using {path}: {holder}. Stop the other run, wait until the other run has finished, "
                  "or use another folder.",
    "iteration_missing": "The run {run} has no iteration {iteration} to start from.",
    "training_diverged": "Training diverged in epoch {epoch}, step {step}: the loss is not a number. Lower "
                         "learning_rate in the recipe and run the recipe again. Training resumes from the last good "
                         "epoch.",
    "data_unreadable": "The data in {path} cannot be read: {detail}.",
    "objects_not_copied": "Some images of {address} are not on this computer. First fetch these images with: "
                          "fieldray adapt fetch {path}",
    "data_column": "{path} has no column named {column}. The columns are: {known}.",
    "data_row": "{path}, line {line}: {detail}.",
    "data_empty": "The data set {name} has none of the images that the recipe asks for ({path}).",
    "data_patient": "The pattern {pattern} finds no patient in the file name {name}. The pattern's first group in "
                    "parentheses must match the patient ID.",
    "data_leak": "Patient {patient} is in two parts of the split: {first} and {second}. Nothing was trained, because "
                 "the test results would be too optimistic. Put all images of a patient into one part.",
    "data_copies": "Patient {patient} and patient {other} have the same image, so the two IDs probably mean one "
                   "patient in two parts of the split: {first} and {second}. Nothing was trained. Put both patient "
                   "IDs into one part.",
    "data_patients_alike": "The patient IDs {patient} ({first}) and {other} ({second}) differ only by case, blanks, "
                           "leading zeros or letters that look alike. Write the ID of a patient always in the same "
                           "way.",
    "data_named_twice": "The image {path} has two entries that differ in class, patient or part of the split: {first}; "
                        "{second}. Delete or correct one of the two entries.",
    "data_changed": "The images or tables have changed, so {path} no longer matches. Run the command again: every "
                    "step that uses the images or tables is repeated.",
    "data_split": "No row is for training: the split column has the values {values}. In the recipe's key splits, "
                  "name the values that mean training.",
    "data_split_table": "Row {row} of {path} cannot be used. Each row must name one patient and one part of the "
                        "split ({parts} or none). A patient may be in one row only.",
    "data_split_nobody": "The table {path} lists none of the patients of the data. Compare the patient IDs of the "
                         "table with the patient IDs of the data.",
    "data_none_readable": "None of the images in the data set can be read. The first image is {path}: {detail}",
    "adapt_not_installed": "The toolchain for making packs is not installed ({name} is missing). Install the "
                           "toolchain: pip install 'fieldray[adapt]'.",
    "cross_one_hospital": "Cross-validation by hospital needs two or more hospitals, but the recipe has {found}.",
    "step_missing": "First run the step {step}: fieldray adapt {step} RECIPE",
    "teacher_unfit": "{path} does not contain the weights of an EfficientNet-Lite0 with the layer names of PyTorch.",
    "weights_unfit": "No layer of the weights in {path} fits the network of the recipe.",
    "data_class_empty": "The {part} part of the data has no {kind} images for the label {label}.",
    "evaluate_refused": "Of {count} test images, only {scored} have a score. The most frequent reason for a missing "
                        "score: {why} The figures need scored images with the finding and scored images without the "
                        "finding.",
    "pack_shortcut_close": "{label}: the shortcut check failed, so the figures say little about the lungs. A "
                           "classifier that sees only the image border or a thumbnail has an area under the ROC "
                           "curve of {area}. The network of the pack has an area of {own}.",
    "pack_shortcut": "{label}: a classifier that sees only the image border or a thumbnail has an area under the ROC "
                     "curve of {area}. The network of the pack has an area of {own}. The classes probably also "
                     "differ outside the lungs, so the figures are too optimistic.",
    "pack_few_images": Plural("{label}: one of the two groups (with the finding, without the finding) has only "
                              "{count} test image. Check the width of the confidence intervals.",
                              "{label}: one of the two groups (with the finding, without the finding) has only "
                              "{count} test images. Check the width of the confidence intervals.",
                              count_parameter="count"),
    "pack_gate_refuses": "{percent} of 100 chest X-rays look unlike the training images of the pack. If the "
                         "lungs are found, such an image is screened with a note. Otherwise the image is not suitable.",
    "training_not_divided": "Only one process can train with a recipe of the kind {kind}. Remove --mode and --workers.",
}
# fmt: on

"""The sentences of making packs (see `fieldray.reasons`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fieldray.reasons import Plural, Template

# fmt: off
TEMPLATES: Final[Mapping[str, Template]] = {
    "recipe_unreadable": "The recipe {path} cannot be read: {detail}.",
    "recipe_key": "The recipe's {key} {detail}.",
    "recipe_problems": Plural("The recipe {path} cannot be used. It has {count} problem: {problem}.",
                              "The recipe {path} cannot be used. It has {count} problems. The first: {problem}.",
                              by="count"),
    "recipe_kind": "There is no recipe of the kind {kind}. The kinds are: {known}.",
    "recipe_exists": "{path} already exists. Nothing was written.",
    "not_a_tflite": "This is not a TensorFlow Lite file, or it is damaged ({detail}).",
    "no_compiler": "edgetpu_compiler is not installed, so nothing was compiled for the Edge TPU. It runs on 64-bit "
                   "Intel or AMD Linux; see coral.ai/docs/edgetpu/compiler. The pack works on the CPU without it.",
    "compiler_failed": "edgetpu_compiler failed: {detail}.",
    "compile_elsewhere": "{path} is signed with another key, so it stays as it is. Say where the new pack goes: --out FOLDER.",
    "compiled_partly": "The compiled network does not run entirely on the Edge TPU: {subgraphs} subgraphs, "
                       "{operators} operators on the CPU.",
    "run_differs": "The run in {path} was started with other settings. Use another folder, or delete that one.",
    "run_damaged": "The run cannot be resumed: {path} is damaged. Delete the run's folder and start again.",
    "run_file_damaged": "{path} is damaged. Delete it and start again: what made it is done once more.",
    "run_file_changed": "{path} is not as the step {step} left it. Delete it and start again: the step and those after it are "
                        "done once more.",
    "run_split_changed": "{path} was changed after the images were split. Delete it and start again: they are split anew. To "
                         "choose the parts yourself, name a table with the recipe's key split.table.",
    "run_in_use": "Another run is using {path}: {holder}. Wait until it has finished, stop it, or use another folder.",
    "iteration_missing": "The run {run} has no iteration {iteration} to start from.",
    "training_diverged": "Training diverged in epoch {epoch}, step {step}: the loss is not a number. Lower "
                         "learning_rate in the recipe and run it again. It resumes from the last good epoch.",
    "data_unreadable": "The data in {path} cannot be read: {detail}.",
    "data_column": "{path} has no column named {column}. It has: {known}.",
    "data_row": "{path}, line {line}: {detail}.",
    "data_empty": "The data set {name} has none of the images that the recipe asks for ({path}).",
    "data_patient": "The pattern {pattern} finds no patient in the file name {name}: what its first group in (parentheses) matches is the patient.",
    "data_leak": "The patient {patient} is on two sides of the split: {first} and {second}. Nothing was trained, "
                 "because results would look better than they are.",
    "data_copies": "The same image is there as of the patient {patient} and of the patient {other}, so they are one, who is on "
                   "two sides of the split: {first} and {second}. Nothing was trained. Give both to one side.",
    "data_patients_alike": "The patients {patient} ({first}) and {other} ({second}) differ only by case, blanks, leading zeros or "
                           "letters that look alike. Write the number of a patient in one way.",
    "data_named_twice": "{path} is named twice, with other classes, of another patient or in another part: {first}; {second}.",
    "data_changed": "{path} does not match the images and tables, which have changed. Run the command again: every "
                    "step that depends on them is repeated.",
    "data_split": "No row is for training: the split column has the values {values}. The recipe's key splits must "
                  "say which of them are for training.",
    "data_split_table": "Row {row} of {path} cannot be used: each row names a patient, once, and a part ({parts} or none).",
    "data_split_nobody": "No patient of the data is in {path}. Compare those that it names with those of the data.",
    "data_none_readable": "None of the images in the data set can be read. The first is {path}: {detail}",
    "adapt_not_installed": "The toolchain for making packs is not installed ({name} is missing). Install it: pip "
                           "install 'fieldray[adapt]'.",
    "cross_one_hospital": "Leaving out a hospital needs two or more of them; the recipe has {found}.",
    "step_missing": "Run the step {step} first: fieldray adapt {step} RECIPE.",
    "teacher_unfit": "{path} does not have the weights of an EfficientNet-Lite0 under PyTorch's names.",
    "weights_unfit": "No layer of the weights in {path} fits the network of the recipe.",
    "data_class_empty": "The label {label} has no {kind} images in the {part} part.",
    "evaluate_refused": "Of {count} images that the pack is measured on {scored} have a score when they are screened. The most "
                        "frequent reason of the others: {why} Figures need scored images with and without the finding.",
    "pack_shortcut_close": "Shortcut check of {label} failed: the image border or a thumbnail alone reaches an "
                           "area under the ROC curve of {area}, the network {own}. The figures say little about "
                           "the lungs.",
    "pack_shortcut": "{label}: the image's border or a thumbnail alone scores {area}, the network {own}. The images give their classes "
                     "away by more than the lungs, so the figures are optimistic.",
    "pack_few_images": Plural("{label}: only {count} test image of the rarer kind. Note how wide the intervals are.",
                              "{label}: only {count} test images of the rarer kind. Note how wide the intervals are.",
                              by="count"),
    "pack_gate_refuses": "{percent} of 100 chest X-rays look unlike those it was trained on: they are refused, or noted where "
                         "the lungs are found.",
    "training_not_divided": "A recipe of the kind {kind} can only be trained by one process. Leave --mode and --workers out.",
}
# fmt: on

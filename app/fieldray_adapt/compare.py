"""`adapt compare`: the pack against the unpruned network, trained on the same images, and in int8, too.

The unpruned network has a run of its own inside the recipe's run folder, so that it resumes after it
was stopped. The code that screens runs both files on the same images; they are timed alternating in one run. A
full-width ResNet50 with drawn weights can be written as well, for timing only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain import intervals
from fieldray.domain.model import OutputRoles
from fieldray.errors import UsageProblem
from fieldray.packs.naming import MANIFEST_NAME
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray.reasons import reason
from fieldray_adapt.dataset import DATA, dataset_of, refuse_seen
from fieldray_adapt.edgetpu import place
from fieldray_adapt.evaluate import auc_difference, known
from fieldray_adapt.files import content_digest, digest, publish, require_publishable
from fieldray_adapt.networks import resnet50
from fieldray_adapt.prune.timing import time_files
from fieldray_adapt.quantise import answer, quantise, to_float_file
from fieldray_adapt.recipe import Comparison, what_is_trained
from fieldray_adapt.report import write_comparison
from fieldray_adapt.run import Run, Step
from fieldray_adapt.specification import initial_weights
from fieldray_adapt.steps import QUANTISE, TRAIN, converted, load_network, starting_digest

_PARTS: Final = ("validation", "test")
_RATIOS: Final = ("multiply_adds", "file_bytes", "edgetpu_estimate_ms", "milliseconds")
Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Evaluated:
    """A TensorFlow Lite file, what its outputs are, the codes of its labels in their order, and the split behind it."""

    file: bytes
    outputs: OutputRoles
    labels: tuple[str, ...]
    split_sha256: str


def compare_step(run: Run) -> Mapping[str, Any]:
    """Train and quantise the unpruned network, then measure both; comparison.json and comparison.html.

    Raises UsageProblem (recipe_key where nothing is to be compared, data_changed where the pack is not of this split:
    it may have been trained on the images it would be measured on), PackProblem, StorageProblem.
    """
    choice = run.recipe.comparison
    if choice is None:
        raise UsageProblem(reason("recipe_key", key="comparison", detail="is missing"))
    folder = run.recipe.published
    require_publishable(folder / "comparison.json", folder / "comparison.html")
    pack, whole = _pack(run), _whole_run(run, choice)
    whole.execute((DATA,), say=lambda _: None)
    if pack.split_sha256 != whole.read("data", "facts.json")["split_sha256"]:
        raise UsageProblem(reason("data_changed", path=_pack_folder(run)))
    whole.execute((DATA, TRAIN, QUANTISE), say=lambda _: None)
    networks = {"whole": _evaluated(whole, "int8"), "pack": pack}
    results = {
        "pack": f"{run.recipe.pack.id} {run.recipe.pack.version}",
        "trained": what_is_trained(whole.recipe),
        "trained_labels": [label.code for label in run.recipe.labels],
        "history": whole.read("train", "history.json"),
        **_speed(networks),
        "labels": _quality(whole, {**networks, "whole_float": _evaluated(whole, "float")}),
    }
    publish(folder / "comparison.json", (json.dumps(results, indent=1) + "\n").encode())
    write_comparison(folder / "comparison.html", results)
    return {f"times_{name}": round(ratio, 2) for name, ratio in results["times_less"].items()} | {
        f"{code}_{part}_auc_difference": round(found[part]["difference"]["value"], 4)
        for code, found in results["labels"].items()
        for part in _PARTS
    }


def _pack(run: Run) -> Evaluated:
    """The recipe's pack, as it was made. Raises UsageProblem where it is of another input or other labels."""
    folder = _pack_folder(run)
    model = read_files(folder, read_verified_manifest(folder)).model("signed")
    codes = tuple(label.code for label in model.manifest.labels)
    if model.manifest.input != run.recipe.input or codes != tuple(label.code for label in run.recipe.kept_labels):
        raise UsageProblem(
            reason("recipe_key", key="pack", detail=f"is not the one in {folder}: input or labels differ")
        )
    split = model.manifest.provenance.get("split_sha256", "")
    return Evaluated(file=model.files["litert"], outputs=model.manifest.outputs, labels=codes, split_sha256=split)


def _pack_folder(run: Run) -> Path:
    folder: Path = run.recipe.packs_folder / f"{run.recipe.pack.id}-{run.recipe.pack.version}"
    return folder


def _outside(run: Run) -> str:
    """Digest of the pack as it is, and of the weights that the unpruned network starts from."""
    choice = run.recipe.comparison
    return digest(content_digest(_pack_folder(run) / MANIFEST_NAME), starting_digest(choice.network) if choice else "")


def _whole_run(run: Run, choice: Comparison) -> Run:
    """The run of the unpruned network, within the recipe's."""
    recipe = replace(
        run.recipe, run=run.folder("compare"), network=choice.network, training=choice.training, prune=None
    )
    return Run(recipe=recipe, progress=run.progress)


def _evaluated(whole: Run, name: str) -> Evaluated:
    file, (specification, _) = converted(whole, name), load_network(whole)
    codes = tuple(label.code for label in whole.recipe.kept_labels)
    split = whole.read("data", "facts.json")["split_sha256"]
    return Evaluated(file=file.data, outputs=file.roles(specification), labels=codes, split_sha256=split)


def _speed(networks: Mapping[str, Evaluated]) -> dict[str, Any]:
    """What each file takes, and how many times less the pack takes than the unpruned network."""
    milliseconds = time_files({name: network.file for name, network in networks.items()})
    facts = {name: _facts(network.file) | {"milliseconds": milliseconds[name]} for name, network in networks.items()}
    ratios = {name: facts["whole"][name] / facts["pack"][name] for name in _RATIOS}
    return {"networks": facts, "times_less": ratios}


def _facts(file: bytes) -> dict[str, Any]:
    placement = place(file)
    return {
        "file_bytes": len(file),
        "weight_bytes": placement.weight_bytes,
        "multiply_adds": sum(operator.multiply_adds for operator in placement.operators),
        "operators": len(placement.operators),
        "mapped": placement.mapped,
        "subgraphs": placement.subgraphs,
        "streamed_bytes": placement.streamed_bytes,
        "edgetpu_estimate_ms": placement.estimate_ms,
    }


def _quality(whole: Run, networks: Mapping[str, Evaluated]) -> dict[str, Any]:
    """For each label and part: AUC of every file, and the pack's less the unpruned network's, on the same images."""
    data, found = dataset_of(whole), dict[str, Any]()
    refuse_seen(whole, data, step="train")
    for part in _PARTS:
        samples = data.samples(part)
        scores = {
            name: _scores(whole, network, samples.images, f"{part}, {name}") for name, network in networks.items()
        }
        for column, label in enumerate(whole.recipe.kept_labels):
            targets = samples.targets[:, whole.recipe.labels.index(label)]
            both = np.column_stack([own[:, column] for own in scores.values()])
            images = known(both, targets, data.rows(part))
            found.setdefault(label.code, {})[part] = areas(
                images.scores, images.truth, names=tuple(scores), patients=images.patients
            )
    return found


def areas(scores: Scores, truth: NDArray[np.bool_], *, names: tuple[str, ...], patients: list[str]) -> dict[str, Any]:
    """AUC of each column of scores (images, names), and of "pack" less that of "whole", with intervals by patient."""
    both = scores[:, [names.index("whole"), names.index("pack")]]
    found = {
        name: asdict(intervals.area(scores[:, column], truth, patients=patients)) for column, name in enumerate(names)
    }
    return {
        "images": len(truth),
        "positive": int(truth.sum()),
        "auc": found,
        "difference": auc_difference(both, truth, patients=patients),
    }


def _scores(whole: Run, network: Evaluated, images: NDArray[np.uint8], what: str) -> Scores:
    return answer(
        network.file,
        images,
        spec=whole.recipe.input,
        outputs=network.outputs,
        labels=len(network.labels),
        progress=lambda done, total: whole.progress(what, done, total),
    ).scores


COMPARE: Final = Step(
    name="compare",
    perform=compare_step,
    reads=(
        *("input", "labels", "data", "split", "augmentation", "calibration_images"),
        *("pack", "packs_folder", "results", "comparison"),
    ),
    outside=_outside,
)


_RANGE_IMAGES: Final = 2


def write_full_width(folder: Path, *, size: tuple[int, int, int], has_int8: bool) -> tuple[Path, ...]:
    """Write resnet50-float.tflite (float32, image in 0..1), with `has_int8` also resnet50-int8.tflite (uint8).

    Parameters
    ----------
    size
        (height, width, channels) of the image.

    Raises
    ------
    UsageProblem
    StorageProblem
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    require_publishable(folder / "resnet50-float.tflite", folder / "resnet50-int8.tflite")
    height, width, channels = size
    network = resnet50(height=height, width=width, labels=1, input_channels=channels)
    weights = initial_weights(network, seed=1)
    files = {"resnet50-float.tflite": to_float_file(network, weights)}
    if has_int8:
        images = np.random.default_rng(1).integers(0, 256, (_RANGE_IMAGES, *size), np.uint8)
        files["resnet50-int8.tflite"] = quantise(network, weights, representative=images)
    for name, file in files.items():
        publish(folder / name, file.data)
    return tuple(folder / name for name in files)

"""The pack step: manifest, model card, golden vectors and signature, written as a pack on a drive or in a folder.

The model card says what the pack is, what it was made from, and what was measured.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.cross import CROSS_RESULTS
from fieldray.adaptation.edgetpu import edgetpu_file
from fieldray.adaptation.files import digest
from fieldray.adaptation.image_set import content_digest
from fieldray.adaptation.quantise import answer
from fieldray.adaptation.recipe import PackTexts, Recipe, what_is_made, what_is_trained
from fieldray.adaptation.run import Run, Step
from fieldray.adaptation.specification import Specification, multiply_adds, parameters
from fieldray.adaptation.steps import converted, load_network
from fieldray.domain.image import Image
from fieldray.domain.intervals import told
from fieldray.domain.model import (
    Calibration,
    Estimate,
    GoldenVectors,
    HeaderRules,
    InputSpec,
    Label,
    Manifest,
    OodGate,
    OperatingPoint,
    OutputRoles,
    Requirement,
)
from fieldray.errors import UsageProblem
from fieldray.imaging.preprocess import to_tensor
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.signing import own_key
from fieldray.packs.verified import read_verified_manifest
from fieldray.packs.write import write_pack
from fieldray.reasons import reason

Facts = Mapping[str, Any]

_CLOSE: Final = 0.05
_TELLING: Final = 0.65
_POINTS_HEAD: Final = (
    "| operating point | threshold | not sure | sensitivity | specificity | accuracy | images in the band |",
    "|---|---|---|---|---|---|---|",
)


def model_card(
    recipe: Recipe,
    *,
    specification: Specification,
    size_bytes: int,
    data: Facts,
    results: Facts,
    tools: Facts,
    cross: Facts | None = None,
) -> str:
    """The card's Markdown. `data` are `dataset.Dataset.facts`, `results` the evaluation's figures, `cross` those of a
    cross-validation, where there was one.
    """
    sections = [
        "## The network\n\n" + _network(recipe, specification, size_bytes),
        "## Data\n\n" + _data(recipe, data),
        *[_label(label.code, label.meaning["en"], results["labels"][label.code]) for label in recipe.kept_labels],
        *[cross_text(label.code, label.meaning["en"], cross[label.code]) for label in recipe.kept_labels if cross],
        "## Images that are no chest X-rays\n\n" + _gate(results.get("gate")),
    ]
    return card(recipe.pack, sections, tools=tools)


def card(texts: PackTexts, sections: Sequence[str], *, tools: Facts) -> str:
    """The Markdown of any pack's card: what the recipe says of the pack, the sections of its kind, and its making."""
    parts = [
        f"# {texts.names['en']} ({texts.id} {texts.version})",
        "*Research use only. Not for diagnostic use.*",
        texts.descriptions["en"],
        "## Intended use\n\n" + texts.intended_use["en"],
        "## Limits\n\n" + texts.limits["en"],
        *sections,
        "## Made with\n\n" + "\n".join(f"- {name}: {value}" for name, value in tools.items()),
        "## Credits and licences\n\n" + (texts.credits_text or "The recipe names none."),
    ]
    return "\n\n".join(parts) + "\n"


def cross_text(code: str, meaning: str, found: Facts) -> str:
    """What the card says of one label's cross-validation."""
    return (
        f"## {meaning} (`{code}`): cross-validation\n\n"
        f"{found['images']} images of {found['patients']} patients, {found['positive']} with and {found['negative']} "
        f"without, each evaluated by a network of the same recipe that saw no image of its fold. {_stages(found)} The "
        f"border's pixels alone score {found['shortcuts']['border']:.3f}, a 16 x 16 thumbnail "
        f"{found['shortcuts']['thumbnail']:.3f}. That says more than the few test images above."
    )


def _stages(found: Facts) -> str:
    """What each stage that was evaluated scored: the network as trained, pruned, and the int8 file."""
    stages = found["stages"]
    last = stages["int8" if "int8" in stages else "trained"]
    folds = ", ".join(f"{value:.3f}" for value in last["auc_by_fold"].values())
    trained = told(stages["trained"]["auc"])
    if "int8" not in stages:
        return f"As it was trained, before pruning and int8: AUC {trained}; by fold {folds}."
    pruned = f", pruned {told(stages['pruned']['auc'])}" if "pruned" in stages else ""
    both, change = found["float_against_int8"], found["after_training"]
    return (
        f"As the int8 file that a pack holds: AUC {told(last['auc'])}; by fold {folds}. As it was trained "
        f"{trained}{pruned}: what comes after training changes it by {change['value']:+.3f} ({change['low']:+.3f} to "
        f"{change['high']:+.3f}). int8 against float, mean score difference {both['mean_absolute_difference']:.4f}."
    )


def _network(recipe: Recipe, specification: Specification, size_bytes: int) -> str:
    spec = recipe.input
    return (
        f"{specification.name} with a class-map head: {parameters(specification):,} weights, "
        f"{multiply_adds(specification) / 1e9:.2f} billion multiply-adds per image, full int8 "
        f"({size_bytes / 2**20:.2f} MiB as a file). The heat map is the head's own evidence: its mean is the logit.\n\n"
        f"Input: {spec.width} x {spec.height} pixels, grey, {_region(spec)}, fit by {spec.fit}, "
        f"grey levels {spec.intensity.replace('_', ' ')}."
    )


def _region(spec: InputSpec) -> str:
    if spec.crop == "lungs":
        return f"cropped to the lungs with {spec.crop_margin:.0%} of their extent around them"
    return f"{spec.margin:.0%} of each side cut off"


def _data(recipe: Recipe, data: Facts) -> str:
    lines = [
        "Split by patient; no patient is on two sides.",
        "",
        "| part | images | patients |" + "".join(f" {label.code} yes / no |" for label in recipe.kept_labels),
        "|---|---|---|" + "---|" * len(recipe.kept_labels),
    ]
    for part in ("training", "validation", "test"):
        numbers = [data["labels"][label.code][part] for label in recipe.kept_labels]
        shares = "".join(f" {number['positive']} / {number['negative']} |" for number in numbers)
        lines.append(f"| {part} | {data['images'][part]} | {data['patients'][part]} |{shares}")
    twice = data["duplicates"]
    lines += [
        "",
        f"Left out because they could not be read or used: {data['left_out']}. Exact copies found: {twice['exact']} "
        f"pairs, nearly identical: {twice['near']} pairs, of these across the parts: {twice['across_parts']}; training "
        f"images that also occur in validation or test were left out: {twice['training_copies_left_out']}.",
    ]
    return "\n".join(lines)


def _label(code: str, meaning: str, results: Facts) -> str:
    test, shortcuts, both = results["test"], results["shortcuts"], results["float_against_int8"]
    lines = [
        f"## {meaning} (`{code}`): measured on the test images",
        "",
        f"{test['images']} images of {test['patients']} patients, {test['positive']} with and {test['negative']} "
        "without. Intervals are 95 %, and count patients, not images. Thresholds and calibration come from the "
        "validation images.",
        "",
        f"- AUC {told(test['auc'])} (validation {told(results['validation']['auc'])})",
        f"- For comparison, on the same images: the border's pixels alone {shortcuts['border']:.3f}, "
        f"a 16 x 16 thumbnail {shortcuts['thumbnail']:.3f}. {_verdict(test['auc']['value'], shortcuts)}",
        f"- Calibration error {test['calibration_error']:.3f}",
        f"- int8 against float: mean score difference {both['mean_absolute_difference']:.4f}, "
        f"AUC {both['auc_int8']:.4f} against {both['auc_float']:.4f}",
        *_evidence_text(results.get("evidence_inside")),
        "",
        *_POINTS_HEAD,
        *[_point_text(name, point) for name, point in test["points"].items()],
        "",
        "With *not sure* counted as caught, the sensitivity is "
        + ", ".join(f"{told(point['sensitivity_with_band'])} ({name})" for name, point in test["points"].items())
        + ".",
        "",
        "| sensitivity at least | specificity there |",
        "|---|---|",
        *[f"| {wanted} | {told(found)} |" for wanted, found in test["specificity_at_sensitivity"].items()],
    ]
    return "\n".join([*lines, *_groups(results["by_group"]), *_elsewhere(results.get("external_test"))])


def _elsewhere(found: Facts | None) -> Sequence[str]:
    """What the same thresholds give at another hospital."""
    if found is None:
        return []
    return [
        "",
        f"At another hospital, on which nothing was trained or chosen: {found['images']} images of {found['patients']} "
        f"patients, {found['positive']} with and {found['negative']} without. AUC {told(found['auc'])}; the border's "
        f"pixels alone, fitted as above, {found['shortcuts']['border']:.3f}, a 16 x 16 thumbnail "
        f"{found['shortcuts']['thumbnail']:.3f}.",
        "",
        *_POINTS_HEAD,
        *[_point_text(name, point) for name, point in found["points"].items()],
        "",
        "| sensitivity at least | specificity there |",
        "|---|---|",
        *[f"| {wanted} | {told(share)} |" for wanted, share in found["specificity_at_sensitivity"].items()],
    ]


def _evidence_text(found: Facts | None) -> Sequence[str]:
    """How much of the heat map lies in the lungs."""
    if found is None or found["mean"] is None:
        return []
    return [
        "- Of the heat map's evidence (what lies above the operating point and above even odds), "
        f"{found['mean']:.1%} lies inside the lungs as the lung-field pack finds them "
        f"(mean of {found['images']} images with evidence; {found['chance']:.1%} of what the network sees is lung); "
        f"of one image in twenty less than {found['limit']:.1%}"
    ]


def _verdict(area: float, shortcuts: Facts) -> str:
    """In words, how far what cannot be the finding explains the result."""
    best = max(shortcuts.values())
    if best > area - _CLOSE:
        return "**These come close to the network: a figure on this data set says little about lungs.**"
    if best > _TELLING:
        return (
            "**The network is above both, but these are far above 0.5: the data set gives its classes away by more "
            "than the lungs, and any figure on it is optimistic.**"
        )
    return "The network is well above both."


def _point_text(name: str, point: Facts) -> str:
    return (
        f"| {name} | {point['threshold']:.3f} | {point['unsure_low']:.3f} to {point['unsure_high']:.3f} | "
        f"{told(point['sensitivity'])} | {told(point['specificity'])} | {told(point['accuracy'])} | "
        f"{told(point['unsure_share'])} |"
    )


def _groups(groups: Mapping[str, Mapping[str, Facts]]) -> Sequence[str]:
    rows = [
        f"| {name} | {value} | {facts['positive']} / {facts['images'] - facts['positive']} | {told(facts['auc'])} |"
        for name, values in groups.items()
        for value, facts in values.items()
    ]
    return ["", "| group | | with / without | AUC |", "|---|---|---|---|", *rows] if rows else []


def _gate(gate: Facts | None) -> str:
    if gate is None:
        return "This pack has no gate."
    text = (
        "The gate refuses what lies too far from the training images, evaluated by the network's pooled features. "
        f"Refused of the test images: {told(gate['images_refused'])}."
        + (f" Of the other hospital's: {told(gate['elsewhere_refused'])}." if "elsewhere_refused" in gate else "")
    )
    if "ood_refused" not in gate:
        return text
    side = f", where images are shrunk to {gate['side']} pixels first" if gate["side"] else ""
    return (
        f"{text} Of images that are no chest X-rays: {told(gate['ood_refused'])}. Of the test images at equal "
        f"resolution{side}: {told(gate['images_refused_at_equal_resolution'])}."
    )


_MEASURED: Final = ("test", "external_test")
_GOLDEN_IMAGES: Final = 6
_GOLDEN_CANDIDATES: Final = 36
_GOLDEN_SIDE: Final = 512
# The kernels of two processors differ by up to 3 steps of the 8-bit scale; a score may move by more where it is steep.
GOLDEN_TOLERANCE: Final = 0.06
_TOOLS: Final = ("numpy", "tensorflow-cpu", "tensorflow", "keras", "torch", "ai-edge-litert", "pillow", "fieldray")


def pack_step(run: Run) -> Mapping[str, Any]:
    """Write the pack; the signing key is made where the recipe says, if it is not there.

    Raises UsageProblem `step_missing`, PackProblem `pack_older`, StorageProblem.
    """
    recipe = run.recipe
    try:
        results, chosen = run.read("evaluate", "metrics.json"), run.read("evaluate", "points.json")
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step="evaluate")) from problem
    file, (specification, _) = converted(run, "int8"), load_network(run)
    manifest = _manifest(run, file.roles(specification), results, chosen)
    card = model_card(
        recipe,
        specification=specification,
        size_bytes=len(file.data),
        data=results["data"],
        results=results,
        tools=manifest.provenance,
        cross=cross_validation_of(run),
    )
    place = write_pack(
        recipe.packs_folder,
        manifest=manifest,
        files={"litert": file.data, **edgetpu_file(run)},
        card=card,
        golden=_golden(run, manifest),
        key=own_key(recipe.signing_key),
    )
    return {"pack": str(place), "bytes": sum(path.stat().st_size for path in place.iterdir())}


def cross_validation_of(run: Run) -> Mapping[str, Any] | None:
    """The figures of the published cross-validation; None if there is none, or one of another recipe or other data."""
    try:
        facts = run.read("data", "facts.json")
        found = json.loads((run.recipe.published / CROSS_RESULTS).read_text(encoding="utf-8"))
    except OSError:
        return None
    figures: Mapping[str, Any] = found["labels"]
    wanted = json.loads(json.dumps({"trained": what_is_trained(run.recipe), "made": what_is_made(run.recipe)}))
    is_of_this = found["trained"] == wanted["trained"] and found.get("made", wanted["made"]) == wanted["made"]
    return figures if is_of_this and found.get("data_sha256") == facts["data_sha256"] else None


def _manifest(run: Run, outputs: OutputRoles, results: Mapping[str, Any], chosen: Mapping[str, Any]) -> Manifest:
    recipe, texts = run.recipe, run.recipe.pack
    return Manifest(
        pack_id=texts.id,
        version=texts.version,
        names=texts.names,
        descriptions=texts.descriptions,
        intended_use=texts.intended_use,
        limits=texts.limits,
        input=recipe.input,
        labels=tuple(
            Label(code=label.code, scheme=label.scheme, meaning=label.meaning) for label in recipe.kept_labels
        ),
        outputs=outputs,
        operating_points=tuple(_point(entry) for entry in chosen["points"]),
        calibration={code: Calibration(**values) for code, values in chosen["calibration"].items()},
        ood_gate=_ood_gate(run),
        accepted=HeaderRules(views=texts.accepted_views, ages_years=texts.accepted_ages_years),
        requires=_requires(run),
        provenance=provenance(run, data=[source.name for source in recipe.data]),
        metrics={
            "labels": _figures(results["labels"]),
            "ood_gate": results["gate"],
            **_evidence(run, results["labels"]),
        },
    )


def _requires(run: Run) -> tuple[Requirement, ...]:
    """The lung-field pack of the version it was trained with, or a later one, where its input is cropped."""
    if run.recipe.lungs is None or run.recipe.input.crop != "lungs":
        return ()
    found = read_verified_manifest(run.recipe.lungs).description
    return (Requirement(kind="lung-fields", minimum_version=found.version),)


def _point(entry: Mapping[str, Any]) -> OperatingPoint:
    estimates = {name: Estimate(**entry[name]) for name in ("sensitivity", "specificity")}
    return OperatingPoint(**{**entry, **estimates})


def _figures(labels: Mapping[str, Any]) -> dict[str, Any]:
    """What a clinician may ask for; the rest is in the card."""
    names = ("images", "patients", "positive", "negative", "auc", "specificity_at_sensitivity", "calibration_error")
    return {
        code: {
            **{part: {name: found[part][name] for name in names} for part in _MEASURED if part in found},
            **_reference(found["test"]),
            **_heat_map(found),
            "shortcuts": found["shortcuts"],
            "float_against_int8": found["float_against_int8"],
        }
        for code, found in labels.items()
    }


def _reference(test: Mapping[str, Any]) -> dict[str, Any]:
    """The scores' distribution, which a site compares its own with; a run evaluated by an older version has none."""
    return {"reference": {"scores": test["score_counts"]}} if "score_counts" in test else {}


def _heat_map(found: Mapping[str, Any]) -> dict[str, Any]:
    """The scale on which the label's map is shown; a run without evidence has none."""
    return {"heat_map": found["heat_map"]} if "heat_map" in found else {}


def _evidence(run: Run, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Share of the first label's evidence inside the lungs; screening points out what lies below its limit."""
    found = labels[run.recipe.kept_labels[0].code].get("evidence_inside")
    return {"evidence_inside": found} if found else {}


def _ood_gate(run: Run) -> OodGate:
    with np.load(run.folder("evaluate") / "gate.npz", allow_pickle=False) as arrays:
        return OodGate(mean=arrays["mean"], projection=arrays["projection"], limit=float(arrays["limit"]))


def provenance(run: Run, *, data: Sequence[str]) -> dict[str, str]:
    """What a pack was made of and with; `data` are the names of its sources."""
    recipe, facts = (run.recipe.run / "recipe.json").read_bytes(), run.read("data", "facts.json")
    return {
        "data": ", ".join(data),
        "split": f"by patient, {run.recipe.split.by}",
        "seed": str(run.recipe.training.seed),
        "recipe_sha256": hashlib.sha256(recipe).hexdigest(),
        **{name: facts[name] for name in ("data_sha256", "split_sha256")},
        "python": platform.python_version(),
        **{name: found for name in _TOOLS if (found := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _golden(run: Run, manifest: Manifest) -> GoldenVectors:
    """Synthetic images, no patient's, whose scores lie far apart, and what the file gives for them here."""
    inputs = np.stack([phantom(seed, manifest.input) for seed in range(_GOLDEN_CANDIDATES)])
    file = converted(run, "int8")
    scores = answer(
        file.data, inputs, spec=manifest.input, outputs=manifest.outputs, labels=len(manifest.labels)
    ).scores
    spread = np.argsort(scores[:, 0])[np.linspace(0, len(scores) - 1, _GOLDEN_IMAGES).round().astype(int)]
    return GoldenVectors(inputs=inputs[spread], scores=scores[spread].astype(np.float32), tolerance=GOLDEN_TOLERANCE)


def phantom(seed: int, spec: InputSpec) -> NDArray[np.uint8]:
    """A synthetic chest as a network sees it: (height, width, channels)."""
    pixels = chest_phantom(_GOLDEN_SIDE, _GOLDEN_SIDE, seed, abnormal=seed % 2 == 0)
    values: NDArray[np.uint8] = to_tensor(Image(pixels=pixels), spec).values[0]
    return values


PACK: Final = Step(
    name="pack",
    perform=pack_step,
    reads=("pack", "packs_folder", "results", "signing_key"),
    outside=lambda run: digest(content_digest(run.recipe.published / CROSS_RESULTS), run.recipe.pack.credits_text),
)

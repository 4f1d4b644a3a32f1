"""The model card: what a pack is, what it was made from, what was measured, and what speaks against the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fieldray.domain.intervals import told
from fieldray.domain.model import InputSpec
from fieldray.reasons import Reason, reason
from fieldray_adapt.recipe import PackTexts, Recipe
from fieldray_adapt.specification import Specification, multiply_adds, parameters

Facts = Mapping[str, Any]

_CLOSE: Final = 0.05
_TELLING: Final = 0.65
_FEW: Final = 100  # test images of the rarer kind: Wilson's interval of nine in ten is wider than +/- 6 points
_MANY_REFUSED: Final = 0.05
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
    meanings = {label.code: label.meaning["en"] for label in recipe.kept_labels}
    warnings = warnings_of(results["labels"], results.get("gate") or {}, meanings=meanings)
    return card(recipe.pack, sections, tools=tools, warnings=warnings)


def card(texts: PackTexts, sections: Sequence[str], *, tools: Facts, warnings: Sequence[Reason] = ()) -> str:
    """The Markdown of any pack's card: what the recipe says of the pack, the sections of its kind, and its making."""
    parts = [
        f"# {texts.names['en']} ({texts.id} {texts.version})",
        "*Research use only. Not for diagnostic use.*",
        texts.descriptions["en"],
        "## Intended use\n\n" + texts.intended_use["en"],
        "## Limits\n\n" + texts.limits["en"],
        *(["## Warnings\n\n" + "\n".join(f"- {warning.text}" for warning in warnings)] if warnings else []),
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
        *classes_text(test["points"]),
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
        *classes_text(found["points"]),
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


def classes_text(points: Mapping[str, Facts]) -> Sequence[str]:
    """What a person sees of the images with and without the finding: abnormal begins where the zone ends."""
    known = [(name, point["classes"]) for name, point in points.items() if "classes" in point]
    if not known:
        return []
    classes = list(known[0][1]["positive"])
    words = {"unsure": "not sure", "read_first": "read first"}
    return [
        "What a person sees, by the edges of *not sure*; what is refused stands in a column of its own:",
        "",
        "| operating point | images | " + " | ".join(words.get(name, name) for name in classes) + " |",
        "|---|---|" + "---|" * len(classes),
        *[
            f"| {name} | {kind} the finding | " + " | ".join(told(found[truth][one]) for one in classes) + " |"
            for name, found in known
            for truth, kind in (("positive", "with"), ("negative", "without"))
        ],
        "",
    ]


def warnings_of(labels: Mapping[str, Facts], gate: Facts, *, meanings: Mapping[str, str]) -> list[Reason]:
    """What speaks against the figures of a pack: a shortcut does nearly as well, few patients, a strict gate.

    meanings  of the labels, in the language of whoever reads it
    """
    found = []
    for code, figures in labels.items():
        test, best = figures["test"], max(figures["shortcuts"].values())
        area = test["auc"]["value"]
        if best > _TELLING or best > area - _CLOSE:
            which = "pack_shortcut_close" if best > area - _CLOSE else "pack_shortcut"
            found.append(reason(which, label=meanings[code], area=f"{best:.2f}", own=f"{area:.2f}"))
        if (fewer := min(test["positive"], test["negative"])) < _FEW:
            found.append(reason("pack_few_images", label=meanings[code], count=fewer))
    refused = max((gate[name]["value"] for name in ("images_refused", "elsewhere_refused") if name in gate), default=0)
    if refused > _MANY_REFUSED:
        found.append(reason("pack_gate_refuses", percent=f"{100 * refused:.0f}"))
    return found


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

"""The model card: what a pack is, what it was made from, what was measured, and what speaks against the figures.

A card is a template in `templates`, filled with the facts of its kind of pack; what stands on every card is `card.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fieldray.reasons import Reason, reason
from fieldray_adapt.evaluation.figures import (
    ClassifierFigures,
    CrossFigures,
    GroupFigures,
    Groups,
    LabelFigures,
    as_text,
)
from fieldray_adapt.networks.edgetpu import card_section
from fieldray_adapt.networks.specification import Specification, multiply_adds, parameters
from fieldray_adapt.prune.tasks import PrunedNetwork
from fieldray_adapt.recipes.classifier import NO_WEIGHTS, PackTexts, Recipe
from fieldray_adapt.training.steps import whole_network

_CLOSE: Final = 0.05
_SHORTCUT_AUC: Final = 0.65
_FEW: Final = 100  # test images of the rarer kind: Wilson's interval of nine in ten is wider than +/- 6 points
_MANY_REFUSED: Final = 0.05


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("fieldray_adapt"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"as_text": as_text, "form": format}
    return environment.get_template(name)


def filled(name: str, **facts: Any) -> str:
    """The Markdown of a template, filled. Raises jinja2.UndefinedError where a fact is missing."""
    return _template(name).render(facts)


def label_section(code: str, meaning: str, results: LabelFigures) -> str:
    """What a card says of a label on the test images, and at another hospital."""
    macros: Any = _template("classifier_label.md").make_module({"verdict": _verdict, "rows_of": _group_rows})
    return str(macros.measured(code, meaning, results))


def card(
    name: str,
    texts: PackTexts,
    *,
    specification: Specification,
    files: Mapping[str, bytes],
    tools: Mapping[str, str],
    warnings: Sequence[Reason] = (),
    **facts: Any,
) -> str:
    """The Markdown of a pack's card by the template of its kind, and its making. `files` are the networks by role."""
    sizes = {"parameters": parameters(specification), "multiply_adds": multiply_adds(specification)}
    sizes["size_bytes"] = len(files["litert"])
    own = {"specification": specification, "edgetpu": card_section(files), "tools": tools, "warnings": warnings}
    return filled(name, texts=texts, **own, **sizes, **facts)


def model_card(
    recipe: Recipe,
    *,
    specification: Specification,
    files: Mapping[str, bytes],
    results: ClassifierFigures,
    tools: Mapping[str, str],
    cross: Mapping[str, CrossFigures] | None = None,
    pruned: Sequence[PrunedNetwork] = (),
) -> str:
    """The card's Markdown. `results` are the evaluation's figures, `cross` those of a cross-validation by label, where
    there was one, and `pruned` the iterations of the prune step.
    """
    meanings = {label.code: label.meaning["en"] for label in recipe.kept_labels}
    return card(
        "classifier_card.md",
        recipe.pack,
        specification=specification,
        files=files,
        tools=tools,
        warnings=warnings_of(results, meanings=meanings),
        recipe=recipe,
        data=results.data,
        results=results,
        cross=cross,
        pruned=pruned,
        start="" if recipe.network.weights == NO_WEIGHTS else Path(recipe.network.weights).name,
        whole=parameters(whole_network(recipe)),
        measured=label_section,
    )


def _group_rows(groups: Groups) -> list[tuple[str, str, GroupFigures]]:
    return [(name, value, own) for name, values in groups.items() for value, own in values.items()]


def _verdict(area: float, shortcuts: Mapping[str, float]) -> str:
    """In words, how far what cannot be the finding explains the result."""
    best = max(shortcuts.values())
    if best > area - _CLOSE:
        return "**These come close to the network: a figure on this data set says little about lungs.**"
    if best > _SHORTCUT_AUC:
        return (
            "**The network is above both, but these are far above 0.5: the data set gives its classes away by more "
            "than the lungs, and any figure on it is optimistic.**"
        )
    return "The network is well above both."


def warnings_of(results: ClassifierFigures, *, meanings: Mapping[str, str]) -> list[Reason]:
    """What speaks against the figures of a pack: a shortcut does nearly as well, few patients, a strict gate.

    meanings  of the labels, in the language of whoever reads it
    """
    found = []
    for code, figures in results.labels.items():
        test, best = figures.test, max(figures.shortcuts.values())
        area = test.auc.value
        if best > _SHORTCUT_AUC or best > area - _CLOSE:
            which = "pack_shortcut_close" if best > area - _CLOSE else "pack_shortcut"
            found.append(reason(which, label=meanings[code], area=f"{best:.2f}", own=f"{area:.2f}"))
        if (fewer := min(test.positive, test.negative)) < _FEW:
            found.append(reason("pack_few_images", label=meanings[code], count=fewer))
    refused = max(share.value for share in results.gate.refused)
    if refused > _MANY_REFUSED:
        found.append(reason("pack_gate_refuses", percent=f"{100 * refused:.0f}"))
    return found

"""The model card: what a pack is, what it was made from, what was measured, and what speaks against the figures.

A card is a template in `templates`, filled with the facts of its kind of pack; what stands on every card is `card.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from fieldray.domain.intervals import told
from fieldray.reasons import Reason, reason
from fieldray_adapt.recipe import PackTexts, Recipe
from fieldray_adapt.specification import Specification, multiply_adds, parameters

Facts = Mapping[str, Any]

_CLOSE: Final = 0.05
_TELLING: Final = 0.65
_FEW: Final = 100  # test images of the rarer kind: Wilson's interval of nine in ten is wider than +/- 6 points
_MANY_REFUSED: Final = 0.05


def filled(name: str, **facts: Any) -> str:
    """The Markdown of a template, filled. Raises jinja2.UndefinedError where a fact is missing."""
    environment = Environment(
        loader=PackageLoader("fieldray_adapt"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"told": told, "form": format}
    return environment.get_template(name).render(facts)


def card(
    name: str,
    texts: PackTexts,
    *,
    specification: Specification,
    size_bytes: int,
    tools: Facts,
    warnings: Sequence[Reason] = (),
    **facts: Any,
) -> str:
    """The Markdown of a pack's card by the template of its kind, and its making."""
    sizes = {"parameters": parameters(specification), "multiply_adds": multiply_adds(specification)}
    own = {"specification": specification, "size_bytes": size_bytes, "tools": tools, "warnings": warnings}
    return filled(name, texts=texts, **own, **sizes, **facts)


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
    meanings = {label.code: label.meaning["en"] for label in recipe.kept_labels}
    return card(
        "classifier_card.md",
        recipe.pack,
        specification=specification,
        size_bytes=size_bytes,
        tools=tools,
        warnings=warnings_of(results["labels"], results.get("gate") or {}, meanings=meanings),
        recipe=recipe,
        data=data,
        results=results,
        cross=cross,
        verdict=_verdict,
        rows_of=_group_rows,
    )


def _group_rows(groups: Mapping[str, Mapping[str, Facts]]) -> list[tuple[str, str, Facts]]:
    return [(name, value, facts) for name, values in groups.items() for value, facts in values.items()]


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

"""The model card of a pack: purpose, training data, measured figures, and warnings about the figures.

A model card is one Markdown file with a part for each language, English first. Each part is made from a template for
the kind of pack. The template `card.md` is common to all kinds of packs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fieldray.packs.cards import join_card_languages, split_card_by_language
from fieldray.reasons import Reason, reason
from fieldray.translation import ENGLISH, Translator
from fieldray_adapt.evaluation.figures import (
    ClassifierFigures,
    CrossValidationFigures,
    GroupedFigures,
    GroupFigures,
    LabelFigures,
    figure_text,
)
from fieldray_adapt.networks.edgetpu import describe_placement, read_placement
from fieldray_adapt.networks.specification import Specification, multiply_add_count, parameter_count
from fieldray_adapt.prune.tasks import PrunedNetwork
from fieldray_adapt.recipes.classifier import NO_STARTING_WEIGHTS, ClassifierRecipe, PackTexts
from fieldray_adapt.training.steps import full_width_specification

_CLOSE: Final = 0.05
_SHORTCUT_AUC: Final = 0.65
_MIN_TEST_IMAGES: Final = 100  # with fewer test images of a class, Wilson's interval of a share of 90 % exceeds +/- 6 %
_MANY_REFUSED: Final = 0.05
# Finds the section "Edge TPU". In a card without it, finds the position before the section "Data", or the end.
_EDGETPU: Final = re.compile(r"^## Edge TPU\n.*?(?=^## |\Z)|(?=^## Data$)|\Z", re.MULTILINE | re.DOTALL)

FindCardWarnings = Callable[[Translator], Sequence[Reason]]
"""A function that returns warnings about a pack's figures, with label names in the language of the translator."""


def template_languages() -> tuple[str, ...]:
    """Return the codes of the languages that have a model-card template, English first."""
    folders = (resources.files("fieldray_adapt") / "templates").iterdir()
    return (ENGLISH, *sorted({folder.name for folder in folders if (folder / "card.md").is_file()} - {ENGLISH}))


def _template(name: str, language: str) -> Template:
    environment = Environment(
        loader=PackageLoader("fieldray_adapt"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False, keep_trailing_newline=True,
    )  # fmt: skip
    translator = Translator(language)
    environment.filters |= {
        "as_text": lambda found, form=".3f": _interval(found, form, language),
        "form": lambda value, form: _number(format(value, form), language),
        "figure": lambda text: _figure(text, language),
        "pack_text": translator.pack_text,
    }
    return environment.get_template(f"{language}/{name}")


def render_template(name: str, *, language: str = ENGLISH, **facts: Any) -> str:
    """Fill the template file `name` of a language with `facts`. Returns Markdown.

    Raises jinja2.UndefinedError if `facts` lacks a value that the template uses.
    """
    return _template(name, language).render(facts)


def label_section(code: str, meaning: str, results: LabelFigures, *, language: str = ENGLISH) -> str:
    """Return the section of a model card with one label's figures, as Markdown.

    The figures are measured on the test images and, if available, on images of another hospital. `code` is the label's
    code, `meaning` the label's name in `language`.
    """
    facts = {"verdict": _verdict, "rows_of": _group_rows}
    macros: Any = _template("classifier_label.md", language).make_module(facts)
    return str(macros.measured(code, meaning, results))


def _number(written: str, language: str) -> str:
    """Return a number in English notation with the decimal mark and thousands separator of `language`."""
    return written if language == ENGLISH else written.translate(str.maketrans(",.", "\u202f,"))


def _figure(text: Any, language: str) -> str:
    """Format a table cell of a model card: numbers get the decimal mark of the language, other text is unchanged."""
    is_figure = re.fullmatch(r"[\d.,]+( \([\d.,]+ to [\d.,]+\))?", str(text)) is not None
    return _in_words(str(text), language) if is_figure else str(text)


def _in_words(interval: str, language: str) -> str:
    return (
        _number(interval.replace("(", "(від ").replace(" to ", " до "), language) if language != ENGLISH else interval
    )


def _interval(figure: Any, form: str, language: str) -> str:
    """Format a figure as text in `language`: counts, value and interval. `form` is a number format such as ".3f"."""
    if language == ENGLISH:
        return figure_text(figure, form)
    counts, _, value = figure_text(figure, form).rpartition(": ")
    counts = f"{counts.replace(' of ', ' із ')}: " if counts else ""
    return counts + _in_words(value, language)


def render_card(
    name: str,
    texts: PackTexts,
    *,
    specification: Specification,
    files: Mapping[str, bytes],
    tools: Mapping[str, str],
    warnings: FindCardWarnings = lambda _: (),
    **facts: Any,
) -> str:
    """Return the model card of a pack in all languages, as Markdown.

    Parameters
    ----------
    name
        The file name of the template.
    texts
        The recipe's texts about the pack, such as intended use and limits.
    specification
        The network, whose size is stated in the card.
    files
        The contents of the network files, by role.
    tools
        The provenance of the pack: digests, versions and licences, by name.
    warnings
        A function that returns the warnings about the pack's figures.
    facts
        Further values that the template uses.
    """
    sizes = {"parameters": parameter_count(specification), "multiply_adds": multiply_add_count(specification)}
    sizes["size_bytes"] = len(files["litert"])
    own = {"texts": texts, "specification": specification, "tools": tools, **sizes, **facts}
    made = {}
    for language in template_languages():
        translator = Translator(language)
        said = [translator.reason(warning) for warning in warnings(translator)]
        section = edgetpu_section(files, language=language)
        made[language] = render_template(name, language=language, edgetpu=section, warnings=said, **own)
    return join_card_languages(made)


def edgetpu_section(files: Mapping[str, bytes], *, language: str = ENGLISH) -> str:
    """Return the section of a model card about the Edge TPU, as Markdown. `files` are the network files by role."""
    placement = read_placement(files.get("edgetpu", files["litert"]))
    return render_template(
        "edgetpu.md", language=language, placement=placement, described=describe_placement(placement)
    )


def with_edgetpu_section(text: str, files: Mapping[str, bytes]) -> str:
    """Return the model card `text` with a renewed section about the Edge TPU in every language.

    `files` are the contents of the network files, by role.
    """
    made = split_card_by_language(text)
    for language in made.keys() & set(template_languages()):
        section = f"{edgetpu_section(files, language=language)}\n"
        made[language] = _EDGETPU.sub(section.replace("\\", r"\\"), f"{made[language].rstrip()}\n\n", count=1)
    return join_card_languages(made)


def model_card(
    recipe: ClassifierRecipe,
    *,
    specification: Specification,
    files: Mapping[str, bytes],
    results: ClassifierFigures,
    tools: Mapping[str, str],
    cross_validation: Mapping[str, CrossValidationFigures] | None = None,
    pruned: Sequence[PrunedNetwork] = (),
) -> str:
    """Return the model card of a classifier, as Markdown.

    Parameters
    ----------
    results
        The figures of the evaluation.
    tools
        The provenance of the pack: digests, versions and licences, by name.
    cross_validation
        The figures of a cross-validation, by label; None without a cross-validation.
    pruned
        The networks after each iteration of pruning; empty without pruning.
    """
    return render_card(
        "classifier_card.md",
        recipe.pack,
        specification=specification,
        files=files,
        tools=tools,
        warnings=lambda translator: find_warnings(
            results, meanings={label.code: translator.pack_text(label.meaning) for label in recipe.pack_labels}
        ),
        recipe=recipe,
        data=results.data,
        results=results,
        cross=cross_validation,
        pruned=pruned,
        start="" if recipe.network.weights == NO_STARTING_WEIGHTS else Path(recipe.network.weights).name,
        whole=parameter_count(full_width_specification(recipe)),
        measured=label_section,
    )


def _group_rows(groups: GroupedFigures) -> list[tuple[str, str, GroupFigures]]:
    return [(name, value, own) for name, values in groups.items() for value, own in values.items()]


def _verdict(area: float, shortcuts: Mapping[str, float]) -> str:
    """Return how the AUC of the best shortcut compares with the network's AUC `area`: "close", "high" or "low".

    "close" is near or above the network's AUC. "high" is lower, but high enough for a warning.
    """
    best = max(shortcuts.values())
    return "close" if best > area - _CLOSE else "high" if best > _SHORTCUT_AUC else "low"


def find_warnings(results: ClassifierFigures, *, meanings: Mapping[str, str]) -> list[Reason]:
    """Return warnings about a pack's figures.

    A warning is returned for a shortcut (a feature other than the finding) that separates the classes well, for few
    test images, and for an out-of-distribution check that refuses many images. `meanings` has the name of each label,
    by code, in the language of the warnings.
    """
    found = []
    for code, figures in results.labels.items():
        test, best = figures.test, max(figures.shortcuts.values())
        area = test.auc.value
        if best > _SHORTCUT_AUC or best > area - _CLOSE:
            which = "pack_shortcut_close" if best > area - _CLOSE else "pack_shortcut"
            found.append(reason(which, label=meanings[code], area=f"{best:.2f}", own=f"{area:.2f}"))
        if (fewer := min(test.positive, test.negative)) < _MIN_TEST_IMAGES:
            found.append(reason("pack_few_images", label=meanings[code], count=fewer))
    refused = max(share.value for share in results.gate.refused_shares)
    if refused > _MANY_REFUSED:
        found.append(reason("pack_gate_refuses", percent=f"{100 * refused:.0f}"))
    return found

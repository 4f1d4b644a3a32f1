"""What a matcher's recipe ends in: the model card, the report, and the signed pack.

The pack is made whatever the encoder came to; the card says how it compares with the band-pass, in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fieldray.packs.manifest_types import FeatureOutput, MatcherManifest
from fieldray_adapt.files import write_atomically
from fieldray_adapt.matcher.engine import specification_of
from fieldray_adapt.matcher.evaluate import GROUPS, half_of_band_pass, worse_groups
from fieldray_adapt.matcher.recipe import MatcherRecipe, recipe_of
from fieldray_adapt.pack import card, evaluated, filled, provenance, whole_pack_step, write_whole
from fieldray_adapt.page import Code, Report, Section, Table, facts, page
from fieldray_adapt.run import Run, Step
from fieldray_adapt.specification import Specification
from fieldray_adapt.steps import converted

Facts = Mapping[str, Any]
_HEAD: Final = ("pairs", "template")


def matcher_card(
    recipe: MatcherRecipe, *, specification: Specification, size_bytes: int, data: Facts, metrics: Facts, tools: Facts
) -> str:
    """The card's Markdown. `data` are the facts of the data step, `metrics` those of the evaluation."""
    return card(
        "matcher_card.md",
        recipe.pack,
        specification=specification,
        size_bytes=size_bytes,
        tools=tools,
        data=data,
        **_measured(recipe, metrics),
    )


def _measured(recipe: MatcherRecipe, metrics: Facts) -> dict[str, Any]:
    missed = [name for name, is_met in half_of_band_pass(metrics).items() if not is_met]
    rows, worse = list(table_rows(metrics)), worse_groups(metrics)
    return {"recipe": recipe, "metrics": metrics, "rows": rows, "missed": missed, "worse": worse}


def measured(recipe: MatcherRecipe, metrics: Facts) -> str:
    """The evaluation in Markdown: how it was done, the table, and whether the aim was reached."""
    return filled("matcher_measured.md", **_measured(recipe, metrics))


def table_rows(metrics: Facts) -> Iterator[list[str]]:
    """A row for each group and template size, a cell for each description."""
    tables = metrics["false_matches"]
    first = next(iter(tables.values()))
    for group in GROUPS:
        for size in first.get(group, ()):
            yield [group, f"{size} px", *(_told(found[group][size]) for found in tables.values())]


def _told(found: Facts) -> str:
    low, value, high = (100 * found[name] for name in ("low", "value", "high"))
    return f"{found['count']} of {found['of']}: {value:.1f} % ({low:.1f} to {high:.1f})"


def report_step(run: Run) -> Mapping[str, Any]:
    """report.html: false matches, the curve of rejection, collapse, and how the training went."""
    recipe, metrics, history = recipe_of(run), run.read("evaluate", "metrics.json"), run.read("train", "history.json")
    names = list(metrics["false_matches"])
    first = next(iter(metrics["rejection"].values()))
    curves = [
        [group, f"{cut:.0%}", *(f"{metrics['rejection'][name][group][place][1]:.2%}" for name in names)]
        for group, points in first.items()
        for place, (cut, _) in enumerate(points)
    ]
    collapsed = [
        [name, *(f"{value:.3f}" for value in found.values())]
        for name, found in metrics["collapse"].items()
        if name in names
    ]
    gaps = [
        [group, name, *(f"{value:.3f}" for value in metrics["gaps"][name][group].values())]
        for group in first
        for name in names
    ]
    sections = [
        Section(title="False matches", parts=[Table(rows=list(table_rows(metrics)), head=(*_HEAD, *names))]),
        Section(title="Rejecting the smallest P1 - P2", parts=[Table(rows=curves, head=("pairs", "rejected", *names))]),
        Section(title="Peaks, medians", parts=[Table(rows=gaps, head=("pairs", "", "P1", "P2", "P1 - P2", "P1 / P2"))]),
        Section(
            title="Collapse",
            parts=[Table(rows=collapsed, head=("", "P1 own", "P1 other patient", "own place in the other's"))],
        ),
        Section(title="int8 less float", parts=[facts(metrics["int8_less_float_px"])]),
        Section(title="Training", parts=[_training(history)]),
        Section(title="Recipe", parts=[Code(run.text or json.dumps({}))]),
    ]
    title = f"Matcher: {recipe.pack.id} {recipe.pack.version}"
    write_atomically(recipe.run / "report.html", page(Report(title=title, sections=sections)))
    return {"report": str(recipe.run / "report.html")}


def _training(history: list[dict[str, Any]]) -> Table:
    columns = ("epoch", "loss", "gap", "stray", "validation_gap", "validation_stray")
    return Table(rows=[[str(row[name]) for name in columns] for row in history], head=columns)


def pack_step(run: Run) -> Mapping[str, Any]:
    """Write the pack; the signing key is made where the recipe says, if it is not there.

    Raises UsageProblem `step_missing`, PackProblem `pack_older`, StorageProblem.
    """
    recipe, metrics = recipe_of(run), evaluated(run)
    file, made_with = converted(run, "int8"), provenance(run, data=[source.name for source in recipe.pairs])
    text = matcher_card(
        recipe,
        specification=specification_of(recipe.network, side=recipe.input.height),
        size_bytes=len(file.data),
        data=run.read("data", "facts.json"),
        metrics=metrics,
        tools=made_with,
    )
    return write_whole(
        recipe,
        MatcherManifest,
        {"litert": file.data, "card": text.encode()},
        outputs=FeatureOutput(features=file.outputs["features"]),
        local_radius=recipe.network.local_radius,
        provenance=made_with,
        metrics=metrics,
    )


MATCHER_REPORT: Final = Step(name="report", perform=report_step, reads=("evaluation",))
MATCHER_PACK: Final = whole_pack_step(pack_step)

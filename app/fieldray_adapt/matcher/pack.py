"""What a matcher's recipe ends in: the model card, the report, and the signed pack.

The pack is made whatever the encoder came to; the card says how it compares with the band-pass, in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from fieldray.errors import UsageProblem
from fieldray.packs.manifest_types import SCHEMA_VERSION, FeatureOutput, Input, MatcherManifest
from fieldray.packs.signing import own_key
from fieldray.packs.write import list_files, write_described
from fieldray.reasons import reason
from fieldray_adapt.card import card
from fieldray_adapt.files import digest, write_atomically
from fieldray_adapt.matcher.engine import specification_of
from fieldray_adapt.matcher.evaluate import GROUPS, half_of_band_pass, worse_groups
from fieldray_adapt.matcher.recipe import MatcherRecipe, recipe_of
from fieldray_adapt.pack import is_as_written, pack_facts, provenance
from fieldray_adapt.page import Code, Report, Section, Table, facts, page
from fieldray_adapt.run import Run, Step
from fieldray_adapt.specification import Specification, multiply_adds, parameters
from fieldray_adapt.steps import converted

Facts = Mapping[str, Any]
_HEAD: Final = ("pairs", "template")


def matcher_card(
    recipe: MatcherRecipe, *, specification: Specification, size_bytes: int, data: Facts, metrics: Facts, tools: Facts
) -> str:
    """The card's Markdown. `data` are the facts of the data step, `metrics` those of the evaluation."""
    sections = [
        "## The network\n\n" + _network(recipe, specification, size_bytes),
        "## Data\n\n" + _data(data),
        "## False matches\n\n" + measured(recipe, metrics),
    ]
    return card(recipe.pack, sections, tools=tools)


def _network(recipe: MatcherRecipe, specification: Specification, size_bytes: int) -> str:
    side, network = recipe.input.height, recipe.network
    return (
        f"NCCNet's encoder, a residual U-Net with the channels {', '.join(map(str, network.channels))}: "
        f"{parameters(specification):,} weights, {multiply_adds(specification) / 1e6:.0f} million multiply-adds an "
        f"image, full int8 ({size_bytes / 2**20:.2f} MiB as a file). Input: {side} x {side} pixels, grey, the whole "
        f"image stretched, normalised by mean and deviation within {network.local_radius} pixels; output: "
        f"{network.features} feature(s) of every pixel. Weakly supervised: no displacement was ever given to the "
        f"training, which makes the highest correlation of a template in the same patient's image stand out from the "
        f"next one at least {recipe.training.distance} pixels away."
    )


def _data(data: Facts) -> str:
    lines = ["| part | pairs | patients |", "|---|---|---|"]
    lines += [f"| {part} | {count} | {data['patients'][part]} |" for part, count in data["pairs"].items()]
    return "Split by patient; no patient is on two sides.\n\n" + "\n".join(lines)


def measured(recipe: MatcherRecipe, metrics: Facts) -> str:
    """The evaluation in Markdown: how it was done, the table, and whether the aim was reached."""
    settings, tuned = recipe.evaluation, metrics["band_pass"]
    names = list(metrics["false_matches"])
    lines = ["| " + " | ".join((*_HEAD, *names)) + " |", "|" + "---|" * (len(names) + 2)]
    lines += ["| " + " | ".join(row) + " |" for row in table_rows(metrics)]
    met = half_of_band_pass(metrics)
    missed = [name for name, is_met in met.items() if not is_met]
    worse = worse_groups(metrics)
    return (
        "Of the test pairs, the same templates in the same windows for all, searched "
        f"{settings.reach} pixels around their own place; counts, share, and Wilson's 95 % interval by patients. A "
        f"match is false beyond {settings.tolerance:g} pixels of the truth where the truth is the known warp of one "
        f"image, beyond {settings.consensus_tolerance:g} where it is a known warp and the consensus of two images, of "
        f"which {metrics['left_out']} pairs had none. The band-pass has standard deviations of {tuned['fine_px']:g} "
        f"and {tuned['coarse_px']:g} pixels, the best on the validation pairs; *normalised* is the encoder's input "
        "without the encoder.\n\n" + "\n".join(lines) + "\n\n"
        "Asked: at most half of the band-pass's false matches on far pairs. "
        + ("Met." if not missed else f"Missed for {', '.join(missed)}.")
        + (f" More false matches than the band-pass: {', '.join(worse)}." if worse else "")
    )


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
    recipe = recipe_of(run)
    try:
        metrics, data = run.read("evaluate", "metrics.json"), run.read("data", "facts.json")
    except OSError as problem:
        raise UsageProblem(reason("step_missing", step="evaluate")) from problem
    file, made_with = converted(run, "int8"), provenance(run, data=[source.name for source in recipe.pairs])
    text = matcher_card(
        recipe,
        specification=specification_of(recipe.network, side=recipe.input.height),
        size_bytes=len(file.data),
        data=data,
        metrics=metrics,
        tools=made_with,
    )
    contents = {"litert": file.data, "card": text.encode()}
    description = msgspec.structs.replace(
        _described(recipe),
        outputs=FeatureOutput(features=file.outputs["features"]),
        files=list_files(contents),
        provenance=made_with,
        metrics=metrics,
    )
    place = write_described(
        recipe.packs_folder, description=description, contents=contents, key=own_key(recipe.signing_key)
    )
    return pack_facts(place)


def _described(recipe: MatcherRecipe) -> MatcherManifest:
    """What the recipe says of the pack; what its files are is not said yet."""
    texts, spec = recipe.pack, recipe.input
    return MatcherManifest(
        schema_version=SCHEMA_VERSION,
        id=texts.id,
        version=texts.version,
        names=dict(texts.names),
        descriptions=dict(texts.descriptions),
        intended_use=dict(texts.intended_use),
        limits=dict(texts.limits),
        input=Input(
            height=spec.height,
            width=spec.width,
            channels=1,
            dtype="uint8",
            intensity=spec.intensity,
            fit=spec.fit,
            margin=spec.margin,
        ),
        outputs=FeatureOutput(features=0),
        local_radius=recipe.network.local_radius,
        files={},
        provenance={},
        metrics={},
    )


MATCHER_REPORT: Final = Step(name="report", perform=report_step, reads=("evaluation",))
MATCHER_PACK: Final = Step(
    name="pack",
    perform=pack_step,
    reads=("pack", "packs_folder", "signing_key"),
    outside=lambda run: digest(run.recipe.pack.credits_text),
    stands=is_as_written,
)

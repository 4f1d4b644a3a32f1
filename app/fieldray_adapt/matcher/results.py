"""What a matcher comes to: the evaluate step, the report, the model card and the signed pack.

The evaluate step of a matcher: false matches on identical matches, the curve of rejection, and whether it collapsed.

The band-pass is tuned on validation pairs. Test pairs are measured once, when everything is chosen. Intervals are
Wilson's, 95 %, and count patients.

What a matcher's recipe ends in: the model card, the report, and the signed pack.

The pack is made whatever the encoder came to; the card says how it compares with the band-pass, in both directions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.metrics import share
from fieldray.domain.model import InputSpec, OutputRoles
from fieldray.inference.litert import Network, NetworkSpec, load_runtime
from fieldray.packs.manifest import FeatureOutput, MatcherManifest
from fieldray_adapt.matcher.engine import specification_of
from fieldray_adapt.matcher.matches import (
    Describe,
    Matches,
    TruePair,
    band_pass,
    bands,
    consensus,
    draw_warp,
    expose_mildly,
    expose_strongly,
    find_matches,
    followed_by,
    normalised,
    raw,
    search,
    warp,
)
from fieldray_adapt.matcher.recipe import MatcherRecipe, locally_normalised, recipe_of
from fieldray_adapt.matcher.train import MatcherData, data_of
from fieldray_adapt.pack import card, evaluated, provenance, whole_pack_step, write_whole
from fieldray_adapt.page import Code, Section, Table, facts, keep_page
from fieldray_adapt.quantise import Converted
from fieldray_adapt.run import Run, Step
from fieldray_adapt.steps import converted

GROUPS: Final = ("near", "far", "two images, near", "two images, far")
ENCODERS: Final = ("NCCNet", "NCCNet int8")
_CONSENSUS_BAND: Final = (1.5, 8.0)
_REJECTED: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
_TUNED_WITH: Final = 4
"""Templates of a pair while the band-pass is tuned."""


def evaluate_step(run: Run) -> Mapping[str, Any]:
    """Measure; metrics.json and matches.npz (every match of every description). Raises UsageProblem."""
    recipe, data = recipe_of(run), data_of(run)
    settings = recipe.evaluation
    tuned = tune_band(recipe, data, progress=run.progress)
    descriptions: dict[str, Describe] = {
        "raw": raw,
        "band-pass": partial(band_pass, fine_px=tuned["fine_px"], coarse_px=tuned["coarse_px"]),
        "normalised": partial(normalised, radius_px=recipe.network.local_radius),
        ENCODERS[0]: encoder_of(recipe, converted(run, "float")),
        ENCODERS[1]: encoder_of(recipe, converted(run, "int8")),
    }
    pairs = list(true_pairs(recipe, data, "test"))
    matches = find_matches(
        pairs,
        descriptions,
        templates=settings.templates,
        reach=settings.reach,
        distance=settings.least_distance,
        count=settings.matches_per_pair,
        seed=settings.seed,
        progress=lambda done, of: run.progress("test pairs", done, of),
    )
    metrics: dict[str, Any] = {
        "band_pass": tuned,
        "pairs": {group: sum(pair.group == group for pair in pairs) for group in GROUPS},
        "left_out": len(data.of("test")) - sum(pair.group.startswith("two") for pair in pairs),
        "false_matches": {name: false_matches(found) for name, found in matches.items()},
        "rejection": {name: rejection_curve(found) for name, found in matches.items()},
        "int8_less_float_px": _int8_less_float(matches),
        "collapse": collapse(recipe, data, descriptions),
    }
    run.write("evaluate", "metrics.json", metrics)
    far = metrics["false_matches"]["NCCNet int8"]["far"]
    return {f"far_{size}px": found["value"] for size, found in far.items()}


def encoder_of(recipe: MatcherRecipe, file: Converted) -> Describe:
    """What a file says of images (n, side, side) uint8; one thread, by the code that the program runs."""
    side = recipe.input.height
    spec = NetworkSpec(
        input=InputSpec(height=side, width=side), outputs=OutputRoles(planes=file.outputs["features"]), labels=0
    )
    network = Network(file.data, spec, runtime=load_runtime(), threads=1)

    def describe(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        found = []
        for image in images:
            answer = network.run(locally_normalised(image, radius_px=recipe.network.local_radius)[..., None])
            assert answer.planes is not None  # the roles ask for it
            found.append(answer.planes)
        return np.stack(found)

    return describe


def true_pairs(recipe: MatcherRecipe, data: MatcherData, part: str) -> Iterator[TruePair]:
    """The pairs of a part in all groups; a pair without a consensus is in the first two alone."""
    settings, side = recipe.evaluation, recipe.input.height
    fine, coarse = (sigma * side / 512 for sigma in _CONSENSUS_BAND)
    judges: list[Describe] = [raw, partial(band_pass, fine_px=fine, coarse_px=coarse)]
    for index in data.of(part):
        generator = np.random.default_rng((settings.seed, int(index)))
        near = draw_warp(side, largest_px=settings.near_warp * side, generator=generator)
        far = draw_warp(side, largest_px=settings.far_warp * side, generator=generator)
        prior, current, patient = data.priors[index], data.currents[index], str(data.patients[index])
        known = partial(TruePair, patient=patient, tolerance_px=settings.tolerance)
        exposed = expose_mildly(current, generator)
        yield known(prior=expose_mildly(warp(current, near), generator), current=exposed, truth=near, group=GROUPS[0])
        yield known(prior=expose_strongly(warp(current, far), generator), current=exposed, truth=far, group=GROUPS[1])
        agreed, _ = consensus(prior, current, judges)
        if agreed is not None:
            yield TruePair(
                prior=warp(prior, near),
                current=current,
                truth=followed_by(near, agreed),
                group=GROUPS[3] if data.is_far[index] else GROUPS[2],
                patient=patient,
                tolerance_px=settings.consensus_tolerance,
            )


def tune_band(recipe: MatcherRecipe, data: MatcherData, *, progress: Any) -> dict[str, Any]:
    """The band with the fewest false matches on the validation pairs, all groups and sizes together."""
    settings = recipe.evaluation
    known = bands()
    found = find_matches(
        list(true_pairs(recipe, data, "validation")),
        {f"{fine:g} {coarse:g}": describe for (fine, coarse), describe in known.items()},
        templates=settings.templates[:1],
        reach=settings.reach,
        distance=settings.least_distance,
        count=min(_TUNED_WITH, settings.matches_per_pair),
        seed=settings.seed,
        progress=lambda done, of: progress("validation pairs", done, of),
    )
    shares = {name: float(matches.is_false.mean()) for name, matches in found.items()}
    fine, coarse = (float(sigma) for sigma in min(shares, key=shares.__getitem__).split())
    return {"fine_px": fine, "coarse_px": coarse, "false_by_band": shares}


def false_matches(matches: Matches) -> dict[str, dict[str, dict[str, Any]]]:
    """By group and template size: how many are false, with the interval, and the median error."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for group in GROUPS:
        for size in sorted(set(matches.templates.tolist())):
            own = (matches.groups == group) & (matches.templates == size)
            if own.any():
                found = asdict(share(matches.is_false[own], patients=list(matches.patients[own])))
                found["median_error_px"] = float(np.median(matches.error_px[own]))
                table.setdefault(group, {})[str(size)] = found
    return table


def rejection_curve(matches: Matches) -> dict[str, list[tuple[float, float]]]:
    """By group: share rejected, by the smallest P1 - P2 first, and the share of false matches among those kept."""
    curves = {}
    for group in GROUPS:
        own = matches.groups == group
        if own.any():
            ordered = matches.is_false[own][np.argsort(matches.gap[own], kind="stable")]
            curves[group] = [(cut, float(ordered[round(cut * len(ordered)) :].mean())) for cut in _REJECTED]
    return curves


def _int8_less_float(matches: Mapping[str, Matches]) -> dict[str, float]:
    """Median errors, and the share of matches that are false by the one and right by the other."""
    whole, integer = (matches[name] for name in ENCODERS)
    return {
        "median_error": float(np.median(integer.error_px) - np.median(whole.error_px)),
        "decided_otherwise": float((integer.is_false != whole.is_false).mean()),
        "false": float(integer.is_false.mean() - whole.is_false.mean()),
    }


def collapse(recipe: MatcherRecipe, data: MatcherData, descriptions: Mapping[str, Describe]) -> dict[str, Any]:
    """Whether a description draws its own pattern into every image: templates in another patient's image.

    P1 there and in the patient's own later image, and how often the best place in the other's image is the template's
    own place, within the tolerance; by chance that is the area of the tolerance as a share of the window's.
    """
    settings, own = recipe.evaluation, data.of("test")
    patients = sorted(set(data.patients[own].tolist()))
    firsts = [int(own[data.patients[own] == patient][0]) for patient in patients]
    size, side = settings.templates[0], recipe.input.height
    generator = np.random.default_rng(settings.seed)
    corners = generator.integers(settings.reach, side - size - settings.reach + 1, (settings.matches_per_pair, 2))
    table: dict[str, Any] = {"chance": ((2 * settings.tolerance + 1) / (2 * settings.reach + 1)) ** 2}
    seek = partial(search, template=size, reach=settings.reach, distance=settings.least_distance)
    for name, describe in descriptions.items():
        mine, others, places = list[float](), list[float](), list[bool]()
        currents = describe(data.currents[firsts])
        for number, prior in enumerate(describe(data.priors[firsts])):
            mine += list(seek(prior, currents[number], corners)[1])
            offsets, peaks, _ = seek(prior, currents[(number + 1) % len(firsts)], corners)
            others += list(peaks)
            places += list(np.abs(offsets).max(axis=1) <= settings.tolerance)
        table[name] = {
            "p1_own": float(np.mean(mine)),
            "p1_other": float(np.mean(others)),
            "own_place_in_other": float(np.mean(places)),
        }
    return table


def half_of_band_pass(metrics: Mapping[str, Any]) -> dict[str, bool]:
    """By far group and template size: whether the encoder has at most half the false matches of the band-pass."""
    tables = metrics["false_matches"]
    return {
        f"{group}, {size} px": tables[ENCODERS[1]][group][size]["value"] <= found["value"] / 2
        for group in GROUPS
        if group.endswith("far") and group in tables["band-pass"]
        for size, found in tables["band-pass"][group].items()
    }


def worse_groups(metrics: Mapping[str, Any]) -> Sequence[str]:
    """The groups and sizes in which the encoder has more false matches than the band-pass."""
    tables = metrics["false_matches"]
    return [
        f"{group}, {size} px"
        for group, sizes in tables["band-pass"].items()
        for size, found in sizes.items()
        if tables[ENCODERS[1]][group][size]["value"] > found["value"]
    ]


MATCHER_EVALUATE: Final = Step(
    name="evaluate",
    perform=evaluate_step,
    reads=("evaluation",),
    leaves=("metrics.json",),
)


Facts = Mapping[str, Any]
_HEAD: Final = ("pairs", "template")


def matcher_card(recipe: MatcherRecipe, *, data: Facts, metrics: Facts, **made: Any) -> str:
    """The card's Markdown. `data` are the facts of the data step, `metrics` those of the evaluation."""
    return card("matcher_card.md", recipe.pack, data=data, **made, **_measured(recipe, metrics))


def _measured(recipe: MatcherRecipe, metrics: Facts) -> dict[str, Any]:
    missed = [name for name, is_met in half_of_band_pass(metrics).items() if not is_met]
    rows, worse = list(table_rows(metrics)), worse_groups(metrics)
    return {"recipe": recipe, "metrics": metrics, "rows": rows, "missed": missed, "worse": worse}


def table_rows(metrics: Facts) -> Iterator[list[str]]:
    """A row for each group and template size, a cell for each description."""
    tables = metrics["false_matches"]
    first = next(iter(tables.values()))
    for group in GROUPS:
        for size in first.get(group, ()):
            yield [group, f"{size} px", *(_cell(found[group][size]) for found in tables.values())]


def _cell(found: Facts) -> str:
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
    sections = [
        Section(title="False matches", parts=[Table(rows=list(table_rows(metrics)), head=(*_HEAD, *names))]),
        Section(title="Rejecting the smallest P1 - P2", parts=[Table(rows=curves, head=("pairs", "rejected", *names))]),
        Section(
            title="Collapse",
            parts=[Table(rows=collapsed, head=("", "P1 own", "P1 other patient", "own place in the other's"))],
        ),
        Section(title="int8 less float", parts=[facts(metrics["int8_less_float_px"])]),
        Section(title="Training", parts=[_training(history)]),
        Section(title="Recipe", parts=[Code(run.text or json.dumps({}))]),
    ]
    return keep_page(run, f"Matcher: {recipe.pack.id} {recipe.pack.version}", sections)


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
        files={"litert": file.data},
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

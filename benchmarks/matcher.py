"""The matcher's recipe as a page: false matches on identical matches, rejection, collapse, time and size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.reports import Mark
from fieldray.bench.report import Points, Report, Table
from fieldray_adapt.command import adapt
from fieldray_adapt.matcher.recipe import MatcherRecipe
from fieldray_adapt.matcher.results import ENCODERS, encoder_of, measured, table_rows
from fieldray_adapt.recipe import rooted
from fieldray_adapt.run import Run
from fieldray_adapt.steps import converted
from fieldray_adapt.tables import Document

Facts = Mapping[str, Any]
_RUNS: Final = 5
_MOST_BYTES: Final = 2**20


def matcher_report(path: Path, *, notify: Callable[[str], None]) -> Report:
    """Perform the steps of a matcher's recipe that are not done, and report what they measured.

    Raises UsageProblem, StorageProblem.
    """
    adapt("report", path, say=notify, progress=lambda what, done, of: notify(f"{what} {done} of {of}"))
    document = Document.read(path)
    recipe = rooted(document.parsed(MatcherRecipe), path)
    run = Run(recipe=recipe, progress=lambda *_: None)  # type: ignore[arg-type]
    metrics, history = run.read("evaluate", "metrics.json"), run.read("train", "history.json")
    names = list(metrics["false_matches"])
    sizes = {name: len(converted(run, name).data) for name in ("float", "int8")}
    times_ms = {name: _time_ms(recipe, run, name) for name in ("float", "int8")}
    return Report(
        kind="matcher",
        title="False matches of the matcher",
        blocks=(
            Points("How it was measured", (*measured(recipe, metrics).split("\n\n")[::2], *_truth())),
            Table("False matches", ("pairs", "template", *names), tuple(map(tuple, table_rows(metrics)))),
            Points("Marks", tuple(mark.sentence for mark in _marks(metrics, sizes))),
            _rejection(metrics, names),
            _peaks(metrics, names),
            _collapse(metrics, names),
            Points("With and without int8", _int8(metrics, sizes, times_ms)),
            _training(history),
        ),
        data={"metrics": metrics, "bytes": sizes, "ms": times_ms, "history": history},
    )


def _truth() -> tuple[str, ...]:
    return (
        "Near and far: one image, its copy warped (at most 4 and 8 % of the side) and exposed anew. Far copies have "
        "scatter, another gamma and contrast, opacities, tubes, blur and noise, drawn independently of the original's. "
        "The truth is exact.",
        "Two images: a patient's earlier and later image, the earlier one warped by at most 4 %. Nobody has marked "
        "points in them; the truth is the warp followed by a polynomial of the second degree on which half or more of "
        "the templates of 128 pixels agree, matched by grey levels and a band-pass, never by the encoder.",
        "Exposures and warps of the evaluation are other code than the changes that the encoder is trained with.",
    )


def _marks(metrics: Facts, sizes: Mapping[str, int]) -> list[Mark]:
    tables = metrics["false_matches"]
    marks = [Mark(name="int8 file, MiB", measured=sizes["int8"] / _MOST_BYTES, goal=1, is_most=True, unit="")]
    for group, found in tables["band-pass"].items():
        if group.endswith("far"):
            for size, band in found.items():
                own = tables[ENCODERS[1]][group][size]["value"]
                share = own / band["value"] if band["value"] else None
                name = f"NCCNet int8 / band-pass, {group}, {size} px"
                marks.append(Mark(name=name, measured=share, goal=0.5, is_most=True, unit=""))
    return marks


def _rejection(metrics: Facts, names: list[str]) -> Table:
    first = metrics["rejection"][names[0]]
    rows = tuple(
        (group, f"{cut:.0%}", *(f"{metrics['rejection'][name][group][place][1]:.1%}" for name in names))
        for group, points in first.items()
        for place, (cut, _) in enumerate(points)
    )
    return Table("False among those kept, smallest P1 - P2 rejected first", ("pairs", "rejected", *names), rows)


def _peaks(metrics: Facts, names: list[str]) -> Table:
    rows = tuple(
        (group, name, *(f"{value:.3f}" for value in metrics["gaps"][name][group].values()))
        for group in metrics["gaps"][names[0]]
        for name in names
    )
    return Table("Peaks, medians", ("pairs", "features", "P1", "P2", "P1 - P2", "P1 / P2"), rows)


def _collapse(metrics: Facts, names: list[str]) -> Table:
    rows = tuple((name, *(f"{value:.3f}" for value in metrics["collapse"][name].values())) for name in names)
    title = f"Collapse: templates in another patient's image (own place by chance {metrics['collapse']['chance']:.3f})"
    return Table(title, ("features", "P1, own patient", "P1, other patient", "own place in the other's"), rows)


def _int8(metrics: Facts, sizes: Mapping[str, int], times_ms: Mapping[str, float]) -> tuple[str, ...]:
    found = metrics["int8_less_float_px"]
    return (
        *(f"{name}: {sizes[name] / 2**20:.2f} MiB, {times_ms[name]:.0f} ms per image on one thread" for name in sizes),
        f"int8 less float: share of false matches {found['false']:+.4f}, median error {found['median_error']:+.2f} px; "
        f"{found['decided_otherwise']:.2%} of the matches are false by one of them alone",
    )


def _training(history: list[dict[str, Any]]) -> Table:
    columns = ("epoch", "loss", "gap", "stray", "validation_gap", "validation_stray")
    return Table("Training", columns, tuple(tuple(str(row[name]) for name in columns) for row in history))


def _time_ms(recipe: MatcherRecipe, run: Run, name: str) -> float:
    """The least of some runs of one image, with its preparation."""
    describe = encoder_of(recipe, converted(run, name))
    image = np.random.default_rng(0).integers(0, 255, (1, recipe.input.height, recipe.input.width), np.uint8)
    times = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        describe(image)
        times.append((time.perf_counter() - began) * 1000)
    return min(times)

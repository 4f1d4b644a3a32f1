"""The evaluate step: the int8 file's answers to validation and test images, and all figures computed from them.

A pack measured at another hospital: nothing of it is trained or chosen on, so thresholds come as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain import metrics
from fieldray.domain.heat_map import zero_logit
from fieldray.domain.metrics import share
from fieldray.domain.model import Calibration, OodGate, OperatingPoint
from fieldray_adapt.dataset import Dataset, dataset_of, images_of, targets_of
from fieldray_adapt.evaluate import (
    SHORTCUTS,
    by_group,
    choose_point,
    compare,
    distances,
    evidence_figures,
    figures,
    fit_calibration,
    fit_gate,
    known,
    map_span,
    shortcut_scores,
)
from fieldray_adapt.files import save_arrays
from fieldray_adapt.image_set import ImageSet, read_images, read_rows, rows_digest
from fieldray_adapt.layouts import Row, refuse_leak, refuse_settled
from fieldray_adapt.quantise import Answers
from fieldray_adapt.recipe_data import LabelRule
from fieldray_adapt.run import Run, Step
from fieldray_adapt.steps import answers_of


def rows_elsewhere(run: Run) -> list[Row]:
    """The images of the other hospital; none where the recipe names none."""
    chosen = run.recipe.evaluation.elsewhere
    return read_rows([chosen], folder=run.folder("data")) if chosen else []


def images_elsewhere(run: Run, data: Dataset) -> ImageSet | None:
    """The same as the network sees them; None where the recipe names none.

    Raises UsageProblem `data_leak` where a patient is among the recipe's own, or in the split's table.
    """
    rows = rows_elsewhere(run)
    if not rows:
        return None
    own = data.image_set.rows
    refuse_settled(rows, run.recipe.split)
    refuse_leak([*own, *rows], [*["the recipe's own"] * len(own), *["elsewhere"] * len(rows)])
    return images_of(run, rows, name="elsewhere")


def figures_elsewhere(
    others: ImageSet,
    scores: NDArray[np.float64],
    *,
    aside: NDArray[np.str_],
    label: LabelRule,
    calibration: Calibration,
    points: Sequence[OperatingPoint],
    own: Dataset,
    column: int,
) -> dict[str, Any]:
    """What the thresholds of the pack give there, and what border and thumbnail give, which are fitted here.

    Parameters
    ----------
    scores, aside
        (n,) raw, of the images of `others`, and what becomes of them whatever their score.
    own
        The recipe's own images; `column` is the label's among their targets.
    """
    targets = targets_of(others.rows, [label])[:, 0]
    evaluated = known(scores, targets, others.rows, aside=aside).calibrated(calibration)
    return figures(evaluated, points=points) | {"shortcuts": _shortcuts(own, column, others.images, targets)}


def _shortcuts(own: Dataset, column: int, images: NDArray[np.uint8], targets: NDArray[np.float32]) -> dict[str, float]:
    """AUC of the border's pixels alone and of a thumbnail of images, fitted on the same images as the network."""
    training = own.samples("training")
    labelled, asked = ~np.isnan(training.targets[:, column]), ~np.isnan(targets)
    truth = training.targets[labelled, column] >= 0.5
    return {
        name: metrics.auc(
            shortcut_scores(pixels(training.images[labelled]), truth, pixels(images[asked])), targets[asked] >= 0.5
        )
        for name, pixels in SHORTCUTS.items()
    }


_GATE_IMAGES: Final = 3000
_PARTS: Final = ("validation", "test")
_ELSEWHERE: Final = "external_test"


def evaluate_step(run: Run) -> Mapping[str, Any]:
    """Evaluate the int8 file, choose operating points, fit the gate; metrics.json, scores.npz, gate.npz."""
    data = dataset_of(run)
    integer = {part: answers_of(run, "int8", data.samples(part).images, part) for part in _PARTS}
    whole = answers_of(run, "float", data.samples("test").images, "test, float")
    others = images_elsewhere(run, data)
    if others is not None:
        integer[_ELSEWHERE] = answers_of(run, "int8", others.images, "images elsewhere")
    results: dict[str, Any] = {"labels": {}, "data": data.facts}
    gate, results["gate"] = _evaluate_gate(run, data, integer)
    aside = {part: data.image_set.aside[data.indices(part)] for part in _PARTS}
    if others is not None:
        aside[_ELSEWHERE] = others.aside
    points, calibrations = [], {}
    for column, label in enumerate(run.recipe.kept_labels):
        found = _evaluate_label(
            run, data, label, {part: own.scores[:, column] for part, own in integer.items()}, others, aside=aside
        )
        truths = data.samples("test").targets[:, run.recipe.labels.index(label)]
        both = [known(own.scores[:, column], truths, data.rows("test")) for own in (whole, integer["test"])]
        results["labels"][label.code] = found["figures"] | {"float_against_int8": compare(*both)}
        results["labels"][label.code] |= _map_figures(
            {part: integer[part].class_maps[:, column] for part in _PARTS},
            metrics.calibrated(integer["validation"].scores[:, column], found["calibration"]),
            lungs=data.samples("test").lungs,
            threshold=found["points"][0]["threshold"],
            calibration=found["calibration"],
        )
        points += found["points"]
        calibrations[label.code] = asdict(found["calibration"])
    if others is not None:
        results["gate"]["elsewhere_refused"] = _refused(gate, integer[_ELSEWHERE], others.rows)
    run.write("evaluate", "metrics.json", results)
    run.write("evaluate", "points.json", {"points": points, "calibration": calibrations})
    save_arrays(
        run.folder("evaluate") / "gate.npz",
        {"mean": gate.mean, "projection": gate.projection, "limit": np.array(gate.limit)},
    )
    kept = [run.recipe.labels.index(label) for label in run.recipe.kept_labels]
    targets = {f"{part}_targets": data.samples(part).targets[:, kept] for part in _PARTS}
    scores = {part: integer[part].scores for part in _PARTS} | {"test_float": whole.scores}
    save_arrays(run.folder("evaluate") / "scores.npz", {**scores, **targets})
    return {code: found["test"]["auc"] for code, found in results["labels"].items()}


def _evaluate_label(
    run: Run,
    data: Dataset,
    label: LabelRule,
    scores: Mapping[str, NDArray[np.float64]],
    others: ImageSet | None,
    *,
    aside: Mapping[str, NDArray[np.str_]],
) -> dict[str, Any]:
    """Calibration and operating points of one label, from validation; its figures, from test and another hospital.

    scores and aside are (n,), by part.
    """
    column = run.recipe.labels.index(label)
    raw = {
        part: known(scores[part], data.samples(part).targets[:, column], data.rows(part), aside=aside[part])
        for part in _PARTS
    }
    calibration = fit_calibration(raw["validation"].scores, raw["validation"].truth)
    evaluated = {part: raw[part].calibrated(calibration) for part in _PARTS}
    points = [
        choose_point(
            point,
            label=label.code,
            validation=evaluated["validation"],
            test=evaluated["test"],
            measured_on=run.recipe.evaluation.measured_on,
        )
        for point in run.recipe.evaluation.points
    ]
    found = {part: figures(evaluated[part], points=points) for part in _PARTS}
    found["by_group"] = by_group(evaluated["test"])
    found["shortcuts"] = _shortcuts(data, column, data.samples("test").images, data.samples("test").targets[:, column])
    if others is not None:
        found[_ELSEWHERE] = figures_elsewhere(
            others,
            scores[_ELSEWHERE],
            aside=aside[_ELSEWHERE],
            label=label,
            calibration=calibration,
            points=points,
            own=data,
            column=column,
        )
    return {"points": [asdict(point) for point in points], "calibration": calibration, "figures": found}


def _map_figures(
    maps: Mapping[str, NDArray[np.float32]],
    validation_scores: NDArray[np.float64],
    *,
    lungs: NDArray[np.uint8] | None,
    threshold: float,
    calibration: Calibration,
) -> dict[str, Any]:
    """The heat map of one label: its scale, from validation, and how much of it lies in the test images' lungs."""
    zero = zero_logit(threshold, calibration)
    span = map_span(maps["validation"], validation_scores, threshold=threshold, zero=zero)
    found: dict[str, Any] = {} if span is None else {"heat_map": {"span": span}}
    return found if lungs is None else found | {"evidence_inside": evidence_figures(maps["test"], lungs, zero=zero)}


def _evaluate_gate(run: Run, data: Dataset, integer: Mapping[str, Answers]) -> tuple[OodGate, dict[str, Any]]:
    """The gate from training features, its limit from validation; evaluated on test images and on the OOD images."""
    choice = run.recipe.evaluation
    images = np.random.default_rng(run.recipe.training.seed).permutation(data.indices("training"))[:_GATE_IMAGES]
    training = answers_of(run, "int8", data.image_set.images[np.sort(images)], "features").features
    gate = fit_gate(
        training, integer["validation"].features, components=choice.ood_gate_components, keeps=choice.ood_gate_keeps
    )
    facts: dict[str, Any] = {"limit": gate.limit, "images_refused": _refused(gate, integer["test"], data.rows("test"))}
    if choice.ood_images is None:
        return gate, facts
    ood_images = read_images(
        _ood_rows(run),
        run.recipe.input,
        cache=run.folder("data") / "ood.npz",
        progress=run.progress,
        finder=run.recipe.lungs,
    )
    small = read_images(
        data.rows("test"),
        run.recipe.input,
        cache=run.folder("data") / "small.npz",
        progress=run.progress,
        shrink_to=choice.ood_side,
        finder=run.recipe.lungs,
    )
    return gate, facts | {
        "side": choice.ood_side,
        "ood_images": len(ood_images.rows),
        "ood_refused": _refused(gate, answers_of(run, "int8", ood_images.images, "ood_images"), ood_images.rows),
        "images_refused_at_equal_resolution": _refused(
            gate, answers_of(run, "int8", small.images, "small images"), small.rows
        ),
    }


def _ood_rows(run: Run) -> list[Row]:
    """The images that the gate must refuse; none where the recipe names none."""
    chosen = run.recipe.evaluation.ood_images
    return read_rows([chosen], folder=run.folder("data")) if chosen else []


def _refused(gate: OodGate, answers: Answers, rows: Sequence[Row]) -> dict[str, Any]:
    return asdict(share(distances(gate, answers.features) > gate.limit, patients=[row.person for row in rows]))


EVALUATE: Final = Step(
    name="evaluate",
    perform=evaluate_step,
    reads=("evaluation",),
    outside=lambda run: rows_digest([*_ood_rows(run), *rows_elsewhere(run)]),
    leaves=("metrics.json", "points.json", "gate.npz", "scores.npz"),
)

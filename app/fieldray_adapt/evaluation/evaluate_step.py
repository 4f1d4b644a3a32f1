"""The evaluate step: the int8 file's answers to validation and test images, and all figures computed from them.

A pack measured at another hospital: nothing of it is trained or chosen on, so thresholds come as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fieldray.domain import metrics
from fieldray.domain.heat_map import zero_logit
from fieldray.domain.metrics import Share, share
from fieldray.domain.model import Calibration, OodGate, OperatingPoint
from fieldray_adapt.data.dataset import Dataset, dataset_of, images_of, targets_of
from fieldray_adapt.data.image_set import ImageSet, read_images, read_rows, rows_digest
from fieldray_adapt.data.layouts import Row, refuse_leak, refuse_settled
from fieldray_adapt.evaluation.evaluate import (
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
from fieldray_adapt.evaluation.figures import (
    Choices,
    ClassifierFigures,
    EvidenceFigures,
    GateFigures,
    HeatMapScale,
    HospitalFigures,
    LabelFigures,
)
from fieldray_adapt.files import plain, save_arrays
from fieldray_adapt.networks.quantise import Answers
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.run import Facts, Run, Step
from fieldray_adapt.training.steps import answers_of


def rows_elsewhere(run: Run) -> list[Row]:
    """The images of the other hospital; none where the recipe names none."""
    chosen = run.recipe.evaluation.elsewhere
    return read_rows([chosen], folder=run.folder("data")) if chosen else []


def images_elsewhere(run: Run, data: Dataset) -> ImageSet | None:
    """The images of the other hospital as the network sees them; None where the recipe names none.

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
    label: LabelRule,
    calibration: Calibration,
    points: Sequence[OperatingPoint],
    own: Dataset,
    column: int,
) -> HospitalFigures:
    """What the thresholds of the pack give there, and what border and thumbnail give, which are fitted here.

    Parameters
    ----------
    scores
        (n,) raw, of the images of `others`.
    own
        The recipe's own images; `column` is the label's among their targets.
    """
    targets = targets_of(others.rows, [label])[:, 0]
    evaluated = known(scores, targets, others.rows, forced_outcome=others.forced_outcome).calibrated(calibration)
    found = figures(evaluated, points=points)
    return HospitalFigures(**structs.asdict(found), shortcuts=_shortcuts(own, column, others.images, targets))


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


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Measured:
    """All that is measured on: images, and what the files answer to them.

    Attributes
    ----------
    integer
        What the int8 file answers, by part; where there is another hospital also to its images.
    whole
        What the float file answers to the test images.
    """

    data: Dataset
    others: ImageSet | None
    integer: Mapping[str, Answers]
    whole: Answers


@dataclass(frozen=True, slots=True, kw_only=True)
class _LabelResult:
    """What was chosen for a label on the validation images, and what was measured with the choice."""

    points: Sequence[OperatingPoint]
    calibration: Calibration
    figures: LabelFigures


def evaluate_step(run: Run) -> Facts:
    """Evaluate the int8 file, choose operating points, fit the gate; metrics.json, scores.npz, gate.npz."""
    measured = _measured(run)
    data, integer = measured.data, measured.integer
    gate, gate_figures = _evaluate_gate(run, measured)
    found = {label.code: _evaluate_label(run, measured, label) for label in run.recipe.kept_labels}
    labels = {code: own.figures for code, own in found.items()}
    run.write("evaluate", "metrics.json", ClassifierFigures(labels=labels, data=data.facts, gate=gate_figures))
    points = tuple(point for own in found.values() for point in own.points)
    calibration = {code: own.calibration for code, own in found.items()}
    run.write("evaluate", "points.json", Choices(points=points, calibration=calibration))
    save_arrays(
        run.folder("evaluate") / "gate.npz",
        {"mean": gate.mean, "projection": gate.projection, "limit": np.array(gate.limit)},
    )
    kept = [run.recipe.labels.index(label) for label in run.recipe.kept_labels]
    targets = {f"{part}_targets": data.samples(part).targets[:, kept] for part in _PARTS}
    scores = {part: answers.scores for part, answers in integer.items()} | {"test_float": measured.whole.scores}
    save_arrays(run.folder("evaluate") / "scores.npz", {**scores, **targets})
    return {code: plain(own.test.auc) for code, own in labels.items()}


def _measured(run: Run) -> _Measured:
    data = dataset_of(run)
    integer = {part: answers_of(run, "int8", data.samples(part).images, part) for part in _PARTS}
    whole = answers_of(run, "float", data.samples("test").images, "test, float")
    others = images_elsewhere(run, data)
    if others is not None:
        integer[_ELSEWHERE] = answers_of(run, "int8", others.images, "images elsewhere")
    return _Measured(data=data, others=others, integer=integer, whole=whole)


def _evaluate_label(run: Run, measured: _Measured, label: LabelRule) -> _LabelResult:
    """Calibration and operating points of one label, from validation; its figures, from test and another hospital."""
    data, others, recipe = measured.data, measured.others, run.recipe
    column, kept_column = recipe.labels.index(label), recipe.kept_labels.index(label)
    scores = {part: answers.scores[:, kept_column] for part, answers in measured.integer.items()}
    forced = {part: data.image_set.forced_outcome[data.indices(part)] for part in _PARTS}
    targets = {part: data.samples(part).targets[:, column] for part in _PARTS}
    raw = {part: known(scores[part], targets[part], data.rows(part), forced_outcome=forced[part]) for part in _PARTS}
    calibration = fit_calibration(raw["validation"].scores, raw["validation"].truth)
    evaluated = {part: raw[part].calibrated(calibration) for part in _PARTS}
    points = [
        choose_point(
            point,
            label=label.code,
            validation=evaluated["validation"],
            test=evaluated["test"],
            measured_on=recipe.evaluation.measured_on,
        )
        for point in recipe.evaluation.points
    ]
    elsewhere = None
    if others is not None:
        elsewhere = figures_elsewhere(
            others,
            scores[_ELSEWHERE],
            label=label,
            calibration=calibration,
            points=points,
            own=data,
            column=column,
        )
    both = [known(own[:, kept_column], targets["test"], data.rows("test")) for own in _test_scores(measured)]
    heat_map, evidence = _map_figures(measured, kept_column, threshold=points[0].threshold, calibration=calibration)
    found = LabelFigures(
        validation=figures(evaluated["validation"], points=points),
        test=figures(evaluated["test"], points=points),
        by_group=by_group(evaluated["test"]),
        shortcuts=_shortcuts(data, column, data.samples("test").images, targets["test"]),
        external_test=elsewhere,
        float_against_int8=compare(*both),
        heat_map=heat_map,
        evidence_inside=evidence,
    )
    return _LabelResult(points=points, calibration=calibration, figures=found)


def _test_scores(measured: _Measured) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The test scores of the float and of the int8 file, each of shape (n, labels)."""
    return measured.whole.scores, measured.integer["test"].scores


def _map_figures(
    measured: _Measured, column: int, *, threshold: float, calibration: Calibration
) -> tuple[HeatMapScale | None, EvidenceFigures | None]:
    """The heat map of one label: its scale, from validation, and how much of it lies in the test images' lungs."""
    validation, test, zero = (
        measured.integer["validation"],
        measured.integer["test"],
        zero_logit(threshold, calibration),
    )
    scores = metrics.calibrated(validation.scores[:, column], calibration)
    span = map_span(validation.class_maps[:, column], scores, threshold=threshold, zero=zero)
    lungs = measured.data.samples("test").lungs
    evidence = None if lungs is None else evidence_figures(test.class_maps[:, column], lungs, zero=zero)
    return None if span is None else HeatMapScale(span=span), evidence


def _evaluate_gate(run: Run, measured: _Measured) -> tuple[OodGate, GateFigures]:
    """The gate from training features, its limit from validation; evaluated on test images and on the OOD images."""
    choice, data, integer = run.recipe.evaluation, measured.data, measured.integer
    images = np.random.default_rng(run.recipe.training.seed).permutation(data.indices("training"))[:_GATE_IMAGES]
    training = answers_of(run, "int8", data.image_set.images[np.sort(images)], "features").features
    gate = fit_gate(
        training, integer["validation"].features, components=choice.ood_gate_components, keeps=choice.ood_gate_keeps
    )
    found = GateFigures(limit=gate.limit, images_refused=_refused(gate, integer["test"], data.rows("test")))
    if measured.others is not None:
        elsewhere = _refused(gate, integer[_ELSEWHERE], measured.others.rows)
        found = structs.replace(found, elsewhere_refused=elsewhere)
    if choice.ood_images is None:
        return gate, found
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
    return gate, structs.replace(
        found,
        side=choice.ood_side,
        ood_images=len(ood_images.rows),
        ood_refused=_refused(gate, answers_of(run, "int8", ood_images.images, "ood_images"), ood_images.rows),
        images_refused_at_equal_resolution=_refused(
            gate, answers_of(run, "int8", small.images, "small images"), small.rows
        ),
    )


def _ood_rows(run: Run) -> list[Row]:
    """The images that the gate must refuse; none where the recipe names none."""
    chosen = run.recipe.evaluation.ood_images
    return read_rows([chosen], folder=run.folder("data")) if chosen else []


def _refused(gate: OodGate, answers: Answers, rows: Sequence[Row]) -> Share:
    return share(distances(gate, answers.features) > gate.limit, patients=[row.person for row in rows])


EVALUATE: Final = Step(
    name="evaluate",
    perform=evaluate_step,
    recipe_keys=("evaluation",),
    external_inputs=lambda run: rows_digest([*_ood_rows(run), *rows_elsewhere(run)]),
    outputs=("metrics.json", "points.json", "gate.npz", "scores.npz"),
)

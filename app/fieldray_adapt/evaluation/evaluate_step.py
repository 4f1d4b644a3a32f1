"""The evaluate step: choices from the int8 file's validation scores, then figures on the test images.

The test images, and those of another hospital, are screened by the program with the pack. No training or choice uses
the other hospital's images, so the thresholds apply to them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fieldray.domain import metrics
from fieldray.domain.heat_map import zero_logit
from fieldray.domain.metrics import Share, share
from fieldray.domain.model import Calibration, Estimate, OodGate, OperatingPoint
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
    measured_point,
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
from fieldray_adapt.evaluation.screening import Screening, loaded_pack, screen_rows
from fieldray_adapt.files import digest, plain, save_arrays
from fieldray_adapt.networks.quantise import Answers
from fieldray_adapt.pack.manifest import manifest_of
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.run import Facts, Run, Step
from fieldray_adapt.training.steps import answers_of, converted_file


def rows_elsewhere(run: Run) -> list[Row]:
    """The images of the other hospital. Empty if the recipe names no other hospital."""
    chosen = run.recipe.evaluation.elsewhere
    return read_rows([chosen], folder=run.folder("data")) if chosen else []


def images_elsewhere(run: Run, data: Dataset) -> ImageSet | None:
    """Return the images of the other hospital as network inputs; None if the recipe names none.

    Raises UsageProblem `data_leak` if a patient is among the recipe's own, or in the split's table.
    """
    rows = rows_elsewhere(run)
    if not rows:
        return None
    own = data.image_set.rows
    refuse_settled(rows, run.recipe.split)
    refuse_leak([*own, *rows], [*["the recipe's own"] * len(own), *["elsewhere"] * len(rows)])
    return images_of(run, rows, name="elsewhere")


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
    """The images of an evaluation and the scores of the files.

    Attributes
    ----------
    integer
        The int8 file's output by part, the other hospital's images included if there are any.
    whole
        The float file's output for the test images.
    """

    data: Dataset
    others: ImageSet | None
    integer: Mapping[str, Answers]
    whole: Answers

    def rows(self, part: str) -> Sequence[Row]:
        """The rows of a part, or of the other hospital."""
        return self.others.rows if part == _ELSEWHERE and self.others else self.data.rows(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The calibration and operating points of a label, with the network's validation AUC."""

    points: Sequence[OperatingPoint]
    calibration: Calibration
    validation_auc: Estimate


def evaluate_step(run: Run) -> Facts:
    """Choose operating points, fit the gate, screen and count.

    Writes metrics.json, points.json, scores.npz and gate.npz.
    """
    measured = _measured(run)
    data, integer = measured.data, measured.integer
    gate, gate_figures = _evaluate_gate(run, measured)
    chosen = {label.code: _choose(run, measured, label) for label in run.recipe.kept_labels}
    screened = _screened(run, measured, chosen, gate)
    labels = {
        label.code: _evaluate_label(run, measured, label, chosen[label.code], screened)
        for label in run.recipe.kept_labels
    }
    run.write("evaluate", "metrics.json", ClassifierFigures(labels=labels, data=data.facts, gate=gate_figures))
    points = tuple(
        measured_point(point, figures=labels[code].test, measured_on=run.recipe.evaluation.measured_on)
        for code, own in chosen.items()
        for point in own.points
    )
    calibration = {code: own.calibration for code, own in chosen.items()}
    run.write("evaluate", "points.json", Choices(points=points, calibration=calibration))
    save_arrays(
        run.folder("evaluate") / "gate.npz",
        {"mean": gate.mean, "projection": gate.projection, "limit": np.array(gate.limit)},
    )
    kept = [run.recipe.labels.index(label) for label in run.recipe.kept_labels]
    targets = {f"{part}_targets": data.samples(part).targets[:, kept] for part in _PARTS}
    scores = {part: answers.scores for part, answers in integer.items()} | {"test_float": measured.whole.scores}
    scores["test_screened"] = np.stack([screened["test"].scores(code) for code in labels], axis=1)
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


def _choose(run: Run, measured: _Measured, label: LabelRule) -> _Choice:
    """Calibration and operating points of one label, by the network's scores of the validation images."""
    recipe, part = run.recipe, "validation"
    scores = measured.integer[part].scores[:, recipe.kept_labels.index(label)]
    raw = known(scores, _targets(measured, part, label, recipe.labels.index(label)), measured.rows(part))
    calibration = fit_calibration(raw.scores, raw.truth)
    validation = raw.calibrated(calibration)
    points = [choose_point(point, label=label.code, validation=validation) for point in recipe.evaluation.points]
    return _Choice(points=points, calibration=calibration, validation_auc=validation.area)


def _targets(measured: _Measured, part: str, label: LabelRule, column: int) -> NDArray[np.float32]:
    """Return the known values (n,) of a label in a part; `column` is the label's among the recipe's targets."""
    if part == _ELSEWHERE:
        return targets_of(measured.rows(part), [label])[:, 0]
    return measured.data.samples(part).targets[:, column]


def _screened(run: Run, measured: _Measured, chosen: Mapping[str, _Choice], gate: OodGate) -> Mapping[str, Screening]:
    """Screen the images of each part that figures are measured on."""
    manifest = manifest_of(
        run,
        points=[point for own in chosen.values() for point in own.points],
        calibration={code: own.calibration for code, own in chosen.items()},
        gate=gate,
    )
    model = loaded_pack(manifest, {"litert": converted_file(run, "int8").data}, lungs=run.recipe.lungs)
    parts = ["test", *([_ELSEWHERE] if measured.others else [])]
    screen = partial(screen_rows, model, threads=run.recipe.training.threads, progress=run.progress)
    return {part: screen(measured.rows(part)) for part in parts}


def _evaluate_label(
    run: Run, measured: _Measured, label: LabelRule, chosen: _Choice, screened: Mapping[str, Screening]
) -> LabelFigures:
    """Measure one label's figures on the screened images, and the figures of the network alone."""
    data, recipe = measured.data, run.recipe
    column, kept_column = recipe.labels.index(label), recipe.kept_labels.index(label)
    targets = {part: _targets(measured, part, label, column) for part in screened}
    parts = {
        part: figures(own.cases(label.code, targets[part]), points=chosen.points) for part, own in screened.items()
    }
    elsewhere = None
    if measured.others is not None:
        shortcuts = _shortcuts(data, column, measured.others.images, targets[_ELSEWHERE])
        elsewhere = HospitalFigures(**structs.asdict(parts[_ELSEWHERE]), shortcuts=shortcuts)
    both = [known(own[:, kept_column], targets["test"], data.rows("test")) for own in _test_scores(measured)]
    heat_map, evidence = _map_figures(
        measured, kept_column, threshold=chosen.points[0].threshold, calibration=chosen.calibration
    )
    return LabelFigures(
        validation_auc=chosen.validation_auc,
        test=parts["test"],
        by_group=by_group(known(screened["test"].scores(label.code), targets["test"], data.rows("test"))),
        shortcuts=_shortcuts(data, column, data.samples("test").images, targets["test"]),
        external_test=elsewhere,
        float_against_int8=compare(*both),
        heat_map=heat_map,
        evidence_inside=evidence,
    )


def _test_scores(measured: _Measured) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The test scores of the float and of the int8 file, each of shape (n, labels)."""
    return measured.whole.scores, measured.integer["test"].scores


def _map_figures(
    measured: _Measured, column: int, *, threshold: float, calibration: Calibration
) -> tuple[HeatMapScale | None, EvidenceFigures | None]:
    """Return one label's heat map scale, from validation, and the share of evidence in the test images' lungs."""
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
    """Return the out-of-distribution images that the check must refuse; none if the recipe names none."""
    chosen = run.recipe.evaluation.ood_images
    return read_rows([chosen], folder=run.folder("data")) if chosen else []


def _refused(gate: OodGate, answers: Answers, rows: Sequence[Row]) -> Share:
    return share(distances(gate, answers.features) > gate.limit, patients=[row.person for row in rows])


EVALUATE: Final = Step(
    name="evaluate",
    perform=evaluate_step,
    recipe_keys=("evaluation",),
    external_inputs=lambda run: digest("screened", rows_digest([*_ood_rows(run), *rows_elsewhere(run)])),
    outputs=("metrics.json", "points.json", "gate.npz", "scores.npz"),
)

"""The evaluate step of a classifier, which chooses operating points on validation images and measures on test images.

The program screens the test images with the pack. If the recipe names images of another hospital, they are screened,
too. Images of the other hospital are never used for training or for choices.
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
from fieldray.domain.heat_map import evidence_threshold_logit
from fieldray.domain.metrics import Share, share_of_hits
from fieldray.domain.model import Calibration, Estimate, OperatingPoint, OutOfDistributionCheck
from fieldray_adapt.data.dataset import Dataset, label_targets, load_dataset, read_network_inputs
from fieldray_adapt.data.image_set import ImageSet, read_images, read_rows, rows_digest
from fieldray_adapt.data.layouts import Row, require_no_leak, require_no_patient_in_split_table
from fieldray_adapt.evaluation.evaluate import (
    SHORTCUT_FEATURE_EXTRACTORS,
    auc_by_group,
    choose_operating_point,
    compare_with_int8,
    data_part_figures,
    evidence_figures,
    fit_calibration,
    fit_ood_check,
    heat_map_logit_range,
    ood_distances,
    select_labelled_images,
    shortcut_scores,
    with_measured_figures,
)
from fieldray_adapt.evaluation.figures import (
    ClassifierFigures,
    EvaluationChoices,
    EvidenceFigures,
    HeatMapScale,
    HospitalFigures,
    LabelFigures,
    OodCheckFigures,
)
from fieldray_adapt.evaluation.screening import ScreeningResults, load_temporary_pack, screen_rows
from fieldray_adapt.files import digest, save_arrays, to_builtins
from fieldray_adapt.networks.quantise import NetworkOutputs
from fieldray_adapt.pack.manifest import make_manifest
from fieldray_adapt.recipes.shared import LabelRule
from fieldray_adapt.run import Run, Step, StepFacts
from fieldray_adapt.training.steps import read_converted_file, run_converted_file


def external_rows(run: Run) -> list[Row]:
    """Read the table rows of the other hospital's images; empty if the recipe names no other hospital."""
    chosen = run.recipe.evaluation.elsewhere
    return read_rows([chosen], folder=run.step_folder("data")) if chosen else []


def external_images(run: Run, data: Dataset) -> ImageSet | None:
    """Read the images of the other hospital as network inputs; None if the recipe names no other hospital.

    Raises UsageProblem (`data_leak`) if a patient of the other hospital is also in the recipe's key `data` or in the
    split's table.
    """
    rows = external_rows(run)
    if not rows:
        return None
    own = data.image_set.rows
    require_no_patient_in_split_table(rows, run.recipe.split)
    require_no_leak([*own, *rows], [*["the recipe's own"] * len(own), *["elsewhere"] * len(rows)])
    return read_network_inputs(run, rows, cache_name="elsewhere")


def _shortcuts(
    dataset: Dataset, column: int, images: NDArray[np.uint8], targets: NDArray[np.float32]
) -> dict[str, float]:
    """Return the AUC on `images` of classifiers that see only a shortcut, such as the border, by name of the shortcut.

    The classifiers are fitted to the training images. `column` is the label's column in the recipe's targets. `targets`
    (n,) are the label of `images`: 1, 0, or nan if unknown.
    """
    training = dataset.samples("training")
    labelled, asked = ~np.isnan(training.targets[:, column]), ~np.isnan(targets)
    truth = training.targets[labelled, column] >= 0.5
    return {
        name: metrics.auc(
            shortcut_scores(pixels(training.images[labelled]), truth, pixels(images[asked])), targets[asked] >= 0.5
        )
        for name, pixels in SHORTCUT_FEATURE_EXTRACTORS.items()
    }


_GATE_IMAGES: Final = 3000
_PARTS: Final = ("validation", "test")
_ELSEWHERE: Final = "external_test"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Measured:
    """The images of an evaluation, and the outputs of the network files.

    Attributes
    ----------
    external_set
        The images of the other hospital; None if the recipe names no other hospital.
    int8_outputs
        Outputs of the network's int8 file, by part: "validation", "test", and "external_test" for the other hospital.
    float_outputs
        Outputs of the network's float file for the test images.
    """

    data: Dataset
    external_set: ImageSet | None
    int8_outputs: Mapping[str, NetworkOutputs]
    float_outputs: NetworkOutputs

    def rows(self, part: str) -> Sequence[Row]:
        """Return the table rows of "validation", "test", or "external_test" (the other hospital)."""
        return self.external_set.rows if part == _ELSEWHERE and self.external_set else self.data.rows(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Calibration and operating points of a label, and the AUC on the validation images."""

    points: Sequence[OperatingPoint]
    calibration: Calibration
    validation_auc: Estimate


def evaluate_step(run: Run) -> StepFacts:
    """Evaluate the network's int8 file. Returns the AUC of each label on the test images.

    The step chooses operating points, fits the out-of-distribution check, screens the test images, and measures
    figures. Writes metrics.json, points.json, scores.npz and gate.npz.
    """
    measured = _measured(run)
    data, integer = measured.data, measured.int8_outputs
    gate, gate_figures = _evaluate_gate(run, measured)
    chosen = {label.code: _choose(run, measured, label) for label in run.recipe.pack_labels}
    screened = _screened(run, measured, chosen, gate)
    labels = {
        label.code: _evaluate_label(run, measured, label, chosen[label.code], screened)
        for label in run.recipe.pack_labels
    }
    run.write_step_json(
        "evaluate", "metrics.json", ClassifierFigures(labels=labels, data=data.figures, gate=gate_figures)
    )
    points = tuple(
        with_measured_figures(point, figures=labels[code].test, measured_on=run.recipe.evaluation.measured_on)
        for code, own in chosen.items()
        for point in own.points
    )
    calibration = {code: own.calibration for code, own in chosen.items()}
    run.write_step_json("evaluate", "points.json", EvaluationChoices(points=points, calibration=calibration))
    save_arrays(
        run.step_folder("evaluate") / "gate.npz",
        {"mean": gate.mean, "projection": gate.projection, "limit": np.array(gate.limit)},
    )
    kept = [run.recipe.labels.index(label) for label in run.recipe.pack_labels]
    targets = {f"{part}_targets": data.samples(part).targets[:, kept] for part in _PARTS}
    scores = {part: answers.scores for part, answers in integer.items()} | {"test_float": measured.float_outputs.scores}
    scores["test_screened"] = np.stack([screened["test"].scores(code) for code in labels], axis=1)
    save_arrays(run.step_folder("evaluate") / "scores.npz", {**scores, **targets})
    return {code: to_builtins(own.test.auc) for code, own in labels.items()}


def _measured(run: Run) -> _Measured:
    data = load_dataset(run)
    integer = {part: run_converted_file(run, "int8", data.samples(part).images, part) for part in _PARTS}
    whole = run_converted_file(run, "float", data.samples("test").images, "test, float")
    others = external_images(run, data)
    if others is not None:
        integer[_ELSEWHERE] = run_converted_file(run, "int8", others.images, "images elsewhere")
    return _Measured(data=data, external_set=others, int8_outputs=integer, float_outputs=whole)


def _choose(run: Run, measured: _Measured, label: LabelRule) -> _Choice:
    """Choose the calibration and the operating points of a label from the scores of the validation images."""
    recipe, part = run.recipe, "validation"
    scores = measured.int8_outputs[part].scores[:, recipe.pack_labels.index(label)]
    raw = select_labelled_images(
        scores, _targets(measured, part, label, recipe.labels.index(label)), measured.rows(part)
    )
    calibration = fit_calibration(raw.scores, raw.truth)
    validation = raw.with_calibrated_scores(calibration)
    points = [
        choose_operating_point(point, label=label.code, validation=validation) for point in recipe.evaluation.points
    ]
    return _Choice(points=points, calibration=calibration, validation_auc=validation.auc)


def _targets(measured: _Measured, part: str, label: LabelRule, column: int) -> NDArray[np.float32]:
    """Return the label of each image of a part, as targets (n,): 1, 0, or nan if unknown.

    `column` is the label's column in the recipe's targets.
    """
    if part == _ELSEWHERE:
        return label_targets(measured.rows(part), [label])[:, 0]
    return measured.data.samples(part).targets[:, column]


def _screened(
    run: Run, measured: _Measured, chosen: Mapping[str, _Choice], gate: OutOfDistributionCheck
) -> Mapping[str, ScreeningResults]:
    """Screen the test images and the images of the other hospital with the pack. Returns the results by part."""
    manifest = make_manifest(
        run,
        points=[point for own in chosen.values() for point in own.points],
        calibration={code: own.calibration for code, own in chosen.items()},
        ood_check=gate,
    )
    model = load_temporary_pack(manifest, {"litert": read_converted_file(run, "int8").data}, lung_pack=run.recipe.lungs)
    parts = ["test", *([_ELSEWHERE] if measured.external_set else [])]
    screen = partial(screen_rows, model, threads=run.recipe.training.threads, progress=run.progress)
    return {part: screen(measured.rows(part)) for part in parts}


def _evaluate_label(
    run: Run, measured: _Measured, label: LabelRule, chosen: _Choice, screened: Mapping[str, ScreeningResults]
) -> LabelFigures:
    """Return the figures of one label, measured on screening results and on the scores of the network."""
    data, recipe = measured.data, run.recipe
    column, kept_column = recipe.labels.index(label), recipe.pack_labels.index(label)
    targets = {part: _targets(measured, part, label, column) for part in screened}
    parts = {
        part: data_part_figures(own.cases_by_operating_point(label.code, targets[part]), points=chosen.points)
        for part, own in screened.items()
    }
    elsewhere = None
    if measured.external_set is not None:
        shortcuts = _shortcuts(data, column, measured.external_set.images, targets[_ELSEWHERE])
        elsewhere = HospitalFigures(**structs.asdict(parts[_ELSEWHERE]), shortcuts=shortcuts)
    both = [
        select_labelled_images(own[:, kept_column], targets["test"], data.rows("test"))
        for own in _test_scores(measured)
    ]
    heat_map, evidence = _map_figures(
        measured, kept_column, threshold=chosen.points[0].threshold, calibration=chosen.calibration
    )
    return LabelFigures(
        validation_auc=chosen.validation_auc,
        test=parts["test"],
        by_group=auc_by_group(
            select_labelled_images(screened["test"].scores(label.code), targets["test"], data.rows("test"))
        ),
        shortcuts=_shortcuts(data, column, data.samples("test").images, targets["test"]),
        external_test=elsewhere,
        float_against_int8=compare_with_int8(*both),
        heat_map=heat_map,
        evidence_inside=evidence,
    )


def _test_scores(measured: _Measured) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores (n, labels) of the test images: first of the float file, then of the int8 file."""
    return measured.float_outputs.scores, measured.int8_outputs["test"].scores


def _map_figures(
    measured: _Measured, column: int, *, threshold: float, calibration: Calibration
) -> tuple[HeatMapScale | None, EvidenceFigures | None]:
    """Return the colour scale of a label's heat map, and how much of the heat maps' evidence is inside the lungs.

    The scale is measured on validation images, the evidence on test images. `column` is the label's column in the
    outputs of the pack. The scale is None without evidence, the share of evidence is None without a lung-field pack.
    """
    validation, test = measured.int8_outputs["validation"], measured.int8_outputs["test"]
    logit = evidence_threshold_logit(threshold, calibration)
    scores = metrics.calibrate_scores(validation.scores[:, column], calibration)
    span = heat_map_logit_range(validation.class_maps[:, column], scores, threshold=threshold, evidence_threshold=logit)
    lungs = measured.data.samples("test").lungs
    evidence = None if lungs is None else evidence_figures(test.class_maps[:, column], lungs, evidence_threshold=logit)
    return None if span is None else HeatMapScale(span=span), evidence


def _evaluate_gate(run: Run, measured: _Measured) -> tuple[OutOfDistributionCheck, OodCheckFigures]:
    """Fit the out-of-distribution check, and measure which share of test and out-of-distribution images is refused.

    The check is fitted to training images. The limit of the check is chosen on validation images.
    """
    choice, data, integer = run.recipe.evaluation, measured.data, measured.int8_outputs
    images = np.random.default_rng(run.recipe.training.seed).permutation(data.indices("training"))[:_GATE_IMAGES]
    training = run_converted_file(run, "int8", data.image_set.images[np.sort(images)], "features").features
    gate = fit_ood_check(
        training,
        integer["validation"].features,
        components=choice.ood_gate_components,
        accepted_share=choice.ood_gate_keeps,
    )
    found = OodCheckFigures(limit=gate.limit, images_refused=_refused(gate, integer["test"], data.rows("test")))
    if measured.external_set is not None:
        elsewhere = _refused(gate, integer[_ELSEWHERE], measured.external_set.rows)
        found = structs.replace(found, elsewhere_refused=elsewhere)
    if choice.ood_images is None:
        return gate, found
    ood_images = read_images(
        _ood_rows(run),
        run.recipe.input,
        cache=run.step_folder("data") / "ood.npz",
        progress=run.progress,
        lung_pack=run.recipe.lungs,
    )
    small = read_images(
        data.rows("test"),
        run.recipe.input,
        cache=run.step_folder("data") / "small.npz",
        progress=run.progress,
        shrink_to=choice.ood_side,
        lung_pack=run.recipe.lungs,
    )
    return gate, structs.replace(
        found,
        side=choice.ood_side,
        ood_images=len(ood_images.rows),
        ood_refused=_refused(gate, run_converted_file(run, "int8", ood_images.images, "ood_images"), ood_images.rows),
        images_refused_at_equal_resolution=_refused(
            gate, run_converted_file(run, "int8", small.images, "small images"), small.rows
        ),
    )


def _ood_rows(run: Run) -> list[Row]:
    """Read the table rows of the out-of-distribution images; empty if the recipe has no key `ood_images`."""
    chosen = run.recipe.evaluation.ood_images
    return read_rows([chosen], folder=run.step_folder("data")) if chosen else []


def _refused(gate: OutOfDistributionCheck, answers: NetworkOutputs, rows: Sequence[Row]) -> Share:
    return share_of_hits(ood_distances(gate, answers.features) > gate.limit, patients=[row.person_id for row in rows])


EVALUATE_STEP: Final = Step(
    name="evaluate",
    perform=evaluate_step,
    recipe_keys=("evaluation",),
    outside_inputs_digest=lambda run: digest("screened", rows_digest([*_ood_rows(run), *external_rows(run)])),
    outputs=("metrics.json", "points.json", "gate.npz", "scores.npz"),
)

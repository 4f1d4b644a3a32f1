"""The pages of a comparison and of a cross-validation, which are published beside their figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.files import publish
from fieldray.adaptation.page import Figure, Report, Section, Table, page, settings
from fieldray.adaptation.plots import score_plots, training_curves
from fieldray.adaptation.report import SCORES_CAPTION, group_tables
from fieldray.domain.intervals import told

_COMPARISON: Final = """Both networks were trained on the same images. The code that screens ran both int8 files on the
same images; they were timed alternating, image by image, on one thread in one run. The difference is the pack's AUC
minus the unpruned network's, with a 95 % interval over patients. Nothing was chosen on test images. The time on the
Edge TPU is an estimate."""
_CROSS: Final = """Each fold's images were scored by a network trained on the other folds, so no network was trained on
images of a patient it is evaluated on. Intervals are 95 % over patients. The border's pixels alone and a thumbnail were
fitted and evaluated on the same images in the same folds: a network whose result is near theirs has learned little of
the lungs. Each network was pruned where the recipe prunes, and converted to int8 as a pack's is; figures without a
stage are those of the int8 file."""
_STAGES: Final = {"trained": "as trained", "pruned": "pruned", "int8": "int8 file"}
_MIB: Final = 2**20
Scored = tuple[NDArray[np.float64], NDArray[np.bool_]]


def write_comparison(path: Path, results: Mapping[str, Any]) -> None:
    """Write the page of a comparison's results (as `compare.compare_step` makes them). Raises StorageProblem."""
    curves = training_curves(results["history"], labels=results["trained_labels"])
    caption = "Loss on the training images, and AUC on the validation images, per epoch."
    sections = [
        Section(title="Size and speed", parts=_speed(results)),
        *[Section(title=f"AUC: {code}", parts=[_quality(found)]) for code, found in results["labels"].items()],
        Section(
            title="Training of the unpruned network",
            parts=[Figure(svg=curves, caption=caption), *settings(results["trained"])],
        ),
    ]
    title = f"{results['pack']} against the unpruned network"
    publish(path, page(Report(title=title, lead=_COMPARISON, sections=sections)))


def _speed(results: Mapping[str, Any]) -> list[Table]:
    whole, pack, ratios = results["networks"]["whole"], results["networks"]["pack"], results["times_less"]
    rows = [
        ["multiply-adds per image, millions", *(f"{row['multiply_adds'] / 1e6:.1f}" for row in (whole, pack))],
        ["int8 file, MiB", *(f"{row['file_bytes'] / _MIB:.2f}" for row in (whole, pack))],
        ["Edge TPU, ms per image (estimate)", *(f"{row['edgetpu_estimate_ms']:.1f}" for row in (whole, pack))],
        ["int8 on one CPU thread, ms per image", *(f"{row['milliseconds']:.3f}" for row in (whole, pack))],
    ]
    cells = [[*row, f"{ratios[name]:.2f}"] for row, name in zip(rows, ratios, strict=True)]
    mapped = [
        [
            "operators mapped to the Edge TPU",
            *(f"{row['mapped']} of {row['operators']}" for row in (whole, pack)),
        ],
        [
            "sent to the Edge TPU for every image, MiB",
            *(f"{row['streamed_bytes'] / _MIB:.2f}" for row in (whole, pack)),
        ],
    ]
    return [
        Table(head=("", "unpruned", "pack", "times less"), rows=cells),
        Table(head=("Edge TPU", "unpruned", "pack"), rows=mapped),
    ]


def _quality(found: Mapping[str, Any]) -> Table:
    head = ("part", "images", "with the finding", "unpruned, float", "unpruned, int8", "pack, int8", "difference")
    rows = [
        [
            part,
            f"{row['images']:,}",
            f"{row['positive']:,}",
            *(told(row["auc"][name], ".3f") for name in ("whole_float", "whole", "pack")),
            told(row["difference"], "+.4f"),
        ]
        for part, row in found.items()
    ]
    return Table(head=head, rows=rows)


def write_cross_validation(path: Path, results: Mapping[str, Any], *, scored: Mapping[str, Scored]) -> None:
    """Write the page of a cross-validation's results.

    Parameters
    ----------
    path
        The page.
    results
        As `cross.cross_step` makes them.
    scored
        By label: scores (n,) in 0..1, and truth (n,), of the images evaluated.

    Raises
    ------
    StorageProblem
        The page cannot be written.
    """
    sections = [
        *[_fold_section(code, found, scored[code]) for code, found in results["labels"].items()],
        Section(title="What was trained", parts=settings(results["trained"])),
    ]
    publish(path, page(Report(title=f"{results['pack']}: cross-validation", lead=_CROSS, sections=sections)))


def _fold_section(code: str, found: Mapping[str, Any], scored: Scored) -> Section:
    stages, float_against = found["stages"], found["float_against_int8"]
    rows = [
        ["images, patients", f"{found['images']:,}, {found['patients']:,}"],
        ["with, without the finding", f"{found['positive']:,}, {found['negative']:,}"],
        *[[f"AUC, {_STAGES[stage]}", told(made["auc"])] for stage, made in stages.items()],
        ["AUC, int8 file minus as trained", told(found["after_training"], "+.3f")],
        ["score, int8 against float: mean difference", f"{float_against['mean_absolute_difference']:.4f}"],
        *[[f"AUC of fold {fold}, int8 file", f"{area:.3f}"] for fold, area in stages["int8"]["auc_by_fold"].items()],
        *[[f"AUC of the image's {name} alone", f"{area:.3f}"] for name, area in found["shortcuts"].items()],
        *[
            [f"specificity at a sensitivity of {float(at):.0%}", told(value)]
            for at, value in found["specificity_at_sensitivity"].items()
        ],
    ]
    return Section(
        title=code,
        parts=[
            Figure(svg=score_plots(*scored, points={}), caption=SCORES_CAPTION),
            Table(head=("figure", "value (95 % interval)"), rows=rows),
            *group_tables(found["by_group"]),
        ],
    )

"""A pack measured at another hospital: nothing of it is trained or chosen on, so thresholds come as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldray.domain import metrics
from fieldray.domain.model import Calibration, OperatingPoint
from fieldray_adapt.dataset import Dataset, images_of, targets_of
from fieldray_adapt.evaluate import border_pixels, figures, known, shortcut_scores, thumbnail_pixels
from fieldray_adapt.image_set import ImageSet, read_rows
from fieldray_adapt.layouts import Row
from fieldray_adapt.recipe_data import LabelRule
from fieldray_adapt.run import Run
from fieldray_adapt.split import refuse_leak, refuse_settled


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
    training = own.samples("training")
    told = ~np.isnan(training.targets[:, column])
    trained_on, truth = training.images[told], training.targets[told, column] >= 0.5
    asked = others.images[~np.isnan(targets)]
    shortcuts = {
        name: metrics.auc(shortcut_scores(pixels(trained_on), truth, pixels(asked)), evaluated.truth)
        for name, pixels in (("border", border_pixels), ("thumbnail", thumbnail_pixels))
    }
    return figures(evaluated, points=points) | {"shortcuts": shortcuts}

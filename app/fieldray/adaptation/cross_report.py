"""The page of a cross-validation: each judged image's score comes from a network that saw none of its patient's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.adaptation.files import publish
from fieldray.adaptation.intervals import told
from fieldray.adaptation.page import page, table, text
from fieldray.adaptation.plots import score_plots

_NOTE: Final = """Each fold's images were judged by a network trained on the other folds, so no network saw images of a
patient it judges. Intervals are 95 % over patients. The border's pixels alone and a thumbnail were fitted and judged on
the same images in the same folds: a result near theirs is no result. Each network was pruned where the recipe prunes,
and made an int8 file as a pack's is; the figures without a stage are those of that file."""
_STAGES: Final = {"trained": "as trained", "pruned": "pruned", "int8": "int8 file"}
Scored = tuple[NDArray[np.float64], NDArray[np.bool_]]


def write_report(path: Path, results: Mapping[str, Any], *, scored: Mapping[str, Scored]) -> None:
    """Write the page of a cross-validation's results. Raises StorageProblem.

    scored    by label: scores (n,) in 0..1 and truth (n,) of the images judged
    """
    title = f"{results['pack']}: cross-validation"
    parts = [
        f"<h1>{text(title)}</h1>",
        '<p class="note">Research use only. Not for diagnostic use.</p>',
        f"<p>{_NOTE}</p>",
        *[_label(code, found, scored[code]) for code, found in results["labels"].items()],
        "<h2>What was trained</h2><pre>" + text(json.dumps(results["trained"], indent=1)) + "</pre>",
    ]
    publish(path, page(title, parts))


def _label(code: str, found: Mapping[str, Any], scored: Scored) -> str:
    stages, float_against = found["stages"], found["float_against_int8"]
    rows = [
        ["images, patients", f"{found['images']}, {found['patients']}"],
        ["with, without", f"{found['positive']}, {found['negative']}"],
        *[[f"AUC, {_STAGES[stage]}", told(made["auc"])] for stage, made in stages.items()],
        ["int8 file less as trained", told(found["after_training"], "+.3f")],
        ["int8 against float, mean score difference", f"{float_against['mean_absolute_difference']:.4f}"],
        *[[f"AUC of fold {fold}, int8 file", f"{area:.3f}"] for fold, area in stages["int8"]["auc_by_fold"].items()],
        *[[f"AUC of the {name} alone", f"{area:.3f}"] for name, area in found["shortcuts"].items()],
        *[
            [f"specificity at sensitivity {at}", told(value)]
            for at, value in found["specificity_at_sensitivity"].items()
        ],
    ]
    groups = [
        [group, name, facts["images"], facts["positive"], told(facts["auc"])]
        for group, members in found["by_group"].items()
        for name, facts in members.items()
    ]
    return (
        f"<h2>{text(code)}</h2>"
        + score_plots(*scored, points={})
        + table(["figure", "value"], rows)
        + (table(["group", "", "images", "with the finding", "AUC"], groups) if groups else "")
    )

"""The report of a lung-field run: training curves, fit of the masks, and pictures of good and bad masks."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.evaluation.figures import figure_text
from fieldray_adapt.lungs.dataset import LungData, load_lung_data
from fieldray_adapt.lungs.evaluate import enlarge_mask, select_mask
from fieldray_adapt.lungs.figures import (
    LungFigures,
    SourceMaskFits,
)
from fieldray_adapt.lungs.mask_fit import MaskFit
from fieldray_adapt.lungs.masks import read_mask
from fieldray_adapt.lungs.panels import draw_overlay, png_bytes
from fieldray_adapt.lungs.quantise import run_tflite_file
from fieldray_adapt.lungs.recipe import LungRecipe, lung_recipe_of
from fieldray_adapt.reports.page import (
    CodeBlock,
    Figure,
    Paragraph,
    ReportPart,
    Section,
    Table,
    facts_table,
    write_run_page,
)
from fieldray_adapt.run import EPOCH_HISTORY_FILE_NAME, Run, Step, StepFacts
from fieldray_adapt.training.loop import EpochFigures
from fieldray_adapt.training.steps import read_converted_file

_MEASURE_TITLES: Final = {
    "dice": "Dice of the lungs",
    "jaccard": "Jaccard",
    "average_distance": "average distance of the outlines, pixels of 512",
    "average_distance_percent_of_width": "average distance of the outlines, % of the width",
    "distance_95": "95 % of the outline is nearer than, pixels of 512",
}
MASK_FIT_COLUMNS: Final = ("source", "images", "patients", *_MEASURE_TITLES.values(), "least Dice")


def mask_fit_row(name: str, fits: SourceMaskFits) -> list[str]:
    """Return the cells of one source's row in the table of mask fits. `MASK_FIT_COLUMNS` names the columns."""
    digits = {"dice": ".4f", "jaccard": ".4f"}
    cells = [figure_text(getattr(fits, key), digits.get(key, ".2f")) for key in _MEASURE_TITLES]
    return [name, str(fits.images), str(fits.patients), *cells, f"{fits.least_dice:.4f}"]


def report_step(run: Run) -> StepFacts:
    """Write report.html: training figures, fit of the masks, and pictures of the best, median and worst masks."""
    metrics = run.read_step_json("evaluate", "metrics.json", LungFigures)
    history, recipe = run.read_step_json("train", EPOCH_HISTORY_FILE_NAME, list[EpochFigures]), lung_recipe_of(run)
    curves = [[str(row.epoch), str(row.side), f"{row.loss:.4f}", *_dice_cells(row)] for row in history]
    masks = [
        Table(rows=[mask_fit_row(*item) for item in found.items()], column_names=MASK_FIT_COLUMNS, caption=name)
        for name, found in metrics.masks.items()
        if found
    ]
    sections = [
        Section(title="How well the masks fit", parts=masks),
        Section(title="Best, median and worst", parts=_overlays(run) if "int8" in metrics.masks else []),
        Section(title="Thresholds", parts=[facts_table(metrics.thresholds)] if metrics.thresholds else []),
        Section(
            title="Training",
            parts=[
                Table(rows=curves, column_names=("epoch", "side", "loss", "validation Dice", "least Dice", "frontal"))
            ],
        ),
        Section(title="Recipe", parts=[CodeBlock(run.recipe_text or "{}")]),
    ]
    return write_run_page(run, f"Lung fields: {recipe.pack.id} {recipe.pack.version}", sections)


def _dice_cells(row: EpochFigures) -> list[str]:
    return ["-" if value is None else str(value) for value in (row.dice, row.least_dice, row.frontal)]


def _overlays(run: Run) -> list[ReportPart]:
    """Return pictures of the best, median and worst predicted mask of each source, as parts of the report.

    The X-ray is black in the pictures if the recipe does not allow the report to show images.
    """
    recipe, data, fits = (
        lung_recipe_of(run),
        load_lung_data(run),
        run.read_step_json("evaluate", "fits.json", dict[str, MaskFit]),
    )
    parts: list[ReportPart] = [Paragraph("Green: the true outline; red: the one found.")]
    for source in sorted({str(data.image_sources[index]) for index in _known(data, fits)}):
        own = [index for index in _known(data, fits) if data.image_sources[index] == source]
        ranked = sorted(own, key=lambda index: fits[str(data.image_paths[index])].dice)
        chosen = {"best": ranked[-1], "median": ranked[len(ranked) // 2], "worst": ranked[0]}
        drawn = np.hstack([_drawn(run, recipe, data, index) for index in chosen.values()])
        said = ", ".join(f"{name} {fits[str(data.image_paths[i])].dice:.3f}" for name, i in chosen.items())
        parts.append(Figure(svg=_embedded(drawn), caption=f"{source}: {said}"))
    return parts


def _known(data: LungData, fits: Mapping[str, MaskFit]) -> list[int]:
    return [index for index, path in enumerate(data.image_paths) if str(path) in fits]


def _drawn(run: Run, recipe: LungRecipe, data: LungData, index: int) -> NDArray[np.uint8]:
    truth = read_mask(Path(str(data.mask_paths[index])))
    shares, _ = run_tflite_file(read_converted_file(run, "int8"), data.images[index : index + 1])
    found = enlarge_mask(select_mask(recipe, data, index, shares[0]), truth.shape, recipe.evaluation.mask_threshold)
    image = data.images[index] if recipe.evaluation.shows_images else np.zeros_like(data.images[index])
    return draw_overlay(image, truth, found)


def _embedded(pixels: NDArray[np.uint8]) -> str:
    rows, columns = pixels.shape[:2]
    data = base64.b64encode(png_bytes(pixels)).decode()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns} {rows}" width="{columns}">'
        f'<image width="{columns}" height="{rows}" href="data:image/png;base64,{data}"/></svg>'
    )


LUNG_REPORT_STEP: Final = Step(name="report", perform=report_step, recipe_keys=("evaluation",))

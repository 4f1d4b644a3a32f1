"""What a lung-field recipe ends in: the model card, the report with overlays, and the signed pack.

The report draws the best, a median and the worst mask. The pack holds manifest, model card and self-test.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.intervals import told
from fieldray.domain.model import LUNG_CHECKS, GoldenVectors
from fieldray.packs.manifest_types import GoldenTolerance, LungCheck, LungFieldsManifest, LungOutputs
from fieldray.packs.write import golden_files
from fieldray_adapt.files import write_atomically
from fieldray_adapt.lungs.check_samples import DRAWN, apply
from fieldray_adapt.lungs.dataset import LungData, data_of, read_mask
from fieldray_adapt.lungs.evaluate import enlarged
from fieldray_adapt.lungs.recipe import LungRecipe, recipe_of
from fieldray_adapt.lungs.train import overlay, png, run_file, specification_of
from fieldray_adapt.pack import GOLDEN_TOLERANCE, card, evaluated, phantom, provenance, whole_pack_step, write_whole
from fieldray_adapt.page import Code, Figure, Part, Report, Section, Table, Text, facts, page
from fieldray_adapt.quantise import Converted
from fieldray_adapt.run import Run, Step
from fieldray_adapt.specification import Specification
from fieldray_adapt.steps import converted

Facts = Mapping[str, Any]
_MEASURES: Final = {
    "dice": "Dice of the lungs",
    "jaccard": "Jaccard",
    "average_distance": "average distance of the outlines, pixels of 512",
    "average_distance_percent_of_width": "the same, % of the width",
    "distance_95": "95 % of the outline is nearer than, pixels of 512",
}
_HEAD: Final = ("source", "images", "patients", *_MEASURES.values(), "least Dice")


def lung_card(
    recipe: LungRecipe,
    *,
    specification: Specification,
    size_bytes: int,
    data: Facts,
    metrics: Facts,
    tools: Facts,
) -> str:
    """The card's Markdown. `data` are the facts of the data step, `metrics` those of the evaluation."""
    evaluated_only = [source.name for source in recipe.masks if source.evaluate_only]
    return card(
        "lungs_card.md",
        recipe.pack,
        specification=specification,
        size_bytes=size_bytes,
        tools=tools,
        recipe=recipe,
        data=data,
        metrics=metrics,
        only=evaluated_only,
        both=sorted(set(evaluated_only) & set(data["chests"])),
        head=_HEAD,
        fits=[_fit_row(name, found) for name, found in metrics["masks"]["int8"].items()],
    )


def _fit_row(name: str, found: Facts) -> list[str]:
    digits = {"dice": ".4f", "jaccard": ".4f"}
    told_ones = [told(found[key], digits.get(key, ".2f")) for key in _MEASURES]
    return [name, str(found["images"]), str(found["patients"]), *told_ones, f"{found['least_dice']:.4f}"]


def report_step(run: Run) -> Mapping[str, Any]:
    """report.html: how the training went, how the masks fit, and overlays of the best, a median and the worst."""
    metrics, history = run.read("evaluate", "metrics.json"), run.read("train", "history.json")
    recipe = recipe_of(run)
    curves = [[str(row["epoch"]), str(row["side"]), f"{row['loss']:.4f}", *_seen(row)] for row in history]
    masks = [
        Table(rows=[_fit_row(*item) for item in found.items()], head=_HEAD, caption=name)
        for name, found in metrics["masks"].items()
        if found
    ]
    sections = [
        Section(title="How well the masks fit", parts=masks),
        Section(title="Best, median and worst", parts=_overlays(run) if "int8" in metrics["masks"] else []),
        Section(title="Thresholds", parts=[facts(metrics["thresholds"])] if "thresholds" in metrics else []),
        Section(
            title="Training",
            parts=[Table(rows=curves, head=("epoch", "side", "loss", "validation Dice", "least Dice", "frontal"))],
        ),
        Section(title="Recipe", parts=[Code(run.text or json.dumps({}))]),
    ]
    title = f"Lung fields: {recipe.pack.id} {recipe.pack.version}"
    write_atomically(recipe.run / "report.html", page(Report(title=title, sections=sections)))
    return {"report": str(recipe.run / "report.html")}


def _seen(row: Facts) -> list[str]:
    return [str(row.get(name, "-")) for name in ("dice", "least_dice", "frontal")]


def _overlays(run: Run) -> list[Part]:
    """By source; without the images themselves where they may not be shown."""
    recipe, data, fits = recipe_of(run), data_of(run), run.read("evaluate", "fits.json")
    parts: list[Part] = [Text("Green: the true outline; red: the one found.")]
    for source in sorted({str(data.image_sources[index]) for index in _known(data, fits)}):
        own = [index for index in _known(data, fits) if data.image_sources[index] == source]
        ranked = sorted(own, key=lambda index: float(fits[data.image_paths[index]]["dice"]))
        chosen = {"best": ranked[-1], "median": ranked[len(ranked) // 2], "worst": ranked[0]}
        drawn = np.hstack([_drawn(run, recipe, data, index) for index in chosen.values()])
        said = ", ".join(f"{name} {fits[data.image_paths[i]]['dice']:.3f}" for name, i in chosen.items())
        parts.append(Figure(svg=_embedded(drawn), caption=f"{source}: {said}"))
    return parts


def _known(data: LungData, fits: Facts) -> list[int]:
    return [index for index, path in enumerate(data.image_paths) if str(path) in fits]


def _drawn(run: Run, recipe: LungRecipe, data: LungData, index: int) -> NDArray[np.uint8]:
    truth = read_mask(Path(str(data.mask_paths[index])))
    shares, _ = run_file(converted(run, "int8"), data.images[index : index + 1])
    found = enlarged(shares[0], truth.shape, recipe.evaluation.mask_threshold)
    image = data.images[index] if recipe.evaluation.shows_images else np.zeros_like(data.images[index])
    return overlay(image, truth, found)


def _embedded(pixels: NDArray[np.uint8]) -> str:
    rows, columns = pixels.shape[:2]
    data = base64.b64encode(png(pixels)).decode()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns} {rows}" width="{columns}">'
        f'<image width="{columns}" height="{rows}" href="data:image/png;base64,{data}"/></svg>'
    )


LUNG_REPORT: Final = Step(name="report", perform=report_step, reads=("evaluation",))


_GOLDEN_SEED: Final = 5


def pack_step(run: Run) -> Mapping[str, Any]:
    """Write the pack; the signing key is made where the recipe says, if it is not there.

    Raises UsageProblem `step_missing`, PackProblem `pack_older`, StorageProblem.
    """
    recipe, metrics, thresholds = recipe_of(run), evaluated(run), evaluated(run, "thresholds.json")
    file, made_with, golden = converted(run, "int8"), _provenance(run), _golden(recipe, converted(run, "int8"))
    card = lung_card(
        recipe,
        specification=specification_of(recipe),
        size_bytes=len(file.data),
        data=run.read("data", "facts.json"),
        metrics=metrics,
        tools=made_with,
    )
    return write_whole(
        recipe,
        LungFieldsManifest,
        {"litert": file.data, "card": card.encode(), **golden_files(golden)},
        outputs=LungOutputs(mask=file.outputs["mask"], checks=file.outputs["scores"]),
        golden=GoldenTolerance(tolerance=golden.tolerance),
        checks=tuple(LungCheck(name=name, threshold=round(thresholds[name], 4)) for name in LUNG_CHECKS),
        mask_threshold=recipe.evaluation.mask_threshold,
        provenance=made_with,
        metrics=metrics,
    )


def _provenance(run: Run) -> dict[str, str]:
    recipe = recipe_of(run)
    learnt = [source.name for source in recipe.masks if not source.evaluate_only]
    return provenance(run, data=[*learnt, *(source.name for source in recipe.chests)])


def _golden(recipe: LungRecipe, file: Converted) -> GoldenVectors:
    """Synthetic images, no patient's: chests upright, turned, mirrored and inverted, and an OOD image."""
    chest: NDArray[np.uint8] = phantom(1, recipe.input)[..., 0]
    generator = np.random.default_rng(_GOLDEN_SEED)
    changes: tuple[dict[str, Any], ...] = ({}, {"turns": 1}, {"turns": 2}, {"is_inverted": True}, {"is_mirrored": True})
    images = [apply(chest, **how)[0] for how in changes] + [DRAWN["scene"](len(chest), generator)]
    inputs = np.stack(images)
    return GoldenVectors(inputs=inputs[..., None], scores=run_file(file, inputs)[1], tolerance=GOLDEN_TOLERANCE)


LUNG_PACK: Final = whole_pack_step(pack_step)

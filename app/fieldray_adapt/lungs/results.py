"""What a lung-field network comes to: evaluate step, cross-validation by hospitals, report, model card, signed pack.

The evaluate step: how well masks fit, by source, and how well the checks tell what they should.

Thresholds of the checks come from the validation images; everything else is measured on images that nothing was learnt
from or chosen on. Intervals are 95 % and count patients.

Each hospital left out in turn: how a recipe's network does where it was never trained.

As many networks as there are hospitals. Each learns from no chest image of one hospital and from none of a part of the
masks, which are divided by patient: every mask that is learnt from is also measured once, by a network that never saw
it. What is measured is the recipe, not the one network that ships.

The report draws the best, a median and the worst mask. The pack holds manifest, model card and self-test.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from PIL import Image

from fieldray.domain.metrics import Share, drawn_interval, share
from fieldray.domain.model import LUNG_CHECKS, GoldenVectors
from fieldray.errors import UsageProblem
from fieldray.packs.manifest import GoldenTolerance, LungCheck, LungFieldsManifest, LungOutputs
from fieldray.packs.verified import golden_files
from fieldray.reasons import reason
from fieldray_adapt.data.augmentation import DRAWN, WEIGHTS, CheckImages, apply
from fieldray_adapt.evaluation.figures import Interval, as_text
from fieldray_adapt.files import plain
from fieldray_adapt.lungs.dataset import REFERENCE_SIDE, Fit, LungData, data_of, fit_of, read_mask
from fieldray_adapt.lungs.figures import (
    CheckFigures,
    CheckRates,
    FitDifference,
    LeftOutFigures,
    LungCrossFigures,
    LungDataFigures,
    LungFigures,
    SourceFits,
)
from fieldray_adapt.lungs.recipe import LungRecipe, recipe_of
from fieldray_adapt.lungs.train import (
    MaskEngine,
    overlay,
    png,
    run_file,
    specification_of,
    to_files,
    train,
    use_threads,
)
from fieldray_adapt.networks.quantise import Converted
from fieldray_adapt.pack.step import (
    GOLDEN_TOLERANCE,
    card,
    evaluated,
    phantom,
    provenance,
    whole_pack_step,
    write_whole,
)
from fieldray_adapt.reports.page import Code, Figure, Part, Section, Table, Text, facts, keep_page
from fieldray_adapt.run import HISTORY, Facts, Run, Step
from fieldray_adapt.training.engine import EpochFigures
from fieldray_adapt.training.steps import converted_file, trained_weights

Answer = Callable[[NDArray[np.uint8]], tuple[NDArray[np.float32], NDArray[np.float32]]]
_MEASURES: Final = ("dice", "jaccard", "average_distance", "distance_95")
_VALIDATION_CHESTS: Final = 240
_TEST_CHESTS: Final = 120
_OOD_IMAGES: Final = 60
_FRONTAL_BOUNDS: Final = (0.2, 0.8)
_FRONTAL_STEPS: Final = 61


def evaluate_step(run: Run) -> Facts:
    """Measure; metrics.json, fits.json (by image) and, for a network with checks, thresholds.json."""
    recipe, data = recipe_of(run), data_of(run)
    answers = _answers(run)
    fits = {name: fits_of(recipe, data, answer) for name, answer in answers.items()}
    best = fits["int8" if "int8" in fits else "trained"]
    metrics = LungFigures(masks={name: summary(data, found) for name, found in fits.items()})
    if "int8" in fits:
        checks, difference = checks_of(recipe, data, answers["int8"]), _difference(fits["int8"], fits["float"])
        metrics = structs.replace(metrics, int8_less_float=difference, **structs.asdict(checks))
        run.write("evaluate", "thresholds.json", checks.thresholds)
    run.write("evaluate", "fits.json", {str(data.image_paths[index]): fit for index, fit in best.items()})
    run.write("evaluate", "metrics.json", metrics)
    return {name: found.dice.value for name, found in next(iter(metrics.masks.values())).items()}


def _answers(run: Run) -> dict[str, Answer]:
    """What answers: the int8 and the float file, or the published network as it was trained."""
    recipe = recipe_of(run)
    if recipe.network.kind == "compact":
        files = {name: converted_file(run, name) for name in ("int8", "float")}
        return {name: partial(run_file, file) for name, file in files.items()}
    engine = MaskEngine(recipe.network, recipe.input.height, recipe.training)
    engine.set_weights(trained_weights(run))
    return {"trained": engine.predict}


def enlarged(shares: NDArray[np.float32], shape: tuple[int, ...], threshold: float) -> NDArray[np.bool_]:
    """A mask (rows, columns) of the image's size from the shares of a network's cells, interpolated linearly."""
    rows, columns = shape
    sized = Image.fromarray(shares).resize((columns, rows), Image.Resampling.BILINEAR)
    return np.asarray(sized) >= threshold


def fits_of(
    recipe: LungRecipe, data: LungData, answer: Answer, *, parts: Sequence[str] = ("test", "evaluate")
) -> dict[int, Fit]:
    """How each mask of some parts fits, at the size of the true mask."""
    chosen = np.concatenate([data.of(part) for part in parts])
    if not len(chosen):
        return {}
    shares, _ = answer(data.images[chosen])
    fits = {}
    for index, found in zip(chosen, shares, strict=True):
        truth = read_mask(Path(data.mask_paths[index]))
        own = mask_for(recipe, data, index, found)
        fits[int(index)] = fit_of(enlarged(own, truth.shape, recipe.evaluation.mask_threshold), truth)
    return fits


def mask_for(recipe: LungRecipe, data: LungData, index: int, found: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of an image's masks (rows, columns, masks) the one that shows what its true mask does."""
    return np.ascontiguousarray(found[..., int(data.image_sources[index] in recipe.region_sources)])


def summary(data: LungData, fits: Mapping[int, Fit]) -> dict[str, SourceFits]:
    """By source: the mean of each measure with its interval, and the least Dice."""
    found = {}
    indices = np.array(list(fits), np.int64)
    for source in sorted(set(data.image_sources[indices])):
        own = [int(index) for index in indices if data.image_sources[index] == source]
        patients = [str(data.image_patients[index]) for index in own]
        means = {name: _mean([getattr(fits[index], name) for index in own], patients) for name in _MEASURES}
        share_of_width = {
            key: value / REFERENCE_SIDE * 100 for key, value in structs.asdict(means["average_distance"]).items()
        }
        found[str(source)] = SourceFits(
            images=len(own),
            patients=len(set(patients)),
            **means,
            average_distance_percent_of_width=Interval(**share_of_width),
            least_dice=min(fits[index].dice for index in own),
        )
    return found


def _mean(values: list[float], patients: list[str]) -> Interval:
    scores = np.array(values)
    none = np.zeros(len(scores), np.bool_)
    value, low, high = drawn_interval(lambda drawn, _: float(drawn.mean()), scores, none, patients=patients)
    return Interval(value=value, low=low, high=high)


def _difference(integer: Mapping[int, Fit], whole: Mapping[int, Fit]) -> FitDifference:
    each = np.array([integer[index].dice - whole[index].dice for index in integer])
    return FitDifference(dice=float(each.mean()), largest=float(np.abs(each).max()))


def checks_of(recipe: LungRecipe, data: LungData, answer: Answer) -> CheckFigures:
    """Thresholds of the checks, chosen on validation images; by source and kind what they say of test images."""
    validation = data.checks("validation", {}, side=recipe.input.height)
    thresholds = dict.fromkeys(LUNG_CHECKS, 0.5)
    if validation is not None:
        chests = np.concatenate([images for images, _ in validation.chests.values()])
        refusable = np.concatenate([_ood_images_of(validation, kind, recipe) for kind in _kinds(validation)])
        thresholds = choose_thresholds(
            _some(chests, _VALIDATION_CHESTS), refusable, answer, keeps=recipe.evaluation.keeps
        )
    test = data.checks("test", {}, side=recipe.input.height)
    if test is None:
        return CheckFigures(thresholds=thresholds)
    accepted = {name: check_rates(images, answer, thresholds) for name, (images, _) in test.chests.items()}
    limit = thresholds[LUNG_CHECKS[0]]
    refused = {kind: _share(answer(_ood_images_of(test, kind, recipe))[1][:, 0] < limit) for kind in _kinds(test)}
    return CheckFigures(thresholds=thresholds, chests=accepted, ood_images=refused)


def choose_thresholds(
    chests: NDArray[np.uint8], refusable: NDArray[np.uint8], answer: Answer, *, keeps: float
) -> dict[str, float]:
    """By check: from which score on it holds.

    A frontal chest image: where accepted chests and refused OOD images are most, added as shares. All others: so that a
    share of upright chest images is left as it is; what can turn an image away needs a score of at least one half.
    """
    scores, strange = answer(chests)[1], answer(refusable)[1][:, 0]
    tried = np.linspace(*_FRONTAL_BOUNDS, _FRONTAL_STEPS)
    balance = [(scores[:, 0] >= value).mean() + (strange < value).mean() for value in tried]
    others = np.quantile(scores[:, 1:], keeps, axis=0)
    found = {name: float(max(0.5, min(0.95, value))) for name, value in zip(LUNG_CHECKS[1:], others, strict=True)}
    return {LUNG_CHECKS[0]: float(tried[int(np.argmax(balance))]), **found}


def check_rates(
    images: NDArray[np.uint8], answer: Answer, thresholds: Mapping[str, float], *, most: int = _TEST_CHESTS
) -> CheckRates:
    """Of a source's images, at most so many: how many are accepted upright, and how many each change is noticed in."""
    images, limits = _some(images, most), np.array([thresholds[name] for name in LUNG_CHECKS])
    changes = {
        "rotated_90": partial(apply, turns=1),
        "rotated_180": partial(apply, turns=2),
        "rotated_270": partial(apply, turns=3),
        "inverted": partial(apply, is_inverted=True),
        "mirrored": partial(apply, is_mirrored=True),
    }
    upright = answer(images)[1] >= limits
    rows = {"frontal_chest": _share(upright[:, 0])}
    rows["left_as_it_is"] = _share(upright[:, 0] & ~upright[:, 1:5].any(axis=1))
    for name, change in changes.items():
        held = answer(np.stack([change(image)[0] for image in images]))[1] >= limits
        rows[name] = _share(held[:, LUNG_CHECKS.index(name)])
        rows[f"{name}_false"] = _share(upright[:, LUNG_CHECKS.index(name)])
    return rows


def _kinds(images: CheckImages) -> list[str]:
    return [*WEIGHTS, *(["files"] if len(images.ood_images) else [])]


def _ood_images_of(images: CheckImages, kind: str, recipe: LungRecipe) -> NDArray[np.uint8]:
    """OOD images of a kind, the same whenever they are asked for."""
    if kind == "files":
        return _some(images.ood_images, _OOD_IMAGES)
    generator, settings = np.random.default_rng(len(kind)), recipe.checks_augmentation
    return np.stack([images.ood_image(settings, generator=generator, kind=kind) for _ in range(_OOD_IMAGES)])


def _share(hits: NDArray[np.bool_]) -> Share:
    return share(hits, patients=[str(index) for index in range(len(hits))])


def _some(images: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """At most so many, evenly over all."""
    if len(images) <= count:
        return images
    chosen: NDArray[np.uint8] = images[np.linspace(0, len(images) - 1, count).round().astype(int)]
    return chosen


LUNG_EVALUATE: Final = Step(
    name="evaluate",
    perform=evaluate_step,
    reads=("evaluation",),
    leaves=("metrics.json", "fits.json"),
)


_HELD: Final = "held out"
_LEFT_OUT: Final = "left out"
_UNUSED: Final = "none"


def hospitals(recipe: LungRecipe) -> tuple[str, ...]:
    """The groups of the chest images and the sources of masks that are learnt, by name."""
    masks = {source.name for source in recipe.masks if not source.evaluate_only}
    return tuple(sorted(masks | {source.group for source in recipe.chests}))


def left_out(recipe: LungRecipe, data: LungData, number: int) -> LungData:
    """The data without the hospital of that number and without as large a part of the masks.

    The part of the masks is "held out", the hospital's chest images are "left out"; masks that are never learnt are to
    be evaluated if they are the hospital's. What was to be tested otherwise is trained on.
    """
    names = hospitals(recipe)
    learnt = data.image_parts != "evaluate"
    patients = sorted(set(data.image_patients[learnt]))
    fold = {patient: index % len(names) for index, patient in enumerate(patients)}
    held = np.array([fold.get(str(patient)) == number for patient in data.image_patients]) & learnt
    own = data.image_sources == names[number]
    images = np.where(data.image_parts == "validation", "validation", "training").astype("U16")
    images[~learnt] = np.where(own[~learnt], "evaluate", _UNUSED)
    images[held] = _HELD
    if not (images == "validation").any():
        images[np.flatnonzero(images == "training")[:1]] = "validation"
    groups = {source.name: source.group for source in recipe.chests}
    chests = data.chest_parts.astype("U16")
    chests[[groups[str(source)] == names[number] for source in data.chest_sources]] = _LEFT_OUT
    is_masks = any(source.name == names[number] and not source.evaluate_only for source in recipe.masks)
    return replace(data, image_parts=images, chest_parts=chests, masks_are_chests=not is_masks)


def cross_step(run: Run) -> Facts:
    """A network for each hospital left out; metrics.json.

    Raises UsageProblem where the chest images are of fewer than two hospitals: the checks could learn from none.
    """
    recipe, whole = recipe_of(run), data_of(run)
    names, chests = hospitals(recipe), sorted({source.group for source in recipe.chests})
    if len(chests) < 2:
        raise UsageProblem(reason("cross_one_hospital", found=", ".join(chests) or "-"))
    use_threads(recipe.training.threads)
    fits, found = dict[int, Fit](), dict[str, LeftOutFigures]()
    for number, name in enumerate(names):
        data, folder = left_out(recipe, whole, number), run.folder("cross") / str(number)
        weights, _ = train(recipe, data, folder=folder, progress=partial(run.report_epoch, folder))
        answer = partial(run_file, to_files(recipe, data, weights)["int8"])
        fits |= fits_of(recipe, data, answer, parts=(_HELD, "evaluate"))
        checks = checks_of(recipe, data, answer)
        unseen = {
            source: check_rates(images, answer, checks.thresholds, most=len(images))
            for source, images in _unseen(data, name).items()
        }
        found[name] = LeftOutFigures(unseen=unseen, ood_images=checks.ood_images or {}, thresholds=checks.thresholds)
    run.write("cross", "metrics.json", LungCrossFigures(masks=summary(whole, fits), hospitals=found))
    return {f"{name}_accepted": _accepted(one.unseen) for name, one in found.items()}


def _unseen(data: LungData, name: str) -> dict[str, NDArray[np.uint8]]:
    """By source, the chest images of the hospital that was left out: of a source of masks, those held out."""
    sources = data.chest_sources[data.chest_parts == _LEFT_OUT]
    found = {str(one): data.chests[data.chest_sources == one] for one in sorted(set(sources))}
    held = (data.image_parts == _HELD) & (data.image_sources == name)
    return found | ({name: data.images[held]} if held.any() else {})


def _accepted(unseen: Mapping[str, CheckRates]) -> float:
    rows = [one["frontal_chest"] for one in unseen.values()]
    accepted, asked = sum(row.count for row in rows), sum(row.of for row in rows)
    return float(accepted / asked)


LUNG_CROSS: Final = Step(
    name="cross",
    perform=cross_step,
    reads=("network", "training", "augmentation", "checks_augmentation", "calibration_images", "evaluation"),
    leaves=("metrics.json",),
)


_MEASURE_TITLES: Final = {
    "dice": "Dice of the lungs",
    "jaccard": "Jaccard",
    "average_distance": "average distance of the outlines, pixels of 512",
    "average_distance_percent_of_width": "the same, % of the width",
    "distance_95": "95 % of the outline is nearer than, pixels of 512",
}
_HEAD: Final = ("source", "images", "patients", *_MEASURE_TITLES.values(), "least Dice")


def lung_card(recipe: LungRecipe, *, data: LungDataFigures, metrics: LungFigures, **made: Any) -> str:
    """The card's Markdown, of the figures of the data and of the evaluation; `made` goes to `pack.card`."""
    evaluated_only = [source.name for source in recipe.masks if source.evaluate_only]
    return card(
        "lungs_card.md",
        recipe.pack,
        recipe=recipe,
        data=data,
        metrics=metrics,
        only=evaluated_only,
        both=sorted(set(evaluated_only) & set(data.chests)),
        head=_HEAD,
        fits=[_fit_row(name, found) for name, found in metrics.masks["int8"].items()],
        **made,
    )


def _fit_row(name: str, found: SourceFits) -> list[str]:
    digits = {"dice": ".4f", "jaccard": ".4f"}
    cells = [as_text(getattr(found, key), digits.get(key, ".2f")) for key in _MEASURE_TITLES]
    return [name, str(found.images), str(found.patients), *cells, f"{found.least_dice:.4f}"]


def report_step(run: Run) -> Facts:
    """report.html: how the training went, how the masks fit, and overlays of the best, a median and the worst."""
    metrics = run.read("evaluate", "metrics.json", LungFigures)
    history, recipe = run.read("train", HISTORY, list[EpochFigures]), recipe_of(run)
    curves = [[str(row.epoch), str(row.side), f"{row.loss:.4f}", *_seen(row)] for row in history]
    masks = [
        Table(rows=[_fit_row(*item) for item in found.items()], head=_HEAD, caption=name)
        for name, found in metrics.masks.items()
        if found
    ]
    sections = [
        Section(title="How well the masks fit", parts=masks),
        Section(title="Best, median and worst", parts=_overlays(run) if "int8" in metrics.masks else []),
        Section(title="Thresholds", parts=[facts(metrics.thresholds)] if metrics.thresholds else []),
        Section(
            title="Training",
            parts=[Table(rows=curves, head=("epoch", "side", "loss", "validation Dice", "least Dice", "frontal"))],
        ),
        Section(title="Recipe", parts=[Code(run.text or "{}")]),
    ]
    return keep_page(run, f"Lung fields: {recipe.pack.id} {recipe.pack.version}", sections)


def _seen(row: EpochFigures) -> list[str]:
    return ["-" if value is None else str(value) for value in (row.dice, row.least_dice, row.frontal)]


def _overlays(run: Run) -> list[Part]:
    """By source; without the images themselves where they may not be shown."""
    recipe, data, fits = recipe_of(run), data_of(run), run.read("evaluate", "fits.json", dict[str, Fit])
    parts: list[Part] = [Text("Green: the true outline; red: the one found.")]
    for source in sorted({str(data.image_sources[index]) for index in _known(data, fits)}):
        own = [index for index in _known(data, fits) if data.image_sources[index] == source]
        ranked = sorted(own, key=lambda index: fits[str(data.image_paths[index])].dice)
        chosen = {"best": ranked[-1], "median": ranked[len(ranked) // 2], "worst": ranked[0]}
        drawn = np.hstack([_drawn(run, recipe, data, index) for index in chosen.values()])
        said = ", ".join(f"{name} {fits[str(data.image_paths[i])].dice:.3f}" for name, i in chosen.items())
        parts.append(Figure(svg=_embedded(drawn), caption=f"{source}: {said}"))
    return parts


def _known(data: LungData, fits: Mapping[str, Fit]) -> list[int]:
    return [index for index, path in enumerate(data.image_paths) if str(path) in fits]


def _drawn(run: Run, recipe: LungRecipe, data: LungData, index: int) -> NDArray[np.uint8]:
    truth = read_mask(Path(str(data.mask_paths[index])))
    shares, _ = run_file(converted_file(run, "int8"), data.images[index : index + 1])
    found = enlarged(mask_for(recipe, data, index, shares[0]), truth.shape, recipe.evaluation.mask_threshold)
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


def pack_step(run: Run) -> Facts:
    """Write the pack; the signing key is made where the recipe says, if it is not there.

    Raises UsageProblem `step_missing`, PackProblem `pack_older`, StorageProblem.
    """
    recipe, metrics = recipe_of(run), evaluated(run, LungFigures)
    thresholds = evaluated(run, dict[str, float], "thresholds.json")
    file, made_with = converted_file(run, "int8"), _provenance(run)
    golden = _golden(recipe, file)
    card = lung_card(
        recipe,
        specification=specification_of(recipe),
        files={"litert": file.data},
        data=run.read("data", "facts.json", LungDataFigures),
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
        metrics=plain(metrics),
    )


def _provenance(run: Run) -> dict[str, str]:
    recipe = recipe_of(run)
    learnt = [source.name for source in recipe.masks if not source.evaluate_only]
    return provenance(run, data=[*learnt, *(source.name for source in recipe.chests)])


def _golden(recipe: LungRecipe, file: Converted) -> GoldenVectors:
    """Synthetic images, no patient's: chests upright, turned, mirrored and inverted, and an OOD image."""
    chest: NDArray[np.uint8] = phantom(1, recipe.input)[..., 0]
    generator = np.random.default_rng(_GOLDEN_SEED)
    turned = [apply(chest, turns=turns)[0] for turns in range(3)]
    changed = [apply(chest, is_inverted=True)[0], apply(chest, is_mirrored=True)[0]]
    images = [*turned, *changed, DRAWN["scene"](len(chest), generator)]
    inputs = np.stack(images)
    return GoldenVectors(inputs=inputs[..., None], scores=run_file(file, inputs)[1], tolerance=GOLDEN_TOLERANCE)


LUNG_PACK: Final = whole_pack_step(pack_step)

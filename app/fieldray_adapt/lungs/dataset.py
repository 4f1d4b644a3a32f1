"""The data step of a lung-field recipe, which reads images and masks, and divides them into parts by patient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fieldray_adapt.data.image_set import add_digests, read_images, read_images_or_fail, read_rows, rows_digest
from fieldray_adapt.data.images_for_checks import ImagesForImageChecks
from fieldray_adapt.data.layouts import assign_parts, find_rows
from fieldray_adapt.files import digest, file_sha256, save_arrays
from fieldray_adapt.lungs.figures import LungDataFigures
from fieldray_adapt.lungs.masks import (
    ImageMaskPair,
    find_pairs,
    find_repeated_images,
    list_pairs,
    mask_share_grid,
    raise_first_problem,
    read_mask,
)
from fieldray_adapt.lungs.recipe import LungRecipe, lung_recipe_of
from fieldray_adapt.recipes.shared import Source
from fieldray_adapt.recipes.tables import Problem
from fieldray_adapt.run import Run, Step, StepFacts

_ARRAYS: Final = "images_and_masks.npz"
_REPORTED: Final = 20


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LungData:
    """Images for training and testing a lung-field network, all at the size of the network's input.

    The network predicts masks, and answers image checks: is the image a frontal chest, rotated, inverted, mirrored?
    Images for these checks need no mask.

    Attributes
    ----------
    images, masks
        Images with masks, and their masks, (n, side, side) uint8. A mask has the share of lung in each pixel: 0 for
        none, 255 for all.
    image_parts
        The part of each image with a mask: "training", "validation" or "test"; "evaluate" for images of a source that
        is never used for training.
    chests, ood_images
        Images for the image checks, (n, side, side) uint8: chest images without masks, and out-of-distribution images.
    masks_are_chests
        Whether the images with masks are also used as chest images for the image checks.
    """

    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    image_parts: NDArray[np.str_]
    image_patients: NDArray[np.str_]
    image_sources: NDArray[np.str_]
    image_paths: NDArray[np.str_]
    mask_paths: NDArray[np.str_]
    chests: NDArray[np.uint8]
    chest_parts: NDArray[np.str_]
    chest_patients: NDArray[np.str_]
    chest_sources: NDArray[np.str_]
    ood_images: NDArray[np.uint8]
    ood_image_parts: NDArray[np.str_]
    masks_are_chests: bool = True

    def indices_of_part(self, part: str) -> NDArray[np.int64]:
        """Return the indices (n,) of the images with masks in a part, such as "training"."""
        return np.flatnonzero(self.image_parts == part)

    def images_for_image_checks(
        self, part: str, weights: Mapping[str, float], *, side: int
    ) -> ImagesForImageChecks | None:
        """Return the images of a part for the image checks: chest images and out-of-distribution images.

        Returns None if the part has no chest images.

        Parameters
        ----------
        part
            "training", "validation" or "test".
        weights
            Relative frequency of each source of chest images; 1 for a source without an entry.
        side
            Side in pixels to which the images are resized.
        """
        chests = {
            name: (resize_images(self.chests[own], side), weights.get(name, 1.0))
            for name in sorted(set(self.chest_sources))
            if len(own := np.flatnonzero((self.chest_sources == name) & (self.chest_parts == part)))
        }
        sources = (
            sorted(set(self.image_sources[self.indices_of_part(part)])) if chests and self.masks_are_chests else ()
        )
        for name in map(str, sources):
            own = np.flatnonzero((self.image_sources == name) & (self.image_parts == part))
            others, weight = chests.get(name, (np.zeros((0, side, side), np.uint8), 1.0))
            chests[name] = (np.concatenate([others, resize_images(self.images[own], side)]), weight)
        ood_images = resize_images(self.ood_images[self.ood_image_parts == part], side)
        return ImagesForImageChecks(chests_and_frequency_by_source=chests, ood_images=ood_images) if chests else None


def resize_images(images: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return images (n, rows, columns) uint8 resized to (n, side, side). Each new pixel is a mean over its area."""
    if images.shape[1:] == (side, side) or not len(images):
        return images.reshape(-1, side, side)
    return np.stack([np.asarray(Image.fromarray(one).resize((side, side), Image.Resampling.BOX)) for one in images])


def find_lung_recipe_problems(recipe: LungRecipe) -> list[Problem]:
    """Return the problems of the files that a lung-field recipe names, each with the location of the recipe's key."""
    problems: list[Problem] = []
    pairs: list[ImageMaskPair] = []
    for number, source in enumerate(recipe.masks):
        found, wrong = find_pairs(source)
        pairs += found
        problems += [Problem(("masks", number), f"cannot be used: {one.text}") for one in wrong[:_REPORTED]]
    problems += [Problem(("masks",), f"cannot be used: {one.text}") for one in find_repeated_images(pairs)]
    problems += [Problem(("masks",), f"puts a patient into several parts: {one}") for one in _shared_patients(pairs)]
    for key, sources in (("chests", recipe.chests), ("ood_images", recipe.ood_images)):
        for number, images in enumerate(sources):
            wrong = find_rows(images)[1]
            problems += [Problem((key, number), f"cannot be used: {one.text}") for one in wrong[:_REPORTED]]
    if not problems and (empty := _empty_parts(recipe, pairs)):
        problems.append(Problem(("split",), f"gives no image with a mask to: {empty}"))
    return problems


def _shared_patients(pairs: Sequence[ImageMaskPair]) -> Iterator[str]:
    learnt = {pair.row.patient for pair in pairs if not pair.is_only_evaluated and pair.row.patient}
    for pair in pairs:
        if pair.is_only_evaluated and pair.row.patient in learnt:
            yield f"the patient {pair.row.patient} of {pair.row.origin} is also used for training"


def _empty_parts(recipe: LungRecipe, pairs: Sequence[ImageMaskPair]) -> str:
    parts = set(_image_parts(recipe, pairs))
    return ", ".join(part for part in ("training", "validation", "test") if part not in parts)


def _image_parts(recipe: LungRecipe, pairs: Sequence[ImageMaskPair]) -> list[str]:
    parts = assign_parts([pair.row for pair in pairs], recipe.split, ())
    return ["evaluate" if pair.is_only_evaluated else part for pair, part in zip(pairs, parts, strict=True)]


def data_step(run: Run) -> StepFacts:
    """Read the images and masks of a recipe, and divide the patients into training, validation and test.

    Writes images_and_masks.npz and facts.json. Returns the number of images in each part. Raises UsageProblem for an
    unusable image or mask, StorageProblem.
    """
    recipe = lung_recipe_of(run)
    pairs = _pairs(recipe)
    raise_first_problem([*find_repeated_images(pairs)])
    rows, images = read_images_or_fail(
        add_digests(pair.row for pair in pairs),
        recipe.input,
        cache=run.step_folder("data") / "images.npz",
        progress=run.progress,
    )
    parts = _image_parts(recipe, pairs)
    learnt = {pair.row.patient for pair in pairs if not pair.is_only_evaluated}
    chests = _check_images(run, recipe.chests, "chests", excluded_patients=learnt)
    ood_images = _check_images(run, recipe.ood_images, "ood_images", excluded_patients=set())
    arrays = {
        "images": images,
        "masks": np.stack([mask_share_grid(read_mask(pair.mask_path), recipe.input.height) for pair in pairs]),
        "image_parts": np.array(parts),
        "image_patients": np.array([row.person_id for row in rows]),
        "image_sources": np.array([row.source for row in rows]),
        "image_paths": np.array([str(row.path) for row in rows]),
        "mask_paths": np.array([str(pair.mask_path) for pair in pairs]),
        **{f"chest{name}": found for name, found in chests.items()},
        **{f"ood_image{name}": found for name, found in ood_images.items() if name in ("s", "_parts")},
    }
    save_arrays(run.step_folder("data") / _ARRAYS, arrays)
    found = _figures(arrays, data_sha256=_outside(run), split_sha256=digest(parts))
    run.write_step_json("data", "facts.json", found)
    return dict(found.images)


def load_lung_data(run: Run) -> LungData:
    """Load the images and masks that the data step stored. Raises UsageProblem (`step_missing`)."""
    with run.open_step_arrays("data", _ARRAYS) as arrays:
        return LungData(**{name: cast("Any", array) for name, array in arrays.items()})


def _pairs(recipe: LungRecipe) -> list[ImageMaskPair]:
    pairs: list[ImageMaskPair] = []
    for source in recipe.masks:
        found, wrong = find_pairs(source)
        raise_first_problem(wrong)
        pairs += found
    return pairs


def _check_images(
    run: Run, sources: Sequence[Source], name: str, *, excluded_patients: set[str]
) -> dict[str, NDArray[Any]]:
    """Read images of `sources` for the image checks, such as "is the image inverted?".

    Returns arrays by the endings of their names in images_and_masks.npz: "s" for the images, "_parts", "_sources" and
    "_patients". Images of `excluded_patients`, who have images with masks, are left out.
    """
    side = run.recipe.input.height
    if not sources:
        none = np.zeros(0, np.str_)
        return {"s": np.zeros((0, side, side), np.uint8), "_parts": none, "_sources": none, "_patients": none}
    rows = [
        row
        for row in read_rows(sources, folder=run.step_folder("data"))
        if row.patient not in excluded_patients or not row.patient
    ]
    found = read_images(rows, run.recipe.input, cache=run.step_folder("data") / f"{name}.npz", progress=run.progress)
    return {
        "s": found.images[..., 0],
        "_parts": np.array(assign_parts(found.rows, run.recipe.split, ())),
        "_sources": np.array([row.source for row in found.rows]),
        "_patients": np.array([row.person_id for row in found.rows]),
    }


def _figures(arrays: Mapping[str, NDArray[Any]], *, data_sha256: str, split_sha256: str) -> LungDataFigures:
    parts, patients, sources = (arrays[f"image_{name}"] for name in ("parts", "patients", "sources"))
    names = ("training", "validation", "test", "evaluate")
    chests = arrays["chest_sources"]
    return LungDataFigures(
        images={part: int((parts == part).sum()) for part in names},
        patients={part: len(set(patients[parts == part])) for part in names},
        sources={str(name): int((sources == name).sum()) for name in sorted(set(sources))},
        chests={str(name): int((chests == name).sum()) for name in set(chests)},
        ood_images=len(arrays["ood_images"]),
        data_sha256=data_sha256,
        split_sha256=split_sha256,
    )


def _outside(run: Run) -> str:
    """Return a digest of all files that the data step reads: images, masks and tables."""
    pairs = [pair for source in lung_recipe_of(run).masks for pair in list_pairs(source)]
    masks = [file_sha256(pair.mask_path) for pair in pairs]
    rows = add_digests(pair.row for pair in pairs)
    others = read_rows([*lung_recipe_of(run).chests, *lung_recipe_of(run).ood_images], folder=run.step_folder("data"))
    return digest(rows_digest(rows), masks, rows_digest(others))


LUNG_DATA_STEP: Final = Step(
    name="data",
    perform=data_step,
    recipe_keys=("input", "masks", "chests", "ood_images", "split"),
    outside_inputs_digest=_outside,
    outputs=(_ARRAYS, "facts.json"),
)

"""Images with masks, as they lie in files, with everything wrong with them; how well a mask fits; the data step.

How well: foreground Dice, Jaccard, and distances between the outlines. A figure over both classes would flatter: an
empty mask agrees with most of the image. So only the lungs count. Two empty masks agree in full; an outline has no
distance to an empty mask, which then counts as the image's diagonal.

The data step: images, masks and images for the checks, read once, split by patient, and kept in the run folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from fieldray.errors import UsageProblem
from fieldray.reasons import Reason, reason
from fieldray_adapt.data.augmentation import CheckImages
from fieldray_adapt.data.image_set import read_every_image, read_images, read_rows, rows_digest, with_digests
from fieldray_adapt.data.layouts import Row, Wrong, find_rows, parts_of, table_rows
from fieldray_adapt.files import content_digest, digest, save_arrays
from fieldray_adapt.lungs.figures import LungDataFigures
from fieldray_adapt.lungs.recipe import LungRecipe, MaskSource, recipe_of
from fieldray_adapt.recipes.shared import Source
from fieldray_adapt.recipes.tables import Problem
from fieldray_adapt.run import Facts, Run, Step

_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".dcm", ".dicom"})
_NEAR_AN_END: Final = 0.16
"""Of the brightest value: a mask that was stored as JPEG is not quite black and white."""
_MOST_GREY: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An image and the file of its mask. `line` is that of the table, 0 without one."""

    row: Row
    mask: Path
    table: Path
    line: int
    evaluate_only: bool = False

    def problem(self, detail: str) -> Reason:
        """Something that is wrong with this pair, with file and row."""
        if self.line:
            return reason("data_row", path=self.table, line=self.line, detail=detail)
        return reason("data_unreadable", path=self.row.path, detail=detail)


def find_pairs(source: MaskSource) -> tuple[list[Pair], list[Reason]]:
    """The images of one source with their masks, and everything that is wrong with them.

    That is a table that cannot be read, a file that is not there, a mask that has another size than its image, is
    empty, is a grey image (an X-ray in the place of a mask) or white in all corners, and an image that is named twice.
    """
    wrong: list[Reason] = []
    pairs = list_pairs(source, wrong.append)
    if not pairs and not wrong:
        wrong.append(reason("data_empty", name=source.name, path=source.path))
    wrong += [found for pair in pairs if (found := _problem_of(pair))]
    return pairs, wrong


def list_pairs(source: MaskSource, wrong: Wrong = lambda _: None) -> list[Pair]:
    """The images of one source with their masks; nobody looks into a file but the table."""
    read = _of_table if source.layout == "table" else _of_folders
    return list(read(source, wrong))


def double_images(pairs: Sequence[Pair]) -> Iterator[Reason]:
    """Images that two rows name, by path or by content: one patient could not be kept on one side of the split."""
    seen: dict[str, Pair] = {}
    for pair in pairs:
        digest = content_digest(pair.row.path) or str(pair.row.path)
        first = seen.setdefault(digest, pair)
        if first is pair:
            continue
        if first.row.person != pair.row.person or first.evaluate_only != pair.evaluate_only:
            detail = f"{pair.row.path.name} is also {first.row.origin}, there of the patient {first.row.patient}: it "
            yield pair.problem(detail + "would be on two sides of the split")
        else:
            yield pair.problem(f"{pair.row.path.name} is also {first.row.origin}")


def read_mask(path: Path) -> NDArray[np.bool_]:
    """A mask (rows, columns), true where it is white. Raises OSError or ValueError."""
    values = _values(path)
    mask: NDArray[np.bool_] = values > values.max() // 2
    return mask


def shares(mask: NDArray[np.bool_], side: int) -> NDArray[np.uint8]:
    """The share of lung of each cell of a square of this side, 0..255."""
    return np.asarray(Image.fromarray(np.uint8(255) * mask).resize((side, side), Image.Resampling.BOX))


def _values(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as drawn:
        return np.asarray(drawn.convert("L"))


def _of_table(source: MaskSource, wrong: Wrong) -> Iterator[Pair]:
    for line, cells in table_rows(source, wrong, ("film", "mask", "patient_id")):
        row = Row(
            path=source.path.parent / cells["film"],
            source=source.name,
            classes=frozenset(),
            patient=cells["patient_id"],
            origin=f"{source.path.name}, line {line}",
        )
        mask = source.path.parent / cells["mask"]
        yield Pair(row=row, mask=mask, table=source.path, line=line, evaluate_only=source.evaluate_only)


def _of_folders(source: MaskSource, wrong: Wrong) -> Iterator[Pair]:
    assert source.masks is not None  # the recipe asks for it
    for folder in (source.path, source.masks):
        if not folder.is_dir():
            wrong(reason("data_unreadable", path=folder, detail="there is no such folder"))
            return
    masks = {path.stem: path for path in sorted(source.masks.iterdir())}
    for path in sorted(source.path.iterdir()):
        if path.suffix.lower() not in _SUFFIXES:
            continue
        row = Row(path=path, source=source.name, classes=frozenset(), patient=path.stem, origin=path.name)
        mask = masks.get(path.stem, source.masks / f"{path.stem}.png")
        yield Pair(row=row, mask=mask, table=source.path, line=0, evaluate_only=source.evaluate_only)


def _problem_of(pair: Pair) -> Reason | None:
    for path, what in ((pair.row.path, "the image"), (pair.mask, "the mask")):
        if not path.is_file():
            return pair.problem(f"{what} {path.name} is not there")
    try:
        values, size = _values(pair.mask), _size(pair.row.path)
    except (OSError, ValueError) as error:
        return pair.problem(f"the mask {pair.mask.name} cannot be read ({error})")
    if detail := _fault(values, size):
        return pair.problem(f"the mask {pair.mask.name} {detail}")
    return None


def _size(path: Path) -> tuple[int, int] | None:
    """Rows and columns of an image; None where its header is not one of a picture (DICOM is read later)."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        return None
    with Image.open(path) as drawn:
        return drawn.height, drawn.width


def _fault(values: NDArray[np.uint8], size: tuple[int, int] | None) -> str:
    rows, columns = values.shape
    if size is not None and size != (rows, columns):
        return f"has {columns} x {rows} pixels, its image {size[1]} x {size[0]}"
    highest = int(values.max())
    if not highest:
        return "is empty: there is no lung in it"
    between = (values > highest * _NEAR_AN_END) & (values < highest * (1 - _NEAR_AN_END))
    if between.mean() > _MOST_GREY:
        return "is a grey image, not a mask of black and white: perhaps image and mask are swapped"
    if values[:: max(1, rows - 1), :: max(1, columns - 1)].min() > highest * (1 - _NEAR_AN_END):
        return "is white in all four corners, where no lung is: perhaps it is inverted"
    return ""


def require_whole(wrong: Sequence[Reason]) -> None:
    """Raises UsageProblem, the first of what is wrong."""
    if wrong:
        raise UsageProblem(wrong[0])


Mask = NDArray[np.bool_]
REFERENCE_SIDE: Final = 512
"""Distances are told in pixels of an image of this width and height."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Of one mask: Dice and Jaccard in 0..1, distances in pixels of 512."""

    dice: float
    jaccard: float
    average_distance: float
    distance_95: float


def dice(found: Mask, truth: Mask) -> float:
    """2 |A and B| / (|A| + |B|) of two masks of one shape, in 0..1; 1 where both are empty (Dice 1945)."""
    total = int(found.sum()) + int(truth.sum())
    return 2 * int((found & truth).sum()) / total if total else 1.0


def jaccard(found: Mask, truth: Mask) -> float:
    """|A and B| / |A or B| of two masks of one shape, in 0..1; 1 where both are empty."""
    either = int((found | truth).sum())
    return int((found & truth).sum()) / either if either else 1.0


def surface_distances(found: Mask, truth: Mask) -> NDArray[np.float64]:
    """Distance of each outline pixel of either mask (rows, columns) to the other's outline, in pixels of 512."""
    rows, columns = truth.shape
    step = (REFERENCE_SIDE / rows, REFERENCE_SIDE / columns)
    outlines = [_outline(mask) for mask in (found, truth)]
    if not all(outline.any() for outline in outlines):
        both_empty = not any(outline.any() for outline in outlines)
        return np.array([0.0 if both_empty else float(np.hypot(REFERENCE_SIDE, REFERENCE_SIDE))])
    away = [ndimage.distance_transform_edt(~outline, sampling=step) for outline in outlines]
    return np.concatenate([away[1][outlines[0]], away[0][outlines[1]]])


def fit_of(found: Mask, truth: Mask) -> Fit:
    """All measures of a mask against the true one, both (rows, columns). Raises ValueError if they differ in shape."""
    if found.shape != truth.shape:
        raise ValueError(f"a mask of {found.shape} cannot be compared with one of {truth.shape}")
    distances = surface_distances(found, truth)
    return Fit(
        dice=dice(found, truth),
        jaccard=jaccard(found, truth),
        average_distance=float(distances.mean()),
        distance_95=float(np.percentile(distances, 95)),
    )


def _outline(mask: Mask) -> Mask:
    """The pixels of a mask that touch what is outside it, or the image's border."""
    outline: Mask = mask & ~ndimage.binary_erosion(mask)
    return outline


_ARRAYS: Final = "images_and_masks.npz"
_REPORTED: Final = 20


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LungData:
    """Everything that is learnt from and measured on, at the size of the input.

    Attributes
    ----------
    images, masks
        (n, side, side) uint8 each; a mask is the share of lung of each cell, 0..255.
    image_parts
        training, validation or test; "evaluate" for a source of which no mask is learnt.
    chests, ood_images
        (n, side, side) uint8, with the source and the part of each.
    masks_are_chests
        Whether the checks learn from the images with masks, too.
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

    def of(self, part: str) -> NDArray[np.int64]:
        """Which images with masks are in a part."""
        return np.flatnonzero(self.image_parts == part)

    def checks(self, part: str, weights: Mapping[str, float], *, side: int) -> CheckImages | None:
        """Images for the checks in a part, at a size; those with masks are among them. None without any."""
        chests = {
            name: (shrunk(self.chests[own], side), weights.get(name, 1.0))
            for name in sorted(set(self.chest_sources))
            if len(own := np.flatnonzero((self.chest_sources == name) & (self.chest_parts == part)))
        }
        sources = sorted(set(self.image_sources[self.of(part)])) if chests and self.masks_are_chests else ()
        for name in map(str, sources):
            own = np.flatnonzero((self.image_sources == name) & (self.image_parts == part))
            others, weight = chests.get(name, (np.zeros((0, side, side), np.uint8), 1.0))
            chests[name] = (np.concatenate([others, shrunk(self.images[own], side)]), weight)
        ood_images = shrunk(self.ood_images[self.ood_image_parts == part], side)
        return CheckImages(chests=chests, ood_images=ood_images) if chests else None


def shrunk(images: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Images (n, rows, columns) uint8 as exact area averages of another size."""
    if images.shape[1:] == (side, side) or not len(images):
        return images.reshape(-1, side, side)
    return np.stack([np.asarray(Image.fromarray(one).resize((side, side), Image.Resampling.BOX)) for one in images])


def lung_problems(recipe: LungRecipe) -> list[Problem]:
    """What is wrong with the files that a recipe names, each problem at the recipe's key that it is about."""
    problems: list[Problem] = []
    pairs: list[Pair] = []
    for number, source in enumerate(recipe.masks):
        found, wrong = find_pairs(source)
        pairs += found
        problems += [Problem(("masks", number), f"cannot be used: {one.text}") for one in wrong[:_REPORTED]]
    problems += [Problem(("masks",), f"cannot be used: {one.text}") for one in double_images(pairs)]
    problems += [Problem(("masks",), f"is no split by patient: {one}") for one in _shared_patients(pairs)]
    for key, sources in (("chests", recipe.chests), ("ood_images", recipe.ood_images)):
        for number, images in enumerate(sources):
            wrong = find_rows(images)[1]
            problems += [Problem((key, number), f"cannot be used: {one.text}") for one in wrong[:_REPORTED]]
    if not problems and (empty := _empty_parts(recipe, pairs)):
        problems.append(Problem(("split",), f"leaves no image with a mask for {empty}"))
    return problems


def _shared_patients(pairs: Sequence[Pair]) -> Iterator[str]:
    learnt = {pair.row.patient for pair in pairs if not pair.evaluate_only and pair.row.patient}
    for pair in pairs:
        if pair.evaluate_only and pair.row.patient in learnt:
            yield f"the patient {pair.row.patient} of {pair.row.origin} is also trained on"


def _empty_parts(recipe: LungRecipe, pairs: Sequence[Pair]) -> str:
    parts = set(_image_parts(recipe, pairs))
    return ", ".join(part for part in ("training", "validation", "test") if part not in parts)


def _image_parts(recipe: LungRecipe, pairs: Sequence[Pair]) -> list[str]:
    parts = parts_of([pair.row for pair in pairs], recipe.split, ())
    return ["evaluate" if pair.evaluate_only else part for pair, part in zip(pairs, parts, strict=True)]


def data_step(run: Run) -> Facts:
    """Read images and masks, split them by patient; arrays.npz and facts.json.

    Raises UsageProblem for anything wrong with a mask, StorageProblem.
    """
    recipe = recipe_of(run)
    pairs = _pairs(recipe)
    require_whole([*double_images(pairs)])
    rows, images = read_every_image(
        with_digests(pair.row for pair in pairs),
        recipe.input,
        cache=run.folder("data") / "images.npz",
        progress=run.progress,
    )
    parts = _image_parts(recipe, pairs)
    learnt = {pair.row.patient for pair in pairs if not pair.evaluate_only}
    chests = _check_images(run, recipe.chests, "chests", taken=learnt)
    ood_images = _check_images(run, recipe.ood_images, "ood_images", taken=set())
    arrays = {
        "images": images,
        "masks": np.stack([shares(read_mask(pair.mask), recipe.input.height) for pair in pairs]),
        "image_parts": np.array(parts),
        "image_patients": np.array([row.person for row in rows]),
        "image_sources": np.array([row.source for row in rows]),
        "image_paths": np.array([str(row.path) for row in rows]),
        "mask_paths": np.array([str(pair.mask) for pair in pairs]),
        **{f"chest{name}": found for name, found in chests.items()},
        **{f"ood_image{name}": found for name, found in ood_images.items() if name in ("s", "_parts")},
    }
    save_arrays(run.folder("data") / _ARRAYS, arrays)
    found = _figures(arrays, data_sha256=_outside(run), split_sha256=digest(parts))
    run.write("data", "facts.json", found)
    return dict(found.images)


def data_of(run: Run) -> LungData:
    """What the data step left. Raises UsageProblem `step_missing`."""
    with run.arrays("data", _ARRAYS) as arrays:
        return LungData(**{name: cast("Any", array) for name, array in arrays.items()})


def _pairs(recipe: LungRecipe) -> list[Pair]:
    pairs: list[Pair] = []
    for source in recipe.masks:
        found, wrong = find_pairs(source)
        require_whole(wrong)
        pairs += found
    return pairs


def _check_images(run: Run, sources: Sequence[Source], name: str, *, taken: set[str]) -> dict[str, NDArray[Any]]:
    """Images, sources and parts; patients whose masks are learnt (`taken`) come with their masks."""
    side = run.recipe.input.height
    if not sources:
        none = np.zeros(0, np.str_)
        return {"s": np.zeros((0, side, side), np.uint8), "_parts": none, "_sources": none, "_patients": none}
    rows = [row for row in read_rows(sources, folder=run.folder("data")) if row.patient not in taken or not row.patient]
    found = read_images(rows, run.recipe.input, cache=run.folder("data") / f"{name}.npz", progress=run.progress)
    return {
        "s": found.images[..., 0],
        "_parts": np.array(parts_of(found.rows, run.recipe.split, ())),
        "_sources": np.array([row.source for row in found.rows]),
        "_patients": np.array([row.person for row in found.rows]),
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
    """Of everything that the step reads: images, masks and tables."""
    pairs = [pair for source in recipe_of(run).masks for pair in list_pairs(source)]
    masks = [content_digest(pair.mask) for pair in pairs]
    rows = with_digests(pair.row for pair in pairs)
    others = read_rows([*recipe_of(run).chests, *recipe_of(run).ood_images], folder=run.folder("data"))
    return digest(rows_digest(rows), masks, rows_digest(others))


LUNG_DATA: Final = Step(
    name="data",
    perform=data_step,
    reads=("input", "masks", "chests", "ood_images", "split"),
    outside=_outside,
    leaves=(_ARRAYS, "facts.json"),
)

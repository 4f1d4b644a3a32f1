"""The evaluation of a lung-field network's output: is the image a usable frontal chest X-ray, and where are the lungs?

The network gives the share of lung for every cell of its mask, and a score for each of `model.LUNG_NETWORK_CHECKS`.
Screening and training both use the rules of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fieldray.domain.image import Box, CoordinateMap
from fieldray.domain.lung_thirds import (
    UNDECIDED_LUNG_SHARE_RANGE,
    WHITENESS_FEATURE_INDICES,
    features_of_thirds,
    whiteness_of_lungs,
)
from fieldray.domain.mask import (
    CompressedShares,
    Mask,
    Point,
    cell_edges,
    components,
    enlarge,
    interval_overlaps,
    outlines,
)
from fieldray.domain.model import LUNG_NETWORK_CHECKS, CropRule, LungRules, Manifest
from fieldray.reasons import Reason, reason

Side = Literal["top", "bottom", "left", "right"]
LungSide = Literal["left", "right"]
LungMeasure = Literal["check", "area", "smaller", "upper", "middle", "lower", "both"]
QualityNote = Literal["lungs_tilted", "lungs_low", "lungs_black", "lungs_white", "lungs_few_greys"]
SIDES: Final[tuple[Side, ...]] = ("top", "bottom", "left", "right")
QUALITY_CODES: Final = frozenset(
    (*(f"lungs_cut_off_{side}" for side in SIDES), *get_args(QualityNote))
)  # codes of notes on image quality
_OF_ONE_LUNG: Final = ("unseen", "not_found", "smaller")
READ_FIRST_CODES: Final = frozenset(
    (
        *("chest_in_doubt", "lungs_hardly_found", "lungs_unseen", "thirds_dense"),
        *(f"{side}_lung_{seen}" for side in get_args(LungSide) for seen in _OF_ONE_LUNG),
        *(f"{side}_{third}_third_denser" for side in get_args(LungSide) for third in ("upper", "middle", "lower")),
    )
)  # codes of `LungFields.read_first_reason`
ROTATION_DEGREES_BY_CHECK: Final[Mapping[str, int]] = {"rotated_90": 90, "rotated_180": 180, "rotated_270": 270}

# Lungs of adults fill a quarter of a usual image, those of infants on a large detector a tenth.
_MIN_LUNG_SHARE: Final = 0.03
_MIN_PART: Final = 0.1  # parts of the mask smaller than this share of the largest part are no lung
# A lateral part above this share of the largest part stays: it may be a lung, and one of the two largest parts an arm.
_MAX_LATERAL_PART: Final = 0.5
_MAX_SHARED_COLUMNS: Final = 0.5  # share of a lateral part's columns that either of the two largest parts also has
_BOTH_LUNGS: Final = 0.7  # one part with more than this share of the mask is both lungs grown together
_BORDER: Final = 0.01  # distance to the border, as a share of the image's side, that counts as touching
_ACROSS: Final = 0.15  # how far lungs must reach past the image's middle on both sides, as a share of the width
_MIN_TOUCH: Final = 0.05  # share of a side that must be touched; less is only the tip of a complete lung
_FAR_SMALLER: Final = 0.5  # a lung with less than this share of the other lung's area counts as not seen
_MIN_MIRRORED_LUNGS: Final = 0.15  # share of the image that a lung and its mirror image cover (`find_one_lung`)
_MAX_MIRRORED_UNDECIDED: Final = 0.4  # like `_MAX_UNDECIDED`; mirrored halves of a chest on its side have more
# An image that the check `frontal_chest` doubts still counts as a chest if the mask shows two lungs: large, on both
# sides, with few undecided cells. Lungs full of pneumonia give such a mask, hands and heads do not (decisions/0055).
_MIN_FRONTAL_SCORE: Final = 0.025  # score of the check
_MIN_BOTH_LUNGS: Final = 0.2  # share of the image's area
_MIN_SMALLER_LUNG: Final = 0.06
_MIN_LUNGS_WIDTH: Final = 0.6  # share of the image's width
_MAX_UNDECIDED: Final = 0.8  # undecided cells, divided by the cells in the lungs
_OF_THIRDS: Final[tuple[LungMeasure, ...]] = ("upper", "middle", "lower")
_MAX_EVIDENCE_LIMIT: Final = 0.75  # a larger share of the evidence inside the lungs never gets a note


@dataclass(frozen=True, slots=True)
class LungMeasurement:
    """The measurement by which lungs count as not seen, and the figure with which it is compared.

    measure                 value                            against
    check                   score of the check, 0..1         threshold of the score
    area                    share of the image's area that   limit of this share
                            both lungs cover, 0..1
    smaller                 share of the smaller lung, 0..1  share of the other lung, 0..1
    upper, middle, lower    whiteness of this third of the   whiteness of the same third
                            lung: air is 0, the soft tissue  of the other lung
                            around the lungs is 1
    both                    whiteness of a third of the      whiteness of a third of the
                            left lung                        right lung
    """

    measure: LungMeasure
    value: float
    against: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LungFields:
    """The lung fields of one image.

    is_frontal_chest    whether the image is a frontal chest image, in any rotation
    has_lungs           whether lungs were found in the image
    left_lung_area_share, right_lung_area_share
                        share of the image's area that each of the patient's lungs covers, 0..1
    cut_off_sides       the sides of the image where the lungs reach the border
    rotation_degrees    clockwise rotation of the image in degrees: 0, 90, 180 or 270
    is_inverted         whether black and white are swapped
    is_mirrored         whether the image may be mirrored left to right
    unseen_lungs        the patient's lungs that were not found, are far smaller than the other lung, or are partly
                        white. An image with an unseen lung must be read first, whatever a classifier says
    unseen_measurement  the measurement behind `unseen_lungs`; None in results of earlier versions, and if both lungs
                        are seen
    region_bounds_px    the lung region, opacified parts included: top, bottom, left, right in pixels; None if the
                        network gives no region
    evidence_inside     share of the classifier's positive evidence inside the lung region; None without evidence
    latency_ms          duration of the lung-field network in milliseconds
    quality             codes of notes on image quality, for the radiographer
    compressed_shares   the shares of lung in compressed form; see `CompressedShares`
    compressed_region   the shares of lung region in compressed form; None if the network gives no region, or if the
                        region was not kept
    cells_to_image      maps cells of the mask to the image
    """

    is_frontal_chest: bool
    has_lungs: bool
    left_lung_area_share: float
    right_lung_area_share: float
    cut_off_sides: tuple[Side, ...]
    rotation_degrees: int
    is_inverted: bool
    is_mirrored: bool
    compressed_shares: CompressedShares
    cells_to_image: CoordinateMap
    evidence_inside: float | None = None
    latency_ms: float = 0.0
    unseen_lungs: tuple[LungSide, ...] = ()
    unseen_measurement: LungMeasurement | None = None
    region_bounds_px: tuple[float, float, float, float] | None = None
    compressed_region: CompressedShares | None = None
    quality: tuple[QualityNote, ...] = ()

    @property
    def lung_shares(self) -> NDArray[np.uint8]:
        """The share of lung in each cell (rows, columns), uint8, 0 to 255, read-only.

        Cells with at least `threshold` are lung.
        """
        return self.compressed_shares.shares

    @property
    def mask_threshold(self) -> int:
        """The share of lung, 0 to 255, from which a cell counts as lung."""
        return self.compressed_shares.threshold

    @property
    def mask(self) -> Mask:
        """The mask of the visible lungs, (rows, columns) bool."""
        return self.lung_shares >= self.mask_threshold

    @property
    def mask_with_lung_region(self) -> Mask:
        """The mask of the visible lungs and the lung region together, (rows, columns) bool."""
        return (
            self.mask
            if self.compressed_region is None
            else self.mask | (self.compressed_region.shares >= self.mask_threshold)
        )

    @property
    def refusal(self) -> Reason | None:
        """The reason why the image cannot be judged, such as a rotation; None if the image can be judged."""
        if not self.is_frontal_chest:
            return reason("not_frontal_chest")
        if self.rotation_degrees:  # checked first, because the mask is only valid for an upright image
            return reason("upside_down" if self.rotation_degrees == 180 else "rotated")
        if self.is_inverted:
            return reason("inverted")
        return None if self.has_lungs or self.unseen_lungs else reason("not_frontal_chest")

    @property
    def read_first_reason(self) -> Reason | None:
        """The reason why a person must read the image before all others; None for an ordinary image."""
        if self.refusal or not self.unseen_lungs:
            return None
        return (
            _measured(self.unseen_measurement, self.unseen_lungs[0])
            if self.unseen_measurement
            else reason(self.unseen_lungs_code)
        )

    @property
    def unseen_lungs_code(self) -> str:
        """A code that says which lungs are not seen, such as "left_lung_unseen"; "" if both lungs are seen.

        The code does not say which measurement shows that a lung is not seen.
        """
        if not self.unseen_lungs:
            return ""
        return "lungs_unseen" if len(self.unseen_lungs) > 1 else f"{self.unseen_lungs[0]}_lung_unseen"

    @property
    def notes(self) -> tuple[Reason, ...]:
        """Notes for a person about an image that can be judged."""
        cut_off = (reason(f"lungs_cut_off_{side}") for side in self.cut_off_sides)
        first, mirrored = self.read_first_reason, reason("perhaps_mirrored") if self.is_mirrored else None
        return tuple(note for note in (first, *cut_off, mirrored, *map(reason, self.quality)) if note)

    def crop_box(self, *, rows: int, columns: int, margin: float, crop: CropRule = "lungs") -> Box:
        """Return the part of an image that a classifier receives: the lungs with a margin.

        rows, columns  size of the image in pixels
        margin         space kept around the lungs: above and below as a share of the lungs' height, left and right as a
                       share of their width
        crop           "lung_region" for the lung region, if the network gives one; else the visible lungs

        If a lung was not seen, the box of the visible lungs includes the mirror image of the other lung, because the
        white side is what must be judged. The box is the whole image if no lungs were found, or if a person overruled a
        refusal.
        """
        region = self.region_bounds_px if crop == "lung_region" else None
        if self.refusal or (region is None and (not self.has_lungs or self.lung_shares.max() < self.mask_threshold)):
            return Box(top=0.0, left=0.0, height=float(rows), width=float(columns))
        top, bottom, left, right = region or _extent(self.lung_shares, self.mask_threshold, self.cells_to_image)
        down, across = margin * (bottom - top), margin * (right - left)
        top, bottom = max(0.0, top - down), min(float(rows), bottom + down)
        left, right = max(0.0, left - across), min(float(columns), right + across)
        if self.read_first_reason and region is None:
            left, right = min(left, columns - right), max(right, columns - left)
        return Box(top=top, left=left, height=bottom - top, width=right - left)

    def outlines(self) -> tuple[tuple[Point, ...], ...]:
        """Return polygons around the lungs, (x, y) in pixels of the image."""
        return outlines(self.lung_shares, self.cells_to_image, threshold=self.mask_threshold)

    def mask_at_image_size(self, *, rows: int, columns: int) -> Mask:
        """Return the mask of the visible lungs, enlarged to the size of the image: (rows, columns) bool."""
        return enlarge(self.lung_shares, self.cells_to_image, rows=rows, columns=columns, threshold=self.mask_threshold)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LungNetworkOutput:
    """The output of a lung-field network for an image of `image_rows` x `image_columns` pixels.

    lung_shares     (mask rows, mask columns) share of lung in each cell, 0..1
    region_shares   share of lung region in each cell, 0..1; None if the network gives no region
    scores          score of each check, 0..1
    cells_to_image  maps cells of the mask to the image
    latency_ms      duration of the inference in milliseconds
    """

    lung_shares: NDArray[np.float32]
    scores: Mapping[str, float]
    cells_to_image: CoordinateMap
    image_rows: int
    image_columns: int
    latency_ms: float = 0.0
    region_shares: NDArray[np.float32] | None = None


def evaluate_lung_output(
    output: LungNetworkOutput,
    rules: LungRules,
    *,
    header_says_chest: bool = False,
    grey: NDArray[np.uint8] | None = None,
) -> LungFields:
    """Evaluate the output of a lung-field network. Returns the lung fields of the image.

    output             the output of the network
    rules              the pack's thresholds
    header_says_chest  whether the file's header says that the image is a frontal chest image
    grey               (height, width) network input, 0 is air; without it a white lung is recognised by its area alone
    """
    scores, pixel_map, rows, columns = output.scores, output.cells_to_image, output.image_rows, output.image_columns
    threshold = max(1, round(255 * rules.mask_threshold))
    quantised = np.rint(255 * output.lung_shares.clip(0, 1)).astype(np.uint8)
    fields, parts = remove_non_lung_parts(quantised, threshold)
    areas = _areas(pixel_map, fields.shape, rows=rows, columns=columns) / (rows * columns)
    first, second = _sides(parts, areas)
    is_doubted = scores["frontal_chest"] < rules.thresholds["frontal_chest"]
    looks_so = scores["frontal_chest"] >= _MIN_FRONTAL_SCORE and _are_two_lungs(first, second, quantised, parts)
    is_frontal_chest = not is_doubted or header_says_chest or looks_so
    passed = {name for name in LUNG_NETWORK_CHECKS if is_frontal_chest and scores[name] >= rules.thresholds[name]}
    turned = [name for name in ROTATION_DEGREES_BY_CHECK if name in passed]  # only chests have a known rotation
    left, right = (first, second) if "mirrored" in passed else (second, first)
    doubt = LungMeasurement("check", scores["frontal_chest"], rules.thresholds["frontal_chest"]) if is_doubted else None
    white = {} if grey is None else _white(quantised, parts > 0, areas, grey, is_mirrored="mirrored" in passed)
    unseen, unseen_by = _unseen(left, right, doubt=doubt, white=white) if is_frontal_chest else ((), None)
    return LungFields(
        is_frontal_chest=is_frontal_chest,
        has_lungs=is_frontal_chest and first + second >= _MIN_LUNG_SHARE,
        left_lung_area_share=left,
        right_lung_area_share=right,
        unseen_lungs=unseen,
        unseen_measurement=unseen_by,
        cut_off_sides=_cut_off(parts > 0, areas),
        rotation_degrees=ROTATION_DEGREES_BY_CHECK[max(turned, key=lambda name: scores[name])] if turned else 0,
        is_inverted="inverted" in passed,
        is_mirrored="mirrored" in passed,
        compressed_shares=CompressedShares.compress(fields, threshold),
        cells_to_image=pixel_map,
        latency_ms=output.latency_ms,
        **({} if output.region_shares is None else _of_region(output.region_shares, threshold, pixel_map)),
    )


def find_lungs_in_input(
    values: NDArray[np.uint8],
    run_network: Callable[[NDArray[np.uint8]], LungNetworkOutput],
    rules: LungRules,
    *,
    header_says_chest: bool,
) -> LungFields:
    """Find the lungs of an image.

    If the image is refused, one lung may be white. Each half of the image is then joined with its own mirror image, and
    the network judges the joined image.

    values             (1, height, width, channels) input of the network
    run_network        runs the lung-field network on an input of this shape
    rules              thresholds of the lung-field pack
    header_says_chest  whether the file's header says that the image is a frontal chest image
    """
    lungs = evaluate_lung_output(
        run_network(values), rules, header_says_chest=header_says_chest, grey=values[0, :, :, 0]
    )
    for seen in ("left", "right") if lungs.refusal else ():
        if one := find_one_lung(run_network(mirror_half(values, kept_side=seen)), rules, kept_side=seen):
            return one
    return lungs


def mirror_half(values: NDArray[np.uint8], *, kept_side: Side) -> NDArray[np.uint8]:
    """Return an image in which the half opposite to `kept_side` is replaced by the mirror image of the kept half.

    values  (1, height, width, channels)
    """
    is_left = np.arange(values.shape[2])[:, None] < values.shape[2] / 2
    return np.where(is_left if kept_side == "left" else ~is_left, values, values[:, :, ::-1])


def find_one_lung(output: LungNetworkOutput, rules: LungRules, *, kept_side: Side) -> LungFields | None:
    """Return the lung fields of a refused image in which only one lung is visible; None for any other image.

    The network has judged a copy of the image in which one half is replaced by the mirror image of the other half. If
    the copy is plainly an upright chest with two lungs, the lung in the half `kept_side` is real, and the other lung
    counts as not seen. If not, the result is None.

    output     the network's output for the copy, as `mirror_half` makes it
    rules      thresholds of the lung-field pack
    kept_side  the half of the image that was kept: "left" or "right"
    """
    output = replace(output, scores={**output.scores, "mirrored": 0.0})  # equal halves show no mirroring
    both, shares = evaluate_lung_output(output, rules), output.lung_shares
    if (
        both.refusal
        or both.unseen_lungs
        or both.left_lung_area_share + both.right_lung_area_share < _MIN_MIRRORED_LUNGS
    ):
        return None
    if _undecided(np.rint(255 * shares.clip(0, 1)).astype(np.uint8), both.mask) > _MAX_MIRRORED_UNDECIDED:
        return None
    is_seen = np.arange(shares.shape[1]) < shares.shape[1] // 2
    kept = np.where(is_seen if kept_side == "left" else ~is_seen, shares, np.float32(0))
    return evaluate_lung_output(replace(output, lung_shares=kept), rules)


def evidence_inside(
    evidence: NDArray[np.float32], evidence_map: CoordinateMap, lungs: LungFields, *, rows: int, columns: int
) -> float | None:
    """Return the share (0..1, by area) of the evidence inside the lung region; None without evidence.

    Parameters
    ----------
    evidence
        (rows, columns), 0 or more: how strongly each cell of the class map speaks for the finding.
    evidence_map
        Maps cells of the evidence to the image.
    lungs
        The lung fields of the image.
    rows, columns
        The size of the image. Cells outside the image do not count.
    """
    down, across = cell_edges(evidence_map, evidence.shape)
    areas = _areas(evidence_map, evidence.shape, rows=rows, columns=columns)
    total = float((evidence * areas).sum())
    if not total > 0:
        return None
    mask = lungs.mask_with_lung_region
    lung_down, lung_across = cell_edges(lungs.cells_to_image, mask.shape)
    shared_down = interval_overlaps(down.clip(0, rows), lung_down)
    shared_across = interval_overlaps(across.clip(0, columns), lung_across)
    inside = shared_down @ mask.astype(np.float64) @ shared_across.T
    return min(1.0, float((evidence * inside).sum()) / total)


def _areas(pixel_map: CoordinateMap, shape: tuple[int, int], *, rows: int, columns: int) -> NDArray[np.float64]:
    """Return the area of each cell in pixels of an image. Parts of cells outside the image are not counted."""
    down, across = cell_edges(pixel_map, shape)
    return np.outer(np.diff(down.clip(0, rows)), np.diff(across.clip(0, columns)))


def min_evidence_inside(manifest: Manifest) -> float | None:
    """Return the share of evidence inside the lungs below which a result gets a note; None if the pack has no limit.

    Evidence is how strongly the cells of the heat map speak for the finding. The result is the limit that the pack's
    maker measured, or `_MAX_EVIDENCE_LIMIT` if the measured limit is higher. With a higher limit nearly every image
    would get a note, and nobody would read the notes.
    """
    limit = measured_min_evidence_inside(manifest)
    return None if limit is None else min(limit, _MAX_EVIDENCE_LIMIT)


def measured_min_evidence_inside(manifest: Manifest) -> float | None:
    """Return the share of evidence inside the lungs, 0..1, that 19 of 20 images of the pack's maker reach.

    Evidence is how strongly the cells of the heat map speak for the finding. The result is None if the pack's maker did
    not measure the share.
    """
    measured: Any = manifest.metrics.get("evidence_inside")
    limit = measured.get("limit") if isinstance(measured, Mapping) else None
    return float(limit) if isinstance(limit, int | float) and 0 <= limit <= 1 else None


def remove_non_lung_parts(shares: NDArray[np.uint8], threshold: int) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """Remove parts that are no lung from a map of the shares of lung.

    shares     (rows, columns) uint8, the share of lung in each cell, 0..255
    threshold  the share from which a cell is lung

    Returns the remaining shares (rows, columns), and for each cell the number of its connected part (0 for none).
    """
    parts = components(shares >= threshold)
    sizes = np.bincount(parts.reshape(-1))
    sizes[0] = 0
    is_other = (sizes < _MIN_PART * sizes.max()) | _lie_laterally(parts, sizes)
    is_other[0] = not sizes.any()  # part 0 (the soft edge) is kept if there is any lung
    if not is_other.any():
        return shares, parts
    is_none = is_other[parts]
    return np.where(is_none, np.uint8(0), shares), np.where(is_none, np.intp(0), parts)


def _lie_laterally(parts: NDArray[np.intp], sizes: NDArray[np.intp]) -> Mask:
    """Return for each part number whether the part is an arm or a corner of the image.

    An arm or a corner lies lateral of the two largest parts and is far smaller. Parts of a divided lung lie above each
    other.
    """
    is_lateral = np.zeros(len(sizes), bool)
    if np.count_nonzero(sizes) < 3:
        return is_lateral
    first, second, *others = np.argsort(-sizes, kind="stable")
    filled = {number: np.flatnonzero((parts == number).any(axis=0)) for number in (first, second)}
    for number in others:
        if not _MIN_PART * sizes[first] <= sizes[number] < _MAX_LATERAL_PART * sizes[first]:
            continue
        columns = np.flatnonzero((parts == number).any(axis=0))
        shared = [np.mean((columns >= own[0]) & (columns <= own[-1])) for own in filled.values()]
        is_lateral[number] = max(shared) < _MAX_SHARED_COLUMNS
    return is_lateral


def _sides(parts: NDArray[np.intp], areas: NDArray[np.float64]) -> tuple[float, float]:
    """Return the areas of lung left and right of the middle, as seen in the image, as shares of the image's area."""
    weights = np.bincount(parts.reshape(-1), weights=areas.reshape(-1))[1:]
    total = float(weights.sum())
    if not total > 0:
        return 0.0, 0.0
    middle = column_between_lungs(np.flatnonzero(parts.any(axis=0)), np.flatnonzero(areas.any(axis=0)))
    columns = np.arange(parts.shape[1])
    if weights.max() > _BOTH_LUNGS * total:
        left = float((areas * (parts > 0))[:, columns < middle].sum())
        return left, total - left
    centres = np.bincount(parts.reshape(-1), weights=(areas * columns).reshape(-1))[1:] / weights.clip(1e-12)
    left = float(weights[centres < middle].sum())
    return left, total - left


def _are_two_lungs(first: float, second: float, shares: NDArray[np.uint8], parts: NDArray[np.intp]) -> bool:
    """Return whether a mask shows two lungs: large on both sides, wide, and with few undecided cells.

    first, second  shares of the image's area on both sides
    """
    if first + second < _MIN_BOTH_LUNGS or min(first, second) < _MIN_SMALLER_LUNG:
        return False
    is_lung = parts > 0
    filled = np.flatnonzero(is_lung.any(axis=0))
    across = (filled[-1] - filled[0] + 1) / is_lung.shape[1]
    return bool(across >= _MIN_LUNGS_WIDTH and _undecided(shares, is_lung) <= _MAX_UNDECIDED)


def _undecided(shares: NDArray[np.uint8], is_lung: Mask) -> float:
    """Return the number of undecided cells, divided by the number of cells in the lungs."""
    low, high = UNDECIDED_LUNG_SHARE_RANGE
    undecided = np.count_nonzero((shares >= low) & (shares <= high))
    return float(undecided / max(1, int(np.count_nonzero(is_lung))))


def _white(
    shares: NDArray[np.uint8], is_lung: Mask, areas: NDArray[np.float64], grey: NDArray[np.uint8], *, is_mirrored: bool
) -> dict[LungSide, LungMeasurement]:
    """Return the patient's lungs with a third that is too white to be seen, and the whiteness of the whitest third."""
    if not is_lung.any():
        return {}
    middle = column_between_lungs(np.flatnonzero(is_lung.any(axis=0)), np.flatnonzero(areas.any(axis=0)))
    of_image = features_of_thirds(shares, is_lung, grey, middle)
    facts = of_image if is_mirrored else of_image[::-1]
    found: dict[LungSide, LungMeasurement] = {}
    for side, scores, of_thirds in zip(get_args(LungSide), whiteness_of_lungs(facts), facts, strict=True):
        if scores.max() > 0:
            third = int(scores.argmax())
            white, whiter = (float(of_thirds[third, fact]) for fact in WHITENESS_FEATURE_INDICES)
            found[side] = LungMeasurement(_OF_THIRDS[third], white, white - whiter)
    return found


def _unseen(
    left: float, right: float, *, doubt: LungMeasurement | None, white: Mapping[LungSide, LungMeasurement]
) -> tuple[tuple[LungSide, ...], LungMeasurement | None]:
    """Return the lungs of a chest that are not visible, and the measurement that shows this.

    The result is both lungs, a lung that is far smaller than the other, or a white lung.

    left, right  share of the image's area that each lung covers
    doubt        the measurement of the check `frontal_chest`, if the check did not recognise a chest; else None
    white        lungs with a white third
    """
    if left + right < _MIN_LUNG_SHARE:
        return get_args(LungSide), LungMeasurement("area", left + right, _MIN_LUNG_SHARE)
    if doubt:
        return get_args(LungSide), doubt
    if len(white) > 1:
        return tuple(white), LungMeasurement("both", white["left"].value, white["right"].value)
    smaller: LungSide = "left" if left < right else "right"
    # The small area of a lung says more than its whiteness.
    if min(left, right) < _FAR_SMALLER * max(left, right) and white.keys() <= {smaller}:
        return (smaller,), LungMeasurement("smaller", min(left, right), max(left, right))
    return tuple(white), next(iter(white.values()), None)


def _measured(found: LungMeasurement, side: LungSide) -> Reason:
    """Return the sentence that says by which measurement the lung `side`, or both lungs, are not seen."""
    value, against = found.value, found.against
    percents = {"own": f"{100 * value:.1f}", "opposite": f"{100 * against:.1f}"}
    densities = {"own": f"{100 * max(0.0, value):.0f}", "opposite": f"{100 * max(0.0, against):.0f}"}
    if found.measure == "check":
        return reason("chest_in_doubt", own=f"{math.floor(100 * value) / 100:.2f}", limit=f"{against:.2f}")
    if found.measure == "area":
        return reason("lungs_hardly_found", own=percents["own"], limit=percents["opposite"])
    if found.measure == "both":
        return reason("thirds_dense", left=densities["own"], right=densities["opposite"])
    if found.measure != "smaller":  # a third that is not denser was judged by its uncertain outline alone
        is_denser = value > against
        return (
            reason(f"{side}_{found.measure}_third_denser", **densities) if is_denser else reason(f"{side}_lung_unseen")
        )
    if percents["own"] == "0.0":
        return reason(f"{side}_lung_not_found", opposite=percents["opposite"])
    return reason(f"{side}_lung_smaller", **percents)


def column_between_lungs(lung_columns: NDArray[np.intp], visible_columns: NDArray[np.intp]) -> float:
    """Return the column between the two lungs; the image's middle column unless a lung lies on each side of the middle.

    lung_columns     columns of the cells that are lung
    visible_columns  columns of the cells that lie inside the image
    """
    middle, least = float(visible_columns[0] + visible_columns[-1]) / 2, _ACROSS * len(visible_columns)
    is_both = lung_columns[0] < middle - least and lung_columns[-1] > middle + least
    return float(lung_columns[0] + lung_columns[-1]) / 2 if is_both else middle


def _cut_off(mask: Mask, areas: NDArray[np.float64]) -> tuple[Side, ...]:
    """Return the sides of the image at which the mask touches more than `_MIN_TOUCH` of the side's length."""
    rows, columns = np.flatnonzero(areas.any(axis=1)), np.flatnonzero(areas.any(axis=0))
    seen = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    deep, wide = (max(1, round(_BORDER * side)) for side in seen.shape)
    strips: dict[Side, Mask] = {
        "top": np.any(seen[:deep], axis=0),
        "bottom": np.any(seen[-deep:], axis=0),
        "left": np.any(seen[:, :wide], axis=1),
        "right": np.any(seen[:, -wide:], axis=1),
    }
    return tuple(side for side in SIDES if strips[side].mean() > _MIN_TOUCH)


def _of_region(shares: NDArray[np.float32], threshold: int, pixel_map: CoordinateMap) -> dict[str, Any]:
    """Return values for two fields of `LungFields`: `region_bounds_px` and `compressed_region`."""
    fields, parts = remove_non_lung_parts(np.rint(255 * shares.clip(0, 1)).astype(np.uint8), threshold)
    reached = _extent(fields, threshold, pixel_map) if parts.any() else None
    return {"region_bounds_px": reached, "compressed_region": CompressedShares.compress(fields, threshold)}


def _extent(shares: NDArray[np.uint8], threshold: int, pixel_map: CoordinateMap) -> tuple[float, float, float, float]:
    """Return the extent of a mask: top, bottom, left and right in pixels; the mask may extend beyond the image."""
    down, across = cell_edges(pixel_map, shares.shape)
    return *_span(down, shares.max(axis=1), threshold), *_span(across, shares.max(axis=0), threshold)


def _span(borders: NDArray[np.float64], shares: NDArray[np.uint8], threshold: int) -> tuple[float, float]:
    """Return where a mask begins and ends along one axis, in pixels.

    The ends are interpolated between cell centres, so that a small change of a share moves the ends only a little.

    borders  (n + 1,) edges of the rows or columns of cells
    shares   (n,) the largest share in each row or column
    """
    filled = np.flatnonzero(shares >= threshold)
    start = _crossing(borders[: filled[0] + 2], shares[: filled[0] + 1], threshold)
    end = _crossing(borders[filled[-1] :][::-1], shares[filled[-1] :][::-1], threshold)
    return start, end


def _crossing(borders: NDArray[np.float64], shares: NDArray[np.uint8], threshold: int) -> float:
    """Return where shares cross the threshold between the last two cells; for a single cell, return its outer edge."""
    if len(shares) < 2:
        return float(borders[0])
    before, last = (borders[-3] + borders[-2]) / 2, (borders[-2] + borders[-1]) / 2
    low, high = float(shares[-2]), float(shares[-1])
    return float(before + (last - before) * (threshold - low) / (high - low))

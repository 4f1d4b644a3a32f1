"""Image files that the program writes: displayed images, the files of `--maps`, and overlays of compared images.

A displayed image has grey levels, the heat map and the outline of the lungs. For each image, `--maps` writes the lungs,
the class map, and an overlay of both on the image:

    NAME.lungs.png    the mask of the lungs: one bit per pixel, of the image's size
    NAME.map.npy      the class map of the deciding label: float32 logits (rows, columns)
    NAME.map.json     the class map's position in the image, and the logit at which the finding begins
    NAME.overlay.png  the image, its longer side at most 1024 pixels, with heat map and outline

NAME is the file's name with its suffix. The files lie in subfolders with the names of the images' folders and zip
files. So two images with one name get different files.

`fieldray compare` writes the aligned prior image, the overlay, the displacement, and one JSON object. If the images are
not comparable, nothing is written. Files of an earlier comparison in the folder are then deleted, so that nobody
mistakes them for the result.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from fieldray.domain import heat_map
from fieldray.domain.comparison import (
    DENSER_COLOUR,
    FRAME_SIDE,
    LESS_DENSE_COLOUR,
    WEAKEST_SHOWN_CHANGE,
    AlignedPair,
    FramedImage,
    PairComparison,
    change_colours,
    comparison_json,
)
from fieldray.domain.finding import Outcome, ScreenedOutcome, lungs_of
from fieldray.domain.heat_map import OUTLINE_COLOUR, ShownHeatMap, shown_heat_map
from fieldray.domain.image import ImageRef, ShownImage
from fieldray.domain.model import InputSpec, Manifest
from fieldray.persistence import storage_problem
from fieldray.reasons import Reason, reason
from fieldray.reports.content import RESEARCH_ONLY_NOTICE, image_path, score_for_export
from fieldray.reports.outputs import (
    CLASS_MAP_NPY_START,
    OutputKind,
    require_inside_folder,
    require_own_output,
    write_output,
)

Colours = NDArray[np.uint8]

HEAT_MAP_OPACITY: Final = 0.45  # default opacity of heat maps in the window
_OUTLINE_SHARE: Final = 1 / 400  # width of the lung outline, as a share of the image's longer side
_STEPS: Final = 256  # steps of strength, more than the eye can distinguish


def image_as_shown(outcome: Outcome, shown: ShownImage, manifest: Manifest | None) -> Image.Image:
    """Draw the image of an outcome in colours (RGB) as the window shows it, with heat map and lung outline.

    shown     the grey image, as displayed; the drawing has the same number of pixels
    manifest  manifest of the pack that gave the outcome; None draws no heat map
    """
    canvas = Image.fromarray(shown.pixels).convert("RGB")
    found = _map(outcome, manifest)
    if found is not None:
        _lay_over(canvas, found, shown)
    lungs = lungs_of(outcome)
    if lungs is not None:
        _draw_outlines(canvas, lungs.outlines(), shown)
    return canvas


@lru_cache(maxsize=4)
def heat_map_legend(width: int, height: int) -> Image.Image:
    """Return the colour legend of heat maps, from weak to strong, drawn over middle grey. All images share one legend.

    width, height  size of the legend in pixels
    """
    ramp = heat_map.colours(np.linspace(0, 1, width, dtype=np.float32)[None, :].repeat(height, axis=0))
    under = Image.new("RGB", (width, height), (96, 96, 96))
    under.paste(Image.fromarray(np.ascontiguousarray(ramp[:, :, :3])), mask=Image.fromarray(_alpha(ramp, 1.0)))
    return under


def has_heat_map(outcome: Outcome, manifest: Manifest | None) -> bool:
    """Return whether the displayed image of an outcome has a heat map.

    manifest  manifest of the pack that gave the outcome; None gives False
    """
    return _map(outcome, manifest) is not None


def _map(outcome: Outcome, manifest: Manifest | None) -> ShownHeatMap | None:
    """Return the heat map of an outcome; None if there is no map, or if no cell is evidence for the finding.

    manifest  manifest of the pack that gave the outcome; None gives None
    """
    found = shown_heat_map(outcome, manifest) if manifest else None
    return found if found is not None and found.colour_strength.any() else None


def _lay_over(canvas: Image.Image, found: ShownHeatMap, shown: ShownImage) -> None:
    """Blend the colours of a heat map into the part of an image that the heat map covers.

    The strength of the map is enlarged before it is coloured, and only where the strength is above 0. This is faster
    than enlarging colours.

    canvas  the image, which is changed in place
    found   the heat map
    shown   the displayed image, whose size gives the scale
    """
    across, down = canvas.width / shown.file_columns, canvas.height / shown.file_rows
    left, top, width, height = found.network_field_of_view
    size = max(1, round(width * across)), max(1, round(height * down))
    strength = np.rint(heat_map.enlarge_smoothly(found.colour_strength) * np.float32(_STEPS - 1)).astype(np.uint8)
    (first, last), (above, below) = _painted(strength.any(axis=0), size[0]), _painted(strength.any(axis=1), size[1])
    rows, columns = strength.shape
    cut = (first * columns / size[0], above * rows / size[1], last * columns / size[0], below * rows / size[1])
    steps = Image.fromarray(strength).resize((last - first, below - above), Image.Resampling.BILINEAR, box=cut)
    palette, opacities = _palette()
    mask = steps.point(opacities)
    steps.putpalette(palette)
    canvas.paste(steps.convert("RGB"), (round(left * across) + first, round(top * down) + above), mask)


def _painted(has_strength: NDArray[np.bool_], pixels: int) -> tuple[int, int]:
    """Return the first and last (exclusive) pixel of a row or column in which a heat map has any strength.

    has_strength  (n,) bool, for each cell of the heat map
    pixels        length of the row or column to which the cells are enlarged
    """
    indices, share = np.flatnonzero(has_strength), pixels / len(has_strength)
    if not len(indices):
        return 0, 1
    reach = 1 + math.ceil(1 / share)  # a pixel also takes colour from the cells around it
    first, last = int(indices[0]) - reach, int(indices[-1]) + 1 + reach
    return max(0, math.floor(first * share)), min(pixels, math.ceil(last * share))


@lru_cache(maxsize=1)
def _palette() -> tuple[bytes, list[int]]:
    """Return the colour (RGB bytes) and the opacity (0..255) of each step of strength."""
    painted = heat_map.colours(np.linspace(0, 1, _STEPS, dtype=np.float32)[None, :])
    return painted[0, :, :3].tobytes(), _alpha(painted, HEAT_MAP_OPACITY)[0].tolist()


def _alpha(colours: Colours, opacity: float) -> Colours:
    shares: Colours = np.rint(colours[:, :, 3] * np.float32(opacity)).astype(np.uint8)
    return shares


def _draw_outlines(
    canvas: Image.Image, outlines: tuple[tuple[tuple[float, float], ...], ...], shown: ShownImage
) -> None:
    across, down = canvas.width / shown.file_columns, canvas.height / shown.file_rows
    width = max(1, round(max(canvas.size) * _OUTLINE_SHARE))
    draw = ImageDraw.Draw(canvas)
    for outline in outlines:
        points = [(x * across, y * down) for x, y in outline]
        draw.line([*points, points[0]], fill=OUTLINE_COLOUR, width=width, joint="curve")


_LONGEST_SIDE: Final = 1024
# Characters that Windows does not allow in names, but that names in a zip file may contain.
_NOT_IN_NAMES: Final = re.compile('[\\x00-\\x1f\\x7f<>:"/\\\\|?*]')
_DEVICES: Final = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\.|$)")
_LONGEST_NAME: Final = 200  # bytes; systems allow 255, and suffix and number need some


class MapFileNames:
    """Makes a unique path for each image's files of `--maps`. A number is added to a path that another image has.

    folder  folder of the files
    paths   the screened files and folders. Subfolders of their common folder are made in `folder` as well
    """

    def __init__(self, folder: Path, paths: Sequence[Path]) -> None:
        self._folder = folder
        self._top = _common_path(paths)
        self._taken: set[str] = set()

    def path_without_suffix(self, ref: ImageRef) -> Path:
        """Return the path of an image's map files without suffix. No other image gets this path.

        Raises StorageProblem if a link leads out of the folder.
        """
        parts = [*_parts_below(ref.path, self._top), *(re.split(r"[/\\]", ref.zip_member) if ref.zip_member else [])]
        names = [safe_file_name(part) for part in parts if part not in ("", ".", "..")] or ["image"]
        if ref.header.number_of_frames > 1:
            names[-1] += f"#{ref.frame}"
        free, number = self._folder.joinpath(*names), 1
        while str(free).casefold() in self._taken:
            number += 1
            free = self._folder.joinpath(*names[:-1], f"{names[-1]}~{number}")
        self._taken.add(str(free).casefold())
        require_inside_folder(free.parent, self._folder)
        return free


def _common_path(paths: Sequence[Path]) -> Path | None:
    """Return the longest common beginning of all paths.

    For a single path, this is the path. None for several drives.
    """
    try:
        return Path(os.path.commonpath(paths))
    except ValueError:
        return None


def _parts_below(path: Path, top: Path | None) -> Sequence[str]:
    if path == top:
        return (path.name,)
    if top is not None and path.is_relative_to(top):
        return path.relative_to(top).parts
    return path.parts


def safe_file_name(part: str) -> str:
    """Return a name, similar to `part`, that every operating system accepts for a file or folder.

    The name never begins with a hyphen, because a command would take such a name for an option.
    """
    name = _NOT_IN_NAMES.sub("_", part)
    if len(data := name.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
        name = data[:_LONGEST_NAME].decode("utf-8", "ignore")
    name = name.rstrip(" .") or "_"
    return f"_{name}" if name.startswith("-") or _DEVICES.match(name) else name


# ---- files of `--maps` and of comparisons


def overlay_input_spec(rows: int, columns: int) -> InputSpec:
    """Return the specification for reading the pixels of an image's overlay file.

    The longer side has at most 1024 pixels.

    rows, columns  size of the image in pixels
    """
    share = min(1.0, _LONGEST_SIDE / max(rows, columns))
    height, width = (max(8, round(side * share)) for side in (rows, columns))
    return InputSpec(height=height, width=width, intensity="as_displayed")


def write_lung_mask(stem: Path, outcome: Outcome, *, inputs: Sequence[Path]) -> bool:
    """Write the mask of an outcome's lungs as a PNG file, if the outcome has lung fields.

    stem    path of the file without suffix
    inputs  files and folders of the run, which are never replaced

    Returns whether the file was written. Raises UsageProblem, StorageProblem.
    """
    lungs, facts = lungs_of(outcome), outcome.facts
    if lungs is None or not lungs.mask.any():
        return False
    mask = lungs.mask_at_image_size(rows=facts.rows, columns=facts.columns)
    write_output(_companion(stem, ".lungs.png"), "png", png_bytes(PIL.Image.fromarray(mask)), inputs=inputs)
    return True


def write_class_map(
    stem: Path, outcome: ScreenedOutcome, manifest: Manifest, *, inputs: Sequence[Path], lungs_pack: str = ""
) -> None:
    """Write the class map of the deciding label as `NAME.map.npy`, and its description as `NAME.map.json`.

    Nothing is written if the outcome has no class map.

    stem        path of the files without suffix
    inputs      files and folders of the run, which are never replaced
    lungs_pack  name of the lung-field pack for the description; "" without one

    Raises UsageProblem, StorageProblem.
    """
    shown = shown_heat_map(outcome, manifest)
    if shown is None:
        return
    finding, logits, facts = shown.finding, shown.logits, outcome.facts
    about = {
        "report": "class map",
        "notice": RESEARCH_ONLY_NOTICE,
        "path": image_path(outcome.ref),
        "pack": outcome.pack_name,
        "model_sha256": outcome.model_sha256,
        "lungs_pack": lungs_pack or None,
        "label": finding.label,
        "score": score_for_export(finding),
        "operating_point": finding.point.name if finding.point else None,
        "threshold": finding.point.threshold if finding.point else None,
        "scale": {
            "unit": "logit",
            "none": shown.evidence_threshold,
            "strongest": shown.evidence_threshold + shown.colour_span,
        },
        "box": dict(zip(("left", "top", "width", "height"), shown.network_field_of_view, strict=True)),
        "rows": logits.shape[0],
        "columns": logits.shape[1],
        "image_rows": facts.rows,
        "image_columns": facts.columns,
    }
    text = json.dumps(about, indent=1) + "\n"
    write_output(_companion(stem, ".map.json"), "json", text.encode(), inputs=inputs)
    write_output(_companion(stem, ".map.npy"), "map", npy_bytes(logits), inputs=inputs)


def write_overlay(
    stem: Path, outcome: ScreenedOutcome, manifest: Manifest, *, grey: NDArray[np.uint8], inputs: Sequence[Path]
) -> None:
    """Write the image with heat map and lung outline as `NAME.overlay.png`.

    stem    path of the file without suffix
    grey    (rows, columns) uint8, the image as read with the specification `overlay_input_spec`
    inputs  files and folders of the run, which are never replaced

    Raises UsageProblem, StorageProblem.
    """
    shown = ShownImage(pixels=grey, file_rows=outcome.facts.rows, file_columns=outcome.facts.columns)
    canvas = image_as_shown(outcome, shown, manifest)
    write_output(_companion(stem, ".overlay.png"), "png", png_bytes(canvas), inputs=inputs)


def png_bytes(canvas: PIL.Image.Image, *, comment: str = "") -> bytes:
    """Encode an image as PNG.

    The PNG contains the comment, and the program's name, by which the program recognises the file later.
    """
    info, stream = PngInfo(), io.BytesIO()
    info.add_text("Software", "fieldray")
    if comment:
        info.add_text("Comment", comment)
    canvas.save(stream, format="PNG", pnginfo=info)
    return stream.getvalue()


def npy_bytes(numbers: NDArray[np.float32]) -> bytes:
    """Return an array as an .npy file. The file equals that of `numpy.save`, except for a longer header.

    `outputs` recognises class maps of this program by the length of the header.
    """
    values: NDArray[Any] = np.ascontiguousarray(numbers, "<f4")
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {values.shape}, }}".encode()
    return CLASS_MAP_NPY_START[:10] + header.ljust(512 - 11) + b"\n" + values.tobytes()


def _companion(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)


WARPED_PRIOR_FILE_NAME: Final = "warped_prior.png"
OVERLAY_FILE_NAME: Final = "overlay.png"
DISPLACEMENT_FILE_NAME: Final = "displacement.npy"
_FILES: Final[Mapping[str, OutputKind]] = {
    WARPED_PRIOR_FILE_NAME: "png",
    OVERLAY_FILE_NAME: "png",
    DISPLACEMENT_FILE_NAME: "map",
}
_OPACITY: Final = 0.75
_STRIP_PX: Final = 89
_SWATCH_PX: Final = 12
_LINE: Final = 88  # characters that fit below the image


def pair_comparison_notice() -> str:
    """Return the notice on every output of a comparison: research use only, and what a comparison cannot show."""
    return f"{RESEARCH_ONLY_NOTICE} {reason('compare_notice').text}"


def write_comparison(folder: Path, comparison: PairComparison, *, inputs: Sequence[Path]) -> tuple[Path, ...]:
    """Write the images of a comparison into a folder, which is created if missing. Returns the paths of the files.

    inputs  the compared files, which are never replaced

    Raises UsageProblem, StorageProblem.
    """
    if comparison.aligned_pair is None or comparison.current is None:
        _remove_previous(folder, inputs=inputs)
        return ()
    aligned, comment = comparison.aligned_pair, pair_comparison_notice()
    contents = {
        WARPED_PRIOR_FILE_NAME: png_bytes(Image.fromarray(aligned.warped_prior), comment=comment),
        OVERLAY_FILE_NAME: png_bytes(pair_overlay(comparison.current, aligned), comment=comment),
        DISPLACEMENT_FILE_NAME: npy_bytes(aligned.alignment.displacement),
    }
    for name, data in contents.items():
        write_output(folder / name, _FILES[name], data, inputs=inputs)
    return tuple(folder / name for name in contents)


def require_writable_pair_files(folder: Path, *, inputs: Sequence[Path]) -> None:
    """Raise UsageProblem if the outputs of `fieldray compare` cannot be written into a folder.

    An output cannot be written if an input, or a file that this command did not write, has the name of the output.

    inputs  the compared files
    """
    for name, kind in _FILES.items():
        require_own_output(folder / name, kind, inputs=inputs)


def _remove_previous(folder: Path, *, inputs: Sequence[Path]) -> None:
    require_writable_pair_files(folder, inputs=inputs)
    for name in _FILES:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise storage_problem(error, folder / name) from error


def pair_comparison_as_json(comparison: PairComparison, *, warnings: Sequence[Reason] = ()) -> str:
    """Return a comparison as the JSON text that `fieldray compare --json` prints.

    warnings  warnings about the comparison, which the text contains
    """
    said = [{"code": doubt.code, "text": doubt.text} for doubt in warnings]
    values: Mapping[str, Any] = {**comparison_json(comparison), "doubts": said, "notice": pair_comparison_notice()}
    return json.dumps(values, indent=1) + "\n"


def pair_overlay(current: FramedImage, aligned: AlignedPair) -> Image.Image:
    """Return the current image with coloured differences to the prior image, boxes around them, and a legend."""
    canvas = Image.new("RGB", (FRAME_SIDE, FRAME_SIDE + _STRIP_PX))
    canvas.paste(Image.fromarray(current.pixels).convert("RGB"))
    colours = change_colours(aligned.shown_change)
    shares = np.rint(colours[:, :, 3] * _OPACITY).astype(np.uint8)
    canvas.paste(Image.fromarray(np.ascontiguousarray(colours[:, :, :3])), (0, 0), Image.fromarray(shares))
    draw = ImageDraw.Draw(canvas)
    for region in aligned.regions:
        box = region.box
        edges = (box.left - 2, box.top - 2, box.left + box.width + 1, box.top + box.height + 1)
        draw.rectangle(edges, outline=DENSER_COLOUR if region.is_denser else LESS_DENSE_COLOUR)
    _add_legend(draw)
    return canvas


def _add_legend(draw: ImageDraw.ImageDraw) -> None:
    font, top = ImageFont.load_default(11), FRAME_SIDE + 5
    texts = ((DENSER_COLOUR, "denser (whiter) than in the prior"), (LESS_DENSE_COLOUR, "less dense than in the prior"))
    for number, (colour, text) in enumerate(texts):
        left = 6 + number * 220
        draw.rectangle((left, top, left + _SWATCH_PX, top + _SWATCH_PX), fill=colour)
        draw.text((left + _SWATCH_PX + 6, top - 1), text, font=font, fill=(230, 230, 230))
    caption = f"From {WEAKEST_SHOWN_CHANGE:g} times the noise on. {pair_comparison_notice()}"
    for line, text in enumerate(textwrap.wrap(caption, _LINE)):
        draw.text((6, top + 18 + 15 * line), text, font=font, fill=(230, 230, 230))

"""DICOM objects with pixels: the displayed image as a secondary capture, and the lung fields as a segmentation.

A secondary capture is the image with heat map and outline, and below it the result in words. The words, with *research
use only*, are part of the pixels, so that every viewer shows them. The pixels never contain patient names.

A segmentation (PS3.3 A.51) is one binary frame of the size of the image. If the image has no valid UIDs, the
segmentation refers to the secondary capture and has its size.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate

from fieldray.domain.finding import lungs_of, reason_of
from fieldray.domain.image import ShownImage
from fieldray.paths import asset_path
from fieldray.reports.dicom_instance import (
    SECONDARY_CAPTURE_SOP_CLASS_UID,
    DicomImageReference,
    ReportedImage,
    can_be_referenced,
    code_sequence_item,
    derived_uid,
    dicom_image_reference,
    dicom_item,
    image_reference_item,
    new_dicom_object,
)
from fieldray.reports.images import has_heat_map, heat_map_legend, image_as_shown
from fieldray.reports.wording import Wording

CAPTURE_SIDE_PX: Final = 1280  # longer side of the image in a capture, in pixels
_MIN_WIDTH: Final = 800
_PANEL: Final = 256
_EDGE: Final = 20
_SIZES: Final = (17, 15, 14, 13, 12, 11, 10)  # possible font sizes of the words, in pixels
_LEADING: Final = 7
_QUALITY: Final = 90
_GROUND: Final = (16, 20, 24)
_BRIGHT: Final = (240, 243, 245)
_SOFT: Final = (176, 186, 194)
_COLOURS: Final = {
    **{"read_first": (255, 128, 150), "abnormal": (255, 147, 98)},
    **{"unsure": (236, 194, 77), "normal": (88, 203, 169)},
}


@dataclass(frozen=True, slots=True)
class CaptureLayout:
    """The layout of a secondary capture in pixels.

    image_left                 left edge of the image. The upper edge of the image is the upper edge of the capture
    image_width, image_height  size of the image
    columns, rows              size of the whole capture
    """

    image_left: int
    image_width: int
    image_height: int
    columns: int
    rows: int


def capture_layout(rows: int, columns: int) -> CaptureLayout:
    """Return the layout of the secondary capture of an image with `rows` x `columns` pixels.

    The number of columns is even, because JPEG compression with reduced colour resolution requires that.
    """
    scale = CAPTURE_SIDE_PX / max(rows, columns)
    height, width = max(1, round(rows * scale)), max(1, round(columns * scale))
    wide = max(_MIN_WIDTH, width + width % 2)
    return CaptureLayout(
        image_left=(wide - width) // 2, image_width=width, image_height=height, columns=wide, rows=height + _PANEL
    )


def secondary_capture(subject: ReportedImage, shown: ShownImage, wording: Wording) -> Dataset:
    """Make the secondary capture of a result: a DICOM object with the displayed image and the result in words.

    shown  the grey image, as displayed

    The compression is JPEG Baseline, the only colour compression that every archive accepts.
    """
    dataset = new_dicom_object(subject, "sc", SECONDARY_CAPTURE_SOP_CLASS_UID, title="what was shown")
    dataset.ConversionType = "WSD"
    dataset.ImageType = ["DERIVED", "SECONDARY"]
    dataset.PatientOrientation = ""
    dataset.BodyPartExamined = "CHEST"
    stated = subject.ref.header.burned_in_annotation.upper()
    if stated in ("YES", "NO"):
        dataset.BurnedInAnnotation = stated
    if "PatientIdentityRemoved" in dataset and stated != "NO":
        dataset.PatientIdentityRemoved = "NO"  # the image's pixels may contain a name
    dataset.DerivationDescription = "Shown with the program's result. Research use only. Not for diagnostic use."
    if (source := dicom_image_reference(subject.ref)) is not None:
        dataset.SourceImageSequence = [_as_source(source)]
    canvas = draw_capture(subject, shown, wording)
    stream = io.BytesIO()
    canvas.save(stream, "JPEG", quality=_QUALITY, subsampling="4:2:2")
    _add_jpeg(dataset, canvas, stream.getvalue())
    return dataset


def _as_source(source: DicomImageReference) -> Dataset:
    """Return a DICOM sequence item that names the image from which an object was derived."""
    made = image_reference_item(source)
    made.PurposeOfReferenceCodeSequence = [
        code_sequence_item("121322", "DCM", "Source image for image processing operation")
    ]
    return made


def _add_jpeg(dataset: Dataset, canvas: Image.Image, jpeg: bytes) -> None:
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PlanarConfiguration = 3, "YBR_FULL_422", 0
    dataset.Rows, dataset.Columns = canvas.height, canvas.width
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit, dataset.PixelRepresentation = 7, 0
    dataset.LossyImageCompression = "01"
    dataset.LossyImageCompressionRatio = f"{3 * canvas.width * canvas.height / len(jpeg):.2f}"
    dataset.LossyImageCompressionMethod = "ISO_10918_1"
    dataset.PixelData = encapsulate([jpeg])
    dataset["PixelData"].VR = "OB"
    dataset["PixelData"].is_undefined_length = True


def draw_capture(subject: ReportedImage, shown: ShownImage, wording: Wording) -> Image.Image:
    """Draw the pixels of a secondary capture: the image with heat map and outline, and below it the result in words.

    shown  the grey image, as displayed
    """
    layout = capture_layout(shown.file_rows, shown.file_columns)
    manifest = subject.stored_run.manifest
    enlarged = Image.fromarray(shown.pixels).resize((layout.image_width, layout.image_height), Image.Resampling.BICUBIC)
    seen = ShownImage(pixels=np.asarray(enlarged), file_rows=shown.file_rows, file_columns=shown.file_columns)
    canvas = Image.new("RGB", (layout.columns, layout.rows), _GROUND)
    canvas.paste(image_as_shown(subject.outcome, seen, manifest), (layout.image_left, 0))
    _write_panel(canvas, layout, subject, wording)
    return canvas


def _write_panel(canvas: Image.Image, layout: CaptureLayout, subject: ReportedImage, wording: Wording) -> None:
    text = wording.image_text(subject.result)
    top, room = layout.image_height + 12, layout.columns - 2 * _EDGE
    leading = text.findings[0] if text.findings else None
    head = text.class_name if leading is None else f"{text.class_name}   {leading.label_meaning} {leading.score}"
    has_legend = has_heat_map(subject.outcome, subject.stored_run.manifest)
    head_font = _font_for(head, room - 190 * has_legend)
    canvas.paste(_COLOURS.get(text.category, _BRIGHT), (_EDGE, top), _line(head, head_font))
    top += 46
    first = wording.translator.reason(why) if (why := reason_of(subject.outcome)) else ""
    lines = (
        (first or leading.decision_sentence, leading.operating_point_sentence, leading.performance_sentence)
        if leading
        else (first,)
    )
    said, size = _lines_of([line for line in (*lines, text.caption) if line], room, layout.rows - 40 - top)
    for line in said:
        canvas.paste(_BRIGHT, (_EDGE, top), _line(line, _font(size)))
        top += size + _LEADING
    notice = _line(wording.notice, _font(18, is_bold=True))
    canvas.paste(_BRIGHT, (_EDGE, layout.rows - 36), notice)
    for caption in _made_with(subject):
        made = _line(caption, _font(14))
        if made.width + notice.width + 3 * _EDGE < layout.columns:
            canvas.paste(_SOFT, (layout.columns - _EDGE - made.width, layout.rows - 33), made)
            break
    if has_legend:
        canvas.paste(heat_map_legend(160, 12), (layout.columns - _EDGE - 160, layout.image_height + 26))


def _font_for(head: str, room: int) -> ImageFont.FreeTypeFont:
    """Return the largest font in which a heading fits a width.

    head  the heading
    room  the width in pixels
    """
    sizes = (size for size in range(34, 10, -2) if _font(size, is_bold=True).getlength(head) <= room)
    return _font(next(sizes, 10), is_bold=True)


def _lines_of(texts: Sequence[str], room: int, height: int) -> tuple[list[str], int]:
    """Break texts into lines that fit a box. Returns the lines, and the largest font size in pixels that fits.

    room    width of the box in pixels
    height  height of the box in pixels
    """
    for size in _SIZES:
        lines = [line for text in texts for line in _wrapped(text, _font(size), room)]
        if len(lines) * (size + _LEADING) <= height:
            break
    return lines, size


def _wrapped(text: str, font: ImageFont.FreeTypeFont, room: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _made_with(subject: ReportedImage) -> tuple[str, ...]:
    """Return descriptions of program and pack: one with the lung-field pack, if any, and a shorter one without."""
    program, lungs_pack = subject.stored_run.run.spec.program_version, subject.stored_run.pack.lungs_pack
    outcome = subject.outcome
    short = f"Fieldray {program} · {outcome.pack_name} · {outcome.model_sha256[:16]}"
    return (f"{short} · {lungs_pack}", short) if lungs_pack else (short,)


@lru_cache(maxsize=64)
def _line(text: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """Render a line of text as a grey mask (Pillow mode "L").

    The mask is cached, because most captures have equal lines.
    """
    mask = Image.new("L", (max(1, math.ceil(font.getlength(text))), 2 * round(font.size)))
    ImageDraw.Draw(mask).text((0, 0), text, font=font, fill=255)
    return mask


@lru_cache(maxsize=32)
def _font(size: int, *, is_bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return a font for the words below a capture's image.

    size  size of the letters in pixels
    """
    name = "DejaVuSans-Bold.ttf" if is_bold else "DejaVuSans.ttf"
    return ImageFont.truetype(asset_path("fonts") / name, size, layout_engine=ImageFont.Layout.BASIC)


SEGMENTATION_SOP_CLASS_UID: Final = "1.2.840.10008.5.1.4.1.1.66.4"
_SEGMENT_NUMBER: Final = 0x0062000B  # Referenced Segment Number
_SEGMENT_GROUP: Final = 0x0062000A  # Segment Identification Sequence
_CYAN: Final = [47000, 26000, 27000]  # CIELab, scaled to 16 bits (PS3.3 C.10.7.1.1)

Mask = NDArray[np.bool_]


def lung_mask(subject: ReportedImage) -> Mask | None:
    """Return the lungs as a mask (rows, columns) bool on the pixel grid of the image to which DICOM objects refer.

    Returns None if no lungs were found.
    """
    lungs, facts = lungs_of(subject.outcome), subject.outcome.facts
    if lungs is None or not lungs.has_lungs or not facts.rows:
        return None
    mask: Mask = lungs.mask_at_image_size(rows=facts.rows, columns=facts.columns)
    if not mask.any():
        return None
    if not can_be_referenced(subject.ref):
        return mask_on_capture(mask)
    # The capture shows the image turned upright. The segmentation of a file needs the orientation of the file.
    lying, header = subject.ref.correction.inverse.rotate(mask), subject.ref.header
    return _sampled(lying, rows=header.rows or lying.shape[0], columns=header.columns or lying.shape[1])


def mask_on_capture(mask: Mask) -> Mask:
    """Convert a mask of an image to a mask of the image's secondary capture, of which the image covers only a part.

    mask  (rows, columns) bool, on the pixel grid of the image

    The result is on the pixel grid of the capture.
    """
    layout = capture_layout(*mask.shape)
    found = np.zeros((layout.rows, layout.columns), bool)
    seen = _sampled(mask, rows=layout.image_height, columns=layout.image_width)
    found[: layout.image_height, layout.image_left : layout.image_left + layout.image_width] = seen
    return found


def _sampled(mask: Mask, *, rows: int, columns: int) -> Mask:
    down, across = ((np.arange(n) + 0.5) * of / n for n, of in zip((rows, columns), mask.shape, strict=True))
    found: Mask = mask[np.ix_(down.astype(int), across.astype(int))]
    return found


def lung_segmentation(subject: ReportedImage, mask: Mask, source: DicomImageReference) -> Dataset:
    """Make the DICOM segmentation of the lungs.

    mask    (rows, columns) bool, the lungs on the pixel grid of the image
    source  reference to the image whose lungs the mask shows, or to the image's secondary capture
    """
    dataset = new_dicom_object(subject, "seg", SEGMENTATION_SOP_CLASS_UID, title="lung fields")
    dataset.ImageType = ["DERIVED", "PRIMARY"]
    dataset.ContentLabel, dataset.ContentDescription = (
        "LUNG_FIELDS",
        "Lung fields, found by a network. Research use only",
    )
    dataset.ContentCreatorName = "Fieldray^"
    dataset.PatientOrientation = ""
    dataset.SegmentationType = "BINARY"
    dataset.SegmentsOverlap = "NO"
    dataset.SegmentSequence = [_segment(subject)]
    image = image_reference_item(replace(source, frame=None))
    dataset.ReferencedSeriesSequence = [
        dicom_item(SeriesInstanceUID=source.series_uid, ReferencedInstanceSequence=[image])
    ]
    own = {"DimensionOrganizationUID": derived_uid("dimension", dataset.SOPInstanceUID)}
    index = dicom_item(DimensionIndexPointer=_SEGMENT_NUMBER, FunctionalGroupPointer=_SEGMENT_GROUP, **own)
    dataset.DimensionOrganizationSequence, dataset.DimensionIndexSequence = [dicom_item(**own)], [index]
    _add_frame(dataset, source)
    _add_mask(dataset, mask)
    return dataset


def _segment(subject: ReportedImage) -> Dataset:
    return dicom_item(
        SegmentNumber=1,
        SegmentLabel="Lung fields",
        SegmentAlgorithmType="AUTOMATIC",
        SegmentAlgorithmName=f"Fieldray {subject.stored_run.run.spec.program_version}",
        SegmentedPropertyCategoryCodeSequence=[code_sequence_item("123037004", "SCT", "Anatomical Structure")],
        SegmentedPropertyTypeCodeSequence=[code_sequence_item("39607008", "SCT", "Lung")],
        RecommendedDisplayCIELabValue=_CYAN,
    )


def _add_frame(dataset: Dataset, source: DicomImageReference) -> None:
    image = _as_source(source)
    image.SpatialLocationsPreserved = "YES"
    derivation = dicom_item(
        SourceImageSequence=[image], DerivationCodeSequence=[code_sequence_item("113076", "DCM", "Segmentation")]
    )
    content = dicom_item(DimensionIndexValues=[1])
    dataset.SharedFunctionalGroupsSequence = [
        dicom_item(SegmentIdentificationSequence=[dicom_item(ReferencedSegmentNumber=1)])
    ]
    dataset.PerFrameFunctionalGroupsSequence = [
        dicom_item(DerivationImageSequence=[derivation], FrameContentSequence=[content])
    ]


def _add_mask(dataset: Dataset, mask: Mask) -> None:
    packed = np.packbits(mask.reshape(-1), bitorder="little").tobytes()
    dataset.NumberOfFrames = 1
    dataset.Rows, dataset.Columns = mask.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 1
    dataset.HighBit = dataset.PixelRepresentation = 0
    dataset.LossyImageCompression = "00"  # the mask is stored without loss
    dataset.PixelData = packed + b"\0" * (len(packed) % 2)
    dataset["PixelData"].VR = "OB"

"""The lung fields of an image as a segmentation (PS3.3 A.51): one binary frame, at the size of the image.

For an image that no object can refer to, they are those of its secondary capture, in which the image takes a part.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from fieldray.domain.finding import lungs_of
from fieldray.reports.dicom.capture import layout_of
from fieldray.reports.dicom.instance import Source, Subject, coded, new_object, reference
from fieldray.reports.dicom.uids import can_be_referenced, made_uid

SOP_CLASS: Final = "1.2.840.10008.5.1.4.1.1.66.4"
_SEGMENT_NUMBER: Final = 0x0062000B  # Referenced Segment Number
_SEGMENT_GROUP: Final = 0x0062000A  # Segment Identification Sequence
_CYAN: Final = [47000, 26000, 27000]  # CIELab, scaled to 16 bits (PS3.3 C.10.7.1.1)

Mask = NDArray[np.bool_]


def lung_mask(subject: Subject) -> Mask | None:
    """The lungs on the grid of the image that the object refers to, (rows, columns) bool; None where there are none."""
    lungs, facts = lungs_of(subject.outcome), subject.outcome.facts
    if lungs is None or not lungs.found or not facts.rows:
        return None
    mask: Mask = lungs.mask_of_image(rows=facts.rows, columns=facts.columns)
    if not mask.any():
        return None
    if not can_be_referenced(subject.ref):
        return on_capture(mask)
    # The capture shows the image as it was turned, with square pixels; the file's own image is as it is.
    lying, header = subject.ref.turn.back.grid(mask), subject.ref.header
    return _sampled(lying, rows=header.rows or lying.shape[0], columns=header.columns or lying.shape[1])


def on_capture(mask: Mask) -> Mask:
    """A mask of an image on the secondary capture of that image."""
    layout = layout_of(*mask.shape)
    found = np.zeros((layout.rows, layout.columns), bool)
    seen = _sampled(mask, rows=layout.height, columns=layout.width)
    found[: layout.height, layout.left : layout.left + layout.width] = seen
    return found


def _sampled(mask: Mask, *, rows: int, columns: int) -> Mask:
    down, across = ((np.arange(n) + 0.5) * of / n for n, of in zip((rows, columns), mask.shape, strict=True))
    found: Mask = mask[np.ix_(down.astype(int), across.astype(int))]
    return found


def segmentation(subject: Subject, mask: Mask, source: Source) -> Dataset:
    """The object; the standard calls the image type of every segmentation DERIVED\\PRIMARY."""
    dataset = new_object(subject, "seg", SOP_CLASS, title="lung fields")
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
    dataset.ReferencedSeriesSequence = [_referenced_series(source)]
    _add_dimensions(dataset)
    _add_frame(dataset, source)
    _add_pixels(dataset, mask)
    return dataset


def _segment(subject: Subject) -> Dataset:
    item = Dataset()
    item.SegmentNumber, item.SegmentLabel = 1, "Lung fields"
    item.SegmentAlgorithmType, item.SegmentAlgorithmName = (
        "AUTOMATIC",
        f"Fieldray {subject.stored.run.spec.program_version}",
    )
    item.SegmentedPropertyCategoryCodeSequence = [coded("123037004", "SCT", "Anatomical Structure")]
    item.SegmentedPropertyTypeCodeSequence = [coded("39607008", "SCT", "Lung")]
    item.RecommendedDisplayCIELabValue = _CYAN
    return item


def _referenced_series(source: Source) -> Dataset:
    image, series = Dataset(), Dataset()
    image.ReferencedSOPClassUID, image.ReferencedSOPInstanceUID = source.sop_class_uid, source.sop_instance_uid
    series.SeriesInstanceUID, series.ReferencedInstanceSequence = source.series_uid, [image]
    return series


def _add_dimensions(dataset: Dataset) -> None:
    organization, index = Dataset(), Dataset()
    organization.DimensionOrganizationUID = made_uid("dimension", dataset.SOPInstanceUID)
    index.DimensionOrganizationUID = organization.DimensionOrganizationUID
    index.DimensionIndexPointer, index.FunctionalGroupPointer = _SEGMENT_NUMBER, _SEGMENT_GROUP
    dataset.DimensionOrganizationSequence, dataset.DimensionIndexSequence = [organization], [index]


def _add_frame(dataset: Dataset, source: Source) -> None:
    derivation, image, content, identification = Dataset(), reference(source), Dataset(), Dataset()
    image.PurposeOfReferenceCodeSequence = [coded("121322", "DCM", "Source image for image processing operation")]
    image.SpatialLocationsPreserved = "YES"
    derivation.SourceImageSequence = [image]
    derivation.DerivationCodeSequence = [coded("113076", "DCM", "Segmentation")]
    content.DimensionIndexValues = [1]
    identification.ReferencedSegmentNumber = 1
    frame = Dataset()
    frame.DerivationImageSequence, frame.FrameContentSequence = [derivation], [content]
    shared = Dataset()
    shared.SegmentIdentificationSequence = [identification]
    dataset.SharedFunctionalGroupsSequence, dataset.PerFrameFunctionalGroupsSequence = [shared], [frame]


def _add_pixels(dataset: Dataset, mask: Mask) -> None:
    packed = np.packbits(mask.reshape(-1), bitorder="little").tobytes()
    dataset.NumberOfFrames = 1
    dataset.Rows, dataset.Columns = mask.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 1
    dataset.HighBit = dataset.PixelRepresentation = 0
    dataset.LossyImageCompression = "00"  # of the mask itself
    dataset.PixelData = packed + b"\0" * (len(packed) % 2)
    dataset["PixelData"].VR = "OB"

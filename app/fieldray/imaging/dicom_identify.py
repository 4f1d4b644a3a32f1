"""What a DICOM file holds, according to its header."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, BinaryIO, Final

from pydicom.uid import DeflatedExplicitVRLittleEndian

from fieldray.domain.study import ImageHeader, ImageRef
from fieldray.errors import FieldrayError, Unreadable, Unusable
from fieldray.imaging.dicom_header import (
    INDEX_CLASS,
    LENIENT_PYDICOM,
    DicomHeader,
    read_header,
    text,
    whole_number,
)
from fieldray.imaging.dicom_index import index_found
from fieldray.imaging.identify import IndexFound
from fieldray.imaging.limits import MAX_FRAMES, MAX_INFLATED_HEADER_BYTES
from fieldray.reasons import reason

_TEXTS: Final = {
    "modality": "Modality",
    "body_part_examined": "BodyPartExamined",
    "view_position": "ViewPosition",
    "image_laterality": "ImageLaterality",
    "photometric_interpretation": "PhotometricInterpretation",
    "sop_class_uid": "SOPClassUID",
    "sop_instance_uid": "SOPInstanceUID",
    "series_instance_uid": "SeriesInstanceUID",
    "study_instance_uid": "StudyInstanceUID",
    "study_date": "StudyDate",
    "study_time": "StudyTime",
    "study_id": "StudyID",
    "accession_number": "AccessionNumber",
    "study_description": "StudyDescription",
    "patient_name": "PatientName",
    "patient_id": "PatientID",
    "patient_sex": "PatientSex",
    "patient_birth_date": "PatientBirthDate",
    "manufacturer": "Manufacturer",
}
_NUMBERS: Final = {"rows": "Rows", "columns": "Columns", "bits_stored": "BitsStored"}
_KEYWORDS: Final = (*_TEXTS.values(), *_NUMBERS.values(), "PatientAge", "NumberOfFrames")
_USUAL_HEADER_BYTES: Final = 2**18
_DAYS: Final = {"D": 1.0, "W": 7.0, "M": 30.4375, "Y": 365.25}


def identify_dicom(stream: BinaryIO, ref: ImageRef) -> list[ImageRef] | IndexFound:
    """One reference per frame, or what a DICOMDIR lists.

    Raises OSError; Unreadable for a damaged header, Unusable if there is no image or there are too many frames.
    """
    with LENIENT_PYDICOM:
        try:
            header = _header(stream)
            return index_found(stream) if header.media_class == INDEX_CLASS else _frames(header, ref)
        except FieldrayError:
            raise
        except OSError as error:
            if error.errno is not None:
                raise
            # pydicom's own, for a sequence that breaks off
            raise Unreadable(reason("truncated")) from error
        except Exception as error:  # pydicom raises whatever the damaged bytes lead it to
            raise Unreadable(reason("damaged", detail="its header cannot be read")) from error


def _header(stream: BinaryIO) -> DicomHeader:
    """Of a deflated file only as much is inflated as a header usually needs, and more if that is not enough."""
    for limit in (_USUAL_HEADER_BYTES, MAX_INFLATED_HEADER_BYTES):
        stream.seek(0)
        header = read_header(stream, _KEYWORDS, inflated_limit=limit)
        if header.pixels or header.transfer_syntax != DeflatedExplicitVRLittleEndian:
            break
    return header


def _frames(header: DicomHeader, ref: ImageRef) -> list[ImageRef]:
    facts = _facts(header)
    if header.pixels is None:
        if header.is_cut:
            raise Unreadable(reason("truncated"))
        if not (facts.sop_class_uid or facts.modality or header.media_class):
            raise Unusable(reason("not_an_image"))
        raise Unusable(reason("no_pixel_data", modality=facts.modality or "?"))
    frames = facts.number_of_frames
    if frames > MAX_FRAMES:
        problem = reason("too_many_frames", frames=frames, limit=MAX_FRAMES)
        single = replace(facts, number_of_frames=1)
        return [replace(ref, kind="dicom", header=single, problem=problem, problem_is_refusal=True)]
    return [replace(ref, kind="dicom", header=facts, frame=frame) for frame in range(frames)]


def _facts(header: DicomHeader) -> ImageHeader:
    dataset = header.dataset
    named: dict[str, Any] = {name: text(dataset, keyword) for name, keyword in _TEXTS.items()}
    named |= {name: max(0, whole_number(dataset, keyword)) for name, keyword in _NUMBERS.items()}
    return ImageHeader(
        transfer_syntax_uid=str(header.transfer_syntax),
        patient_age_years=_age_years(text(dataset, "PatientAge")),
        number_of_frames=max(1, whole_number(dataset, "NumberOfFrames", 1)),
        **named,
    )


def _age_years(age: str) -> float | None:
    """The value representation AS: three digits and D, W, M or Y (PS3.5 6.2). A number alone, often met, is years."""
    count, unit = (age, "Y") if age[-1:].isdigit() else (age[:-1], age[-1:].upper())
    if unit not in _DAYS or not (count.isascii() and count.isdigit()):
        return None
    return int(count) * _DAYS[unit] / _DAYS["Y"]

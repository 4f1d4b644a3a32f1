"""Identification of a DICOM file by its header: an image, or a DICOMDIR (an index of other files)."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from typing import Any, BinaryIO, Final

from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset, read_sequence
from pydicom.uid import DeflatedExplicitVRLittleEndian
from pydicom.values import default_encoding

from fieldray.domain.image import ImageHeader, ImageRef, parse_dicom_date
from fieldray.domain.intended_use import view_of_code
from fieldray.errors import FieldrayError, Unreadable, UnsuitableImage
from fieldray.imaging.dicom_header import (
    DICOMDIR_CLASS_UID,
    DicomHeader,
    HeaderTooLong,
    element_at_stream_position,
    first_text,
    has_value,
    joined_text,
    missing_pixels_problem,
    open_dicom,
    read_header,
    sequence_items,
    text_values,
    whole_number,
)
from fieldray.imaging.limits import (
    MAX_DICOMDIR_RECORDS,
    MAX_FRAMES,
    MAX_HEADER_BYTES,
    MAX_INFLATED_HEADER_BYTES,
    DicomdirFound,
)
from fieldray.reasons import reason

_TEXTS: Final = {
    "modality": "Modality",
    "image_laterality": "ImageLaterality",
    "presentation_intent_type": "PresentationIntentType",
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
    "burned_in_annotation": "BurnedInAnnotation",
}
_NUMBERS: Final = {"rows": "Rows", "columns": "Columns", "bits_stored": "BitsStored"}
_DATES: Final = ("StudyDate", "SeriesDate", "AcquisitionDate", "ContentDate")
_WORDS: Final = {
    "body_part_examined": "BodyPartExamined",
    "view_position": "ViewPosition",
    "patient_orientation": "PatientOrientation",
    "image_type": "ImageType",
}
_DERIVATION: Final = ("DerivationDescription", "AcquisitionDeviceProcessingDescription")
_CODES: Final = ("ViewCodeSequence", "AnatomicRegionSequence")
_KEYWORDS: Final = (
    *_TEXTS.values(),
    *_NUMBERS.values(),
    *_DATES,
    *_WORDS.values(),
    *_DERIVATION,
    *_CODES,
    "PatientAge",
    "NumberOfFrames",
)
_USUAL_HEADER_BYTES: Final = 2**18
_DAYS: Final = {"D": 1.0, "W": 7.0, "M": 30.4375, "Y": 365.25}
_AGE: Final = re.compile(r"([DWMY]?)\s*([0-9]{1,3})(?:[.,][0-9]+)?\s*([DWMY]?)[A-Z]*\.?")
_OLDEST_YEARS: Final = 115.0  # higher ages are placeholders for an unknown age


def identify_dicom(stream: BinaryIO, ref: ImageRef) -> list[ImageRef] | DicomdirFound:
    """Identify a DICOM file. Returns one reference per frame, or the files that a DICOMDIR lists.

    A file with too many frames gives a single reference, with the `problem` too_many_frames. Raises OSError. Raises
    Unreadable for a damaged header, UnsuitableImage for a file without an image.
    """
    try:
        header = _header(stream)
        return (
            read_dicomdir(stream) if header.media_storage_sop_class_uid == DICOMDIR_CLASS_UID else _frames(header, ref)
        )
    except FieldrayError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        # raised by pydicom for a sequence that is cut short
        raise Unreadable(reason("truncated")) from error
    except Exception as error:  # pydicom raises whatever the damaged bytes lead it to
        raise Unreadable(reason("damaged", detail="the header cannot be read")) from error


def _header(stream: BinaryIO) -> DicomHeader:
    """Read the header of a DICOM file.

    A deflated file is inflated to the usual length of a header, and inflated further only if the header is longer.
    """
    for limit in (_USUAL_HEADER_BYTES, MAX_INFLATED_HEADER_BYTES):
        stream.seek(0)
        header = read_header(stream, _KEYWORDS, max_inflated_bytes=limit)
        if header.pixel_element or header.transfer_syntax != DeflatedExplicitVRLittleEndian:
            break
    return header


def _frames(header: DicomHeader, ref: ImageRef) -> list[ImageRef]:
    facts = _facts(header)
    if header.pixel_element is None:
        if not (header.is_truncated or facts.sop_class_uid or facts.modality or header.media_storage_sop_class_uid):
            raise UnsuitableImage(reason("not_an_image"))
        raise missing_pixels_problem(header)
    frames = facts.number_of_frames
    if frames > MAX_FRAMES:
        problem = reason("too_many_frames", frames=frames, limit=MAX_FRAMES)
        single = replace(facts, number_of_frames=1)
        return [replace(ref, kind="dicom", header=single, problem=problem, problem_is_refusal=True)]
    return [replace(ref, kind="dicom", header=facts, frame=frame) for frame in range(frames)]


def _facts(header: DicomHeader) -> ImageHeader:
    dataset = header.dataset
    named: dict[str, Any] = {name: first_text(dataset, keyword) for name, keyword in _TEXTS.items()}
    named |= {name: joined_text(dataset, keyword) for name, keyword in _WORDS.items()}
    named |= {name: max(0, whole_number(dataset, keyword)) for name, keyword in _NUMBERS.items()}
    views, regions = (sequence_items(dataset, keyword) for keyword in _CODES)
    named["view_code"] = next(
        (view_of_code(first_text(each, "CodeValue"), first_text(each, "CodeMeaning")) for each in views), ""
    )
    named["body_part_examined"] = named["body_part_examined"] or " ".join(
        first_text(each, "CodeMeaning") for each in regions
    )
    named["derivation"] = " / ".join(filter(None, (joined_text(dataset, keyword) for keyword in _DERIVATION)))
    ages = _ages_years(dataset)
    return ImageHeader(
        transfer_syntax_uid=str(header.transfer_syntax),
        patient_age_years=ages[0] if ages else None,
        contrary_age_years=next((age for age in ages if abs(age - ages[0]) > 1), None),
        number_of_frames=max(1, whole_number(dataset, "NumberOfFrames", 1)),
        **named,
    )


def _ages_years(dataset: Dataset) -> list[float]:
    """Return all ages in years that a file gives: from Patient's Age, and from birth date and date of the image."""
    ages = [age for value in text_values(dataset, "PatientAge") if (age := _age_years(value)) is not None]
    said = first_text(dataset, "PatientBirthDate")
    # if only the month or the year is known, its middle
    born = next(filter(None, (parse_dicom_date(said + rest) for rest in ("", "15", "0701"))), None)
    taken = next(filter(None, (parse_dicom_date(first_text(dataset, keyword)) for keyword in _DATES)), None)
    if born and taken and 0 <= (years := _years_between(born, taken)) <= _OLDEST_YEARS:
        ages.append(years)
    return ages


def _years_between(born: datetime.date, taken: datetime.date) -> float:
    """Return the years between two dates. The result is a whole number on every birthday."""
    whole = taken.year - born.year - ((taken.month, taken.day) < (born.month, born.day))
    return min(max((taken - born).days / _DAYS["Y"], whole), whole + 0.99)


def _age_years(age: str) -> float | None:
    """Parse a Patient's Age (VR AS) to years: three digits and D, W, M or Y (PS3.5 6.2).

    A number without a letter, which is frequent, means years. The result is None for other texts and for implausible
    ages.
    """
    found = _AGE.fullmatch(age.strip(" \0").upper())
    if found is None or (found[1] and found[3]):
        return None
    years = int(found[2]) * _DAYS[found[1] or found[3] or "Y"] / _DAYS["Y"]
    return years if years <= _OLDEST_YEARS else None


# ---- The files in a DICOMDIR (PS3.10 8.6). Records are read in the order of the file; no offset is followed.

_SEQUENCE: Final = 0x00041220
_MAX_READS: Final = 800_000  # a record has about a dozen elements


def read_dicomdir(stream: BinaryIO) -> DicomdirFound:
    """Read a DICOMDIR, and return the files that it lists (PS3.3 F.3).

    Raises OSError. Raises Unreadable: `too_many_records`, `index_damaged`.
    """
    stream.seek(0)
    begun = open_dicom(stream, MAX_HEADER_BYTES, max_reads=_MAX_READS)
    try:
        read_dataset(
            begun.stream, begun.is_implicit_vr, begun.is_little_endian, stop_when=lambda tag, *_: tag == _SEQUENCE
        )
        found = element_at_stream_position(begun, frozenset({_SEQUENCE}))
        length = found.length if found else 0
        records = read_sequence(begun.stream, begun.is_implicit_vr, begun.is_little_endian, length, default_encoding)
    except HeaderTooLong as error:
        raise _too_many_records() from error
    except Exception as error:  # pydicom raises whatever the damaged bytes lead it to
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise Unreadable(reason("index_damaged")) from error
    if begun.stream.is_truncated:
        raise Unreadable(reason("index_damaged"))
    if len(records) > MAX_DICOMDIR_RECORDS:
        raise _too_many_records()
    # an unreadable name gives an empty tuple, which names no file
    named = (record for record in records if has_value(record, "ReferencedFileID"))
    return DicomdirFound(tuple(tuple(text_values(record, "ReferencedFileID")) for record in named))


def _too_many_records() -> Unreadable:
    return Unreadable(reason("too_many_records", limit=MAX_DICOMDIR_RECORDS))

"""Common parts of the DICOM objects in exports: patient, study, series, equipment and file (PS3.3, PS3.10).

An object belongs to the study of its image, in a new series. An image without DICOM data gets a new study, whose
description says that Fieldray made the study. The image itself is never changed.

The UID of an object is derived from the object's content (PS3.5 B.2, a UUID under 2.25). If a result is exported twice,
both files have one UID, and an archive keeps one object. After a change, such as a new verdict, the UID is another.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from pydicom import dcmwrite
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian

from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.prior_image import ComparisonRecord
from fieldray.domain.run import StoredResult
from fieldray.formatting import DICOM_DATE_PATTERN
from fieldray.reports.exporter import DICOM_WRITER_NAME, StoredRun, header_for_report, image_alias

_PATTERN: Final = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))+")
_MAX_UID_CHARACTERS: Final = 64
# UID of Fieldray as the writer of files (PS3.10 7.1), a random UUID.
IMPLEMENTATION_CLASS_UID: Final = "2.25.156473418905120768331905466712349075822"
# Storage classes of X-rays with several frames (PS3.4 B.5). Only references to these classes may name a frame.
_OF_FRAMES: Final = frozenset(
    f"1.2.840.10008.5.1.4.1.1.{ending}"
    for ending in ("7.1", "7.2", "7.3", "7.4", "12.1", "12.1.1", "12.2", "12.2.1", "13.1.1", "13.1.2", "13.1.3", "20")
)


def is_valid_uid(uid: str) -> bool:
    """Return whether a text is a valid DICOM UID (DICOM PS3.5, section 9.1)."""
    return len(uid) <= _MAX_UID_CHARACTERS and _PATTERN.fullmatch(uid) is not None


def derived_uid(*parts: object) -> str:
    """Return a DICOM UID that is derived from values: equal values give equal UIDs."""
    digest = hashlib.sha256(json.dumps(parts, default=str).encode()).digest()
    return f"2.25.{uuid.UUID(bytes=digest[:16], version=5).int}"


def has_valid_study_uid(ref: ImageRef) -> bool:
    """Return whether the image has a valid Study Instance UID, so that an archive may already have the study."""
    return ref.kind == "dicom" and is_valid_uid(ref.header.study_instance_uid)


def can_be_referenced(ref: ImageRef) -> bool:
    """Return whether the image has all valid UIDs that a DICOM reference needs."""
    header = ref.header
    uids = (header.sop_class_uid, header.sop_instance_uid, header.series_instance_uid)
    return has_valid_study_uid(ref) and all(map(is_valid_uid, uids))


DicomObjectKind = Literal["sr", "sc", "seg"]

SECONDARY_CAPTURE_SOP_CLASS_UID: Final = "1.2.840.10008.5.1.4.1.1.7"
PROGRAM_NAME: Final = "Fieldray"
_TIME: Final = re.compile(r"([01][0-9]|2[0-3])([0-5][0-9]([0-5][0-9](\.[0-9]{1,6})?)?)?")
_MODALITIES: Final[dict[DicomObjectKind, str]] = {"sr": "SR", "sc": "OT", "seg": "SEG"}
_NUMBERS: Final[dict[DicomObjectKind, int]] = {"sr": 9601, "sc": 9602, "seg": 9603}
_WITHOUT_DICOM: Final = "Made by Fieldray: the image came without DICOM data"
_WITHOUT_STUDY: Final = "Made by Fieldray: the image names no valid study"
_METHOD: Final = "Fieldray: pseudonym for name and ID; UIDs and dates are kept"
_KEPT: Final = (
    ("113100", "Basic Application Confidentiality Profile"),
    ("113108", "Retain Patient Characteristics Option"),
    ("113106", "Retain Longitudinal Temporal Information with Full Dates Option"),
    ("113110", "Retain UIDs Option"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DicomImageReference:
    """The UIDs by which a DICOM object refers to an image, in the image's file or in its secondary capture.

    frame  number of the frame, from 1; None for a file with a single frame
    """

    sop_class_uid: str
    sop_instance_uid: str
    series_uid: str
    study_uid: str
    frame: int | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ReportedImage:
    """One screened image of a run, about which DICOM objects are made.

    result            the stored result
    outcome           the outcome of the screening
    stored_run        the run
    header            header of the image, with the patient data that DICOM objects may contain
    work_list_number  number of the image in the work list
    """

    result: StoredResult
    outcome: ScreenedOutcome
    stored_run: StoredRun
    header: ImageHeader
    work_list_number: int

    @property
    def ref(self) -> ImageRef:
        """The reference to the image: its path and header."""
        return self.outcome.ref

    @property
    def pseudonym(self) -> str:
        """The pseudonym of the image in all exports."""
        return image_alias(self.ref.key, key=self.stored_run.pseudonym_key)

    @property
    def study_uid(self) -> str:
        """The Study Instance UID of the image; without a valid UID, a UID derived from the image's content."""
        if has_valid_study_uid(self.ref):
            return self.ref.header.study_instance_uid
        return derived_uid("study", self.outcome.facts.content_sha256 or self.ref.key)

    @property
    def run_end_or_start_time(self) -> datetime.datetime:
        """The time at which the run ended, or began if the run has not ended.

        The time is local and has no time zone, as modalities write times.
        """
        run = self.stored_run.run
        return datetime.datetime.fromtimestamp(run.ended_s or run.started_s)

    def object_or_series_uid(self, kind: DicomObjectKind, what: str = "object") -> str:
        """Return the UID of a DICOM object about the image, or the UID of the series that contains the object.

        kind  kind of the object: "sr" (report), "sc" (secondary capture) or "seg" (segmentation)
        what  "object" or "series": whose UID to return
        """
        pack, options = self.stored_run.pack, self.stored_run.options
        run = (self.stored_run.run.run_id, self.run_end_or_start_time.timestamp(), installation_number(self.stored_run))
        made = (pack.model_sha256, pack.settings_hash, self.stored_run.run.spec.program_version)
        subject_key = (self.ref.patient_study_key, self.header.patient_id)
        common = (kind, what, *made, *run, self.study_uid, *subject_key, options.language)
        if what == "series":
            return derived_uid(*common)
        found, verdict = self.outcome.findings, self.result.verdict
        scores = [(one.label, one.score, one.decision) for one in found]
        compared = self.prior_comparisons if kind == "sr" and self.prior_comparisons else ()
        refers = ("refers to nothing",) if kind == "sr" and self.source is None else ()
        return derived_uid(
            *common, self.ref.key, self.outcome.facts.content_sha256, scores, verdict, *compared, *refers
        )

    @property
    def prior_comparisons(self) -> tuple[ComparisonRecord, ...]:
        """The comparisons of this image with prior images that a person made."""
        return self.stored_run.options.comparisons_of_current_image(self.outcome)

    @property
    def source(self) -> DicomImageReference | None:
        """The UIDs by which DICOM objects refer to the image.

        If the image's file has valid UIDs, these are the file's UIDs, else the UIDs of the image's secondary capture.
        None if the file has no valid UIDs and no secondary capture of the image is exported.
        """
        own, captures = dicom_image_reference(self.ref), self.stored_run.captured_work_list_numbers
        if own is not None or (captures is not None and self.work_list_number not in captures):
            return own
        return DicomImageReference(
            sop_class_uid=SECONDARY_CAPTURE_SOP_CLASS_UID,
            sop_instance_uid=self.object_or_series_uid("sc"),
            series_uid=self.object_or_series_uid("sc", "series"),
            study_uid=self.study_uid,
        )


def dicom_image_reference(ref: ImageRef) -> DicomImageReference | None:
    """Return the UIDs by which a DICOM object refers to an image; None if the image's file has no valid UIDs."""
    header = ref.header
    if not can_be_referenced(ref):
        return None
    # Some files have several frames in a class for single frames.
    has_frames = header.number_of_frames > 1 and header.sop_class_uid in _OF_FRAMES
    return DicomImageReference(
        sop_class_uid=header.sop_class_uid,
        sop_instance_uid=header.sop_instance_uid,
        series_uid=header.series_instance_uid,
        study_uid=header.study_instance_uid,
        frame=ref.frame + 1 if has_frames else None,
    )


def reported_image(result: StoredResult, stored: StoredRun, number: int) -> ReportedImage | None:
    """Return the `ReportedImage` for a result; None for an image that was not screened."""
    outcome = result.outcome
    if not isinstance(outcome, ScreenedOutcome):
        return None
    header = header_for_report(outcome.ref, stored)
    return ReportedImage(result=result, outcome=outcome, stored_run=stored, header=header, work_list_number=number)


def reported_images(stored: StoredRun) -> Iterator[ReportedImage]:
    """Yield a `ReportedImage` for each screened image of a run."""
    for number, result in enumerate(stored.results, 1):
        if subject := reported_image(result, stored.for_result(result), number):
            yield subject


def new_dicom_object(subject: ReportedImage, kind: DicomObjectKind, sop_class_uid: str, *, title: str) -> Dataset:
    """Return a new DICOM object with patient, study, series, equipment and identity. The caller adds the content.

    title  title of the series; "Research use only" is appended
    """
    dataset = Dataset()
    dataset.SpecificCharacterSet = "ISO_IR 192"
    dataset.SOPClassUID, dataset.SOPInstanceUID = sop_class_uid, subject.object_or_series_uid(kind)
    run_time = subject.run_end_or_start_time
    dataset.InstanceCreationDate = dataset.ContentDate = dataset.SeriesDate = f"{run_time:%Y%m%d}"
    dataset.InstanceCreationTime = dataset.ContentTime = dataset.SeriesTime = f"{run_time:%H%M%S}"
    dataset.InstanceNumber = subject.work_list_number
    if kind != "sr":  # a structured report has this text as a comment
        dataset.ImageComments = f"Image ID {subject.pseudonym}"
    _add_patient(dataset, subject)
    _add_study(dataset, subject)
    dataset.Modality = _MODALITIES[kind]
    dataset.SeriesInstanceUID = subject.object_or_series_uid(kind, "series")
    dataset.SeriesNumber = _NUMBERS[kind]
    dataset.SeriesDescription = f"{PROGRAM_NAME}: {title}. Research use only"
    dataset.Manufacturer = dataset.ManufacturerModelName = PROGRAM_NAME
    dataset.SoftwareVersions = subject.stored_run.run.spec.program_version or "unknown"
    dataset.DeviceSerialNumber = installation_number(subject.stored_run)
    return dataset


def dicom_item(**values: object) -> Dataset:
    """Make a DICOM sequence item, or a whole object, from values by DICOM keyword."""
    made = Dataset()
    for keyword, value in values.items():
        setattr(made, keyword, value)
    return made


def installation_number(stored: StoredRun) -> str:
    """Return a number that identifies this installation of the program.

    The number is derived from the key of the pseudonyms, but does not reveal the key.
    """
    return hashlib.sha256(b"installation" + stored.pseudonym_key).hexdigest()[:16]


def code_sequence_item(value: str, scheme: str, meaning: str) -> Dataset:
    """Make a DICOM code sequence item (PS3.3 8.8) from a code, its coding scheme, and its meaning in words."""
    return dicom_item(CodeValue=value, CodingSchemeDesignator=scheme, CodeMeaning=meaning[:64])


def image_reference_item(source: DicomImageReference) -> Dataset:
    """Return a DICOM sequence item that refers to an image and, if its file has several frames, to the frame."""
    frame = {} if source.frame is None else {"ReferencedFrameNumber": source.frame}
    return dicom_item(
        ReferencedSOPClassUID=source.sop_class_uid, ReferencedSOPInstanceUID=source.sop_instance_uid, **frame
    )


def encode_dicom_file(dataset: Dataset, *, transfer_syntax: str = ExplicitVRLittleEndian) -> bytes:
    """Encode a DICOM object as a file (PS3.10). The file's header names this program as the writer.

    transfer_syntax  UID of the transfer syntax
    """
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
    meta.TransferSyntaxUID = UID(transfer_syntax)
    meta.ImplementationClassUID = IMPLEMENTATION_CLASS_UID
    meta.ImplementationVersionName = DICOM_WRITER_NAME
    dataset.file_meta = meta
    stream = io.BytesIO()
    dcmwrite(stream, dataset, enforce_file_format=True)
    return stream.getvalue()


def _add_patient(dataset: Dataset, subject: ReportedImage) -> None:
    header, is_named = subject.header, subject.stored_run.options.names_people
    name, age_years = header.patient_name if is_named else f"{header.patient_name}^", header.patient_age_years
    dataset.PatientName, dataset.PatientID = _person_name(name), _text(header.patient_id)
    dataset.PatientBirthDate = (
        header.patient_birth_date if DICOM_DATE_PATTERN.fullmatch(header.patient_birth_date) else ""
    )
    dataset.PatientSex = header.patient_sex if header.patient_sex in ("M", "F", "O") else ""
    if age_years is not None and 0 <= age_years < 1000:
        dataset.PatientAge = f"{int(age_years):03}Y"
    if not is_named:
        dataset.PatientIdentityRemoved = "YES"
        dataset.DeidentificationMethod = _METHOD
        dataset.DeidentificationMethodCodeSequence = [
            code_sequence_item(value, "DCM", meaning) for value, meaning in _KEPT
        ]
        dataset.LongitudinalTemporalInformationModified = "UNMODIFIED"


def _add_study(dataset: Dataset, subject: ReportedImage) -> None:
    header, ref = subject.header, subject.ref
    dataset.StudyInstanceUID = subject.study_uid
    dataset.StudyDate = header.study_date if DICOM_DATE_PATTERN.fullmatch(header.study_date) else ""
    dataset.StudyTime = header.study_time if _TIME.fullmatch(header.study_time) else ""
    dataset.ReferringPhysicianName = ""
    dataset.StudyID, dataset.AccessionNumber = _text(header.study_id)[:16], _text(header.accession_number)[:16]
    if not has_valid_study_uid(ref):
        dataset.StudyDescription = _WITHOUT_STUDY if ref.kind == "dicom" else _WITHOUT_DICOM


def _text(value: str) -> str:
    """Return a text as a DICOM value of type LO or SH: without backslashes, and at most 64 characters.

    A text that could not be decoded becomes empty, because an archive would keep the damaged text.
    """
    if "\N{REPLACEMENT CHARACTER}" in value:
        return ""
    return value.replace("\\", "/").strip()[:64]


def _person_name(value: str) -> str:
    """Return a name as a DICOM value PN (PS3.5 6.2.1): at most three forms, each of 64 characters and five parts."""
    if "\N{REPLACEMENT CHARACTER}" in value:  # a name that could not be decoded
        return ""
    forms = [form.split("^") for form in value.replace("\\", "/").split("=")[:3]]
    return "=".join("^".join(parts[:5])[:64] for parts in forms)

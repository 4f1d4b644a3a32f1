"""The DICOM structured report of a result: an Imaging Measurement Report (PS3.16 TID 1500).

Each finding has a measurement group (TID 1501). A comparison of the image with a prior image has a group as well. This
group names the study date of the prior image, and refers to the prior image if its file has valid UIDs.

Reports are made with pydicom alone. highdicom needs a table of 23 MB, which is too large for the installed program, and
takes half a second to load the table. Tests read the reports with highdicom.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from pydicom.dataset import Dataset

from fieldray.domain.comparison import ChangeRegion
from fieldray.domain.finding import Decision, Finding, notes_of
from fieldray.domain.image import FileKind, ImageRef
from fieldray.domain.model import Estimate, Manifest, OperatingPoint
from fieldray.domain.prior_image import ComparisonRecord, pair_warnings
from fieldray.formatting import DICOM_DATE_PATTERN, category_label, class_performance_lines
from fieldray.plain_text import escape_invisible_characters
from fieldray.reasons import reason
from fieldray.reports.content import RESEARCH_ONLY_NOTICE
from fieldray.reports.dicom_instance import (
    PROGRAM_NAME,
    DicomImageReference,
    ReportedImage,
    code_sequence_item,
    derived_uid,
    dicom_image_reference,
    dicom_item,
    image_reference_item,
    installation_number,
    new_dicom_object,
)
from fieldray.reports.exporter import hide_names_in_reason
from fieldray.translation import Translator

FIELDRAY_CODING_SCHEME: Final = "99FIELDRAY"
UNITLESS_CODE: Final = ("1", "UCUM", "no units")
PERCENT_CODE: Final = ("%", "UCUM", "percent")
SOURCE_OF_MEASUREMENT_CODE: Final = ("121112", "DCM", "Source of Measurement")
_MAX_TEXT_CHARACTERS: Final = 1024

CodeSchemeMeaning = tuple[str, str, str]


def content_item(relationship: str, kind: str, name: CodeSchemeMeaning | None = None, **value: object) -> Dataset:
    """Make a content item of a structured report.

    relationship  relationship to the item that contains this item, such as "CONTAINS"
    kind          value type, such as "TEXT"
    name          concept name of the item, or None
    value         elements of the value by DICOM keyword
    """
    named = {} if name is None else {"ConceptNameCodeSequence": [code_sequence(name)]}
    return dicom_item(RelationshipType=relationship, ValueType=kind, **named, **value)


def code_sequence(code: CodeSchemeMeaning) -> Dataset:
    """Return a code as a DICOM sequence item. A code of more than 16 characters becomes a Long Code Value."""
    value, scheme, meaning = code
    if len(value) <= 16:
        return code_sequence_item(value, scheme, meaning)
    return dicom_item(LongCodeValue=value, CodingSchemeDesignator=scheme, CodeMeaning=meaning[:64])


def container_item(name: CodeSchemeMeaning, items: list[Dataset]) -> Dataset:
    """Make a content item of a structured report that contains these items.

    name  concept name of the container
    """
    return content_item("CONTAINS", "CONTAINER", name, ContinuityOfContent="SEPARATE", ContentSequence=items)


def template_item(number: str) -> list[Dataset]:
    """Return the sequence item by which a structured report names its template (PS3.16).

    number  number of the template, such as "1500"
    """
    return [dicom_item(MappingResource="DCMR", TemplateIdentifier=number)]


def code_item(relationship: str, name: CodeSchemeMeaning, value: CodeSchemeMeaning) -> Dataset:
    """Make a content item of a structured report from a relationship ("CONTAINS"), a concept name and a coded value."""
    return content_item(relationship, "CODE", name, ConceptCodeSequence=[code_sequence(value)])


def text_item(relationship: str, name: CodeSchemeMeaning, text: str) -> Dataset:
    """Make a content item of a structured report with a text. The text is cut to the permitted length.

    relationship  relationship to the item that contains this item, such as "CONTAINS"
    name          concept name of the item
    """
    return content_item(
        relationship, "TEXT", name, TextValue=escape_invisible_characters(text)[:_MAX_TEXT_CHARACTERS] or "-"
    )


def comment_item(text: str) -> Dataset:
    """Make a content item of a structured report with a comment in plain words."""
    return text_item("CONTAINS", ("121106", "DCM", "Comment"), text)


def uid_item(name: CodeSchemeMeaning, uid: str) -> Dataset:
    """Make a content item of a structured report with the UID of an observed object or of an observer.

    name  concept name of the item
    """
    return content_item("HAS OBS CONTEXT", "UIDREF", name, UID=uid)


def image_item(name: CodeSchemeMeaning | None, source: DicomImageReference) -> Dataset:
    """Make a content item of a structured report that refers to an image.

    name  concept name of the item, or None for an item without a name
    """
    return content_item("CONTAINS", "IMAGE", name, ReferencedSOPSequence=[image_reference_item(source)])


def number_item(name: CodeSchemeMeaning, value: float, unit: CodeSchemeMeaning) -> Dataset:
    """Make a content item of a structured report with a number and the unit of the number.

    name  concept name of the item
    """
    units = [code_sequence(unit)]
    measured = dicom_item(NumericValue=f"{value:.6g}", FloatingPointValue=value, MeasurementUnitsCodeSequence=units)
    return content_item("CONTAINS", "NUM", name, MeasuredValueSequence=[measured])


def measurement_group(name: str, uid: str, items: list[Dataset]) -> Dataset:
    """Make a group of measurements for a structured report (TID 1501).

    name   name of the group. The report shows the program's name and this name, such as "Fieldray Pneumonia"
    uid    UID that identifies the measured object
    items  the measurements
    """
    known = [
        text_item("HAS OBS CONTEXT", ("112039", "DCM", "Tracking Identifier"), f"{PROGRAM_NAME} {name}"),
        uid_item(("112040", "DCM", "Tracking Unique Identifier"), uid),
    ]
    group = container_item(("125007", "DCM", "Measurement Group"), known + items)
    group.ContentTemplateSequence = template_item("1501")
    return group


COMPREHENSIVE_SR_SOP_CLASS_UID: Final = "1.2.840.10008.5.1.4.1.1.88.33"  # Comprehensive SR
_LANGUAGE: Final = ("121049", "DCM", "Language of Content Item and Descendants")
_CHEST: Final = ("399208008", "SCT", "Plain X-ray of chest")
_DECISIONS: Final[dict[Decision, str]] = {
    "above": "Above the operating point",
    "below": "Below the operating point",
    "unsure": "Uncertain",
    "not_assessed": "No threshold",
}
_BY_LARGER: Final[dict[Decision, str]] = {
    "above": "Abnormal by the larger output, operating point unknown",
    "below": "Not abnormal by the larger output, operating point unknown",
}


def structured_report(subject: ReportedImage) -> Dataset:
    """Make the structured report about an image. The report contains no pixels."""
    dataset = new_dicom_object(subject, "sr", COMPREHENSIVE_SR_SOP_CLASS_UID, title="result")
    dataset.CompletionFlag, dataset.VerificationFlag, dataset.PreliminaryFlag = "COMPLETE", "UNVERIFIED", "PRELIMINARY"
    dataset.PerformedProcedureCodeSequence = []
    dataset.ReferencedPerformedProcedureStepSequence = []
    dataset.CodingSchemeIdentificationSequence = [
        dicom_item(
            CodingSchemeDesignator=FIELDRAY_CODING_SCHEME,
            CodingSchemeName="Codes of Fieldray and of its model packs",
            CodingSchemeResponsibleOrganization=PROGRAM_NAME,
        )
    ]
    if subject.source is not None:
        dataset.CurrentRequestedProcedureEvidenceSequence = [evidence_sequence_item(subject.source)]
    if priors := [found for pair in subject.prior_comparisons if (found := prior_image_reference(pair))]:
        dataset.PertinentOtherEvidenceSequence = [evidence_sequence_item(found) for found in dict.fromkeys(priors)]
    dataset.ValueType, dataset.ContinuityOfContent = "CONTAINER", "SEPARATE"
    dataset.ConceptNameCodeSequence = [code_sequence_item("126000", "DCM", "Imaging Measurement Report")]
    dataset.ContentTemplateSequence = template_item("1500")
    groups = [_group(subject, finding) for finding in subject.outcome.findings]
    groups += [_pair_group(subject, pair) for pair in subject.prior_comparisons]
    dataset.ContentSequence = [
        code_item("HAS CONCEPT MOD", _LANGUAGE, ("en", "RFC5646", "English")),
        *_observer(subject),
        code_item("HAS CONCEPT MOD", ("121058", "DCM", "Procedure reported"), _CHEST),
        *([_image_library(subject.source)] if subject.source else []),
        container_item(("126010", "DCM", "Imaging Measurements"), groups),
    ]
    return dataset


def _group(subject: ReportedImage, finding: Finding) -> Dataset:
    """Return the measurement group for one finding of the pack."""
    point, manifest = finding.point, subject.stored_run.manifest
    meaning = (_BY_LARGER if finding.is_decided_by_larger_output else _DECISIONS)[finding.decision]
    decision = finding.decision, FIELDRAY_CODING_SCHEME, meaning
    # The code of the class is this program's. The meaning is the pack's name of the class, if any.
    category = subject.outcome.category
    shown = escape_invisible_characters(category_label(Translator(), category, manifest))
    items = [
        code_item("CONTAINS", ("121071", "DCM", "Finding"), label_code(finding.label, manifest)),
        *_algorithm(subject),
        *([image_item(SOURCE_OF_MEASUREMENT_CODE, subject.source)] if subject.source else []),
        number_item(("score", FIELDRAY_CODING_SCHEME, "Calibrated score"), finding.score, UNITLESS_CODE),
        *(_point(point) if point else ()),
        code_item("CONTAINS", ("decision", FIELDRAY_CODING_SCHEME, "Decision of the program"), decision),
        code_item(
            "CONTAINS",
            ("class", FIELDRAY_CODING_SCHEME, "Class of the image"),
            (category, FIELDRAY_CODING_SCHEME, shown),
        ),
        *(comment_item(text) for text in _comments(subject, finding)),
    ]
    return measurement_group(
        finding.label, derived_uid("tracking", subject.object_or_series_uid("sr"), finding.label), items
    )


def label_code(label: str, manifest: Manifest | None) -> CodeSchemeMeaning:
    """Return the DICOM code of a pack's label: code, coding scheme and meaning.

    The coding scheme is SNOMED CT or DICOM if the pack's manifest names one of them, else the program's own scheme.

    label     code of the label in the pack
    manifest  the manifest of the pack; with None, `label` is also the meaning
    """
    for entry in manifest.labels if manifest else ():
        if entry.code == label:
            known = {"SNOMED CT": "SCT", "SNOMED-CT": "SCT", "SCT": "SCT", "DCM": "DCM"}.get(entry.scheme.upper())
            scheme = known if known and len(entry.code) <= 16 else FIELDRAY_CODING_SCHEME
            return entry.code, scheme, escape_invisible_characters(entry.meaning["en"])
    return label, FIELDRAY_CODING_SCHEME, escape_invisible_characters(label)


def _algorithm(subject: ReportedImage) -> list[Dataset]:
    """Return content items about the algorithm (TID 4019): name, version, and the parameters that decide a result."""
    spec, manifest = subject.stored_run.pack, subject.stored_run.manifest
    name = manifest.names["en"] if manifest else spec.pack_name
    parameters = (
        f"Pack {spec.pack_name}, {spec.trust}" + (f", key {spec.fingerprint}" if spec.fingerprint else ""),
        f"Model SHA-256 {spec.model_sha256}",
        *([f"Lung fields {spec.lungs_pack}"] if spec.lungs_pack else []),
        f"Settings SHA-256 {spec.settings_hash}",
        f"Ran on {subject.outcome.backend}",
    )
    version = manifest.version if manifest else spec.pack_name.rpartition("-")[2]
    return [
        text_item("HAS CONCEPT MOD", ("111001", "DCM", "Algorithm Name"), f"{PROGRAM_NAME}: {name}"),
        text_item("HAS CONCEPT MOD", ("111003", "DCM", "Algorithm Version"), version),
        text_item("HAS CONCEPT MOD", ("122405", "DCM", "Algorithm Manufacturer"), PROGRAM_NAME),
        *(text_item("HAS CONCEPT MOD", ("111002", "DCM", "Algorithm Parameters"), text) for text in parameters),
    ]


def _point(point: OperatingPoint) -> list[Dataset]:
    """Return content items about an operating point: threshold, uncertain zone, and performance with 95 % intervals."""
    return [
        number_item(("threshold", FIELDRAY_CODING_SCHEME, "Operating point"), point.threshold, UNITLESS_CODE),
        number_item(("unsure-low", FIELDRAY_CODING_SCHEME, "Uncertain from"), point.unsure_low, UNITLESS_CODE),
        number_item(("unsure-high", FIELDRAY_CODING_SCHEME, "Uncertain up to"), point.unsure_high, UNITLESS_CODE),
        *_estimate("sensitivity", "Sensitivity at the operating point", point.sensitivity),
        *_estimate("specificity", "Specificity at the operating point", point.specificity),
    ]


def _estimate(name: str, meaning: str, measured: Estimate) -> list[Dataset]:
    values = (
        ("", "", measured.value),
        ("-low", ", lower limit", measured.low),
        ("-high", ", upper limit", measured.high),
    )
    return [
        number_item((name + ending, FIELDRAY_CODING_SCHEME, meaning + more), 100 * value, PERCENT_CODE)
        for ending, more, value in values
    ]


def _comments(subject: ReportedImage, finding: Finding) -> list[str]:
    point, verdict, ref = finding.point, subject.result.verdict, subject.ref
    frames = ref.header.number_of_frames
    return [
        RESEARCH_ONLY_NOTICE,
        *([f"Frame {ref.frame + 1} of {frames}."] if frames > 1 else []),
        *([f"Operating point {point.titles['en']}, measured on {point.measured_on['en']}."] if point else []),
        *class_performance_lines(Translator(), subject.stored_run.manifest, point),
        *(hide_names_in_reason(note, ref.key, alias=subject.pseudonym).text for note in notes_of(subject.outcome)),
        f"Image ID {subject.pseudonym}",
        *([f"Reader's verdict: {verdict.choice}. {verdict.note}".strip()] if verdict else []),
    ]


def _observer(subject: ReportedImage) -> list[Dataset]:
    """Return content items about the observer (TID 1002 and 1004), which is a device and not a person."""
    uid = derived_uid("device", installation_number(subject.stored_run))
    version = subject.stored_run.run.spec.program_version or "unknown"
    return [
        code_item("HAS OBS CONTEXT", ("121005", "DCM", "Observer Type"), ("121007", "DCM", "Device")),
        uid_item(("121012", "DCM", "Device Observer UID"), uid),
        text_item("HAS OBS CONTEXT", ("121013", "DCM", "Device Observer Name"), PROGRAM_NAME),
        text_item("HAS OBS CONTEXT", ("121014", "DCM", "Device Observer Manufacturer"), PROGRAM_NAME),
        text_item("HAS OBS CONTEXT", ("121015", "DCM", "Device Observer Model Name"), f"{PROGRAM_NAME} {version}"),
    ]


def _image_library(source: DicomImageReference) -> Dataset:
    """Return the image library of a structured report (TID 1600 and 1601), which lists the image."""
    group = container_item(("126200", "DCM", "Image Library Group"), [image_item(None, source)])
    return container_item(("111028", "DCM", "Image Library"), [group])


def evidence_sequence_item(source: DicomImageReference) -> Dataset:
    """Return the entry of an image in the list of evidence of a structured report (PS3.3 C.17.2.1)."""
    series = dicom_item(
        SeriesInstanceUID=source.series_uid, ReferencedSOPSequence=[image_reference_item(replace(source, frame=None))]
    )
    return dicom_item(StudyInstanceUID=source.study_uid, ReferencedSeriesSequence=[series])


_PRIOR: Final = ("prior", FIELDRAY_CODING_SCHEME, "Prior image compared")
_STUDY_DATE: Final = ("111060", "DCM", "Study Date")
_MAX_REGIONS: Final = 50


def prior_image_reference(pair: ComparisonRecord) -> DicomImageReference | None:
    """Return the reference to the prior image of a comparison; None if the prior's file has no valid UIDs."""
    kind: FileKind = "dicom" if pair.has_dicom_prior else "unknown"
    return dicom_image_reference(
        ImageRef(path=Path("prior"), kind=kind, frame=pair.prior_frame, header=pair.prior_header)
    )


def _pair_group(subject: ReportedImage, pair: ComparisonRecord) -> Dataset:
    """Return the measurement group of a DICOM structured report for the comparison of an image with a prior image."""
    prior, date = prior_image_reference(pair), pair.prior_header.study_date
    which = prior.sop_instance_uid if prior else (date, pair.prior_header.study_time)
    items = [
        *([image_item(SOURCE_OF_MEASUREMENT_CODE, subject.source)] if subject.source else []),
        *([image_item(_PRIOR, prior)] if prior else []),
        *([content_item("CONTAINS", "DATE", _STUDY_DATE, Date=date)] if DICOM_DATE_PATTERN.fullmatch(date) else []),
        *_figures(pair),
        *(comment_item(text) for text in _pair_comments(pair)),
    ]
    tracking = derived_uid("comparison", subject.object_or_series_uid("sr"), which, pair.prior_frame)
    return measurement_group("comparison", tracking, items)


def _figures(pair: ComparisonRecord) -> list[Dataset]:
    if pair.similarity is None:
        return []
    return [
        number_item(
            ("likeness", FIELDRAY_CODING_SCHEME, "Likeness inside the lungs, aligned"), pair.similarity, UNITLESS_CODE
        ),
        number_item(
            ("regions", FIELDRAY_CODING_SCHEME, "Regions that differ by more than noise"),
            len(pair.regions),
            UNITLESS_CODE,
        ),
    ]


def _pair_comments(pair: ComparisonRecord) -> list[str]:
    date = pair.prior_header.study_date or "unknown"
    why = [f"The images are not comparable. {pair.not_comparable_reason.text}"] if pair.not_comparable_reason else []
    return [
        f"{RESEARCH_ONLY_NOTICE} {reason('compare_notice').text}",
        f"Compared with an image of study date {date}.",
        *(doubt.text for doubt in pair_warnings(pair)),
        *why,
        *(_region(number, region) for number, region in enumerate(pair.regions[:_MAX_REGIONS], 1)),
    ]


def _region(number: int, region: ChangeRegion) -> str:
    box, what = region.box, "denser" if region.is_denser else "less dense"
    span = f"left {box.left:.0f}, top {box.top:.0f}, {box.width:.0f} x {box.height:.0f} px"
    return (
        f"Region {number}: {span} of the image fitted into 512 px: {what}, {abs(region.strength):.1f} times the noise."
    )

"""The prior images of a patient: which images belong to the patient, and which image was made first.

Two images count as images of one person only if they have the same Patient ID, and no other fact in their headers
contradicts.
Unknown facts are reported as unknown and never guessed.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from fieldray.domain.comparison import ChangeRegion, PairComparison
from fieldray.domain.finding import ImageFacts, Outcome, ScreenedOutcome
from fieldray.domain.image import ImageHeader, ImageRef, parse_dicom_date
from fieldray.domain.intended_use import views_named_in
from fieldray.domain.patient import PatientMatch, match_patients
from fieldray.domain.run import StoredImage
from fieldray.reasons import Reason, reason

# the order in time of an image relative to another one
TimeOrder = Literal["earlier", "later", "same", "unknown"]
PriorOrigin = Literal["run", "history", "file"]

_TIME: Final = re.compile(r"([01][0-9]|2[0-3])([0-5][0-9])(?:([0-5][0-9])(?:\.[0-9]{1,6})?)?")


@dataclass(frozen=True, slots=True)
class TimeGap:
    """The calendar time between two studies: years, months and days.

    minutes  time between two studies of one day; None for other days, or if a time is unknown
    """

    years: int
    months: int
    days: int
    minutes: int | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PriorImage:
    """An image that can be compared with the current image, usually an earlier image of the patient.

    outcome        the outcome of the image; for a file that a person chose, the result of `unscreened_outcome`
    origin         "run": the visible run; "history": an earlier run; "file": a file that a person chose
    patient_match  whether both images are of one patient
    time_order     whether the prior image was made before or after the current image
    """

    outcome: Outcome
    origin: PriorOrigin
    patient_match: PatientMatch
    time_order: TimeOrder

    @property
    def header(self) -> ImageHeader:
        """The DICOM header of the prior image."""
        return self.outcome.ref.header


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredPriorImages:
    """The prior images of a patient in the results database.

    images              prior images, one entry per image. An image of another run is listed only if its file still
                        exists
    missing_file_count  number of prior images that are left out because their file no longer exists
    """

    images: tuple[StoredImage, ...] = ()
    missing_file_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """The record of a person's comparison of the current image with a prior image, for reports.

    current_sha256, current_frame  SHA-256 (hex) of the current image's file, and number of the frame
    prior_header, prior_frame      header of the prior image without the person's name, and number of the frame
    has_dicom_prior                whether a DICOM object can refer to the prior image
    time_order                     whether the prior image was made before or after the current image
    patient_match                  whether both images are of one patient
    not_comparable_reason          the reason why the images are not comparable, or None
    similarity                     similarity of the structure inside the lungs after alignment, -1..1; None if not
                                   comparable
    regions                        regions whose difference exceeds the noise
    """

    current_sha256: str
    current_frame: int
    prior_header: ImageHeader
    has_dicom_prior: bool
    prior_frame: int
    time_order: TimeOrder
    patient_match: PatientMatch
    not_comparable_reason: Reason | None = None
    similarity: float | None = None
    regions: tuple[ChangeRegion, ...] = ()


def unscreened_outcome(ref: ImageRef) -> ScreenedOutcome:
    """Return an outcome for an image that no pack has screened. The outcome has no score, class map or finding."""
    return ScreenedOutcome(
        ref=ref,
        facts=ImageFacts(),
        findings=(),
        class_maps=None,
        pack_name="",
        model_sha256="",
        backend="",
        inference_ms=0.0,
    )


def time_order(image: ImageHeader, current: ImageHeader) -> TimeOrder:
    """Return whether `image` was made before or after the current image, by study date and time.

    "same" means that date and time are equal to the minute. "unknown" means that a date is missing, or that a time is
    missing for two images of one day.
    """
    days = parse_dicom_date(image.study_date), parse_dicom_date(current.study_date)
    if days[0] is None or days[1] is None:
        return "unknown"
    if days[0] != days[1]:
        return "earlier" if days[0] < days[1] else "later"
    minutes = _minute(image.study_time), _minute(current.study_time)
    if minutes[0] is None or minutes[1] is None:
        return "unknown"
    return "same" if minutes[0] == minutes[1] else "earlier" if minutes[0] < minutes[1] else "later"


def gap_between(image: ImageHeader, current: ImageHeader) -> TimeGap | None:
    """Return the time between the studies of two images, in either order; None if a study date is unknown."""
    days = parse_dicom_date(image.study_date), parse_dicom_date(current.study_date)
    if days[0] is None or days[1] is None:
        return None
    first, second = sorted((days[0], days[1]))
    months = 12 * (second.year - first.year) + second.month - first.month
    if second.day < first.day:
        months -= 1
    rest = (second - _months_later(first, months)).days
    minutes = _minute(image.study_time), _minute(current.study_time)
    is_known = first == second and minutes[0] is not None and minutes[1] is not None
    apart = abs(minutes[0] - minutes[1]) if is_known and minutes[0] is not None and minutes[1] is not None else None
    return TimeGap(years=months // 12, months=months % 12, days=rest, minutes=apart)


def is_same_image(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes are of one image.

    The frame numbers must be equal. In addition the file, the bytes or the SOP Instance UID must be equal. Because some
    devices reuse a SOP Instance UID, an equal UID does not count if the bytes differ and the study or the study day
    also differs.
    """
    first, second = one.ref, other.ref
    if first.frame != second.frame:
        return False
    contents = one.facts.content_sha256, other.facts.content_sha256
    if (first.path, first.zip_member) == (second.path, second.zip_member) or (
        all(contents) and contents[0] == contents[1]
    ):
        return True
    studies = [(ref.header.study_instance_uid, parse_dicom_date(ref.header.study_date)) for ref in (first, second)]
    differs = any(all(pair) and pair[0] != pair[1] for pair in zip(*studies, strict=True))
    return first.header.sop_instance_uid == second.header.sop_instance_uid != "" and not (all(contents) and differs)


def priors_of(current: Outcome, candidates: Iterable[tuple[PriorOrigin, Outcome]]) -> tuple[PriorImage, ...]:
    """Return the prior images of the current image's patient, the most useful first.

    Images that are known to be earlier come first, then images of unknown date or time. In both groups newer days come
    first, and within a day frontal images come before lateral images. Images of other or unknown patients, of the
    current study, and later images are left out. If several candidates are one image, only the first is returned.

    candidates  images that may be priors, with their origin
    """
    found: list[PriorImage] = []
    for origin, outcome in candidates:
        prior = prior_from(outcome, current, origin)
        is_own_study = outcome.ref.header.study_instance_uid == current.ref.header.study_instance_uid != ""
        if prior.patient_match != "same" or prior.time_order in ("later", "same") or is_own_study:
            continue
        if is_same_image(outcome, current) or any(is_same_image(outcome, known.outcome) for known in found):
            continue
        found.append(prior)
    return tuple(sorted(found, key=_usefulness))


def prior_from(outcome: Outcome, current: Outcome, origin: PriorOrigin) -> PriorImage:
    """Return an outcome as a `PriorImage` of the current image, with the comparison of patients and the time order."""
    header, own = outcome.ref.header, current.ref.header
    return PriorImage(
        outcome=outcome, origin=origin, patient_match=match_patients(header, own), time_order=time_order(header, own)
    )


def prior_warnings(prior: PriorImage, current: Outcome) -> Sequence[Reason]:
    """Return the warnings to show when a prior image is compared with the current image."""
    is_same = is_same_image(prior.outcome, current)
    said = [reason("prior_same_image")] if is_same else []
    order: TimeOrder = "earlier" if is_same and prior.time_order == "same" else prior.time_order  # compared with itself
    said += _doubts("same" if is_same else prior.patient_match, order)
    if is_lateral(prior.header) != is_lateral(current.ref.header):
        said.append(reason("prior_other_view"))
    return said


def pair_warnings(pair: ComparisonRecord) -> Sequence[Reason]:
    """Return warnings about two compared images: whether both are of one patient, and which was made first."""
    return _doubts(pair.patient_match, pair.time_order)


def _doubts(patient_match: PatientMatch, order: TimeOrder) -> list[Reason]:
    of_patient = {"other": "prior_other_patient", "unknown": "prior_unknown_patient"}
    of_order = {"later": "prior_later", "same": "prior_order_same", "unknown": "prior_order_unknown"}
    return [reason(code) for code in (of_patient.get(patient_match), of_order.get(order)) if code]


def is_lateral(header: ImageHeader) -> bool:
    """Return whether an image's header states a lateral view."""
    return "LATERAL" in views_named_in(header.view)


def comparison_record(prior: PriorImage, current: Outcome, comparison: PairComparison) -> ComparisonRecord:
    """Return the record of a comparison of two images, for reports."""
    aligned, problem, ref = comparison.aligned_pair, comparison.problem, prior.outcome.ref
    return ComparisonRecord(
        current_sha256=current.facts.content_sha256,
        current_frame=current.ref.frame,
        prior_header=replace(prior.header, patient_name=""),
        has_dicom_prior=ref.kind == "dicom",
        prior_frame=ref.frame,
        time_order=prior.time_order,
        patient_match=prior.patient_match,
        not_comparable_reason=problem.reason if problem else None,
        similarity=aligned.alignment.similarity_after if aligned else None,
        regions=aligned.regions if aligned else (),
    )


def _usefulness(prior: PriorImage) -> tuple[bool, int, bool, int]:
    header = prior.header
    day, minute = parse_dicom_date(header.study_date), _minute(header.study_time)
    return prior.time_order != "earlier", -(day.toordinal() if day else 0), is_lateral(header), -(minute or 0)


def _minute(dicom_time: str) -> int | None:
    """Return the minutes since midnight of a DICOM time (PS3.5 6.2); None if the time has no minutes."""
    found = _TIME.fullmatch(dicom_time.strip())
    return 60 * int(found[1]) + int(found[2]) if found else None


def _months_later(day: datetime.date, months: int) -> datetime.date:
    """Return the day `months` later. If that month is too short, return the last day of the month."""
    year, month = divmod(day.month - 1 + months, 12)
    for last in (day.day, 30, 29, 28):
        try:
            return datetime.date(day.year + year, month + 1, min(day.day, last))
        except ValueError:
            continue
    raise AssertionError("every month has 28 days")

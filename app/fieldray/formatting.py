"""Words and numbers that the window and the reports share.

A text states only the answer of the pack, and never says what the patient has.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from fieldray.backends import BACKENDS
from fieldray.domain.finding import Category, Decision, Finding, decide
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.intended_use import class_distributions
from fieldray.domain.lungs import LungFields
from fieldray.domain.model import Estimate, Manifest, OperatingPoint, Trust
from fieldray.domain.run import VERDICT_KINDS, PackSpec, Run, RunSpec, Verdict, VerdictChoice
from fieldray.translation import Translator

_MAX_DIGITS: Final = 17  # significant decimal digits of a float
DICOM_DATE_PATTERN: Final = re.compile("([0-9]{4})([0-9]{2})([0-9]{2})")


def research_only_notice(translator: Translator) -> str:
    """Return the sentence *research use only*, which is always visible."""
    return translator.text("Research use only. Not for diagnostic use.")


class HasClassNames(Protocol):
    """The interface of objects that name the classes of a pack: a manifest, or a stored description of a pack.

    class_names  the pack's own names for a score above, and for a score below the uncertain zone; None without such
                 names
    label_codes  codes of the pack's labels
    is_bare      whether the pack is a bare model of the dissertation: a network alone, whose larger output decides
                 between two classes, without an uncertain zone
    """

    @property
    def class_names(self) -> Mapping[str, Mapping[str, str]] | None: ...
    @property
    def label_codes(self) -> tuple[str, ...]: ...
    @property
    def is_bare(self) -> bool: ...


def category_label(translator: Translator, category: Category, pack: HasClassNames | None = None) -> str:
    """Return the name of a class in the words of the pack, or else in the words of the program."""
    if pack is not None and pack.class_names and category in pack.class_names:
        return translator.pack_text(pack.class_names[category])
    if category == "normal" and pack is not None and not pack.is_bare and _looks_for_anything(pack):
        return translator.text("No abnormality flagged")
    return short_category_label(translator, category, pack)


def short_category_label(translator: Translator, category: Category, pack: HasClassNames | None = None) -> str:
    """Return the one-word name of a class in the program's own words, for narrow columns.

    A score below the uncertain zone is not called *normal*: the pack only did not flag the image. An exception is a
    bare model (see `HasClassNames`), which has the class *normal*.
    """
    text = translator.text
    is_of_anything = pack is not None and _looks_for_anything(pack)
    labels: dict[Category, str] = {
        "read_first": text("Read first"),
        "abnormal": text("Abnormal") if is_of_anything else text("Flagged"),
        "unsure": text("Uncertain"),
        "normal": text("Normal") if pack is not None and pack.is_bare else text("Not flagged"),
        "not_assessed": text("No threshold"),
        "refused": text("Not suitable"),
        "failed": text("Failed"),
        "not_an_image": text("Not an image"),
    }
    return labels[category]


def class_synonyms(translator: Translator, category: Category) -> tuple[str, ...]:
    """Return all names that the program itself may give to a class."""
    more: dict[Category, tuple[str, ...]] = {
        "abnormal": (translator.text("Abnormal"),),
        "normal": (translator.text("Normal"), translator.text("No abnormality flagged")),
    }
    return (short_category_label(translator, category), *more.get(category, ()))


def _looks_for_anything(pack: HasClassNames) -> bool:
    """Return whether the pack calls its findings *abnormal*, as the adults' pack and the dissertation's models do."""
    return "abnormal" in pack.label_codes


def decision_sentence(translator: Translator, finding: Finding) -> str:
    """Return a sentence on the decision of a finding. The subject of the sentence is the pack, not the patient."""
    if finding.is_decided_by_larger_output:
        return translator.text(
            "This model is unsigned and has no known operating point. The model has one output for each class, and "
            "the larger output decides the class."
        )
    if finding.decision == "unsure" and decide(finding.score, finding.point) == "below":  # replace_below_by_unsure
        return translator.text(
            "The score is below the uncertain zone. The class is uncertain, because part of the image or fine detail "
            "may be missing."
        )
    sentences: dict[Decision, str] = {
        "above": translator.text("The pack flags this image."),
        "below": translator.text("The pack does not flag this image."),
        "unsure": translator.text("The score is in the uncertain zone of the pack."),
        "not_assessed": translator.text("The image has a score but no class, because the pack has no operating point."),
    }
    return sentences[finding.decision]


def unsigned_notice(translator: Translator) -> str:
    """Return the notice for results of a model that has no signature and no operating point."""
    return translator.text("unsigned model, operating point unknown")


def describe_signer(translator: Translator, *, trust: Trust, fingerprint: str) -> str:
    """Return a phrase for the origin of a pack: it comes with the program, is unsigned, or is signed with a key.

    fingerprint  fingerprint of the signing key; the phrase contains its beginning
    """
    if trust == "builtin":
        return translator.text("comes with the program")
    if trust == "legacy":
        return translator.text("unsigned legacy model, operating point unknown")
    return translator.text("signed with {key}", key=fingerprint[:9])


def run_state_text(translator: Translator, run: Run) -> str:
    """Return the state of a run as a word in the language of the translator."""
    text = translator.text
    return {
        "running": text("under way"),
        "paused": text("paused"),
        "finished": text("finished"),
        "cancelled": text("stopped by the user"),
        "interrupted": text("interrupted"),
        "failed": text("failed"),
    }[run.state]


def verdict_names(translator: Translator) -> dict[VerdictChoice, str]:
    """Return the name of each reader's verdict in the language of the translator, by verdict."""
    return {choice: value.title(translator) for choice, value in VERDICT_KINDS.items()}


def verdict_line(translator: Translator, verdict: Verdict | None, *, reader: str) -> str:
    """Return a line on a reader's verdict for reports: the choice, the reader if named, and the time."""
    if verdict is None:
        return translator.text("not given")
    given = date_and_time_text(translator, verdict.given_s) if verdict.given_s else ""
    return " · ".join(filter(None, (verdict.kind.title(translator), reader, given)))


def sex_label(translator: Translator, header: ImageHeader) -> str:
    """Return the patient's sex as a letter; empty if the file does not state the sex."""
    letters = {"M": translator.in_context("sex of a patient", "M")}
    letters["F"] = translator.in_context("sex of a patient", "F")
    return letters.get(header.patient_sex, "")


def advice_text(translator: Translator, category: Category) -> str:
    """Return the advice for an image that was refused or failed, and therefore has no score."""
    if category == "refused":
        return translator.text("The image is not suitable and has no score. Read the image yourself.")
    return translator.text("The image could not be screened. Read the image yourself, or try again.")


def operating_point_sentence(translator: Translator, point: OperatingPoint, threshold: str) -> str:
    """Return an operating point's name with its threshold.

    threshold  the threshold as text
    """
    name = translator.pack_text(point.titles)
    return translator.text("Operating point “{name}”: threshold {threshold}", name=name, threshold=threshold)


def performance_sentence(translator: Translator, point: OperatingPoint) -> str:
    """Return a sentence on the sensitivity and specificity measured at an operating point, with intervals."""
    return translator.text(
        "Measured at this operating point on {data}: sensitivity {sensitivity}, specificity {specificity} (95 % "
        "confidence interval).",
        sensitivity=format_percent(translator, point.sensitivity),
        specificity=format_percent(translator, point.specificity),
        data=translator.pack_text(point.measured_on),
    )


def lung_area_and_evidence_sentences(translator: Translator, lungs: LungFields) -> tuple[str, str]:
    """Return two sentences: on the area of each lung, and on the share of the heat map that lies inside the lungs.

    The second sentence is "" if the share of the heat map is not known.
    """
    text, inside = translator.text, lungs.evidence_inside
    right, left = (
        format_number(translator, 100 * share, digits=1)
        for share in (lungs.right_lung_area_share, lungs.left_lung_area_share)
    )
    areas = text("Share of the image: right lung {right} %, left lung {left} %", right=right, left=left)
    share = (
        ""
        if inside is None
        else text("Share of the heat map inside the lungs: {percent} %", percent=round(100 * inside))
    )
    return areas, share


def pack_names_of_run(translator: Translator, spec: RunSpec) -> str:
    """Return the names of all packs of a run as one text."""
    return " + ".join(pack_label(translator, pack) for pack in spec.packs)


def pack_label(translator: Translator, spec: PackSpec) -> str:
    """Return a pack's name for a list. For an unsigned legacy model, a notice in brackets follows the name."""
    return f"{spec.pack_name} ({unsigned_notice(translator)})" if spec.trust == "legacy" else spec.pack_name


def pack_headings(packs: Sequence[tuple[str, str]]) -> list[str]:
    """Return headings that distinguish several packs.

    Packs with equal names, such as two versions of a pack, are headed by id and version.

    packs  (name, id with version) of each pack
    """
    names = [name for name, _ in packs]
    return [name if names.count(name) == 1 else pack_name for name, pack_name in packs]


def backend_name(translator: Translator, backend: str) -> str:
    """Return a device's name for a person, in the language of the translator."""
    return translator.text(BACKENDS.title(backend))


def label_meaning(translator: Translator, label: str, manifest: Manifest | None) -> str:
    """Return the meaning of a label in the pack's own words; the code of the label if the pack is unknown."""
    for entry in manifest.labels if manifest else ():
        if entry.code == label:
            return translator.pack_text(entry.meaning)
    return label


def format_number(translator: Translator, value: float, *, digits: int) -> str:
    """Format a number with `digits` decimals and the language's decimal mark."""
    return translator.with_decimal_mark(f"{value:.{digits}f}")


def score_digits(score: float, point: OperatingPoint | None, *, min_digits: int) -> int:
    """Return how many decimals a displayed score needs, at least `min_digits`.

    Rounding must not move the score across the threshold or an end of the uncertain zone.

    point  the operating point with threshold and uncertain zone; None without an operating point
    """
    borders = (point.threshold, point.unsure_low, point.unsure_high) if point else ()

    def reads_right(digits: int) -> bool:
        shown = round(score, digits)
        return all(
            (shown >= written) == (score >= border) for border in borders for written in (border, round(border, digits))
        )

    min_digits = threshold_digits(point.threshold, min_digits=min_digits) if point else min_digits
    return next((digits for digits in range(min_digits, _MAX_DIGITS) if reads_right(digits)), _MAX_DIGITS)


def threshold_digits(threshold: float, *, min_digits: int) -> int:
    """Return the number of decimals with which a threshold is displayed, at least `min_digits`.

    A threshold must be displayed as 0 or 1 only if it is exactly 0 or 1.
    """
    wide = (
        digits
        for digits in range(min_digits, _MAX_DIGITS)
        if round(threshold, digits) not in (0, 1) or threshold in (0, 1)
    )
    return next(wide, _MAX_DIGITS)


def score_text(translator: Translator, score: float, point: OperatingPoint | None, *, min_digits: int = 2) -> str:
    """Format a score with enough decimals to show on which side of each threshold the score lies.

    point       the operating point with the thresholds; None without an operating point
    min_digits  minimum number of decimals
    """
    return format_number(translator, score, digits=score_digits(score, point, min_digits=min_digits))


def threshold_text(translator: Translator, finding: Finding) -> str:
    """Format a finding's threshold with as many decimals as the displayed score; empty without an operating point."""
    point = finding.point
    digits = score_digits(finding.score, point, min_digits=2)
    return format_number(translator, point.threshold, digits=digits) if point else ""


def format_threshold(translator: Translator, threshold: float, *, min_digits: int = 2) -> str:
    """Format a threshold, or an end of the uncertain zone, that is displayed without a score.

    The number has up to six decimals. More are used only if the number would otherwise be displayed as 0 or 1.

    min_digits  minimum number of decimals
    """
    written = f"{threshold:.6f}".rstrip("0").partition(".")[2]
    return format_number(
        translator, threshold, digits=threshold_digits(threshold, min_digits=max(min_digits, len(written)))
    )


def format_count(items: int) -> str:
    """Format a count. From 10,000 on, a thin space separates groups of three digits (ISO 80000-1, 7.3.1)."""
    return f"{items:,}".replace(",", "\u202f") if items >= 10_000 else str(items)


def format_percent(translator: Translator, estimate: Estimate) -> str:
    """Format a measured share with its 95 % confidence interval: 93.2 % (91.0-95.1)."""
    value, _, interval = format_per_hundred(translator, estimate).partition(" ")
    return f"{value} % {interval}"


def class_performance_lines(
    translator: Translator, manifest: Manifest | None, point: OperatingPoint | None
) -> list[str]:
    """Return lines on the measured classes: how many of 100 images with and without the finding are in each class.

    There are at most four lines. Figures measured at another hospital come last. The list is empty if the pack's maker
    did not count the classes.
    """
    lines = []
    for classes in class_distributions(manifest, point):
        for truth, shares in classes.shares_by_truth.items():
            values: dict[str, str | int] = {
                "count": next(iter(shares.values())).of,
                "classes": ", ".join(
                    f"{category_label(translator, category, manifest)} {format_per_hundred(translator, share.estimate)}"
                    for category, share in shares.items()
                ),
            }
            lines.append(_class_line(translator, truth, classes.is_from_other_hospital, values))
    return lines


def _class_line(translator: Translator, truth: bool, is_elsewhere: bool, values: dict[str, str | int]) -> str:
    text = translator.text
    if is_elsewhere and truth:
        return text(
            "Results per 100 images with the finding at another hospital: {classes}. Measured on {count} images.",
            **values,
        )
    if is_elsewhere:
        return text(
            "Results per 100 images without the finding at another hospital: {classes}. Measured on {count} images.",
            **values,
        )
    if truth:
        return text("Results per 100 test images with the finding: {classes}. Measured on {count} images.", **values)
    return text("Results per 100 test images without the finding: {classes}. Measured on {count} images.", **values)


def format_per_hundred(translator: Translator, estimate: Estimate) -> str:
    """Format a measured share as images per 100, with its 95 % confidence interval: 93.2 (91.0-95.1)."""
    value, low, high = (
        format_number(translator, 100 * share, digits=1) for share in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low}–{high})"


def format_dicom_date(translator: Translator, dicom_date: str) -> str:
    """Format a DICOM date (PS3.5 6.2, YYYYMMDD) as a date in the translator's language.

    A text that is no date is returned unchanged. The year has four digits. English-speaking countries write day and
    month in different orders, so English dates are in ISO 8601.
    """
    found = DICOM_DATE_PATTERN.fullmatch(dicom_date)
    try:
        day = datetime.date(*map(int, found.groups())) if found else None
    except ValueError:  # such as the 31st of June
        day = None
    return format_date(translator, day) if day else dicom_date


def format_date(translator: Translator, day: datetime.date) -> str:
    """Format a date in the translator's language; English dates are in ISO 8601."""
    # Translators: how a date is written in numbers, with a year of four digits, such as "{day}.{month}.{year}".
    return translator.in_context(
        "date in numbers", "{year}-{month}-{day}", year=f"{day.year:04}", month=f"{day.month:02}", day=f"{day.day:02}"
    )


def earlier_image_text(translator: Translator, header: ImageHeader) -> str:
    """Return a text that marks an image as earlier than the patient's newest image in the run, with its date."""
    # Translators: of an X-ray, in a list below the one of today
    return translator.text("earlier image, {date}", date=format_dicom_date(translator, header.study_date))


def date_and_time_text(translator: Translator, seconds: float) -> str:
    """Format a time (seconds since 1970, UTC) as date and time of day in this computer's time zone."""
    here = datetime.datetime.fromtimestamp(seconds)
    return f"{format_date(translator, here.date())} {here.isoformat()[11:16]}"


def format_person_name(dicom_name: str) -> str:
    """Format a DICOM person name (PS3.5 6.2.1): only the first spelling of the name, with blanks between the parts."""
    first = next((form for form in dicom_name.split("=") if form.strip("^ ")), "")
    return " ".join(part for part in first.split("^") if part)


def file_name(ref: ImageRef) -> str:
    """Return the name of an image's file or zip member, with the frame number if the file has several frames."""
    name = ref.zip_member.rpartition("/")[2] if ref.zip_member else ref.path.name
    return f"{name} #{ref.frame + 1}" if ref.header.number_of_frames > 1 else name


def view_and_laterality_label(header: ImageHeader) -> str:
    """Return the view (such as PA) and the side (L or R) in an image's header; "" if the header states neither."""
    return " ".join(part for part in (header.view, header.image_laterality) if part)


def format_duration(translator: Translator, seconds: float) -> str:
    """Format a remaining time as minutes and seconds, or as hours and minutes."""
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return translator.text("{hours} h {minutes} min", hours=whole // 3600, minutes=whole % 3600 // 60)

"""Subject and counting rule of an audit in words, and formatting of its numbers, in a person's language."""

from __future__ import annotations

from typing import Final, NamedTuple

from fieldray.audit.figures import PointPerformance
from fieldray.audit.report import AuditReport
from fieldray.audit.units import CountingRule
from fieldray.domain.metrics import Share, Unit
from fieldray.domain.model import Estimate
from fieldray.domain.run import PackOfRun
from fieldray.formatting import date_and_time_text, format_number, format_percent, format_threshold
from fieldray.translation import Translator

_HASH_LETTERS: Final = 16


class FigureRow(NamedTuple):
    """One row of the table of figures in an audit report.

    name    name of the figure
    counts  counts from which the figure is computed, such as "9 of 10"; "" for a figure without counts
    value   the figure with its interval; "" for the heading of an operating point
    """

    name: str
    counts: str
    value: str


class AuditSubjectText:
    """The texts about the subject and the counting rule of an audit, and the formatting of its values."""

    def __init__(self, report: AuditReport, translator: Translator) -> None:
        self.report, self.translator = report, translator

    @property
    def title(self) -> str:
        """The title of the audit report."""
        subject, translator = self.report.subject, self.translator
        return translator.text("Audit of {pack}", pack=translator.pack_text(subject.pack_names) or subject.pack)

    def facts(self) -> list[tuple[str, str]]:
        """Return the facts about the subject of the audit, as pairs of label and text."""
        subject, found, translator = self.report.subject, self.report.audit, self.translator
        signers = {
            "builtin": translator.text("Comes with the program"),
            "legacy": translator.text("unsigned legacy model, operating point unknown"),
        }
        counted = translator.text(
            "{units}: {positives} with the condition, {negatives} without the condition; {assessed} assessed",
            units=f"{found.unit_count} {unit_label(translator, found.rule.unit)}",
            positives=found.positive_count,
            negatives=found.unit_count - found.positive_count,
            assessed=found.assessed_unit_count,
        )
        images = translator.text(
            "{images} of {patients} patients", images=found.image_count, patients=found.patient_count
        )
        missing = translator.text(
            "{positives} with the condition, {negatives} without the condition. These rows are left out of the audit.",
            positives=self.report.rows_without_image_by_truth[True],
            negatives=self.report.rows_without_image_by_truth[False],
        )
        paths = translator.name_unless_hidden(", ".join(subject.paths))
        return [
            (translator.text("Pack"), subject.pack),
            (translator.text("Signed by"), signers.get(subject.trust, subject.fingerprint)),
            (translator.text("Model file"), subject.model_sha256[:_HASH_LETTERS]),
            *([(translator.text("Lung-field pack"), subject.lungs_pack)] if subject.lungs_pack else []),
            (translator.text("Finding"), translator.pack_text(subject.meaning) or subject.label),
            (translator.text("Reference labels"), self._labels_from()),
            (translator.text("Images"), images),
            (translator.text("Unit of counting"), counted),
            (translator.text("Referral rule"), self.counting_rule_text()),
            *(
                [(translator.text("Table rows without a screened image"), missing)]
                if any(self.report.rows_without_image_by_truth.values())
                else []
            ),
            (
                translator.text("Run"),
                f"{PackOfRun(subject.run_id, subject.pack_position)}: {paths}",
            ),
            (translator.text("Date"), date_and_time_text(translator, subject.audited_s)),
            (translator.text("Program"), f"Fieldray {subject.program_version}"),
        ]

    def _labels_from(self) -> str:
        known = {
            "folders": self.translator.text("folder names"),
            "verdicts": self.translator.text("the reader's verdicts"),
        }
        source = self.report.subject.label_source  # "folders", "verdicts", or the path of a table
        return known.get(source) or self.translator.name_unless_hidden(source)

    def counting_rule_text(self) -> str:
        """Return the counting rule of the audit in sentences (see `rule_text`)."""
        return rule_text(self.translator, self.report.audit.rule)

    # ---- values

    def operating_point_title(self, at: PointPerformance) -> str:
        """Return the title of an operating point, with its threshold.

        The title of a local operating point shows that the operating point is local.
        """
        return self.translator.text(
            "Operating point {point}, threshold {threshold}",
            point=self.translator.pack_text(at.point.titles) or at.point.name,
            threshold=format_threshold(self.translator, at.point.threshold, min_digits=3),
        )

    def _share(self, what: str, share: Share) -> FigureRow:
        counts = self.translator.text("{count} of {of}", count=share.count, of=share.of)
        return FigureRow(what, counts, self._percent(share))

    def _percent(self, share: Share | Estimate | None) -> str:
        if share is None:
            return "–"
        return format_percent(self.translator, share.estimate if isinstance(share, Share) else share)

    def format_auc(self, area: Estimate) -> str:
        """Format an area under the ROC curve with its interval."""
        value, low, high = (self._number(part, digits=3) for part in (area.value, area.low, area.high))
        return f"{value} ({low}–{high})"

    def _number(self, value: float, *, digits: int) -> str:
        return format_number(self.translator, value, digits=digits)

    def _kappa(self, *values: float) -> str:
        value, low, high = (self.translator.with_decimal_mark(f"{part:.2f}") for part in values)
        return self.translator.text("{value} ({low} to {high})", value=value, low=low, high=high)

    def _units(self) -> str:
        return unit_label(self.translator, self.report.audit.rule.unit)

    def _group_name(self, by: str, name: str) -> str:
        translator = self.translator
        titles = {
            "view": translator.text("Projection"),
            "sex": translator.text("Sex"),
            "age": translator.text("Age"),
            "manufacturer": translator.text("Manufacturer"),
        }
        return f"{titles[by]}: {name.replace(' to ', '–') if by == 'age' else name}"

    def _border(self, threshold: float) -> str:
        return format_threshold(self.translator, threshold, min_digits=3)


def unit_label(translator: Translator, unit: Unit) -> str:
    """Return the name of the audit's unit in the plural: images, examinations or patients."""
    names = {
        "image": translator.in_context("what is counted", "images"),
        "exam": translator.in_context("what is counted", "examinations"),
        "patient": translator.in_context("what is counted", "patients"),
    }
    return names[unit]


def rule_text(translator: Translator, rule: CountingRule) -> str:
    """Return the counting rule of an audit in sentences.

    The sentences say what the audit counts (images, examinations or patients), and what counts as referred.
    """
    text = translator.text
    counted = {
        "image": text("The unit of this audit is the image."),
        "exam": text(
            "This audit counts examinations. An examination has the condition if at least one image of this "
            "examination shows the condition."
        ),
        "patient": text(
            "This audit counts patients. A patient has the condition if at least one image of this patient shows "
            "the condition."
        ),
    }
    each = {
        "above": text("An image is referred if its class is Read first, or if its score is at or above the threshold."),
        "unsure": text(
            "An image is referred if its class is Read first, or if its score is in or above the uncertain zone."
        ),
    }
    any_of = (
        text("One referred image is enough to refer the patient or the examination.") if rule.unit != "image" else ""
    )
    never = text("Images that are not suitable or that failed have no score. These images count as not referred.")
    return " ".join(filter(None, (counted[rule.unit], each[rule.refers], any_of, never)))

"""What an audit says to a person, in their language: the same on the console, in the window and in the PDF document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fieldray.audit.cases import Case
from fieldray.audit.figures import AtPoint, images_needed
from fieldray.audit.report import AuditReport
from fieldray.domain.finding import Category
from fieldray.domain.metrics import Share
from fieldray.domain.model import Estimate
from fieldray.formatting import border_text, category_word, moment, number, percent, research_only, score_text
from fieldray.reports.document import Block, Field, Fields, Paragraph, Points, ShareChart, Table, cut, cut_path
from fieldray.translation import Translator

_HASH_LETTERS: Final = 16
_MOST_OF_A_PATH: Final = 240
_MOST_OF_A_CELL: Final = 120
_MOST_OF_A_SENTENCE: Final = 1200


class Figure(NamedTuple):
    """A line of the table of figures; `value` is empty in the heading of an operating point."""

    what: str
    counts: str
    value: str


class Disagreement(NamedTuple):
    """An image on which pack and label disagree; `row_id` of its result."""

    row_id: int
    category: Category
    reference: str
    answer: str
    score: str
    image: str


class AuditText:
    """The texts of one report."""

    def __init__(self, report: AuditReport, translator: Translator) -> None:
        self.report, self.translator = report, translator

    @property
    def title(self) -> str:
        """Of the whole report."""
        subject, translator = self.report.subject, self.translator
        return translator.text("Audit of {pack}", pack=translator.pick(subject.names) or subject.pack)

    def facts(self) -> list[tuple[str, str]]:
        """What was audited: a label and a text each."""
        subject, found, translator = self.report.subject, self.report.audit, self.translator
        signers = {
            "builtin": translator.text("Comes with the program"),
            "legacy": translator.text("unsigned legacy model, operating point unknown"),
        }
        images = translator.text(
            "{images} of {patients} patients; {positives} positive, {negatives} negative; {scored} with a score",
            images=found.images,
            patients=found.patients,
            positives=found.positives,
            negatives=found.images - found.positives,
            scored=found.scored,
        )
        return [
            (translator.text("Pack"), subject.pack),
            (translator.text("Signed by"), signers.get(subject.trust, subject.fingerprint)),
            (translator.text("Model file"), subject.model_sha256[:_HASH_LETTERS]),
            *([(translator.text("Lung fields"), subject.lungs_pack)] if subject.lungs_pack else []),
            (translator.text("Finding"), translator.pick(subject.meaning) or subject.label),
            (translator.text("Reference labels"), self._labels_from()),
            (translator.text("Images"), images),
            (translator.text("Run"), f"{subject.run_id}: {', '.join(subject.paths)}"),
            (translator.text("Date"), moment(translator, subject.made_s)),
            (translator.text("Program"), f"Fieldray {subject.program_version}"),
        ]

    def _labels_from(self) -> str:
        known = {
            "folders": self.translator.text("names of the folders"),
            "verdicts": self.translator.text("the reader's verdicts"),
        }
        return known.get(self.report.subject.labels_from, self.report.subject.labels_from)

    # ---- figures

    def figures(self) -> list[Figure]:
        """The table of figures, with 95 % intervals by patient."""
        found, translator = self.report.audit, self.translator
        rows = [Figure(translator.text("Area under the ROC curve (AUC)"), "", self.area(found.area))]
        for at in found.points:
            rows += self._point(at)
        error = self._number(found.calibration_error, digits=3)
        return [
            *rows,
            Figure(translator.text("All images"), "", ""),
            self._share(translator.text("Not sure"), found.unsure),
            self._share(translator.text("Refused"), found.refused),
            Figure(translator.text("Calibration error"), "", error),
        ]

    def _point(self, at: AtPoint) -> list[Figure]:
        translator = self.translator
        prevalence = self._number(100 * self.report.audit.prevalence, digits=1)
        needed = translator.text(
            "{positives} positive, {negatives} negative",
            positives=images_needed(at.sensitivity.value),
            negatives=images_needed(at.specificity.value),
        )
        positive = translator.text("Positive predictive value at {prevalence} % prevalence", prevalence=prevalence)
        negative = translator.text("Negative predictive value at {prevalence} % prevalence", prevalence=prevalence)
        return [
            Figure(self.point_title(at), "", ""),
            self._share(translator.text("Found of all positives, refused ones counted as not found"), at.found),
            *self._classes(at),
            self._share(translator.text("Sensitivity, of images with a score"), at.sensitivity),
            self._share(translator.text("Specificity, of images with a score"), at.specificity),
            Figure(positive, "", self._percent(at.positive_value)),
            Figure(negative, "", self._percent(at.negative_value)),
            Figure(translator.text("Images needed for intervals of ± 5 points"), "", needed),
        ]

    def _classes(self, at: AtPoint) -> Iterator[Figure]:
        """What a person sees of the positives, and of the negatives."""
        for truth, shares in at.classes.items():
            for category, found in shares.items():
                word = category_word(self.translator, category, self.report.subject)
                yield self._share(
                    self.translator.text("Positive, and the answer is: {word}", word=word)
                    if truth
                    else self.translator.text("Negative, and the answer is: {word}", word=word),
                    found,
                )

    def point_title(self, at: AtPoint) -> str:
        """An operating point by its title and threshold; a local one's title says that it is."""
        return self.translator.text(
            "At {point}, threshold {threshold}",
            point=self.translator.pick(at.point.titles) or at.point.name,
            threshold=border_text(self.translator, at.point.threshold, least=3),
        )

    def _share(self, what: str, share: Share) -> Figure:
        counts = self.translator.text("{count} of {of}", count=share.count, of=share.of)
        return Figure(what, counts, self._percent(share))

    def _percent(self, share: Share | Estimate | None) -> str:
        if share is None:
            return "–"
        return percent(self.translator, share.estimate if isinstance(share, Share) else share)

    def area(self, area: Estimate) -> str:
        """An AUC with its interval."""
        value, low, high = (self._number(part, digits=3) for part in (area.value, area.low, area.high))
        return f"{value} ({low}–{high})"

    def _number(self, value: float, *, digits: int) -> str:
        return number(self.translator, value, digits=digits)

    # ---- groups

    def group_headings(self) -> tuple[str, ...]:
        """Of the table of groups."""
        translator = self.translator
        return (
            translator.text("Group"),
            translator.text("Images"),
            translator.text("AUC"),
            translator.text("Sensitivity"),
            translator.text("Specificity"),
        )

    def groups(self) -> list[tuple[str, ...]]:
        """A row for each group, at the first operating point."""
        translator = self.translator
        titles = {
            "view": translator.text("View"),
            "sex": translator.text("Sex"),
            "age": translator.text("Age"),
            "manufacturer": translator.text("Manufacturer"),
        }
        rows: list[tuple[str, ...]] = []
        for group in self.report.audit.groups:
            at = group.points[0] if group.points else None
            shares = [self._percent(share) for share in ((at.sensitivity, at.specificity) if at else (None, None))]
            name = group.name.replace(" to ", "–") if group.by == "age" else group.name
            rows.append((f"{titles[group.by]}: {name}", str(group.images), self.area(group.area), *shares))
        return rows

    # ---- sentences

    def drifts(self) -> list[str]:
        """What has left its band, or that nothing has."""
        translator, drifts = self.translator, self.report.drifts
        if not drifts:
            return [
                translator.text(
                    "Drift: not compared. It takes 50 images here and 50 others, of the pack or of earlier runs."
                )
            ]
        out = [translator.reason(drift.told) for drift in drifts if drift.is_out]
        steady = translator.text("Drift: scores, refusals and exposure are as before, as far as they were compared.")
        return out or [steady]

    def proposal(self) -> str:
        """The local operating point that could be taken."""
        found = self.report.proposal
        return self.translator.text(
            "A local operating point for a sensitivity of {wanted} %: threshold {threshold}, not sure from {low} to "
            "{high}. On these images: sensitivity {sensitivity}, specificity {specificity}. It was chosen on the same "
            "images, so expect a little less on others.",
            wanted=self._number(100 * found.wanted, digits=1),
            threshold=border_text(self.translator, found.threshold, least=3),
            low=border_text(self.translator, found.unsure_low, least=3),
            high=border_text(self.translator, found.unsure_high, least=3),
            sensitivity=self._percent(found.sensitivity),
            specificity=self._percent(found.specificity),
        )

    def notes(self) -> list[str]:
        """What a reader should bear in mind."""
        return [self.translator.reason(note) for note in self.report.audit.notes]

    # ---- charts

    def charts(self) -> tuple[ShareChart, ShareChart]:
        """The ROC curve, and how the scores are calibrated."""
        text, found = self.translator.text, self.report.audit
        marks = tuple(
            (one.mean_score, one.positives.value, one.positives.low, one.positives.high) for one in found.bins
        )
        return (
            ShareChart(titles=(text("ROC curve"), text("1 – specificity"), text("Sensitivity")), line=found.curve),
            ShareChart(titles=(text("Calibration"), text("Mean score"), text("Share of positives")), marks=marks),
        )

    # ---- on paper

    def before_charts(self) -> tuple[Block, ...]:
        """The facts, the figures and what to bear in mind, as a page can hold them."""
        text = self.translator.text
        said = (*self.notes(), *self.drifts(), self.proposal())
        return (
            Paragraph(research_only(self.translator), "notice"),
            Fields("", tuple(Field(label, cut(fact)) for label, fact in self.facts())),
            Table(
                text("Figures, with 95 % intervals by patient"),
                (text("Figure"), text("Images"), text("Value (95 % interval)")),
                _rows(self.figures()),
                widths=(98.0, 30.0, 50.0),
            ),
            Points(text("What to bear in mind"), tuple(cut(one, most=_MOST_OF_A_SENTENCE) for one in said)),
        )

    def after_charts(self) -> tuple[Table, ...]:
        """The groups where there are any, and the disagreements, as a page can hold them."""
        groups = Table(
            self.translator.text("Groups with 20 images of each kind or more"),
            self.group_headings(),
            _rows(self.groups()),
            widths=(54.0, 18.0, 38.0, 34.0, 34.0),
        )
        (reference, answer, score, image), found = self.disagreement_headings(), self.disagreements()
        disagreements = Table(
            self.count_of_disagreements(),
            (reference, score, "", image, answer),
            tuple(
                (one.reference, one.score, "", cut_path(one.image, most=_MOST_OF_A_PATH), one.answer) for one in found
            ),
            widths=(24.0, 18.0, 12.0, 100.0, 24.0),
            categories=tuple(one.category for one in found),
        )
        return (*([groups] if groups.rows else []), disagreements)

    # ---- disagreements

    def disagreement_headings(self) -> tuple[str, ...]:
        """Of the list of disagreements."""
        translator = self.translator
        return (
            translator.text("Reference"),
            translator.text("Pack"),
            translator.text("Score"),
            translator.text("Image"),
        )

    def disagreements(self, most: int | None = None) -> list[Disagreement]:
        """Images on which pack and label disagree, the surest first."""
        return [self._disagreement(case) for case in self.report.audit.disagreements[:most]]

    def _disagreement(self, case: Case) -> Disagreement:
        translator = self.translator
        reference = translator.text("positive") if case.truth else translator.text("negative")
        answer = category_word(translator, case.category, self.report.subject)
        points = self.report.audit.points
        point = points[0].point if points else None
        score = "–" if case.score is None else score_text(translator, case.score, point, least=3)
        return Disagreement(case.row_id, case.category, reference, answer, score, case.image)

    def count_of_disagreements(self) -> str:
        """Heading of the list."""
        return self.translator.plural(
            "Pack and label disagree: {count} image",
            "Pack and label disagree: {count} images",
            len(self.report.audit.disagreements),
        )


def _rows(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(cut(cell, most=_MOST_OF_A_CELL) for cell in row) for row in rows)

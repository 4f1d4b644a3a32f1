"""What an audit says to a person, in their language: the same on the console, in the window and in the PDF document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fieldray.audit.figures import AtPoint, images_needed
from fieldray.audit.report import EVERYBODY, PEOPLE, AuditReport, Paired, PairedFigure, Plan, Step
from fieldray.domain.metrics import Share
from fieldray.domain.model import Estimate
from fieldray.domain.run import PackOfRun
from fieldray.formatting import border_text, category_label, moment, number, percent, research_only, score_text
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
            (
                translator.text("Run"),
                f"{PackOfRun(subject.run_id, subject.position)}: {translator.name(', '.join(subject.paths))}",
            ),
            (translator.text("Date"), moment(translator, subject.made_s)),
            (translator.text("Program"), f"Fieldray {subject.program_version}"),
        ]

    def _labels_from(self) -> str:
        known = {
            "folders": self.translator.text("names of the folders"),
            "verdicts": self.translator.text("the reader's verdicts"),
        }
        source = self.report.subject.labels_from  # else the path of a table
        return known.get(source) or self.translator.name(source)

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
            self._share(translator.text("Sensitivity, refused images counted as missed"), at.found),
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
                word = category_label(self.translator, category, self.report.subject)
                yield self._share(
                    self.translator.text("Reference positive, result: {word}", word=word)
                    if truth
                    else self.translator.text("Reference negative, result: {word}", word=word),
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

    def groups(self) -> tuple[Block, ...]:
        """A row for each group, at the first operating point, where there are any."""
        text = self.translator.text
        columns = text("Group"), text("Images"), text("AUC"), text("Sensitivity"), text("Specificity")
        rows = []
        for group in self.report.audit.groups:
            at = group.points[0] if group.points else None
            shares = [self._percent(share) for share in ((at.sensitivity, at.specificity) if at else (None, None))]
            rows.append((self._group_name(group.by, group.name), str(group.images), self.area(group.area), *shares))
        title = text("Groups with 20 positive and 20 negative images or more")
        return (Table(title, columns, _rows(rows), widths=(54.0, 18.0, 38.0, 34.0, 34.0)),) if rows else ()

    def _group_name(self, by: str, name: str) -> str:
        translator = self.translator
        titles = {
            "view": translator.text("View"),
            "sex": translator.text("Sex"),
            "age": translator.text("Age"),
            "manufacturer": translator.text("Manufacturer"),
        }
        return f"{titles[by]}: {name.replace(' to ', '–') if by == 'age' else name}"

    # ---- sentences

    def drifts(self) -> list[str]:
        """What has left its band, or that nothing has."""
        translator, drifts = self.translator, self.report.drifts
        if not drifts:
            return [
                translator.text(
                    "Drift: not checked. The check needs 50 images of this run and 50 reference images, of the "
                    "pack or of earlier runs."
                )
            ]
        out = [translator.reason(drift.summary) for drift in drifts if drift.is_out]
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
            threshold=self._border(found.threshold),
            low=self._border(found.unsure_low),
            high=self._border(found.unsure_high),
            sensitivity=self._percent(found.sensitivity),
            specificity=self._percent(found.specificity),
        )

    def notes(self) -> list[str]:
        """What a reader should bear in mind."""
        return [self.translator.reason(note) for note in self.report.audit.notes]

    # ---- what each threshold would do

    def planning(self) -> tuple[Block, ...]:
        """How many people each threshold calls, whom it misses, and what that costs."""
        text, plan, chosen = self.translator.text, self.report.plan, self.report.proposal.threshold
        title = text("Threshold plan: referred, detected and missed")
        if plan is None:
            return (Points(title, (text("No plan: everybody in these images has the finding, or nobody has."),)),)
        prevalence = self._number(100 * plan.prevalence, digits=1)
        people = text("Of {count} people at a prevalence of {prevalence} %", count=PEOPLE, prevalence=prevalence)
        steps = [(self._border(threshold), plan.groups[EVERYBODY][threshold]) for threshold in plan.shown]
        by_group = text("The same at the threshold {threshold}, by group", threshold=self._border(chosen))
        groups = [(self._group_name(*names), own[chosen]) for names, own in plan.groups.items() if names != EVERYBODY]
        return (
            Points(title, tuple(self._planned(plan))),
            self._steps(people, text("Threshold"), steps),
            *([self._steps(by_group, text("Group"), groups)] if groups else []),
        )

    def _planned(self, plan: Plan) -> Iterator[str]:
        text, step = self.translator.text, plan.groups[EVERYBODY][self.report.proposal.threshold]
        people = (("ill", step.found + step.missed), ("detected", step.found), ("missed", step.missed))
        yield text(
            "At the threshold {threshold}, {referred} of {count} people screened are referred for a test. Of "
            "{ill} people with the condition, {detected} are detected and {missed} are missed.",
            threshold=self._border(step.threshold),
            count=PEOPLE,
            referred=self._number(step.called, digits=0),
            **{name: self._number(number, digits=1) for name, number in people},
        )
        if step.cost is not None and step.cost_per_found is not None:
            cost, each = (self._number(value, digits=2) for value in (step.cost, step.cost_per_found))
            yield text("The cost is {cost}, or {each} for each person detected.", cost=cost, each=each)
        if plan.without_score:
            yield text(
                "Images without a score are not referred at any threshold and are read by a radiologist: {count} "
                "people, {ill} with the condition.",
                count=plan.without_score,
                ill=plan.sick_without,
            )

    def _steps(self, title: str, first: str, rows: Sequence[tuple[str, Step]]) -> Table:
        text = self.translator.text
        columns = [
            first,
            text("Referred"),
            text("Detected"),
            text("Missed"),
            text("Sensitivity, all people"),
            text("PPV, %"),
        ]
        columns += [text("NPV, %"), text("Cost"), text("Cost per person detected")]
        widths = (22.0, 21.0, 19.0, 22.0, 33.0, 12.0, 12.0, 17.0, 20.0)
        most = len(columns) if self.report.plan and self.report.plan.prices else len(columns) - 2
        cells = [(name, *self._step(step))[:most] for name, step in rows]
        return Table(title, tuple(columns[:most]), _rows(cells), widths=widths[:most])

    def _step(self, step: Step) -> Iterator[str]:
        yield self._number(step.called, digits=0)
        yield from (self._number(people, digits=1) for people in (step.found, step.missed))
        yield self._percent(step.sensitivity)
        for value in (step.ppv, step.npv):
            yield "–" if value is None else self._number(100 * value.value, digits=1)
        for cost, digits in ((step.cost, 0), (step.cost_per_found, 2)):
            yield "–" if cost is None else self._number(cost, digits=digits)

    def _border(self, threshold: float) -> str:
        return border_text(self.translator, threshold, least=3)

    # ---- beside another pack

    def comparison(self) -> tuple[Block, ...]:
        """This pack beside the other, where one was asked for."""
        text, found = self.translator.text, self.report.paired
        if found is None:
            return ()
        names = {
            "auc": text("Area under the ROC curve (AUC)"),
            "sensitivity": text("Sensitivity, of images with a score"),
            "specificity": text("Specificity, of images with a score"),
            "found": text("Sensitivity, refused images counted as missed"),
        }
        only = text("Only the first pack correct"), text("Only the second pack correct")
        columns = text("Figure"), text("First"), text("Second"), text("Second minus first (95 % interval)"), *only
        rows = [(names[one.of], *self._paired(one)) for one in found.figures]
        title, heading = text("Two packs on the same images"), text("Figures, with 95 % intervals by patient")
        widths = (50.0, 17.0, 17.0, 50.0, 22.0, 22.0)
        return Points(title, tuple(self._said_of_pairs(found))), Table(heading, columns, _rows(rows), widths=widths)

    def _said_of_pairs(self, found: Paired) -> Iterator[str]:
        text, area = self.translator.text, found.figures[0]
        for which, side in ((text("First"), found.first), (text("Second"), found.second)):
            threshold = "–" if side.point is None else self._border(side.point.threshold)
            values = {
                "pack": side.pack,
                "run": PackOfRun(side.run_id, side.position),
                "label": side.label,
                "threshold": threshold,
            }
            yield cut(f"{which}: " + text("{pack}, run {run}, label {label}, threshold {threshold}", **values))
        if area.low > 0:
            yield text("The second pack has the higher area under the ROC curve on these images.")
        elif area.high < 0:
            yield text("The first pack has the higher area under the ROC curve on these images.")
        else:
            yield text("The areas under the ROC curve do not differ significantly on these images.")
        yield text(
            "Images with a label in both runs: {images}, of {patients} patients. Both packs could judge {both}, only "
            "the first {first}, only the second {second}. Left out, being in the first run alone: {elsewhere}.",
            images=found.images,
            patients=found.patients,
            both=found.both,
            first=found.only_first,
            second=found.only_second,
            elsewhere=found.elsewhere,
        )
        yield text("A pack that was trained on images of these patients looks better here than it is.")

    def _paired(self, one: PairedFigure) -> Iterator[str]:
        scale, digits = (1, 3) if one.of == "auc" else (100, 1)
        yield from (self._number(scale * each.value, digits=digits) for each in (one.first, one.second))
        value, low, high = (
            self.translator.decimal(f"{scale * part:+.{digits}f}") for part in (one.difference, one.low, one.high)
        )
        yield self.translator.text("{value} ({low} to {high})", value=value, low=low, high=high)
        yield from map(str, one.only_right or ("–", "–"))

    # ---- charts

    def charts(self) -> tuple[ShareChart, ...]:
        """The ROC curve, how the scores are calibrated, and how many are found of those who are called."""
        text, found, plan = self.translator.text, self.report.audit, self.report.plan
        workload = text("Referrals at each threshold"), text("Referred"), text("Sensitivity, all people")
        steps = plan.groups[EVERYBODY].values() if plan else ()
        line = tuple((step.called / PEOPLE, step.sensitivity.value) for step in steps)
        marks = tuple(
            (one.mean_score, one.positives.value, one.positives.low, one.positives.high) for one in found.bins
        )
        return (
            ShareChart(titles=(text("ROC curve"), text("1 – specificity"), text("Sensitivity")), line=found.curve),
            ShareChart(titles=(text("Calibration"), text("Mean score"), text("Share of positives")), marks=marks),
            *([ShareChart(titles=workload, line=line)] if line else []),
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

    def after_charts(self) -> tuple[Block, ...]:
        """The groups, the plan, the other pack and the disagreements, as a page can hold them."""
        return (*self.groups(), *self.planning(), *self.comparison(), self.disagreements())

    # ---- disagreements

    def disagreements(self, most: int | None = None) -> Table:
        """Images on which pack and label disagree, the surest first, as a page can hold them."""
        text, points, found = self.translator.text, self.report.audit.points, self.report.audit.disagreements[:most]
        point = points[0].point if points else None
        rows = tuple(
            (
                text("positive") if case.truth else text("negative"),
                "–" if case.score is None else score_text(self.translator, case.score, point, least=3),
                "",
                cut_path(case.image, most=_MOST_OF_A_PATH),
                category_label(self.translator, case.category, self.report.subject),
            )
            for case in found
        )
        title = self.translator.plural(
            "Pack and label disagree: {count} image",
            "Pack and label disagree: {count} images",
            len(self.report.audit.disagreements),
        )
        return Table(
            title,
            (text("Reference"), text("Score"), "", text("Image"), text("Pack")),
            rows,
            widths=(24.0, 18.0, 12.0, 100.0, 24.0),
            categories=tuple((case.category,) for case in found),
        )


def _rows(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(cut(cell, most=_MOST_OF_A_CELL) for cell in row) for row in rows)

"""The texts of an audit for people, in their language. Console, window and PDF show these texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fieldray.audit.agreement import Agreement
from fieldray.audit.figures import NotAssessedUnits, PointPerformance, images_needed_for_interval
from fieldray.audit.report import (
    ALL_UNITS_SUBGROUP,
    THRESHOLD_PLAN_UNIT_COUNT,
    PackComparison,
    PairedFigure,
    ThresholdPlan,
    ThresholdRow,
)
from fieldray.domain.run import PackOfRun
from fieldray.formatting import category_label, research_only_notice, score_text
from fieldray.reports.audit_words import AuditSubjectText, FigureRow, unit_label
from fieldray.reports.document import (
    Block,
    BulletList,
    Field,
    FieldList,
    Paragraph,
    ShareChart,
    Table,
    shorten,
    shorten_path,
)

_MAX_PATH_CHARACTERS: Final = 240
_MAX_CELL_CHARACTERS: Final = 120
_MAX_SENTENCE_CHARACTERS: Final = 1200
_MAX_REASON_CHARACTERS: Final = 90


class AuditText(AuditSubjectText):
    """The texts of one audit report: figures, sentences, threshold plan and lists."""

    # ---- figures

    def figure_rows(self) -> list[FigureRow]:
        """Return the lines of the report's table of figures.

        The 95 % confidence intervals are computed by patient, because images of one patient are not independent.
        """
        found, translator = self.report.audit, self.translator
        rows = [
            FigureRow(translator.text("Area under the ROC curve (AUC) of the scores"), "", self.format_auc(found.auc))
        ]
        for at in found.points:
            rows += self._point(at)
        return [
            *rows,
            FigureRow(translator.text("All {units}", units=unit_label(translator, found.rule.unit)), "", ""),
            self._share(category_label(translator, "unsure", self.report.subject), found.unsure_share),
            self._share(category_label(translator, "refused", self.report.subject), found.refused_share),
            *map(self._not_assessed, found.not_assessed),
            *map(self._agreement, found.agreements),
            self.calibration_row(),
        ]

    def calibration_row(self) -> FigureRow:
        """Return the line with the calibration error of the scores, for the table of figures."""
        found, translator = self.report.audit, self.translator
        what = translator.text(
            "Calibration error: mean difference between the score and the observed share with the condition, over "
            "{bins} groups of equal size",
            bins=len(found.calibration_bins),
        )
        return FigureRow(what, "", self._number(found.calibration_error, digits=3))

    def _not_assessed(self, missed: NotAssessedUnits) -> FigureRow:
        text = self.translator.text
        counts = text(
            "{positives} with the condition, {negatives} without the condition",
            positives=missed.positive_count,
            negatives=missed.negative_count,
        )
        why = shorten(self.translator.reason(missed.reason), max_letters=_MAX_REASON_CHARACTERS)
        return FigureRow(text("Not assessed: {reason}", reason=why), counts, "–")

    def _agreement(self, found: Agreement) -> FigureRow:
        text = self.translator.text
        names = {"pack": text("the pack"), "reference": text("the reference labels")}
        first, second = (names.get(one) or text("reader {name}", name=one) for one in (found.first, found.second))
        counts = text("{count} of {of}", count=found.agreed_count, of=found.unit_count)
        what = text(
            "Cohen's kappa between {first} and {second}, with the number of equal decisions", first=first, second=second
        )
        return FigureRow(what, counts, self._kappa(found.kappa, found.kappa_low, found.kappa_high))

    def _point(self, at: PointPerformance) -> list[FigureRow]:
        translator = self.translator
        prevalence = self._number(100 * self.report.audit.prevalence, digits=1)
        needed = translator.text(
            "{positives} with the condition, {negatives} without the condition",
            positives=images_needed_for_interval(at.detected_share.value),
            negatives=images_needed_for_interval(at.falsely_referred_share.value),
        )
        positive = translator.text("Positive predictive value at {prevalence} % prevalence", prevalence=prevalence)
        negative = translator.text("Negative predictive value at {prevalence} % prevalence", prevalence=prevalence)
        return [
            FigureRow(self.operating_point_title(at), "", ""),
            self._share(
                translator.text("Detected among all {units} with the condition", units=self._units()),
                at.detected_share,
            ),
            self._share(
                translator.text("Falsely referred among all {units} without the condition", units=self._units()),
                at.falsely_referred_share,
            ),
            *self._classes(at),
            self._share(translator.text("Sensitivity among assessed {units}", units=self._units()), at.sensitivity),
            self._share(translator.text("Specificity among assessed {units}", units=self._units()), at.specificity),
            FigureRow(positive, "", self._percent(at.ppv)),
            FigureRow(negative, "", self._percent(at.npv)),
            FigureRow(translator.text("Patients needed for confidence intervals of ± 5 percentage points"), "", needed),
        ]

    def _classes(self, at: PointPerformance) -> Iterator[FigureRow]:
        """Yield the share of each displayed class, among the images with the condition and among those without it.

        at  the performance at one operating point
        """
        for truth, shares in at.class_shares_by_truth.items():
            for category, found in shares.items():
                word = category_label(self.translator, category, self.report.subject)
                yield self._share(
                    self.translator.text("With the condition, result: {word}", word=word)
                    if truth
                    else self.translator.text("Without the condition, result: {word}", word=word),
                    found,
                )

    # ---- groups

    def subgroup_blocks(self) -> tuple[Block, ...]:
        """Return a table with the figures of each subgroup at the first operating point; empty without subgroups."""
        text = self.translator.text
        columns = text("Group"), self._units(), text("AUC"), text("Detected"), text("Falsely referred")
        rows = []
        for group in self.report.audit.subgroups:
            at = group.points[0] if group.points else None
            shares = [
                self._percent(share)
                for share in ((at.detected_share, at.falsely_referred_share) if at else (None, None))
            ]
            rows.append(
                (
                    self._group_name(group.attribute, group.name),
                    str(group.unit_count),
                    self.format_auc(group.auc),
                    *shares,
                )
            )
        title = text(
            "Groups with at least 20 {units} with the condition and 20 without the condition, at the first operating "
            "point",
            units=self._units(),
        )
        return (Table(title, columns, _rows(rows), column_widths_mm=(54.0, 18.0, 38.0, 34.0, 34.0)),) if rows else ()

    # ---- sentences

    def drift_sentences(self) -> list[str]:
        """Return a sentence for each measured drift that exceeds its limit.

        If no drift exceeds its limit, or if there were too few images to check, one sentence says so.
        """
        translator, drifts = self.translator, self.report.drifts
        if not drifts:
            return [
                translator.text(
                    "Drift was not checked. The check needs 50 images of this run, and 50 reference images of the "
                    "pack or of earlier runs."
                )
            ]
        out = [translator.reason(drift.summary) for drift in drifts if drift.exceeds_limit]
        steady = translator.text(
            "No drift was found. If there are enough images, the audit compares the scores, the exposure, the share of "
            "images that are not suitable, and the position of the heat maps."
        )
        return out or [steady]

    def operating_point_proposal_text(self) -> str:
        """Return the sentences about the local operating point that the audit proposes."""
        found, text = self.report.proposal, self.translator.text
        wanted, values = found.goal, {}
        if wanted.threshold is not None:
            aim = text("the threshold that was chosen")
        elif wanted.specificity is not None:
            aim = text("a specificity of {wanted} %", wanted=self._number(100 * wanted.specificity, digits=1))
        else:
            aim = text("a sensitivity of {wanted} %", wanted=self._number(100 * wanted.sensitivity, digits=1))
        values = {"low": found.unsure_low, "high": found.unsure_high, "threshold": found.threshold}
        said = text(
            "Local operating point for {aim}: threshold {threshold}, uncertain zone from {low} to {high}. On these "
            "images, of the {units} with the condition, {sensitivity} are referred (sensitivity). Of the {units} "
            "without the condition, {specificity} are not referred (specificity). The threshold was chosen on these "
            "images, so expect slightly lower figures on other images.",
            aim=aim,
            units=self._units(),
            sensitivity=self._percent(found.sensitivity),
            specificity=self._percent(found.specificity),
            **{name: self._border(value) for name, value in values.items()},
        )
        out_of_reach = text(
            "No threshold reaches {aim}: too many {units} were not assessed (never referred) or are “Read first” "
            "(always referred).",
            aim=aim,
            units=self._units(),
        )
        return said if found.reaches_goal else f"{said} {out_of_reach}"

    def notes(self) -> list[str]:
        """Return the notes of the audit as sentences."""
        return [self.translator.reason(note) for note in self.report.audit.notes]

    # ---- threshold plan

    def threshold_plan_blocks(self) -> tuple[Block, ...]:
        """Return the threshold plan: sentences on the proposed threshold, and a table with a row for each threshold.

        A row says how many of 1,000 images, examinations or patients are referred, detected and missed, and the costs.
        """
        text, plan, chosen = self.translator.text, self.report.threshold_plan, self.report.proposal.threshold
        title = text("Threshold plan")
        if plan is None:
            missing = text(
                "A threshold plan needs {units} with the condition and {units} without the condition.",
                units=self._units(),
            )
            return (BulletList(title, (missing,)),)
        prevalence = self._number(100 * plan.prevalence, digits=1)
        screened = text(
            "Expected numbers for {count} {units} screened at a prevalence of {prevalence} %",
            count=THRESHOLD_PLAN_UNIT_COUNT,
            units=self._units(),
            prevalence=prevalence,
        )
        steps = [
            (self._border(threshold), plan.rows_by_subgroup[ALL_UNITS_SUBGROUP][threshold])
            for threshold in plan.shown_thresholds
        ]
        by_group = text("Expected numbers at the threshold {threshold}, by group", threshold=self._border(chosen))
        groups = [
            (self._group_name(*names), own[chosen])
            for names, own in plan.rows_by_subgroup.items()
            if names != ALL_UNITS_SUBGROUP
        ]
        return (
            BulletList(title, tuple(self._planned(plan))),
            self._steps(screened, text("Threshold"), steps),
            *([self._steps(by_group, text("Group"), groups)] if groups else []),
        )

    def _planned(self, plan: ThresholdPlan) -> Iterator[str]:
        text, step = self.translator.text, plan.rows_by_subgroup[ALL_UNITS_SUBGROUP][self.report.proposal.threshold]
        parts = {"all": step.detected + step.missed, "detected": step.detected, "missed": step.missed}
        yield text(
            "At the threshold {threshold}, {referred} of {count} {units} screened are referred. Of the {all} {units} "
            "with the condition, {detected} are detected and {missed} are missed. The result of {unsure} {units} is "
            "uncertain.",
            threshold=self._border(step.threshold),
            count=THRESHOLD_PLAN_UNIT_COUNT,
            units=self._units(),
            referred=self._number(step.referred, digits=0),
            unsure=self._number(step.unsure, digits=0),
            **{name: self._number(number, digits=1) for name, number in parts.items()},
        )
        if step.cost is not None and step.cost_per_detected is not None:
            cost, each = (self._number(value, digits=2) for value in (step.cost, step.cost_per_detected))
            yield text("Total cost: {cost}. Cost per case detected: {each}.", cost=cost, each=each)
        if plan.units_not_assessed:
            yield text(
                "Not assessed: {count} {units}, {positives} of them with the condition. No threshold refers these "
                "{units}, so a radiologist must decide.",
                count=plan.units_not_assessed,
                units=self._units(),
                positives=plan.positives_not_assessed,
            )

    def _steps(self, title: str, first: str, rows: Sequence[tuple[str, ThresholdRow]]) -> Table:
        text = self.translator.text
        unsure = category_label(self.translator, "unsure", self.report.subject)
        columns = [first, text("Referred"), text("Detected"), text("Missed"), unsure]
        columns += [
            text("Share detected"),
            text("PPV, %"),
            text("NPV, %"),
            text("Cost"),
            text("Cost per case detected"),
        ]
        widths = (20.0, 18.0, 18.0, 16.0, 18.0, 31.0, 12.0, 12.0, 15.0, 18.0)
        most = len(columns) if self.report.threshold_plan and self.report.threshold_plan.prices else len(columns) - 2
        cells = [(name, *self._step(step))[:most] for name, step in rows]
        return Table(title, tuple(columns[:most]), _rows(cells), column_widths_mm=widths[:most])

    def _step(self, step: ThresholdRow) -> Iterator[str]:
        yield self._number(step.referred, digits=0)
        yield from (self._number(part, digits=1) for part in (step.detected, step.missed))
        yield self._number(step.unsure, digits=0)
        yield self._percent(step.sensitivity)
        for value in (step.ppv, step.npv):
            yield "–" if value is None else self._number(100 * value.value, digits=1)
        for cost, digits in ((step.cost, 0), (step.cost_per_detected, 2)):
            yield "–" if cost is None else self._number(cost, digits=digits)

    # ---- comparison with another pack

    def pack_comparison_blocks(self) -> tuple[Block, ...]:
        """Return the comparison with another pack; empty if no comparison was requested."""
        text, found = self.translator.text, self.report.pack_comparison
        if found is None:
            return ()
        names = {
            "auc": text("Area under the ROC curve (AUC) of the scores"),
            "detected": text("Detected among all {units} with the condition", units=self._units()),
            "falsely_referred": text("Falsely referred among all {units} without the condition", units=self._units()),
            "sensitivity": text("Sensitivity among {units} that both packs assessed", units=self._units()),
            "specificity": text("Specificity among {units} that both packs assessed", units=self._units()),
        }
        only = text("Only first pack correct"), text("Only second pack correct")
        columns = (
            text("Figure"),
            text("First pack"),
            text("Second pack"),
            text("Second pack minus first pack (95 % interval)"),
            *only,
        )
        rows = [(names[one.name], *self._paired(one)) for one in found.figures]
        title, heading = (
            text("Two packs compared on one set of images"),
            text("Figures, with 95 % confidence intervals calculated by patient"),
        )
        widths = (50.0, 17.0, 17.0, 50.0, 22.0, 22.0)
        return BulletList(title, tuple(self._said_of_pairs(found))), Table(
            heading, columns, _rows(rows), column_widths_mm=widths
        )

    def _said_of_pairs(self, found: PackComparison) -> Iterator[str]:
        text, area = self.translator.text, found.figures[0]
        for which, side in ((text("First pack"), found.first), (text("Second pack"), found.second)):
            threshold = "–" if side.point is None else self._border(side.point.threshold)
            values = {
                "pack": side.pack,
                "run": PackOfRun(side.run_id, side.pack_position),
                "label": side.label,
                "threshold": threshold,
            }
            yield shorten(f"{which}: " + text("{pack}, run {run}, label {label}, threshold {threshold}", **values))
        if area.low > 0:
            yield text(
                "The second pack has the larger area under the ROC curve (the 95 % interval of the "
                "difference excludes 0)."
            )
        elif area.high < 0:
            yield text(
                "The first pack has the larger area under the ROC curve (the 95 % interval of the difference "
                "excludes 0)."
            )
        else:
            yield text("The area under the ROC curve does not differ significantly between the packs.")
        yield text(
            "Labelled images that are in both runs: {images}, of {patients} patients. Labelled images that are only "
            "in the first run, and are left out: {elsewhere}. Number of {units} compared: {all}. Assessed by both "
            "packs: {both}. Assessed by the first pack only: {first}. Assessed by the second pack only: {second}.",
            images=found.image_count,
            patients=found.patient_count,
            all=found.unit_count,
            units=self._units(),
            both=found.both_assessed_count,
            first=found.only_first_assessed_count,
            second=found.only_second_assessed_count,
            elsewhere=found.missing_image_count,
        )
        if found.kappa is not None:
            yield text("Cohen's kappa between the referrals of both packs: {kappa}.", kappa=self._kappa(*found.kappa))
        yield text("If a pack was trained on images of these patients, the figures of that pack are too optimistic.")

    def _paired(self, one: PairedFigure) -> Iterator[str]:
        scale, digits = (1, 3) if one.name == "auc" else (100, 1)
        yield from (self._number(scale * each.value, digits=digits) for each in (one.first, one.second))
        value, low, high = (
            self.translator.with_decimal_mark(f"{scale * part:+.{digits}f}")
            for part in (one.difference, one.low, one.high)
        )
        yield self.translator.text("{value} ({low} to {high})", value=value, low=low, high=high)
        yield from map(str, one.only_right_counts or ("–", "–"))

    # ---- charts

    def charts(self) -> tuple[ShareChart, ...]:
        """Return the charts of an audit.

        The charts are the ROC curve, the calibration of the scores and, with a threshold plan, the detected share
        plotted against the referred share.
        """
        text, found, plan = self.translator.text, self.report.audit, self.report.threshold_plan
        workload = text("Referred and detected"), text("Referred"), text("Share detected")
        steps = plan.rows_by_subgroup[ALL_UNITS_SUBGROUP].values() if plan else ()
        line = tuple((step.referred / THRESHOLD_PLAN_UNIT_COUNT, step.sensitivity.value) for step in steps)
        marks = tuple(
            (one.mean_score, one.positive_share.value, one.positive_share.low, one.positive_share.high)
            for one in found.calibration_bins
        )
        return (
            ShareChart(
                chart_and_axis_titles=(text("ROC curve"), text("1 – specificity"), text("Sensitivity")),
                line=found.roc_points,
            ),
            ShareChart(
                chart_and_axis_titles=(
                    text("Calibration"),
                    text("Mean score"),
                    text("Observed share with the condition"),
                ),
                marks_with_intervals=marks,
            ),
            *([ShareChart(chart_and_axis_titles=workload, line=line)] if line else []),
        )

    # ---- parts of the report

    def blocks_before_charts(self) -> tuple[Block, ...]:
        """Return the parts of the report that stand before its charts: facts, figures and notes.

        Long texts are cut, so that no part exceeds a page.
        """
        text = self.translator.text
        said = (*self.notes(), *self.drift_sentences(), self.operating_point_proposal_text())
        return (
            Paragraph(research_only_notice(self.translator), "notice"),
            FieldList("", tuple(Field(label, shorten(fact)) for label, fact in self.facts())),
            Table(
                text("Figures, with 95 % confidence intervals calculated by patient"),
                (text("Figure"), self._units(), text("Value (95 % interval)")),
                _rows(self.figure_rows()),
                column_widths_mm=(98.0, 30.0, 50.0),
            ),
            BulletList(
                text("Notes on the figures"), tuple(shorten(one, max_letters=_MAX_SENTENCE_CHARACTERS) for one in said)
            ),
        )

    def blocks_after_charts(self) -> tuple[Block, ...]:
        """Return the parts of the report after its charts: subgroups, threshold plan, comparison, disagreements.

        Long texts in tables are cut, so that no row exceeds a page.
        """
        return (
            *self.subgroup_blocks(),
            *self.threshold_plan_blocks(),
            *self.pack_comparison_blocks(),
            self.misclassified_table(),
        )

    # ---- disagreements

    def misclassified_table(self, max_rows: int | None = None) -> Table:
        """Return a table of the images, examinations or patients that the pack falsely referred or missed.

        Mistakes with the clearest scores come first.

        max_rows  maximum number of rows; None for all
        """
        text, points, found = self.translator.text, self.report.audit.points, self.report.audit.misclassified[:max_rows]
        point = points[0].point if points else None
        rows = tuple(
            (
                text("Missed") if case.truth else text("Falsely referred"),
                "–" if case.score is None else score_text(self.translator, case.score, point, min_digits=3),
                "",
                shorten_path(case.image_key, max_letters=_MAX_PATH_CHARACTERS),
                category_label(self.translator, case.category, self.report.subject),
            )
            for case in found
        )
        all_of_them = self.report.audit.misclassified
        missed = sum(case.truth for case in all_of_them)
        title = text(
            "Disagreements with the reference labels: {missed} {units} missed, {falsely} {units} falsely referred",
            missed=missed,
            falsely=len(all_of_them) - missed,
            units=self._units(),
        )
        return Table(
            title,
            (text("Mistake of the pack"), text("Score"), "", text("Image"), text("Class")),
            rows,
            column_widths_mm=(30.0, 18.0, 6.0, 100.0, 24.0),
            cell_categories=tuple((case.category,) for case in found),
        )


def _rows(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(shorten(cell, max_letters=_MAX_CELL_CHARACTERS) for cell in row) for row in rows)

"""Audit of a stored run: the run's results compared with reference labels, and with another run's results."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from fieldray.audit import drift
from fieldray.audit.cases import (
    ENGLISH_CLASS_NAMES,
    ClassNames,
    ReferenceLabels,
    check_label_table,
    labels_from_folders,
    labels_from_table,
    truths_from_verdicts,
)
from fieldray.audit.figures import compute_audit, require_valid_prevalence
from fieldray.audit.report import (
    AuditReport,
    AuditSubject,
    ComparedPack,
    PackComparison,
    ProposalGoal,
    ScreeningPrices,
    compare_packs,
    propose_operating_point,
    require_valid_prices,
    threshold_plan,
)
from fieldray.audit.units import Case, CountingRule, make_cases
from fieldray.domain.finding import ScreenedOutcome
from fieldray.domain.image import ImageRef
from fieldray.domain.metrics import ReferralRule, Unit
from fieldray.domain.model import Model, OperatingPoint
from fieldray.domain.run import PackOfRun, StoredResult, pack_of_run
from fieldray.errors import UsageProblem
from fieldray.imaging.discover import discover
from fieldray.packs.site_choices import LocalOperatingPoint, LocalPointFile, with_local_points
from fieldray.paths import VERSION, translation_catalogue_paths
from fieldray.pipeline.constancy import ConstancyRecords
from fieldray.pipeline.run_warnings import drifts_of
from fieldray.reasons import Reason, reason
from fieldray.reports.audit_files import write_audit
from fieldray.reports.outputs import is_own_report
from fieldray.store.work_list import HistoryQuery
from fieldray.translation import Translator

_NAME: Final = re.compile("[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """The request for an audit, as entered by a person.

    label_source      source of the reference labels: "folders" (names of the images' folders), "verdicts" (of readers),
                      or the path of a table
    positive_classes  class names that mean “with the condition”; empty for the usual names
    column_names      unusual column names in the table of labels, by meaning (see `audit.cases.labels_from_table`)
    label_code        code of the pack's label to audit; None for the pack's first label
    counted_unit      what all figures count, such as patients or images; None for patients if a table or a header names
                      them, else images
    referral_rule     the rule for referral (see `audit.units.CountingRule`)
    prevalence        prevalence, 0..1, among the patients to be screened; None for the prevalence among audited units
    goal              goal of the local operating point that the audit proposes
    prices            prices for a threshold plan with costs; None for a plan without costs
    compared_pack     another pack of a run to compare with, or None
    """

    label_source: Literal["folders", "verdicts"] | Path
    positive_classes: tuple[str, ...] = ()
    column_names: Mapping[str, str] = field(default_factory=dict)
    label_code: str | None = None
    counted_unit: Unit | None = None
    referral_rule: ReferralRule = "above"
    prevalence: float | None = None
    goal: ProposalGoal = field(default_factory=ProposalGoal)
    prices: ScreeningPrices | None = None
    compared_pack: PackOfRun | None = None


def audit_run(database: Path, pack_in_run: PackOfRun, request: AuditRequest, *, model: Model | None) -> AuditReport:
    """Compute all figures of an audit of a pack's results in a stored run.

    pack_in_run  the run, and the position of the pack in the run
    model        the loaded pack; None to evaluate only the operating points stored with the run

    Raises UsageProblem for a missing run or label, runs that cannot be compared, and invalid reference labels. Raises
    StorageProblem if the results cannot be read.
    """
    with HistoryQuery(database) as query:
        judged = _PackResults(query, *pack_in_run)
        label = _label(judged, request.label_code, model)
        reference = _reference(judged, request, label)
        cases = list(make_cases(judged.results(), reference, label=label))
        unit = request.counted_unit or ("patient" if any(case.has_known_patient for case in cases) else "image")
        rule = CountingRule(unit=unit, refers=request.referral_rule)
        points = _points(judged, label, model)
        found = compute_audit(cases, points, rule=rule, prevalence=request.prevalence, readers=reference.reader_labels)
        paired = _paired(judged, cases, label, request.compared_pack, rule)
        drifts = drifts_of(query, judged.run, pack_in_run.position, model.manifest if model else None, label=label)
    pattern = model.manifest.point(label) if model else next(iter(points), None)
    proposal = propose_operating_point(cases, label=label, base_point=pattern, rule=rule, wanted=request.goal)
    thresholds = [proposal.threshold, *(point.threshold for point in points)]
    planned = threshold_plan(
        cases, thresholds, rule=rule, base_point=pattern, prevalence=found.prevalence, prices=request.prices
    )
    unseen = reason("audit_unseen", pack=judged.pack.pack_name)
    notes = (unseen, *reference.notes, *found.notes, *_without_reference(label, model))
    if model:  # constancy tests show whether the computer causes a drift
        notes += ConstancyRecords(database.parent).state_sentences(model)
    return AuditReport(
        subject=_subject(judged, request, label, model),
        audit=dataclasses.replace(found, notes=notes),
        rows_without_image_by_truth=reference.rows_without_image_by_truth,
        drifts=drifts,
        proposal=proposal,
        threshold_plan=planned,
        pack_comparison=paired,
    )


class _PackResults:
    """The results of a pack in a run. The constructor raises UsageProblem (history_no_run, history_no_pack)."""

    def __init__(self, query: HistoryQuery, run_id: int, position: int) -> None:
        self.query, self.pack_in_run, self.run = query, PackOfRun(run_id, position), query.run(run_id)
        self.pack = pack_of_run(self.run, position)

    def results(self) -> Iterator[StoredResult]:
        return self.query.results(self.pack_in_run.run_id, pack_position=self.pack_in_run.position)

    def side(self, label: str) -> ComparedPack:
        """Return the facts about the pack for a comparison with another pack, at the run's operating point."""
        return ComparedPack(
            run_id=self.pack_in_run.run_id,
            pack_position=self.pack_in_run.position,
            pack=self.pack.pack_name,
            label=label,
            point=next(iter(_points(self, label, None)), None),
        )


def _paired(
    judged: _PackResults, cases: Sequence[Case], label: str, against: PackOfRun | None, rule: CountingRule
) -> PackComparison | None:
    """Compare the results of two packs, at the operating points of their runs. Returns None if `against` is None.

    judged   results of the audited pack
    label    code of the audited label. If the other pack lacks this label, the other pack's first label is used
    against  the other pack and its run
    rule     the rule for referral
    """
    if against is None:
        return None
    if against == judged.pack_in_run:
        raise UsageProblem(reason("history_same_run"))
    other = _PackResults(judged.query, *against)
    known = _labels(other, None)
    second = other.side(label if label in known or not known else known[0])
    return compare_packs(cases, other.results(), first=judged.side(label), second=second, rule=rule)


def require_usable_request(request: AuditRequest, paths: Sequence[Path] = ()) -> None:
    """Raise UsageProblem for an audit request that cannot be carried out, before any image is screened.

    The reasons are a prevalence or a price out of range, and labels that cannot be used.

    paths  files and folders to be screened; if empty, only problems that do not depend on images are found
    """
    require_valid_prevalence(request.prevalence)
    require_valid_prices(request.prices)
    if isinstance(request.label_source, Path):
        classes, columns = request.positive_classes, request.column_names
        check_label_table(request.label_source, positive=classes, columns=columns, known_names=usual_class_names())
    if paths and request.label_source != "verdicts":
        _labels_of(request, [ref for ref in discover(paths, is_own_report=is_own_report) if not _is_none(ref.problem)])


def require_local_point_name(name: str, person: str) -> None:
    """Raise UsageProblem if a name of a local operating point is invalid, or a person's name is missing.

    person  the person who accepts the operating point
    """
    if not _NAME.fullmatch(name):
        raise UsageProblem(reason("site_point_bad_name", name=name))
    if not 0 < len(person.strip()) <= 200:
        raise UsageProblem(reason("site_point_person"))


def adopt_local_point(
    points: LocalPointFile, report: AuditReport, *, name: str, person: str, model: Model | None, day: datetime.date
) -> OperatingPoint:
    """Store an audit's proposed operating point among this site's local operating points. Returns the point.

    Call this function only after a person has agreed.

    points  the file of local operating points
    report  the report of the audit that proposed the operating point
    name    name for the operating point, without the prefix `local:`
    person  name of the person who agreed
    model   the audited pack; None if it is not available, which raises UsageProblem (site_point_model)
    day     the day of the agreement

    Raises UsageProblem (site_point_bad_name, site_point_name, site_point_person, site_point_model), StorageProblem.
    """
    proposal, subject = report.proposal, report.subject
    its = model and (model.pack_name, model.model_sha256)
    if model is None or its != (subject.pack, subject.model_sha256) or model.trust == "legacy":
        raise UsageProblem(reason("site_point_model", pack=subject.pack))
    require_local_point_name(name, person)
    sensitivity, specificity = proposal.sensitivity, proposal.specificity
    point = LocalOperatingPoint(
        name=name,
        label=proposal.label,
        model_sha256=subject.model_sha256,
        pack=subject.pack,
        threshold=proposal.threshold,
        unsure_low=proposal.unsure_low,
        unsure_high=proposal.unsure_high,
        sensitivity=(sensitivity.value, sensitivity.low, sensitivity.high),
        specificity=(specificity.value, specificity.low, specificity.high),
        images=proposal.image_count,
        patients=proposal.patient_count,
        counted=proposal.rule.unit,
        refers=proposal.rule.refers,
        chosen_by=person.strip(),
        chosen_on=day.isoformat(),
    )
    points.add(point)
    return point.operating_point


class Auditor:
    """Runs audits of stored runs for the desktop window, and stores local operating points of this site."""

    def __init__(self, database: Path, points: LocalPointFile) -> None:
        self._database, self._points = database, points

    def audit(self, pack_in_run: PackOfRun, request: AuditRequest, *, model: Model | None) -> AuditReport:
        """Audit the results of one pack in a stored run. Parameters, result and exceptions are those of `audit_run`."""
        return audit_run(self._database, pack_in_run, request, model=model)

    def adopt_proposal(self, report: AuditReport, *, name: str, person: str, model: Model) -> Model:
        """Store an audit's proposed operating point among this site's local operating points, dated today.

        Returns the model with all local operating points. Parameters and exceptions are those of `adopt_local_point`.
        """
        today = datetime.date.today()
        adopt_local_point(self._points, report, name=name, person=person, model=model, day=today)
        return with_local_points(model, self._points.points_for(model))

    def save_report(self, folder: Path, report: AuditReport, *, language: str) -> tuple[Path, ...]:
        """Write an audit report as PDF and JSON into a folder. Returns the paths of the files.

        language  code of the report's language, such as "en"

        Raises UsageProblem, StorageProblem.
        """
        return write_audit(folder, report, language=language)


def _label(judged: _PackResults, wanted: str | None, model: Model | None) -> str:
    known = _labels(judged, model)
    if not known:
        raise UsageProblem(reason("audit_no_results", path=judged.query.path))
    if wanted is not None and wanted not in known:
        raise UsageProblem(reason("audit_no_label", label=wanted, known=", ".join(known)))
    return wanted or known[0]


def _labels(judged: _PackResults, model: Model | None) -> Sequence[str]:
    if model:
        return [label.code for label in model.manifest.labels]
    if judged.pack.operating_points:
        return [point.label for point in judged.pack.operating_points]
    screened = next((found.outcome for found in judged.results() if isinstance(found.outcome, ScreenedOutcome)), None)
    return [finding.label for finding in screened.findings] if screened else []


def _points(judged: _PackResults, label: str, model: Model | None) -> list[OperatingPoint]:
    """Return the operating points to evaluate for a label: first those of the run, then those of the pack and the site.

    If two operating points have one name, only the last one is returned.
    """
    known = model.manifest.operating_points if model else ()
    points = (*judged.pack.operating_points, *known)
    return list({point.name: point for point in points if point.label == label}.values())


def _reference(judged: _PackResults, request: AuditRequest, label: str) -> ReferenceLabels:
    if request.label_source == "verdicts":
        truths = truths_from_verdicts(judged.results(), label=label)
        if not truths:
            raise UsageProblem(reason("audit_no_verdicts", run=judged.pack_in_run))
        return ReferenceLabels(truth_by_image=truths, notes=(reason("audit_verdicts"),))
    outcomes = [answer.outcome for answer in judged.results()]
    refs = [outcome.ref for outcome in outcomes if not _is_none(getattr(outcome, "reason", None))]
    if not refs:
        raise UsageProblem(reason("audit_no_results", path=judged.query.path))
    return _labels_of(request, refs)


def _labels_of(request: AuditRequest, refs: Sequence[ImageRef]) -> ReferenceLabels:
    source, positive, usual = request.label_source, request.positive_classes, usual_class_names()
    if isinstance(source, Path):
        return labels_from_table(source, refs, positive=positive, columns=request.column_names, known_names=usual)
    return labels_from_folders(refs, positive=positive, known_names=usual)


@functools.cache
def usual_class_names() -> ClassNames:
    """Return the usual class names for positive and negative, in English and all other languages of the program."""
    positive, negative = set(ENGLISH_CLASS_NAMES.positive), set(ENGLISH_CLASS_NAMES.negative)
    for translator in map(Translator, translation_catalogue_paths()):
        # Translators: TRUE and FALSE as a spreadsheet in your language writes them into its cells.
        yes = translator.in_context("cell of a table", "TRUE"), translator.in_context("cell of a table", "yes")
        no = translator.in_context("cell of a table", "FALSE"), translator.in_context("cell of a table", "no")
        positive |= {name.casefold() for name in (*yes, translator.text("Abnormal"))}
        negative |= {name.casefold() for name in (*no, translator.text("Normal"))}
    return ClassNames(frozenset(positive), frozenset(negative))


def _is_none(why: Reason | None) -> bool:
    """Return whether a reason means that there is no image: a folder cannot be read, or a file is no image."""
    return why is not None and why.code in _NO_IMAGES


_NO_IMAGES: Final = frozenset({"folder_not_read", "folder_lost", "not_an_image"})


def _without_reference(label: str, model: Model | None) -> tuple[Reason, ...]:
    """Return a note if the pack has no reference scores for a label, by which drift is measured; else no note."""
    has_any = model is None or "scores" in drift.reference_histograms(model.manifest.metrics, label)
    return () if has_any else (reason("drift_no_reference"),)


def _subject(judged: _PackResults, request: AuditRequest, label: str, model: Model | None) -> AuditSubject:
    spec = judged.pack
    meanings = {entry.code: entry.meaning for entry in model.manifest.labels} if model else {}
    return AuditSubject(
        pack=spec.pack_name,
        pack_names=model.manifest.names if model else {},
        trust=spec.trust,
        fingerprint=spec.fingerprint,
        model_sha256=spec.model_sha256,
        label=label,
        meaning=meanings.get(label, {}),
        class_names=model.manifest.class_names if model else None,
        label_source=str(request.label_source),
        run_id=judged.pack_in_run.run_id,
        pack_position=judged.pack_in_run.position,
        paths=judged.run.spec.paths,
        program_version=VERSION,
        audited_s=time.time(),
        lungs_pack=spec.lungs_pack,
    )

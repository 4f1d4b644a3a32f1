"""A stored run against what is known to be true of its images, and against earlier runs."""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from fieldray.audit import drift
from fieldray.audit.cases import Reference, folder_labels, require_table, table_labels, verdict_truths
from fieldray.audit.drift import Drift
from fieldray.audit.figures import audit, require_prevalence
from fieldray.audit.report import (
    AuditReport,
    Paired,
    Prices,
    Side,
    Subject,
    Wanted,
    pair,
    plan,
    propose,
    require_prices,
)
from fieldray.audit.units import Case, Referral, Rule, Unit, make_cases
from fieldray.domain.finding import Screened
from fieldray.domain.image import ImageRef
from fieldray.domain.lungs import measured_evidence_limit
from fieldray.domain.model import Manifest, Model, OperatingPoint
from fieldray.domain.run import Run, StoredResult
from fieldray.errors import UsageProblem
from fieldray.imaging.discover import discover
from fieldray.packs.site_choices import SitePoint, SitePoints, with_site_points
from fieldray.paths import VERSION
from fieldray.pipeline.constancy import ConstancyRecords
from fieldray.reasons import Reason, reason
from fieldray.reports.audit_files import write_audit
from fieldray.reports.outputs import is_own_report
from fieldray.store.work_list import HistoryQuery

_MOST_COMPARED: Final = 20_000  # images of either side: more change a distribution little
_NAME: Final = re.compile("[a-z0-9][a-z0-9-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What a person asks for.

    labels       where the reference labels are from: the images' folders, the reader's verdicts, or a table
    positive     names of classes that mean positive
    columns      of the table, where they have unusual names (see `audit.cases.table_labels`)
    label        of the pack, its first without one
    unit         that every figure counts; without it patients, where a table or a header names one, else images
    refers       what counts as referred (see `audit.units.Rule`)
    prevalence   among the patients to be screened; without it, that of the units
    wanted       for what a local operating point is proposed
    prices       for a plan with costs
    against      another run of the same images, to compare with
    """

    labels: Literal["folders", "verdicts"] | Path
    positive: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    label: str | None = None
    unit: Unit | None = None
    refers: Referral = "above"
    prevalence: float | None = None
    wanted: Wanted = field(default_factory=Wanted)
    prices: Prices | None = None
    against: int | None = None


def audit_run(database: Path, run_id: int, request: AuditRequest, *, model: Model | None) -> AuditReport:
    """All figures of a stored run.

    model  the pack of the run; without it only the operating points of the run are judged

    Raises UsageProblem for a run or label that is not there, two runs that cannot be compared, and what is wrong with
    the reference labels; StorageProblem if the results cannot be read.
    """
    with HistoryQuery(database) as query:
        run = query.run(run_id)
        label = _label(query, run, request.label, model)
        reference = _reference(query, run_id, request, label)
        results = query.rows(run_id)
        cases = list(make_cases(results, reference, label=label))
        unit = request.unit or ("patient" if any(case.has_patient for case in cases) else "image")
        rule = Rule(unit=unit, refers=request.refers)
        points = _points(run, label, model)
        found = audit(cases, points, rule=rule, prevalence=request.prevalence, readers=reference.readers)
        side = Side(run_id=run_id, pack=run.spec.pack_name, label=label, point=_point_of(run, label))
        paired = _paired(query, side, cases, request.against, rule)
        drifts = drifts_of(query, run, model.manifest if model else None, label=label)
    pattern = model.manifest.point(label) if model else next(iter(points), None)
    proposal = propose(cases, label=label, pattern=pattern, rule=rule, wanted=request.wanted)
    thresholds = [proposal.threshold, *(point.threshold for point in points)]
    planned = plan(cases, thresholds, rule=rule, pattern=pattern, prevalence=found.prevalence, prices=request.prices)
    unseen = reason("audit_unseen", pack=run.spec.pack_name)
    notes = (unseen, *reference.notes, *found.notes, *_without_reference(label, model))
    if model:  # what drifts may be the computer's doing
        notes += ConstancyRecords(database.parent).standing(model)
    return AuditReport(
        subject=_subject(run, request, label, model),
        audit=dataclasses.replace(found, notes=notes),
        missing=reference.missing,
        drifts=drifts,
        proposal=proposal,
        plan=planned,
        paired=paired,
    )


def _paired(query: HistoryQuery, first: Side, cases: Sequence[Case], against: int | None, rule: Rule) -> Paired | None:
    """The run beside the one that it is to be compared with, each at the point that it used."""
    if against is None:
        return None
    if against == first.run_id:
        raise UsageProblem(reason("history_same_run"))
    other = query.run(against)
    known = _labels(query.rows(against), other, None)
    label = first.label if first.label in known or not known else known[0]
    second = Side(run_id=against, pack=other.spec.pack_name, label=label, point=_point_of(other, label))
    return pair(cases, query.rows(against), first=first, second=second, rule=rule)


def _point_of(run: Run, label: str) -> OperatingPoint | None:
    return next(iter(_points(run, label, None)), None)


def require_usable(request: AuditRequest, paths: Sequence[Path] = ()) -> None:
    """Refuse, before any image is screened, what would be refused afterwards.

    paths  files and folders that are to be screened; without them only what is wrong whatever the images are is found

    Raises UsageProblem for a prevalence or a price out of range, and labels that cannot be used.
    """
    require_prevalence(request.prevalence)
    require_prices(request.prices)
    if isinstance(request.labels, Path):
        require_table(request.labels, positive=request.positive, columns=request.columns)
    if paths and request.labels != "verdicts":
        _labels_of(request, [ref for ref in discover(paths, is_own_report=is_own_report) if not _is_none(ref.problem)])


def require_point(name: str, person: str) -> None:
    """Refuse what cannot be an operating point's name, or the name of who accepts it. Raises UsageProblem."""
    if not _NAME.fullmatch(name):
        raise UsageProblem(reason("site_point_bad_name", name=name))
    if not 0 < len(person.strip()) <= 200:
        raise UsageProblem(reason("site_point_person"))


def drifts_of(query: HistoryQuery, run: Run, manifest: Manifest | None, *, label: str = "") -> tuple[Drift, ...]:
    """How a run differs from the pack's own images and from earlier runs, by this label, or the pack's first."""
    label = label or (manifest.labels[0].code if manifest else "")
    limit = measured_evidence_limit(manifest) if manifest else None
    now = drift.drift_counts(query.drift_samples(run.run_id, limit=_MOST_COMPARED), label, evidence_limit=limit)
    of_pack = drift.reference_counts(manifest.metrics, label) if manifest else {}
    earlier = drift.drift_counts(query.earlier_samples(run, limit=_MOST_COMPARED), label, evidence_limit=limit)
    return (*drift.compare(now, of_pack, against="pack"), *drift.compare(now, earlier, against="earlier"))


def doubts_of(query: HistoryQuery, run: Run, manifest: Manifest | None) -> tuple[Reason, ...]:
    """What speaks against a run as a whole: files that cannot be told apart by their numbers, and images that look like
    those of other patients than the pack's.

    manifest  of the pack that made the results; without it nothing is known of the latter
    """
    shared = query.shared_instances(run.run_id)
    notes = (reason("instances_shared", count=shared),) if shared else ()
    if manifest is None:
        return notes
    drifts = drifts_of(query, run, manifest)
    return (*notes, *(found.summary for found in drifts if found.of == "evidence" and found.is_out))


def take_local_point(
    points: SitePoints, report: AuditReport, *, name: str, person: str, model: Model | None, day: datetime.date
) -> OperatingPoint:
    """Keep the proposed operating point as this site's own: a person said yes.

    Raises UsageProblem (site_point_bad_name, site_point_name, site_point_person, site_point_model), StorageProblem.
    """
    proposal, subject = report.proposal, report.subject
    its = model and (model.pack_name, model.model_sha256)
    if model is None or its != (subject.pack, subject.model_sha256) or model.trust == "legacy":
        raise UsageProblem(reason("site_point_model", pack=subject.pack))
    require_point(name, person)
    sensitivity, specificity = proposal.sensitivity, proposal.specificity
    point = SitePoint(
        name=name,
        label=proposal.label,
        model_sha256=subject.model_sha256,
        pack=subject.pack,
        threshold=proposal.threshold,
        unsure_low=proposal.unsure_low,
        unsure_high=proposal.unsure_high,
        sensitivity=(sensitivity.value, sensitivity.low, sensitivity.high),
        specificity=(specificity.value, specificity.low, specificity.high),
        images=proposal.images,
        patients=proposal.patients,
        counted=proposal.rule.unit,
        refers=proposal.rule.refers,
        chosen_by=person.strip(),
        chosen_on=day.isoformat(),
    )
    points.add(point)
    return point.operating_point


class Auditor:
    """Audits for the window: the results' file and the site's operating points."""

    def __init__(self, database: Path, points: SitePoints) -> None:
        self._database, self._points = database, points

    def audit(self, run_id: int, request: AuditRequest, *, model: Model | None) -> AuditReport:
        """As `audit_run`."""
        return audit_run(self._database, run_id, request, model=model)

    def take(self, report: AuditReport, *, name: str, person: str, model: Model) -> Model:
        """As `take_local_point`, today; the model with all points of the site."""
        today = datetime.date.today()
        take_local_point(self._points, report, name=name, person=person, model=model, day=today)
        return with_site_points(model, self._points.of(model))

    def save(self, folder: Path, report: AuditReport, *, language: str) -> tuple[Path, ...]:
        """Write the report as PDF and JSON; the paths. Raises UsageProblem, StorageProblem."""
        return write_audit(folder, report, language=language)


def _label(query: HistoryQuery, run: Run, wanted: str | None, model: Model | None) -> str:
    known = _labels(query.rows(run.run_id), run, model)
    if not known:
        raise UsageProblem(reason("audit_no_results", path=query.path))
    if wanted is not None and wanted not in known:
        raise UsageProblem(reason("audit_no_label", label=wanted, known=", ".join(known)))
    return wanted or known[0]


def _labels(results: Iterable[StoredResult], run: Run, model: Model | None) -> Sequence[str]:
    if model:
        return [label.code for label in model.manifest.labels]
    if run.spec.operating_points:
        return [point.label for point in run.spec.operating_points]
    screened = next((found.outcome for found in results if isinstance(found.outcome, Screened)), None)
    return [finding.label for finding in screened.findings] if screened else []


def _points(run: Run, label: str, model: Model | None) -> list[OperatingPoint]:
    """Those of the pack and of the site; one that was in force and is there no more comes first."""
    known = model.manifest.operating_points if model else ()
    points = (*run.spec.operating_points, *known)
    return list({point.name: point for point in points if point.label == label}.values())


def _reference(query: HistoryQuery, run_id: int, request: AuditRequest, label: str) -> Reference:
    if request.labels == "verdicts":
        truths = verdict_truths(query.rows(run_id), label=label)
        if not truths:
            raise UsageProblem(reason("audit_no_verdicts", run=run_id))
        return Reference(truths=truths, notes=(reason("audit_verdicts"),))
    outcomes = [result.outcome for result in query.rows(run_id)]
    refs = [outcome.ref for outcome in outcomes if not _is_none(getattr(outcome, "reason", None))]
    if not refs:
        raise UsageProblem(reason("audit_no_results", path=query.path))
    return _labels_of(request, refs)


def _labels_of(request: AuditRequest, refs: Sequence[ImageRef]) -> Reference:
    if isinstance(request.labels, Path):
        return table_labels(request.labels, refs, positive=request.positive, columns=request.columns)
    return folder_labels(refs, positive=request.positive)


def _is_none(why: Reason | None) -> bool:
    """Whether what failed for this reason is a folder that could not be read, or a file that is no image at all."""
    return why is not None and why.code in _NO_IMAGES


_NO_IMAGES: Final = frozenset({"folder_not_read", "folder_lost", "not_an_image"})


def _without_reference(label: str, model: Model | None) -> tuple[Reason, ...]:
    """What a reader should know of a pack that carries no scores to compare with."""
    has_any = model is None or "scores" in drift.reference_counts(model.manifest.metrics, label)
    return () if has_any else (reason("drift_no_reference"),)


def _subject(run: Run, request: AuditRequest, label: str, model: Model | None) -> Subject:
    spec = run.spec
    meanings = {entry.code: entry.meaning for entry in model.manifest.labels} if model else {}
    return Subject(
        pack=spec.pack_name,
        names=model.manifest.names if model else {},
        trust=spec.trust,
        fingerprint=spec.fingerprint,
        model_sha256=spec.model_sha256,
        label=label,
        meaning=meanings.get(label, {}),
        class_names=model.manifest.class_names if model else None,
        labels_from=str(request.labels),
        run_id=run.run_id,
        paths=spec.paths,
        program_version=VERSION,
        made_s=time.time(),
        lungs_pack=spec.lungs_pack,
    )

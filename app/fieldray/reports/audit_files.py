"""The files of an audit: `audit.json` for programs, `audit.pdf` for people, `thresholds.csv` for planning a threshold;
none of them holds a patient's name or number.

Images and folders have aliases in them: their names often are those of people.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from fieldray.audit.cases import Case
from fieldray.audit.figures import AtPoint, Group, images_needed
from fieldray.audit.report import EVERYBODY, AuditReport, Plan, Step
from fieldray.domain.finding import Category
from fieldray.domain.metrics import Share
from fieldray.domain.purpose import TRUTHS
from fieldray.paths import user_data
from fieldray.reasons import Reason, reason
from fieldray.reports.audit import AuditText
from fieldray.reports.content import CATEGORY_TEXTS, NOTICE
from fieldray.reports.exporter import image_alias, is_own_pdf, pseudonym_key
from fieldray.reports.exporters.csv import write_rows
from fieldray.reports.outputs import is_plan, require_folder, require_free, write_own
from fieldray.translation import Translator


def audit_text(report: AuditReport) -> str:
    """The document as JSON in ASCII, files and folders by their aliases. Raises StorageProblem."""
    return json.dumps(audit_document(_unnamed(report)), indent=1) + "\n"


def audit_document(report: AuditReport) -> dict[str, object]:
    """The document with plain values; shares are value, low and high of their 95 % interval, with counts."""
    found, subject = report.audit, report.subject
    return {
        "report": "fieldray audit",
        "notice": NOTICE,
        "made": datetime.datetime.fromtimestamp(subject.made_s, datetime.UTC).isoformat(timespec="seconds"),
        **{name: value for name, value in asdict(subject).items() if name != "made_s"},
        "images": found.images,
        "patients": found.patients,
        "positives": found.positives,
        "scored": found.scored,
        "auc": asdict(found.area),
        "prevalence": found.prevalence,
        "operating_points": [_point(at) for at in found.points],
        "counts": {
            CATEGORY_TEXTS[category]: {"positive": by[True], "negative": by[False]}
            for category, by in found.counts.items()
        },
        "not_sure": asdict(found.unsure),
        "refused": asdict(found.refused),
        "calibration_error": found.calibration_error,
        "calibration": [asdict(part) for part in found.bins],
        "roc": [list(pair) for pair in found.curve],
        "groups": [_group(group) for group in found.groups],
        "disagreements": [_case(case) for case in found.disagreements],
        "drift": [{**asdict(drift), "is_out": drift.is_out} for drift in report.drifts],
        "proposal": asdict(report.proposal),
        "plan": _plan(report),
        "compared": report.paired and asdict(report.paired),
        "notes": [{"code": note.code, "text": note.text} for note in found.notes],
    }


def _plan(report: AuditReport) -> dict[str, object] | None:
    """The steps of a table, and of each group the chosen one; all of them are in the CSV file."""
    if (found := report.plan) is None:
        return None
    groups = [(names, steps[report.proposal.threshold]) for names, steps in found.groups.items()]
    return {
        **asdict(replace(found, groups={})),
        "shown": [asdict(found.groups[EVERYBODY][threshold]) for threshold in found.shown],
        "groups": [_flat(names, step) for names, step in groups],
    }


def _point(at: AtPoint) -> dict[str, object]:
    return {
        "name": at.point.name,
        "is_local": at.point.is_local,
        "threshold": at.point.threshold,
        "unsure_low": at.point.unsure_low,
        "unsure_high": at.point.unsure_high,
        "sensitivity_of_all": asdict(at.found),
        "classes": plain_classes(at.classes),
        "sensitivity": asdict(at.sensitivity),
        "specificity": asdict(at.specificity),
        "positive_predictive_value": at.positive_value and asdict(at.positive_value),
        "negative_predictive_value": at.negative_value and asdict(at.negative_value),
        "positives_needed": images_needed(at.sensitivity.value),
        "negatives_needed": images_needed(at.specificity.value),
    }


def plain_classes(classes: Mapping[bool, Mapping[Category, Share]]) -> dict[str, dict[str, Any]]:
    """By "positive" and "negative", the share of each class: what the manifest of a pack holds too."""
    return {
        TRUTHS[truth]: {category: asdict(found) for category, found in own.items()} for truth, own in classes.items()
    }


def _group(group: Group) -> dict[str, object]:
    points = [_point(at) for at in group.points]
    return {
        "by": group.by,
        "name": group.name,
        "images": group.images,
        "auc": asdict(group.area),
        "operating_points": points,
    }


def _case(case: Case) -> dict[str, object]:
    return {
        "image": case.image,
        "reference": "positive" if case.truth else "negative",
        "category": CATEGORY_TEXTS[case.category],
        "score": case.score,
    }


_FIGURES: Final = "audit.json"
_DOCUMENT: Final = "audit.pdf"
_PLAN: Final = "thresholds.csv"


def write_audit(folder: Path, report: AuditReport, *, language: str) -> tuple[Path, ...]:
    """The files, in which files and folders have aliases; their paths. Raises UsageProblem, StorageProblem."""
    from fieldray.reports.pdf_pages import audit_pdf

    figures, document, plan = folder / _FIGURES, folder / _DOCUMENT, folder / _PLAN
    require_audit_files(None, folder)  # all or none
    wording = AuditText(_unnamed(report), Translator(language))
    write_own(document, is_own_pdf, audit_pdf(wording))
    write_own(figures, "json", audit_text(report).encode("ascii"))
    if report.plan is None:
        return document, figures
    write_own(plan, is_plan, plan_table(report.plan, wording.translator).encode("utf-8-sig", "backslashreplace"))
    return document, figures, plan


def plan_table(plan: Plan, translator: Translator) -> str:
    """Every step of every group as CSV, with semicolons where numbers have a decimal comma."""
    stream = io.StringIO(newline="")
    rows = [_flat(names, step) for names, steps in plan.groups.items() for step in steps.values()]
    write_rows(stream, rows[0], rows, has_comma=translator.decimal(".") == ",")
    return stream.getvalue()


def _flat(names: tuple[str, str], step: Step) -> dict[str, Any]:
    found: dict[str, Any] = {"group": names[0], "name": names[1]}
    for name, value in asdict(step).items():
        parts = dict.fromkeys(("value", "low", "high"), "") if value is None and name in ("ppv", "npv") else value
        found |= {f"{name}_{part}": each for part, each in parts.items()} if isinstance(parts, dict) else {name: parts}
    return {**found, "notice": NOTICE}


def _unnamed(report: AuditReport) -> AuditReport:
    """As it may leave the house: names of files and folders often are those of people. Raises StorageProblem.

    The aliases are those of the exports of a run, whose `image_id` they are.
    """
    alias, found, subject = partial(image_alias, key=pseudonym_key(user_data())), report.audit, report.subject
    source = subject.labels_from
    return replace(
        report,
        subject=replace(
            subject,
            paths=tuple(map(alias, subject.paths)),
            labels_from=source if source in ("folders", "verdicts") else alias(source),
        ),
        audit=replace(
            found,
            disagreements=tuple(replace(case, image=alias(case.image)) for case in found.disagreements),
            notes=tuple(note if "rows" not in dict(note.parameters) else _without_rows(note) for note in found.notes),
        ),
    )


def _without_rows(note: Reason) -> Reason:
    """A note that quotes lines of the table, without them."""
    return reason(note.code, **(dict(note.parameters) | {"rows": "…"}))


def require_audit_files(json_path: Path | None, folder: Path | None) -> None:
    """Refuse, before any image is screened, what could not be written afterwards.

    Raises UsageProblem, StorageProblem.
    """
    if json_path is not None:
        require_free(json_path, "json")
    if folder is not None:
        require_folder(folder)
        require_free(folder / _FIGURES, "json")
        require_free(folder / _DOCUMENT, is_own_pdf)
        require_free(folder / _PLAN, is_plan)

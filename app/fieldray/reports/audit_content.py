"""An audit as a document for programs: plain values, in the order of the report; no patient's name or number."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping
from typing import Any

from fieldray.audit.cases import Case
from fieldray.audit.figures import AtPoint, Group, images_needed
from fieldray.audit.report import AuditReport
from fieldray.domain.finding import Category
from fieldray.domain.metrics import Share
from fieldray.domain.model import Estimate, OperatingPoint
from fieldray.domain.purpose import TRUTHS
from fieldray.reports.content import CATEGORY_TEXTS, NOTICE

BEGINNING = '{\n "report": "fieldray audit"'


def audit_text(report: AuditReport) -> str:
    """The document as JSON in ASCII."""
    return json.dumps(audit_document(report), indent=1) + "\n"


def audit_document(report: AuditReport) -> dict[str, object]:
    """The document with plain values; shares are value, low and high of their 95 % interval, with counts."""
    found, subject = report.audit, report.subject
    return {
        "report": "fieldray audit",
        "notice": NOTICE,
        "made": datetime.datetime.fromtimestamp(subject.made_s, datetime.UTC).isoformat(timespec="seconds"),
        **{name: value for name, value in _plain(subject).items() if name != "made_s"},
        "images": found.images,
        "patients": found.patients,
        "positives": found.positives,
        "scored": found.scored,
        "auc": _plain(found.area),
        "prevalence": found.prevalence,
        "operating_points": [_point(at) for at in found.points],
        "counts": {
            CATEGORY_TEXTS[category]: {"positive": by[True], "negative": by[False]}
            for category, by in found.counts.items()
        },
        "not_sure": _plain(found.unsure),
        "refused": _plain(found.refused),
        "calibration_error": found.calibration_error,
        "calibration": [_plain(part) for part in found.bins],
        "roc": [list(pair) for pair in found.curve],
        "groups": [_group(group) for group in found.groups],
        "disagreements": [_case(case) for case in found.disagreements],
        "drift": [{**_plain(drift), "is_out": drift.is_out} for drift in report.drifts],
        "proposal": _plain(report.proposal),
        "notes": [{"code": note.code, "text": note.text} for note in found.notes],
    }


def _plain(value: Any) -> dict[str, Any]:
    return dataclasses.asdict(value)


def _point(at: AtPoint) -> dict[str, object]:
    return {
        **_named(at.point),
        "sensitivity_of_all": _plain(at.found),
        "classes": plain_classes(at.classes),
        "sensitivity": _plain(at.sensitivity),
        "specificity": _plain(at.specificity),
        "positive_predictive_value": _maybe(at.positive_value),
        "negative_predictive_value": _maybe(at.negative_value),
        "positives_needed": images_needed(at.sensitivity.value),
        "negatives_needed": images_needed(at.specificity.value),
    }


def _named(point: OperatingPoint) -> dict[str, object]:
    return {
        "name": point.name,
        "is_local": point.is_local,
        "threshold": point.threshold,
        "unsure_low": point.unsure_low,
        "unsure_high": point.unsure_high,
    }


def plain_classes(classes: Mapping[bool, Mapping[Category, Share]]) -> dict[str, dict[str, Any]]:
    """By "positive" and "negative", the share of each class: what the manifest of a pack holds too."""
    return {
        TRUTHS[truth]: {category: _plain(found) for category, found in own.items()} for truth, own in classes.items()
    }


def _maybe(estimate: Estimate | Share | None) -> dict[str, Any] | None:
    return _plain(estimate) if estimate else None


def _group(group: Group) -> dict[str, object]:
    points = [_point(at) for at in group.points]
    return {
        "by": group.by,
        "name": group.name,
        "images": group.images,
        "auc": _plain(group.area),
        "operating_points": points,
    }


def _case(case: Case) -> dict[str, object]:
    return {
        "image": case.image,
        "reference": "positive" if case.truth else "negative",
        "category": CATEGORY_TEXTS[case.category],
        "score": case.score,
    }

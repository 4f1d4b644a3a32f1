"""The files of an audit: `audit.json` for programs, `audit.pdf` for people, `thresholds.csv` and `images.csv`.

`thresholds.csv` helps to choose a threshold. `images.csv` has a line for each image, from which every figure can be
computed; the JSON file contains these lines, too. Unless a person asks for names, pseudonyms replace patients, images
and folders, because the names of images and folders are often names of patients.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from fieldray.audit.figures import PointPerformance, Subgroup, images_needed_for_interval
from fieldray.audit.report import (
    ALL_UNITS_SUBGROUP,
    THRESHOLD_PLAN_UNIT_COUNT,
    AuditReport,
    ThresholdPlan,
    ThresholdRow,
)
from fieldray.audit.units import Case, is_referred
from fieldray.domain.finding import Category
from fieldray.domain.intended_use import TRUTH_NAMES
from fieldray.domain.metrics import Share, Unit
from fieldray.paths import data_folder
from fieldray.reasons import Reason, reason
from fieldray.reports.audit import AuditText
from fieldray.reports.audit_words import rule_text
from fieldray.reports.content import CATEGORY_TEXTS, RESEARCH_ONLY_NOTICE, Value
from fieldray.reports.exporter import (
    exam_alias,
    image_alias,
    is_own_pdf,
    patient_alias,
    pseudonym,
    pseudonym_key,
)
from fieldray.reports.exporters.csv import write_rows
from fieldray.reports.outputs import is_audit_table, require_writable_folder, require_writable_output, write_output
from fieldray.translation import Translator


def audit_json(report: AuditReport, *, names_people: bool = False) -> str:
    """Return an audit report as JSON in ASCII. Raises StorageProblem.

    names_people  whether patients and files are named; if False, pseudonyms replace the names
    """
    return json.dumps(audit_json_values(report if names_people else _unnamed(report)), indent=1) + "\n"


def audit_json_values(report: AuditReport) -> dict[str, object]:
    """Return an audit report as plain values for JSON.

    A share has value, counts, and both ends of its 95 % interval.
    """
    found, subject = report.audit, report.subject
    return {
        "report": "fieldray audit",
        "notice": RESEARCH_ONLY_NOTICE,
        "made": datetime.datetime.fromtimestamp(subject.audited_s, datetime.UTC).isoformat(timespec="seconds"),
        **{name: value for name, value in asdict(subject).items() if name != "audited_s"},
        "counted": {**asdict(found.rule), "rule": rule_text(Translator(), found.rule)},
        "images": found.image_count,
        "patients": found.patient_count,
        "units": found.unit_count,
        "positives": found.positive_count,
        "assessed": found.assessed_unit_count,
        "missing": _by_truth(report.rows_without_image_by_truth),
        "auc": asdict(found.auc),
        "prevalence": found.prevalence,
        "operating_points": [_point(at) for at in found.points],
        "counts": {CATEGORY_TEXTS[name]: _by_truth(by) for name, by in found.counts_by_category_and_truth.items()},
        "not_sure": asdict(found.unsure_share),
        "refused": asdict(found.refused_share),
        "not_assessed": [
            {
                "code": one.reason.code,
                "text": one.reason.text,
                "positive": one.positive_count,
                "negative": one.negative_count,
            }
            for one in found.not_assessed
        ],
        "calibration_error": found.calibration_error,
        "calibration_error_is": AuditText(report, Translator()).calibration_row().name,
        "calibration": [asdict(part) for part in found.calibration_bins],
        "kappa": [asdict(one) for one in found.agreements],
        "roc": [list(pair) for pair in found.roc_points],
        "groups": [_group(group) for group in found.subgroups],
        "disagreements": [_case(case) for case in found.misclassified],
        "drift": [{**asdict(drift), "is_out": drift.exceeds_limit} for drift in report.drifts],
        "proposal": asdict(report.proposal),
        "plan": _plan(report),
        "compared": report.pack_comparison and asdict(report.pack_comparison),
        "notes": [{"code": note.code, "text": note.text} for note in found.notes],
        "cases": [_line(case, report) for case in found.cases],
    }


def _by_truth(counts: Mapping[bool, int]) -> dict[str, int]:
    return {TRUTH_NAMES[side]: counts[side] for side in (True, False)}


def _plan(report: AuditReport) -> dict[str, object] | None:
    """Return the threshold plan with the chosen threshold of each group; None without a plan.

    The rows of all thresholds are left out, because the CSV file has them.
    """
    if (found := report.threshold_plan) is None:
        return None
    chosen = report.proposal.threshold
    return {
        **{name: getattr(found, name) for name in ("prevalence", "units", "positives_not_assessed")},
        "not_assessed": found.units_not_assessed,
        "prices": found.prices and asdict(found.prices),
        "shown": [
            asdict(found.rows_by_subgroup[ALL_UNITS_SUBGROUP][threshold]) for threshold in found.shown_thresholds
        ],
        "groups": [
            {"group": by, "name": name, **asdict(steps[chosen])} for (by, name), steps in found.rows_by_subgroup.items()
        ],
    }


def _point(at: PointPerformance) -> dict[str, object]:
    return {
        "name": at.point.name,
        "is_local": at.point.is_local,
        "threshold": at.point.threshold,
        "unsure_low": at.point.unsure_low,
        "unsure_high": at.point.unsure_high,
        "sensitivity_of_all": asdict(at.detected_share),
        "falsely_referred_of_all": asdict(at.falsely_referred_share),
        "classes": class_shares_for_manifest(at.class_shares_by_truth),
        "sensitivity": asdict(at.sensitivity),
        "specificity": asdict(at.specificity),
        "positive_predictive_value": at.ppv and asdict(at.ppv),
        "negative_predictive_value": at.npv and asdict(at.npv),
        "positives_needed": images_needed_for_interval(at.detected_share.value),
        "negatives_needed": images_needed_for_interval(at.falsely_referred_share.value),
    }


def class_shares_for_manifest(classes: Mapping[bool, Mapping[Category, Share]]) -> dict[str, dict[str, Any]]:
    """Return the measured share of each class in the form of a pack's manifest.

    classes  the share in each class, for images with the condition (True) and without it (False)

    The result has the keys "positive" (with the condition) and "negative" (without it).
    """
    return {
        TRUTH_NAMES[truth]: {category: asdict(found) for category, found in own.items()}
        for truth, own in classes.items()
    }


def _group(group: Subgroup) -> dict[str, object]:
    points = [_point(at) for at in group.points]
    return {
        "by": group.attribute,
        "name": group.name,
        "units": group.unit_count,
        "auc": asdict(group.auc),
        "operating_points": points,
    }


def _case(case: Case) -> dict[str, object]:
    return {
        "image": case.image_key,
        "reference": TRUTH_NAMES[case.truth],
        "category": CATEGORY_TEXTS[case.category],
        "score": case.score,
    }


def _line(case: Case, report: AuditReport) -> dict[str, Value]:
    """Return the facts about one image as a row of `images.csv`.

    The value of `referred` is whether the image was referred at the first operating point, or empty without such a
    point.
    """
    points, rule = report.audit.points, report.audit.rule
    return {
        "image": case.image_key,
        "patient": case.patient_key,
        "exam": case.exam_key,
        "reference": TRUTH_NAMES[case.truth],
        "category": CATEGORY_TEXTS[case.category],
        "score": case.score,
        "referred": is_referred(case, rule.referral_score(points[0].point)) if points else None,
        "reason": case.reason.code if case.reason else "",
    }


_FIGURES: Final = "audit.json"
_DOCUMENT: Final = "audit.pdf"
_PLAN: Final = "thresholds.csv"
_IMAGES: Final = "images.csv"


def write_audit(folder: Path, report: AuditReport, *, language: str, names_people: bool = False) -> tuple[Path, ...]:
    """Write all files of an audit report into a folder. Returns the paths of the files.

    language      code of the PDF's language, such as "en"
    names_people  whether patients and files are named; if False, pseudonyms replace the names

    Raises UsageProblem, StorageProblem.
    """
    from fieldray.reports.pdf_pages import pdf_of_audit

    figures, document, plan, images = (folder / name for name in (_FIGURES, _DOCUMENT, _PLAN, _IMAGES))
    require_writable_audit_files(None, folder)  # raises before the first file is written
    report = report if names_people else _unnamed(report)
    wording = AuditText(report, Translator(language))
    write_output(document, is_own_pdf, pdf_of_audit(wording))
    write_output(figures, "json", audit_json(report, names_people=True).encode("ascii"))
    lines = [_line(case, report) | {"notice": RESEARCH_ONLY_NOTICE} for case in report.audit.cases]
    write_output(images, is_audit_table, _table(lines, wording.translator))
    if report.threshold_plan is None:
        return document, figures, images
    write_output(
        plan, is_audit_table, threshold_plan_csv(report.threshold_plan, report.audit.rule.unit, wording.translator)
    )
    return document, figures, images, plan


def threshold_plan_csv(plan: ThresholdPlan, unit: Unit, translator: Translator) -> bytes:
    """Return the threshold plan of an audit as CSV, with one row for each threshold of each subgroup.

    unit  what the audit counts (images, examinations or patients); column names contain this word
    """
    rows = [_flat(names, step, unit) for names, steps in plan.rows_by_subgroup.items() for step in steps.values()]
    return _table(rows, translator)


def _table(rows: Sequence[Mapping[str, Value]], translator: Translator) -> bytes:
    """Return rows as CSV. Semicolons separate the columns if the language has decimal commas."""
    stream = io.StringIO(newline="")
    write_rows(stream, rows[0], rows, decimal_comma=translator.with_decimal_mark(".") == ",")
    return stream.getvalue().encode("utf-8-sig", "backslashreplace")


def _flat(names: tuple[str, str], step: ThresholdRow, unit: Unit) -> dict[str, Any]:
    """Return a threshold of the plan as one row of `thresholds.csv`.

    names  name of the subgroup's kind, and name of the subgroup
    step   the figures at the threshold
    unit   what the audit counts; column names contain this word, such as `sensitivity_patients`
    """
    found: dict[str, Any] = {"group": names[0], "name": names[1]}
    for name, value in asdict(step).items():
        if isinstance(value, dict):
            titles = {"count": f"{unit}s", "of": f"of_{unit}s"}
            found |= {f"{name}_{titles.get(part, part)}": each for part, each in value.items()}
        elif name in ("ppv", "npv"):
            found |= dict.fromkeys((f"{name}_value", f"{name}_low", f"{name}_high"), "")
        elif name == "cost_per_detected":
            found[f"{name}_{unit}"] = value
        else:
            found[name if name == "threshold" else f"{name}_per_{THRESHOLD_PLAN_UNIT_COUNT}_{unit}s"] = value
    return {**found, "notice": RESEARCH_ONLY_NOTICE}


def _unnamed(report: AuditReport) -> AuditReport:
    """Return a report with pseudonyms in place of files and folders, whose names are often patients' names.

    The pseudonyms are the values of `image_id` in the run's exports. Raises StorageProblem.
    """
    key, found, subject = pseudonym_key(data_folder()), report.audit, report.subject
    alias = partial(image_alias, key=key)
    source = subject.label_source
    readers = sorted({one for pair in found.agreements for one in (pair.first, pair.second)} - {"pack", "reference"})
    names = {name: str(number) for number, name in enumerate(readers, 1)}

    def unnamed(case: Case) -> Case:
        who = case.header, case.exam_key
        patient = patient_alias(case.patient_key, key=key) if case.has_known_patient else pseudonym(*who, key=key)
        return replace(
            case, image_key=alias(case.image_key), patient_key=patient, exam_key=exam_alias(case.exam_key, key=key)
        )

    return replace(
        report,
        subject=replace(
            subject,
            paths=tuple(map(alias, subject.paths)),
            label_source=source if source in ("folders", "verdicts") else alias(source),
        ),
        audit=replace(
            found,
            cases=tuple(map(unnamed, found.cases)),
            misclassified=tuple(map(unnamed, found.misclassified)),
            agreements=tuple(
                replace(one, first=names.get(one.first, one.first), second=names.get(one.second, one.second))
                for one in found.agreements
            ),
            notes=tuple(map(_without_rows, found.notes)),
        ),
    )


def _without_rows(note: Reason) -> Reason:
    """Return a note without the table lines and patients that the note quotes."""
    hidden = {name: "…" for name, _ in note.parameters if name in ("rows", "numbers")}
    return reason(note.code, **(dict(note.parameters) | hidden))


def require_writable_audit_files(json_path: Path | None, folder: Path | None) -> None:
    """Check, before any image is screened, that the files of an audit can be written at the end.

    json_path  path of the JSON file with the figures, or None
    folder     folder for all files of the audit, or None

    Raises UsageProblem or StorageProblem if a file cannot be written.
    """
    if json_path is not None:
        require_writable_output(json_path, "json")
    if folder is not None:
        require_writable_folder(folder)
        require_writable_output(folder / _FIGURES, "json")
        require_writable_output(folder / _DOCUMENT, is_own_pdf)
        require_writable_output(folder / _PLAN, is_audit_table)
        require_writable_output(folder / _IMAGES, is_audit_table)

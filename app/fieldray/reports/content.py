"""Words and numbers for exports, printed lists, and the JSON of past runs. The exporters decide the layout.

Exports leave out patient names, Patient IDs, UIDs, and names of files and folders, unless a person asks for names. With
UIDs an archive would find the patient, and folders are often named after patients. `image_id` identifies an image in
all exports. The lines of `--json` always name the files. Reasons are in English, each with its code, so that scripts
can rely on them.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, get_args

from fieldray.domain.finding import (
    Category,
    FailedOutcome,
    Finding,
    Outcome,
    ScreenedOutcome,
    leading_finding,
    lungs_of,
    notes_of,
)
from fieldray.domain.history import MonthlyCounts, ResultBrief, ResultPair, RunComparison, RunSummary
from fieldray.domain.image import ImageRef
from fieldray.domain.lungs import LungFields
from fieldray.domain.run import Run, StoredResult, SupersededVerdict
from fieldray.formatting import HasClassNames, category_label, score_digits, threshold_digits
from fieldray.plain_text import escape_invisible_characters
from fieldray.reports.exporter import (
    PackOfStoredRun,
    ReportOptions,
    StoredRun,
    hide_names_in_reason,
    image_alias,
    uid_alias,
)
from fieldray.translation import Translator

RESEARCH_ONLY_NOTICE: Final = "Research use only. Not for diagnostic use."
CATEGORY_TEXTS: Final[Mapping[Category, str]] = {
    category: "not sure" if category == "unsure" else category.replace("_", " ") for category in get_args(Category)
}

Value = str | int | float | None


def class_texts(pack: HasClassNames | None) -> Mapping[Category, str]:
    """Return the names of the classes for a printed list: the pack's own names, and the window's names for the rest."""
    own, translator = (pack.class_names if pack else None) or {}, Translator()
    words = {category: category_label(translator, category, pack) for category in CATEGORY_TEXTS}
    return {
        category: escape_invisible_characters(word) if category in own else word.lower()
        for category, word in words.items()
    }


def image_path(ref: ImageRef) -> str:
    """Return the path of an image's file. An image in a zip file has the path `path!member`."""
    return str(ref.path) if ref.zip_member is None else f"{ref.path}!{ref.zip_member}"


def image_name(ref: ImageRef) -> str:
    """Return the SOP Instance UID of an image; without a UID, the name of its file.

    If the file has several frames, the number of the frame (from 0) is appended.
    """
    return _with_frame(ref, ref.header.sop_instance_uid or (ref.zip_member or ref.path.name).rpartition("/")[2])


def _with_frame(ref: ImageRef, name: str) -> str:
    return f"{name}#{ref.frame}" if ref.header.number_of_frames > 1 else name


def image_result_values(outcome: Outcome, *, pack: str, model_sha256: str, lungs_pack: str = "") -> dict[str, object]:
    """Return the result of one image as plain values, with the keys of `fieldray screen --json`.

    pack          name of the pack that gave the result
    model_sha256  SHA-256 of the pack's network, in hexadecimal
    lungs_pack    name of the lung-field pack; "" without one
    """
    why = None if isinstance(outcome, ScreenedOutcome) else outcome.reason
    return {
        "path": image_path(outcome.ref),
        "study": outcome.ref.study_or_image_key,
        "image": image_name(outcome.ref),
        "status": outcome.status,
        "category": CATEGORY_TEXTS[outcome.category],
        **_finding_values(leading_finding(outcome)),
        "reason": why.text if why else None,
        "reason_code": why.code if why else None,
        "stage": outcome.stage if isinstance(outcome, FailedOutcome) else None,
        "backend": outcome.backend if isinstance(outcome, ScreenedOutcome) else None,
        "pack": pack,
        "model_sha256": model_sha256,
        "lungs_pack": lungs_pack or None,
        "decode_ms": round(outcome.facts.decode_ms, 2),
        "inference_ms": round(outcome.inference_ms, 3) if isinstance(outcome, ScreenedOutcome) else None,
        "lungs": _lungs(lungs_of(outcome)),
        "notes": [{"code": note.code, "text": note.text} for note in notes_of(outcome)],
    }


def _lungs(lungs: LungFields | None) -> dict[str, object] | None:
    """Return the lung fields as plain values; None if no lung-field pack ran."""
    if lungs is None:
        return None
    inside, by = lungs.evidence_inside, lungs.unseen_measurement
    return {
        "found": lungs.has_lungs,
        "left_share": round(lungs.left_lung_area_share, 4),
        "right_share": round(lungs.right_lung_area_share, 4),
        "cut_off": list(lungs.cut_off_sides),
        "rotation_degrees": lungs.rotation_degrees,
        "is_inverted": lungs.is_inverted,
        "is_mirrored": lungs.is_mirrored,
        "unseen": list(lungs.unseen_lungs),
        "unseen_by": by and {"measure": by.measure, "value": round(by.value, 4), "against": round(by.against, 4)},
        "evidence_inside": None if inside is None else round(inside, 4),
        "inference_ms": round(lungs.latency_ms, 3),
    }


def score_for_export(finding: Finding) -> float:
    """Return the score of a finding for exports, rounded to six decimals.

    More decimals are kept if rounding would move the score to the other side of a limit. The limits are the threshold
    and the ends of the uncertain zone.
    """
    return round(finding.score, score_digits(finding.score, finding.point, min_digits=6))


def _finding_values(finding: Finding | None) -> dict[str, Value]:
    """Return a finding and its operating point as values for an export. Without a finding every value is None."""
    point = finding.point if finding else None
    return {
        "label": finding.label if finding else None,
        "score": score_for_export(finding) if finding else None,
        "operating_point": point.name if point else None,
        "threshold": point.threshold if point else None,
        "unsure_low": point.unsure_low if point else None,
        "unsure_high": point.unsure_high if point else None,
        "decision": finding.decision if finding else None,
    }


def format_printed_score(found: ResultBrief) -> str:
    """Format the score of a result for a printed list; "-" for a result without a score."""
    return "-" if found.score is None else f"{found.score:.{score_digits(found.score, found.point, min_digits=3)}f}"


def format_printed_threshold(found: ResultBrief) -> str:
    """Format the threshold of a result for a printed list: a number, "unknown" or "-".

    "unknown" means that a model without a manifest decided by an unknown threshold. "-" means that no threshold
    decided.
    """
    if found.threshold is not None:
        least = threshold_digits(found.threshold, min_digits=3)
        digits = least if found.score is None else score_digits(found.score, found.point, min_digits=least)
        return f"{found.threshold:.{digits}f}"
    return "unknown" if found.category in ("abnormal", "normal") else "-"


EXPORT_COLUMNS: Final = (
    "path",
    "study",
    "image",
    "study_date",
    "view",
    "rows",
    "columns",
    "status",
    "category",
    "label",
    "score",
    "operating_point",
    "threshold",
    "unsure_low",
    "unsure_high",
    "decision",
    "reason_code",
    "reason",
    "stage",
    "backend",
    "pack",
    "model_sha256",
    "content_sha256",
    "decode_ms",
    "inference_ms",
    "reader_verdict",
    "reader_note",
    "notice",
    "run_started",
    "lungs_pack",
    "lungs_found",
    "lungs_left_share",
    "lungs_right_share",
    "lungs_cut_off",
    "lungs_rotation_degrees",
    "evidence_inside",
    "notes",
    "patient_name",
    "patient_id",
    "image_id",
    "run_notes",
)


def export_rows_of_run(stored: StoredRun) -> Iterator[dict[str, Value]]:
    """Yield the results of a run as rows with the keys `EXPORT_COLUMNS`: one row for each finding of each image.

    An image without findings has one row. Unless a person asked for names, pseudonyms replace the patient's name and
    ID, UIDs, and names of files and folders. `image_id` is equal in all exports.
    """
    for result in stored.results:
        of, outcome, header = stored.for_result(result), result.outcome, result.outcome.ref.header
        alias = image_alias(outcome.ref.key, key=stored.pseudonym_key)
        person: dict[str, Value] = {
            "patient_name": header.patient_name or None,
            "patient_id": header.patient_id or None,
        }
        if not stored.options.names_people:
            person = dict.fromkeys(person) | _unnamed(outcome, alias, key=stored.pseudonym_key)
        more: dict[str, Value] = {"image_id": alias, "run_notes": " ".join(doubt.code for doubt in of.warnings) or None}
        findings = outcome.findings if isinstance(outcome, ScreenedOutcome) else ()
        for finding in findings or (None,):
            yield _export_row(result, finding, of) | person | more


def _unnamed(outcome: Outcome, alias: str, *, key: bytes) -> dict[str, Value]:
    """Return pseudonyms for the UIDs of an image, and for the names of its file and folder.

    alias  the pseudonym of the image
    key    the installation's `pseudonym_key`
    """
    ref, why = outcome.ref, None if isinstance(outcome, ScreenedOutcome) else outcome.reason
    header = ref.header
    return {
        "path": alias,
        "study": uid_alias(header.study_instance_uid, key=key) or alias,
        "image": _with_frame(ref, uid_alias(header.sop_instance_uid, key=key)) if header.sop_instance_uid else alias,
        "reason": hide_names_in_reason(why, ref.key, alias=alias).text if why else None,
    }


def _export_row(result: StoredResult, finding: Finding | None, stored: StoredRun) -> dict[str, Value]:
    outcome, verdict, spec = result.outcome, result.verdict, stored.pack
    fields = lungs_of(outcome)
    lungs = _lungs(fields) or {}
    made = {"pack": spec.pack_name, "model_sha256": spec.model_sha256, "lungs_pack": spec.lungs_pack}
    line = image_result_values(outcome, **made)
    values = {
        **line,
        "study_date": outcome.ref.header.study_date,
        "view": outcome.ref.header.view,
        "rows": outcome.facts.rows or None,
        "columns": outcome.facts.columns or None,
        **_finding_values(finding),
        "content_sha256": outcome.facts.content_sha256,
        "reader_verdict": verdict.choice if verdict else None,
        "reader_note": verdict.note if verdict else None,
        "notice": RESEARCH_ONLY_NOTICE,
        "run_started": start_time(stored.run),
        **{f"lungs_{name}": lungs.get(name) for name in ("found", "left_share", "right_share", "rotation_degrees")},
        "lungs_cut_off": " ".join(fields.cut_off_sides) or None if fields else None,
        "evidence_inside": lungs.get("evidence_inside"),
        "notes": " ".join(note.code for note in notes_of(outcome)) or None,
    }
    return {name: values.get(name) for name in EXPORT_COLUMNS}  # type: ignore[misc]


def run_export_facts(stored: StoredRun) -> dict[str, object]:
    """Return the facts about a run for an export, and the names of images whose results are missing.

    Times are in ISO 8601, UTC. Unless a person asked for names, a pseudonym replaces each path and image.
    """
    run, spec, pack, why = stored.run, stored.run.spec, stored.pack, stored.run.reason
    called: Callable[[str], str] = partial(image_alias, key=stored.pseudonym_key)
    if stored.options.names_people:
        called = str
    elif why:
        why = hide_names_in_reason(why, "/".join(spec.paths), alias=called("/".join(spec.paths)))
    return {
        "notice": RESEARCH_ONLY_NOTICE,
        "program": "fieldray",
        "program_version": spec.program_version,
        "run": run.run_id,
        "state": run.state,
        "reason": why.text if why else None,
        "started": start_time(run),
        "ended": _time(run.ended_s),
        "paths": [called(path) for path in spec.paths],
        "pack": pack.pack_name,
        "pack_trust": pack.trust,
        "pack_key_fingerprint": pack.fingerprint,
        "model_sha256": pack.model_sha256,
        "lungs_pack": pack.lungs_pack or None,
        "settings_hash": pack.settings_hash,
        "operating_points": [dataclasses.asdict(point) for point in pack.operating_points],
        "counts": {category: stored.counts.get(category, 0) for category in CATEGORY_TEXTS},
        "notes": [{"code": doubt.code, "text": doubt.text} for doubt in stored.warnings],
        "not_present": [called(image) for image in stored.absent_images],
        "earlier_verdicts": [
            _superseded_verdict(given) | {"image": called(given.image_key)} for given in stored.superseded_verdicts
        ],
    }


def _superseded_verdict(given: SupersededVerdict) -> dict[str, Value]:
    return {
        "content_sha256": given.content_sha256,
        "category": CATEGORY_TEXTS[given.category],
        "score": None if given.score is None else round(given.score, 6),
        "reader_verdict": given.verdict.choice,
        "reader_note": given.verdict.note,
        "given": _time(given.verdict.given_s),
    }


def start_time(run: Run) -> str:
    """Return the start time of a run, formatted for exports.

    Runs of two computers may have one number. Number and start time together identify a run.
    """
    return str(_time(run.started_s))


def _time(seconds: float | None) -> str | None:
    """Format a time, in seconds since 1970, in ISO 8601, UTC. Returns None for None."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def runs_as_json(summaries: Sequence[RunSummary]) -> str:
    """Return a list of runs, with their counts, as JSON in ASCII."""
    return _text({"report": "history", "runs": [_summary(found) for found in summaries]})


def run_comparison_as_json(comparison: RunComparison) -> str:
    """Return the image-by-image comparison of two runs as JSON in ASCII."""
    document = {
        "report": "comparison",
        "first": _run(comparison, first=True),
        "second": _run(comparison, first=False),
        "images_in_both": len(comparison.pairs),
        "changed": comparison.changed_count,
        "same_label": comparison.has_single_label,
        "moves": [
            {"from": before, "to": after, "images": number}
            for (before, after), number in comparison.counts_by_classes.items()
        ],
        "images": [_pair(pair) for pair in comparison.pairs],
        "only_first": [_brief(found) for found in comparison.only_in_first],
        "only_second": [_brief(found) for found in comparison.only_in_second],
    }
    return _text(document)


def monthly_counts_as_json(month: MonthlyCounts) -> str:
    """Return the counts of the images screened in a month as JSON in ASCII."""
    keys = "pack", "category", "why", "verdict", "images"
    found = Counter[tuple[str | None, ...]]()
    for one in month.tallies:
        code = one.reason.code if one.reason else None
        found[one.spec.pack_name, CATEGORY_TEXTS[one.category], code, one.verdict] += one.image_count
    about = {"report": "month", "notice": RESEARCH_ONLY_NOTICE, "first_day": month.first_day.isoformat()}
    images = [dict(zip(keys, (*kind, number), strict=True)) for kind, number in found.most_common()]
    return _text({**about, "images": images, "constancy": [check.text for check in month.constancy_results]})


def _summary(summary: RunSummary) -> dict[str, Any]:
    named = ReportOptions(names_people=True)
    packs = tuple(PackOfStoredRun(counts=summary.counts) for _ in summary.run.spec.packs)
    about, *others = map(
        run_export_facts, StoredRun(run=summary.run, results=(), packs=packs, options=named).split_by_pack()
    )
    for name in ("notes", "not_present", "earlier_verdicts"):
        del about[name]
    of_packs = ("pack", "pack_trust", "pack_key_fingerprint", "model_sha256", "lungs_pack", "settings_hash")
    other_packs = [{name: other[name] for name in (*of_packs, "operating_points")} for other in others]
    return {
        **about,
        **({"other_packs": other_packs} if others else {}),
        "images": summary.image_count,
        "images_not_present": summary.absent_image_count,
        "run_on": {backend: number for backend, number in summary.counts_by_backend.items() if backend},
        "verdicts": dict(summary.counts_by_verdict),
    }


def _run(comparison: RunComparison, *, first: bool) -> dict[str, Any]:
    run = comparison.first if first else comparison.second
    of, spec = comparison.compared_packs[0 if first else 1]
    pack = {"pack": spec.pack_name, "pack_trust": spec.trust, "model_sha256": spec.model_sha256}
    position = {"position": of.position} if len(run.spec.packs) > 1 else {}
    lungs = {"lungs_pack": spec.lungs_pack or None, "paths": list(run.spec.paths)}
    return {"run": of.run_id, **position, **pack, **lungs}


def _pair(pair: ResultPair) -> dict[str, Any]:
    difference = pair.score_difference
    return {
        "image": pair.first.image_name,
        "content_sha256": pair.first.content_sha256,
        "changed": pair.has_changed,
        "difference": None if difference is None else round(difference, 6),
        "first": _brief(pair.first),
        "second": _brief(pair.second),
    }


def _brief(found: ResultBrief) -> dict[str, Any]:
    return {
        "image": found.image_name,
        "category": found.category,
        "label": found.label or None,
        "score": None
        if found.score is None
        else round(found.score, score_digits(found.score, found.point, min_digits=6)),
        "threshold": found.threshold,
        "backend": found.backend or None,
        "reader_verdict": found.verdict,
    }


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"

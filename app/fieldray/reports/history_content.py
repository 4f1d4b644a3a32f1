"""Past runs and what two of them say, as objects with plain values: the JSON of `fieldray history`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fieldray.domain.history import Comparison, ResultBrief, ResultPair, RunSummary
from fieldray.formatting import score_digits
from fieldray.reports.content import about_run


def runs_text(summaries: Sequence[RunSummary]) -> str:
    """All runs of a list, as JSON in ASCII."""
    return _text({"report": "history", "runs": [_summary(found) for found in summaries]})


def comparison_text(comparison: Comparison) -> str:
    """Two runs, image by image, as JSON in ASCII."""
    document = {
        "report": "comparison",
        "first": _run(comparison, first=True),
        "second": _run(comparison, first=False),
        "images_in_both": len(comparison.pairs),
        "changed": comparison.changed,
        "same_label": comparison.is_same_label,
        "moves": [
            {"from": before, "to": after, "images": number} for (before, after), number in comparison.moves.items()
        ],
        "images": [_pair(pair) for pair in comparison.pairs],
        "only_first": [_brief(found) for found in comparison.only_first],
        "only_second": [_brief(found) for found in comparison.only_second],
    }
    return _text(document)


def _summary(summary: RunSummary) -> dict[str, Any]:
    about = about_run(summary.run, counts=summary.counts)
    for name in ("notes", "not_present", "earlier_verdicts"):
        del about[name]
    return {
        **about,
        "images": summary.total,
        "images_not_present": summary.not_present,
        "run_on": {backend: number for backend, number in summary.backends.items() if backend},
        "verdicts": dict(summary.verdicts),
    }


def _run(comparison: Comparison, *, first: bool) -> dict[str, Any]:
    run = comparison.first if first else comparison.second
    spec = run.spec
    pack = {"pack": spec.pack_name, "pack_trust": spec.trust, "model_sha256": spec.model_sha256}
    return {"run": run.run_id, **pack, "lungs_pack": spec.lungs_pack or None, "paths": list(spec.paths)}


def _pair(pair: ResultPair) -> dict[str, Any]:
    difference = pair.difference
    return {
        "image": pair.first.image,
        "content_sha256": pair.first.content_sha256,
        "changed": pair.has_changed,
        "difference": None if difference is None else round(difference, 6),
        "first": _brief(pair.first),
        "second": _brief(pair.second),
    }


def _brief(found: ResultBrief) -> dict[str, Any]:
    return {
        "image": found.image,
        "category": found.category,
        "label": found.label or None,
        "score": None if found.score is None else round(found.score, score_digits(found.score, found.point, least=6)),
        "threshold": found.threshold,
        "backend": found.backend or None,
        "reader_verdict": found.verdict,
    }


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"

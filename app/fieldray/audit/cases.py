"""What an audit looks at: each image's result beside what is known to be true of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fieldray.domain.finding import Category, Screened
from fieldray.domain.run import StoredResult, Verdict
from fieldray.domain.study import ImageHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One image with its reference label.

    image     the key of the image (`ImageRef.key`)
    row_id    of its result in the store
    patient   images with the same text are of one patient
    truth     whether the finding that is looked for is present, by the reference
    score     calibrated, 0..1; None if the image was refused or failed
    category  what the program said
    """

    image: str
    row_id: int
    patient: str
    truth: bool
    score: float | None
    category: Category
    header: ImageHeader


def label_score(result: StoredResult, label: str) -> float | None:
    """The calibrated score of one label, 0..1; None where the image has none."""
    outcome = result.outcome
    if not isinstance(outcome, Screened):
        return None
    return next((finding.score for finding in outcome.findings if finding.label == label), None)


def make_cases(
    results: Iterable[StoredResult], truths: Mapping[str, bool], *, label: str, patients: Mapping[str, str]
) -> Iterator[Case]:
    """The images that have a reference label.

    Parameters
    ----------
    results
        Of one run.
    truths
        By image key. Images without one are left out.
    label
        The label of the pack that is judged.
    patients
        By image key, where the reference names them; else the header's Patient ID, else the study, else the image.
    """
    for result in results:
        ref = result.outcome.ref
        if ref.key in truths:
            yield Case(
                image=ref.key,
                row_id=result.row_id,
                patient=patients.get(ref.key) or ref.header.patient_id or ref.study_key,
                truth=truths[ref.key],
                score=label_score(result, label),
                category=result.outcome.category,
                header=ref.header,
            )


def verdict_truths(results: Iterable[StoredResult]) -> dict[str, bool]:
    """Reference labels from a reader's verdicts: `agree` confirms the program's answer, `disagree` turns it round.

    Only an answer can be confirmed: what the program was not sure of, refused or failed gives no label, nor does a
    reader who was not sure. Readers who saw the answer first lean towards it, so figures from verdicts flatter.
    """
    truths = {}
    for result in results:
        choice = result.verdict and _chosen(result.verdict)
        if choice is not None and result.outcome.category in ("abnormal", "normal"):
            truths[result.outcome.ref.key] = (result.outcome.category == "abnormal") == choice
    return truths


def _chosen(verdict: Verdict) -> bool | None:
    return {"agree": True, "disagree": False}.get(verdict.choice)

"""Warnings about a pack's results in a run as a whole, not about single images.

One warning says that the images differ from those on which the pack was measured (drift). The other warning says that
files share an identifier.
"""

from __future__ import annotations

from typing import Final

from fieldray.audit import drift
from fieldray.audit.drift import Drift
from fieldray.domain.lungs import measured_min_evidence_inside
from fieldray.domain.model import Manifest
from fieldray.domain.run import PackOfRun, Run
from fieldray.reasons import Reason, reason
from fieldray.store.work_list import HistoryQuery

_MAX_COMPARED_IMAGES: Final = 20_000  # images of each side; more images change a distribution little


def drifts_of(
    query: HistoryQuery, run: Run, pack_position: int, manifest: Manifest | None, *, label: str = ""
) -> tuple[Drift, ...]:
    """Return how far a pack's images and scores in a run differ from the pack's own images, and from earlier runs.

    pack_position  position of the pack in the run
    manifest       the manifest of the pack; None if the pack is not available
    label          the label whose scores are compared; "" for the pack's first label
    """
    label = label or (manifest.labels[0].code if manifest else "")
    limit = measured_min_evidence_inside(manifest) if manifest else None
    of_run = query.drift_samples(PackOfRun(run.run_id, pack_position), limit=_MAX_COMPARED_IMAGES)
    now = drift.drift_histograms(of_run, label, evidence_limit=limit)
    of_pack = drift.reference_histograms(manifest.metrics, label) if manifest else {}
    samples = query.earlier_drift_samples(run, pack_position, limit=_MAX_COMPARED_IMAGES)
    previous = drift.drift_histograms(samples, label, evidence_limit=limit)
    return (
        *drift.compare_histograms(now, of_pack, reference_kind="pack"),
        *drift.compare_histograms(now, previous, reference_kind="earlier"),
    )


def warnings_of_run(query: HistoryQuery, run: Run, pack_position: int, manifest: Manifest | None) -> tuple[Reason, ...]:
    """Return warnings about a pack's results in a run.

    One warning says that files share a SOP Instance UID. The other warning says that the images may show other patients
    than those for whom the pack was made.

    pack_position  position of the pack in the run
    manifest       the manifest of the pack; with None, there is no warning about other patients
    """
    shared = query.count_duplicate_instance_uids(run.run_id, pack_position=pack_position)
    notes = (reason("instances_shared", count=shared),) if shared else ()
    if manifest is None:
        return notes
    drifts = drifts_of(query, run, pack_position, manifest)
    return (*notes, *(found.summary for found in drifts if found.quantity == "evidence" and found.exceeds_limit))

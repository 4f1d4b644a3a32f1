"""An audit with all that a reader of its report must know: of what, on what, by whose labels, since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fieldray.audit.drift import Drift
from fieldray.audit.figures import Audit
from fieldray.audit.proposal import Proposal
from fieldray.domain.model import Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was audited.

    names        of the pack by language, empty where it is not at hand any more
    meaning      of the label by language, as above
    labels_from  "folders", "verdicts", or the path of the table
    made_s       when, in seconds since 1970 (UTC)
    """

    pack: str
    names: Mapping[str, str]
    trust: Trust
    fingerprint: str
    model_sha256: str
    label: str
    meaning: Mapping[str, str]
    labels_from: str
    run_id: int
    paths: tuple[str, ...]
    program_version: str
    made_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Everything that is written down. `proposal`: a local operating point that could be taken."""

    subject: Subject
    audit: Audit
    drifts: tuple[Drift, ...]
    proposal: Proposal

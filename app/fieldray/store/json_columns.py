"""What a reference says as JSON: whatever else stands there is damage, whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass

from fieldray.domain.study import FileKind, ImageHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """Where an image is, and what its header says."""

    path: str
    member: str | None
    frame: int
    kind: FileKind
    header: ImageHeader
    problem: str | None
    problem_is_refusal: bool

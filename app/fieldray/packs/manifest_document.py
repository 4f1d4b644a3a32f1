"""The parts of a pack's description: the manifest, and the files it lists by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from fieldray.domain.model import Manifest
from fieldray.errors import PackProblem
from fieldray.reasons import reason

Role = Literal["cpu", "edgetpu", "card", "gate_mean", "gate_projection", "golden_inputs", "golden_scores"]
_MEGABYTE: Final = 2**20
ROLE_LIMITS: Final[Mapping[Role, int]] = {
    "cpu": 256 * _MEGABYTE,
    "edgetpu": 256 * _MEGABYTE,
    "card": 1 * _MEGABYTE,
    "gate_mean": 1 * _MEGABYTE,
    "gate_projection": 32 * _MEGABYTE,
    "golden_inputs": 64 * _MEGABYTE,
    "golden_scores": 1 * _MEGABYTE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFile:
    """One file of a pack as its description lists it; `sha256` in lower-case hexadecimal."""

    name: str
    role: Role
    size_bytes: int
    sha256: str


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ManifestDocument:
    """A parsed manifest.

    manifest           complete but for the gate, whose arrays are in files
    ood_gate_limit         largest distance accepted, None for a pack without a refusal gate
    golden_tolerance   largest score difference accepted, None for a pack without golden vectors
    """

    manifest: Manifest
    files: tuple[PackFile, ...]
    ood_gate_limit: float | None
    golden_tolerance: float | None

    def file(self, role: Role) -> PackFile | None:
        """The file of a role, None where there is none."""
        return next((file for file in self.files if file.role == role), None)


def check_size(name: str, role: Role, size_bytes: int) -> None:
    """Raises PackProblem("pack_too_large") when a file is larger than its role allows."""
    limit = ROLE_LIMITS[role]
    if size_bytes > limit:
        sizes = {"size_mb": f"{size_bytes / _MEGABYTE:.1f}", "limit_mb": limit // _MEGABYTE}
        raise PackProblem(reason("pack_too_large", name=name, **sizes))

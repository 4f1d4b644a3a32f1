"""A pack seen in a listing, and which of several a name means.

A name is an id or `id-version`, and may end with the signer: `chest@3475-0f98-...`. Without one it is the pack that
ships with the program, whoever else calls a pack so, and where none ships, the one there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fieldray.domain.model import Manifest, PackKind
from fieldray.errors import PackProblem
from fieldray.packs.naming import pinned, split_name, version_key
from fieldray.reasons import Reason, reason

Origin = Literal["builtin", "installed", "drive"]
CandidateTrust = Literal["builtin", "trusted", "unknown_key", "legacy", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCandidate:
    """A pack seen in a listing. Its signature was checked, its files were not: what it says is its own claim.

    trust     "broken": it cannot be read, or its signature is wrong; `pack_id`, `version`, `names` are then empty
    kind      only a classifier screens images; the others help one
    manifest  what a classifier says of itself, None for others
    problem   why `load(folder)` would refuse it as things stand (also an unknown key, an older version, another kind,
              another signer's name, or a pack missing that it requires), or None
    is_namesake  whether a pack of this id ships with the program, and this is not it
    """

    folder: Path
    origin: Origin
    trust: CandidateTrust
    kind: PackKind = "classifier"
    pack_id: str = ""
    version: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    manifest: Manifest | None = field(default=None, compare=False)  # the fingerprint and the version say which
    problem: Reason | None = None
    is_namesake: bool = False

    @property
    def pack_name(self) -> str:
        """`id-version`, the folder's name for a broken pack."""
        return f"{self.pack_id}-{self.version}" if self.pack_id else self.folder.name

    @property
    def lasting_name(self) -> str:
        """The id with the signer, by which this pack and its later versions are meant and no others."""
        return pinned(self.pack_id, is_signed=self.trust != "builtin", fingerprint=self.fingerprint)

    def is_called(self, name: str) -> bool:
        """Whether it bears this name; `meant` says whether it is the one that a person means by it."""
        bare, signer = split_name(name)
        return bare in (self.pack_id, self.pack_name) and signer in ("", self.fingerprint)

    @property
    def hindrance(self) -> int:
        """What stands between it and its use: 0 nothing, 1 a person's yes, 2 a yes to an unsigned one, 3 all."""
        if not self.can_screen:
            return 3
        return 2 if self.trust == "legacy" else int(self.problem is not None)

    @property
    def can_screen(self) -> bool:
        """Whether it is a classifier that can be read; a yes may be missing to it, or another pack."""
        return self.trust != "broken" and self.kind == "classifier"


def meant(name: str, found: Iterable[PackCandidate]) -> tuple[PackCandidate, ...]:
    """Those of some packs that a person means by a name."""
    _, signer = split_name(name)
    called = (candidate for candidate in found if candidate.is_called(name))
    return tuple(candidate for candidate in called if signer or not candidate.is_namesake)


def choose(found: Sequence[PackCandidate], *, name: Path | str) -> PackCandidate:
    """The one pack meant by a path or name: of those that would load, else of those a yes is missing to, else of all.

    Of several versions of one pack the highest. Raises PackProblem: pack_not_found, pack_several.
    """
    if not found:
        raise PackProblem(reason("pack_not_found", name=name))
    least = min(candidate.hindrance for candidate in found)
    packs = [candidate for candidate in found if candidate.hindrance == least]
    if len({candidate.pack_id for candidate in packs}) > 1:
        raise PackProblem(reason("pack_several", names=", ".join(candidate.pack_name for candidate in packs)))
    if len({candidate.lasting_name for candidate in packs}) > 1:
        first, second = packs[0], next(one for one in packs if one.lasting_name != packs[0].lasting_name)
        raise PackProblem(reason("pack_several_signers", first=first.lasting_name, second=second.lasting_name))
    return max(packs, key=preference)


def preference(candidate: PackCandidate) -> tuple[bool, tuple[int, ...]]:
    """What candidates of one pack are ordered by: one that would load and is of a higher version is preferred."""
    return candidate.problem is None, version_key(candidate.version) if candidate.version else ()

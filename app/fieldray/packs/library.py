"""The packs within reach: on drives, installed for this user, shipped with the program; and the only way to one.

`load` is the gate: a pack is read whole into memory and checked, then its key must be trusted, then it must not be
older than what ran here before. Packs of the program's own folder are trusted by a hash built in and need no store.
What a model's backend answers is known later, so whoever runs it says by `record_run` that it passed its self-test:
a pack that cannot be run leaves no trace, and shuts no older one out.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from fieldray import paths
from fieldray.domain.model import Manifest, Model, PackKind, Requirement, Trust
from fieldray.errors import PackNotTrusted, PackProblem, StorageProblem
from fieldray.packs import builtin
from fieldray.packs.legacy import MANIFEST as LEGACY_MANIFEST
from fieldray.packs.legacy import load_legacy, require_legacy
from fieldray.packs.manifest import domain_manifest, kind_of
from fieldray.packs.manifest_types import AnyManifest, ClassifierManifest
from fieldray.packs.naming import MANIFEST_NAME, SIGNATURE_NAME, is_legacy, is_pack, pack_folders, packs_in, version_key
from fieldray.packs.reading import guarded
from fieldray.packs.site_points import SitePoints
from fieldray.packs.trust import TrustedKey, TrustStore
from fieldray.packs.verified import (
    VerifiedManifest,
    VerifiedPack,
    not_classifier,
    read_card,
    read_files,
    read_verified_manifest,
)
from fieldray.packs.write import write_folder
from fieldray.persistence import clear_abandoned
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

Origin = Literal["builtin", "installed", "drive"]
CandidateTrust = Literal["builtin", "trusted", "unknown_key", "legacy", "broken"]
_LUNGS: Final[PackKind] = "lung-fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCandidate:
    """A pack seen in a listing. Its signature was checked, its files were not: what it says is its own claim.

    trust     "broken": it cannot be read, or its signature is wrong; `pack_id`, `version`, `names` are then empty
    kind      only a classifier screens images; the others help one
    manifest  what a classifier says of itself, None for others
    problem   why `load(folder)` would refuse it as things stand (also an unknown key, an older version, another kind,
              or a pack missing that it requires), or None
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

    @property
    def pack_name(self) -> str:
        """`id-version`, the folder's name for a broken pack."""
        return f"{self.pack_id}-{self.version}" if self.pack_id else self.folder.name

    def is_called(self, name: str) -> bool:
        """Whether a person means it by this `id` or `id-version`."""
        return name in (self.pack_id, self.pack_name)

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


class PackLibrary:
    """The packs of one user. `home` is the user's data folder. May be used by several threads."""

    def __init__(
        self,
        home: Path,
        *,
        builtin_root: Path | None = None,
        builtin_table: Mapping[str, str] = builtin.TABLE,
        builtin_lungs: str = "",
    ) -> None:
        """Without `builtin_root` the packs are those of this program, `builtin_lungs` among them."""
        self._installed_root = home / "packs"
        self._builtin_lungs = builtin_lungs if builtin_root else builtin.LUNGS
        self._builtin_root = builtin_root or paths.builtin_packs()
        self._builtin_table = builtin_table
        self._store = TrustStore(home)
        self.site_points = SitePoints(home)

    # ---- looking

    def candidates(self, folder: Path) -> tuple[PackCandidate, ...]:
        """The packs of a folder or drive (see `naming.pack_folders`); cheap. Raises PackProblem (drive_gone, ...)."""
        return self._listed(folder, "drive", pack_folders)

    def builtin(self) -> tuple[PackCandidate, ...]:
        """The packs shipped with the program."""
        return self._of_root(self._builtin_root, "builtin")

    def installed(self) -> tuple[PackCandidate, ...]:
        """The packs copied to this machine by `install`."""
        return self._of_root(self._installed_root, "installed")

    def available(self, drives: Iterable[Path] = ()) -> tuple[PackCandidate, ...]:
        """Every pack within reach, those of the drives first, then installed, then shipped ones."""
        on_drives = itertools.chain.from_iterable(map(self.on_drive, drives))
        return (*on_drives, *self.installed(), *self.builtin())

    def on_drive(self, drive: Path) -> tuple[PackCandidate, ...]:
        """As `candidates`, but none where the drive is going: the others stay."""
        try:
            return self.candidates(drive)
        except PackProblem:
            return ()

    def find(self, name_or_path: str | Path, *, drives: Iterable[Path] = (), without: Collection[Path] = ()) -> Path:
        """The folder of a pack given as a folder (itself, a drive, or one that holds it), `id-version`, or `id`.

        The name of a pack that is kept here is that pack, even where a folder beside the images is called so: such a
        folder is `./name`. Of several packs those that would load come first, and of several versions of one pack the
        highest. Folders of `without` are not looked at.

        Raises PackProblem: pack_not_found, pack_no_manifest, pack_several.
        """
        path, name = Path(name_or_path), str(name_or_path)
        if path.is_dir() and not self._keeps(name):
            matches = self._listed(path, "drive", _packs_near)
        else:
            matches = tuple(found for found in self.available(drives) if found.is_called(name))
        if name and path.is_dir() and not matches:
            raise PackProblem(reason("pack_no_manifest", path=path, name=MANIFEST_NAME))
        return choose([found for found in matches if found.folder not in without], name=name_or_path).folder

    # ---- loading
    card = staticmethod(read_card)

    def load(self, folder: Path, *, allow_older: bool = False, allow_legacy: bool = False) -> Model:
        """The verified model in memory; nothing of it is read from the folder any more.

        With the operating points that this site chose for this model; where these cannot be read, it has its own
        alone, and `site_problem` says why.

        Raises PackNotTrusted when only the yes to its key is missing, PackProblem, and StorageProblem when the
        records of trust cannot be read or written.
        """
        if _is_legacy(folder):
            require_legacy(folder)
            if not allow_legacy:
                raise PackProblem(reason("pack_legacy"))
            return replace(load_legacy(folder), lungs=self.shipped_lungs())
        pack, trust = self._admitted(folder, allow_older=allow_older)
        model = pack.model(trust)
        companions = [self._companion(folder, requirement) for requirement in model.manifest.requires]
        required = next((found for found in companions if found), None)
        return self.site_points.added_to(replace(model, lungs=required or self.shipped_lungs()))

    def load_matcher(self) -> Model | None:
        """The newest matcher that is installed or ships with the program and may be used; None where there is none.

        Raises PackProblem where there are some and none of them can be used, StorageProblem.
        """
        requirement = Requirement(kind="matcher")
        try:
            found = self._companions(self._installed_root / requirement.kind, requirement)
        except PackProblem:
            return None
        problem: PackProblem | None = None
        for folder in found:
            try:
                pack, trust = self._admitted(folder, allow_older=False)
            except PackProblem as error:
                problem = problem or error
            else:
                return pack.matcher(trust)
        assert problem is not None  # `_companions` is never empty
        raise _unusable(requirement.kind, problem) from problem

    def site_problem(self) -> Reason | None:
        """Why the operating points that this site chose cannot be used now, None if they can."""
        return self.site_points.problem()

    def install(self, folder: Path, *, allow_older: bool = False) -> Path:
        """Verify a pack and copy it to this machine; returns its folder. Raises as `load` does."""
        pack, _ = self._admitted(folder, allow_older=allow_older)
        sealed = pack.sealed
        own = {MANIFEST_NAME: sealed.manifest_bytes, SIGNATURE_NAME: sealed.signature}
        clear_abandoned(self._installed_root)
        return write_folder(self._installed_root / sealed.pack_name, contents={**pack.contents, **own})

    # ---- trusting

    def record_run(self, model: Model) -> None:
        """The model ran here and passed its self-test: from now on an older version is asked about.

        Raises StorageProblem when that cannot be kept, and the model is then not to be used.
        """
        if model.trust == "signed":
            pack_id, version = model.manifest.pack_id, model.manifest.version
            self._store.record(model.fingerprint, pack_id=pack_id, version=version)

    def trust(self, fingerprint: str) -> None:
        """Trust a key from now on, in any way of writing it. Raises UsageProblem, StorageProblem."""
        self._store.trust(fingerprint)

    def forget(self, fingerprint: str) -> None:
        """Trust a key no longer. Raises UsageProblem, StorageProblem."""
        self._store.forget(fingerprint)

    def trusted(self) -> tuple[TrustedKey, ...]:
        """The trusted keys. Raises StorageProblem."""
        return self._store.trusted()

    # ---- inside

    def _keeps(self, name: str) -> bool:
        return any(found.is_called(name) for found in (*self.installed(), *self.builtin()))

    def _admitted(self, folder: Path, *, allow_older: bool) -> tuple[VerifiedPack, Trust]:
        sealed = read_verified_manifest(folder)
        pack = read_files(folder, sealed)
        return pack, self._admit(folder, sealed, allow_older=allow_older)

    def _admit(self, folder: Path, sealed: VerifiedManifest, *, allow_older: bool) -> Trust:
        """Whether a pack with a right signature may be used here: whose it is, and whether it is older."""
        if self._is_builtin(folder, sealed):
            return "builtin"
        if not self._store.is_trusted(sealed.fingerprint):
            raise PackNotTrusted(sealed.fingerprint)
        description = sealed.description
        seen = self._store.highest_seen(sealed.fingerprint, pack_id=description.id)
        if seen and not allow_older and version_key(description.version) < version_key(seen):
            raise PackProblem(reason("pack_older", version=description.version, seen=seen))
        return "signed"

    def _is_builtin(self, folder: Path, sealed: VerifiedManifest) -> bool:
        """By its path and by its content: a copy of a shipped pack on a drive is trusted by its key like any other."""
        path = folder.resolve()
        is_inside = path.parent == self._builtin_root.resolve()
        return is_inside and self._builtin_table.get(path.name) == sealed.manifest_sha256

    def _listed(
        self, folder: Path, origin: Origin, look: Callable[[Path], tuple[Path, ...]]
    ) -> tuple[PackCandidate, ...]:
        return tuple(self._candidate(path, origin) for path in guarded(look)(folder))

    def _of_root(self, root: Path, origin: Origin) -> tuple[PackCandidate, ...]:
        """The highest version first: that is the one used where none is asked for."""
        found = self._listed(root, origin, packs_in) if root.is_dir() else ()
        return tuple(sorted(found, key=_preference, reverse=True))

    def _candidate(self, folder: Path, origin: Origin) -> PackCandidate:
        """One pack, whatever it is made of: a broken one never hides the others."""
        try:
            return guarded(self._described)(folder, origin)
        except PackProblem as problem:
            log.warning("a pack is broken: %a (%s)", str(folder), problem.reason.text)
            return PackCandidate(folder=folder, origin=origin, trust="broken", problem=problem.reason)

    def _described(self, folder: Path, origin: Origin) -> PackCandidate:
        if _is_legacy(folder):
            require_legacy(folder)
            return _legacy_candidate(folder, origin)
        sealed = read_verified_manifest(folder)
        trust, unavailable_reason = self._standing(folder, sealed)
        description = sealed.description
        return PackCandidate(
            folder=folder,
            origin=origin,
            trust=trust,
            kind=kind_of(description),
            pack_id=description.id,
            version=description.version,
            names=description.names,
            fingerprint=sealed.fingerprint,
            manifest=domain_manifest(description) if isinstance(description, ClassifierManifest) else None,
            problem=unavailable_reason,
        )

    def _standing(self, folder: Path, sealed: VerifiedManifest) -> tuple[CandidateTrust, Reason | None]:
        try:
            trust = self._admit(folder, sealed, allow_older=False)
        except (PackNotTrusted, StorageProblem) as problem:
            return "unknown_key", problem.reason
        except PackProblem as problem:
            return "trusted", problem.reason
        return ("builtin" if trust == "builtin" else "trusted"), self._cannot_screen(folder, sealed.description)

    def _cannot_screen(self, folder: Path, description: AnyManifest) -> Reason | None:
        """Why an admitted pack does not run: it is no classifier, or a pack that it requires is not at hand."""
        try:
            if not isinstance(description, ClassifierManifest):
                raise not_classifier(description)
            requires = domain_manifest(description).requires
            for requirement in requires:
                self._companions(folder, requirement)
            if not any(requirement.kind == _LUNGS for requirement in requires):
                self._sealed_lungs()
        except PackProblem as problem:
            return problem.reason
        return None

    # ---- companions

    def _companion(self, folder: Path, requirement: Requirement) -> Model | None:
        """The newest companion that is whole and may be used here; None for one that no image is run on.

        Raises PackProblem.
        """
        problem: PackProblem | None = None
        for companion in self._companions(folder, requirement):
            try:
                pack, trust = self._admitted(companion, allow_older=False)
            except PackProblem as error:
                problem = problem or error
            else:
                return pack.companion(trust)
        assert problem is not None  # `_companions` is never empty
        raise _unusable(wanted(requirement), problem) from problem

    def shipped_lungs(self) -> Model | None:
        """The lung-field pack that ships with the program, for classifiers that require none.

        Raises PackProblem where it is damaged or gone: its checks would be missed without a word.
        """
        found = self._sealed_lungs()
        if found is None:
            return None
        folder, sealed = found
        try:
            return read_files(folder, sealed).companion("builtin")
        except PackProblem as problem:
            raise _unusable(_LUNGS, problem) from problem

    def _sealed_lungs(self) -> tuple[Path, VerifiedManifest] | None:
        """The folder and the manifest of the same, None where none ships. Raises PackProblem."""
        if not self._builtin_lungs:
            return None
        folder = self._builtin_root / self._builtin_lungs
        if not folder.is_dir():
            raise PackProblem(reason("pack_companion_missing", companion=_LUNGS))
        try:
            sealed = read_verified_manifest(folder)
            if not self._is_builtin(folder, sealed):
                raise PackProblem(reason("pack_tampered", name=MANIFEST_NAME))
        except PackProblem as problem:
            raise _unusable(_LUNGS, problem) from problem
        return folder, sealed

    def _companions(self, folder: Path, requirement: Requirement) -> Sequence[Path]:
        """The packs that a requirement means, beside the pack or kept here, the newest first; none is read whole.

        Raises PackProblem: pack_companion_missing, pack_companion_older.
        """
        roots = dict.fromkeys((folder.parent, self._installed_root, self._builtin_root))
        folders = [path for root in roots if root.is_dir() for path in guarded(packs_in)(root)]
        found = {path: sealed.description for path in folders if (sealed := _sealed(path))}
        fitting = {path: entry for path, entry in found.items() if _is_meant(entry, requirement)}
        newest = sorted(fitting, key=lambda path: version_key(fitting[path].version), reverse=True)
        if not newest:
            raise PackProblem(reason("pack_companion_missing", companion=wanted(requirement)))
        least = version_key(requirement.minimum_version or "0.0.0")
        new = [path for path in newest if version_key(fitting[path].version) >= least]
        if not new:
            seen = fitting[newest[0]].version
            raise PackProblem(reason("pack_companion_older", companion=wanted(requirement), seen=seen))
        return new


def _unusable(companion: str, problem: PackProblem) -> PackProblem:
    return PackProblem(reason("pack_companion_unusable", companion=companion, detail=problem.reason.text))


def wanted(requirement: Requirement) -> str:
    """A requirement in words that need no translation: `lung-fields`, `lung-fields (unet) 1.2.0+`."""
    name = f" ({requirement.id})" if requirement.id else ""
    return f"{requirement.kind}{name}" + (f" {requirement.minimum_version}+" if requirement.minimum_version else "")


def _is_meant(description: AnyManifest, requirement: Requirement) -> bool:
    return kind_of(description) == requirement.kind and requirement.id in (None, description.id)


def _sealed(folder: Path) -> VerifiedManifest | None:
    """None for a neighbour that is broken: it hides no other."""
    try:
        return read_verified_manifest(folder)
    except PackProblem:
        return None


@guarded
def _is_legacy(folder: Path) -> bool:
    return is_legacy(folder) and not is_pack(folder)


def _packs_near(folder: Path) -> tuple[Path, ...]:
    return pack_folders(folder) or packs_in(folder)


def _legacy_candidate(folder: Path, origin: Origin) -> PackCandidate:
    return PackCandidate(
        folder=folder,
        origin=origin,
        trust="legacy",
        pack_id=LEGACY_MANIFEST.pack_id,
        version=LEGACY_MANIFEST.version,
        names=LEGACY_MANIFEST.names,
        manifest=LEGACY_MANIFEST,
        problem=reason("pack_legacy"),
    )


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
    return max(packs, key=_preference)


def _preference(candidate: PackCandidate) -> tuple[bool, tuple[int, ...]]:
    return candidate.problem is None, version_key(candidate.version) if candidate.version else ()

"""The packs within reach: on drives, installed for this user, shipped with the program; and the only way to one.

`load` is the gate: a pack is read whole into memory and checked, then its key must be trusted, then it must not be
older than what ran here before. Packs of the program's own folder are trusted by a hash built in and need no store.
The key that signed them is trusted without a question, wherever a pack with its signature lies.
What a model's backend answers is known later, so whoever runs it says by `record_run` that it passed its self-test:
a pack that cannot be run leaves no trace, and shuts no older one out.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fieldray import paths
from fieldray.domain.model import Model, PackKind, Requirement, Trust
from fieldray.errors import PackNotTrusted, PackProblem, StorageProblem
from fieldray.packs.manifest import ClassifierManifest, domain_manifest, kind_of
from fieldray.packs.naming import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    CandidateTrust,
    Origin,
    PackCandidate,
    choose,
    is_legacy,
    is_pack,
    meant,
    pack_folders,
    packs_in,
    preference,
    version_key,
)
from fieldray.packs.reading import guarded
from fieldray.packs.signing import BUILTIN, BUILTIN_LUNGS, TrustStore
from fieldray.packs.site_choices import SitePoints
from fieldray.packs.verified import MANIFEST as LEGACY_MANIFEST
from fieldray.packs.verified import (
    VerifiedManifest,
    VerifiedPack,
    load_legacy,
    read_card,
    read_pack,
    read_verified_manifest,
    require_classifier,
    require_legacy,
    write_folder,
)
from fieldray.persistence import clear_abandoned
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

_LUNGS: Final[PackKind] = "lung-fields"


class PackLibrary:
    """The packs of one user. `home` is the user's data folder. May be used by several threads.

    drives       finds where drives are mounted; they are looked at anew by each `available` and `find`
    keys         which signers are trusted
    site_points  the operating points that this site chose
    """

    def __init__(
        self,
        home: Path,
        *,
        drives: Callable[[], Iterable[Path]] = tuple,
        builtin_root: Path | None = None,
        builtin_table: Mapping[str, str] = BUILTIN,
        builtin_lungs: str = "",
    ) -> None:
        """Without `builtin_root` the shipped packs are those of this program, `builtin_lungs` among them."""
        self._drives = drives
        self._installed_root = home / "packs"
        self._builtin_lungs = builtin_lungs if builtin_root else BUILTIN_LUNGS
        self._builtin_root = builtin_root or paths.builtin_packs()
        self._builtin_table = builtin_table
        self._builtin_ids = {name.rpartition("-")[0] for name in builtin_table}
        self.keys = TrustStore(home)
        self.site_points = SitePoints(home)

    # ---- looking

    def candidates(self, folder: Path) -> tuple[PackCandidate, ...]:
        """List the packs of a folder or drive (`naming.pack_folders`). Cheap. Raises PackProblem (drive_gone, ...)."""
        return self._listed(folder, "drive", pack_folders)

    def builtin(self) -> tuple[PackCandidate, ...]:
        """The packs shipped with the program."""
        return self._of_root(self._builtin_root, "builtin")

    def installed(self) -> tuple[PackCandidate, ...]:
        """The packs copied to this machine by `install`."""
        return self._of_root(self._installed_root, "installed")

    def available(self, drives: Iterable[Path] | None = None) -> tuple[PackCandidate, ...]:
        """Return every pack on this computer: those of the drives first, then installed, then shipped ones."""
        on_drives = list[PackCandidate]()
        for drive in self._drives() if drives is None else drives:
            with contextlib.suppress(PackProblem):  # one that is going: the others stay
                on_drives += self.candidates(drive)
        return (*on_drives, *self.installed(), *self.builtin())

    def find(self, name_or_path: str | Path, *, without: Mapping[Path, Reason] = MappingProxyType({})) -> PackCandidate:
        """Find a pack given as a folder (the pack, a drive, or a folder of packs), `id-version`, or `id`.

        A name of an installed or shipped pack means that pack, even if a folder next to the images has that name; write
        such a folder as `./name`. Loadable packs are preferred, then the highest version. Folders in `without` are
        skipped; if they hold the only matches, the first of their reasons is raised.

        Raises PackProblem: pack_not_found, pack_is_file, pack_no_manifest, pack_several, pack_several_signers, and
        pack_namesake_shipped if only another signer's pack has the name of a shipped one.
        """
        path, name = Path(name_or_path), str(name_or_path)
        if path.is_dir() and not any(found.is_called(name) for found in (*self.installed(), *self.builtin())):
            matches = self._listed(path, "drive", lambda folder: pack_folders(folder) or packs_in(folder))
        else:
            called = [found for found in self.available() if found.is_called(name)]
            matches = meant(name, called)
            if called and not matches:
                raise _namesake(called[0].pack_id, called[0].fingerprint)
        if path.is_file() and not matches:
            raise PackProblem(reason("pack_is_file", path=path, name=MANIFEST_NAME))
        if name and path.is_dir() and not matches:
            raise PackProblem(reason("pack_no_manifest", path=path, name=MANIFEST_NAME))
        left = [found for found in matches if found.folder not in without]
        if without and not left:
            raise PackProblem(next(iter(without.values())))
        return choose(left, name=name_or_path)

    # ---- loading

    def trusts(self, fingerprint: str) -> bool:
        """Return whether a person trusts this key, or it signed a shipped pack. Raises StorageProblem."""
        return self.keys.is_trusted(fingerprint) or any(fingerprint == signer for signer, *_ in self._shipped)

    card = staticmethod(read_card)

    def load(self, folder: Path, *, allow_older: bool = False, allow_legacy: bool = False, signer: str = "") -> Model:
        """Verify a pack and load its model into memory. The folder is not read again.

        The model has this site's local operating points. If these cannot be read, it has only those of the pack, and
        `site_points.problem` is the reason.

        signer  fingerprint of a key named by a person: a pack of this key may have the name of another signer's pack

        Raises PackNotTrusted if a person has only to trust its key, PackProblem (pack_namesake, ...), and
        StorageProblem when the records of trust cannot be read or written.
        """
        if _is_legacy(folder):
            require_legacy(folder)
            if not allow_legacy:
                raise PackProblem(reason("pack_legacy"))
            return replace(load_legacy(folder), lungs=self.shipped_lungs())
        pack, trust = self._admitted(folder, allow_older=allow_older)
        self._require_own_name(pack.manifest, trust, named=signer)
        require_classifier(pack.manifest.description)
        lungs = self._whole(*self._lung_fields(folder, pack.manifest, trust=trust))
        return self.site_points.added_to(replace(pack.model, trust=trust, lungs=lungs))

    def install(self, folder: Path, *, allow_older: bool = False, signer: str = "") -> Path:
        """Verify a pack and copy it to this machine; returns its folder. Raises as `load` does."""
        pack, trust = self._admitted(folder, allow_older=allow_older)
        manifest = pack.manifest
        self._require_own_name(manifest, trust, named=signer)
        own = {MANIFEST_NAME: manifest.manifest_bytes, SIGNATURE_NAME: manifest.signature}
        clear_abandoned(self._installed_root)
        return write_folder(self._installed_root / manifest.pack_name, contents={**pack.contents, **own})

    def record_run(self, model: Model) -> None:
        """Record that a model and its lung-field pack passed their self-tests: older versions then need a confirmation.

        Raises StorageProblem if the record cannot be written. The model must then not be used.
        """
        for one in _signed(model):
            pack_id, version = one.manifest.pack_id, one.manifest.version
            self.keys.record(one.fingerprint, pack_id=pack_id, version=version, content=one.content_sha256)

    def doubts(self, model: Model) -> tuple[Reason, ...]:
        """Return the warnings about a model before it runs. Raises StorageProblem.

        Either the site's operating points cannot be read, or the content of this version has changed since its last run
        here.
        """
        unreadable = self.site_points.problem()
        before = [(one, self.keys.content_of(one.fingerprint, pack_name=one.pack_name)) for one in _signed(model)]
        changed = [one.pack_name for one, content in before if content not in (None, one.content_sha256)]
        return (*([unreadable] if unreadable else []), *(reason("pack_content_changed", pack=name) for name in changed))

    # ---- inside

    def _require_own_name(self, manifest: VerifiedManifest, trust: Trust, *, named: str) -> None:
        """Require that a pack does not use the id of another signer's pack that ships, ran here or is installed.

        named  the fingerprint that a person named, or ""
        Raises PackProblem (pack_namesake, pack_namesake_shipped), StorageProblem.
        """
        pack_id, own = manifest.description.id, manifest.fingerprint
        if trust == "builtin" or own == named:
            return
        folders = (
            folder for root in (self._installed_root, self._builtin_root) for folder in root.glob(f"{pack_id}-*")
        )
        here = map(_readable_manifest, folders)
        known = {found.fingerprint for found in here if found and found.description.id == pack_id}
        known |= self.keys.signers(pack_id)
        if own not in known and (known or pack_id in self._builtin_ids):
            raise _namesake(pack_id, own, ships=pack_id in self._builtin_ids)

    def _admitted(self, folder: Path, *, allow_older: bool) -> tuple[VerifiedPack, Trust]:
        pack = read_pack(folder)
        return pack, self._admit(folder, pack.manifest, allow_older=allow_older)

    def _admit(self, folder: Path, manifest: VerifiedManifest, *, allow_older: bool) -> Trust:
        """Whether a pack with a right signature may be used here: whose it is, and whether it is older."""
        if self._is_builtin(folder, manifest):
            return "builtin"
        if not self.trusts(manifest.fingerprint):
            raise PackNotTrusted(manifest.fingerprint)
        description = manifest.description
        # A shipped pack that runs leaves no record, and its key needs no question: an older copy on a drive would else
        # bring back the faults of that version unnoticed.
        ran = self.keys.highest_seen(manifest.fingerprint, pack_id=description.id)
        shipped = [version for signer, pack_id, version in self._shipped if (signer, pack_id) == _identity(manifest)]
        seen = max((*shipped, *([ran] if ran else [])), key=version_key, default=None)
        if seen and not allow_older and version_key(description.version) < version_key(seen):
            raise PackProblem(reason("pack_older", version=description.version, seen=seen))
        return "signed"

    @cached_property
    def _shipped(self) -> frozenset[tuple[str, str, str]]:
        """Return signer, id and version of each shipped pack. A pack put into the program's folder later adds none."""
        folders = (self._builtin_root / name for name in self._builtin_table)
        manifests = ((folder, _readable_manifest(folder)) for folder in folders)
        whole = (found for folder, found in manifests if found and self._is_builtin(folder, found))
        return frozenset((*_identity(found), found.description.version) for found in whole)

    def _is_builtin(self, folder: Path, manifest: VerifiedManifest) -> bool:
        """Return whether a pack is a shipped one, by its path and its content.

        A copy of a shipped pack on a drive is trusted by its key like any other pack.
        """
        path = folder.resolve()
        is_inside = path.parent == self._builtin_root.resolve()
        return is_inside and self._builtin_table.get(path.name) == manifest.manifest_sha256

    def _listed(
        self, folder: Path, origin: Origin, look: Callable[[Path], tuple[Path, ...]]
    ) -> tuple[PackCandidate, ...]:
        return tuple(self._candidate(path, origin) for path in guarded(look)(folder))

    def _of_root(self, root: Path, origin: Origin) -> tuple[PackCandidate, ...]:
        """Return the packs of a root folder, the highest version first, which is the default."""
        found = self._listed(root, origin, packs_in) if root.is_dir() else ()
        return tuple(sorted(found, key=preference, reverse=True))

    def _candidate(self, folder: Path, origin: Origin) -> PackCandidate:
        """Return one pack as a candidate; a broken pack gives a candidate too, and never hides others."""
        try:
            return guarded(self._described)(folder, origin)
        except PackProblem as problem:
            log.warning("a pack is broken: %a (%s)", str(folder), problem.reason.text)
            return PackCandidate(folder=folder, origin=origin, trust="broken", problem=problem.reason)

    def _described(self, folder: Path, origin: Origin) -> PackCandidate:
        if _is_legacy(folder):
            require_legacy(folder)
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
        manifest = read_verified_manifest(folder)
        trust, unavailable_reason = self._standing(folder, manifest)
        description = manifest.description
        return PackCandidate(
            folder=folder,
            origin=origin,
            trust=trust,
            kind=kind_of(description),
            pack_id=description.id,
            version=description.version,
            names=description.names,
            fingerprint=manifest.fingerprint,
            manifest=domain_manifest(description) if isinstance(description, ClassifierManifest) else None,
            problem=unavailable_reason,
            is_namesake=trust != "builtin" and description.id in self._builtin_ids,
        )

    def _standing(self, folder: Path, manifest: VerifiedManifest) -> tuple[CandidateTrust, Reason | None]:
        """Whether a pack is trusted, and why it does not run: it may be no classifier, or lack what it requires."""
        try:
            trust = self._admit(folder, manifest, allow_older=False)
            self._require_own_name(manifest, trust, named="")
        except (PackNotTrusted, StorageProblem) as problem:
            return "unknown_key", problem.reason
        except PackProblem as problem:
            return "trusted", problem.reason
        found: CandidateTrust = "builtin" if trust == "builtin" else "trusted"
        try:
            require_classifier(manifest.description)
            self._lung_fields(folder, manifest, trust=trust)
        except PackProblem as problem:
            return found, problem.reason
        return found, None

    # ---- companions

    def shipped_lungs(self) -> Model | None:
        """Load the shipped lung-field pack, for classifiers that require none.

        Raises PackProblem if it is damaged or missing: without it, its checks would be silently omitted.
        """
        return self._whole(_LUNGS, self._shipped_lungs())

    def _whole(self, companion: str, folders: Sequence[Path]) -> Model | None:
        """Load the first companion pack that is complete and allowed here; None without folders. Raises PackProblem."""
        problem: PackProblem | None = None
        for folder in folders:
            try:
                pack, trust = self._admitted(folder, allow_older=False)
            except PackProblem as error:
                problem = problem or error
            else:
                return replace(pack.model, trust=trust)
        if problem:
            raise _unusable(companion, problem) from problem
        return None

    def _lung_fields(self, folder: Path, classifier: VerifiedManifest, *, trust: Trust) -> tuple[str, Sequence[Path]]:
        """Return the name of a classifier's lung-field pack, and the folders where it may be; see `_companions`."""
        requires, signer = domain_manifest(classifier.description).requires, classifier.fingerprint
        found = [(wanted(each), self._companions(folder, each, trust=trust, signer=signer)) for each in requires]
        return found[0] if found else (_LUNGS, self._shipped_lungs())

    def _shipped_lungs(self) -> Sequence[Path]:
        """Return the folder of the shipped lung-field pack; empty if none ships. Raises PackProblem."""
        if not self._builtin_lungs:
            return ()
        folder = self._builtin_root / self._builtin_lungs
        if not folder.is_dir():
            raise PackProblem(reason("pack_companion_missing", companion=_LUNGS))
        try:
            if not self._is_builtin(folder, read_verified_manifest(folder)):
                raise PackProblem(reason("pack_tampered", name=MANIFEST_NAME))
        except PackProblem as problem:
            raise _unusable(_LUNGS, problem) from problem
        return (folder,)

    def _companions(self, folder: Path, requirement: Requirement, *, trust: Trust, signer: str) -> Sequence[Path]:
        """Return the folders of packs that meet a classifier's requirement, next to it or installed, the newest first.

        Packs that do not ship come first. No pack is read completely. Raises PackProblem: pack_companion_missing,
        pack_companion_older, and pack_companion_other_signer if the only match has a signer who is not allowed.
        """
        companion = wanted(requirement)
        roots = dict.fromkeys((folder.parent, self._installed_root, self._builtin_root))
        folders = [path for root in roots if root.is_dir() for path in guarded(packs_in)(root)]
        here = [(path, one) for path in folders if (one := _readable_manifest(path)) and _is_meant(one, requirement)]
        ranked = [(not self._is_builtin(*each), version_key(each[1].description.version), *each) for each in here]
        found = sorted(ranked, key=lambda each: each[:2], reverse=True)
        if not found:
            raise PackProblem(reason("pack_companion_missing", companion=companion))
        serving = [each for each in found if _serves(requirement, trust, signer, each[3].fingerprint, not each[0])]
        if not serving:
            other = found[0][3].fingerprint
            raise PackProblem(reason("pack_companion_other_signer", companion=companion, fingerprint=other))
        least = version_key(requirement.minimum_version or "0.0.0")
        new = [path for _, version, path, _ in serving if version >= least]
        if not new:
            seen = serving[0][3].description.version
            raise PackProblem(reason("pack_companion_older", companion=companion, seen=seen))
        return new


def _signed(model: Model) -> list[Model]:
    """Return a model and its lung-field pack, without those that the program's maker signed."""
    return [one for one in (model, model.lungs) if one and one.trust == "signed"]


def _serves(requirement: Requirement, trust: Trust, signer: str, fingerprint: str, ships: bool) -> bool:
    """Return whether a classifier may use a companion pack with this signer.

    A shipped classifier uses only shipped companions. Any other uses the signer named in its manifest, or else its own
    signer's or a shipped companion. No third party's pack may decide about its images.
    """
    if requirement.key is not None and fingerprint != requirement.key:
        return False
    return ships or (trust != "builtin" and fingerprint == (requirement.key or signer))


def _namesake(pack_id: str, fingerprint: str, *, ships: bool = True) -> PackProblem:
    """Return the problem that a pack uses the name of another signer's pack, which ships or is known here."""
    code = "pack_namesake_shipped" if ships else "pack_namesake"
    option = f"--pack {pack_id}@{fingerprint}"
    return PackProblem(reason(code, pack=pack_id, fingerprint=fingerprint, command_option=option))


def _unusable(companion: str, problem: PackProblem) -> PackProblem:
    return PackProblem(reason("pack_companion_unusable", companion=companion, detail=problem.reason.text))


def wanted(requirement: Requirement) -> str:
    """Format a requirement in words that need no translation: `lung-fields`, `lung-fields (unet) 1.2.0+`."""
    name = f" ({requirement.id})" if requirement.id else ""
    return f"{requirement.kind}{name}" + (f" {requirement.minimum_version}+" if requirement.minimum_version else "")


def _is_meant(manifest: VerifiedManifest, requirement: Requirement) -> bool:
    description = manifest.description
    return kind_of(description) == requirement.kind and requirement.id in (None, description.id)


def _identity(manifest: VerifiedManifest) -> tuple[str, str]:
    """Return signer and id, by which a pack is known."""
    return manifest.fingerprint, manifest.description.id


def _readable_manifest(folder: Path) -> VerifiedManifest | None:
    """Read the manifest of a folder; None for a broken pack, which must not hide others."""
    try:
        return read_verified_manifest(folder)
    except PackProblem:
        return None


@guarded
def _is_legacy(folder: Path) -> bool:
    return is_legacy(folder) and not is_pack(folder)

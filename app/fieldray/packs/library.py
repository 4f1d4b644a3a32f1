"""The packs on this computer: on drives, installed for this user, or shipped with the program.

`PackLibrary.load` is the only way to load a model into memory. A pack is read whole into memory and its signature is
checked. Then its key must be trusted. Last, its version must not be older than a version that has run on this computer.

Packs in the program's own folder are trusted by a built-in hash. A key that signed a shipped pack is trusted without a
question, also for other packs and in any folder.

Only a self-test shows whether a model runs on a device. After the test, the code that runs the model calls
`record_passed_self_test`. A pack that cannot run therefore leaves no record, and an older version can still be loaded.
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
from fieldray.domain.model import Model, PackKind, PackRequirement, Trust
from fieldray.errors import PackNotTrusted, PackProblem, StorageProblem
from fieldray.packs.manifest import ClassifierManifest, domain_manifest, pack_kind_of
from fieldray.packs.naming import (
    MANIFEST_NAME,
    SIGNATURE_NAME,
    CandidateTrust,
    PackCandidate,
    PackOrigin,
    choose_candidate,
    contains_legacy_model,
    is_pack,
    pack_folders,
    pack_folders_inside,
    packs_named,
    version_key,
    version_preference_key,
)
from fieldray.packs.reading import raising_fieldray_errors
from fieldray.packs.signing import BUILTIN_LUNG_PACK, BUILTIN_PACK_HASHES, TrustStore
from fieldray.packs.site_choices import LocalPointFile
from fieldray.packs.verified import (
    LEGACY_MANIFEST,
    VerifiedManifest,
    VerifiedPack,
    load_legacy,
    read_card,
    read_pack,
    read_verified_manifest,
    require_classifier,
    require_legacy_files,
    write_pack_folder,
)
from fieldray.persistence import remove_unfinished_files
from fieldray.reasons import Reason, reason

log = logging.getLogger(__name__)

_LUNGS: Final[PackKind] = "lung-fields"


class PackLibrary:
    """The packs that one user of this computer may load. Several threads may use the library.

    trust_store  the store of trusted signing keys
    site_points  the operating points that this site chose
    """

    def __init__(
        self,
        home: Path,
        *,
        drives: Callable[[], Iterable[Path]] = tuple,
        builtin_root: Path | None = None,
        builtin_table: Mapping[str, str] = BUILTIN_PACK_HASHES,
        builtin_lungs: str = "",
    ) -> None:
        """Open the library.

        home           the user's data folder
        drives         returns the mount points of drives; called again by each `available` and `find`
        builtin_root   folder of the shipped packs; by default the folder of this program, with its lung-field pack
        builtin_table  SHA-256 of the manifest of each shipped pack, by pack name
        builtin_lungs  name of the shipped lung-field pack; only used together with `builtin_root`
        """
        self._drives = drives
        self._installed_root = home / "packs"
        self._builtin_lungs = builtin_lungs if builtin_root else BUILTIN_LUNG_PACK
        self._builtin_root = builtin_root or paths.builtin_packs_folder()
        self._builtin_table = builtin_table
        self._builtin_ids = {name.rpartition("-")[0] for name in builtin_table}
        self.trust_store = TrustStore(home)
        self.site_points = LocalPointFile(home)

    # ---- finding packs

    def candidates(self, folder: Path) -> tuple[PackCandidate, ...]:
        """List the packs of a folder or drive, as `naming.pack_folders` finds them. Only manifests are read.

        Raises PackProblem (drive_gone, pack_unreadable).
        """
        return self._listed(folder, "drive", pack_folders)

    def builtin(self) -> tuple[PackCandidate, ...]:
        """List the packs shipped with the program; of several versions of a pack, the highest comes first."""
        return self._of_root(self._builtin_root, "builtin")

    def installed(self) -> tuple[PackCandidate, ...]:
        """List the packs that `install` copied to this computer; of several versions, the highest comes first."""
        return self._of_root(self._installed_root, "installed")

    def available(self, drives: Iterable[Path] | None = None) -> tuple[PackCandidate, ...]:
        """List every pack on this computer: first the packs on drives, then installed packs, then shipped packs.

        drives  mount points to search; by default all connected drives. A drive that is being pulled out is skipped
        """
        on_drives = list[PackCandidate]()
        for drive in self._drives() if drives is None else drives:
            with contextlib.suppress(PackProblem):  # a drive that is being pulled out must not hide the others
                on_drives += self.candidates(drive)
        return (*on_drives, *self.installed(), *self.builtin())

    def find(
        self, name_or_path: str | Path, *, skipped_folders: Mapping[Path, Reason] = MappingProxyType({})
    ) -> PackCandidate:
        """Find a pack given as a folder (the pack, a drive, or a folder of packs), `id-version`, or `id`.

        The name of an installed or shipped pack means that pack, even if the current directory has a folder of that
        name. To mean the folder, write `./name`. Packs that can be loaded are preferred, then the highest version.

        skipped_folders  reason by folder, for folders to skip. If only skipped folders match, the first reason is
                         raised

        Raises PackProblem: pack_not_found, pack_is_file, pack_no_manifest, pack_several, pack_several_signers, and
        pack_namesake_shipped if only another signer's pack has the name of a shipped pack.
        """
        path, name = Path(name_or_path), str(name_or_path)
        if path.is_dir() and not any(found.has_name(name) for found in (*self.installed(), *self.builtin())):
            matches = self._listed(path, "drive", lambda folder: pack_folders(folder) or pack_folders_inside(folder))
        else:
            called = [found for found in self.available() if found.has_name(name)]
            matches = packs_named(name, called)
            if called and not matches:
                raise _namesake(called[0].pack_id, called[0].fingerprint)
        if path.is_file() and not matches:
            raise PackProblem(reason("pack_is_file", path=path, name=MANIFEST_NAME))
        if name and path.is_dir() and not matches:
            raise PackProblem(reason("pack_no_manifest", path=path, name=MANIFEST_NAME))
        left = [found for found in matches if found.folder not in skipped_folders]
        if skipped_folders and not left:
            raise PackProblem(next(iter(skipped_folders.values())))
        return choose_candidate(left, name=name_or_path)

    # ---- loading

    def trusts(self, fingerprint: str) -> bool:
        """Return whether a key is trusted, because a person trusts the key or because the key signed a shipped pack.

        Raises StorageProblem.
        """
        return self.trust_store.is_trusted(fingerprint) or any(fingerprint == signer for signer, *_ in self._shipped)

    read_card = staticmethod(read_card)

    def load(self, folder: Path, *, allow_older: bool = False, allow_legacy: bool = False, signer: str = "") -> Model:
        """Verify a pack and load its model into memory. The folder is not read again afterwards.

        This site's local operating points are added to the model. If these points cannot be read, the model has only
        the pack's own points, and `site_points.problem` returns the reason.

        allow_older   whether the pack may be older than a version that ran on this computer
        allow_legacy  whether an unsigned model of the dissertation may be loaded
        signer        fingerprint that the user named: a pack of this signer may have the name of another signer's pack

        Raises PackNotTrusted if the key is not trusted and the pack is otherwise valid. Raises PackProblem
        (pack_namesake, ...). Raises StorageProblem if the trust records cannot be read or written.
        """
        if _is_legacy(folder):
            require_legacy_files(folder)
            if not allow_legacy:
                raise PackProblem(reason("pack_legacy"))
            return replace(load_legacy(folder), lungs=self.load_shipped_lung_pack())
        pack, trust = self._admitted(folder, allow_older=allow_older)
        self._require_own_name(pack.manifest, trust, named=signer)
        require_classifier(pack.manifest.content)
        lungs = self._load_first_trusted(*self._lung_fields(folder, pack.manifest, trust=trust))
        return self.site_points.add_to_model(replace(pack.model, trust=trust, lungs=lungs))

    def install(self, folder: Path, *, allow_older: bool = False, signer: str = "") -> Path:
        """Verify a pack and copy it to this computer. Returns the new folder. Raises the exceptions of `load`."""
        pack, trust = self._admitted(folder, allow_older=allow_older)
        manifest = pack.manifest
        self._require_own_name(manifest, trust, named=signer)
        own = {MANIFEST_NAME: manifest.manifest_bytes, SIGNATURE_NAME: manifest.signature}
        remove_unfinished_files(self._installed_root)
        return write_pack_folder(self._installed_root / manifest.pack_name, contents={**pack.file_contents, **own})

    def record_passed_self_test(self, model: Model) -> None:
        """Record that a model and its lung-field pack passed their self-tests on this computer.

        After the record, loading an older version needs `allow_older`. Raises StorageProblem if the record cannot be
        written. The model must then not be used.
        """
        for one in _signed(model):
            pack_id, version = one.manifest.pack_id, one.manifest.version
            self.trust_store.record_used_version(
                one.fingerprint, pack_id=pack_id, version=version, manifest_sha256=one.content_sha256
            )

    def warnings(self, model: Model) -> tuple[Reason, ...]:
        """Return the warnings to show before a model runs.

        One warning is that the site's operating points cannot be read. The other is that this version's content has
        changed since its last run on this computer. Raises StorageProblem.
        """
        unreadable = self.site_points.problem()
        known_hash = self.trust_store.manifest_hash_of
        before = [(one, known_hash(one.fingerprint, pack_name=one.pack_name)) for one in _signed(model)]
        changed = [one.pack_name for one, content in before if content not in (None, one.content_sha256)]
        return (*([unreadable] if unreadable else []), *(reason("pack_content_changed", pack=name) for name in changed))

    # ---- names, trust and lists of packs

    def _require_own_name(self, manifest: VerifiedManifest, trust: Trust, *, named: str) -> None:
        """Raise PackProblem if a pack uses the id of a known pack of another signer.

        A pack is known if it is shipped or installed, or has run on this computer.

        named  the fingerprint that the user named, or ""

        Raises PackProblem (pack_namesake, pack_namesake_shipped), StorageProblem.
        """
        pack_id, own = manifest.content.id, manifest.fingerprint
        if trust == "builtin" or own == named:
            return
        folders = (
            folder for root in (self._installed_root, self._builtin_root) for folder in root.glob(f"{pack_id}-*")
        )
        here = map(_readable_manifest, folders)
        known = {found.fingerprint for found in here if found and found.content.id == pack_id}
        known |= self.trust_store.known_signers(pack_id)
        if own not in known and (known or pack_id in self._builtin_ids):
            raise _namesake(pack_id, own, ships=pack_id in self._builtin_ids)

    def _admitted(self, folder: Path, *, allow_older: bool) -> tuple[VerifiedPack, Trust]:
        pack = read_pack(folder)
        return pack, self._admit(folder, pack.manifest, allow_older=allow_older)

    def _admit(self, folder: Path, manifest: VerifiedManifest, *, allow_older: bool) -> Trust:
        """Return how a pack with a valid signature is trusted: "builtin" or "signed".

        Raises PackNotTrusted for an unknown key. Raises PackProblem (pack_older) for an older version, unless
        `allow_older` is True.
        """
        if self._is_builtin(folder, manifest):
            return "builtin"
        if not self.trusts(manifest.fingerprint):
            raise PackNotTrusted(manifest.fingerprint)
        description = manifest.content
        # Shipped versions count as seen, although a shipped pack leaves no record when it runs. Otherwise an older copy
        # on a drive, whose key is trusted without a question, would bring back that version's faults unnoticed.
        ran = self.trust_store.highest_version(manifest.fingerprint, pack_id=description.id)
        shipped = [version for signer, pack_id, version in self._shipped if (signer, pack_id) == _identity(manifest)]
        seen = max((*shipped, *([ran] if ran else [])), key=version_key, default=None)
        if seen and not allow_older and version_key(description.version) < version_key(seen):
            raise PackProblem(reason("pack_older", version=description.version, seen=seen))
        return "signed"

    @cached_property
    def _shipped(self) -> frozenset[tuple[str, str, str]]:
        """The (signer, id, version) of each shipped pack. A pack added to the program's folder later does not count."""
        folders = (self._builtin_root / name for name in self._builtin_table)
        manifests = ((folder, _readable_manifest(folder)) for folder in folders)
        whole = (found for folder, found in manifests if found and self._is_builtin(folder, found))
        return frozenset((*_identity(found), found.content.version) for found in whole)

    def _is_builtin(self, folder: Path, manifest: VerifiedManifest) -> bool:
        """Return whether a pack is a shipped pack, by its folder and its content.

        A copy of a shipped pack on a drive is trusted by its key like any other pack.
        """
        path = folder.resolve()
        is_inside = path.parent == self._builtin_root.resolve()
        return is_inside and self._builtin_table.get(path.name) == manifest.manifest_sha256

    def _listed(
        self, folder: Path, origin: PackOrigin, look: Callable[[Path], tuple[Path, ...]]
    ) -> tuple[PackCandidate, ...]:
        return tuple(self._candidate(path, origin) for path in raising_fieldray_errors(look)(folder))

    def _of_root(self, root: Path, origin: PackOrigin) -> tuple[PackCandidate, ...]:
        """List the packs of a root folder. The highest version, which is the default, comes first."""
        found = self._listed(root, origin, pack_folders_inside) if root.is_dir() else ()
        return tuple(sorted(found, key=version_preference_key, reverse=True))

    def _candidate(self, folder: Path, origin: PackOrigin) -> PackCandidate:
        """Describe one pack as a candidate.

        For a broken pack a candidate with a problem is returned, so that other packs are still listed.
        """
        try:
            return raising_fieldray_errors(self._described)(folder, origin)
        except PackProblem as problem:
            log.warning("a pack is broken: %a (%s)", str(folder), problem.reason.text)
            return PackCandidate(folder=folder, origin=origin, trust="broken", problem=problem.reason)

    def _described(self, folder: Path, origin: PackOrigin) -> PackCandidate:
        if _is_legacy(folder):
            require_legacy_files(folder)
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
        description = manifest.content
        return PackCandidate(
            folder=folder,
            origin=origin,
            trust=trust,
            kind=pack_kind_of(description),
            pack_id=description.id,
            version=description.version,
            names=description.names,
            fingerprint=manifest.fingerprint,
            manifest=domain_manifest(description) if isinstance(description, ClassifierManifest) else None,
            problem=unavailable_reason,
            is_namesake_of_shipped_pack=trust != "builtin" and description.id in self._builtin_ids,
        )

    def _standing(self, folder: Path, manifest: VerifiedManifest) -> tuple[CandidateTrust, Reason | None]:
        """Return how a pack is trusted, and the reason why the pack cannot run, or None.

        The reason may be an unknown key, an older version, a pack that is no classifier, or a missing required pack.
        """
        try:
            trust = self._admit(folder, manifest, allow_older=False)
            self._require_own_name(manifest, trust, named="")
        except (PackNotTrusted, StorageProblem) as problem:
            return "unknown_key", problem.reason
        except PackProblem as problem:
            return "trusted", problem.reason
        found: CandidateTrust = "builtin" if trust == "builtin" else "trusted"
        try:
            require_classifier(manifest.content)
            self._lung_fields(folder, manifest, trust=trust)
        except PackProblem as problem:
            return found, problem.reason
        return found, None

    # ---- companions

    def load_shipped_lung_pack(self) -> Model | None:
        """Load the lung-field pack that ships with the program.

        Classifiers that require no lung-field pack use it, too.

        Returns None if no lung-field pack ships. Raises PackProblem if files of the shipped pack are damaged or
        missing, because otherwise the pack's checks of an image would be omitted silently.
        """
        return self._load_first_trusted(_LUNGS, self._shipped_lung_folders())

    def _load_first_trusted(self, companion: str, folders: Sequence[Path]) -> Model | None:
        """Load the first of several companion packs that is complete and trusted; None if `folders` is empty.

        companion  the name of the required pack, for messages

        Raises PackProblem if no folder contains a complete and trusted pack.
        """
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
        """Return the name of the lung-field pack for a classifier, and the folders that may contain the pack.

        The pack is the lung-field pack that the classifier requires, or else the shipped pack. See `_companions`.
        """
        requires, signer = domain_manifest(classifier.content).requires, classifier.fingerprint
        found = [
            (requirement_text(each), self._companions(folder, each, trust=trust, signer=signer)) for each in requires
        ]
        return found[0] if found else (_LUNGS, self._shipped_lung_folders())

    def _shipped_lung_folders(self) -> Sequence[Path]:
        """Return the folder of the shipped lung-field pack; empty if no lung-field pack ships. Raises PackProblem."""
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

    def _companions(self, folder: Path, requirement: PackRequirement, *, trust: Trust, signer: str) -> Sequence[Path]:
        """Return the folders of packs that meet a classifier's requirement; the best pack comes first.

        The neighbouring folders of the classifier are searched, and the installed and shipped packs. Packs that do not
        ship come before shipped packs, then higher versions before lower versions. No pack is read completely.

        folder, trust, signer  the classifier's folder, its trust and the fingerprint of its key

        Raises PackProblem: pack_companion_missing, pack_companion_older, and pack_companion_other_signer if every match
        has a signer who is not allowed.
        """
        companion = requirement_text(requirement)
        roots = dict.fromkeys((folder.parent, self._installed_root, self._builtin_root))
        folders = [
            path for root in roots if root.is_dir() for path in raising_fieldray_errors(pack_folders_inside)(root)
        ]
        here = [(path, one) for path in folders if (one := _readable_manifest(path)) and _is_meant(one, requirement)]
        ranked = [(not self._is_builtin(*each), version_key(each[1].content.version), *each) for each in here]
        found = sorted(ranked, key=lambda each: each[:2], reverse=True)
        if not found:
            raise PackProblem(reason("pack_companion_missing", companion=companion))
        serving = [
            each for each in found if _may_use_companion(requirement, trust, signer, each[3].fingerprint, not each[0])
        ]
        if not serving:
            other = found[0][3].fingerprint
            raise PackProblem(reason("pack_companion_other_signer", companion=companion, fingerprint=other))
        least = version_key(requirement.minimum_version or "0.0.0")
        new = [path for _, version, path, _ in serving if version >= least]
        if not new:
            seen = serving[0][3].content.version
            raise PackProblem(reason("pack_companion_older", companion=companion, seen=seen))
        return new


def _signed(model: Model) -> list[Model]:
    """Return a model and its lung-field pack. Shipped and unsigned packs are left out."""
    return [one for one in (model, model.lungs) if one and one.trust == "signed"]


def _may_use_companion(requirement: PackRequirement, trust: Trust, signer: str, fingerprint: str, ships: bool) -> bool:
    """Return whether a classifier may use a companion pack signed by `fingerprint`.

    A shipped classifier uses only shipped companions. Any other classifier uses a companion of the signer that its
    manifest names. If the manifest names no signer, the classifier uses a companion of its own signer, or a shipped
    companion. No third party's pack therefore decides about the classifier's images.

    signer  fingerprint of the classifier's key
    ships   whether the companion ships with the program
    """
    if requirement.key is not None and fingerprint != requirement.key:
        return False
    return ships or (trust != "builtin" and fingerprint == (requirement.key or signer))


def _namesake(pack_id: str, fingerprint: str, *, ships: bool = True) -> PackProblem:
    """Return the exception for a pack that has the name of another signer's pack.

    ships  True: the other pack ships with the program. False: the other pack is known on this computer
    """
    code = "pack_namesake_shipped" if ships else "pack_namesake"
    option = f"--pack {pack_id}@{fingerprint}"
    return PackProblem(reason(code, pack=pack_id, fingerprint=fingerprint, command_option=option))


def _unusable(companion: str, problem: PackProblem) -> PackProblem:
    return PackProblem(reason("pack_companion_unusable", companion=companion, detail=problem.reason.text))


def requirement_text(requirement: PackRequirement) -> str:
    """Return a requirement as a short text that needs no translation: `lung-fields (unet) 1.2.0+`."""
    name = f" ({requirement.id})" if requirement.id else ""
    return f"{requirement.kind}{name}" + (f" {requirement.minimum_version}+" if requirement.minimum_version else "")


def _is_meant(manifest: VerifiedManifest, requirement: PackRequirement) -> bool:
    description = manifest.content
    return pack_kind_of(description) == requirement.kind and requirement.id in (None, description.id)


def _identity(manifest: VerifiedManifest) -> tuple[str, str]:
    """Return the fingerprint of the signer and the pack's id, which together identify a pack."""
    return manifest.fingerprint, manifest.content.id


def _readable_manifest(folder: Path) -> VerifiedManifest | None:
    """Read the manifest of a folder. The result is None for a broken pack, so that other packs are still found."""
    try:
        return read_verified_manifest(folder)
    except PackProblem:
        return None


@raising_fieldray_errors
def _is_legacy(folder: Path) -> bool:
    return contains_legacy_model(folder) and not is_pack(folder)

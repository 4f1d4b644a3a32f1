"""A pack read and checked as a whole: signature first, then the description, then every file it lists.

Everything is copied into memory once and the copy is what is checked and used, so nothing can be swapped between
the check and the use, and the drive may be pulled out afterwards. Whether the key is trusted is decided elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import UNSET

from fieldray.domain.model import GoldenVectors, Model, OodGate, Trust
from fieldray.errors import PackProblem
from fieldray.packs import signing
from fieldray.packs.document import manifest_error
from fieldray.packs.manifest import domain_manifest, kind_of, parse
from fieldray.packs.manifest_types import (
    GOLDEN_ROLES,
    OOD_GATE_ROLES,
    AnyManifest,
    ClassifierManifest,
    Input,
    LungFieldsManifest,
    MatcherManifest,
    PackFile,
    PackManifest,
)
from fieldray.packs.naming import MANIFEST_NAME, SIGNATURE_NAME
from fieldray.packs.reading import guarded, read_file, unpack_array
from fieldray.reasons import reason

_MANIFEST_LIMIT: Final = 2**17  # twenty times what one needs; every listing parses it
_SIGNATURE_LIMIT: Final = 1024
_NOT_NETWORKS: Final = frozenset({"card", *OOD_GATE_ROLES, *GOLDEN_ROLES})


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class VerifiedManifest:
    """A description whose signature is right, by the key `fingerprint`; nothing else has been read yet."""

    manifest_bytes: bytes
    signature: bytes
    fingerprint: str
    description: AnyManifest

    @property
    def pack_name(self) -> str:
        """`id-version`, as in the pack's folder."""
        return f"{self.description.id}-{self.description.version}"

    @property
    def manifest_sha256(self) -> str:
        """SHA-256 of the description's bytes, which stands for the whole pack, in hexadecimal."""
        return hashlib.sha256(self.manifest_bytes).hexdigest()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class VerifiedPack:
    """Every byte of a pack, each file proven to be the one that was signed. `contents` is by file name.

    signed_model    what these bytes mean: the model in memory, as one whose key is trusted
    """

    sealed: VerifiedManifest
    contents: Mapping[str, bytes]
    signed_model: Model

    def model(self, trust: Trust) -> Model:
        """The classifier in memory. Raises PackProblem("pack_not_classifier") when the pack is of another kind."""
        if not isinstance(self.sealed.description, ClassifierManifest):
            raise not_classifier(self.sealed.description)
        return replace(self.signed_model, trust=trust)

    def companion(self, trust: Trust) -> Model | None:
        """The lung-field pack in memory; None for a pack of another kind."""
        is_lungs = isinstance(self.sealed.description, LungFieldsManifest)
        return replace(self.signed_model, trust=trust) if is_lungs else None

    def matcher(self, trust: Trust) -> Model | None:
        """The matcher in memory; None for a pack of another kind."""
        is_matcher = isinstance(self.sealed.description, MatcherManifest)
        return replace(self.signed_model, trust=trust) if is_matcher else None


def not_classifier(description: PackManifest) -> PackProblem:
    """Why a pack that only helps others cannot screen."""
    return PackProblem(reason("pack_not_classifier", kind=kind_of(description)))


@dataclass(frozen=True, eq=False, slots=True)
class _Parts:
    """What the files of a pack mean, by role."""

    sealed: VerifiedManifest
    files: Mapping[str, bytes]

    def model(self) -> Model:
        """The model. Raises PackProblem("pack_manifest") for files that do not fit."""
        card, description = self.card(), self.sealed.description
        gate = self._ood_gate(description) if isinstance(description, ClassifierManifest) else None
        manifest = domain_manifest(description, ood_gate=gate)
        return Model(
            manifest=manifest,
            trust="signed",
            fingerprint=self.sealed.fingerprint,
            model_sha256=description.files["litert"].sha256,
            files={role: data for role, data in self.files.items() if role not in _NOT_NETWORKS},
            golden=self._golden(description, scores=len(manifest.labels)),
            card=card,
        )

    def card(self) -> str:
        """The model card. Raises PackProblem for what is no text."""
        try:
            return self.files["card"].decode()
        except UnicodeDecodeError as error:
            raise manifest_error("card: not UTF-8 text") from error

    def _ood_gate(self, description: ClassifierManifest) -> OodGate | None:
        if description.ood_gate is UNSET:
            return None
        mean, projection = (self.files[role] for role in OOD_GATE_ROLES)
        try:
            return OodGate(
                mean=unpack_array(mean, dtype="float32", dimensions=1),
                projection=unpack_array(projection, dtype="float32", dimensions=2),
                limit=description.ood_gate.limit,
            )
        except ValueError as error:
            raise manifest_error(f"ood_gate: {error}") from error

    def _golden(self, description: AnyManifest, *, scores: int) -> GoldenVectors | None:
        if isinstance(description, MatcherManifest) or description.golden is UNSET:
            return None
        inputs, expected = (self.files[role] for role in GOLDEN_ROLES)
        try:
            golden = GoldenVectors(
                inputs=unpack_array(inputs, dtype="uint8", dimensions=4),
                scores=unpack_array(expected, dtype="float32", dimensions=2),
                tolerance=description.golden.tolerance,
            )
            _check_golden(golden, description.input, scores=scores)
        except ValueError as error:
            raise manifest_error(f"golden: {error}") from error
        return golden


@guarded
def read_verified_manifest(folder: Path) -> VerifiedManifest:
    """Read description and signature, verify, and only then parse. Raises PackProblem."""
    manifest_bytes = read_file(folder, name=MANIFEST_NAME, limit_bytes=_MANIFEST_LIMIT)
    signature = _read_signature(folder)
    fingerprint = signing.verify(manifest_bytes, signature=signature)
    return VerifiedManifest(
        manifest_bytes=manifest_bytes,
        signature=signature,
        fingerprint=fingerprint,
        description=parse(manifest_bytes),
    )


@guarded
def read_files(folder: Path, sealed: VerifiedManifest) -> VerifiedPack:
    """Copy every listed file into memory, check the copy and make the model. Files not listed are never read.

    Raises PackProblem.
    """
    listed = sealed.description.files
    files = {role: _read_listed(folder, file) for role, file in listed.items()}
    contents = {listed[role].name: data for role, data in files.items()}
    return VerifiedPack(sealed=sealed, contents=contents, signed_model=_Parts(sealed, files).model())


@guarded
def read_card(folder: Path) -> str:
    """The model card of a pack whose signature is right, whoever signed it. Raises PackProblem."""
    sealed = read_verified_manifest(folder)
    return _Parts(sealed, {"card": _read_listed(folder, sealed.description.files["card"])}).card()


def _read_signature(folder: Path) -> bytes:
    try:
        return read_file(folder, name=SIGNATURE_NAME, limit_bytes=_SIGNATURE_LIMIT)
    except PackProblem as problem:
        if problem.reason.code == "pack_incomplete":
            raise PackProblem(reason("pack_unsigned")) from problem
        if problem.reason.code == "pack_too_large":
            raise PackProblem(reason("pack_bad_signature")) from problem
        raise


def _read_listed(folder: Path, file: PackFile) -> bytes:
    try:
        data = read_file(folder, name=file.name, limit_bytes=file.size_bytes)
    except PackProblem as problem:
        if problem.reason.code == "pack_too_large":  # larger than what was signed
            raise PackProblem(reason("pack_tampered", name=file.name)) from problem
        raise
    if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise PackProblem(reason("pack_tampered", name=file.name))
    return data


def _check_golden(golden: GoldenVectors, spec: Input, *, scores: int) -> None:
    if golden.inputs.shape[1:] != (spec.height, spec.width, spec.channels):
        raise ValueError(f"inputs of {golden.inputs.shape[1:]} do not fit the pack's input")
    if golden.scores.shape[1] != scores:
        raise ValueError(f"{golden.scores.shape[1]} scores for {scores} labels")

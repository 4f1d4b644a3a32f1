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

from fieldray.domain.model import GoldenVectors, Manifest, Model, OodGate, Trust
from fieldray.errors import PackProblem
from fieldray.packs import signing
from fieldray.packs.arrays import unpack_array
from fieldray.packs.document import manifest_error
from fieldray.packs.manifest import parse
from fieldray.packs.manifest_document import ManifestDocument, PackFile, Role
from fieldray.packs.naming import MANIFEST_NAME, SIGNATURE_NAME
from fieldray.packs.reading import guarded, read_file
from fieldray.reasons import reason

_MANIFEST_LIMIT: Final = 2**17  # twenty times what one needs; every listing parses it
_SIGNATURE_LIMIT: Final = 1024


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class VerifiedManifest:
    """A description whose signature is right, by the key `fingerprint`; nothing else has been read yet."""

    manifest_bytes: bytes
    signature: bytes
    fingerprint: str
    description: ManifestDocument

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
        """The model in memory."""
        return replace(self.signed_model, trust=trust)


@dataclass(frozen=True, eq=False, slots=True)
class _Parts:
    """What the files of a pack mean."""

    sealed: VerifiedManifest
    contents: Mapping[str, bytes]

    def model(self) -> Model:
        """Raises PackProblem("pack_manifest") when arrays or card do not fit the description."""
        description = self.sealed.description
        cpu = description.file("cpu")
        assert cpu is not None  # the description was refused without it
        return Model(
            manifest=replace(description.manifest, gate=self._gate()),
            trust="signed",
            fingerprint=self.sealed.fingerprint,
            model_sha256=cpu.sha256,
            cpu_file=self.contents[cpu.name],
            edgetpu_file=self._content("edgetpu"),
            golden=self._golden(),
            card=self._card(),
        )

    def _content(self, role: Role) -> bytes | None:
        file = self.sealed.description.file(role)
        return self.contents[file.name] if file else None

    def _card(self) -> str:
        try:
            return (self._content("card") or b"").decode()
        except UnicodeDecodeError as error:
            raise manifest_error("card: not UTF-8 text") from error

    def _gate(self) -> OodGate | None:
        limit = self.sealed.description.ood_gate_limit
        mean, projection = self._content("gate_mean"), self._content("gate_projection")
        if limit is None or mean is None or projection is None:
            return None
        try:
            return OodGate(
                mean=unpack_array(mean, dtype="float32", dimensions=1),
                projection=unpack_array(projection, dtype="float32", dimensions=2),
                limit=limit,
            )
        except ValueError as error:
            raise manifest_error(f"gate: {error}") from error

    def _golden(self) -> GoldenVectors | None:
        tolerance = self.sealed.description.golden_tolerance
        inputs, scores = self._content("golden_inputs"), self._content("golden_scores")
        if tolerance is None or inputs is None or scores is None:
            return None
        try:
            golden = GoldenVectors(
                inputs=unpack_array(inputs, dtype="uint8", dimensions=4),
                scores=unpack_array(scores, dtype="float32", dimensions=2),
                tolerance=tolerance,
            )
            _check_golden(golden, self.sealed.description.manifest)
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
    contents = {file.name: _read_listed(folder, file) for file in sealed.description.files}
    return VerifiedPack(sealed=sealed, contents=contents, signed_model=_Parts(sealed, contents).model())


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


def _check_golden(golden: GoldenVectors, manifest: Manifest) -> None:
    spec = manifest.input
    if golden.inputs.shape[1:] != (spec.height, spec.width, spec.channels):
        raise ValueError(f"inputs of {golden.inputs.shape[1:]} do not fit the pack's input")
    if golden.scores.shape[1] != len(manifest.labels):
        raise ValueError(f"{golden.scores.shape[1]} scores for {len(manifest.labels)} labels")

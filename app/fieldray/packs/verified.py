"""A pack read, checked and written as a whole: the signature first, then the manifest, then every listed file.

A pack is copied into memory once. The copy is checked and used, so nothing can be swapped between check and use, and
the drive may be pulled out afterwards. `packs.library` decides whether the key is trusted. A new pack is written next
to its destination, read again and checked, and only then renamed.

Legacy models are the unsigned model files of the dissertation in a drive's root (V. Taran, KPI Kyiv, 2022). The files
do not describe themselves. Input and output are known from the dissertation's demonstration:

input            the grey image, stretched to 128 x 128, as grey levels 0..255 without scaling; float32 for the CPU
                 file, bytes for the Edge TPU file
output           two shares with the sum 1, first abnormal, then normal; a byte is a share of 255
class            the class with the larger share; the demonstration displays this share
operating point  no operating point was measured; each result says so
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import UNSET

from fieldray.domain.model import (
    GoldenVectors,
    InputSpec,
    Label,
    Manifest,
    Model,
    OutOfDistributionCheck,
    OutputRoles,
    Trust,
)
from fieldray.errors import PackProblem
from fieldray.packs import signing
from fieldray.packs.manifest import (
    GOLDEN_FILE_ROLES,
    OOD_FILE_ROLES,
    AnyManifest,
    ClassifierManifest,
    PackFile,
    PackManifest,
    check_size,
    classifier_manifest,
    domain_manifest,
    encode_manifest,
    pack_kind_of,
    parse_manifest,
    size_limit_bytes,
)
from fieldray.packs.naming import (
    LEGACY_CPU_FILE_NAME,
    LEGACY_EDGETPU_FILE_NAME,
    MANIFEST_NAME,
    SIGNATURE_NAME,
    contains_legacy_model,
    is_version,
    version_key,
)
from fieldray.packs.reading import array_from_npy, array_to_npy, manifest_error, raising_fieldray_errors, read_file
from fieldray.persistence import (
    SHARED_FILE_MODE,
    make_folder,
    replace_folder_atomically,
    storage_problem,
    temporary_path,
    write_new_file,
)
from fieldray.reasons import reason

_MANIFEST_LIMIT: Final = 2**17  # bytes: twenty times the usual size. Every list of packs parses all manifests
_SIGNATURE_LIMIT: Final = 1024
_NOT_NETWORKS: Final = frozenset({"card", *OOD_FILE_ROLES, *GOLDEN_FILE_ROLES})


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class VerifiedManifest:
    """A manifest with a valid signature by the key `fingerprint`. No other file of the pack was read."""

    manifest_bytes: bytes
    signature: bytes
    fingerprint: str
    content: AnyManifest

    @property
    def pack_name(self) -> str:
        """`id-version`, the name of the pack and of the pack's folder."""
        return f"{self.content.id}-{self.content.version}"

    @property
    def manifest_sha256(self) -> str:
        """The SHA-256 (hex) of the manifest's bytes, which identifies the whole pack."""
        return hashlib.sha256(self.manifest_bytes).hexdigest()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class VerifiedPack:
    """A pack in memory whose files all match the hashes in its signed manifest.

    file_contents  content of each file, by file name
    model          the model made from the files. Whether the key is trusted is not decided yet
    """

    manifest: VerifiedManifest
    file_contents: Mapping[str, bytes]
    model: Model


def require_classifier(manifest: PackManifest) -> None:
    """Raise PackProblem("pack_not_classifier") for a pack that does not screen images by itself."""
    if not isinstance(manifest, ClassifierManifest):
        raise PackProblem(reason("pack_not_classifier", kind=pack_kind_of(manifest)))


@raising_fieldray_errors
def read_verified_manifest(folder: Path) -> VerifiedManifest:
    """Read a pack's manifest and signature, verify the signature, and only then parse. Raises PackProblem."""
    manifest_bytes = read_file(folder, name=MANIFEST_NAME, limit_bytes=_MANIFEST_LIMIT)
    signature = _read_signature(folder)
    fingerprint = signing.verified_fingerprint(manifest_bytes, signature=signature)
    return VerifiedManifest(
        manifest_bytes=manifest_bytes,
        signature=signature,
        fingerprint=fingerprint,
        content=parse_manifest(manifest_bytes),
    )


@raising_fieldray_errors
def read_pack(folder: Path) -> VerifiedPack:
    """Copy every listed file of a pack into memory, check the copy and make the model.

    Files that the manifest does not list are never read. Raises PackProblem.
    """
    manifest = read_verified_manifest(folder)
    listed = manifest.content.files
    files = {role: _read_listed(folder, file) for role, file in listed.items()}
    contents = {listed[role].name: data for role, data in files.items()}
    return VerifiedPack(manifest=manifest, file_contents=contents, model=_model(manifest, files))


@raising_fieldray_errors
def read_card(folder: Path) -> str:
    """Read the model card of a pack whose signature is valid. The key need not be trusted. Raises PackProblem."""
    return _card(_read_listed(folder, read_verified_manifest(folder).content.files["card"]))


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
        if problem.reason.code == "pack_too_large":  # larger than the size in the signed manifest
            raise PackProblem(reason("pack_tampered", name=file.name)) from problem
        raise
    if len(data) != file.size_bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise PackProblem(reason("pack_tampered", name=file.name))
    return data


def _model(manifest: VerifiedManifest, files: Mapping[str, bytes]) -> Model:
    """Make a model from the files of a pack.

    files  content of each file, by role

    Raises PackProblem("pack_manifest") if the files do not suit the manifest.
    """
    card, description = _card(files["card"]), manifest.content
    gate = _ood_gate(description, files) if isinstance(description, ClassifierManifest) else None
    domain = domain_manifest(description, ood_gate=gate)
    return Model(
        manifest=domain,
        trust="signed",
        fingerprint=manifest.fingerprint,
        model_sha256=description.files["litert"].sha256,
        content_sha256=manifest.manifest_sha256,
        files={role: data for role, data in files.items() if role not in _NOT_NETWORKS},
        golden=_golden(description, files, scores=len(domain.labels)),
        card=card,
    )


def _card(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise manifest_error("card: not UTF-8 text") from error


def _ood_gate(description: ClassifierManifest, files: Mapping[str, bytes]) -> OutOfDistributionCheck | None:
    if description.ood_gate is UNSET:
        return None
    mean, projection = (files[role] for role in OOD_FILE_ROLES)
    try:
        return OutOfDistributionCheck(
            mean=array_from_npy(mean, dtype="float32", dimensions=1),
            projection=array_from_npy(projection, dtype="float32", dimensions=2),
            limit=description.ood_gate.limit,
        )
    except ValueError as error:
        raise manifest_error(f"ood_gate: {error}") from error


def _golden(description: AnyManifest, files: Mapping[str, bytes], *, scores: int) -> GoldenVectors | None:
    if description.golden is UNSET:
        return None
    inputs, expected = (files[role] for role in GOLDEN_FILE_ROLES)
    try:
        golden = GoldenVectors(
            inputs=array_from_npy(inputs, dtype="uint8", dimensions=4),
            scores=array_from_npy(expected, dtype="float32", dimensions=2),
            tolerance=description.golden.tolerance,
        )
        spec = description.input
        if golden.inputs.shape[1:] != (spec.height, spec.width, spec.channels):
            raise ValueError(f"inputs of {golden.inputs.shape[1:]} do not fit the pack's input")
        if golden.scores.shape[1] != scores:
            raise ValueError(f"{golden.scores.shape[1]} scores for {scores} labels")
    except ValueError as error:
        raise manifest_error(f"golden: {error}") from error
    return golden


# ---- writing


_FILE_NAMES: Final[Mapping[str, str]] = {
    "litert": "model.tflite",
    "edgetpu": "model_edgetpu.tflite",
    "card": "MODEL_CARD.md",
    **{role: f"{role}.npy" for role in (*OOD_FILE_ROLES, *GOLDEN_FILE_ROLES)},
}


def write_pack(
    folder: Path,
    *,
    manifest: Manifest,
    files: Mapping[str, bytes],
    card: str,
    golden: GoldenVectors | None,
    key: Ed25519PrivateKey,
) -> Path:
    """Write a classifier's pack as `folder`/<id>-<version>/, and return that path.

    An existing pack of this version is replaced if it was signed by this key. If the folder contains a newer version of
    the pack, nothing is written.

    manifest  the manifest, with its out-of-distribution check
    files     the networks by role; "litert" is needed
    card      the model card (Markdown)
    golden    inputs and scores of the self-test, or None
    key       the signing key

    Raises StorageProblem. Raises PackProblem: pack_older, pack_in_the_way, or a problem that makes the pack invalid.
    """
    contents = {**files, "card": card.encode()}
    if manifest.ood_gate:
        arrays = [array_to_npy(array) for array in (manifest.ood_gate.mean, manifest.ood_gate.projection)]
        contents |= zip(OOD_FILE_ROLES, arrays, strict=True)
    contents |= golden_files(golden) if golden else {}
    description = classifier_manifest(
        manifest, files=manifest_file_entries(contents), golden_tolerance=golden.tolerance if golden else None
    )
    return write_pack_of_any_kind(folder, manifest=description, contents=contents, key=key)


def write_pack_of_any_kind(
    folder: Path, *, manifest: PackManifest, contents: Mapping[str, bytes], key: Ed25519PrivateKey
) -> Path:
    """Write and sign a pack of any kind as `folder`/<id>-<version>/, and return that path.

    manifest  the content of the manifest, which lists the files
    contents  content of each file, by its role in the manifest's list
    key       the signing key

    Raises the exceptions of `write_pack`.
    """
    manifest_bytes = encode_manifest(manifest)
    by_name = {file_name_of_role(role): data for role, data in contents.items()}
    by_name |= {MANIFEST_NAME: manifest_bytes, SIGNATURE_NAME: signing.sign(manifest_bytes, key=key)}
    _refuse_older(folder, manifest)
    return write_pack_folder(folder / f"{manifest.id}-{manifest.version}", contents=by_name)


def golden_files(golden: GoldenVectors) -> dict[str, bytes]:
    """Return the contents of the two files of the self-test (inputs and scores), by role (`GOLDEN_FILE_ROLES`)."""
    return dict(zip(GOLDEN_FILE_ROLES, [array_to_npy(golden.inputs), array_to_npy(golden.scores)], strict=True))


def manifest_file_entries(contents: Mapping[str, bytes]) -> dict[str, PackFile]:
    """Return a manifest's entries (name, size and SHA-256) for the files of a pack, by role.

    contents  content of each file, by role

    Raises PackProblem("pack_too_large").
    """
    for role, data in contents.items():
        check_size(file_name_of_role(role), len(data), limit_bytes=size_limit_bytes(role))
    return {
        role: PackFile(name=file_name_of_role(role), size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for role, data in contents.items()
    }


def file_name_of_role(role: str) -> str:
    """Return the name of the file in which a pack stores the content of a role, such as "litert" for the network.

    For a role that this program does not know, the file name is the role plus ".bin".
    """
    return _FILE_NAMES.get(role, f"{role}.bin")


def write_pack_folder(folder: Path, *, contents: Mapping[str, bytes]) -> Path:
    """Write a pack's files to a folder, all or none, and return the folder.

    A valid pack in the folder is replaced if it was signed by the same key.

    contents  content of each file, by file name

    Raises StorageProblem. Raises PackProblem if the folder contains anything but a pack signed by this key
    (pack_in_the_way), or if the files are no valid pack.
    """
    try:
        _refuse_others(
            folder, signing.verified_fingerprint(contents[MANIFEST_NAME], signature=contents[SIGNATURE_NAME])
        )
        make_folder(folder.parent)
        temporary = temporary_path(folder)
        temporary.mkdir(mode=0o700)
        try:
            for name, data in contents.items():
                write_new_file(
                    temporary / name, data, mode=SHARED_FILE_MODE
                )  # written to the disk at once, because a user pulls a drive out after "done"
            read_pack(temporary)
            temporary.chmod(0o755)
            replace_folder_atomically(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise storage_problem(error, folder) from error
    return folder


def require_intact_pack(folder: Path, *, fingerprint: str) -> None:
    """Raise PackProblem unless a folder contains a whole pack signed by this key, and no other file.

    Raises OSError if the folder cannot be read.
    """
    pack = read_pack(folder)
    if pack.manifest.fingerprint != fingerprint:
        raise PackProblem(reason("pack_other_signer", there=pack.manifest.fingerprint, here=fingerprint))
    names = {MANIFEST_NAME, SIGNATURE_NAME, *pack.file_contents}
    for entry in folder.iterdir():
        if entry.name not in names:
            raise PackProblem(reason("pack_not_of_it", name=entry.name))


def _refuse_others(folder: Path, fingerprint: str) -> None:
    """Raise PackProblem if a folder contains anything but a pack signed by this key.

    The check prevents that a replacement destroys other files.
    """
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise PackProblem(reason("pack_not_of_it", name=folder.name))
        if folder.is_dir() and any(folder.iterdir()):
            require_intact_pack(folder, fingerprint=fingerprint)
    except PackProblem as problem:
        raise PackProblem(reason("pack_in_the_way", path=folder, detail=problem.reason.text)) from problem


def _refuse_older(folder: Path, description: PackManifest) -> None:
    """Raise PackProblem if a folder contains a newer version of the pack.

    With an older version next to a newer version, a person could choose the wrong pack.
    """
    for neighbour in folder.glob(f"{description.id}-*"):
        version = neighbour.name.removeprefix(description.id + "-")
        if is_version(version) and version_key(version) > version_key(description.version):
            raise PackProblem(reason("pack_older", version=description.version, seen=version))


_ASSUMED_EN: Final = (
    "These files are unsigned and were not verified. Operating point unknown: the larger output decides the class. The "
    "accuracy was not measured. The files do not state their input and outputs. The program assumes 128 x 128 grey "
    "levels from 0 to 255, and the outputs abnormal and normal in this order."
)
_ASSUMED_UK: Final = (
    "Ці файли без підпису, і їх не перевірено. Робоча точка невідома: клас визначає більший вихід. Точність не "
    "виміряно. У файлах не вказано входу й виходів моделі. Програма припускає 128 x 128 рівнів сірого від 0 до 255 і "
    "виходи «відхилення» та «норма» в цьому порядку."
)
LEGACY_MANIFEST: Final = Manifest(
    pack_id="legacy-chest-resnet50",
    version="0.0.0",
    names={"en": "Legacy chest model (unsigned)", "uk": "Стара модель грудної клітки (без підпису)"},
    descriptions={
        "en": "The bare model file of the 2022 dissertation, found in the drive's root.",
        "uk": "Окремий файл моделі з дисертації 2022 року, знайдений у корені диска.",
    },
    intended_use={"en": "Research on the method only.", "uk": "Лише для дослідження методу."},
    limits={"en": _ASSUMED_EN, "uk": _ASSUMED_UK},
    input=InputSpec(height=128, width=128, intensity="as_displayed", fit="stretch"),
    labels=(
        Label(code="abnormal", scheme="fieldray", meaning={"en": "abnormal", "uk": "відхилення"}),
        Label(code="normal", scheme="fieldray", meaning={"en": "normal", "uk": "норма"}),
    ),
    outputs=OutputRoles(scores=0, activation="softmax"),
    is_bare=True,
    provenance={"source": "V. Taran, dissertation, KPI Kyiv, 2022; the file itself is unsigned"},
)


def manifest_of_removed_pack(trust: Trust) -> Manifest | None:
    """Return the manifest of a pack that is no longer on this computer; None if the manifest is lost with the pack.

    Only the manifest of a legacy model (see the module) is returned, because that manifest is part of the program. All
    legacy models share one manifest.

    trust  how the pack was trusted; "legacy" for a legacy model
    """
    return LEGACY_MANIFEST if trust == "legacy" else None


@raising_fieldray_errors
def require_legacy_files(folder: Path) -> None:
    """Raise PackProblem if a legacy model (unsigned files of the dissertation) lacks its CPU file.

    A computer without an Edge TPU needs the CPU file.
    """
    if not contains_legacy_model(folder, name=LEGACY_CPU_FILE_NAME):
        raise PackProblem(reason("pack_legacy_no_cpu", found=LEGACY_EDGETPU_FILE_NAME, missing=LEGACY_CPU_FILE_NAME))


@raising_fieldray_errors
def load_legacy(folder: Path) -> Model:
    """Load the legacy model in a drive's root into memory: the dissertation's unsigned model files.

    Raises PackProblem if the CPU file is missing or unreadable. The Edge TPU file may be missing.
    """
    files = {"litert": read_file(folder, name=LEGACY_CPU_FILE_NAME, limit_bytes=size_limit_bytes("litert"))}
    if contains_legacy_model(folder, name=LEGACY_EDGETPU_FILE_NAME):
        files["edgetpu"] = read_file(folder, name=LEGACY_EDGETPU_FILE_NAME, limit_bytes=size_limit_bytes("edgetpu"))
    return Model(
        manifest=LEGACY_MANIFEST,
        trust="legacy",
        fingerprint="",
        model_sha256=hashlib.sha256(files["litert"]).hexdigest(),
        files=files,
        card=_ASSUMED_EN,
    )

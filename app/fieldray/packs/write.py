"""Writing a signed pack: made beside its destination, read back and checked, and only then renamed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fieldray.domain.model import GoldenVectors, Manifest
from fieldray.errors import PackProblem
from fieldray.packs import signing
from fieldray.packs.manifest import check_size, describe, dump
from fieldray.packs.manifest_types import GOLDEN_ROLES, OOD_GATE_ROLES, PackFile, PackManifest, size_limit
from fieldray.packs.naming import MANIFEST_NAME, SIGNATURE_NAME, is_version, version_key
from fieldray.packs.reading import pack_array
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray.persistence import make_folder, put_in_place, storage_problem, unfinished, write_new
from fieldray.reasons import reason

_FILE_NAMES: Final[Mapping[str, str]] = {
    "litert": "model.tflite",
    "edgetpu": "model_edgetpu.tflite",
    "card": "MODEL_CARD.md",
    **{role: f"{role}.npy" for role in (*OOD_GATE_ROLES, *GOLDEN_ROLES)},
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
    """Write a classifier's pack as `folder`/<id>-<version>/ and return that path. The gate comes with the manifest.

    `files` are the networks by role; "litert" is needed. What was written is read back and checked as any pack would
    be. A pack of the same version by the same key is replaced, and nothing else; beside a newer one nothing is written.
    Raises PackProblem (pack_older, pack_in_the_way, or what makes the pack invalid), StorageProblem.
    """
    contents = {**files, "card": card.encode()}
    if manifest.ood_gate:
        arrays = [pack_array(array) for array in (manifest.ood_gate.mean, manifest.ood_gate.projection)]
        contents |= zip(OOD_GATE_ROLES, arrays, strict=True)
    contents |= golden_files(golden) if golden else {}
    description = describe(manifest, files=list_files(contents), golden_tolerance=golden.tolerance if golden else None)
    return write_described(folder, description=description, contents=contents, key=key)


def write_described(
    folder: Path, *, description: PackManifest, contents: Mapping[str, bytes], key: Ed25519PrivateKey
) -> Path:
    """As `write_pack`, for a pack of any kind: `contents` are the files by role, as `description` lists them."""
    manifest_bytes = dump(description)
    by_name = {file_name(role): data for role, data in contents.items()}
    by_name |= {MANIFEST_NAME: manifest_bytes, SIGNATURE_NAME: signing.sign(manifest_bytes, key=key)}
    _refuse_older(folder, description)
    return write_folder(folder / f"{description.id}-{description.version}", contents=by_name)


def golden_files(golden: GoldenVectors) -> dict[str, bytes]:
    """The files of the self-test, by role."""
    return dict(zip(GOLDEN_ROLES, [pack_array(golden.inputs), pack_array(golden.scores)], strict=True))


def list_files(contents: Mapping[str, bytes]) -> dict[str, PackFile]:
    """The entries of `files` for the files of a pack, by role. Raises PackProblem("pack_too_large")."""
    for role, data in contents.items():
        check_size(file_name(role), len(data), limit=size_limit(role))
    return {
        role: PackFile(name=file_name(role), size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for role, data in contents.items()
    }


def file_name(role: str) -> str:
    """What the file of a role is called: one that this program does not know by the role itself."""
    return _FILE_NAMES.get(role, f"{role}.bin")


def write_folder(folder: Path, *, contents: Mapping[str, bytes]) -> Path:
    """Write a pack's files as the folder `folder`, all or nothing; returns `folder`.

    A whole pack by the same key is replaced. Raises PackProblem for anything else that is there (pack_in_the_way) and
    when the files are not a valid pack, StorageProblem.
    """
    try:
        _refuse_others(folder, signing.verify(contents[MANIFEST_NAME], signature=contents[SIGNATURE_NAME]))
        make_folder(folder.parent)
        beside = unfinished(folder)
        beside.mkdir(mode=0o700)
        try:
            for name, data in contents.items():
                write_new(beside / name, data)  # a drive is pulled out as soon as the program says "done"
            read_files(beside, read_verified_manifest(beside))
            beside.chmod(0o755)
            put_in_place(beside, folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise storage_problem(error, folder) from error
    return folder


def require_pack(folder: Path, *, fingerprint: str) -> None:
    """Require that a folder holds a whole pack by this key and nothing else. Raises PackProblem, OSError."""
    sealed = read_verified_manifest(folder)
    if sealed.fingerprint != fingerprint:
        raise PackProblem(reason("pack_other_signer", there=sealed.fingerprint, here=fingerprint))
    names = {MANIFEST_NAME, SIGNATURE_NAME, *read_files(folder, sealed).contents}
    for entry in folder.iterdir():
        if entry.name not in names:
            raise PackProblem(reason("pack_not_of_it", name=entry.name))


def _refuse_others(folder: Path, fingerprint: str) -> None:
    """Nothing is lost when the folder is replaced but a pack that this key signed. Raises PackProblem, OSError."""
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise PackProblem(reason("pack_not_of_it", name=folder.name))
        if folder.is_dir() and any(folder.iterdir()):
            require_pack(folder, fingerprint=fingerprint)
    except PackProblem as problem:
        raise PackProblem(reason("pack_in_the_way", path=folder, detail=problem.reason.text)) from problem


def _refuse_older(folder: Path, description: PackManifest) -> None:
    """A drive that carries a newer version keeps it: an older one beside it would invite the wrong choice."""
    for neighbour in folder.glob(f"{description.id}-*"):
        version = neighbour.name.removeprefix(description.id + "-")
        if is_version(version) and version_key(version) > version_key(description.version):
            raise PackProblem(reason("pack_older", version=description.version, seen=version))

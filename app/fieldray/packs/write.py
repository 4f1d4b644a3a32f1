"""Writing a signed pack: made beside its place, read back and checked, and only then renamed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fieldray.domain.model import GoldenVectors, Manifest
from fieldray.errors import PackProblem
from fieldray.packs import signing
from fieldray.packs.arrays import pack_array
from fieldray.packs.manifest import dump
from fieldray.packs.manifest_document import ManifestDocument, PackFile, Role, check_size
from fieldray.packs.naming import MANIFEST_NAME, SIGNATURE_NAME, is_version, version_key
from fieldray.packs.verified import read_files, read_verified_manifest
from fieldray.persistence import storage_problem, write_new
from fieldray.reasons import reason

ModelRole = Literal["cpu", "edgetpu"]
FILE_NAMES: Final[Mapping[Role, str]] = {
    "cpu": "model.tflite",
    "edgetpu": "model_edgetpu.tflite",
    "card": "MODEL_CARD.md",
    "gate_mean": "gate_mean.npy",
    "gate_projection": "gate_projection.npy",
    "golden_inputs": "golden_inputs.npy",
    "golden_scores": "golden_scores.npy",
}


def write_pack(
    folder: Path,
    *,
    manifest: Manifest,
    files: Mapping[ModelRole, bytes],
    card: str,
    golden: GoldenVectors | None,
    key: Ed25519PrivateKey,
) -> Path:
    """Write the pack as `folder`/<id>-<version>/ and return that path. The gate comes with the manifest.

    `files` are the models' bytes by role; "cpu" is needed. What was written is read back and checked as any pack
    would be. A pack of the same version is replaced; beside a newer one nothing is written. Raises PackProblem
    (pack_older, or what makes the pack invalid), StorageProblem.
    """
    contents = _contents(manifest, files, card, golden)
    description = ManifestDocument(
        manifest=manifest,
        files=tuple(_listed(role, data) for role, data in contents.items()),
        ood_gate_limit=manifest.gate.limit if manifest.gate else None,
        golden_tolerance=golden.tolerance if golden else None,
    )
    manifest_bytes = dump(description)
    by_name = {FILE_NAMES[role]: data for role, data in contents.items()}
    by_name |= {MANIFEST_NAME: manifest_bytes, SIGNATURE_NAME: signing.sign(manifest_bytes, key=key)}
    _refuse_older(folder, manifest)
    return write_folder(folder / f"{manifest.pack_id}-{manifest.version}", contents=by_name)


def write_folder(place: Path, *, contents: Mapping[str, bytes]) -> Path:
    """Write a pack's files as the folder `place`, all or nothing, replacing what is there; returns `place`.

    Raises PackProblem when the files are not a valid pack, StorageProblem.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
        try:
            for name, data in contents.items():
                write_new(beside / name, data)  # a drive is pulled out as soon as the program says "done"
            read_files(beside, read_verified_manifest(beside)).model("signed")
            beside.chmod(0o755)
            _replace(beside, place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise storage_problem(error, place) from error
    return place


def _contents(
    manifest: Manifest, files: Mapping[ModelRole, bytes], card: str, golden: GoldenVectors | None
) -> dict[Role, bytes]:
    contents: dict[Role, bytes] = {role: files[role] for role in get_args(ModelRole) if role in files}
    contents["card"] = card.encode()
    if manifest.gate:
        contents["gate_mean"] = pack_array(manifest.gate.mean)
        contents["gate_projection"] = pack_array(manifest.gate.projection)
    if golden:
        contents["golden_inputs"] = pack_array(golden.inputs)
        contents["golden_scores"] = pack_array(golden.scores)
    return contents


def _listed(role: Role, data: bytes) -> PackFile:
    name = FILE_NAMES[role]
    check_size(name, role, len(data))
    return PackFile(name=name, role=role, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _refuse_older(folder: Path, manifest: Manifest) -> None:
    """A drive that carries a newer version keeps it: an older one beside it would invite the wrong choice."""
    for neighbour in folder.glob(f"{manifest.pack_id}-*"):
        version = neighbour.name.removeprefix(manifest.pack_id + "-")
        if is_version(version) and version_key(version) > version_key(manifest.version):
            raise PackProblem(reason("pack_older", version=manifest.version, seen=version))


def _replace(beside: Path, place: Path) -> None:
    """Put `beside` at `place`; a folder there is set aside first, since a folder cannot be renamed onto one."""
    if not place.exists():
        beside.rename(place)
        return
    aside = Path(tempfile.mkdtemp(prefix=".old-", dir=place.parent))
    place.rename(aside / place.name)
    beside.rename(place)
    shutil.rmtree(aside, ignore_errors=True)

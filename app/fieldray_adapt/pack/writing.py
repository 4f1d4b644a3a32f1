"""Functions that all pack steps use: write a pack, check that the pack is unchanged, and collect its provenance."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fieldray.domain.image import Image
from fieldray.domain.model import (
    InputSpec,
)
from fieldray.errors import PackProblem
from fieldray.imaging.preprocess import to_network_input
from fieldray.imaging.synthetic import chest_phantom
from fieldray.packs.manifest import SCHEMA_VERSION, Input, PackManifest
from fieldray.packs.signing import load_or_create_key
from fieldray.packs.verified import (
    manifest_file_entries,
    read_verified_manifest,
    require_intact_pack,
    write_pack_of_any_kind,
)
from fieldray.typed_json import to_type
from fieldray_adapt.evaluation.figures import (
    DataDigests,
)
from fieldray_adapt.files import digest, remove_on_failure, to_builtins
from fieldray_adapt.recipes.classifier import PackRecipe
from fieldray_adapt.run import Run, Step, StepFacts

_GOLDEN_SIDE: Final = 512
# Two processors differ by up to 3 of 256 int8 levels. Scores may differ more where the sigmoid is steep.
GOLDEN_TOLERANCE: Final = 0.06
_TOOLS: Final = ("numpy", "tensorflow-cpu", "tensorflow", "keras", "torch", "ai-edge-litert", "pillow", "fieldray")


class WrittenPack(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about a pack that a pack step has written.

    Attributes
    ----------
    pack
        The folder of the pack.
    signer
        The fingerprint of the signing key.
    bytes
        The total size of the pack's files, in bytes.
    warnings
        Warnings about the pack's figures, as texts.
    """

    pack: str
    signer: str = ""
    manifest_sha256: str
    bytes: int
    warnings: tuple[str, ...] = ()


def write_recipe_pack(
    recipe: PackRecipe, kind: type[PackManifest], contents: Mapping[str, bytes], **facts: Any
) -> StepFacts:
    """Write the signed pack of a recipe whose network takes one grey image. Returns facts about the written pack.

    Parameters
    ----------
    kind
        The class of the manifest.
    contents
        The contents of the pack's files, by role.
    facts
        Values for further fields of the manifest.
    """
    texts, spec = recipe.pack, recipe.input
    whole = kind(
        schema_version=SCHEMA_VERSION,
        id=texts.id,
        version=texts.version,
        names=dict(texts.names),
        descriptions=dict(texts.descriptions),
        intended_use=dict(texts.intended_use),
        limits=dict(texts.limits),
        input=Input(
            height=spec.height,
            width=spec.width,
            channels=1,
            dtype="uint8",
            intensity=spec.intensity,
            fit=spec.fit,
            margin=spec.margin,
        ),
        files=manifest_file_entries(contents),
        **facts,
    )
    with remove_on_failure(recipe.signing_key, recipe.packs_folder):
        key = load_or_create_key(recipe.signing_key)
        folder = write_pack_of_any_kind(recipe.packs_folder, manifest=whole, contents=contents, key=key)
    return dict(to_builtins(written_pack_facts(folder)))


def written_pack_facts(folder: Path, *, warnings: tuple[str, ...] = ()) -> WrittenPack:
    """Return facts about a pack that was just written to `folder`, by which `is_pack_unchanged` recognises the pack.

    The facts are signer, digest of the manifest, size in bytes, and warnings.
    """
    signed = read_verified_manifest(folder)
    return WrittenPack(
        pack=str(folder),
        signer=signed.fingerprint,
        manifest_sha256=signed.manifest_sha256,
        bytes=sum(path.stat().st_size for path in folder.iterdir()),
        warnings=warnings,
    )


def is_pack_unchanged(facts: StepFacts) -> bool:
    """Return whether the pack that `facts` describe still exists, complete and unchanged."""
    written = to_type(facts, WrittenPack)
    folder = Path(written.pack)
    try:
        require_intact_pack(folder, fingerprint=written.signer)
        return bool(read_verified_manifest(folder).manifest_sha256 == written.manifest_sha256)
    except (PackProblem, OSError):
        return False


def provenance(run: Run, *, data: Sequence[str]) -> dict[str, str]:
    """Return the provenance of a pack by name: data, licences, digests of inputs, and versions of libraries.

    `data` are the names of the sources of images.
    """
    recipe, facts = (run.recipe.run / "recipe.json").read_bytes(), run.read_step_json("data", "facts.json", DataDigests)
    licences = {name: getattr(run.recipe.pack, name) for name in ("data_licence", "weights_licence")}
    return {
        "data": ", ".join(data),
        **{name: text for name, text in licences.items() if text},
        "split": f"by patient, {run.recipe.split.by}",
        "seed": str(run.recipe.training.seed),
        "recipe_sha256": hashlib.sha256(recipe).hexdigest(),
        **to_builtins(facts),
        "python": platform.python_version(),
        **{name: found for name in _TOOLS if (found := _version(name))},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def synthetic_chest(seed: int, spec: InputSpec) -> NDArray[np.uint8]:
    """Draw a synthetic chest image as input of a network: (height, width, channels) uint8, as `spec` describes."""
    pixels = chest_phantom(_GOLDEN_SIDE, _GOLDEN_SIDE, seed, abnormal=seed % 2 == 0)
    values: NDArray[np.uint8] = to_network_input(Image(pixels=pixels), spec).values[0]
    return values


def make_pack_step(perform: Callable[[Run], StepFacts]) -> Step:
    """Return the pack step of a recipe. `perform` writes the pack, and returns the facts from `write_recipe_pack`."""
    return Step(
        name="pack",
        perform=perform,
        recipe_keys=("pack", "packs_folder", "signing_key"),
        outside_inputs_digest=lambda run: digest(run.recipe.pack.credits_text),
        are_outside_files_intact=is_pack_unchanged,
    )

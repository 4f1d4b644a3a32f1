"""The tiny network of `tiny_models` as a signed pack, for tests that go all the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fieldray.packs.verified import read_verified_manifest, write_pack
from packs_factory import key
from tiny_models import tiny_golden, tiny_manifest, tiny_model_bytes


def write_tiny_pack(
    folder: Path,
    *,
    key_number: int = 1,
    cpu_file: bytes | None = None,
    edgetpu_file: bytes | None = None,
    **changes: object,
) -> Path:
    """Write `folder`/tiny-1.0.0/, signed by a key of the tests; `changes` go to the manifest.

    `cpu_file` stands in for the tiny network.
    """
    files = {"litert": tiny_model_bytes() if cpu_file is None else cpu_file}
    texts = {"en": "Bright images are abnormal.", "uk": "Світлі знімки - з відхиленням."}
    plain = tiny_manifest()
    label = replace(plain.labels[0], meaning={"en": "opacity", "uk": "затемнення"})
    spoken = {"names": texts, "descriptions": texts, "intended_use": texts, "limits": texts, "labels": (label,)}
    return write_pack(
        folder,
        manifest=replace(plain, **{**spoken, **changes}),
        files=files | ({"edgetpu": edgetpu_file} if edgetpu_file else {}),
        card="# Tiny\n",
        golden=tiny_golden(),
        key=key(key_number),
    )


def fingerprint(pack: Path) -> str:
    """Of the key that signed a pack."""
    return read_verified_manifest(pack).fingerprint

"""The tiny network of `tiny_models` as a signed pack for end-to-end tests, also changed and signed again."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldray.packs import signing
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
    """Write `folder`/tiny-1.0.0/, signed by a key for tests. `changes` go to the manifest.

    `cpu_file` replaces the tiny network.
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
    """Return the fingerprint of the key that signed a pack."""
    return read_verified_manifest(pack).fingerprint


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write the tiny pack with a changed description, signed again."""
    return resigned(write_tiny_pack(folder), change)


def resigned(pack: Path, change: Callable[[dict[str, Any]], object], *, key_number: int = 1) -> Path:
    """Change the description of a pack, and sign it again."""
    document = json.loads((pack / "manifest.json").read_bytes())
    change(document)
    sign(pack, json.dumps(document).encode(), key_number=key_number)
    return pack


def with_file(folder: Path, name: str, data: bytes) -> Path:
    """Write the tiny pack with another content of one file, listed and signed."""
    return put_file(write_tiny_pack(folder), name, data)


def put_file(pack: Path, name: str, data: bytes, *, key_number: int = 1) -> Path:
    """Replace the content of one file in a pack, listed and signed."""

    def change(document: dict[str, Any]) -> None:
        (entry,) = (file for file in document["files"].values() if file["name"] == name)
        entry |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    (pack / name).write_bytes(data)
    return resigned(pack, change, key_number=key_number)


def sign(pack: Path, manifest: bytes, *, key_number: int = 1) -> None:
    """Write a description and its signature."""
    (pack / "manifest.json").write_bytes(manifest)
    (pack / "manifest.sig").write_bytes(signing.sign(manifest, key=key(key_number)))


def npy_file(header: str, values: bytes) -> bytes:
    """Return a .npy file of version 1.0 with any header."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values

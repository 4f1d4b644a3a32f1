"""Packs that are wrong in one way each, signed by a key that is trusted where nothing else is said."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldray.packs import signing
from packs_factory import key
from tiny_packs import write_tiny_pack

Change = Callable[[dict[str, Any]], object]


def edited(folder: Path, change: Change) -> Path:
    """The tiny pack with its description changed and signed again."""
    return resigned(write_tiny_pack(folder), change)


def resigned(pack: Path, change: Change, *, key_number: int = 1) -> Path:
    """A pack whose description is changed and signed again."""
    document = json.loads((pack / "manifest.json").read_bytes())
    change(document)
    sign(pack, json.dumps(document).encode(), key_number=key_number)
    return pack


def rewritten(folder: Path, old: bytes, new: bytes) -> Path:
    """The tiny pack with some bytes of its description replaced, signed again: what no JSON library would write."""
    pack = write_tiny_pack(folder)
    data = (pack / "manifest.json").read_bytes()
    assert old in data, old
    sign(pack, data.replace(old, new, 1))
    return pack


def with_file(folder: Path, name: str, data: bytes) -> Path:
    """The tiny pack with another content of one file, listed as it is and signed."""
    return put_file(write_tiny_pack(folder), name, data)


def put_file(pack: Path, name: str, data: bytes, *, key_number: int = 1) -> Path:
    """A pack with another content of one file, listed as it is and signed."""

    def change(document: dict[str, Any]) -> None:
        (entry,) = (file for file in document["files"].values() if file["name"] == name)
        entry |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    (pack / name).write_bytes(data)
    return resigned(pack, change, key_number=key_number)


def sign(pack: Path, manifest: bytes, *, key_number: int = 1) -> None:
    """Write the description and its signature."""
    (pack / "manifest.json").write_bytes(manifest)
    (pack / "manifest.sig").write_bytes(signing.sign(manifest, key=key(key_number)))


def npy_file(header: str, values: bytes) -> bytes:
    """A .npy file of version 1.0 with any header."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values


def nested(depth: int) -> str:
    """So many lists in one another, as JSON."""
    return "[" * depth + "]" * depth

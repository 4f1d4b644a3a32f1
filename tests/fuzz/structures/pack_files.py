"""Generated packs: wrong values in manifests, unusual signature files, wrong array headers, replaced files."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from fieldray.packs import signing, verified
from fieldray.packs.manifest import encode_manifest, parse_manifest
from fieldray.packs.naming import MANIFEST_NAME, SIGNATURE_NAME
from fieldray.packs.reading import array_from_npy, array_to_npy
from fuzz.structures.dicom_files import PLACES
from fuzz.structures.target import Unforeseen, holds, refusals
from fuzz.structures.values import TEXTS, broken, json_bytes, strange
from packs_factory import key, make_lung_fields, make_pack

_KEYS: Final = ("keys", "values", "en", "kind", "id", "golden", "ood_gate", "requires", "crop", "litert", "card")
# Golden files of a pack, with which its manifest has to agree.
_FILES: Final = ("model.tflite", "MODEL.TFLITE", "card.md", "a" * 300, "aux", "..", "x/y", "", "manifest.json", "a.b ")


@functools.cache
def _manifests() -> tuple[dict[str, Any], ...]:
    """Return valid manifests of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        packs = (
            make_pack(Path(folder)),
            make_pack(Path(folder), version="2.0.0", edgetpu=True),
            make_lung_fields(Path(folder)),
        )
        return tuple(json.loads((pack / MANIFEST_NAME).read_bytes()) for pack in packs)


def make_manifest(chance: random.Random) -> bytes:
    """Make a manifest with wrong values, and sometimes with invalid JSON."""
    document = chance.choice(_manifests())
    document = broken(document, chance, places=chance.choice(PLACES))
    if isinstance(document, dict) and chance.random() < 0.2:
        document[chance.choice(_KEYS)] = strange(chance)
    return json_bytes(document, chance, places=chance.choice((0,) * 12 + (1, 2)))


def read_manifest(data: bytes, _folder: Path) -> None:
    """Read a manifest as the program does after it has verified the signature."""
    found = parse_manifest(data)
    holds(
        encode_manifest(parse_manifest(encode_manifest(found))) == encode_manifest(found),
        "a manifest that is another when it is written and read",
    )


# ---- signatures


_SIGNED: Final = b'{"id": "a pack"}\n'


def make_signature(chance: random.Random) -> bytes:
    """Make a signature file in an unusual or invalid form."""
    whole = _signature()
    if chance.random() < 0.3:
        at = chance.randrange(len(whole))
        return whole[:at] + chance.choice((b"", b" ", b"A", b"=", b"\n", b"\xff")) + whole[at + chance.choice((0, 1)) :]
    document = json.loads(whole)
    for name in ("key", "signature"):
        raw = bytearray(base64.b64decode(document[name]))
        way = chance.randrange(6)
        if way == 0:
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        elif way == 1:
            raw = bytearray(
                chance.choice((b"", bytes(32), bytes(64), b"\xff" * 32, b"\xff" * 64, bytes(31), bytes(33)))
            )
        elif way == 2:
            document[name] = chance.choice(TEXTS)
        if way < 2:
            document[name] = base64.b64encode(bytes(raw)).decode()
    document = broken(document, chance, places=chance.choice((0, 0, 1, 2)))
    text = json_bytes(document, chance, places=chance.choice((0, 0, 0, 1)))
    return text + b"\n" * chance.choice((0, 1, 1, 2))


@functools.cache
def _signature() -> bytes:
    return signing.sign(_SIGNED, key=key())


def read_signature(data: bytes, _folder: Path) -> None:
    """Verify a signature. Only the exact bytes of the one valid file may be accepted."""
    signing.verified_fingerprint(_SIGNED, signature=data)
    holds(data == _signature(), "another line passes for the signature")


# ---- arrays


_DTYPES: Final = ("float32", "uint8", "float64", "int32", "<U4", "|O", "|V8", "<f4", "<f16", "c8")
_HEADERS: Final = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (%s), }",
    "{'shape': (%s), 'fortran_order': False, 'descr': '<f4'}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (%s), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (%s)}",
    "{'descr': '>f4', 'fortran_order': False, 'shape': (%s), }", "__import__('os').system('x')%s", "(" * 200 + "%s",
)  # fmt: skip
_SHAPES: Final = (
    "3,", "2, 3", "", "0,", "0, 4294967296", "-1,", "3", "2,3", "9999999999, 9999999999", "1, " * 40, "1e3,",
    "4294967296,", "9999999999, " * 7 + "9999999999", "18446744073709551616,", "2, 3, 1, 1", "True,", "None", "6, 4",
)  # fmt: skip


def make_array(chance: random.Random) -> bytes:
    """Make a .npy file by NumPy, or one with a wrong header."""
    if chance.random() < 0.4:
        shape = chance.choice(((3,), (2, 3), (6, 4), (2, 3, 1, 1), (0,), ()))
        array = np.ones(shape, chance.choice(("float32", "uint8", "float64", "int32")))
        if array.dtype.kind == "f" and array.size and chance.random() < 0.2:
            array.reshape(-1)[0] = chance.choice((np.nan, np.inf, 3e38))
        data = bytearray(array_to_npy(array))
    else:
        header = chance.choice(_HEADERS) % chance.choice(_SHAPES)
        header += " " * chance.choice((0, 10, 64, 300)) + chance.choice(("\n", "", "\n\n", "\0"))
        version = chance.choice((b"\1\0", b"\1\0", b"\2\0", b"\xff\xff"))
        stated = len(header) if chance.random() < 0.8 else chance.choice((0, 1, 0xFFFF, len(header) + 1))
        data = bytearray(b"\x93NUMPY" + version + stated.to_bytes(2, "little") + header.encode())
        data += bytes(chance.choice((0, 1, 12, 24, 96, 4_096)))
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        at = chance.randrange(len(data))
        data[at : at + chance.choice((0, 1, 1, 4))] = chance.choice((b"", b"\0", b"\xff", b"9", b" ", bytes(8)))
    return bytes(data)


def read_array(data: bytes, _folder: Path) -> None:
    """Read an array as from a pack."""
    for dtype, dimensions in (("uint8", 4), ("float32", 2), ("float32", 1)):
        try:
            array = array_from_npy(data, dtype=dtype, dimensions=dimensions)
        except ValueError:
            if dimensions == 1:
                raise
        else:
            holds(array.nbytes < len(data) and array.ndim == dimensions, "more than the file holds")
            break


# ---- whole packs


def make_whole_pack(chance: random.Random) -> bytes:
    """Make a signed pack as JSON: manifest and content of its files. Some files are links, folders or absent."""
    document = chance.choice(_manifests())
    files = document["files"]
    contents = {name: chance.choice((b"TFL3", make_array(chance), b"# A card\n", b"\xff")) for name in files}
    listed = {
        role: {**files[role], "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for role, data in contents.items()
        if data
    }
    document = broken({**document, "files": listed}, chance, places=chance.choice((0, 0, 0, 1)))
    names = {files[role]["name"]: data for role, data in contents.items()}
    if chance.random() < 0.3:
        names[chance.choice(_FILES)] = b"beside"
    kinds = {name: chance.choice(("file",) * 30 + ("link", "folder", "absent", "longer", "fifo")) for name in names}
    manifest = json_bytes(document, chance)
    entries = {name: [kinds[name], data.hex()] for name, data in names.items()}
    return json.dumps({"manifest": manifest.hex(), "files": entries}).encode()


def read_pack(data: bytes, folder: Path) -> str | None:
    """Load a pack: signature, manifest, every listed file, and the arrays."""
    laid = json.loads(data)
    manifest = bytes.fromhex(laid["manifest"])
    with tempfile.TemporaryDirectory(dir=folder) as place:
        pack = Path(place)
        (pack / MANIFEST_NAME).write_bytes(manifest)
        (pack / SIGNATURE_NAME).write_bytes(signing.sign(manifest, key=key()))
        for name, (kind, content) in laid["files"].items():
            _lay(pack, name, kind, bytes.fromhex(content))
        with refusals() as why:
            found = verified.read_pack(pack)
            holds(all(len(data) < 2**20 for data in found.file_contents.values()), "more than the files hold")
    if why == ["pack_unreadable"]:
        raise Unforeseen("an error that a pack's door had to turn into a reason")
    return why[0] if why else None


def _lay(pack: Path, name: str, kind: str, data: bytes) -> None:
    """Write a file, link or folder next to the manifest. Impossible file names are left out."""
    try:
        path = pack / name
        if path.parent != pack or path.exists():
            return
        if kind == "link":
            path.symlink_to("/etc/hostname")
        elif kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind != "absent":
            path.write_bytes(data + b"x" * (kind == "longer"))
    except (OSError, ValueError):
        return

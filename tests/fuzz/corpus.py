"""Small inputs with which `make fuzz-structures` once found faults, and the outcome that each must have now."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fieldray.domain.finding import RefusedOutcome
from fieldray.domain.image import ImageRef
from fieldray.reasons import reason
from fieldray.store.rows import outcome_columns
from fuzz.structures.dicom_elements import Element, Encoding, Item, binary
from fuzz.structures.kept_files import OF_REQUEST, chunk_of, of_run, row_as_input
from fuzz.structures.messages import framed
from fuzz.structures.target import ACCEPTED

_EXPLICIT_PIXELS: Final = struct.pack("<HH4sI", 0x7FE0, 0x0010, b"OW", 2) + b"\0\0"
_DEEP: Final = b"[" * 3_000


@dataclass(frozen=True, slots=True)
class Case:
    """An input of a fuzz target, and its permitted outcomes."""

    target: str
    data: Callable[[], bytes]
    outcomes: tuple[str, ...]


def _explicit(tag: int, representation: bytes, value: bytes) -> bytes:
    """Return a data element with explicit value representation."""
    return struct.pack("<HH2sH", tag >> 16, tag & 0xFFFF, representation, len(value)) + value


def _jpeg_ls() -> bytes:
    """Return a 12-bit image whose JPEG-LS codestream has only headers and one zero byte, and no end marker."""
    size = ((0x00280010, 40), (0x00280011, 32), (0x00280100, 16), (0x00280101, 12), (0x00280102, 11))
    numbers = ((0x00280002, 1), *size, (0x00280103, 0))
    stream = b"\xff\xd8\xff\xf7\0\x0b\x0c\0\x28\0\x20\1\1\x11\0\xff\xda\0\x08\1\1\0\0\0\0\0"
    elements = [Element(tag, b"US", binary(b"US", number)) for tag, number in numbers]
    elements.insert(1, Element(0x00280004, b"CS", b"MONOCHROME2"))
    elements.append(Element(0x7FE00010, b"OB", [Item(b""), Item(stream)], is_undefined=True))
    meta = Encoding().written([Element(0x00020010, b"UI", b"1.2.840.10008.1.2.4.80")])
    return bytes(128) + b"DICM" + meta + Encoding().written(elements)


def _answer(kind: str, body: Mapping[str, Any], *arrays: tuple[str, str, list[int], bytes]) -> bytes:
    """Return a message from a child process with these arrays: name, type, shape, bytes."""
    listing = [list(array[:3]) for array in arrays]
    header = json.dumps({"body": {"call": "", "value": body}, "arrays": listing}).encode("ascii")
    return kind.encode("ascii") + b"\n" + framed(header, []) + b"".join(array[3] for array in arrays)


def _seen(**facts: Any) -> dict[str, Any]:
    problem = {"code": "truncated", "parameters": []}
    return {"facts": {"decode_ms": 1.0, "content_sha256": "0" * 64, **facts}, "problem": problem}


def _members(**changes: Any) -> dict[str, Any]:
    return {"refs": [{"path": "", "member": "a", "kind": "dicom", **changes}], "last_member": None}


def _result(**changes: Any) -> dict[str, Any]:
    """Return the database columns of a refused image. `changes` replace columns, or keys in a column's JSON."""
    refused = RefusedOutcome(ref=ImageRef(path=Path("/a.dcm"), kind="dicom"), reason=reason("blank"))
    row = outcome_columns(refused)
    for name, change in changes.items():
        row[name] = json.dumps({**json.loads(row[name]), **change}) if isinstance(change, dict) else change
    return row


def _row(**changes: Any) -> bytes:
    """Return the columns of `_result` as a database row joined with its run."""
    joined = of_run()
    row = {**_result(**changes), **joined, **{name: changes[name] for name in changes if name in joined}}
    return row_as_input("result", row)


def _chunk(**changes: Any) -> bytes:
    """Return one result as the Parquet file that a worker of an archive sends."""
    return chunk_of([{**_result(**changes), **OF_REQUEST}])


CASES: Final[Mapping[str, Case]] = {
    # numbers outside of the range of a DICOM header: they became numbers of hundreds of digits
    "rows of three hundred digits": Case(
        "dicom-header",
        lambda: _explicit(0x00080060, b"CS", b"DX") + _explicit(0x00280010, b"DS", b"1e300 ") + _EXPLICIT_PIXELS,
        (ACCEPTED,),
    ),
    # the decoder noticed the missing end only after a counter of 31 bits had overflowed
    "a codestream of JPEG-LS without an end": Case("dicom-pixels", _jpeg_ls, ("damaged",)),
    # an error of msgspec quotes a key that looks like the path to a fault: the program looked that path up and failed
    "a key that looks like a place": Case(
        "manifest",
        lambda: b'{"kind":"lung-fields","schema_version":2,"descriptions":{"en":"."}," - at `.s[...]":1}',
        ("pack_manifest",),
    ),
    # answers of a child: a value of a wrong type reached the store, or the list of zip members never ended
    "a hash that is an object": Case("answers", lambda: _answer("look", _seen(content_sha256={})), ("ValueError",)),
    "rows below none": Case("answers", lambda: _answer("look", _seen(rows=-1)), ("ValueError",)),
    "a thumbnail that is no picture": Case(
        "answers", lambda: _answer("look", _seen(thumbnail="0"), ("0", "int64", [1], bytes(8))), ("ValueError",)
    ),
    "members without end": Case(
        "answers", lambda: _answer("members", _members(header={"number_of_frames": 10**18})), ("ValueError",)
    ),
    "a member without a name": Case("answers", lambda: _answer("members", _members(member=None)), ("ValueError",)),
    "a member of a name that no system has": Case(
        "answers", lambda: _answer("members", _members(member="\ud800")), ("ValueError",)
    ),
    # invalid messages of a divided training; two of them ended a thread
    "a header without bounds": Case("channel", lambda: struct.pack("!I", 2**31), ("ValueError",)),
    "a header that is no JSON": Case("channel", lambda: struct.pack("!I", 4) + b"nope", ("ValueError",)),
    "more numbers than are taken": Case("channel", lambda: struct.pack("!I", 15) + b'{"values":2000}', ("ValueError",)),
    "numbers below none": Case("channel", lambda: struct.pack("!I", 13) + b'{"values":-1}', ("ValueError",)),
    "true numbers": Case("channel", lambda: struct.pack("!I", 15) + b'{"values":true}', ("ValueError",)),
    "a greeting of lists in lists": Case(
        "channel", lambda: struct.pack("!I", 1_016) + b'{"token":' + b"[" * 1_007, ("ValueError",)
    ),
    # files in the program's own folders that ended a command, or the program at its start
    "remembered folders with lists in lists": Case(
        "kept-files",
        lambda: (
            b'folders.json\n{"' + b"0123456789abcdef" * 4 + b'": {"pack": "p", "x": ' + _DEEP + b"]" * 3_000 + b"}}"
        ),
        (ACCEPTED,),
    ),
    "an archive that is a number": Case("kept-files", lambda: b"archive.json\n1", ("archive_damaged",)),
    "an archive of lists in lists": Case("kept-files", lambda: b"archive.json\n" + _DEEP, ("archive_damaged",)),
    "a merged run without bounds": Case("kept-files", lambda: b'merged.json\n{"run": Infinity}', (ACCEPTED,)),
    "a journal of lists in lists": Case(
        "kept-files", lambda: b"journal.jsonl\n" + _DEEP + b"\n", ("workflow_journal",)
    ),
    # database rows that became results with values of a wrong type
    "a whole row": Case("rows", _row, (ACCEPTED,)),
    "a name in a header that is a number": Case("rows", lambda: _row(header={"patient_name": 1}), ("ValueError",)),
    "a decision that nobody makes": Case(
        "rows", lambda: _row(status="screened", findings='[["opacity",0.5,"x",null]]'), ("ValueError",)
    ),
    "details of lists in lists": Case("rows", lambda: _row(findings=_DEEP.decode("ascii")), ("ValueError",)),
    # results of a worker that ended the driver of an archive
    "results that are damaged": Case(
        "chunks", lambda: _chunk().replace(b"\x15\x04\x19", b"\xff\xff\xff"), ("ValueError",)
    ),
    "a result with rows that are a text": Case("chunks", lambda: _chunk(header={"rows": "1"}), ("ValueError",)),
}

"""Generated messages between processes: frames, answers of child processes, messages of a divided training."""

from __future__ import annotations

import functools
import io
import json
import random
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from fieldray.comparison.compare import COMPARE
from fieldray.domain.comparison import ComparisonProblem
from fieldray.domain.finding import RefusedOutcome
from fieldray.domain.image import ImageRef
from fieldray.domain.model import HeaderRules, InputSpec
from fieldray.imaging.archive import FoundMembers, image_refs_in_zip
from fieldray.imaging.synthetic import chest_phantom
from fieldray.inference.backend import NetworkOutput
from fieldray.inference.worker import RUN_NETWORK
from fieldray.processes.child import decode_message, encode_message
from fieldray.processes.wire import Message, read_message, write_message
from fieldray.reasons import reason
from fieldray.store.rows import image_key, outcome_columns, outcome_of
from fieldray.workers import calls
from fieldray.workers.image_worker import handle
from fuzz.structures.dicom_files import PLACES
from fuzz.structures.target import Unforeseen, holds, refusals
from fuzz.structures.values import INTEGERS, broken, json_bytes, strange
from lungs import lungs
from pairs import pair_comparison
from phantoms import scaled, write_dicom

_REF: Final = ImageRef(path=Path("a.dcm"))
_SPEC: Final = InputSpec(height=16, width=16)
_MOST_BYTES: Final = 2**20
_DTYPES: Final = ("uint8", "int8", "uint16", "int32", "int64", "float32", "float64")


@dataclass(frozen=True, eq=False, slots=True)
class _Shaped:
    """An array in a message: stated name, type and shape, and its bytes, which need not fit."""

    name: Any
    dtype: Any
    shape: Any
    data: bytes


def framed(header: bytes, arrays: list[_Shaped], *, length: int | None = None) -> bytes:
    """Return a message: the header's length (`length` if given), the header, the bytes of the arrays."""
    stated = len(header) if length is None else length
    return struct.pack("<I", stated % 2**32) + header + b"".join(array.data for array in arrays)


# ---- frames


def make_frame(chance: random.Random) -> bytes:
    """Make a message with a few values and arrays."""
    body = chance.choice(({"a": [1, None, "x"], "b": {"c": 0.5}}, {"ready": True}, {}))
    arrays = [_array(chance, f"array{number}") for number in range(chance.choice((0, 1, 1, 2, 3)))]
    return _framed(body, arrays, chance)


def _array(chance: random.Random, name: str) -> _Shaped:
    shape = [chance.choice((0, 1, 2, 3, 16)) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
    array = np.zeros(shape, chance.choice(_DTYPES))
    return _Shaped(name, array.dtype.name, shape, array.tobytes())


def _framed(body: Any, arrays: list[_Shaped], chance: random.Random) -> bytes:
    """Return the message, broken at a few places of its header, values and array bytes."""
    document: Any = {"body": body, "arrays": [[array.name, array.dtype, array.shape] for array in arrays]}
    text_places, stated = 0, None
    for _ in range(chance.choice(PLACES)):
        way = chance.randrange(8)
        if way <= 1 and isinstance(document, dict):
            document = broken(document, chance, places=1)
        elif way <= 4 and isinstance(document, dict) and document.get("arrays"):
            document = {**document, "arrays": _listing(document["arrays"], chance)}
        elif way == 5:
            text_places = 1
        elif way == 6 and arrays:
            index = chance.randrange(len(arrays))
            arrays[index] = replace(arrays[index], data=arrays[index].data[:-1] * chance.choice((0, 1, 2)))
        else:
            stated = chance.choice((0, 1, 2, 0xFF, 2**24, 2**24 + 1, 2**31, 2**32 - 1))
    return framed(json_bytes(document, chance, places=text_places), arrays, length=stated)


def _listing(listing: Any, chance: random.Random) -> Any:
    """Return the list of arrays with a wrong name, type or shape in one entry."""
    if not isinstance(listing, list) or not listing:
        return strange(chance)
    entry = chance.choice(listing)
    entry = list(entry) if isinstance(entry, list) else strange(chance)
    way = chance.randrange(5)
    if isinstance(entry, list) and len(entry) == 3:
        if way == 0:
            entry[2] = [chance.choice(INTEGERS) for _ in range(chance.choice((1, 2, 3, 33, 70)))]
        elif way == 1:
            entry[2] = [chance.choice((0, 0, 1, 2**62, 10**30)) for _ in range(chance.choice((1, 2, 65)))]
        elif way == 2:
            entry[2] = strange(chance)
        elif way == 3:
            entry[1] = chance.choice((*_DTYPES, "object", "O", "", None, "float16", "complex64", "S1000000000"))
        else:
            entry[0] = strange(chance)
    others = listing[:3] * chance.choice((1, 1, 1, 2, 200))
    others[chance.randrange(len(others))] = entry
    return others


def read_frame(data: bytes, _folder: Path) -> str | None:
    """Read a message as every process does."""
    stream = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
    message = read_message(stream)
    if message is None:
        return "ended"
    size = sum(array.nbytes for array in message.arrays.values())
    holds(size <= len(data), "arrays of more than was sent")
    write_message(io.BytesIO(), message)
    return None


# ---- answers of children


@functools.cache
def _answers() -> tuple[tuple[str, Message], ...]:
    """Return valid answers of child processes by the kind of question."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        image = chest_phantom(160, 128, 7, abnormal=False)
        path = write_dicom(folder / "a.dcm", image)
        write_dicom(folder / "ct.dcm", image, changes={"Modality": "CT"})
        (folder / "text").write_bytes(b"no image")
        found: list[tuple[str, Message]] = []
        rules = HeaderRules(modalities=("DX",), body_parts=(), views=())
        for name in ("a.dcm", "ct.dcm", "text"):
            look = calls.AnalysisRequest(ref=ImageRef(path=folder / name), whole_image_input_spec=_SPEC, rules=rules)
            found.append(("look", handle(encode_message((look,), call="look"))))
        show = calls.DisplayRequest(ref=ImageRef(path=path), longer_side_px=64)
        found += [(name, handle(encode_message(show, call=name))) for name in ("image", "shown", "hash")]
    (seen,) = decode_message(found[0][1], tuple[calls.AnalysisResult, ...])
    answered = replace(seen, input_values=None, lungs=lungs(), network_output=_scores(), classifier_run_count=3)
    found += [("look", encode_message(each)) for each in ((answered,), (answered, seen))]
    found.append(("members", encode_message(_members())))
    found.append(("preview", encode_message(calls.PreviewResult(scaled(image, 8)[:64, :64]))))
    found.append(("run", encode_message(_scores())))
    found += [("comparison", each) for each in _comparisons()]
    return tuple(found)


def _members() -> FoundMembers:
    one = replace(_REF, zip_member="a", kind="dicom", header=replace(_REF.header, number_of_frames=2))
    refused = replace(_REF, zip_member="b", problem=reason("empty"))
    return FoundMembers(refs=(one, refused), last_member=None, duplicate_count=1, duplicate_name="x")


def _scores() -> NetworkOutput:
    maps = {"class_maps": np.ones((1, 4, 4), np.float32), "features": np.ones(8, np.float32)}
    return NetworkOutput(scores=np.array([0.5], np.float32), latency_ms=1.5, **maps)


def _comparisons() -> tuple[Message, Message]:
    """Return a comparison with a picture of the differences, and one without."""
    pair = replace(pair_comparison(regions=1), reliability=1.2)
    assert pair.aligned_pair
    problem, rejected = ComparisonProblem(reason=reason("compare_other_patients")), pair.aligned_pair.alignment
    return encode_message(pair), encode_message(
        replace(pair, aligned_pair=None, problem=problem, rejected_alignment=rejected, reliability=None)
    )


def make_answer(chance: random.Random) -> bytes:
    """Make an input for `read_answer`: a kind of question on the first line, then an answer."""
    kind, message = chance.choice(_answers())
    arrays = [
        _Shaped(name, array.dtype.name, list(array.shape), b"" if array.nbytes > 2**16 else array.tobytes())
        for name, array in message.arrays.items()
    ]
    return kind.encode("ascii") + b"\n" + _framed(message.body, arrays, chance)


def _answer_without_bytes(data: bytes) -> io.BytesIO:
    """Return a stream of the message, with zeros as the bytes of large arrays, which the inputs leave out."""
    try:
        (length,) = struct.unpack("<I", data[:4])
        listing = json.loads(data[4 : 4 + length])["arrays"]
        large = sum(
            np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in listing if np.prod(shape) > 2**14
        )
    except Exception:  # an invalid message is for the reader to refuse
        large = 0
    return io.BytesIO(data + bytes(large if 0 < large < 8 * 2**20 else 0))


def read_answer(data: bytes, _folder: Path) -> str | None:
    """Read an answer of a child process, which a hostile file may have taken over."""
    kind, _, answer = data.partition(b"\n")
    message = read_message(_answer_without_bytes(answer))
    if message is None:
        return "ended"
    _TAKEN.get(kind.decode("latin-1"), _read_and_kept)(message)
    return None


def _listed(answer: Message) -> None:
    """Read a list of zip members. Each must have a valid key. The part is made the last, else the loop never ends."""
    part = replace(calls.SEARCH_ZIP_MEMBERS.decode_answer(answer), last_member=None)
    for ref in image_refs_in_zip(_REF, lambda _question: part):
        image_key(ref)


def _read_and_kept(answer: Message) -> None:
    """Read the facts of an image. They must survive being stored."""
    for seen in calls.ANALYSE_IMAGE.decode_answer(answer):
        ref = _REF if seen.header is None else replace(_REF, kind=seen.kind, header=seen.header)
        kept = RefusedOutcome(ref=ref, reason=seen.problem or reason("blank"), facts=seen.facts, lungs=seen.lungs)
        columns = outcome_columns(kept)
        try:
            outcome_of(columns, None)
        except Exception as error:
            raise Unforeseen(f"a result that cannot be read again: {error!r}") from error


_TAKEN: Final[Mapping[str, Callable[[Message], object]]] = {
    "look": _read_and_kept,
    "image": lambda answer: calls.READ_IMAGE.decode_answer(answer).reduced_size,
    "shown": lambda answer: calls.READ_SHOWN_IMAGE.decode_answer(answer).pixels.shape,
    "hash": calls.HASH_FILE.decode_answer,
    "members": _listed,
    "preview": calls.DECODE_PREVIEW.decode_answer,
    "run": RUN_NETWORK.decode_answer,
    "comparison": COMPARE.decode_answer,
}


# ---- a divided training


class _Sent:
    """A fake socket that receives these bytes and is then closed."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def setsockopt(self, *_: object) -> None:
        """Do nothing."""

    def settimeout(self, _seconds: float | None) -> None:
        """Do nothing, because no read waits."""

    def recv_into(self, room: memoryview) -> int:
        """Read the next bytes."""
        return self._stream.readinto(room)


def make_channel_message(chance: random.Random) -> bytes:
    """Make a message with a header and numbers: a greeting, or a message of an authenticated process."""
    header: Any = chance.choice(({"token": "x" * 20, "role": "worker"}, {"wants": 3, "step": 1}, {}))
    numbers = chance.choice((0, 0, 4, 100))
    header = {**header, "values": chance.choice((numbers,) * 6 + (*INTEGERS, "4", None, 1.5, True))}
    header = broken(header, chance, places=chance.choice(PLACES))
    text = json_bytes(header, chance, places=chance.choice((0, 0, 0, 1)))
    stated = len(text) if chance.random() < 0.9 else chance.choice((0, 1, 1_024, 1_025, 2**22, 2**22 + 1, 2**32 - 1))
    return struct.pack("!I", stated) + text + bytes(4 * numbers)


def read_channel(data: bytes, _folder: Path) -> None:
    """Read a greeting as a parameter server does, and a message as servers and workers do."""
    from fieldray_cluster.training.channel import Channel

    with refusals(ValueError, ConnectionError):
        Channel(_Sent(data), largest=1_000).receive_hello()  # type: ignore[arg-type]
    Channel(_Sent(data), largest=1_000).receive()  # type: ignore[arg-type]

"""The corpus that is kept: for each target, small inputs that together reach what was ever reached of the program.

A zip for each, in `tests/fuzz/kept`. They were made by `run_guided.py` out of nothing but structures that targets make;
no image of a person is among them.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fuzz.structures.reading import Reader
from fuzz.structures.target import Target

KEPT: Final = Path(__file__).with_name("kept")
LARGEST: Final = 2**14
_CODE: Final = "/app/fieldray/"
_LONGEST_S: Final = 60.0  # watching each line is slow


def inputs_of(target: str) -> list[bytes]:
    """The kept inputs of a target, none where none were kept yet."""
    path = KEPT / f"{target}.zip"
    if not path.is_file():
        return []
    with zipfile.ZipFile(path) as packed:
        return [packed.read(name) for name in packed.namelist()]


def keep(target: Target, pool: Iterable[bytes]) -> int:
    """Keep those of these inputs, and of the kept ones, that `needed` gives; returns how many they are."""
    chosen = {_name(data): data for data in needed(target, {*pool, *inputs_of(target.name)})}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in sorted(chosen.items()):
            packed.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{target.name}.zip").write_bytes(stream.getvalue())
    return len(chosen)


def needed(target: Target, pool: Iterable[bytes]) -> Iterator[bytes]:
    """The smallest inputs that reach a step from line to line, or an outcome, that no smaller one reaches.

    What is found something about, and what is longer than `LARGEST`, is left out.
    """
    known: set[object] = set()
    with tempfile.TemporaryDirectory() as folder, Reader(target, Path(folder), longest_s=_LONGEST_S) as reader:
        reader.warm()
        for data in sorted((data for data in pool if len(data) <= LARGEST), key=lambda data: (len(data), data)):
            if reader.problem(data):
                continue
            reached: set[object] = set()
            with _watched(reached):
                reached.add(reader.read(data))
            if reached - known:
                known |= reached
                yield data


@contextmanager
def _watched(reached: set[object]) -> Iterator[None]:
    """Add each step from line to line in the program's code."""
    last: dict[FrameType, int] = {}

    def of_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return of_line if _CODE in frame.f_code.co_filename else None

    def of_line(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            reached.add((frame.f_code, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        elif event == "return":
            last.pop(frame, None)
        return of_line

    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]

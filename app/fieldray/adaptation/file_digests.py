"""The content of every file of a data set as a SHA-256, worked out once for each state of a file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fieldray.adaptation.digest import digest
from fieldray.adaptation.files import write_atomically
from fieldray.adaptation.layouts import Row, read_source
from fieldray.adaptation.recipe_data import Source

CACHE: Final = "digests.json"
# A file changed within a clock's tick of being read looks unchanged; 2 s is the coarsest tick there is (FAT).
_SETTLED_NS: Final = 2 * 10**9


def read_rows(sources: Iterable[Source], *, folder: Path, now_ns: Callable[[], int] = time.time_ns) -> list[Row]:
    """The rows of all sources, each with the SHA-256 of its file ("" where that cannot be read).

    folder    keeps the digests, each for as long as the file's size, times and number are what they were
    now_ns    the time as files have it, in nanoseconds
    Raises what `layouts.read_source` raises, StorageProblem.
    """
    rows, path = [row for source in sources for row in read_source(source)], folder / CACHE
    before: dict[str, list[Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    known, digests = dict(before), []
    for row in rows:
        digests.append(_digest_of(row.path, known, now_ns))
    if known != before:
        write_atomically(path, json.dumps(known).encode())
    return [replace(row, sha256=found) for row, found in zip(rows, digests, strict=True)]


def rows_digest(rows: Sequence[Row]) -> str:
    """What the rows say and what their files hold, in their order; where the files lie does not count."""
    return digest([replace(row, path=Path(), origin="") for row in rows])


def content_digest(path: Path) -> str:
    """SHA-256 of a file's content as hexadecimal text; "" where it cannot be read."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def _digest_of(path: Path, known: dict[str, list[Any]], now_ns: Callable[[], int]) -> str:
    """The file's digest, from `known` or put there; what was changed just now is never taken for settled."""
    try:
        facts = path.stat()
    except OSError:
        return ""
    state = [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]
    kept = known.get(str(path))
    if kept is not None and kept[:-1] == state:
        return str(kept[-1])
    looked_ns, found = now_ns(), content_digest(path)
    if found and looked_ns - max(facts.st_mtime_ns, facts.st_ctime_ns) > _SETTLED_NS:
        known[str(path)] = [*state, found]
    else:
        known.pop(str(path), None)
    return found

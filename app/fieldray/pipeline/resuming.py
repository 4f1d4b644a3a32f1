"""What a run takes over from earlier ones, and how it knows that a file is the one that was judged then.

`Unchanged` knows a file at its place by its stamp: size, times, and a keyed part of its content (see `imaging.source`).
Such a file is not even identified, and the results of hundreds are taken over at once. `Earlier` knows everything else
by the whole of its content, wherever it lies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from fieldray.domain.finding import Outcome, Screened, asked_for
from fieldray.domain.run import RunSpec
from fieldray.domain.study import ImageRef
from fieldray.errors import FieldrayError, StorageProblem
from fieldray.imaging.source import Stamps
from fieldray.store.results import ResultQuery
from fieldray.workers.pool import PoolClosed

if TYPE_CHECKING:
    from fieldray.pipeline.batch import Work

_BUNDLE: Final = 256
_MOST_WAIT_S: Final = 0.2  # for a bundle to become full, while a person looks on
_MOST_RUNS: Final = 8  # that are looked through for a file, the newest first
_AT_ONCE: Final = 1024
_ANY_ROW: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """Rows of results to be taken over: of the run itself, and of other runs."""

    own: tuple[int, ...]
    others: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.own) + len(self.others)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Earlier:
    """The outcomes of the same work in the rows up to `last_row`, by content; where folders are watched, in all."""

    work: Work
    last_row: int

    def outcome(self, ref: ImageRef, query: ResultQuery) -> Outcome | None:
        """That of the same bytes, as one of this image; None if there is none.

        The bytes that are hashed here may be others than discovery saw. So only what was found with the very header
        that discovery saw is taken over, and no score of an image whose header is refused, unless a person overruled
        that. Raises StorageProblem, PoolClosed.
        """
        if ref.problem:
            return None
        try:
            content_sha256, stamp = self.work.content_hash(ref)
        except (StorageProblem, PoolClosed):
            raise
        except (OSError, FieldrayError):
            return None  # the decoder will report what is wrong with the file
        last_row = _ANY_ROW if self.work.watch else self.last_row
        known = query.earlier(self.work.spec, content_sha256=content_sha256, frame=ref.frame, up_to_row_id=last_row)
        if known is None or known.ref.header != ref.header:
            return None
        if isinstance(known, Screened) and not asked_for(known) and self.work.check_header(ref.header) is not None:
            return None
        return replace(known, ref=replace(ref, turn=known.ref.turn), facts=replace(known.facts, stamp=stamp))


class Unchanged:
    """Tells files that have not changed, and hands the rows of their results over; for the thread that searches.

    hand_over  takes a bundle
    """

    def __init__(
        self, query: ResultQuery, run_id: int, spec: RunSpec, *, stamps: Stamps, hand_over: Callable[[Bundle], None]
    ) -> None:
        same = (spec.model_sha256, spec.settings_hash)
        others = [run for run in query.runs() if run.run_id != run_id]
        like = [run.run_id for run in others if (run.spec.model_sha256, run.spec.settings_hash) == same]
        self._runs = [_FilesOfRun(query, found) for found in (run_id, *like[:_MOST_RUNS])]
        self._stamps, self._hand_over = stamps, hand_over
        self._own: list[int] = []
        self._others: list[int] = []
        self._due_s = 0.0

    def has(self, path: Path, stream: BinaryIO) -> bool:
        """Whether an open file is one of them; its image needs nothing more then. Raises OSError."""
        key = os.fsencode(path)
        for run, rows in zip(self._runs, (self._own, *[self._others] * len(self._runs)), strict=False):
            if found := run.find(key):
                row_id, stamp = found
                if stamp and self._stamps.now(path, stream) == stamp:
                    self._add(rows, row_id)
                    return True
                return False
        return False

    def flush(self) -> None:
        """Hand over what there is."""
        if bundle := Bundle(tuple(self._own), tuple(self._others)):
            self._own.clear()
            self._others.clear()
            self._hand_over(bundle)

    def _add(self, rows: list[int], row_id: int) -> None:
        if not self._own and not self._others:
            self._due_s = time.monotonic() + _MOST_WAIT_S
        rows.append(row_id)
        if len(self._own) + len(self._others) >= _BUNDLE or time.monotonic() > self._due_s:
            self.flush()


class _FilesOfRun:
    """The files of a run, best asked for in the order of their names: then the store is asked once for a thousand."""

    def __init__(self, query: ResultQuery, run_id: int) -> None:
        self._query, self._run_id = query, run_id
        self._known: dict[bytes, tuple[int, bytes | None]] = {}
        self._first, self._last, self._is_end = b"", b"", False

    def find(self, key: bytes) -> tuple[int, bytes | None] | None:
        """Row and stamp; None where the run has no such file."""
        if not (self._first <= key and (self._is_end or key <= self._last)):
            found = self._query.stamped(self._run_id, key, limit=_AT_ONCE)
            self._known = {name: (row_id, stamp) for name, row_id, stamp in found}
            self._first, self._is_end = key, len(found) < _AT_ONCE
            self._last = found[-1][0] if found else key
        return self._known.get(key)

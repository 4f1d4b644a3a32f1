"""What a run takes over from earlier ones, and how it knows that a file is the one that was judged then.

`Unchanged` knows a file at its place by its stamp: size, times, and a keyed part of its content (see `imaging.source`).
Such a file is not even identified, and the results of hundreds are taken over at once. `Earlier` knows everything else
by the whole of its content, wherever it lies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from fieldray.domain.finding import Outcome, Screened, asked_for
from fieldray.domain.run import Run, RunSpec
from fieldray.domain.study import ImageRef
from fieldray.errors import FieldrayError, StorageProblem
from fieldray.imaging.source import Stamps
from fieldray.store.results import ResultQuery
from fieldray.workers.pool import PoolClosed

if TYPE_CHECKING:
    from fieldray.pipeline.batch import Work
    from fieldray.pipeline.keeping import PackWork

_BUNDLE: Final = 256
_MOST_WAIT_S: Final = 0.2  # for a bundle to become full, while a person looks on
_MOST_RUNS: Final = 8  # that are looked through for a file, the newest first
_AT_ONCE: Final = 1024
_ANY_ROW: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """Rows of results to be taken over: by pack, of the run itself, and of other runs."""

    own: tuple[tuple[int, ...], ...]
    others: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.own[0]) + len(self.others[0])


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Earlier:
    """The outcomes of the same work in the rows up to `last_row`, by content; where folders are watched, in all."""

    work: Work
    last_row: int

    def outcomes(self, ref: ImageRef, query: ResultQuery) -> list[Outcome | None]:
        """By pack, that of the same bytes, as one of this image; None if there is none.

        The bytes that are hashed here may be others than discovery saw. So only what was found with the very header
        that discovery saw is taken over, and no score of an image whose header is refused, unless a person overruled
        that. Raises StorageProblem, PoolClosed.
        """
        packs = self.work.packs
        if ref.problem:
            return [None] * len(packs)
        try:
            content_sha256, stamp = self.work.content_hash(ref)
        except (StorageProblem, PoolClosed):
            raise
        except (OSError, FieldrayError):
            return [None] * len(packs)  # the decoder will report what is wrong with the file
        found = (self._outcome(pack, ref, query, content_sha256) for pack in packs)
        return [one and replace(one, facts=replace(one.facts, stamp=stamp)) for one in found]

    def _outcome(self, pack: PackWork, ref: ImageRef, query: ResultQuery, content_sha256: str) -> Outcome | None:
        last_row = _ANY_ROW if self.work.watch else self.last_row
        known = query.earlier(pack.spec, content_sha256=content_sha256, frame=ref.frame, up_to_row_id=last_row)
        if known is None or known.ref.header != ref.header:
            return None
        if isinstance(known, Screened) and not asked_for(known) and pack.check_header(ref.header) is not None:
            return None
        return replace(known, ref=replace(ref, turn=known.ref.turn))


class Unchanged:
    """Tells files that have not changed, and hands the rows of their results over; for the thread that searches.

    runs       of each pack: its number, and what it was asked for
    hand_over  takes a bundle
    """

    def __init__(
        self,
        query: ResultQuery,
        runs: Sequence[tuple[int, RunSpec]],
        *,
        stamps: Stamps,
        hand_over: Callable[[Bundle], None],
    ) -> None:
        known = query.runs()
        self._packs = [_FilesOfPack(query, known, run_id, spec) for run_id, spec in runs]
        self._stamps, self._hand_over = stamps, hand_over
        self._due_s = 0.0

    def has(self, path: Path, stream: BinaryIO) -> bool:
        """Whether an open file is one of them for every pack; its image needs nothing more then. Raises OSError."""
        key = os.fsencode(path)
        found = [pack.find(key) for pack in self._packs]
        stamps = {one.stamp if one else None for one in found}
        if len(stamps) > 1 or not (stamp := stamps.pop()) or self._stamps.now(path, stream) != stamp:
            return False
        if not self._waiting:
            self._due_s = time.monotonic() + _MOST_WAIT_S
        for pack, one in zip(self._packs, found, strict=True):
            if one:
                (pack.own if one.is_own else pack.others).append(one.row_id)
        if self._waiting >= _BUNDLE or time.monotonic() > self._due_s:
            self.flush()
        return True

    @property
    def _waiting(self) -> int:
        return len(self._packs[0].own) + len(self._packs[0].others)

    def flush(self) -> None:
        """Hand over what there is."""
        if self._waiting:
            own, others = zip(*(pack.taken() for pack in self._packs), strict=True)
            self._hand_over(Bundle(own, others))


@dataclass(frozen=True, slots=True)
class _Known:
    """A result of a file in the store, and the stamp of the file then."""

    row_id: int
    stamp: bytes | None
    is_own: bool


class _FilesOfPack:
    """The files that a pack has results of, in its run and in earlier ones of the same work; and the rows that wait."""

    def __init__(self, query: ResultQuery, known: Sequence[Run], run_id: int, spec: RunSpec) -> None:
        same = (spec.model_sha256, spec.settings_hash)
        others = [run for run in known if run.run_id != run_id]
        like = [run.run_id for run in others if (run.spec.model_sha256, run.spec.settings_hash) == same]
        self._runs = [_FilesOfRun(query, found) for found in (run_id, *like[:_MOST_RUNS])]
        self.own: list[int] = []
        self.others: list[int] = []

    def find(self, key: bytes) -> _Known | None:
        """The newest result of the file with this key; None where there is none."""
        for place, run in enumerate(self._runs):
            if found := run.find(key):
                return _Known(*found, is_own=not place)
        return None

    def taken(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rows that wait, of the run and of others: they wait no more."""
        rows = tuple(self.own), tuple(self.others)
        self.own.clear()
        self.others.clear()
        return rows


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

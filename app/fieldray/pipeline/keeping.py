"""What a run asks of its store: that it can be read, takes what came out, and holds what was saved.

What it takes over from earlier runs is known in two ways. `Unchanged` knows a file at its place by its stamp: size,
times, and a keyed part of its content (see `imaging.source`). Such a file is not even identified, and the results of
hundreds are taken over at once. `Earlier` knows everything else by the whole of its content, wherever it lies.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

from fieldray.domain.assessment import Assessment
from fieldray.domain.finding import ASKED_FOR, Outcome, ResultKind, Screened, asked_for, counted_as, without_preview
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.model import Manifest
from fieldray.domain.run import Event, OutcomeReady, Publish, ResultsTakenOver, Run, RunSpec, RunState, StoreRepaired
from fieldray.errors import FieldrayError, StorageProblem, UsageProblem
from fieldray.imaging.quality import check_header
from fieldray.imaging.source import Stamps
from fieldray.paths import VERSION
from fieldray.reasons import Reason, reason
from fieldray.store.database import is_damage
from fieldray.store.maintenance import renew_pictures, repair
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.workers.pool import PoolClosed

if TYPE_CHECKING:
    from fieldray.pipeline.batch import Work


def open_store(database: Path, publish: Publish) -> ResultStore:
    """The store; a damaged one is set aside first, and a person is told. Raises StorageProblem."""
    with contextlib.suppress(StorageProblem):  # without pictures there is a run all the same
        if renewed := renew_pictures(database):
            publish(StoreRepaired(reason=renewed))
    try:
        return ResultStore(database)
    except StorageProblem as problem:
        if not is_damage(problem):
            raise
        if repaired := repair(database):  # or another program has done it
            publish(StoreRepaired(reason=repaired))
        return ResultStore(database)


def require_kept(store: ResultQuery, run_id: int, *, saved: int) -> None:
    """Require that all results of a run are in the store. Raises StorageProblem (results_lost).

    saved  the number of rows that the run was given
    """
    try:
        store.run(run_id)
        found = sum(store.counts(run_id).values())
    except UsageProblem:
        found = -1
    if found < saved:
        raise StorageProblem(reason("results_lost", path=store.path, found=max(found, 0), saved=saved))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PackWork:
    """What is told of one of the packs that go over the images.

    check_header  why an image with this header is refused, None if it is not
    doubts        what the results of a run with this number, all of them stored, say against the pack
    """

    spec: RunSpec
    check_header: Callable[[ImageHeader], Reason | None]
    doubts: Callable[[int], Sequence[Reason]] = lambda _run_id: ()

    @classmethod
    def of(cls, paths: Sequence[Path], assessment: Assessment, database: Path) -> Self:
        """What a pack does in a run over these paths."""
        model = assessment.model
        return cls(
            spec=spec_of(paths, assessment),
            check_header=partial(check_header, rules=model.manifest.accepted, finds_lungs=bool(model.lungs)),
            doubts=partial(_doubts, database, model.manifest),
        )


def _doubts(database: Path, manifest: Manifest, run_id: int) -> tuple[Reason, ...]:
    from fieldray.pipeline.auditing import doubts_of  # brings much along, and is wanted at the end of a run
    from fieldray.store.work_list import HistoryQuery

    with HistoryQuery(database) as query:
        return doubts_of(query, query.run(run_id), manifest)


def spec_of(paths: Sequence[Path | str], assessment: Assessment) -> RunSpec:
    """What a run over these absolute paths is known by."""
    model = assessment.model
    return RunSpec(
        paths=tuple(map(str, paths)),
        pack_name=model.pack_name,
        trust=model.trust,
        fingerprint=model.fingerprint,
        model_sha256=model.model_sha256,
        settings_hash=assessment.settings_hash,
        operating_points=tuple(point for point in assessment.points.values() if point),
        program_version=VERSION,
        lungs_pack=model.lungs_pack,
    )


_UNLIKE: Final = "unlike_measured"


class KeptRun:
    """The run of one of these packs in the store, and what is counted of it.

    number   of the pack
    watches  whether the run goes on with what comes: an image may be moved meanwhile
    """

    def __init__(
        self, pack: PackWork, run_id: int, *, number: int, last_row: int, keeps_previews: bool, watches: bool
    ) -> None:
        self.pack, self.run_id, self.number = pack, run_id, number
        self._before = self._last_row = last_row
        self._keeps_previews, self._watches = keeps_previews, watches
        self._saved = self._unlike = self._asked_for = self._by_sample = self._by_content = 0

    def save(self, store: ResultStore, outcome: Outcome, *, is_resumed: bool) -> Event:
        """Keep an outcome; what is to be told of it."""
        row_id = store.save(
            self.run_id,
            outcome,
            spec=self.pack.spec,
            is_resumed=is_resumed,
            keeps_preview=self._keeps_previews,
        )
        if self._watches and is_resumed:
            moved = store.leave_moved(self.run_id, row_id)
            self._saved -= sum(row > self._before for row in moved)  # those of before were not counted
        outcome = without_preview(outcome)
        self._note([row_id], [counted_as(outcome)])
        self._by_content += is_resumed
        return OutcomeReady(run_id=self.run_id, row_id=row_id, outcome=outcome, is_resumed=is_resumed, pack=self.number)

    def take_over(self, store: ResultStore, earlier: Sequence[int]) -> ResultsTakenOver:
        """Take over earlier results: rows of the run itself, and of other runs; what is to be told of them."""
        rows = store.take_over(self.run_id, earlier)
        kinds = store.kinds(rows)
        self._note(rows, kinds)
        self._by_sample += len(rows)
        return ResultsTakenOver(run_id=self.run_id, row_ids=rows, kinds=kinds, pack=self.number)

    def end(self, store: ResultStore, state: RunState, why: Reason | None) -> tuple[Reason, ...]:
        """Note that it is over; what a person should know of it."""
        if state != "finished":
            store.set_state(self.run_id, state, reason=why)
            return ()
        missing, taken_over = store.finish(self.run_id), self._by_sample + self._by_content
        taken = {"count": taken_over, "sampled": self._by_sample, "whole": self._by_content}
        return (
            *([reason("not_present", count=missing)] if missing else []),
            *([reason("taken_over", **taken)] if taken_over else []),
            *([reason("unlike_images", count=self._unlike)] if self._unlike else []),
            *([reason("asked_for_images", count=self._asked_for)] if self._asked_for else []),
        )

    def require_kept(self, store: ResultStore) -> None:
        """Require that all of it is in the store. Raises StorageProblem (results_lost)."""
        require_kept(store, self.run_id, saved=self._saved)

    def _note(self, rows: Sequence[int], kinds: Iterable[ResultKind]) -> None:
        new = [row for row in rows if row > self._last_row]  # one that was there before keeps its number
        self._last_row, self._saved = max(new, default=self._last_row), self._saved + len(new)
        for kind in kinds:
            self._unlike += kind.number * (_UNLIKE in kind.codes)
            self._asked_for += kind.number * (not ASKED_FOR.isdisjoint(kind.codes))


def outcomes_ready(store: ResultStore, taken: ResultsTakenOver) -> Iterable[Event]:
    """The same, told of each result."""
    for found in store.results(taken.row_ids, looks_inside=False):
        ready = OutcomeReady(run_id=taken.run_id, row_id=found.row_id, outcome=found.outcome, pack=taken.pack)
        yield replace(ready, is_resumed=True, is_sampled=True)


_BUNDLE: Final = 256
_MOST_WAIT_S: Final = 0.2  # for a bundle to become full, while a person looks on
_MOST_RUNS: Final = 8  # that are looked through for a file, the newest first
_AT_ONCE: Final = 1024
_ANY_ROW: Final = 2**63 - 1


Bundle = Sequence[tuple[int, ...]]  # by pack, rows of results to be taken over; one for each of the images


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Earlier:
    """The outcomes of the same work in the rows up to `last_row`, by content; where folders are watched, in all.

    Thread-safe: what `query` is used for here, one thread does after another.
    """

    work: Work
    last_row: int
    query: ResultQuery
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def outcomes(self, ref: ImageRef) -> list[Outcome | None]:
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
        found = (self._outcome(pack, ref, content_sha256) for pack in packs)
        return [one and replace(one, facts=replace(one.facts, stamp=stamp)) for one in found]

    def _outcome(self, pack: PackWork, ref: ImageRef, content_sha256: str) -> Outcome | None:
        last_row = _ANY_ROW if self.work.watch else self.last_row
        with self._lock:
            known = self.query.earlier(pack.spec, content_sha256=content_sha256, frame=ref.frame, up_to_row_id=last_row)
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
        self._packs = [
            [_FilesOfRun(query, one) for one in (run_id, *_alike(known, run_id, spec)[:_MOST_RUNS])]
            for run_id, spec in runs
        ]
        self._stamps, self._hand_over = stamps, hand_over
        self._waiting: list[tuple[int, ...]] = []  # by image, its row of each pack
        self._due_s = 0.0

    def has(self, path: Path, stream: BinaryIO) -> bool:
        """Whether an open file is one of them for every pack; its image needs nothing more then. Raises OSError."""
        key = os.fsencode(path)
        found = [next((one for run in pack if (one := run.find(key))), (0, None)) for pack in self._packs]
        stamps = {stamp for _, stamp in found}
        if len(stamps) > 1 or not (stamp := stamps.pop()) or self._stamps.now(path, stream) != stamp:
            return False
        if not self._waiting:
            self._due_s = time.monotonic() + _MOST_WAIT_S
        self._waiting.append(tuple(row_id for row_id, _ in found))
        if len(self._waiting) >= _BUNDLE or time.monotonic() > self._due_s:
            self.flush()
        return True

    def flush(self) -> None:
        """Hand over what there is."""
        if self._waiting:
            rows, self._waiting = self._waiting, []
            self._hand_over(list(zip(*rows, strict=True)))


def _alike(known: Sequence[Run], run_id: int, spec: RunSpec) -> list[int]:
    """The other runs with the same model and settings, in the order of those that are known."""
    same = (spec.model_sha256, spec.settings_hash)
    others = [run for run in known if run.run_id != run_id]
    return [run.run_id for run in others if (run.spec.model_sha256, run.spec.settings_hash) == same]


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

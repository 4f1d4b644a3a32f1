"""Saving a run's results in the results database, and finding results of earlier runs that can be reused.

Reusable results are found in two ways. `ResultsByFileStamp` recognises an unchanged file at an unchanged path by its
stamp: size, times, and a keyed hash of parts of its content (see `imaging.source`). A file with an equal stamp is not
read any further, and the results of hundreds of files are reused in one step. `ResultsByContent` recognises any other
file by a hash of its whole content, under any path. Both treat each pack separately: a run with two packs reuses
results of an earlier run with only one of these packs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from fieldray.domain.finding import (
    OVERRIDE_NOTE_CODES,
    FailedOutcome,
    Outcome,
    ResultCount,
    ScreenedOutcome,
    override_notes,
    result_count_of_outcome,
)
from fieldray.domain.image import ImageRef
from fieldray.domain.intended_use import update_age_notes
from fieldray.domain.run import (
    ImageDone,
    PackOfRun,
    Publish,
    ResultsTakenOver,
    Run,
    RunSpec,
    RunState,
    StoreRepaired,
)
from fieldray.errors import FieldrayError, StorageProblem, UsageProblem
from fieldray.imaging.source import FileStamper
from fieldray.reasons import Reason, reason
from fieldray.store.bookkeeping import ReusedResults
from fieldray.store.database import is_damage_problem
from fieldray.store.maintenance import delete_damaged_pictures, repair
from fieldray.store.results import ImageFileStamps, OutcomesAndReusedPositions, ResultQuery, ResultStore
from fieldray.workers.pool import PoolClosed

if TYPE_CHECKING:
    from fieldray.pipeline.batch_ports import BatchPorts
from fieldray.pipeline.batch_ports import BatchPack


def open_store(database: Path, publish: Publish) -> ResultStore:
    """Open the results database for writing. Raises StorageProblem.

    A damaged database is first replaced by a repaired one, and an event is published.
    """
    with contextlib.suppress(StorageProblem):  # a run does not need the database of pictures
        if renewed := delete_damaged_pictures(database):
            publish(StoreRepaired(reason=renewed))
    try:
        return ResultStore(database)
    except StorageProblem as problem:
        if not is_damage_problem(problem):
            raise
        if repaired := repair(database):  # otherwise another program repaired it
            publish(StoreRepaired(reason=repaired))
        return ResultStore(database)


def require_all_stored(store: ResultQuery, run_id: int, *, saved_image_count: int) -> None:
    """Require that the database has all images of a run. Raises StorageProblem (results_lost).

    saved_image_count  the number of images that the run has saved
    """
    try:
        store.run(run_id)
        found = store.number_of_images(run_id)
    except UsageProblem:
        found = -1
    if found < saved_image_count:
        raise StorageProblem(reason("results_lost", path=store.path, found=max(found, 0), saved=saved_image_count))


_UNLIKE: Final = "unlike_measured"
_MIN_FAILED: Final = 2  # for a single file, the work list shows the reason


class RunRecorder:
    """Saves the results of a run in the database, and counts results for the notes at the end of the run.

    last_row  highest row id of an image in the database when the run begins or is resumed
    watches   whether folders are watched, so that an image's file may be moved during the run
    """

    def __init__(self, spec: RunSpec, run_id: int, *, last_row: int, keeps_previews: bool, watches: bool) -> None:
        self.spec, self.run_id = spec, run_id
        self._before = self._last_row = last_row
        self._keeps_previews, self._watches = keeps_previews, watches
        self._saved = 0
        self._packs = [_PackCounts() for _ in spec.packs]
        self._failures, self._why_failed = Counter[str](), dict[str, Reason]()  # numbers and reasons by reason code

    def save(self, store: ResultStore, answered: Sequence[OutcomesAndReusedPositions]) -> list[ImageDone]:
        """Store the results of all packs for some images in one transaction. Returns the events to publish."""
        images = store.save_all(self.run_id, answered, spec=self.spec, keeps_preview=self._keeps_previews)
        self._count([image.row_id for image in images])
        for image, (answers, resumed) in zip(images, answered, strict=True):
            if self._watches and resumed:
                moved = store.mark_moved_images_absent(self.run_id, image.row_id)
                self._saved -= sum(row > self._before for row in moved)  # images of earlier passes were not counted
            if isinstance(failed := answers[0], FailedOutcome):
                self._failures[failed.reason.code] += 1
                self._why_failed.setdefault(failed.reason.code, failed.reason)
            for answer in image.results:
                self._packs[answer.pack_position].note([result_count_of_outcome(answer.outcome)])
                self._packs[answer.pack_position].reused_by_content += answer.is_reused
        return [ImageDone(image=image) for image in images]

    def reuse_results(self, store: ResultStore, reused: ReusedResults) -> ResultsTakenOver:
        """Store reused results of earlier runs for many images in this run. Returns the event to publish."""
        rows = store.reuse_results(self.run_id, reused)
        kinds = store.count_results(rows)
        self._count(rows)
        for counts, of_pack in zip(self._packs, kinds, strict=True):
            counts.note(of_pack)
            counts.reused_by_sample += len(rows)
        return ResultsTakenOver(run_id=self.run_id, row_ids=rows, result_counts=kinds)

    def end_run(self, store: ResultStore, state: RunState, why: Reason | None) -> tuple[RunNotes, tuple[RunNotes, ...]]:
        """Store the end of the run, with its state and the reason for a failure.

        why  the reason if the run failed, or None

        Returns the notes on the run, and the notes on the results of each pack.
        """
        if state != "finished":
            store.set_run_state(self.run_id, state, reason=why)
            return (), ()
        missing = store.finish_run(self.run_id)
        notes = (reason("not_present", count=missing),) if missing else ()
        return (*self._most_failed(), *notes), tuple(counts.notes for counts in self._packs)

    def _most_failed(self) -> RunNotes:
        """Return a note with the most frequent reason for failures, if most files of the run failed; else no note."""
        failed, number = self._failures.total(), self._packs[0].images
        if failed < _MIN_FAILED or 2 * failed <= number:
            return ()
        (code, _), *_others = self._failures.most_common(1)
        return (reason("most_failed", count=failed, of=number, why=self._why_failed[code].text),)

    def require_all_stored(self, store: ResultStore) -> None:
        """Require that the database has all images that this object saved. Raises StorageProblem (results_lost)."""
        require_all_stored(store, self.run_id, saved_image_count=self._saved)

    def _count(self, rows: Sequence[int]) -> None:
        new = {row for row in rows if row > self._last_row}  # an image of an earlier pass keeps its row id
        self._last_row, self._saved = max(new, default=self._last_row), self._saved + len(new)


RunNotes = tuple[Reason, ...]


@dataclass(eq=False, slots=True)
class _PackCounts:
    """Counts of a pack's results, for the notes at the end of a run.

    images               images with a result; other files are not counted
    out_of_distribution  images that the out-of-distribution check noted as unlike the pack's own
    overridden           images screened although the pack would refuse them, because a person asked for it
    read_first           images of the class *Read first* that the score alone would put in another class
    reused_by_sample     results reused because the stamp of the file is unchanged (see the module's description)
    reused_by_content    results reused because a file with equal content was screened earlier
    """

    images: int = 0
    out_of_distribution: int = 0
    overridden: int = 0
    read_first: int = 0
    reused_by_sample: int = 0
    reused_by_content: int = 0

    def note(self, kinds: Iterable[ResultCount]) -> None:
        for kind in kinds:
            self.images += kind.result_count * (kind.category != "not_an_image")
            self.out_of_distribution += kind.result_count * (_UNLIKE in kind.reason_and_note_codes)
            self.overridden += kind.result_count * (not OVERRIDE_NOTE_CODES.isdisjoint(kind.reason_and_note_codes))
            self.read_first += kind.legacy_model_read_first_count

    @property
    def notes(self) -> RunNotes:
        taken_over = self.reused_by_sample + self.reused_by_content
        taken = {"count": taken_over, "sampled": self.reused_by_sample, "whole": self.reused_by_content}
        return (
            *([reason("taken_over", **taken)] if taken_over else []),
            *([reason("unlike_images", count=self.out_of_distribution)] if self.out_of_distribution else []),
            *([reason("asked_for_images", count=self.overridden)] if self.overridden else []),
            *([reason("read_first_images", count=self.read_first)] if self.read_first else []),
        )


def image_events(store: ResultStore, taken: ResultsTakenOver) -> Iterable[ImageDone]:
    """Return an `ImageDone` event for each image with reused results. The images are read from the database `store`."""
    return (ImageDone(image=image) for image in store.images(taken.row_ids, checks_lung_mask=False))


_BUNDLE: Final = 256
_MAX_WAIT_S: Final = 0.2  # maximum delay until results appear
_MAX_RUNS: Final = 8  # number of runs searched for a file, the newest first
_STAMPS_PER_QUERY: Final = 1024
_ANY_ANSWER: Final = 2**63 - 1


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ResultsByContent:
    """Finds outcomes that earlier runs stored for a file with equal content, under any path. Thread-safe.

    ports           functions and packs of the current run
    last_result_id  highest row id of a result before the run. Later results are reused only while folders are watched
    query           the results database; used by one thread at a time, under a lock
    """

    ports: BatchPorts
    last_result_id: int
    query: ResultQuery
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def outcomes(self, ref: ImageRef) -> list[Outcome | None]:
        """Return for each pack the stored outcome of a file with the same content as this image's file, or None.

        The outcomes are changed to refer to this image. Its file may have changed since discovery read the header. So
        an outcome is reused only if its header equals the header that discovery read. A score is not reused if the pack
        refuses the header, unless a person overruled the refusal. If the patient's age is unknown, the outcome gets the
        note that this run uses for unknown ages. Raises StorageProblem, PoolClosed.
        """
        packs = self.ports.packs
        if ref.problem:
            return [None] * len(packs)
        try:
            content_sha256, stamp = self.ports.hash_file(ref)
        except (StorageProblem, PoolClosed):
            raise
        except (OSError, FieldrayError):
            return [None] * len(packs)  # the decoder will report the problem
        found = (self._outcome(pack, ref, content_sha256) for pack in packs)
        return [one and replace(one, facts=replace(one.facts, file_stamp=stamp)) for one in found]

    def _outcome(self, pack: BatchPack, ref: ImageRef, content_sha256: str) -> Outcome | None:
        last = _ANY_ANSWER if self.ports.watch else self.last_result_id
        with self._lock:
            known = self.query.reusable_outcome(
                pack.spec,
                settings_hashes=pack.reusable_settings_hashes,
                content_sha256=content_sha256,
                frame=ref.frame,
                up_to_result_id=last,
            )
        if known is None or known.ref.header.values_except_display_only != ref.header.values_except_display_only:
            return None
        if (
            isinstance(known, ScreenedOutcome)
            and not override_notes(known)
            and pack.check_header(ref.header) is not None
        ):
            return None
        if isinstance(known, ScreenedOutcome):
            notes = update_age_notes(known.notes, ages_confirmed=self.ports.spec.ages_confirmed)
            known = replace(known, notes=notes)
        return replace(known, ref=replace(ref, correction=known.ref.correction))


class ResultsByFileStamp:
    """Recognises by stamps the files that are unchanged since an earlier run, and collects their results.

    Only the thread that searches for images uses this object.

    hand_over  function called with the row ids of results to be reused, for many images at once
    """

    def __init__(
        self,
        query: ResultQuery,
        run_id: int,
        packs: Sequence[BatchPack],
        *,
        stamps: FileStamper,
        hand_over: Callable[[ReusedResults], None],
    ) -> None:
        known, opened = [run for run in query.runs() if run.run_id != run_id], dict[int, _FilesOfRun]()

        def files(pack: PackOfRun) -> tuple[_FilesOfRun, int]:
            """Return the files of a pack's run, and the pack's position.

            The files are read once for all packs of the run.
            """
            return opened.setdefault(pack.run_id, _FilesOfRun(query, pack.run_id)), pack.position

        self._packs = [
            [files(one) for one in (PackOfRun(run_id, position), *_packs_with_equal_key(known, pack)[:_MAX_RUNS])]
            for position, pack in enumerate(packs)
        ]
        self._stamps, self._hand_over = stamps, hand_over
        self._waiting: list[list[tuple[int, int]]] = []  # row ids of image and result, by image and pack
        self._due_s = 0.0

    def is_unchanged(self, path: Path, stream: BinaryIO) -> bool:
        """Return whether a file is unchanged since every pack screened it.

        If the file is unchanged, the next `flush` passes its stored results on.

        path    path of the file
        stream  the open file

        Raises OSError.
        """
        key = os.fsencode(path)
        found = [next((one for run, at in runs if (one := run.find(key, at))), _UNKNOWN) for runs in self._packs]
        stamps = {stamp for *_, stamp in found}
        if len(stamps) > 1 or not (stamp := stamps.pop()) or self._stamps.stamp_of_stream(path, stream) != stamp:
            return False
        if not self._waiting:
            self._due_s = time.monotonic() + _MAX_WAIT_S
        self._waiting.append([(row_id, result_id) for row_id, result_id, _ in found])
        if len(self._waiting) >= _BUNDLE or time.monotonic() > self._due_s:
            self.flush()
        return True

    def flush(self) -> None:
        """Call `hand_over` with the results found since the last call. Does nothing if no result was found."""
        if self._waiting:
            found, self._waiting = self._waiting, []
            images = [of_packs[0][0] for of_packs in found]
            by_pack = zip(*found, strict=True)
            self._hand_over(ReusedResults(images, [[result_id for _, result_id in pack] for pack in by_pack]))


def _packs_with_equal_key(known: Sequence[Run], wanted: BatchPack) -> list[PackOfRun]:
    """Return the packs of earlier runs whose results can be reused for a pack, in the order of the runs.

    Such a pack has an equal model and reusable settings.

    known   the earlier runs
    wanted  the pack of the current run
    """
    settings = wanted.reusable_settings_hashes or [wanted.spec.settings_hash]
    return [
        PackOfRun(run.run_id, position)
        for run in known
        for position, pack in enumerate(run.spec.packs)
        if pack.model_sha256 == wanted.spec.model_sha256 and pack.settings_hash in settings
    ]


_Known = tuple[int, int, bytes | None]  # row of an image, row of its result, stamp of its file
_UNKNOWN: Final[_Known] = (0, 0, None)


class _FilesOfRun:
    """The files of a run with their stamps, read from the database.

    Look up files in the order of their names. Then one query is enough for a thousand files.
    """

    def __init__(self, query: ResultQuery, run_id: int) -> None:
        self._query, self._run_id = query, run_id
        self._known: dict[bytes, ImageFileStamps] = {}
        self._first, self._last, self._is_end = b"", b"", False

    def find(self, key: bytes, position: int) -> _Known | None:
        """Return a pack's stored result for a file; None if the run lacks the file or the result.

        key       key of the image (`schema.image_key`)
        position  position of the pack in the run
        """
        if not (self._first <= key and (self._is_end or key <= self._last)):
            found = self._query.image_file_stamps(self._run_id, key, limit=_STAMPS_PER_QUERY)
            self._known = {one.image_key: one for one in found}
            self._first, self._is_end = key, len(found) < _STAMPS_PER_QUERY
            self._last = found[-1].image_key if found else key
        image = self._known.get(key)
        if image is None or position not in image.stamped_results:
            return None
        return image.row_id, *image.stamped_results[position]

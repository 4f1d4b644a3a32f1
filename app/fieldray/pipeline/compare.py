"""Comparison of a prior image with the current image. Both are read and checked as for screening, and then aligned.

A prior image comes from an earlier run, or from a file that a person chose. Child processes with memory limits and time
limits read the images, run the lung-field network and compare the images.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from fieldray.comparison.compare import COMPARE, COMPARISON_SERVICE, CompareRequest
from fieldray.domain.comparison import FRAME_SIDE, ComparisonProblem, FramedImage, ImageOfPair, PairComparison
from fieldray.domain.finding import FailedOutcome, ImageFacts, Outcome, leading_finding
from fieldray.domain.image import CoordinateMap, ImageRef
from fieldray.domain.lungs import LungFields
from fieldray.domain.mask import Mask
from fieldray.domain.model import InputSpec, Model
from fieldray.domain.patient import match_patients
from fieldray.domain.prior_image import (
    PriorImage,
    StoredPriorImages,
    prior_from,
    prior_warnings,
    priors_of,
    unscreened_outcome,
)
from fieldray.errors import (
    Cancelled,
    EnvironmentProblem,
    FieldrayError,
    PackProblem,
    Unreadable,
    UnsuitableImage,
    UsageProblem,
    reason_of_unexpected_error,
    resource_problem,
)
from fieldray.imaging.discover import discover
from fieldray.packs.library import PackLibrary
from fieldray.paths import data_folder
from fieldray.process_environment import set_priority
from fieldray.processes.child import Child, ChildLost, ChildTimeout
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings
from fieldray.store.work_list import HistoryQuery
from fieldray.workers.calls import AnalysisRequest
from fieldray.workers.pool import WorkerPool, open_workers

log = logging.getLogger(__name__)

FRAME_INPUT_SPEC: Final = InputSpec(height=FRAME_SIDE, width=FRAME_SIDE, fit="pad", intensity="as_displayed")
MIN_SIDE_PX: Final = 256
_LONGEST_S: Final = 30.0
_MEMORY_LIMIT_MB: Final = 1536
_MAX_FRAMES: Final = 64
_WORKERS: Final = 2  # one for each image of a pair


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PairImage:
    """One of two images that are to be compared, as read from its file.

    framed_image   the image scaled into a square frame, with its lungs; None if the image cannot be compared
    lungs          the lung fields, or None
    problem        the reason why the image cannot be compared, or None
    could_be_read  whether the file could be read; False for a damaged or missing file
    facts          facts found while reading the image
    """

    ref: ImageRef
    framed_image: FramedImage | None = None
    lungs: LungFields | None = None
    problem: Reason | None = None
    could_be_read: bool = True
    facts: ImageFacts = field(default_factory=ImageFacts)

    @property
    def outcome(self) -> Outcome:
        """The outcome of the image without screening by a pack (see `unscreened_outcome`)."""
        return replace(unscreened_outcome(self.ref), facts=self.facts)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ComparedPair:
    """Two images as read, and the result of their comparison."""

    prior: PairImage
    current: PairImage
    comparison: PairComparison

    @property
    def is_unreadable(self) -> bool:
        """Whether the file of one of the two images could not be read."""
        return not (self.prior.could_be_read and self.current.could_be_read)

    @property
    def warnings(self) -> Sequence[Reason]:
        """Warnings to be shown with the result of the comparison."""
        current = self.current.outcome
        return prior_warnings(prior_from(self.prior.outcome, current, "file"), current)


def make_comparison_process() -> Child:
    """Return the child process that compares images. The process is not started yet."""
    return Child(COMPARISON_SERVICE, memory_limit_mb=_MEMORY_LIMIT_MB)


class PairComparer(contextlib.AbstractContextManager["PairComparer"]):
    """Compares pairs of images, one pair at a time. `cancel` ends the current comparison, from any thread.

    workers  workers that read images; the caller closes them
    finder   the lung-field pack
    child    function that makes the child process that compares
    """

    def __init__(
        self,
        *,
        workers: WorkerPool,
        finder: Model,
        child: Callable[[], Child] = make_comparison_process,
    ) -> None:
        self.workers, self._finder = workers, finder
        self._child = child()
        self._is_cancelled = False
        self._is_wanted: Callable[[], bool] = lambda: True
        with contextlib.suppress(OSError):  # the first comparison starts the process again and reports the error
            self._child.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process that compares images."""
        self._child.close()

    def cancel(self) -> None:
        """Cancel the current comparison, which then raises Cancelled. May be called from any thread.

        The next comparison starts a new child process.
        """
        self._is_cancelled = True
        self._child.kill()

    def compare(
        self, prior: ImageRef, current: ImageRef, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> ComparedPair:
        """Read and compare two images. The call lasts until the comparison is done.

        is_wanted  function that returns whether the comparison is still wanted. If it returns False, the comparison
                   does not begin or does not continue. The function is called in this thread, before and after reading

        Raises EnvironmentProblem if no image can be read or no process can run, and Cancelled.
        """
        self._is_cancelled, began_s = False, time.monotonic()
        self._is_wanted = is_wanted
        self._require_wanted()
        with ThreadPoolExecutor(2, thread_name_prefix="comparing") as pool:
            read = partial(read_pair_image, workers=self.workers, lung_pack=self._finder)
            first, second = pool.map(read, (prior, current))
        self._require_wanted()
        problem = _problem(first, second)
        if problem is None and first.framed_image and second.framed_image:
            comparison = self._compared(first.framed_image, second.framed_image)
        else:
            comparison = PairComparison(prior=first.framed_image, current=second.framed_image, problem=problem)
        comparison = replace(comparison, duration_s=time.monotonic() - began_s)
        return ComparedPair(prior=first, current=second, comparison=comparison)

    def _require_wanted(self) -> None:
        if self._is_cancelled or not self._is_wanted():
            raise Cancelled

    def _compared(self, prior: FramedImage, current: FramedImage) -> PairComparison:
        try:
            if not self._child.is_running:
                self._child.start()
            set_priority(self._child.pid, "raised")  # raised, because a person waits for the result
            return COMPARE.ask(self._child, CompareRequest(prior=prior, current=current), timeout_s=_LONGEST_S)
        except ChildTimeout:
            why = reason("compare_slow", seconds=f"{_LONGEST_S:g}")
        except ChildLost as error:
            self._require_wanted()
            why = reason("compare_stopped", detail=str(error))
        except OSError as error:
            self._require_wanted()
            raise resource_problem(error) or FieldrayError(reason_of_unexpected_error(error)) from error
        return PairComparison(prior=prior, current=current, problem=ComparisonProblem(reason=why))


def read_pair_image(ref: ImageRef, *, workers: WorkerPool, lung_pack: Model) -> PairImage:
    """Read one image and find its lungs. The header is checked by the rules of the lung-field pack.

    workers    workers that read the image
    lung_pack  the lung-field pack

    Raises EnvironmentProblem.
    """
    if ref.problem:
        return PairImage(ref=ref, problem=ref.problem, could_be_read=ref.problem_is_refusal)
    question = AnalysisRequest(ref=ref, rules=lung_pack.manifest.accepted, whole_image_input_spec=FRAME_INPUT_SPEC)
    seen = workers.analyse(question, model=lung_pack)
    facts, lungs = seen.facts, seen.lungs
    if seen.header is not None:
        ref = replace(ref, kind=seen.kind, header=seen.header)
    if facts.thumbnail is not None and min(facts.rows, facts.columns) < MIN_SIDE_PX:
        why = reason("compare_small", rows=facts.rows, columns=facts.columns, least=MIN_SIDE_PX)
        return PairImage(ref=ref, problem=why, facts=facts)
    if seen.problem:
        could_be_read = seen.is_refusal or seen.stage != "decode"
        return PairImage(ref=ref, lungs=lungs, problem=seen.problem, could_be_read=could_be_read, facts=facts)
    if lungs is None or seen.input_values is None or facts.input_to_image is None:
        raise ValueError("an image without a frame")
    framed = FramedImage(
        pixels=np.ascontiguousarray(seen.input_values[0, :, :, 0]),
        lungs=lungs_in_frame(lungs, facts.input_to_image),
        frame_to_image=facts.input_to_image,
    )
    return PairImage(ref=ref, framed_image=framed, lungs=lungs, facts=facts)


def _problem(prior: PairImage, current: PairImage) -> ComparisonProblem | None:
    """Return the reason why two images cannot be compared; None if they can be compared.

    The reason is a problem of one image, or headers that contradict each other.
    """
    names: tuple[ImageOfPair, ImageOfPair] = ("prior", "current")
    for name, image in zip(names, (prior, current), strict=True):
        if image.problem:
            return ComparisonProblem(reason=image.problem, image=name)
    if match_patients(prior.ref.header, current.ref.header) == "other":
        return ComparisonProblem(reason=reason("compare_other_patients"))
    if prior.lungs and current.lungs and prior.lungs.is_mirrored != current.lungs.is_mirrored:
        return ComparisonProblem(
            reason=reason("compare_mirrored"), image="prior" if prior.lungs.is_mirrored else "current"
        )
    return None


def lungs_in_frame(lungs: LungFields, frame: CoordinateMap) -> Mask:
    """Convert the lung fields of an image to a mask (FRAME_SIDE, FRAME_SIDE) bool in the square frame of that image.

    frame  maps pixels of the frame to pixels of the image's file
    """
    cells = lungs.cells_to_image
    row, column = frame.to_input(cells.row_offset, cells.column_offset)
    in_frame = CoordinateMap(cells.row_scale / frame.row_scale, row, cells.column_scale / frame.column_scale, column)
    return replace(lungs, cells_to_image=in_frame).mask_at_image_size(rows=FRAME_SIDE, columns=FRAME_SIDE)


def find_single_image(path: Path, *, workers: WorkerPool) -> ImageRef:
    """Return the reference to the only image in a file.

    Raises UsageProblem (compare_one_image, nothing_to_screen) for a file with no image or several images, and for a
    folder.
    """
    found = list(discover([path], list_members=workers.zip_members))
    if len(found) != 1 or path.is_dir():
        raise UsageProblem(reason("compare_one_image", path=path, count=len(found)))
    return found[0]


# Screens an image at the operating point with the given name. Returns None if that is not possible now.
ScreenPrior = Callable[[ImageRef, str | None], Outcome | None]
# Opens a `PairComparer` with its workers and processes, which end with the given stack.
OpenComparer = Callable[[contextlib.ExitStack], PairComparer]


def system_comparer_factory(settings: Settings) -> OpenComparer:
    """Return a function that opens a `PairComparer` on this computer.

    The function raises PackProblem, EnvironmentProblem.
    """

    def opened(ends: contextlib.ExitStack) -> PairComparer:
        finder = PackLibrary(data_folder()).load_shipped_lung_pack()
        if finder is None:
            raise PackProblem(reason("compare_no_lungs_pack"))
        workers = ends.enter_context(contextlib.closing(open_workers(settings, _WORKERS)))
        return ends.enter_context(PairComparer(workers=workers, finder=finder))

    return opened


class PriorFinder:
    """Finds prior images and compares them. All methods except `cancel` wait for the disk or for child processes.

    The object is thread-safe, but only one thread at a time may call `compare`. The child processes start with the
    first comparison and are kept for the next comparison.

    open_comparer  function that opens a `PairComparer`
    screen         function that screens a prior image at the operating point of a given name; returns None if that is
                   not possible now
    """

    def __init__(
        self, database: Path, open_comparer: OpenComparer, screen: ScreenPrior = lambda _ref, _point: None
    ) -> None:
        self._database, self._open_comparer, self._screen = database, open_comparer, screen
        self._ends = contextlib.ExitStack()
        self._comparer: PairComparer | None = None
        self._lock, self._working = threading.Lock(), threading.Lock()
        self._is_closed = False

    def stored_priors(self, current: Outcome, *, run_id: int | None = None) -> StoredPriorImages:
        """Return the stored prior images of a patient, from all runs. Raises StorageProblem.

        current  the outcome of the current image. Without a usable Patient ID there are no prior images
        run_id   a run whose prior images are returned even if their files are gone; None returns only existing files
        """
        header = current.ref.header
        if match_patients(header, header) == "unknown":  # a placeholder such as ANON may be the ID of half an archive
            return StoredPriorImages()
        with HistoryQuery(self._database) as query:
            images = query.images_of_patient(header.patient_id, run_id=run_id)
        by_outcome = {id(image.results[0].outcome): image for image in images}
        found = priors_of(current, (("history", image.results[0].outcome) for image in images))
        priors = [by_outcome[id(prior.outcome)] for prior in found]
        there = tuple(one for one in priors if one.run_id == run_id or os.path.lexists(one.ref.path))
        return StoredPriorImages(images=there, missing_file_count=len(priors) - len(there))

    def screen_file(self, path: Path, current: Outcome) -> Outcome:
        """Read a file that a person chose as prior image, and screen it with the current image's pack.

        Returns the outcome.

        If the file has several images, the first usable image is read. If the pack cannot screen the image, the outcome
        is that of `unscreened_outcome`. Raises InputProblem, UsageProblem.
        """
        refs = tuple(itertools.islice(discover([path], list_members=_no_members), _MAX_FRAMES))
        usable = next((ref for ref in refs if ref.problem is None), None)
        if usable is not None:
            return self._screened(usable, current)
        raise UnsuitableImage(refs[0].problem if refs and refs[0].problem else reason("prior_no_image", path=path))

    def _screened(self, ref: ImageRef, current: Outcome) -> Outcome:
        finding = leading_finding(current)
        try:
            found = self._screen(ref, finding.point.name if finding and finding.point else None)
        except FieldrayError:  # the pair can still be shown
            log.warning("a prior image was not screened", exc_info=True)
            found = None
        return unscreened_outcome(ref) if found is None or isinstance(found, FailedOutcome) else found

    def compare(
        self, prior: PriorImage, current: Outcome, *, is_wanted: Callable[[], bool] = lambda: True
    ) -> PairComparison:
        """Compare a prior image with the current image.

        If the images are not comparable, the result contains the reason.

        is_wanted  as for `PairComparer.compare`

        Raises Cancelled, PackProblem, EnvironmentProblem, BackendProblem, and Unreadable (changed) for a file that
        changed since its screening.
        """
        with self._lock:
            if self._is_closed:
                raise EnvironmentProblem(reason("engine_closed"))
            if self._comparer is None:
                with contextlib.ExitStack() as ends:
                    self._comparer = self._open_comparer(ends)
                    self._ends = ends.pop_all()
            comparer = self._comparer
        with self._working:
            pair = comparer.compare(prior.outcome.ref, current.ref, is_wanted=is_wanted)
        for judged, read in ((prior.outcome, pair.prior), (current, pair.current)):
            if len({judged.facts.content_sha256, read.facts.content_sha256} - {""}) > 1:
                raise Unreadable(reason("changed"))
        return pair.comparison

    def cancel(self) -> None:
        """Cancel the current comparison. May be called from any thread."""
        comparer = self._comparer
        if comparer is not None:
            comparer.cancel()

    def close(self) -> None:
        """Cancel the current comparison, and end the child processes."""
        self.cancel()
        with self._lock:
            self._is_closed, self._comparer = True, None
            self._ends.close()
        with self._working:  # waits until the cancelled comparison has ended
            pass


def _no_members(ref: ImageRef) -> Iterator[ImageRef]:
    """Raise UnsuitableImage (prior_in_zip) instead of listing the images in a zip file.

    Starting a process to read the zip file would not be worthwhile for one image.
    """
    raise UnsuitableImage(reason("prior_in_zip", path=ref.path))

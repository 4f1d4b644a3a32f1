"""Prior images of a patient: found in earlier runs, or read from a file that a person chose; and pairs compared."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from fieldray.domain.comparison import PairComparison
from fieldray.domain.finding import Failed, Outcome, leading_finding
from fieldray.domain.prior import Prior, StoredPriors, is_same_image, kinship_of, priors_of, unscreened
from fieldray.domain.run import StoredResult
from fieldray.domain.study import ImageRef
from fieldray.errors import EnvironmentProblem, FieldrayError, PackProblem, Unusable
from fieldray.imaging.discover import discover
from fieldray.packs.library import PackLibrary
from fieldray.paths import user_data
from fieldray.pipeline.compare import PairComparer
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.store.work_list import WorkListQuery
from fieldray.workers.pool import open_workers

log = logging.getLogger(__name__)

_MOST_FRAMES: Final = 64
_WORKERS: Final = 2  # one for each image of a pair

# Screens an image by the operating point of that name; None where that cannot be done now.
Screen = Callable[[ImageRef, str | None], Outcome | None]
# Opens what compares pairs, with all that it needs, which ends with the stack.
OpenComparer = Callable[[contextlib.ExitStack], PairComparer]


def system_comparer(settings: Settings) -> OpenComparer:
    """What compares on this computer; opening it raises PackProblem, EnvironmentProblem."""

    def opened(ends: contextlib.ExitStack) -> PairComparer:
        finder = PackLibrary(user_data()).shipped_lungs()
        if finder is None:
            raise PackProblem(reason("compare_no_lungs_pack"))
        readers = ends.enter_context(contextlib.closing(open_workers(settings, _WORKERS)))
        return ends.enter_context(PairComparer(readers=readers, finder=finder))

    return opened


class Priors:
    """Finds prior images and compares them; all methods but `cancel` wait for the disk or for other processes.

    Thread-safe, but for `compare`, which is for one thread at a time. Its processes start with the first comparison and
    stay for the next one.
    """

    def __init__(self, database: Path, open_comparer: OpenComparer, screen: Screen = lambda _ref, _point: None) -> None:
        self._database, self._open_comparer, self._screen = database, open_comparer, screen
        self._ends = contextlib.ExitStack()
        self._comparer: PairComparer | None = None
        self._lock, self._working = threading.Lock(), threading.Lock()
        self._is_closed = False

    def stored(self, current: Outcome) -> StoredPriors:
        """The images that earlier runs know of the patient of an image. Raises StorageProblem."""
        header = current.ref.header
        if kinship_of(header, header) == "unknown":
            return StoredPriors()
        with WorkListQuery(self._database) as query:
            results = query.of_patient(header.patient_id)
        kept: list[StoredResult] = []
        gone: list[Outcome] = []
        for result in results:
            outcome = result.outcome
            known = (*(found.outcome for found in kept), *gone, current)
            if any(is_same_image(outcome, one) for one in known):
                continue
            if os.path.lexists(outcome.ref.path):
                kept.append(result)
            else:
                gone.append(outcome)
        missing = priors_of(current, (("history", outcome) for outcome in gone))
        return StoredPriors(results=tuple(kept), gone=len(missing))

    def read(self, path: Path, current: Outcome) -> Outcome:
        """The image in a file that a person chose, the first of several, screened as the one it is compared with.

        Without a pack to screen it with, it is as `unscreened` gives it. Raises InputProblem, UsageProblem.
        """
        refs = tuple(itertools.islice(discover([path], members=_no_members), _MOST_FRAMES))
        usable = next((ref for ref in refs if ref.problem is None), None)
        if usable is not None:
            return self._screened(usable, current)
        raise Unusable(refs[0].problem if refs and refs[0].problem else reason("prior_no_image", path=path))

    def _screened(self, ref: ImageRef, current: Outcome) -> Outcome:
        finding = leading_finding(current)
        try:
            found = self._screen(ref, finding.point.name if finding and finding.point else None)
        except FieldrayError:  # the pair can be seen all the same
            log.warning("a prior image was not screened", exc_info=True)
            found = None
        return unscreened(ref) if found is None or isinstance(found, Failed) else found

    def compare(self, prior: Prior, current: Outcome) -> PairComparison:
        """Compare two images as far as they are comparable.

        Raises Cancelled, PackProblem, EnvironmentProblem, BackendProblem.
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
            return comparer.compare(prior.outcome.ref, current.ref).comparison

    def cancel(self) -> None:
        """End the comparison under way, from any thread."""
        comparer = self._comparer
        if comparer is not None:
            comparer.cancel()

    def close(self) -> None:
        """End the processes, and the comparison under way with them."""
        self.cancel()
        with self._lock:
            self._is_closed, self._comparer = True, None
            self._ends.close()
        with self._working:  # whoever compares has noticed
            pass


def _no_members(ref: ImageRef) -> Iterator[ImageRef]:
    """A zip file is read in a process of its own by a run; one image is not worth one."""
    raise Unusable(reason("prior_in_zip", path=ref.path))

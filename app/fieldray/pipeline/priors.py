"""Prior images of a patient: found in earlier runs, or read from a file that a person chose; and pairs compared."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fieldray.domain.comparison import PairComparison
from fieldray.domain.finding import Outcome
from fieldray.domain.prior import Prior, is_same_image, kinship_of, priors_of, unscreened
from fieldray.domain.run import StoredResult
from fieldray.domain.study import ImageRef
from fieldray.errors import Unusable
from fieldray.imaging.discover import discover
from fieldray.reasons import reason
from fieldray.store.history import HistoryQuery

_MOST_FRAMES: Final = 64

ComparePair = Callable[[ImageRef, ImageRef, Callable[[], bool]], PairComparison]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StoredPriors:
    """What earlier runs know of a patient.

    results  one for each image whose file is still there, by the newest run that screened it
    gone     prior images whose file is not
    """

    results: tuple[StoredResult, ...] = ()
    gone: int = 0


class Priors:
    """Finds prior images and compares them. Thread-safe; methods wait for the disk.

    compare  aligns a prior and a current image in a process of its own (`pipeline.comparing`)
    """

    def __init__(self, database: Path, compare: ComparePair) -> None:
        self._database = database
        self._compare = compare

    def stored(self, current: Outcome) -> StoredPriors:
        """The images that earlier runs know of the patient of an image. Raises StorageProblem."""
        header = current.ref.header
        if kinship_of(header, header) == "unknown":
            return StoredPriors()
        with HistoryQuery(self._database) as query:
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
        return StoredPriors(
            results=tuple(kept), gone=len(priors_of(current, (("history", outcome) for outcome in gone)))
        )

    def read(self, path: Path) -> tuple[Outcome, ...]:
        """The images in a file that a person chose, as no pack has seen them. Raises InputProblem, UsageProblem."""
        refs = tuple(itertools.islice(discover([path], members=_no_members), _MOST_FRAMES))
        usable = tuple(unscreened(ref) for ref in refs if ref.problem is None)
        if usable:
            return usable
        raise Unusable(refs[0].problem if refs and refs[0].problem else reason("prior_no_image", path=path))

    def compare(self, prior: Prior, current: Outcome, is_cancelled: Callable[[], bool]) -> PairComparison:
        """Compare two images as far as they are comparable. Raises FieldrayError where it could not be tried."""
        return self._compare(prior.outcome.ref, current.ref, is_cancelled)


def _no_members(ref: ImageRef) -> Iterator[ImageRef]:
    """A zip file is read in a process of its own by a run; one image is not worth one."""
    raise Unusable(reason("prior_in_zip", path=ref.path))

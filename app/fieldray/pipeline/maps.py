"""The maps of a stored run as files beside each other, one set for each image (see `reports.maps`)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fieldray.domain.finding import Outcome, Screened
from fieldray.domain.model import Manifest
from fieldray.errors import FieldrayError, StorageProblem, UsageProblem
from fieldray.pipeline.ports import Decoder
from fieldray.reports.maps import MapNames, overlay_spec, write_class_map, write_lungs, write_overlay
from fieldray.store.results import ResultQuery

log = logging.getLogger(__name__)


def write_maps(
    database: Path,
    run_id: int,
    folder: Path,
    *,
    manifest: Manifest,
    decoder: Decoder,
    workers: int,
    tell: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Write the maps of every image of a run that has some.

    Parameters
    ----------
    database, run_id
        The results' file, and the run.
    folder
        Made if absent.
    manifest
        Of the pack that made the results.
    decoder, workers
        Reads the images again, so many at the same time.
    tell
        Hears how many images were gone through.

    Returns
    -------
    The number of images with maps, and of those whose overlay is missing because the file cannot be read any more.

    Raises
    ------
    UsageProblem
        For an output that would replace something else.
    StorageProblem
        Where something cannot be read or written.
    """
    done, written, missing = 0, 0, 0
    with ResultQuery(database) as query, ThreadPoolExecutor(workers, thread_name_prefix="maps") as pool:
        inputs = tuple(map(Path, query.run(run_id).spec.paths))
        names = MapNames(folder, inputs)
        outcomes = (stored.outcome for stored in query.rows(run_id))
        for group in _groups(outcomes, 2 * workers):
            work = [(names.stem(outcome.ref), outcome) for outcome in group]
            answers = pool.map(lambda one: _write(*one, manifest=manifest, decoder=decoder, inputs=inputs), work)
            for has_maps, is_missing in answers:
                written, missing = written + has_maps, missing + is_missing
            done += len(group)
            tell(done)
    return written, missing


def _groups(outcomes: Iterator[Outcome], size: int) -> Iterator[list[Outcome]]:
    while group := list(itertools.islice(outcomes, size)):
        yield group


def _write(
    stem: Path, outcome: Outcome, *, manifest: Manifest, decoder: Decoder, inputs: Sequence[Path]
) -> tuple[bool, bool]:
    """Whether the image has maps, and whether its overlay is missing."""
    has_lungs = write_lungs(stem, outcome, inputs=inputs)
    if not isinstance(outcome, Screened):
        return has_lungs, False
    write_class_map(stem, outcome, manifest, inputs=inputs)
    try:
        read = decoder.read(outcome.ref, overlay_spec(outcome.facts.rows, outcome.facts.columns))
    except (UsageProblem, StorageProblem):
        raise
    except FieldrayError as problem:
        log.warning("an image cannot be read for its overlay: %s", problem.reason.text)
        return True, True
    if read.tensor is None or read.facts.content_sha256 != outcome.facts.content_sha256:
        return True, True
    write_overlay(stem, outcome, manifest, grey=read.tensor.values[0, :, :, 0], inputs=inputs)
    return True, False

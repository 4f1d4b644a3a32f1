"""The inputs of a batch: its packs, and the functions with which the batch finds, reads and screens images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fieldray.domain.finding import Outcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.model import Manifest
from fieldray.domain.pack_setup import PackSetup
from fieldray.domain.run import (
    PackOfRun,
    PackSpec,
    ResumeOptions,
    RunSpec,
)
from fieldray.imaging.discover import HasResultsOfFile
from fieldray.imaging.quality import check_header
from fieldray.imaging.source import FileStamper
from fieldray.paths import VERSION
from fieldray.reasons import Reason

if TYPE_CHECKING:
    from fieldray.pipeline.watching import FolderWatch


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BatchPack:
    """One of the packs that screen the images of a run.

    spec                      description of the pack, as stored with the run
    check_header              function that returns the reason to refuse an image with this header, or None
    find_warnings             function that returns warnings about the pack's results, called when all results are
                              stored
    reusable_settings_hashes  settings hashes (`PackSpec.settings_hash`) whose stored results are reused from earlier
                              runs; if empty, only the hash of `spec`
    """

    spec: PackSpec
    check_header: Callable[[ImageHeader], Reason | None]
    find_warnings: Callable[[PackOfRun], Sequence[Reason]] = lambda _pack: ()
    reusable_settings_hashes: Sequence[str] = ()

    @classmethod
    def from_setup(cls, setup: PackSetup, database: Path) -> Self:
        """Return the description of a pack that a batch needs.

        setup     the loaded pack with its thresholds
        database  path of the results database, from which the warnings about results are computed
        """
        model = setup.model
        return cls(
            spec=pack_spec(setup),
            check_header=partial(check_header, rules=model.manifest.accepted, finds_lungs=bool(model.lungs)),
            find_warnings=partial(_find_warnings, database, model.manifest),
            reusable_settings_hashes=setup.reusable_settings_hashes,
        )


def _find_warnings(database: Path, manifest: Manifest, pack: PackOfRun) -> tuple[Reason, ...]:
    from fieldray.pipeline.run_warnings import warnings_of_run  # a slow import, needed only at the end of a run
    from fieldray.store.work_list import HistoryQuery

    with HistoryQuery(database) as query:
        return warnings_of_run(query, query.run(pack.run_id), pack.position, manifest)


def run_spec(paths: Sequence[Path | str], setups: Sequence[PackSetup]) -> RunSpec:
    """Return the request of a run: which packs screen which absolute paths.

    Overrides and confirmed ages apply to all packs, and are those of the first setup.
    """
    return RunSpec(
        paths=tuple(map(str, paths)),
        packs=tuple(map(pack_spec, setups)),
        program_version=VERSION,
        ages_confirmed=setups[0].ages_confirmed,
        overrides=setups[0].overrides,
    )


def pack_spec(setup: PackSetup) -> PackSpec:
    """Return the description of a pack as stored with a run: identity, settings and operating points."""
    model = setup.model
    return PackSpec(
        pack_name=model.pack_name,
        trust=model.trust,
        fingerprint=model.fingerprint,
        model_sha256=model.model_sha256,
        settings_hash=setup.settings_hash,
        operating_points=tuple(point for point in setup.points.values() if point),
        lungs_pack=model.lungs_pack,
    )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class BatchPorts:
    """The functions that a batch calls to find, read and screen images, and the options of its run.

    spec             the request of the run
    packs            the packs that screen the images, in the order of `spec`
    discover         yields each image once, one by one, except images in files that `HasResultsOfFile` recognises;
                     yields None if there are no more images at the moment
    estimate_count   returns a quick estimate of the number of images; stops early when the given function returns True
    hash_file        returns the SHA-256 (hexadecimal) and the stamp of an image's file; raises OSError, FieldrayError
    set_stamper      sets the secret key from which stamps of the files are made (see `imaging.source`)
    screen           returns an image's outcomes by the packs with these numbers; raises Cancelled, or a FieldrayError
                     that ends the run
    end_processes    ends the processes of `screen` at once, also during a call; may be called twice
    search_problems  returns problems of the search that concern no single image; called after the search
    keeps_previews   whether small previews of the images are stored
    resume_options   rules for reusing results of earlier runs
    watch            the state of watched folders; None without watching. With a watch, `discover` yields until the run
                     is cancelled
    """

    spec: RunSpec
    packs: Sequence[BatchPack]
    discover: Callable[[HasResultsOfFile], Iterator[ImageRef | None]]
    estimate_count: Callable[[Callable[[], bool]], int]
    hash_file: Callable[[ImageRef], tuple[str, bytes]]
    set_stamper: Callable[[FileStamper], None]
    screen: Callable[[ImageRef, Sequence[int]], Sequence[Outcome]]
    end_processes: Callable[[], None]
    search_problems: Callable[[], Sequence[Reason]] = tuple
    keeps_previews: bool = True
    resume_options: ResumeOptions = field(default_factory=ResumeOptions)
    watch: FolderWatch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Options of a run.

    as_new_run       whether to begin a new run even if an unfinished run of an equal request exists
    keeps_previews   whether small previews of the images are stored
    resume_options   rules for reusing results of earlier runs
    watches_folders  whether new files in the folders are screened, too, until the run is cancelled
    """

    as_new_run: bool = False
    keeps_previews: bool = True
    resume_options: ResumeOptions = ResumeOptions()  # noqa: RUF009 - it is frozen
    watches_folders: bool = False

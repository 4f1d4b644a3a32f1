"""The folder in which acts are performed: a user's home, exports, and a log of everything reported to the user."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from fieldray.domain.finding import Outcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.run import Event, Run, RunSpec, StoredResult, StoreRepaired
from fieldray.errors import FieldrayError
from fieldray.imaging.discover import HasResultsOfFile
from fieldray.imaging.source import FileStamper
from fieldray.paths import DATABASE_NAME
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.batch_ports import BatchPack, BatchPorts
from fieldray.pipeline.run_recorder import open_store
from fieldray.pipeline.statistics import InferenceStatistics
from fieldray.store.database import pictures_path
from fieldray.store.results import ResultQuery
from fieldray.store.rows import outcome_columns
from outcomes import failed, refused, run_spec, screened

_HERE: Final = Path(__file__).resolve().parent
_JUDGED: Final = ("status", "category", "score", "stage", "reason", "result_hash", "findings", "class_maps", "notes")
_LIMIT_S: Final = 30.0
NAMES: Final = tuple(f"{number:03}.dcm" for number in range(8))

Emit = Callable[..., None]
Log = list[list[Any]]


class Lost(AssertionError):
    """Data are lost, doubled or wrong."""


def require(is_so: object, otherwise: str) -> None:
    """Raise Lost with the text `otherwise` if `is_so` is false."""
    if not is_so:
        raise Lost(otherwise)


class Place:
    """The watched folder `root` of acts. Images and packs, which are only read, are in unwatched folders next to it."""

    def __init__(self, root: Path) -> None:
        self.root: Final = root
        self.home: Final = root / "home"
        self.out: Final = root / "out"
        self.log_path: Final = root / "told"
        self.images: Final = root.with_name("images")
        self.drive: Final = root.with_name("drive")
        for folder in (self.images, self.drive):
            folder.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            (self.images / name).touch()

    @property
    def store(self) -> Path:
        """The results database."""
        return self.home / DATABASE_NAME

    @property
    def spec(self) -> RunSpec:
        """The settings of runs."""
        return run_spec(paths=(str(self.images),))

    def clear(self) -> None:
        """Make an empty home, an empty folder for exports, and an empty log."""
        shutil.rmtree(self.root, ignore_errors=True)
        for folder in (self.root, self.home, self.out):
            folder.mkdir(mode=0o700)
        self.log_path.touch()

    def read(self) -> dict[tuple[str, ...], bytes | None]:
        """Return the content of all files by path; None is a folder."""
        paths = sorted(self.root.rglob("*"))
        return {path.relative_to(self.root).parts: None if path.is_dir() else path.read_bytes() for path in paths}

    def write(self, state: Mapping[tuple[str, ...], bytes | None]) -> None:
        """Replace all files by these."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(mode=0o700)
        for parts, data in sorted(state.items()):
            path = self.root.joinpath(*parts)
            if data is None:
                path.mkdir(mode=0o700)
            else:
                path.write_bytes(data)

    @property
    def log(self) -> Log:
        """Everything that was reported to the user, in order."""
        return log_of(self.log_path.read_bytes())

    # ---- screening

    def refs(self) -> list[ImageRef]:
        """Return the images, each of a separate study."""
        return [image_of(self.images / name) for name in NAMES]

    def batch(self, publish: Callable[[Event], None], *, as_new_run: bool = False) -> Batch:
        """Return a run over all images with the program's own pipeline, but with known results instead of a network."""
        stamping = _Stamping()
        ports = BatchPorts(
            spec=self.spec,
            packs=[BatchPack(spec=self.spec.packs[0], check_header=lambda header: None)],
            discover=lambda is_known: (ref for ref in self.refs() if not stamping.is_known(ref, is_known)),
            estimate_count=lambda gives_up: len(NAMES),
            hash_file=lambda ref: (outcome_of(ref).facts.content_sha256, stamping.of(ref)),
            set_stamper=stamping.begin,
            screen=lambda ref, _wanted: [stamping.stamped(outcome_of(ref))],
            end_processes=lambda: None,
        )
        statistics = InferenceStatistics(load=lambda: (0.0, 0.0))
        return Batch(
            ports, database=self.store, publish=publish, threads=1, as_new_run=as_new_run, statistics=statistics
        )

    def screen(self, publish: Callable[[Event], None] = lambda event: None, *, as_new_run: bool = False) -> Batch:
        """Screen all images to the end of the run."""
        batch = self.batch(publish, as_new_run=as_new_run)
        batch.start()
        require(batch.join(_LIMIT_S), "the run does not end")
        return batch

    # ---- results

    def mended(self) -> str:
        """Open the results database as a run does. Returns the message about a repair, empty if it was intact."""
        said: list[str] = []

        def publish(event: Event) -> None:
            if isinstance(event, StoreRepaired):
                said.append(event.reason.text)

        open_store(self.store, publish).close()
        return " ".join(said)

    def results(self, run_id: int) -> dict[str, StoredResult]:
        """Return the results of a run by image. Raises Lost if one is there twice or is wrong."""
        found: dict[str, StoredResult] = {}
        with ResultQuery(self.store) as query:
            for result in query.results(run_id):
                name = result.outcome.ref.path.name
                require(name not in found, f"{name} is there twice in run {run_id}")
                require_right(result.outcome)
                found[name] = result
        return found

    def runs(self) -> tuple[Run, ...]:
        """Return all runs, the newest first."""
        with ResultQuery(self.store) as query:
            return query.runs()


class _Stamping:
    """File stamps for every second image, even if its file changed just now. The others have only their content."""

    def __init__(self) -> None:
        self._stamps: FileStamper | None = None

    def begin(self, stamps: FileStamper) -> None:
        """Use this stamper."""
        self._stamps = stamps

    def of(self, ref: ImageRef) -> bytes:
        """Return the stamp of an image, empty if it gets none."""
        if not self._stamps or int(ref.path.stem) % 2:
            return b""
        with ref.path.open("rb") as stream:
            return self._stamps.stamp_of_stream(ref.path, stream)

    def stamped(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the stamp of its file."""
        return replace(outcome, facts=replace(outcome.facts, file_stamp=self.of(outcome.ref)))

    def is_known(self, ref: ImageRef, is_known: HasResultsOfFile) -> bool:
        """Return whether the run knows the image by its stamp."""
        with ref.path.open("rb") as stream:
            return is_known(ref.path, stream)


def log_of(data: bytes) -> Log:
    """Return the events in a log. A last line that the power cut shortened is left out."""
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def emitter(path: Path) -> Emit:
    """Return a function that appends an event to a log with one write, as a report to the user."""

    def emit(*event: object) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(handle, json.dumps(event).encode() + b"\n")
        os.close(handle)

    return emit


def do_each(emit: Emit, steps: Iterable[Callable[[], Sequence[object]]]) -> None:
    """Perform steps and report the result or failure of each. Raises the last failure at the end."""
    problem = None
    for step in steps:
        try:
            told = step()
        except FieldrayError as error:
            emit("problem", error.reason.code)
            problem = error
        else:
            emit(*told)
    if problem:
        raise problem


def image_of(path: Path) -> ImageRef:
    """Return the reference of an image file."""
    uid = f"1.2.826.0.1.{int(path.stem)}"
    header = ImageHeader(
        modality="DX", study_instance_uid=uid, sop_instance_uid=f"{uid}.1", patient_id=f"P{path.stem}", rows=300
    )
    return ImageRef(path=path, kind="dicom", header=header)


def outcome_of(ref: ImageRef) -> Outcome:
    """Return the known result of an image: always the same, and different for each image."""
    number = int(ref.path.stem)
    if number % 8 == 5:
        return refused(ref)
    if number % 8 == 6:
        return failed(ref)
    seen = screened(ref, score=0.6 + 0.01 * number)
    chance = np.random.default_rng(number)
    facts = replace(
        seen.facts,
        content_sha256=hashlib.sha256(ref.path.name.encode()).hexdigest(),
        thumbnail=chance.integers(0, 256, (40, 40), np.uint8),
        preview=chance.bytes(1500),
    )
    return replace(seen, facts=facts, class_maps=chance.random((1, 20, 20), np.float32))  # two to a page


def require_right(outcome: Outcome) -> None:
    """Require the known result of the image. Raises Lost."""
    found, expected = outcome_columns(outcome), outcome_columns(outcome_of(image_of(outcome.ref.path)))
    wrong = [name for name in _JUDGED if found[name] != expected[name]]
    require(not wrong, f"{outcome.ref.path.name} has another {', '.join(wrong)}")


def require_complete(names: Iterable[str]) -> None:
    """Require that these are all images, each once. Raises Lost."""
    found = sorted(names)
    require(found == list(NAMES), f"the list is not complete: {found}")


def require_whole(place: Place) -> None:
    """Require that the results database opens without repair, and that SQLite finds no fault in it. Raises Lost."""
    if said := place.mended():
        raise Lost(f"the store was damaged: {said}")
    for path in (place.store, pictures_path(place.store)):
        with contextlib.closing(sqlite3.connect(path)) as database:
            (answer,) = database.execute("PRAGMA integrity_check").fetchone()
        require(answer == "ok", f"{path.name} is not whole: {answer}")

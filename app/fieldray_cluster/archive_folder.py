"""The output folder of an archive: the request, the image list, and the results stored until now.

    driver.lock                      lock of the process that works on the folder
    archive.json                     the request, and (after listing) the number of images and the list's digest
    list.parquet                     the image list, one row for each image
    chunks/FROM-TO.parquet           results of the images with index FROM to TO - 1
    merged.json                      number of the run that has all results, after the results are merged

Every file is written whole or not at all. After an interruption, the driver resumes with the images that have no
results file. The folder contains patient names and is readable by this user alone.

Merged results are one run in the results database of this computer, like a run of `fieldray screen`. The program's
window shows the run. A later `fieldray screen` reuses the results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from fieldray.domain.finding import Outcome, image_count
from fieldray.domain.image import ImageRef
from fieldray.domain.run import Publish, RunSpec
from fieldray.errors import FieldrayError, UsageProblem
from fieldray.imaging.discover import discover
from fieldray.paths import scratch_folder
from fieldray.persistence import (
    FileLock,
    LockHeldError,
    make_private_folder,
    storage_problem,
    write_atomically,
    writing_atomically,
)
from fieldray.pipeline.run_recorder import open_store, require_all_stored
from fieldray.processes.wire import INVALID_MESSAGE_ERRORS
from fieldray.reasons import Reason, reason
from fieldray.reports.outputs import is_own_report
from fieldray.settings import Settings
from fieldray.store.results import ResultQuery, ResultStore
from fieldray.store.rows import ref_of, ref_text
from fieldray.typed_json import parse_json
from fieldray.workers.pool import open_workers
from fieldray_cluster.archive_worker import ArchiveRequest
from fieldray_cluster.object_server import ObjectServer, address_to_path, is_object_address
from fieldray_cluster.objects import list_images_on_server
from fieldray_cluster.worker_registry import ArchivePiece

_ROW_GROUP: Final = 1024
_LIST_SCHEMA: Final = pa.schema([("path", pa.binary()), ("ref", pa.string()), ("state", pa.string())])
_UP: Final = os.fsencode(f"{os.sep}..{os.sep}")
REQUEST_FILE_NAME: Final = "archive.json"
"""The name of the file with the request to screen an archive."""
IMAGE_LIST_FILE_NAME: Final = "list.parquet"
"""The name of the file with an archive's image list."""
_NAME: Final = re.compile(r"([0-9]{9})-([0-9]{9})\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListNote:
    """The number of images and the SHA-256 of the image list, as stored in archive.json."""

    images: int = 0
    list_sha256: str = ""


class ArchiveFolder:
    """The output folder of an archive. The constructor locks the folder until `close`.

    Raises UsageProblem (archive_in_use) if another process has locked the folder, and StorageProblem.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._asked: tuple[str, ...] = ()
        try:
            make_private_folder(path)
            make_private_folder(path / "chunks")
            self._lock = FileLock(path / "driver.lock", holder=str(os.getpid()))
        except LockHeldError as error:
            raise UsageProblem(reason("archive_in_use", folder=path, process=error.holder)) from error
        except OSError as error:
            raise storage_problem(error, path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, so that another process can use the folder."""
        self._lock.release()

    # ---- the request

    def store_request(self, request: ArchiveRequest) -> None:
        """Store the request to screen an archive.

        Raises UsageProblem (archive_other_work) if the folder has results of another request, UsageProblem
        (archive_damaged), and StorageProblem.
        """
        path, self._asked = self.path / REQUEST_FILE_NAME, request.paths
        if not path.exists() or not (self.has_image_list or self.has_results):
            write_atomically(path, json.dumps(dataclasses.asdict(request), indent=1).encode("ascii"))
            return
        try:
            before = parse_json(path.read_bytes(), ArchiveRequest)
        except (OSError, ValueError) as error:
            raise UsageProblem(reason("archive_damaged", path=path)) from error
        if before.result_key != request.result_key:
            raise UsageProblem(reason("archive_other_work", folder=self.path, pack=before.pack_name))

    def merged_run_id(self) -> int | None:
        """Return the number of the run into which all results were merged; None before the merge."""
        try:
            return parse_json((self.path / "merged.json").read_bytes(), dict[str, int]).get("run")
        except (OSError, ValueError):
            return None

    def record_merged_run(self, run_id: int) -> None:
        """Store that all results were merged into the run `run_id`. Raises StorageProblem."""
        write_atomically(self.path / "merged.json", json.dumps({"run": run_id}).encode("ascii"))

    # ---- the list

    @property
    def has_image_list(self) -> bool:
        """Whether the folder has a complete image list that is not empty. Raises UsageProblem (archive_damaged)."""
        if not self._list.exists() or not self._noted.list_sha256:
            return False
        with self.open_image_list() as images:
            return len(images) > 0

    @property
    def _noted(self) -> _ListNote:
        """The number of images and the digest of the image list in archive.json. A changed list has another digest."""
        try:
            return parse_json((self.path / REQUEST_FILE_NAME).read_bytes(), _ListNote)
        except (OSError, ValueError):
            return _ListNote()

    @property
    def listing_date(self) -> datetime.date:
        """The local date on which the image list was written."""
        return datetime.datetime.fromtimestamp(self._list.stat().st_mtime).astimezone().date()

    def write_image_list(self, refs: Iterable[tuple[ImageRef, str]], *, progress: Callable[[int], None]) -> None:
        """Write the image list. Raises StorageProblem.

        Parameters
        ----------
        refs
            Each image, with the state (size and tag) of the image's object on a server; "" for a file.
        progress
            A function that is called with the number of images written until now.
        """
        count = 0
        with (
            writing_atomically(self._list) as stream,
            pq.ParquetWriter(stream, _LIST_SCHEMA, compression="zstd") as writer,
        ):
            rest = iter(refs)
            while group := list(itertools.islice(rest, _ROW_GROUP)):
                rows = [{"path": os.fsencode(ref.path), "ref": ref_text(ref), "state": state} for ref, state in group]
                writer.write_table(pa.Table.from_pylist(rows, schema=_LIST_SCHEMA))
                count += len(rows)
                progress(count)
        path, note = self.path / REQUEST_FILE_NAME, _ListNote(images=count, list_sha256=_digest(self._list))
        about = json.loads(path.read_bytes()) if path.exists() else {}
        write_atomically(path, json.dumps(about | dataclasses.asdict(note), indent=1).encode("ascii"))

    def open_image_list(self) -> ImageList:
        """Open the image list of the stored request. Raises UsageProblem (archive_damaged).

        Call `store_request` first.
        """
        if self._noted.list_sha256 != _digest(self._list):
            raise UsageProblem(reason("archive_damaged", path=self._list))
        return ImageList(self._list, within=self._asked)

    @property
    def _list(self) -> Path:
        return self.path / IMAGE_LIST_FILE_NAME

    # ---- results

    @property
    def has_results(self) -> bool:
        """Whether the folder has results of at least one image."""
        return any((self.path / "chunks").glob("*.parquet"))

    def finished_pieces(self, image_count: int) -> tuple[ArchivePiece, ...]:
        """Return the pieces of the image list that have stored results, in order.

        `image_count` is the number of images in the list. Stored results for higher indices are left out.
        """
        found: list[ArchivePiece] = []
        for name in sorted(path.name for path in (self.path / "chunks").iterdir()):
            match = _NAME.fullmatch(name)
            if (
                match
                and int(match[1]) < int(match[2]) <= image_count
                and int(match[1]) >= (found[-1].stop if found else 0)
            ):
                found.append(ArchivePiece(int(match[1]), int(match[2])))
        return tuple(found)

    def remaining_pieces(self, image_count: int, *, images_per_piece: int) -> Iterator[ArchivePiece]:
        """Yield the images without results as pieces of at most `images_per_piece` images, in the order of the list.

        `image_count` is the number of images in the list.
        """
        at = 0
        for piece in (*self.finished_pieces(image_count), ArchivePiece(image_count, image_count + 1)):
            while at < piece.start:
                stop = min(at + images_per_piece, piece.start)
                yield ArchivePiece(at, stop)
                at = stop
            at = piece.stop

    def write_results(self, piece: ArchivePiece, results: bytes) -> None:
        """Write the results of a piece, the bytes of a Parquet file. Raises StorageProblem."""
        write_atomically(self._path(piece), results)

    def read_results(self, piece: ArchivePiece) -> bytes:
        """Read the results of a piece, the bytes of a Parquet file. Raises StorageProblem."""
        try:
            return self._path(piece).read_bytes()
        except OSError as error:
            raise storage_problem(error, self._path(piece)) from error

    def delete_results(self, piece: ArchivePiece) -> None:
        """Delete the results of a piece, so that the piece's images are screened again. Raises StorageProblem."""
        try:
            self._path(piece).unlink(missing_ok=True)
        except OSError as error:
            raise storage_problem(error, self._path(piece)) from error

    def _path(self, piece: ArchivePiece) -> Path:
        return self.path / "chunks" / f"{piece.start:09}-{piece.stop:09}.parquet"


class ImageList:
    """The image list of an archive, of which only one piece is in memory at a time.

    All files of the list must be in the folders `within`; empty for no restriction. A file elsewhere is never read or
    sent to a node; the list then raises UsageProblem (archive_damaged).
    """

    def __init__(self, path: Path, *, within: Sequence[str] = ()) -> None:
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise UsageProblem(reason("archive_damaged", path=path)) from error
        self._path = path
        metadata = self._file.metadata
        sizes = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        self._starts: list[int] = [0, *itertools.accumulate(sizes)]
        if within and not self._lies_in(_beginnings(within)):
            self._file.close()
            raise UsageProblem(reason("archive_damaged", path=path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._starts[-1]

    def ref_texts(self, piece: ArchivePiece) -> tuple[str, ...]:
        """Return the reference to each image of a piece, as JSON text that `store.rows.ref_of` parses.

        Raises UsageProblem (archive_damaged).
        """
        texts = tuple(self._column(piece, "ref"))
        try:
            is_of_files = tuple(ref_of(text).path for text in texts) == self.image_files(piece)
        except INVALID_MESSAGE_ERRORS:
            is_of_files = False
        if not is_of_files:
            raise UsageProblem(reason("archive_damaged", path=self._path))
        return texts

    def image_files(self, piece: ArchivePiece) -> tuple[Path, ...]:
        """Return the file of each image of a piece. Raises UsageProblem (archive_damaged)."""
        return tuple(Path(os.fsdecode(name)) for name in self._column(piece, "path"))

    def server_object_states(self, piece: ArchivePiece) -> tuple[str, ...]:
        """Return, for each image of a piece, the state (size and tag) that the image's object had on the server.

        The states are those at the time of listing; "" for images that are files. Raises UsageProblem
        (archive_damaged).
        """
        return tuple(self._column(piece, "state"))

    def _lies_in(self, beginnings: Sequence[bytes]) -> bool:
        try:
            return all(
                any(file.startswith(each) and _UP not in file[len(each) - 1 :] for each in beginnings)
                or file + _UP[:1] in beginnings
                for rows in self._file.iter_batches(columns=["path"])
                for file in rows["path"].to_pylist()
            )
        except (OSError, pa.ArrowException, *INVALID_MESSAGE_ERRORS):
            return False

    def _column(self, piece: ArchivePiece, name: str) -> list[str]:
        groups = [
            number
            for number, (first, stop) in enumerate(zip(self._starts, self._starts[1:], strict=False))
            if first < piece.stop and stop > piece.start
        ]
        try:
            column = self._file.read_row_groups(groups, columns=[name])[name]
        except (OSError, pa.ArrowException) as error:
            raise UsageProblem(reason("archive_damaged", path=self._path)) from error
        first = piece.start - self._starts[groups[0]]
        return list(column.slice(first, piece.image_count).to_pylist())


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal text. Raises UsageProblem (archive_damaged) if unreadable."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageProblem(reason("archive_damaged", path=path)) from error


def _beginnings(paths: Sequence[str]) -> tuple[bytes, ...]:
    """Return the prefixes that an allowed path may have: each folder in `paths`, and the folder of each file.

    Files in `paths` are for example a DICOMDIR.
    """
    if is_object_address(paths[0]):
        return (os.fsencode(str(address_to_path(paths[0].rstrip("/"))) + os.sep),)
    folders = (path if Path(path).is_dir() else str(Path(path).parent) for path in paths)
    return tuple(os.fsencode(folder.rstrip(os.sep) + os.sep) for folder in folders)


# ---- the results database of this computer


@dataclass(eq=False, slots=True)
class ArchiveRun:
    """The run of an archive in the results database, to which one thread adds outcomes."""

    run_id: int
    _store: ResultStore
    _spec: RunSpec
    _keeps_previews: bool
    _saved: int = 0

    def save(self, outcomes: Sequence[Outcome], is_resumed: bool) -> None:
        """Store outcomes in the results database. An image that is stored already keeps its row.

        `is_resumed` is True for outcomes from an earlier start of the command. Raises StorageProblem.
        """
        images = [([outcome], [0] if is_resumed else ()) for outcome in outcomes]
        self._store.save_all(self.run_id, images, spec=self._spec, keeps_preview=self._keeps_previews)
        self._saved += len(outcomes)

    def finish(self) -> None:
        """Mark the run as finished. Raises StorageProblem (results_lost) if an outcome was not stored."""
        require_all_stored(self._store, self.run_id, saved_image_count=self._saved)
        self._store.finish_run(self.run_id)


@contextlib.contextmanager
def open_archive_run(database: Path, spec: RunSpec, publish: Publish, *, keeps_previews: bool) -> Iterator[ArchiveRun]:
    """Begin or resume the run of an archive in the results database, and yield the run.

    If the block raises an exception, the run is marked as failed. If the user stopped the block, the run is marked as
    cancelled. Raises StorageProblem.

    Parameters
    ----------
    database
        The file of the results database.
    spec
        Pack and settings of the run. An unfinished run with equal pack and settings is resumed.
    publish
        A function that is called with each event of the run.
    keeps_previews
        Whether preview images are stored, too.
    """
    with open_store(database, publish) as store:
        run = ArchiveRun(store.open_run(spec), store, spec, keeps_previews)
        try:
            yield run
        except BaseException as error:
            why = error.reason if isinstance(error, FieldrayError) else None  # the user cancelled the listing
            with contextlib.suppress(FieldrayError):
                store.set_run_state(run.run_id, "failed" if why else "cancelled", reason=why)
            raise


def make_image_list(
    folder: ArchiveFolder, paths: Sequence[str], settings: Settings, *, progress: Callable[[int], None]
) -> None:
    """Find all images in folders or on a server, and write the image list of an archive, unless the list exists.

    Parameters
    ----------
    paths
        Absolute paths of files and folders, or one address such as s3://BUCKET/FOLDER.
    progress
        A function that is called with the number of images found until now.

    Raises UsageProblem: archive_list_lost if there are results without a list, no_image_in for a path without images.
    Raises StorageProblem, and the exceptions of `list_images_on_server`.
    """

    def refuse(why: Reason) -> None:
        if why.code == "no_image_in":  # an error, because later starts do not search the path again
            raise UsageProblem(why)

    if folder.has_image_list:
        return
    if folder.has_results:
        name = REQUEST_FILE_NAME if (folder.path / IMAGE_LIST_FILE_NAME).exists() else IMAGE_LIST_FILE_NAME
        raise UsageProblem(reason("archive_list_lost", folder=folder.path, name=name))
    with contextlib.closing(open_workers(settings, 1)) as readers:
        if is_object_address(paths[0]):
            with scratch_folder() as scratch:
                found = list_images_on_server(
                    ObjectServer(paths[0]),
                    scratch,
                    list_members=readers.zip_members,
                    find_images=readers.identify_server_file,
                )
                folder.write_image_list(found, progress=progress)
        else:
            tops, members = list(map(Path, paths)), readers.zip_members
            refs = discover(tops, list_members=members, is_own_report=is_own_report, notify=refuse)
            own = os.path.join(folder.path.absolute(), "")  # noqa: PTH118 - with a separator at its end
            folder.write_image_list(((ref, "") for ref in refs if not str(ref.path).startswith(own)), progress=progress)
    if not folder.has_image_list:
        raise UsageProblem(reason("no_image_in", path=paths[0]))


def is_merged(database: Path, run_id: int, spec: RunSpec) -> bool:
    """Return whether the run `run_id` in the results database has all results of an archive, and no failed image.

    `spec` is the specification of the archive's run. After a backup was restored, another run may have the number
    `run_id`. Raises StorageProblem.
    """
    if not database.exists():
        return False
    with ResultQuery(database) as query:
        try:
            run = query.run(run_id)
        except UsageProblem:
            return False
        counts = query.category_counts(run_id)
        has_all = run.state == "finished" and run.spec.resume_key == spec.resume_key and not counts.get("failed")
        return has_all and image_count(counts) > 0

"""Screen a piece of an archive in a worker process, and return the outcomes of the images as a Parquet file.

An `ArchiveRequest` describes how the archive is screened, and has the hashes of model and settings. A node (computer)
gets work only if it computes equal hashes from its own pack and settings.

Each image is screened by `pipeline.screen.screen_image`, as in any run. A worker has no results database, because many
small transactions would be slow. Between pieces, the network stays loaded, and the decoder processes keep running. The
driver process gets the answer as bytes (Parquet or JSON), and checks the answer against the request.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import distributed
import pyarrow as pa
import pyarrow.parquet as pq

from fieldray.domain.finding import FailedOutcome, Outcome, without_preview
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Model, OperatingPoint
from fieldray.domain.pack_setup import PackSetup, set_up_pack
from fieldray.errors import EnvironmentProblem, FieldrayError
from fieldray.imaging.source import file_problem, open_file
from fieldray.packs.library import PackLibrary
from fieldray.packs.reading import drives_with_packs
from fieldray.paths import VERSION, data_folder
from fieldray.persistence import storage_problem
from fieldray.pipeline.screen import screen_image
from fieldray.pipeline.session import system_engine
from fieldray.process_environment import usable_cores
from fieldray.processes.wire import INVALID_MESSAGE_ERRORS
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings
from fieldray.store.pictures import picture_row, thumbnail_of
from fieldray.store.rows import outcome_columns, outcome_of, ref_of
from fieldray.store.schema import reason_of, reason_text
from fieldray.workers.pool import number_of_workers, open_workers
from fieldray_cluster.node import worker_core_count
from fieldray_cluster.object_server import ObjectServer, is_object_address
from fieldray_cluster.objects import ObjectCache, PieceDownloads
from fieldray_cluster.worker_registry import AWAITS_IMAGE_SERVER_METRIC, result_key

# ---- the request


# Settings that must be equal on all nodes. Each node has its own values for all others.
_SHARED_SETTINGS: Final = ("device", "policy", "decode_timeout_s", "decode_memory_mb", "keep_previews")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRequest:
    """The request to screen an archive. Equal requests give equal results.

    Attributes
    ----------
    paths
        Absolute paths on the computer that starts the work, or one address such as s3://BUCKET/FOLDER.
    pack
        The folder of the pack on each node, or ID-VERSION of the pack.
    signer
        The fingerprint of the pack's signing key.
    pack_name, model_sha256, settings_hash
        Name and hashes that each node must compute from its own pack.
    operating_point, ages_confirmed, allow_older, allow_legacy
        As in `fieldray screen`.
    settings
        The settings for reading and screening images, as pairs of name and value.
    program_version
        The version of the program that starts the work.
    """

    paths: tuple[str, ...]
    pack: str
    pack_name: str
    model_sha256: str
    settings_hash: str
    operating_point: str | None
    ages_confirmed: bool
    settings: tuple[tuple[str, str | int | float | bool], ...]
    program_version: str = VERSION
    signer: str = ""
    allow_older: bool = False
    allow_legacy: bool = False

    @property
    def operating_points(self) -> tuple[OperatingPoint, ...]:
        """An empty tuple: an archive's results name their operating points themselves (see `rows.PackOfResult`)."""
        return ()

    @property
    def result_key(self) -> str:
        """The digest of all values that decide the results: paths, pack, settings and version of the program.

        Stored results in an output folder are used only by requests with an equal digest.
        """
        return result_key(
            sorted(self.paths), self.pack_name, self.model_sha256, self.settings_hash, self.settings,
            version=self.program_version,
        )  # fmt: skip


def make_request(
    paths: Sequence[str],
    pack: str,
    setup: PackSetup,
    *,
    operating_point: str | None,
    settings: Settings,
    allow_older: bool = False,
    allow_legacy: bool = False,
) -> ArchiveRequest:
    """Return the request to screen an archive with the pack of `setup`.

    Parameters
    ----------
    paths
        Absolute paths of the images, or one address such as s3://BUCKET/FOLDER.
    pack
        The folder of the pack on each node, or ID-VERSION of the pack.
    operating_point
        The name of the operating point; None for the pack's default.
    allow_older, allow_legacy
        As in `fieldray screen`.
    """
    model = setup.model
    return ArchiveRequest(
        paths=tuple(paths),
        pack=pack,
        pack_name=model.pack_name,
        model_sha256=model.model_sha256,
        settings_hash=setup.settings_hash,
        operating_point=operating_point,
        ages_confirmed=setup.ages_confirmed,
        settings=tuple((name, settings[name]) for name in _SHARED_SETTINGS),
        signer=model.fingerprint,
        allow_older=allow_older,
        allow_legacy=allow_legacy,
    )


def load_model(request: ArchiveRequest) -> Model:
    """Load and verify the pack of a request on this computer, with the keys that this computer trusts.

    Raises PackProblem, StorageProblem.
    """
    library = PackLibrary(data_folder(), drives=drives_with_packs)
    return library.load(
        library.find(request.pack).folder,
        allow_older=request.allow_older,
        allow_legacy=request.allow_legacy,
        signer=request.signer,
    )


def check_node(request: ArchiveRequest, *, needs_paths: bool = True) -> Reason | None:
    """Return the reason why this worker process cannot work on a request; None if it can.

    `needs_paths` is whether the worker reads the image files from its own computer.
    """
    try:
        model = load_model(request)
        setup = set_up_pack(model, operating_point=request.operating_point, ages_confirmed=request.ages_confirmed)
    except FieldrayError as error:
        return reason("cluster_no_pack", pack=request.pack_name, detail=error.reason.text)
    if model.model_sha256 != request.model_sha256:
        return reason("cluster_other_pack", pack=request.pack_name)
    if setup.settings_hash != request.settings_hash:
        return reason("cluster_other_settings", pack=request.pack_name)
    path = first_missing_path(request) if needs_paths else ""
    return reason("cluster_no_path", path=path) if path else None


def first_missing_path(request: ArchiveRequest) -> str:
    """Return the first path of a request that does not exist on this computer, or is an empty folder.

    A network share that is not mounted is an empty folder. Addresses on a server are not checked. Returns "" if no path
    is missing.
    """
    for path in request.paths:
        try:
            if is_object_address(path):
                continue  # each object is checked when it is read
            if not os.path.lexists(path) or (Path(path).is_dir() and next(Path(path).iterdir(), None) is None):
                return path
        except OSError:
            return path
    return ""


# ---- files sent to a worker


_MAX_SENT_BYTES: Final = 2**27


def read_content(path: Path) -> bytes | Reason:
    """Return the content of a file, or the reason why the file cannot be read.

    Content and reason can both be sent to a worker that does not read files.
    """
    try:
        with open_file(path) as stream:
            return stream.read()
    except OSError as error:
        return file_problem(error).reason


def read_contents(paths: Sequence[Path]) -> tuple[int, dict[str, bytes | Reason]]:
    """Read files for sending to a worker, at most 128 MiB together. The first file is read even if it is larger.

    Returns the number of `paths` that were read, and for each path the content, or the reason why it cannot be read.
    """
    files: dict[str, bytes | Reason] = {}
    total = 0
    for count, path in enumerate(paths):
        if str(path) not in files:
            data = read_content(path)
            size = len(data) if isinstance(data, bytes) else 0
            if count and total + size > _MAX_SENT_BYTES:
                return count, files
            files[str(path)], total = data, total + size
    return len(paths), files


class SentFiles:
    """Image files that were sent with a piece of an archive, and are written to a folder of this worker.

    Raises StorageProblem if a file cannot be written.
    """

    def __init__(self, files: Mapping[str, bytes | Reason], folder: Path) -> None:
        self._files = files
        self._paths: dict[Path, Path] = {}
        for number, (name, data) in enumerate(files.items()):
            if isinstance(data, bytes):
                self._paths[Path(name)] = path = folder / f"{number}"
                try:
                    path.write_bytes(data)
                except OSError as error:
                    raise storage_problem(error, path) from error

    def screen(self, screen: Callable[[ImageRef], Outcome], ref: ImageRef) -> Outcome:
        """Screen the image `ref` from a file that was sent, by calling the function `screen`. Returns the outcome.

        If the file could not be read before sending, the outcome is `FailedOutcome`. Raises the exceptions of `screen`.
        """
        if ref.path not in self._paths and not ref.problem:
            why = self._files.get(str(ref.path))
            return FailedOutcome(ref=ref, stage="decode", reason=why if isinstance(why, Reason) else reason("missing"))
        outcome = screen(replace(ref, path=self._paths.get(ref.path, ref.path)))
        return replace(outcome, ref=replace(outcome.ref, path=ref.path))


# ---- the screening session of a node


class PieceSession:
    """Screens the pieces of one request, one piece at a time. `close` ends all threads and processes.

    Raises FieldrayError if the pack cannot be loaded, or if no process for reading images or no network can start.
    """

    def __init__(self, request: ArchiveRequest, *, cores: int) -> None:
        self._request = request
        settings = Settings({**dict(request.settings), "decoders": 0})
        settings.set("decoders", min(cores, number_of_workers(settings)))
        with contextlib.ExitStack() as ends:
            self._workers = open_workers(settings, settings.integer("decoders"))
            self._threads = ThreadPoolExecutor(self._workers.size + 1, thread_name_prefix="screening")
            ends.callback(self._threads.shutdown, cancel_futures=True)
            ends.callback(self._workers.close)
            self._model = load_model(request)
            self._engine = system_engine(lambda _event: None, settings, self._workers)
            ends.callback(self._engine.close)
            self._engine.open(self._model)
            self.close = ends.pop_all().close

    def screen(self, refs: Sequence[ImageRef], files: PieceDownloads | SentFiles | None = None) -> list[Outcome]:
        """Screen the images `refs`. Returns one outcome for each image, in order.

        `files` are the sent or downloaded files of the images; None to read the images at their paths. Raises
        FieldrayError if this worker can no longer read or screen any image.
        """
        request, is_over = self._request, threading.Event()
        screen = functools.partial(
            screen_image,
            setup=set_up_pack(
                self._model, operating_point=request.operating_point, ages_confirmed=request.ages_confirmed
            ),
            workers=self._workers,
            engine=self._engine,
            is_cancelled=is_over.is_set,
        )
        if files:
            screen = functools.partial(files.screen, screen)
        futures = [self._threads.submit(screen, ref) for ref in refs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            outcomes = [future.result() for future in futures if future.done()]
        finally:
            is_over.set()  # after a failure, the other threads stop waiting
            for future in futures:
                future.cancel()
        return outcomes if dict(request.settings)["keep_previews"] else list(map(_without_pictures, outcomes))


def _without_pictures(outcome: Outcome) -> Outcome:
    """Return a copy of an outcome without preview image and thumbnail, so that no picture leaves the node."""
    outcome = without_preview(outcome)
    return replace(outcome, facts=replace(outcome.facts, thumbnail=None))


# ---- a piece and its results


_TEXTS: Final = (
    "status", "category", "stage", "reason", "backend", "header", "findings", "notes", "details", "lungs",
    "model_sha256", "settings_hash",
)  # fmt: skip
_BYTES: Final = ("image_key", "content_sha256", "result_hash", "class_maps", "lung_shares", "thumbnail", "preview")
_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.binary()) for name in _BYTES),
        *((name, pa.int64()) for name in ("rank", "frame", "thumbnail_columns")),
        *((name, pa.float64()) for name in ("score", "decode_ms", "inference_ms", "grey")),
    ]
)
_WORK: Final = b"fieldray work"  # metadata key with the key of the request
_PARQUET: Final = b"PAR1"
_FAULT: Final = b"fault "
_MAX_BYTES: Final = 2**20  # size limit of results: for each image, and for the file itself


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PieceSpec:
    """A piece of an archive for a worker to screen.

    Attributes
    ----------
    refs
        The reference to each image, as JSON text of `store.rows.ref_text`.
    file_contents
        The content of each file by path, or the reason why the file could not be read. None if workers read the files
        from their own computer.
    server_object_states
        For images on a server: the state (size and tag) of each object at the time of listing. None for files.
    """

    request: ArchiveRequest
    refs: tuple[str, ...]
    file_contents: Mapping[str, bytes | Reason] | None = None
    server_object_states: tuple[str, ...] | None = None


def screen_piece_as_bytes(screen: Callable[[PieceSpec], Sequence[Outcome]], spec: PieceSpec) -> bytes:
    """Screen a piece of an archive by calling `screen`. Returns the answer of a worker as bytes.

    The answer is a Parquet file with a row for each image, or a problem as JSON.
    """
    try:
        try:
            return outcomes_to_parquet(screen(spec), spec.request)
        except FieldrayError as error:
            _end_sessions()
            return reason_text(error.reason).encode()
    except Exception as error:
        return _FAULT + reason_text(reason("internal", detail=type(error).__name__)).encode()


def parse_problem(answer: bytes) -> tuple[Reason | None, bool]:
    """Return the problem in a worker's answer, and whether the problem is an error in the program.

    An error in the program may be caused by an image. All other problems are problems of the node (computer). The
    problem is None for an answer with results. Raises ValueError for bytes that are no answer.
    """
    if answer.startswith(_PARQUET):
        return None, False
    return reason_of(answer.removeprefix(_FAULT).decode()), answer.startswith(_FAULT)


def max_answer_bytes(image_count: int) -> int:
    """Return the largest size, in bytes, that a valid answer of a worker about `image_count` images can have."""
    return _MAX_BYTES * (image_count + 1)


def outcomes_to_parquet(outcomes: Sequence[Outcome], request: ArchiveRequest) -> bytes:
    """Return outcomes as the bytes of a Parquet file, with the columns of the results database and preview images."""
    own = {"model_sha256": request.model_sha256, "settings_hash": request.settings_hash}
    rows = [{**outcome_columns(each), **own, **_pictures(each)} for each in outcomes]
    return _file(pa.Table.from_pylist(rows, schema=_SCHEMA), request)


def outcomes_from_parquet(data: bytes, request: ArchiveRequest) -> tuple[Outcome, ...]:
    """Read the outcomes of a request, with preview images, from the bytes of a Parquet file.

    Raises ValueError if the bytes are no Parquet file with outcomes of this request.
    """
    try:
        return tuple(_outcome(row, request) for row in _table(data).to_pylist())
    except (
        pa.ArrowException,
        OSError,
        RecursionError,
        *INVALID_MESSAGE_ERRORS,
    ) as error:  # Arrow raises OSError for damage, too
        raise ValueError(f"no results of a piece: {type(error).__name__}") from error


def parse_results(
    refs: Sequence[ImageRef], data: bytes, request: ArchiveRequest, *, hashes: Mapping[Path, str] | None = None
) -> tuple[Outcome, ...]:
    """Read a worker's results for the images `refs` from the bytes of a Parquet file, and check the results.

    Returns one outcome for each image, in order. `hashes` has the SHA-256 of each file that this process has sent, by
    path; None if no files were sent. Raises ValueError if the results do not answer the request, or are too large.
    """
    try:
        found = pq.ParquetFile(io.BytesIO(data)).metadata
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        encodings = {name for group in groups for at in range(group.num_columns) for name in group.column(at).encodings}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"no results of a piece: {type(error).__name__}") from error
    size = max(len(data), sum(group.total_byte_size for group in groups))
    # A small file with another encoding may expand to a huge table.
    if found.num_rows != len(refs) or size > max_answer_bytes(len(refs)) or not encodings <= {"PLAIN", "RLE"}:
        raise ValueError(f"{found.num_rows} results of {size} bytes for {len(refs)} images")
    if (found.metadata or {}).get(_WORK) != request.result_key.encode():
        raise ValueError("results of other work")
    outcomes = outcomes_from_parquet(data, request)
    for outcome, ref in zip(outcomes, refs, strict=True):
        _require_result_of(
            outcome, ref, known_sha256=(hashes or {}).get(ref.path, "") if ref.zip_member is None else ""
        )
    return outcomes


def replace_result_rows(data: bytes, rows: bytes, *, first: int, request: ArchiveRequest) -> bytes:
    """Replace rows in a Parquet file of results. Returns the bytes of the new file.

    `data` is the old file. `rows` is a file with the new rows, which replace the old rows from index `first` on. Both
    files must be valid.
    """
    whole, new = _table(data), _table(rows)
    return _file(pa.concat_tables([whole.slice(0, first), new, whole.slice(first + new.num_rows)]), request)


def _table(data: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(data), schema=_SCHEMA)


def _file(table: pa.Table, request: ArchiveRequest) -> bytes:
    stream = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata({_WORK: request.result_key}), stream, compression="zstd", use_dictionary=False
    )
    return stream.getvalue()


def _require_result_of(outcome: Outcome, ref: ImageRef, *, known_sha256: str) -> None:
    found = outcome.ref
    if (found.path, found.zip_member, found.frame) != (ref.path, ref.zip_member, ref.frame):
        raise ValueError("results of another image")
    if known_sha256 and outcome.facts.content_sha256 not in ("", known_sha256):
        raise ValueError("results of another content")


def _pictures(outcome: Outcome) -> dict[str, Any]:
    row = picture_row(outcome)
    return dict(zip(("thumbnail", "thumbnail_columns", "preview"), row[2:] if row else (None, 0, None), strict=True))


def _outcome(row: dict[str, Any], request: ArchiveRequest) -> Outcome:
    if (row["model_sha256"], row["settings_hash"]) != (request.model_sha256, request.settings_hash):
        raise ValueError("results of another model or of other settings")
    thumbnail = thumbnail_of(row["thumbnail"], row["thumbnail_columns"])
    outcome = outcome_of(row, request, thumbnail=thumbnail)
    return replace(outcome, facts=replace(outcome.facts, preview=row["preview"] or b""))


# ---- the session of this worker


_held: dict[ArchiveRequest, PieceSession] = {}


def screen_piece(spec: PieceSpec) -> list[Outcome]:
    """Screen the images of a piece of an archive in this worker. Returns one outcome for each image, in order.

    Raises FieldrayError if this computer cannot screen images.
    """
    refs = [ref_of(text) for text in spec.refs]
    if spec.server_object_states is not None:
        worker = distributed.get_worker()
        folder = Path(worker.local_directory)
        server, cache = ObjectServer(spec.request.paths[0]), ObjectCache(folder.parent / "objects")
        # The dictionary is replaced and not changed, because another thread reads it.
        worker.metrics = {**worker.metrics, AWAITS_IMAGE_SERVER_METRIC: lambda _: server.is_unreachable}
        with (
            tempfile.TemporaryDirectory(prefix="objects-", dir=folder, ignore_cleanup_errors=True) as own,
            PieceDownloads(server, cache, refs, spec.server_object_states, Path(own)) as ahead,
        ):
            return _session(spec.request).screen(refs, ahead)
    if spec.file_contents is not None:
        folder = Path(distributed.get_worker().local_directory)
        with tempfile.TemporaryDirectory(prefix="chunk-", dir=folder, ignore_cleanup_errors=True) as own:
            return _session(spec.request).screen(refs, SentFiles(spec.file_contents, Path(own)))
    outcomes = _session(spec.request).screen(refs)
    if any(isinstance(outcome, FailedOutcome) for outcome in outcomes) and (path := first_missing_path(spec.request)):
        raise EnvironmentProblem(reason("cluster_no_path", path=path))
    return outcomes


def _session(request: ArchiveRequest) -> PieceSession:
    """Return the open session for a request; open a session if necessary. A session of another request is closed."""
    if request not in _held:
        _end_sessions()
        _held[request] = PieceSession(request, cores=worker_core_count() or usable_cores())
    return _held[request]


def _end_sessions() -> None:
    while _held:
        _held.popitem()[1].close()

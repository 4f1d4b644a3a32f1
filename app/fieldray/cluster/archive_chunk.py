"""One chunk of an archive, screened in a worker by an ordinary session, and its results as Parquet.

The session (`archive_session`) stays open from chunk to chunk, with the network loaded and the decoders running.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import distributed
import pyarrow as pa
import pyarrow.parquet as pq

from fieldray.cluster.archive_files import SentFiles
from fieldray.cluster.archive_request import ArchiveRequest, lost_path
from fieldray.cluster.archive_session import PieceSession
from fieldray.cluster.node import cores_of_worker
from fieldray.domain.finding import Failed, Outcome
from fieldray.domain.model import OperatingPoint
from fieldray.errors import EnvironmentProblem, FieldrayError
from fieldray.processes.priority import usable_cores
from fieldray.processes.wire import NONSENSE
from fieldray.reasons import Reason, reason
from fieldray.store.pictures import picture_row, thumbnail_of
from fieldray.store.refs import ref_of
from fieldray.store.rows import outcome_columns, outcome_of

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


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChunkOrder:
    """What a worker is asked to screen.

    Attributes
    ----------
    refs
        The images, each as the JSON of `store.refs.ref_text`.
    files
        Where images are sent: the contents of their files by path, or why the driver could not read one. A file that is
        not among them is not looked for. None where nodes see the files themselves.
    """

    request: ArchiveRequest
    refs: tuple[str, ...]
    files: Mapping[str, bytes | Reason] | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChunkAnswer:
    """The results of a chunk as Parquet, or what is wrong with the node that had it."""

    results: bytes = b""
    problem: Reason | None = None


def screen_chunk(order: ChunkOrder) -> ChunkAnswer:
    """Screen the images of an order on this worker; one row of results for each of them."""
    try:
        return ChunkAnswer(results=packed(_outcomes(order), order.request))
    except FieldrayError as error:
        _end_sessions()
        return ChunkAnswer(problem=error.reason)


def packed(outcomes: Sequence[Outcome], request: ArchiveRequest) -> bytes:
    """Outcomes as a Parquet file; a row has the columns of the store, and the pictures."""
    own = {"model_sha256": request.model_sha256, "settings_hash": request.settings_hash}
    rows = [{**outcome_columns(each), **own, **_pictures(each)} for each in outcomes]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), stream, compression="zstd")
    return stream.getvalue()


def unpacked(data: bytes, request: ArchiveRequest) -> tuple[Outcome, ...]:
    """The outcomes of a Parquet file of this request, with their previews. Raises ValueError for any other bytes."""
    try:
        rows = pq.read_table(io.BytesIO(data), schema=_SCHEMA).to_pylist()
        return tuple(_outcome(row, request) for row in rows)
    except (pa.ArrowException, OSError, RecursionError, *NONSENSE) as error:  # OSError: so Arrow calls damage, too
        raise ValueError(f"no results of a chunk: {type(error).__name__}") from error


def _pictures(outcome: Outcome) -> dict[str, Any]:
    row = picture_row(outcome.facts, outcome.ref.frame)
    return dict(zip(("thumbnail", "thumbnail_columns", "preview"), row[2:] if row else (None, 0, None), strict=True))


def _outcome(row: dict[str, Any], request: ArchiveRequest) -> Outcome:
    if (row["model_sha256"], row["settings_hash"]) != (request.model_sha256, request.settings_hash):
        raise ValueError("results of another model or of other settings")
    thumbnail = thumbnail_of(row["thumbnail"], row["thumbnail_columns"])
    outcome = outcome_of(row, _Judged(request.pack_name, request.model_sha256), thumbnail=thumbnail)
    return replace(outcome, facts=replace(outcome.facts, preview=row["preview"] or b""))


@dataclass(frozen=True, slots=True)
class _Judged:
    """What all results of a chunk have in common; an operating point is told with each."""

    pack_name: str
    model_sha256: str
    operating_points: tuple[OperatingPoint, ...] = ()


# ---- the session of this worker


_held: dict[ArchiveRequest, PieceSession] = {}


def _outcomes(order: ChunkOrder) -> list[Outcome]:
    """Raises FieldrayError where the node cannot screen."""
    refs = [ref_of(text) for text in order.refs]
    if order.files is not None:
        folder = Path(distributed.get_worker().local_directory)
        with tempfile.TemporaryDirectory(prefix="chunk-", dir=folder, ignore_cleanup_errors=True) as own:
            sent = SentFiles(order.files, Path(own))
            local = sent.local(refs)
            return sent.outcomes(refs, _session(order.request).screen(local) if local else [])
    outcomes = _session(order.request).screen(refs)
    if any(isinstance(outcome, Failed) for outcome in outcomes) and (path := lost_path(order.request)):
        raise EnvironmentProblem(reason("cluster_no_path", path=path))
    return outcomes


def _session(request: ArchiveRequest) -> PieceSession:
    """The open session for this request; that of another one is closed first."""
    if request not in _held:
        _end_sessions()
        _held[request] = PieceSession.open(request, cores=cores_of_worker() or usable_cores())
    return _held[request]


def _end_sessions() -> None:
    while _held:
        _held.popitem()[1].close()

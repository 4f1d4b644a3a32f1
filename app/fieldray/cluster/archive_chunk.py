"""One chunk of an archive, screened in a worker by an ordinary session, and its results as Parquet.

The session stays open from chunk to chunk, with the network loaded and the decoders running; every chunk gets a store
of its own in the worker's folder, so nothing is taken over from elsewhere, and it is removed with the chunk.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import distributed
import pyarrow as pa
import pyarrow.parquet as pq

from fieldray.cluster.archive_request import ArchiveRequest, load_model, lost_path
from fieldray.cluster.node import cores_of_worker
from fieldray.domain.finding import Failed, Outcome
from fieldray.domain.study import ImageRef
from fieldray.errors import EnvironmentProblem, FieldrayError
from fieldray.imaging.pool import DecoderPool
from fieldray.pipeline.decoders import number_of_decoders
from fieldray.pipeline.session import Session, system_engine
from fieldray.processes.priority import usable_cores
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings
from fieldray.store.history import HistoryQuery
from fieldray.store.results import ResultQuery
from fieldray.store.rows import outcome_columns, outcome_of, ref_of

_TEXTS: Final = (
    "status", "category", "stage", "reason", "ref", "content_sha256", "result_hash", "backend", "findings", "notes",
    "lungs", "details", "pack_name", "model_sha256", "settings_hash",
)  # fmt: skip
_BYTES: Final = ("image_key", "thumbnail", "class_maps", "lung_shares", "preview")
_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.binary()) for name in _BYTES),
        *((name, pa.int64()) for name in ("rank", "frame")),
        *((name, pa.float64()) for name in ("score", "decode_ms", "inference_ms")),
    ]
)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ChunkOrder:
    """What a worker is asked to screen.

    Attributes
    ----------
    refs
        The images, each as the JSON of `store.rows.ref_text`.
    files
        The contents of image files by path, where nodes do not see the files themselves.
    """

    request: ArchiveRequest
    refs: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)


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
    """Outcomes as a Parquet file; a row has the columns of the store, and the preview."""
    own = {name: getattr(request, name) for name in ("pack_name", "model_sha256", "settings_hash")}
    rows = [{**outcome_columns(each), **own, "preview": each.facts.preview or None} for each in outcomes]
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), stream, compression="zstd")
    return stream.getvalue()


def unpacked(data: bytes, request: ArchiveRequest) -> tuple[Outcome, ...]:
    """The outcomes of a Parquet file of this request, with their previews. Raises ValueError for any other bytes."""
    try:
        rows = pq.read_table(io.BytesIO(data), schema=_SCHEMA).to_pylist()
        return tuple(_outcome(row, request) for row in rows)
    except (pa.ArrowException, KeyError, TypeError, sqlite3.Error) as error:
        raise ValueError(f"no results of a chunk: {type(error).__name__}") from error


def _outcome(row: dict[str, Any], request: ArchiveRequest) -> Outcome:
    if (row["model_sha256"], row["settings_hash"]) != (request.model_sha256, request.settings_hash):
        raise ValueError("results of another model or of other settings")
    preview = row.pop("preview") or b""
    outcome = outcome_of(row)
    return replace(outcome, facts=replace(outcome.facts, preview=preview))


# ---- the session of this worker


class _KeptDecoders(DecoderPool):
    """Decoders that outlive a run: each run closes those it was given."""

    def close(self) -> None:
        """Nothing: the session's end closes them."""

    def end(self) -> None:
        """Close them."""
        super().close()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Held:
    settings: Settings
    decoders: _KeptDecoders
    session: Session

    def close(self) -> None:
        self.session.close()
        self.decoders.end()


_held: dict[ArchiveRequest, _Held] = {}


def _outcomes(order: ChunkOrder) -> list[Outcome]:
    """Raises FieldrayError where the node cannot screen."""
    folder = Path(distributed.get_worker().local_directory)
    with tempfile.TemporaryDirectory(prefix="chunk-", dir=folder, ignore_cleanup_errors=True) as own:
        refs = [ref_of(json.loads(text)) for text in order.refs]
        with _copied(refs, order.files, Path(own)) as (local, given):
            outcomes = [_given_back(outcome, given) for outcome in _screened(order.request, local, Path(own))]
    if (
        any(isinstance(outcome, Failed) for outcome in outcomes)
        and not order.files
        and (path := lost_path(order.request))
    ):
        raise EnvironmentProblem(reason("cluster_no_path", path=path))
    return outcomes


def _screened(request: ArchiveRequest, refs: Sequence[ImageRef], folder: Path) -> list[Outcome]:
    held = _session(request)
    database = folder / "results.sqlite"
    batch = held.session.start(
        [Path(path) for path in request.paths],
        operating_point=request.operating_point,
        ages_confirmed=request.ages_confirmed,
        found=refs,
        database=database,
    )
    batch.join()
    if batch.reason:
        raise EnvironmentProblem(batch.reason)
    with ResultQuery(database) as results, HistoryQuery(database) as history:
        return [_with_preview(result.outcome, history) for result in results.rows(batch.run_id)]


def _with_preview(outcome: Outcome, history: HistoryQuery) -> Outcome:
    facts = outcome.facts
    preview = history.preview(facts.content_sha256, frame=outcome.ref.frame) if facts.content_sha256 else None
    return replace(outcome, facts=replace(facts, preview=preview)) if preview else outcome


def _session(request: ArchiveRequest) -> _Held:
    """The open session for this request; that of another one is closed first."""
    if request not in _held:
        _end_sessions()
        cores = cores_of_worker() or usable_cores()
        settings = request.settings_of_node(decoders=0)
        settings.set("decoders", min(cores, number_of_decoders(settings)))
        decoders = _KeptDecoders(
            settings.integer("decoders"),
            timeout_s=settings.integer("decode_timeout_s"),
            memory_limit_mb=settings.integer("decode_memory_mb"),
        )
        with contextlib.ExitStack() as unless_open:
            unless_open.callback(decoders.end)
            session = Session(
                settings,
                lambda _event: None,
                engines=functools.partial(system_engine, cores=cores),
                decoders=lambda _settings, _size: decoders,
            )
            unless_open.callback(session.close)
            session.use_pack(load_model(request))
            unless_open.pop_all()
        _held[request] = _Held(settings=settings, decoders=decoders, session=session)
    return _held[request]


def _end_sessions() -> None:
    while _held:
        _held.popitem()[1].close()


# ---- files that were sent


@contextlib.contextmanager
def _copied(
    refs: Sequence[ImageRef], files: Mapping[str, bytes], folder: Path
) -> Iterator[tuple[list[ImageRef], dict[Path, Path]]]:
    """The references with the places of the files that were sent, and whose place each of them takes."""
    places: dict[Path, Path] = {}
    for number, (name, data) in enumerate(files.items()):
        places[Path(name)] = folder / f"{number}"
        (folder / f"{number}").write_bytes(data)
    yield (
        [replace(ref, path=places.get(ref.path, ref.path)) for ref in refs],
        {local: path for path, local in places.items()},
    )


def _given_back(outcome: Outcome, given: Mapping[Path, Path]) -> Outcome:
    return replace(outcome, ref=replace(outcome.ref, path=given.get(outcome.ref.path, outcome.ref.path)))

"""What a node screens with, open from piece to piece: the workers, the engine, and threads that wait for both.

Each image goes the way of `pipeline.screen.screen_image`, as in any run. A run of its own for each piece, with a store,
cost a commit an image and the reading of all rows again, and let the decoders wait meanwhile; nothing here is stored.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Self

from fieldray.domain.assessment import choose
from fieldray.domain.events import Event
from fieldray.domain.finding import Outcome, without_preview
from fieldray.domain.model import Model
from fieldray.domain.study import ImageRef
from fieldray.pipeline.screen import screen_image
from fieldray.pipeline.session import system_engine
from fieldray.workers.pool import Workers, number_of_workers, open_workers
from fieldray.workers.ports import OpenEngine
from fieldray_cluster.archive_request import ArchiveRequest, load_model


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PieceSession:
    """For one request, from `open` to `close`; one piece at a time."""

    request: ArchiveRequest
    _model: Model
    _engine: OpenEngine
    _workers: Workers
    _threads: ThreadPoolExecutor

    @classmethod
    def open(cls, request: ArchiveRequest, *, cores: int) -> Self:
        """Load the pack and start what reads and runs images, on so many cores. Raises FieldrayError."""
        settings = request.settings_of_node(decoders=0)
        settings.set("decoders", min(cores, number_of_workers(settings)))
        with contextlib.ExitStack() as unless_open:
            workers = open_workers(settings, settings.integer("decoders"))
            unless_open.callback(workers.close)
            model = load_model(request)
            engine = system_engine(_unheard, settings, workers)
            unless_open.callback(engine.close)
            engine.open(model)
            threads = ThreadPoolExecutor(workers.size + 1, thread_name_prefix="screening")
            unless_open.pop_all()
        return cls(
            request=request,
            _model=model,
            _engine=engine,
            _workers=workers,
            _threads=threads,
        )

    def screen(self, refs: Sequence[ImageRef]) -> list[Outcome]:
        """The outcome of each image, in order. Raises FieldrayError where no image can be read or run any more."""
        request, is_over = self.request, threading.Event()
        screen = functools.partial(
            screen_image,
            assessment=choose(
                self._model, operating_point=request.operating_point, ages_confirmed=request.ages_confirmed
            ),
            workers=self._workers,
            engine=self._engine,
            is_cancelled=is_over.is_set,
        )
        futures = [self._threads.submit(screen, ref) for ref in refs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            outcomes = [future.result() for future in futures if future.done()]
        finally:
            is_over.set()  # ends what others wait for, where one has failed
            for future in futures:
                future.cancel()
        return outcomes if dict(request.settings)["keep_previews"] else list(map(_without_pictures, outcomes))

    def close(self) -> None:
        """End every thread and process."""
        self._engine.close()
        self._workers.close()
        self._threads.shutdown(cancel_futures=True)


def _without_pictures(outcome: Outcome) -> Outcome:
    """Where no pictures of patients are to be kept, none leaves the node either."""
    outcome = without_preview(outcome)
    return replace(outcome, facts=replace(outcome.facts, thumbnail=None))


def _unheard(_: Event) -> None:
    """Nobody looks at a worker."""

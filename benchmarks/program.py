"""This program as a contestant of a speed comparison: a real run over a folder, in a child process.

Every run has new worker processes, a new engine and a new database. Before time is measured, all are ready, every
decoder has read one image of each kind, and one run has processed these images.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks.processes import cpu_s
from fieldray.domain.finding import Category
from fieldray.domain.image import ImageRef
from fieldray.domain.model import Model
from fieldray.domain.run import BackendChanged, Event, ImageDone
from fieldray.errors import BackendProblem
from fieldray.packs.library import PackLibrary
from fieldray.paths import data_folder
from fieldray.pipeline.session import Session
from fieldray.processes.wire import Message
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.workers.calls import AnalysisRequest
from fieldray.workers.pool import WorkerPool, number_of_workers, open_workers

_READY_S: Final = 60.0


class ScreenService:
    """Answers the messages of a speed comparison in a child process (see `contestants`), by real runs with a pack."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._first: list[ImageRef] = []

    def handle(self, message: Message) -> Message:
        """Answer a message: "open" loads the pack and warms up, "read" screens a folder and returns the figures."""
        body = message.body
        if body["ask"] == "open":
            library = PackLibrary(data_folder())
            rules = {"allow_older": body["allow_older"], "allow_legacy": body["allow_legacy"]}
            self._model = library.load(Path(body["pack"]), **rules)
            self._first = [ImageRef(path=Path(path)) for path in body["first"]]
            self._screen([ref.path for ref in self._first])
            return Message({"detail": f"{number_of_workers(Settings())} workers"})
        return Message(self._screen([Path(body["folder"])]))

    def _screen(self, paths: Sequence[Path]) -> dict[str, object]:
        assert self._model is not None
        settings, heard = Settings({"device": "cpu"}), RunEvents()
        size = number_of_workers(settings)
        with contextlib.ExitStack() as ends:
            home = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="fieldray-bench-")))
            workers = ends.enter_context(contextlib.closing(open_workers(settings, size)))
            session = Session(settings, heard.publish, database=home / "results.sqlite", running_workers=workers)
            ends.enter_context(session)
            session.use_packs(self._model)
            heard.wait_ready()
            _warm_up(workers, self._first, self._model)
            before_s, began_s = cpu_s(os.getpid()), time.perf_counter()
            session.start(paths, as_new_run=True).join()
            seconds, after_s = time.perf_counter() - began_s, cpu_s(os.getpid())
        spent_s = None if before_s is None or after_s is None else after_s - before_s
        found = heard.counts
        detail = ", ".join(f"{category} {count}" for category, count in sorted(found.items()))
        files, failed = sum(found.values()), found["failed"]
        return {"seconds": seconds, "cpu_s": spent_s, "files": files, "failed": failed, "detail": detail}


class RunEvents:
    """Receives the events of a run: whether a backend is ready, and the number of outcomes by category."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_ready = False
        self.counts: Counter[Category] = Counter()

    def publish(self, event: Event) -> None:
        """Handle an event of a run. May be called from any thread."""
        with self._changed:
            if isinstance(event, ImageDone):
                self.counts[event.image.most_urgent_result.outcome.category] += 1
            elif isinstance(event, BackendChanged) and event.state == "ready":
                self._is_ready = True
                self._changed.notify_all()

    def wait_ready(self) -> None:
        """Wait until a backend is ready. Raises BackendProblem after a minute."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_ready, timeout=_READY_S):
                raise BackendProblem(reason("worker_timeout", seconds=f"{_READY_S:g}"))


def _warm_up(workers: WorkerPool, refs: Sequence[ImageRef], model: Model) -> None:
    """Let every worker process read one image of each kind, so that decoders and networks are loaded."""
    with ThreadPoolExecutor(workers.size) as threads:
        for ref in refs:
            list(
                threads.map(
                    lambda again: workers.analyse(AnalysisRequest(ref=again), model=model), [ref] * workers.size
                )
            )


handle = ScreenService().handle

"""This computer: its load over the run in sight, and how long an image takes beside other programs. No widget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Signal

from fieldray.desktop.background import Background, Services
from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.pack_choice import PackChoice
from fieldray.desktop.past_runs import RunRoom
from fieldray.desktop.screening import Screening
from fieldray.domain.events import Speed
from fieldray.errors import Cancelled

if TYPE_CHECKING:
    from fieldray.bench.load import KeptStudy

_MOST_SAMPLES: Final = 600  # about a point of the screen each


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Load of the whole machine, and memory of this program, so many seconds after the run began."""

    at_s: float
    cpu_percent: float
    memory_mb: float


class Machine(RunRoom):
    """Samples of a run, at most `_MOST_SAMPLES` however long it is; and the last study by load, done anew on demand."""

    sampled = Signal()
    _progressed = Signal(object, int, int)

    def __init__(
        self,
        background: Background,
        board: NoticeBoard,
        screening: Screening,
        packs: PackChoice,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(background, board, screening, packs)
        self._clock, self._began_s, self._apart_s = clock, 0.0, 0.0
        self._stop = threading.Event()
        self.samples: list[Sample] = []
        self.study: KeptStudy | None = None
        self.progress = 0, 0
        self._progressed.connect(self._show_progress)
        packs.model_changed.connect(self.changed)
        screening.started.connect(self._begin)

    @property
    def can_measure(self) -> bool:
        """Whether nothing else is under way that would be measured with it, and a pack is in use."""
        return not self.is_busy and not self._screening.is_busy and self._packs.model is not None

    def look(self) -> None:
        """Read what was measured last."""
        if not self.is_busy:
            self._background.ask(lambda services: services.known_load(), channel="load", done=self._known)

    def measure(self) -> None:
        """Measure anew, in another process."""
        source, model = self._packs.source, self._packs.model
        if not self.can_measure or source is None or model is None:
            return
        folder, signer, stop = source.folder, model.fingerprint, threading.Event()
        self._stop, self.progress = stop, (0, 0)

        def report(done: int, total: int) -> None:
            if stop.is_set():
                raise Cancelled
            self._progressed.emit(stop, done, total)

        def work(services: Services) -> KeptStudy | None:
            try:
                return services.measure_load(folder, signer, report)
            except Cancelled:
                return None

        self._run(work, self._known, channel="load")

    def stop(self) -> None:
        """End the measurement; what was measured before stays."""
        self._stop.set()

    def take(self, speed: Speed) -> None:
        """Figures of the run under way."""
        at_s = self._clock() - self._began_s
        last_s = self.samples[-1].at_s if self.samples else -self._apart_s
        if speed.cpu_percent is None or speed.memory_mb is None or at_s - last_s < self._apart_s:
            return
        self.samples.append(Sample(at_s=at_s, cpu_percent=speed.cpu_percent, memory_mb=speed.memory_mb))
        if len(self.samples) > _MOST_SAMPLES:
            del self.samples[1::2]
            self._apart_s = 2 * at_s / _MOST_SAMPLES
        self.sampled.emit()

    # ---- inside

    def _begin(self) -> None:
        """A run needs the computer for itself, and is drawn alone."""
        self.stop()
        self.samples, self._began_s, self._apart_s = [], self._clock(), 0.0
        self.sampled.emit()

    def _show_progress(self, stop: threading.Event, done: int, total: int) -> None:
        if stop is self._stop and not stop.is_set():
            self.progress = done, total
            self.changed.emit()

    def _known(self, study: KeptStudy | None) -> None:
        self.study = study or self.study
        self.changed.emit()

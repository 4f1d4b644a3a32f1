"""The program's real window, without a screen, and how long it pauses: how much later than due it comes to a beat."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, cast

from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtWidgets import QApplication

from fieldray.desktop.application import Application, favour_the_window
from fieldray.desktop.services import OpenServices, open_services
from fieldray.settings import Settings

BEAT_MS: Final = 5
NOTED_MS: Final = 20.0
STEP_MS: Final = 400


class Heart:
    """Notes how late the window is for each beat of a timer, while it is let run; takes a step every `step_ms`.

    Attributes
    ----------
    busy_ms
        The longest that the window's thread computed between two beats of the last run, whatever else the computer did.
    """

    def __init__(self, step: Callable[[], None] = lambda: None, *, step_ms: int = STEP_MS) -> None:
        self._step, self._step_ms = step, step_ms
        self._late_ms: list[float] = []
        self._loop = QEventLoop()
        self._beat, self._steps = QTimer(), QTimer()
        self._beat.setTimerType(Qt.TimerType.PreciseTimer)
        self._beat.timeout.connect(self._note)
        self._steps.setTimerType(Qt.TimerType.PreciseTimer)
        self._steps.timeout.connect(self._take_step)
        self.busy_ms = 0.0

    def run_until(self, is_over: Callable[[], bool]) -> tuple[tuple[float, ...], int]:
        """Let the window work until something is so: the pauses above `NOTED_MS`, and how many steps were taken."""
        self._late_ms, self._taken, self._is_over, self.busy_ms = [], 0, is_over, 0.0
        self._last_s, self._last_cpu_s = time.perf_counter(), time.thread_time()
        self._beat.start(BEAT_MS)
        self._steps.start(self._step_ms)
        self._loop.exec()
        self._steps.stop()
        self._beat.stop()
        return tuple(sorted((late for late in self._late_ms if late > NOTED_MS), reverse=True)), self._taken

    def _note(self) -> None:
        now_s, cpu_s = time.perf_counter(), time.thread_time()
        self._late_ms.append(1000 * (now_s - self._last_s) - BEAT_MS)
        self.busy_ms = max(self.busy_ms, 1000 * (cpu_s - self._last_cpu_s))
        self._last_s, self._last_cpu_s = now_s, cpu_s
        if self._is_over():
            self._loop.quit()

    def _take_step(self) -> None:
        self._taken += 1
        self._step()


@contextlib.contextmanager
def real_window(pack_id: str, *, services: OpenServices = open_services) -> Iterator[Application]:
    """The window with a pack in use, as `favour_the_window` has it; it is closed at the end."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    qt = cast("QApplication", QApplication.instance() or QApplication([]))
    qt.setQuitOnLastWindowClosed(False)
    settings = Settings({"language": "en", "theme": "light", "pack": pack_id})
    application = Application(qt, settings, services=services)
    favour_the_window(application)
    ended: list[bool] = []
    application.ended.connect(lambda: ended.append(True))
    application.show()
    heart = Heart()
    try:
        heart.run_until(lambda: application.controller.packs.model is not None)
        yield application
    finally:
        application.controller.close()
        heart.run_until(lambda: bool(ended))

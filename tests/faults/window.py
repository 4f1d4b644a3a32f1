"""The fault run with the real window, which begins every batch."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QApplication

from faults.fault_run import FaultRun
from fieldray.desktop.application import Application, shorten_thread_switch_interval
from fieldray.desktop.background import Services
from fieldray.domain.run import DrivesChanged, Publish
from fieldray.packs.site_choices import RememberedPacks
from fieldray.pipeline.auditing import Auditor
from fieldray.pipeline.batch import Batch
from fieldray.pipeline.compare import PriorFinder, system_comparer_factory
from fieldray.pipeline.constancy import ConstancyRecords
from fieldray.pipeline.history import History
from fieldray.pipeline.session import Session
from fieldray.settings import Settings
from waiting import left_behind, running

_BEGIN_TIMEOUT_S: Final = 60.0


class StartingHere:
    """The window's session. Every run is a fresh one, and is also handed to the fault run."""

    def __init__(self, session: Session, begun: queue.Queue[Batch]) -> None:
        self._session = session
        self._begun = begun

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def start(self, paths: Sequence[Path], **options: Any) -> Batch:
        batch = self._session.start(paths, **{**options, "as_new_run": True})
        self._begun.put(batch)
        return batch


class WindowFrontEnd(QObject):
    """The real window with the fault run's session, as a front end of the fault run."""

    _wanted = Signal(object)
    _over = Signal()
    _broken = Signal()

    def __init__(self, run: FaultRun, settings: Settings) -> None:
        super().__init__()
        self._run = run
        self._begun: queue.Queue[Batch] = queue.Queue()
        self._publish: Publish | None = None
        self.error: BaseException | None = None
        self.application = Application(_qt(), settings, services=self._open_services)
        self._wanted.connect(self.application.controller.screening.screen_paths)
        self._over.connect(self._end_run)
        self._broken.connect(_qt().quit)
        self._thread = threading.Thread(target=self._go, name="fault-run")
        self.application.controller.services_opened.connect(self._thread.start)

    # ---- called by the fault run, in its threads

    def begin(self, session: Session, paths: Sequence[Path]) -> Batch:
        """Choose the images in the window, which begins a run. Returns the run."""
        self._wanted.emit(tuple(paths))
        return self._begun.get(timeout=_BEGIN_TIMEOUT_S)

    def drive_changed(self, drive: Path, *, is_in: bool) -> None:
        """Inform the window, as the watch over drives does."""
        assert self._publish
        self._publish(DrivesChanged(drives={drive: ()} if is_in else {}))

    # ---- called by the window

    def _open_services(self, settings: Settings, publish: Publish) -> Services:
        try:
            return self._services(settings, publish)
        except BaseException as error:  # in a thread of the window, which would wait for ever
            self.error = error
            self._broken.emit()
            raise

    def _services(self, settings: Settings, publish: Publish) -> Services:
        self._publish = publish
        session, clinic = self._run.open(publish), self._run.clinic
        memory = RememberedPacks(session.database.parent)
        memory.remember([clinic.images[0].parent], clinic.load_pack().manifest.pack_id, ages_confirmed=True)
        return Services(
            session=StartingHere(session, self._begun),
            library=clinic.packs,
            remembered_packs=memory,
            may_lack_patient_ages=lambda paths: False,
            are_empty_folders=lambda paths: False,
            drives=SimpleNamespace(close=lambda: None),  # the fault run itself announces changes of drives
            auditor=Auditor(session.database, clinic.packs.site_points),
            history=History(session.database),
            priors=PriorFinder(session.database, system_comparer_factory(settings)),
            constancy=ConstancyRecords(session.database.parent),
            run_constancy_test=lambda: (),
            read_computer_load_study=lambda: None,
            run_computer_load_study=lambda folder, signer, progress: None,
        )

    def _go(self) -> None:
        try:
            self._run.go(self)
        except BaseException as error:
            self.error = error
        finally:
            self._over.emit()

    def _end_run(self) -> None:
        self._thread.join()
        self.application.controller.close()


def _qt() -> QApplication:
    existing = QApplication.instance()
    return existing if isinstance(existing, QApplication) else QApplication(["fieldray"])


def go_with_window(run: FaultRun) -> dict[str, Any]:
    """Perform the whole fault run with a window off screen. Raises the errors of the run."""
    qt, before = _qt(), running()
    qt.setQuitOnLastWindowClosed(False)
    front_end = WindowFrontEnd(run, run.clinic.settings)
    front_end.application.ended.connect(qt.quit)
    shorten_thread_switch_interval(front_end.application)
    front_end.application.show()
    qt.exec()
    if front_end.error:
        raise front_end.error
    return {**run.figures, "left_behind": left_behind(before)}

"""The program with a window. After a change of language or theme, a new window replaces the old window."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, cast

from PySide6.QtCore import (
    QByteArray,
    QCoreApplication,
    QLibraryInfo,
    QLocale,
    QObject,
    QSettings,
    QSocketNotifier,
    Qt,
    QTimer,
    QTranslator,
    Signal,
)
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from fieldray.desktop import style
from fieldray.desktop.background import BackgroundTasks, OpenServices, open_services
from fieldray.desktop.controller import Controller
from fieldray.desktop.main_window import MainWindow
from fieldray.desktop.notices import NotifyRunEnd, notify_run_end, run_end_texts
from fieldray.desktop.style import program_icon
from fieldray.log_file import configure_logging
from fieldray.offline import block_further_connections
from fieldray.process_environment import shutdown_signals
from fieldray.reasons import Reason
from fieldray.settings import Settings, Value, load_settings
from fieldray.translation import Translator, best_language

log = logging.getLogger(__name__)

_REBUILD: Final = frozenset({"language", "theme"})
# The window's thread waits this long for each thread that computes in Python, and again after every call to Qt. With
# the default of 5 ms, repainting the list during a fast run would block the window for 0.1 s.
_SWITCH_S: Final = 0.0001
_RARELY: Final = 100
_MMAP_THRESHOLD: Final = -3  # a parameter of mallopt(3)
_LARGE_BYTES: Final = 2**20
_THREADS_END_S: Final = 2.0
_DEVICES: Final = frozenset({"device", "policy"})


def resolve_language(setting: str) -> str:
    """Return the code of the language that a setting selects. The setting "system" selects the system's language."""
    return best_language(QLocale.system().uiLanguages() if setting == "system" else (setting,))


class Application(QObject):
    """The program with a window.

    The controller lives as long as the program. Each change of language or theme makes a new window.
    """

    ended = Signal()
    _crashed = Signal(object)

    def __init__(
        self,
        qt: QApplication,
        settings: Settings,
        *,
        services: OpenServices = open_services,
        background: type[BackgroundTasks] = BackgroundTasks,
        notify_run_end: NotifyRunEnd = notify_run_end,
    ) -> None:
        """Create the program without a window.

        services        function that opens the services of the program
        background      class that runs tasks in the background
        notify_run_end  function that notifies a person, who does not look at the window, that a run has ended
        """
        super().__init__()
        self._qt, self.settings = qt, settings
        self._qt_text: QTranslator | None = None
        self._translator = Translator(resolve_language(str(settings["language"])), self._hides_names)
        self.controller = Controller(settings, self._translator, open_services=services, background=background)
        self.window: MainWindow | None = None
        self._signal_end = notify_run_end
        self._has_ended = False
        self.controller.run_ended.connect(partial(setattr, self, "_has_ended", True))
        for news in (self.controller.rows.list_changed, self.controller.screening.run_started):
            news.connect(self._tell_end)
        self._crashed.connect(self.controller.show_unexpected_error, Qt.ConnectionType.QueuedConnection)
        self.controller.closed.connect(self._end)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._system_theme_changed)

    def show(self) -> None:
        """Build and show the window, then open the services of the program in the background."""
        self._build()
        QTimer.singleShot(0, self.controller.open_services)

    def show_settings_problems(self, problems: Sequence[Reason]) -> None:
        """Show the problems that were found while reading the settings file."""
        for problem in problems:
            self.controller.notice_board.post_reason("settings", problem, level="warning")

    def change_settings(self, changes: Mapping[str, Value]) -> None:
        """Apply changed settings to the window, and save them."""
        if not changes:
            return
        for key, value in changes.items():
            self.settings.set(key, value)
        if changes.get("keep_folders") is False:
            self.controller.update_recent_folders()
        self.controller.save_settings()
        self.controller.apply_settings(changes)
        if _REBUILD & changes.keys():
            self._build()
        if _DEVICES & changes.keys():
            self.controller.screening.apply_device_settings()

    @contextlib.contextmanager
    def show_uncaught_errors(self) -> Iterator[None]:
        """Log and show every uncaught exception of any thread during a `with` block."""
        before, before_threads = sys.excepthook, threading.excepthook
        sys.excepthook = self._caught
        threading.excepthook = lambda lost: self._crashed.emit(lost.exc_value) if lost.exc_value else None
        try:
            yield
        finally:
            sys.excepthook, threading.excepthook = before, before_threads

    @contextlib.contextmanager
    def close_on_signals(self) -> Iterator[None]:
        """Close the program in an orderly way on a signal to end, during a `with` block.

        The signals are Ctrl-C, SIGTERM (shutdown) and SIGHUP (closed terminal). Python may run a signal handler in the
        middle of a call into Qt, so the handlers do nothing. The number of the signal is written into a pipe. Qt reads
        the pipe between two events, and then the program closes.
        """
        if sys.platform == "win32":  # on Windows, Qt cannot wait for a pipe
            close = partial(QTimer.singleShot, 0, self.controller.close)
            with _handling(lambda *_: close()):
                yield
            return
        reading, writing = os.pipe()
        for end in (reading, writing):  # neither a signal handler nor the window may block
            os.set_blocking(end, False)
        notifier = QSocketNotifier(reading, QSocketNotifier.Type.Read)
        notifier.activated.connect(lambda: self._end_on(reading))
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            with _handling(lambda *_: None):
                yield
        finally:
            signal.set_wakeup_fd(before)
            notifier.setEnabled(False)
            os.close(reading)
            os.close(writing)

    # ---- building and closing

    def _end_on(self, signals: int) -> None:
        """Close the program if a signal that asks to end has arrived. Other signals with Python handlers are ignored.

        signals  file descriptor of the pipe into which the numbers of signals are written
        """
        with contextlib.suppress(BlockingIOError):
            if set(os.read(signals, 64)) & set(shutdown_signals()):
                self.controller.close()

    def _build(self) -> None:
        """Build the window in the current language and theme, and replace the previous window."""
        theme = style.resolve_theme(str(self.settings["theme"]))
        self._speak(resolve_language(str(self.settings["language"])))
        before, self.window = self.window, MainWindow(self.controller, self._translator, theme)
        style.apply_theme(self._qt, theme)  # early: Qt styles a widget again each time it gets a parent
        self.window.settings_changed.connect(self.change_settings)
        self.window.close_confirmed.connect(self._close)
        if before is None:
            self.window.resize(1366, 768)
            self.window.panes.restoreState(_unpacked(self.settings["panes"]))
            is_known = self.window.restoreGeometry(_unpacked(self.settings["window"]))
            (self.window.show if is_known else self.window.showMaximized)()
            return
        self.window.restoreGeometry(before.saveGeometry())
        self.window.panes.restoreState(QByteArray(before.panes.saveState()))
        self.window.show()
        before.close_without_asking()
        before.deleteLater()

    def _close(self) -> None:
        """Save position and size of the window for the next start."""
        assert self.window is not None
        self.window.leave_full_screen()
        for key, state in (("window", self.window.saveGeometry()), ("panes", self.window.panes.saveState())):
            self.settings.set(key, bytes(state.toBase64().data()).decode())
        self.controller.save_settings()
        self.controller.close()

    def _tell_end(self) -> None:
        """Announce the end of a run in the window, and by a notification of the operating system if possible.

        The announcement waits until the whole run is listed. If the next run begins before that, the announcement has
        no counts.
        """
        if not self._has_ended or not self.controller.rows.is_up_to_date:
            return
        self._has_ended = False
        if self.window is not None and not self.window.isActiveWindow():
            self._signal_end(self.window, *run_end_texts(self._translator, self.controller.rows))

    def _speak(self, language: str) -> None:
        """Set the language of the program's texts and of the texts in Qt's own dialogs."""
        self._translator = Translator(language, self._hides_names)
        self.controller.rows.set_translator(self._translator)
        if self._qt_text is not None:
            QCoreApplication.removeTranslator(self._qt_text)
        self._qt_text = QTranslator()
        if self._qt_text.load(f"qtbase_{language}", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
            QCoreApplication.installTranslator(self._qt_text)
        QLocale.setDefault(QLocale(language))

    def _hides_names(self) -> bool:
        return self.controller.switches.hide_patient

    def _system_theme_changed(self) -> None:
        if self.settings["theme"] == "system":
            self._build()

    def _caught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            self.controller.close()
        else:
            self._crashed.emit(error.with_traceback(trace))

    def _end(self) -> None:
        if self.window is not None:
            self.window.close_without_asking()
        self.ended.emit()


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Install a handler for each signal that asks the process to end, during a `with` block."""
    before = {number: signal.signal(number, handler) for number in shutdown_signals()}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _unpacked(setting: Value) -> QByteArray:
    """Decode the saved position and size of a window from Base64. Qt ignores an invalid value."""
    return QByteArray.fromBase64(QByteArray(str(setting).encode()))


def disable_dialog_history() -> None:
    """Disable the history of Qt's file dialog. The history would store opened folders outside this program's folder."""
    QSettings.setPath(QSettings.Format.NativeFormat, QSettings.Scope.UserScope, os.devnull)


def shorten_thread_switch_interval(application: Application) -> None:
    """Shorten the time that the window's thread waits for other Python threads, in this process from now on.

    Also, full garbage collections become rare, and large freed blocks of memory return to the operating system.
    """
    sys.setswitchinterval(_SWITCH_S)
    # A full garbage collection stops every thread. Objects made by the start are excluded. Full collections run in
    # idle moments, and rarely in a long run.
    application.controller.services_opened.connect(gc.freeze)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _RARELY)
    application.controller.screening.became_idle.connect(gc.collect)
    _give_large_blocks_back()


def _give_large_blocks_back() -> None:
    """Make the C library return large freed blocks of memory to the operating system at once.

    Such a block is a list of a million rows. By default glibc keeps blocks up to the size of the largest block freed so
    far. This function fixes the limit at 1 MB. Other C libraries are not changed.
    """
    with contextlib.suppress(OSError, AttributeError):
        adjust = ctypes.CDLL(None).mallopt if sys.platform == "linux" else None
        if adjust:
            adjust(_MMAP_THRESHOLD, _LARGE_BYTES)


def run_application(paths: Sequence[Path]) -> int:
    """Open the window and screen `paths`. Returns the exit code after the window and all processes have ended."""
    QCoreApplication.setApplicationName("fieldray")
    QGuiApplication.setDesktopFileName("fieldray")
    disable_dialog_history()
    qt = cast("QApplication", QApplication.instance() or QApplication(sys.argv[:1]))
    block_further_connections()
    qt.setQuitOnLastWindowClosed(False)
    qt.setWindowIcon(program_icon())
    with configure_logging():
        settings, problems = load_settings()
        application = Application(qt, settings)
        application.ended.connect(qt.quit)
        application.show_settings_problems(problems)
        shorten_thread_switch_interval(application)
        with application.show_uncaught_errors(), application.close_on_signals():
            try:
                application.show()
                application.controller.screening.screen_paths(paths)
                code = qt.exec()
            finally:  # otherwise Python would wait for threads that wait for the services
                has_ended = application.controller.background.close(wait_s=_THREADS_END_S)
    if not has_ended:
        # At its normal end, Python stops threads at any point. Inside a C++ library, that crashes the process.
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    return code

"""The window stays quick because it does little at a time: how little is counted, not timed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from cProfile import Profile

import numpy as np
from desk import Desk
from fake_rooms import screened

from fieldray.desktop.image_painting import cut, pyramid_of
from fieldray.desktop.list_reader import KEYS, WorkRow
from fieldray.desktop.worklist_model import WorkListModel
from fieldray.domain.events import RunChanged
from fieldray.domain.image import Image, Window

ROWS = 2000
START = """
import json, sys
from PySide6.QtCore import QEvent, QObject, QTimer
from PySide6.QtWidgets import QApplication
from fieldray.desktop.application import run_application
LARGE = {"ai_edge_litert", "imagecodecs", "matplotlib", "pydicom", "tensorflow"}
class Watch(QObject):
    def eventFilter(self, watched, event):
        if event.type() == QEvent.Type.Paint:
            print(json.dumps(sorted(LARGE & sys.modules.keys())), flush=True)
            QApplication.instance().removeEventFilter(self)
            QTimer.singleShot(0, lambda: [window.close() for window in QApplication.topLevelWidgets()])
        return False
application = QApplication([])
watch = Watch()
application.installEventFilter(watch)
sys.exit(run_application([]))
"""


def times_called(calls: Profile, function: Callable[..., object]) -> int:
    """How often a function written in Python was called."""
    return sum(entry.callcount for entry in calls.getstats() if entry.code is function.__code__)


def test_thousands_of_rows_come_in_batches_and_only_what_is_seen_is_read_and_drawn(desk: Desk) -> None:
    rows, session = desk.bench.rows, desk.rooms.session
    desk.screen()
    session.outcomes[:] = [screened(number, (number * 7919 % 1000) / 1000) for number in range(ROWS)]
    inserted: list[int] = []
    rows.rowsInserted.connect(lambda _parent, first, last: inserted.append(last - first + 1))
    with Profile() as calls:
        desk.bench.screening.take_run(RunChanged(run_id=1, state="finished"))
        desk.bench.screening.start()
        desk.until_listed(ROWS)
        for act in (
            lambda: rows.sort(KEYS.index("score")),
            lambda: rows.sort(-1),
            lambda: rows.filter(text="px-10"),
            lambda: rows.filter(text=""),
        ):
            with desk.qtbot.waitSignal(rows.changed):
                act()
        desk.window.work_list.choose_end(last=True)
        desk.until(lambda: desk.bench.image.row is not None)
    assert sum(inserted) == ROWS
    assert len(inserted) < ROWS / 10
    assert 0 < times_called(calls, WorkListModel.data) < ROWS
    assert times_called(calls, WorkRow.__post_init__) < ROWS / 4
    assert rows.rowCount() == ROWS


def test_a_large_image_is_windowed_by_what_the_screen_shows_of_it() -> None:
    pixels = np.random.default_rng(1).integers(0, 4096, (3000, 2500)).astype(np.uint16)
    pyramid = pyramid_of(Image(pixels=pixels))
    assert sum(level.size for level in pyramid.levels) < pixels.size * 4 / 3
    level = pyramid.levels[pyramid.level_for(0.3)]
    assert level.size * 4 == pixels.size
    table = pyramid.table(Window(1500, 2000.0, "LINEAR_EXACT"), inverted=False)
    assert (table.dtype, table.size) == (np.uint8, 2**16)  # one look-up per pixel and no arithmetic
    assert cut(level, table, top=10, bottom=20, left=30, right=70).shape == (10, 40)


def test_a_polite_signal_ends_the_program_in_order() -> None:
    script = START.replace("QTimer.singleShot", "(lambda *_: None)")
    program = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout.readline()
        program.terminate()
        assert program.wait(30) == 0
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def test_a_thread_that_never_ends_keeps_no_program_alive_and_does_not_crash_it() -> None:
    hanging = """
import fieldray.desktop.controller, fieldray.desktop.application, threading
fieldray.desktop.controller._OPENING_ENDS_MS = 100
fieldray.desktop.application._THREADS_END_S = 0.1
fieldray.desktop.application.Application.__init__.__kwdefaults__["services"] = lambda *_: threading.Event().wait()
"""
    script = START.replace("class Watch", f"{hanging}class Watch")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[]\n")


def test_the_window_is_there_before_anything_large_was_imported_and_leaves_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == []

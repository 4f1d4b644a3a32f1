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
from PySide6.QtWidgets import QApplication

from fieldray.desktop.image_painting import cut, pyramid_of
from fieldray.desktop.worklist_model import KEYS, WorkListModel
from fieldray.domain.events import OutcomeReady
from fieldray.domain.image import Image, Window

ROWS = 10_000
START = """
import json, sys
from PySide6.QtCore import QEvent, QObject, QTimer
from PySide6.QtWidgets import QApplication
from fieldray.desktop.main_window import run
LARGE = {"ai_edge_litert", "imagecodecs", "matplotlib", "openjpeg", "pydicom", "tensorflow"}
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
sys.exit(run())
"""


def times_called(calls: Profile, function: Callable[..., object]) -> int:
    """How often a function written in Python was called."""
    return sum(entry.callcount for entry in calls.getstats() if entry.code is function.__code__)


def test_ten_thousand_rows_come_in_batches_and_only_what_is_seen_is_drawn(desk: Desk) -> None:
    rows = desk.application.controller.rows
    desk.screen()
    rows.clear()
    inserted: list[int] = []
    rows.rowsInserted.connect(lambda _parent, first, last: inserted.append(last - first + 1))
    with Profile() as calls:
        for number in range(ROWS):
            outcome = screened(number, (number * 7919 % 1000) / 1000)
            desk.rooms.publish(OutcomeReady(run_id=1, row_id=number, outcome=outcome))
        desk.qtbot.waitUntil(lambda: rows.total() == ROWS, timeout=30_000)
        for act in (
            lambda: rows.sort(KEYS.index("score")),
            lambda: rows.sort(-1),
            lambda: rows.set_search("px-10"),
            lambda: rows.set_search(""),
            lambda: desk.window.work_list.step_study(1),
        ):
            act()
            QApplication.processEvents()
    assert sum(inserted) == ROWS
    assert len(inserted) < ROWS / 10
    assert 0 < times_called(calls, WorkListModel.data) < ROWS
    assert rows.rowCount() == ROWS


def test_a_large_image_is_windowed_by_what_the_screen_shows_of_it() -> None:
    pixels = np.random.default_rng(1).integers(0, 4096, (3000, 2500)).astype(np.uint16)
    picture = pyramid_of(Image(pixels=pixels))
    assert sum(level.size for level in picture.levels) < pixels.size * 4 / 3
    level = picture.levels[picture.level_for(0.3)]
    assert level.size * 4 == pixels.size
    table = picture.table(Window(1500, 2000.0, "LINEAR_EXACT"), inverted=False)
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


def test_the_window_is_there_before_anything_large_was_imported_and_leaves_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0]) == []

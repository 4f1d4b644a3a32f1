"""The window on the real rooms: images drawn by code, the tiny network, real child processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import texts
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from fieldray.desktop.application import Application
from fieldray.desktop.packs_page import PackDialog
from fieldray.desktop.worklist_model import KEYS
from fieldray.domain.run import Verdict
from fieldray.imaging.synthetic import write_studies
from fieldray.packs.library import PackLibrary
from fieldray.packs.naming import LEGACY_CPU_NAME
from fieldray.settings import Settings
from tiny_models import legacy_model_bytes
from tiny_packs import fingerprint, write_tiny_pack

WAIT_MS = 60_000
MARK = "operating point unknown"


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot, home: Path, tmp_path: Path) -> Iterator[Application]:
    """The program with an installed pack."""
    pack = write_tiny_pack(tmp_path)
    library = PackLibrary(home)
    library.trust(fingerprint(pack))
    library.install(pack)
    made = Application(qapp, Settings({"language": "en", "theme": "light", "pack": "tiny"}))
    ended: list[bool] = []
    made.ended.connect(lambda: ended.append(True))
    made.show()
    qtbot.waitUntil(lambda: made.controller.packs.model is not None, timeout=WAIT_MS)
    yield made
    made.controller.close()
    qtbot.waitUntil(lambda: bool(ended), timeout=WAIT_MS)
    made.window.deleteLater()
    qapp.processEvents()


@pytest.mark.slow
def test_images_are_screened_shown_judged_and_taken_over(
    application: Application, qtbot: QtBot, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    write_studies(images, count=4)
    (images / "notes.txt").write_text("no image", encoding="utf-8")
    bench, window = application.controller, application.window
    bench.screening.choose([images])
    qtbot.waitUntil(lambda: bench.screening.state == "finished", timeout=WAIT_MS)
    qtbot.waitUntil(lambda: bench.rows.total() >= 5, timeout=WAIT_MS)
    assert bench.rows.counts()["not_an_image"] == 1
    assert (
        "not a DICOM, PNG or JPEG image"
        in bench.rows.row_at(bench.rows.index(bench.rows.rowCount() - 1, 0)).reason.text
    )
    window.work_list.choose_end(last=False)
    qtbot.waitUntil(lambda: bench.image.pyramid is not None, timeout=WAIT_MS)
    assert "Score" in texts(window.result)
    row_id = bench.image.row.row_id
    bench.judging.choose("agree")
    qtbot.waitUntil(lambda: bench.image.row.verdict == Verdict(choice="agree"), timeout=WAIT_MS)
    bench.screening.start()
    qtbot.waitUntil(lambda: bench.screening.state == "finished" and bench.rows.total() >= 5, timeout=WAIT_MS)
    assert (
        bench.image.row is None
        or bench.image.row.row_id != row_id
        or bench.image.row.verdict == Verdict(choice="agree")
    )


@pytest.mark.slow
def test_the_dissertations_file_on_a_drive_is_used_after_a_yes_and_marked(
    application: Application, qtbot: QtBot, tmp_path: Path
) -> None:
    drive, images = tmp_path / "drive", tmp_path / "images"
    for folder in (drive, images):
        folder.mkdir()
    (drive / LEGACY_CPU_NAME).write_bytes(legacy_model_bytes("float32"))
    chests = Path(__file__).parents[2] / "assets" / "demonstration"
    for name in ("adults/published-covid-19-6.jpg", "children/published-normal-2.jpg"):  # bright, and dark
        (images / Path(name).name).write_bytes((chests / name).read_bytes())
    bench, window = application.controller, application.window
    (candidate,) = PackLibrary(tmp_path).candidates(drive)
    bench.packs.use(candidate)
    qtbot.waitUntil(lambda: any(box.isVisible() for box in window.findChildren(PackDialog)), timeout=WAIT_MS)
    question = next(box for box in window.findChildren(PackDialog) if box.isVisible())
    assert "operating point is unknown" in texts(question)
    question.yes_button.click()
    qtbot.waitUntil(lambda: bench.packs.model is not None and bench.packs.model.trust == "legacy", timeout=WAIT_MS)
    qtbot.waitUntil(lambda: MARK in window.toolbar.pack_chip.toolTip(), timeout=WAIT_MS)
    assert "unsigned" in texts(window.toolbar)
    (drive / LEGACY_CPU_NAME).unlink()
    bench.screening.choose([images])
    bench.screening.start()  # the pack in use is the one in the header
    qtbot.waitUntil(lambda: bench.screening.state == "finished", timeout=WAIT_MS)
    qtbot.waitUntil(lambda: bench.rows.total() >= 2, timeout=WAIT_MS)
    counts = bench.rows.counts()
    assert (counts["abnormal"], counts["normal"], counts["not_assessed"]) == (1, 1, 0)
    window.work_list.choose_end(last=False)
    qtbot.waitUntil(lambda: bench.image.pyramid is not None, timeout=WAIT_MS)
    row = bench.image.row
    assert (row.category, row.finding.label, row.finding.point) == ("abnormal", "abnormal", None)
    assert MARK in texts(window.result) and "larger output is the class" in texts(window.result)
    assert MARK in texts(window.work_list)  # beside the counts
    column = KEYS.index("class")
    cells = [bench.rows.data(bench.rows.index(place, column)) for place in range(2)]
    assert all(MARK in cell for cell in cells), cells

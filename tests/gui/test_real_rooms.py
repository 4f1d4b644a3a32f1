"""The window on the real rooms: images drawn by code, the tiny network, real child processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from test_flows import texts

from fieldray.desktop.application import Application
from fieldray.domain.run import Verdict
from fieldray.imaging.synthetic import write_studies
from fieldray.packs.library import PackLibrary
from fieldray.settings import Settings
from tiny_packs import fingerprint, write_tiny_pack

WAIT_MS = 60_000


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
    assert bench.rows.counts()["refused"] == 1
    assert (
        "not a DICOM, PNG or JPEG image"
        in bench.rows.row_at(bench.rows.index(bench.rows.rowCount() - 1, 0)).reason.text
    )
    window.work_list.choose_end(last=False)
    qtbot.waitUntil(lambda: bench.image.picture is not None, timeout=WAIT_MS)
    assert "Score" in texts(window.result)
    row_id = bench.image.row.row_id
    window.result.verdict.choose("agree")
    bench.screening.start()
    qtbot.waitUntil(lambda: bench.screening.state == "finished" and bench.rows.total() >= 5, timeout=WAIT_MS)
    assert (
        bench.image.row is None
        or bench.image.row.row_id != row_id
        or bench.image.row.verdict == Verdict(choice="agree")
    )

"""The window on the real rooms: images drawn by code, the tiny network, real child processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from desk import WAIT_MS, shown, texts
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from fieldray.desktop.application import Application
from fieldray.desktop.list_reader import KEYS
from fieldray.desktop.packs_page import PackDialog
from fieldray.domain.run import Verdict
from fieldray.imaging.synthetic import write_studies
from fieldray.packs.library import PackLibrary
from fieldray.packs.naming import LEGACY_CPU_NAME
from fieldray.settings import Settings
from fieldray.store.work_list import HistoryQuery
from tiny_models import legacy_model_bytes, tiny_manifest
from tiny_packs import fingerprint, write_tiny_pack

MARK = "operating point unknown"


@pytest.fixture
def application(qapp: QApplication, qtbot: QtBot, home: Path, tmp_path: Path) -> Iterator[Application]:
    """The program with an installed pack."""
    pack = write_tiny_pack(tmp_path)
    library = PackLibrary(home)
    library.keys.trust(fingerprint(pack))
    library.install(pack)
    made = Application(qapp, Settings({"language": "en", "theme": "light", "pack": "tiny"}))
    with shown(made, qtbot):
        qtbot.waitUntil(lambda: made.controller.packs.model is not None, timeout=WAIT_MS)
        yield made


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


@pytest.mark.slow
def test_two_packs_screen_in_one_pass_are_exported_and_taken_up_again_from_the_history(
    application: Application, qtbot: QtBot, home: Path, tmp_path: Path
) -> None:
    """The second one calls an image abnormal only near the highest score, where the first one is not sure."""
    images, out = tmp_path / "images", tmp_path / "out"
    for folder in (images, out):
        folder.mkdir()
    write_studies(images, count=4)
    strict = replace(tiny_manifest().operating_points[0], threshold=0.999, unsure_low=0.998, unsure_high=0.999)
    second = write_tiny_pack(tmp_path, pack_id="strict", operating_points=(strict,))
    PackLibrary(home).install(second)
    bench, window = application.controller, application.window

    def until(is_so: Callable[[], object]) -> None:
        qtbot.waitUntil(lambda: bool(is_so()), timeout=WAIT_MS)

    bench.packs.look()
    until(lambda: [entry for entry in bench.packs.candidates if entry.pack_id == "strict"])
    found = next(entry for entry in bench.packs.candidates if entry.pack_id == "strict")
    bench.packs.beside.tick(found, is_on=True)
    until(lambda: bench.packs.beside.models)
    bench.screening.choose([images])
    until(lambda: bench.screening.state == "finished" and bench.rows.total() == 4)

    def said() -> list[tuple[str, list[str]]]:
        rows = [bench.rows.row_at(bench.rows.index(place, 0)) for place in range(bench.rows.rowCount())]
        return [(row.category, [other.category for other in row.beside if other]) for row in rows if row]

    until(lambda: len(said()) == 4)
    first = said()
    assert all(len(others) == 1 for _, others in first)
    assert any(category != others[0] for category, others in first), first
    window.work_list.choose_end(last=False)
    until(lambda: bench.image.pyramid is not None)
    own, other = bench.image.packs
    bench.image.show(other)
    until(lambda: not bench.image.is_loading)
    assert bench.image.row.outcome.pack_name == "strict-1.0.0" and "strict" not in own.outcome.pack_name
    bench.export(out, ("csv",))
    until(lambda: list(out.glob("*.csv")))
    lines = next(out.glob("*.csv")).read_text(encoding="utf-8-sig").splitlines()
    assert sum("strict-1.0.0" in line for line in lines) == sum("tiny-1.0.0" in line for line in lines) == 4
    run_id = bench.rows.run_id
    bench.packs.beside.tick(found, is_on=False)
    bench.past_runs.open(run_id)
    until(lambda: bench.screening.past is not None and len(said()) == 4)
    assert said() == first
    action = next(notice.action for notice in bench.board.notices if notice.key == "other_pack")
    action.command()
    until(lambda: bench.packs.beside.models and bench.packs.loading is None)
    bench.screening.start()
    until(lambda: bench.screening.past is None and bench.screening.state == "finished" and len(said()) == 4)
    assert said() == first
    with HistoryQuery(home / "results.sqlite") as query:
        assert len(query.runs_together(bench.rows.run_id)) == 2
        assert all(result.is_resumed for result in query.rows(bench.rows.run_id))

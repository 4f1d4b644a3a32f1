"""The window on the real services: images drawn by code, the tiny network, real child processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from desk import Desk, shown, texts
from fake_rooms import FakeRooms
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from fieldray.desktop.application import Application
from fieldray.desktop.packs_page import PackDialog
from fieldray.desktop.worklist_rows import COLUMN_KEYS
from fieldray.domain.run import Verdict
from fieldray.imaging.synthetic import chest_phantom, dicom_dataset
from fieldray.packs.library import PackLibrary
from fieldray.packs.naming import LEGACY_CPU_FILE_NAME
from fieldray.settings import Settings
from fieldray.store.work_list import HistoryQuery
from tiny_models import legacy_model_bytes, tiny_manifest
from tiny_packs import fingerprint, write_tiny_pack

MARK = "operating point unknown"


@pytest.fixture
def desk(qapp: QApplication, qtbot: QtBot, home: Path, tmp_path: Path) -> Iterator[Desk]:
    """The program with an installed pack and its real services."""
    pack = write_tiny_pack(tmp_path)
    library = PackLibrary(home)
    library.trust_store.trust(fingerprint(pack))
    library.install(pack)
    application = Application(qapp, Settings({"language": "en", "theme": "light", "pack": "tiny"}))
    with shown(application, qtbot) as ended:
        made = Desk(application, FakeRooms(), qtbot, ended)
        made.until(lambda: made.bench.packs.model is not None)
        yield made


def screen_to_its_end(desk: Desk, count: int) -> None:
    """Wait until this many images were screened, and open the first one in the list."""
    desk.until(lambda: desk.bench.screening.state == "finished")
    desk.until_listed(count)
    desk.window.work_list.select_first_or_last(is_last=False)
    desk.until(lambda: desk.bench.image.pyramid is not None and desk.bench.image.is_visible)


@pytest.mark.slow
def test_the_dissertations_file_on_a_drive_is_used_after_a_yes_and_marked(desk: Desk, tmp_path: Path) -> None:
    drive, images = tmp_path / "drive", tmp_path / "images"
    for folder in (drive, images):
        folder.mkdir()
    (drive / LEGACY_CPU_FILE_NAME).write_bytes(legacy_model_bytes("float32"))
    chests = Path(__file__).parents[2] / "assets" / "demonstration"
    for name in ("adults/published-covid-19-6.jpg", "children/published-normal-2.jpg"):  # one bright image, one dark
        (images / Path(name).name).write_bytes((chests / name).read_bytes())
    bench, window = desk.bench, desk.window
    (candidate,) = PackLibrary(tmp_path).candidates(drive)
    bench.packs.use_pack(candidate)
    question = desk.dialog(PackDialog)
    assert "operating point and the accuracy are unknown" in texts(question)
    question.yes_button.click()
    desk.until(lambda: bench.packs.model is not None and bench.packs.model.trust == "legacy")
    desk.until(lambda: MARK in window.toolbar.pack_chip.toolTip())
    assert "unsigned" in texts(window.toolbar)
    (drive / LEGACY_CPU_FILE_NAME).unlink()
    bench.screening.screen_paths([images])
    bench.screening.start()  # the pack in use is the one in the header
    screen_to_its_end(desk, 2)
    counts = bench.rows.class_counts()
    assert (counts["abnormal"], counts["normal"], counts["not_assessed"]) == (1, 1, 0)
    row = bench.image.row
    assert (row.category, row.finding.label, row.finding.point) == ("abnormal", "abnormal", None)
    assert MARK in texts(window.result_panel) and "the larger output decides the class" in texts(window.result_panel)
    assert MARK in texts(window.work_list)  # with the counts
    column = COLUMN_KEYS.index("class")
    cells = [bench.rows.data(bench.rows.index(place, column)) for place in range(2)]
    assert all(MARK in cell for cell in cells), cells


@pytest.mark.slow
def test_two_packs_screen_in_one_pass_are_judged_exported_and_taken_up_again_from_the_history(
    desk: Desk, home: Path, tmp_path: Path
) -> None:
    """The second pack calls an image abnormal only near the highest score, where the first pack is uncertain."""
    images, out = tmp_path / "images", tmp_path / "out"
    out.mkdir()
    images.mkdir()
    for number in range(1, 5):  # so small that they have the detail of a chest X-ray, and may be called normal
        pixels = chest_phantom(128, 128, 1000 + number, abnormal=number % 3 == 0)
        dicom_dataset(pixels, study_number=number).save_as(images / f"study-{number}.dcm", enforce_file_format=True)
    (images / "notes.txt").write_text("no image", encoding="utf-8")
    strict = replace(tiny_manifest().operating_points[0], threshold=0.999, unsure_low=0.998, unsure_high=0.999)
    second = write_tiny_pack(tmp_path, pack_id="strict", operating_points=(strict,))
    PackLibrary(home).install(second)
    bench, window, until = desk.bench, desk.window, desk.until
    bench.packs.find_packs()
    until(lambda: [entry for entry in bench.packs.candidates if entry.pack_id == "strict"])
    found = next(entry for entry in bench.packs.candidates if entry.pack_id == "strict")
    bench.packs.others.set_ticked(found, is_on=True)
    until(lambda: bench.packs.loaded_models[1:])
    bench.screening.screen_paths([images])
    screen_to_its_end(desk, 5)

    def said() -> list[tuple[str, Verdict | None, list[str]]]:
        rows = [bench.rows.row_at(bench.rows.index(place, 0)) for place in range(bench.rows.rowCount())]
        return [
            (row.category, row.verdict, [other.category for other in row.additional_pack_rows]) for row in rows if row
        ]

    assert "Score" in texts(window.result_panel)
    bench.judging.give_verdict("agree")
    until(lambda: bench.image.row.verdict == Verdict(choice="agree"))
    first = said()
    assert [verdict is not None for _, verdict, _ in first] == [True, False, False, False, False]
    assert all(len(others) == 1 for _, _, others in first)
    assert any(category != others[0] for category, _, others in first), first
    assert first[4] == ("not_an_image", None, ["not_an_image"]) and bench.rows.class_counts()["not_an_image"] == 1
    assert "not a DICOM, PNG or JPEG image" in bench.rows.row_at(bench.rows.index(4, 0)).reason.text
    own, other = bench.image.packs
    bench.image.show(other)
    until(lambda: not bench.image.is_loading)
    assert bench.image.row.outcome.pack_name == "strict-1.0.0" and "strict" not in own.outcome.pack_name
    bench.start_export(out, ("csv",))
    until(lambda: list(out.glob("*.csv")))
    lines = next(out.glob("*.csv")).read_text(encoding="utf-8-sig").splitlines()
    assert sum("strict-1.0.0" in line for line in lines) == sum("tiny-1.0.0" in line for line in lines) == 5
    run_id = bench.rows.run_id
    bench.packs.others.set_ticked(found, is_on=False)
    bench.past_runs.open(run_id)
    until(lambda: bench.screening.past_run is not None and len(said()) == 5)
    assert said() == first
    bench.packs.others.set_ticked(found, is_on=True)
    until(lambda: bench.packs.loaded_models[1:])
    bench.screening.start()
    until(lambda: bench.screening.past_run is None and bench.screening.state == "finished" and len(said()) == 5)
    assert said() == first
    with HistoryQuery(home / "results.sqlite") as query:
        assert len(query.run(bench.rows.run_id).spec.packs) == 2
        assert sum(answer.is_reused for answer in query.results(bench.rows.run_id)) == 8  # and the non-image

"""Several packs in one run: their columns in list and panel, and packs that cannot be combined."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from desk import Desk, dialogs, press, texts
from fake_rooms import CELLS, POINT, SPEC, FakeRooms, refused, screened
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QMessageBox

from fieldray.desktop.packs_page import AdditionalPackBox, PackResultButtons
from fieldray.desktop.worklist_delegate import ICON_COLUMN_WIDTH
from fieldray.desktop.worklist_rows import COLUMN_KEYS
from fieldray.domain.finding import Finding, ScreenedOutcome, decide
from fieldray.domain.run import RunChanged, Verdict
from fieldray.errors import PackProblem
from fieldray.reasons import reason
from fieldray.settings import Settings
from fieldray.store.results import ResultQuery
from fieldray.store.work_list import HistoryQuery
from fieldray.translation import Translator

MOUNT = Path("/media/stick")
FOLDERS = {pack_id: Path(f"/program/models/{pack_id}-1.0.0") for pack_id in ("adults", "tuberculosis", "children")}
HASHES = {"adults": SPEC.packs[0].model_sha256, "tuberculosis": "f" * 64, "children": "c" * 64}
TB_POINT = replace(POINT, name="tb", threshold=0.2, unsure_low=0.15, unsure_high=0.2, titles={"en": "wide"})
TB_CLASSES = {"abnormal": {"en": "Signs of tuberculosis"}}
SECOND = len(COLUMN_KEYS)  # the column of the second pack


def said_of_tuberculosis(number: int, score: float) -> ScreenedOutcome:
    """An image whose heat map is warm in another place than that of `screened`, judged at another operating point."""
    maps = np.full((1, CELLS, CELLS), -4.0, np.float32)
    maps[0, 2:4, 10:12] = 4.0
    finding = Finding(label="opacity", score=score, point=TB_POINT, decision=decide(score, TB_POINT))
    return replace(
        screened(number, 0.5), findings=(finding,), class_maps=maps, pack_name="tuberculosis-1.0.0",
        model_sha256=HASHES["tuberculosis"],
    )  # fmt: skip


@pytest.fixture
def settings() -> Settings:
    return Settings({"language": "en", "theme": "light", "pack": "adults"})


@pytest.fixture
def rooms() -> FakeRooms:
    """Three packs and three images: the tuberculosis pack flags what the adults' pack does not."""
    made = FakeRooms()
    made.offer(*FOLDERS, tuberculosis={"operating_points": (TB_POINT,), "class_names": TB_CLASSES})
    for pack_id, folder in FOLDERS.items():
        made.library.models[folder] = replace(made.library.models[folder], model_sha256=HASHES[pack_id])
    made.outcomes = [screened(1, 0.9), screened(2, 0.1), refused(3)]
    made.of_others["tuberculosis-1.0.0"] = [said_of_tuberculosis(1, 0.1), said_of_tuberculosis(2, 0.3), refused(3)]
    return made


def box(desk: Desk, pack_id: str) -> AdditionalPackBox:
    """The box of a pack's card on the page where a folder is opened."""
    found = [entry for entry in desk.bench.packs.candidates if entry.can_screen]
    place = [entry.pack_id for entry in found].index(pack_id)
    return desk.window.welcome.cards[place].other_box


def tick(desk: Desk, pack_id: str) -> None:
    box(desk, pack_id).click()
    desk.until(lambda: not desk.bench.packs.others.loading)


def ticked(desk: Desk) -> list[str]:
    return [one.manifest.pack_id for one in desk.bench.packs.loaded_models[1:]]


def cell(desk: Desk, row_id: int, column: int = SECOND) -> str:
    rows = desk.bench.rows
    return str(rows.data(rows.index_of(row_id).siblingAtColumn(column)))


def button_of(desk: Desk, name: str) -> PackResultButtons:
    return next(one for one in desk.window.result_panel.packs.buttons if one.accessibleName().startswith(name))


@pytest.fixture
def screened_by_two(desk: Desk) -> Desk:
    tick(desk, "tuberculosis")
    assert ticked(desk) == ["tuberculosis"]
    desk.screen()
    desk.finish()
    return desk


def test_a_further_pack_has_its_own_column_threshold_and_class_names(screened_by_two: Desk) -> None:
    desk = screened_by_two
    session, rows = desk.rooms.session, desk.bench.rows
    assert [one.pack_name for one in session.other_packs[-1]] == ["tuberculosis-1.0.0"]
    assert "Each image is sorted by its most urgent result." in texts(desk.window.work_list)
    shown = [rows.row_at(rows.index(place, 0)) for place in range(3)]
    assert [(row.category, row.outcome.ref.path.name) for row in shown] == [
        ("abnormal", "image-00001.dcm"), ("normal", "image-00002.dcm"), ("refused", "image-00003.dcm"),
    ]  # fmt: skip
    abnormal, normal, unusable = (row.row_id for row in shown)
    assert rows.headerData(SECOND, Qt.Orientation.Horizontal) == "Tuberculosis 1.0.0"
    assert rows.headerData(COLUMN_KEYS.index("class"), Qt.Orientation.Horizontal) == "Adults 1.0.0"
    assert cell(desk, abnormal).startswith("Not flagged") and "0.10" in cell(desk, abnormal)
    assert cell(desk, normal).startswith("Signs of tuberculosis")  # 0.3 is above 0.2, and below the adults' 0.41
    assert "0.30" in cell(desk, normal)
    assert cell(desk, unusable) == "Not suitable"
    header = desk.window.work_list.table.horizontalHeader()
    assert header.visualIndex(SECOND) == COLUMN_KEYS.index("score") + 1
    header.setSortIndicator(SECOND, Qt.SortOrder.DescendingOrder)
    desk.until_listed(3)
    assert header.sortIndicatorSection() == -1 and rows.row_at(rows.index(0, 0)).row_id == abnormal


def test_in_a_narrow_list_further_packs_show_shape_and_score_alone(screened_by_two: Desk) -> None:
    table = screened_by_two.window.work_list.table
    table.fit_columns(600)
    assert table.columnWidth(SECOND) > 2 * ICON_COLUMN_WIDTH
    table.fit_columns(300)
    assert not table.isColumnHidden(SECOND) and table.columnWidth(SECOND) == ICON_COLUMN_WIDTH
    row_id = screened_by_two.bench.rows.row_at(screened_by_two.bench.rows.index(1, 0)).row_id
    tip = screened_by_two.bench.rows.index_of(row_id).siblingAtColumn(SECOND).data(Qt.ItemDataRole.ToolTipRole)
    assert tip.startswith("Signs of tuberculosis")


def is_warmest(desk: Desk, place: tuple[float, float]) -> bool:
    """Whether the visible heat map is strongest near that row and column of the class map."""
    image = desk.window.viewer._heat_map.image.convertToFormat(QImage.Format.Format_RGBA8888)
    opacity = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.width(), 4)[..., 3]
    strongest = np.argwhere(opacity == opacity.max()).mean(axis=0) * CELLS / opacity.shape - 0.5
    return bool(np.abs(strongest - place).max() < 0.7)


def test_figures_and_heat_map_are_of_the_selected_pack(screened_by_two: Desk) -> None:
    desk = screened_by_two
    rows, viewer, panel = desk.bench.rows, desk.window.viewer, desk.window.result_panel
    row = rows.row_at(rows.index(0, 0))
    desk.open_row(row.row_id)
    assert [button.accessibleName() for button in panel.packs.buttons] == [
        "Adults 1.0.0 Flagged  0.90", "Tuberculosis 1.0.0 Not flagged  0.10",
    ]  # fmt: skip
    assert button_of(desk, "Adults").isChecked() and "Score 0.90" in texts(panel)
    assert "“screening”" in texts(panel) and is_warmest(desk, (8, 4))
    viewer.zoom(2)
    pyramid, state = desk.bench.image.pyramid, viewer.state
    button_of(desk, "Tuberculosis").click()
    assert desk.bench.image.pyramid is pyramid and viewer.state == state  # not read again
    assert is_warmest(desk, (2.5, 10.5))
    desk.until(lambda: "Score 0.10" in texts(panel))
    assert "Score 0.90" not in texts(panel) and "“wide”" in texts(panel)
    (tb_row,) = row.additional_pack_rows
    desk.until(lambda: desk.bench.image.is_visible)
    desk.bench.judging.give_verdict("agree")
    desk.until(lambda: desk.rooms.session.verdicts.get(tb_row.result_id) == Verdict(choice="agree"))
    desk.until(lambda: tb_row.verdict == Verdict(choice="agree"))
    with ResultQuery(desk.rooms.database) as query:
        assert [query.result(one.result_id).verdict for one in (row, tb_row)] == [None, Verdict(choice="agree")]
    button_of(desk, "Adults").click()
    desk.until(lambda: not desk.bench.image.is_loading and "Score 0.90" in texts(panel))
    assert desk.bench.image.row is row and row.verdict is None and is_warmest(desk, (8, 4))
    button_of(desk, "Adults").click()
    assert button_of(desk, "Adults").isChecked() and viewer.state == state
    button_of(desk, "Tuberculosis").click()
    desk.window.area.pin_or_close_image()
    desk.window.work_list.move_selection(1)
    desk.until(lambda: desk.bench.image.packs[0] is rows.row_at(rows.index(1, 0)))
    assert button_of(desk, "Tuberculosis").isChecked() and viewer.state != state
    button_of(desk, "Adults").click()
    heads = [head.name.text() for head in desk.window.area._heads]
    assert [text.rpartition(", ")[2] for text in heads] == ["Adults 1.0.0", "Tuberculosis 1.0.0"]


def test_packs_for_patients_of_other_ages_do_not_go_together(desk: Desk) -> None:
    tick(desk, "children")
    desk.until_shown("children-1.0.0 and adults-1.0.0 are for patients of different ages")
    assert not ticked(desk) and not box(desk, "children").isChecked()
    tick(desk, "tuberculosis")
    desk.use("children")
    desk.until_shown("tuberculosis-1.0.0 and children-1.0.0 are for patients of different ages")
    assert not ticked(desk)


def test_ages_are_asked_for_all_packs_at_once(desk: Desk) -> None:
    desk.rooms.lacks_ages = True
    desk.use("tuberculosis")
    desk.rooms.of_others["adults-1.0.0"] = desk.rooms.outcomes
    tick(desk, "adults")
    desk.choose()
    desk.answer("tuberculosis-1.0.0")  # 15 to 95 years: says nothing about the adults' limit of 18
    desk.until(lambda: desk.asks == "ages")
    asked = desk.dialog(QMessageBox)
    assert "Are all patients aged 18 to 95 years?" in texts(asked)
    assert "Tuberculosis 1.0.0 + Adults 1.0.0" in texts(asked)
    press(asked, "Yes, all patients are of this age")
    desk.until_listed(3)
    assert desk.rooms.session.ages_confirmed == [True]
    assert not dialogs(desk.window, QMessageBox)


def test_a_pack_that_cannot_be_loaded_or_went_with_its_drive_is_named(desk: Desk) -> None:
    desk.rooms.library.problems[FOLDERS["tuberculosis"]] = PackProblem(reason("pack_tampered", name="model.tflite"))
    tick(desk, "tuberculosis")
    desk.until_shown(
        "The pack tuberculosis-1.0.0 screened no image in this run.", "differs from the file that was signed"
    )
    assert not ticked(desk) and not box(desk, "tuberculosis").isChecked()
    there = replace(desk.rooms.library.always[1], folder=MOUNT / "tuberculosis-1.0.0", origin="drive")
    desk.rooms.library.models[there.folder] = desk.rooms.library.models[FOLDERS["tuberculosis"]]
    desk.plug_in(MOUNT, there)
    desk.until(lambda: there in desk.bench.packs.candidates)
    desk.use("adults")
    desk.bench.packs.others.set_ticked(there, is_on=True)
    desk.until(lambda: ticked(desk) == ["tuberculosis"])
    desk.pull_out()
    desk.until_shown("The drive with the pack tuberculosis-1.0.0 was removed. The next run does not use this pack.")
    assert not ticked(desk)


def test_a_ticked_pack_can_be_unticked_and_the_pack_in_use_has_no_box(desk: Desk) -> None:
    assert box(desk, "adults").isHidden() and not box(desk, "tuberculosis").isHidden()
    tick(desk, "tuberculosis")
    assert "+ Tuberculosis 1.0.0" in texts(desk.window.toolbar)
    tick(desk, "tuberculosis")
    assert not ticked(desk) and "Tuberculosis" not in texts(desk.window.toolbar)
    tick(desk, "tuberculosis")
    desk.use("tuberculosis")
    assert not ticked(desk)  # it is now the first pack


def test_a_run_of_two_packs_is_opened_again(screened_by_two: Desk) -> None:
    desk = screened_by_two
    tick(desk, "tuberculosis")
    models = desk.rooms.library.models
    with HistoryQuery(desk.rooms.database) as query:
        run = query.run(desk.bench.rows.run_id)
    desk.window.actions_by_name["history"].trigger()
    desk.until(lambda: desk.window.history_page.table.rowCount() == 1)
    cells = [desk.window.history_page.table.item(0, column).text() for column in (0, 1)]
    assert (cells[0].split("   ")[0], cells[1]) == (str(run.run_id), "made-up-1.2.0 + tuberculosis-1.0.0")
    past = run, tuple(models[FOLDERS[name]] for name in ("adults", "tuberculosis"))
    desk.bench.past_runs.opened.emit(0, past)
    desk.until_listed(3)
    assert cell(desk, desk.bench.rows.row_at(desk.bench.rows.index(1, 0)).row_id).startswith("Signs of tuberculosis")
    desk.until_shown("“Adults 1.0.0 + Tuberculosis 1.0.0”. To screen with the pack “Adults 1.0.0”, press Start.")
    tick(desk, "tuberculosis")
    desk.until(lambda: "These results were made" not in desk.notices)


def test_the_score_of_a_prior_is_of_the_selected_pack(desk: Desk) -> None:
    def of_one(said: ScreenedOutcome, day: str) -> ScreenedOutcome:
        uid = f"9.{day}"
        header = replace(said.ref.header, patient_id="A", patient_sex="F", study_date=day, study_instance_uid=uid)
        return replace(said, ref=replace(said.ref, header=header))

    days = ("20240405", "20210205")
    desk.rooms.outcomes[:] = [of_one(screened(number, 0.9), day) for number, day in enumerate(days, 1)]
    said = [of_one(said_of_tuberculosis(number, 0.3), day) for number, day in enumerate(days, 1)]
    desk.rooms.of_others["tuberculosis-1.0.0"] = said
    tick(desk, "tuberculosis")
    desk.choose()
    desk.until_listed(2)
    desk.finish()
    rows, comparing = desk.bench.rows, desk.bench.comparing
    newest = next(
        row for row in map(rows.row_at, map(rows.index, range(2), (0, 0))) if "1" in row.outcome.ref.path.name
    )
    desk.open_row(newest.row_id)
    for button, name in (("Tuberculosis", "tuberculosis-1.0.0"), ("Adults", "made-up-1.2.0")):
        button_of(desk, button).click()
        comparing.start()
        desk.until(lambda: comparing.prior is not None and not comparing.is_searching)
        assert comparing.prior.outcome.pack_name == desk.bench.second_image.row.outcome.pack_name == name


def screen_again_to_end(desk: Desk) -> None:
    """Screen the folder once more and let the run finish."""
    runs = len(desk.rooms.session.batches)
    desk.choose()
    desk.until(lambda: len(desk.rooms.session.started_with) == runs + 1)
    desk.until(lambda: desk.bench.rows.run_id == desk.rooms.session.batches[-1].run_id)
    desk.until_listed(3)
    desk.finish()


def test_the_pack_that_a_person_chose_stays_for_the_images_that_follow(screened_by_two: Desk) -> None:
    desk = screened_by_two
    first, second, _ = (desk.bench.rows.row_id_at(desk.bench.rows.index(place, 0)) for place in range(3))
    desk.open_row(first)
    assert desk.bench.image.row is desk.bench.image.packs[0]
    button_of(desk, "Tuberculosis").click()
    desk.until(lambda: desk.bench.image.is_visible)
    desk.window.work_list.select_image(second)
    desk.until(lambda: desk.bench.image.is_visible and desk.bench.image.packs[0].row_id == second)
    assert desk.bench.image.row is desk.bench.image.packs[1]
    assert button_of(desk, "Tuberculosis").isChecked() and "Signs of tuberculosis" in texts(desk.window.result_panel)
    desk.window.actions_by_name["agree"].trigger()
    desk.until(lambda: desk.rooms.session.judged)
    assert desk.rooms.session.judged[0].pack_name == "tuberculosis-1.0.0"
    assert desk.bench.image.packs[0].is_read  # the image counts as read, whichever pack's answer was judged
    screen_again_to_end(desk)  # a new run begins with its first pack
    desk.window.work_list.select_first_or_last(is_last=False)
    desk.until(lambda: desk.bench.image.is_visible)
    assert desk.bench.image.row is desk.bench.image.packs[0]


def test_screening_a_folder_with_fewer_packs_than_before_gives_a_notice(desk: Desk) -> None:
    tick(desk, "tuberculosis")
    desk.screen()
    desk.finish()
    assert "also used the packs" not in desk.notices
    tick(desk, "tuberculosis")  # forgotten, as after a restart
    assert ticked(desk) == []
    screen_again_to_end(desk)
    desk.until_shown("The last run of this folder also used the packs tuberculosis.", "This run uses only adults.")
    screen_again_to_end(desk)
    assert "also used the packs" not in desk.notices


def test_a_notice_about_a_further_pack_is_as_severe_as_about_the_first(screened_by_two: Desk) -> None:
    desk = screened_by_two
    note = reason("taken_over", count=3, sampled=3, whole=0)
    run_id = desk.bench.screening.run_id or 0
    desk.rooms.publish(RunChanged(run_id=run_id, state="finished", pack_notes=((note,), (note,))))
    desk.until(lambda: desk.notices.count("reused from an earlier run") == 2)
    assert {one.level for one in desk.bench.notice_board.notices if "reused" in one.text(Translator())} == {"info"}

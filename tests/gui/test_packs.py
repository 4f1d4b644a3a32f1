"""Drives, trust in keys and operating points in the window."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from desk import Begin, Desk, dialogs, press, texts
from fake_rooms import FINGERPRINT, FakeRooms, candidate, model, screened
from PySide6.QtWidgets import QComboBox, QPushButton

from fieldray.desktop.dialogs import DocumentDialog
from fieldray.desktop.packs_page import PackDialog, PacksPage, fingerprint_lines
from fieldray.domain.run import RunChanged
from fieldray.errors import PackNotTrusted, PackProblem
from fieldray.packs.naming import PackCandidate
from fieldray.paths import VERSION
from fieldray.pipeline.constancy import ConstancyRecord, ConstancyRecords, pack_key
from fieldray.reasons import Reason, reason
from fieldray.settings import Settings

EDGETPU = Path("/media/Edge TPU")
FOREIGN = "-".join(f"{number:04x}" for number in range(0xB200, 0xB210))  # no shipped pack has this key
FOLDER = EDGETPU / "fieldray" / "lungs-2.0.0"


def on_edgetpu(**changes: object) -> PackCandidate:
    return candidate(
        str(FOLDER), **{"origin": "drive", "trust": "trusted", "pack_id": "lungs", "version": "2.0.0", **changes}
    )


@pytest.fixture
def rooms(rooms: FakeRooms) -> FakeRooms:
    rooms.library.models[FOLDER] = model(pack_id="lungs", version="2.0.0")
    return rooms


def accept(desk: Desk) -> None:
    """Wait until the pack of a drive is offered, and accept it."""
    desk.until_shown("A pack was found on a drive")
    press(desk.window.banners, "Use this pack")
    desk.until(lambda: desk.in_use == "lungs-2.0.0")


@pytest.fixture
def from_drive(desk: Desk) -> None:
    """A window whose pack in use comes from a trusted drive."""
    desk.plug_in(EDGETPU, on_edgetpu())
    accept(desk)


def test_a_drives_pack_is_offered_and_the_default_stays_in_use(desk: Desk) -> None:
    desk.plug_in(EDGETPU, on_edgetpu())
    desk.until_shown("A pack was found on a drive: lungs-2.0.0. To use this pack, choose the pack on the Packs page.")
    assert desk.in_use == "made-up-1.2.0" and "2.0.0" not in desk.window.toolbar.pack_chip.text()
    desk.screen()
    assert [one.pack_name for one in desk.bench.screening.run_models if one] == ["made-up-1.2.0"]


def test_an_offer_stays_in_sight_under_warnings_until_it_is_answered(desk: Desk) -> None:
    board, banners = desk.bench.notice_board, desk.window.banners
    desk.plug_in(EDGETPU, on_edgetpu())
    desk.until(lambda: "A pack was found on a drive" in texts(banners))
    for key, level in (("error", "error"), ("warning", "warning"), ("info", "info")):
        board.post(key, lambda _, key=key: f"Some {key}", level=level)
    said = {*texts(banners).split("\n")}
    assert {"Some error", "Use this pack", "2 more messages"} < said and not {"Some warning", "Some info"} & said
    press(banners, "Use this pack")
    desk.until(lambda: desk.in_use == "lungs-2.0.0")
    assert "A pack was found" not in texts(banners)


def test_a_drives_pack_is_used_at_once_if_none_is_in_use(begin: Begin, rooms: FakeRooms) -> None:
    with begin(Settings({"language": "en"})) as desk:
        desk.until(lambda: desk.bench.packs.is_listed)
        assert desk.in_use == ""
        desk.plug_in(EDGETPU, on_edgetpu())
        desk.until(lambda: desk.in_use == "lungs-2.0.0")
        assert "A pack was found" not in desk.notices


def test_a_pack_that_was_taken_from_a_drive_needs_the_drive_no_longer(desk: Desk, from_drive: None) -> None:
    assert "can be removed during this run" in desk.window.toolbar.pack_chip.toolTip()
    desk.until(lambda: desk.rooms.session.packs[-1].pack_name == "lungs-2.0.0")


def test_a_drive_does_not_replace_a_pack_that_a_person_chose(desk: Desk) -> None:
    desk.until(lambda: desk.in_use == "made-up-1.2.0")
    desk.use("made-up")
    desk.plug_in(EDGETPU, on_edgetpu())
    desk.until_shown("A pack was found on a drive: lungs-2.0.0. To use this pack, choose the pack on the Packs page.")
    assert desk.in_use == "made-up-1.2.0"


def test_a_drive_removed_during_a_run_lets_it_finish_then_the_default_takes_over(desk: Desk, from_drive: None) -> None:
    desk.screen(answer="lungs-2.0.0")
    desk.until(lambda: desk.bench.screening.state == "running")
    desk.pull_out()
    desk.until_shown("This run finishes with the copy of the pack in memory")
    assert desk.in_use == "lungs-2.0.0"
    desk.rooms.publish(RunChanged(run_id=1, state="finished"))
    desk.until(lambda: desk.in_use == "made-up-1.2.0")
    desk.until_shown("The pack in use is now made-up-1.2.0")


def test_a_drive_put_back_during_a_run_is_not_offered_again(desk: Desk, from_drive: None) -> None:
    desk.screen(answer="lungs-2.0.0")
    desk.pull_out()
    desk.until_shown("This run finishes")
    desk.plug_in(EDGETPU, on_edgetpu())
    desk.until(lambda: not desk.window.banners.isVisible())
    desk.finish()
    assert desk.in_use == "lungs-2.0.0"


def test_without_a_default_a_removed_drive_leaves_no_pack_in_use(desk: Desk) -> None:
    desk.bench.set_default_pack("")
    desk.plug_in(EDGETPU, on_edgetpu())
    accept(desk)
    desk.pull_out()
    desk.until_shown("so this pack is no longer in use", "Made-up lungs")
    assert desk.in_use == ""


def test_a_pack_found_during_a_run_is_offered_not_taken(desk: Desk) -> None:
    desk.screen()
    desk.plug_in(EDGETPU, on_edgetpu())
    desk.until_shown("A pack was found on a drive")
    desk.pull_out()
    desk.until(lambda: "A pack was found" not in desk.notices)
    desk.plug_in(EDGETPU, on_edgetpu())
    desk.until_shown("A pack was found on a drive")
    assert desk.in_use == "made-up-1.2.0"
    accept(desk)


@pytest.mark.parametrize("is_any_here", [True, False])
def test_the_start_page_says_that_packs_are_searched_for_until_they_are_listed(
    begin: Begin, rooms: FakeRooms, *, is_any_here: bool
) -> None:
    rooms.may_open.clear()
    if not is_any_here:
        rooms.library.always = []
    with begin() as desk:
        welcome, page = desk.window.welcome, desk.window.packs_page
        desk.until(lambda: "Looking for packs…" in texts(welcome))
        desk.window.actions_by_name["packs"].trigger()
        desk.until(lambda: "Looking for packs…" in texts(page))
        assert "No packs found" not in texts(page)
        desk.window.actions_by_name["packs"].trigger()
        assert "No pack was found" not in texts(welcome)
        rooms.may_open.set()
        desk.until(lambda: bool(welcome.cards) is is_any_here and desk.bench.packs.is_listed)
        desk.until(lambda: ("No pack was found" in texts(welcome)) is not is_any_here)
        assert "Looking for packs…" not in texts(welcome)
        desk.window.actions_by_name["packs"].trigger()
        desk.until(lambda: ("No packs found" in texts(page)) is not is_any_here)


@pytest.fixture
def unknown(desk: Desk) -> Desk:
    """A window with a drive whose pack is signed by a key that is not trusted."""
    desk.rooms.library.problems[FOLDER] = PackNotTrusted(FOREIGN)
    desk.rooms.library.models[FOLDER] = replace(desk.rooms.library.models[FOLDER], fingerprint=FOREIGN)
    problem = reason("pack_unknown_key", fingerprint=FOREIGN)
    desk.plug_in(EDGETPU, on_edgetpu(fingerprint=FOREIGN, trust="unknown_key", problem=problem))
    desk.until_shown("not trusted yet")
    assert desk.in_use == "made-up-1.2.0"
    return desk


@pytest.mark.parametrize("is_trusted", [True, False])
def test_an_unknown_key_waits_for_an_explicit_yes(unknown: Desk, is_trusted: bool) -> None:
    press(unknown.window.banners, "Review this pack…")
    asked = unknown.dialog(PackDialog)
    assert "\n".join(fingerprint_lines(FOREIGN)) in texts(asked)
    assert asked.no_button.isDefault()
    (asked.yes_button if is_trusted else asked.no_button).click()
    unknown.until(lambda: unknown.bench.packs.question is None)
    unknown.until(lambda: unknown.rooms.library.trusted == [FOREIGN] * is_trusted)
    unknown.until(lambda: "not trusted yet" not in unknown.notices)
    if is_trusted:
        unknown.window.actions_by_name["packs"].trigger()
        unknown.until(lambda: "Signed by a key you trust" in texts(unknown.window.packs_page))
        assert "not trusted yet" not in texts(unknown.window.packs_page)
    assert unknown.in_use == "made-up-1.2.0"  # trusting a key does not put its pack in use
    if is_trusted:
        press(unknown.window.banners, "Use this pack")
        unknown.until(lambda: unknown.in_use == "lungs-2.0.0")


@pytest.mark.parametrize("is_open", [True, False])
def test_a_question_closes_when_its_drive_is_removed(unknown: Desk, is_open: bool) -> None:
    packs = unknown.bench.packs
    if is_open:
        press(unknown.window.banners, "Review this pack…")
        unknown.dialog(PackDialog)
    question = packs.question
    unknown.pull_out()
    unknown.until(lambda: "not trusted yet" not in unknown.notices and not dialogs(unknown.window, PackDialog))
    if question is not None:
        unknown.until_shown("was removed, or replaced by another pack")
        packs.answer(question, is_yes=True)
    assert unknown.in_use == "made-up-1.2.0" and unknown.rooms.library.trusted == []


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (reason("pack_legacy"), "was not verified"),
        (reason("pack_older", version="2.0.0", seen="3.0.0"), "older than version 3.0.0"),
    ],
)
def test_legacy_and_older_packs_need_a_yes(desk: Desk, why: Reason, words: str) -> None:
    desk.rooms.library.problems[FOLDER] = PackProblem(why)
    if is_namesake := why.code == "pack_older":
        desk.rooms.library.further[FOLDER] = PackProblem(reason("pack_namesake_shipped", pack="lungs"))
    pack = on_edgetpu(trust="legacy", problem=why)
    desk.plug_in(EDGETPU, pack)
    desk.until(lambda: pack in desk.bench.packs.candidates)
    desk.bench.packs.use_pack(pack)
    asked = desk.dialog(PackDialog)
    assert words in texts(asked)
    asked.yes_button.click()
    if is_namesake:  # neither consent is lost when the other question is asked
        desk.until(lambda: desk.bench.packs.question and desk.bench.packs.question.kind == "namesake")
        desk.dialog(PackDialog).yes_button.click()
    desk.until(lambda: desk.in_use == "lungs-2.0.0")


def test_a_pack_by_another_signer_of_a_known_name_needs_a_yes(desk: Desk) -> None:
    why = reason("pack_namesake_shipped", pack="made-up", fingerprint=FINGERPRINT)
    desk.rooms.library.problems[FOLDER] = PackProblem(why)
    pack = on_edgetpu(
        pack_id="made-up", version="9.0.0", fingerprint=FINGERPRINT, problem=why, is_namesake_of_shipped_pack=True
    )
    desk.rooms.library.models[FOLDER] = model(pack_id="made-up", version="9.0.0")
    desk.bench.notice_board.post("drive", lambda _: "What became of the drive before")
    desk.plug_in(EDGETPU, pack)
    desk.until_shown("comes with the program")
    assert "--pack" not in desk.notices and "drive before" not in desk.notices
    packs = desk.bench.packs
    assert desk.in_use == "made-up-1.2.0"
    assert (
        packs.available_packs.find_ready_pack("made-up")
        == packs.available_packs.find_ready_pack("made-up-1.2.0")
        == packs.source
    )
    press(desk.window.banners, "Review this pack…")
    asked = desk.dialog(PackDialog)
    assert asked.no_button.isDefault() and not asked.yes_button.isDefault()
    assert "\n".join(fingerprint_lines(FINGERPRINT)) in texts(asked)
    asked.no_button.click()
    assert desk.in_use == "made-up-1.2.0"
    packs.use_pack(pack)
    desk.dialog(PackDialog).yes_button.click()
    desk.until(lambda: desk.in_use == "made-up-9.0.0")
    assert not packs.available_packs.is_in_use("made-up") and packs.available_packs.is_in_use(f"made-up@{FINGERPRINT}")


def broken(folder: str = "aaa") -> PackCandidate:
    why = reason("pack_manifest", detail="nested")
    return candidate(str(EDGETPU / "fieldray" / folder), origin="drive", trust="broken", pack_id="", problem=why)


def test_a_broken_pack_does_not_hide_the_others(desk: Desk) -> None:
    desk.plug_in(EDGETPU, broken(), broken("bbb"))
    desk.until_shown("nested")
    assert desk.in_use == "made-up-1.2.0"
    desk.pull_out()
    desk.until(lambda: "nested" not in desk.notices)
    desk.plug_in(EDGETPU, broken(), on_edgetpu())
    accept(desk)
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "nested" in texts(desk.window.packs_page) and "2.0.0" in texts(desk.window.packs_page))


def test_a_pack_that_fails_to_load_is_reported_and_does_not_hide_the_others(desk: Desk) -> None:
    replayed = replace(on_edgetpu(version="9.0.0"), folder=EDGETPU / "fieldray" / "aaa")
    desk.rooms.library.problems[replayed.folder] = PackProblem(reason("pack_tampered", name="model.tflite"))
    desk.plug_in(EDGETPU, replayed, on_edgetpu())
    desk.until_shown("A pack was found on a drive")
    press(desk.window.banners, "Use this pack")
    desk.until_shown("differs from the file that was signed")
    assert desk.in_use == "made-up-1.2.0"
    desk.window.actions_by_name["packs"].trigger()
    buttons = desk.window.packs_page.findChildren(QPushButton)
    [button for button in buttons if button.text() == "Use this pack"][1].click()
    desk.until(lambda: desk.in_use == "lungs-2.0.0")


def test_the_packs_page_lists_copies_and_chooses_the_operating_point(desk: Desk, from_drive: None) -> None:
    page = desk.window.packs_page
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "Signed with the key of the packs that come" in texts(page))
    assert FINGERPRINT in texts(page)
    copy = next(button for button in page.findChildren(QPushButton) if button.text() == "Copy to this computer")
    copy.click()
    desk.until(lambda: desk.rooms.library.installed == [FOLDER])
    choice = page.findChild(QComboBox)
    choice.setCurrentIndex(choice.findData("careful"))
    choice.activated.emit(choice.currentIndex())
    desk.rooms.outcomes = [screened(1, 0.9)]
    desk.rooms.session.outcomes = desk.rooms.outcomes
    desk.screen("/images", answer="lungs-2.0.0")
    assert desk.rooms.session.started_with == [((Path("/images"),), "careful", False)]


def test_the_folder_of_a_pack_is_shown_only_for_drives_and_problems(desk: Desk) -> None:
    shown, lost = "/opt/program/models/made-up-1.2.0", "/opt/program/models/lost-1.0.0"
    problem = reason("pack_manifest", detail="nested")
    desk.plug_in(EDGETPU, candidate(shown), candidate(lost, trust="broken", pack_id="", problem=problem), on_edgetpu())
    accept(desk)
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "Signed with the key of the packs that come" in texts(desk.window.packs_page))
    words = texts(desk.window.packs_page).replace("\u200b", "")
    assert (str(FOLDER) in words, shown in words, lost in words) == (True, False, True)


def test_the_packs_page_is_built_when_shown_and_is_up_to_date(desk: Desk, from_drive: None) -> None:
    page = desk.window.packs_page
    assert "Lungs" not in texts(page)
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "2.0.0" in texts(page))
    desk.window.pages.setCurrentWidget(desk.window.welcome)
    desk.pull_out()
    desk.until(lambda: desk.in_use == "made-up-1.2.0")
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "Signed with the key of the packs that come" not in texts(page))


def test_an_operating_point_is_never_inherited_by_another_pack(desk: Desk) -> None:
    packs = desk.bench.packs
    packs.choose_operating_point_by_name("careful")
    desk.plug_in(EDGETPU, on_edgetpu())
    accept(desk)
    assert packs.point_name is None
    assert packs.available_packs.pack_in_use.name == f"lungs@{FINGERPRINT}"


def test_the_model_card_opens_from_the_start_page(desk: Desk) -> None:
    desk.until(lambda: bool(desk.window.welcome.cards))
    desk.window.welcome.cards[0].card_button.click()
    shown = desk.dialog(DocumentDialog)
    assert shown.page.textCursor().atStart()  # this entry scrolls into sight when the document gets the focus
    assert shown.page.toPlainText().strip() == "Card of made-up-1.2.0"
    shown.close()


@pytest.mark.parametrize(("language", "title"), [("en", "Card"), ("uk", "Картка")])
def test_a_model_card_is_read_in_the_language_of_the_window(desk: Desk, language: str, title: str) -> None:
    desk.application.change_settings({"language": language})
    desk.bench.packs.model_card_read.emit("# Card\n<!-- uk -->\n# Картка\n")
    shown = desk.dialog(DocumentDialog)
    assert shown.page.toPlainText().strip() == title
    shown.close()


# ---- constancy


def constancy(desk: Desk, **changes: object) -> ConstancyRecord:
    values = {"device": "cpu", "at_s": time.time(), "program": VERSION, "images": 37, "different": 0, "largest": 0.01}
    used = desk.bench.packs.model
    assert used
    return ConstancyRecord(**{"subject": pack_key(used), **values, **changes})


@pytest.fixture
def page(desk: Desk, from_drive: None) -> PacksPage:
    """The packs page, which also shows the constancy test."""
    desk.window.actions_by_name["packs"].trigger()
    page = desk.window.packs_page
    desk.until(lambda: "not run on this computer" in page.constancy.text())
    return page


def test_the_constancy_test_runs_with_the_pack_in_use(desk: Desk, rooms: FakeRooms, page: PacksPage) -> None:
    passed = constancy(desk).summary
    absent = reason("constancy_not_run", device="Edge TPU", detail="No Edge TPU is connected.")
    rooms.checks = [passed, absent]
    rooms.may_check.clear()
    page.check_button.click()
    desk.until(lambda: page.constancy.text() == "Constancy test running…")
    assert not page.check_button.isEnabled()
    rooms.may_check.set()
    desk.until(lambda: page.constancy.text() == f"{passed.text}\n{absent.text}")
    desk.until(page.check_button.isEnabled)
    assert "constancy" not in {notice.key for notice in desk.bench.notice_board.notices}


def test_a_failed_or_due_constancy_test_is_reported_when_the_pack_is_used(
    desk: Desk, rooms: FakeRooms, page: PacksPage
) -> None:
    rooms.database.parent.mkdir(exist_ok=True)
    records = ConstancyRecords(rooms.database.parent)
    records.add(constancy(desk, different=2, largest=0.3, program="0.1.0"), {})
    desk.bench.constancy_test.refresh()
    desk.until(lambda: "2 of 37 images" in page.constancy.text() and "overdue since" in page.constancy.text())
    assert "Do not rely on this pack" in page.constancy.text()
    assert [notice.level for notice in desk.bench.notice_board.notices if notice.key == "constancy"] == ["warning"]


def test_no_constancy_test_starts_during_a_run(desk: Desk, page: PacksPage) -> None:
    desk.choose()
    desk.answer("lungs-2.0.0")
    desk.until(lambda: desk.bench.screening.is_busy)
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: not page.check_button.isEnabled())
    desk.bench.constancy_test.start()
    assert not desk.bench.constancy_test.is_busy

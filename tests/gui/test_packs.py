"""Drives, trust and operating points, as a person meets them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from desk import Desk
from fake_rooms import FINGERPRINT, FakeRooms, candidate, model, screened
from PySide6.QtWidgets import QComboBox, QPushButton
from test_flows import texts

from fieldray.desktop.dialogs import ModelCard
from fieldray.desktop.packs_page import PackDialog, fingerprint_lines
from fieldray.domain.events import Drive, DrivesChanged, RunChanged
from fieldray.errors import PackNotTrusted, PackProblem
from fieldray.packs.naming import PackCandidate
from fieldray.reasons import reason

EDGETPU = Path("/media/Edge TPU")
FOLDER = EDGETPU / "fieldray" / "lungs-2.0.0"


def plug_in(desk: Desk, *packs: PackCandidate) -> None:
    desk.rooms.library.on_drives[EDGETPU] = list(packs)
    desk.rooms.publish(DrivesChanged(drives=(Drive(mount_point=str(EDGETPU), name="EDGETPU"),)))


def pull_out(desk: Desk) -> None:
    desk.rooms.library.on_drives.clear()
    desk.rooms.publish(DrivesChanged(drives=()))


def on_edgetpu(**changes: object) -> PackCandidate:
    return candidate(
        str(FOLDER), **{"origin": "drive", "trust": "trusted", "pack_id": "lungs", "version": "2.0.0", **changes}
    )


def in_use(desk: Desk) -> str:
    used = desk.application.controller.packs.model
    return used.pack_name if used else ""


def dialog(desk: Desk) -> PackDialog:
    desk.until(lambda: any(box.isVisible() for box in desk.window.findChildren(PackDialog)))
    return next(box for box in desk.window.findChildren(PackDialog) if box.isVisible())


@pytest.fixture
def rooms(rooms: FakeRooms) -> FakeRooms:
    rooms.library.models[FOLDER] = model(pack_id="lungs", version="2.0.0")
    return rooms


def test_a_drive_with_a_trusted_pack_is_used_and_may_be_removed(desk: Desk) -> None:
    plug_in(desk, on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    assert "you can remove the drive" in desk.window.toolbar.pack_chip.toolTip()
    desk.until(lambda: desk.rooms.session.packs[-1].pack_name == "lungs-2.0.0")


def test_a_drive_removed_during_a_run_lets_it_finish_then_the_default_takes_over(desk: Desk) -> None:
    plug_in(desk, on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    desk.screen(answer="lungs-2.0.0")
    desk.until(lambda: desk.application.controller.screening.state == "running")
    pull_out(desk)
    desk.until(lambda: "This run finishes with the pack in memory" in texts(desk.window.banners))
    assert in_use(desk) == "lungs-2.0.0"
    desk.rooms.publish(RunChanged(run_id=1, state="finished"))
    desk.until(lambda: in_use(desk) == "made-up-1.2.0")
    desk.until(lambda: "The pack in use is now made-up-1.2.0" in texts(desk.window.banners))


def test_a_drive_put_back_during_a_run_is_not_taken_for_a_new_one(desk: Desk) -> None:
    plug_in(desk, on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    desk.screen(answer="lungs-2.0.0")
    pull_out(desk)
    desk.until(lambda: "This run finishes" in texts(desk.window.banners))
    plug_in(desk, on_edgetpu())
    desk.until(lambda: not desk.window.banners.isVisible())
    desk.rooms.publish(RunChanged(run_id=1, state="finished"))
    desk.until(lambda: not desk.application.controller.screening.is_busy)
    assert in_use(desk) == "lungs-2.0.0"


def test_a_drive_removed_between_runs_falls_back_at_once(desk: Desk) -> None:
    plug_in(desk, on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    pull_out(desk)
    desk.until(lambda: in_use(desk) == "made-up-1.2.0")


def test_a_pack_found_during_a_run_is_offered_not_taken(desk: Desk) -> None:
    desk.screen()
    plug_in(desk, on_edgetpu())
    desk.until(lambda: "A pack was found on a drive" in texts(desk.window.banners))
    assert in_use(desk) == "made-up-1.2.0"
    desk.window.banners.findChild(QPushButton).click()
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")


def test_an_unknown_key_waits_for_an_explicit_yes(desk: Desk) -> None:
    desk.rooms.library.problems[FOLDER] = PackNotTrusted(FINGERPRINT)
    plug_in(desk, on_edgetpu(trust="unknown_key", problem=reason("pack_unknown_key", fingerprint=FINGERPRINT)))
    desk.until(lambda: "not trusted yet" in texts(desk.window.banners))
    assert in_use(desk) == "made-up-1.2.0"
    desk.window.banners.findChild(QPushButton).click()
    asked = dialog(desk)
    assert "\n".join(fingerprint_lines(FINGERPRINT)) in texts(asked)
    assert asked.no_button.isDefault()
    asked.yes_button.click()
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    assert desk.rooms.library.trusted == [FINGERPRINT]


def test_a_question_goes_with_the_drive_it_is_about(desk: Desk) -> None:
    desk.rooms.library.problems[FOLDER] = PackNotTrusted(FINGERPRINT)
    plug_in(desk, on_edgetpu(trust="unknown_key", problem=reason("pack_unknown_key", fingerprint=FINGERPRINT)))
    desk.until(lambda: "not trusted yet" in texts(desk.window.banners))
    pull_out(desk)
    desk.until(lambda: "not trusted yet" not in texts(desk.window.banners))
    assert in_use(desk) == "made-up-1.2.0"


def test_a_no_leaves_everything_as_it_was(desk: Desk) -> None:
    desk.rooms.library.problems[FOLDER] = PackNotTrusted(FINGERPRINT)
    plug_in(desk, on_edgetpu(trust="unknown_key", problem=reason("pack_unknown_key", fingerprint=FINGERPRINT)))
    desk.until(lambda: "not trusted yet" in texts(desk.window.banners))
    desk.window.banners.findChild(QPushButton).click()
    dialog(desk).no_button.click()
    assert desk.rooms.library.trusted == []
    assert in_use(desk) == "made-up-1.2.0"


@pytest.mark.parametrize(
    ("code", "parameters", "words"),
    [
        ("pack_legacy", {}, "Nobody vouches"),
        ("pack_older", {"version": "2.0.0", "seen": "3.0.0"}, "older than version 3.0.0"),
    ],
)
def test_legacy_and_older_packs_need_a_yes(desk: Desk, code: str, parameters: dict[str, str], words: str) -> None:
    why = reason(code, **parameters)
    desk.rooms.library.problems[FOLDER] = PackProblem(why)
    pack = on_edgetpu(trust="legacy", problem=why)
    plug_in(desk, pack)
    desk.until(lambda: pack in desk.application.controller.packs.candidates)
    desk.application.controller.packs.use(pack)
    asked = dialog(desk)
    assert words in texts(asked)
    asked.yes_button.click()
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")


def test_a_pack_by_another_signer_of_a_known_name_needs_a_yes(desk: Desk) -> None:
    why = reason("pack_namesake_shipped", pack="made-up", fingerprint=FINGERPRINT)
    desk.rooms.library.problems[FOLDER] = PackProblem(why)
    pack = on_edgetpu(pack_id="made-up", version="9.0.0", fingerprint=FINGERPRINT, problem=why, is_namesake=True)
    desk.rooms.library.models[FOLDER] = model(pack_id="made-up", version="9.0.0")
    plug_in(desk, pack)
    desk.until(lambda: "comes with the program" in texts(desk.window.banners))
    packs = desk.application.controller.packs
    assert (
        in_use(desk) == "made-up-1.2.0"
        and packs.in_reach.named("made-up") == packs.in_reach.named("made-up-1.2.0") == packs.source
    )
    desk.window.banners.findChild(QPushButton).click()
    asked = dialog(desk)
    assert asked.no_button.isDefault() and not asked.yes_button.isDefault()
    asked.no_button.click()
    assert in_use(desk) == "made-up-1.2.0"
    packs.use(pack)
    dialog(desk).yes_button.click()
    desk.until(lambda: in_use(desk) == "made-up-9.0.0")
    assert not packs.is_in_use("made-up") and packs.is_in_use(f"made-up@{FINGERPRINT}")


def test_a_tampered_pack_is_refused_with_its_reason(desk: Desk) -> None:
    why = reason("pack_tampered", name="model.tflite")
    desk.rooms.library.problems[FOLDER] = PackProblem(why)
    plug_in(desk, on_edgetpu())
    desk.until(lambda: "is not the one that was signed" in texts(desk.window.banners))
    assert in_use(desk) == "made-up-1.2.0"


def broken(folder: str = "aaa") -> PackCandidate:
    why = reason("pack_manifest", detail="nested")
    return candidate(str(EDGETPU / "fieldray" / folder), origin="drive", trust="broken", pack_id="", problem=why)


def test_a_broken_pack_hides_none_beside_it(desk: Desk) -> None:
    plug_in(desk, broken(), on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "nested" in texts(desk.window.packs_page) and "2.0.0" in texts(desk.window.packs_page))


def test_a_pack_that_turns_out_broken_hides_none_beside_it(desk: Desk) -> None:
    replayed = replace(on_edgetpu(version="9.0.0"), folder=EDGETPU / "fieldray" / "aaa")
    desk.rooms.library.problems[replayed.folder] = PackProblem(reason("pack_tampered", name="model.tflite"))
    plug_in(desk, replayed, on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")


def test_a_drive_of_broken_packs_leaves_the_pack_in_use(desk: Desk) -> None:
    desk.rooms.library.problems[broken().folder] = PackProblem(reason("pack_manifest", detail="nested"))
    plug_in(desk, broken(), broken("bbb"))
    desk.until(lambda: "nested" in texts(desk.window.banners))
    assert in_use(desk) == "made-up-1.2.0"


def test_the_packs_page_lists_copies_and_chooses_the_operating_point(desk: Desk) -> None:
    page = desk.window.packs_page
    plug_in(desk, on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "Signed by a key you trust" in texts(page))
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


def test_where_a_pack_lies_is_said_of_a_drive_and_of_a_problem_alone(desk: Desk) -> None:
    shown, lost = "/opt/program/models/made-up-1.2.0", "/opt/program/models/lost-1.0.0"
    problem = reason("pack_manifest", detail="nested")
    plug_in(desk, candidate(shown), candidate(lost, trust="broken", pack_id="", problem=problem), on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "Signed by a key you trust" in texts(desk.window.packs_page))
    words = texts(desk.window.packs_page).replace("\u200b", "")
    assert (str(FOLDER) in words, shown in words, lost in words) == (True, False, True)


def test_the_packs_page_is_built_when_it_is_seen_and_is_never_stale(desk: Desk) -> None:
    page = desk.window.packs_page
    plug_in(desk, on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    assert "Lungs" not in texts(page)
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "2.0.0" in texts(page))
    desk.window.pages.setCurrentWidget(desk.window.welcome)
    pull_out(desk)
    desk.until(lambda: all(found.origin != "drive" for found in desk.application.controller.packs.candidates))
    desk.window.actions_by_name["packs"].trigger()
    desk.until(lambda: "Signed by a key you trust" not in texts(page))


def test_an_operating_point_is_never_inherited_by_another_pack(desk: Desk) -> None:
    packs = desk.application.controller.packs
    packs.choose_point("careful")
    plug_in(desk, on_edgetpu())
    desk.until(lambda: in_use(desk) == "lungs-2.0.0")
    assert packs.point_name is None
    assert packs.in_reach.used.name == f"lungs@{FINGERPRINT}"


def test_the_model_card_opens_from_the_start_page(desk: Desk) -> None:
    desk.until(lambda: bool(desk.window.welcome.cards))
    desk.window.welcome.cards[0].card_button.click()
    desk.until(lambda: any(box.isVisible() for box in desk.window.findChildren(ModelCard)))
    shown = next(box for box in desk.window.findChildren(ModelCard) if box.isVisible())
    assert shown.page.textCursor().atStart()  # it is what a document that gets the focus scrolls to
    assert shown.page.toPlainText().strip() == "Card of made-up-1.2.0"
    shown.close()

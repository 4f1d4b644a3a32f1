"""Whose images are these: no pack is taken silently, an answer is remembered, and what speaks against it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from desk import Desk
from fake_rooms import FakeRooms, candidate, manifest, model, refused, screened
from PySide6.QtWidgets import QCheckBox, QMessageBox
from test_flows import texts

from fieldray.desktop.packs_page import answer_label
from fieldray.domain.events import RunChanged
from fieldray.domain.model import HeaderRules
from fieldray.packs.site_choices import RememberedPack
from fieldray.reasons import reason
from fieldray.settings import Settings, load
from fieldray.translation import Translator

CHILDREN = Path("/program/models/children-1.0.0")
ADULTS = Path("/program/models/adults-1.0.0")
AGES = {"children": (1, 5), "adults": (18, 95)}


def described(pack_id: str) -> dict[str, object]:
    accepted = HeaderRules(ages_years=AGES[pack_id])
    return {"pack_id": pack_id, "version": "1.0.0", "accepted": accepted, "names": {"en": pack_id.capitalize()}}


@pytest.fixture
def settings() -> Settings:
    """Nobody has said anything yet."""
    return Settings({"language": "en", "theme": "light"})


@pytest.fixture
def rooms() -> FakeRooms:
    """Two packs, for children and for adults."""
    made = FakeRooms()
    made.outcomes = [screened(1, 0.9)]
    made.library.always = []
    for folder, pack_id in ((CHILDREN, "children"), (ADULTS, "adults")):
        of = manifest(**described(pack_id))
        entry = candidate(str(folder), pack_id=pack_id, version=folder.name[-5:], names=of.names)
        made.library.always.append(replace(entry, manifest=of))
        made.library.models[folder] = model("builtin", **described(pack_id))
    return made


@pytest.fixture
def open_desk(desk: Desk) -> Iterator[Desk]:
    """The window with the packs listed."""
    desk.until(lambda: desk.application.controller.packs.is_listed)
    return desk


def choose(desk: Desk, path: str = "/images") -> None:
    desk.application.controller.screening.choose([Path(path)])


def in_use(desk: Desk) -> str:
    used = desk.application.controller.packs.model
    return used.manifest.pack_id if used else ""


def finish(desk: Desk) -> None:
    session = desk.rooms.session
    desk.rooms.publish(RunChanged(run_id=len(session.batches), state="finished"))
    desk.until(lambda: not desk.application.controller.screening.is_busy)


def ages_question(desk: Desk) -> QMessageBox:
    desk.until(lambda: any(box.isVisible() for box in desk.window.findChildren(QMessageBox)))
    return next(box for box in desk.window.findChildren(QMessageBox) if box.isVisible())


def press(box: QMessageBox, text: str) -> None:
    next(button for button in box.buttons() if button.text() == text).click()


def test_packs_for_the_same_ages_are_told_apart_by_their_answers() -> None:
    adults = manifest(**described("adults"))
    packs = [
        replace(candidate("a", names=names), manifest=adults)
        for names in ({"en": "Normal or abnormal"}, {"en": "Tuberculosis"})
    ]
    assert [answer_label(Translator("en"), pack) for pack in packs] == [
        "Normal or abnormal: patients aged 18 to 95 years",
        "Tuberculosis: patients aged 18 to 95 years",
    ]


def test_no_pack_is_in_use_until_somebody_says_for_whom(open_desk: Desk) -> None:
    desk = open_desk
    choose(desk)
    desk.until(lambda: desk.asks == "pack")
    assert in_use(desk) == ""
    assert desk.rooms.session.started_with == []
    assert desk.window.pages.currentWidget() is desk.window.welcome
    desk.until(lambda: "It knows nothing about people." in texts(desk.window.welcome))
    words = texts(desk.window.welcome)
    assert "Choose the pack for /images." in words
    for expected in (
        "For patients aged 1 to 5 years.",
        "For patients aged 18 to 95 years.",
        "lung opacity",
        "It was not measured on images of another hospital.",
    ):
        assert expected in words
    assert "Whose images are these?" in desk.window.toolbar.pack_chip.text()


def test_a_card_is_the_answer_and_the_header_says_for_whom(open_desk: Desk) -> None:
    desk = open_desk
    desk.rooms.lacks_ages = True
    desk.screen(answer="adults-1.0.0")
    assert in_use(desk) == "adults"
    assert desk.rooms.session.ages_confirmed == [True]  # the card says so in so many words
    assert "For patients aged 18 to 95 years." in desk.window.toolbar.pack_chip.toolTip()
    assert desk.window.pages.currentWidget() is desk.window.images


def test_a_card_may_be_chosen_before_the_folder(open_desk: Desk) -> None:
    desk = open_desk
    desk.window.welcome.cards[1].button.click()
    desk.until(lambda: in_use(desk) == "adults")
    assert "Ready: Adults 1.0.0" in texts(desk.window.welcome)
    desk.screen()
    assert in_use(desk) == "adults"
    finish(desk)
    choose(desk, "/other")  # the answer was for that folder
    desk.until(lambda: desk.asks == "pack")


def test_the_answer_is_remembered_for_the_folder(open_desk: Desk) -> None:
    desk = open_desk
    desk.screen("/images/a", answer="adults-1.0.0")
    desk.until(lambda: desk.rooms.memory.known == {Path("/images/a"): RememberedPack("adults")})
    finish(desk)
    choose(desk, "/images/b")
    desk.answer("children-1.0.0")
    desk.until(lambda: len(desk.rooms.session.batches) == 2)
    finish(desk)
    choose(desk, "/images/a")
    desk.until(lambda: len(desk.rooms.session.batches) == 3)
    assert in_use(desk) == "adults"
    assert desk.rooms.session.ages_confirmed[-1] is False  # a folder of DICOM: nothing is left open


def test_no_image_of_the_run_before_is_opened_for_the_answer(open_desk: Desk) -> None:
    desk = open_desk
    desk.screen("/images/a", answer="children-1.0.0")
    finish(desk)
    choose(desk, "/images/b")
    desk.until(lambda: desk.asks == "pack")
    image, opened = desk.application.controller.image, []
    image.changed.connect(lambda: opened.append((image.row, desk.application.controller.screening.state)))
    desk.answer("adults-1.0.0")
    desk.until(lambda: len(desk.rooms.session.batches) == 2)
    assert [state for row, state in opened if row is not None and state == "waiting"] == []


def test_the_remembered_operating_point_is_used(open_desk: Desk) -> None:
    desk = open_desk
    desk.rooms.memory.known[Path("/images")] = RememberedPack("adults", "careful")
    desk.screen()
    assert desk.rooms.session.started_with[-1][1] == "careful"


def test_a_site_may_have_a_default_and_it_outlives_the_program(open_desk: Desk, home: Path) -> None:
    desk = open_desk
    choose(desk)
    desk.until(lambda: desk.asks == "pack")
    desk.window.welcome.default_box.setChecked(True)
    desk.answer("adults-1.0.0")
    desk.until(lambda: desk.application.controller.rows.total() == 1)
    desk.until(lambda: load(home / "settings.json")[0]["pack"] == "adults")
    assert desk.rooms.memory.known == {}
    finish(desk)
    choose(desk, "/other")
    desk.until(lambda: len(desk.rooms.session.batches) == 2)
    assert in_use(desk) == "adults"


def test_the_default_can_be_withdrawn_on_the_page_of_packs(open_desk: Desk) -> None:
    desk = open_desk
    desk.application.controller.choose_default("adults")
    desk.screen()
    desk.window.actions_by_name["packs"].trigger()
    box = desk.window.packs_page.findChild(QCheckBox)
    assert box.isChecked()
    box.setChecked(False)
    assert desk.application.settings["pack"] == ""


@pytest.mark.parametrize(("answer", "is_confirmed"), [("Yes, all of them", True), ("I do not know", False)])
def test_ages_that_files_do_not_state_are_asked_once_per_run(open_desk: Desk, answer: str, is_confirmed: bool) -> None:
    desk = open_desk
    desk.rooms.lacks_ages = True
    desk.rooms.memory.known[Path("/images")] = RememberedPack("children")
    choose(desk)
    box = ages_question(desk)
    assert "Are all patients aged 1 to 5 years?" in box.text()
    assert desk.rooms.session.started_with == []
    press(box, answer)
    desk.until(lambda: desk.rooms.session.ages_confirmed == [is_confirmed])


def test_a_folder_that_waits_for_an_answer_is_named_when_another_one_is_chosen(open_desk: Desk) -> None:
    desk = open_desk
    desk.rooms.lacks_ages = True
    for folder in ("/first", "/second"):
        desk.rooms.memory.known[Path(folder)] = RememberedPack("children")
    choose(desk, "/first")
    ages_question(desk)
    choose(desk, "/second")
    desk.until(lambda: "not screened: /first" in texts(desk.window.banners))
    choose(desk, "/second")
    assert "/second" not in texts(desk.window.banners)
    press(ages_question(desk), "Yes, all of them")
    desk.until(lambda: [paths for paths, *_ in desk.rooms.session.started_with] == [(Path("/second"),)])
    assert "not screened: /first" in texts(desk.window.banners)


def test_another_pack_may_be_the_answer_to_the_ages(open_desk: Desk) -> None:
    desk = open_desk
    desk.rooms.lacks_ages = True
    desk.rooms.memory.known[Path("/images")] = RememberedPack("children")
    choose(desk)
    press(ages_question(desk), "Use another pack")
    desk.answer("adults-1.0.0")
    desk.until(lambda: desk.rooms.session.ages_confirmed == [True])
    assert in_use(desk) == "adults"


def test_another_pack_in_the_header_is_not_that_of_the_list(open_desk: Desk) -> None:
    desk = open_desk
    desk.screen(answer="children-1.0.0")
    finish(desk)
    desk.application.controller.packs.use(desk.rooms.library.always[1])
    words = "These results are from “Children 1.0.0”. Press Start to screen with “Adults 1.0.0”."
    desk.until(lambda: words in texts(desk.window.banners))
    desk.window.actions_by_name["start"].trigger()
    desk.until(lambda: len(desk.rooms.session.batches) == 2)
    assert words not in texts(desk.window.banners)
    desk.until(lambda: desk.rooms.memory.known == {Path("/images"): RememberedPack("adults")})


def test_images_that_say_otherwise_are_counted(open_desk: Desk) -> None:
    desk = open_desk
    too_old = reason("age", age=40, youngest=1, oldest=5)
    hand = reason("body_part", body_part="HAND")
    unknown = reason("age_not_stated", youngest=1, oldest=5)
    desk.rooms.session.outcomes = [
        refused(1, too_old),
        refused(2, hand),
        refused(3),
        replace(screened(4, 0.1), notes=(unknown,)),
    ]
    desk.rooms.outcomes = desk.rooms.session.outcomes
    desk.screen(answer="children-1.0.0")
    finish(desk)
    said = "2 images say that they are not for this pack (age or body part). Was the right pack chosen? For patients"
    desk.until(lambda: said in texts(desk.window.banners))
    assert "1 image does not say how old the patient is" in texts(desk.window.banners)


def test_a_pack_that_is_not_there_any_more_is_asked_for_again(open_desk: Desk) -> None:
    desk = open_desk
    desk.rooms.memory.known[Path("/images")] = RememberedPack("gone")
    choose(desk)
    desk.until(lambda: desk.asks == "pack")

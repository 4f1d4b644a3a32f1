"""What is asked before a run: each question names what it is about, holds for that alone, and disturbs nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from desk import Desk
from fake_rooms import FakeRooms, candidate, image_ref, manifest, model, screened
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMessageBox, QScrollArea
from test_first_run import ADULTS, CHILDREN, ages_question, choose, described, finish, in_use, press
from test_first_run import rooms as rooms  # noqa: PLC0414 - the packs for children and for adults
from test_first_run import settings as settings  # noqa: PLC0414
from test_flows import texts
from test_packs import EDGETPU, dialog

from fieldray.desktop.packs_page import PackDialog
from fieldray.domain.events import Drive, DrivesChanged, RunChanged
from fieldray.domain.prior import as_prior
from fieldray.domain.run import RunSpec
from fieldray.errors import PackNotTrusted
from fieldray.packs.naming import grouped
from fieldray.packs.site_choices import RememberedPack
from fieldray.pipeline.history import History
from fieldray.reasons import reason
from fieldray.store.results import ResultStore
from outcomes import run_spec

MEANWHILE = EDGETPU / "fieldray" / "lungs-2.0.0"


@pytest.fixture
def asked(desk: Desk) -> QMessageBox:
    """The question for the ages of /images, for which the children's pack is remembered."""
    desk.until(lambda: desk.application.controller.packs.is_listed)
    desk.rooms.lacks_ages = True
    desk.rooms.memory.known[Path("/images")] = RememberedPack("children")
    choose(desk)
    return ages_question(desk)


def boxes(desk: Desk) -> list[QMessageBox]:
    return [box for box in desk.window.findChildren(QMessageBox) if box.isVisible()]


def plug_in(desk: Desk, pack_id: str = "adults", **changes: object) -> None:
    """A drive with a trusted pack for other patients."""
    about = described(pack_id)
    known = {name: about[name] for name in ("pack_id", "version", "names")}
    entry = candidate(str(MEANWHILE), **{"origin": "drive", "trust": "trusted", **known, **changes})
    desk.rooms.library.on_drives[EDGETPU] = [replace(entry, manifest=manifest(**about))]
    desk.rooms.library.models.setdefault(MEANWHILE, model(**about))
    desk.rooms.publish(DrivesChanged(drives=(Drive(mount_point=str(EDGETPU), name="EDGETPU"),)))


def test_the_question_names_folder_pack_and_ages_and_no_key_means_yes(desk: Desk, asked: QMessageBox) -> None:
    words = asked.text() + asked.informativeText()
    assert all(part in words for part in ("aged 1 to 5 years", "/images", "Children 1.0.0"))
    assert asked.defaultButton() is asked.escapeButton()
    assert asked.defaultButton().text() == "Use another pack"
    asked.defaultButton().click()
    desk.until(lambda: desk.asks == "pack")
    assert desk.rooms.session.started_with == []
    assert not isinstance(QApplication.focusWidget(), type(desk.window.welcome.cards[0].button))


def test_the_question_for_the_next_folder_is_shown_from_its_top(desk: Desk) -> None:
    desk.until(lambda: desk.application.controller.packs.is_listed)
    desk.window.resize(desk.window.minimumSizeHint())
    bar = desk.window.welcome.findChild(QScrollArea).verticalScrollBar()
    choose(desk)
    desk.until(lambda: desk.asks == "pack" and bar.maximum() > 0)
    bar.setValue(bar.maximum())
    choose(desk, "/other")
    desk.until(lambda: "Choose the pack for /other." in texts(desk.window.welcome) and desk.asks == "pack")
    desk.until(lambda: bar.value() == 0)


def test_a_pack_that_comes_while_the_ages_are_asked_closes_the_question(desk: Desk, asked: QMessageBox) -> None:
    screening = desk.application.controller.screening
    before = screening.question
    plug_in(desk)
    desk.until(lambda: desk.asks == "pack" and not boxes(desk))
    desk.until(lambda: "question before is closed. Choose the pack for /images." in texts(desk.window.banners))
    screening.answer(before, True)
    assert desk.rooms.session.started_with == []
    desk.answer("children-1.0.0")
    desk.until(lambda: desk.rooms.session.ages_confirmed == [True])
    assert in_use(desk) == "children"
    desk.until(lambda: "question before" not in texts(desk.window.banners))


def test_a_question_that_is_answered_late_approves_no_other_folder(desk: Desk) -> None:
    desk.until(lambda: desk.application.controller.packs.is_listed)
    desk.rooms.lacks_ages = True
    choose(desk, "/first")
    desk.until(lambda: desk.asks == "pack")
    children = next(card for card in desk.window.welcome.cards if "1 to 5" in card.button.text())
    children.button.click()  # its pack is being loaded
    choose(desk, "/second")
    desk.until(lambda: desk.asks == "pack" and in_use(desk) == "children")
    assert desk.rooms.session.started_with == [] and desk.rooms.memory.known == {}
    assert "Choose the pack for /second." in texts(desk.window.welcome)
    desk.until(lambda: "not screened: /first" in texts(desk.window.banners))


def past_run(desk: Desk, folder: str) -> int:
    with ResultStore(desk.rooms.database) as store:
        spec: RunSpec = run_spec(paths=(folder,), pack_name="children-1.0.0")
        run_id = store.open_run(spec, fresh=True)
        store.save(run_id, screened(1, 0.9), spec=spec)
        store.finish(run_id)
    return run_id


def read_history(desk: Desk) -> None:
    """Look for runs of the past in the store."""
    background = desk.application.controller.background
    background.services = replace(background.services, history=History(desk.rooms.database))


def test_start_on_a_run_of_the_past_screens_and_remembers_its_own_folder(desk: Desk, rooms: FakeRooms) -> None:
    desk.screen("/opened/before", answer="adults-1.0.0")
    finish(desk)
    desk.until(lambda: Path("/opened/before") in desk.rooms.memory.known)
    rooms.lacks_ages = True
    read_history(desk)
    desk.application.controller.past_runs.open(past_run(desk, "/of/the/past"))
    desk.until(lambda: desk.application.controller.screening.past is not None)
    desk.until(lambda: desk.application.controller.rows.total() == 1)
    desk.window.actions_by_name["start"].trigger()
    box = ages_question(desk)
    assert "/of/the/past (1 in the list)" in box.informativeText() and "Adults" in box.informativeText()
    press(box, "I do not know")
    desk.until(lambda: len(rooms.session.started_with) == 2)
    assert rooms.session.started_with[-1][0] == (Path("/of/the/past"),)
    assert rooms.session.ages_confirmed[-1] is False
    desk.until(lambda: rooms.memory.known.get(Path("/of/the/past")) == RememberedPack("adults"))
    assert rooms.memory.known[Path("/opened/before")] == RememberedPack("adults")


def test_a_run_of_the_past_closes_the_question_about_another_folder(desk: Desk, asked: QMessageBox) -> None:
    read_history(desk)
    desk.application.controller.past_runs.open(past_run(desk, "/of/the/past"))
    desk.until(lambda: not boxes(desk) and desk.asks == "")
    desk.until(lambda: "Chosen, but not screened: /images" in texts(desk.window.banners))


def test_nothing_is_asked_into_a_field_that_is_typed_in(desk: Desk) -> None:
    desk.screen("/first", answer="children-1.0.0")
    desk.rooms.lacks_ages = True
    desk.rooms.memory.known[Path("/second")] = RememberedPack("children")
    choose(desk, "/second")  # after this run
    desk.window.activateWindow()
    desk.until(desk.window.isActiveWindow)
    search = desk.window.work_list.filter_bar.search
    search.setFocus()
    finish_and_wait = "A question waits until you have finished here."
    desk.rooms.publish(RunChanged(run_id=1, state="finished"))
    desk.until(lambda: finish_and_wait in texts(desk.window.banners))
    for key in (Qt.Key.Key_Space, Qt.Key.Key_Return, Qt.Key.Key_Y):
        QTest.keyClick(QApplication.focusWidget(), key)
    assert (QApplication.focusWidget(), boxes(desk), desk.asks) == (search, [], "ages")
    desk.window.work_list.table.setFocus()
    box = ages_question(desk)
    desk.until(lambda: finish_and_wait not in texts(desk.window.banners))
    QTest.keyClick(box, Qt.Key.Key_Return)
    desk.until(lambda: desk.asks == "pack")
    assert len(desk.rooms.session.started_with) == 1


def test_a_folder_that_is_dropped_while_somebody_types_gives_the_keys_back_to_the_list(desk: Desk) -> None:
    desk.screen("/first", answer="children-1.0.0")
    desk.window.activateWindow()
    desk.until(desk.window.isActiveWindow)
    desk.window.work_list.filter_bar.search.setFocus()
    desk.window._choose([Path("/second")])  # after this run
    assert QApplication.focusWidget() is desk.window.work_list.table


def test_a_question_goes_over_to_the_window_in_another_language(desk: Desk, asked: QMessageBox) -> None:
    desk.application.change_settings({"language": "uk"})
    box = ages_question(desk)
    assert "Чи всі пацієнти віком від 1 до 5 років?" in box.text() and "Знімки: /images" in box.informativeText()
    press(box, "Так, усі")
    desk.until(lambda: desk.rooms.session.ages_confirmed == [True])


def test_a_key_is_not_asked_about_by_the_name_of_the_pack_that_lay_there_before(desk: Desk) -> None:
    desk.until(lambda: desk.application.controller.packs.is_listed)
    packs, other = desk.application.controller.packs, grouped("ab" * 32)
    plug_in(desk, trust="unknown_key", problem=reason("pack_legacy"))
    entry = desk.rooms.library.on_drives[EDGETPU][0]
    desk.rooms.library.problems[MEANWHILE] = PackNotTrusted(entry.fingerprint)
    desk.until(lambda: entry in packs.candidates)
    packs.use(entry)
    question = dialog(desk)
    desk.rooms.library.problems[MEANWHILE] = PackNotTrusted(other)  # somebody changed the drive meanwhile
    desk.rooms.library.on_drives[EDGETPU] = [replace(entry, fingerprint=other)]
    question.yes_button.click()
    desk.until(lambda: "another pack lies in its place" in texts(desk.window.banners))
    assert packs.question is None and in_use(desk) == ""
    assert desk.rooms.library.trusted == [entry.fingerprint]


def test_a_pack_that_is_not_the_one_that_was_listed_is_not_used(desk: Desk) -> None:
    desk.until(lambda: desk.application.controller.packs.is_listed)
    desk.rooms.library.models[CHILDREN] = model("builtin", **described("adults"))
    choose(desk)
    desk.answer("children-1.0.0")
    desk.until(lambda: "another pack lies in its place" in texts(desk.window.banners))
    desk.until(lambda: desk.asks == "pack")
    assert in_use(desk) == "" and desk.rooms.session.started_with == []


def test_a_pack_question_closes_when_its_drive_is_pulled(desk: Desk) -> None:
    desk.until(lambda: desk.application.controller.packs.is_listed)
    plug_in(desk, trust="unknown_key", problem=reason("pack_legacy"))
    packs = desk.application.controller.packs
    desk.until(lambda: len(packs.candidates) == 3)
    entry = packs.candidates[0]
    desk.rooms.library.problems[MEANWHILE] = PackNotTrusted(entry.fingerprint)
    packs.use(entry)
    dialog(desk)
    question = packs.question
    desk.rooms.library.on_drives.clear()
    desk.rooms.publish(DrivesChanged(drives=()))
    desk.until(lambda: not any(box.isVisible() for box in desk.window.findChildren(PackDialog)))
    desk.until(lambda: "is not there any more" in texts(desk.window.banners))
    packs.answer_yes(question)
    assert desk.rooms.library.trusted == []


def test_an_answer_about_a_prior_image_is_for_the_image_that_was_open(desk: Desk, rooms: FakeRooms) -> None:
    rooms.outcomes += [screened(2, 0.1)]
    desk.screen(answer="adults-1.0.0")
    desk.open_row(1)
    comparing = desk.application.controller.comparing
    other = replace(screened(7, 0.5), ref=image_ref(7, path=Path("/other/image-00007.dcm")))
    rooms.priors.files[other.ref.path] = other
    assert as_prior(other, rooms.outcomes[0], "file").kinship == "other"
    comparing.choose_file(other.ref.path)
    desk.until(lambda: bool(boxes(desk)))
    question = comparing.question
    desk.open_row(2)
    desk.until(lambda: not boxes(desk))
    desk.until(lambda: "so the question about the prior image was closed" in texts(desk.window.banners))
    comparing.answer(question, is_meant=True)
    assert comparing.prior is None and not comparing.priors


def test_the_ages_of_a_demonstration_are_not_those_of_another_pack(desk: Desk) -> None:
    desk.until(lambda: desk.application.controller.packs.is_listed)
    desk.rooms.lacks_ages = True
    desk.rooms.memory.known[Path("/images")] = RememberedPack("children", ages_confirmed=True)
    desk.screen()
    assert desk.rooms.session.ages_confirmed == [True]
    finish(desk)
    desk.application.controller.packs.use(next(e for e in desk.rooms.library.always if e.folder == ADULTS))
    desk.until(lambda: in_use(desk) == "adults")
    desk.window.actions_by_name["start"].trigger()
    assert "aged 18 to 95 years" in ages_question(desk).text()

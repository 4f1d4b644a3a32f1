"""The question whose images these are: no pack is used unasked, the answer is remembered, contradictions are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from desk import Desk, dialogs, press, texts
from fake_rooms import POINT, FakeRooms, candidate, described, image_ref, manifest, model, refused, screened
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QCheckBox, QMessageBox, QScrollArea
from test_packs import EDGETPU

from fieldray.desktop.packs_page import PackDialog, choose_button_lines
from fieldray.domain.prior_image import prior_from
from fieldray.domain.run import RunChanged
from fieldray.errors import PackNotTrusted
from fieldray.packs.naming import group_fingerprint_digits
from fieldray.packs.site_choices import REMEMBERED_PACKS_FILE_NAME, RememberedPack
from fieldray.reasons import reason
from fieldray.settings import Settings, load_settings
from fieldray.translation import Translator
from outcomes import run_spec
from stores import keep

CHILDREN = Path("/program/models/children-1.0.0")


@pytest.fixture
def settings() -> Settings:
    """No pack has been chosen yet."""
    return Settings({"language": "en", "theme": "light"})


@pytest.fixture
def rooms(two_packs: FakeRooms) -> FakeRooms:
    return two_packs


@pytest.fixture
def two_packs() -> FakeRooms:
    """Two packs, for children and for adults."""
    made = FakeRooms()
    made.outcomes = [screened(1, 0.9)]
    made.offer("children", "adults")
    return made


@pytest.fixture(autouse=True)
def listed(desk: Desk) -> None:
    """A window in which the packs are listed."""
    desk.until(lambda: desk.bench.packs.is_listed)


def test_cards_of_packs_for_the_same_ages_name_what_they_find() -> None:
    adults = manifest(**described("adults"))
    packs = [
        replace(candidate("a", names=names), manifest=adults)
        for names in ({"en": "Normal or abnormal"}, {"en": "Tuberculosis"})
    ]
    assert [choose_button_lines(Translator("en"), pack) for pack in packs] == [
        ("Normal or abnormal", "patients aged 18 to 95 years"),
        ("Tuberculosis", "patients aged 18 to 95 years"),
    ]


def test_no_pack_is_in_use_until_the_question_is_answered(desk: Desk) -> None:
    desk.choose()
    desk.until(lambda: desk.asks == "pack")
    assert desk.in_use == ""
    assert desk.rooms.session.started_with == []
    assert desk.window.pages.currentWidget() is desk.window.welcome
    desk.until(lambda: "It knows nothing about people." in texts(desk.window.welcome))
    words = texts(desk.window.welcome)
    assert "Choose the pack for /images." in words
    for expected in (
        "For patients aged 1 to 5 years.",
        "For patients aged 18 to 95 years.",
        "lung opacity",
        "There was no external test, so the area under the ROC curve at another hospital is unknown.",
    ):
        assert expected in words
    assert "Which patients are these X-rays from?" in desk.window.toolbar.pack_chip.text()
    QTest.keyClick(desk.window, Qt.Key.Key_Escape)
    assert desk.asks == "" and desk.window.welcome.isVisible() and desk.bench.screening.state == "empty"
    assert "In use" not in texts(desk.window.welcome)
    desk.window.welcome.cards[0].button.click()
    desk.until(lambda: ["In use" in texts(card) for card in desk.window.welcome.cards] == [True, False])


@pytest.mark.parametrize("is_first", [True, False])
def test_an_empty_folder_is_reported_before_any_question_and_changes_nothing(
    desk: Desk, tmp_path: Path, is_first: bool
) -> None:
    if not is_first:
        desk.screen(answer="adults-1.0.0")
        desk.finish()
    screening, before = desk.bench.screening, desk.window.toolbar.progress_text.text()
    started = len(desk.rooms.session.started_with)
    folder = tmp_path / "card"
    (folder / "below").mkdir(parents=True)
    desk.choose(str(folder))
    desk.until_shown(f"There is no image file in {folder}")
    assert desk.asks == "" and screening.question is None and len(desk.rooms.session.started_with) == started
    assert desk.window.toolbar.progress_text.text() == before
    assert desk.window.images.isVisible() is not is_first
    (folder / "below" / "image").touch()
    desk.choose(str(folder))
    desk.until(lambda: desk.asks == "pack")


def test_a_clicked_card_answers_the_question_and_the_header_names_its_ages(desk: Desk) -> None:
    desk.rooms.lacks_ages = True
    desk.screen(answer="adults-1.0.0")
    assert desk.in_use == "adults-1.0.0"
    assert desk.rooms.session.ages_confirmed == [True]  # the card names the ages
    assert "For patients aged 18 to 95 years." in desk.window.toolbar.pack_chip.toolTip()
    assert desk.window.pages.currentWidget() is desk.window.images


def test_no_image_of_the_run_before_is_opened_for_the_answer(desk: Desk) -> None:
    desk.screen("/images/a", answer="children-1.0.0")
    desk.finish()
    desk.choose("/images/b")
    desk.until(lambda: desk.asks == "pack")
    image, opened = desk.bench.image, []
    image.changed.connect(lambda: opened.append((image.row, desk.bench.screening.state)))
    desk.answer("adults-1.0.0")
    desk.until(lambda: len(desk.rooms.session.batches) == 2)
    assert [state for row, state in opened if row is not None and state == "waiting"] == []


def test_escape_closes_the_question_and_names_the_unscreened_folder(desk: Desk, rooms: FakeRooms) -> None:
    desk.screen(answer="children-1.0.0")
    desk.finish()
    desk.choose("/other")
    desk.until(lambda: desk.asks == "pack" and desk.window.welcome.isVisible())
    QTest.keyClick(desk.window, Qt.Key.Key_Escape)
    assert desk.asks == "" and desk.window.images.isVisible()
    assert desk.bench.screening.state == "finished" and desk.bench.screening.paths == (Path("/images"),)
    desk.until_shown("Chosen, but not screened: /other")
    press(desk.window.banners, "Screen now")
    desk.until(lambda: desk.asks == "pack")
    assert len(rooms.session.batches) == 1


def test_the_remembered_pack_and_its_operating_point_are_used(desk: Desk) -> None:
    desk.rooms.remembered_packs.remember([Path("/images")], "adults", operating_point="careful")
    desk.screen()
    assert desk.rooms.session.started_with[-1][1] == "careful" and desk.in_use == "adults-1.0.0"
    assert desk.rooms.session.ages_confirmed == [False]  # DICOM images state the ages, so no question is left
    desk.finish()
    desk.choose("/other")
    desk.answer("adults-1.0.0")
    desk.until(lambda: desk.rooms.session.started_with[-1][:2] == ((Path("/other"),), None))
    desk.finish()
    desk.choose()
    desk.until(lambda: desk.rooms.session.started_with[-1][:2] == ((Path("/images"),), "careful"))
    desk.finish()
    desk.rooms.remembered_packs.remember([Path("/third")], "adults", operating_point="local:gone")
    desk.choose("/third")
    desk.until_shown("The pack has no operating point named local:gone.")
    desk.until(lambda: desk.asks == "pack")
    desk.bench.packs.choose_operating_point_by_name(POINT.name)
    desk.choose()
    desk.until(lambda: desk.rooms.session.started_with[-1][1] == POINT.name)  # a person chose this point


def test_a_default_pack_is_saved_in_the_settings_and_used_for_other_folders(desk: Desk, home: Path) -> None:
    desk.choose()
    desk.until(lambda: desk.asks == "pack")
    desk.window.welcome.default_box.setChecked(True)
    desk.answer("adults-1.0.0")
    desk.until(lambda: desk.bench.rows.total_image_count() == 1)
    desk.until(lambda: load_settings(home / "settings.json")[0]["pack"] == "adults")
    assert not (home / REMEMBERED_PACKS_FILE_NAME).exists()
    desk.finish()
    desk.choose("/other")
    desk.until(lambda: len(desk.rooms.session.batches) == 2)
    assert desk.in_use == "adults-1.0.0"


def test_the_default_can_be_withdrawn_on_the_page_of_packs(desk: Desk) -> None:
    desk.bench.set_default_pack("adults")
    desk.screen()
    desk.window.actions_by_name["packs"].trigger()
    box = desk.window.packs_page.findChild(QCheckBox)
    assert box.isChecked()
    box.setChecked(False)
    assert desk.application.settings["pack"] == ""


def test_a_folder_left_unscreened_for_another_one_is_named(desk: Desk) -> None:
    desk.rooms.lacks_ages = True
    desk.rooms.remembered_packs.remember([Path("/first"), Path("/second")], "children")
    desk.choose("/first")
    desk.dialog(QMessageBox)
    desk.choose("/second")
    desk.until_shown("not screened: /first")
    desk.choose("/second")
    assert "/second" not in desk.notices
    press(desk.dialog(QMessageBox), "Yes, all patients are of this age")
    desk.until(lambda: [paths for paths, *_ in desk.rooms.session.started_with] == [(Path("/second"),)])
    assert "not screened: /first" in desk.notices


def test_results_of_another_pack_than_the_one_in_use_are_labelled(desk: Desk) -> None:
    desk.screen(answer="children-1.0.0")
    desk.finish()
    desk.bench.packs.use_pack(desk.rooms.library.always[1])
    words = (
        "These results were made with the pack “Children 1.0.0”. To screen with the pack “Adults 1.0.0”, press Start."
    )
    desk.until(lambda: words in desk.notices)
    desk.window.actions_by_name["start"].trigger()
    desk.until(lambda: len(desk.rooms.session.batches) == 2)
    assert words not in desk.notices
    desk.until(lambda: desk.rooms.remembered_packs.find([Path("/images")]) == RememberedPack("adults"))


def test_images_that_contradict_the_pack_are_counted(desk: Desk) -> None:
    too_old = reason("age", age=40, youngest=1, oldest=5)
    unknown = replace(screened(4, 0.1), notes=(reason("age_not_stated", youngest=1, oldest=5),))
    desk.rooms.outcomes = [refused(1, too_old), refused(2, reason("body_part", body_part="HAND")), refused(3), unknown]
    desk.rooms.session.outcomes = desk.rooms.outcomes
    desk.screen(answer="children-1.0.0")
    desk.finish()
    said = "2 images do not match this pack (age or body part). For patients"
    desk.until(lambda: said in desk.notices)
    assert "1 image file has no patient age" in desk.notices


# ---- Questions before a run: each names its folder and pack, holds for them alone, and takes no key from other fields.


MEANWHILE = EDGETPU / "fieldray" / "lungs-2.0.0"


@pytest.fixture
def asked(desk: Desk) -> QMessageBox:
    """The open question about the ages of /images, for which the children's pack is remembered."""
    desk.rooms.lacks_ages = True
    desk.rooms.remembered_packs.remember([Path("/images")], "children")
    desk.choose()
    return desk.dialog(QMessageBox)


def plug_in(desk: Desk, pack_id: str = "adults", **changes: object) -> None:
    """Connect a drive with a trusted pack for other patients."""
    about = described(pack_id)
    known = {name: about[name] for name in ("pack_id", "version", "names")}
    entry = candidate(str(MEANWHILE), **{"origin": "drive", "trust": "trusted", **known, **changes})
    desk.rooms.library.models.setdefault(MEANWHILE, model(**about))
    desk.plug_in(EDGETPU, replace(entry, manifest=manifest(**about)))


def test_the_question_names_folder_pack_and_ages_and_no_key_means_yes(desk: Desk, asked: QMessageBox) -> None:
    words = asked.text() + asked.informativeText()
    assert all(part in words for part in ("aged 1 to 5 years", "/images", "Children 1.0.0"))
    assert desk.window.toolbar.progress_text.text() == "Waiting: confirm the patients' ages"
    assert asked.defaultButton() is asked.escapeButton()
    assert asked.defaultButton().text() == "Use another pack"
    asked.defaultButton().click()
    desk.until(lambda: desk.asks == "pack")
    assert desk.rooms.session.started_with == []
    assert not isinstance(QApplication.focusWidget(), type(desk.window.welcome.cards[0].button))


def test_the_question_for_the_next_folder_is_shown_from_its_top(desk: Desk) -> None:
    desk.window.resize(desk.window.minimumSizeHint())
    bar = desk.window.welcome.findChild(QScrollArea).verticalScrollBar()
    desk.choose()
    desk.until(lambda: desk.asks == "pack" and bar.maximum() > 0)
    bar.setValue(bar.maximum())
    desk.choose("/other")
    desk.until(lambda: "Choose the pack for /other." in texts(desk.window.welcome) and desk.asks == "pack")
    desk.until(lambda: bar.value() == 0)


def test_a_pack_that_comes_while_the_ages_are_asked_closes_the_question(desk: Desk, asked: QMessageBox) -> None:
    screening = desk.bench.screening
    before = screening.question
    plug_in(desk)
    desk.until_shown("A pack was found on a drive")
    press(desk.window.banners, "Use this pack")
    desk.until(lambda: desk.asks == "pack" and not dialogs(desk.window, QMessageBox))
    desk.until_shown("before you answered the question about /images.")
    screening.answer(before, True)
    assert desk.rooms.session.started_with == []
    desk.answer("children-1.0.0")
    desk.until(lambda: desk.rooms.session.ages_confirmed == [True])
    assert desk.in_use == "children-1.0.0"
    desk.until(lambda: "before you answered the question about" not in desk.notices)


def open_stored_run(desk: Desk, folder: str) -> None:
    """Store a run over this folder and open it from the history."""
    spec = run_spec(paths=(folder,), pack_name="children-1.0.0")
    desk.bench.past_runs.open(keep(desk.rooms.database, [screened(1, 0.9)], spec=spec))


def test_start_on_a_run_of_the_past_screens_and_remembers_its_own_folder(desk: Desk, rooms: FakeRooms) -> None:
    desk.screen("/opened/before", answer="adults-1.0.0")
    desk.finish()
    desk.until(lambda: desk.rooms.remembered_packs.find([Path("/opened/before")]))
    rooms.lacks_ages = True
    open_stored_run(desk, "/of/the/past")
    desk.until(lambda: desk.bench.screening.past_run is not None)
    desk.until(lambda: desk.bench.rows.total_image_count() == 1)
    desk.window.actions_by_name["start"].trigger()
    box = desk.dialog(QMessageBox)
    assert "/of/the/past (1 in the list)" in box.informativeText() and "Adults" in box.informativeText()
    press(box, "I do not know")
    desk.until(lambda: len(rooms.session.started_with) == 2)
    assert rooms.session.started_with[-1][0] == (Path("/of/the/past"),)
    assert rooms.session.ages_confirmed[-1] is False
    both = Path("/of/the/past"), Path("/opened/before")
    desk.until(lambda: rooms.remembered_packs.find(both) == RememberedPack("adults"))


def test_a_run_of_the_past_closes_the_question_about_another_folder(desk: Desk, asked: QMessageBox) -> None:
    open_stored_run(desk, "/of/the/past")
    desk.until(lambda: not dialogs(desk.window, QMessageBox) and desk.asks == "")
    desk.until_shown("Chosen, but not screened: /images")


def test_no_question_takes_the_keys_while_somebody_types(desk: Desk) -> None:
    desk.screen("/first", answer="children-1.0.0")
    desk.rooms.lacks_ages = True
    desk.rooms.remembered_packs.remember([Path("/second")], "children")
    desk.choose("/second")  # this folder waits until the run is over
    desk.activate()
    search = desk.window.work_list.filter_bar.search
    search.setFocus()
    finish_and_wait = "Screening waits for your answer to a question."
    desk.rooms.publish(RunChanged(run_id=1, state="finished"))
    desk.until(lambda: finish_and_wait in desk.notices)
    for key in (Qt.Key.Key_Space, Qt.Key.Key_Y):
        QTest.keyClick(QApplication.focusWidget(), key)
    assert (QApplication.focusWidget(), dialogs(desk.window, QMessageBox), desk.asks) == (search, [], "ages")
    QTest.keyClick(search, Qt.Key.Key_Return)  # the search was finished
    box = desk.dialog(QMessageBox)
    desk.until(lambda: finish_and_wait not in desk.notices)
    QTest.keyClick(box, Qt.Key.Key_Return)
    desk.until(lambda: desk.asks == "pack")
    assert len(desk.rooms.session.started_with) == 1


def test_a_folder_dropped_while_somebody_types_returns_the_focus_to_the_list(desk: Desk) -> None:
    desk.screen("/first", answer="children-1.0.0")
    desk.activate()
    desk.window.work_list.filter_bar.search.setFocus()
    desk.window._choose([Path("/second")])  # this folder waits until the run is over
    assert QApplication.focusWidget() is desk.window.work_list.table


def test_an_open_question_is_shown_again_when_the_language_changes(desk: Desk, asked: QMessageBox) -> None:
    desk.application.change_settings({"language": "uk"})
    box = desk.dialog(QMessageBox)
    assert "Чи всі пацієнти віком від 1 до 5 років?" in box.text() and "Знімки: /images" in box.informativeText()
    press(box, "Так, усі пацієнти цього віку")
    desk.until(lambda: desk.rooms.session.ages_confirmed == [True])


def test_the_question_about_a_key_names_the_pack_that_is_there_now(desk: Desk) -> None:
    packs, other = desk.bench.packs, group_fingerprint_digits("ab" * 32)
    plug_in(desk, trust="unknown_key", problem=reason("pack_legacy"))
    entry = desk.rooms.library.on_drives[EDGETPU][0]
    desk.rooms.library.problems[MEANWHILE] = PackNotTrusted(entry.fingerprint)
    desk.until(lambda: entry in packs.candidates)
    packs.use_pack(entry)
    question = desk.dialog(PackDialog)
    desk.rooms.library.problems[MEANWHILE] = PackNotTrusted(other)  # the drive was changed meanwhile
    desk.rooms.library.on_drives[EDGETPU] = [replace(entry, fingerprint=other)]
    question.yes_button.click()
    desk.until_shown("The key is trusted now")
    press(desk.window.banners, "Use this pack")
    desk.until_shown("replaced by another pack")
    assert packs.question is None and desk.in_use == ""
    assert desk.rooms.library.trusted == [entry.fingerprint]


def test_a_pack_replaced_since_it_was_listed_is_not_used(desk: Desk) -> None:
    desk.rooms.library.models[CHILDREN] = model("builtin", **described("adults"))
    desk.choose()
    desk.answer("children-1.0.0")
    desk.until_shown("replaced by another pack")
    desk.until(lambda: desk.asks == "pack")
    assert desk.in_use == "" and desk.rooms.session.started_with == []


def test_an_answer_about_a_prior_image_is_for_the_image_that_was_open(desk: Desk, rooms: FakeRooms) -> None:
    rooms.outcomes += [screened(2, 0.1)]
    desk.screen(answer="adults-1.0.0")
    desk.open_row(1)
    comparing = desk.bench.comparing
    other = replace(screened(7, 0.5), ref=image_ref(7, path=Path("/other/image-00007.dcm")))
    rooms.priors.files[other.ref.path] = other
    assert prior_from(other, rooms.outcomes[0], "file").patient_match == "other"
    comparing.compare_with_file(other.ref.path)
    desk.until(lambda: bool(dialogs(desk.window, QMessageBox)))
    question = comparing.question
    desk.open_row(2)
    desk.until(lambda: not dialogs(desk.window, QMessageBox))
    desk.until_shown("so the question about the prior image was closed")
    comparing.answer_other_patient_question(question, is_confirmed=True)
    assert comparing.prior is None and not comparing.priors

"""Texts from outside anywhere in the window: none is markup, opens a file, or looks like a text of the program."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from desk import Desk, all_widget_texts
from fake_rooms import POINT, SPEC, FakeRooms, candidate, image_ref, model, screened
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtGui import Qt as Rich
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QLabel,
    QMessageBox,
    QPlainTextEdit,
    QTableWidget,
    QToolTip,
    QWidget,
)
from test_keyboard import dialogs as each_dialog

import fieldray.desktop
from fieldray.desktop.audit_page import LocalOperatingPointDialog
from fieldray.desktop.widgets import PlainButton, plain_tooltip_text
from fieldray.domain.finding import FailedOutcome, Outcome, RefusedOutcome, ScreenedOutcome
from fieldray.domain.image import ImageHeader, ImageRef
from fieldray.domain.model import Label, OperatingPoint
from fieldray.domain.run import BackendChanged, DeviceChanged, DrivesChanged, RunChanged, Verdict
from fieldray.errors import UsageProblem
from fieldray.reasons import Reason
from fieldray.settings import Settings
from fieldray.store.results import ResultStore
from fieldray.translation import Translator
from hostile import BREAKS, FORGED_LINE, REORDERS, STEERS, UNSEEN, forbidden_in, markup
from stores import keep

DESKTOP = Path(fieldray.desktop.__path__[0])
FORGED = FORGED_LINE.split("\n")[1]
HEADER_TEXTS = (
    "modality", "body_part_examined", "view_position", "image_laterality", "photometric_interpretation",
    "transfer_syntax_uid", "sop_class_uid", "sop_instance_uid", "series_instance_uid", "study_instance_uid",
    "study_date", "study_description", "patient_name", "patient_id", "patient_sex", "manufacturer",
)  # fmt: skip


@pytest.fixture
def text(picture: Path) -> str:
    """One text with every hostile trick; its first line is markup."""
    return markup(picture) + REORDERS + STEERS + UNSEEN + BREAKS + "\n" + FORGED


def hostile_reason(text: str) -> Reason:
    """A reason as another process or a store could send it, not cleaned by `reasons.reason`."""
    return Reason("modality", (("modality", text),))


def hostile_ref(number: int, text: str) -> ImageRef:
    header = replace(image_ref(number).header, **dict.fromkeys(HEADER_TEXTS, text))
    return image_ref(number, header=header, path=Path(f"/images/{text.replace('/', ' ')}-{number}.dcm"))


def hostile_outcomes(text: str) -> list[Outcome]:
    ref, why = hostile_ref(1, text), hostile_reason(text)
    point = hostile_point(text)
    finding = replace(screened(1, 0.9).findings[0], label=text, point=point)
    seen = replace(screened(1, 0.9), ref=ref, pack_name=text, class_maps=None, backend=text, findings=(finding,))
    nameless = replace(ref, header=ImageHeader(), problem=why, kind="unknown", zip_member=text)
    return [
        seen,
        RefusedOutcome(ref=hostile_ref(2, text), reason=why),
        FailedOutcome(ref=nameless, stage="decode", reason=why),
    ]


def hostile_point(text: str) -> OperatingPoint:
    return replace(POINT, name=text, label=text, titles={"en": text, "uk": text}, measured_on={"en": text, "uk": text})


def hostile_manifest(text: str) -> dict[str, object]:
    texts = {"en": text, "uk": text}
    long = dict.fromkeys(texts, text.partition("\n")[0])  # a long text may have several lines
    return {
        "pack_id": text,
        "version": text,
        "names": texts,
        "descriptions": long,
        "intended_use": long,
        "limits": long,
        "labels": (Label(code=text, scheme=text, meaning=texts),),
        "operating_points": (hostile_point(text), replace(hostile_point(text), name="other")),
    }


@pytest.fixture
def rooms(text: str) -> FakeRooms:
    """Fake services in which every text is hostile."""
    made, texts = FakeRooms(), {"en": text, "uk": text}
    made.outcomes = hostile_outcomes(text)
    made.stored = {1: Verdict(choice="agree", note=text)}
    made.audit.text = text
    for place, trust in (("/a", "builtin"), ("/b", "broken"), ("/c", "unknown_key")):
        folder = f"{place}/{text}"
        why = None if trust == "builtin" else hostile_reason(text)
        entry = candidate(folder, pack_id=text, version=text, names=texts, trust=trust, problem=why)
        made.library.models[Path(folder)] = model("signed", **hostile_manifest(text))
        made.library.always = [*made.library.always[:0], *made.library.always, entry]
    made.library.always = made.library.always[1:]
    return made


@pytest.fixture(params=["en", "uk"])
def settings(request: pytest.FixtureRequest, text: str) -> Settings:
    return Settings({"language": request.param, "theme": "light", "pack": text})


def assert_plain(text: str) -> int:
    """Check every existing widget; returns how many of their texts hold the hostile one."""
    met = 0
    for where, said in all_widget_texts():
        own = said.replace(os.sep + "\u200b", os.sep)  # a path may be broken at these characters
        own = own.replace("\t", " ", int(where.startswith("text of a command")))  # the command's key follows the text
        assert forbidden_in(own.replace("\n", "")) == set(), where
        assert not any(line.startswith(FORGED[:20]) for line in own.split("\n")), where
        if where.startswith(("toolTip", "whatsThis", "statusTip")) and Rich.mightBeRichText(own):
            assert set(re.findall(r"<\s*/?\s*(\w+)", own)) <= {"p", "br"}, where
        met += "img src" in own
    for widget in QApplication.allWidgets():
        if isinstance(widget, QLabel) and widget.text() and widget.objectName() != "qtooltip_label":
            assert widget.textFormat() == Qt.TextFormat.PlainText, widget.text()
        if isinstance(widget, QAbstractButton):
            assert widget.shortcut().isEmpty(), widget.text()
        assert not isinstance(widget, QMessageBox) or widget.textFormat() == Qt.TextFormat.PlainText
    return met


def show_tips(desk: Desk) -> None:
    """Rest the pointer on every cell of the list and on every widget with a tool tip."""
    table = desk.window.work_list.table
    for row in range(table.model().rowCount()):
        for column in range(table.model().columnCount()):
            at = table.visualRect(table.model().index(row, column)).center()
            rest(table.viewport(), at)
    for widget in desk.window.findChildren(QWidget):
        if widget.isVisible() and widget.toolTip():
            rest(widget, widget.rect().center())
    QToolTip.hideText()


def rest(widget: QWidget, at: QPoint) -> None:
    QApplication.sendEvent(widget, QHelpEvent(QEvent.Type.ToolTip, at, widget.mapToGlobal(at)))
    for tip in QApplication.topLevelWidgets():
        if tip.objectName() == "qtooltip_label" and tip.isVisible():
            tip.grab()


def dialogs(desk: Desk, text: str) -> Iterator[QWidget]:
    """Each kind of dialog, shown."""
    yield from each_dialog(desk, Translator("uk"), text)
    desk.rooms.publish(RunChanged(run_id=1, state="running"))
    desk.until(lambda: desk.bench.screening.is_busy)
    desk.window.close()
    yield desk.dialog(QMessageBox)
    desk.rooms.publish(RunChanged(run_id=1, state="finished"))


def post_notices(desk: Desk, text: str) -> None:
    """Post every kind of event and notice that the window can get."""
    why, bench = hostile_reason(text), desk.bench
    desk.rooms.publish(BackendChanged(backend="cpu", state="ready", is_in_use=True, detail=text))
    desk.rooms.publish(BackendChanged(backend="edgetpu", state="ready", is_in_use=False, detail=text))
    desk.rooms.publish(BackendChanged(backend="edgetpu", state="unavailable", is_in_use=False, detail=text, reason=why))
    desk.rooms.publish(DeviceChanged(backend="edgetpu", state="unusable", reason=why, notes=(why,)))
    desk.rooms.publish(DrivesChanged(drives={Path(f"/media/{text}"): (Path(text),)}))
    desk.rooms.publish(RunChanged(run_id=1, state="failed", reason=why))
    bench.start_export(Path("/out") / text)
    kinds = {"failed", "edgetpu", "lost", "export"}
    desk.until(lambda: kinds <= {notice.key.partition(" ")[0] for notice in bench.notice_board.notices})


@pytest.mark.usefixtures("untouched")
def test_no_text_from_outside_is_markup_anywhere(desk: Desk, text: str) -> None:
    assert assert_plain(text) >= 3  # the start page's title and text, and the pack in the header
    desk.window.grab()
    desk.screen(f"/images/{text}")
    post_notices(desk, text)
    for row_id in (1, 2, 3):
        desk.open_row(row_id)
        assert assert_plain(text) > 10
        desk.window.grab()
    show_tips(desk)
    desk.window.actions_by_name["packs"].trigger()
    desk.window.grab()
    assert assert_plain(text) > 20
    show_tips(desk)
    for dialog in dialogs(desk, text):
        dialog.grab()
        assert_plain(text)
        dialog.close()


def test_ampersands_in_names_stay_visible_and_make_no_shortcut(qapp: QApplication) -> None:
    button = PlainButton("Smith & Sons &Start", "a\nb")
    assert button.text() == "Smith && Sons &&Start\na\\nb"
    assert button.shortcut().isEmpty()


def test_a_tool_tip_shows_markup_literally(qapp: QApplication) -> None:
    assert (
        plain_tooltip_text("Image 1", "<b>x</b>") == "Image 1\n<b>x</b>"
    )  # Qt looks for markup in the first line alone
    assert plain_tooltip_text("<b>1 & 2</b>", "x\ny") == "<p>&lt;b&gt;1 &amp; 2&lt;/b&gt;<br>\nx\\ny</p>"


def test_only_the_widgets_module_makes_widgets_that_could_render_markup() -> None:
    """Widgets that could take a text for markup or mnemonics are created in `widgets` alone."""
    made_there = {
        "QLabel", "QPushButton", "QComboBox", "QMessageBox", "QTextBrowser", "QTextEdit", "QTextDocument", "QToolTip",
        "QErrorMessage", "QWhatsThis", "QStaticText", "setToolTip", "setWhatsThis", "setStatusTip", "setHtml",
        "setMarkdown", "setTextFormat", "QInputDialog", "QGroupBox", "QTabWidget", "QRadioButton", "showMessage",
    }  # fmt: skip
    calls = [
        f"{path.name}:{node.lineno} {name}"
        for path in sorted(DESKTOP.glob("*.py"))
        if path.name != "widgets.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (name := getattr(node.func, "attr", None) or getattr(node.func, "id", "")) in made_there
    ]
    assert calls == []


def test_a_note_is_edited_as_it_was_written(desk: Desk, text: str) -> None:
    """The store gets the note unescaped; input fields do not render markup."""
    desk.screen()
    desk.open_row(1)
    note = desk.window.result_panel.verdict.note
    desk.until(lambda: "img src" in note.text())
    desk.bench.judging.give_verdict("disagree")
    desk.until(lambda: desk.rooms.session.verdicts != {})
    assert desk.rooms.session.verdicts[1].note.startswith(text.partition("\n")[0][:80])
    editors = [found for found in QApplication.allWidgets() if hasattr(found, "document")]
    assert all(isinstance(found, QPlainTextEdit) for found in editors)


# ---- the audit and the history


LONG = "W" * 5000


@pytest.fixture
def two_runs(rooms: FakeRooms, tmp_path: Path, text: str) -> None:
    """Two runs whose packs, folders and devices have hostile names."""
    rooms.database = tmp_path / "store" / "results.sqlite"
    pack = replace(SPEC.packs[0], pack_name=text, operating_points=(hostile_point(text),))
    spec = replace(SPEC, paths=(f"/images/{text}", f"/{LONG}"), packs=(pack,))
    other = replace(pack, pack_name=LONG + text, model_sha256="a" * 64)
    for number, one in enumerate((spec, replace(spec, packs=(other,))), 8):
        keep(rooms.database, [*hostile_outcomes(text), screened(number, 0.9)], spec=one)
    with ResultStore(rooms.database) as opened:
        seen = hostile_outcomes(text)[0]
        assert isinstance(seen, ScreenedOutcome)
        opened.set_verdict(1, Verdict(choice="disagree", note=text), judged=seen)


@pytest.mark.usefixtures("untouched")
def test_nothing_is_markup_in_an_audit(desk: Desk, text: str) -> None:
    desk.screen()
    desk.rooms.publish(RunChanged(run_id=desk.rooms.session.batches[0].run_id, state="finished"))
    auditing, page = desk.bench.auditing, desk.window.audit_page
    desk.until(lambda: auditing.can_audit)
    before = assert_plain(text)
    desk.window.actions_by_name["audit"].trigger()
    page.select_label_table(Path(f"/labels/{text.replace('/', ' ')}.csv"))
    page.button.click()
    desk.until(lambda: auditing.report is not None)
    assert assert_plain(text) > before
    page.widget().grab()
    auditing.save_report(auditing.report, Path("/out") / text, language="en")
    desk.until(lambda: any(notice.key == "export" for notice in desk.bench.notice_board.notices))
    page.take_button.click()
    (dialog,) = (found for found in QApplication.topLevelWidgets() if isinstance(found, LocalOperatingPointDialog))
    assert_plain(text)
    dialog.close()
    desk.rooms.audit.problem = UsageProblem(hostile_reason(text))
    page.button.click()
    desk.until(lambda: auditing.problem is not None)
    assert_plain(text)


@pytest.mark.usefixtures("untouched", "two_runs")
def test_nothing_is_markup_in_the_history(desk: Desk, text: str) -> None:
    desk.until(lambda: desk.bench.past_runs.can_begin)
    before = assert_plain(text)
    desk.window.actions_by_name["history"].trigger()
    page, runs = desk.window.history_page, desk.bench.past_runs
    desk.until(lambda: page.table.rowCount() == 2)
    assert (listed := assert_plain(text)) >= before + 4
    page.search.setText(text)
    assert_plain(text)
    page.search.setText("")
    runs.compare(1, 2)
    desk.until(lambda: page.comparison is not None)
    assert assert_plain(text) > listed
    page.widget().grab()
    for table in (page.table, *page.comparison.findChildren(QTableWidget)):
        table.grab()
    runs.plan_deletion([1])
    desk.until(lambda: any(isinstance(found, QMessageBox) for found in QApplication.topLevelWidgets()))
    assert_plain(text)
    for box in (found for found in QApplication.topLevelWidgets() if isinstance(found, QMessageBox)):
        box.close()
    runs.open(1)
    desk.until(lambda: desk.bench.screening.run_id == 1)
    for row_id in (1, 2, 3):
        desk.open_row(row_id)
        assert_plain(text)
    desk.window.grab()

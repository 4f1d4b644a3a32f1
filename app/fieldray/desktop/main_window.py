"""The main window, which connects the pages with the commands. A new window may replace the window at any time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, get_args

from PySide6.QtCore import QEvent, QPoint, Qt, QUrl, Signal
from PySide6.QtGui import QAction, QCloseEvent, QDragEnterEvent, QDropEvent, QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QFileDialog,
    QLineEdit,
    QMainWindow,
    QMenu,
    QSplitter,
    QStackedWidget,
    QWidget,
)

from fieldray.desktop.audit_page import AuditPage
from fieldray.desktop.controller import Controller
from fieldray.desktop.dialogs import AboutDialog, DocumentDialog, ExportDialog, SettingsDialog, guide_dialog
from fieldray.desktop.history_page import HistoryPage
from fieldray.desktop.image_area import ImageArea, ImageToolButtons, copy_picture, print_picture
from fieldray.desktop.image_painting import LEFT_BUTTON_TOOLS
from fieldray.desktop.intent import IntentQuestion
from fieldray.desktop.keys import HeldKeys, KeyGroup, KeyListDialog, enable_image_actions, group_title, make_actions
from fieldray.desktop.notices import BannerArea, NoticeAction
from fieldray.desktop.pack_choice import PackQuestion
from fieldray.desktop.packs_page import PackDialog, PacksPage
from fieldray.desktop.prior_card import ComparisonInfoBar, PriorImageCard, prior_question_box
from fieldray.desktop.result_panel import ResultPanel
from fieldray.desktop.status_page import StatusPage
from fieldray.desktop.style import Theme
from fieldray.desktop.toolbar import StatusBar, Toolbar
from fieldray.desktop.verdict_controller import close_when_saved
from fieldray.desktop.welcome import WelcomePage, ages_question_box
from fieldray.desktop.widgets import (
    ask_for_paths,
    column_layout,
    connect_button,
    in_scroll_area,
    is_input_in_progress,
    question_box,
)
from fieldray.desktop.worklist import MIN_LIST_WIDTH, MIN_LIST_WIDTH_NARROW_WINDOW, WorkList
from fieldray.domain.prior_image import PriorImage
from fieldray.domain.run import VerdictChoice
from fieldray.packs.cards import split_card_by_language
from fieldray.reasons import reason
from fieldray.translation import Translator

# Commands of the key table in the image's menu, in groups. Rarely used commands are in submenus with a title.
_MENU: Final = (
    ("heat_map", "lung_outline", "network_view"),
    ("invert", "fit", "full_screen"),
    ("prior", "keep_image"),
    ("copy",),
)
_SUBMENUS: Final[Mapping[KeyGroup, tuple[str, ...]]] = {
    "tools": (*(f"tool_{tool}" for tool in LEFT_BUTTON_TOOLS), "magnifier", *(f"preset_{n}" for n in range(1, 6))),
    "view": ("rotate_left", "rotate_right", "flip_left_right", "flip_top_bottom", "link", "reset", "undo", "print"),
    "compare": ("prior_side_by_side", "prior_swipe", "prior_blink", "prior_difference", "prior_mesh"),
}


class MainWindow(QMainWindow):
    """The main window: toolbar, then welcome page, images or another page, and at the bottom notices and status bar.

    A new notice never moves a button that is under the mouse pointer.
    """

    settings_changed = Signal(dict)
    close_confirmed = Signal()

    def __init__(self, controller: Controller, translator: Translator, theme: Theme) -> None:
        super().__init__()
        self._held_keys = HeldKeys()
        self._bench, self._translator = controller, translator
        self._asked: PackQuestion | PriorImage | IntentQuestion | None = None
        self._box: QDialog | None = None
        self._may_close = self._gave_room = False
        self._list_width = 0  # width of the list before it was hidden
        self.setWindowTitle("Fieldray")
        self.setAcceptDrops(True)
        self.setMinimumSize(640, 360)
        self.work_list = WorkList(controller.rows, next(iter(controller.image.packs), None), translator, theme)
        self.area = ImageArea(controller.comparing, controller.switches, translator, theme)
        self.viewer = self.area.viewer
        self.prior_card = PriorImageCard(controller, translator, theme, self)
        self.result_panel = ResultPanel(controller, self.prior_card, translator, theme)
        reading = (self.work_list.table, *self.area.viewers)
        self.actions_by_name = make_actions(self._commands(), translator, window=self, reading_widgets=reading)
        self.actions_by_name["about"] = about = QAction(translator.text("About Fieldray"), self)
        about.triggered.connect(lambda: AboutDialog(translator, self).open())
        self.toolbar = Toolbar(controller, self.actions_by_name, translator, theme, self._choose)
        self.banners = BannerArea(controller.notice_board, translator, theme)
        self.packs_page = PacksPage(controller, translator, theme)
        self.audit_page = AuditPage(controller.auditing, translator, theme)
        self.history_page = HistoryPage(controller.past_runs, translator, theme)
        self.status_page = StatusPage(controller, translator, theme)
        self.welcome = WelcomePage(controller, self.actions_by_name, translator, theme)
        self.tools = ImageToolButtons(self.area, self.actions_by_name, theme)
        self.prior_bar = ComparisonInfoBar(
            controller.comparing, self.area.prior_view, self.actions_by_name, translator, theme
        )
        connect_button(self.work_list.filter_bar.next_unread, self.actions_by_name["next_unread"])
        connect_button(self.work_list.filter_bar.by_patient, self.actions_by_name["by_patient"])
        self._lay_out()
        self.setStatusBar(StatusBar(controller, translator))
        self._connect()
        self._give_room()
        self._show_images_or_welcome()

    # ---- building

    def _lay_out(self) -> None:
        self._image = image = QWidget()
        column_layout(image, self.tools, self.prior_bar, (self.area, 1), spacing=0)
        self.panes = QSplitter(Qt.Orientation.Horizontal)
        self.panes.setChildrenCollapsible(False)
        self.panes.setHandleWidth(6)
        for widget, stretch in ((self.work_list, 3), (image, 6), (self.result_panel, 2)):
            self.panes.addWidget(widget)
            self.panes.setStretchFactor(self.panes.count() - 1, stretch)
        self.panes.setSizes([340, 688, 322])  # of 1366 pixels: half for the image, and no word of the result is cut
        self.pages = QStackedWidget()
        self.images = in_scroll_area(self.panes)  # scrolls if list, image and result do not fit
        self.images.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.pages.currentChanged.connect(self._allow_keys)
        pages = self.packs_page, self.audit_page, self.history_page, self.status_page
        for page in (self.welcome, self.images, *pages):
            self.pages.addWidget(page)
        middle = QWidget()
        column_layout(middle, self.toolbar, (self.pages, 1), self.banners, spacing=0)
        self.setCentralWidget(middle)

    def _connect(self) -> None:
        """Connect the signals of the controller to this window.

        Signals are connected to methods only, because the controller outlives this window. Qt disconnects the methods
        of a closed window.
        """
        bench = self._bench
        self.work_list.row_chosen.connect(self._leave_note)
        self.work_list.row_chosen.connect(bench.image.show)
        self.work_list.table.clicked.connect(self._open_replacing)
        self.work_list.filter_bar.search.returnPressed.connect(self._focus_list)
        for box in (self.work_list.filter_bar.verdicts, self.work_list.filter_bar.devices):
            box.activated.connect(self._focus_list)
        self.result_panel.verdict.note_finished.connect(self._focus_list)
        for viewer in self.area.viewers:
            viewer.image_step_requested.connect(self.work_list.move_selection)
            viewer.menu_requested.connect(self._show_menu)
            viewer.full_screen_requested.connect(self._toggle_full_screen)
        for turned in (self.work_list.row_chosen, self.pages.currentChanged):
            turned.connect(lambda _: bench.notice_board.withdraw("copied"))
        bench.switches.changed.connect(self._show_names)
        bench.comparing.changed.connect(self._give_room)
        # The result may need another width now, or a second image was opened.
        for news in (bench.image.changed, bench.comparing.changed, self.area.view_count_or_link_changed):
            news.connect(self._fit_image)
        for page in (self.packs_page, self.audit_page, self.history_page, self.status_page):
            page.back_clicked.connect(self._show_images_or_welcome)
        self.audit_page.image_requested.connect(self._show_row)
        self.history_page.export_requested.connect(self._export)
        bench.past_runs.opened.connect(self._show_row)
        self.prior_card.prior_file_requested.connect(self._choose_prior)
        for room in (bench.packs, bench.comparing, bench.screening):
            room.question_changed.connect(self._ask)
        focus_changed = QApplication.instance().focusChanged  # type: ignore[union-attr]
        focus_changed.connect(self._ask, Qt.ConnectionType.QueuedConnection)
        focus_changed.connect(self._allow_keys, Qt.ConnectionType.QueuedConnection)
        bench.packs.model_card_read.connect(self._show_card)
        self.result_panel.model_card_requested.connect(self._show_card_of_run)
        bench.screening.run_started.connect(self._show_images_or_welcome)
        bench.rows.all_images_deleted.connect(self._leave_deleted_run)

    def _commands(self) -> dict[str, Callable[[], None]]:
        """Return the function of each command in the key table, by the name of the command."""
        rows, run, text = self.work_list, self._bench.screening, self._translator.text
        return {
            "next_image": lambda: rows.move_selection(1),
            "previous_image": lambda: rows.move_selection(-1),
            "next_study": lambda: rows.select_next_study(1),
            "previous_study": lambda: rows.select_next_study(-1),
            "next_unread": lambda: self._bench.rows.find_unread_image(rows.table.currentIndex().row()),
            "unread": self._bench.read_marks.toggle,
            "first_image": lambda: rows.select_first_or_last(is_last=False),
            "last_image": lambda: rows.select_first_or_last(is_last=True),
            "search": rows.filter_bar.search.setFocus,
            **self.area.commands(),
            "prior_file": self._choose_prior,
            "full_screen": self._toggle_full_screen,
            "panels": lambda: self._show_panels(self.work_list.isHidden()),
            "open_folder": partial(self._open, text("Open a folder"), QFileDialog.FileMode.Directory),
            "open_files": partial(self._open, text("Open files"), QFileDialog.FileMode.ExistingFiles),
            "watch": partial(self._open, text("Watch a folder"), QFileDialog.FileMode.Directory, watches=True),
            "start": self._bench.start_run,
            "pause": run.pause_or_resume,
            "stop": run.stop,
            "packs": lambda: self._toggle(self.packs_page),
            "audit": lambda: self._toggle(self.audit_page),
            "history": lambda: self._toggle(self.history_page),
            "status": lambda: self._toggle(self.status_page),
            "settings": self._open_settings,
            "copy": lambda: copy_picture(self.area.active_viewer, self._translator, self._bench.notice_board),
            "print": lambda: print_picture(self.area.active_viewer, self._translator),
            "export": self._export,
            **{
                choice: partial(self._judge, partial(self._bench.judging.give_verdict, choice))
                for choice in get_args(VerdictChoice)
            },
            "withdraw": partial(self._judge, self._bench.judging.withdraw_verdict),
            "undo": self._undo,
            "cancel": self._cancel,
            "guide": lambda: guide_dialog(self._translator, self).open(),
            "keys": lambda: KeyListDialog(self._translator, self).open(),
        }

    # ---- commands

    def _judge(self, say: Callable[[], None]) -> None:
        """Give a verdict after a key press.

        Ignored while the search field has the focus, because the shown image is only the first match.

        say  function that gives the verdict
        """
        if self.work_list.filter_bar.search.hasFocus():
            self._bench.notice_board.post_reason("verdict_not_given", reason("not_judged_searching"), level="warning")
        else:
            say()

    def _undo(self) -> None:
        """Undo the last change: of the view, or of a verdict. The image of the verdict is then shown."""
        viewer, judging = self.area.active_viewer, self._bench.judging
        if viewer.can_undo and viewer.changed_s > judging.given_s:
            viewer.undo()
        elif judged := judging.undo():
            row_id = self._bench.rows.listed_row_id_of_result(judged.result_id)
            if row_id is not None:
                self.work_list.select_image(row_id, may_show_all=True)
        else:
            viewer.undo()

    def _open_replacing(self) -> None:
        if self._bench.image.is_result_replaced:
            self._bench.show_newer_result_of_image()

    def _open(self, title: str, mode: QFileDialog.FileMode, *, watches: bool = False) -> None:
        folders = self._bench.settings.recent_folders
        at = str(Path(folders[0]).parent) if folders else ""
        choose = partial(self._choose, watches=watches)
        ask_for_paths(self, title, mode, choose, self._translator, start_folder=at)

    def _choose(self, paths: Sequence[Path], *, watches: bool = False) -> None:
        """Screen or watch the chosen paths. A typed note on the current image is saved first.

        watches  whether new images in the folders are screened, too
        """
        if isinstance(self.focusWidget(), QLineEdit):
            (self._reading if self.images.isVisible() else self).setFocus()
        self._bench.screening.screen_paths(paths, watches=watches)

    def _choose_prior(self) -> None:
        if self._bench.image.row is not None:
            title, mode = self._translator.text("Choose the file of a prior image"), QFileDialog.FileMode.ExistingFile
            choose = self._bench.comparing.compare_with_file
            ask_for_paths(self, title, mode, lambda paths: choose(*paths), self._translator)

    def _export(self, run_id: int | None = None) -> None:
        """Ask for formats and a folder, and export a run.

        run_id  the run to export; None for the run that the window shows at the moment of the call
        """
        meant = run_id or self._bench.screening.run_id
        dialog, mode = ExportDialog(self._translator, self), QFileDialog.FileMode.Directory
        title = self._translator.text("Save the results to a folder")

        def export(paths: Sequence[Path]) -> None:
            options = dialog.export_options(reader=str(self._bench.settings["reader"]))
            self._bench.start_export(paths[0], dialog.ticked_formats(), options, run_id=meant)

        dialog.accepted.connect(lambda: ask_for_paths(self, title, mode, export, self._translator))
        dialog.open()

    def _open_settings(self) -> None:
        dialog = SettingsDialog(self._bench.settings, self._translator, self)
        dialog.accepted.connect(lambda: self.settings_changed.emit(dialog.changed_settings()))
        dialog.accepted.connect(self.result_panel.verdict.refresh)  # the verdict bar names the reader
        dialog.open()

    def _show_card(self, card: str) -> None:
        text = self._translator.pack_text(split_card_by_language(card))
        DocumentDialog(self._translator.text("Model card"), text, self._translator, self).open()

    def _show_card_of_run(self) -> None:
        """Show the model card of the pack whose result is visible."""
        row, models = self._bench.image.row, self._bench.screening.run_models
        if model := next((model for model in models if model and row and model.manifest is row.manifest), None):
            self._show_card(model.card)

    def _ask(self) -> None:
        """Show the open question, or hide a question that is no longer open.

        A new question waits while a person types.
        """
        bench, before = self._bench, self._asked
        question = bench.packs.question or bench.comparing.question or bench.screening.question
        if question is before or not self.isVisible():
            return
        if self._box is not None:
            self._box.hide()
            self._box.deleteLater()
        self._asked = self._box = None
        if question is not None and is_input_in_progress():
            action = NoticeAction(
                lambda t: t.text("Answer the question…"), self.setFocus, keeps_notice_until_click=True
            )
            bench.notice_board.post_reason("asked", reason("question_waits"), level="info", action=action)
            return
        bench.notice_board.withdraw("asked")
        self._asked = question
        if isinstance(question or before, IntentQuestion):
            self._show_images_or_welcome()
        match question:
            case PackQuestion():
                self._box = PackDialog(question, bench.packs, self._translator, self)
            case PriorImage():
                self._box = prior_question_box(self, question, bench.comparing, self._translator)
            case IntentQuestion(kind="pack"):
                self.welcome.scroll_to_top()
            case IntentQuestion(kind="ages"):
                self._box = ages_question_box(self, question, bench.screening, self._translator)
        if self._box is not None:
            self._box.open()

    def changeEvent(self, event: QEvent) -> None:
        """Read the work list again when this window becomes active, because another window may have changed results."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.ActivationChange and self.isActiveWindow():
            self._bench.refresh_all()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.toolbar.fit_buttons_to_width()
        self.banners.refresh()
        self._fit_image()

    def _fit_image(self) -> None:
        """Reserve half of the window for the image, if list and result have space next to it.

        In a narrower window the image shrinks first, and then the list. So the result is always visible without
        scrolling.
        """
        half, least = (self.width() + 1) // 2, self.area.minimumSizeHint().width()
        beside = self.result_panel.minimumWidth() + 2 * self.panes.handleWidth()
        has_list = self.width() >= MIN_LIST_WIDTH + least + beside
        self.work_list.setMinimumWidth(MIN_LIST_WIDTH if has_list else MIN_LIST_WIDTH_NARROW_WINDOW)
        has_room = self.width() >= self.work_list.minimumWidth() + half + beside
        self._image.setMinimumWidth(half if has_room else least)

    def showEvent(self, event: QShowEvent) -> None:
        """After a change of language, show the question that was open in the old window."""
        super().showEvent(event)
        self._ask()

    def _toggle_full_screen(self) -> None:
        """Switch full screen, which shows the image without list and result, on or off."""
        self.setWindowState(self.windowState() ^ Qt.WindowState.WindowFullScreen)
        self._show_panels(not (self.isFullScreen() and self.images.isVisible()))

    def _show_names(self, switched: Collection[str]) -> None:
        """Hide or show patients' names in the window's pages and notices, if the switch for names has changed.

        switched  names of the changed switches
        """
        if "hide_patient" in switched:
            pages = self.welcome, self.audit_page, self.history_page
            for part in (self.banners, *pages, self.result_panel, self.prior_card):
                part.refresh()

    @property
    def _reading(self) -> QWidget:
        """The widget on which the keys of the list act."""
        return self.viewer if self.work_list.isHidden() else self.work_list.table

    def _show_list(self, shown: bool) -> None:
        """Show the list next to the image at its previous width, or hide the list."""
        beside, image, result = self.panes.sizes()
        self._list_width = beside or self._list_width
        self.work_list.setVisible(shown)
        self.panes.setSizes([self._list_width, image + beside - self._list_width * shown, result])

    def _show_panels(self, shown: bool) -> None:
        """Show list and result next to the image, or the image alone."""
        if shown and self.work_list.isHidden() and not self.result_panel.isHidden():
            self._show_list(True)
        for panel in (self.work_list, self.result_panel):
            panel.setVisible(shown)
        self.prior_bar.list_key.setVisible(not shown)
        self._reading.setFocus()

    def _give_room(self) -> None:
        """Hide the list while two images are compared.

        The bar above the images names the key that shows the list again.
        """
        comparing = self._bench.comparing
        gives = comparing.is_on and (self._gave_room or comparing.prior is not None)
        if gives == self._gave_room:
            return
        self._gave_room = gives
        if not self.result_panel.isHidden():  # otherwise the image is shown alone
            self._show_list(not gives)
        self.prior_bar.list_key.setVisible(self.work_list.isHidden())

    def leave_full_screen(self) -> None:
        """Leave full screen: show the work list and the result panel again."""
        if self.isFullScreen():
            self._toggle_full_screen()
        elif self.work_list.isHidden():
            self._show_panels(True)

    def _toggle(self, page: QWidget) -> None:
        if self.pages.currentWidget() is page:
            self._show_images_or_welcome()
        else:
            self.pages.setCurrentWidget(page)

    def _show_images_or_welcome(self) -> None:
        has_images = self._bench.rows.total_image_count() > 0 or self._bench.screening.state != "empty"
        question = self._bench.screening.question
        has_images = has_images and (question is None or question.kind != "pack")
        self.pages.setCurrentWidget(self.images if has_images else self.welcome)
        if has_images:
            self._reading.setFocus()
        else:
            self.welcome.focus_page()

    def _leave_deleted_run(self) -> None:
        """Show the start page instead of the empty list of a run that another program deleted."""
        if self.pages.currentWidget() is self.images:
            self._show_images_or_welcome()

    def _show_row(self, row_id: int) -> None:
        """Show an image of the current run.

        row_id  row id of the image; 0 for the first image
        """
        self._show_images_or_welcome()
        if row_id:
            self.work_list.select_image(row_id, may_show_all=True)
        else:
            self.work_list.select_first_or_last(is_last=False)

    def _leave_note(self) -> None:
        """Take the focus out of the field for a note, so that a person does not type into the note of another image."""
        if self.result_panel.verdict.note.hasFocus():
            self._focus_list()

    def _allow_keys(self) -> None:
        is_seen = self.pages.currentWidget() is self.images
        self._bench.read_marks.is_image_covered = not is_seen
        enable_image_actions(self.actions_by_name, is_image_visible=is_seen, focused=QApplication.focusWidget())

    def _focus_list(self) -> None:
        """Focus the work list, or the image if the list is hidden. Does nothing while another page is shown."""
        if self.pages.currentWidget() is self.images:
            self._reading.setFocus()

    def event(self, event: QEvent) -> bool:
        """Ignore repeats of a held key with Ctrl. Another image may be open since the key was pressed."""
        if isinstance(event, QKeyEvent):
            if event.type() == QEvent.Type.KeyRelease:
                self._held_keys.record_release(event)
            is_command = bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)
            if event.type() == QEvent.Type.ShortcutOverride and is_command and self._held_keys.is_repeat(event):
                event.accept()  # then no shortcut uses the key
                return True
        return super().event(event)

    def focusNextPrevChild(self, next: bool) -> bool:
        """Move the focus after Tab, or to the shown page if the focused widget was hidden or disabled.

        Qt calls this method in both cases. Qt itself would move the focus from a hidden button to the next control,
        for example to the button that closes a notice.
        """
        focused, page = self.focusWidget(), self.pages.currentWidget()
        if page is None or focused is None or (focused.isVisible() and focused.isEnabled()):
            return super().focusNextPrevChild(next)
        (self._reading if page is self.images else page).setFocus()
        return True

    def _cancel(self) -> None:
        """Cancel or close the first of these that is active: typing a note, a page, a question, full screen."""
        if self.result_panel.verdict.note.hasFocus():
            self.result_panel.verdict.discard_note()
            return
        if self.pages.currentWidget() not in (self.images, self.welcome):
            self._show_images_or_welcome()
            return
        if self._bench.screening.question is not None:
            self._bench.screening.cancel_waiting_run()
            return
        self.leave_full_screen()
        self.area.cancel_drag_or_line()
        self.work_list.filter_bar.search.clear()
        self._reading.setFocus()

    def _show_menu(self, at: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for group in _MENU:
            menu.addActions([self.actions_by_name[command] for command in group])
            menu.addSeparator()
        for title, commands in _SUBMENUS.items():
            more = menu.addMenu(group_title(self._translator, title))
            more.addActions([self.actions_by_name[command] for command in commands])
        menu.popup(at)

    # ---- dropping and closing

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Screen folders and files that a person drops on the window. A notice names dropped items that are neither."""
        self._choose(_local_paths(event.mimeData().urls()))
        event.acceptProposedAction()
        for url in event.mimeData().urls():
            if not _local_paths([url]):
                why = reason("path_is_address", address=url.toDisplayString())
                self._bench.notice_board.post_reason("path_is_address", why, level="warning")

    def closeEvent(self, event: QCloseEvent) -> None:
        """Close the window when all operations have ended; during a run, ask the person first."""
        if self._may_close:
            event.accept()
            return
        event.ignore()
        if self._bench.screening.is_busy:
            self._ask_to_close()
        else:
            self._leave()

    def _leave(self) -> None:
        close_when_saved(self, self._bench.judging, self._translator, self.close_confirmed.emit)

    def close_without_asking(self) -> None:
        """Close the window without asking, because another window replaces this one or all operations have ended."""
        self._may_close = True
        self.close()

    def _ask_to_close(self) -> None:
        text = self._translator.text
        more = text("Results so far are kept. If you open the folder again, the run continues.")
        answers = {text("Stop and close"): self._leave}
        question_box(
            self, text("A run is in progress."), more, answers=answers, decline_text=text("Continue the run")
        ).open()


def _local_paths(urls: Sequence[QUrl]) -> list[Path]:
    is_here = sys.platform == "win32"  # only Windows can open file://server/share
    return [Path(url.toLocalFile()) for url in urls if url.isLocalFile() and (is_here or not url.host())]

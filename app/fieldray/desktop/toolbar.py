"""The toolbar (buttons of a run, its progress, pack and device in use) and the status bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import QMenu, QProgressBar, QSizePolicy, QStatusBar, QWidget

from fieldray.backends import CPU
from fieldray.desktop.controller import Controller
from fieldray.desktop.pack_choice import PackController
from fieldray.desktop.screening import ScreeningController
from fieldray.desktop.style import Theme, icon
from fieldray.desktop.widgets import (
    PlainButton,
    PlainLabel,
    column_layout,
    connect_button,
    push_button,
    row_layout,
    set_elided_text,
    set_surface,
    set_tooltip,
    without_markup,
)
from fieldray.desktop.worklist_rows import pack_title
from fieldray.domain.intended_use import intended_patients_sentence
from fieldray.domain.model import Model
from fieldray.domain.run import BackendChanged, DeviceChanged, Progress, Speed
from fieldray.formatting import (
    backend_name,
    date_and_time_text,
    describe_signer,
    format_duration,
    format_number,
    research_only_notice,
    unsigned_notice,
)
from fieldray.translation import Translator

_USB3_MBIT: Final = 5000
_LOW: Final = 480  # height below which a window has no space for a second row
_SIDE: Final = 10
_SPACING: Final = 8
_TINY_CHIP: Final = 60
_WIDE_CHIP: Final = 260
_STATUS_GAP: Final = 24  # space between the figures


class Toolbar(QWidget):
    """The toolbar: buttons for commands, the progress of the run, and two labels with pack and device in use."""

    def __init__(
        self,
        controller: Controller,
        actions: Mapping[str, QAction],
        translator: Translator,
        theme: Theme,
        choose: Callable[[Sequence[Path]], None],
    ) -> None:
        """Make the toolbar.

        actions  the QAction of each command, by name
        choose   function called with the folders or files that a person chose
        """
        super().__init__()
        set_surface(self, "toolbar")
        self._controller, self._translator, self._theme = controller, translator, theme
        self._saving, self._choose = actions["export"], choose
        self._is_narrow = False
        text = translator.text
        self.open_button = self._button("folder", text("Open folder"), actions["open_folder"])
        self.watch_button = self._button("watch", text("Watch"), actions["watch"])
        self.start_button = self._button("start", text("Start"), actions["start"])
        self.pause_button = self._button("pause", text("Pause"), actions["pause"])
        self.stop_button = self._button("stop", text("Stop"), actions["stop"])
        runs = self.start_button, self.pause_button, self.stop_button
        self._buttons = self.open_button, self.watch_button, *runs
        self._captions = {button: button.text() for button in self._buttons}
        self.start_button.setProperty("role", "primary")
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setMaximum(1000)
        self.bar.setAccessibleName(translator.text("Progress"))
        self.progress_text = PlainLabel()
        self.pack_chip = self._button("drive", "", actions["packs"])
        self.backend_chip = self._button("processor", "", actions["status"])
        self.menu_button = self._menu_button(actions)
        self._lay_out()
        for signal in (controller.screening.changed, controller.screening.question_changed, controller.services_opened):
            signal.connect(self.refresh_run_controls)
        for signal in (controller.packs.packs_listed, controller.packs.model_changed):
            signal.connect(self.refresh_pack_in_use)
        controller.backends_changed.connect(self.refresh_devices_in_use)
        self.refresh_run_controls()
        self.refresh_pack_in_use()
        self.refresh_devices_in_use()

    # ---- updating

    def refresh_run_controls(self) -> None:
        """Show the state and the progress of the run, and enable the buttons that can be used."""
        screening, translator = self._controller.screening, self._translator
        self.start_button.setEnabled(screening.can_start)
        self.start_button.setIcon(icon("start", self._theme, "on_accent" if screening.can_start else "disabled"))
        self.pause_button.setEnabled(screening.can_stop)
        pause = translator.text("Resume") if screening.state == "paused" else translator.text("Pause")
        self._captions[self.pause_button] = pause
        self.pause_button.setText("" if self._is_narrow else pause)
        self.pause_button.setAccessibleName(pause)
        self.pause_button.setIcon(icon("start" if screening.state == "paused" else "pause", self._theme))
        self.stop_button.setEnabled(screening.can_stop)
        self._saving.setEnabled(screening.run_id is not None)
        self.progress_text.setText(current_run_text(translator, screening))
        progress = screening.progress
        share = progress.done / progress.total if progress and progress.total else 0.0
        self.bar.setValue(round(1000 * share))
        self.bar.setMaximum(0 if screening.state == "starting" else 1000)

    def refresh_pack_in_use(self) -> None:
        """Show the name of the pack in use."""
        packs = self._controller.packs
        model = packs.model
        more = (pack_trust_text(self._translator, model, packs),) if model and packs.loading is None else ()
        set_tooltip(self.pack_chip, *pack_in_use_name_and_remark(self._translator, packs), *more)
        self.fit_buttons_to_width()

    def refresh_devices_in_use(self) -> None:
        """Show the names and states of the devices in use."""
        set_tooltip(self.backend_chip, *self._backend_text())
        self.fit_buttons_to_width()

    # ---- building

    def _lay_out(self) -> None:
        self._progress = QWidget()
        column_layout(self._progress, 1, self.progress_text, self.bar, 1, spacing=4)
        self.progress_text.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.progress_text.setMinimumWidth(120)
        self.progress_text.setWordWrap(True)
        for chip in (self.pack_chip, self.backend_chip):
            chip.setProperty("role", "chip")
            chip.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self._rows = row_layout(None, spacing=_SPACING), row_layout(None, spacing=_SPACING)
        column_layout(self, *self._rows, margins=(_SIDE, 8, _SIDE, 8), spacing=6)
        self._arrange(wraps=False)

    def _arrange(self, *, wraps: bool) -> None:
        """Arrange all controls in one row, or in two rows with progress and labels in the second.

        wraps  whether to use two rows
        """
        first, second = self._rows
        for row in self._rows:
            while row.takeAt(0) is not None:
                pass
        for button in self._buttons:
            if not (self._is_narrow and button is self.watch_button):  # a hidden button would keep its space
                first.addWidget(button)
        if wraps:
            first.addStretch(1)
        (second if wraps else first).addWidget(self._progress, 1)
        for chip in (self.pack_chip, self.backend_chip):
            (second if wraps else first).addWidget(chip)
        first.addWidget(self.menu_button)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit_buttons_to_width()

    def fit_buttons_to_width(self) -> None:
        """Adapt the toolbar to the size of the window.

        If the controls do not fit into one row, the toolbar has two rows. Buttons show icons
        without texts in a very narrow window, and in a window that is both narrow and low.
        """
        self._write(is_narrow=False)
        progress_and_chips = self.progress_text.minimumWidth() + sum(map(_width, (self.pack_chip, self.backend_chip)))
        buttons = sum(map(_width, (*self._buttons, self.menu_button))) + 2 * _SIDE
        lacks_room, is_low = self.width() < buttons + progress_and_chips + 2 * _SPACING, self.window().height() < _LOW
        if self.width() < buttons or (lacks_room and is_low):
            self._write(is_narrow=True)
        self._arrange(wraps=lacks_room and not is_low)

    def _write(self, *, is_narrow: bool) -> None:
        """Set the texts of buttons and labels. In a narrow window the texts are as short as possible."""
        self._is_narrow = is_narrow
        self.watch_button.setHidden(is_narrow)  # the menu has this command, too
        for button, caption in self._captions.items():
            button.setText("" if is_narrow else caption)
        room = _TINY_CHIP if is_narrow else _WIDE_CHIP
        set_elided_text(
            self.pack_chip, *pack_in_use_name_and_remark(self._translator, self._controller.packs), max_width=room
        )
        set_elided_text(self.backend_chip, *self._backend_text(), max_width=room)

    def _backend_text(self) -> tuple[str, str]:
        return devices_in_use_names_and_states(self._translator, self._controller.backends, self._controller.devices)

    def _button(self, icon_name: str, text: str, action: QAction) -> PlainButton:
        button = push_button(text, icon=icon(icon_name, self._theme))
        connect_button(button, action)
        return button

    def _menu_button(self, actions: Mapping[str, QAction]) -> PlainButton:
        menu = QMenu(self)
        menu.addActions([actions["open_folder"], actions["open_files"], actions["watch"]])
        self.folders_menu = menu.addMenu(self._translator.text("Recent folders"))
        self.folders_menu.aboutToShow.connect(self._list_folders)
        menu.aboutToShow.connect(self._list_folders)
        menu.addSeparator()
        menu.addActions([actions["packs"], actions["history"], actions["audit"], actions["export"]])
        menu.addActions([actions["copy"], actions["print"]])
        menu.addAction(actions["hide_patient"])
        menu.addSeparator()
        menu.addActions([actions[command] for command in ("settings", "status", "guide", "keys", "about")])
        button = push_button("", icon=icon("menu", self._theme), accessible_name=self._translator.text("Menu"))
        button.setMenu(menu)
        return button

    def _list_folders(self) -> None:
        """Fill the menu with the recently opened folders and a command to forget them. Empty while names are hidden."""
        menu, folders = self.folders_menu, self._controller.settings.recent_folders
        menu.clear()
        for folder in folders if not self._translator.hides_names() else ():
            action = menu.addAction(without_markup(folder).replace("&", "&&"))
            action.triggered.connect(lambda _=False, path=Path(folder): self._choose([path]))
        menu.addSeparator()
        forget = self._translator.text("Forget recent folders")
        menu.addAction(forget).triggered.connect(lambda _=False: self._controller.update_recent_folders())
        menu.setEnabled(bool(folders))


def _width(widget: QWidget) -> int:
    return widget.sizeHint().width() + _SPACING


def current_run_text(translator: Translator, screening: ScreeningController) -> str:
    """Return a text about the state of the run. For an active run, the text has progress, speed and remaining time."""
    waits = translator.text("Waiting: choose a pack")
    if screening.question and screening.question.kind == "ages":
        waits = translator.text("Waiting: confirm the patients' ages")
    states = {
        "empty": translator.text("No folder or files chosen yet"),
        "waiting": waits,
        "starting": translator.text("Starting…"),
        "running": "" if screening.progress else translator.text("Looking for images…"),
        "paused": translator.text("Paused"),
        "stopping": translator.text("Stopping…"),
        "finished": translator.text("Finished"),
        "cancelled": translator.text("Stopped"),
        "failed": translator.text("The run failed"),
    }
    if screening.past_run is not None:
        number, day = screening.past_run.run_id, date_and_time_text(translator, screening.past_run.started_s)
        return translator.text("From the history: run {number}, {day}", number=number, day=day)
    if screening.watches and screening.state == "running" and (progress := screening.progress):
        waiting = progress.total - progress.done
        return translator.text("Watching: {done} images done, {waiting} waiting", done=progress.done, waiting=waiting)
    parts = [states[screening.state], *(_progress_label(translator, screening.progress, screening.state == "running"))]
    return "   ".join(part for part in parts if part)


def _progress_label(translator: Translator, progress: Progress | None, is_running: bool) -> list[str]:
    if progress is None:
        return []
    total = f"{progress.total}" if progress.total_is_final else f"{progress.total}+"
    parts = [f"{progress.done} / {total}"]
    if is_running:
        rate = format_number(translator, progress.images_per_s, digits=1)
        parts.append(translator.text("{rate} images/s", rate=rate))
        if progress.remaining_s is not None:
            parts.append(translator.text("{time} left", time=format_duration(translator, progress.remaining_s)))
    return parts


def pack_in_use_name_and_remark(translator: Translator, packs: PackController) -> tuple[str, str]:
    """Return two texts about the pack in use: name with version, and intended patients.

    For an unsigned pack, the second text says that nobody vouches for the pack.
    """
    if packs.loading is not None:
        return packs.loading.pack_name, translator.text("loading…")
    if packs.model is None:
        return translator.text("No pack chosen"), translator.text("Which patients are these X-rays from?")
    name = translator.pack_text(packs.model.manifest.names)
    if others := ", ".join(pack_title(translator, model.manifest) for model in packs.loaded_models[1:]):
        return f"{name} {packs.model.manifest.version}", f"+ {others}"
    if packs.model.trust == "legacy":
        return f"{name} {packs.model.manifest.version}", unsigned_notice(translator)
    return f"{name} {packs.model.manifest.version}", translator.reason(
        intended_patients_sentence(packs.model.manifest.accepted)
    )


def pack_trust_text(translator: Translator, model: Model, packs: PackController) -> str:
    """Return a text about the signer of the pack in use, and whether the pack's drive can be removed."""
    signer_text = describe_signer(translator, trust=model.trust, fingerprint=model.fingerprint)
    if model.trust != "builtin" and packs.source is not None and packs.source.origin == "drive":
        if packs.is_pack_folder_available:
            return translator.text("{signer}; the drive can be removed during this run", signer=signer_text)
        return translator.text("{signer}; the drive was unplugged", signer=signer_text)
    return signer_text


def devices_in_use_names_and_states(
    translator: Translator, backends: Mapping[str, BackendChanged], devices: Mapping[str, DeviceChanged]
) -> tuple[str, str]:
    """Return two texts: the names of the devices in use, and the states of these devices."""
    # Only the device of the first pack is shown. The CPU runs all additional packs.
    found = sorted(backends.values(), key=lambda event: bool(event.backend == CPU.name))
    used = next((event for event in found if event.is_in_use), None)
    used = used or next(iter(backends.values()), None)
    if used is None:
        return translator.text("CPU"), translator.text("not in use")
    return device_name_and_state(translator, replace(used, detail=""), devices)


def device_name_and_state(
    translator: Translator, event: BackendChanged, devices: Mapping[str, DeviceChanged]
) -> tuple[str, str]:
    """Return two texts: a device's name with its port, and the device's state.

    For a device that is ready, the state includes runtime, processes and threads.
    """
    states = {
        "stopped": translator.text("not in use"),
        "starting": translator.text("starting…"),
        "ready": translator.text("ready"),
        "unavailable": translator.text("unavailable"),
    }
    name = backend_name(translator, event.backend)
    device = devices.get(event.backend)
    if device is not None and device.port_mbit is not None:
        name += " · USB 3" if device.port_mbit >= _USB3_MBIT else " · USB 2"
    return name, event.detail if event.state == "ready" and event.detail else states[event.state]


class StatusBar(QStatusBar):
    """The status bar: images per second, CPU and memory load, and always the notice *research use only*."""

    def __init__(self, controller: Controller, translator: Translator) -> None:
        super().__init__()
        self.setSizeGripEnabled(False)
        self._translator = translator
        self.speed, self.load, self.research = PlainLabel(), PlainLabel(), PlainLabel(research_only_notice(translator))
        set_tooltip(
            self.speed,
            translator.text("Images per second (model alone): current value; lowest / mean / highest"),
        )
        set_tooltip(
            self.load, translator.text("CPU load of the whole computer; memory used by all parts of this program")
        )
        self.research.setProperty("role", "research")
        self.speed.setContentsMargins(8, 0, 8, 0)
        self.load.setContentsMargins(8, 0, 8, 0)
        self.research.setContentsMargins(8, 4, 8, 4)
        self.addWidget(self.speed)
        self.addWidget(self.load)
        self.addPermanentWidget(self.research)
        self.setMinimumWidth(self.research.sizeHint().width())  # the notice alone sets the minimum width
        controller.speed_measured.connect(self.show_speed)
        self.show_speed(controller.speed)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show fewer figures in a narrow window. The notice *research use only* is never cut."""
        super().resizeEvent(event)
        room = self.width() - self.research.sizeHint().width() - self.speed.sizeHint().width()
        self.load.setVisible(room > self.load.sizeHint().width() + _STATUS_GAP)
        self.speed.setVisible(room > _STATUS_GAP)

    def show_speed(self, speed: Speed) -> None:
        """Show the speed of a run and the load of the computer. A figure that is not measured yet is a dash."""
        now, low, mean, high = (
            self._figure(value, 1) for value in (speed.fps_now, speed.fps_min, speed.fps_avg, speed.fps_max)
        )
        self.speed.setText(
            self._translator.text(
                "Images/s {now}   min {low} / avg {mean} / max {high}", now=now, low=low, mean=mean, high=high
            )
        )
        processor, memory = self._figure(speed.cpu_percent, 0), self._figure(speed.memory_mb, 0)
        self.load.setText(self._translator.text("CPU {cpu} %   Memory {memory} MB", cpu=processor, memory=memory))

    def _figure(self, value: float | None, digits: int) -> str:
        return "–" if value is None else format_number(self._translator, value, digits=digits)

"""The page about this computer: device, speed, load during the run, and time per image next to other programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import QGridLayout, QWidget

from fieldray.bench.load import StoredLoadStudy
from fieldray.desktop.controller import Controller
from fieldray.desktop.past_runs import ComputerLoad, ComputerLoadSample
from fieldray.desktop.style import Theme, colours
from fieldray.desktop.toolbar import device_name_and_state
from fieldray.desktop.widgets import Page, card, make_label, push_button, read_only_table, remove_widgets, row_layout
from fieldray.domain.run import Speed
from fieldray.formatting import backend_name, date_and_time_text, format_duration, format_number
from fieldray.translation import Translator


class StatusPage(Page):
    """The page about this computer, in cards. The figures change while a run is active and the page is shown."""

    def __init__(self, controller: Controller, translator: Translator, theme: Theme) -> None:
        text = translator.text
        super().__init__(text("This computer"), text("This computer"), translator, theme)
        self._bench, self._machine = controller, controller.computer_load
        self.devices, self.figures = make_label(), QGridLayout()
        self._values = [make_label() for _ in range(6)]
        self.load = make_label(role="muted")
        self.state, machine = make_label(role="muted"), self._machine
        self.button = push_button(
            "", lambda: machine.stop_load_study() if machine.is_busy else machine.start_load_study()
        )
        self._table: QWidget | None = None
        self._shown_study: StoredLoadStudy | None = None
        self._load = card(make_label(text("Speed while other programs run"), role="heading"), self.state)
        self._load.layout().addLayout(row_layout(None, self.button, 1))  # type: ignore[union-attr]
        for index, part in enumerate((self._make_devices(), self._make_plot(), self._load)):
            self._column.insertWidget(1 + index, part)
        self.refresh_on_signals(
            controller.backends_changed, controller.speed_measured, self._machine.sample_added, self._machine.changed
        )
        self.refresh()

    def refresh(self) -> None:
        """Show devices, speed, load of the computer and the latest load study."""
        self._show_load()
        self._show_devices()
        self._show_speed(self._bench.speed)
        self._show_study()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._machine.read_load_study()

    # ---- building

    def _make_devices(self) -> QWidget:
        text = self._translator.text
        names = (
            text("Images per second now"),
            text("Images per second, lowest"),
            text("Images per second, mean"),
            text("Images per second, highest"),
            text("Time for the first image, ms"),
            text("Time per image, 95th percentile, ms"),
        )
        for index, (name, value) in enumerate(zip(names, self._values, strict=True)):
            self.figures.addWidget(make_label(name, role="muted"), index // 3 * 2, index % 3)
            self.figures.addWidget(value, index // 3 * 2 + 1, index % 3)
            value.setAccessibleName(name)
            value.setProperty("role", "title")
        what = text(
            "The times are the times of the network alone, without reading the file. The first two images (warm-up) "
            "are left out."
        )
        heading = make_label(text("Device"), role="heading")
        return card(heading, self.devices, self.figures, make_label(what, role="muted"))

    def _make_plot(self) -> QWidget:
        text, machine = self._translator.text, self._machine
        figures: dict[str, tuple[Callable[[ComputerLoadSample], float | None], float]] = {
            text("Images per second (model alone)"): (lambda sample: sample.images_per_s, 2.0),
            text("CPU load of the whole computer, %"): (lambda sample: sample.cpu_percent, 100.0),
            text("Memory used by this program, MB"): (lambda sample: sample.memory_mb, 100.0),
        }
        self.plots = [
            ComputerLoadPlot(title, figure, machine, full=full, translator=self._translator, theme=self._theme)
            for title, (figure, full) in figures.items()
        ]
        return card(make_label(text("Speed and load during the run"), role="heading"), self.load, *self.plots)

    # ---- updating

    def _show_devices(self) -> None:
        events = self._bench.backends.values()
        lines = [device_name_and_state(self._translator, event, self._bench.devices) for event in events]
        how = self._translator.text(
            "Each line names a device, the software that runs the model, and the number of processes x threads."
        )
        self.devices.setText(*(f"{name}: {detail}" for name, detail in lines), how)
        self.devices.setVisible(bool(lines))

    def _show_speed(self, speed: Speed) -> None:
        values = speed.fps_now, speed.fps_min, speed.fps_avg, speed.fps_max, speed.first_image_ms, speed.p95_ms
        for shown, value in zip(self._values, values, strict=True):
            shown.setText("–" if value is None else format_number(self._translator, value, digits=1))

    def _show_load(self) -> None:
        """Show the last sample of speed and load as text, also for screen readers."""
        said, samples = self._translator.text("Nothing was measured yet."), self._machine.samples
        if samples:
            last, text = samples[-1], self._translator.text
            said = text("CPU {cpu} %   Memory {memory} MB", cpu=round(last.cpu_percent), memory=round(last.memory_mb))
            if last.images_per_s is not None:
                fps = text("{fps} images per second", fps=format_number(self._translator, last.images_per_s, digits=1))
                said = f"{fps}   {said}"
            said = f"{format_duration(self._translator, last.elapsed_s)}   {said}"
        self.load.setText(said)

    def _show_study(self) -> None:
        machine, translator = self._machine, self._translator
        done, total = machine.progress
        self.button.setText(translator.text("Stop") if machine.is_busy else translator.text("Measure speed now"))
        self.button.setEnabled(machine.is_busy or machine.can_start_load_study)
        self.state.setText(*_state(translator, machine, done, total))
        if machine.study is self._shown_study:
            return
        remove_widgets(self._table)
        self._table, self._shown_study = None, machine.study
        if machine.study is not None:
            headings = (
                translator.text("Device"),
                translator.text("Added CPU load"),
                translator.text("Time per image, ms"),
                translator.text("Images per second, min / avg / max"),
                translator.text("Measured slowdown"),
                translator.text("Slowdown (Taran 2022)"),
            )
            self._table = read_only_table(headings, list(self._rows()))
            self._load.layout().insertWidget(2, self._table)  # type: ignore[union-attr]

    def _rows(self) -> Iterator[Sequence[str]]:
        translator, study = self._translator, self._machine.study
        if study is None:
            return
        for cell in study.cells_to_show:
            figures = (format_number(translator, fps, digits=1) for fps in (cell.fps_min, cell.fps_avg, cell.fps_max))
            yield (
                backend_name(translator, cell.backend),
                _share(translator, cell.level.share) if cell.level.share else translator.text("no added CPU load"),
                format_number(translator, cell.mean_ms, digits=2),
                " / ".join(figures),
                _share(translator, cell.increase, digits=1) if cell.level.share else "",
                ""
                if cell.dissertation_time_increase is None or study.is_disturbed
                else _share(translator, cell.dissertation_time_increase, digits=1),
            )


def _share(translator: Translator, share: float, *, digits: int = 0) -> str:
    return f"{format_number(translator, 100 * share, digits=digits)} %"


def _state(translator: Translator, machine: ComputerLoad, done: int, total: int) -> Iterator[str]:
    """Yield lines about the load study: explanation, progress, date of the last study, and disturbances."""
    study = machine.study
    if machine.is_busy:
        yield translator.text("Measuring: {done} of {total}", done=done, total=total)
        return
    yield translator.text(
        "The program measures the speed of the pack in use for about a minute, on one thread. To imitate other "
        "programs, all CPU cores are kept busy for the share of time in the column “Added CPU load”. The last column "
        "shows the slowdown that Taran published in 2022 for other computers."
    )
    if machine.problem is not None:
        yield translator.reason(machine.problem)
    if study is not None:
        packs = ", ".join(sorted({cell.pack for cell in study.cells_to_show}))
        yield translator.text(
            "Speed measured {when} with the pack {pack}.",
            when=date_and_time_text(translator, study.made.timestamp()),
            pack=packs,
        )
        if study.is_disturbed:
            yield translator.text(
                "Other programs were busy during the measurement. Close other programs and measure again."
            )


# ---- plots of speed, CPU and memory over the time of a run

_HEIGHT: Final = 84


class ComputerLoadPlot(QWidget):
    """A widget that plots one value of the samples, such as the CPU load, over the time of a run.

    figure  function that returns the value of a sample; a sample with the value None is left out
    full    minimum of the upper end of the value axis, which begins at 0
    """

    def __init__(
        self,
        title: str,
        figure: Callable[[ComputerLoadSample], float | None],
        machine: ComputerLoad,
        *,
        full: float,
        translator: Translator,
        theme: Theme,
    ) -> None:
        super().__init__()
        self._title, self._figure, self._full, self._machine = title, figure, full, machine
        self._translator, self._theme = translator, theme
        self.setFixedHeight(_HEIGHT + 2 * self.fontMetrics().height())
        self.setAccessibleName(title)
        machine.sample_added.connect(self.update)

    def paintEvent(self, event: QPaintEvent) -> None:
        samples, line, shades = self._machine.samples, self.fontMetrics().height(), colours(self._theme)
        known = [(sample.elapsed_s, value) for sample in samples if (value := self._figure(sample)) is not None]
        top = 2 * round_axis_step(max([self._full, *(value for _, value in known)]) / 2)
        end_s = max(samples[-1].elapsed_s if samples else 0.0, 1.0)
        box = QRectF(3.5 * line, 1.4 * line, self.width() - 4 * line, _HEIGHT)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QColor(shades["muted"]))
        painter.drawText(QRectF(box.left(), 0, box.width(), line), Qt.AlignmentFlag.AlignLeft, self._title)
        for share in (0.0, 0.5, 1.0):
            y, caption = box.bottom() - share * _HEIGHT, format_number(self._translator, share * top, digits=0)
            painter.setPen(QColor(shades["muted"]))
            painter.drawText(QRectF(0, y - line / 2, 3 * line, line), Qt.AlignmentFlag.AlignRight, caption)
            painter.setPen(QColor(shades["line"]))
            painter.drawLine(QPointF(box.left(), y), QPointF(box.right(), y))
        painter.setPen(QPen(QColor(shades["accent"]), 1.6))
        points = ((at_s / end_s, value / top) for at_s, value in known)
        painter.drawPolyline([QPointF(box.left() + x * box.width(), box.bottom() - y * _HEIGHT) for x, y in points])
        painter.end()


def round_axis_step(rough: float) -> float:
    """Return a round step for the marks of an axis: 1, 2 or 5 times a power of ten.

    rough  minimum of the step, above 0
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))

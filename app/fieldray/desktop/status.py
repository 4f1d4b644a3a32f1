"""The strip at the bottom: counts, speed, load, and the sentence that is always in sight."""

from __future__ import annotations

from PySide6.QtWidgets import QStatusBar

from fieldray.desktop.controller import Controller
from fieldray.desktop.widgets import PlainLabel, set_tip
from fieldray.domain.events import Speed
from fieldray.formatting import number, research_only
from fieldray.translation import Translator


class Status(QStatusBar):
    """FPS now and min / avg / max, CPU and memory load, research use only."""

    def __init__(self, controller: Controller, translator: Translator) -> None:
        super().__init__()
        self.setSizeGripEnabled(False)
        self._translator = translator
        self.speed, self.load, self.research = PlainLabel(), PlainLabel(), PlainLabel(research_only(translator))
        set_tip(self.speed, translator.text("Images per second that the model processes: now; lowest / mean / highest"))
        set_tip(self.load, translator.text("CPU load of the whole computer; memory used by all parts of this program"))
        self.research.setProperty("role", "research")
        self.speed.setContentsMargins(8, 0, 8, 0)
        self.load.setContentsMargins(8, 0, 8, 0)
        self.research.setContentsMargins(8, 4, 8, 4)
        self.addWidget(self.speed)
        self.addWidget(self.load)
        self.addPermanentWidget(self.research)
        controller.measured.connect(self.show_speed)
        self.show_speed(controller.speed)

    def show_speed(self, speed: Speed) -> None:
        """Write the figures; a dash for what is not measured yet."""
        now, low, mean, high = (
            self._figure(value, 1) for value in (speed.fps_now, speed.fps_min, speed.fps_avg, speed.fps_max)
        )
        self.speed.setText(
            self._translator.text(
                "FPS {now}   min {low} / avg {mean} / max {high}", now=now, low=low, mean=mean, high=high
            )
        )
        processor, memory = self._figure(speed.cpu_percent, 0), self._figure(speed.memory_mb, 0)
        self.load.setText(self._translator.text("CPU {cpu} %   Memory {memory} MB", cpu=processor, memory=memory))

    def _figure(self, value: float | None, digits: int) -> str:
        return "–" if value is None else number(self._translator, value, digits=digits)

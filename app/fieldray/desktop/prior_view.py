"""How a pair is looked at: side by side, by a divider, by blinking, or by its difference; and the keys for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from PySide6.QtCore import QEvent, QObject, QPointF, Qt, Signal
from PySide6.QtGui import QMouseEvent

from fieldray.desktop.comparing import Comparing
from fieldray.desktop.open_image import OpenImage
from fieldray.desktop.prior_layer import Mode, PriorLayer
from fieldray.desktop.viewer import Viewer
from fieldray.domain.study import ImageHeader
from fieldray.formatting import date
from fieldray.translation import Translator

_STEP: Final = 0.05
_GRIP: Final = 14.0  # points around the divider where the mouse takes hold of it
_OPACITY_PERCENT: Final = 70


class PriorView(QObject):
    """See the module. What was asked for stays from image to image, and is shown where the pair is comparable."""

    changed = Signal()

    def __init__(self, comparing: Comparing, image: OpenImage, viewer: Viewer, translator: Translator) -> None:
        super().__init__(viewer)
        self._comparing, self._image, self._viewer, self._translator = comparing, image, viewer, translator
        self._wanted: Mode = "beside"
        self._divider = 0.5
        self._is_dragging = False
        self.shows_prior = True
        self.shows_mesh = False
        self.opacity_percent = _OPACITY_PERCENT
        comparing.changed.connect(self._refresh)
        viewer.installEventFilter(self)

    @property
    def mode(self) -> Mode:
        """How the pair is shown now: nothing is laid over each other before it is known to be comparable."""
        return self._wanted if self._comparing.laid is not None else "beside"

    def commands(self) -> dict[str, Callable[[], None]]:
        """What the keys do."""
        modes: tuple[Mode, ...] = ("beside", "swipe", "difference")
        return {
            "prior": self._comparing.start_or_stop,
            "next_prior": self._comparing.choose_next,
            **{f"prior_{mode}": partial(self.set_mode, mode) for mode in modes},
            "prior_blink": self.blink,
            "prior_mesh": lambda: self.show_mesh(not self.shows_mesh),
            "divider_left": lambda: self.move_divider(self._divider - _STEP),
            "divider_right": lambda: self.move_divider(self._divider + _STEP),
        }

    def set_mode(self, mode: Mode) -> None:
        """Show the pair in this way; comparing begins with it."""
        self._wanted = mode
        self._compare()

    def blink(self) -> None:
        """From the open image to the prior in its place, and back."""
        self.shows_prior = self._wanted != "blink" or not self.shows_prior
        self._wanted = "blink"
        self._compare()

    def show_mesh(self, shown: bool) -> None:
        """Show or hide the lines that the prior was bent by."""
        self.shows_mesh = shown
        self._refresh()

    def set_opacity(self, percent: int) -> None:
        """Opacity of the difference, 0 to 100."""
        self.opacity_percent = percent
        self._refresh()

    def move_divider(self, place: float) -> None:
        """Put the divider at a share of the view's width."""
        self._divider = min(max(place, 0.0), 1.0)
        self._refresh()

    # ---- inside

    def _compare(self) -> None:
        if not self._comparing.is_on:
            self._comparing.start()
        self._refresh()

    def _refresh(self) -> None:
        self._viewer.show_layer(self._layer())
        self.changed.emit()

    def _layer(self) -> PriorLayer | None:
        row, prior, laid = self._image.row, self._comparing.prior, self._comparing.laid
        if row is None or prior is None or laid is None or (self.mode == "beside" and not self.shows_mesh):
            return None
        text = self._translator.text
        return PriorLayer(
            laid=laid,
            mode=self.mode,
            divider=self._divider,
            shows_prior=self.shows_prior,
            shows_mesh=self.shows_mesh,
            opacity=self.opacity_percent / 100,
            prior_name=text("Prior: {day}", day=day_words(self._translator, prior.header)),
            own_name=text("Open: {image}", image=day_words(self._translator, row.header)),
            translator=self._translator,
        )

    # ---- the divider under the mouse

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if self.mode != "swipe" or not isinstance(event, QMouseEvent):
            return False
        kind, is_near = event.type(), self._is_near(event.position())
        if kind == QEvent.Type.MouseButtonPress and event.button() == Qt.MouseButton.LeftButton and is_near:
            self._is_dragging = True
            return True
        if kind == QEvent.Type.MouseMove:
            if self._is_dragging:
                self.move_divider(event.position().x() / max(self._viewer.width(), 1))
                return True
            self._show_grip(is_near)
        if kind == QEvent.Type.MouseButtonRelease and self._is_dragging:
            self._is_dragging = False
            return True
        return False

    def _is_near(self, at: QPointF) -> bool:
        return abs(at.x() - self._divider * self._viewer.width()) <= _GRIP

    def _show_grip(self, is_near: bool) -> None:
        if is_near:
            self._viewer.setCursor(Qt.CursorShape.SplitHCursor)
        elif self._viewer.cursor().shape() == Qt.CursorShape.SplitHCursor:
            self._viewer.show_cursor()


def problem_words(translator: Translator, comparing: Comparing) -> str:
    """Why the pair is not compared, and which of the two is to blame; empty where it is not known to be so."""
    if comparing.problem is None:
        return ""
    not_comparable, why = translator.text("Not comparable."), translator.reason(comparing.problem)
    of_prior, of_open = (
        translator.text("The prior image: {reason}", reason=why),
        translator.text("The open image: {reason}", reason=why),
    )
    said = {"prior": of_prior, "current": of_open, "both": why}[comparing.blamed]
    return f"{not_comparable} {said}"


def day_words(translator: Translator, header: ImageHeader) -> str:
    """The study date of an image, or that there is none."""
    return date(translator, header.study_date) or translator.text("date not known")

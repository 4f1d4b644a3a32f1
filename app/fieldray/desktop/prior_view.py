"""How a pair is looked at: side by side, by a divider, by blinking, or by its difference; and the keys for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from PySide6.QtCore import QEvent, QObject, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QFont, QMouseEvent, QPainter

from fieldray.desktop.comparing import Comparing
from fieldray.desktop.image_painting import Pyramid, Size, ViewState, draw_heat_map
from fieldray.desktop.open_image import OpenImage
from fieldray.desktop.prior_layer import (
    draw_difference_legend,
    draw_divider,
    draw_mesh,
    draw_numbers,
    draw_prior,
    draw_tag,
)
from fieldray.desktop.style import kept
from fieldray.desktop.viewer import Viewer
from fieldray.domain.image import ImageHeader
from fieldray.formatting import date
from fieldray.translation import Translator

Mode = Literal["beside", "swipe", "blink", "difference"]
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

    def move_divider(self, position: float) -> None:
        """Put the divider at a share of the view's width."""
        self._divider = min(max(position, 0.0), 1.0)
        self._refresh()

    # ---- inside

    def _compare(self) -> None:
        if not self._comparing.is_on:
            self._comparing.start()
        self._refresh()

    def _refresh(self) -> None:
        is_laid = self._comparing.laid is not None and (self.mode != "beside" or self.shows_mesh)
        self._viewer.show_layer(self if is_laid else None)
        self.changed.emit()

    # ---- painting, over the open image

    def draw(self, painter: QPainter, pyramid: Pyramid, state: ViewState, view: Size) -> None:
        """Draw what is laid over the open image."""
        laid, mode, way = self._comparing.laid, self.mode, state.transform(pyramid.size, view)
        if laid is None:
            return
        if mode == "swipe":
            with kept(painter):
                prior = QRectF(0, 0, self._divider * view.width, view.height)
                painter.setClipRect(prior, Qt.ClipOperation.IntersectClip)
                draw_prior(painter, laid, pyramid, state, view)
        elif mode == "blink" and self.shows_prior:
            draw_prior(painter, laid, pyramid, state, view)
        elif mode == "difference":
            opacity = self.opacity_percent / 100
            draw_heat_map(painter, laid.difference, way, image=pyramid.size, opacity=opacity)
            draw_numbers(painter, laid, way)
        if self.shows_mesh:
            draw_mesh(painter, laid, way, image=pyramid.size)

    def draw_label(self, painter: QPainter, area: QRect, font: QFont) -> QRect:
        """Say which image is where, and what colours mean; the rest of the area is free for other words."""
        laid, mode, middle = self._comparing.laid, self.mode, Qt.AlignmentFlag.AlignHCenter
        prior, own = self._names()
        painter.setFont(font)
        if mode == "swipe":
            x = area.left() + self._divider * area.width()
            draw_divider(painter, area, x)
            left = QRect(area.left(), area.top(), round(x) - area.left(), area.height())
            right = QRect(round(x), area.top(), area.right() - round(x), area.height())
            draw_tag(painter, left, prior, Qt.AlignmentFlag.AlignRight)
            draw_tag(painter, right, own, Qt.AlignmentFlag.AlignLeft)
        elif mode == "blink":
            draw_tag(painter, area, prior if self.shows_prior else own, middle)
        elif mode == "difference" and laid is not None:
            between = self._translator.text("Difference: {open} – {prior}", open=own, prior=prior)
            draw_tag(painter, area, between, middle)
            return draw_difference_legend(painter, area, self._translator, is_blank=laid.difference.is_blank)
        return area

    def _names(self) -> tuple[str, str]:
        """Which image is the prior and which the open one, and of which day."""
        translator, row, prior = self._translator, self._image.row, self._comparing.prior
        return (
            translator.text("Prior: {day}", day=day_text(translator, prior.header)) if prior else "",
            translator.text("Open: {image}", image=day_text(translator, row.header)) if row else "",
        )

    # ---- the divider under the mouse

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if self.mode != "swipe" or not isinstance(event, QMouseEvent):
            return False
        kind, off_px = event.type(), event.position().x() - self._divider * self._viewer.width()
        is_near = abs(off_px) <= _GRIP
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

    def _show_grip(self, is_near: bool) -> None:
        if is_near:
            self._viewer.setCursor(Qt.CursorShape.SplitHCursor)
        elif self._viewer.cursor().shape() == Qt.CursorShape.SplitHCursor:
            self._viewer.show_cursor()


def problem_text(translator: Translator, comparing: Comparing) -> str:
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


def day_text(translator: Translator, header: ImageHeader) -> str:
    """The study date of an image, or that there is none."""
    return date(translator, header.study_date) or translator.text("date not known")

"""Display of two compared images, and the keys of each display mode.

The display modes are: side by side, with a divider, blinking, and difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from PySide6.QtCore import QEvent, QObject, QPointF, QRect, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QMouseEvent, QPainter, QPainterPath, QPen, QTransform

from fieldray.desktop.comparison_controller import ComparisonController
from fieldray.desktop.image_painting import (
    DisplaySwitches,
    ImageOverlays,
    ImagePyramid,
    Size,
    ViewState,
    draw_heat_map,
    grey_image,
    matching_display_window,
)
from fieldray.desktop.overlay import draw_outlined_text
from fieldray.desktop.style import preserve_painter_state
from fieldray.desktop.viewer import Viewer
from fieldray.desktop.widgets import without_markup
from fieldray.domain.comparison import DENSER_COLOUR, LESS_DENSE_COLOUR, WEAKEST_SHOWN_CHANGE
from fieldray.domain.image import ImageHeader
from fieldray.formatting import format_dicom_date
from fieldray.translation import Translator

DisplayMode = Literal["side_by_side", "swipe", "blink", "difference"]
_STEP: Final = 0.05
_GRIP: Final = 14.0  # distance in points within which the mouse moves the divider


class ComparisonView(QObject):
    """Draws two compared images in the chosen display mode. The mode is kept from image to image."""

    changed = Signal()

    def __init__(
        self, comparing: ComparisonController, switches: DisplaySwitches, viewer: Viewer, translator: Translator
    ) -> None:
        super().__init__(viewer)
        self._comparing, self._viewer, self._translator = comparing, viewer, translator
        self.switches = switches
        self._wanted: DisplayMode = "side_by_side"
        self._divider = 0.5
        self._is_dragging = False
        self.shows_prior = True
        for news in (comparing.changed, switches.changed):
            news.connect(self._refresh)
        viewer.installEventFilter(self)

    @property
    def mode(self) -> DisplayMode:
        """The current display mode. The mode is "side_by_side" until the images are found to be comparable."""
        return self._wanted if self._comparing.overlays is not None else "side_by_side"

    def commands(self) -> dict[str, Callable[[], None]]:
        """Return the functions of the display modes that keys and buttons call, by the name of the command."""
        modes: tuple[DisplayMode, ...] = ("side_by_side", "swipe", "difference")
        return {
            "prior": self._comparing.start_or_stop,
            "next_prior": self._comparing.compare_with_next_prior,
            **{f"prior_{mode}": partial(self.set_mode, mode) for mode in modes},
            "prior_blink": self.blink,
            "divider_left": lambda: self.move_divider(self._divider - _STEP),
            "divider_right": lambda: self.move_divider(self._divider + _STEP),
        }

    def set_mode(self, mode: DisplayMode) -> None:
        """Show the compared images in a display mode. If no images are compared yet, the comparison starts."""
        self._wanted = mode
        self._compare()

    def blink(self) -> None:
        """Show the prior image in place of the current image, or the current image again."""
        self.shows_prior = self._wanted != "blink" or not self.shows_prior
        self._wanted = "blink"
        self._compare()

    def move_divider(self, position: float) -> None:
        """Move the divider between both images.

        position  new position, as a share (0..1) of the view's width
        """
        self._divider = min(max(position, 0.0), 1.0)
        self._refresh()

    # ---- changes

    def _compare(self) -> None:
        if not self._comparing.is_on:
            self._comparing.start()
        self._refresh()

    def _refresh(self) -> None:
        is_laid = self._comparing.overlays is not None and (self.mode != "side_by_side" or self.switches.prior_mesh)
        self._viewer.show_prior_image(self if is_laid else None)
        self.changed.emit()

    # ---- painting over the current image

    def draw(self, painter: QPainter, pyramid: ImagePyramid, state: ViewState, view: Size) -> None:
        """Draw the prior image, or the colours of the differences, over the current image."""
        laid, mode, transform = self._comparing.overlays, self.mode, state.transform(pyramid.size, view)
        if laid is None:
            return
        if mode == "swipe":
            with preserve_painter_state(painter):
                prior = QRectF(0, 0, self._divider * view.width, view.height)
                painter.setClipRect(prior, Qt.ClipOperation.IntersectClip)
                draw_prior_image(painter, laid, pyramid, state, view)
        elif mode == "blink" and self.shows_prior:
            draw_prior_image(painter, laid, pyramid, state, view)
        elif mode == "difference":
            opacity = self.switches.difference_opacity_percent / 100
            draw_heat_map(painter, laid.difference, transform, image=pyramid.size, opacity=opacity)
            draw_region_numbers(painter, laid, transform)
        if self.switches.prior_mesh:
            draw_alignment_grid(painter, laid, transform, image=pyramid.size)

    def draw_captions(self, painter: QPainter, area: QRect, font: QFont) -> QRect:
        """Draw captions of both images and the legend of the difference colours. Returns the area above the legend."""
        laid, mode, middle = self._comparing.overlays, self.mode, Qt.AlignmentFlag.AlignHCenter
        prior, own = self._names()
        painter.setFont(font)
        if mode == "swipe":
            x = area.left() + self._divider * area.width()
            draw_divider(painter, area, x)
            left = QRect(area.left(), area.top(), round(x) - area.left(), area.height())
            right = QRect(round(x), area.top(), area.right() - round(x), area.height())
            draw_caption(painter, left, prior, Qt.AlignmentFlag.AlignRight)
            draw_caption(painter, right, own, Qt.AlignmentFlag.AlignLeft)
        elif mode == "blink":
            draw_caption(painter, area, prior if self.shows_prior else own, middle)
        elif mode == "difference" and laid is not None:
            between = self._translator.text("Difference ({open}; {prior})", open=own, prior=prior)
            draw_caption(painter, area, between, middle)
            return draw_difference_legend(painter, area, self._translator, is_blank=laid.difference.is_blank)
        return area

    def _names(self) -> tuple[str, str]:
        """Return labels for the prior and the current image, each with its date."""
        translator, row, prior = self._translator, self._comparing.image.row, self._comparing.prior
        return (
            translator.text("Prior image: {day}", day=study_date_text(translator, prior.header)) if prior else "",
            translator.text("Current image: {image}", image=study_date_text(translator, row.header)) if row else "",
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
            self._viewer.update_cursor()


def comparison_problem_text(translator: Translator, comparing: ComparisonController) -> str:
    """Return the reason why the current images cannot be compared, as a text that names the image with the problem.

    The text is empty if the images are comparable, or if this is not known yet.
    """
    if comparing.problem is None:
        return ""
    why = translator.reason(comparing.problem)
    said = {
        "prior": translator.text("The prior image: {reason}", reason=why),
        "current": translator.text("The current image: {reason}", reason=why),
        "both": why,
    }[comparing.image_with_problem]
    return " ".join((translator.text("The images are not comparable."), said))


def study_date_text(translator: Translator, header: ImageHeader) -> str:
    """Return the study date of an image as text, or a text that there is no date."""
    return format_dicom_date(translator, header.study_date) or translator.text("date not known")


# ---- drawing over the current image: the aligned prior image, the difference with its legend, the grid

_MARGIN: Final = 12
_SQUARE: Final = 12
_HANDLE: Final = 14
_SHADE: Final = QColor(0, 0, 0, 150)
_LINE: Final = QColor(255, 255, 255, 220)
_DOT: Final = 2.5


def draw_caption(painter: QPainter, area: QRect, caption: str, side: Qt.AlignmentFlag) -> None:
    """Draw a caption on a dark background at the upper edge of an area. A caption that does not fit is left out.

    side  position of the caption: AlignLeft, AlignRight, or any other value for the middle
    """
    metrics, room = painter.fontMetrics(), area.width() - 2 * _MARGIN
    caption = without_markup(caption)
    width = min(metrics.horizontalAdvance(caption), room)
    if room < min(metrics.horizontalAdvance(caption), 40 * metrics.averageCharWidth()):
        return
    height = _height(metrics, caption, width + 1)
    left = {
        Qt.AlignmentFlag.AlignLeft: area.left() + _MARGIN,
        Qt.AlignmentFlag.AlignRight: area.right() - _MARGIN - width,
    }.get(side, area.center().x() - width // 2)
    box = QRect(left, area.top() + _MARGIN, width + 1, height)
    painter.fillRect(box.adjusted(-6, -3, 6, 3), _SHADE)
    draw_outlined_text(painter, box, Qt.AlignmentFlag.AlignHCenter, caption)


def draw_divider(painter: QPainter, area: QRect, x: float) -> None:
    """Draw the line between the prior and the current image, with its handle.

    x  position of the line in points
    """
    with preserve_painter_state(painter, QPainter.RenderHint.Antialiasing):
        for shade, width in ((QColor(0, 0, 0, 160), 4.0), (_LINE, 2.0)):
            painter.setPen(QPen(shade, width))
            painter.drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()))
        painter.setPen(QPen(QColor(0, 0, 0, 160), 1))
        painter.setBrush(_LINE)
        painter.drawEllipse(QPointF(x, area.center().y()), _HANDLE, _HANDLE)
        painter.setPen(QPen(QColor(30, 36, 42), 2))
        for side in (-1, 1):
            tip = QPointF(x + side * 9, area.center().y())
            for down in (-4, 4):
                painter.drawLine(tip, QPointF(tip.x() - side * 4, tip.y() + down))


def draw_region_numbers(painter: QPainter, overlays: ImageOverlays, transform: QTransform) -> None:
    """Draw the number of each region that differs between two compared images. The side panel lists these numbers.

    overlays   the overlays of the comparison
    transform  maps pixels of the current image to points of the view
    """
    for number, middle in enumerate(overlays.region_centres, 1):
        at = transform.map(middle)
        box = QRect(round(at.x()) - 30, round(at.y()) - 30, 60, 60)
        draw_outlined_text(painter, box, Qt.AlignmentFlag.AlignCenter, str(number))


def draw_difference_legend(painter: QPainter, area: QRect, translator: Translator, *, is_blank: bool) -> QRect:
    """Draw the legend of the difference colours at the lower edge of an area. Returns the area above the legend.

    is_blank  whether no difference exceeds the noise; a sentence then replaces the colours
    """
    metrics, room, text = painter.fontMetrics(), area.width() - 2 * _MARGIN, translator.text
    rest = text(
        "The colours show differences inside the lungs that exceed {times} times the noise. Each difference has a "
        "number.",
        times=f"{WEAKEST_SHOWN_CHANGE:g}",
    )
    lines: list[tuple[tuple[int, int, int] | None, str, int]] = [
        (DENSER_COLOUR, text("Denser (whiter) in the current image"), _SQUARE + 8),
        (LESS_DENSE_COLOUR, text("Less dense (darker) in the current image"), _SQUARE + 8),
        (None, rest, 0),
    ]
    if is_blank:
        lines = [(None, text("No difference inside the lungs is larger than the noise"), 0)]
    heights = [_height(metrics, caption, room - indent) for _, caption, indent in lines]
    strip = QRect(area.left(), area.bottom() + 1 - sum(heights) - _MARGIN, area.width(), sum(heights) + _MARGIN)
    painter.fillRect(strip, _SHADE)
    top, left = strip.top() + _MARGIN // 2, strip.left() + _MARGIN
    for height, (shade, caption, indent) in zip(heights, lines, strict=True):
        if shade is not None:
            painter.fillRect(left, top + (metrics.height() - _SQUARE) // 2, _SQUARE, _SQUARE, QColor(*shade))
        draw_outlined_text(
            painter, QRect(left + indent, top, room - indent, height), Qt.AlignmentFlag.AlignLeft, caption
        )
        top += height
    return area.adjusted(0, 0, 0, -strip.height())


def _height(metrics: QFontMetrics, caption: str, width: int) -> int:
    return metrics.boundingRect(QRect(0, 0, max(width, 1), 1000), Qt.TextFlag.TextWordWrap, caption).height()


def draw_prior_image(
    painter: QPainter, overlays: ImageOverlays, open_pyramid: ImagePyramid, state: ViewState, view: Size
) -> None:
    """Draw the aligned prior image in place of the current image. Regions without pixels stay empty.

    The display window corresponds to that of the current image (see `matching_display_window`).

    overlays      the overlays of the comparison
    open_pyramid  the current image
    state, view   state and size of the view
    """
    window = matching_display_window(state.display_window, open_pyramid, overlays.aligned_prior)
    grey = overlays.aligned_prior.grey_level_table(window, inverted=state.is_inverted).take(
        overlays.aligned_prior.levels[0]
    )
    with preserve_painter_state(painter):
        painter.setTransform(state.transform(open_pyramid.size, view), combine=True)
        whole = QRectF(0, 0, open_pyramid.columns, open_pyramid.rows)
        painter.fillRect(whole, QColor(0, 0, 0))
        painter.setClipRect(whole, Qt.ClipOperation.IntersectClip)
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
        height, width = grey.shape
        painter.drawImage(
            QRectF(0, 0, width * overlays.prior_reduction_factor, height * overlays.prior_reduction_factor),
            grey_image(grey),
        )


def draw_alignment_grid(painter: QPainter, overlays: ImageOverlays, transform: QTransform, *, image: Size) -> None:
    """Draw how the prior image was aligned: the lines of its grid, and a dot at each point that was matched.

    overlays   the overlays of the comparison
    transform  maps pixels of the current image to points of the view
    image      size of the current image in pixels
    """
    outline = QPainterPath()
    outline.addRect(QRectF(0, 0, image.width, image.height))
    with preserve_painter_state(painter, QPainter.RenderHint.Antialiasing):
        painter.setClipPath(transform.map(outline), Qt.ClipOperation.IntersectClip)
        shown = transform.map(overlays.alignment_grid)
        for shade, width in ((QColor(0, 0, 0, 120), 2.5), (QColor(120, 220, 170, 200), 1.0)):
            painter.strokePath(shown, QPen(shade, width))
        painter.setPen(QPen(QColor(0, 0, 0, 180), 1))
        painter.setBrush(QColor(255, 255, 255))
        for point in overlays.matched_points:
            painter.drawEllipse(transform.map(point), _DOT, _DOT)

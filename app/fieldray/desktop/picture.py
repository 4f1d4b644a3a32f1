"""A picture of what is in sight of an image, with all that lies over it: copied, or printed on one page."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics, QGuiApplication, QImage, QPageLayout, QPaintDevice, QPainter

from fieldray.desktop.notices import NoticeBoard
from fieldray.desktop.style import colour, kept, scaled
from fieldray.desktop.viewer import Viewer
from fieldray.formatting import research_only
from fieldray.translation import Translator

_PIXELS_PER_POINT: Final = 2.0  # at least: more than the screen may have


def picture_of(viewer: Viewer, translator: Translator) -> QImage | None:
    """The picture, and below it that it is for research only; None while no image is in sight."""
    pyramid, font = viewer.pyramid, scaled(viewer.font(), 0.92)
    if pyramid is None:
        return None
    size, ratio = viewer.size(), max(_PIXELS_PER_POINT, viewer.devicePixelRatio())
    strip = QRect(0, size.height(), size.width(), 2 * QFontMetrics(font).height())
    picture = QImage((size + QSize(0, strip.height())) * ratio, QImage.Format.Format_RGB32)
    picture.setDevicePixelRatio(ratio)
    picture.fill(colour("dark", "image"))
    painter = QPainter(picture)
    with kept(painter):
        painter.setClipRect(viewer.rect())
        viewer.draw(painter, pyramid)
    painter.setFont(font)
    painter.setPen(colour("dark", "on_image"))
    painter.drawText(strip, Qt.AlignmentFlag.AlignCenter, research_only(translator))
    painter.end()
    return picture


def copy_picture(viewer: Viewer, translator: Translator, board: NoticeBoard) -> None:
    """Put the picture on the clipboard, and say so."""
    picture = picture_of(viewer, translator)
    if picture is not None:
        QGuiApplication.clipboard().setImage(picture)
        board.post("copied", lambda t: t.text("The image is copied as it is in sight."))


def print_picture(viewer: Viewer, translator: Translator) -> None:
    """Ask for a printer, or a PDF file, and print the picture there."""
    from PySide6.QtPrintSupport import QPrintDialog, QPrinter

    picture = picture_of(viewer, translator)
    if picture is None:
        return
    printer = QPrinter(QPrinter.PrinterMode.HighResolution)
    printer.setDocName("Fieldray")  # and nobody's name: it stands in the printer's queue
    is_wide = picture.width() > picture.height()
    printer.setPageOrientation(QPageLayout.Orientation.Landscape if is_wide else QPageLayout.Orientation.Portrait)
    dialog = QPrintDialog(printer, viewer.window())
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.accepted.connect(lambda: lay_on_page(printer, picture))
    dialog.setModal(True)
    dialog.show()


def lay_on_page(page: QPaintDevice, picture: QImage) -> None:
    """Draw a picture as large as it fits, at the top of a page."""
    painter = QPainter(page)
    room = painter.viewport()
    size = picture.size().scaled(room.size(), Qt.AspectRatioMode.KeepAspectRatio)
    painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
    painter.drawImage(QRect((room.width() - size.width()) // 2, 0, size.width(), size.height()), picture)
    painter.end()

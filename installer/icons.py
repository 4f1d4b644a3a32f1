"""Draw the program's icon from `assets/icons/fieldray.svg` as PNG files and a Windows icon. Needs Qt and Pillow."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

SIDES: Final = (16, 24, 32, 48, 64, 128, 256)
_DRAWING: Final = Path(__file__).resolve().parent.parent / "assets" / "icons" / "fieldray.svg"


def main(folder: Path) -> int:
    """Write a file `fieldray-<side>.png` for each side in pixels, and `fieldray.ico` with all sides. Returns 0."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from PIL import Image
    from PySide6.QtCore import Qt
    from PySide6.QtGui import QGuiApplication, QImage, QPainter
    from PySide6.QtSvg import QSvgRenderer

    application = QGuiApplication(sys.argv[:1])
    folder.mkdir(parents=True, exist_ok=True)
    renderer = QSvgRenderer(str(_DRAWING))
    for side in SIDES:
        image = QImage(side, side, QImage.Format.Format_ARGB32)
        image.fill(Qt.GlobalColor.transparent)
        painter = QPainter(image)
        renderer.render(painter)
        painter.end()
        image.save(str(folder / f"fieldray-{side}.png"))
    pictures = [Image.open(folder / f"fieldray-{side}.png") for side in SIDES]
    pictures[-1].save(folder / "fieldray.ico", append_images=pictures[:-1], sizes=[(side, side) for side in SIDES])
    application.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

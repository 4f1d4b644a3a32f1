"""The program's real window, without a screen."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import cast

from PySide6.QtWidgets import QApplication

from benchmarks.heart import Heart
from fieldray.desktop.application import Application, favour_the_window
from fieldray.desktop.services import OpenServices, open_services
from fieldray.settings import Settings


@contextlib.contextmanager
def real_window(pack_id: str, *, services: OpenServices = open_services) -> Iterator[Application]:
    """The window with a pack in use, as `favour_the_window` has it; it is closed at the end."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    qt = cast("QApplication", QApplication.instance() or QApplication([]))
    qt.setQuitOnLastWindowClosed(False)
    settings = Settings({"language": "en", "theme": "light", "pack": pack_id})
    application = Application(qt, settings, services=services)
    favour_the_window(application)
    ended: list[bool] = []
    application.ended.connect(lambda: ended.append(True))
    application.show()
    heart = Heart()
    try:
        heart.run_until(lambda: application.controller.packs.model is not None)
        yield application
    finally:
        application.controller.close()
        heart.run_until(lambda: bool(ended))

"""Take screenshots of the window for the documents, with the images of the demonstration. No screen is needed.

    python tools/screenshots.py docs/guide [--language en] [--theme light] [--size 1366x768] [--pack FOLDER]

The files are named LANGUAGE-NAME.png. `make pictures` takes the screenshots of the user guide in each of its languages.
The screenshots have only 256 colours, to keep the installed program small. Without `--pack`, the program chooses the
pack that fits the images. The settings of the user are not changed: the script uses a temporary data folder.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from PySide6.QtCore import QCoreApplication

    from fieldray.desktop.worklist_model import WorkListModel

_WAIT_S = 120.0
_SETTLE_S = 0.5


def main() -> int:
    """Take all screenshots with the options of the command line. Returns 0 if all were taken."""
    parser = argparse.ArgumentParser(description="Take screenshots of the window with the demo images.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--size", default="1366x768")
    parser.add_argument("--language", default="en")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--part", choices=("children", "adults"), default="children")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"))) and sys.platform == "linux":
        os.environ["QT_QPA_PLATFORM"] = "offscreen"
    with tempfile.TemporaryDirectory() as home:
        os.environ["FIELDRAY_HOME"] = home
        return _take_pictures(options, Path(home))


def _take_pictures(options: argparse.Namespace, home: Path) -> int:
    from PySide6.QtWidgets import QApplication

    from fieldray.desktop.application import Application
    from fieldray.imaging.synthetic import DEMO_IMAGE_SETS, demo_files
    from fieldray.packs.library import PackLibrary
    from fieldray.packs.site_choices import RememberedPacks
    from fieldray.packs.verified import read_verified_manifest
    from fieldray.settings import Settings

    if options.pack:
        library = PackLibrary(home)
        library.trust_store.trust(read_verified_manifest(options.pack).fingerprint)
        library.install(options.pack)
    part = next(part for part in DEMO_IMAGE_SETS if part.name == options.part)
    images = _written(demo_files(part), home / "demo" / part.name)
    pack = read_verified_manifest(options.pack).content.id if options.pack else part.pack_id
    qt = QApplication(sys.argv[:1])
    application = Application(qt, Settings({"language": options.language, "theme": options.theme}))
    application.show()
    window, bench = application.window, application.controller
    assert window is not None
    window.showNormal()
    window.resize(*map(int, options.size.split("x")))

    def until(is_so: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _WAIT_S
        while not is_so() and time.monotonic() < deadline:
            qt.processEvents()
            time.sleep(0.005)
        return is_so()

    def save(name: str) -> None:
        _settle(qt)
        path = options.folder / f"{options.language}-{name}.png"
        window.grab().save(str(path))
        _reduce(path)

    taken = until(lambda: any(card.isVisible() for card in window.welcome.cards))
    save("welcome")
    RememberedPacks(home).remember([images], pack, ages_confirmed=True)
    bench.screening.screen_paths([images])
    taken = taken and until(
        lambda: (
            bench.screening.state in ("finished", "failed")
            and bench.rows.total_image_count() == len(list(images.iterdir()))
        )
    )
    window.work_list.select_first_or_last(is_last=False)
    taken = taken and until(lambda: bench.image.pyramid is not None)
    save("result")
    shown = bench.image.pyramid
    taken = taken and until(lambda: _row_of(bench.rows, "refused-on-its-side") is not None)
    window.work_list.select_image(_row_of(bench.rows, "refused-on-its-side") or 0)
    taken = taken and until(lambda: bench.image.pyramid not in (None, shown))
    save("refused")
    window.actions_by_name["packs"].trigger()
    save("packs")
    ended: list[bool] = []
    application.ended.connect(lambda: ended.append(True))
    bench.close()
    until(lambda: bool(ended))
    return 0 if taken else 1


def _settle(qt: QCoreApplication) -> None:
    """Process Qt events for half a second, so that the layout of the window is final before the screenshot."""
    end = time.monotonic() + _SETTLE_S
    while time.monotonic() < end:
        qt.processEvents()
        time.sleep(0.005)


def _row_of(rows: WorkListModel, name: str) -> int | None:
    """Return the row id of the file whose name contains `name` in the work list. Returns None if it is not listed."""
    listed = [rows.row_at(rows.index(place, 0)) for place in range(rows.rowCount())]
    return next((row.row_id for row in listed if row is not None and name in row.outcome.ref.path.name), None)


def _written(files: Iterable[tuple[str, bytes]], folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in files:
        (folder / name).write_bytes(content)
    return folder


def _reduce(path: Path) -> None:
    """Reduce the image file at `path` to 256 colours that differ clearly from each other.

    An ordinary palette would keep mostly greys and lose the colours of the results.
    """
    with Image.open(path) as taken:
        colours = taken.convert("RGB")
    palette = colours.quantize(256, method=Image.Quantize.MAXCOVERAGE)
    few = colours.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
    few.save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())

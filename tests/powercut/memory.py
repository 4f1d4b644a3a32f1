"""Cases: memory runs out while images are read: the system ends a child, and the program continues."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from fieldray.imaging.synthetic import chest_phantom
from harness.case import Group
from harness.machine import command_line, descendants
from harness.record import Fate
from harness.world import World

CASES = Group("memory")
_COUNT: Final = 6
_LARGER: Final = 30  # 225 megapixels
_LIMIT_MB: Final = 200.0
_LOOK_S: Final = 0.005


class OutOfMemoryKiller:
    """Does what a system does that has no memory left: ends (SIGKILL) a reader once it takes much."""

    def __init__(self, process_id: int) -> None:
        self.killed: set[int] = set()
        self._process_id = process_id
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="out-of-memory")
        self._thread.start()

    def stop(self) -> int:
        """End it; how many processes it has ended."""
        self._is_over.set()
        self._thread.join()
        return len(self.killed)

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            for child in descendants(self._process_id):
                if b"imaging" in command_line(child) and _resident_mb(child) > _LIMIT_MB:
                    self.killed.add(child)
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)


def _resident_mb(process_id: int) -> float:
    try:
        pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@CASES.case("reader-killed", "the system ends whatever reads one large image: that image alone fails", limit_s=120)
def reader_killed(world: World) -> None:
    expected: dict[str, Fate] = {**world.good_images(_COUNT), "large.png": "screened"}
    small = (chest_phantom(500, 500, 7, abnormal=False) >> 4).astype(np.uint8)
    large = small.repeat(_LARGER, axis=0).repeat(_LARGER, axis=1)
    Image.fromarray(large).save(world.images / "large.png", compress_level=1)
    running = world.start_screen()
    killer = OutOfMemoryKiller(running.pid)
    try:
        done = running.finish().ends_with(1)
    finally:
        killed = killer.stop()
    done.has({**expected, "large.png": "failed"})
    (why,) = (line["reason_code"] for line in done.lines if line["status"] == "failed")
    assert (why, killed) == ("reader_killed", 2), (why, killed)
    world.screen(expected, codes=(0,))

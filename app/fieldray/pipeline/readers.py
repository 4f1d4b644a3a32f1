"""The processes of a run. Light to import, so that they can be started before everything else."""

from __future__ import annotations

import contextlib
import os

from fieldray.child import Child
from fieldray.imaging.pool import ReaderPool
from fieldray.inference.runtime import SERVICE
from fieldray.settings import Settings


def number_of_readers(settings: Settings) -> int:
    """As many files are read at the same time as the settings say, else as there are cores."""
    return settings.integer("decoders") or os.cpu_count() or 1


def start_network(settings: Settings) -> Child:
    """A process that will run the model on the processor; not started where only the stick may."""
    child = Child(SERVICE)
    if settings["device"] != "edgetpu":
        with contextlib.suppress(OSError):  # whoever is to use it tries again, and says why
            child.start()
    return child


def open_readers(settings: Settings, size: int) -> ReaderPool:
    """`size` processes with the limits of the settings; they start at once."""
    return ReaderPool(
        size,
        timeout_s=settings.integer("decode_timeout_s"),
        memory_limit_mb=settings.integer("decode_memory_mb"),
    )

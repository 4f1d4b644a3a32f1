"""The processes of a run. Light to import, so that they can be started before everything else."""

from __future__ import annotations

import contextlib
from typing import Final

from fieldray.child import Child
from fieldray.imaging.pool import ReaderPool
from fieldray.inference.cores import usable_cores
from fieldray.inference.runtime import SERVICE
from fieldray.settings import Settings

_MOST_READERS: Final = 8


def number_of_readers(settings: Settings) -> int:
    """As many files are read at the same time as the settings say, else as there are cores to use, up to eight.

    A core reads a film in several times the time that the network takes for it, so none is kept free for the network;
    the system shares them. Beyond eight, what the disk and this process can do sets the pace, and memory is spent.
    """
    return settings.integer("decoders") or min(usable_cores(), _MOST_READERS)


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

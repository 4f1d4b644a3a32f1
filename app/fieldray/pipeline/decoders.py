"""The processes of a run. Light to import, so that they can be started before everything else."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

from fieldray.backends import BACKENDS
from fieldray.errors import EnvironmentProblem
from fieldray.imaging.pool import DecoderPool
from fieldray.inference.runtime import model_process
from fieldray.processes.child import Child
from fieldray.processes.priority import usable_cores
from fieldray.processes.serving import memory_limit_mb
from fieldray.reasons import reason
from fieldray.settings import Settings

_MOST_DECODERS: Final = 8
# Pipes of a process, and the results as its two threads read them; what everything else has open, with some to spare.
_FILES_PER_DECODER: Final = 6
_OTHER_FILES: Final = 32
# Address space of this process, measured as VmPeak on 64-bit Linux with 1, 2, 4, 8 and 16 decoders: 1145, 1321, 1345,
# 1442 and 1635 MB. Nearly all of it is what each thread sets aside for its stack and its heap.
_OTHER_MEMORY_MB: Final = 1300
_MEMORY_MB_PER_DECODER: Final = 22


def number_of_decoders(settings: Settings) -> int:
    """How many files are decoded at the same time: as the settings say, else one per usable core, up to eight.

    A core reads an image in several times the time that the network takes for it, so none is kept free for the network;
    the system shares them. Beyond eight, what the disk and this process can do sets the pace, and memory is spent.
    """
    return settings.integer("decoders") or min(usable_cores(), _MOST_DECODERS)


def start_network(settings: Settings) -> Child:
    """A process that will run the model on the CPU; started only where a device that may be used computes there.

    Raises EnvironmentProblem (open_files, memory_limit).
    """
    _require_resources(number_of_decoders(settings))
    child = model_process()
    if any(entry.shares_cpu for entry in BACKENDS.chosen(str(settings["device"]))):
        with contextlib.suppress(OSError):  # its user tries again, and reports why
            child.start()
    return child


def open_decoders(settings: Settings, size: int) -> DecoderPool:
    """`size` processes with the limits of the settings; they start at once. Raises EnvironmentProblem, as above."""
    _require_resources(size)
    return DecoderPool(
        size,
        timeout_s=settings.integer("decode_timeout_s"),
        memory_limit_mb=settings.integer("decode_memory_mb"),
    )


def _require_resources(size: int) -> None:
    """What a run needs of this process's limits: said here once, or it would end somewhere in the middle of an image.

    Short of address space, Python may wait for ever for a thread that it has just started and that cannot begin.
    """
    if sys.platform == "win32":  # it sets no such limits
        return
    _require_open_files(size)
    limit_mb, needed_mb = memory_limit_mb(), _OTHER_MEMORY_MB + _MEMORY_MB_PER_DECODER * size
    if limit_mb is not None and limit_mb < needed_mb:
        raise EnvironmentProblem(reason("memory_limit", limit_mb=limit_mb, needed_mb=needed_mb))


def _require_open_files(size: int) -> None:
    import resource

    needed = _OTHER_FILES + _FILES_PER_DECODER * size
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        if most != resource.RLIM_INFINITY and most < needed:
            raise EnvironmentProblem(reason("open_files", limit=limit, needed=needed))
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))

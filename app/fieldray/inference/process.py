"""The child process that runs a model, and how much memory it may take.

Measured on 64-bit Linux with LiteRT 2.3.0 as the peak of the address space (VmPeak in /proc/PID/status) after `open`
and one `run`, with all thread_configurations tried on four cores, which is the most that are tried:

    the packs that ship (3 and 5 MB)                       560 MB
    ResNet50 of full width in float32, 224 x 224 (89 MB)  1139 MB

That is 560 MB and less than seven times the file, because up to six copies of its weights are there at once: a file of
256 MB, the largest that a pack may have, needs 2.3 GB. For the Edge TPU there is one network, so that a third of that
is left for libedgetpu, its threads and its copy of the file.
"""

from __future__ import annotations

from typing import Final

from fieldray.inference.runtime import SERVICE
from fieldray.processes.child import Child

MEMORY_LIMIT_MB: Final = 2560


def model_process() -> Child:
    """A process that will run a model, not started."""
    return Child(SERVICE, memory_limit_mb=MEMORY_LIMIT_MB)

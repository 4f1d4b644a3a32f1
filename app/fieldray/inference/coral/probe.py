"""A child's whole life: load the Edge TPU runtime library, say what it sees, end.

message   body: libraries (names to try; empty for this system's usual ones)
          -> body: library, runtime_version, devices ([kind, path], ...)
"""

from __future__ import annotations

from fieldray.inference.coral.library import EdgeTpuLibrary
from fieldray.processes.wire import Message


def handle(message: Message) -> Message:
    """Answer one message. Raises BackendProblem when the library cannot be loaded."""
    library = EdgeTpuLibrary(message.body["libraries"])
    return Message(
        {
            "library": library.name,
            "runtime_version": library.runtime_version,
            "devices": [[device.kind, device.path] for device in library.devices()],
        }
    )

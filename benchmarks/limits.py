"""What no program that reads images in full can go below: the bytes alone, and the pixels alone."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from benchmarks.conventional_reading import stored
from benchmarks.script import Loop
from fieldray.processes.wire import Message


class BytesAlone:
    """Every file's bytes are read, from the system's cache as a rule."""

    detail = "file read"

    def __init__(self, _message: Message) -> None:
        pass

    def do(self, path: str) -> None:
        """Read."""
        Path(path).read_bytes()


class PixelsAlone:
    """Every file's pixels are decoded at full size, and nothing is made of them."""

    def __init__(self, _message: Message) -> None:
        self.detail = f"pydicom {metadata.version('pydicom')}, Pillow {metadata.version('pillow')}"

    def do(self, path: str) -> None:
        """Read and decode."""
        stored(path)


read_bytes = Loop(BytesAlone).handle
decode_in_full = Loop(PixelsAlone).handle

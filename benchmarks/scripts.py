"""What the program is compared with: scripts that do one file after another, each in a process of its own.

Every contestant answers two messages:

open  body: what it needs (see each contestant), first: files to warm up with; array model, where it takes one
      -> body: detail (what it is, with versions)
read  body: paths (or folder, for the program itself)
      -> body: seconds, cpu_s (None where not known), files, failed, detail
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.pixels import apply_modality_lut, apply_voi_lut

from fieldray.inference.litert import load_runtime
from fieldray.processes.wire import Message

log = logging.getLogger(__name__)

# pydicom warns about much. Scripts usually silence it, and warnings cost time.
warnings.simplefilter("ignore")


class Script(Protocol):
    """A program that does one file after another."""

    @property
    def detail(self) -> str:
        """The libraries it uses, with their versions."""
        ...

    def do(self, path: str) -> None:
        """Everything that has to be done for one file. May raise anything."""
        ...


class Loop:
    """The child's side of a script. `make` gets the opening message."""

    def __init__(self, make: Callable[[Message], Script]) -> None:
        self._make = make
        self._script: Script | None = None

    def handle(self, message: Message) -> Message:
        """Answer `open` and `read`; a file that the script cannot process is counted in `failed`."""
        if message.body["ask"] == "open":
            self._script = self._make(message)
            self._do(message.body["first"])
            return Message({"detail": self._script.detail})
        # A script starts no other process, so its own time is all there is, and finer than the system's count.
        before_s, began_s = time.process_time(), time.perf_counter()
        failed = self._do(message.body["paths"])
        seconds, spent_s = time.perf_counter() - began_s, time.process_time() - before_s
        files = len(message.body["paths"])
        return Message({"seconds": seconds, "cpu_s": spent_s, "files": files, "failed": failed})

    def _do(self, paths: Sequence[str]) -> int:
        """The number of files that failed."""
        assert self._script is not None
        failed = 0
        for path in paths:
            try:
                self._script.do(path)
            except Exception as error:
                log.warning("%s: %s", path, error)
                failed += 1
        return failed


# ---- how scripts read images: pydicom for DICOM, Pillow for PNG and JPEG, always at full size


def is_png_or_jpeg(path: str) -> bool:
    """Decide by the file's name, as scripts do."""
    return path.endswith((".png", ".jpg"))


def stored(path: str) -> NDArray[Any]:
    """Stored values, (rows, columns)."""
    if is_png_or_jpeg(path):
        return np.asarray(Picture.open(path))
    return cast("NDArray[Any]", dcmread(path).pixel_array)


def shown(path: str) -> NDArray[np.float32]:
    """Grey values after modality LUT and VOI LUT, 0 is black. The range depends on the file."""
    if is_png_or_jpeg(path):
        return np.asarray(Picture.open(path)).astype(np.float32)
    dataset = dcmread(path)
    values: NDArray[np.float32] = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset).astype("f4")
    return values.max() - values if dataset.PhotometricInterpretation == "MONOCHROME1" else values


def in_8_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The whole range of values scaled to 0..255."""
    if values.dtype == np.uint8:
        return values
    low, high = values.min(), values.max()
    scaled: NDArray[np.uint8] = ((values - low) * np.float32(255 / max(high - low, 1))).astype(np.uint8)
    return scaled


# ---- the scripts


class _LiteRTScript:
    """One interpreter; the array `model` of the opening message is the network's file."""

    def __init__(self, message: Message, library: str) -> None:
        runtime = load_runtime()
        self._interpreter = runtime.interpreter(model_content=message.arrays["model"].tobytes())
        self._interpreter.allocate_tensors()
        self._input: Any = self._interpreter.get_input_details()[0]
        self._output = self._interpreter.get_output_details()[0]["index"]
        self.detail = f"{library} {metadata.version(library)}, {runtime.name} {runtime.version}"

    def _infer(self, grey: NDArray[Any]) -> None:
        """Run the network on (rows, columns) of its own size and type."""
        values = np.repeat(grey[None, :, :, None], int(self._input["shape"][3]), axis=3)
        self._interpreter.set_tensor(self._input["index"], values)
        self._interpreter.invoke()
        self._interpreter.get_tensor(self._output)


class ConventionalScript(_LiteRTScript):
    """What tutorials show: pydicom, modality and VOI LUT, Pillow resize; the network is the pack's int8 file."""

    def __init__(self, message: Message) -> None:
        super().__init__(message, "pydicom")

    def do(self, path: str) -> None:
        """From file to scores."""
        _, rows, columns, _ = self._input["shape"]
        image = Picture.fromarray(in_8_bits(shown(path))).convert("L")
        small = np.asarray(image.resize((int(columns), int(rows)), Picture.Resampling.BILINEAR))
        self._infer(_as_input(small, self._input["dtype"]))


def _as_input(values: NDArray[np.uint8], dtype: Any) -> NDArray[Any]:
    if dtype is np.float32:
        return values.astype(np.float32) / 255
    return values if dtype is np.uint8 else (values.astype(np.int16) - 128).astype(np.int8)


class DissertationScript(_LiteRTScript):
    """The dissertation's way: Pillow resize and a float32 network of full width that takes values in 0..1.

    Its program read PNG and JPEG only. DICOM is read by `pixel_array` here, because Pillow cannot.
    """

    def __init__(self, message: Message) -> None:
        super().__init__(message, "pillow")

    def do(self, path: str) -> None:
        """From file to scores."""
        _, rows, columns, _ = self._input["shape"]
        image = Picture.open(path) if is_png_or_jpeg(path) else Picture.fromarray(in_8_bits(stored(path)))
        self._infer(np.asarray(image.convert("L").resize((int(columns), int(rows))), np.float32) / 255)


# ---- bounds: the bytes alone, and the pixels alone; no program that reads images in full is faster


class BytesAlone:
    """Reads every file's bytes, usually from the system's cache."""

    detail = "file read"

    def __init__(self, _message: Message) -> None:
        pass

    def do(self, path: str) -> None:
        """Read."""
        Path(path).read_bytes()


class PixelsAlone:
    """Decodes every file at full size and discards the pixels."""

    def __init__(self, _message: Message) -> None:
        self.detail = f"pydicom {metadata.version('pydicom')}, Pillow {metadata.version('pillow')}"

    def do(self, path: str) -> None:
        """Read and decode."""
        stored(path)


conventional = Loop(ConventionalScript).handle
dissertation = Loop(DissertationScript).handle
read_bytes = Loop(BytesAlone).handle
decode_in_full = Loop(PixelsAlone).handle

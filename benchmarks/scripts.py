"""The usual script, with which this program is compared: processes one file after another, as tutorials show.

The script uses pydicom for DICOM, Pillow for PNG and JPEG, always the full image size, and the pack's int8 file.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.pixels import apply_modality_lut, apply_voi_lut

from fieldray.inference.litert import load_runtime
from fieldray.processes.wire import Message

log = logging.getLogger(__name__)

# Scripts usually silence pydicom's many warnings, which cost time.
warnings.simplefilter("ignore")


class ConventionalScript:
    """The usual script: modality LUT and VOI LUT, Pillow's resize, and one interpreter of the network.

    The opening message has the network file.
    """

    def __init__(self, model: bytes) -> None:
        runtime = load_runtime()
        self._interpreter = runtime.interpreter(model_content=model)
        self._interpreter.allocate_tensors()
        self._input: Any = self._interpreter.get_input_details()[0]
        self._output = self._interpreter.get_output_details()[0]["index"]
        self.detail = f"pydicom {metadata.version('pydicom')}, {runtime.name} {runtime.version}"

    def process_file(self, path: str) -> None:
        """Process the file at `path`, from bytes to scores. Raises any exception if the file cannot be processed."""
        _, rows, columns, channels = self._input["shape"]
        image = Picture.fromarray(scale_to_8_bits(read_grey_values(path))).convert("L")
        small = np.asarray(image.resize((int(columns), int(rows)), Picture.Resampling.BILINEAR))
        values = np.repeat(_as_input(small, self._input["dtype"])[None, :, :, None], int(channels), axis=3)
        self._interpreter.set_tensor(self._input["index"], values)
        self._interpreter.invoke()
        self._interpreter.get_tensor(self._output)


def read_grey_values(path: str) -> NDArray[np.float32]:
    """Return the grey values (rows, columns) of an image file after modality LUT and VOI LUT, 0 for black.

    The range of the values depends on the file.
    """
    if path.endswith((".png", ".jpg")):
        return np.asarray(Picture.open(path)).astype(np.float32)
    dataset = dcmread(path)
    values: NDArray[np.float32] = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset).astype("f4")
    return values.max() - values if dataset.PhotometricInterpretation == "MONOCHROME1" else values


def scale_to_8_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Scale values linearly, so that the lowest value becomes 0 and the highest 255. Returns uint8."""
    if values.dtype == np.uint8:
        return values
    low, high = values.min(), values.max()
    scaled: NDArray[np.uint8] = ((values - low) * np.float32(255 / max(high - low, 1))).astype(np.uint8)
    return scaled


def _as_input(values: NDArray[np.uint8], dtype: Any) -> NDArray[Any]:
    if dtype is np.float32:
        return values.astype(np.float32) / 255
    return values if dtype is np.uint8 else (values.astype(np.int16) - 128).astype(np.int8)


class ScriptService:
    """Answers the messages of a speed comparison in a child process (see `contestants`).

    `failed` is the number of files that the script could not process.
    """

    def __init__(self) -> None:
        self._script: ConventionalScript | None = None

    def handle(self, message: Message) -> Message:
        """Answer a message: "open" loads the network, "read" processes files and returns the figures."""
        if message.body["ask"] == "open":
            self._script = ConventionalScript(message.arrays["model"].tobytes())
            self._do(message.body["first"])
            return Message({"detail": self._script.detail})
        # A script has no child processes. So the time of this process is enough, and more exact than psutil's.
        before_s, began_s, paths = time.process_time(), time.perf_counter(), message.body["paths"]
        failed = self._do(paths)
        seconds, spent_s = time.perf_counter() - began_s, time.process_time() - before_s
        return Message({"seconds": seconds, "cpu_s": spent_s, "files": len(paths), "failed": failed})

    def _do(self, paths: Sequence[str]) -> int:
        """Process the files `paths`. Returns the number of files that could not be processed."""
        assert self._script is not None
        failed = 0
        for path in paths:
            try:
                self._script.process_file(path)
            except Exception as error:
                log.warning("%s: %s", path, error)
                failed += 1
        return failed


handle = ScriptService().handle

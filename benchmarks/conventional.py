"""The conventional script: pydicom, modality and VOI LUT, Pillow resize, the pack's int8 file, one after another."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np
from PIL import Image as Picture

from benchmarks.conventional_reading import in_8_bits, shown
from benchmarks.script import Loop
from fieldray.inference.runtime import load_runtime
from fieldray.processes.wire import Message


class ConventionalScript:
    """The network's input and file are the pack's; everything else is what tutorials show."""

    def __init__(self, message: Message) -> None:
        runtime = load_runtime()
        self._interpreter = runtime.interpreter(model_content=message.arrays["model"].tobytes())
        self._interpreter.allocate_tensors()
        self._input: Any = self._interpreter.get_input_details()[0]
        self._output = self._interpreter.get_output_details()[0]["index"]
        self.detail = f"pydicom {metadata.version('pydicom')}, {runtime.name} {runtime.version}"

    def do(self, path: str) -> None:
        """From file to scores."""
        _, rows, columns, channels = self._input["shape"]
        picture = Picture.fromarray(in_8_bits(shown(path))).convert("L")
        small = np.asarray(picture.resize((int(columns), int(rows)), Picture.Resampling.BILINEAR))
        values = np.repeat(small[None, :, :, None], channels, axis=3)
        self._interpreter.set_tensor(self._input["index"], _as_input(values, self._input["dtype"]))
        self._interpreter.invoke()
        self._interpreter.get_tensor(self._output)


def _as_input(values: np.ndarray[Any, np.dtype[np.uint8]], dtype: Any) -> np.ndarray[Any, Any]:
    if dtype is np.float32:
        return values.astype(np.float32) / 255
    return values if dtype is np.uint8 else (values.astype(np.int16) - 128).astype(np.int8)


handle = Loop(ConventionalScript).handle

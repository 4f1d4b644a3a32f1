"""The dissertation's way: Pillow resize and a floating-point network of full width, one after another.

Its program read pictures only; DICOM is read by `pixel_array` here, because Pillow reads none.
"""

from __future__ import annotations

from importlib import metadata

import numpy as np
from PIL import Image as Picture

from benchmarks.conventional_reading import in_8_bits, is_picture, stored
from benchmarks.script import Loop
from fieldray.inference.runtime import load_runtime
from fieldray.processes.wire import Message


class DissertationScript:
    """`model` is a float32 file that takes values in 0..1."""

    def __init__(self, message: Message) -> None:
        runtime = load_runtime()
        self._interpreter = runtime.interpreter(model_content=message.arrays["model"].tobytes())
        self._interpreter.allocate_tensors()
        self._input = self._interpreter.get_input_details()[0]
        self._output = self._interpreter.get_output_details()[0]["index"]
        self.detail = f"Pillow {metadata.version('pillow')}, {runtime.name} {runtime.version}"

    def do(self, path: str) -> None:
        """From file to scores."""
        _, rows, columns, channels = self._input["shape"]
        picture = Picture.open(path) if is_picture(path) else Picture.fromarray(in_8_bits(stored(path)))
        small = np.asarray(picture.convert("L").resize((int(columns), int(rows))), np.float32) / 255
        self._interpreter.set_tensor(self._input["index"], np.repeat(small[None, :, :, None], channels, axis=3))
        self._interpreter.invoke()
        self._interpreter.get_tensor(self._output)


handle = Loop(DissertationScript).handle

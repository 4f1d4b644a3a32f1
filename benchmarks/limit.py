"""The limit of the speed comparison: process images with the least possible CPU time.

An image is read once, at the resolution that both networks need, by the fastest decoder that can be installed. Then the
SHA-256 of the bytes is computed, and the lung network and the classifier run once. Nothing is checked or stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import struct
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import get_frame
from pydicom.uid import JPEG2000Lossless, JPEGLSLossless, RLELossless

from fieldray.imaging.codecs.jpeg2000 import bits_and_decomposition_levels, decode_jpeg2000
from fieldray.imaging.reduction import JPEG_REDUCTIONS, block_means
from fieldray.inference.litert import load_runtime
from fieldray.processes.wire import Message

_CROP_SHARE: Final = 0.6  # usual height and width of the lungs' crop, as a share of the image's


class LimitService:
    """Answers the messages of a speed comparison in a child process (see `contestants`)."""

    def __init__(self) -> None:
        self._networks: list[tuple[Any, Any]] = []
        self._sides = 0.0

    def handle(self, message: Message) -> Message:
        """Answer a message: "open" loads the networks, "read" processes files and returns the figures."""
        if message.body["ask"] == "open":
            runtime = load_runtime()
            for name in ("model", "lungs"):
                if name in message.arrays:
                    network = runtime.interpreter(model_content=message.arrays[name].tobytes(), num_threads=1)
                    network.allocate_tensors()
                    self._networks.append((network, network.get_input_details()[0]))
            # The classifier sees only the lungs' crop, so the whole image needs more pixels than the network's input.
            sides = [int(spec["shape"][1]) for _, spec in self._networks]
            self._sides = max(sides[0] / (_CROP_SHARE if len(sides) > 1 else 1), *sides)
            for path in message.body["first"]:
                with contextlib.suppress(ValueError):  # a kind of file that the limit does not process
                    self._do(path)
            return Message({"detail": "one reading, hash, networks"})
        before_s, began_s, paths = time.process_time(), time.perf_counter(), message.body["paths"]
        for path in paths:
            self._do(path)
        seconds, spent_s = time.perf_counter() - began_s, time.process_time() - before_s
        return Message({"seconds": seconds, "cpu_s": spent_s, "files": len(paths), "failed": 0})

    def _do(self, path: str) -> None:
        data = Path(path).read_bytes()
        hashlib.sha256(data)
        picture = Picture.fromarray(read_reduced(data, self._sides))
        for network, spec in self._networks:
            _, rows, columns, channels = (int(side) for side in spec["shape"])
            small = np.asarray(picture.resize((columns, rows), Picture.Resampling.BILINEAR))
            values = np.repeat(small[None, :, :, None], channels, axis=3)
            network.set_tensor(spec["index"], values.astype(spec["dtype"]))
            network.invoke()


def read_reduced(data: bytes, side: float) -> NDArray[np.float32]:
    """Decode an image file at a reduced resolution. Returns the pixels (rows, columns).

    The reduction is the largest that leaves at least `side` rows and columns.
    """
    if data[:2] == b"\xff\xd8":
        image = Picture.open(io.BytesIO(data))
        step = _step(image.size, side, JPEG_REDUCTIONS)
        image.draft("L", (image.width // step, image.height // step))
        values = np.asarray(image)
        return block_means(values, _step(values.shape, side)).astype(np.float32)
    if data[:4] == b"\x89PNG":
        values = imagecodecs.png_decode(data)
        return block_means(values, _step(values.shape, side)).astype(np.float32)
    dataset = dcmread(io.BytesIO(data))
    values = _pixels(dataset, side)
    return block_means(values, _step(values.shape, side)).astype(np.float32)


def _pixels(dataset: Dataset, side: float) -> NDArray[Any]:
    syntax, shape = dataset.file_meta.TransferSyntaxUID, (int(dataset.Rows), int(dataset.Columns))
    if not syntax.is_encapsulated:
        return np.frombuffer(dataset.PixelData, f"<u{dataset.BitsAllocated // 8}").reshape(shape)
    source = get_frame(dataset.PixelData, 0, number_of_frames=1)
    if syntax == RLELossless:
        return _woven(source, shape)
    if syntax == JPEGLSLossless:
        values: NDArray[Any] = imagecodecs.jpegls_decode(source)
        return values
    if syntax != JPEG2000Lossless:
        raise ValueError(syntax)
    bits, levels = bits_and_decomposition_levels(source)
    return decode_jpeg2000(source, _step(shape, side, [1 << level for level in range(levels + 1)]), bits)


def _woven(source: bytes, shape: tuple[int, int]) -> NDArray[np.uint16]:
    count, *starts = struct.unpack("<16I", source[:64])
    values = np.empty((shape[0] * shape[1], count), np.uint8)
    for at, (start, end) in enumerate(pairwise([*starts[:count], len(source)])):
        plane = np.frombuffer(imagecodecs.packbits_decode(source[start:end]), np.uint8)
        values[:, count - 1 - at] = plane[: len(values)]
    return values.view(f"<u{count}").reshape(shape)


def _step(size: Sequence[int], side: float, steps: Iterable[int] = range(1, 65)) -> int:
    return max(step for step in steps if step == 1 or step * side <= min(size))


handle = LimitService().handle

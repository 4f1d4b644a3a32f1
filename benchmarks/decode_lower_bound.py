"""The least CPU time in which maintained decoders can give a reduced image.

For every file each installed decoder of its format is tried, reduced where possible, and the fastest one counts. The
position of the compressed frame is looked up before: what is timed is reading those bytes, decoding, and sums over
blocks of pixels, down to the resolution that the program itself would read (`imaging.reduction`).
"""

from __future__ import annotations

import functools
import io
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Picture
from pydicom import dcmread
from pydicom.encaps import get_frame
from pydicom.pixels import get_decoder
from pydicom.uid import (
    HTJ2K,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    JPEG2000TransferSyntaxes,
    JPEGBaseline8Bit,
    JPEGLSTransferSyntaxes,
    RLELossless,
)

from fieldray.domain.model import InputSpec
from fieldray.imaging.reduction import JPEG_REDUCTIONS, WAVELET_COVER, TargetSize, largest_reduction, target_size
from fieldray.processes.wire import Message

Values = NDArray[Any]
Decode = Callable[[bytes, "PixelLocation"], Values]
_HTJ2K: Final = frozenset({HTJ2KLossless, HTJ2KLosslessRPCL, HTJ2K})
_HOPELESS: Final = 1.5  # multiple of the fastest decoder's time; slower ones are not tried on every file


@dataclass(frozen=True, slots=True)
class PixelLocation:
    """Where a file's pixels are, how large the image is, and by which factor each side may shrink."""

    path: str
    offset: int
    length: int
    rows: int
    columns: int
    dtype: str
    bits: int
    form: str
    syntax: str
    factor: int


class DecodeLowerBound:
    """The child's side: remembers how long each decoder took for each format."""

    def __init__(self) -> None:
        self._needed = TargetSize(1, 1)
        self._tried: dict[str, dict[str, float]] = defaultdict(dict)

    def handle(self, message: Message) -> Message:
        """Answer `open` (body: `spec`, the network's input) and `read` (`cpu_s` of the fastest decoders only)."""
        if message.body["ask"] == "open":
            self._needed = target_size(InputSpec(**message.body["spec"]))
            self._read([locate(path, self._needed) for path in message.body["first"]])
            return Message({"detail": "numpy, Pillow, and each decoder by name"})
        locations = [locate(path, self._needed) for path in message.body["paths"]]
        began_s = time.perf_counter()
        spent_s, names = self._read(locations)
        detail = ", ".join(f"{name} {count}" for name, count in names.most_common())
        answer = {"seconds": time.perf_counter() - began_s, "cpu_s": spent_s, "detail": detail}
        return Message({**answer, "files": len(locations), "failed": 0})

    def _read(self, locations: list[PixelLocation]) -> tuple[float, Counter[str]]:
        total_s, names = 0.0, Counter[str]()
        for location in locations:
            took_s = {name: _timed(decode, location) for name, decode in self._candidates(location).items()}
            known = {name: seconds for name, seconds in took_s.items() if seconds is not None}
            if not known:
                raise ValueError(f"no decoder for {location.path}")
            for name, seconds in took_s.items():
                self._tried[location.form][name] = float("inf") if seconds is None else seconds / min(known.values())
            best = min(known, key=lambda name: known[name])
            total_s, names[best] = total_s + known[best], names[best] + 1
        return total_s, names

    def _candidates(self, location: PixelLocation) -> Mapping[str, Decode]:
        tried = self._tried[location.form]
        return {name: decode for name, decode in decoders(location).items() if tried.get(name, 1.0) < _HOPELESS}


def _timed(decode: Decode, location: PixelLocation) -> float | None:
    """CPU seconds, None if it cannot read the file."""
    began_s = time.process_time()
    try:
        with Path(location.path).open("rb") as stream:
            stream.seek(location.offset)
            decode(stream.read(location.length), location)
    except Exception:
        return None
    return time.process_time() - began_s


def locate(path: str, needed: TargetSize) -> PixelLocation:
    """Find a file's compressed frame or uncompressed pixels. Raises what pydicom and Pillow raise."""
    if path.endswith((".png", ".jpg")):
        with Picture.open(path) as picture:
            columns, rows, form = *picture.size, str(picture.format)
            bits = 16 if picture.mode.startswith("I") else 8
        size = Path(path).stat().st_size
        factor = largest_reduction(rows, columns, needed, steps=JPEG_REDUCTIONS if form == "JPEG" else None)
        return PixelLocation(path, 0, size, rows, columns, f"<u{bits // 8}", bits, form, "", factor)
    dataset = dcmread(path)
    syntax = dataset.file_meta.TransferSyntaxUID
    order = ">" if syntax == ExplicitVRBigEndian else "<"
    rows, columns, data = int(dataset.Rows), int(dataset.Columns), Path(path).read_bytes()
    frame = get_frame(dataset.PixelData, 0, number_of_frames=1) if syntax.is_compressed else dataset.PixelData
    form = "JPEG" if syntax == JPEGBaseline8Bit else syntax.name
    offset, length = data.find(frame), len(frame)
    if syntax == DeflatedExplicitVRLittleEndian:
        form, offset, length = "deflated", 0, len(data)
    elif not syntax.is_compressed:
        form = "uncompressed"
    dtype = f"{order}u{dataset.BitsAllocated // 8}"
    factor = largest_reduction(rows, columns, needed, steps=JPEG_REDUCTIONS if form == "JPEG" else None)
    if syntax in JPEG2000TransferSyntaxes:
        factor = largest_reduction(rows, columns, needed, cover=WAVELET_COVER, steps=[2**level for level in range(6)])
    return PixelLocation(path, offset, length, rows, columns, dtype, int(dataset.BitsStored), form, str(syntax), factor)


def decoders(location: PixelLocation) -> Mapping[str, Decode]:
    """Every installed decoder of a file's format, by name."""
    if location.form in _OF_FORM:
        return _OF_FORM[location.form]()
    if location.syntax in JPEG2000TransferSyntaxes:
        openjph = {"OpenJPH, reduced": _fast_wavelets} if location.syntax in _HTJ2K else {}
        return {"Pillow, reduced": _wavelets, **openjph}
    names = get_decoder(cast("Any", location.syntax)).available_plugins
    plugins = {name: functools.partial(_by_plugin, plugin=name) for name in names}
    if location.syntax == RLELossless:
        return {**plugins, **_imagecodecs("dicomrle")}
    if location.syntax in JPEGLSTransferSyntaxes:
        return {**plugins, "CharLS": _charls, **_imagecodecs("jpegls")}
    return {**plugins, **_imagecodecs("ljpeg", "jpeg8")}


def reduced(values: Values, location: PixelLocation) -> Values:
    """Sums over blocks of factor x factor pixels; incomplete blocks are cut off."""
    factor = location.factor
    rows, columns = (side // factor * factor for side in values.shape)
    values = values[:rows, :columns]
    # sums of rows that stay within 16 bits are several times as fast
    wide = np.uint16 if factor << location.bits <= 1 << 16 else np.uint32
    sums = values[::factor].astype(wide)
    for offset in range(1, factor):
        np.add(sums, values[offset::factor], out=sums, casting="unsafe")
    across = sums[:, ::factor].astype(np.uint32)
    for offset in range(1, factor):
        np.add(across, sums[:, offset::factor], out=across, casting="unsafe")
    return across


def _array(data: bytes, location: PixelLocation) -> Values:
    count = location.rows * location.columns
    return np.frombuffer(data, location.dtype, count).reshape(location.rows, location.columns)


def _inflated(data: bytes, location: PixelLocation) -> Values:
    meta = 144 + int.from_bytes(data[140:144], "little")
    plain = zlib.decompress(data[meta:], -zlib.MAX_WBITS)
    start = len(plain) - location.rows * location.columns * int(location.dtype[2])
    return reduced(_array(plain[start:], location), location)


def _jpeg(data: bytes, location: PixelLocation) -> Values:
    picture = Picture.open(io.BytesIO(data))
    picture.draft("L", (location.columns // location.factor, location.rows // location.factor))
    return np.asarray(picture)


def _png(data: bytes, location: PixelLocation) -> Values:
    picture = Picture.open(io.BytesIO(data))
    if picture.mode != "L":
        return reduced(np.asarray(picture), location)
    return np.asarray(picture.reduce(location.factor))


def _fast_wavelets(data: bytes, location: PixelLocation) -> Values:
    import imagecodecs

    values = imagecodecs.htj2k_decode(data, skipres=location.factor.bit_length() - 1)
    return np.asarray(values.view(f"i{values.itemsize}"))  # values below 0 wrap around


def _wavelets(data: bytes, location: PixelLocation) -> Values:
    picture: Any = Picture.open(io.BytesIO(data), formats=("JPEG2000",))
    levels = location.factor.bit_length() - 1
    # Pillow's own `reduce` rounds the size to the nearest integer, OpenJPEG up: where they differ, Pillow fails
    picture._size = tuple(-(-side >> levels) for side in picture.size)
    codec, _, offset, (mode, _, *rest) = picture.tile[0]
    picture.tile = [(codec, (0, 0, *picture.size), offset, (mode, levels, *rest))]
    return np.asarray(picture)


def _charls(data: bytes, location: PixelLocation) -> Values:
    import jpeg_ls

    return reduced(np.asarray(jpeg_ls.decode(np.frombuffer(data, np.uint8))), location)


def _by_plugin(data: bytes, location: PixelLocation, *, plugin: str) -> Values:
    decoder = get_decoder(cast("Any", location.syntax))
    options: dict[str, Any] = {"rows": location.rows, "columns": location.columns, "samples_per_pixel": 1}
    options |= {"bits_allocated": 8 * int(location.dtype[2]), "bits_stored": location.bits, "number_of_frames": 1}
    options |= {"photometric_interpretation": "MONOCHROME2", "pixel_representation": 0, "pixel_keyword": "PixelData"}
    from pydicom.encaps import encapsulate

    values, _ = decoder.as_array(encapsulate([data]), index=0, decoding_plugin=plugin, **options)
    return reduced(values, location)


def _imagecodecs(*names: str) -> Mapping[str, Decode]:
    """The available decoders of imagecodecs; the installed program does not contain all of them."""
    import imagecodecs as codecs

    def decode(data: bytes, location: PixelLocation, *, name: str) -> Values:
        more = (np.dtype(location.dtype),) if name == "dicomrle" else ()
        values = getattr(codecs, f"{name}_decode")(data, *more)
        if name == "dicomrle":
            values = np.frombuffer(values, location.dtype)
        return reduced(np.asarray(values).reshape(location.rows, location.columns), location)

    there = [name for name in names if getattr(codecs, name.upper()).available]
    return {f"imagecodecs {name}": functools.partial(decode, name=name) for name in there}


_OF_FORM: Final[Mapping[str, Callable[[], Mapping[str, Decode]]]] = {
    "JPEG": lambda: {"Pillow": _jpeg},
    "PNG": lambda: {"Pillow": _png, **_imagecodecs("png", "spng")},
    "uncompressed": lambda: {"numpy": lambda data, location: reduced(_array(data, location), location)},
    "deflated": lambda: {"zlib": _inflated},
}

handle = DecodeLowerBound().handle

"""The least processor time in which decoders that are kept up can give an image's reduced picture.

For every file each decoder at hand that reads its format is tried, reduced where it can be, and the quickest counts.
Where the compressed frame begins is looked up before: what is timed is reading those bytes, decoding, and sums over
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
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    JPEG2000TransferSyntaxes,
    JPEGBaseline8Bit,
    JPEGLSTransferSyntaxes,
    RLELossless,
)

from fieldray.domain.model import InputSpec
from fieldray.imaging.dicom_codecs import HIGH_THROUGHPUT
from fieldray.imaging.reduction import JPEG_REDUCTIONS, WAVELET_COVER, TargetSize, largest_reduction, target_size
from fieldray.processes.wire import Message

Values = NDArray[Any]
Decode = Callable[[bytes, "Place"], Values]
_HOPELESS: Final = 1.5  # times as slow as the quickest: not tried on every file


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file's pixels are, how large they are, and by which factor each side may shrink."""

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
        """`open` states `spec`, the network's input; `read` answers as all do, `cpu_s` of the quickest only."""
        if message.body["ask"] == "open":
            self._needed = target_size(InputSpec(**message.body["spec"]))
            self._read([locate(path, self._needed) for path in message.body["first"]])
            return Message({"detail": "numpy, Pillow, and each decoder by its name"})
        places = [locate(path, self._needed) for path in message.body["paths"]]
        began_s = time.perf_counter()
        spent_s, names = self._read(places)
        detail = ", ".join(f"{name} {count}" for name, count in names.most_common())
        answer = {"seconds": time.perf_counter() - began_s, "cpu_s": spent_s, "detail": detail}
        return Message({**answer, "files": len(places), "failed": 0})

    def _read(self, places: list[Place]) -> tuple[float, Counter[str]]:
        total_s, names = 0.0, Counter[str]()
        for place in places:
            took_s = {name: _timed(decode, place) for name, decode in self._candidates(place).items()}
            known = {name: seconds for name, seconds in took_s.items() if seconds is not None}
            if not known:
                raise ValueError(f"no decoder for {place.path}")
            for name, seconds in took_s.items():
                self._tried[place.form][name] = float("inf") if seconds is None else seconds / min(known.values())
            best = min(known, key=lambda name: known[name])
            total_s, names[best] = total_s + known[best], names[best] + 1
        return total_s, names

    def _candidates(self, place: Place) -> Mapping[str, Decode]:
        tried = self._tried[place.form]
        return {name: decode for name, decode in decoders(place).items() if tried.get(name, 1.0) < _HOPELESS}


def _timed(decode: Decode, place: Place) -> float | None:
    """Processor seconds, None if it cannot read the file."""
    began_s = time.process_time()
    try:
        with Path(place.path).open("rb") as stream:
            stream.seek(place.offset)
            decode(stream.read(place.length), place)
    except Exception:
        return None
    return time.process_time() - began_s


def locate(path: str, needed: TargetSize) -> Place:
    """Where a file's compressed frame or bare pixels are. Raises what pydicom and Pillow raise."""
    if path.endswith((".png", ".jpg")):
        with Picture.open(path) as picture:
            columns, rows, form = *picture.size, str(picture.format)
            bits = 16 if picture.mode.startswith("I") else 8
        size = Path(path).stat().st_size
        factor = largest_reduction(rows, columns, needed, steps=JPEG_REDUCTIONS if form == "JPEG" else None)
        return Place(path, 0, size, rows, columns, f"<u{bits // 8}", bits, form, "", factor)
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
        form = "bare"
    dtype = f"{order}u{dataset.BitsAllocated // 8}"
    factor = largest_reduction(rows, columns, needed, steps=JPEG_REDUCTIONS if form == "JPEG" else None)
    if syntax in JPEG2000TransferSyntaxes:
        factor = largest_reduction(rows, columns, needed, cover=WAVELET_COVER, steps=[2**level for level in range(6)])
    return Place(path, offset, length, rows, columns, dtype, int(dataset.BitsStored), form, str(syntax), factor)


def decoders(place: Place) -> Mapping[str, Decode]:
    """Every decoder at hand for a file's format, by name."""
    if place.form in _OF_FORM:
        return _OF_FORM[place.form]()
    if place.syntax in JPEG2000TransferSyntaxes:
        openjph = {"OpenJPH, reduced": _fast_wavelets} if place.syntax in HIGH_THROUGHPUT else {}
        return {"Pillow, reduced": _wavelets, **openjph}
    names = get_decoder(cast("Any", place.syntax)).available_plugins
    plugins = {name: functools.partial(_by_plugin, plugin=name) for name in names}
    if place.syntax == RLELossless:
        return {**plugins, **_imagecodecs("dicomrle")}
    if place.syntax in JPEGLSTransferSyntaxes:
        return {**plugins, "CharLS": _charls, **_imagecodecs("jpegls")}
    return {**plugins, **_imagecodecs("ljpeg", "jpeg8")}


def reduced(values: Values, place: Place) -> Values:
    """Sums over blocks of factor x factor pixels, what is left over at the end cut off."""
    factor = place.factor
    rows, columns = (side // factor * factor for side in values.shape)
    values = values[:rows, :columns]
    # sums of rows that stay within 16 bits are several times as quick
    wide = np.uint16 if factor << place.bits <= 1 << 16 else np.uint32
    sums = values[::factor].astype(wide)
    for offset in range(1, factor):
        np.add(sums, values[offset::factor], out=sums, casting="unsafe")
    across = sums[:, ::factor].astype(np.uint32)
    for offset in range(1, factor):
        np.add(across, sums[:, offset::factor], out=across, casting="unsafe")
    return across


def _array(data: bytes, place: Place) -> Values:
    count = place.rows * place.columns
    return np.frombuffer(data, place.dtype, count).reshape(place.rows, place.columns)


def _inflated(data: bytes, place: Place) -> Values:
    meta = 144 + int.from_bytes(data[140:144], "little")
    plain = zlib.decompress(data[meta:], -zlib.MAX_WBITS)
    start = len(plain) - place.rows * place.columns * int(place.dtype[2])
    return reduced(_array(plain[start:], place), place)


def _jpeg(data: bytes, place: Place) -> Values:
    picture = Picture.open(io.BytesIO(data))
    picture.draft("L", (place.columns // place.factor, place.rows // place.factor))
    return np.asarray(picture)


def _png(data: bytes, place: Place) -> Values:
    picture = Picture.open(io.BytesIO(data))
    if picture.mode != "L":
        return reduced(np.asarray(picture), place)
    return np.asarray(picture.reduce(place.factor))


def _fast_wavelets(data: bytes, place: Place) -> Values:
    import imagecodecs

    values = imagecodecs.htj2k_decode(data, skipres=place.factor.bit_length() - 1)
    return np.asarray(values.view(f"i{values.itemsize}"))  # what undershoots 0 wraps around


def _wavelets(data: bytes, place: Place) -> Values:
    picture: Any = Picture.open(io.BytesIO(data), formats=("JPEG2000",))
    levels = place.factor.bit_length() - 1
    # Pillow's own `reduce` rounds the size to the nearest, OpenJPEG up: where they differ Pillow finds no picture
    picture._size = tuple(-(-side >> levels) for side in picture.size)
    codec, _, offset, (mode, _, *rest) = picture.tile[0]
    picture.tile = [(codec, (0, 0, *picture.size), offset, (mode, levels, *rest))]
    return np.asarray(picture)


def _charls(data: bytes, place: Place) -> Values:
    import jpeg_ls

    return reduced(np.asarray(jpeg_ls.decode(np.frombuffer(data, np.uint8))), place)


def _by_plugin(data: bytes, place: Place, *, plugin: str) -> Values:
    decoder = get_decoder(cast("Any", place.syntax))
    options: dict[str, Any] = {"rows": place.rows, "columns": place.columns, "samples_per_pixel": 1}
    options |= {"bits_allocated": 8 * int(place.dtype[2]), "bits_stored": place.bits, "number_of_frames": 1}
    options |= {"photometric_interpretation": "MONOCHROME2", "pixel_representation": 0, "pixel_keyword": "PixelData"}
    from pydicom.encaps import encapsulate

    values, _ = decoder.as_array(encapsulate([data]), index=0, decoding_plugin=plugin, **options)
    return reduced(values, place)


def _imagecodecs(*names: str) -> Mapping[str, Decode]:
    """The decoders of that package; the installed program does not bring all of them."""
    import imagecodecs as codecs

    def decode(data: bytes, place: Place, *, name: str) -> Values:
        more = (np.dtype(place.dtype),) if name == "dicomrle" else ()
        values = getattr(codecs, f"{name}_decode")(data, *more)
        if name == "dicomrle":
            values = np.frombuffer(values, place.dtype)
        return reduced(np.asarray(values).reshape(place.rows, place.columns), place)

    there = [name for name in names if getattr(codecs, name.upper()).available]
    return {f"imagecodecs {name}": functools.partial(decode, name=name) for name in there}


_OF_FORM: Final[Mapping[str, Callable[[], Mapping[str, Decode]]]] = {
    "JPEG": lambda: {"Pillow": _jpeg},
    "PNG": lambda: {"Pillow": _png, **_imagecodecs("png", "spng")},
    "bare": lambda: {"numpy": lambda data, place: reduced(_array(data, place), place)},
    "deflated": lambda: {"zlib": _inflated},
}

handle = DecodeLowerBound().handle

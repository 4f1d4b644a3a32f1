"""Attack cases: hostile image files next to good images, which must still get their score.

The files state wrong sizes, or decompress to gigabytes. Each has a few megabytes at most.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image
from pydicom.uid import UID, JPEG2000Lossless, JPEGBaseline8Bit, JPEGLSLossless, RLELossless

from benchmarks.image_files import set_compressed_frame
from fieldray.imaging.synthetic import chest_phantom, dicom_dataset
from harness.case import Group
from harness.record import Fate
from harness.world import World
from phantoms import saved, scaled, write_dicom

CASES = Group("images")
PIXELS: Final = chest_phantom(160, 128, 7, abnormal=False)
GREY: Final = scaled(PIXELS, 8)
JPEG: Final = saved(Image.fromarray(GREY), "JPEG")
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


@functools.cache
def zeros(size: int, *, wbits: int = zlib.MAX_WBITS) -> bytes:
    """Return `size` zero bytes, deflated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    parts = [packer.compress(bytes(2**20)) for _ in range(size // 2**20)]
    return b"".join([*parts, packer.compress(bytes(size % 2**20)), packer.flush()])


# ---- PNG and JPEG


def png(columns: int, rows: int, data: bytes, *, bits: int = 8, colour: int = 0, extra: Iterable[bytes] = ()) -> bytes:
    """Return a PNG with this size in its header and these deflated rows."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, bits, colour, 0, 0, 0))
    return b"".join([_SIGNATURE, header, *extra, chunk(b"IDAT", data), chunk(b"IEND", b"")])


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a PNG chunk."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def good_lines() -> bytes:
    """Return the phantom's rows, deflated as in a PNG."""
    return zlib.compress(b"".join(b"\0" + line.tobytes() for line in GREY))


def png_with(extra: bytes) -> bytes:
    """Return the phantom as PNG with one more chunk."""
    return png(GREY.shape[1], GREY.shape[0], good_lines(), extra=[extra])


def jpeg_with_size(columns: int, rows: int) -> bytes:
    """Return the phantom as JPEG with another size in its frame header."""
    data = bytearray(JPEG)
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", rows, columns)
    return bytes(data)


def jpeg_of_many_segments(number: int) -> bytes:
    """Return a JPEG with `number` comments before its image."""
    return JPEG[:2] + b"\xff\xfe\x00\x03x" * number + JPEG[2:]


# ---- DICOM


def dicom(path: Path, **options: Any) -> bytes:
    """Return the phantom as the bytes of a DICOM file. `options` are those of `phantoms.write_dicom`."""
    write_dicom(path, PIXELS, **options)
    data = path.read_bytes()
    path.unlink()
    return data


def deflated(path: Path, size: int) -> bytes:
    """Return a DICOM file whose data set is deflated and has a private element of `size` bytes."""
    data = dicom(path, transfer_syntax=UID("1.2.840.10008.1.2.1.99"))
    (length,) = struct.unpack("<I", data[140:144])
    meta = data[: 144 + length]
    inflated = zlib.decompress(data[144 + length :], -15)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    private = b"\x01\x70\x10\x10OB\0\0" + struct.pack("<I", size)
    at = inflated.index(b"\xe0\x7f\x10\x00OW")
    parts = [packer.compress(inflated[:at] + private)]
    parts += [packer.compress(bytes(2**20)) for _ in range(size // 2**20)]
    return b"".join([meta, *parts, packer.compress(inflated[at:]), packer.flush()])


def encapsulated(path: Path, frame: bytes, syntax: UID, **changes: Any) -> bytes:
    """Return a compressed DICOM file with these bytes as its only frame."""
    dataset = dicom_dataset(PIXELS, study_number=1)
    dataset.file_meta.TransferSyntaxUID = syntax
    for keyword, value in {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7, **changes}.items():
        setattr(dataset, keyword, value)
    set_compressed_frame(dataset, frame)
    dataset.save_as(path, enforce_file_format=True)
    data = path.read_bytes()
    path.unlink()
    return data


def fragments(path: Path, number: int) -> bytes:
    """Return a compressed DICOM image with `number` additional fragments of two bytes."""
    data = encapsulated(path, JPEG, JPEGBaseline8Bit)
    at = data.rindex(b"\xfe\xff\xdd\xe0")
    return data[:at] + b"\xfe\xff\x00\xe0\x02\0\0\0\0\0" * number + data[at:]


def codestream_lies(path: Path) -> dict[str, bytes]:
    """Return, by name, compressed frames with a wrong size in their own header, such as 60,000 pixels a side."""
    vast = 60_000
    size = struct.pack(">HHIIIIIIIIH", 41, 0, vast, vast, 0, 0, vast, vast, 0, 0, 1) + b"\x07\x01\x01"
    j2k = b"\xff\x4f\xff\x51" + size + b"\xff\x52\x00\x0c\x00\x00\x00\x01\x00\x05\x04\x04\x00\x01\xff\x93\xff\xd9"
    jls = b"\xff\xd8\xff\xf7\x00\x0b\x08" + struct.pack(">HH", vast, vast) + b"\x01\x01\x11\x00"
    jls += b"\xff\xda\x00\x08\x01\x01\x00\x00\x00\x00" + bytes(200) + b"\xff\xd9"
    rle = struct.pack("<16I", 15, *[0xFFFFFF00] * 15) + bytes(200)
    names = {"Rows": vast, "Columns": vast}
    return {
        "j2k-vast": encapsulated(path, j2k, JPEG2000Lossless, **names),
        "j2k-lie": encapsulated(path, j2k, JPEG2000Lossless),
        "jls-vast": encapsulated(path, jls, JPEGLSLossless, **names),
        "jls-lie": encapsulated(path, jls, JPEGLSLossless),
        "jpeg-vast": encapsulated(path, jpeg_with_size(65_535, 65_535), JPEGBaseline8Bit, **names),
        "jpeg-lie": encapsulated(path, jpeg_with_size(65_535, 65_535), JPEGBaseline8Bit),
        "rle-lie": encapsulated(path, rle, RLELossless),
        "rle-short": encapsulated(path, struct.pack("<16I", 1, 64, *[0] * 14) + b"\x81\x00", RLELossless),
    }


# ---- the cases


MakeFile = Callable[[Path], bytes]
HOSTILE: Final[Mapping[str, tuple[str, Fate, MakeFile]]] = {
    "png-below-limit": ("a PNG just below the limit of 400 million pixels, all black", "unscored",
        lambda _: png(19_990, 19_990, zeros(19_990 * 19_991))),
    "png-16-bit": ("a PNG of 20,000 x 20,000 pixels with three 16-bit channels: 2.4 GB", "unscored",
        lambda _: png(20_000, 20_000, zeros(2**20), bits=16, colour=2)),
    "png-chunks": ("a PNG with 300,000 empty chunks", "any",
        lambda _: png(128, 160, good_lines(), extra=[chunk(b"teSt", b"") * 300_000])),
    "png-chunk-length": ("a PNG chunk that states 2 GB", "unscored",
        lambda _: png(128, 160, b"")[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT" + b"\0" * 99),
    "jpeg-below-limit": ("a JPEG that states 19,000 x 19,000 pixels", "unscored",
        lambda _: jpeg_with_size(19_000, 19_000)),
    "jpeg-segments": ("a JPEG with 400,000 comments", "any", lambda _: jpeg_of_many_segments(400_000)),
    "bits-more": ("the header states 32 allocated bits, the data have 16", "unscored",
        lambda path: dicom(path, changes={"BitsAllocated": 32})),
    "bits-odd": ("the header states 13 allocated bits", "unscored",
        lambda path: dicom(path, changes={"BitsAllocated": 13})),
    "samples-3": ("the header states three samples per pixel, the data have one", "unscored",
        lambda path: dicom(path, changes={"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"})),
    "fragments": ("a compressed image in 200,000 fragments", "any", lambda path: fragments(path, 200_000)),
}  # fmt: skip


@CASES.table(HOSTILE, limit_s=90, quick=("bits-odd",))
def hostile(world: World, fate: Fate, make: MakeFile) -> None:
    """The hostile file gets one row with this result, and the good images get their score."""
    expected = world.good_images(2)
    path = world.images / "hostile"
    path.write_bytes(make(path))
    world.screen({**expected, path.name: fate})


@CASES.case("codestreams", "JPEG, JPEG-LS, JPEG 2000 and RLE frames with a wrong size in their codestream header")
def codestreams(world: World) -> None:
    expected = world.good_images(2)
    for name, data in codestream_lies(world.images / "made").items():
        (world.images / f"hostile-{name}").write_bytes(data)
        expected[f"hostile-{name}"] = "unscored"
    world.screen(expected)


@CASES.case("frames-lie", "200 frames stated, one stored: a row for each frame, at most one with a score")
def frames_lie(world: World) -> None:
    expected = world.good_images(2)
    path = world.images / "hostile-frames"
    path.write_bytes(dicom(path, changes={"NumberOfFrames": 200}))
    done = world.screen({**expected, path.name: "any"})
    assert len(done.lines) == len(expected) + 200
    scored = [line for line in done.lines if line["status"] == "screened" and path.name in line["path"]]
    assert len(scored) <= 1, "a frame that is not there got a score"


@CASES.case("cut-everywhere", "a DICOM file truncated at 60 lengths never gets a score")
def cut_everywhere(world: World) -> None:
    data = dicom(world.images / "made")
    expected: dict[str, Fate] = {}
    for length in np.linspace(1, len(data) - 1, 60).astype(int):
        (world.images / f"cut-{length}").write_bytes(data[:length])
        expected[f"cut-{length}"] = "unscored"
    world.screen(expected)

"""Images that are small on disk and vast in memory, or lie about their size: each ends with a reason, in one child.

Zip files of this kind are in `test_zips`, headers without end in `test_discover`.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    RLELossless,
)

from fieldray.domain.model import InputSpec
from fieldray.domain.study import ImageRef
from fieldray.imaging.discover import discover
from fieldray.imaging.synthetic import chest_phantom
from fieldray.workers.calls import Look
from fieldray.workers.pool import Workers
from phantoms import write_dicom

SPEC = InputSpec(height=64, width=48, margin=0.05)
IMAGE = chest_phantom(64, 64, 7, abnormal=False)
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_VAST = 96 * 2**20


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    """Its child has started, and what it starts with it, before a test looks for what is left behind."""
    with Workers(1, timeout_s=60, memory_limit_mb=1024) as pool:
        pool.tensor(ImageRef(path=Path("nowhere.png")), SPEC)
        yield pool


def _read(pool: Workers, path: Path) -> str | None:
    """The reason that a file ends with, found by discovery or by the child; no child is lost over it."""
    pids = pool.pids
    (ref,) = discover([path])
    if ref.problem:
        return ref.problem.code
    problem = pool.look(Look(ref=ref, frame=SPEC), model=None).problem
    assert pool.pids == pids
    assert psutil.Process(pids[0]).memory_info().rss < 700 * 2**20
    return problem.code if problem else None


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(rows: int, columns: int, *, pixels: bytes, extra: bytes = b"", bits: int = 8) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, bits, 0, 0, 0, 0))
    return _SIGNATURE + header + extra + _chunk(b"IDAT", zlib.compress(pixels, 9)) + _chunk(b"IEND", b"")


def _rows_of(rows: int, columns: int) -> bytes:
    """Pixels of a PNG with a shadow in the middle: each row begins with its filter."""
    image = np.tile(np.linspace(10, 200, columns, dtype=np.uint8), (rows, 1))
    return b"".join(b"\0" + row.tobytes() for row in image)


def _jpeg() -> bytes:
    stream = io.BytesIO()
    Image.fromarray((IMAGE >> 4).astype(np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("size", "code"),
    [
        ((100_000, 100_000), "too_large"),
        ((2**31 - 1, 1), "too_large"),
        ((0, 500), "damaged"),
        ((640, 480), "damaged"),
    ],
)
def test_a_png_that_states_another_size(size: tuple[int, int], code: str, tmp_path: Path, pool: Workers) -> None:
    (tmp_path / "a.png").write_bytes(_png(*size, pixels=_rows_of(100, 100)))
    assert _read(pool, tmp_path / "a.png") == code


def test_a_png_with_more_pixels_than_it_states_is_read_as_far_as_it_states(tmp_path: Path, pool: Workers) -> None:
    (tmp_path / "a.png").write_bytes(_png(100, 100, pixels=_rows_of(100, 100) + bytes(_VAST)))
    assert _read(pool, tmp_path / "a.png") in (None, "damaged")


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_a_text_in_a_png_that_unpacks_without_end(kind: bytes, tmp_path: Path, pool: Workers) -> None:
    packed = zlib.compress(bytes(_VAST), 9)
    text = b"Comment\0" + (b"\1\0\0\0" if kind == b"iTXt" else b"\0") + packed
    for bits in (8, 16):
        pixels = b"".join(b"\0" + row.tobytes() for row in IMAGE.astype(">u2")) if bits == 16 else _rows_of(64, 64)
        (tmp_path / "a.png").write_bytes(_png(64, 64, pixels=pixels, extra=_chunk(kind, text), bits=bits))
        assert _read(pool, tmp_path / "a.png") in (None, "damaged")


def test_many_texts_in_a_png(tmp_path: Path, pool: Workers) -> None:
    text = _chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(900_000), 9))
    (tmp_path / "a.png").write_bytes(_png(64, 64, pixels=_rows_of(64, 64), extra=text * 300))
    assert _read(pool, tmp_path / "a.png") in (None, "damaged")


@pytest.mark.parametrize(("size", "code"), [((65_500, 65_500), "too_large"), ((0, 64), "damaged")])
def test_a_jpeg_that_states_another_size(size: tuple[int, int], code: str, tmp_path: Path, pool: Workers) -> None:
    data = bytearray(_jpeg())
    struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, *size)
    (tmp_path / "a.jpg").write_bytes(data)
    assert _read(pool, tmp_path / "a.jpg") == code


def test_a_jpeg_of_twenty_thousand_scans(tmp_path: Path, pool: Workers) -> None:
    stream = io.BytesIO()
    Image.fromarray((IMAGE >> 4).astype(np.uint8)).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    at = data.rindex(b"\xff\xda")
    (tmp_path / "a.jpg").write_bytes(data[:at] + data[at:-2] * 20_000 + data[-2:])
    assert _read(pool, tmp_path / "a.jpg") in (None, "damaged", "truncated")


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless, JPEG2000Lossless, JPEGBaseline8Bit])
@pytest.mark.parametrize("size", [(65_535, 65_535), (18_000, 18_000), (0, 64)])
def test_a_dicom_file_that_lies_about_rows_and_columns(
    syntax: str, size: tuple[int, int], tmp_path: Path, pool: Workers
) -> None:
    path = write_dicom(tmp_path / "a.dcm", IMAGE, transfer_syntax=syntax, bits=8 if syntax == JPEGBaseline8Bit else 12)
    data = bytearray(path.read_bytes())
    for element, side in zip((b"\x28\x00\x10\x00US\x02\x00", b"\x28\x00\x11\x00US\x02\x00"), size, strict=True):
        struct.pack_into("<H", data, data.index(element) + 8, side)
    path.write_bytes(data)
    assert _read(pool, path) in ("too_large", "damaged", "truncated", "size_mismatch")


def test_a_deflated_dicom_file_that_lies_about_rows_and_columns(tmp_path: Path, pool: Workers) -> None:
    for rows in (65_535, 18_000, 0):
        changes = {"Rows": rows, "Columns": 18_000}
        path = write_dicom(tmp_path / "a.dcm", IMAGE, transfer_syntax=DeflatedExplicitVRLittleEndian, changes=changes)
        assert _read(pool, path) in ("too_large", "damaged", "truncated")


def test_a_deflated_dicom_file_that_unpacks_without_end(tmp_path: Path, pool: Workers) -> None:
    path = write_dicom(tmp_path / "a.dcm", IMAGE, transfer_syntax=DeflatedExplicitVRLittleEndian)
    data = path.read_bytes()
    pixels_at = data.index(b"1.2.840.10008.1.2.1.99")
    start = data.index(b"UL\x04\x00", 132)
    meta_end = start + 8 + struct.unpack_from("<I", data, start + 4)[0]
    assert pixels_at < meta_end
    whole = zlib.decompressobj(-15).decompress(data[meta_end:])
    pixel_tag = whole.index(b"\xe0\x7f\x10\x00OW")
    private = b"\x29\x10\x10\x00LO\x08\x00FIELDRAY" + b"\x29\x10\x10\x10OB\0\0" + struct.pack("<I", 2 * _VAST)
    packer = zlib.compressobj(9, wbits=-15)
    with path.open("wb") as stream:
        stream.write(data[:meta_end] + packer.compress(whole[:pixel_tag] + private))
        for _ in range(2):
            stream.write(packer.compress(bytes(_VAST)))
        stream.write(packer.flush())
    assert path.stat().st_size < 2 * 2**20
    assert _read(pool, path) in ("truncated", "damaged")

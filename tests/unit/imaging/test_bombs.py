"""Images that are small on disk and huge in memory, or lie about their size: each ends with a reason, in one child.

Such ZIP files are in `test_zips`, headers without an end in `test_discover`.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

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

from attack import images as made
from fieldray.domain.image import ImageRef
from fieldray.domain.model import InputSpec
from fieldray.imaging.discover import discover
from fieldray.workers.calls import AnalysisRequest
from fieldray.workers.pool import WorkerPool
from phantoms import write_dicom

SPEC = InputSpec(height=64, width=48, margin=0.05)
ROWS, COLUMNS = made.PIXELS.shape
_VAST = 96 * 2**20
_DEEP_LINES = zlib.compress(b"".join(b"\0" + row.tobytes() for row in made.PIXELS.astype(">u2")))
_TEXTS = {b"zTXt": b"Comment\0\0", b"iTXt": b"Comment\0\1\0\0\0", b"iCCP": b"profile\0\0"}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """A pool whose child and helper processes have started before a test looks for leftover processes."""
    with WorkerPool(1, timeout_s=60, memory_limit_mb=1024) as pool:
        pool.read_network_input(ImageRef(path=Path("nowhere.png")), SPEC)
        yield pool


def _read(pool: WorkerPool, path: Path) -> str | None:
    """The reason code of a file, found by discovery or by the child; the child must survive."""
    pids = pool.pids
    (ref,) = discover([path])
    if ref.problem:
        return ref.problem.code
    problem = pool.analyse(AnalysisRequest(ref=ref, whole_image_input_spec=SPEC), model=None).problem
    assert pool.pids == pids
    assert psutil.Process(pids[0]).memory_info().rss < 700 * 2**20
    return problem.code if problem else None


def _text_without_end(kind: bytes, *, bits: int) -> bytes:
    lines = _DEEP_LINES if bits == 16 else made.good_lines()
    return made.png(COLUMNS, ROWS, lines, bits=bits, extra=[made.chunk(kind, _TEXTS[kind] + made.zeros(_VAST))])


def _many_scans() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(made.GREY).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    at = data.rindex(b"\xff\xda")
    return data[:at] + data[at:-2] * 20_000 + data[-2:]


READ_OR_DAMAGED = (None, "damaged")
FILES: Mapping[str, tuple[Callable[[Path], bytes], Collection[str | None]]] = {
    **{
        f"a PNG that states {columns} x {rows}": (
            lambda _, size=(columns, rows): made.png(*size, made.good_lines()),
            (code,),
        )
        for columns, rows, code in (
            (100_000, 100_000, "too_large"),
            (1, 2**31 - 1, "too_large"),
            (500, 0, "damaged"),
            (640, 480, "damaged"),
        )
    },
    "a PNG with more pixels than it states": (
        lambda _: made.png(COLUMNS, ROWS, zlib.compress(zlib.decompress(made.good_lines()) + bytes(_VAST), 9)),
        READ_OR_DAMAGED,
    ),
    **{
        f"a PNG of {bits} bits with {kind.decode()} without end": (
            lambda _, kind=kind, bits=bits: _text_without_end(kind, bits=bits),
            READ_OR_DAMAGED,
        )
        for kind in _TEXTS
        for bits in (8, 16)
    },
    "a PNG with many texts": (
        lambda _: made.png_with(made.chunk(b"zTXt", b"Comment\0\0" + made.zeros(900_000)) * 300),
        READ_OR_DAMAGED,
    ),
    "a JPEG that states too much": (lambda _: made.jpeg_with_size(65_500, 65_500), ("too_large",)),
    "a JPEG that states nothing": (lambda _: made.jpeg_with_size(COLUMNS, 0), ("damaged",)),
    "a JPEG of 20,000 scans": (lambda _: _many_scans(), (*READ_OR_DAMAGED, "truncated")),
    "a deflated DICOM file without end": (lambda path: made.deflated(path, 2 * _VAST), ("truncated", "damaged")),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bomb_ends_with_a_reason_or_is_read(name: str, tmp_path: Path, pool: WorkerPool) -> None:
    make, codes = FILES[name]
    path = tmp_path / "image"
    path.write_bytes(make(path))
    assert _read(pool, path) in codes


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless, JPEG2000Lossless, JPEGBaseline8Bit])
@pytest.mark.parametrize("size", [(65_535, 65_535), (18_000, 18_000), (0, 64)])
def test_a_dicom_file_with_wrong_rows_and_columns_ends_with_a_reason(
    syntax: str, size: tuple[int, int], tmp_path: Path, pool: WorkerPool
) -> None:
    bits = 8 if syntax == JPEGBaseline8Bit else 12
    path = write_dicom(tmp_path / "a.dcm", made.PIXELS, transfer_syntax=syntax, bits=bits)
    data = bytearray(path.read_bytes())
    for element, side in zip((b"\x28\x00\x10\x00US\x02\x00", b"\x28\x00\x11\x00US\x02\x00"), size, strict=True):
        struct.pack_into("<H", data, data.index(element) + 8, side)
    path.write_bytes(data)
    assert _read(pool, path) in ("too_large", "damaged", "truncated", "size_mismatch")


@pytest.mark.parametrize("rows", [65_535, 18_000, 0])
def test_a_deflated_dicom_file_with_wrong_rows_ends_with_a_reason(rows: int, tmp_path: Path, pool: WorkerPool) -> None:
    changes = {"Rows": rows, "Columns": 18_000}
    syntax = DeflatedExplicitVRLittleEndian
    path = write_dicom(tmp_path / "a.dcm", made.PIXELS, transfer_syntax=syntax, changes=changes)
    assert _read(pool, path) in ("too_large", "damaged", "truncated")

"""Images: bombs, lies and nonsense beside images that must still get their score."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from attack import hostile_images as made
from harness.case import Group
from harness.record import Fate
from harness.world import World

CASES = Group("images")

MakeFile = Callable[[Path], bytes]
HOSTILE: Final[Mapping[str, tuple[str, Fate, MakeFile]]] = {
    "png-below-limit": ("a PNG just below the limit of 400 million pixels, all black", "unscored",
        lambda _: made.png(19_990, 19_990, made.zeros(19_990 * 19_991))),
    "png-16-bit": ("a PNG of 20,000 x 20,000 pixels in colour of 16 bits: 2.4 GB", "unscored",
        lambda _: made.png(20_000, 20_000, made.zeros(2**20), bits=16, colour=2)),
    "png-chunks": ("a PNG with 300,000 empty chunks", "any",
        lambda _: made.png(128, 160, made.good_lines(), extra=[made.chunk(b"teSt", b"") * 300_000])),
    "png-chunk-length": ("a PNG chunk that states 2 GB", "unscored",
        lambda _: made.png(128, 160, b"")[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT" + b"\0" * 99),
    "jpeg-below-limit": ("a JPEG that states 19,000 x 19,000 pixels", "unscored",
        lambda _: made.jpeg_with_size(19_000, 19_000)),
    "jpeg-segments": ("a JPEG with 400,000 comments", "any", lambda _: made.jpeg_of_many_segments(400_000)),
    "rows-65535": ("65,535 rows and columns stated", "failed",
        lambda path: made.stated(path, {"Rows": 65_535, "Columns": 65_535})),
    "rows-none": ("no rows stated", "failed", lambda path: made.stated(path, {"Rows": None})),
    "bits-more": ("32 bits allocated stated over 16", "unscored",
        lambda path: made.stated(path, {"BitsAllocated": 32})),
    "bits-odd": ("13 bits allocated", "unscored", lambda path: made.stated(path, {"BitsAllocated": 13})),
    "samples-3": ("three samples a pixel stated over one", "unscored",
        lambda path: made.stated(path, {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"})),
    "fragments": ("a compressed image in 200,000 fragments", "any", lambda path: made.fragments(path, 200_000)),
    "element-length": ("an element that states 4 GB", "failed",
        lambda path: made.without_pixels(path) + b"\xe0\x7f\x10\x00OW\0\0\xfe\xff\xff\xff" + bytes(1000)),
}  # fmt: skip


@CASES.table(HOSTILE, limit_s=90, quick=("rows-65535",))
def hostile(world: World, fate: Fate, make: MakeFile) -> None:
    """It gives one row, and the images beside it their score."""
    expected = world.good_images(2)
    path = world.images / "hostile"
    path.write_bytes(make(path))
    world.screen({**expected, path.name: fate})


@CASES.case("codestreams", "JPEG, JPEG-LS, JPEG 2000 and RLE frames that lie about their size")
def codestreams(world: World) -> None:
    expected = world.good_images(2)
    for name, data in made.codestream_lies(world.images / "made").items():
        (world.images / f"hostile-{name}").write_bytes(data)
        expected[f"hostile-{name}"] = "unscored"
    world.screen(expected)


@CASES.case("frames-lie", "200 frames stated over one: a row a frame, at most the first with a score")
def frames_lie(world: World) -> None:
    expected = world.good_images(2)
    path = world.images / "hostile-frames"
    path.write_bytes(made.stated(path, {"NumberOfFrames": 200}))
    done = world.screen({**expected, path.name: "any"})
    assert len(done.lines) == len(expected) + 200
    scored = [line for line in done.lines if line["status"] == "screened" and path.name in line["path"]]
    assert len(scored) <= 1, "a frame that is not there got a score"


@CASES.case("cut-everywhere", "one DICOM file cut at 60 lengths: no score without all pixels")
def cut_everywhere(world: World) -> None:
    data = made.dicom(world.images / "made")
    expected: dict[str, Fate] = {}
    for length in np.linspace(1, len(data) - 1, 60).astype(int):
        (world.images / f"cut-{length}").write_bytes(data[:length])
        expected[f"cut-{length}"] = "unscored"
    world.screen(expected)

"""Attack cases: zip files that decompress to gigabytes, share bytes between members, or have 10,000 members."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import Any, Final

from attack.images import good_lines, png, zeros
from fuzz.structures.zip_files import Ends, Member, written
from harness.case import Group
from harness.record import Fate, Record, check_fate, check_rows
from harness.world import World
from phantoms import zipped

CASES = Group("zips")
_STATED: Final = 60 * 2**20  # small enough to pass a check of stated sizes
_SMALL: Final = 200.0  # MB above the peak of a run without the zip file


def image() -> bytes:
    """Return a PNG that gets a score."""
    return png(128, 160, good_lines())


def bomb_file(*, stated: int) -> bytes:
    """Return a zip file of 1 MB with a member that unpacks to 1 GB but states another size."""
    data = zeros(1024 * 2**20, wbits=-15)
    return written([Member(b"image.dcm", data, 8, packed_size=len(data), size=stated)], Ends())


def overlapping_file(number: int, megabytes: int) -> bytes:
    """Return a zip file with `number` members that share the same packed bytes. Each unpacks to `megabytes` MB."""
    data = zeros(megabytes * 2**20, wbits=-15)
    sizes = {"packed_size": len(data), "size": megabytes * 2**20}
    first = Member(b"image-00000.dcm", data, 8, **sizes)
    others = (Member(b"image-%05d.dcm" % at, data, 8, **sizes, offset=0, stands=False) for at in range(1, number))
    return written([first, *others], Ends())


BOMBS: Final[Mapping[str, tuple[str, str]]] = {
    "bomb": ("1 MB of deflate that unpacks to 1 GB", ""),
    "bomb-limited": ("1 MB of deflate that unpacks to 1 GB, under a memory limit", "ulimit -v 3000000"),
}


@CASES.table(BOMBS, limit_s=90)
def bomb(world: World, before: str) -> None:
    """The zip bomb gets no score, the other images get theirs, and the program's memory does not grow."""
    expected = world.good_images(2)
    plain = world.screen(expected)
    (world.images / "bomb.zip").write_bytes(bomb_file(stated=_STATED))
    done = world.run_screen(before=before).ends_with(0, 1)
    (row,) = rows_of_zip(world, done, expected)
    check_fate(row, "unscored")
    done.takes(parent_mb=plain.parent_mb + _SMALL)


def rows_of_zip(world: World, done: Record, expected: Mapping[str, Fate]) -> list[dict[str, Any]]:
    """Return the rows of the zip file's members. Requires the expected results for the other images."""
    rows = [line for line in done.lines if ".zip" in line["path"]]
    check_rows([line for line in done.lines if line not in rows], expected, images=world.images)
    return rows


@CASES.case("overlapping", "2,000 members that share the same compressed bytes, each 20 MB when unpacked", limit_s=120)
def overlapping(world: World) -> None:
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(overlapping_file(2_000, 20))
    rows = rows_of_zip(world, world.run_screen().ends_with(0, 1), expected)
    assert not [row for row in rows if row["score"] is not None]


@CASES.case("members-10000", "10,000 members are read within 110 s, because the zip file is opened once", limit_s=110)
def many(world: World) -> None:
    expected = world.good_images(2)
    small = png(40, 40, zeros(41 * 40))
    members = [(f"{index % 100:02}/image-{index:05}.png", small) for index in range(10_000)]
    (world.images / "many.zip").write_bytes(zipped(members, zipfile.ZIP_STORED))
    rows = rows_of_zip(world, world.run_screen().ends_with(0, 1), expected)
    assert len({line["path"] for line in rows}) == len(rows) == 10_000

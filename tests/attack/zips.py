"""Zip files: bombs, traversal, links, and more members than anybody has images."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from typing import Any, Final

from attack import hostile_images, hostile_zips
from harness.case import Group
from harness.record import Fate, Record, check_fate, check_rows
from harness.world import World

CASES = Group("zips")
_STATED: Final = 60 * 2**20  # below what a check of the stated size looks at
_SMALL: Final = 200.0  # megabytes above what any run takes


def image() -> bytes:
    """A PNG that gets a score."""
    return hostile_images.png(128, 160, hostile_images.good_lines())


BOMBS: Final[Mapping[str, tuple[Any, ...]]] = {
    "bomb-bzip2": ("a kilobyte of bzip2 that unpacks to 1 GB", lambda: hostile_zips.bomb(12, stated=_STATED)),
    "bomb-bzip2-small": ("the same, stating 100 bytes", lambda: hostile_zips.bomb(12, stated=100)),
    "bomb-bzip2-vast": ("the same, stating 4 GB", lambda: hostile_zips.bomb(12, stated=2**32 - 2)),
    "bomb-lzma": ("148 kB of LZMA that unpack to 1 GB", lambda: hostile_zips.bomb(14, stated=_STATED)),
    "bomb-deflate": ("1 MB of deflate that unpacks to 1 GB", lambda: hostile_zips.bomb(8, stated=_STATED)),
    "bomb-deflate-small": ("the same, stating 100 bytes", lambda: hostile_zips.bomb(8, stated=100)),
    "bomb-listing": ("a listing that states 1 GB", lambda: hostile_zips.listing_of(1024)),
    "bomb-limited": (
        "the bzip2 bomb under a memory limit: the other images get their score",
        lambda: hostile_zips.bomb(12, stated=_STATED),
        "ulimit -v 3000000",
    ),
}


@CASES.table(BOMBS, limit_s=90)
def bomb(world: World, make: Callable[[], bytes], before: str = "") -> None:
    """No score for it, the images beside it get theirs, and the program's memory stays as it is without it."""
    expected = world.good_images(2)
    plain = world.screen(expected)
    (world.images / "bomb.zip").write_bytes(make())
    done = world.run_screen(before=before).ends_with(0, 1)
    (row,) = beside(world, done, expected)
    check_fate(row, "unscored")
    done.takes(parent_mb=plain.parent_mb + _SMALL)


def beside(world: World, done: Record, expected: Mapping[str, Fate]) -> list[dict[str, Any]]:
    """The rows of the zip; those of the images beside it are as they must be."""
    rows = [line for line in done.lines if ".zip" in line["path"]]
    check_rows([line for line in done.lines if line not in rows], expected, images=world.images)
    return rows


@CASES.case("traversal", "members named ../../x, /tmp/x, C:\\\\x and over 60,000 letters: nothing is written")
def traversal(world: World) -> None:
    names = (
        "../../climbed.png",
        "/tmp/fieldray-climbed.png",
        "C:\\climbed.png",
        "a/../../../climbed.png",
        "a" * 60_000,
    )
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(hostile_zips.packed([(name, image()) for name in names]))
    done = world.run_screen().ends_with(0, 1)
    assert len(done.lines) == len(expected) + len(names)
    assert not [path for path in world.folder.rglob("*climbed*") if path.is_file()], "a member was written"


@CASES.case("overlapping", "2,000 members that share the same packed bytes, 20 MB each", limit_s=120)
def overlapping(world: World) -> None:
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(hostile_zips.overlapping(2_000, 20))
    assert not [row for row in beside(world, world.run_screen().ends_with(0, 1), expected) if row["score"] is not None]


@CASES.table({"members-4000": ("4,000 members in 50 s: opened once, not once for each", 4_000)}, limit_s=50)
@CASES.table({"members-10000": ("10,000 members in 110 s, or one row that says too many", 10_000)}, limit_s=110)
def many(world: World, number: int) -> None:
    """Each member is a row, or the zip is one row that says it holds too many."""
    expected = world.good_images(2)
    small = hostile_images.png(40, 40, hostile_images.zeros(41 * 40))
    members = [(f"{index % 100:02}/image-{index:05}.png", small) for index in range(number)]
    (world.images / "many.zip").write_bytes(hostile_zips.packed(members, method=zipfile.ZIP_STORED))
    rows = beside(world, world.run_screen().ends_with(0, 1), expected)
    assert len(rows) in (1, number), f"{len(rows)} rows of {number} members"
    assert len({line["path"] for line in rows}) == len(rows), "rows doubled"

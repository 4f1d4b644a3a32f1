"""Zip files: bombs, traversal, links, and more members than anybody has images."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
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


BOMBS: Final[Mapping[str, tuple[str, str]]] = {
    "bomb": ("1 MB of deflate that unpacks to 1 GB", ""),
    "bomb-limited": ("the same under a memory limit: the other images get their score", "ulimit -v 3000000"),
}


@CASES.table(BOMBS, limit_s=90)
def bomb(world: World, before: str) -> None:
    """No score for it, the images beside it get theirs, and the program's memory stays as it is without it."""
    expected = world.good_images(2)
    plain = world.screen(expected)
    (world.images / "bomb.zip").write_bytes(hostile_zips.bomb(stated=_STATED))
    done = world.run_screen(before=before).ends_with(0, 1)
    (row,) = beside(world, done, expected)
    check_fate(row, "unscored")
    done.takes(parent_mb=plain.parent_mb + _SMALL)


def beside(world: World, done: Record, expected: Mapping[str, Fate]) -> list[dict[str, Any]]:
    """The rows of the zip; those of the images beside it are as they must be."""
    rows = [line for line in done.lines if ".zip" in line["path"]]
    check_rows([line for line in done.lines if line not in rows], expected, images=world.images)
    return rows


@CASES.case("overlapping", "2,000 members that share the same packed bytes, 20 MB each", limit_s=120)
def overlapping(world: World) -> None:
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(hostile_zips.overlapping(2_000, 20))
    assert not [row for row in beside(world, world.run_screen().ends_with(0, 1), expected) if row["score"] is not None]


@CASES.case("members-10000", "10,000 members in 110 s: opened once, not once for each", limit_s=110)
def many(world: World) -> None:
    expected = world.good_images(2)
    small = hostile_images.png(40, 40, hostile_images.zeros(41 * 40))
    members = [(f"{index % 100:02}/image-{index:05}.png", small) for index in range(10_000)]
    (world.images / "many.zip").write_bytes(hostile_zips.packed(members, method=zipfile.ZIP_STORED))
    rows = beside(world, world.run_screen().ends_with(0, 1), expected)
    assert len({line["path"] for line in rows}) == len(rows) == 10_000

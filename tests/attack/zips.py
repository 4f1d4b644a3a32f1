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


def tried_as(world: World, data: bytes, fates: Mapping[str, Fate]) -> None:
    """Screen one zip of these bytes beside good images; `fates` is by member."""
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(data)
    world.screen({**expected, **{f"made.zip!{name}": fate for name, fate in fates.items()}})


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


@CASES.case("links", "members that are symbolic links to /etc/passwd and to an image outside")
def links(world: World) -> None:
    world.good_images(1, folder=world.folder / "outside")
    targets = [("passwd.png", "/etc/passwd"), ("image.png", str(world.folder / "outside" / "image-000.png"))]
    data = hostile_zips.packed_links([("good.png", image())], targets)
    tried_as(world, data, {"good.png": "screened", "passwd.png": "unscored", "image.png": "unscored"})


@CASES.case("nested", "a zip in a zip in a zip, and one that holds itself in part", is_quick=True)
def nested(world: World) -> None:
    inner = hostile_zips.packed([("image.png", image())])
    middle = hostile_zips.packed([("inner.zip", inner), ("image.png", image())])
    data = hostile_zips.packed([("middle.zip", middle), ("image.png", image())])
    tried_as(world, data, {"middle.zip": "refused", "image.png": "screened"})


@CASES.case("doubled", "a name four times in one zip: no row twice, and a row for the zip that says so")
def doubled(world: World) -> None:
    black = hostile_images.png(128, 160, hostile_images.zeros(129 * 160))
    data = hostile_zips.packed(
        [("image.png", image()), ("image.png", black), ("image.png", image()), ("image.png", b"x")]
    )
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(data)
    done = world.screen({**expected, "made.zip!image.png": "any", "made.zip": "failed"})
    assert [line["reason_code"] for line in done.lines if line["path"].endswith(".zip")] == ["double_members"]


@CASES.case("methods", "the same image stored, deflated, as bzip2 and as LZMA")
def methods(world: World) -> None:
    expected = world.good_images(1)
    for number, method in enumerate((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)):
        (world.images / f"{number}.zip").write_bytes(hostile_zips.packed([("image.png", image())], method=method))
        expected[f"{number}.zip!image.png"] = "screened" if number < 2 else "any"
    world.screen(expected)


@CASES.case("overlapping", "2,000 members that share the same packed bytes, 20 MB each", limit_s=120)
def overlapping(world: World) -> None:
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(hostile_zips.overlapping(2_000, 20))
    assert not [row for row in beside(world, world.run_screen().ends_with(0, 1), expected) if row["score"] is not None]


@CASES.case("cut", "a zip cut at 20 lengths")
def cut(world: World) -> None:
    expected = world.good_images(1)
    data = hostile_zips.packed([("image.png", image()), ("other.png", image())])
    for number in range(20):
        name = f"cut-{number:02}.zip"
        (world.images / name).write_bytes(data[: len(data) * (number + 1) // 21])
        expected[name] = "unscored"
    world.screen(expected)


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

"""Zip files: bombs, traversal, links, and more members than anybody has images."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from typing import Final

from attack import hostile_images, hostile_zips
from attack.case import Group
from attack.world import Fate, World

CASES = Group("zips")
_UNPACKED_MB: Final = 1024
_STATED: Final = 60 * 2**20  # below what a check of the stated size looks at
_SMALL: Final = 200.0  # megabytes above what any run takes


def image() -> bytes:
    """A PNG that gets a score."""
    return hostile_images.png(128, 160, hostile_images.good_lines())


BOMBS: Final[Mapping[str, tuple[str, Callable[[], bytes]]]] = {
    "bzip2": (
        "a kilobyte of bzip2 that unpacks to 1 GB",
        lambda: hostile_zips.bzip2_bomb(_UNPACKED_MB, stated=_STATED),
    ),
    "bzip2-small": ("the same, stating 100 bytes", lambda: hostile_zips.bzip2_bomb(_UNPACKED_MB, stated=100)),
    "bzip2-vast": ("the same, stating 4 GB", lambda: hostile_zips.bzip2_bomb(_UNPACKED_MB, stated=2**32 - 2)),
    "lzma": ("148 kB of LZMA that unpack to 1 GB", lambda: hostile_zips.lzma_bomb(_UNPACKED_MB, stated=_STATED)),
    "deflate": (
        "1 MB of deflate that unpacks to 1 GB",
        lambda: hostile_zips.deflate_bomb(_UNPACKED_MB, stated=_STATED),
    ),
    "deflate-small": ("the same, stating 100 bytes", lambda: hostile_zips.deflate_bomb(_UNPACKED_MB, stated=100)),
    "listing": ("a listing that states 1 GB", lambda: hostile_zips.listing_of(_UNPACKED_MB)),
}


def _try_bomb(make: Callable[[], bytes], before: str) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """No score for it, the images beside it get theirs, and the program's memory stays as it is without it."""
        expected = world.good_images(2)
        plain = world.screen(expected)
        (world.images / "bomb.zip").write_bytes(make())
        done = world.start_screen(before=before).finish().ends_with(0, 1)
        for line in done.lines:
            if "bomb.zip" in line["path"]:
                assert line["score"] is None, "a bomb got a score"
                assert line["reason"], "no reason"
        world.check_rows([line for line in done.lines if "bomb.zip" not in line["path"]], expected)
        assert len(done.lines) == len(expected) + 1, "the zip must be one row"
        took_mb = done.parent_mb - plain.parent_mb
        assert took_mb < _SMALL, f"the program took {took_mb:.0f} MB more for it"

    return attempt


for _name, (_tried, _make) in BOMBS.items():
    CASES.add(f"bomb-{_name}", _tried, _try_bomb(_make, ""), limit_s=90)
CASES.add(
    "bomb-limited",
    "the bzip2 bomb under a memory limit: the other images get their score",
    _try_bomb(BOMBS["bzip2"][1], "ulimit -v 3000000"),
    limit_s=90,
)


def tried_as(world: World, data: bytes, fates: Mapping[str, Fate]) -> None:
    """Screen one zip of these bytes beside good images; `fates` is by member."""
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(data)
    world.screen({**expected, **{f"made.zip!{name}": fate for name, fate in fates.items()}})


@CASES.case("traversal", "members named ../../x, /tmp/x, C:\\\\x and over 60,000 letters: nothing is written")
def traversal(world: World) -> None:
    names = [
        "../../climbed.png",
        "/tmp/fieldray-climbed.png",
        "C:\\climbed.png",
        "a/../../../climbed.png",
        "a" * 60_000,
    ]
    expected = world.good_images(2)
    (world.images / "made.zip").write_bytes(hostile_zips.packed([(name, image()) for name in names]))
    done = world.start_screen().finish().ends_with(0, 1)
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
    done = world.start_screen().finish().ends_with(0, 1)
    for line in done.lines:
        assert "made.zip" not in line["path"] or line["score"] is None
    world.check_rows([line for line in done.lines if "made.zip" not in line["path"]], expected)


@CASES.case("cut", "a zip cut at 20 lengths")
def cut(world: World) -> None:
    expected = world.good_images(1)
    data = hostile_zips.packed([("image.png", image()), ("other.png", image())])
    for number in range(20):
        name = f"cut-{number:02}.zip"
        (world.images / name).write_bytes(data[: len(data) * (number + 1) // 21])
        expected[name] = "unscored"
    world.screen(expected)


def _many(number: int) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """Each member is a row, or the zip is one row that says it holds too many."""
        expected = world.good_images(2)
        small = hostile_images.png(40, 40, hostile_images.zeros(41 * 40))
        members = [(f"{index % 100:02}/image-{index:05}.png", small) for index in range(number)]
        (world.images / "many.zip").write_bytes(hostile_zips.packed(members, method=zipfile.ZIP_STORED))
        done = world.start_screen().finish().ends_with(0, 1)
        rows = [line for line in done.lines if "many.zip" in line["path"]]
        assert len(rows) in (1, number), f"{len(rows)} rows of {number} members"
        assert len({line["path"] for line in rows}) == len(rows), "rows doubled"
        world.check_rows([line for line in done.lines if "many.zip" not in line["path"]], expected)

    return attempt


CASES.add("members-4000", "4,000 members in 50 s: opened once, not once for each", _many(4_000), limit_s=50)
CASES.add("members-10000", "10,000 members in 110 s, or one row that says it is too many", _many(10_000), limit_s=110)

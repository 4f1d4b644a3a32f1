"""The store: two programs on one home, full disks, torn copies, and a store that goes away."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from harness.case import Group
from harness.record import tail
from harness.world import World

CASES = Group("store")
_COUNT: Final = 12


@CASES.case("two-programs", "two programs on one home, other images each", limit_s=60)
def two_programs(world: World) -> None:
    folders = [world.images / name for name in ("a", "b")]
    expected = [world.good_images(40, folder=folder) for folder in folders]
    world.run("packs", "trust", world.pack_options[3]).ends_with(0)
    running = [world.start_screen(paths=[folder]) for folder in folders]
    done = [run.finish(leaves_nothing=False) for run in running]
    for one, images in zip(done, expected, strict=True):
        one.ends_with(0).has(images)
    assert world.query("PRAGMA integrity_check") == [("ok",)]
    assert world.query("SELECT COUNT(*) FROM results") == [(80,)]


@CASES.case("two-programs-same", "two programs on one home with the same images: no row doubled", limit_s=60)
def two_programs_same(world: World) -> None:
    expected = world.good_images(40)
    world.run("packs", "trust", world.pack_options[3]).ends_with(0)
    running = [world.start_screen() for _ in range(2)]
    done = [run.finish(leaves_nothing=False) for run in running]
    for one in done:
        one.is_calm()
        assert one.code in (0, 1), tail(one.err)
        if one.code == 0:
            one.has(expected)
    assert any(one.code == 0 for one in done), tail(done[0].err)
    assert world.query("PRAGMA integrity_check") == [("ok",)]
    assert set(world.rows_in_store()) == set(expected)


# ---- gone in mid-run


def _gone(act: Callable[[Path], None]) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """The run must not end as if all were well; the next one has every image."""
        expected = world.good_images(150)
        running = world.start_screen(held=True)
        running.read_lines(3)
        act(world.home / "results.sqlite")
        done = running.finish().ends_with(1)
        assert done.err.strip(), "not a word about it"
        again = world.start_screen().finish()
        if again.code:  # a damaged store may be told of once
            again.ends_with(1)
            again = world.start_screen().finish()
        again.ends_with(0).has(expected)
        assert set(world.rows_in_store()) == set(expected)

    return attempt


def remove(store: Path) -> None:
    """The store and its companions are deleted."""
    for path in store.parent.glob(f"{store.name}*"):
        path.unlink(missing_ok=True)


def remove_file_only(store: Path) -> None:
    """Only the store is deleted."""
    store.unlink()


def move(store: Path) -> None:
    """The store is moved away."""
    store.rename(store.with_name("elsewhere.sqlite"))


def rename_over(store: Path) -> None:
    """A backup of before is put over it."""
    backup = store.with_name("backup.sqlite")
    with closing(sqlite3.connect(backup)) as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
        connection.commit()
    backup.replace(store)


def restore_old(store: Path) -> None:
    """A copy of the store itself is put over it."""
    backup = store.with_name("backup.sqlite")
    shutil.copyfile(store, backup)
    backup.replace(store)


def remove_home(store: Path) -> None:
    """The whole home is moved away."""
    store.parent.rename(store.parent.with_name("home-before"))


for _act in (remove, remove_file_only, move, rename_over, restore_old, remove_home):
    CASES.case(
        f"gone-{_act.__name__.replace('_', '-')}",
        f"in mid-run: {(_act.__doc__ or '').rstrip('.')[:1].lower()}{(_act.__doc__ or '').rstrip('.')[1:]}",
    )(_gone(_act))


@CASES.case("rights", "umask 000: the home is 0700, the store and the log 0600", is_quick=True)
def rights(world: World) -> None:
    expected = world.good_images(2)
    (world.images / "cut.dcm").write_bytes(bytes(128) + b"DICM" + bytes(9))
    world.screen({**expected, "cut.dcm": "unscored"}, before="umask 000")
    for path in (world.home, *world.home.rglob("*")):
        mode = path.stat().st_mode & 0o777
        assert mode & 0o077 == 0, f"{path.name} is {mode:o}"


@CASES.case("trigger", "a copied store with a trigger that calls every image normal")
def trigger(world: World) -> None:
    world.good_images(3)
    world.start_screen().finish().ends_with(0)
    before = {name: row["category"] for name, row in world.rows_in_store().items()}
    assert set(before.values()) != {"normal"}
    with closing(sqlite3.connect(world.home / "results.sqlite")) as connection:
        connection.execute(
            "CREATE TRIGGER t AFTER INSERT ON results BEGIN "
            "UPDATE results SET category = 'normal', findings = replace(findings, 'unsure', 'below'); END"
        )
        connection.commit()
    world.start_screen("--fresh").finish().ends_with(0)
    after = {name: row["category"] for name, row in world.rows_in_store().items()}
    assert after == before, "a result is another because of what came with the store"

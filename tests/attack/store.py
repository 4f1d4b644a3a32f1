"""The store: two programs on one home, full disks, torn copies, and a store that goes away."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from fieldray.domain.run import Verdict
from fieldray.store.results import ResultStore
from foreign_stores import journal_naming
from harness.case import Group, NotPossible
from harness.machine import UNSHARE, can_mount
from harness.record import check_rows, json_lines, tail
from harness.world import World

CASES = Group("store")
_FULL_DISK: Final = """
mount -t tmpfs -o size=$ROOM tmpfs "$FIELDRAY_HOME" || exit 99
"$@" > "$FOLDER/first" 2> "$FOLDER/first-words"; echo $? > "$FOLDER/first-code"
mount -o remount,size=80m "$FIELDRAY_HOME"
"$@" > "$FOLDER/second" 2> "$FOLDER/second-words"; echo $? > "$FOLDER/second-code"
"""
_ROOMS_KB: Final = (4, 12, 28, 44, 60, 92, 120, 180, 260, 380, 540)
_COUNT: Final = 12


def _full_disk(room_kb: int) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """The run ends in order and says once why; with room again, every image gets its score."""
        if not can_mount():
            raise NotPossible("no right to mount in a name space of one's own")
        expected = world.good_images(30)
        world.home.mkdir()
        room = {"ROOM": f"{room_kb}k", "FOLDER": str(world.folder)}
        done = world.start_screen(
            executable=[*UNSHARE, "sh", "-c", _FULL_DISK, "sh", *world.program], environment=room
        ).finish()
        if done.code == 99:
            raise NotPossible("no tmpfs can be mounted")
        words, lines, codes = {}, {}, {}
        for turn in ("first", "second"):
            codes[turn] = (world.folder / f"{turn}-code").read_text().strip()
            words[turn] = (world.folder / f"{turn}-words").read_text()
            lines[turn] = json_lines((world.folder / turn).read_text())
            assert "Traceback" not in words[turn], tail(words[turn])
            assert "unexpected error" not in words[turn].lower(), tail(words[turn])
        assert codes["first"] in ("0", "1"), tail(words["first"])
        assert len(lines["first"]) == len(expected) or codes["first"] == "1", "images lost without a word"
        names = [line["path"] for line in lines["first"]]
        assert len(set(names)) == len(names), "rows doubled"
        told = words["first"].count("The disk is full")
        assert codes["first"] == "0" or (told == 1 if names else told), tail(words["first"])
        assert codes["second"] == "0", tail(words["second"])
        kept = f"{len(names)} from an earlier run"
        assert kept in words["second"] or not names or codes["first"] == "0", tail(words["second"])
        check_rows(lines["second"], expected, images=world.images)

    return attempt


for _number, _room_kb in enumerate(_ROOMS_KB, start=1):
    CASES.case(
        f"full-disk-{_number:02}",
        f"the disk with the store is full after {_room_kb} kB, then has room",
        is_quick=_room_kb == 540,
    )(_full_disk(_room_kb))


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


@CASES.case("complete-stays", "a second program interrupted on the same images: the complete run stays complete")
def complete_stays(world: World) -> None:
    expected = world.good_images(60)
    first = world.start_screen(held=True)
    first.read_lines(3)
    second = world.start_screen(held=True)
    second.has_begun(most_s=20)  # it may also wait for the first one, or give up
    lines = first.read_lines(len(expected) - 3)
    assert len(lines) == len(expected) - 3
    first.finish(leaves_nothing=False).ends_with(0)
    if second.process.poll() is None:
        second.signal(signal.SIGINT)
    second.finish().is_calm()
    states = world.query("SELECT state FROM runs WHERE state = 'finished'")
    assert states, f"the complete run is now {world.query('SELECT id, state FROM runs')}"


@CASES.case("verdicts", "a verdict, then the images screened again, renamed, copied, replaced; a backup put back")
def verdicts(world: World) -> None:
    world.good_images(3)
    first, backup = world.images / "image-000.png", world.folder / "backup.sqlite"
    data, store = first.read_bytes(), world.home / "results.sqlite"
    world.start_screen().finish().ends_with(0)
    with ResultStore(store) as opened:
        (shown,) = (row for row in opened.rows(1) if row.outcome.ref.path == first)
        opened.set_verdict(shown.row_id, Verdict(choice="disagree", note="mine"), judged=shown.outcome)
    hold_verdict(world, "image-000.png")
    hold_verdict(world, "image-000.png", "--fresh")
    first.rename(world.images / "renamed.png")
    hold_verdict(world, "renamed.png")
    (world.images / "copy.png").write_bytes(data)
    hold_verdict(world, "renamed.png")
    shutil.copyfile(store, backup)
    (world.images / "renamed.png").write_bytes(data + b"another")
    hold_verdict(world, None)
    (world.images / "renamed.png").write_bytes(data)
    backup.replace(store)
    hold_verdict(world, "renamed.png")


def hold_verdict(world: World, name: str | None, *options: str) -> None:
    """In the next run the verdict is on this image, or on none and told as one on what was there before."""
    out = world.folder / f"reports-{len(list(world.folder.iterdir()))}"
    world.start_screen("--out", out, "--names", "--formats", "json", *options).finish().ends_with(0)
    (path,) = out.iterdir()
    document = json.loads(path.read_text(encoding="utf-8"))
    judged = [Path(row["path"]).name for row in document["results"] if row["reader_verdict"]]
    assert judged == ([name] if name else []), f"the verdict is on {judged}, not on {name}"
    earlier = [given["reader_note"] for given in document["about"]["earlier_verdicts"]]
    assert earlier == ([] if name else ["mine"]), f"told as earlier: {earlier}"


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


@CASES.case("link", "a store that is a link to a file elsewhere")
def link(world: World) -> None:
    world.good_images(2)
    target = world.folder / "target"
    target.write_bytes(b"")
    world.home.mkdir()
    (world.home / "results.sqlite").symlink_to(target)
    world.start_screen().finish().ends_with(1)
    assert target.read_bytes() == b"", "what the link names was written to"


@CASES.case("rights", "umask 000: the home is 0700, the store and the log 0600", is_quick=True)
def rights(world: World) -> None:
    expected = world.good_images(2)
    (world.images / "cut.dcm").write_bytes(bytes(128) + b"DICM" + bytes(9))
    world.screen({**expected, "cut.dcm": "unscored"}, before="umask 000")
    for path in (world.home, *world.home.rglob("*")):
        mode = path.stat().st_mode & 0o777
        assert mode & 0o077 == 0, f"{path.name} is {mode:o}"


# ---- torn copies


def _torn(copies: range) -> Callable[[World], None]:
    def attempt(world: World) -> None:
        """Whatever is left of a store, at most one run says so and the next one has every image."""
        expected = world.good_images(_COUNT)
        running = world.start_screen(held=True)
        running.read_lines(_COUNT // 2)
        written, complete = world.folder / "written", world.folder / "complete"
        shutil.copytree(world.home, written)  # with what is still in the write-ahead log
        running.finish().ends_with(0)
        shutil.copytree(world.home, complete)
        for number in copies:
            shutil.rmtree(world.home)
            shutil.copytree(complete if number % 2 else written, world.home)
            tear(world.home / "results.sqlite", number)
            try:
                done = world.start_screen().finish().ends_with(0, 1)
                if done.code == 1:
                    done = world.start_screen().finish().ends_with(0)
                done.has(expected)
            except AssertionError as error:
                raise AssertionError(f"copy {number}: {error}") from error

    return attempt


def tear(store: Path, number: int) -> None:
    """One of 44 kinds of damage: the store cut, overwritten, without its log, or with a log that is not its own."""
    chance = random.Random(number)
    log = store.with_name(store.name + "-wal")
    path = log if number % 4 == 3 and log.exists() else store
    data = bytearray(path.read_bytes())
    kind = number % 11
    if kind < 4:
        data = data[: len(data) * (number + 1) // 45]
    elif kind < 8:
        for _ in range(1 + number % 5):
            at = chance.randrange(0, max(1, len(data) - 600))
            data[at : at + 512] = chance.randbytes(512)
    elif kind == 8:
        data = bytearray(len(data))
    elif kind == 9:
        log.unlink(missing_ok=True)
    else:
        log.write_bytes(chance.randbytes(8_000))
    path.write_bytes(data)


for _part in range(4):
    CASES.case(
        f"torn-{_part + 1}",
        f"copies {_part * 11 + 1} to {_part * 11 + 11} of 44 torn copies of a store, half of them in mid-run",
        limit_s=110,
    )(_torn(range(_part * 11, _part * 11 + 11)))


@CASES.case("other-version", "a store of another version of the program is left as it is")
def other_version(world: World) -> None:
    expected = world.good_images(2)
    world.screen(expected, codes=(0,))
    store = world.home / "results.sqlite"
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA user_version = 999")
    before = store.read_bytes()
    world.start_screen().finish().ends_with(1).says("another version")
    assert store.read_bytes() == before


@CASES.case("journal", "a copied store with a journal that has SQLite delete an image")
def journal(world: World) -> None:
    expected = world.good_images(2)
    world.screen(expected, codes=(0,))
    store, image = world.home / "results.sqlite", world.images / min(expected)
    store.with_name(f"{store.name}-journal").write_bytes(journal_naming(image, store))
    done = world.start_screen().finish().ends_with(0, 1)
    assert image.exists(), "an image was deleted"
    done.has(expected)


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

"""The model of a disk after a power cut, and the recording of a program's changes."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from powercut.disk import MODELS, Change, Disk, Luck, Model, State
from powercut.stage import Stage

LUCKS = 200


class Happening:
    """Applies changes to a folder, and finds all possible contents after a power cut."""

    def __init__(self, root: Path, model: Model) -> None:
        self.root, self.disk = root, Disk(root, model)

    def create(self, number: int, *path: str) -> Happening:
        return self.apply(Change(kind="create", number=number, path=path))

    def write(self, number: int, data: bytes, at: int = 0) -> Happening:
        return self.apply(Change(kind="write", number=number, at=at, data=data))

    def sync(self, number: int = 0) -> Happening:
        return self.apply(Change(kind="sync", number=number or self.root.stat().st_ino))

    def rename(self, number: int, path: str, other: str) -> Happening:
        return self.apply(Change(kind="rename", number=number, path=(path,), other=(other,)))

    def apply(self, change: Change) -> Happening:
        self.disk.apply(change)
        return self

    @property
    def states(self) -> list[State]:
        chance = random.Random(1)
        shares = [0.0, 1.0, *(chance.random() for _ in range(LUCKS))]
        return [self.disk.state(Luck(chance=chance, share=share, sector=512)) for share in shares]

    def contents(self, name: str) -> set[bytes | None]:
        """Return all possible contents of a file; b"-" stands for no file."""
        return {state.get((name,), b"-") for state in self.states}


@pytest.fixture(params=MODELS)
def happening(request: pytest.FixtureRequest, tmp_path: Path) -> Happening:
    """A folder with one synced file, under each model."""
    (tmp_path / "old").write_bytes(b"old")
    return Happening(tmp_path, request.param)


def test_a_new_file_may_be_missing_empty_or_torn_until_file_and_folder_are_synced(happening: Happening) -> None:
    happening.create(7, "new").write(7, b"a" * 512 + b"b" * 512)
    first, second, nothing = b"a" * 512, b"b" * 512, bytes(512)
    assert happening.contents("new") == {b"-", b"", first, nothing + second, first + second}
    assert happening.sync(7).sync().contents("new") == {first + second}


def test_a_rename_is_whole_or_not_at_all_and_the_content_is_not_part_of_it(happening: Happening) -> None:
    happening.create(7, "beside").write(7, b"new").rename(7, "beside", "old")
    assert happening.contents("old") == {b"old", b"new", b""}
    happening.sync(7)
    assert happening.contents("old") == ({b"new"} if happening.disk.model == "ordered" else {b"old", b"new"})
    assert happening.sync().contents("old") == {b"new"}


def test_names_change_in_any_order_without_a_journal(tmp_path: Path) -> None:
    def both(model: Model) -> set[tuple[bool, bool]]:
        found = Happening(tmp_path, model).create(1, "first").create(2, "second").states
        return {(("first",) in state, ("second",) in state) for state in found}

    assert both("ordered") == {(False, False), (True, False), (True, True)}
    assert both("unordered") == {(False, False), (True, False), (False, True), (True, True)}


def test_files_that_exchange_names_are_never_missing(happening: Happening) -> None:
    happening.create(7, "new").write(7, b"new").sync(7).sync()
    happening.apply(Change(kind="exchange", number=7, path=("new",), other=("old",)))
    found = {(state.get(("old",)), state.get(("new",))) for state in happening.states}
    assert found == {(b"old", b"new"), (b"new", b"old")}


# ---- recording


PROGRAM = """
import os, sys
os.chdir(sys.argv[1])
def write(name, data, brings):
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(handle, data[:3])
    os.pwrite(handle, data[3:], 3)
    if brings:
        os.fsync(handle)
    os.close(handle)
write("careless", b"precious", False)
write("careful", b"precious", True)
os.mkdir("folder")
for name in ("careless", "careful"):
    os.rename(name, f"folder/{name}")
os.link("folder/careful", "again")
os.truncate("again", 4)
for folder in ("folder", "."):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
os.unlink("again")
os.write(1, b"done\\n")
"""


def test_a_recording_has_all_changes_and_shows_that_an_unsynced_file_may_be_lost(stage: Stage) -> None:
    stage.place.clear()
    disk = Disk(stage.place.root, "unordered")
    stage.run([sys.executable, "-c", PROGRAM, str(stage.place.root)])
    for change in stage.changes:
        disk.apply(change)
    found = {path: data for path, data in stage.place.read().items() if path != ("told",)}
    assert {path: data for path, data in disk.now().items() if path != ("told",)} == found
    assert found["folder", "careful"] == b"prec"
    assert stage.place.log_path.read_bytes() == b"done\n"
    worst = disk.state(Luck(chance=random.Random(1), share=0))
    assert (worst["folder", "careless"], worst["folder", "careful"]) == (b"", b"precious")

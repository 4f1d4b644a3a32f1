"""Folders that change while they are searched: everything that is there at the end was given, under its own name."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fieldray.domain.image import ImageRef
from fieldray.imaging.discover import discover
from fieldray.reasons import Reason
from phantoms import write_index

Row = tuple[str, str | None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three folders with an image each, and one below them."""
    top = tmp_path / "images"
    for name in ("a", "b", "c"):
        (top / name).mkdir(parents=True)
        write(top / name / "1.png", name)
    (top / "b" / "below").mkdir()
    return top


def write(path: Path, text: str = "") -> Path:
    """A file that is no image: whatever is in it, it is given."""
    path.write_text(f"no image {text}")
    return path


def found(search: Iterator[ImageRef], top: Path) -> list[Row]:
    """The rows of a search, or of its rest; `not_an_image` is what all files here are."""
    rows = [(os.path.relpath(ref.path, top), ref.problem.code if ref.problem else None) for ref in search]
    return [(name, None if code == "not_an_image" else code) for name, code in rows]


def through(top: Path, act: Callable[[], object], *, after: str = "a/1.png") -> list[Row]:
    """All rows of a search during which something happens after the given one."""
    search, rows = discover([top]), []
    while not rows or rows[-1][0] != after:
        rows += found(iter([next(search)]), top)
    act()
    return rows + found(search, top)


def test_what_is_moved_into_a_folder_that_was_listed_already_is_found(folder: Path) -> None:
    rows = through(folder, lambda: (folder / "c" / "1.png").rename(folder / "a" / "moved.png"))
    assert rows == [("a/1.png", None), ("b/1.png", None), ("a/moved.png", None)]


def test_what_is_added_is_found_with_the_folders_it_is_in(folder: Path) -> None:
    def act() -> None:
        (folder / "0" / "new").mkdir(parents=True)
        write(folder / "0" / "new" / "2.png")
        write(folder / "0.png")
        write(folder / ".hidden")

    rows = through(folder, act, after="c/1.png")
    assert sorted(rows[3:]) == [("0.png", None), ("0/new/2.png", None)]


def test_what_is_added_while_the_folders_are_listed_again_is_found(folder: Path) -> None:
    search = discover([folder])
    assert len([next(search) for _ in range(3)]) == 3
    write(folder / "0.png")
    assert next(search).path.name == "0.png"
    write(folder / "a" / "2.png")
    assert found(search, folder) == [("a/2.png", None)]


def test_a_device_that_never_stops_writing_does_not_keep_the_search_for_ever(tmp_path: Path) -> None:
    write(tmp_path / "0.png")
    for number, ref in enumerate(discover([tmp_path]), start=1):
        assert number < 100
        write(ref.path.with_name(f"{number}.png"))


def test_a_folder_that_was_renamed_is_found_under_its_new_name(folder: Path) -> None:
    rows = through(folder, lambda: (folder / "b").rename(folder / "z"))
    assert rows == [("a/1.png", None), ("b", "folder_not_read"), ("c/1.png", None), ("z/1.png", None)]


def test_a_folder_in_the_place_of_a_file_is_searched_before_and_after_the_file_was_given(folder: Path) -> None:
    for name, after in (("c/1.png", "a/1.png"), ("a/1.png", "c/1.png/inner.png")):
        place = folder / name

        def act(place: Path = place) -> None:
            place.unlink()
            place.mkdir()
            write(place / "inner.png")

        rows = through(folder, act, after=after)
        assert (f"{name}/inner.png", None) in rows


def test_a_file_in_the_place_of_a_folder_is_given_once(folder: Path) -> None:
    def act() -> None:
        (folder / "c" / "1.png").unlink()
        (folder / "c").rmdir()
        write(folder / "c")

    assert through(folder, act) == [("a/1.png", None), ("b/1.png", None), ("c", None)]


def test_a_file_is_given_under_its_own_name_and_a_link_only_for_what_is_elsewhere(folder: Path, tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere.png")
    (folder / "0-first.png").symlink_to(folder / "c" / "1.png")
    (folder / "0-other.png").symlink_to(elsewhere)
    rows = found(discover([folder]), folder)
    assert rows == [("a/1.png", None), ("b/1.png", None), ("c/1.png", None), ("0-other.png", None)]


def test_a_link_to_a_folder_elsewhere_is_told_once(folder: Path, tmp_path: Path) -> None:
    """A folder was moved to a larger disk, and a link was left in its place."""
    (folder / "c").rename(tmp_path / "larger disk")
    for name in ("c", "d"):
        (folder / name).symlink_to(tmp_path / "larger disk")
    (folder / "b" / "below" / "again").symlink_to(folder / "a")
    (folder / "circle").symlink_to(folder)
    assert found(discover([folder]), folder) == [("a/1.png", None), ("b/1.png", None), ("c", "linked_folder")]
    both = found(discover([folder, tmp_path / "larger disk"]), folder)
    assert sorted(both)[:3] == [("../larger disk/1.png", None), ("a/1.png", None), ("b/1.png", None)]
    assert len(both) == 3


def test_a_zip_file_that_is_replaced_while_its_members_are_listed_says_so(folder: Path, tmp_path: Path) -> None:
    zipped(folder / "b" / "2.zip", range(100))
    replacement = zipped(tmp_path / "other.zip", range(-20, 100))
    search = discover([folder])
    rows = found(iter([next(search) for _ in range(5)]), folder)
    replacement.replace(folder / "b" / "2.zip")
    rows += found(search, folder)
    assert rows[-1] == ("b/2.zip", "changed")
    assert len(rows) >= 3 + 100 + 1


def zipped(path: Path, numbers: range) -> Path:
    """A zip file with a member for each number."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in numbers:
            archive.writestr(f"{number:+04}", f"no image {number}")
    return path


def test_an_index_that_is_replaced_says_so_and_one_that_is_gone_does_not(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (folder / name / "1.png").rename(folder / name / "ONE")
    index = write_index(folder / "DICOMDIR", [("A", "ONE")])
    other = write_index(tmp_path / "DICOMDIR", [("A", "ONE"), ("B", "ONE")])
    assert through(index, lambda: other.replace(index), after="../a/ONE")[-1] == (".", "changed")
    assert through(index, index.unlink, after="../a/ONE") == [("../a/ONE", None), ("../b/ONE", None)]


def test_a_path_whose_images_came_late_is_not_called_empty(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    write(tmp_path / "b" / "1.png")
    notes: list[Reason] = []
    search = discover([tmp_path / "a", tmp_path / "b"], notify=notes.append)
    assert next(search).path.name == "1.png"
    write(tmp_path / "a" / "2.png")
    assert [ref.path.name for ref in search] == ["2.png"]
    assert notes == []

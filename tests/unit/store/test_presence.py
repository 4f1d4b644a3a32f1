"""Which images are no longer there: the same answers, however many paths were given."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fieldray.store.bookkeeping import emptied, gone


class Row(dict[str, Any]):
    """A row of results that counts how often it is read."""

    reads = 0

    def __getitem__(self, name: str) -> Any:
        self.reads += 1
        return super().__getitem__(name)


def row(number: int, key: bytes, *, is_seen: bool = False, stage: str | None = None) -> Row:
    return Row(id=number, image_key=key, is_seen=is_seen, stage=stage, reason=None)


PLACES = (b"/a", b"/a/b", b"/a/b.zip", b"/a/b.zip\0in.dcm", b"/ab", b"/", b"/a/b.zip\0in.zip")
KEYS = [place + end for place in PLACES for end in (b"", b"/c.dcm", b"\0c.dcm", b"\0\x001", b"/d\0\x002", b"c")]


@pytest.mark.parametrize("empty", [*itertools.combinations(PLACES, 1), *itertools.combinations(PLACES, 2)])
def test_what_is_inside_is_told_by_the_beginning_of_a_key(empty: tuple[bytes, ...]) -> None:
    """As the definition says it: inside a folder or zip file, and no frame of that very file."""

    def is_spared(key: bytes) -> bool:
        is_inside = any(key.startswith((place + b"/", place + b"\0")) for place in empty)
        return is_inside and not any(key.startswith(place + b"\0\0") for place in empty)

    rows = [row(number, key) for number, key in enumerate(KEYS)]
    assert gone(rows, empty) == {number for number, key in enumerate(KEYS) if not is_spared(key)}  # type: ignore[arg-type]


def test_a_given_path_is_empty_where_there_were_images_and_none_was_seen() -> None:
    rows = [row(1, b"/a/1.png"), row(2, b"/a/b/2.png", is_seen=True), row(3, b"/c/3.zip\x001.dcm"), row(4, b"/d.png")]
    given = ("/a", "/a/b/", "/c/3.zip", "/c", "/d.png", "/never", "/")
    assert emptied(rows, given) == (b"/c", b"/c/3.zip", b"/d.png")  # type: ignore[arg-type]


def test_thousands_of_given_paths_are_not_compared_with_each_image() -> None:
    names = [f"/images/{number}.png" for number in range(3000)]
    rows = [row(number, name.encode()) for number, name in enumerate(names)]
    assert len(emptied(rows, names)) == len(names)  # type: ignore[arg-type]
    assert sum(each.reads for each in rows) <= 10 * len(rows)

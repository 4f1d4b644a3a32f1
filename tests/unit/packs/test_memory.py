"""Which pack a person chose for which folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.errors import StorageProblem
from fieldray.packs.memory import FILE_NAME, PackMemory, RememberedPack


def test_a_choice_holds_for_the_folder_and_all_below_it(tmp_path: Path) -> None:
    memory, folder = PackMemory(tmp_path / "home"), tmp_path / "ward"
    (folder / "2026" / "may").mkdir(parents=True)
    memory.remember([folder], "children", operating_point="careful")
    chosen = RememberedPack("children", "careful")
    assert memory.find([folder]) == memory.find([folder / "2026" / "may"]) == chosen
    assert memory.find([folder / "image.png"]) == chosen
    assert memory.find([tmp_path]) is None
    memory.remember([folder / "2026"], "adults", ages_confirmed=True)
    assert memory.find([folder / "2026" / "may"]) == RememberedPack("adults", ages_confirmed=True)
    assert memory.find([folder]) == chosen


def test_folders_of_different_patients_have_no_common_answer(tmp_path: Path) -> None:
    memory = PackMemory(tmp_path)
    memory.remember([tmp_path / "a"], "children")
    assert memory.find([tmp_path / "a", tmp_path / "b"]) is None
    memory.remember([tmp_path / "b"], "adults")
    assert memory.find([tmp_path / "a", tmp_path / "b"]) is None
    memory.remember([tmp_path / "b"], "children")
    assert memory.find([tmp_path / "a", tmp_path / "b"]) == RememberedPack("children")


def test_no_name_of_a_folder_is_written(tmp_path: Path) -> None:
    PackMemory(tmp_path / "home").remember([tmp_path / "Olena Kovalenko"], "adults")
    written = (tmp_path / "home" / FILE_NAME).read_text()
    assert "Kovalenko" not in written
    assert "adults" in written


@pytest.mark.parametrize("content", [b"", b"[]", b'{"x": 1}', b"\xff\xfe", b"{" * 100_000])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    memory = PackMemory(tmp_path)
    assert memory.find([tmp_path / "a"]) is None
    memory.remember([tmp_path / "a"], "adults")
    assert memory.find([tmp_path / "a"]) == RememberedPack("adults")


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"{}")
    (tmp_path / FILE_NAME).symlink_to(tmp_path / "other")
    with pytest.raises(StorageProblem):
        PackMemory(tmp_path).remember([tmp_path / "a"], "adults")
    assert (tmp_path / "other").read_bytes() == b"{}"

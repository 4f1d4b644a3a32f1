"""The ratchet that holds how large the packages, tests and documents are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet import HELD, counts, main, read

FILES = {
    "app/fieldray/__init__.py": "",
    "app/fieldray/domain/study.py": "a = 1\n\nb = 2\n",
    "tests/test_study.py": "c = 3\n",
    "tools/measure.py": "d = 4\ne = 5\n",
    "benchmarks/reports.py": "f = 6\n",
    "docs/index.md": "Three words here.\n",
    "docs/guide/en.md": "Two more.\n",
    "docs/recipe-reference.md": "Made by code, and not counted.\n",
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert main(["--lower"], tmp_path) == 0
    return tmp_path


def held(house: Path) -> dict[str, int]:
    return read((house / HELD).read_text(encoding="utf-8"))


def test_everything_is_counted_but_what_code_writes(house: Path) -> None:
    assert counts(house) == {
        "fieldray modules": 2,
        "fieldray lines": 3,
        "tests lines": 1,
        "benchmarks, tools, installer lines": 3,
        "docs pages": 2,
        "docs words": 5,
    }
    assert held(house) == counts(house)


def test_what_grows_fails_and_is_not_lowered_to(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (house / HELD).read_text(encoding="utf-8")
    (house / "tests" / "test_study.py").write_text("c = 3\ng = 7\n", encoding="utf-8")
    for arguments in ([], ["--lower"]):
        assert main(arguments, house) == 1
        assert capsys.readouterr().out == f"tests lines: 2, but {HELD} holds 1\n"
    assert (house / HELD).read_text(encoding="utf-8") == before


def test_what_falls_passes_and_is_held_once_it_is_lowered(house: Path) -> None:
    (house / "app" / "fieldray" / "domain" / "study.py").unlink()
    assert main([], house) == 0
    assert held(house)["fieldray modules"] == 2
    assert main(["--lower"], house) == 0
    assert held(house)["fieldray modules"] == 1


def test_a_package_that_is_new_needs_a_value(house: Path) -> None:
    (house / "app" / "fieldray_adapt").mkdir()
    (house / "app" / "fieldray_adapt" / "train.py").write_text("h = 8\n", encoding="utf-8")
    assert main([], house) == 1
    assert main(["--lower"], house) == 0
    assert held(house)["fieldray_adapt lines"] == 1


def test_of_two_values_that_a_merge_left_the_lower_one_holds() -> None:
    assert read("docs pages: 90\ndocs pages: 75\ndocs pages: 80\n") == {"docs pages": 75}

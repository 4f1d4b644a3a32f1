"""Benchmark reports as files and on the console."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fieldray.bench.benchmark_case import BenchmarkReport, BulletList, Table, write_report
from fieldray.errors import StorageProblem
from fieldray.reports.document import console_lines


def report() -> BenchmarkReport:
    table = Table("Times <ms>", ("", "mean"), (("cpu & co", "1.0"), ("edgetpu", "12.5")))
    return BenchmarkReport(
        file_stem="bench-test", title="Test", blocks=(table, BulletList("Notes", ("a < b",))), json_values={"x": [1.5]}
    )


def test_all_figures_are_in_one_file(tmp_path: Path) -> None:
    written = write_report(report(), tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == [written] == [tmp_path / "new" / "bench-test.json"]
    data = json.loads(written.read_text(encoding="utf-8"))
    assert data["report"] == "bench-test" and data["x"] == [1.5] and data["program"].startswith("fieldray ")


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageProblem):
        write_report(report(), blocked)


def test_on_the_console_columns_are_under_each_other() -> None:
    text = list(console_lines(report().blocks))
    assert text[1] == "Times <ms>"
    assert [line.rstrip()[-4:] for line in text[2:5]] == ["mean", " 1.0", "12.5"]
    assert text[3].startswith("  cpu & co") and "  - a < b" in text


def test_a_row_must_fit() -> None:
    with pytest.raises(ValueError, match="columns"):
        Table("t", ("a", "b"), (("only one",),))

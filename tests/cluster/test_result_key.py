"""Keys of results: all that decides them, and the program's version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fieldray_cluster.pool import result_key, state_of


def test_another_version_is_another_result() -> None:
    assert result_key("a", 1) == result_key("a", 1) != result_key("a", 2)
    assert result_key("a", version="0.0.1") != result_key("a", version="0.0.2")


def test_a_file_counts_by_its_content_and_a_folder_by_its_files(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("1")
    before, folder = state_of(labels), state_of(tmp_path)
    os.utime(labels, (1, 1))
    assert state_of(labels) == before and state_of(tmp_path) != folder
    labels.write_text("2")
    assert state_of(labels) != before
    with pytest.raises(FileNotFoundError):
        state_of(tmp_path / "none")

"""A few random walks through the window; `make walk` goes many."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from window_walk import WindowWalk, acts


@pytest.mark.parametrize("seed", range(4))
def test_a_random_walk_breaks_no_word(qapp: QApplication, tmp_path: Path, seed: int) -> None:
    walk = WindowWalk(qapp, tmp_path)
    try:
        assert walk.go(acts(seed, 50)) == ""
    finally:
        walk.end()

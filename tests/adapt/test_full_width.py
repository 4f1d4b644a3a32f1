"""`fieldray adapt full-width`: a network of full width to time against, with drawn weights."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fieldray.cli import run
from fieldray.commands.console import Console
from fieldray.inference.litert import load_runtime


@pytest.mark.adapt
def test_a_float_file_of_the_size_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    out = io.StringIO()
    code = run(["adapt", "full-width", str(tmp_path / "made"), "--size", "32x64x1"], console=Console(out, out))
    assert code == 0, out.getvalue()
    (path,) = (tmp_path / "made").iterdir()
    interpreter = load_runtime().interpreter(model_path=str(path))
    (details,) = interpreter.get_input_details()
    assert details["shape"].tolist() == [1, 32, 64, 1] and details["dtype"].__name__ == "float32"
    assert 90e6 < path.stat().st_size < 100e6  # 23.5 million weights of four bytes


@pytest.mark.parametrize("size", ["224", "224x224", "16x224x1", "axbxc", "224x224x2"])
def test_wrong_sizes(size: str, tmp_path: Path) -> None:
    assert (
        run(["adapt", "full-width", str(tmp_path), "--size", size], console=Console(io.StringIO(), io.StringIO())) == 2
    )

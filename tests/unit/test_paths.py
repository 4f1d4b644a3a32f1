"""Where things are, and which version this is."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fieldray.paths import VERSION


def test_the_version_is_the_packages() -> None:
    document = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert document["project"]["version"] == VERSION

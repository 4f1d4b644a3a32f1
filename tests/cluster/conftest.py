"""Fixtures of the cluster tests. Tests are left out if the modules that they need are not installed."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fieldray.domain.finding import ScreenedOutcome
from fieldray.imaging.synthetic import write_studies
from fieldray.store.results import ResultQuery
from program import write_images

# Modules needed by each folder. Divided training and recipes of workflows need the toolchain.
NEEDED = {
    "cluster": ("distributed", "pyarrow"),
    "training": ("distributed", "tensorflow"),
    "workflow": ("distributed", "optuna", "tensorflow"),
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave a folder out whose modules are absent."""
    parts = collection_path.relative_to(Path(__file__).parents[1]).parts
    needed = {name for part in parts for name in NEEDED.get(part, ())}
    return None if all(map(importlib.util.find_spec, needed)) else True


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a folder with 27 images (PNG files, DICOM studies, one in a zip file), one damaged image, and a text."""
    folder = tmp_path / "images"
    paths = write_images(folder, 24)
    write_studies(folder / "studies", count=2)
    (folder / "damaged.png").write_bytes(paths[0].read_bytes()[:500])
    (folder / "letter.txt").write_text("no image")
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.write(paths[3], "inside.png")
    return folder


def stored(home: Path, *, moved: tuple[str, str] = ("", "")) -> list[tuple[Any, ...]]:
    """Return the newest run's results without times, with the path `moved[0]` replaced by `moved[1]`."""
    with ResultQuery(home / "results.sqlite") as query:
        return sorted(_gist(row.outcome, moved) for row in query.results(query.runs()[0].run_id))


def _gist(outcome: Any, moved: tuple[str, str]) -> tuple[Any, ...]:
    facts, key = outcome.facts, outcome.ref.key.replace(*moved)
    found = (
        [(each.label, each.score, each.decision) for each in outcome.findings]
        if isinstance(outcome, ScreenedOutcome)
        else outcome.reason.code
    )
    thumbnail = None if facts.thumbnail is None else facts.thumbnail.tobytes()
    return (
        key,
        outcome.category,
        str(found),
        facts.content_sha256,
        thumbnail,
        str(outcome.ref.header),
    )

"""The image that most tests of reports use."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.domain.finding import ScreenedOutcome
from fieldray.imaging.synthetic import chest_phantom
from phantoms import write_dicom
from report_runs import screened_files


@pytest.fixture
def one(tmp_path: Path) -> ScreenedOutcome:
    """A screened outcome of a file in its own folder."""
    path = tmp_path / "in" / "one.dcm"
    path.parent.mkdir()
    write_dicom(path, chest_phantom(160, 128, seed=1, abnormal=True))
    (outcome,) = screened_files([path])
    return outcome

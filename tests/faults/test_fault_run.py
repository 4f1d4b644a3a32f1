"""A short fault run; `make faults` is the long one, with the window and with its times judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.fault_run import FaultRun, Silence, faults


@pytest.mark.timeout(400)
def test_forty_accidents_harm_no_image_and_leave_nothing_behind(library: Path, tmp_path: Path) -> None:
    run = FaultRun(tmp_path, library, events=40, images=100, seed=7, is_short=True)
    figures = run.go(Silence(run))
    assert faults(figures) == []
    assert figures["events"] == 40
    assert figures["images_by_backend"]["cpu"] > 0
    assert figures["images_by_backend"]["edgetpu"] > 0

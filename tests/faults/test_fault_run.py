"""A short fault run; `make faults` is the long one, with the window and with its times judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.fault_run import FaultRun, Silence, faults


@pytest.mark.timeout(400)
def test_two_dozen_accidents_harm_no_image_and_leave_nothing_behind(library: Path, tmp_path: Path) -> None:
    run = FaultRun(tmp_path, library, events=24, images=60, seed=7, is_short=True)
    figures = run.go(Silence(run))
    assert faults(figures) == []
    assert figures["events"] == 24
    assert figures["images_by_backend"]["cpu"] > 0
    assert figures["images_by_backend"]["edgetpu"] > 0


@pytest.mark.timeout(200)
def test_the_fault_run_goes_through_the_window_too(library: Path, tmp_path: Path, qapp: object) -> None:
    from faults.window import go_with_window

    run = FaultRun(tmp_path, library, events=2, images=12, seed=3, is_short=True)
    figures = go_with_window(run)
    assert (figures["events"], figures["images_lost"], figures["images_done_twice"]) == (2, 0, 0)

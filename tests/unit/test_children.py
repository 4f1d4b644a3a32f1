"""The child processes of a run: workers, and none for a device that is not connected."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.inference.coral_status import find_usb_devices, may_have_edgetpu_board
from program import python, write_images

_WORKER = "fieldray.workers.image_worker:handle"
_NOTED = """
import sys
started = []
sys.addaudithook(lambda event, details: event == "subprocess.Popen" and started.append(details[1][-1]))
from fieldray.__main__ import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("started:", *started)
sys.exit(code)
"""


@pytest.mark.skipif(bool(find_usb_devices()) or may_have_edgetpu_board(), reason="an Edge TPU is here")
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_run_starts_workers_only(device: str, tmp_path: Path, pack_options: list[str]) -> None:
    write_images(tmp_path / "images", 30)
    done = python(_NOTED, "screen", tmp_path / "images", *pack_options, "--device", device, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.startswith("{")]) == 30
    (started,) = [line for line in done.stdout.splitlines() if line.startswith("started:")]
    assert set(started.split()[1:]) == {_WORKER}

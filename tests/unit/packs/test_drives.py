from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fieldray.domain.events import Drive, DrivesChanged, Event
from fieldray.packs.drives import DriveWatch, LookedAt, MacVolumes, list_drives

EDGETPU = Drive(mount_point="/media/drive", name="drive", pack_folders=("/media/drive/fieldray/chest-1.0.0",))


class FakeSource(LookedAt):
    """Drives that a test plugs in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.there: tuple[Drive, ...] = ()
        self.looks = 0
        self.is_closed = False
        self.looked = threading.Event()

    def drives(self) -> tuple[Drive, ...]:
        self.looks += 1
        self.looked.set()
        return self.there

    def change(self, *drives: Drive) -> None:
        self.there = drives
        self.wake()

    def close(self) -> None:
        self.is_closed = True


def _next(events: queue.SimpleQueue[Event]) -> tuple[Drive, ...]:
    event = events.get(timeout=10)
    assert isinstance(event, DrivesChanged)
    return event.drives


def test_the_watch_tells_what_is_there_and_every_change_once() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    source = FakeSource()
    watch = DriveWatch(events.put, source=source)
    watch.start()
    assert _next(events) == ()
    source.change(EDGETPU)
    assert _next(events) == (EDGETPU,)
    source.looked.clear()
    source.change(EDGETPU)  # a wake without a change
    assert source.looked.wait(10)
    source.change()
    assert _next(events) == ()
    watch.close()
    assert source.is_closed
    assert events.empty()


def test_a_watch_that_was_never_started_can_be_closed() -> None:
    source = FakeSource()
    DriveWatch(lambda event: None, source=source).close()
    assert source.looks == 0
    assert source.is_closed


def test_listing_once_closes_its_source() -> None:
    source = FakeSource()
    source.there = (EDGETPU,)
    assert list_drives(source) == (EDGETPU,)
    assert source.is_closed


def test_the_drives_of_this_machine_can_be_listed() -> None:
    assert isinstance(list_drives(), tuple)


def test_mac_volumes_without_the_start_up_link(tmp_path: Path) -> None:
    (tmp_path / "EDGETPU" / "fieldray" / "chest-1.0.0").mkdir(parents=True)
    (tmp_path / "EDGETPU" / "fieldray" / "chest-1.0.0" / "manifest.json").write_text("{}")
    (tmp_path / "Macintosh HD").symlink_to("/")
    (drive,) = MacVolumes(volumes=tmp_path).drives()
    assert (drive.name, len(drive.pack_folders)) == ("EDGETPU", 1)


# ---- real mounts, in a mount namespace of their own so that nothing is left behind

_SCRIPT = Path(__file__).with_name("real_mounts.py")


def _in_namespace(*command: str, scenario: str, folder: Path) -> dict[str, object]:
    """Run a scenario of real_mounts.py; skips where the system does not permit mounts."""
    if sys.platform != "linux":
        pytest.skip("Linux only")
    done = subprocess.run(
        [*command, sys.executable, str(_SCRIPT), scenario, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"mounts are not permitted here: {done.stderr.strip()[:200]}")
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_real_mount_is_told_within_moments(tmp_path: Path) -> None:
    found = _in_namespace("unshare", "--user", "--map-root-user", "--mount", scenario="plug", folder=tmp_path)
    assert found["drives"] == [[], ["/mnt/drive"], []]
    assert found["pack_folders"] == ["/mnt/drive/fieldray/test-chest-1.2.3"]
    # the kernel tells at once; the watch's own second look comes after 2 s and must not be what found it
    assert max(found["delays_s"]) < 1.0  # type: ignore[type-var]


def test_a_pack_copied_onto_a_mounted_drive_is_noticed(tmp_path: Path) -> None:
    found = _in_namespace("unshare", "--user", "--map-root-user", "--mount", scenario="copy", folder=tmp_path)
    assert found["pack_folders"] == ["/mnt/drive/fieldray/test-chest-1.2.3"]


def test_a_drive_pulled_out_while_it_is_read(tmp_path: Path) -> None:
    found = _in_namespace("unshare", "--mount", "--propagation", "private", scenario="yank", folder=tmp_path)
    assert found["before"] == "test-chest-1.2.3"
    assert found["load"] == found["candidates"] == "drive_gone"
    assert found["model_is_whole"] is True
    assert found["drives"] == [["/mnt/drive"], []]

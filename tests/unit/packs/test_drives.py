from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest

from fieldray.domain.events import Drive, DrivesChanged, Event
from fieldray.packs.drives import (
    DriveWatch,
    drives_on_linux,
    drives_on_mac,
    drives_on_windows,
    is_removable,
    letters,
    list_drives,
    parse_mountinfo,
)

STICK = Drive(mount_point="/media/drive", name="drive", pack_folders=("/media/drive/fieldray/chest-1.0.0",))


def test_the_watch_tells_what_is_there_and_every_change_once() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    looks = iter([(), (STICK,), (STICK,), ()])
    watch = DriveWatch(events.put, look=lambda: next(looks, ()))
    watch.start()
    seen = [events.get(timeout=10) for _ in range(3)]
    watch.close()
    assert seen == [DrivesChanged(drives=()), DrivesChanged(drives=(STICK,)), DrivesChanged(drives=())]
    assert events.empty()


def test_a_watch_that_was_never_started_can_be_closed() -> None:
    DriveWatch(lambda event: None).close()


def test_the_drives_of_this_machine_can_be_listed() -> None:
    assert isinstance(list_drives(), tuple)


def test_mac_volumes_without_the_start_up_link(tmp_path: Path) -> None:
    (tmp_path / "STICK" / "fieldray" / "chest-1.0.0").mkdir(parents=True)
    (tmp_path / "STICK" / "fieldray" / "chest-1.0.0" / "manifest.json").write_text("{}")
    (tmp_path / "Macintosh HD").symlink_to("/")
    (drive,) = drives_on_mac(volumes=tmp_path)
    assert (drive.name, len(drive.pack_folders)) == ("STICK", 1)


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


def test_a_real_mount_is_told(tmp_path: Path) -> None:
    found = _in_namespace("unshare", "--user", "--map-root-user", "--mount", scenario="plug", folder=tmp_path)
    assert found["drives"] == [[], ["/mnt/drive"], []]
    assert found["pack_folders"] == ["/mnt/drive/fieldray/test-chest-1.2.3"]


def test_a_pack_copied_onto_a_mounted_drive_is_noticed(tmp_path: Path) -> None:
    found = _in_namespace("unshare", "--user", "--map-root-user", "--mount", scenario="copy", folder=tmp_path)
    assert found["pack_folders"] == ["/mnt/drive/fieldray/test-chest-1.2.3"]


def test_a_drive_pulled_out_while_it_is_read(tmp_path: Path) -> None:
    found = _in_namespace("unshare", "--mount", "--propagation", "private", scenario="yank", folder=tmp_path)
    assert found["before"] == "test-chest-1.2.3"
    assert found["load"] == found["candidates"] == "drive_gone"
    assert found["model_is_whole"] is True
    assert found["drives"] == [["/mnt/drive"], []]


# ---- Linux

# Lines as a Debian laptop shows them, with a drive named "Мої дані" whose space is written as an escape.
MOUNTINFO = """\
22 28 0:21 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
31 28 0:27 / /run rw,nosuid,nodev shared:5 master:2 - tmpfs tmpfs rw,size=1600k
90 28 7:0 / /snap/core/1 ro,nodev,relatime shared:43 - squashfs /dev/loop0 ro
95 31 8:17 / /run/media/ivan/Мої\\040дані rw,nosuid shared:50 - vfat /dev/sdb1 rw,uid=1000
96 28 8:33 / /srv/card rw - exfat /dev/sdc1 rw
97 28 8:49 / /data rw - ext4 /dev/sdd1 rw
98 28 0:40 / /media/ivan/BIG rw - fuseblk /dev/gone rw
99 28 7:1 / /mnt/image rw - ext4 /dev/loop1 rw
100 28 0:41 / /mnt/deep/place rw - tmpfs tmpfs rw
a line that makes no sense
"""


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A sysfs tree: sda on NVMe, sdb on USB, sdc removable by its own word, sdd fixed, two loops."""
    if sys.platform != "linux":
        pytest.skip("sysfs is of Linux alone")
    root = tmp_path / "sys"
    block = root / "dev" / "block"
    block.mkdir(parents=True)
    places = {
        "259:2": "devices/pci0000:00/0000:00:06.0/nvme/nvme0/nvme0n1/nvme0n1p2",
        "8:17": "devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb/sdb1",
        "8:33": "devices/pci0000:00/0000:00:17.0/ata2/host1/target1:0:0/1:0:0:0/block/sdc/sdc1",
        "8:49": "devices/pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sdd/sdd1",
        "7:0": "devices/virtual/block/loop0",
        "7:1": "devices/virtual/block/loop1",
    }
    for device, place in places.items():
        (root / place).mkdir(parents=True)
        (block / device).symlink_to(root / place)
    (root / places["8:33"]).parent.joinpath("removable").write_text("1\n")
    (root / places["8:49"]).parent.joinpath("removable").write_text("0\n")
    return root


def test_mountinfo_is_parsed_with_its_escapes() -> None:
    mounts = parse_mountinfo(MOUNTINFO.encode())
    assert len(mounts) == 10
    assert mounts[4].mount_point == "/run/media/ivan/Мої дані"
    assert (mounts[4].device, mounts[4].file_system, mounts[4].source) == ("8:17", "vfat", "/dev/sdb1")
    (escaped,) = parse_mountinfo(rb"1 2 8:1 / /a\040b\011c\012d\134e rw - vfat /dev/x rw")
    assert escaped.mount_point == "/a b\tc\nd\\e"


@pytest.mark.parametrize("data", [b"", b"\n\n", b" - ", b"1 2 3", b"\xff" * 50, b"1 2 8:1 / /a rw shared:1 -"])
def test_lines_that_make_no_sense_are_left_out(data: bytes) -> None:
    assert parse_mountinfo(data) == ()


def test_names_that_are_not_utf8_still_lead_to_their_folder() -> None:
    (mount,) = parse_mountinfo(b"1 2 8:1 / /media/\xcf\xf0 rw - vfat /dev/x rw")
    assert os.fsencode(mount.mount_point) == b"/media/\xcf\xf0"


def test_which_mounts_are_removable(system: Path) -> None:
    mounts = parse_mountinfo(MOUNTINFO.encode())
    removable = [mount.mount_point for mount in mounts if is_removable(mount, system=system)]
    assert removable == ["/run/media/ivan/Мої дані", "/srv/card", "/media/ivan/BIG", "/mnt/image"]


def test_a_drive_whose_device_has_gone_is_not_there_any_more(system: Path) -> None:
    (mount,) = parse_mountinfo(b"95 31 8:17 / /run/media/ivan/drive rw - vfat /dev/sdb1 rw")
    assert is_removable(mount, system=system)
    (system / "dev" / "block" / "8:17").unlink()
    assert not is_removable(mount, system=system)


def test_drives_of_a_fake_tree_with_the_packs_on_them(system: Path, tmp_path: Path) -> None:
    drive = tmp_path / "my drive"
    (drive / "fieldray" / "chest-1.0.0").mkdir(parents=True)
    (drive / "fieldray" / "chest-1.0.0" / "manifest.json").write_text("{}")
    mounts = tmp_path / "mountinfo"
    line = f"95 31 8:17 / {str(drive).replace(' ', chr(92) + '040')} rw - vfat /dev/sdb1 rw\n"
    mounts.write_text(line + line)  # mounted twice at one place: one drive
    (found,) = drives_on_linux(mounts=mounts, system=system)
    assert (found.mount_point, found.name) == (str(drive), "my drive")
    assert found.pack_folders == (str(drive / "fieldray" / "chest-1.0.0"),)
    mounts.write_text("")
    assert drives_on_linux(mounts=mounts, system=system) == ()


# ---- Windows

REMOVABLE, FIXED, NETWORK = 2, 3, 4


class FakeKernel:
    """kernel32 of a machine with these drives by letter."""

    def __init__(self, **kinds: int) -> None:
        self.kinds = kinds
        self.error_modes: list[int] = []

    def GetLogicalDrives(self) -> int:
        return sum(1 << (ord(letter) - ord("A")) for letter in self.kinds)

    def GetDriveTypeW(self, root: str) -> int:
        assert root[1:] == ":\\"
        return self.kinds[root[0]]

    def SetThreadErrorMode(self, mode: int, old: None) -> int:
        self.error_modes.append(mode)
        return 1


def test_letters_of_the_mask() -> None:
    # bit 0 is A, bit 2 is C, bit 25 is Z
    assert letters(0b101 | 1 << 25) == ("A", "C", "Z")
    assert letters(0) == ()


def test_only_removable_drives_are_listed() -> None:
    kernel = FakeKernel(C=FIXED, E=REMOVABLE, H=NETWORK, Z=REMOVABLE)
    assert [(drive.mount_point, drive.name) for drive in drives_on_windows(kernel)] == [("E:\\", "E:"), ("Z:\\", "Z:")]
    assert kernel.error_modes == [1]  # no "insert a disk" questions on the screen
    kernel.kinds = {"C": FIXED}
    assert drives_on_windows(kernel) == ()

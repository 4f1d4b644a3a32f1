from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fieldray.domain.run import DrivesChanged, Event
from fieldray.packs.reading import (
    DriveWatch,
    drives_on_linux,
    drives_on_mac,
    drives_on_windows,
    is_removable_drive,
    list_drives,
)
from packs_factory import make_pack

STICK = {Path("/media/drive"): (Path("/media/drive/fieldray/chest-1.0.0"),)}


def test_the_drive_watch_reports_the_drives_and_each_change_once() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    looks = iter([{}, STICK, STICK, {}])
    DriveWatch(events.put).close()  # closing a watch that was never started
    watch = DriveWatch(events.put, look=lambda: next(looks, {}))
    watch.start()
    seen = [events.get(timeout=10) for _ in range(3)]
    watch.close()
    assert seen == [DrivesChanged(), DrivesChanged(drives=STICK), DrivesChanged()]
    assert events.empty()


def test_the_drives_of_this_machine_can_be_listed() -> None:
    assert isinstance(list_drives(), dict)


def test_mac_volumes_without_the_start_up_link(tmp_path: Path) -> None:
    (tmp_path / "STICK").mkdir()
    (tmp_path / "Macintosh HD").symlink_to("/")
    assert drives_on_mac(volumes=tmp_path) == [tmp_path / "STICK"]


# ---- a real mount, in its own mount namespace so that nothing is left behind

_PLUG = """
import json, queue, subprocess, sys
from fieldray.packs.reading import DriveWatch

def run(*command):
    subprocess.run(command, check=True)

def drives():
    found = events.get(timeout=10).drives
    return [list(map(str, packs)) for drive, packs in found.items() if str(drive) == "/mnt/drive"]

beside, packs = sys.argv[1:]
run("mount", "-t", "tmpfs", "none", "/mnt")  # hides the machine's own, in this namespace only
run("mkdir", "/mnt/drive", beside)
run("mount", "-t", "tmpfs", "none", beside)
run("cp", "-r", packs, beside)
events = queue.SimpleQueue()
watch = DriveWatch(events.put)
watch.start()
seen = [drives()]
for command in (("mount", "--move", beside, "/mnt/drive"), ("umount", "/mnt/drive")):
    run(*command)
    seen.append(drives())
watch.close()
print(json.dumps(seen))
"""
_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
_CAN_MOUNT = shutil.which("unshare") and not subprocess.run([*_UNSHARE, "true"], check=False).returncode


@pytest.mark.skipif(not _CAN_MOUNT, reason="mounts are not permitted here")
def test_a_real_mount_is_reported(tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "fieldray")
    done = subprocess.run(
        [*_UNSHARE, sys.executable, "-c", _PLUG, tmp_path / "beside", pack.parent],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], [[f"/mnt/drive/fieldray/{pack.name}"]], []]


# ---- Linux

# the mounts of a Debian laptop
MOUNTED = [
    ("sysfs", "/sys", "sysfs"),
    ("/dev/nvme0n1p2", "/", "ext4"),
    ("tmpfs", "/run", "tmpfs"),
    ("/dev/loop0", "/snap/core/1", "squashfs"),
    ("/dev/sdb1", "/run/media/ivan/Мої дані", "vfat"),
    ("/dev/sdc1", "/srv/card", "exfat"),
    ("/dev/sdd1", "/data", "ext4"),
    ("/dev/gone", "/media/ivan/BIG", "fuseblk"),
    ("/dev/loop1", "/mnt/image", "ext4"),
    ("tmpfs", "/mnt/deep/place", "tmpfs"),
]


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A sysfs tree: sda on NVMe, sdb on USB, sdc with its own removable flag, sdd fixed, two loop devices."""
    if sys.platform != "linux":
        pytest.skip("sysfs is of Linux alone")
    root = tmp_path / "sys"
    block = root / "class" / "block"
    block.mkdir(parents=True)
    places = {
        "nvme0n1p2": "devices/pci0000:00/0000:00:06.0/nvme/nvme0/nvme0n1/nvme0n1p2",
        "sdb1": "devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb/sdb1",
        "sdc1": "devices/pci0000:00/0000:00:17.0/ata2/host1/target1:0:0/1:0:0:0/block/sdc/sdc1",
        "sdd1": "devices/pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sdd/sdd1",
        "loop0": "devices/virtual/block/loop0",
        "loop1": "devices/virtual/block/loop1",
    }
    for device, place in places.items():
        (root / place).mkdir(parents=True)
        (block / device).symlink_to(root / place)
    (root / places["sdc1"]).parent.joinpath("removable").write_text("1\n")
    (root / places["sdd1"]).parent.joinpath("removable").write_text("0\n")
    return root


def test_which_mounts_are_removable(system: Path) -> None:
    removable = [place for device, place, kind in MOUNTED if is_removable_drive(device, kind, place, sysfs_root=system)]
    assert removable == ["/run/media/ivan/Мої дані", "/srv/card", "/media/ivan/BIG", "/mnt/image"]
    (system / "class" / "block" / "sdb1").unlink()  # its device is gone
    assert not is_removable_drive("/dev/sdb1", "vfat", "/run/media/ivan/Мої дані", sysfs_root=system)


def test_drives_of_a_fake_tree(system: Path) -> None:
    twice = [("/dev/sdb1", "/media/my drive", "vfat", "rw")] * 2  # two mounts at one path are one drive
    assert drives_on_linux(mounted=twice, sysfs_root=system) == [Path("/media/my drive")]
    assert drives_on_linux(mounted=[], sysfs_root=system) == []


# ---- Windows

REMOVABLE, FIXED, NETWORK = 2, 3, 4


class FakeKernel:
    """kernel32 of a computer with these drives by letter."""

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


def test_only_removable_drives_are_listed() -> None:
    kernel = FakeKernel(C=FIXED, E=REMOVABLE, H=NETWORK, Z=REMOVABLE)
    assert drives_on_windows(kernel) == [Path("E:\\"), Path("Z:\\")]
    assert kernel.error_modes == [1]  # no "insert a disk" dialogs of Windows
    kernel.kinds = {"C": FIXED}
    assert drives_on_windows(kernel) == []

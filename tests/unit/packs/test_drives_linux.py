from __future__ import annotations

import os
from pathlib import Path

import pytest

linux = pytest.importorskip("fieldray.packs.drives_linux", reason="Linux only", exc_type=ImportError)

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
    mounts = linux.parse_mountinfo(MOUNTINFO.encode())
    assert len(mounts) == 10
    assert mounts[4].mount_point == "/run/media/ivan/Мої дані"
    assert (mounts[4].device, mounts[4].file_system, mounts[4].source) == ("8:17", "vfat", "/dev/sdb1")
    (escaped,) = linux.parse_mountinfo(rb"1 2 8:1 / /a\040b\011c\012d\134e rw - vfat /dev/x rw")
    assert escaped.mount_point == "/a b\tc\nd\\e"


@pytest.mark.parametrize("data", [b"", b"\n\n", b" - ", b"1 2 3", b"\xff" * 50, b"1 2 8:1 / /a rw shared:1 -"])
def test_lines_that_make_no_sense_are_left_out(data: bytes) -> None:
    assert linux.parse_mountinfo(data) == ()


def test_names_that_are_not_utf8_still_lead_to_their_folder() -> None:
    (mount,) = linux.parse_mountinfo(b"1 2 8:1 / /media/\xcf\xf0 rw - vfat /dev/x rw")
    assert os.fsencode(mount.mount_point) == b"/media/\xcf\xf0"


def test_which_mounts_are_removable(system: Path) -> None:
    mounts = linux.parse_mountinfo(MOUNTINFO.encode())
    removable = [mount.mount_point for mount in mounts if linux.is_removable(mount, system=system)]
    assert removable == ["/run/media/ivan/Мої дані", "/srv/card", "/media/ivan/BIG", "/mnt/image"]


def test_an_edgetpu_whose_device_has_gone_is_not_there_any_more(system: Path) -> None:
    (mount,) = linux.parse_mountinfo(b"95 31 8:17 / /run/media/ivan/drive rw - vfat /dev/sdb1 rw")
    assert linux.is_removable(mount, system=system)
    (system / "dev" / "block" / "8:17").unlink()
    assert not linux.is_removable(mount, system=system)


def test_drives_of_a_fake_tree_with_the_packs_on_them(system: Path, tmp_path: Path) -> None:
    drive = tmp_path / "my drive"
    (drive / "fieldray" / "chest-1.0.0").mkdir(parents=True)
    (drive / "fieldray" / "chest-1.0.0" / "manifest.json").write_text("{}")
    mounts = tmp_path / "mountinfo"
    line = f"95 31 8:17 / {str(drive).replace(' ', chr(92) + '040')} rw - vfat /dev/sdb1 rw\n"
    mounts.write_text(line + line)  # mounted twice at one place: one drive
    source = linux.LinuxMounts(mounts=mounts, system=system)
    (found,) = source.drives()
    assert (found.mount_point, found.name) == (str(drive), "my drive")
    assert found.pack_folders == (str(drive / "fieldray" / "chest-1.0.0"),)
    mounts.write_text("")
    assert source.drives() == ()
    source.close()

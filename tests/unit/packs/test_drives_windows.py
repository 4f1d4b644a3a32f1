from __future__ import annotations

import ctypes
from collections.abc import Callable

from fieldray.packs.drives_windows import WindowsDrives, letters, volume_filter

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
    source = WindowsDrives(kernel=kernel, register=lambda changed: lambda: None)
    assert [(drive.mount_point, drive.name) for drive in source.drives()] == [("E:\\", "E:"), ("Z:\\", "Z:")]
    assert kernel.error_modes == [1]  # no "insert a disk" questions on the screen
    kernel.kinds = {"C": FIXED}
    assert source.drives() == ()


def test_the_systems_call_ends_the_wait_and_is_ended() -> None:
    calls: list[Callable[[], None]] = []
    ended: list[bool] = []

    def register(changed: Callable[[], None]) -> Callable[[], None]:
        calls.append(changed)
        return lambda: ended.append(True)

    source = WindowsDrives(kernel=FakeKernel(), register=register)
    calls[0]()
    source.wait(100)  # returns at once: rung before
    source.close()
    assert ended == [True]


def test_the_filter_is_laid_out_as_cfgmgr32_h_says() -> None:
    wanted = volume_filter()
    # four DWORDs (16 bytes) and a union as long as WCHAR InstanceId[200] (400 bytes)
    assert ctypes.sizeof(wanted) == wanted.cbSize == 416
    # {53f5630d-b6bf-11d0-94f2-00a0c91efb8b}: three little-endian numbers, then eight bytes
    assert bytes(wanted.ClassGuid).hex() == "0d63f553bfb6d01194f200a0c91efb8b"

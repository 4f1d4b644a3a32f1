"""Edge TPUs as Linux and Windows list them: a tree made of files, instance ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.inference.coral.status import (
    UsbDevice,
    find_on_linux,
    find_on_windows,
    parse_instances,
    split_multi_string,
)

READY = {"idVendor": "18d1", "idProduct": "9302", "speed": "5000", "busnum": "2", "devnum": "4"}
UNINITIALISED = READY | {"idVendor": "1a6e", "idProduct": "089a"}


def add_device(sysfs: Path, name: str, facts: dict[str, str]) -> None:
    (sysfs / name).mkdir(parents=True)
    for key, value in facts.items():
        (sysfs / name / key).write_text(value + "\n")


def linux_devices(tmp_path: Path) -> tuple[UsbDevice, ...]:
    return find_on_linux(sysfs=tmp_path / "sys", nodes=tmp_path / "dev")


def test_an_edgetpu_with_and_without_its_firmware(tmp_path: Path) -> None:
    add_device(tmp_path / "sys", "2-1", READY)
    add_device(tmp_path / "sys", "1-4", UNINITIALISED | {"speed": "480"})
    add_device(tmp_path / "sys", "1-2", {"idVendor": "046d", "idProduct": "c31c", "speed": "1.5"})
    add_device(tmp_path / "sys", "2-1:1.0", READY)  # an interface
    add_device(tmp_path / "sys", "usb2", {"idVendor": "1d6b", "idProduct": "0003"})
    assert linux_devices(tmp_path) == (
        UsbDevice(port="1-4", state="uninitialised", port_mbit=480, is_on_weak_hub=False),
        UsbDevice(port="2-1", state="ready", port_mbit=5000, is_on_weak_hub=False),
    )


@pytest.mark.parametrize(("attributes", "is_weak"), [("e0", False), ("a0", True), (None, None)])
def test_a_hub_without_power_of_its_own_is_found(tmp_path: Path, attributes: str | None, is_weak: bool | None) -> None:
    add_device(tmp_path / "sys", "2-1", {"bmAttributes": attributes} if attributes else {})
    add_device(tmp_path / "sys", "2-1.4", READY)
    assert [edgetpu.is_on_weak_hub for edgetpu in linux_devices(tmp_path)] == [is_weak]


def test_a_tree_that_is_absent_or_torn_gives_no_edgetpu(tmp_path: Path) -> None:
    assert linux_devices(tmp_path) == ()
    add_device(tmp_path / "sys", "2-1", {"idVendor": "18d1"})
    add_device(tmp_path / "sys", "2-2", {"idVendor": "zz", "idProduct": "9302"})
    add_device(tmp_path / "sys", "2-3", {"idVendor": "18d1", "idProduct": "9302", "speed": "unknown"})
    assert linux_devices(tmp_path) == (UsbDevice(port="2-3", state="ready", is_on_weak_hub=False),)


def test_the_node_of_the_device_is_where_bus_and_device_number_say(tmp_path: Path) -> None:
    add_device(tmp_path / "sys", "2-1", READY)
    node = tmp_path / "dev" / "002" / "004"
    node.parent.mkdir(parents=True)
    node.touch()
    assert [edgetpu.is_writable for edgetpu in linux_devices(tmp_path)] == [True]


def test_windows() -> None:
    instances = split_multi_string(
        "USB\\ROOT_HUB30\\4&1A2B3C4D&0&0\0"
        "USB\\VID_046D&PID_C52B&MI_00\\7&2F1B9E&0&0000\0"
        "USB\\VID_18D1&PID_9302\\5&2d3a1f2c&0&7\0"
        "USB\\VID_18D1&PID_9302&MI_00\\6&1&0&0000\0"
        "usb\\vid_1a6e&pid_089a\\5&2d3a1f2c&0&8\0\0"
    )
    assert len(instances) == 5
    assert parse_instances(instances) == (
        UsbDevice(port="5&2d3a1f2c&0&7", state="ready"),
        UsbDevice(port="5&2d3a1f2c&0&8", state="uninitialised"),
    )


def test_the_systems_own_lists_can_be_asked_anywhere() -> None:
    for find in (find_on_linux, find_on_windows):
        assert isinstance(find(), tuple)

"""The offline proof's reading of the kernel's socket list: no internet socket is overlooked."""

from __future__ import annotations

from pathlib import Path

import pytest

from prove_offline import find_telemetry_files, read_trace

QUIET = """\
10 execve("/usr/bin/python3", ["python3", "-m", "fieldray"], 0x7ffd /* 20 vars */) = 0
10 execve("/usr/local/bin/gone", ["gone"], 0x7ffd /* 20 vars */) = -1 ENOENT (No such file or directory)
11 socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0) = 3
11 connect(3, {sa_family=AF_UNIX, sun_path=@"/tmp/.X11-unix/X0"}, 20) = 0
12 socket(AF_NETLINK, SOCK_RAW|SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT) = 4
12 socketpair(AF_UNIX, SOCK_STREAM, 0, [5, 6]) = 0
12 io_uring_setup(8, {flags=0}) = -1 ENOSYS (Function not implemented)
"""


def test_local_sockets_are_counted_separately() -> None:
    seen = read_trace(QUIET)
    assert seen.internet == 0
    assert (seen.families["AF_UNIX"], seen.families["AF_NETLINK"], seen.programs) == (3, 1, 1)
    assert seen.socket_paths == {'@"/tmp/.X11-unix/X0"'}


@pytest.mark.parametrize(
    "line",
    [
        "13 socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC, IPPROTO_IP) = -1 EACCES (Permission denied)",
        "13 socket(AF_INET6, SOCK_DGRAM, IPPROTO_IP) = 7",
        "13 socket(AF_PACKET, SOCK_RAW, 768) = -1 EPERM (Operation not permitted)",
        "13 socket(AF_VSOCK, SOCK_STREAM, 0) = 7",
        "13 socket(0x2c /* AF_??? */, SOCK_RAW, 0) = 7",
        '13 connect(7, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("1.2.3.4")}, 16) = 0',
        '13 sendto(7, "x", 1, 0, {sa_family=AF_INET6, sin6_port=htons(53)}, 28) = 1',
        "13 <... socket resumed>) = 7\n13 bind(7, {sa_family=AF_INET, sin_port=htons(0)}, 16 <unfinished ...>",
        "13 io_uring_setup(8, {flags=0, sq_thread_cpu=0}) = 7",
    ],
)
def test_every_other_socket_counts_as_internet_even_if_refused(line: str) -> None:
    assert read_trace(QUIET + line + "\n").internet >= 1


def test_names_of_tracking_libraries_are_found(tmp_path: Path) -> None:
    for name in ("_internal/numpy/core.so", "_internal/sentry_sdk/hub.py", "_internal/PySide6/QtNetwork.abi3.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = find_telemetry_files(tmp_path)
    assert "_internal/sentry_sdk/hub.py" in found
    assert "_internal/PySide6/QtNetwork.abi3.so" in found
    assert not any("numpy" in name for name in found)

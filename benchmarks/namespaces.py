"""Computers that are network namespaces of this one, each with a link of a shaped rate to a bridge (Linux, as root)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

NETWORK: Final = "10.77.0"


class NotPermitted(Exception):
    """This computer does not let this user make network namespaces; the message says why."""


class Namespaces:
    """So many computers, counted from 0, and the bridge between them (see `namespaces`)."""

    def __init__(self, count: int) -> None:
        self._bridge = f"fieldray-{os.getpid()}"
        self.names: Final = [f"{self._bridge}-{number}" for number in range(count)]

    def address(self, number: int) -> str:
        """Of a computer."""
        return f"{NETWORK}.{number + 1}"

    def command(self, number: int, words: Sequence[str]) -> list[str]:
        """What runs a command on a computer."""
        return ["ip", "netns", "exec", self.names[number], *words]

    def link(self, number: int, *, is_up: bool) -> None:
        """Cut a computer's link, or put it back."""
        _output("ip", "-n", self._bridge, "link", "set", f"to{number}", "up" if is_up else "down")

    def received_mb(self, number: int) -> float:
        """What went over its link to a computer."""
        counter = f"/sys/class/net/to{number}/statistics/tx_bytes"
        return int(_output("ip", "netns", "exec", self._bridge, "cat", counter)) / 2**20

    def make(self, *, rate_mbit: int) -> None:
        """Make them. Raises NotPermitted."""
        _output("ip", "netns", "add", self._bridge)
        _output("ip", "-n", self._bridge, "link", "add", "bridge0", "type", "bridge")
        _output("ip", "-n", self._bridge, "link", "set", "bridge0", "up")
        for number, name in enumerate(self.names):
            _output("ip", "netns", "add", name)
            end = ("peer", "name", f"to{number}", "netns", self._bridge)
            _output("ip", "-n", name, "link", "add", "link0", "type", "veth", *end)
            _output("ip", "-n", name, "address", "add", f"{self.address(number)}/24", "dev", "link0")
            _output("ip", "-n", self._bridge, "link", "set", f"to{number}", "master", "bridge0")
            for space, device in ((name, "lo"), (name, "link0"), (self._bridge, f"to{number}")):
                _output("ip", "-n", space, "link", "set", device, "up")
            shape = ("root", "tbf", "rate", f"{rate_mbit}mbit", "burst", "64kb", "limit", "20mb")
            for space, device in ((name, "link0"), (self._bridge, f"to{number}")):
                _output("tc", "-n", space, "qdisc", "add", "dev", device, *shape)

    def remove(self) -> None:
        """Remove what was made of them."""
        for name in (*self.names, self._bridge):
            with contextlib.suppress(NotPermitted):
                _output("ip", "netns", "delete", name)


@contextlib.contextmanager
def namespaces(count: int, *, rate_mbit: int) -> Iterator[Namespaces]:
    """Computers that are there within the block; what runs in them has to end before. Raises NotPermitted."""
    if sys.platform != "linux" or not shutil.which("ip") or not shutil.which("tc"):
        raise NotPermitted("network namespaces need Linux with ip and tc (the package iproute2)")
    made = Namespaces(count)
    try:
        made.make(rate_mbit=rate_mbit)
        yield made
    finally:
        made.remove()


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermitted(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    return done.stdout

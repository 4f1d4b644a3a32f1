"""Simulate several computers by network namespaces, each with a rate-limited link to a bridge (Linux, as root)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

SUBNET: Final = "10.77.0"


class NotPermitted(Exception):
    """The error if this user may not make network namespaces on this computer. The message gives the reason."""


class Namespaces:
    """Several simulated computers, numbered from 0, and the network bridge between them."""

    def __init__(self, count: int) -> None:
        self._bridge = f"fieldray-{os.getpid()}"
        self.names: Final = [f"{self._bridge}-{number}" for number in range(count)]

    def address(self, number: int) -> str:
        """Return the IP address of the computer with the number `number`."""
        return f"{SUBNET}.{number + 1}"

    def command(self, number: int, words: Sequence[str]) -> list[str]:
        """Return the command line that runs the command `words` on the computer with the number `number`."""
        return ["ip", "netns", "exec", self.names[number], *words]

    def switch_link(self, number: int, *, is_up: bool) -> None:
        """Restore the link of a computer if `is_up`, else cut the link."""
        _output("ip", "-n", self._bridge, "link", "set", f"to{number}", "up" if is_up else "down")

    def received_mb(self, number: int) -> float:
        """Return how many megabytes a computer has received over its link until now."""
        counter = f"/sys/class/net/to{number}/statistics/tx_bytes"
        return int(_output("ip", "netns", "exec", self._bridge, "cat", counter)) / 2**20

    def create_all(self, *, rate_mbit: int) -> None:
        """Make the namespaces, the bridge, and links of `rate_mbit` Mbit/s. Raises NotPermitted."""
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

    def remove_all(self) -> None:
        """Remove the namespaces, links and bridge that `create_all` has made."""
        for name in (*self.names, self._bridge):
            with contextlib.suppress(NotPermitted):
                _output("ip", "netns", "delete", name)


@contextlib.contextmanager
def namespaces(count: int, *, rate_mbit: int) -> Iterator[Namespaces]:
    """Simulate `count` computers during the block. Their processes must end in the block. Raises NotPermitted.

    `rate_mbit` is the rate of each link in Mbit/s.
    """
    if sys.platform != "linux" or not shutil.which("ip") or not shutil.which("tc"):
        raise NotPermitted("network namespaces need Linux with ip and tc (the package iproute2)")
    made = Namespaces(count)
    try:
        made.create_all(rate_mbit=rate_mbit)
        yield made
    finally:
        made.remove_all()


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermitted(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    return done.stdout

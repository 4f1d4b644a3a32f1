"""Computers made of network namespaces of this one, each with a rate-limited link to a bridge (Linux, as root)."""

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
    """This user may not make network namespaces on this computer; the message says why."""


class Namespaces:
    """A number of computers, counted from 0, and the bridge between them."""

    def __init__(self, count: int) -> None:
        self._bridge = f"fieldray-{os.getpid()}"
        self.names: Final = [f"{self._bridge}-{number}" for number in range(count)]

    def address(self, number: int) -> str:
        """Return the address of a computer."""
        return f"{NETWORK}.{number + 1}"

    def command(self, number: int, words: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a computer."""
        return ["ip", "netns", "exec", self.names[number], *words]

    def link(self, number: int, *, is_up: bool) -> None:
        """Cut a computer's link, or restore it."""
        _output("ip", "-n", self._bridge, "link", "set", f"to{number}", "up" if is_up else "down")

    def received_mb(self, number: int) -> float:
        """Return the megabytes that a computer received over its link."""
        counter = f"/sys/class/net/to{number}/statistics/tx_bytes"
        return int(_output("ip", "netns", "exec", self._bridge, "cat", counter)) / 2**20

    def make(self, *, rate_mbit: int) -> None:
        """Make the namespaces, links and bridge. Raises NotPermitted."""
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
        """Remove everything that `make` made."""
        for name in (*self.names, self._bridge):
            with contextlib.suppress(NotPermitted):
                _output("ip", "netns", "delete", name)


@contextlib.contextmanager
def namespaces(count: int, *, rate_mbit: int) -> Iterator[Namespaces]:
    """Make computers for the duration of the block, in which all their processes must end. Raises NotPermitted."""
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

"""The devices that can run a model: one table, which command line, settings, window, benchmarks and engine read.

To add a device, write a module with a function that takes `inference.backend.BackendOptions` and returns an
`inference.backend.BackendKind`, and add its row here. The function is named and not imported, as the services of
child processes are: the table is read while the command line is parsed, and must cost nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEntry:
    """One device.

    name           what `--device`, the settings and the stored results call it
    title          what a person reads: English, translated where it is shown
    roles          the files of a pack that it runs, by role, preferred ones first
    kind           "module:function" that makes its `BackendKind`; imported when an engine is made
    shares_cpu     whether it computes on the CPU, as the workers do
    clock_setting  the key of the setting for its clock speed, where it has one ("max" is the highest)
    """

    name: str
    title: str
    roles: tuple[str, ...]
    kind: str
    shares_cpu: bool = False
    clock_setting: str = ""


EDGE_TPU: Final = BackendEntry(
    name="edgetpu",
    title="Edge TPU",
    roles=("edgetpu",),
    kind="fieldray.inference.coral:system_kind",
    clock_setting="edgetpu_clock",
)
CPU: Final = BackendEntry(
    name="cpu", title="CPU", roles=("litert",), kind="fieldray.inference.worker:system_kind", shares_cpu=True
)


class BackendTable:
    """The rows in order of preference; the last one is the last resort."""

    def __init__(self, *entries: BackendEntry) -> None:
        self._entries = list(entries)

    def __iter__(self) -> Iterator[BackendEntry]:
        return iter(tuple(self._entries))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all devices."""
        return tuple(entry.name for entry in self._entries)

    def title(self, name: str) -> str:
        """What a person reads; the name itself where a stored result names a device that is not in the table."""
        return next((entry.title for entry in self._entries if entry.name == name), name)

    @contextlib.contextmanager
    def added(self, entry: BackendEntry) -> Iterator[None]:
        """Prefer another device to all others for a while. Raises ValueError if its name is taken."""
        if entry.name in (AUTO, *self.names):
            raise ValueError(f"there is a device {entry.name} already")
        self._entries.insert(0, entry)
        try:
            yield
        finally:
            self._entries.remove(entry)


BACKENDS: Final = BackendTable(EDGE_TPU, CPU)


def device_choices() -> tuple[str, ...]:
    """What `--device` and the settings accept: "auto" or the name of a row, as the table is now."""
    return (AUTO, *BACKENDS.names)

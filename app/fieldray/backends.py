"""The table of devices that can run a model. Command line, settings, window, benchmarks and engine read this table.

To add a device, write a module with a function that takes `inference.backend.BackendOptions` and returns an
`inference.backend.BackendKind`, and add a row for the device to this table. The row names the function as text, because
the table is read while the command line is parsed, when no large module may be imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

AUTOMATIC_DEVICE: Final = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendEntry:
    """One row of the table: a device that can run a model.

    name                        name of the device for `--device`, in the settings and in stored results
    title                       name of the device for a person, in English; translated when it is shown
    file_roles                  roles of the pack's files that the device can run, the preferred role first
    backend_kind_function_path  "module:function" that makes the device's `BackendKind`; imported when an engine is made
    computes_on_cpu             whether the device computes on the CPU, as the worker processes do
    clock_speed_setting_key     key of the setting for the clock speed, whose value "max" is the highest speed; "" if
                                the speed is fixed
    """

    name: str
    title: str
    file_roles: tuple[str, ...]
    backend_kind_function_path: str
    computes_on_cpu: bool = False
    clock_speed_setting_key: str = ""


EDGE_TPU: Final = BackendEntry(
    name="edgetpu",
    title="Edge TPU",
    file_roles=("edgetpu",),
    backend_kind_function_path="fieldray.inference.coral:make_backend_kind",
    clock_speed_setting_key="edgetpu_clock",
)
CPU: Final = BackendEntry(
    name="cpu",
    title="CPU",
    file_roles=("litert",),
    backend_kind_function_path="fieldray.inference.worker:make_backend_kind",
    computes_on_cpu=True,
)


class BackendTable:
    """The table of devices in order of preference. The last device is used if no other device works."""

    def __init__(self, *entries: BackendEntry) -> None:
        self._entries = list(entries)

    def __iter__(self) -> Iterator[BackendEntry]:
        return iter(tuple(self._entries))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all devices of the table, in order of preference."""
        return tuple(entry.name for entry in self._entries)

    def title(self, name: str) -> str:
        """Return a device's title for a person. For a device that is not in the table, return `name`."""
        return next((entry.title for entry in self._entries if entry.name == name), name)

    @contextlib.contextmanager
    def add_temporarily(self, entry: BackendEntry) -> Iterator[None]:
        """Add a device at the top of this table while the `with` block runs.

        Raises ValueError if the table already has a device with this name.
        """
        if entry.name in (AUTOMATIC_DEVICE, *self.names):
            raise ValueError(f"there is a device {entry.name} already")
        self._entries.insert(0, entry)
        try:
            yield
        finally:
            self._entries.remove(entry)


BACKENDS: Final = BackendTable(EDGE_TPU, CPU)


def device_choices() -> tuple[str, ...]:
    """Return the values that `--device` and the settings accept: "auto" and the name of each device."""
    return (AUTOMATIC_DEVICE, *BACKENDS.names)

"""Tables whose entries are found, not listed: a module put into a package adds an entry, and nothing else changes.

The modules are found through the import system (`pkgutil`), which PyInstaller's importer answers as well; listing a
folder would find nothing in the installed program. Entry points of installed distributions were rejected: any package
on the computer could then run code inside the program. A list in one module was rejected because it is a second place
to edit. An entry that lives elsewhere, in a test for example, is added by `register`.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from typing import Generic, Protocol, TypeVar


class Entry(Protocol):
    """What every table needs to know of its entries."""

    @property
    def name(self) -> str: ...


E = TypeVar("E", bound=Entry)


class Registry(Generic[E]):
    """The entries that the modules of `package` hold under the name `attribute`, and those that were registered.

    The modules are imported when the table is first read. Usable from any thread.
    """

    def __init__(self, package: str, attribute: str) -> None:
        self._package, self._attribute = package, attribute
        self._entries: dict[str, E] | None = None
        self._lock = threading.Lock()

    def entries(self) -> tuple[E, ...]:
        """All of them, by the names of their modules; then the registered ones."""
        with self._lock:
            return tuple(self._found().values())

    def named(self, name: str) -> E:
        """The entry of this name. Raises KeyError."""
        with self._lock:
            return self._found()[name]

    def register(self, entry: E) -> None:
        """Add an entry for the rest of this process. Raises ValueError where its name is taken."""
        with self._lock:
            if entry.name in self._found():
                raise ValueError(f"{entry.name} is taken")
            self._found()[entry.name] = entry

    def unregister(self, name: str) -> None:
        """Remove an entry. Raises KeyError."""
        with self._lock:
            del self._found()[name]

    def _found(self) -> dict[str, E]:
        if self._entries is None:
            package = importlib.import_module(self._package)
            names = [f"{self._package}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
            found: list[E] = [getattr(importlib.import_module(name), self._attribute) for name in sorted(names)]
            self._entries = {entry.name: entry for entry in found}
        return self._entries

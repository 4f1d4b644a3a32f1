"""Tables whose entries are found, not listed: a module put into a package adds an entry, and nothing else changes.

The modules are found through the import system (`pkgutil`), which PyInstaller's importer answers as well; listing a
folder would find nothing in the installed program. Entry points of installed distributions were rejected: any package
on the computer could then run code inside the program. A list in one module was rejected because it is a second place
to edit. An entry that lives elsewhere, in a test for example, is put into the table.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def table_of(package: str, attribute: str) -> dict[str, Any]:
    """What the modules of a package, in the order of their names, hold under an attribute; each entry by its `name`."""
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    names = sorted(f"{package}.{module.name}" for module in modules)
    entries = [getattr(importlib.import_module(name), attribute) for name in names]
    return {entry.name: entry for entry in entries}

"""Tables whose entries are discovered: each module in a package adds an entry, and no list has to be edited.

Modules are found by the import system (`pkgutil`), which also works in PyInstaller's frozen program, where listing a
folder finds nothing. Entry points of installed distributions were rejected, because any package on the computer could
then run code in this program. A list in one module was rejected, because a second file would have to be edited. A test
can add an entry to the returned table.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def discover_entries(package: str, attribute: str) -> dict[str, Any]:
    """Return the entries of a table by their `name`. Each module of a package contains one entry.

    package    full name of the package, such as `fieldray.imaging.codecs`
    attribute  name of the module attribute that contains the entry, such as `CODEC`

    Entries are in the order of module names.
    """
    modules = pkgutil.iter_modules(importlib.import_module(package).__path__)
    names = sorted(f"{package}.{module.name}" for module in modules)
    entries = [getattr(importlib.import_module(name), attribute) for name in names]
    return {entry.name: entry for entry in entries}

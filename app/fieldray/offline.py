"""This program opens no socket, whatever is installed beside it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast


def stay_offline() -> None:
    """Make `requests` unavailable in this process; to be called before anything large is imported.

    pydicom imports it, where it is installed, to be able to download test files, and importing it opens a socket
    (urllib3 asks whether the machine knows IPv6). Without it pydicom does without.
    """
    sys.modules["requests"] = cast("ModuleType", None)

"""The cores that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores this process may use, 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

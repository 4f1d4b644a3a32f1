"""How a test waits for something that nothing tells it of."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_S = 0.01


def wait_for(is_so: Callable[[], object], *, limit_s: float = 30.0) -> None:
    """Return as soon as `is_so()` is true. Raises AssertionError after `limit_s` seconds."""
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"not so after {limit_s} s"
        time.sleep(_LOOK_S)

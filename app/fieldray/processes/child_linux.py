"""The kernel ends this process with its parent, even while it is stopped and no code of its own can run.

Source: prctl(2), PR_SET_PDEATHSIG. The signal comes when the thread that started this process ends, which is why
`child.Child` starts it from a thread that stays.
"""

from __future__ import annotations

import ctypes
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """From now on the end of the thread that started this process kills it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))

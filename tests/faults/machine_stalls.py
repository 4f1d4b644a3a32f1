"""How long this machine itself lets a process wait: a process that only sleeps, beside the fault run.

`python machine_stalls.py` prints its longest naps as JSON when its input closes.
"""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
import threading
import time
from typing import Any, Final

_NAP_S: Final = 0.005
_KEPT: Final = 10


class MachineStalls:
    """Begin at birth; `end` gives the longest naps in seconds, longest first."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def end(self) -> list[float]:
        """Stop and tell."""
        answer, _ = self._process.communicate(timeout=30)
        naps: list[Any] = json.loads(answer)
        return [round(float(nap), 3) for nap in naps]


def main() -> None:
    """Sleep until the input closes."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    longest: list[float] = []
    last_s = time.perf_counter()
    while not over.is_set():
        time.sleep(_NAP_S)
        now_s = time.perf_counter()
        longest = heapq.nlargest(_KEPT, [*longest, now_s - last_s])
        last_s = now_s
    sys.stdout.write(json.dumps(longest))


if __name__ == "__main__":
    main()

"""How long this machine itself lets a process wait: a process that only sleeps, beside the fault run.

`python machine_stalls.py` prints its longest naps as JSON, beginning and end, when its input closes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.stalls import Beats, Stall

_NAP_S: Final = 0.005


class MachineStalls:
    """Begin at birth; `end` gives the longest naps, longest first."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def end(self) -> list[Stall]:
        """Stop and tell."""
        answer, _ = self._process.communicate(timeout=30)
        return [Stall(float(began_s), float(ended_s)) for began_s, ended_s in json.loads(answer)]


def main() -> None:
    """Sleep until the input closes."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    beats = Beats()
    while not over.is_set():
        time.sleep(_NAP_S)
        beats.beat()
    sys.stdout.write(json.dumps([(stall.began_s, stall.ended_s) for stall in beats.longest]))


if __name__ == "__main__":
    main()

"""The fault run by hand: `make faults`, or `python tests/faults/run_faults.py --events 1000 --seed 1`.

Prints what went wrong, writes all figures as JSON, and ends with 1 if anything did that must not.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the program's window
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.double import build_library, compiler
from faults.fault_run import FaultRun, Silence, shortcomings


def main() -> int:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1000, help="images in a batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window", action="store_true", help="also open the window, off screen")
    parser.add_argument("--out", type=Path, default=Path("build/faults.json"))
    parser.add_argument("--log", type=Path, help="write the program's log here")
    options = parser.parse_args()
    if not sys.platform.startswith("linux") or not compiler():
        say("The fault run needs Linux and a C compiler.")
        return 2
    if options.log:
        logging.basicConfig(filename=options.log, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = FaultRun(
            folder, build_library(folder), events=options.events, images=options.images, seed=options.seed, say=say
        )
        if options.window:
            from faults.window import go_with_window

            figures = go_with_window(run)
        else:
            figures = run.go(Silence(run))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    found = shortcomings(figures)
    verdict = ["NOT AS IT SHOULD BE:", *found] if found else ["All as it should be."]
    sys.stdout.write("\n".join([json.dumps(figures, indent=1), *verdict]) + "\n")
    return 1 if found else 0


def say(text: str) -> None:
    """How far it is."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

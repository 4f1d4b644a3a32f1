"""The fault run by hand: `make faults`, or `python tests/faults/run_faults.py --events 1000 --seed 1`.

Prints all figures and then the faults, and writes the figures as JSON. The exit code is 1 if there are faults.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in the program's window
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.double import build_library
from faults.fault_run import FaultRun, SilentFrontEnd, shortcomings
from harness.runner import RunResult, long_run


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this run."""
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1000, help="images in a batch")
    parser.add_argument("--window", action="store_true", help="also open the window, off screen")
    parser.add_argument("--log", type=Path, help="write the program's log here")


def run(options: argparse.Namespace) -> RunResult:
    """Perform the whole run. The result's text ends with the faults."""
    if options.log:
        logging.basicConfig(filename=options.log, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with tempfile.TemporaryDirectory() as name:
        library = build_library(Path(name))
        run = FaultRun(
            Path(name), library, events=options.events, images=options.images, seed=options.seed, say=print_progress
        )
        if options.window:
            from faults.window import go_with_window

            figures = go_with_window(run)
        else:
            figures = run.go(SilentFrontEnd(run))
    found = shortcomings(figures)
    verdict = ["NOT AS IT SHOULD BE:", *found] if found else ["All as it should be."]
    text = "\n".join([json.dumps(figures, indent=1), *verdict])
    return RunResult(facts=figures, sentence=text.replace("{", "{{").replace("}", "}}"), holds=not found)


def print_progress(text: str) -> None:
    """Print progress to standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    needs = ("Linux", "a C compiler")
    sys.exit(long_run(run, add_options, usage=__doc__, figures="build/faults.json", needs=needs))

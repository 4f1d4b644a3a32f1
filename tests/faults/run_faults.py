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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the program's window
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.double import build_library
from faults.fault_run import FaultRun, Silence, shortcomings
from fieldray.bench.report import Report
from harness.runner import Found, LongRun, table

Figures = Mapping[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much happens to how many images."""
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--images", type=int, default=1000, help="images in a batch")
    parser.add_argument("--window", action="store_true", help="also open the window, off screen")
    parser.add_argument("--log", type=Path, help="write the program's log here")


def run(options: argparse.Namespace) -> Found:
    """The whole run; what went wrong stands at the end."""
    if options.log:
        logging.basicConfig(filename=options.log, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    with tempfile.TemporaryDirectory() as name:
        library = build_library(Path(name))
        run = FaultRun(
            Path(name), library, events=options.events, images=options.images, seed=options.seed, say=say_aside
        )
        if options.window:
            from faults.window import go_with_window

            figures = go_with_window(run)
        else:
            figures = run.go(Silence(run))
    found = shortcomings(figures)
    verdict = ["NOT AS IT SHOULD BE:", *found] if found else ["All as it should be."]
    told = "\n".join([json.dumps(figures, indent=1), *verdict])
    return Found(facts=figures, sentence=told.replace("{", "{{").replace("}", "}}"), holds=not found)


def report(facts: Figures) -> Report:
    """The figures as a table for people."""
    rows = {
        "Fault events, seed": f"{facts['events']}, {facts['seed']}",
        "Images in batches": f"{facts['images']} in {facts['batches']}",
        "Images by device": ", ".join(f"{name} {number}" for name, number in facts["images_by_backend"].items()),
        "Lost, done twice, not screened": ", ".join(
            str(facts[f"images_{name}"]) for name in ("lost", "done_twice", "not_screened")
        ),
        "Wrong device on a result": facts["wrong_backends"],
        "Largest difference of a score from the CPU's": f"{facts['largest_score_difference']:g}",
        "Unplugged to next result, beyond the deadline": _spread(facts["unplug_to_cpu_beyond_deadline_s"]),
        "Plugged to first result on the Edge TPU, which takes 1 s to open": _spread(facts["plug_to_edgetpu_s"]),
        "Longest time without a result meanwhile": _spread(facts["longest_pause_while_opening_s"]),
        "Longest stall of the window": _longest(facts["window_stalls_s"]),
        "The same, less what a process that only sleeps stalled then": _longest(
            facts["window_stalls_beyond_machine_s"]
        ),
        "Longest stall of a process that only sleeps": _longest(facts["machine_stalls_s"]),
        "Processes and threads left": len(facts["left_behind"]),
        "Memory, first and last third of the batches": f"{facts['memory_mb']} MB",
    }
    columns = {"": lambda row: row[0], "found": lambda row: row[1]}
    blocks = (table("What came of it", rows.items(), columns),)
    return Report(kind="faults", title="Fieldray: an Edge TPU that comes and goes", blocks=blocks, data=dict(facts))


def _spread(times: Mapping[str, float]) -> str:
    if not times["n"]:
        return "not measured"
    return f"median {times['p50']:.2f}, 95 % {times['p95']:.2f}, longest {times['max']:.2f} s (n = {times['n']})"


def _longest(stalls_s: Sequence[float]) -> str:
    return f"{1000 * max(stalls_s):.0f} ms" if stalls_s else "not measured"


def say_aside(text: str) -> None:
    """How far it is."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    faults = LongRun(
        script="tests/faults/run_faults.py",
        usage=__doc__,
        options=add_options,
        run=run,
        figures="build/faults.json",
        needs=("Linux", "a C compiler"),
        subject="fault-events",
        measured=("app/fieldray/inference", "app/fieldray/pipeline", "app/fieldray/workers", "tests/faults"),
        report=report,
    )
    sys.exit(faults.main())

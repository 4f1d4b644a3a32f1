"""The figures of a fault run as a table for people: `python figures_table.py FILE...` prints Markdown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Figures = Mapping[str, Any]


def _spread(name: str) -> Callable[[Figures], str]:
    def text(figures: Figures) -> str:
        times = figures[name]
        if not times["n"]:
            return "not measured"
        return f"{times['p50']:.2f} / {times['p95']:.2f} / {times['max']:.2f} s (n = {times['n']})"

    return text


def _milliseconds(name: str) -> Callable[[Figures], str]:
    return lambda figures: f"{1000 * max(figures[name]):.0f} ms" if figures[name] else "not measured"


ROWS: Final[Sequence[tuple[str, Callable[[Figures], str]]]] = (
    ("Accidents, seed", lambda f: f"{f['events']}, {f['seed']}"),
    ("Images in batches", lambda f: f"{f['images']} in {f['batches']}"),
    ("Images on the processor, on the Edge TPU", lambda f: " + ".join(str(n) for n in f["images_by_backend"].values())),
    (
        "Lost, done twice, not screened",
        lambda f: f"{f['images_lost']}, {f['images_done_twice']}, {f['images_not_screened']}",
    ),
    ("Wrong device on a result", lambda f: str(f["wrong_backends"])),
    ("Largest difference of a score from the processor's", lambda f: f"{f['largest_score_difference']:g}"),
    (
        "Unplugged to next result, beyond the deadline (median / 95 % / longest)",
        _spread("unplug_to_cpu_beyond_deadline_s"),
    ),
    ("Plugged to first result on the Edge TPU, which takes 1 s to open", _spread("plug_to_edgetpu_s")),
    ("Longest time without a result meanwhile", _spread("longest_pause_while_opening_s")),
    ("Longest stall of the window", _milliseconds("window_stalls_s")),
    ("The same, less what a process that only sleeps stalled then", _milliseconds("window_stalls_beyond_machine_s")),
    ("Longest stall of a process that only sleeps, on the same machine", _milliseconds("machine_stalls_s")),
    ("Processes and threads left", lambda f: str(len(f["left_behind"]))),
    (
        "Memory, first and last third of the batches",
        lambda f: f"{f['memory_mb']['first']:.0f} and {f['memory_mb']['last']:.0f} MB",
    ),
)


def table(runs: Sequence[Figures]) -> str:
    """Markdown, a column a run."""
    lines = ["| |" + " |" * len(runs), "|---|" + "---|" * len(runs)]
    lines += [f"| {name} | " + " | ".join(value(figures) for figures in runs) + " |" for name, value in ROWS]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table([json.loads(Path(name).read_text()) for name in sys.argv[1:]]) + "\n")

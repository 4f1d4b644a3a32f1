"""Everything that was once tried against the program, again: `make attack`, or

    python tests/attack/run_attack.py [--only PART] [--program PATH] [--list]

One line a case; figures in build/attack.json; ends with 1 if any case failed. See docs/attack.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the benchmarks write files of every kind

from attack.runner import exit_code, figures, program_command, try_all
from attack.table import CASES
from long_run import say, write_figures


def main() -> int:
    """Run as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        action="append",
        metavar="PART",
        help="only cases with this in their name; can be given more than once",
    )
    parser.add_argument("--program", type=Path, help="the installed or frozen program (default: this checkout's)")
    parser.add_argument("--jobs", type=int, default=2, help="how many cases run at a time (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("build/attack.json"))
    parser.add_argument("--list", action="store_true", help="only list the cases")
    options = parser.parse_args()
    if sys.platform != "linux":
        say("The attack run needs Linux.")
        return 2
    cases = [case for case in CASES if not options.only or any(part in case.name for part in options.only)]
    if options.list:
        for case in cases:
            say(f"{case.name:<38} {case.tried}")
        return 0
    began_s = time.monotonic()
    program = program_command(options.program)
    results = try_all(cases, program, say=say, at_once=options.jobs)
    found = figures(results, seconds=time.monotonic() - began_s, program=program)
    write_figures(options.out, found)
    counts = "  ".join(f"{name} {number}" for name, number in found["counts"].items())
    say(f"{len(results)} cases in {found['seconds']:.0f} s: {counts}")
    return exit_code(results)


if __name__ == "__main__":
    sys.exit(main())

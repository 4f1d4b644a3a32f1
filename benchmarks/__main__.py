"""`python -m benchmarks`, from the root of a checkout: what developers measure and clinics do not."""

from __future__ import annotations

import sys

from fieldray.offline import stay_offline


def main() -> int:
    """Run one command; returns the exit code."""
    stay_offline()
    from benchmarks.command_line import run  # only now: nothing is imported that the guard has not seen

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks`, from the root of a checkout: what developers measure and clinics do not."""

from __future__ import annotations

import sys

from fieldray.offline import stay_offline


def main() -> int:
    """Run one command; returns the exit code."""
    # The kernel's filter would hold for the processes of a cluster, too, which begin with a guard of their own.
    stay_offline(is_toolchain=sys.argv[1:2] == ["cluster"])
    from benchmarks.command_line import run  # only now: nothing is imported that the guard has not seen

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

"""The command `python -m benchmarks`: measurements for developers. Run it in the root folder of a checkout."""

from __future__ import annotations

import sys
from typing import Final

from fieldray.offline import stay_offline

_TOOLCHAIN: Final = {"cluster", "networks", "shaped-links"}
"""Commands that train or convert networks, in this process or in several connected processes."""

_JOINS_CLUSTER: Final = {"object-training", "objects", "real-training"}
"""Commands that connect this process to other processes over sockets."""


def main() -> int:
    """Run the benchmark that the command line names. Returns the exit code."""
    stay_offline(
        is_toolchain=not _TOOLCHAIN.isdisjoint(sys.argv[1:2]),
        joins_cluster=not _JOINS_CLUSTER.isdisjoint(sys.argv[1:2]),
    )
    from benchmarks.command_line import run  # imported after the offline guard

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

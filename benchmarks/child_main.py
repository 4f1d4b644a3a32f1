"""The entry point of a child process of the benchmarks: `benchmarks.child_main MODULE:FUNCTION [toolchain]`.

With the word `toolchain`, the process may import modules that TensorFlow needs (see `stay_offline`).
"""

from __future__ import annotations

import sys

from fieldray.offline import stay_offline


def main() -> int:
    """Answer messages with the function MODULE:FUNCTION of this package until standard input closes.

    Returns the exit code.
    """
    stay_offline(is_toolchain=sys.argv[2:] == ["toolchain"])
    from fieldray.processes.serving import serve  # imported after the offline guard

    return serve(sys.argv[1], package="benchmarks")

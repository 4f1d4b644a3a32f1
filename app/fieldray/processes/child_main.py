"""Entry point of a child process, started as `python -m fieldray.processes.child_main MODULE:FUNCTION`."""

from __future__ import annotations

import sys

from fieldray.offline import stay_offline


def main(arguments: list[str] | None = None) -> int:
    """Answer messages of the parent process until standard input closes. Returns the exit code of the process.

    arguments  a list with `module:function`, the function that answers; None for the command line of this process
    """
    stay_offline()
    from fieldray.processes.serving import serve  # imported only now, so that the network guard sees every import

    return serve((sys.argv[1:] if arguments is None else arguments)[0])


if __name__ == "__main__":
    sys.exit(main())

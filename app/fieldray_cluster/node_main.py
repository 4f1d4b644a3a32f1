"""The entry point of a cluster process: `fieldray_cluster.node_main SETTINGS`, with the settings as JSON."""

from __future__ import annotations

import sys

from fieldray.offline import stay_offline


def main(arguments: list[str] | None = None) -> int:
    """Run a scheduler or a worker until standard input closes. The argument is the settings as JSON.

    Returns the exit code.
    """
    stay_offline(joins_cluster=True)
    from fieldray.typed_json import parse_json
    from fieldray_cluster.node import NodeSettings, run_until_input_ends  # imported after the offline guard

    text = (sys.argv[1:] if arguments is None else arguments)[0]
    return run_until_input_ends(parse_json(text, NodeSettings))


if __name__ == "__main__":
    sys.exit(main())

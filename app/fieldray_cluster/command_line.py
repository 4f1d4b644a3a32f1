"""The commands `archive`, `cluster` and `workflow`, and which of their subcommands may use the computer network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

COMMANDS: Final[Mapping[str, str]] = {
    "archive": "screen an archive with several processes or computers",
    "cluster": "run a cluster of several computers",
    "workflow": "run experiments and sweeps on one computer or a cluster",
}
IS_TOOLCHAIN: Final = False
# Subcommands that connect to a cluster. All others stay offline.
_CLUSTERED: Final = frozenset(
    {
        ("archive", "screen"),
        ("cluster", "start"),
        ("cluster", "join"),
        ("cluster", "status"),
        ("cluster", "stop"),
        ("workflow", "run"),
        ("workflow", "sweep"),
    }
)


def joins_cluster(arguments: Sequence[str]) -> bool:
    """Return whether the command on a command line connects to the processes of a cluster."""
    return tuple(arguments[:2]) in _CLUSTERED


def register_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands `archive`, `cluster` and `workflow` with all options to a parser."""
    from fieldray_cluster.commands import archive, cluster, workflow

    archive.register_commands(commands, COMMANDS["archive"])
    cluster.register_commands(commands, COMMANDS["cluster"])
    workflow.register_commands(commands, COMMANDS["workflow"])

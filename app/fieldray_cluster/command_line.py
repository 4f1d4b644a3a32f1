"""The commands `archive`, `cluster` and `workflow`, and which of their command lines may use the computer network."""

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


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the commands `archive`, `cluster` and `workflow` with all options to a parser."""
    from fieldray_cluster.commands import archive, cluster, workflow

    archive.add_to(commands, COMMANDS["archive"])
    cluster.add_to(commands, COMMANDS["cluster"])
    workflow.add_to(commands, COMMANDS["workflow"])
